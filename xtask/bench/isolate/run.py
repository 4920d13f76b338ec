#!/usr/bin/env python3
"""A service beside batch work, under each policy in turns: share of windows within the objective, and batch work done.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR [--parts A,B] [--services A,B] [--antagonists A,B] [--policies A,B]
    [--repeats N] [--seconds S] [--minutes M] [--again NAME] [--kills N]

What is kept in OUT_DIR/isolate.json is not run again, so the bench can be run in pieces: with --minutes it ends before that time,
and the next piece goes on. --again forgets the runs of a policy, or a whole part. A run that fails ends nothing: the next piece
tries it again, and the exit code is 1. The page OUT_DIR/isolate.md and the picture OUT_DIR/isolate.svg are made of all that is
kept, after each run. The load generator runs with real-time priority, so that it is not what suffers. It measures from the
scheduled arrival; the controllers read the latency off the wire.
"""

import argparse
import glob
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import page
import simulated
import things
from things import CPUS, PORT

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pieces import machine, write_json  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SLACKLINE = os.environ["SLACKLINE"]
POLICIES = {
    "alone": None,
    "none": 'name = "none"',
    "shares": 'name = "static"\nstatic = { weight = 1 }',
    "cpu.idle": 'name = "static"\nstatic = { cpu_idle = true }',
    "static quota": f'name = "static"\nstatic = {{ quota_cores = {0.3 * CPUS} }}',
    "cpu-suppress": 'name = "cpu-suppress"',
    "heracles": 'name = "heracles"',
    "parties": 'name = "parties"',
    "slackline": 'name = "slackline"',
}
# Heracles and PARTIES give whole cores: on two cores they run when asked for.
USUAL = [name for name in POLICIES if name not in ("heracles", "parties")]
PARTS = ["services", "reserved", "reaction", "kills", "simulated"]
# Of the load generator's windows. The objective's own window is shorter, so that it has passed before one of these ends.
WINDOW_S = 3.0
OBJECTIVE_WINDOW_S = 2
# Before what is counted: caches fill, code is compiled, a controller finds its way at the lowest load.
WARM_S = 12.0
# What a run costs besides.
AROUND_S = 15.0
KILL_S = 20.0
SIMULATED_S = 120.0
# Giving cores back takes longer than the ramp of the other parts.
RESERVED_S = 36.0
# A program that is to end has ended by then, or is killed.
END_S = 60.0


class Running:
    """A service, and a controller beside it, for the time of a `with`."""

    def __init__(self, service, directory, policy, antagonist, objective_ms, out=True, has_group=False):
        self.directory = directory
        self.group = None
        self.out = os.path.join(directory, "run") if out else None
        self.controller = None
        self.server = things.start(service, directory)
        try:
            if has_group:
                self.group = things.Group(self.server.pid)
            if policy is not None:
                self.start(policy, antagonist, objective_ms)
        except BaseException:
            self.__exit__()
            raise

    def start(self, policy, antagonist, objective_ms):
        work = ""
        if antagonist is not None:
            how = antagonist if isinstance(antagonist, str) else f"command = {json.dumps(antagonist)}"
            work = f'[[best_effort]]\nname = "batch"\n{how}\n'
        named = f"pid = {self.server.pid}" if self.group is None else f'cgroup = "{self.group.NAME}"'
        config = os.path.join(self.directory, "isolate.toml")
        with open(config, "w") as file:
            file.write(
                f'[service]\nname = "service"\n{named}\n'
                f"objective = {{ p99_ms = {objective_ms}, window_s = {OBJECTIVE_WINDOW_S} }}\n"
                f"latency = {{ wire = {{ port = {PORT} }} }}\n{work}[policy]\n{policy}\n"
            )
        words = self.slackline("isolate", "run", config)
        with open(os.path.join(self.directory, "log"), "a") as log:
            self.controller = subprocess.Popen(words + (["--out", self.out] if self.out else []), stderr=log)

    def slackline(self, *words):
        return [SLACKLINE, "--state-dir", os.path.join(self.directory, "state"), *words]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.controller is not None:
            things.end(self.controller, END_S)
            # Nothing is left where the controller ended in good order. What a failed one left would disturb every later run.
            subprocess.run(self.slackline("restore"), stderr=subprocess.DEVNULL, check=False)
        things.end(self.server, END_S)
        if self.group is not None:
            self.group.remove()

    def load(self, service, rate, seconds, *more):
        """The load generator's result. A controller that has ended is an error."""
        kind = things.SERVICES[service][0]
        words = ["chrt", "-r", "10", sys.executable, os.path.join(HERE, "load.py"), kind, str(PORT), str(rate), str(seconds)]
        words += [str(word) for word in more]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=seconds + WARM_S + END_S)
        if self.controller is not None and self.controller.poll() is not None:
            with open(os.path.join(self.directory, "log")) as log:
                raise RuntimeError(f"the controller ended: {log.read()}")
        return json.loads(done.stdout)

    def rows(self, after_s):
        """The controller's rows from so many seconds after its start."""
        with open(os.path.join(self.out, "run.jsonl")) as file:
            rows = [row["row"] for row in map(json.loads, file) if "row" in row]
        return [row for row in rows if row["at_s"] > after_s]


