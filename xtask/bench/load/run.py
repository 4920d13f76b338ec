#!/usr/bin/env python3
"""Holds the load generator against wrk, oha and arithmetic; then `throttle loadtest` by sysbench.

usage (as root): SLACKLINE=path/to/slackline run.py OUT_DIR [--oha path/to/oha] [--repetitions N] [--seconds S]; writes load.{json,md}

Four parts. *Capacity*: a closed loop on one core beside nginx on the other, in turns with wrk and oha. *Rate*: 30,000 requests a second
by an open loop. *Both directions*: a service that is too slow, a generator that is too slow, and a CPU that something else has, each of
which has to be named. *Stalls*: nginx's worker is stopped for STALL_S once every EVERY_S. Requests at a constant rate that are due
meanwhile wait for what is left of the stall, so that in truth a share (STALL_S - x) / EVERY_S of them takes longer than x: the 90th and
99th percentiles are known. A generator that waits for an answer before it sends the next request leaves out those that were due
("coordinated omission").
"""

import argparse
import json
import os
import platform
import re
import resource
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
FILE_BYTES = 600
OPEN_RATE = 30000
CAPACITY_CONNECTIONS = 64
CONFIGURATION = """
worker_processes 1; daemon off; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; open_file_cache max=10; keepalive_requests 100000000; root {directory};
    server {{ listen 127.0.0.1:{port}; location / {{ return 200 "fine"; }} location /file {{ }} }}
}}
"""


