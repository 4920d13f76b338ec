"""Made-up configurable systems: every seed is another one, so that a row of these is no row that a tuner was fitted to.

In the manner of performance-influence models (Siegmund et al., ESEC/FSE 2015): the time that a system takes is a sum, or a
product, of what each option does and of what pairs of options do together. Few options do most of it. A number acts
monotonically, with an optimum inside, by saturation, or at a threshold; an option may do nothing unless a switch is on.
Some combinations crash: two choices that do not go together, or too much of what mostly makes the system faster. Of wide ones the
fastest takes a thousandth to a seventh of the median's time, as latencies do, of others a seventh and more.
"""

import math
import random
from dataclasses import dataclass

from problems import NOISE, Problem, between, choice, ordered, random_configuration, real, whole


@dataclass(frozen=True)
class Manner:
    crashing: bool = False
    wide: bool = False


MANNERS = {"systems": Manner(), "systems-crashing": Manner(crashing=True), "systems-wide": Manner(wide=True)}
LETTERS = "abcdef"
SAMPLE = 2048
STARTS = 24


def _parameter(rng, index, switches):
    """A parameter and its place between 0 and 1 (None for a list without order)."""
    name = f"p{index:02d}"
    if rng.random() < switches:
        return choice(name, (0, 1), 0), None
    kind = rng.choice(("list", "steps", "steps", "whole", "sizes", "real"))
    if kind == "list":
        values = LETTERS[: rng.randint(3, 6)]
        return choice(name, values, values[0]), None
    if kind == "steps":
        values = [2**power for power in range(rng.randint(3, 8))]
        return ordered(name, values, 1), lambda value: values.index(value) / (len(values) - 1)
    if kind == "whole":
        high = rng.randint(8, 64)
        return whole(name, 1, high, 1), lambda value: (value - 1) / (high - 1)
    if kind == "sizes":
        high = 2 ** rng.randint(8, 14)
        return whole(name, 4, high, 4, log=True), lambda value: math.log(value / 4) / math.log(high / 4)
    return real(name, 0.0, 1.0, 0.0), lambda value: value


def _shape(rng):
    """What a number between 0 and 1 does."""
    kind = rng.choice(("power", "power", "optimum", "saturation", "threshold"))
    sign = rng.choice((-1.0, 1.0))
    if kind == "power":
        power = math.exp(rng.uniform(-1.0, 1.0))
        return lambda t: sign * t**power
    if kind == "optimum":
        at = rng.uniform(0.15, 0.85)
        return lambda t: 2.0 * ((t - at) / max(at, 1.0 - at)) ** 2
    if kind == "saturation":
        rate = math.exp(rng.uniform(1.0, 3.0))
        return lambda t: sign / (1.0 + rate * t)
    at = rng.uniform(0.2, 0.8)
    return lambda t: sign * (1.0 if t > at else 0.0)


def _effect(rng, parameter, place):
    """What this parameter does, of deviation 1 over its values."""
    if place is None:
        table = {value: rng.gauss(0, 1) for value in parameter["values"]}
        raw, values = table.__getitem__, list(table)
    else:
        shape = _shape(rng)
        raw = lambda value: shape(place(value))
        values = _spread(parameter)
    effects = [raw(value) for value in values]
    mean = sum(effects) / len(effects)
    deviation = math.sqrt(sum((effect - mean) ** 2 for effect in effects) / len(effects)) or 1.0
    return lambda value: (raw(value) - mean) / deviation


def _spread(parameter):
    """Some of a parameter's values, evenly."""
    if "values" in parameter:
        return parameter["values"]
    low, high, steps = parameter["low"], parameter["high"], 32
    if parameter.get("scale") == "log":
        values = [low * (high / low) ** (i / steps) for i in range(steps + 1)]
    else:
        values = [low + (high - low) * i / steps for i in range(steps + 1)]
    return sorted({round(value) for value in values}) if parameter["type"] == "int" else values


def _rule(rng, parameters, places, time):
    """Configurations that crash: those that ask too much of a resource, or combine two choices that do not go together."""
    numbers = [p for p in parameters if places[p["name"]] is not None]
    if len(numbers) >= 2 and rng.random() < 0.6:
        asks, plain = [], {p["name"]: p["default"] for p in parameters}
        for parameter in rng.sample(numbers, rng.randint(2, min(4, len(numbers)))):
            name, values = parameter["name"], _spread(parameter)
            faster_up = time({**plain, name: values[-1]}) < time({**plain, name: values[0]})
            # More of a resource is mostly faster.
            more_is_up = faster_up == (rng.random() < 0.75)
            asks.append((name, more_is_up))
        limit = rng.uniform(0.6, 0.9) * len(asks)
        return lambda c: sum(places[n](c[n]) if up else 1.0 - places[n](c[n]) for n, up in asks) > limit
    bad = {}
    for parameter in rng.sample(parameters, 2):
        values = _spread(parameter)
        at = rng.randint(1, len(values) - 1)
        bad[parameter["name"]] = set(rng.sample(values, at)) if places[parameter["name"]] is None else values[at]
    return lambda c: all(c[n] in what if isinstance(what, set) else c[n] >= what for n, what in bad.items())


