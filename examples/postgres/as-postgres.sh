# Sourced by the scripts beside it: where PostgreSQL's programs are, and how to run them as a user
# that is not root, which the server insists on.
bin=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
[ -n "$bin" ] || { echo "no PostgreSQL under /usr/lib/postgresql: apt-get install postgresql" >&2; exit 1; }

as_postgres() {
    if [ "$(id -u)" -eq 0 ]; then
        # From the root directory, as the caller's may be closed to that user.
        (cd / && setpriv --reuid=postgres --regid=postgres --init-groups "$@")
    else
        "$@"
    fi
}
