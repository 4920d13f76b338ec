# The guest of throttle and tune on control groups v2.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export SLACKLINE_STATE_DIR=/tmp/state NO_COLOR=1
G=/sys/fs/cgroup

# Runs the rest of the line in a group.
spin_in() {
    sh -c "echo \$\$ > $G/$1/cgroup.procs; while :; do :; done" &
}

state_of() {
    cat $G/cgroup.subtree_control $G/outer/cpu.max $G/outer/cpu.max.burst
    ls -d $G/slackline-* 2> /dev/null
    ps -o args | grep '[s]leep 9' | wc -l
}

step doctor slackline doctor --json

# No group has the cpu controller yet: the tune has to enable it, and to take that back.
step quota slackline tune /spec/quota.json --json -
step controllers cat $G/cgroup.subtree_control

echo +cpu > $G/cgroup.subtree_control
mkdir $G/outer
echo +cpu > $G/outer/cgroup.subtree_control
mkdir $G/outer/inner $G/free
echo "20000 100000" > $G/outer/cpu.max
echo 1000 > $G/outer/cpu.max.burst
echo "50000 100000" > $G/outer/inner/cpu.max
spin_in outer/inner
spin_in outer/inner
step watch slackline throttle watch --cgroup outer/inner --duration-s 3 --json -
step watch_pid slackline throttle watch --pid $! --duration-s 0.5
step watch_free slackline throttle watch --cgroup $G/free --duration-s 0.5

# Killed while both knobs, and a quota of its own, are in force.
step before state_of
slackline tune /spec/kill.json > /dev/null 2>&1 &
tune=$!
tries=0
while [ ! -e /tmp/measuring ] && [ $tries -lt 600 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
kill -9 $tune
step killed state_of
step refused slackline tune /spec/quota.json
step restore slackline restore
sleep 0.5
step after state_of
# The text on a line without a size, as most serial consoles are.
slackline doctor > /dev/console
echo "guest: done at $(cut -d' ' -f1 /proc/uptime) s" >&2
poweroff -f
