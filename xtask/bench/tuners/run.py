"""Runs tools on problems, seed by seed, and keeps one line of JSON for each (problem, tool, seed); goes on where it was.

    run.py LINES [--data DIR] [--problems A,B] [--tools A,B] [--seeds N] [--from SEED] [--jobs N]

What is measured is regret of the *recommended* configuration after some evaluations, and the time of an ask. A run that takes more than
RUN_MAX_S of CPU time is given up, and the tool is left out of that problem.
"""

import argparse
import functools
import json
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

# One thread each: the tools run side by side.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
    os.environ[variable] = "1"

import cuts  # noqa: E402
import earlier  # noqa: E402
import kept  # noqa: E402
import peers  # noqa: E402
import problems  # noqa: E402
import services  # noqa: E402
import systems  # noqa: E402


RUN_MAX_S = 600
TOOLS = peers.PEERS | earlier.AFTER


def drawn(data):
    """Problems of which every seed is another one."""
    of_seed = {name: functools.partial(systems.system, name) for name in systems.MANNERS}
    of_seed[services.NAME] = services.service
    if data:
        of_seed[cuts.NAME] = functools.partial(cuts.cut, data)
    return of_seed


class TooSlow(Exception):
    pass


def run(data, problem_name, tool, seed):
    of_seed = drawn(data)
    if problem_name in of_seed:
        problem = of_seed[problem_name](seed)
    else:
        problem = problems.problems(data)[problem_name]
    made = TOOLS[tool](problem, seed)
    regrets, ask_s, crashed = {}, [], 0
    begun_s = time.process_time()
    try:
        for index in range(problem.evaluations):
            if time.process_time() - begun_s > RUN_MAX_S:
                raise TooSlow(f"{index} of {problem.evaluations} evaluations after {RUN_MAX_S} s of CPU time")
            start = time.perf_counter()
            configuration = made.ask()
            ask_s.append(time.perf_counter() - start)
            value, excess = problem.measured(configuration, seed, index)
            crashed += value is None
            made.tell(configuration, value, excess)
            if index + 1 in problem.checkpoints:
                regrets[index + 1] = problem.regret(made.best())
    finally:
        made.close()
    ask_s.sort()
    return dict(
        problem=problem_name, tool=tool, seed=seed, regrets=regrets, crashed=crashed, ask_median_s=ask_s[len(ask_s) // 2]
    )


def attempt(data, problem, tool, seed):
    try:
        return run(data, problem, tool, seed)
    except TooSlow as error:
        return dict(problem=problem, tool=tool, seed=seed, too_slow=str(error))
    except Exception as error:
        return dict(problem=problem, tool=tool, seed=seed, error=f"{type(error).__name__}: {error}"[:300])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("lines", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--problems")
    parser.add_argument("--tools")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed, for draws that nothing was chosen by")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    names = [*problems.problems(arguments.data), *drawn(arguments.data)]
    chosen = arguments.problems.split(",") if arguments.problems else names
    tools = arguments.tools.split(",") if arguments.tools else list(peers.PEERS)
    for name in chosen:
        if name not in names:
            sys.exit(f"no problem {name!r}; there are {', '.join(names)}")
    for name in tools:
        if name not in TOOLS:
            sys.exit(f"no tool {name!r}; there are {', '.join(TOOLS)}")
    done, too_slow = set(), set()
    for line in kept.read(arguments.lines):
        if "too_slow" in line:
            too_slow.add((line["problem"], line["tool"]))
        elif "error" not in line:
            done.add((line["problem"], line["tool"], line["seed"]))
    # Seed by seed and problem by problem, all tools in turn: whatever the machine does, it does to all of them.
    todo = [
        (problem, tool, seed)
        for seed in range(arguments.first, arguments.first + arguments.seeds)
        for problem in chosen
        for tool in tools
        if (problem, tool, seed) not in done
    ]
    print(f"{len(todo)} runs to do, {len(done)} done before", flush=True)
    start, number, running = time.monotonic(), 0, set()
    with ProcessPoolExecutor(arguments.jobs) as pool, kept.append(arguments.lines) as file:
        while todo or running:
            while todo and len(running) < arguments.jobs:
                following = todo.pop(0)
                if following[:2] not in too_slow:
                    running.add(pool.submit(attempt, arguments.data, *following))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                line = future.result()
                file.write(json.dumps(line) + "\n")
                file.flush()
                number += 1
                if "too_slow" in line:
                    too_slow.add((line["problem"], line["tool"]))
                if "error" in line or "too_slow" in line:
                    print(f"{line['problem']} {line['tool']} {line['seed']}: {line.get('error') or line['too_slow']}", flush=True)
                if number % 50 == 0:
                    print(f"{number} done, {len(todo)} to do, {time.monotonic() - start:.0f} s", flush=True)
    if number:
        kept.pack(arguments.lines)


if __name__ == "__main__":
    main()
