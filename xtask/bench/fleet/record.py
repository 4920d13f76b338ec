#!/usr/bin/env python3
"""Records the shapes of the simulated fleet: what `slackline agent` exports of real groups with real loads.

usage (as root, control groups v1): record.py SLACKLINE SECONDS > crates/slackline/tests/blackbox/fleet/shapes.txt
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

SHAPES = {
    # name: (quota in cores, processes, busy seconds, pause, all at once)
    "pool": (0.4, 8, 0.008, 0.292, True),  # wakes at once, a fifth of a core on average
    "steady": (1.0, 2, 0.003, 0.027, False),
    "idle": (1.0, 1, 0.0002, 0.5, False),
    "greedy": (0.2, 2, 1.0, 0.0, False),  # wants more than there is
    "collector": (0.3, 4, 0.08, 2.0, True),  # seldom, and then much
    "roomy": (2.0, 3, 0.001, 0.019, False),
}


def group_paths(name):
    return [f"/sys/fs/cgroup/{controller}/slackline-shape-{name}" for controller in ("cpu", "cpuacct")]


def work(name, number, busy, pause, at_once):
    for path in group_paths(name):
        with open(f"{path}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
    while True:
        if at_once:
            time.sleep((busy + pause) - time.time() % (busy + pause))
        elif pause:
            time.sleep(pause)
        end = time.thread_time() + busy
        while time.thread_time() < end:
            pass


def scrape(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(f"http://{address}/metrics").read().decode()


def main():
    slackline, seconds = sys.argv[1], float(sys.argv[2])
    children = []
    try:
        for name, (quota, processes, busy, pause, at_once) in SHAPES.items():
            for path in group_paths(name):
                os.makedirs(path, exist_ok=True)
            with open(f"{group_paths(name)[0]}/cpu.cfs_quota_us", "w") as file:
                file.write(str(int(quota * 100_000)))
            for number in range(processes):
                child = os.fork()
                if child == 0:
                    work(name, number, busy, pause, at_once)
                children.append(child)
        agent = subprocess.Popen(
            [slackline, "agent", "--listen", "127.0.0.1:0", "--trace-every-s", "1", "--cpu-budget", "1"]
            + ["--service", "slackline-shape-*"],
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(agent.pid)
        address = re.search(r"http://([^/]*)/", agent.stderr.readline()).group(1)
        time.sleep(2.2)
        for at in (0, seconds):
            time.sleep(at)
            print(f"# at {at:.0f} s, {os.uname().release}, {os.cpu_count()} CPUs")
            for line in scrape(address).splitlines():
                if line.startswith("slackline_") and "group=" in line:
                    print(line.replace("slackline-shape-", ""))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            try:
                os.waitpid(child, 0)
            except ChildProcessError:
                pass
        time.sleep(0.2)
        for name in SHAPES:
            for path in group_paths(name):
                os.rmdir(path)


main()
