#!/usr/bin/env python3
"""Holds what `slackline throttle advise` predicts from one recording against what is then seen under each setting.

usage (as root): SLACKLINE=path/to/slackline model.py OUT_DIR [--repetitions N] [--seconds S]; writes throttle-model.{json,md}

The service is examples/throttled-jvm's, under a constant open-loop load. Recorded once as it is; then, in turns, under each limit
and with each pool size of which the model spoke: the 99th percentile of the request pool's jobs and of the client's requests, and the
share of throttled periods by the kernel's own counters.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

from group import Group

HERE = os.path.dirname(os.path.abspath(__file__))
SERVICE = os.path.join(HERE, "../../../examples/throttled-jvm/service")
GROUP = "slackline-throttled-jvm"
URL = "http://127.0.0.1:18080/"
RATE = "150"
POOL = "worker-*"
REFRESHERS, COLLECTORS, WORKERS = 16, 8, 32
# Of each pool, the smallest size and one between: a JVM must be started anew for each.
SIZES = (1, 4)


def start(threads):
    """The service with so many threads in each pool."""
    environment = os.environ | {"WORKERS": str(threads.get(POOL, WORKERS))}
    collectors = next((size for name, size in threads.items() if name.startswith("GC")), COLLECTORS)
    arguments = [SERVICE, "start", str(threads.get("refresh-*", REFRESHERS)), f"-XX:ParallelGCThreads={collectors}"]
    subprocess.run(arguments, check=True, env=environment)


def record(slackline, seconds):
    """Jobs of the request pool under load: their 99th percentile, the share of throttled periods, and the advice."""
    load = subprocess.Popen(
        [slackline, "load", "--url", URL, "--rate", RATE, "--duration-s", str(seconds + 4)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(2)
    with tempfile.TemporaryDirectory() as scratch:
        saved = os.path.join(scratch, "recording.json")
        before = Group(GROUP).periods()
        advised = subprocess.run(
            [slackline, "throttle", "advise", "--cgroup", GROUP, "--duration-s", str(seconds), "--pool", POOL]
            + ["--save", saved, "--json", "-"],
            capture_output=True,
            text=True,
        )
        after = Group(GROUP).periods()
        client = json.loads(load.communicate()[0])
        if advised.returncode > 1:
            sys.exit(advised.stderr)
        with open(saved) as file:
            recording = json.load(file)
    names = [pool["name"] for pool in recording["service"]["pools"]]
    jobs = sorted(recording["latencies_us"][names.index(POOL)])
    return {
        "p99_us": jobs[int(0.99 * (len(jobs) - 1))],
        "client_p99_us": client["latency_p99_us"],
        "jobs": len(jobs),
        "throttled_share": (after[1] - before[1]) / max(after[0] - before[0], 1),
    }, json.loads(advised.stdout)


def settings_of(advice):
    """Every setting with one change that can be made here, with what the model says of it."""
    today = advice["today"]["setting"]
    chosen = [advice["today"]]
    for tried in advice["tried"]:
        threads, limit = tried["setting"]["threads"], tried["setting"]["limit"]
        if limit != today["limit"] and not threads:
            chosen.append(tried)
        elif limit == today["limit"] and len(threads) == 1:
            (pool, size), = threads.items()
            if size in SIZES and (pool in (POOL, "refresh-*") or pool.startswith("GC")):
                chosen.append(tried)
    return chosen


def changed(setting, today):
    """A setting's name: what differs from today's."""
    parts = [f"{size} `{pool}` threads" for pool, size in setting["threads"].items()]
    limit, now = setting["limit"], today["limit"]
    if limit["quota_us"] * now["period_us"] != now["quota_us"] * limit["period_us"]:
        parts.append(f"quota {limit['quota_us'] / limit['period_us']:.2f} cores")
    parts += [f"{name} {limit[name + '_us'] / 1000:g} ms" for name in ("period", "burst") if limit[name + "_us"] != now[name + "_us"]]
    return ", ".join(parts) or "as it is"


def written(report):
    """The report as a page of docs/results."""
    today = report["settings"][0]
    rows, factors, by_client, agreed, moved = [], [], [], 0, 0
    middle = lambda setting, key: statistics.median(found[key] for found in setting["seen"])
    for setting in report["settings"]:
        seen = [found["p99_us"] / 1000 for found in setting["seen"]]
        predicted = setting["predicted"]["p99_us"] / 1000
        factor = predicted / statistics.median(seen)
        factors.append(factor)
        client = middle(setting, "client_p99_us") / 1000
        by_client.append(predicted / client)
        said = math.log(predicted * 1000 / today["predicted"]["p99_us"])
        if abs(said) > math.log(1.2):
            moved += 1
            agreed += said * math.log(middle(setting, "p99_us") / middle(today, "p99_us")) > 0
        rows.append(
            f"| {changed(setting, today)} | {predicted:.1f} | {statistics.median(seen):.1f} ({min(seen):.1f} to {max(seen):.1f}) | "
            f"{factor:.2f} | {client:.1f} | {100 * setting['predicted']['throttled_share']:.0f} % | {100 * middle(setting, 'throttled_share'):.0f} % |"
        )
    off, off_client = (sorted(math.exp(abs(math.log(factor))) for factor in each) for each in (factors, by_client))
    return f"""# What `throttle advise` predicts, and what was measured

