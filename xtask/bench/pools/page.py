"""The page of what the bench of pools has found."""

import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "../relayout")]
from mariadb import interval  # noqa: E402
from pieces import percent  # noqa: E402


def by_repeat(part, name):
    """The 99th percentile of each run under a setting, in ms."""
    return {run["repeat"]: run["p99_ms"] for run in part["runs"] if run["setting"] == name}


def change(part, name, beside):
    """The 99th percentile under one setting over that under another, in pairs of the same repetition, in %; `None` of too few."""
    these, those = by_repeat(part, name), by_repeat(part, beside)
    ratios = [these[repeat] / those[repeat] for repeat in sorted(set(these) & set(those))]
    return interval(ratios) if len(ratios) > 1 else None


def is_worse(found):
    return found is not None and found[1] > 0


def is_better(found):
    return found is not None and found[2] < 0


def words(setting, how):
    """What a setting changes."""
    parts = [] if setting["workers"] == how["workers"] else [f"{setting['workers']} worker{'s' * (setting['workers'] > 1)}"]
    limit = setting["limit"]
    cores = limit["quota_us"] / limit["period_us"]
    if abs(cores - how["cores"]) > 1e-9:
        parts.append(f"quota {cores:.2f} cores")
    if limit["period_us"] != 100_000:
        parts.append(f"period {limit['period_us'] / 1000:g} ms")
    if limit["burst_us"]:
        parts.append(f"burst {limit['burst_us'] / 1000:g} ms")
    return ", ".join(parts) or "as it is"


def pool(part):
    """The pool that `advise` timed, as it counts it and names its setting."""
    advice = part["advice"]
    timed = next(pool for pool in advice["pools"] if pool["name"] == advice["timed"])
    is_of_processes = (timed["processes"] or 0) > 1
    by = timed["set_by"] or timed["setting"] or "no setting named"
    return f"{timed['threads']} `{timed['name']}` {'processes' if is_of_processes else 'threads'}: {by}"


def changes(setting, how):
    """What a setting of `advise` changes."""
    parts = [f"{size} `{name}`" for name, size in setting["threads"].items()]
    limit = words({"workers": how["workers"], "limit": setting["limit"]}, how)
    return ", ".join(parts + [limit] * (limit != "as it is" or not parts))


def said(advice, how):
    if advice["unreliable"] == "saturated":
        return "nothing: saturated"
    if advice["unreliable"]:
        return f"nothing: the model differs too much from the measurement ({100 * (advice['model_error'] - 1):+.0f} %)".replace("-", "−")
    recommended, give_back = advice["recommended"], advice["give_back"]
    text = changes(recommended, how) if recommended else "nothing: no change is shown to be faster"
    return text + (f"; in the model not slower with {changes(give_back, how)}" if give_back else "")


def rows(found):
    for name, part in found["services"].items():
        today = list(by_repeat(part, "today").values())
        cells = [name, pool(part), f"{part['rate_per_s']:g}", said(part["advice"], found)]
        cells.append(f"{statistics.median(today):.1f}" if today else "–")
        cells.append(percent(change(part, "recommended", "today")) if "recommended" in part["settings"] else "–")
        for alternative in ("alternative 1", "alternative 2"):
            setting = part["settings"].get(alternative)
            cells.append(f"{words(setting, found)}: {percent(change(part, alternative, 'today'))}" if setting else "–")
        cells.append(said(part["saturated"], found))
        yield "| " + " | ".join(cells) + " |"


def against_rows(found):
    for name, part in found["services"].items():
        # Where nothing is recommended, today's setting is what `advise` leaves.
        kept = "recommended" if "recommended" in part["settings"] else "today"
        for alternative in ("alternative 1", "alternative 2"):
            if alternative not in part["settings"]:
                continue
            against = change(part, kept, alternative)
            finding = "worse" if is_worse(against) else "better" if is_better(against) else "no difference shown" if against else "–"
            cells = [name, words(part["settings"][kept], found), words(part["settings"][alternative], found), percent(against), finding]
            yield "| " + " | ".join(cells) + " |"