def truth_ms(percentile):
    return 1000 * max(0.0, STALL_S - (1 - percentile) * EVERY_S)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Nginx:
    """A server with one worker, which may be pinned to a CPU, and may stand still now and then."""

    def __init__(self, directory, cpu=None, stall_s=0.0, every_s=EVERY_S):
        self.stall_s, self.every_s = stall_s, every_s
        self.port = free_port()
        os.chmod(directory, 0o755)
        with open(os.path.join(directory, "file"), "w") as file:
            file.write("a" * FILE_BYTES)
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
        if cpu is not None:
            os.sched_setaffinity(self.worker, {cpu})
        self.ends = threading.Event()
        self.stalls = threading.Thread(target=self.stall)
        self.stalls.start()

    def cpu_s(self):
        with open(f"/proc/{self.worker}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stall(self):
        due = time.monotonic()
        while self.stall_s and not self.ends.is_set():
            os.kill(self.worker, signal.SIGSTOP)
            time.sleep(self.stall_s)
            os.kill(self.worker, signal.SIGCONT)
            due += self.every_s
            self.ends.wait(max(0.0, due - time.monotonic()))

    def stop(self):
        self.ends.set()
        self.stalls.join()
        self.master.terminate()
        self.master.wait()


def run(words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    return done.stdout, done.stderr, done.returncode


def timed(words, cpu):
    """A generator on one CPU: its output, and the CPU time that it used."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out, error, code = run(["taskset", "-c", cpu, *words])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = sum(getattr(after, name) - getattr(before, name) for name in ("ru_utime", "ru_stime"))
    return out, error, code, used


def slackline(url, cpu, seconds, *more, through=()):
    words = [*through, os.environ["SLACKLINE"], "load", "--url", url, "--duration-s", seconds, "--connections", CAPACITY_CONNECTIONS, "--accept-late"]
    out, error, _, used = timed(words + list(more), cpu)
    if not out:
        sys.exit(f"slackline load: {error}")
    return json.loads(out), used


def row(tool, requests, requests_per_s, p99_ms, used, bottleneck=None):
    return {
        "tool": tool, "requests_per_s": requests_per_s, "latency_p99_ms": p99_ms, "cpu_us_per_request": 1e6 * used / max(1, requests),
        "bottleneck": bottleneck,
    }


def slackline_row(url, cpu, seconds, *more):
    """A row of `slackline load`; what it polled in vain is no CPU time of a request."""
    report, used = slackline(url, cpu, seconds, *more)
    tool = "slackline load --busy-poll" if "--busy-poll" in more else "slackline load"
    used -= report["own_polled_s"]
    return row(tool, report["due"], report["requests_per_s"], report["latency_p99_us"] / 1000, used, report["bottleneck"])


def closed_slackline(url, cpu, seconds):
    return slackline_row(url, cpu, seconds, "--closed")


def closed_polling(url, cpu, seconds):
    return slackline_row(url, cpu, seconds, "--closed", "--busy-poll")


def closed_wrk(url, cpu, seconds):
    out, error, code, used = timed(["wrk", "-t1", f"-c{CAPACITY_CONNECTIONS}", f"-d{seconds}s", "--latency", url], cpu)
    if code != 0:
        sys.exit(f"wrk: {error}")
    value, unit = re.search(r"99%\s+([0-9.]+)(us|ms|s)", out).groups()
    p99_ms = float(value) * {"us": 0.001, "ms": 1, "s": 1000}[unit]
    requests = int(re.search(r"(\d+) requests in", out).group(1))
    return row("wrk", requests, float(re.search(r"Requests/sec:\s+([0-9.]+)", out).group(1)), p99_ms, used)


def oha_row(oha, words, url, cpu):
    out, error, code, used = timed([oha, "--no-tui", "--output-format", "json", "-c", CAPACITY_CONNECTIONS, *words, url], cpu)
    if code != 0:
        sys.exit(f"oha: {error}")
    report = json.loads(out)
    requests = sum(report["statusCodeDistribution"].values())
    return row("oha", requests, report["summary"]["requestsPerSec"], 1000 * report["latencyPercentiles"]["p99"], used)


def in_turns(nginx, tools, arguments, url):
    rows = []
    for repetition in range(arguments.repetitions):
        for tool in tools if repetition % 2 == 0 else reversed(tools):
            before = nginx.cpu_s()
            found = tool(url, 0, arguments.seconds)
            found |= {"repetition": repetition, "nginx_cpu_s": nginx.cpu_s() - before}
            rows.append(found)
            print(
                f"{found['tool']:26} {found['requests_per_s']:9.0f}/s  p99 {found['latency_p99_ms']:8.2f} ms  "
                f"{found['cpu_us_per_request']:5.2f} us/request  {found['bottleneck'] or ''}",
                flush=True,
            )
    return rows


def capacity(arguments):
    """Closed loops on one core, nginx on the other."""
    with tempfile.TemporaryDirectory() as directory:
        nginx = Nginx(directory, cpu=1)
        try:
            tools = [closed_slackline, closed_polling, closed_wrk]
            if arguments.oha:
                tools.append(lambda url, cpu, seconds: oha_row(arguments.oha, ["-z", f"{seconds}s"], url, cpu))
            return in_turns(nginx, tools, arguments, f"{nginx.url}file")
        finally:
            nginx.stop()


def rate(arguments):
    """A rate that a blocking generator did not reach."""

    def open_slackline(url, cpu, seconds):
        return slackline_row(url, cpu, seconds, "--rate", OPEN_RATE, "--constant")

    def open_polling(url, cpu, seconds):
        return slackline_row(url, cpu, seconds, "--rate", OPEN_RATE, "--constant", "--busy-poll")

    def open_oha(url, cpu, seconds):
        return oha_row(arguments.oha, ["-z", f"{seconds}s", "-q", OPEN_RATE, "--latency-correction"], url, cpu)

    with tempfile.TemporaryDirectory() as directory:
        nginx = Nginx(directory, cpu=1)
        try:
            return in_turns(nginx, [open_slackline, open_polling] + [open_oha] * bool(arguments.oha), arguments, f"{nginx.url}file")
        finally:
            nginx.stop()


def directions(arguments):
    """Each of three is too slow, or away, in turn; the name that the generator gives it, beside who had no time left."""
    rows = []

    def measure(scene, expected, nginx, cpu, rate_per_s, *more, through=()):
        before, began = nginx.cpu_s(), time.monotonic()
        report, _ = slackline(f"{nginx.url}file", cpu, arguments.seconds, "--rate", round(rate_per_s), *more, through=through)
        share = (nginx.cpu_s() - before) / (time.monotonic() - began)
        keys = ("requests_per_s", "latency_p99_us", "lateness_p99_us", "connection_wait_p99_us", "own_busy_share", "run_queue_s", "bottleneck")
        rows.append({"scene": scene, "expected": expected, "rate": rate_per_s, "nginx_cpu_share": share} | {key: report[key] for key in keys})
        print(
            f"{scene}: {report['bottleneck']} (expected: {expected}), {report['requests_per_s']:.0f} of {rate_per_s:.0f}/s, busy: generator "
            f"{report['own_busy_share']:.2f}, nginx {share:.2f}",
            flush=True,
        )

    for _ in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as directory:
            nginx = Nginx(directory, cpu=1)
            try:
                capacity = closed_slackline(f"{nginx.url}file", 0, 2)["requests_per_s"]
                measure("neither is at its limit", None, nginx, 0, 0.2 * capacity)
                # Each of the generator's system calls stops it twice.
                measure("neither is at its limit, the generator polls", None, nginx, 0, 0.2 * capacity, "--busy-poll")
                traced = ("strace", "-f", "-o", "/dev/null")
                measure("a generator whose system calls are traced", "generator", nginx, 0, 0.8 * capacity, through=traced)
                hogs = [subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]) for _ in range(3)]
                try:
                    measure("three others on the generator's CPU", "neighbour", nginx, 0, 0.8 * capacity)
                finally:
                    for hog in hogs:
                        hog.kill()
                        hog.wait()
            finally:
                nginx.stop()
        with tempfile.TemporaryDirectory() as directory:
            nginx = Nginx(directory, cpu=1, stall_s=0.018, every_s=0.02)
            try:
                measure("a service that stands still for 90 % of the time", "service", nginx, 0, 0.5 * capacity)
            finally:
                nginx.stop()
    return rows


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
    tools = {"slackline load": by_slackline}
    if arguments.oha:
        tools |= {"oha --latency-correction": by_oha(arguments.oha, True), "oha": by_oha(arguments.oha, False)}
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        nginx = Nginx(directory, stall_s=STALL_S)
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


def of(values, digits=1):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(rows):
    lines = ["| tool | requests/s | 99th percentile, ms | CPU time of the generator per request, µs | bottleneck |", "|---|---|---|---|---|"]
    for tool in dict.fromkeys(row["tool"] for row in rows):
        mine = [row for row in rows if row["tool"] == tool]
        named = ", ".join(sorted({str(row["bottleneck"] or "null") for row in mine})) if tool.startswith("slackline load") else ""
        cells = [
            of([row["requests_per_s"] for row in mine], 0), of([row["latency_p99_ms"] for row in mine], 2),
            of([row["cpu_us_per_request"] for row in mine], 2), named,
        ]
        lines.append(f"| {tool} | " + " | ".join(cells) + " |")
    return lines


def directions_table(rows):
    lines = ["| what is slow | requests due, per s | requests answered, per s | p99 of the generator's own lateness, ms | p99 of the wait for a connection, ms | expected bottleneck, and how often it was named |", "|---|---|---|---|---|---|"]
    for scene in dict.fromkeys(row["scene"] for row in rows):
        mine = [row for row in rows if row["scene"] == scene]
        right = sum(row["bottleneck"] == row["expected"] for row in mine)
        cells = [
            of([row["rate"] for row in mine], 0), of([row["requests_per_s"] for row in mine], 0), of([row["lateness_p99_us"] / 1000 for row in mine], 2),
            of([row["connection_wait_p99_us"] / 1000 for row in mine], 2), f"`{mine[0]['expected'] or 'null'}` in {right} of {len(mine)}",
        ]
        lines.append(f"| {scene} | " + " | ".join(cells) + " |")
    return lines


def stall_table(rows):
    lines = ["| requests/s | tool | 90th percentile | 99th percentile |", "|---|---|---|---|"]
    for rate in RATES:
        for tool in dict.fromkeys(row["tool"] for row in rows):
            mine = [row["percentiles_ms"] for row in rows if row["rate"] == rate and row["tool"] == tool]
            lines.append(f"| {rate} | {tool} | {of([row['p90'] for row in mine])} | {of([row['p99'] for row in mine])} |")
    return lines


def write(results, arguments, found):
    versions = ["oha left out: it could not be built"]
    if arguments.oha:
        versions = [run([arguments.oha, "--version"])[0].strip()]
    versions.append(run(["wrk", "-v"])[0].splitlines()[0].split(" [")[0])
    machine = f"{os.cpu_count()} virtual cores, Linux {platform.release()}, {', '.join(versions)}"
    with open(os.path.join(results, "load.json"), "w") as file:
        json.dump({"machine": machine, "seconds": arguments.seconds} | found, file, indent=1)
    lines = [
        "# The load generator against wrk, oha and known latencies",
        "",
        f"`cargo xtask bench load`, {machine}. {arguments.repetitions} runs of {arguments.seconds} s of each tool, in turns. A cell "
        "has the median, and in brackets the lowest and the highest value. *Bottleneck* is the bottleneck that the report of `slackline load` named (`null`: none).",
        "",
        "## Capacity",
        "",
        f"A closed loop of {CAPACITY_CONNECTIONS} connections on one core. On the other core, one worker of nginx serves a file of "
        f"{FILE_BYTES} bytes. CPU time is user and system time, without the time in which `--busy-poll` polled and found nothing.",
        "",
        *table(found["capacity"]),
        "",
        f"## {OPEN_RATE:,} requests a second",
        "",
        "An open loop with arrivals at equal intervals, on the same two cores.",
        "",
        *table(found["rate"]),
        "",
        "## Who was too slow",
        "",
        "Random arrivals at a share of the capacity. Each of the last three rows has one bottleneck: the generator, neighbours on its "
        "CPU, or the service. `bottleneck` in the report has to name it. The slow generator runs under `strace`.",
        "",
        *directions_table(found["directions"]),
        "",
        "## Stalls",
        "",
        f"nginx has one worker, which is stopped for {1000 * STALL_S:.0f} ms once a second. Requests come at a constant rate over {CONNECTIONS} "
        f"connections. So the true percentiles are known: {truth_ms(0.9):.0f} ms (90th) and {truth_ms(0.99):.0f} ms (99th), if a request takes no time outside a stall. The table is in milliseconds.",
        "",
        *stall_table(found["stalls"]),
        "",
        "Without `--latency-correction`, `oha` counts the latency from the sending of a request. So this latency leaves out the time for which requests waited during the stall.",
        "",
    ]
    mysql = found.get("sysbench")
    if mysql:
        capacity = mysql["capacity_per_s"]
        lines += [
            "## `throttle loadtest` with `sysbench --rate`",
            "",
            f"Debian's MariaDB does point selects over 16 connections on the same two cores. In a closed loop, without an objective, it does "
            f"{of(mysql['closed_per_s'])} transactions a second. `throttle loadtest --command 'sysbench … --rate={{rate}} …' --parse sysbench --slo-p99-ms 50` finds "
            f"{capacity['estimate']:.0f} [{capacity['low']:.0f}, {capacity['high']:.0f}] transactions a second (95 % interval; the single searches found "
            + ", ".join(f"{value:.0f}" for value in mysql["capacities_per_s"])
            + ").",
            "",
        ]
    with open(os.path.join(results, "load.md"), "w") as file:
        file.write("\n".join(lines))


PARTS = {"capacity": capacity, "rate": rate, "directions": directions, "stalls": generators, "sysbench": lambda _: sysbench()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--oha", help="without it, its rows are left out")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--parts", default=",".join(PARTS), help="of: " + ", ".join(PARTS) + "; the others stay as they were")
    arguments = parser.parse_args()
    found = {}
    kept = os.path.join(arguments.results, "load.json")
    if os.path.exists(kept):
        with open(kept) as file:
            found = {name: rows for name, rows in json.load(file).items() if name in PARTS}
    for part in arguments.parts.split(","):
        print(f"-- {part}", flush=True)
        found[part] = PARTS[part](arguments)
        # After each: what fails later does not take it along.
        write(arguments.results, arguments, {name: found.get(name, []) for name in PARTS})


if __name__ == "__main__":
    main()
