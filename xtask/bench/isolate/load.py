#!/usr/bin/env python3
"""Open-loop load for the bench: one request again and again over some connections, at times that do not depend on the answers.

  load.py memcached|http|mariadb|mariadb-writes PORT REQUESTS_PER_S SECONDS [--shape ramp|flat|step] [--step-at S] [--warm-s S] [--window-s S] [--connections N]

A latency counts from the scheduled arrival, so that a stall is not hidden. A ramp goes from a fifth of the rate to all of it and
back, once. A step goes from a fifth to all at --step-at. Before either, a fifth of the rate for --warm-s, which is not counted.
Every answer of a service has the same length, which the first one shows.
Prints JSON: percentiles of all, and the p99 and the requests of each window.
"""
import argparse
import json
import math
import selectors
import socket
import struct
import sys
import time

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
QUERIES = {
    "mariadb": b"SELECT SUM(CRC32(pad)) FROM bench.rows WHERE id BETWEEN 4000 AND 9000",
    # A commit: the answer comes when the row is on the disk.
    "mariadb-writes": b"INSERT INTO bench.log VALUES ('0123456789')",
}


def packet(sequence, body):
    return struct.pack("<I", len(body))[:3] + bytes([sequence]) + body


def whole(connection, quiet_s=0.3):
    """Everything that comes until nothing has come for a while."""
    connection.settimeout(5)
    data = connection.recv(65536)
    connection.settimeout(quiet_s)
    try:
        while True:
            more = connection.recv(65536)
            if not more:
                break
            data += more
    except TimeoutError:
        pass
    connection.settimeout(None)
    return data


def connect(kind, port):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if kind in QUERIES:
        connection.recv(65536)
        # PROTOCOL_41, SECURE_CONNECTION, LONG_PASSWORD, TRANSACTIONS; no password: grants are not read.
        hello = struct.pack("<IIB23x", 0x0000_A201, 1 << 24, 33) + b"root\0" + b"\0"
        connection.sendall(packet(1, hello))
        answer = connection.recv(65536)
        if answer[4] != 0:
            sys.exit(f"no login: {answer!r}")
    return connection


def due_after(options, elapsed):
    """Requests that are due so many seconds after the start."""
    if elapsed < options.warm_s:
        return 0.2 * options.rate * elapsed
    return 0.2 * options.rate * options.warm_s + due_by_shape(options, elapsed - options.warm_s)


def due_by_shape(options, elapsed):
    if options.shape == "flat":
        return options.rate * elapsed
    if options.shape == "step":
        return options.rate * (0.2 * elapsed + 0.8 * max(0.0, elapsed - options.step_at))
    turn = 2 * math.pi / options.seconds
    return options.rate * (0.6 * elapsed - 0.4 / turn * math.sin(turn * elapsed))


def quantile(values, share):
    values = sorted(values)
    return 1000 * values[min(len(values) - 1, int(share * len(values)))] if values else None


def run(options, connections, request, length):
    selector = selectors.EpollSelector()
    for connection in connections:
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ)
    free = list(connections)
    arrivals, late, latencies, sent = {}, [], [], 0
    start = time.perf_counter()
    end = options.warm_s + options.seconds
    while True:
        now = time.perf_counter() - start
        due = int(due_after(options, min(now, end)))
        while sent < due:
            late.append(now)
            sent += 1
        while late and free:
            connection = free.pop()
            arrivals[connection] = [late.pop(0), length]
            connection.send(request)
        if now > end and (not arrivals and not late or now > end + 3):
            break
        for key, _ in selector.select(0.0005):
            data = key.fileobj.recv(65536)
            if not data:
                sys.exit("the server closed a connection")
            arrival = arrivals[key.fileobj]
            arrival[1] -= len(data)
            if arrival[1] <= 0:
                latencies.append((arrival[0], time.perf_counter() - start - arrival[0]))
                del arrivals[key.fileobj]
                free.append(key.fileobj)
    # What never came counts as too late.
    latencies += [(scheduled, now - scheduled) for scheduled in late + [arrival[0] for arrival in arrivals.values()]]
    return [(scheduled - options.warm_s, latency) for scheduled, latency in latencies if scheduled >= options.warm_s]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["memcached", "http", *QUERIES])
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--shape", choices=["ramp", "flat", "step"], default="ramp")
    parser.add_argument("--step-at", type=float, default=0.0)
    parser.add_argument("--warm-s", type=float, default=0.0)
    parser.add_argument("--window-s", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    connections = [connect(options.kind, options.port) for _ in range(options.connections)]
    queries = {kind: packet(0, b"\x03" + query) for kind, query in QUERIES.items()}
    request = {"memcached": b"get k\r\n", "http": HTTP, **queries}[options.kind]
    if options.kind == "memcached":
        connections[0].sendall(b"set k 0 0 1000\r\n" + b"x" * 1000 + b"\r\n")
        connections[0].recv(100)
    connections[0].sendall(request)
    answer = whole(connections[0])
    latencies = run(options, connections, request, len(answer))
    every = [latency for _, latency in latencies]
    windows = [[] for _ in range(math.ceil(options.seconds / options.window_s))]
    for scheduled, latency in latencies:
        windows[min(len(windows) - 1, int(scheduled / options.window_s))].append(latency)
    json.dump({
        "answer_bytes": len(answer),
        "p50_ms": quantile(every, 0.5),
        "p99_ms": quantile(every, 0.99),
        "requests": len(every),
        "windows_p99_ms": [quantile(window, 0.99) for window in windows],
    }, sys.stdout)


main()
