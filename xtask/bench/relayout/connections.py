"""How long a MariaDB with many busy connections stands still at a switch: connections.py OUTPUT.json [--switches N]"""
import argparse
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path

from mariadb import Server, lay_out, pause_us, relayout

CONNECTIONS = (4, 50, 500)


def measure(server, state, connections, switches):
    load = server.load("point_select", connections)
    pauses = []
    try:
        time.sleep(5)
        started = lay_out(state, server.pid, check=False)
        said = started.stdout + started.stderr
        if started.returncode:
            return {"connections": connections, "refused": said.strip()}
        generation = int(re.search(r"runs in generation (\d+)", said)[1])
        threads = len(os.listdir(f"/proc/{server.pid}/task"))
        for number in range(switches):
            time.sleep(0.2)
            pauses.append(pause_us(relayout(state, "switch", server.pid, generation if number % 2 else 0).stderr))
        relayout(state, "rollback", "--all", check=False)
    finally:
        load.kill()
        load.wait()
    pauses.sort()
    return {"connections": connections, "threads": threads, "switches": switches, "pause_us_median": statistics.median(pauses),
            "pause_us_p95": pauses[len(pauses) * 95 // 100], "pause_us_worst": pauses[-1]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--switches", type=int, default=200)
    arguments = parser.parse_args()
    results = {"kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M"), "rows": []}
    with tempfile.TemporaryDirectory() as work:
        server = Server(f"{work}/server", 33408)
        try:
            for connections in CONNECTIONS:
                results["rows"].append(measure(server, f"{work}/state", connections, arguments.switches))
                print(results["rows"][-1], flush=True)
                arguments.output.write_text(json.dumps(results, indent=1) + "\n")
        finally:
            server.stop()


main()
