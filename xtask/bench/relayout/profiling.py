"""What profiling costs the profiled: profiling.py OUTPUT.json [--rounds N] [--connections N]

A MariaDB under sysbench is sampled, counted and laid out, and its throughput followed all the while, as queries answered in every
tenth of a second. Said are the median and the worst second of each step, and the worst second of the ten in which nothing was done
before (the control: what noise alone does), all against the median second of that control; then the medians' mean over the rounds.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from mariadb import Server, interval, relayout

TICK_S = 0.1


class Sampler(threading.Thread):
    """(time, queries answered so far), ten times a second, by a connection of its own."""

    def __init__(self, server):
        super().__init__(daemon=True)
        command = ["mariadb", "--no-defaults", f"--socket={server.directory}/socket", "--user=root", "-N", "-B", "-n"]
        self.shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.samples = []

    def run(self):
        due = time.monotonic()
        while True:
            try:
                self.shell.stdin.write("show global status like 'Questions';\n")
                self.shell.stdin.flush()
            except BrokenPipeError:  # It was ended, and so is the measurement.
                return
            line = self.shell.stdout.readline()
            if not line:
                return
            self.samples.append((time.monotonic(), int(line.split()[1])))
            due += TICK_S
            time.sleep(max(0, due - time.monotonic()))

    def seconds(self, start, end):
        """Queries per second in every stretch of a second that lies within, each begun a tenth after the one before."""
        samples = [sample for sample in self.samples if start <= sample[0] <= end]
        found = []
        last = 0
        for at, queries in samples:
            while last < len(samples) and samples[last][0] < at + 1:
                last += 1
            if last == len(samples):
                break
            found.append((samples[last][1] - queries) / (samples[last][0] - at))
        return found


def shares(seconds, usual):
    if not seconds:
        return None
    return {"median": round(statistics.median(seconds) / usual, 3), "worst": round(min(seconds) / usual, 3)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--workload", default="point_select")
    arguments = parser.parse_args()
    result = {"workload": arguments.workload, "connections": arguments.connections, "kernel": os.uname().release,
              "time": time.strftime("%Y-%m-%d %H:%M"), "rounds": []}
    with tempfile.TemporaryDirectory() as work:
        server = Server(f"{work}/server", 33405)
        load = server.load(arguments.workload, arguments.connections)
        sampler = Sampler(server)
        try:
            sampler.start()
            time.sleep(5)
            for number in range(arguments.rounds):
                state = f"{work}/state-{number}"
                quiet = time.monotonic()
                time.sleep(10)
                start = time.monotonic()
                done = relayout(state, "start", "--pid", server.pid, "--once", "--json", "--pairs", 2, "--block-s", 0.05, check=False)
                end = time.monotonic()
                relayout(state, "rollback", "--all", check=False)
                if done.returncode not in (0, 1):
                    sys.exit(done.stderr)
                status = json.loads(done.stdout)["processes"][0]
                control = sampler.seconds(quiet, start)
                usual = statistics.median(control)
                took = status["seconds"]
                counting = start + took["sampling"]
                laying_out = counting + took["counting"]
                one = {"queries_per_s": round(usual), "seconds": took, "state": status["state"], "control": shares(control, usual),
                       "all": shares(sampler.seconds(start, end), usual), "sampling": shares(sampler.seconds(start, counting), usual),
                       "counting": shares(sampler.seconds(counting, laying_out + 0.5), usual)}
                print(one, flush=True)
                result["rounds"].append(one)
            for step in ("sampling", "counting"):
                result[step] = interval([one[step]["median"] for one in result["rounds"] if one[step]])
                print(f"throughput while {step}: {result[step]} %", flush=True)
        finally:
            sampler.shell.kill()
            load.kill()
            load.wait()
            server.stop()
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    arguments.output.write_text(json.dumps(known + [result], indent=1) + "\n")


main()
