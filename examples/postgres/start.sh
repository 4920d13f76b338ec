#!/bin/sh
# The server of one side, in the foreground, on the data directory $1/data.
set -eu
dir=$1
. "$2/as-postgres.sh"
cp "$dir/postgresql.conf" "$dir/data/postgresql.conf"
cd /
if [ "$(id -u)" -eq 0 ]; then
    chown postgres "$dir/data/postgresql.conf"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$bin/postgres" -D "$dir/data"
fi
exec "$bin/postgres" -D "$dir/data"
