#!/usr/bin/env python3
"""Published tuning results, reproduced on this machine by the examples.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR [--parts A,B] [--minutes M] [--again]

A part is an experiment of `tune`, or a `throttle loadtest`. What is kept in OUT_DIR/published.json is not run again, unless --again is
given. With --minutes the bench ends before that time: an experiment is interrupted, and the next piece resumes it from the report in
OUT_DIR/raw. A verification that is interrupted begins anew, so a piece should have an hour. A loadtest begins only if it can end. The
page OUT_DIR/published.md is made of all that is kept.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import time

import page

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pieces import machine, write_json  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
SLACKLINE = os.environ["SLACKLINE"]
# What an experiment needs after SIGTERM: it restores the host and writes its report.
END_S = 180
GRAAL = os.path.join(ROOT, "examples/graal-inlining")
PROXY = os.path.join(ROOT, "examples/nginx-proxy/run")
# The least that is left for a piece of an experiment to begin.
PIECE_S = 15 * 60


def tune(spec):
    return lambda report, more: [SLACKLINE, "tune", spec, "--json", report, *more]


def proxy(acquisition):
    return lambda report, more: [PROXY, report, acquisition, *more]


# Experiments by the names of their reports.
EXPERIMENTS = {
    "graal-inlining": tune(f"{GRAAL}/experiment.toml"),
    "graal-inlining-experiment-c2": tune(f"{GRAAL}/experiment-c2.toml"),
    "nginx-proxy-ei": proxy("ei"),
    "nginx-proxy-ucb": proxy("ucb"),
    "nginx-proxy-poi": proxy("poi"),
}
# Loadtests: the example, the searches of each side, and the minutes that they take at most.
LOADTESTS = {"throttled-go": (6, 30), "throttled-jvm": (8, 60)}
PARTS = [*EXPERIMENTS, *LOADTESTS]


class Kept:
    """What was found, in this piece and in earlier ones."""

    def __init__(self, options):
        self.out = options.out
        self.raw = os.path.join(options.out, "raw")
        os.makedirs(self.raw, exist_ok=True)
        self.path = os.path.join(options.out, "published.json")
        self.found = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.found = json.load(file)
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else None

    def left_s(self):
        return None if self.end is None else self.end - time.monotonic()

    def has_time(self, seconds):
        return self.end is None or self.left_s() > seconds

    def keep(self, name, found):
        self.found[name] = {"machine": machine(), **found}
        write_json(self.path, self.found)
        page.write(self.found, self.out)


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def run_until(words, seconds):
    """A command, ended by SIGTERM after so many seconds; its exit code."""
    running = subprocess.Popen(words, cwd=ROOT)
    try:
        return running.wait(seconds)
    except subprocess.TimeoutExpired:
        return ended(running)
    except BaseException:
        ended(running)
        raise


def ended(running):
    """Ends a command that restores the host first; its exit code."""
    running.terminate()
    try:
        return running.wait(END_S)
    except subprocess.TimeoutExpired:
        running.kill()
        return running.wait()


def experiment(name, kept):
    """A piece of an experiment; whether it is done."""
    report = os.path.join(kept.raw, f"{name}.json")
    # Whatever an earlier piece left: its report, or what it had measured when it was killed.
    earlier = os.path.join(kept.raw, f"{name}.earlier.json")
    for left in (report, report + ".partial"):
        if read(left) is not None:
            os.replace(left, earlier)
    more = ["--resume", earlier] if os.path.exists(earlier) else []
    left_s = kept.left_s()
    code = run_until(EXPERIMENTS[name](report, more), left_s and left_s - END_S)
    found = read(report)
    if found is None or code not in (0, 1) or found["interrupted"] is not None:
        if code not in (0, 1) and code < 128 and code != -15:
            raise RuntimeError(f"ended with {code}")
        return False
    counts = collections.Counter(evaluation["outcome"] for evaluation in found["evaluations"])
    measured_s = sum(evaluation["duration_s"] for evaluation in found["evaluations"])
    shutil.move(report, os.path.join(kept.out, f"{name}.json"))
    if os.path.exists(earlier):
        os.remove(earlier)
    arms = [
        {key: arm.get(key) for key in ("name", "is_candidate", "capacity_of", "configuration", "ratios", "detectable", "runs", "faults")}
        for arm in found["verification"]
    ]
    kept.keep(name, {
        "sentence": found["sentence"], "objective": found["spec"]["objective"]["metric"], "outcomes": counts,
        "evaluations_minutes": measured_s / 60, "arms": arms, "skipped": found["skipped"],
    })
    return True


def loadtest(name, kept):
    runs, _ = LOADTESTS[name]
    words = [os.path.join(ROOT, "examples", name, "run"), kept.out]
    code = subprocess.run(words, cwd=ROOT, env=os.environ | {"RUNS": str(runs)}).returncode
    found = read(os.path.join(kept.out, f"{name}.json"))
    if code not in (0, 1) or found is None:
        raise RuntimeError(f"ended with {code}")
    sides = {side["name"]: side["capacity_per_s"] for side in found["sides"]}
    kept.keep(name, {"sides": sides, "ratio": found["ratio"], "slo_p99_ms": found["slo_p99_ms"], "searches": runs})
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--again", action="store_true", help="run what is kept, too")
    options = parser.parse_args()
    wanted = options.parts.split(",")
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    kept = Kept(options)
    left, failed = [], []
    if any(name.startswith("graal") for name in wanted):
        subprocess.run([f"{GRAAL}/setup"], check=True)
    for name in wanted:
        if name in kept.found and not options.again:
            continue
        needed_s = 60 * LOADTESTS[name][1] if name in LOADTESTS else PIECE_S
        if not kept.has_time(needed_s):
            left.append(name)
            continue
        try:
            is_done = loadtest(name, kept) if name in LOADTESTS else experiment(name, kept)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
            continue
        print(f"{name}: {'done' if is_done else 'interrupted'}", flush=True)
        if not is_done:
            left.append(name)
    if left:
        print(f"Not done yet: {', '.join(left)}. Start it again.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
