#!/bin/sh
# Loads nginx for $1 seconds with the mix of requests that the file `mix` names: `api` is JSON answers of 0.2 to 2 KB,
# `pages` mostly the 30 KB page.
here=$(dirname "$0")
exec env MIX="$(cat /run/slackline-nginx-continuous/mix)" \
    wrk -t1 -c16 -d"$1"s --latency -s "$here/requests.lua" http://127.0.0.1:8480
