"""Makes the table and the picture of what run.py kept.

    report.py LINES OUT_DIR     writes OUT_DIR/tuners.md, tuners.json and tuners.svg
"""

import json
import os
import platform
import random
import sys
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import kept

PACKAGES = ["optuna", "smac", "ax-platform", "botorch", "torch", "bayesian-optimization", "egobox", "scikit-learn", "numpy"]
RESAMPLES = 4000
# A mean of fewer runs says nothing.
SEEDS_MIN = 15


# Measured by others, on tables that stay held out: this bench cannot compute it anew.
OTHER_SYSTEMS = [
    "These problems were used to develop Slackline's optimiser. Tables of ten other systems were not used. On these, Slackline is level with the",
    "best peers, not ahead. The table has the geometric mean of the regret over these ten tables, in % of the optimum:",
    "",
    "| tool | 20 evaluations | 40 evaluations |",
    "|---|---|---|",
    "| Slackline | 10.8 % | 6.8 % |",
    "| Optuna's GP sampler | 10.5 % | 6.3 % |",
    "| bayesian-optimization, UCB | 10.9 % | 6.7 % |",
    "| Optuna's TPE | 12.6 % | 8.5 % |",
    "",
    "Slackline's regret is the lowest on 4 of the ten tables at 20 evaluations, and on 3 at 40.",
    "",
    "The problems of this bench (*n* is the number of evaluations):",
]


def mean(values):
    return sum(values) / len(values)


def interval(values):
    """95 % of the bootstrap means."""
    rng = random.Random(1)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]


def version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cpu():
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def reached(runs, problem, tool, at):
    """The regret after so many evaluations, by seed; some runs end sooner."""
    return {seed: run[at] for seed, run in runs.get((problem, tool), {}).items() if at in run}


