"""Runs that are kept: lines of JSON in a gzip file, to which lines can be added."""

import gzip
import json


def read(path):
    """All lines so far."""
    if not path.exists():
        return []
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def append(path):
    """A file to which lines are added. What is flushed survives a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return gzip.open(path, "at")


def pack(path):
    """Writes the file anew in one piece, which is smaller than many that were added."""
    lines = read(path)
    whole = path.with_name(path.name + ".new")
    # Without a time, the same lines make the same file.
    with open(whole, "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as file:
        for line in lines:
            file.write((json.dumps(line) + "\n").encode())
    whole.replace(path)
