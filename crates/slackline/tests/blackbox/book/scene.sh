# The place where the commands of a page run: a network, processes and mounts of its own (the test
# makes them), with empty state and the files that the pages speak of. $1 is the repository.
ip link set lo up
mount -t tmpfs scene /var/lib
mkdir /var/lib/slackline etc man work
cp -a /etc/. etc
mkdir -p etc/bash_completion.d
mount --bind etc /etc
mount --bind man /usr/local/share/man
cd work || exit 2
ln -s "$1/examples" "$1/contrib" .
cp "$1/docs/results/nginx-workers.json" a.json
cp "$1/docs/results/nginx-workers-aa.json" b.json

# A service whose latency depends on a number of threads, and is best at 20 of them.
echo 50 >threads
cat >experiment.toml <<END
name = "toy"
seed = 1
objective = { metric = "latency_p99_us" }
[[parameters]]
name = "threads"
type = "int"
low = 1
high = 64
default = 50
file = "$PWD/threads"
[target]
start = ["sleep", "1000"]
stop = { signal = "TERM", grace_s = 1 }
[workload]
command = ["sh", "-c", '''
    n=\$(od -An -N1 -tu1 /dev/urandom); v=\$(cat $PWD/threads)
    echo "{\"requests\": 1000, \"latency_p99_us\": \$(((v - 20) * (v - 20) + 1000 + n % 20))}"''']
json = { requests = "requests", latency_p99_us = "latency_p99_us" }
[evaluation]
warm_up_s = 0
block_s = 0.05
blocks = 3
early_abort = false
[budget]
evaluations = 8
[verification]
runs = 3
END

# An answer that refuses is a failure here.
curl() { command curl --fail-with-body --no-progress-meter "$@"; }

# Each server is a process group, which can be ended as a whole.
set -m
server=

# A server has to say something, and to be there then: $1 is the number of its command.
await() {
    for _ in $(seq 200); do
        [ -s "$out/$1" ] && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    sleep 0.3
    kill -0 "$server" 2>/dev/null || { wait "$server"; return $(($? ? $? : 2)); }
}

# Ends the server of an earlier command.
relieve() {
    [ -z "$server" ] || kill -- "-$server"
    while [ -n "$server" ] && kill -0 -- "-$server" 2>/dev/null; do sleep 0.05; done
    server=
}
