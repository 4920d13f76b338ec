"""The services of the bench: how each is started with so many workers in a control group, and how it is loaded."""

import functools
import glob
import json
import os
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "../../.."))
SOURCES = os.path.join(HERE, "services")
sys.path.insert(0, os.path.join(HERE, "../throttle"))
from group import Group  # noqa: E402

SLACKLINE = os.environ["SLACKLINE"]
GROUP = "slackline-pools"
PORT = 18090
URL = f"http://127.0.0.1:{PORT}/"
# More than any of the services has workers: what waits, waits in the service.
CONNECTIONS = 64
START_S, END_S = 60, 20


def node(directory, workers):
    return ["node", f"{directory}/login.js"], {"WORKERS": workers, "PORT": PORT}


def gunicorn(directory, workers):
    words = ["gunicorn", "--workers", workers, "--bind", f"127.0.0.1:{PORT}", "--chdir", directory, "--log-level", "warning", "login:wsgi"]
    return words, {}


def uvicorn(directory, workers):
    words = ["uvicorn", "--workers", workers, "--host", "127.0.0.1", "--port", PORT, "--app-dir", directory, "--log-level", "warning"]
    return [*words, "login:asgi"], {}


# With several workers, uvicorn opens the socket itself and leaves TCP_NODELAY off (github.com/Kludex/uvicorn/issues/3149). Then the body of
# an answer waits until the client acknowledges the head, which takes 40 ms. Accepted connections inherit the listener's option.
WITH_NODELAY = """
import socket

import uvicorn
from uvicorn.config import Config

bind = Config.bind_socket


def bind_with_nodelay(config):
    listener = bind(config)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


if __name__ == "__main__":
    Config.bind_socket = bind_with_nodelay
    uvicorn.main()
"""


def uvicorn_with_nodelay(directory, workers):
    # So that the command names the program, as with uvicorn's own.
    path = os.path.join(directory, "uvicorn")
    with open(path, "w") as file:
        file.write(WITH_NODELAY)
    # The interpreter that has the module.
    with open(shutil.which("uvicorn")) as program:
        python = program.readline().removeprefix("#!").strip()
    words, environment = uvicorn(directory, workers)
    return [python, path, *words[1:]], environment


def puma(directory, workers):
    return ["puma", "--quiet", "--workers", workers, "--threads", "1:1", "--bind", f"tcp://127.0.0.1:{PORT}", f"{directory}/login.ru"], {}


def php_fpm(directory, workers):
    path = os.path.join(directory, "fpm.conf")
    with open(path, "w") as file:
        file.write(
            f"[global]\ndaemonize = no\nerror_log = {directory}/fpm.log\n"
            f"[www]\nuser = www-data\ngroup = www-data\nlisten = 127.0.0.1:{PORT + 1}\npm = static\npm.max_children = {workers}\n"
        )
    program = sorted(glob.glob("/usr/sbin/php-fpm*"))[-1]
    return [program, "--nodaemonize", "--fpm-config", path], {}


def before_php_fpm(directory):
    """The web server before PHP-FPM, which is not in the group."""
    path = os.path.join(directory, "front.conf")
    with open(path, "w") as file:
        file.write(
            f"daemon off; master_process off; pid {directory}/front.pid; error_log {directory}/front.log;\n"
            "events { worker_connections 1024; }\n"
            f"http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{PORT}; location / {{\n"
            f"  fastcgi_pass 127.0.0.1:{PORT + 1}; include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME {directory}/login.php;\n"
            "} } }\n"
        )
    return ["nginx", "-e", f"{directory}/front.log", "-c", path]


def nginx(directory, workers):
    path = os.path.join(directory, "nginx.conf")
    with open(path, "w") as file:
        file.write(
            f"user root; daemon off; worker_processes {workers}; pid {directory}/nginx.pid; error_log {directory}/nginx.log;\n"
            "events { worker_connections 1024; }\n"
            "http { access_log off; keepalive_requests 1000000; gzip on; gzip_comp_level 9; gzip_types *;\n"
            f"  server {{ listen 127.0.0.1:{PORT}; root {directory}/pages; }} }}\n"
        )
    return ["nginx", "-e", f"{directory}/nginx.log", "-c", path], {}


