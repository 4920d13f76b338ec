"""The page and the picture of what the bench has found."""

import math
import os
import statistics

# Student's t, two-sided 95 %, by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31}
PANEL = (230, 190)
COLOURS = {
    "alone": "#000000", "none": "#d62728", "shares": "#ff7f0e", "cpu.idle": "#bcbd22", "static quota": "#8c564b",
    "cpu-suppress": "#9467bd", "heracles": "#17becf", "parties": "#e377c2", "slackline": "#1f77b4",
}


def interval(values):
    """Mean and the half width of a 95 % t interval."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None
    return mean, T95.get(len(values) - 1, 2.26) * statistics.stdev(values) / math.sqrt(len(values))


def shown(values, digits):
    values = [value for value in values if value is not None]
    if not values:
        return "–"
    mean, half = interval(values)
    return f"{mean:.{digits}f}" + ("" if half is None else f" ± {half:.{digits}f}")


def percents(values):
    return [None if value is None else 100 * value for value in values]


def pooled(runs):
    kept, windows = sum(run["kept"] for run in runs), sum(run["windows"] for run in runs)
    return f"{kept} of {windows}"


def beside(part, policies):
    lines = [
        "| policy | ramps kept | windows kept | kept, % | p99, ms | batch, cores | machine used, % | controller, % of a core |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for policy in policies:
        runs = [run for run in part["runs"] if run["policy"] == policy]
        if not runs:
            continue
        get = lambda key: [run.get(key) for run in runs]
        columns = [
            f"{ramps(part, runs)} of {len(runs)}",
            pooled(runs),
            shown([100 * run["kept"] / run["windows"] for run in runs], 0),
            shown(get("p99_ms"), 2),
            shown(get("cores"), 2),
            shown(percents(get("used")), 0),
            shown(percents(get("own_cores")), 2),
        ]
        lines.append(f"| {policy} | {' | '.join(columns)} |")
    return lines


def ramps(part, runs):
    """Runs whose p99 over the whole ramp is within the objective."""
    return sum(run["p99_ms"] <= part["objective_ms"] for run in runs)


def verdict(part, policies):
    """Who kept the objective and did the most batch work, and how slackline compares."""
    share, cores, half = {}, {}, {}
    for policy in policies:
        runs = [run for run in part["runs"] if run["policy"] == policy]
        if runs:
            share[policy] = sum(run["kept"] for run in runs) / sum(run["windows"] for run in runs)
            cores[policy], half[policy] = interval([run.get("cores") or 0.0 for run in runs])
    own = "slackline"
    if own not in share:
        return []
    keepers = [name for name in share if name not in ("alone", own) and share[name] >= min(0.99, share.get("alone", 1.0))]
    kept = "kept" if share[own] >= min(0.99, share.get("alone", 1.0)) else "**missed**"
    text = f"slackline {kept} the objective ({100 * share[own]:.0f} % of windows) with {cores[own]:.2f} cores of batch work."
    if keepers:
        best = max(keepers, key=lambda name: cores[name])
        # Of one repeat nothing is known: then the other's interval stands for both.
        widths = [half[own] or half[best], half[best] or half[own]]
        if None in widths or abs(cores[own] - cores[best]) <= math.hypot(*widths):
            text += f" The best of the other policies that kept the objective is {best}, with {cores[best]:.2f} cores: no difference shown."
        else:
            word = "more" if cores[own] > cores[best] else "**less**"
            text += f" This is {word} batch work than with {best}, the best of the other policies that kept the objective ({cores[best]:.2f})."
    elif any(name not in ("alone", own) for name in share):
        text += " No other policy kept the objective."
    return ["", text]


def reserved(parts):
    machine = ", ".join(dict.fromkeys(part["machine"] for part in parts.values()))
    lines = [
        "", "## Reserved cores given back", "",
        "Nothing else runs. *Reserved* is the quota in force, on average. *VPA's rule* is the 90th percentile of the service's use in",
        "the run without a limit of the same repeat, plus 15 %, as a fixed quota. The *static quota* is one core.",
        "", f"Measured on {machine}.",
        "", "| service | policy | windows kept | p99, ms | used, cores | reserved, cores | against VPA's, % | controller, % of a core |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for service, part in parts.items():
        by_repeat = {run["repeat"]: run["reserved_cores"] for run in part["runs"] if run["policy"] == "vpa"}
        for policy, name in (("none", "no limit"), ("vpa", "VPA's rule"), ("static quota",) * 2, ("autothrottle",) * 2, ("slackline",) * 2):
            runs = [run for run in part["runs"] if run["policy"] == policy]
            if not runs:
                continue
            against = [100 * (run["reserved_cores"] / by_repeat[run["repeat"]] - 1) for run in runs if run["repeat"] in by_repeat]
            get = lambda key: [run.get(key) for run in runs]
            columns = [
                pooled(runs), shown(get("p99_ms"), 2), shown(get("used_cores"), 2), shown(get("reserved_cores"), 2),
                shown(against, 0), shown(percents(get("own_cores")), 2),
            ]
            lines.append(f"| {service} | {name} | {' | '.join(columns)} |")
    return lines


def reaction(part):
    lines = [
        "", "## Reaction to a step", "",
        "Windows of a quarter of a second, 8 s from the step. *Within after* is the time from the step to the first whole second that is",
        f"within the objective, in each run. Measured on {part['machine']}.",
        "", "| service | step | policy | within after, s | windows above the objective |", "|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((run["service"], run["step"], run["policy"]) for run in part["runs"])
    for key in keys:
        runs = [run for run in part["runs"] if (run["service"], run["step"], run["policy"]) == key]
        times = ", ".join("never" if run["settled_s"] is None else f"{run['settled_s']:.2f}" for run in runs)
        above = ", ".join(f"{run['above']} of {run['of']}" for run in runs)
        lines.append(f"| {' | '.join(key)} | {times} | {above} |")
    return lines


def kills(part):
    lines = [
        "", "## Kills", "",
        "`kill -9` at a random moment of the first three seconds. *As it was*: every group that `isolate` made is gone within",
        f"10 s. Where both are killed, `slackline restore` was run. Measured on {part['machine']}.",
        "", "| killed | times | as it was |", "|---|---|---|",
    ]
    for whom in dict.fromkeys(run["killed"] for run in part["runs"]):
        good = [run["good"] for run in part["runs"] if run["killed"] == whom]
        lines.append(f"| {whom} | {len(good)} | {sum(good)} |")
    return lines


def simulated(part):
    lines = [
        "", "## Simulated: 36 cores", "",
        "Nothing in this part was measured. The controllers ran on a model of two sockets of 18 cores with a search service, for two hours",
        "at a steady load. An *antagonist* is a batch program that disturbs the service: the table has the six of the Heracles paper. A load",
        "of 25 % is a quarter of the service's peak load. A cell has two shares:",
        "",
        "- *above*: the share of windows of 15 s above the objective. The first window, before the first decision, is always above: 0.2 %.",
        "- *used*: the effective machine utilisation. This is the sum of two shares: the service's load as a share of its peak load, and the",
        "  batch work as a share of what it does alone on the machine. The service's peak load uses only 30 of the 36 cores, so more than",
        "  100 % is possible.",
        "", "| antagonist | policy | load 25 % | load 50 % | load 70 % |", "|---|---|---|---|---|",
    ]
    for row in part["rows"]:
        cells = [f"{100 * violated:.1f} % above, {100 * use:.0f} % used" for violated, use in row["at"].values()]
        lines.append(f"| {row['antagonist']} | {row['policy']} | {' | '.join(cells)} |")
    lines += [
        "",
        "Heracles' paper reports a utilisation above 90 %, with every window within the objective. On this model Heracles stays below 90 % at",
        "every load. The reason at low load: one core more for the batch work lowers the slack from above 0.10 to below 0.05. With a slack",
        "below 0.05, the paper's rule leaves only two cores to the batch work. So the batch work's number of cores rises and falls again and again.",
        "",
        "The next table has the best result that any search over settings could find (CLITE is such a search). For this, every setting of",
        "cores or quota, cache ways, frequency and network bandwidth was tried on the model, without noise. A cell has two shares: the",
        "highest *used* share within the objective with `cpu.idle` and a quota alone, and the highest one with every setting.",
        "", "| antagonist | load 25 % | load 50 % | load 70 % |", "|---|---|---|---|",
        *[
            f"| {row['antagonist']} | " + " | ".join(f"{100 * quota:.0f} %, {100 * most:.0f} %" for quota, most in row["most"].values()) + " |"
            for row in part["rows"] if row.get("most")
        ],
        "",
        "Where the two shares differ, the network is the scarce resource. `slackline` shares the link by a rule, without a search.",
        "",
        "Without batch work, the policy `pegasus` lowers the power limit of the machine:",
        "", "| load | power without a limit, W (simulated) | with pegasus, W (simulated) | saved | windows above the objective |",
        "|---|---|---|---|---|",
    ]
    for load, (full, _), (capped, violated) in part["power"]:
        saved = 100 * (1 - capped / full)
        lines.append(f"| {100 * load:.0f} % | {full:.0f} | {capped:.0f} | {saved:.0f} % | {100 * violated:.1f} % |")
    return lines


def picture(measured, policies):
    """A panel for each service and antagonist: batch work to the right, windows kept upwards."""
    width, height = PANEL
    panels = [(key, part) for key, part in sorted(measured.items()) if part["runs"]]
    columns = min(3, max(1, len(panels)))
    rows = math.ceil(len(panels) / columns)
    total = (columns * width + 20, rows * height + 40)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total[0]}" height="{total[1]}" font-family="sans-serif" font-size="10">',
        f'<rect width="{total[0]}" height="{total[1]}" fill="white"/>',
    ]
    for index, (key, part) in enumerate(panels):
        left, top = 10 + index % columns * width + 32, index // columns * height + 22
        wide, high = width - 50, height - 55
        runs = part["runs"]
        most = max([run.get("cores") or 0.0 for run in runs] + [0.1]) * 1.1
        out.append(f'<text x="{left}" y="{top - 8}" font-weight="bold">{key}</text>')
        out.append(f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#bbb"/>')
        for share in (0, 50, 100):
            y = top + high * (1 - share / 105)
            out.append(f'<text x="{left - 4}" y="{y + 3:.0f}" text-anchor="end">{share} %</text>')
        out.append(f'<text x="{left}" y="{top + high + 12}">0</text>')
        out.append(f'<text x="{left + wide}" y="{top + high + 12}" text-anchor="end">{most:.1f} cores of batch work</text>')
        for policy in policies:
            mine = [run for run in runs if run["policy"] == policy]
            if not mine or policy == "alone":
                continue
            share = 100 * sum(run["kept"] for run in mine) / sum(run["windows"] for run in mine)
            cores = statistics.mean(run.get("cores") or 0.0 for run in mine)
            x, y = left + wide * cores / most, top + high * (1 - share / 105)
            out.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{COLOURS[policy]}"/>')
    x = 20
    for policy in policies:
        if policy != "alone" and any(run["policy"] == policy for _, part in panels for run in part["runs"]):
            out.append(f'<circle cx="{x}" cy="{total[1] - 10}" r="4" fill="{COLOURS[policy]}"/>')
            out.append(f'<text x="{x + 7}" y="{total[1] - 7}">{policy}</text>')
            x += 22 + 6 * len(policy)
    return "\n".join(out + ["</svg>"]) + "\n"


def write(found, out, policies):
    lines = [
        "# Isolation: services beside batch work",
        "",
        "`cargo xtask bench isolate` makes this page. A *repeat* is one run of each policy, in random order. In a run, the load goes from a",
        "fifth of its peak to the peak and back. Before that, the load stays at a fifth for some seconds, which are not counted. A heading",
        "names the service and the batch work: *cpu* is `stress-ng` with a busy loop on each CPU. *mixed* is all batch work of",
        "the bench at once: busy loops, memory, disk and network by `stress-ng`, a video encoder (ffmpeg), a compiler (cc -O3) and a",
        "compressor (zstd). Intervals are 95 % t intervals over repeats. A figure without an interval comes from one repeat.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| ramps kept | the number of runs in which the p99 of the whole ramp is within the objective |",
        "| windows kept | the number of windows in which the p99 is within the objective. The load generator measures the p99 from the scheduled arrival |",
        "| batch, cores | CPU time that the batch work used, in cores |",
        "| machine used, % | share of the machine's CPUs that were in use. The load generator's use counts, too |",
        "| controller, % of a core | CPU time of the controller itself |",
        "",
        "| policy | meaning |",
        "|---|---|",
        "| alone | the service without batch work and without a controller |",
        "| none | batch work, and no setting is changed |",
        "| shares | batch work with the CPU weight 1 |",
        "| cpu.idle | batch work with `cpu.idle = 1` |",
        "| static quota | batch work with a CPU quota of 0.3 of the machine's cores |",
        "",
        "[isolate](../isolate.md) explains the other policies.",
    ]
    measured = {key: part for key, part in found.get("measured", {}).items() if part["runs"]}
    if measured:
        lines += ["", "![batch work and windows kept](isolate.svg)"]
        with open(os.path.join(out, "isolate.svg"), "w") as file:
            file.write(picture(measured, policies))
    for key, part in sorted(measured.items()):
        lines += [
            "", f"## {key}", "",
            f"Objective p99 {part['objective_ms']} ms, peak {part['rate']:.0f} requests/s, {part['seconds']:.0f} s a run after "
            f"{part['warm_s']:.0f} s, windows of {part['window_s']:.0f} s, {part['machine']}. {part.get('note', '')}".rstrip(),
            "", *beside(part, policies), *verdict(part, policies),
        ]
    given_back = {service: part for service, part in found.get("reserved", {}).items() if part["runs"]}
    if given_back:
        lines += reserved(given_back)
    if found.get("reaction", {}).get("runs"):
        lines += reaction(found["reaction"])
    if found.get("kills", {}).get("runs"):
        lines += kills(found["kills"])
    if "simulated" in found:
        lines += simulated(found["simulated"])
    with open(os.path.join(out, "isolate.md"), "w") as file:
        file.write("\n".join(lines) + "\n")
