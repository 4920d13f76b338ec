"""Measures `slackline relayout` on Debian's MariaDB under sysbench: run.py OUTPUT.json [--blocks N] [--workloads A,B]

Two servers run side by side under the same load on the same CPUs. One is re-laid out and switched between its original
layout and the new one; the other is never touched. So three things are seen in the same seconds: the new layout against the
original, and each against a server that Slackline never wrote to. Noise that hits both servers cancels.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mariadb import EXAMPLE, Server, interval, relayout


def per_cpu(before, after):
    return (after[0] - before[0]) / (after[1] - before[1])


def measure(workload, threads, blocks, block_s, picture):
    result = {"workload": workload, "connections_each": threads, "blocks": []}
    with tempfile.TemporaryDirectory() as work:
        touched, untouched = Server(f"{work}/touched", 33401), Server(f"{work}/untouched", 33402)
        loads = []
        try:
            checksum = touched.sql("checksum table sbtest.sbtest1, sbtest.sbtest2")
            loads = [server.load(workload, threads) for server in (touched, untouched)]
            time.sleep(6)
            before = touched.windows()[1:]
            start = time.monotonic()
            # What the command itself verifies is one claim; the comparison below is another.
            done = relayout(f"{work}/state", "start", "--pid", touched.pid, "--once", "--json", check=False)
            result["start_s"] = round(time.monotonic() - start, 1)
            print(done.stderr, end="")
            if done.returncode not in (0, 1):
                sys.exit(done.stderr)
            status = json.loads(done.stdout)["processes"][0]
            result["state"], result["reason"] = status["state"], status.get("reason")
            for key in ("gain", "pause_us", "seconds", "layout"):
                result[key] = status[key]
            during = touched.windows()[len(before) + 1:][: int(status["seconds"].get("counting", 0) + 5)]
            result["profiling_windows"] = {"before": before, "during": during}
            if status["state"] == "optimized":
                number = status["generation"]
                relayout(f"{work}/state", "explain", touched.pid, "--svg", picture)
                for block in range(blocks):
                    for generation in ((0, number) if block % 2 == 0 else (number, 0)):
                        relayout(f"{work}/state", "switch", touched.pid, generation)
                        time.sleep(0.05)
                        first = touched.reading(), untouched.reading()
                        time.sleep(block_s)
                        last = touched.reading(), untouched.reading()
                        result["blocks"].append({
                            "block": block, "new": generation != 0,
                            "touched": per_cpu(first[0], last[0]), "untouched": per_cpu(first[1], last[1]),
                        })
                result["changes"] = changes(result["blocks"])
            rollback = relayout(f"{work}/state", "rollback", "--all", check=False)
            result["rollback"] = (rollback.stdout + rollback.stderr).strip()
            result["same_code"] = subprocess.run([EXAMPLE / "same-code", str(touched.pid)], check=False).returncode == 0
            result["same_checksum"] = touched.sql("checksum table sbtest.sbtest1, sbtest.sbtest2") == checksum
        finally:
            for load in loads:
                load.kill()
                load.wait()
            touched.stop()
            untouched.stop()
    return result


def changes(blocks):
    """Each pair's ratios, as intervals."""
    def ratios(new):
        return [block["touched"] / block["untouched"] for block in blocks if block["new"] == new]
    original, new = ratios(False), ratios(True)
    return {
        "new_over_original": interval([n / o for n, o in zip(new, original)]),
        "original_over_untouched": interval(original),
        "new_over_untouched": interval(new),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--block-s", type=float, default=0.7)
    parser.add_argument("--workloads", default="point_select,read_only")
    parser.add_argument("--connections", default="2")
    arguments = parser.parse_args()
    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    for workload in arguments.workloads.split(","):
        for threads in map(int, arguments.connections.split(",")):
            picture = arguments.output.with_name(f"relayout-{workload}.svg")
            result = measure(workload, threads, arguments.blocks, arguments.block_s, picture)
            result["kernel"], result["time"] = os.uname().release, time.strftime("%Y-%m-%d %H:%M")
            results.append(result)
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")
            print(workload, threads, result["state"], result.get("changes"))


main()