def mean(values):
    values = [value for value in values if value is not None]
    return statistics.mean(values) if values else None


def own_cores(rows):
    # The first figure comes after five seconds.
    return mean([row["own_cores"] for row in rows if row["own_cores"] > 0])


def kept_windows(load, objective_ms):
    windows = [window for window in load["windows_p99_ms"] if window is not None]
    if not windows:
        raise RuntimeError("no request was answered")
    return {
        "p99_ms": load["p99_ms"],
        "kept": sum(window <= objective_ms for window in windows),
        "windows": len(windows),
        "windows_p99_ms": [round(window, 3) for window in windows],
    }


def beside(options, service, antagonist, policy, directory):
    _, rate, objective_ms = things.SERVICES[service]
    work = things.command(antagonist, directory)
    with Running(service, directory, POLICIES[policy], work, objective_ms) as running:
        load = running.load(service, rate, options.seconds, "--warm-s", WARM_S, "--window-s", WINDOW_S)
    result = kept_windows(load, objective_ms)
    if POLICIES[policy] is not None:
        rows = running.rows(WARM_S + 1)
        result["cores"] = mean(row["groups"][0]["cpu_cores"] for row in rows)
        result["used"] = mean(row["busy_cores"] for row in rows) / CPUS
        result["own_cores"] = own_cores(rows)
    return result


class Kept:
    """What was found, in this piece and in earlier ones."""

    def __init__(self, out, minutes):
        self.out = out
        self.path = os.path.join(out, "isolate.json")
        self.found = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                self.found = json.load(file)
        self.end = time.time() + 60 * minutes if minutes else None
        self.left = 0
        self.failed = []

    def has_time(self, seconds):
        """Whether so much time is left; what finds none is left to the next piece."""
        if self.end is None or time.time() + seconds < self.end:
            return True
        self.left += 1
        return False

    def run(self, runs, key, measure):
        """Measures once, and keeps what was found. A run that fails ends nothing: the next piece tries it again."""
        try:
            run = {**key, **measure()}
        except Exception as error:  # noqa: BLE001: whatever it is, the other runs go on
            self.failed.append(f"{key}: {error}")
            print("failed", self.failed[-1], flush=True)
            return
        runs.append(run)
        print(run, flush=True)
        self.keep()

    def keep(self):
        write_json(self.path, self.found)
        page.write(self.found, self.out, POLICIES)


def same_way(parts, name, how):
    """The part with what was measured in this way. Runs that were measured in another way do not count beside these."""
    part = parts.get(name, {})
    if any(part.get(key) != value for key, value in how.items()):
        part = parts[name] = {**how, "runs": []}
    return part


def services(options, kept):
    measured = kept.found.setdefault("measured", {})
    for repeat in range(options.repeats):
        for service in options.services:
            for antagonist in options.antagonists:
                _, rate, objective_ms = things.SERVICES[service]
                name = f"{service} beside {antagonist}"
                how = {
                    "objective_ms": objective_ms, "rate": rate, "seconds": options.seconds, "window_s": WINDOW_S,
                    "warm_s": WARM_S, "machine": machine(),
                }
                part = same_way(measured, name, how)
                done = {(run["policy"], run["repeat"]) for run in part["runs"]}
                order = options.policies[:]
                random.Random(repeat).shuffle(order)
                for policy in order:
                    if (policy, repeat) in done or not kept.has_time(options.seconds + WARM_S + AROUND_S):
                        continue
                    print(name, end=" ", flush=True)
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                        measure = lambda: beside(options, service, antagonist, policy, directory)
                        kept.run(part["runs"], {"policy": policy, "repeat": repeat}, measure)


