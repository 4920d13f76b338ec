"""The tools behind one face: ask() -> configuration, tell(configuration, value, excess), best() -> configuration.

`value` is None for a crash. `best` is what the tool itself would recommend, by its own documented way. Where a tool has
no notion of crashes or constraints it is told the worst value seen so far, as its users do.
"""

import json
import logging
import math
import os
import random
import subprocess
import tempfile
import warnings

warnings.filterwarnings("ignore")
SLACKLINE = os.environ.get("SLACKLINE", "slackline")


class Worst:
    """The worst value seen, for tools that know neither crashes nor constraints."""

    def __init__(self):
        self.worst = None

    def penalised(self, value, excess):
        if value is not None and (excess is None or excess <= 0):
            self.worst = value if self.worst is None else max(self.worst, value)
            return value
        return self.worst if self.worst is not None else (value if value is not None else 0.0)


class Luckiest:
    """The lowest feasible measurement so far."""

    def __init__(self):
        self.lowest = None
        self.configuration = None

    def take(self, configuration, value, excess):
        if value is None or (excess is not None and excess > 0):
            return
        if self.lowest is None or value < self.lowest:
            self.lowest, self.configuration = value, configuration


class Slackline:
    def __init__(self, problem, seed, **more):
        spec = dict(seed=seed, parameters=problem.parameters, initial=[problem.default()], **more)
        spec.update(json.loads(os.environ.get("SLACKLINE_SPEC", "{}")))
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(spec, file)
        self.file = file.name
        self.process = subprocess.Popen(
            [SLACKLINE, "ask-tell", self.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _say(self, request, answered=True):
        self.process.stdin.write(json.dumps(request) + "\n")
        return json.loads(self.process.stdout.readline()) if answered else None

    def ask(self):
        return self._say({"ask": 1})["config"]

    def tell(self, configuration, value, excess):
        tell = {"config": configuration}
        if value is None:
            tell["crashed"] = True
        else:
            tell["value"] = value
            if excess is not None:
                tell["constraints"] = {"excess": excess}
        self._say({"tell": tell}, answered=False)

    def best(self):
        return self._say({"best": 1})["config"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        os.unlink(self.file)


class Random:
    def __init__(self, problem, seed):
        self.problem, self.rng, self.first = problem, random.Random(seed), True
        self.luckiest = Luckiest()

    def ask(self):
        if self.first:
            self.first = False
            return self.problem.default()
        return self.problem.random(self.rng)

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)

    def best(self):
        return self.luckiest.configuration

    def close(self):
        pass


class Optuna:
    """https://optuna.readthedocs.io: samplers TPESampler and GPSampler; `study.best_trial` recommends."""

    def __init__(self, problem, seed, sampler):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna, self.problem = optuna, problem
        extra = {}
        if problem.excess is not None:
            extra["constraints_func"] = lambda trial: (trial.user_attrs.get("excess", 1.0),)
        made = getattr(optuna.samplers, sampler)(seed=seed, **extra)
        self.study = optuna.create_study(sampler=made)
        places = {
            p["name"]: p["values"].index(p["default"]) if p["type"] == "ordinal" else p["default"]
            for p in problem.parameters
        }
        self.study.enqueue_trial(places)
        self.distributions = {p["name"]: self._distribution(p) for p in problem.parameters}
        self.worst, self.luckiest = Worst(), Luckiest()

    def _distribution(self, parameter):
        distributions = self.optuna.distributions
        if parameter["type"] == "categorical":
            return distributions.CategoricalDistribution(parameter["values"])
        log = parameter.get("scale") == "log"
        if parameter["type"] == "ordinal":
            # Optuna has no ordered list: equal steps of a whole number are its nearest thing.
            return distributions.IntDistribution(0, len(parameter["values"]) - 1)
        if parameter["type"] == "int":
            return distributions.IntDistribution(parameter["low"], parameter["high"], log=log)
        return distributions.FloatDistribution(parameter["low"], parameter["high"], log=log)

    def ask(self):
        self.trial = self.study.ask(self.distributions)
        configuration = dict(self.trial.params)
        for parameter in self.problem.parameters:
            if parameter["type"] == "ordinal":
                configuration[parameter["name"]] = parameter["values"][configuration[parameter["name"]]]
        return configuration

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)
        if value is not None:
            self.worst.penalised(value, None)
        if excess is not None:
            self.trial.set_user_attr("excess", excess)
        # Failed trials are ignored by its samplers.
        self.study.tell(self.trial, value if value is not None else self.worst.penalised(None, None))

    def best(self):
        return self.luckiest.configuration

    def close(self):
        pass


class BayesianOptimization:
    """https://bayesian-optimization.github.io: `optimizer.max` recommends. It works on floats: others are rounded."""

    def __init__(self, problem, seed, acquisition):
        from bayes_opt import BayesianOptimization as Optimizer
        from bayes_opt import acquisition as functions

        made = {
            "ei": lambda: functions.ExpectedImprovement(xi=0.0, random_state=seed),
            "ucb": lambda: functions.UpperConfidenceBound(kappa=2.576, random_state=seed),
            "poi": lambda: functions.ProbabilityOfImprovement(xi=0.0, random_state=seed),
        }[acquisition]()
        self.problem, self.worst, self.luckiest = problem, Worst(), Luckiest()
        self.rng = random.Random(seed)
        bounds = {}
        for parameter in problem.parameters:
            bounds[parameter["name"]] = (0.0, 1.0)
        self.optimizer = Optimizer(
            f=None, pbounds=bounds, acquisition_function=made, random_state=seed, verbose=0, allow_duplicate_points=True
        )
        self.optimizer.set_gp_params(alpha=1e-3, normalize_y=True)
        self.started = 0

    def _place(self, parameter, value):
        if "values" in parameter:
            return (parameter["values"].index(value) + 0.5) / len(parameter["values"])
        low, high = parameter["low"], parameter["high"]
        if parameter.get("scale") == "log":
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def _value(self, parameter, place):
        if "values" in parameter:
            values = parameter["values"]
            return values[min(int(place * len(values)), len(values) - 1)]
        low, high = parameter["low"], parameter["high"]
        value = low * (high / low) ** place if parameter.get("scale") == "log" else low + place * (high - low)
        return int(round(value)) if parameter["type"] == "int" else value

    def ask(self):
        self.started += 1
        if self.started == 1:
            configuration = self.problem.default()
            self.point = {p["name"]: self._place(p, configuration[p["name"]]) for p in self.problem.parameters}
        elif self.started <= 5:
            # Its documented default: five random points first.
            self.point = {p["name"]: self.rng.random() for p in self.problem.parameters}
        else:
            self.point = self.optimizer.suggest()
        return {p["name"]: self._value(p, float(self.point[p["name"]])) for p in self.problem.parameters}

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)
        self.optimizer.register(params=self.point, target=-self.worst.penalised(value, excess))

    def best(self):
        return self.luckiest.configuration

    def close(self):
        pass


