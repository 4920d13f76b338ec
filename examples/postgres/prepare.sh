#!/bin/sh
# Puts a loaded database into the directory $1/data. The first run initialises and loads one (about
# ten seconds) and keeps it; every later one is a copy of that, so that each side of each
# evaluation starts from the same rows.
set -eu
dir=$1
spec_dir=$2
scale=$3

. "$spec_dir/as-postgres.sh"
template=${SLACKLINE_EXAMPLES_DIR:-/var/tmp/slackline-examples}/postgres-$(basename "$(dirname "$bin")")-scale-$scale

build() {
    made=$template.new
    rm -rf "$made"
    mkdir -p "$made"
    [ "$(id -u)" -ne 0 ] || chown postgres "$made"
    as_postgres "$bin/initdb" --no-sync --auth=trust --username=postgres --encoding=UTF8 --locale=C \
        --pgdata="$made/data"
    # Over a socket only, and without durability: what breaks off here is thrown away. Little WAL
    # is kept, so that there is little to copy.
    as_postgres "$bin/pg_ctl" --pgdata="$made/data" --wait --silent --log="$made/load.log" start -o \
        "-c listen_addresses= -c unix_socket_directories=$made -c fsync=off -c wal_level=minimal -c max_wal_senders=0 -c max_wal_size=64MB -c min_wal_size=32MB"
    as_postgres "$bin/pgbench" --host="$made" --username=postgres --initialize --quiet --scale="$scale" postgres
    as_postgres "$bin/psql" --host="$made" --username=postgres --quiet --command=CHECKPOINT postgres
    as_postgres "$bin/pg_ctl" --pgdata="$made/data" --wait --silent --mode=fast stop
    sync -f "$made/data"
    mv "$made" "$template"
}

mkdir -p "$(dirname "$template")"
# One builder at a time: both instances are prepared by the same script.
exec 9> "$template.lock"
flock 9
[ -d "$template/data" ] || build >&2
flock -u 9

rm -rf "$dir/data"
cp -a --reflink=auto "$template/data" "$dir/data"
