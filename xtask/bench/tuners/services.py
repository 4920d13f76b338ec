"""Made-up services after what their knobs do, where systems.py adds effects up: every seed is another one.

A *pipeline* of stages with threads and batches on a few cores; a *database* whose memories hold its working sets, and which
crashes where they ask for more than the machine has; a *kernel* of nested loops with tiles that fit a cache or do not. Most
knobs are best somewhere inside their ranges, where two costs meet, and what is best of one depends on others.
"""

import math
import random

from problems import NOISE, between, choice, ordered, random_configuration, real, whole
from systems import problem

NAME = "services"
SAMPLE = 4096
# The best takes at most this share of the median's time: else there is nothing to tune.
WORTH_TUNING = 0.9


def _count(rng, name, high):
    """A number from 1 on: a list of powers, a range, or a range whose ratios matter."""
    kind = rng.choice(("list", "range", "ratios"))
    if kind == "list":
        factor = rng.choice((2, 4))
        values = [factor**power for power in range(math.floor(math.log(high, factor) + 1e-9) + 1)]
        return ordered(name, values, 1)
    return whole(name, 1, high, 1, log=kind == "ratios")


def _around(rng, deviation):
    """A positive factor around 1."""
    return math.exp(rng.gauss(0, deviation))


def _pipeline(rng):
    """Time of a request at a fixed load, or per request at full load."""
    cores = rng.choice((4, 8, 16, 32))
    stages = [
        dict(
            threads=f"threads{stage}",
            batch=f"batch{stage}",
            work=_around(rng, 1.0),
            each_batch=rng.uniform(0.5, 10.0),
            each_item=between(rng, 1e-4, 3e-2),
            contention=rng.uniform(0.0, 0.1),
        )
        for stage in range(rng.randint(2, 4))
    ]
    parameters = []
    for stage in stages:
        parameters.append(_count(rng, stage["threads"], rng.choice((8, 16, 32, 64))))
        parameters.append(_count(rng, stage["batch"], rng.choice((64, 256, 1024))))
    parameters.append(choice("wait", ("spin", "yield", "block"), "spin"))
    waiting = {kind: rng.uniform(0.8, 1.4) for kind in ("spin", "yield", "block")}
    flags = {f"flag{flag}": _around(rng, 0.15) for flag in range(rng.randint(0, 3))}
    parameters += [choice(flag, (0, 1), 0) for flag in flags]
    switching, spinning = rng.uniform(0.005, 0.1), rng.uniform(0.0, 0.5)

    def rates(c):
        """Of each stage: the work of a request and the requests that it does at once."""
        crowd = sum(c[stage["threads"]] for stage in stages) / cores
        slower = waiting[c["wait"]] * math.prod(factor for flag, factor in flags.items() if c[flag])
        if crowd > 1:
            slower *= crowd * (1 + switching * (crowd - 1)) * (1 + spinning if c["wait"] == "spin" else 1)
        for stage in stages:
            threads, batch = c[stage["threads"]], c[stage["batch"]]
            work = stage["work"] * (1 + stage["each_batch"] / batch + stage["each_item"] * batch / 10)
            yield work * slower, threads / (1 + stage["contention"] * (threads - 1))

    def capacity(c):
        return min(at_once / work for work, at_once in rates(c))

    if rng.random() < 0.4:
        return parameters, lambda c: 100 / capacity(c)
    capacities = sorted(capacity(random_configuration(parameters, rng)) for _ in range(512))
    load = capacities[int(rng.uniform(0.2, 0.9) * len(capacities))]

    def time(c):
        total = 0.0
        for stage, (work, at_once) in zip(stages, rates(c)):
            busy = load * work / at_once
            # A queue that grows without end is cut off by timeouts.
            queue = 1 / (1 - busy) if busy < 0.98 else min(50 + 500 * (busy - 0.98), 2000)
            total += work * queue + stage["each_item"] * c[stage["batch"]]
        return total

    return parameters, time


