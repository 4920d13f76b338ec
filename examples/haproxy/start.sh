#!/bin/sh
# Starts nginx and HAProxy in the directory $1, and ends both when it is told to, or when one of them ends.
dir=$1
nginx -p "$dir" -e error.log -c nginx.conf &
nginx=$!
# HAProxy asks for its server's socket only when a request comes; still, nginx should be first.
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -S "$dir/backend.sock" ] && break
    sleep 0.1
done
haproxy -db -f "$dir/haproxy.cfg" &
haproxy=$!
trap 'kill "$haproxy" "$nginx" 2>/dev/null' TERM INT
wait "$haproxy"
status=$?
kill "$haproxy" "$nginx" 2>/dev/null
wait
exit "$status"
