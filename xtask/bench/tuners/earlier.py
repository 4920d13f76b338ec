"""Warm starts: Slackline after an earlier experiment on the same space, which helps or misleads.

- `after-same`: on the same problem, measured with other luck.
- `after-version`: on an older version of it: every parameter does something more there, together about a third of what is to
  be gained, and all takes 1.4 times as long.
- `after-elsewhere`: on another problem of the same space, whose best is elsewhere (ranges and orders turned round, lists moved
  by half of their length).
- `after-upside-down`: on the opposite problem, whose best is the worst.

The earlier experiment is a search of 40 evaluations by Slackline itself, without a warm start.
"""

import functools
import json
import math
import os
import random
import tempfile

from peers import Slackline
from problems import Problem

EVALUATIONS = 40
# Of the earlier experiment's own luck and questions, beside the later one's.
OTHER_SEED = 5000
SLOWER = 1.4
CHANGED = 0.3


def _turned(parameters, configuration):
    turned = {}
    for p in parameters:
        value = configuration[p["name"]]
        if "values" in p:
            values, place = p["values"], p["values"].index(value)
            moved = len(values) - 1 - place if p["type"] == "ordinal" else (place + max(1, len(values) // 2)) % len(values)
            turned[p["name"]] = values[moved]
        elif p.get("scale") == "log":
            ratio = p["low"] * p["high"] / value
            turned[p["name"]] = min(p["high"], max(p["low"], round(ratio) if p["type"] == "int" else ratio))
        else:
            turned[p["name"]] = p["low"] + p["high"] - value
    return turned


def _place(p, value):
    """From -1 to 1 along a range."""
    if p.get("scale") == "log":
        return 2 * math.log(value / p["low"]) / math.log(p["high"] / p["low"]) - 1
    return 2 * (value - p["low"]) / (p["high"] - p["low"]) - 1


def _truth(problem, manner, seed):
    """The earlier problem's, which crashes where the later one does but for `elsewhere`."""
    ratios = problem.relative and problem.best > 0
    rng = random.Random(f"earlier {manner} {seed}")
    effects = {p["name"]: [rng.gauss(0, 1) for _ in p.get("values", [0])] for p in problem.parameters}

    def change(configuration):
        total = 0.0
        for p in problem.parameters:
            value, own = configuration[p["name"]], effects[p["name"]]
            total += own[p["values"].index(value)] if "values" in p else own[0] * _place(p, value)
        return CHANGED * total / math.sqrt(len(problem.parameters))

    def truth(configuration):
        if manner == "elsewhere":
            return problem.truth(_turned(problem.parameters, configuration))
        value = problem.truth(configuration)
        if value is None or manner == "same":
            return value
        if manner == "upside-down":
            return problem.best * problem.bad / value if ratios else problem.best + problem.bad - value
        if ratios:
            return SLOWER * value * math.exp(math.log(problem.median / problem.best) * change(configuration))
        return value + (problem.median - problem.best) * change(configuration)

    return truth


class _Earlier:
    """As much of a problem as a search needs."""

    measured = Problem.measured

    def __init__(self, problem, manner, seed):
        self.name = f"{problem.name} {manner}"
        self.parameters, self.default, self.excess = problem.parameters, problem.default, problem.excess
        self.noise, self.relative, self.deviation = problem.noise, problem.relative, problem.deviation
        self.truth = _truth(problem, manner, seed)


class After(Slackline):
    def __init__(self, problem, seed, manner):
        earlier = _Earlier(problem, manner, seed)
        search = Slackline(earlier, seed + OTHER_SEED)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", delete=False) as file:
            for index in range(EVALUATIONS):
                configuration = search.ask()
                value, excess = earlier.measured(configuration, seed + OTHER_SEED, index)
                search.tell(configuration, value, excess)
                told = {"config": configuration, **({"crashed": True} if value is None else {"value": value})}
                if value is not None and excess is not None:
                    told["constraints"] = {"excess": excess}
                file.write(json.dumps(told) + "\n")
        search.close()
        self.told = file.name
        super().__init__(problem, seed, search={"warm_start": [self.told]})

    def close(self):
        super().close()
        os.unlink(self.told)


MANNERS = ("same", "version", "elsewhere", "upside-down")
AFTER = {f"after-{manner}": functools.partial(After, manner=manner) for manner in MANNERS}