def nginx_pages(directory):
    """Pages that are compressed anew for each request; one in ten requests is for the long one."""
    os.makedirs(os.path.join(directory, "pages"))
    for name, rows in (("index.html", 1500), ("long.html", 15000)):
        with open(os.path.join(directory, "pages", name), "w") as file:
            file.writelines(f'{{"id": {row}, "square": {row * row}, "cube": {row ** 3}}},\n' for row in range(rows))
    with open(os.path.join(directory, "requests"), "w") as file:
        file.write("GET /\n" * 9 + "GET /long.html\n")
    return ["--requests", os.path.join(directory, "requests"), "--header", "Accept-Encoding: gzip"]


def rust(_, workers):
    return [rust_program()], {"TOKIO_WORKER_THREADS": workers, "PORT": PORT}


@functools.cache
def rust_program():
    target = os.path.join(ROOT, "target/bench/pools")
    manifest = os.path.join(SOURCES, "rust/Cargo.toml")
    subprocess.run(["cargo", "build", "--release", "--quiet", "--manifest-path", manifest, "--target-dir", target], check=True)
    return os.path.join(target, "release/login")


def postgres_programs():
    """The folder of the newest PostgreSQL's programs."""
    found = glob.glob("/usr/lib/postgresql/*/bin/postgres")
    return os.path.dirname(max(found, key=lambda path: int(path.split("/")[4])))


AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def postgres_data(directory):
    user = pwd.getpwnam("postgres")
    os.chown(directory, user.pw_uid, user.pw_gid)
    words = [f"{postgres_programs()}/initdb", "--no-sync", "--auth=trust", "--username=postgres", "--locale=C", f"--pgdata={directory}/data"]
    done = subprocess.run([*AS_POSTGRES, *words], cwd="/", capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"initdb: {done.stdout}{done.stderr}")
    return []


def postgres(directory, _):
    """The number of workers is the number of the client's connections."""
    settings = {"listen_addresses": "", "unix_socket_directories": directory, "fsync": "off", "jit": "off", "max_parallel_workers_per_gather": 0}
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [*AS_POSTGRES, f"{postgres_programs()}/postgres", "-D", f"{directory}/data", *words], {}


class Kind:
    """A service: its command with so many workers, how `advise` calls its pool and the setting, and what it needs besides."""

    def __init__(self, name, command, pool, setting, prepare=None, front=None, is_postgres=False):
        self.name, self.command, self.pool, self.setting = name, command, re.compile(pool), setting
        self.prepare, self.front, self.is_postgres = prepare, front, is_postgres


KINDS = [
    Kind("Node.js cluster", node, r"node|MainThread", "WORKERS"),
    Kind("gunicorn", gunicorn, r"gunicorn", "--workers (-w) of gunicorn"),
    Kind("uvicorn", uvicorn, r"uvicorn|python", "--workers of uvicorn"),
    Kind("uvicorn with TCP_NODELAY", uvicorn_with_nodelay, r"uvicorn|python", "--workers of uvicorn"),
    Kind("Puma", puma, r"puma|ruby", "workers (-w) of Puma"),
    Kind("PHP-FPM", php_fpm, r"php-fpm", "pm.max_children of PHP-FPM", front=before_php_fpm),
    Kind("PostgreSQL", postgres, r"postgres", "max_connections of PostgreSQL, or the pool of connections before it", postgres_data, is_postgres=True),
    Kind("nginx", nginx, r"nginx", "worker_processes of nginx", nginx_pages),
    Kind("Rust (Tokio)", rust, r"tokio-r", "worker_threads of Tokio, or TOKIO_WORKER_THREADS"),
]


