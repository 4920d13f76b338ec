# The guest of `isolate` on control groups v2.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export SLACKLINE_STATE_DIR=/tmp/state NO_COLOR=1
G=/sys/fs/cgroup

state_of() {
    for file in cpu.weight cpu.idle cpu.max cgroup.freeze; do
        echo "$file $(cat $G/batch/$file)"
    done
    cat $G/cgroup.subtree_control
    ls -d $G/slackline-* 2> /dev/null
    true
}

# What the source prints from now on: milliseconds and requests.
latency() {
    echo "$1 5000" > /tmp/latency.next
    mv /tmp/latency.next /tmp/latency
}

# Waits until a file of the batch group has changed to this.
until_is() {
    tries=0
    while [ "$(cat $G/batch/$1)" != "$2" ] && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    echo "$1 $(cat $G/batch/$1)"
}

# No group has a controller yet: the self-test has to enable them, and to take that back.
step selftest slackline isolate selftest --json
step controllers cat $G/cgroup.subtree_control

echo "+cpu +memory" > $G/cgroup.subtree_control
mkdir $G/batch $G/service
sh -c "echo \$\$ > $G/batch/cgroup.procs; while :; do :; done" &
sh -c "echo \$\$ > $G/service/cgroup.procs; exec sleep 1000" &
latency 1.0
step before state_of

# Started idle and frozen, then thawed with a quota; frozen again when the objective is violated.
slackline isolate run /spec/isolate.toml --out /tmp/run > /tmp/log 2>&1 &
run=$!
step idle until_is cpu.idle 1
step stopped until_is cgroup.freeze 1
step thawed until_is cgroup.freeze 0
step limited until_is cpu.max "20000 100000"
step open until_is cpu.max "max 100000"
latency 50
step frozen until_is cgroup.freeze 1
kill $run
wait $run
step ended cat /tmp/log
step after state_of

# Killed while the group is idle and has a quota: the watchdog puts everything back.
latency 1.0
slackline isolate run /spec/isolate.toml > /dev/null 2>&1 &
run=$!
step again until_is cpu.idle 1
kill -9 $run
step unfrozen until_is cpu.idle 0
sleep 2
step killed state_of

# Memory of both: the service is in a group below another one, which has to be protected, too.
mkdir -p $G/above
echo "+memory" > $G/above/cgroup.subtree_control
mkdir $G/above/inner
sh -c "echo \$\$ > $G/above/inner/cgroup.procs; exec sleep 1000" &
memory() {
    for file in batch/memory.high above/memory.low above/inner/memory.low; do
        echo "$file $(cat $G/$file)"
    done
}
step unlimited memory
slackline isolate run /spec/memory.toml > /tmp/log 2>&1 &
run=$!
tries=0
while [ "$(cat $G/above/inner/memory.low)" = 0 ] && [ $tries -lt 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
step protected memory
kill $run
wait $run
step unprotected memory
step report slackline isolate report /tmp/run --html /tmp/page.html
echo "guest: done at $(cut -d' ' -f1 /proc/uptime) s" >&2
poweroff -f
