"""Other people's test suites on processes of which every movable function lies in random order: suites.py OUTPUT.json [--suites A,B] [--seeds N]

mtr: MariaDB's own test suite (main), on servers that are re-laid out as soon as they are seen, so in the midst of their tests; a client
stands still meanwhile, since most servers live for seconds only, and laying out all of their code takes as long.
cpython: CPython's own, on an interpreter that is re-laid out before the first test; what tests start themselves stays as it is.
Each suite runs untouched first. A case that passes there and fails here is tried three times more each way, alone. Ends with 1
where a case passes untouched and not otherwise.
"""
import argparse
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mariadb import lay_out

MTR = Path("/usr/share/mysql/mysql-test")
AGAIN = 3
# Reads one line before it runs the suite, so that there is time to lay it out.
HELD = "import runpy, sys; print('held', flush=True); sys.stdin.readline(); sys.argv[0] = 'test'; runpy.run_module('test', run_name='__main__')"


def lay_out_at_random(state, pid, seed):
    start = time.monotonic()
    done = lay_out(state, pid, "--random", seed, check=False)
    moved = re.search(r"(\d+) functions", done.stdout + done.stderr)
    return {"seconds": round(time.monotonic() - start, 1), "functions": int(moved[1]) if moved else 0,
            "said": "" if moved else (done.stdout + done.stderr).strip()}


class Watcher(threading.Thread):
    """Lays out each server below a directory as soon as it is there, and lets no client go on before that."""

    def __init__(self, state, directory, seed):
        super().__init__(daemon=True)
        self.state, self.directory, self.seed = state, str(directory), seed
        self.done, self.is_over = [], False

    def processes(self, program):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.readlink(entry / "exe").endswith(f"/{program}"):
                    start_time = (entry / "stat").read_text().rsplit(")", 1)[1].split()[19]
                    arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
                    # What makes the first tables is over at once.
                    if self.directory in arguments and "--bootstrap" not in arguments:
                        yield int(entry.name), start_time
            except OSError:
                continue

    def signal_clients(self, number):
        for pid, _ in self.processes("mariadb-test"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def run(self):
        known = set()
        while not self.is_over:
            new = [server for server in self.processes("mariadbd") if server not in known]
            if new:
                self.signal_clients(signal.SIGSTOP)
            for server in new:
                known.add(server)
                self.done.append(lay_out_at_random(self.state, server[0], self.seed))
            if new:
                self.signal_clients(signal.SIGCONT)
            time.sleep(0.02)

    def end(self):
        self.is_over = True
        self.join()


class Mtr:
    """MariaDB's suite, as a user without privileges: as root some cases skip themselves."""

    waits = False

    def __init__(self, work):
        self.work = Path(work) / "mtr"
        self.work.mkdir()
        shutil.chown(self.work, "nobody")

    def run(self, seed, cases=()):
        directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
        shutil.chown(directory, "nobody")
        watcher = Watcher(f"{self.work}-state", directory, seed) if seed else None
        if watcher:
            watcher.start()
        command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "env", f"HOME={self.work}", "perl", "mysql-test-run.pl",
                   f"--vardir={directory}/var", "--suite=main", "--force", "--parallel=1", "--max-test-fail=0", "--retry=0", *{case.split()[0] for case in cases}]
        output = subprocess.run(command, cwd=MTR, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False).stdout
        if watcher:
            watcher.end()
        (self.work / f"{directory.name}.log").write_text(output)
        shutil.rmtree(directory, ignore_errors=True)
        verdicts = {}
        for name, verdict in re.findall(r"^(main\.\S+(?: '[^']*')?) .*?\[ (pass|fail|skipped|disabled) \]", output, re.M):
            # One case in several variants: the worst counts.
            if verdict == "fail" or verdicts.get(name) != "fail":
                verdicts[name] = verdict
        passed = {name for name, verdict in verdicts.items() if verdict == "pass"}
        failed = {name for name, verdict in verdicts.items() if verdict == "fail"}
        return passed, failed, watcher.done if watcher else []


