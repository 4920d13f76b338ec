"""Counts words and writes the counts as JSON for ever, and counts in a file how often: python_load.py COUNTER"""
import json
import mmap
import struct
import sys

with open(sys.argv[1], "r+b") as file:
    counter = mmap.mmap(file.fileno(), 8)
    done = 0
    while True:
        counts = {}
        for word in " ".join(str(n * 7919 % 1009) for n in range(300)).split():
            counts[word] = counts.get(word, 0) + 1
        # With an indent it is Python's own code, not C's, that writes.
        json.dumps(counts, indent=1)
        done += 1
        counter[:] = struct.pack("Q", done)