`cargo xtask bench throttle`: examples/throttled-jvm in one core under {report["rate_per_s"]:g} requests a second, recorded once for {report["recorded_s"]} s. Then the
service ran for {report["seconds"]} s under each setting that the model predicts, in turns, {len(report["settings"][0]["seen"])} times. {report["machine"]}

| column | meaning |
|---|---|
| predicted, measured | the 99th percentile of the jobs of `{POOL}`, from waking to sleeping, in milliseconds |
| the client's | the 99th percentile of the requests' latency that the load generator measured, in milliseconds |
| throttled | the share of throttled periods: predicted, and as the kernel counted them |

| setting | predicted | measured: median (lowest to highest) | predicted / measured | the client's | throttled, predicted | throttled, measured |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

The predicted percentile differs from the measured one by a factor of {statistics.median(off):.2f} in the median and {off[-1]:.2f} at worst. The predicted percentile
differs from the client's by a factor of {statistics.median(off_client):.2f} in the median and {off_client[-1]:.2f} at worst. One reason: if a job is due while the group is
throttled, the thread that wakes the job's thread is throttled, too. So the job's thread wakes only afterwards. The client and the model
count this wait, and the measured percentile does not.

For {moved} settings the model predicts that they change the percentile by more than a fifth. {agreed} of these settings changed the measured
percentile in the predicted direction.
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--recorded-s", type=int, default=30)
    options = parser.parse_args()
    slackline = os.environ["SLACKLINE"]
    seen = {}
    try:
        start({})
        base, advice = record(slackline, options.recorded_s)
        predictions = settings_of(advice)
        for repetition in range(options.repetitions):
            running = None
            for index in sorted(range(len(predictions)), key=lambda i: sorted(predictions[i]["setting"]["threads"].items())):
                setting = predictions[index]["setting"]
                if running != setting["threads"]:
                    start(setting["threads"])
                    running = setting["threads"]
                Group(GROUP).limit(setting["limit"])
                found, _ = record(slackline, options.seconds)
                seen.setdefault(index, []).append(found)
                print(repetition, setting["threads"], setting["limit"], found, flush=True)
    finally:
        subprocess.run([SERVICE, "stop"], check=False)
    report = {
        "rate_per_s": float(RATE),
        "seconds": options.seconds,
        "recorded_s": options.recorded_s,
        "machine": f"{os.cpu_count()} virtual cores, Linux {platform.release()}.",
        "model_error": advice["model_error"],
        "recorded": base,
        "settings": [
            {
                "threads": prediction["setting"]["threads"],
                "limit": prediction["setting"]["limit"],
                "predicted": {"p99_us": prediction["p99_us"], "throttled_share": prediction["throttled_share"]},
                "seen": seen[index],
            }
            for index, prediction in enumerate(predictions)
        ],
    }
    with open(os.path.join(options.out, "throttle-model.json"), "w") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(options.out, "throttle-model.md"), "w") as file:
        file.write(written(report))


main()