class Smac:
    """https://automl.github.io/SMAC3: HyperparameterOptimizationFacade, as for measurements without noise: else it repeats
    configurations and is worse; the luckiest measurement recommends."""

    def __init__(self, problem, seed):
        import ConfigSpace
        import smac

        logging.disable(logging.CRITICAL)
        self.problem, self.worst, self.luckiest = problem, Worst(), Luckiest()
        space = ConfigSpace.ConfigurationSpace(seed=seed)
        for p in problem.parameters:
            log = p.get("scale") == "log"
            if p["type"] == "categorical":
                # Mixed types in one list are not hashable alike there: the place in the list stands for the value.
                made = ConfigSpace.CategoricalHyperparameter(
                    p["name"], list(range(len(p["values"]))), default_value=p["values"].index(p["default"])
                )
            elif p["type"] == "ordinal":
                made = ConfigSpace.UniformIntegerHyperparameter(
                    p["name"], 0, len(p["values"]) - 1, default_value=p["values"].index(p["default"])
                )
            elif p["type"] == "int":
                made = ConfigSpace.UniformIntegerHyperparameter(
                    p["name"], p["low"], p["high"], default_value=p["default"], log=log
                )
            else:
                made = ConfigSpace.UniformFloatHyperparameter(
                    p["name"], p["low"], p["high"], default_value=p["default"], log=log
                )
            space.add(made)
        self.directory = tempfile.TemporaryDirectory()
        scenario = smac.Scenario(
            space, n_trials=problem.evaluations, seed=seed, deterministic=True, output_directory=self.directory.name
        )
        self.smac = smac
        self.facade = smac.HyperparameterOptimizationFacade(
            scenario,
            lambda config, seed=0: 0.0,
            initial_design=smac.HyperparameterOptimizationFacade.get_initial_design(
                scenario, n_configs=max(4, problem.evaluations // 4), additional_configs=[space.get_default_configuration()]
            ),
            overwrite=True,
            logging_level=False,
        )

    def ask(self):
        self.info = self.facade.ask()
        values = dict(self.info.config)
        return {
            p["name"]: p["values"][int(values[p["name"]])] if "values" in p else self._plain(p, values[p["name"]])
            for p in self.problem.parameters
        }

    @staticmethod
    def _plain(parameter, value):
        return int(value) if parameter["type"] == "int" else float(value)

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)
        status = self.smac.runhistory.enumerations.StatusType.SUCCESS
        cost = self.worst.penalised(value, excess)
        self.facade.tell(self.info, self.smac.runhistory.TrialValue(cost=cost, time=0.1, status=status))

    def best(self):
        return self.luckiest.configuration

    def close(self):
        self.directory.cleanup()


