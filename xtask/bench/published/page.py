"""The page of the published results and what was found here."""

import os

# The report, what was published, and what is measured here.
ROWS = [
    ("graal-inlining", "Twitter, Graal's inlining: user CPU time −6 to −8 % verified, collections −3.5 %, p99 −8 %", "a Scala service on Graal 22.3"),
    ("graal-inlining-experiment-c2", "Twitter, C2's three inlining flags: −3.5 %", "the same service on C2"),
    ("nginx-proxy-ei", "ByteDance, sysctls under nginx as a proxy: p99 −12 % (EI)", "nginx between shaped links, EI"),
    ("nginx-proxy-ucb", "the same with UCB", "the same, UCB"),
    ("nginx-proxy-poi", "the same with POI", "the same, POI"),
    ("throttled-go", "Twitter, pool sizes: twice the load", "a Go service, GOMAXPROCS 8 and 1"),
    ("throttled-jvm", "Twitter, pool sizes: twice the load", "a JVM service, pools of 32, 16 and 8 threads, and of 2, 1 and 1"),
]


def percent(ratio):
    if not ratio:
        return "–"
    values = (f"{100 * (ratio[key] - 1):+.1f}".replace("-", "−") for key in ("estimate", "low", "high"))
    mean, low, high = values
    return f"{mean} % [{low}, {high}]"


def of_loadtest(found):
    ratio = found["ratio"]
    shown = "Shown" if ratio["low"] > 1 or ratio["high"] < 1 else "No difference shown"
    return f"{shown}: {percent(ratio)} load within a p99 of {found['slo_p99_ms']:g} ms ({found['searches']} searches for each side)."


def candidate(found):
    return next((arm for arm in found["arms"] if arm["is_candidate"] and not arm["capacity_of"]), None)


def detectable(found):
    """The smallest effect on the objective that could have been shown."""
    arm = candidate(found)
    ratio = arm and (arm["detectable"] or {}).get(found["objective"])
    return f"{100 * abs(ratio - 1):.1f} %" if ratio else "–"


def row(name, published, here, found):
    if found is None:
        return f"| {published} | {here} | not run yet | – | – | – |"
    if "ratio" in found:
        return f"| {published} | {here} | {of_loadtest(found)} | – | – | – |"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in found["outcomes"].items())
    arm = candidate(found)
    runs = f"{arm['runs']}" if arm else "–"
    minutes = f"{sum(found['outcomes'].values())} in {found['evaluations_minutes']:.0f} minutes ({outcomes})"
    return f"| {published} | {here} | {found['sentence']} | {minutes} | {runs} | {detectable(found)} |"


def arms(name, found):
    """A table of every arm against the control."""
    metrics = sorted({metric for arm in found["arms"] for metric in arm["ratios"] or {}}, key=lambda metric: (metric != found["objective"], metric))
    lines = ["", f"`{name}.json`, changes against the control over fresh runs:", ""]
    lines += ["| arm | " + " | ".join(f"`{metric}`" for metric in metrics) + " |", "|---" * (len(metrics) + 1) + "|"]
    for arm in found["arms"]:
        title = f"capacity of {arm['capacity_of']}" if arm["capacity_of"] else arm["name"]
        lines.append(f"| {title} | " + " | ".join(percent((arm["ratios"] or {}).get(metric)) for metric in metrics) + " |")
    if found["skipped"]:
        lines += ["", "Left out, because this host does not have it: " + "; ".join(found["skipped"]) + "."]
    return lines


def write(found, out):
    machines = "; ".join(sorted({part["machine"] for part in found.values()}))
    lines = [
        "# Published results, reproduced",
        "",
        f"`cargo xtask bench published`, {machines}. Each row is an experiment of `tune`, or a `throttle loadtest`, with its verdict on fresh "
        "runs. *Smallest effect* is the smallest effect that four of five such verifications would show.",
        "",
        "| published | measured here | verdict | evaluations | runs | smallest effect |",
        "|---|---|---|---|---|---|",
        *(row(name, published, here, found.get(name)) for name, published, here in ROWS),
    ]
    for name, part in found.items():
        if part.get("arms"):
            lines += arms(name, part)
    with open(os.path.join(out, "published.md"), "w") as file:
        file.write("\n".join(lines) + "\n")
