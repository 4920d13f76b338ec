"""The controllers on the modelled machine of 36 cores. Nothing here is measured."""

import json
import os
import subprocess
import tempfile

SIMULATED = ["none", "heracles", "parties", "slackline"]
ANTAGONISTS_SIMULATED = {
    # name: DRAM of a core, share of the cache, sensitivity to the cache, egress, power of a core
    "brain": (2, 0.5, 0.3, 0, 1.2),
    "streetview": (5, 0.6, 0.2, 0, 1.0),
    "stream-llc": (1, 0.9, 0.6, 0, 1.0),
    "stream-dram": (10, 0.7, 0, 0, 1.0),
    "cpu_pwr": (0.1, 0, 0, 0, 2.2),
    "iperf": (0.5, 0, 0, 20000, 0.5),
}


def run(slackline):
    """The controllers on the modelled machine of 36 cores."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "plant.toml")
        for name, (dram, cache, sensitivity, egress, power) in ANTAGONISTS_SIMULATED.items():
            for policy in SIMULATED:
                row = {"antagonist": name, "policy": policy, "at": {}, "most": {}}
                for load in (0.25, 0.5, 0.7):
                    with open(path, "w") as file:
                        file.write(
                            f"duration_s = 7200\nload = [{load}]\nseed = 1\n[plant.antagonist]\nname = \"{name}\"\n"
                            f"dram_gb_per_core = {dram}\ncache_share = {cache}\ncache_sensitivity = {sensitivity}\n"
                            f"egress_mbit_per_s = {egress}\npower = {power}\n"
                        )
                    words = [slackline, "isolate", "simulate", path, "--policy", policy, "--json"]
                    done = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)[0]
                    row["at"][str(load)] = [done["violated_share"], done["utilisation"]]
                    if policy == SIMULATED[0]:
                        words = [slackline, "isolate", "simulate", path, "--ceiling", "--json"]
                        most = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)[0]
                        row["most"][str(load)] = [most["with_quota"], most["with_everything"]]
                rows.append(row)
        power = []
        for load in (0.1, 0.3, 0.5, 0.7, 0.9):
            watts = []
            for policy in ("none", "pegasus"):
                with open(path, "w") as file:
                    file.write(f'{{"duration_s": 7200, "load": [{load}], "seed": 1, "plant": {{"antagonist": null}}}}')
                os.replace(path, path + ".json")
                words = [slackline, "isolate", "simulate", path + ".json", "--policy", policy, "--json"]
                done = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)[0]
                watts.append([done["power_w"], done["violated_share"]])
            power.append([load, *watts])
    return {"rows": rows, "power": power}