class Ax:
    """https://ax.dev: the Client with its default generation strategy (Sobol, then BoTorch's noisy EI);
    `get_best_parameterization` recommends by the model."""

    def __init__(self, problem, seed):
        import torch
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        logging.disable(logging.CRITICAL)
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.problem, self.first, self.floats, self.pairs = problem, True, set(), {}
        self.client = Client(random_seed=seed)
        parameters = []
        for p in problem.parameters:
            if "values" in p:
                kinds = {type(value) for value in p["values"]}
                kind = "str" if str in kinds else "float" if float in kinds else "int"
                # Two texts are no numbers to it, and its models fail on them: their places stand for them.
                if kind == "str" and len(p["values"]) == 2:
                    self.pairs[p["name"]] = p["values"]
                    kind, p = "int", dict(p, values=[0, 1])
                # One type for all values of a list; in Python 1.0 is the 1 of the table.
                if kind == "float":
                    self.floats.add(p["name"])
                    p = dict(p, values=[float(value) for value in p["values"]])
                parameters.append(
                    ChoiceParameterConfig(
                        name=p["name"], values=p["values"], parameter_type=kind, is_ordered=p["type"] == "ordinal"
                    )
                )
            else:
                parameters.append(
                    RangeParameterConfig(
                        name=p["name"],
                        bounds=(p["low"], p["high"]),
                        parameter_type="int" if p["type"] == "int" else "float",
                        scaling="log" if p.get("scale") == "log" else "linear",
                    )
                )
        self.client.configure_experiment(parameters=parameters)
        self.client.configure_optimization(
            objective="-value", outcome_constraints=["excess <= 0"] if problem.excess else None
        )
        self.worst, self.luckiest = Worst(), Luckiest()

    def ask(self):
        if self.first:
            self.first = False
            start = self.problem.default()
            configuration = {name: float(value) if name in self.floats else value for name, value in start.items()}
            configuration |= {name: values.index(start[name]) for name, values in self.pairs.items()}
            self.index = self.client.attach_trial(parameters=configuration)
            return start
        ((self.index, configuration),) = self.client.get_next_trials(max_trials=1).items()
        return self._plain(configuration)

    def _plain(self, configuration):
        return dict(configuration) | {name: values[configuration[name]] for name, values in self.pairs.items()}

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)
        # Failed trials are ignored by its models.
        data = {"value": self.worst.penalised(value, None)}
        if excess is not None:
            data["excess"] = excess
        self.client.complete_trial(trial_index=self.index, raw_data=data)

    def best(self):
        try:
            return self._plain(self.client.get_best_parameterization()[0])
        except Exception:
            return self.luckiest.configuration

    def close(self):
        pass


class Egobox:
    """https://github.com/relf/egobox: its Egor optimiser by ask and tell on all data so far; the lowest measurement
    recommends."""

    def __init__(self, problem, seed):
        import egobox
        import numpy

        self.egobox, self.numpy = egobox, numpy
        self.problem, self.seed = problem, seed
        self.worst, self.luckiest = Worst(), Luckiest()
        self.points, self.values = [], []
        types = egobox.XType
        self.specs = []
        for p in problem.parameters:
            if p["type"] == "categorical":
                self.specs.append(egobox.XSpec(types.ENUM, tags=[str(value) for value in p["values"]]))
            elif p["type"] == "ordinal":
                self.specs.append(egobox.XSpec(types.INT, [0, len(p["values"]) - 1]))
            elif p["type"] == "int":
                self.specs.append(egobox.XSpec(types.INT, [p["low"], p["high"]]))
            else:
                self.specs.append(egobox.XSpec(types.FLOAT, [p["low"], p["high"]]))
        self.egor = egobox.Egor(self.specs, seed=seed)
        self.rng = random.Random(seed)

    def _place(self, p, value):
        return float(p["values"].index(value)) if "values" in p else float(value)

    def _value(self, p, place):
        if "values" in p:
            return p["values"][int(round(place))]
        return int(round(place)) if p["type"] == "int" else float(place)

    def ask(self):
        start = max(5, len(self.problem.parameters) + 1)
        if not self.points:
            configuration = self.problem.default()
        elif len(self.points) < min(start, self.problem.evaluations // 4):
            configuration = self.problem.random(self.rng)
        else:
            x, y = self.numpy.array(self.points), self.numpy.array(self.values).reshape(-1, 1)
            point = self.egor.suggest(x, y)[0]
            configuration = {p["name"]: self._value(p, v) for p, v in zip(self.problem.parameters, point)}
        return configuration

    def tell(self, configuration, value, excess):
        self.luckiest.take(configuration, value, excess)
        self.points.append([self._place(p, configuration[p["name"]]) for p in self.problem.parameters])
        self.values.append(self.worst.penalised(value, excess))

    def best(self):
        return self.luckiest.configuration

    def close(self):
        pass


PEERS = {
    "slackline": Slackline,
    "random": Random,
    "optuna-tpe": lambda problem, seed: Optuna(problem, seed, "TPESampler"),
    "optuna-gp": lambda problem, seed: Optuna(problem, seed, "GPSampler"),
    "smac3": Smac,
    "ax": Ax,
    "bayesopt-ei": lambda problem, seed: BayesianOptimization(problem, seed, "ei"),
    "bayesopt-ucb": lambda problem, seed: BayesianOptimization(problem, seed, "ucb"),
    "bayesopt-poi": lambda problem, seed: BayesianOptimization(problem, seed, "poi"),
    "egobox": Egobox,
}