def summary(found):
    parts = found["services"].values()
    changed = [change(part, "recommended", "today") for part in parts if "recommended" in part["settings"]]
    beaten = 0
    for part in parts:
        kept = "recommended" if "recommended" in part["settings"] else "today"
        against = [change(part, kept, name) for name in part["settings"] if name.startswith("alternative")]
        beaten += any(is_worse(each) for each in against)
    silent = sum(part["saturated"]["unreliable"] == "saturated" for part in parts)
    return (
        f"`advise` recommended something for {len(changed)} of {len(parts)} services. The recommendation was shown to be better than today's "
        f"setting for {sum(map(is_better, changed))}, and worse for {sum(map(is_worse, changed))}. For {beaten} of {len(parts)} services an "
        f"alternative was shown to be better than the setting of `advise`. In saturation `advise` recommended nothing for {silent} of {len(parts)}."
    )


# The pool's size is not what is different with one worker.
ON_UVICORN = (
    "uvicorn with several workers leaves TCP_NODELAY off ([issue 3149](https://github.com/Kludex/uvicorn/issues/3149)). Then the body of an answer "
    "waits until the client acknowledges the head, which takes 40 ms. With one worker, uvicorn sets the option. So one worker is faster for a "
    "reason that has nothing to do with CPU time, and `advise` cannot see it."
)
WITH_NODELAY = '"uvicorn with TCP_NODELAY" has the option set for all workers.'


def on_uvicorn(services):
    """Why one worker of uvicorn is faster, and what the service with the option set is, where the table has them."""
    said = [text for name, text in (("uvicorn", ON_UVICORN), ("uvicorn with TCP_NODELAY", WITH_NODELAY)) if name in services]
    return [" ".join(said), ""] if said else []


def write(found, out):
    runs = [run for part in found["services"].values() for run in part["runs"]]
    repeats = len({run["repeat"] for run in runs})
    disturbed = sum(run["bottleneck"] not in (None, "service") for run in runs)
    failed = sum(run["errors"] > 0 for run in runs)
    lines = [
        "# Pools of workers: what `throttle advise` recommends, under load",
        "",
        f"`cargo xtask bench pools`, {found['machine']}. Each service has {found['workers']} workers in a control group of "
        f"{found['cores']} core. Nine of ten requests take about 2 ms of CPU time, and one in ten takes ten times as much. The load is an "
        f"open loop. Its rate is {100 * found['share']:.0f} % of the rate of a closed loop. `advise` watched each service for {found['record_s']} s under this "
        f"load, and once in saturation (the closed loop). Then each setting was measured up to {repeats} times for {found['seconds']} s, in "
        "random order.",
        "",
        "The percentages are changes of the 99th percentile of the client's latency against today's setting, with 95 % intervals over pairs of "
        "runs. Less is better. There are four alternatives: one worker for each core of the quota, a burst as large as the quota, two workers "
        "for each core plus one, and one worker for each CPU. The first two that `advise` did not recommend were measured. A dash means that "
        "the setting was not measured, or in fewer than two pairs of runs.",
        "",
        summary(found),
        "",
        f"In {disturbed} of {len(runs)} runs the load generator was too slow, or another process took its CPU. Number of runs with errors: {failed}.",
        "",
        "| service | the pool as `advise` counts it, and its setting | requests/s | recommended | today, ms | with the recommendation | alternative 1 "
        "| alternative 2 | recommended in saturation |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows(found),
        "",
        *on_uvicorn(found["services"]),
        "The next table compares the setting of `advise` with each alternative: the change is that of the setting of `advise` against the "
        "alternative. If `advise` recommended nothing, today's setting counts.",
        "",
        "| service | `advise` | alternative | change of the 99th percentile | `advise` is |",
        "|---|---|---|---|---|",
        *against_rows(found),
        "",
    ]
    with open(os.path.join(out, "pools.md"), "w") as file:
        file.write("\n".join(lines))