def groups():
    return sorted(glob.glob("/sys/fs/cgroup/**/slackline-isolate-*", recursive=True))


def own_quota(service, text, directory):
    """The service alone under this policy: what it used, and what it had reserved."""
    _, rate, objective_ms = things.SERVICES[service]
    with Running(service, directory, text, None, objective_ms, has_group=True) as running:
        load = running.load(service, rate, RESERVED_S, "--warm-s", WARM_S, "--window-s", WINDOW_S)
    rows = running.rows(WARM_S)
    uses = [row["services"][0]["cpu_cores"] for row in rows]
    uses = sorted(use for use in uses if use is not None)
    return {
        **kept_windows(load, objective_ms),
        "used_cores": mean(uses),
        "vpa_cores": 1.15 * uses[int(0.9 * len(uses))],
        "reserved_cores": mean(row["services"][0]["quota_cores"] or CPUS for row in rows),
        "own_cores": own_cores(rows),
    }


def reserved(options, kept):
    """A service's own cores given back, with nothing else on the machine."""
    parts = kept.found.setdefault("reserved", {})
    for repeat in range(options.repeats):
        for service in options.services:
            _, rate, objective_ms = things.SERVICES[service]
            how = {
                "objective_ms": objective_ms, "rate": rate, "seconds": RESERVED_S, "window_s": WINDOW_S, "warm_s": WARM_S,
                "machine": machine(),
            }
            part = same_way(parts, service, how)
            # What VPA's rule would recommend comes from the run without a limit, so that one is first.
            for policy in ["none", "vpa", "static quota", "autothrottle", "slackline"]:
                done = any(run["policy"] == policy and run["repeat"] == repeat for run in part["runs"])
                if done or not kept.has_time(RESERVED_S + WARM_S + AROUND_S):
                    continue
                free = next((run for run in part["runs"] if run["policy"] == "none" and run["repeat"] == repeat), None)
                if free is None and policy != "none":
                    continue
                text = f'name = "{policy}"'
                if policy in ("vpa", "static quota"):
                    cores = free["vpa_cores"] if policy == "vpa" else 1.0
                    text = f'name = "static"\nstatic = {{ service_quota_cores = {cores:.3f} }}'
                print("reserved", service, end=" ", flush=True)
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                    kept.run(part["runs"], {"policy": policy, "repeat": repeat}, lambda: own_quota(service, text, directory))


def batch_step(options, service, policy, directory):
    """Batch work begins 12 s after the load; milliseconds until the p99 of a quarter of a second stays within the objective."""
    _, rate, objective_ms = things.SERVICES[service]
    at = os.path.join(directory, "begin")
    words = ["sh", "-c", f"while [ ! -e {at} ]; do sleep 0.02; done; exec stress-ng --cpu {CPUS} --quiet"]
    with Running(service, directory, POLICIES[policy], words, objective_ms) as running:
        trigger = subprocess.Popen(["sh", "-c", f"sleep 12; touch {at}"])
        load = running.load(service, rate, 20, "--shape", "flat", "--window-s", 0.25)
        trigger.wait()
    return settled(load, objective_ms, 12.0)


def load_step(options, service, policy, directory):
    """The load rises from a fifth to all of it beside batch work that has run for 12 s."""
    _, rate, objective_ms = things.SERVICES[service]
    with Running(service, directory, POLICIES[policy], things.command("cpu", directory), objective_ms) as running:
        more = ["--shape", "step", "--step-at", 12, "--window-s", 0.25]
        load = running.load(service, rate, 20, *more)
    return settled(load, objective_ms, 12.0)


def settled(load, objective_ms, at_s):
    """Seconds from the step to the end of the first second that is wholly within the objective; windows above it in all."""
    after = load["windows_p99_ms"][int(at_s / 0.25):]
    within = [window is not None and window <= objective_ms for window in after]
    first = next((index for index in range(len(within) - 3) if all(within[index:index + 4])), None)
    return {"settled_s": None if first is None else 0.25 * first, "above": within.count(False), "of": len(within)}


