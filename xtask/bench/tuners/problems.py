"""The problems: a space, the truth, what is measured of it, and what regret means.

Everything is minimised. A space is a list of parameters in the words of a Slackline specification. The truth of a
configuration is a number, or None where it crashes; `excess` of a constraint is at most 0 where it holds.
"""

import csv
import functools
import hashlib
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional


def real(name, low, high, default, log=False):
    return dict(name=name, type="float", low=low, high=high, default=default, **({"scale": "log"} if log else {}))


def whole(name, low, high, default, log=False):
    return dict(name=name, type="int", low=low, high=high, default=default, **({"scale": "log"} if log else {}))


def choice(name, values, default):
    return dict(name=name, type="categorical", values=list(values), default=default)


def ordered(name, values, default):
    return dict(name=name, type="ordinal", values=list(values), default=default)


# Of problems of which every seed is another one: the least and the most relative deviation.
NOISE = (0.03, 0.2)


def between(rng, low, high):
    """A positive number, of which ratios are even."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def random_configuration(parameters, rng):
    configuration = {}
    for parameter in parameters:
        if "values" in parameter:
            configuration[parameter["name"]] = rng.choice(parameter["values"])
            continue
        low, high = parameter["low"], parameter["high"]
        if parameter["type"] == "int":
            value = (
                min(high, int(between(rng, low, high + 1)))
                if parameter.get("scale") == "log"
                else rng.randint(low, high)
            )
        elif parameter.get("scale") == "log":
            value = between(rng, low, high)
        else:
            value = rng.uniform(low, high)
        configuration[parameter["name"]] = value
    return configuration


@dataclass
class Problem:
    name: str
    parameters: list
    truth: Callable
    """Configuration to the true value, or None for a crash."""
    noise: float
    """Relative standard deviation, or a share of the truth's deviation over the space where `relative` is off."""
    relative: bool
    evaluations: int = 40
    checkpoints: tuple = (10, 20, 40)
    excess: Optional[Callable] = None
    """Configuration to the excess of the one constraint."""
    table: Optional[list] = None
    """All (configuration, value) of a table."""
    best: float = field(init=False)
    median: float = field(init=False)
    deviation: float = field(init=False)
    known_best: Optional[float] = None

    def __post_init__(self):
        values = sorted(value for _, value in self.table) if self.table else self._sample()
        middle = len(values) // 2
        self.median = values[middle]
        self.best = min(values[0], self.known_best if self.known_best is not None else math.inf)
        mean = sum(values) / len(values)
        self.deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        self.bad = values[int(0.95 * len(values))]

    def _sample(self):
        rng = random.Random(12345)
        values = []
        while len(values) < 4096:
            configuration = self.random(rng)
            value = self.truth(configuration)
            if value is not None and (self.excess is None or self.excess(configuration) <= 0):
                values.append(value)
        return sorted(values)

    def default(self):
        return {parameter["name"]: parameter["default"] for parameter in self.parameters}

    def random(self, rng):
        return random_configuration(self.parameters, rng)

    def measured(self, configuration, seed, index):
        """What the tool is told: (value or None, excess or None). The draw belongs to (seed, index): every tool's
        evaluation of that number has the same luck."""
        value = self.truth(configuration)
        if value is None:
            return None, None
        key = hashlib.sha256(f"{self.name} {seed} {index}".encode()).digest()
        luck = random.Random(int.from_bytes(key[:8], "big")).gauss(0, 1)
        noisy = value * (1 + self.noise * luck) if self.relative else value + self.noise * self.deviation * luck
        return noisy, (self.excess(configuration) if self.excess else None)

    def regret(self, configuration):
        """0 is the optimum, 1 a median configuration drawn at random. What crashes or violates counts as one of the
        worst twentieth."""
        value = None if configuration is None else self.truth(configuration)
        if value is None or (self.excess is not None and self.excess(configuration) > 0):
            value = self.bad
        return (value - self.best) / (self.median - self.best)


def _branin(c):
    x, y = c["x"], c["y"]
    return (
        (y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6) ** 2
        + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x)
        + 10
    )


BRANIN = [real("x", -5.0, 10.0, 2.5), real("y", 0.0, 15.0, 7.5)]

_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = ((10, 3, 17, 3.5, 1.7, 8), (0.05, 10, 17, 0.1, 8, 14), (3, 3.5, 1.7, 10, 17, 8), (17, 8, 0.05, 10, 0.1, 14))
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def _hartmann(c):
    x = [c[f"x{i}"] for i in range(6)]
    return -sum(
        alpha * math.exp(-sum(a * (v - p) ** 2 for a, v, p in zip(row, x, places)))
        for alpha, row, places in zip(_ALPHA, _A, _P)
    )


HARTMANN = [real(f"x{i}", 0.0, 1.0, 0.5) for i in range(6)]

