"""A MariaDB of Debian with a private data directory under sysbench, for the benchmarks and the stress test of relayout; and what they make
of ratios."""
import functools
import math
import os
import re
import statistics
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parents[2] / "examples" / "relayout-mariadb"
SLACKLINE = os.environ["SLACKLINE"]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, directory, port, mariadbd="mariadbd"):
        """`mariadbd`: another executable, or a command in front of it."""
        self.directory = directory
        output = subprocess.run([EXAMPLE / "server", directory, str(port)], env={**os.environ, "MARIADBD": mariadbd}, check=True,
                                stdout=subprocess.PIPE, text=True)
        self.pid = int(output.stdout)

    def sql(self, text):
        command = ["mariadb", "--no-defaults", f"--socket={self.directory}/socket", "--user=root", "-N", "-B", "-e", text]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def sql_file(self, text):
        """As `sql`, for more than fits on a command line."""
        command = ["mariadb", "--no-defaults", f"--socket={self.directory}/socket", "--user=root"]
        subprocess.run(command, input=text, check=True, text=True)

    def reading(self):
        """Queries answered, and seconds of CPU time: of all threads to the nanosecond, and the user part by ticks."""
        queries = int(self.sql("show global status like 'Questions'").split()[1])
        run_ns = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"))
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return queries, run_ns / 1e9, int(fields[11]) * TICK_S

    def sysbench(self, workload, threads):
        """The words of a sysbench on this server, without how long, how fast and `run`."""
        return ["sysbench", f"oltp_{workload}", "--db-driver=mysql", f"--mysql-socket={self.directory}/socket",
                "--mysql-user=sbtest", "--tables=4", "--table-size=25000", f"--threads={threads}"]

    def load(self, workload, threads):
        log = open(f"{self.directory}/sysbench.log", "w")
        command = [*self.sysbench(workload, threads), "--time=0", "--report-interval=1", "run"]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def windows(self):
        """Queries per second, by windows of one second."""
        text = Path(f"{self.directory}/sysbench.log").read_text()
        return [float(word) for word in re.findall(r"qps: ([0-9.]+)", text)]

    def stop(self):
        subprocess.run(["kill", str(self.pid)], check=False)
        while Path(f"/proc/{self.pid}").exists():
            time.sleep(0.1)


# Student's 97.5 % quantiles by degrees of freedom (any table of them); the next smaller one is used.
STUDENT = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093, 29: 2.045, 39: 2.023, 59: 2.0}


def interval(ratios):
    """Geometric mean and 95 % interval of some ratios, as percentages of change."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    factor = next(STUDENT[known] for known in sorted(STUDENT, reverse=True) if known <= len(logs) - 1)
    half = factor * statistics.stdev(logs) / math.sqrt(len(logs))
    return [round((math.exp(value) - 1) * 100, 1) for value in (mean, mean - half, mean + half)]


def pause_us(said):
    """For how long a switch says that the process stood still; `None` where it says nothing of that."""
    found = re.search(r"stood still for (\d+) µs", said)
    return found and int(found[1])


@functools.cache
def built_lay_out():
    """The example of the crate relayout that lays a process out, beside the binary under test."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "--package", "relayout", "--example", "lay_out"], check=True, cwd=HERE.parents[2])
    return Path(SLACKLINE).parent / "examples" / "lay_out"


def lay_out(state, pid, *options, check=True):
    """Puts a layout in force that nobody verifies."""
    command = [built_lay_out(), "--state-dir", state, "--pid", str(pid), *map(str, options)]
    return subprocess.run(command, check=check, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def relayout(state, *arguments, check=True):
    return subprocess.run([SLACKLINE, "--state-dir", state, "relayout", *map(str, arguments)], check=check, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
