"""What the benches share that keep what they found, and go on when they are started again."""

import json
import os
import platform


def machine():
    """The machine, as a page names it."""
    with open("/proc/cpuinfo") as file:
        model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    return f"{os.cpu_count()} CPUs of {model}, Linux {platform.release()}"


def write_json(path, found):
    """Replaces a file at once: a bench that is killed leaves what was there before."""
    with open(f"{path}.next", "w") as file:
        json.dump(found, file, indent=1)
        file.write("\n")
    os.replace(f"{path}.next", path)


def percent(found):
    """A change in % with its interval, `–` where there is none."""
    if found is None:
        return "–"
    mean, low, high = (f"{value:+.1f}".replace("-", "−") for value in found)
    return f"{mean} % [{low}, {high}]"
