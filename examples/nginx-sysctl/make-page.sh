#!/bin/sh
# Makes the page the example serves, 64 KiB of text, in the directory $1. The size is larger than
# one TCP segment offload and smaller than the socket buffer, so that the TCP knobs have their say.
set -eu
mkdir -p "$1"
awk 'BEGIN { for (i = 0; i < 1024; i++) printf "%-63s\n", "line " i " of the page" }' > "$1/index.html"