class Running:
    """A service with so many workers in its control group, for the time of a `with`."""

    def __init__(self, kind, directory, cores):
        self.kind, self.directory, self.cores = kind, directory, cores
        self.group = Group(GROUP)
        self.process, self.workers = None, None
        os.chmod(directory, 0o755)
        for path in glob.glob(f"{SOURCES}/login.*"):
            shutil.copy(path, directory)
        self.options = kind.prepare(directory) if kind.prepare else []
        self.front = None
        if kind.front:
            self.front = subprocess.Popen(kind.front(directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        if self.front:
            self.front.terminate()
            self.front.wait()

    def put(self, workers, limit=None):
        """The service anew, with so many workers, under a limit of the group."""
        self.stop()
        words, environment = self.kind.command(self.directory, workers)
        words = [os.path.join(ROOT, "examples/in-group"), GROUP, self.cores, *words]
        with open(f"{self.directory}/log", "w") as log:
            self.process = subprocess.Popen(
                [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {name: str(value) for name, value in environment.items()}, start_new_session=True,
            )
        self.workers = workers
        end = time.monotonic() + START_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                with open(f"{self.directory}/log") as log:
                    raise RuntimeError(f"{self.kind.name} does not answer: {log.read()[-2000:]}")
            time.sleep(0.1)
        # Again: Group looks at which version of control groups there is.
        self.group = Group(GROUP)
        if limit:
            self.group.limit(limit)

    def answers(self):
        if self.kind.is_postgres:
            return subprocess.run([f"{postgres_programs()}/pg_isready", "--quiet", "--host", self.directory]).returncode == 0
        try:
            with urllib.request.urlopen(URL, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self):
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            for pid in self.group.pids():
                os.kill(pid, signal.SIGKILL)
            self.process.wait(END_S)
        self.process = None

    def closed(self, seconds):
        """Requests a second at most."""
        if self.kind.is_postgres:
            out = self.pgbench(seconds)
            return float(re.search(r"tps = ([0-9.]+)", out)[1])
        return self.load(seconds, "--closed")["requests_per_s"]

    def at_rate(self, rate, seconds, seed):
        """The client's figures of an open loop: 99th percentile in ms, errors, and who was too slow. One seed, the same arrivals."""
        before = self.group.periods()
        if self.kind.is_postgres:
            latencies = self.pgbench_latencies(rate, seconds, seed)
            found = {"p99_ms": quantile(latencies, 0.99) / 1000, "requests": len(latencies), "errors": 0, "bottleneck": None}
        else:
            report = self.load(seconds, "--rate", rate, "--seed", seed)
            found = {"p99_ms": report["latency_p99_us"] / 1000} | {key: report[key] for key in ("requests", "errors", "bottleneck")}
        after = self.group.periods()
        return found | {"throttled_share": (after[1] - before[1]) / max(after[0] - before[0], 1)}

    def in_background(self, rate, seconds):
        """A load that goes on: an open loop, or without a rate a closed one."""
        if self.kind.is_postgres:
            return subprocess.Popen(self.pgbench_words(rate, seconds), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        loop = ["--rate", rate] if rate else ["--closed"]
        return subprocess.Popen(self.load_words(seconds, *loop), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def load_words(self, seconds, *more):
        words = [SLACKLINE, "load", "--url", URL.rstrip("/") if "--requests" in self.options else URL, "--duration-s", seconds]
        words += ["--connections", CONNECTIONS, "--cgroup", GROUP, "--accept-late", *self.options, *more]
        return [str(word) for word in words]

    def load(self, seconds, *more):
        done = subprocess.run(self.load_words(seconds, *more), capture_output=True, text=True)
        if not done.stdout:
            raise RuntimeError(f"slackline load: {done.stderr}")
        return json.loads(done.stdout)

    def pgbench_words(self, rate, seconds, *more):
        words = ["pgbench", "--no-vacuum", "--host", self.directory, "--username", "postgres", "--file", f"{SOURCES}/sums.sql"]
        words += ["--client", self.workers, "--time", seconds, *(["--rate", rate] if rate else []), *more, "postgres"]
        return [str(word) for word in words]

    def pgbench(self, seconds, rate=None, *more):
        done = subprocess.run(self.pgbench_words(rate, seconds, *more), capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"pgbench: {done.stderr}")
        return done.stdout

    def pgbench_latencies(self, rate, seconds, seed):
        """Of each transaction, from the time at which it was due, in µs."""
        prefix = os.path.join(self.directory, "transactions")
        for path in glob.glob(f"{prefix}.*"):
            os.remove(path)
        self.pgbench(seconds, rate, "--log", f"--log-prefix={prefix}", f"--random-seed={seed}")
        latencies = []
        for path in glob.glob(f"{prefix}.*"):
            with open(path) as file:
                latencies += [int(line.split()[2]) for line in file]
        return latencies


def quantile(values, share):
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