def _database(rng):
    """Time of a transaction; None where more memory is asked for than there is."""
    machine = rng.choice((4, 16, 64)) * 1024
    memories = [
        dict(
            name=f"memory{at}",
            wanted=between(rng, 0.02, 1.5) * machine,
            matters=_around(rng, 1.0),
            # Once, or for each of a share of the workers.
            copies=rng.choice((1, 1, 2, 8)),
        )
        for at in range(rng.randint(2, 4))
    ]
    sizes = [2**power for power in range(4, int(math.log2(machine)) + 1)]
    kinds = (
        lambda name: whole(name, 16, machine, 16, log=True),
        lambda name: whole(name, 16, machine, 16),
        lambda name: ordered(name, sizes, 16),
    )
    parameters = [rng.choice(kinds)(memory["name"]) for memory in memories]
    parameters.append(_count(rng, "workers", rng.choice((32, 128))))
    parameters.append(whole("flush", 1, 10_000, 1, log=True))
    compressions = ("none", "lz4", "zstd", "zlib")[: rng.randint(2, 4)]
    parameters.append(choice("compression", compressions, "none"))
    compression = {kind: _around(rng, 0.25) for kind in compressions}
    others = {}
    for at in range(rng.randint(1, 6)):
        name = f"other{at}"
        parameters.append(rng.choice((choice(name, (0, 1), 0), real(name, 0.0, 1.0, 0.0))))
        # Half of them do nothing.
        others[name] = rng.choice((0.0, rng.gauss(0, 0.1)))
    workers, crowding, worker_memory = between(rng, 1, 32), rng.uniform(0.02, 0.4), rng.choice((0, 0, 8, 64))
    flush, flushing = between(rng, 1, 10_000), rng.uniform(0.0, 0.015)
    least = rng.uniform(0.05, 0.5)

    def time(c):
        asked = worker_memory * c["workers"]
        for memory in memories:
            shared = memory["copies"] == 1
            asked += c[memory["name"]] * (1 if shared else memory["copies"] * math.sqrt(c["workers"]) / 4)
        if asked > machine:
            return None
        misses = (m["matters"] * max(0.0, 1 - math.sqrt(c[m["name"]] / m["wanted"])) for m in memories)
        total = (least + sum(misses)) * compression[c["compression"]]
        total *= 1 + crowding * math.log(c["workers"] / workers) ** 2
        total *= 1 + flushing * math.log(c["flush"] / flush) ** 2
        total *= math.exp(sum(effect * c[name] for name, effect in others.items()))
        # What the rest of the machine needs memory for.
        return 100 * total * (1 + 4 * max(0.0, asked / machine - 0.8))

    return parameters, time


def _kernel(rng):
    """Time of the loops; None, for half of them, where registers or shared memory do not suffice."""
    cache = rng.choice((2**9, 2**11, 2**13))
    larger = cache * rng.choice((8, 16))
    tiles = [f"tile{loop}" for loop in range(rng.randint(2, 3))]
    kinds = (
        lambda name: ordered(name, [2**power for power in range(9)], 1),
        lambda name: ordered(name, [1, 4, 8, 16, 32, 64, 128], 1),
        lambda name: whole(name, 1, 256, 1, log=True),
    )
    parameters = [rng.choice(kinds)(tile) for tile in tiles]
    orders = ("ijk", "ikj", "jik", "kij")[: rng.randint(2, 4)]
    parameters += [
        ordered("unroll", [1, 2, 4, 8, 16], 1),
        ordered("vector", [1, 2, 4, 8], 1),
        choice("order", orders, orders[0]),
        choice("prefetch", (0, 1), 0),
        _count(rng, "threads", 16),
    ]
    order = {kind: math.exp(abs(rng.gauss(0, 0.4))) for kind in orders}
    inner, registers, cores = rng.choice(tiles), rng.choice((16, 32, 64)), rng.choice((4, 8, 16))
    crashing, serial, prefetched = rng.random() < 0.5, rng.uniform(0.01, 0.2), rng.uniform(0.8, 1.2)
    loads, missed = rng.uniform(0.5, 4.0), rng.uniform(0.5, 3.0)

    def time(c):
        sizes = [c[tile] for tile in tiles]
        footprint = math.prod(sizes) + 4 * sum(sizes)
        if crashing and (c["unroll"] * c["vector"] > registers / 2 or footprint > 8 * larger):
            return None
        vector = min(c["vector"], c[inner])
        spilled = 1.5 if c["unroll"] * vector > registers else 1
        arithmetic = spilled * (1 + 0.5 / c["unroll"]) / vector**0.8
        misses = 1 + missed * (footprint > cache) + 4 * missed * (footprint > larger)
        memory = loads * sum(1 / size for size in sizes) * misses * (prefetched if c["prefetch"] else 1)
        threads = min(c["threads"], cores)
        parallel = serial + (1 - serial) / threads + 0.02 * (c["threads"] - threads)
        return 100 * order[c["order"]] * (arithmetic + memory) * parallel

    return parameters, time


def service(seed):
    """The service of this seed. One with next to nothing to gain, or that hardly ever survives, is drawn again."""
    rng = random.Random(f"{NAME} {seed}")
    kind = rng.choice((_pipeline, _database, _kernel))
    while True:
        parameters, time = kind(rng)
        configurations = [random_configuration(parameters, rng) for _ in range(SAMPLE)]
        alive = sorted((value, at) for at, value in enumerate(map(time, configurations)) if value is not None)
        if len(alive) >= SAMPLE / 10 and alive[0][0] < WORTH_TUNING * alive[len(alive) // 2][0]:
            break
    return problem(NAME, parameters, time, configurations, alive, between(rng, *NOISE))
