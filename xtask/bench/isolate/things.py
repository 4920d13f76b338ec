"""The services and the batch work of the bench: how each is started, and what it is asked for."""

import os
import shlex
import socket
import subprocess
import sys
import time

CPUS = os.cpu_count()
PORT = 31211
HERE = os.path.dirname(os.path.abspath(__file__))
LOAD = os.path.join(HERE, "load.py")
JVM = os.path.join(HERE, "../../../examples/throttled-jvm/Service.java")

# Kind of load, peak rate a second, objective of the p99 in ms. At the peak, the service uses 0.1, 0.8, 0.85 and 1.0 cores. The
# objective is about four times the worst window of the service alone, in one run on two CPUs of an AMD EPYC that poll while they
# are idle: 0.45, 1.4, 1.7 and 3.2 ms.
SERVICES = {
    "memcached": ("memcached", 4000, 2.0),
    "nginx": ("http", 800, 6.0),
    "mariadb": ("mariadb", 1500, 6.0),
    "mariadb-writes": ("mariadb-writes", 200, 40.0),
    "jvm": ("http", 3000, 12.0),
}

COMPILED = "for n in $(seq 400); do echo \"int f$n(int *a,int n){int s=0;for(int i=0;i<n;i++)s+=a[i]*$n^i;return s;}\"; done"
ANTAGONISTS = {
    "cpu": ["stress-ng", "--cpu", str(CPUS), "--quiet"],
    "memory": ["stress-ng", "--stream", str(CPUS), "--quiet"],
    "disk": ["stress-ng", "--hdd", "1", "--hdd-bytes", "256M", "--quiet", "--temp-path", "/var/tmp"],
    "network": ["stress-ng", "--sock", str(CPUS), "--quiet"],
    "ffmpeg": [
        "ffmpeg", "-v", "quiet", "-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=30", "-t", "3600",
        "-c:v", "libx264", "-f", "null", "-",
    ],
    "compiler": ["sh", "-c", f"({COMPILED}) > $DIR/f.c; while :; do cc -O3 -c -o /dev/null $DIR/f.c & cc -O2 -c -o /dev/null $DIR/f.c; wait; done"],
    "zstd": ["sh", "-c", "head -c 64000000 /dev/urandom > $DIR/data; while :; do zstd -q -c -T0 -12 $DIR/data > /dev/null; done"],
}
# All of them at once. The whole group of processes is ended by the control group that it runs in.
ANTAGONISTS["mixed"] = ["sh", "-c", " & ".join(shlex.join(words) for words in ANTAGONISTS.values()) + " & wait"]


# Each function below starts a service; with it comes what is to be done once the service listens, if anything.


def quiet(words, **more):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


def nginx(directory):
    with open(os.path.join(directory, "index.html"), "w") as file:
        file.write("".join(f'{{"id": {number}, "square": {number * number}}},\n' for number in range(8000)))
    os.chmod(directory, 0o755)
    config = os.path.join(directory, "nginx.conf")
    with open(config, "w") as file:
        file.write(
            f"daemon off; master_process off; pid {directory}/pid; error_log /dev/null; events {{ worker_connections 256; }}\n"
            "http { access_log off; gzip on; gzip_types *; keepalive_requests 1000000;\n"
            f"  server {{ listen 127.0.0.1:{PORT}; root {directory}; }} }}\n"
        )
    return quiet(["nginx", "-c", config]), None


def mariadb(directory):
    data = os.path.join(directory, "data")
    subprocess.run(
        ["mariadb-install-db", "--user=root", f"--datadir={data}", "--skip-test-db"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    socket_path = os.path.join(directory, "socket")
    server = quiet([
        "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket_path}", f"--port={PORT}",
        "--bind-address=127.0.0.1", "--skip-grant-tables", "--skip-networking=0", "--innodb-buffer-pool-size=64M",
        f"--pid-file={directory}/pid",
    ])
    text = (
        "CREATE DATABASE bench; USE bench; CREATE TABLE bench.rows (id INT PRIMARY KEY, pad CHAR(200)) ENGINE=InnoDB;"
        "INSERT INTO bench.rows SELECT seq, REPEAT('x', 200) FROM seq_1_to_10000;"
        "CREATE TABLE bench.log (pad CHAR(10)) ENGINE=InnoDB;"
    )
    client = ["mariadb", "--no-defaults", f"--socket={socket_path}"]
    return server, lambda: subprocess.run(client, input=text, text=True, check=True)


def jvm(directory):
    subprocess.run(["javac", "-d", directory, JVM], check=True)
    # C1 alone: the code is compiled within the warm-up. Without nodelay the body waits 40 ms for an acknowledgement. By default the
    # server closes a connection that was idle for 30 s, and the load at a fifth of its peak leaves some idle.
    options = ["-Dsun.net.httpserver.nodelay=true", "-Dsun.net.httpserver.idleInterval=3600"]
    server = quiet(["java", *options, "-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC", "-Xmx256m", "-cp", directory, "Service", str(PORT), "8", "1"])
    warm = [sys.executable, LOAD, "http", str(PORT), "1000", "6", "--shape", "flat"]
    return server, lambda: subprocess.run(warm, check=True, stdout=subprocess.DEVNULL)


def memcached(_):
    return quiet(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(PORT), "-t", "2", "-U", "0"]), None


class Group:
    """A control group of a service's own: without one, nobody can give it a quota."""

    NAME = "slackline-bench-service"

    def __init__(self, pid):
        v1 = [top for top in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpuacct") if os.path.isdir(top)]
        if not v1:
            with open("/sys/fs/cgroup/cgroup.subtree_control", "w") as file:
                file.write("+cpu")
        tops = dict.fromkeys(os.path.realpath(top) for top in v1 or ["/sys/fs/cgroup"])
        self.paths = [os.path.join(top, self.NAME) for top in tops]
        for path in self.paths:
            os.makedirs(path, exist_ok=True)
            with open(os.path.join(path, "cgroup.procs"), "w") as file:
                file.write(str(pid))

    def remove(self):
        end = time.time() + 20
        for path in self.paths:
            while True:
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    # A process that has just ended is there for a moment.
                    if time.time() > end:
                        raise
                    time.sleep(0.05)


def end(process, seconds):
    """Ends a process, and waits for it."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listening():
    end = time.time() + 20
    while time.time() < end:
        try:
            socket.create_connection(("127.0.0.1", PORT), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {PORT}")


def start(service, directory):
    """Starts a service and returns its process, once it listens."""
    server, prepare = {"memcached": memcached, "nginx": nginx, "mariadb": mariadb, "mariadb-writes": mariadb, "jvm": jvm}[service](directory)
    try:
        listening()
        if prepare is not None:
            prepare()
    except BaseException:
        # It would answer in the place of the next service.
        end(server, 20)
        raise
    return server


def command(antagonist, directory):
    """The words that start this batch work."""
    return [word.replace("$DIR", directory) for word in ANTAGONISTS[antagonist]]
