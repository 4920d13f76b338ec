"""Cuts of the tables: every seed holds some parameters of a real system and asks for the rest, right way up or upside down.

Upside down it is the slowest configuration that is sought: the effects and their products are as real, and what is best of them is
elsewhere. So a few tables say more of tables that are not here than each says once.
"""

import functools
import random

from problems import NOISE, between, of_table, read_table
from services import WORTH_TUNING

NAME = "cuts"
HELD_MAX = 3
ROWS_MIN = 60


@functools.cache
def _tables(data):
    return [read_table(file) for file in sorted(data.glob("*.csv"))]


def cut(data, seed):
    """The cut of this seed. One of few configurations, or with next to nothing to gain, is drawn again."""
    rng = random.Random(f"{NAME} {seed}")
    while True:
        parameters, table = rng.choice(_tables(data))
        like, _ = rng.choice(table)
        held = [parameter["name"] for parameter in rng.sample(parameters, rng.randint(1, HELD_MAX))]
        rows = [(c, value) for c, value in table if all(c[name] == like[name] for name in held)]
        times = sorted(value for _, value in rows)
        if rng.random() < 0.5:
            rows = [(c, times[0] * times[-1] / value) for c, value in rows]
            times = sorted(value for _, value in rows)
        if len(rows) >= ROWS_MIN and times[0] < WORTH_TUNING * times[len(times) // 2]:
            break
    free = []
    for parameter in parameters:
        # Values that are in no row any more go, and so does what has one left.
        left = [value for value in parameter["values"] if any(c[parameter["name"]] == value for c, _ in rows)]
        if len(left) > 1:
            free.append(dict(parameter, values=left))
    names = [parameter["name"] for parameter in free]
    rows = [({name: c[name] for name in names}, value) for c, value in rows]
    return of_table(NAME, free, rows, between(rng, *NOISE))
