"""Makes the table of what run.py kept of warm starts (earlier.py).

    warm_start.py LINES OUT_DIR     writes OUT_DIR/warm-start.md
"""

import os
import platform
import sys
from collections import defaultdict
from pathlib import Path

import kept
from earlier import AFTER, EVALUATIONS
from report import cpu, interval, mean

ALONE = "slackline"


def main():
    lines, out = Path(sys.argv[1]), Path(sys.argv[2])
    runs = defaultdict(dict)
    for line in kept.read(lines):
        if "regrets" in line:
            for at, regret in line["regrets"].items():
                runs[line["problem"], int(at), line["tool"]][line["seed"]] = regret
    rows = list(dict.fromkeys((problem, at) for problem, at, _ in runs))
    # The same seeds in every column.
    seeds = {row: sorted(set.intersection(*(set(runs[(*row, tool)]) for tool in (ALONE, *AFTER)))) for row in rows}
    rows = [row for row in rows if len(seeds[row]) > 1]
    text = [
        "# Warm starts",
        "",
        f"Mean regret of the configuration that Slackline recommends, without and with an earlier experiment of {EVALUATIONS} evaluations on the same space. 0 is the",
        "optimum, 1 is a median configuration. The problems are those of [`tuners.md`](tuners.md), and *n* is the number of evaluations.",
        "",
        "| column | the earlier experiment (`xtask/bench/tuners/earlier.py`) |",
        "|---|---|",
        "| without | none |",
        "| after same | the same problem, with other random noise |",
        "| after version | an older version of the problem, in which the parameters have other effects, too |",
        "| after elsewhere | misleading: a problem of the same space whose optimum is elsewhere |",
        "| after upside down | misleading: the opposite problem, whose best configuration is the worst one here |",
        "",
        "↓: better than *without* with 95 % confidence (paired by seed, bootstrap). ↑: worse than *without*. No mark: no difference shown.",
        "The means of the last three rows have no marks.",
        "",
        "| problem | n | without | " + " | ".join(name.replace("-", " ", 1).replace("-", " ") for name in AFTER) + " |",
        "|---|---|---|" + "---|" * len(AFTER),
    ]
    totals = defaultdict(list)
    for problem, at in rows:
        of = seeds[problem, at]
        alone = runs[problem, at, ALONE]
        shown = [f"{mean([alone[seed] for seed in of]):.3f}"]
        totals[at, ALONE].append(mean([alone[seed] for seed in of]))
        for tool in AFTER:
            after = runs[problem, at, tool]
            low, high = interval([after[seed] - alone[seed] for seed in of])
            value = mean([after[seed] for seed in of])
            totals[at, tool].append(value)
            shown.append(f"{value:.3f}" + (" ↓" if high < 0 else " ↑" if low > 0 else ""))
        text.append(f"| {problem} | {at} | " + " | ".join(shown) + " |")
    for at in sorted({at for _, at in rows}):
        shown = [f"{mean(totals[at, tool]):.3f}" for tool in (ALONE, *AFTER)]
        text.append(f"| mean of all | {at} | " + " | ".join(shown) + " |")
    counts = sorted({len(of) for of in seeds.values() if len(of) > 1})
    text += [
        "",
        f"{counts[0]} to {counts[-1]} seeds. " if counts[0] != counts[-1] else f"{counts[0]} seeds. ",
    ]
    text[-1] += f"{os.cpu_count()} cores ({cpu()}), Linux {platform.release()}."
    (out / "warm-start.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
