"""Correctness of `slackline relayout` on Debian's MariaDB under load: stress.py OUTPUT.json [--switches N] [--kills N]

Switches between layouts, and `kill -9` of Slackline at random moments of profiling,
installing, comparing, switching and rolling back, while sysbench reads and writes and a client compares each answer with what
it must be. Every rollback has to leave the bytes that the process had before anything was done to it, vtables included, and the
tables intact. Ends with 1 where anything was wrong.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from mariadb import EXAMPLE, SLACKLINE, Server, lay_out, pause_us, relayout

ROWS = 5000


def value(key):
    return key * 7919 % 104729


class Client(threading.Thread):
    """Asks for ever what it knows the answer of."""

    def __init__(self, server, seed):
        super().__init__(daemon=True)
        self.random = random.Random(seed)
        self.asked, self.wrong, self.is_over = 0, [], False
        command = ["mariadb", "--no-defaults", f"--socket={server.directory}/socket", "--user=root", "-N", "-B", "-n", "sbtest"]
        self.shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def question(self):
        low = self.random.randrange(ROWS)
        high = min(ROWS, low + self.random.randrange(1, 200))
        keys = range(low, high)
        values = [value(key) for key in keys]
        return self.random.choice([
            (f"select sum(v), count(*) from verified where k >= {low} and k < {high}", f"{sum(values)}\t{len(values)}"),
            (f"select max(v) from verified where k >= {low} and k < {high}", str(max(values))),
            (f"select group_concat(s order by v desc) from verified where k >= {low} and k < {min(high, low + 8)}",
             ",".join(f"row {key}" for key in sorted(keys[:8], key=value, reverse=True))),
            (f"select count(*) from verified a join verified b on a.v = b.v where a.k >= {low} and a.k < {high}", str(len(values))),
            (f"select upper(s), v * 3 - 1 from verified where k = {low}", f"ROW {low}\t{value(low) * 3 - 1}"),
            (f"select sum(l) from (select length(s) l from verified where k < {high} group by s) t",
             str(sum(len(f"row {key}") for key in range(high)))),
        ])

    def run(self):
        while not self.is_over:
            question, answer = self.question()
            self.shell.stdin.write(question + ";\n")
            self.shell.stdin.flush()
            got = self.shell.stdout.readline().rstrip("\n")
            self.asked += 1
            if got != answer:
                self.wrong.append([question, answer, got])
                if not got:
                    return

    def end(self):
        self.is_over = True
        self.join(30)
        self.shell.kill()
        self.shell.wait()


def constant_bytes(pid):
    """All of the process that comes from files and that it cannot write itself: code, constants, and what the dynamic linker has
    relocated, vtables among it."""
    found = {}
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            words = line.split(None, 5)
            if len(words) == 6 and words[5].startswith("/") and words[1] in ("r-xp", "r--p"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                memory.seek(start)
                found[(start, words[5].strip())] = memory.read(end - start)
    return found


def differences(before, after):
    return [f"{path} {start:#x}" for (start, path), old in before.items() if after.get((start, path)) != old]


class Stress:
    def __init__(self, server, work, seed, seconds, has_random):
        self.end_s, self.has_random = time.monotonic() + seconds, has_random
        self.server, self.state, self.random = server, f"{work}/state", random.Random(seed)
        server.sql("create table sbtest.verified (k int primary key, v bigint, s varchar(40), key (v), key (s))")
        rows = ",".join(f"({key},{value(key)},'row {key}')" for key in range(ROWS))
        server.sql_file(f"insert into sbtest.verified values {rows}")
        self.checksum = server.sql("checksum table sbtest.verified")
        self.before = constant_bytes(server.pid)
        self.problems, self.asked = [], 0

    def relayout(self, *arguments):
        done = relayout(self.state, *arguments, check=False)
        if done.returncode not in (0, 1):
            self.problems.append([*map(str, arguments), done.returncode, done.stderr])
        return done

    def check(self, when):
        """After a rollback: bytes, tables, answers."""
        for difference in differences(self.before, constant_bytes(self.server.pid)):
            self.problems.append([when, difference])
        if self.server.sql("checksum table sbtest.verified") != self.checksum:
            self.problems.append([when, "CHECKSUM TABLE differs"])

    def check_tables(self, when):
        text = self.server.sql("check table sbtest.verified, sbtest.sbtest1, sbtest.sbtest2, sbtest.sbtest3, sbtest.sbtest4")
        lines = [line for line in text.splitlines() if "status" in line]
        if len(lines) != 5 or any(not line.endswith("OK") for line in lines):
            self.problems.append([when, text])

    def install(self, *arguments):
        # By a profile of its own, not by what the last one kept.
        shutil.rmtree(f"{self.state}/relayout/profiles", ignore_errors=True)
        done = lay_out(self.state, self.server.pid, *arguments, check=False)
        if done.returncode != 0:
            self.problems.append(["lay_out", *map(str, arguments), done.returncode, done.stderr])
        return done

    def switches(self, count):
        start = time.monotonic()
        # Two by two profiles, and one of every movable function at random where there is time for its size.
        self.install("--hurry")
        self.install("--hurry")
        if self.has_random:
            self.install("--random", 1)
        known = json.loads(Path(next(Path(self.state).glob(f"relayout/{self.server.pid}-*[0-9].json"))).read_text())
        generations = [0] + [generation["number"] for generation in known["generations"]]
        patches = [len(generation["patches"]) for generation in known["generations"]]
        last, pauses = 0, []
        done_switches = 0
        while done_switches < count and time.monotonic() < self.end_s:
            done_switches += 1
            last = self.random.choice([number for number in generations if number != last])
            done = self.relayout("switch", self.server.pid, last)
            pauses += [pause for pause in [pause_us(done.stderr)] if pause is not None]
        self.relayout("rollback", "--all")
        self.check("after the switches")
        self.check_tables("after the switches")
        pauses.sort()
        return {"switches": done_switches, "wanted": count, "generations": len(generations), "patches": patches, "seconds": round(time.monotonic() - start),
                "pause_us_median": pauses[len(pauses) // 2] if pauses else None, "pause_us_worst": max(pauses, default=None)}

    def killed(self, longest_s, *arguments, state=None):
        """Kills a command at a random moment, of `start` in the state that is named; whether it still ran."""
        command = [SLACKLINE, "--state-dir", self.state, "relayout", *map(str, arguments)]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = []
        while state and (line := running.stderr.readline()):
            said.append(line)
            if line.split()[2:3] == [state]:
                break
        after_s = self.random.uniform(0, longest_s)
        time.sleep(after_s)
        was_running = running.poll() is None
        running.kill()
        said += running.communicate()[1].split("\n")
        state = next((line.split()[2] for line in reversed(said) if line.startswith("mariadbd ")), "starting")
        changed = bool(differences(self.before, constant_bytes(self.server.pid)))
        return {"command": arguments[0], "state": state, "after_s": round(after_s, 3), "was_running": was_running, "code_changed": changed}

    def kills(self, count):
        start = time.monotonic()
        kills = []
        pid = self.server.pid
        while sum(kill["was_running"] for kill in kills) < count and time.monotonic() < self.end_s:
            # How long each takes, about: sampling is nothing to kill, counting and the comparison are many switches.
            for state, longest_s in (("profiling", 5), ("optimizing", 4), ("verifying", 2)):
                arguments = "start", "--pid", pid, "--once", "--pairs", 3, "--block-s", 0.2
                # With a profile of another it would skip the first states.
                shutil.rmtree(f"{self.state}/relayout/profiles", ignore_errors=True)
                kills.append(self.killed(longest_s, *arguments, state=state))
                self.relayout("rollback", "--all")
                self.check(f"after kill {len(kills)}")
            self.install("--hurry")
            kills.append(self.killed(0.08, "switch", pid, 0))
            self.relayout("switch", pid, 1)
            kills.append(self.killed(0.3, "rollback", pid))
            done = self.relayout("rollback", "--all")
            self.check(f"after kill {len(kills)}")
            if self.problems:
                break
        self.check_tables("after the kills")
        done = self.relayout("rollback", "--all")
        real = [kill for kill in kills if kill["was_running"]]
        by_state = {}
        for kill in real:
            name = kill["command"] if kill["command"] != "start" else f"start: {kill['state'].rstrip(':')}"
            by_state[name] = by_state.get(name, 0) + 1
        return {"kills": len(real), "wanted": count, "missed": len(kills) - len(real), "with_changed_code": sum(kill["code_changed"] for kill in real),
                "by_state": by_state, "seconds": round(time.monotonic() - start), "last_rollback": (done.stdout + done.stderr).strip(),
                "each": kills}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--switches", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3600, help="break off after so long, and say how far it came")
    parser.add_argument("--random", action="store_true", help="with a layout of every movable function: each switch takes seconds")
    parser.add_argument("--port", type=int, default=33403)
    arguments = parser.parse_args()
    result = {"seed": arguments.seed, "kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M")}
    with tempfile.TemporaryDirectory() as work:
        server = Server(f"{work}/server", arguments.port)
        load = client = None
        try:
            stress = Stress(server, work, arguments.seed, arguments.seconds, arguments.random)
            load = server.load("read_write", 4)
            client = Client(server, arguments.seed)
            client.start()
            time.sleep(2)
            if arguments.switches:
                result["switching"] = stress.switches(arguments.switches)
                print(result["switching"], flush=True)
            if arguments.kills:
                result["killing"] = stress.kills(arguments.kills)
                print({key: value for key, value in result["killing"].items() if key != "each"}, flush=True)
            if load.poll() is not None:
                stress.problems.append(["sysbench has ended", Path(f"{server.directory}/sysbench.log").read_text()[-2000:]])
            client.end()
            result["answers"] = client.asked
            windows = server.windows()
            result["sysbench_queries"] = round(sum(windows))
            result["problems"] = stress.problems + client.wrong
        finally:
            if not Path(f"/proc/{server.pid}").exists():
                print("the server has ended:", Path(f"{server.directory}/server.log").read_text()[-6000:], flush=True)
            if load:
                load.kill()
                load.wait()
            if client:
                client.shell.kill()
            server.stop()
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['answers']} answers, {len(result['problems'])} problems")
    for problem in result["problems"][:20]:
        print(problem)
    sys.exit(bool(result["problems"]))


main()
