#!/usr/bin/env python3
"""What `throttle advise` recommends for services with too many workers, against two alternatives under load.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR [--services A,B] [--repeats N] [--seconds S] [--record-s S] [--minutes M]
    [--again]

Each service runs in a control group of one core with WORKERS workers, under an open loop of SHARE of what a closed loop gets through.
`advise` watches it once under this load, and once under the closed loop, where nothing may be recommended. Then the 99th percentile of
the client's requests is measured in turns: as it is, with the recommendation, and with two alternatives. The alternatives are those of
ALTERNATIVES that are neither today's setting nor the recommended one. What is kept in OUT_DIR/pools.json is not run again: with
--minutes the bench ends before that time, and goes on when it is started again. A service that fails is named at the end, and the
others go on. The page OUT_DIR/pools.md is made of all that is kept.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import page
from services import GROUP, KINDS, SLACKLINE, Running

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pieces import machine, write_json  # noqa: E402

CORES = 1
WORKERS = 8
SHARE = 0.7
CLOSED_S = 6
# Before what is counted: interpreters compile, connections are opened.
WARM_S = 3
# What a run costs besides: the start of the service.
AROUND_S = 4
CPUS = os.cpu_count()
LIMIT = {"quota_us": 100_000 * CORES, "period_us": 100_000, "burst_us": 0}
TODAY = {"workers": WORKERS, "limit": LIMIT}
# Rules of thumb: a worker for each core of the quota; no change of the pool, but a burst; gunicorn's rule, twice the cores and one; a
# worker for each CPU.
ALTERNATIVES = [
    {"workers": CORES, "limit": LIMIT},
    {"workers": WORKERS, "limit": LIMIT | {"burst_us": LIMIT["quota_us"]}},
    {"workers": 2 * CORES + 1, "limit": LIMIT},
    {"workers": CPUS, "limit": LIMIT},
]


class Kept:
    """What was found, in this piece and in earlier ones."""

    def __init__(self, options):
        self.out = options.out
        self.path = os.path.join(options.out, "pools.json")
        self.how = {
            "machine": machine(), "cores": CORES, "workers": WORKERS, "share": SHARE, "seconds": options.seconds, "record_s": options.record_s,
        }
        self.found = {**self.how, "services": {}}
        if os.path.exists(self.path) and not options.again:
            with open(self.path) as file:
                kept = json.load(file)
            # What was measured in another way does not count beside this.
            if all(kept.get(key) == value for key, value in self.how.items()):
                self.found = kept
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else None
        self.is_cut = False

    def has_time(self, seconds):
        self.is_cut |= self.end is not None and time.monotonic() + seconds > self.end
        return not self.is_cut

    def keep(self):
        write_json(self.path, self.found)
        page.write(self.found, self.out)


def advise(running, rate, seconds):
    """What `advise` says under an open loop, or without a rate under a closed one."""
    load = running.in_background(rate, seconds + 6)
    try:
        time.sleep(3)
        with tempfile.TemporaryDirectory() as scratch:
            saved = os.path.join(scratch, "recording.json")
            words = [SLACKLINE, "throttle", "advise", "--cgroup", GROUP, "--duration-s", str(seconds), "--save", saved]
            done = subprocess.run([*words, "--json", "-"], capture_output=True, text=True)
            if done.returncode > 1:
                raise RuntimeError(f"advise: {done.stderr}")
            with open(saved) as file:
                pools = json.load(file)["service"]["pools"]
    finally:
        load.terminate()
        load.wait()
    advice = json.loads(done.stdout)
    recommended, give_back = advice["recommended"], advice["give_back"]
    error = advice["model_error"]
    return {
        "exit_code": done.returncode,
        "unreliable": advice.get("unreliable"),
        "model_error": error and error["estimate"],
        "timed": advice["pool"],
        "pools": [{key: pool.get(key) for key in ("name", "threads", "processes", "setting", "set_by")} for pool in pools],
        "recommended": recommended and recommended["setting"],
        "predicted": recommended and recommended["ratio"],
        "give_back": give_back and give_back["setting"],
    }


def setting_of(kind, advice):
    """The recommendation as a setting of this bench; nothing where there is none, or where it is one that is not tried here."""
    recommended = advice["recommended"]
    if recommended is None or advice["unreliable"]:
        return None
    sizes = {name: size for name, size in recommended["threads"].items() if kind.pool.match(name)}
    if len(sizes) < len(recommended["threads"]) or len(sizes) > 1:
        return None
    limit = {key: recommended["limit"][key] for key in LIMIT}
    return {"workers": next(iter(sizes.values()), WORKERS), "limit": limit}


def observe(kind, running, options):
    """The load, and what `advise` says under it and in saturation."""
    running.put(WORKERS)
    running.closed(WARM_S)
    capacity = running.closed(CLOSED_S)
    rate = round(SHARE * capacity, 1)
    advice = advise(running, rate, options.record_s)
    saturated = advise(running, None, options.record_s)
    chosen = setting_of(kind, advice)
    others = [setting for setting in ALTERNATIVES if setting not in (TODAY, chosen)]
    others = [setting for at, setting in enumerate(others) if setting not in others[:at]]
    settings = {"today": TODAY} | ({"recommended": chosen} if chosen else {})
    settings |= {f"alternative {number}": setting for number, setting in enumerate(others[:2], 1)}
    return {
        "setting": kind.setting, "pool": kind.pool.pattern, "capacity_per_s": capacity, "rate_per_s": rate, "advice": advice,
        "saturated": saturated, "settings": settings, "runs": [],
    }


def measure(kind, kept, options):
    with tempfile.TemporaryDirectory() as directory, Running(kind, directory, CORES) as running:
        part = kept.found["services"].get(kind.name)
        if part is None:
            if not kept.has_time(2 * options.record_s + CLOSED_S + 30):
                return
            part = kept.found["services"][kind.name] = observe(kind, running, options)
            print(kind.name, part["advice"], part["settings"], flush=True)
            kept.keep()
        for repeat in range(options.repeats):
            order = list(part["settings"])
            random.Random(repeat).shuffle(order)
            for name in order:
                is_done = any(run["setting"] == name and run["repeat"] == repeat for run in part["runs"])
                if is_done or not kept.has_time(options.seconds + WARM_S + AROUND_S):
                    continue
                setting = part["settings"][name]
                running.put(setting["workers"], setting["limit"])
                running.at_rate(part["rate_per_s"], WARM_S, repeat)
                # The settings of one repetition get the same arrivals.
                run = running.at_rate(part["rate_per_s"], options.seconds, repeat)
                part["runs"].append({"setting": name, "repeat": repeat} | run)
                print(kind.name, repeat, name, run, flush=True)
                kept.keep()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--services", default=",".join(kind.name for kind in KINDS))
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--record-s", type=int, default=20)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--again", action="store_true", help="forget what is kept")
    options = parser.parse_args()
    wanted = options.services.split(",")
    known = {kind.name: kind for kind in KINDS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        parser.error(f"no such service: {', '.join(unknown)}; there are {', '.join(known)}")
    kept = Kept(options)
    failed = []
    for name in wanted:
        try:
            measure(known[name], kept, options)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
    if kept.is_cut:
        print("Not all is measured yet: start it again.")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
