"""The second start of a program, by what the first left, under the same workload and under another one:
second_start.py OUTPUT.json [--starts N] [--rounds N] [--block-s S] [--workloads A,B] [--connections N] [--minutes M]

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
import sys
import tempfile
import time
from pathlib import Path

from mariadb import SLACKLINE, Server, interval, lay_out, relayout

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pieces import percent, write_json  # noqa: E402

PORT = 33406
# The longest that one start takes.
START_S = 300


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


class Kept:
    """All series of starts: the last one goes on if it was measured in the same way and is not whole."""

    def __init__(self, arguments):
        self.path = arguments.output
        self.series = json.loads(self.path.read_text()) if self.path.exists() else []
        workloads = arguments.workloads.split(",")
        self.wanted = [[first, second, number] for first in workloads for second in workloads for number in range(arguments.starts)]
        self.how = {"kernel": os.uname().release, "wanted": self.wanted, "rounds": arguments.rounds, "block_s": arguments.block_s,
                    "connections": arguments.connections}
        last = self.series[-1] if self.series else {}
        if any(last.get(key) != value for key, value in self.how.items()) or not self.missing(last):
            self.series.append({**self.how, "time": time.strftime("%Y-%m-%d %H:%M"), "starts": []})

    def missing(self, series):
        done = [[start["first"], start["second"], start["number"]] for start in series["starts"]]
        return [each for each in self.wanted if each not in done]

    def add(self, start):
        self.series[-1]["starts"].append(start)
        write_json(self.path, self.series)
        self.path.with_suffix(".md").write_text(page(self.series[-1]))


def gain(status):
    """What the command verified."""
    found = status["gain"]
    if not found:
        return status["reason"] or status["state"]
    return percent([100 * (found[key] - 1) for key in ("ratio", "low", "high")])


def page(series):
    """The last series as a page of docs/results."""
    starts = sorted(series["starts"], key=lambda start: (start["first"], start["second"], start["number"]))
    lines = [
        "# The second start of a program",
        "",
        f"`cargo xtask bench relayout second-start`, Linux {series['kernel']}, {os.cpu_count()} CPUs, {series['time']}. A MariaDB under sysbench with "
        f"{series['connections']} connections was laid out for the first workload and ended. Then it was started again under the second workload, "
        "and `slackline relayout start --once` ran.",
        "",
        "| first workload | second | by the kept profile | covered | in force after | verified after | verified gain, messages per CPU second |",
        "|---|---|---|---|---|---|---|",
    ]
    for start in starts:
        status = start["second_start"]
        cover = status["cover"]
        cells = [start["first"], start["second"], "yes" if status["by_kept_profile"] else "no", "–" if cover is None else f"{100 * cover['share']:.0f} %",
                 "–" if status["until_installed_s"] is None else f"{status['until_installed_s']:.1f} s", f"{status['until_verified_s']:.0f} s",
                 gain(status)]
        lines.append("| " + " | ".join(cells) + " |")
    others = [start for start in starts if "changes" in start]
    if others:
        lines += [
            "",
            "What the layout of the other workload is worth: queries per CPU second in one process, which is switched between its original code, the "
            f"layout for the first workload and one for its present workload, {series['rounds']} rounds each. Intervals at 95 %.",
            "",
            "| first workload | present workload | other's layout over original | own layout over original | own over other's |",
            "|---|---|---|---|---|",
        ]
        for start in others:
            found = start["changes"]
            cells = [start["first"], start["second"], *(percent(found[key]) for key in ("other_over_original", "own_over_original", "own_over_other"))]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block-s", type=float, default=0.3)
    parser.add_argument("--workloads", default="point_select,read_only")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--minutes", type=float, help="end before that time; what is missing is measured by the next piece")
    arguments = parser.parse_args()
    kept = Kept(arguments)
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    failed = 0
    for first, second, number in kept.missing(kept.series[-1]):
        if end is not None and time.monotonic() + START_S > end:
            break
        try:
            with tempfile.TemporaryDirectory() as work:
                start = one_start(work, first, second, arguments, random.Random(7 + number))
        except (subprocess.SubprocessError, OSError, TypeError, KeyError, ValueError) as error:
            print(first, second, number, f"failed: {error!r}", flush=True)
            failed += 1
            continue
        kept.add({**start, "number": number})
        print(first, second, start.get("changes"), start["second_start"], flush=True)
    missing = kept.missing(kept.series[-1])
    if missing:
        print(f"{len(missing)} of {len(kept.wanted)} starts are missing: start it again.")
    if failed:
        sys.exit(1)


main()
