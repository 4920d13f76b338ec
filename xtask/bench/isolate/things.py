"""The services and the batch work of the bench: how each is started, and what it is asked for."""

import os
import socket
import subprocess
import sys
import time

CPUS = os.cpu_count()
PORT = 31211
HERE = os.path.dirname(os.path.abspath(__file__))
LOAD = os.path.join(HERE, "load.py")
JVM = os.path.join(HERE, "../../../examples/throttled-jvm/Service.java")

# Kind of load, peak rate a second, objective of the p99 in ms. The objective is about four times the worst window of the service
# alone, in one run on two CPUs of an AMD EPYC that poll while they are idle: 0.45, 0.74, 0.61 and 6.3 ms.
SERVICES = {
    "memcached": ("memcached", 4000, 2.0),
    "nginx": ("http", 1000, 3.0),
    "mariadb": ("mariadb", 1500, 2.5),
    "jvm": ("http", 120, 25.0),
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


def quiet(words, **more):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


def nginx(directory):
    with open(os.path.join(directory, "index.html"), "w") as file:
        file.write("".join(f'{{"id": {number}, "square": {number * number}}},\n' for number in range(600)))
    os.chmod(directory, 0o755)
    config = os.path.join(directory, "nginx.conf")
    with open(config, "w") as file:
        file.write(
            f"daemon off; master_process off; pid {directory}/pid; error_log /dev/null; events {{ worker_connections 256; }}\n"
            "http { access_log off; gzip on; gzip_types *; keepalive_requests 1000000;\n"
            f"  server {{ listen 127.0.0.1:{PORT}; root {directory}; }} }}\n"
        )
    return quiet(["nginx", "-c", config])


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
    listening()
    text = (
        "CREATE DATABASE bench; USE bench; CREATE TABLE bench.rows (id INT PRIMARY KEY, pad CHAR(200)) ENGINE=InnoDB;"
        "INSERT INTO bench.rows SELECT seq, REPEAT('x', 200) FROM seq_1_to_10000;"
    )
    subprocess.run(["mariadb", "--no-defaults", f"--socket={socket_path}"], input=text, text=True, check=True)
    return server


def jvm(directory):
    subprocess.run(["javac", "-d", directory, JVM], check=True)
    # C1 alone: the code is compiled within the warm-up. Without nodelay the body waits 40 ms for an acknowledgement.
    server = quiet(["java", "-Dsun.net.httpserver.nodelay=true", "-XX:TieredStopAtLevel=1", "-XX:+UseParallelGC", "-Xmx256m", "-cp", directory, "Service", str(PORT), "8", "1"])
    listening()
    warm = [sys.executable, LOAD, "http", str(PORT), "120", "6", "--shape", "flat"]
    subprocess.run(warm, check=True, stdout=subprocess.DEVNULL)
    return server


def memcached(_):
    return quiet(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(PORT), "-t", "2", "-U", "0"])


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
    server = {"memcached": memcached, "nginx": nginx, "mariadb": mariadb, "jvm": jvm}[service](directory)
    listening()
    return server


def command(antagonist, directory):
    """The words that start this batch work."""
    return [word.replace("$DIR", directory) for word in ANTAGONISTS[antagonist]]
