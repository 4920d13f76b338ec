"""The second start of a program, by what the first left, under the same workload and under another one:
second_start.py OUTPUT.json [--starts N] [--rounds N] [--block-s S] [--workloads A,B] [--connections N]

For each pair of workloads, a MariaDB under sysbench is laid out for the first one, ended, and started again under the second one.
Two things are measured there:

- What `slackline relayout start --once` does, as a user would run it: whether it uses the kept profile, how much of what runs that
  covers, how long it takes until a layout is in force and until it is verified, and the gain that it verifies.
- Where the workloads differ, what the other workload's layout would have been worth: one process has its original code, the layout for
  the first workload and one by a profile of its own, in random order, one short block of each a round.
"""
import argparse
import json
import os
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

from mariadb import SLACKLINE, Server, interval, lay_out, relayout

PORT = 33406


class Loaded:
    """A server under a workload, which may change."""

    def __init__(self, directory, workload, threads):
        self.server, self.threads, self.load = Server(directory, PORT), threads, None
        self.go_on_with(workload)

    def go_on_with(self, workload):
        self.end_load()
        self.load = self.server.load(workload, self.threads)
        time.sleep(4)

    def end_load(self):
        if self.load:
            self.load.kill()
            self.load.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end_load()
        self.server.stop()


def laid_out(state, server):
    """Puts a layout in force that nobody verifies; its generation, and what was said."""
    done = lay_out(state, server.pid)
    said = (done.stdout + done.stderr).strip()
    return int(re.search(r"runs in generation (\d+)", said)[1]), said


def profiles(state):
    return Path(state).glob("relayout/profiles/*.json")


def as_a_user(state, server):
    """What a `start` does: seconds from its start until it compares a layout that is in force by then, and what it says."""
    command = [SLACKLINE, "--state-dir", state, "relayout", "start", "--pid", str(server.pid), "--once", "--json"]
    start, took, said = time.monotonic(), None, []
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in running.stderr:
        said.append(line.strip())
        if "verifying" in line and took is None:
            took = time.monotonic() - start
    status = json.loads(running.stdout.read())["processes"][0]
    running.wait()
    kept = (status["layout"] or {}).get("kept")
    return {"until_installed_s": took and round(took, 2), "until_verified_s": round(time.monotonic() - start, 1), "state": status["state"],
            "reason": status.get("reason"), "by_kept_profile": kept is not None, "cover": status.get("cover"), "gain": status["gain"],
            "seconds": status["seconds"], "said": said}


def rounds_of(state, server, layouts, rounds, block_s, rng):
    """Queries per CPU second in each layout, by round."""
    blocks = []
    for _ in range(rounds):
        block = {}
        for name in rng.sample(list(layouts), len(layouts)):
            relayout(state, "switch", server.pid, layouts[name])
            time.sleep(0.05)
            before = server.reading()
            time.sleep(block_s)
            after = server.reading()
            block[name] = (after[0] - before[0]) / (after[1] - before[1])
        blocks.append(block)
    return blocks


def changes(blocks):
    def ratio(one, other):
        return interval([block[one] / block[other] for block in blocks])
    return {"other_over_original": ratio("other", "original"), "own_over_original": ratio("own", "original"),
            "own_over_other": ratio("own", "other")}


def one_start(work, first, second, arguments, rng):
    state, result = f"{work}/state", {"first": first, "second": second, "connections": arguments.connections}
    with Loaded(f"{work}/first", first, arguments.connections) as loaded:
        # Whether it is shown to be better or not, it leaves its profile.
        generation, result["laid_out"] = laid_out(state, loaded.server)
        kept = set(profiles(state))
        if first != second:
            loaded.go_on_with(second)
            own, result["laid_out_again"] = laid_out(state, loaded.server)
            layouts = {"original": 0, "other": generation, "own": own}
            result["blocks"] = rounds_of(state, loaded.server, layouts, arguments.rounds, arguments.block_s, rng)
            result["changes"] = changes(result["blocks"])
            # What the second workload left is not to help its own second start.
            for path in set(profiles(state)) - kept:
                path.unlink()
        relayout(state, "rollback", "--all", check=False)
    with Loaded(f"{work}/second", second, arguments.connections) as loaded:
        result["second_start"] = as_a_user(state, loaded.server)
        relayout(state, "rollback", "--all", check=False)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block-s", type=float, default=0.3)
    parser.add_argument("--workloads", default="point_select,read_only")
    parser.add_argument("--connections", type=int, default=4)
    arguments = parser.parse_args()
    rng = random.Random(7)
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    result = {"kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M"), "starts": []}
    workloads = arguments.workloads.split(",")
    for first in workloads:
        for second in workloads:
            for _ in range(arguments.starts):
                with tempfile.TemporaryDirectory() as work:
                    result["starts"].append(one_start(work, first, second, arguments, rng))
                last = result["starts"][-1]
                print(first, second, last.get("changes"), last["second_start"], flush=True)
                arguments.output.write_text(json.dumps(known + [result], indent=1) + "\n")


main()