class CPython:
    waits = True

    def __init__(self, work):
        self.work = Path(work) / "cpython"
        self.work.mkdir()

    def run(self, seed, cases=()):
        if not cases:
            cases = subprocess.run(["/usr/bin/python3.11", "-m", "test", "--list-tests"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        todo, passed, failed, laid_out = list(cases), set(), set(), []
        while todo:
            directory = Path(tempfile.mkdtemp(dir=self.work))
            held = subprocess.Popen(["/usr/bin/python3.11", "-c", HELD, "--timeout", "900", *todo], cwd=directory, stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            held.stdout.readline()
            if seed:
                laid_out.append(lay_out_at_random(f"{self.work}-state", held.pid, seed))
            output = held.communicate("\n")[0]
            (self.work / f"{directory.name}.log").write_text(output)
            shutil.rmtree(directory, ignore_errors=True)
            ran = re.findall(r"\[ *\d+/\d+(?:/\d+)?\] (test_[\w.]+)", output)
            lists = re.findall(r"^\d+ tests? (failed|skipped|skipped \(resource denied\)):\n((?:    .*\n)+)", output, re.M)
            # What says nothing of itself has passed. An interpreter that ends leaves no lists, only what it said meanwhile.
            lists += [(what, name) for name, what in re.findall(r"(test_[\w.]+) (failed|skipped)\b", output)]
            others = {name for _, names in lists for name in names.split()}
            failed |= {name for what, names in lists if what == "failed" for name in names.split()}
            todo = [case for case in todo if case not in ran] if ran else []
            if "Tests result:" not in output:
                # The interpreter itself has ended, in the case that ran last; the others go on in a new one.
                failed |= set(ran[-1:])
                others |= set(ran[-1:])
            passed |= set(ran) - others
        return passed, failed, laid_out


def measure(suite, seeds):
    start = time.monotonic()
    # One after the other, or all at once where most of a run is waiting.
    with ThreadPoolExecutor(1 + seeds if suite.waits else 1) as pool:
        running = [pool.submit(suite.run, seed) for seed in [None, *range(1, seeds + 1)]]
        (passed, failed, _), *moved = [run.result() for run in running]
    result = {"untouched": {"passed": len(passed), "failed": sorted(failed)}, "moved": []}
    print(f"untouched: {len(passed)} passed, {len(failed)} failed", flush=True)
    for seed, (moved_passed, _, laid_out) in enumerate(moved, 1):
        again, broken = {}, []
        for case in sorted(passed - moved_passed):
            of_moved = sum(case in suite.run(seed, [case])[0] for _ in range(AGAIN))
            untouched = sum(case in suite.run(None, [case])[0] for _ in range(AGAIN))
            again[case] = {"moved": of_moved, "untouched": untouched, "of": AGAIN}
            if of_moved < untouched:
                broken.append(case)
        functions = [one["functions"] for one in laid_out if one["functions"]]
        of_seed = {
            "seed": seed, "passed": len(moved_passed & passed), "again": again, "broken": broken,
            "processes": len(functions), "functions": max(functions, default=0),
            # Where a case ends or restarts its server while it is laid out.
            "not_laid_out": dict(collections.Counter(re.sub(r"\d+", "N", one["said"]) for one in laid_out if not one["functions"])),
            "laying_out_s": round(sum(one["seconds"] for one in laid_out), 1),
        }
        result["moved"].append(of_seed)
        print(of_seed, flush=True)
    result["seconds"] = round(time.monotonic() - start)
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--suites", default="cpython,mtr")
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    suites = {"mtr": Mtr, "cpython": CPython}
    is_good = True
    for name in arguments.suites.split(","):
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as work:
            os.chmod(work, 0o755)
            result = measure(suites[name](work), arguments.seeds)
        result["time"] = time.strftime("%Y-%m-%d %H:%M")
        results = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        results[name] = result
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
        is_good = is_good and all(moved["processes"] and not moved["broken"] for moved in result["moved"])
    sys.exit(not is_good)


main()
