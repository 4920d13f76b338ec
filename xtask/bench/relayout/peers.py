"""Slackline's layout against its peers, interleaved, on the same work: peers.py OUTPUT.json [--starts N] [--rounds N] [--block-s S]
[--workloads A,B] [--connections N,M]

Servers side by side, each with its own data and sysbench, of which one at a time is let run: Debian's server untouched, the same
once more (what nothing looks like), re-laid out by Slackline as it runs, laid out offline by BOLT from the same counts, and with its
code on huge pages. A round is one short block of each, in random order; each ratio is within a round. Servers are started anew
--starts times, since where they lie in memory matters.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from mariadb import Server, interval, lay_out, relayout

HERE = Path(__file__).resolve().parent
BOLT = "llvm-bolt-22"
# What its documentation advises, but for what needs relocations, which a distribution's executable has not kept.
BOLT_OPTIONS = ["--allow-stripped", "-reorder-blocks=ext-tsp", "-split-functions", "-split-all-cold"]


def mariadbd():
    return os.path.realpath(shutil.which("mariadbd"))


def profile(work, workload, threads):
    """The counts of a relayout of this workload, and the server that BOLT made by them."""
    server, state = Server(f"{work}/profile", 33500), f"{work}/profile-state"
    load = server.load(workload, threads)
    time.sleep(3)
    lay_out(state, server.pid)
    load.kill()
    load.wait()
    server.stop()
    (kept,) = Path(state).glob("relayout/profiles/*.json")
    fdata, bolted = Path(work, f"{workload}.fdata"), Path(work, "mariadbd.bolt")
    convert = ["cargo", "run", "--release", "--quiet", "--package", "code-layout", "--example", "fdata", "--", mariadbd(), kept]
    fdata.write_bytes(subprocess.run(convert, check=True, stdout=subprocess.PIPE, cwd=HERE).stdout)
    said = subprocess.run([BOLT, mariadbd(), f"-data={fdata}", "-o", bolted, *BOLT_OPTIONS], check=True, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT).stdout
    shutil.rmtree(server.directory)
    return kept, bolted, re.search(r"(\d+) out of \d+ functions in the binary .* have non-empty", said)[0]


def huge_text(work):
    library = Path(work, "huge_text.so")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "huge_text.c"], check=True)
    return library


def huge_kib(pid):
    """Of its code: what is mapped r-x and backed by huge pages."""
    total, is_code = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if re.match(r"[0-9a-f]+-[0-9a-f]+$", words[0]):
            is_code = words[1] == "r-xp"
        elif is_code and words[0] == "AnonHugePages:":
            total += int(words[1])
    return total


class Side:
    """A server with a load that stands still unless it is its turn."""

    def __init__(self, name, work, port, command):
        self.name = name
        self.server = Server(f"{work}/{name.replace(' ', '-')}", port, command)
        self.process = None

    def begin(self, workload, threads):
        self.process = self.server.load(workload, threads)
        time.sleep(1.5)
        self.process.send_signal(signal.SIGSTOP)

    def block(self, seconds):
        """Queries per second of the server's CPU time, and per second."""
        self.process.send_signal(signal.SIGCONT)
        time.sleep(0.03)
        before, start = self.server.reading(), time.monotonic()
        time.sleep(seconds)
        after, end = self.server.reading(), time.monotonic()
        self.process.send_signal(signal.SIGSTOP)
        # What is under way.
        time.sleep(0.01)
        queries = after[0] - before[0]
        return queries / (after[1] - before[1]), queries / (end - start)

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.server.stop()


def one_start(work, workload, threads, rounds, block_s, rng):
    kept, bolted, bolt_said = profile(work, workload, threads)
    commands = {
        "untouched": mariadbd(),
        "untouched again": mariadbd(),
        "slackline": mariadbd(),
        "bolt": str(bolted),
        "huge pages": f"env LD_PRELOAD={huge_text(work)} {mariadbd()}",
    }
    sides = []
    result = {"workload": workload, "connections": threads, "bolt": bolt_said}
    try:
        for place, (name, command) in enumerate(commands.items()):
            sides.append(Side(name, work, 33510 + place, command))
        by_name = {side.name: side for side in sides}
        result["huge_kib"] = huge_kib(by_name["huge pages"].server.pid)
        # The very counts that BOLT had.
        state = Path(work, "state")
        (state / "relayout/profiles").mkdir(parents=True, mode=0o700)
        shutil.copy(kept, state / "relayout/profiles")
        for side in sides:
            side.begin(workload, threads)
        ours = by_name["slackline"]
        ours.process.send_signal(signal.SIGCONT)
        done = lay_out(state, ours.server.pid)
        result["slackline"] = (done.stdout + done.stderr).strip()
        assert "by the profile kept" in result["slackline"], result["slackline"]
        ours.process.send_signal(signal.SIGSTOP)
        blocks = []
        for _ in range(rounds):
            order = rng.sample(sides, len(sides))
            blocks.append({side.name: side.block(block_s) for side in order})
        result["blocks"] = blocks
        relayout(state, "rollback", "--all")
    finally:
        for side in sides:
            side.end()
    return result


def changes(results):
    """Each side over the untouched server, by round: per CPU second, and per second."""
    blocks = [block for result in results for block in result["blocks"]]
    names = [name for name in blocks[0] if name != "untouched"]
    return {
        name: {
            "per_cpu_s": interval([block[name][0] / block["untouched"][0] for block in blocks]),
            "per_s": interval([block[name][1] / block["untouched"][1] for block in blocks]),
        }
        for name in sorted(names)
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--starts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block-s", type=float, default=0.3)
    parser.add_argument("--workloads", default="point_select,read_only")
    parser.add_argument("--connections", default="4,16")
    arguments = parser.parse_args()
    rng = random.Random(7)
    everything = []
    for workload in arguments.workloads.split(","):
        for threads in map(int, arguments.connections.split(",")):
            results = []
            for _ in range(arguments.starts):
                with tempfile.TemporaryDirectory() as work:
                    results.append(one_start(work, workload, threads, arguments.rounds, arguments.block_s, rng))
                print(workload, threads, "this start:", changes(results[-1:]), flush=True)
            found = changes(results)
            everything.append({
                "workload": workload, "connections": threads, "kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M"),
                "changes": found, "starts": results,
            })
            print(workload, threads, "all starts:", found, flush=True)
            arguments.output.write_text(json.dumps(everything, indent=1) + "\n")


main()
