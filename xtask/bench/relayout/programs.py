"""`slackline relayout start --once` on stock Debian programs under load, as a user would: programs.py OUTPUT.json [--programs NAME…] [--times N]

What is kept is what the command itself verified: pairs of blocks on the live process, original against new layout. What it declines or
rolls back is listed with its reason, and the last interval that it saw.
"""
import argparse
import contextlib
import json
import os
import pwd
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from mariadb import EXAMPLE, Server, relayout

HERE = Path(__file__).resolve().parent


def port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(number):
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", number)):
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on {number}")


@contextlib.contextmanager
def running(*commands, **options):
    """Processes until the end of a `with`."""
    options = dict(options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    started = [subprocess.Popen(list(map(str, command)), **options) for command in commands]
    try:
        yield [process.pid for process in started]
    finally:
        for process in reversed(started):
            # With what it has started.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


@contextlib.contextmanager
def mariadb(work, workload, threads):
    server = Server(f"{work}/mariadb", port())
    load = server.load(workload, threads)
    try:
        yield server.pid, ()
    finally:
        load.kill()
        load.wait()
        server.stop()


@contextlib.contextmanager
def postgresql(work, protocol):
    """Four connections of `pgbench -S`, a backend each."""
    owner = pwd.getpwnam("postgres")
    programs = sorted(Path("/usr/lib/postgresql").iterdir())[-1] / "bin"
    data, number = Path(work, "postgresql"), port()
    data.mkdir()
    os.chmod(work, 0o755)
    os.chown(data, owner.pw_uid, owner.pw_gid)
    as_owner = dict(user=owner.pw_uid, group=owner.pw_gid, extra_groups=[], cwd=data)
    quiet = dict(check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([programs / "initdb", "-D", data / "db", "-A", "trust"], **quiet, **as_owner)
    server = [programs / "postgres", "-D", data / "db", "-p", number, "-k", data, "-c", "listen_addresses=127.0.0.1", "-c", "shared_buffers=256MB"]
    bench = [programs / "pgbench", "-h", "127.0.0.1", "-p", str(number), "-U", "postgres"]
    with running(server, **as_owner) as (pid,):
        wait_for(number)
        while subprocess.run([*bench, "-i", "-s", "5", "postgres"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode:
            time.sleep(0.2)
        with running([*bench, "-S", "-M", protocol, "-c", 4, "-j", 1, "-T", 3600, "postgres"]):
            yield pid, ()


@contextlib.contextmanager
def nginx(work):
    number, root = port(), Path(work, "nginx")
    root.mkdir()
    os.chmod(work, 0o755)
    (root / "file").write_text("x" * 1024)
    (root / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {root}/pid; error_log stderr crit; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;\n"
        f"uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi; server {{ listen 127.0.0.1:{number}; root {root}; }} }}\n"
    )
    with running(["nginx", "-c", root / "nginx.conf", "-p", root]) as (pid,):
        wait_for(number)
        with running(["wrk", "-t", 1, "-c", 8, "-d", "3600s", f"http://127.0.0.1:{number}/file"]):
            yield pid, ()


@contextlib.contextmanager
def redis(work):
    number = port()
    with running(["redis-server", "--port", number, "--bind", "127.0.0.1", "--save", "", "--dir", work, "--daemonize", "no"]) as (pid,):
        wait_for(number)
        with running(["redis-benchmark", "-p", number, "-c", 8, "-n", 2_000_000_000, "-r", 100_000, "-t", "set,get", "-q"]):
            yield pid, ()


@contextlib.contextmanager
def memcached(work):
    number = port()
    with running(["memcached", "-l", "127.0.0.1", "-p", number, "-u", "nobody", "-t", 2]) as (pid,):
        wait_for(number)
        # It makes all its keys first: rather again and again than many.
        slap = f"memcslap --servers=127.0.0.1:{number} --concurrency=4 --execute-number=100000 --initial-load=10000 --test=get"
        with running(["sh", "-c", f"while :; do {slap}; done"]):
            yield pid, ()


@contextlib.contextmanager
def sqlite(work):
    program, counter = Path(work, "sqlite_load"), Path(work, "counter")
    subprocess.run(["cc", "-O2", "-o", program, HERE / "sqlite_load.c", "-lsqlite3"], check=True)
    with running([program, counter]) as (pid,):
        while not counter.exists() or struct.unpack("Q", counter.read_bytes().ljust(8, b"\0")[:8])[0] == 0:
            time.sleep(0.1)
        yield pid, ("--metric-name", "queries", "--metric-command", f"od -An -tu8 {counter}")


@contextlib.contextmanager
def python(work):
    """A loop of an interpreter that was built with a profile."""
    counter = Path(work, "counter")
    counter.write_bytes(bytes(8))
    with running(["/usr/bin/python3.11", HERE / "python_load.py", counter]) as (pid,):
        yield pid, ("--metric-name", "documents", "--metric-command", f"od -An -tu8 {counter}")


PROGRAMS = {
    "mariadb point_select, 4 connections": lambda work: mariadb(work, "point_select", 4),
    "mariadb point_select, 16 connections": lambda work: mariadb(work, "point_select", 16),
    "mariadb read_only, 4 connections": lambda work: mariadb(work, "read_only", 4),
    "mariadb read_only, 16 connections": lambda work: mariadb(work, "read_only", 16),
    "postgresql simple": lambda work: postgresql(work, "simple"),
    "postgresql prepared": lambda work: postgresql(work, "prepared"),
    "sqlite": sqlite,
    "nginx": nginx,
    "memcached": memcached,
    "redis": redis,
    "python": python,
}


def once(make):
    with tempfile.TemporaryDirectory() as work, make(work) as (pid, metric):
        time.sleep(2)
        start = time.monotonic()
        done = relayout(f"{work}/state", "start", "--pid", pid, "--once", "--json", *metric, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(done.stderr)
        status = json.loads(done.stdout)["processes"][0]
        result = {key: status.get(key) for key in ("state", "reason", "gain", "pause_us", "seconds", "layout", "comparison")}
        result["took_s"] = round(time.monotonic() - start, 1)
        rollback = relayout(f"{work}/state", "rollback", "--all", check=False)
        result["rollback"] = (rollback.stdout + rollback.stderr).strip()
        result["same_code"] = subprocess.run([EXAMPLE / "same-code", str(pid)], check=False, stdout=subprocess.DEVNULL).returncode == 0
        return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME")
    parser.add_argument("--times", type=int, default=2)
    arguments = parser.parse_args()
    results = json.loads(arguments.output.read_text()) if arguments.output.exists() else []
    for _ in range(arguments.times):
        for name in arguments.programs:
            result = {"program": name, "kernel": os.uname().release, "time": time.strftime("%Y-%m-%d %H:%M"), **once(PROGRAMS[name])}
            results.append(result)
            arguments.output.write_text(json.dumps(results, indent=1) + "\n")
            print(name, result["state"], result["reason"], result["gain"], result["pause_us"], flush=True)


main()
