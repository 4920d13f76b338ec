"""The second start of a program, by the profile that the first left: second_start.py OUTPUT.json [--starts N]

A MariaDB under sysbench is laid out, ended, and started again; then it is measured how long `slackline relayout start` takes from
its own start until the layout is in force, and until it is verified.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from mariadb import SLACKLINE, Server, relayout


def until_installed(state, pid):
    """Seconds from the command's start until it compares the layout that is in force by then; and what it says at the end."""
    command = [SLACKLINE, "--state-dir", state, "relayout", "start", "--pid", str(pid), "--once", "--json"]
    start = time.monotonic()
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    took = None
    for line in running.stderr:
        if "verifying" in line and took is None:
            took = time.monotonic() - start
    status = json.loads(running.stdout.read())["processes"][0]
    running.wait()
    return {"until_installed_s": took and round(took, 2), "until_verified_s": round(time.monotonic() - start, 1), "state": status["state"],
            "reason": status.get("reason"), "gain": status["gain"], "seconds": status["seconds"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--starts", type=int, default=3)
    arguments = parser.parse_args()
    result = {"kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M"), "starts": []}
    with tempfile.TemporaryDirectory() as work:
        for number in range(arguments.starts + 1):
            server = Server(f"{work}/server", 33406)
            load = server.load("point_select", 4)
            try:
                time.sleep(4)
                if number == 0:
                    # Whether it is shown to be better or not, it leaves its profile.
                    relayout(f"{work}/state", "start", "--pid", server.pid, "--once", "--unverified")
                else:
                    result["starts"].append(until_installed(f"{work}/state", server.pid))
                    print(result["starts"][-1], flush=True)
                relayout(f"{work}/state", "rollback", "--all", check=False)
            finally:
                load.kill()
                load.wait()
                server.stop()
    known = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    arguments.output.write_text(json.dumps(known + [result], indent=1) + "\n")


main()
