#!/usr/bin/env python3
"""Measures what `slackline agent` itself uses on a host of many services.

usage (as root): SLACKLINE=path/to/slackline agent.py OUT_DIR [--seconds S]; writes agent.md

Each service is a control group with a limit, and a process in it that wakes twice a second. The agent is scraped every 15 s.
"""

import argparse
import os
import platform
import re
import signal
import subprocess
import time
import urllib.request

PREFIX = "slackline-agent-bench"
GROUPS = (10, 100, 1000)
SCRAPE_EVERY_S = 15
V2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
CONTROLLERS = [""] if V2 else ["cpu", "cpuacct"]


def paths(number):
    return [os.path.join("/sys/fs/cgroup", controller, f"{PREFIX}-{number}") for controller in CONTROLLERS]


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def start(number):
    for path in paths(number):
        os.makedirs(path, exist_ok=True)
    if V2:
        write(f"{paths(number)[0]}/cpu.max", "50000 100000")
    else:
        write(f"{paths(number)[0]}/cpu.cfs_quota_us", "50000")
    child = os.fork()
    if child == 0:
        for path in paths(number):
            write(f"{path}/cgroup.procs", str(os.getpid()))
        while True:
            time.sleep(0.5)
    return child


def used_s(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"VmHWM:\s*(\d+)", file.read()).group(1)) / 1024


def scrape(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    start = time.monotonic()
    text = opener.open(f"http://{address}/metrics").read().decode()
    return time.monotonic() - start, text


def measure(groups, seconds):
    children = [start(number) for number in range(groups)]
    agent = None
    try:
        agent = subprocess.Popen(
            [os.environ["SLACKLINE"], "agent", "--listen", "127.0.0.1:0", "--service", f"{PREFIX}-*"],
            stderr=subprocess.PIPE,
            text=True,
        )
        address = re.search(r"http://([^/]*)/", agent.stderr.readline()).group(1)
        scrape(address)
        begin, used, took = time.monotonic(), used_s(agent.pid), []
        while time.monotonic() - begin < seconds:
            time.sleep(SCRAPE_EVERY_S)
            duration, text = scrape(address)
            took.append(duration)
        share = (used_s(agent.pid) - used) / (time.monotonic() - begin)
        services = len({*re.findall(rf'group="{PREFIX}-\d+"', text)})
        traced = max((float(value) for value in re.findall(r"slackline_traced_seconds_total\{[^}]*\} (\S+)", text)), default=0.0)
        return services, share, max(took), len(text), traced / (time.monotonic() - begin), resident_mib(agent.pid)
    finally:
        for pid in children + ([agent.pid] if agent else []):
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        if agent:
            agent.wait()
        for number in range(groups):
            for path in paths(number):
                os.rmdir(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("results")
    parser.add_argument("--seconds", type=int, default=120)
    arguments = parser.parse_args()
    lines = [
        "# What the agent itself uses",
        "",
        f"`cargo xtask bench agent`, {os.cpu_count()} virtual cores, Linux {platform.release()}, control groups {'v2' if V2 else 'v1'}. "
        f"Each service has a limit and a process that wakes twice a second. The agent is scraped every {SCRAPE_EVERY_S} s for {arguments.seconds} s. "
        "Its CPU budget is the default: 0.5 % of a core. One run for each row. *Scheduler followed* is the share of the time in which the agent traces the scheduler.",
        "",
        "| services | CPU time, share of a core | longest scrape | size of the answer | scheduler followed | memory |",
        "|---|---|---|---|---|---|",
    ]
    for groups in GROUPS:
        services, share, took, size, traced, resident = measure(groups, arguments.seconds)
        assert services == groups, f"{services} of {groups} services were exported"
        lines.append(
            f"| {groups} | {100 * share:.2f} % | {1000 * took:.0f} ms | {size / 1024:.0f} KiB | {100 * traced:.1f} % of the time | {resident:.0f} MiB |"
        )
        print(lines[-1], flush=True)
    with open(os.path.join(arguments.results, "agent.md"), "w") as file:
        file.write("\n".join(lines) + "\n")


main()
