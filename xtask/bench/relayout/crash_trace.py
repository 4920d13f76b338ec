"""Debuggers and crash traces on a MariaDB that is re-laid out, under sysbench: crash_trace.py

`gdb` has to come from moved code to the start of each thread; then a thread that is in moved code gets a SIGSEGV, and the trace
that MariaDB writes itself has to lead through moved code to the start of the thread as well. Ends with 1 where either does not.
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mariadb import Server, lay_out

SYS_TGKILL = 234
# As gdb shows it: "[clone .relayout]" of a C++ name, else "[relayout]".
MARK = "relayout]"


def code_cache(pid):
    """Ranges of executable memory without a file."""
    maps = (line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    found = [words[0].split("-") for words in maps if words[1] == "r-xp" and len(words) == 5]
    return [(int(start, 16), int(end, 16)) for start, end in found]


def thread_in(pid, ranges):
    """A thread that sleeps in a system call of code in one of the ranges (proc_pid_syscall(5))."""
    for _ in range(100_000):
        for thread in os.listdir(f"/proc/{pid}/task"):
            words = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
            if len(words) > 2 and any(start <= int(words[-1], 16) < end for start, end in ranges):
                return int(thread)
    sys.exit("no thread was seen in moved code")


def check_debugger(pid, script):
    command = ["gdb", "-nx", "-p", str(pid), "-batch", "-x", script, "-ex", "thread apply all bt 60"]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    threads = [thread for thread in text.split("\nThread ")[1:] if MARK in thread]
    broken = [thread for thread in threads if not re.search(r" in (start_thread|main) \(", thread)]
    print(f"gdb: {len(threads)} threads with moved functions, {len(broken)} of them not followed to their start")
    return bool(threads) and not broken


def check_crash_trace(server, pid, ranges):
    thread = thread_in(pid, ranges)
    ctypes.CDLL(None).syscall(SYS_TGKILL, pid, thread, 11)
    while Path(f"/proc/{pid}/stat").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.1)
    trace = Path(f"{server.directory}/server.log").read_text(errors="replace").split("Attempting backtrace")[1]
    trace = trace[: trace.index("Connection ID")]
    addresses = [int(word, 16) for word in re.findall(r"^\[0x([0-9a-f]+)\]", trace, re.M)]
    moved = [address for address in addresses if any(start <= address < end for start, end in ranges)]
    print(f"crash trace: {len(moved)} moved frames")
    return bool(moved) and "do_handle_one_connection" in trace and "start_thread" in trace


def main():
    with tempfile.TemporaryDirectory() as work:
        server = Server(f"{work}/server", 33407)
        load = server.load("read_only", 4)
        try:
            time.sleep(3)
            lay_out(f"{work}/state", server.pid, "--hurry")
            ranges = code_cache(server.pid)
            script = next(Path(f"{work}/state/relayout").glob("*.gdb"))
            is_good = check_debugger(server.pid, script)
            is_good &= check_crash_trace(server, server.pid, ranges)
        finally:
            load.kill()
            load.wait()
            server.stop()
    sys.exit(not is_good)


main()