def _draw(rng, manner):
    count, switches = rng.randint(5, 14), rng.uniform(0.1, 0.8)
    made = [_parameter(rng, index, switches) for index in range(count)]
    parameters = [parameter for parameter, _ in made]
    places = {parameter["name"]: place for parameter, place in made}
    effects = {p["name"]: _effect(rng, p, places[p["name"]]) for p in parameters}
    decay = rng.uniform(0.45, 0.85)
    order = [p["name"] for p in parameters]
    rng.shuffle(order)
    weights = {option: decay**rank for rank, option in enumerate(order)}
    pairs = []
    for _ in range(rng.randint(0, count)):
        # Those that do much meet more often.
        one, other = rng.choices(order, k=2, weights=[weights[option] ** 0.5 for option in order])
        if one != other:
            pairs.append((one, other, rng.uniform(-1.0, 1.0) * math.sqrt(weights[one] * weights[other])))
    gates = {}
    lists = [p for p in parameters if places[p["name"]] is None]
    if lists and rng.random() < 0.5:
        switch = rng.choice(lists)
        off = rng.choice(switch["values"])
        for option in rng.sample(order, rng.randint(1, 3)):
            if option != switch["name"]:
                gates[option] = switch["name"], off

    def score(c):
        done = {}
        for option, effect in effects.items():
            switch, off = gates.get(option, (None, None))
            done[option] = 0.0 if switch is not None and c[switch] == off else effect(c[option])
        return sum(weights[o] * done[o] for o in order) + sum(w * done[a] * done[b] for a, b, w in pairs)

    sampler = random.Random(rng.random())
    scores = sorted(score(random_configuration(parameters, sampler)) for _ in range(512))
    middle, least = scores[len(scores) // 2], scores[0]
    # The fastest of these takes this share of the median's time.
    floor = between(rng, 0.001, 0.15) if manner.wide else rng.uniform(0.15, 0.7)
    product = rng.random() < 0.5 or manner.wide

    def time(c):
        share = (score(c) - middle) / (middle - least)
        return 100.0 * floor**-share if product else 100.0 * max(1.0 + (1.0 - floor) * share, floor / 2)

    rules = [_rule(rng, parameters, places, time) for _ in range(rng.randint(1, 3))] if manner.crashing else []
    return parameters, lambda c: None if any(rule(c) for rule in rules) else time(c)


def _descend(parameters, truth, configuration):
    """The best that changes of one parameter at a time lead to."""
    value, better = truth(configuration), True
    while better:
        better = False
        for parameter in parameters:
            for option in _spread(parameter):
                changed = {**configuration, parameter["name"]: option}
                reached = truth(changed)
                if reached is not None and reached < value:
                    configuration, value, better = changed, reached, True
    return value


def problem(name, parameters, truth, configurations, alive, noise):
    """What a tool is given, of a sample of configurations and what is `alive` of it: values and where they are, best first."""
    # The start is the median configuration: an ordinary one, the same for every tool.
    for parameter in parameters:
        parameter["default"] = configurations[alive[len(alive) // 2][1]][parameter["name"]]
    best = min(_descend(parameters, truth, configurations[at]) for _, at in alive[:STARTS])
    return Problem(name, parameters, truth, noise, True, known_best=best)


def system(name, seed):
    """The system of this seed. One that crashes in fewer than 3 % or more than 60 % of its configurations is drawn again."""
    manner = MANNERS[name]
    rng = random.Random(f"{name} {seed}")
    alive = []
    while not manner.crashing and not alive or manner.crashing and not 0.4 <= len(alive) / SAMPLE <= 0.97:
        parameters, truth = _draw(rng, manner)
        configurations = [random_configuration(parameters, rng) for _ in range(SAMPLE)]
        alive = sorted((value, at) for at, value in enumerate(map(truth, configurations)) if value is not None)
    noise = between(rng, *NOISE)
    return problem(name, parameters, truth, configurations, alive, noise)
