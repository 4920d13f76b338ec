#!/usr/bin/env python3
"""The experiments that a newcomer makes first, each to its verdict: which ones failed on the way, and why.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR [--experiments A,B] [--minutes M] [--again]

Each experiment is one of the examples, and its report goes to OUT_DIR/NAME.json. What is kept in OUT_DIR/newcomer.json is not run
again: with --minutes no experiment begins that would not end before that time, and the bench goes on when it is started again. The
page OUT_DIR/newcomer.md is made of all that is kept. The exit code is 1 if an experiment has no verdict, or if an evaluation failed.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pieces import machine, write_json  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
SLACKLINE = os.environ["SLACKLINE"]
# Minutes that each takes at most on two cores.
EXPERIMENTS = {
    "haproxy": ("HAProxy in front of nginx, by the built-in load", 12),
    "redis": ("Redis, by redis-benchmark", 10),
    "nginx-workers-aa": ("A/A: nginx with a parameter that does nothing, by wrk", 8),
    "nginx-live": ("sysctls of the live host below a running nginx, by the built-in load", 10),
}
SPECIFICATIONS = {
    "haproxy": "examples/haproxy/experiment.toml",
    "redis": "examples/redis/experiment.toml",
    "nginx-workers-aa": "examples/nginx-workers/aa.toml",
}
OUTCOMES = ["completed", "violated", "aborted", "crashed", "failed"]


def command(name, report):
    if name in SPECIFICATIONS:
        return [SLACKLINE, "tune", os.path.join(ROOT, SPECIFICATIONS[name]), "--json", report]
    return [os.path.join(ROOT, "examples/nginx-live/run"), report]


def measure(name, out):
    """One experiment, as its report has it."""
    path = os.path.join(out, f"{name}.json")
    start = time.monotonic()
    done = subprocess.run(command(name, path), stderr=subprocess.PIPE, text=True)
    found = {"machine": machine(), "exit_code": done.returncode, "minutes": (time.monotonic() - start) / 60}
    if done.returncode not in (0, 1):
        print(done.stderr, file=sys.stderr)
        return found | {"error": done.stderr.strip()[-1000:]}
    with open(path) as file:
        report = json.load(file)
    counts = collections.Counter(evaluation["outcome"] for evaluation in report["evaluations"])
    reasons = [evaluation["reason"] for evaluation in report["evaluations"] if evaluation["outcome"] == "failed"]
    faults = [fault for arm in report["verification"] for fault in arm.get("faults", [])]
    return found | {
        "outcomes": counts, "failed_because": reasons, "faults": faults, "finding": report["finding"], "sentence": report["sentence"],
    }


def is_right(found):
    return "error" not in found and found["outcomes"].get("failed", 0) == 0 and not found["faults"] and found["finding"] != "unfinished"


def write(kept, out):
    columns = ["experiment", "minutes", *OUTCOMES, "runs of the verification without a result", "verdict"]
    lines = [
        "# A newcomer's first experiments",
        "",
        "`cargo xtask bench newcomer` ran four examples that a new user is likely to try first, unchanged, on two cores. The columns *completed* "
        "to *failed* count the evaluations with this outcome. In a *failed* evaluation the measurement failed, so it says nothing about the "
        "configuration.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for name, (title, _) in EXPERIMENTS.items():
        found = kept.get(name)
        if found is None:
            continue
        cells = [title, f"{found['minutes']:.1f}"]
        if "error" in found:
            cells += ["–"] * (len(OUTCOMES) + 1) + ["ended with: " + found["error"].replace("\n", " ").replace("|", "\\|")]
        else:
            cells += [str(found["outcomes"].get(outcome, 0)) for outcome in OUTCOMES]
            cells += [str(len(found["faults"])), found["sentence"].replace("|", "\\|")]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Machines: " + "; ".join(sorted({found["machine"] for found in kept.values()})) + "."]
    reasons = [(name, reason) for name, found in kept.items() for reason in found.get("failed_because", []) + found.get("faults", [])]
    if reasons:
        lines += ["", "Why measurements failed:", ""] + [f"- {name}: {reason}" for name, reason in reasons]
    with open(os.path.join(out, "newcomer.md"), "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--experiments", default=",".join(EXPERIMENTS))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--again", action="store_true", help="run what is kept, too")
    options = parser.parse_args()
    wanted = options.experiments.split(",")
    unknown = [name for name in wanted if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"no such experiment: {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    path = os.path.join(options.out, "newcomer.json")
    kept = {}
    if os.path.exists(path):
        with open(path) as file:
            kept = json.load(file)
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    left = []
    for name in wanted:
        if name in kept and not options.again:
            continue
        if end is not None and time.monotonic() + 60 * EXPERIMENTS[name][1] > end:
            left.append(name)
            continue
        kept[name] = measure(name, options.out)
        print(name, kept[name], flush=True)
        write_json(path, kept)
        write(kept, options.out)
    if left:
        print(f"Not run yet: {', '.join(left)}. Start it again.")
    sys.exit(0 if all(is_right(kept[name]) for name in wanted if name in kept) else 1)


if __name__ == "__main__":
    main()