# The order of the letters is no order of the values.
_SHIFTS = {"a": 0.0, "b": 2.0, "c": -1.0, "d": 0.5, "e": 1.0}


def _ackley(c):
    z = [c["x0"], c["x1"], c["x2"], float(c["n0"]), float(c["n1"]), _SHIFTS[c["k0"]], _SHIFTS[c["k1"]]]
    z[0] -= 1.3
    z[3] -= 2
    root = math.sqrt(sum(v * v for v in z) / len(z))
    return 20 + math.e - 20 * math.exp(-0.2 * root) - math.exp(sum(math.cos(2 * math.pi * v) for v in z) / len(z))


ACKLEY = (
    [real(f"x{i}", -5.0, 5.0, 4.0) for i in range(3)]
    + [whole(f"n{i}", -5, 5, -4) for i in range(2)]
    + [choice(f"k{i}", "abcde", "b") for i in range(2)]
)


def _rosenbrock(c):
    z = [c[f"x{i}"] for i in range(5)] + [float(c[f"n{i}"]) / 4 for i in range(5)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(z, z[1:]))


ROSENBROCK = [real(f"x{i}", -2.0, 2.0, -1.0) for i in range(5)] + [whole(f"n{i}", -8, 8, -4) for i in range(5)]


def _disc(c):
    return (c["x"] - 2.5) ** 2 + (c["y"] - 7.5) ** 2 - 50


def _branin_crashing(c):
    # More than a third of the square, and the best of the three minima with it.
    return None if c["x"] + c["y"] > 11.5 else _branin(c)


_rng = random.Random(7)
_SPARSE = [(_rng.uniform(0.2, 0.8), 2.0 ** (-i / 2)) for i in range(10)]


def _sparse(c):
    # Ten of a hundred, each mattering 0.7 times as much as the one before, the first two together.
    z = [c[f"x{10 * i:02d}"] - place for i, (place, _) in enumerate(_SPARSE)]
    return 4 * sum(weight * v * v for v, (_, weight) in zip(z, _SPARSE)) + 2 * z[0] * z[1]


SPARSE = [real(f"x{i:02d}", 0.0, 1.0, 0.5) for i in range(100)]


def read_table(path):
    """The parameters of a table, and all of it: (configuration, value)."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    # A column with one value is no parameter.
    names = [name for name in rows[0] if name != "mean" and len({row[name] for row in rows}) > 1]

    def read(text):
        try:
            number = float(text)
        except ValueError:
            return text
        return int(number) if number == int(number) else number

    table = [({name: read(row[name]) for name in names}, float(row["mean"])) for row in rows]
    parameters = []
    for name in names:
        column = sorted({c[name] for c, _ in table}, key=lambda v: (isinstance(v, str), v))
        numeric = all(not isinstance(value, str) for value in column)
        kind = ordered if numeric and len(column) > 2 else choice
        parameters.append(kind(name, column, column[0]))
    return parameters, table


def of_table(name, parameters, table, noise):
    """What is not in the table crashes. The start is its median configuration: an ordinary one, the same for every tool."""
    key = lambda c: tuple(c[parameter["name"]] for parameter in parameters)
    values = {key(c): value for c, value in table}
    ranked = sorted(values, key=lambda key: (values[key], str(key)))
    start = ranked[len(ranked) // 2]
    parameters = [dict(parameter, default=value) for parameter, value in zip(parameters, start)]
    return Problem(name, parameters, lambda c: values.get(key(c)), noise, True, table=table)


@functools.cache
def problems(data: Optional[Path]):
    """All of them, by name; sampling and reading are done once."""
    found = [
        Problem("branin", BRANIN, _branin, 0.1, False, known_best=0.397887),
        Problem("hartmann6", HARTMANN, _hartmann, 0.1, False, known_best=-3.32237),
        Problem("hartmann6-noisy", HARTMANN, _hartmann, 0.5, False, known_best=-3.32237),
        Problem("ackley-mixed", ACKLEY, _ackley, 0.1, False, known_best=0.0),
        Problem("rosenbrock-mixed", ROSENBROCK, _rosenbrock, 0.1, False, known_best=0.0),
        Problem("branin-constrained", BRANIN, _branin, 0.1, False, excess=_disc, known_best=0.397887),
        Problem("branin-crashing", BRANIN, _branin_crashing, 0.1, False, known_best=0.397887),
        Problem("sparse-100", SPARSE, _sparse, 0.1, False, evaluations=60, checkpoints=(20, 40, 60), known_best=0.0),
    ]
    for file in sorted(data.glob("*.csv")) if data else []:
        parameters, table = read_table(file)
        found += [of_table(f"{file.stem}-{noise}", parameters, table, noise) for noise in (0.05, 0.15)]
    return {problem.name: problem for problem in found}