def reaction(options, kept):
    parts = same_way(kept.found, "reaction", {"machine": machine()})
    for repeat in range(options.repeats):
        for service in options.services:
            for what, step in (("batch work begins", batch_step), ("load × 5", load_step)):
                for policy in ("none", "cpu.idle", "slackline"):
                    key = {"service": service, "step": what, "policy": policy, "repeat": repeat}
                    if any(key.items() <= run.items() for run in parts["runs"]) or not kept.has_time(20 + AROUND_S):
                        continue
                    print("reaction", end=" ", flush=True)
                    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
                        kept.run(parts["runs"], key, lambda: step(options, service, policy, directory))


def watchdog_of(controller):
    end = time.time() + 10
    while time.time() < end:
        time.sleep(0.05)
        children = subprocess.run(["pgrep", "-P", str(controller.pid), "-f", "isolate watchdog"], stdout=subprocess.PIPE)
        if children.stdout:
            return int(children.stdout.split()[0])
    raise RuntimeError("the controller has no watchdog")


def kill_once(whom, chance, directory):
    """Kills the controller, its watchdog, or both, at a random moment; true if everything is as it was within 10 s."""
    work = things.command("cpu", directory)
    with Running("memcached", directory, POLICIES["slackline"], work, 2.0, out=False) as running:
        controller = running.controller
        watchdog = watchdog_of(controller)
        time.sleep(3 * chance)
        if whom in ("watchdog", "both"):
            os.kill(watchdog, signal.SIGKILL)
        if whom in ("controller", "both"):
            controller.kill()
        else:
            # A new watchdog takes the place of the dead one, and the controller goes on.
            time.sleep(3)
            if controller.poll() is not None:
                return False
            controller.terminate()
        controller.wait(END_S)
        if whom == "both":
            subprocess.run(running.slackline("restore"), stderr=subprocess.DEVNULL, check=True)
        end = time.time() + 10
        while groups() and time.time() < end:
            time.sleep(0.02)
        return not groups()


def kills(options, kept):
    part = same_way(kept.found, "kills", {"machine": machine()})
    done = {run["turn"] for run in part["runs"]}
    for turn in range(options.kills):
        if turn in done or not kept.has_time(KILL_S):
            continue
        whom = ["controller", "watchdog", "both"][turn % 3]
        chance = random.Random(turn).random()
        print("kills", end=" ", flush=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            kept.run(part["runs"], {"turn": turn, "killed": whom}, lambda: {"good": kill_once(whom, chance, directory)})


def simulate(kept):
    def measure():
        kept.found["simulated"] = simulated.run(SLACKLINE)
        return {}

    kept.run([], {"part": "simulated"}, measure)


def forget(found, names):
    """The runs of these policies, and these parts, are run again."""
    for name in names:
        found.pop("measured" if name == "services" else name, None)
    parts = [*found.get("measured", {}).values(), *found.get("reserved", {}).values(), found.get("reaction", {"runs": []})]
    for part in parts:
        part["runs"] = [run for run in part["runs"] if run["policy"] not in names]


def some(parser, text, known, what):
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no {what} {unknown[0]}: there are {', '.join(known)}")
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--services", default=",".join(things.SERVICES))
    parser.add_argument("--antagonists", default=",".join(things.ANTAGONISTS))
    parser.add_argument("--policies", default=",".join(USUAL))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=18.0)
    parser.add_argument("--minutes", type=float, help="end before this time; the next piece goes on")
    parser.add_argument("--again", action="append", default=[], help="forget the kept runs of this policy, or of this part")
    parser.add_argument("--kills", type=int, default=99)
    options = parser.parse_args()
    parts = some(parser, options.parts, PARTS, "part")
    options.policies = some(parser, options.policies, POLICIES, "policy")
    options.antagonists = some(parser, options.antagonists, things.ANTAGONISTS, "antagonist")
    options.services = some(parser, options.services, things.SERVICES, "service")
    for name in options.again:
        some(parser, name, [*POLICIES, *PARTS], "policy or part")
    kept = Kept(options.out, options.minutes)
    forget(kept.found, options.again)
    if "simulated" in parts and "simulated" not in kept.found and kept.has_time(SIMULATED_S):
        simulate(kept)
    for name, measure in (("services", services), ("reserved", reserved), ("reaction", reaction), ("kills", kills)):
        if name in parts:
            measure(options, kept)
    kept.keep()
    for line in kept.failed:
        print(f"failed: {line}")
    print(f"{kept.left} runs are left to the next piece, {len(kept.failed)} failed")
    sys.exit(1 if kept.failed else 0)


main()