def main():
    lines_path, out = Path(sys.argv[1]), Path(sys.argv[2])
    runs = defaultdict(dict)
    asks, crashes, errors, too_slow = defaultdict(list), defaultdict(list), defaultdict(set), {}
    for line in kept.read(lines_path):
        key = line["problem"], line["tool"]
        if "too_slow" in line:
            too_slow[key] = line["too_slow"]
            continue
        if "error" in line:
            errors[key].add(line["seed"])
            continue
        runs[key][line["seed"]] = {int(at): regret for at, regret in line["regrets"].items()}
        # Runs beside other work keep no time.
        if "ask_median_s" in line:
            asks[line["tool"]].append(line["ask_median_s"])
        crashes[key].append(line["crashed"])
    # Of a short trial as many as there are.
    enough = min(SEEDS_MIN, max(len(seeds) for seeds in runs.values()))
    problems = list(dict.fromkeys(problem for problem, _ in runs))
    known = sorted(dict.fromkeys(tool for _, tool in runs), key=lambda tool: tool != "slackline")
    tools = [tool for tool in known if any(len(of) >= enough for (_, name), of in runs.items() if name == tool)]
    waiting = [tool for tool in known if tool not in tools]
    rows, cells = [], []
    for problem in problems:
        for at in sorted({at for (name, _), seeds in runs.items() if name == problem for s in seeds.values() for at in s}):
            row, ours = {}, reached(runs, problem, "slackline", at)
            for tool in tools:
                seeds = reached(runs, problem, tool, at)
                values = [seeds[seed] for seed in sorted(seeds)]
                if len(values) < enough:
                    continue
                low, high = interval(values)
                cell = dict(problem=problem, evaluations=at, tool=tool, seeds=len(values), regret=mean(values), low=low, high=high)
                differences = [seeds[seed] - ours[seed] for seed in seeds if seed in ours]
                if tool != "slackline" and len(differences) > 1:
                    less, more = interval(differences)
                    cell["verdict"] = "behind" if less > 0 else "ahead" if more < 0 else "even"
                    cell["difference"] = mean(differences)
                cells.append(cell)
                row[tool] = cell
            rows.append((problem, at, row))
    machine = dict(
        cpu=cpu(),
        cores=os.cpu_count(),
        kernel=platform.release(),
        machine=platform.machine(),
        python=platform.python_version(),
        packages={package: version(package) for package in PACKAGES if version(package)},
    )
    out.mkdir(parents=True, exist_ok=True)
    (out / "tuners.json").write_text(
        json.dumps(dict(machine=machine, cells=cells, ask_median_s={t: mean(a) for t, a in asks.items()}), indent=1) + "\n"
    )
    text = ["# The optimiser against its peers, with the same random noise", ""]
    text += [
        "Mean regret of the *recommended* configuration: 0 is the optimum, 1 is a median configuration. [What was measured](README.md#tuners)",
        "explains the problems. Every tool starts at the same configuration, and the n-th measurement of every tool has the same random noise.",
        "",
        "| mark | meaning |",
        "|---|---|",
        "| ↑ | worse than Slackline with 95 % confidence (paired by seed, bootstrap) |",
        "| ↓ | better than Slackline, in the same sense |",
        "| no mark | no difference shown |",
        "| **bold** | the lowest of the row. Not all tools have all seeds, so the mean differences to Slackline decide, on the seeds that both have |",
        "| – | not run, or on too few seeds |",
        "",
        *OTHER_SYSTEMS,
        "",
        "| problem | n | " + " | ".join(tools) + " |",
        "|---|---|" + "---|" * len(tools),
    ]
    for problem, at, row in rows:
        lowest = min(row.values(), key=lambda cell: cell.get("difference", 0.0))
        shown = []
        for tool in tools:
            cell = row.get(tool)
            if cell is None:
                shown.append("–")
                continue
            number = f"{cell['regret']:.3f}"
            mark = {"behind": " ↑", "ahead": " ↓"}.get(cell.get("verdict"), "")
            shown.append((f"**{number}**" if cell is lowest else number) + mark)
        text.append(f"| {problem} | {at} | " + " | ".join(shown) + " |")
    text += ["", "Elapsed time of an ask (the median of each run, then the mean over all runs): " + ", ".join(f"{tool} {1000 * mean(asks[tool]):.1f} ms" for tool in tools) + "."]
    seeds = sorted({len(run) for (_, tool), run in runs.items() if tool in tools and len(run) >= enough})
    text += ["", f"{seeds[0]} to {seeds[-1]} seeds. {machine['cores']} cores ({machine['cpu']}), Linux {machine['kernel']}, Python {machine['python']}.", ""]
    text += [f"- {name} {number}" for name, number in machine["packages"].items()] + [""]
    if waiting:
        text.append(f"- Not yet run on {enough} seeds, and left out: {', '.join(waiting)}.")
    for (problem, tool), seeds in errors.items():
        text.append(f"- {tool} failed on {problem} with {len(seeds)} seed{'s' * (len(seeds) > 1)}. The table has its other runs.")
    for (problem, tool), after in too_slow.items():
        seeds = len(runs.get((problem, tool), {}))
        text.append(f"- {tool} " + (f"has only {seeds} seeds" if seeds >= enough else "is left out") + f" of {problem}, because a run takes too long: {after}.")
    for (problem, tool), seeds in runs.items():
        last = [max(run) for run in seeds.values()]
        if tool in tools and len(set(last)) > 1:
            shorter = [at for at in last if at < max(last)]
            text.append(f"- {tool} ended at {max(shorter)} evaluations on {len(shorter)} of its {len(last)} seeds of {problem}.")
    crashing = sorted({problem for (problem, _), counts in crashes.items() if sum(counts)})
    if crashing:
        text += ["", "Number of crashed evaluations of a run, on average:", "", "| problem | " + " | ".join(tools) + " |", "|---|" + "---|" * len(tools)]
        for problem in crashing:
            shown = [f"{mean(crashes[problem, tool]):.1f}" if (problem, tool) in crashes else "–" for tool in tools]
            text.append(f"| {problem} | " + " | ".join(shown) + " |")
    (out / "tuners.md").write_text("\n".join(text) + "\n")
    picture(problems, tools, cells, out / "tuners.svg")


def picture(problems, tools, cells, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "slackline"
    from matplotlib import pyplot

    columns = 4
    rows = -(-len(problems) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.6 * columns, 2.8 * rows), squeeze=False)
    flat = [axis for line in axes for axis in line]
    for axis, problem in zip(flat, problems):
        for tool in tools:
            of = [cell for cell in cells if cell["problem"] == problem and cell["tool"] == tool]
            of.sort(key=lambda cell: cell["evaluations"])
            style = dict(linewidth=2.4, color="black", zorder=5) if tool == "slackline" else dict(linewidth=1.0, alpha=0.8)
            axis.plot([c["evaluations"] for c in of], [max(c["regret"], 1e-4) for c in of], marker=".", label=tool, **style)
        axis.set_title(problem, fontsize=9)
        axis.set_yscale("log")
        axis.tick_params(which="both", labelsize=7)
    for axis in flat[len(problems):]:
        axis.axis("off")
    flat[0].set_ylabel("mean regret", fontsize=8)
    flat[0].set_xlabel("evaluations", fontsize=8)
    figure.legend(*flat[0].get_legend_handles_labels(), loc="lower center", ncol=len(tools), fontsize=8)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
