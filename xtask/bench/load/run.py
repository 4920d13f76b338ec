#!/usr/bin/env python3
"""Holds the open-loop generator against oha and against arithmetic, on an nginx that stands still; then `throttle loadtest` by sysbench.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR --oha path/to/oha [--repetitions N] [--seconds S]; writes load.{json,md}

nginx's worker is stopped for STALL_S once every EVERY_S. Requests at a constant rate that are due meanwhile wait for what is left of
the stall, so that in truth a share (STALL_S - x) / EVERY_S of them takes longer than x: the 90th and 99th percentiles are known. A
generator that waits for an answer before it sends the next request leaves out those that were due ("coordinated omission").
"""

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../relayout"))
from mariadb import Server  # noqa: E402

STALL_S, EVERY_S = 0.2, 1.0
RATES = (200, 1000)
CONNECTIONS = 32
CONFIGURATION = """
worker_processes 1; daemon off; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 100000000; server {{ listen 127.0.0.1:{port}; return 200 "fine"; }} }}
"""


def truth_ms(percentile):
    return 1000 * max(0.0, STALL_S - (1 - percentile) * EVERY_S)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Nginx:
    """A server whose one worker stands still now and then."""

    def __init__(self, directory):
        self.port = free_port()
        path = os.path.join(directory, "nginx.conf")
        with open(path, "w") as file:
            file.write(CONFIGURATION.format(directory=directory, port=self.port))
        self.master = subprocess.Popen(["nginx", "-c", path, "-p", directory])
        self.url = f"http://127.0.0.1:{self.port}/"
        children = f"/proc/{self.master.pid}/task/{self.master.pid}/children"
        while True:
            with open(children) as file:
                found = file.read().split()
            if found:
                break
            time.sleep(0.05)
        self.worker = int(found[0])
        self.ends = threading.Event()
        self.stalls = threading.Thread(target=self.stall)
        self.stalls.start()

    def stall(self):
        due = time.monotonic()
        while not self.ends.is_set():
            os.kill(self.worker, signal.SIGSTOP)
            time.sleep(STALL_S)
            os.kill(self.worker, signal.SIGCONT)
            due += EVERY_S
            self.ends.wait(max(0.0, due - time.monotonic()))

    def stop(self):
        self.ends.set()
        self.stalls.join()
        self.master.terminate()
        self.master.wait()


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


def by_slackline(url, rate, seconds):
    words = [os.environ["SLACKLINE"], "load", "--url", url, "--rate", rate, "--constant", "--duration-s", seconds, "--connections", CONNECTIONS]
    out, _, _ = run(words)
    report = json.loads(out)
    return {"p90": report["latency_p90_us"] / 1000, "p99": report["latency_p99_us"] / 1000}


def by_oha(oha, correct):
    def measure(url, rate, seconds):
        words = [oha, "--no-tui", "--output-format", "json", "-z", f"{seconds}s", "-q", rate, "-c", CONNECTIONS]
        out, error, code = run(words + (["--latency-correction"] if correct else []) + [url])
        if code != 0:
            sys.exit(f"oha: {error}")
        latency = json.loads(out)["latencyPercentiles"]
        return {"p90": 1000 * latency["p90"], "p99": 1000 * latency["p99"]}

    return measure


def generators(arguments):
    tools = {
        "slackline load": by_slackline,
        "oha --latency-correction": by_oha(arguments.oha, True),
        "oha": by_oha(arguments.oha, False),
    }
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        nginx = Nginx(directory)
        try:
            for repetition in range(arguments.repetitions):
                for rate in RATES:
                    for tool in list(tools) if repetition % 2 == 0 else reversed(tools):
                        found = tools[tool](nginx.url, rate, arguments.seconds)
                        rows.append({"tool": tool, "rate": rate, "repetition": repetition, "percentiles_ms": found})
                        print(f"{rate}/s  {tool:26}  p90 {found['p90']:6.1f} ms  p99 {found['p99']:6.1f} ms", flush=True)
        finally:
            nginx.stop()
    return rows


def sysbench():
    """What `throttle loadtest` finds by sysbench at given rates, beside what as many connections get through without pauses."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(directory, free_port())
        try:
            words = [*server.sysbench("point_select", 16), "--percentile=99"]
            closed = []
            for _ in range(3):
                out, _, _ = run([*words, "--time=5", "run"])
                closed += [float(line.split("(")[1].split()[0]) for line in out.splitlines() if "transactions:" in line]
            report = os.path.join(directory, "report.json")
            _, error, code = run([
                os.environ["SLACKLINE"], "throttle", "loadtest", "--slo-p99-ms", 50, "--start", 1000, "--step-s", 5, "--runs", 3,
                "--command", " ".join([*words, "--rate={rate}", "--time={duration_s}", "run"]), "--parse", "sysbench", "--json", report,
            ])
            if code != 0:
                sys.exit(f"loadtest: {error}")
            with open(report) as file:
                side = json.load(file)["sides"][0]
            return {"closed_per_s": closed, "capacities_per_s": side["capacities_per_s"], "capacity_per_s": side["capacity_per_s"]}
        finally:
            server.stop()


def of(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def write(results, arguments, rows, mysql):
    version = run([arguments.oha, "--version"])[0].strip()
    machine = f"{os.cpu_count()} virtual cores, Linux {platform.release()}, {version}"
    with open(os.path.join(results, "load.json"), "w") as file:
        json.dump({"machine": machine, "seconds": arguments.seconds, "rows": rows, "sysbench": mysql}, file, indent=1)
    lines = [
        "# The load generator against oha, and against arithmetic",
        "",
        f"`cargo xtask bench load`, {machine}. nginx with one worker that is stopped for {1000 * STALL_S:.0f} ms once a second; requests at a "
        f"constant rate, {CONNECTIONS} connections, {arguments.repetitions} runs of {arguments.seconds} s each, the tools in turns. In truth "
        f"(the stall alone) the 90th percentile is {truth_ms(0.9):.0f} ms, the 99th {truth_ms(0.99):.0f} ms. Milliseconds: median (least to most).",
        "",
        "| requests/s | tool | 90th percentile | 99th percentile |",
        "|---|---|---|---|",
    ]
    for rate in RATES:
        for tool in dict.fromkeys(row["tool"] for row in rows):
            mine = [row["percentiles_ms"] for row in rows if row["rate"] == rate and row["tool"] == tool]
            lines.append(f"| {rate} | {tool} | {of([row['p90'] for row in mine])} | {of([row['p99'] for row in mine])} |")
    capacity = mysql["capacity_per_s"]
    lines += [
        "",
        "`oha` without correction counts from when it came to send a request: what was due during the stall is left out.",
        "",
        "## `throttle loadtest` by `sysbench --rate`",
        "",
        f"A stock MariaDB, point selects by 16 connections on the same two cores. Without pauses they get {of(mysql['closed_per_s'])} "
        f"transactions a second through. `throttle loadtest --command 'sysbench … --rate={{rate}} …' --parse sysbench --slo-p99-ms 50` finds "
        f"{capacity['estimate']:.0f} [{capacity['low']:.0f}, {capacity['high']:.0f}] (95 %, searches: "
        + ", ".join(f"{value:.0f}" for value in mysql["capacities_per_s"])
        + ").",
        "",
    ]
    with open(os.path.join(results, "load.md"), "w") as file:
        file.write("\n".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--oha", required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    arguments = parser.parse_args()
    rows = generators(arguments)
    mysql = sysbench()
    write(arguments.results, arguments, rows, mysql)


main()
