#!/bin/busybox sh
# The beginning of each guest's first process. What a step prints goes over the second serial line, what goes to standard
# error is in the guest's console.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
stty -F /dev/ttyS1 raw -echo
ip link set lo up

step() {
    name=$1
    shift
    echo "step $name at $(cut -d' ' -f1 /proc/uptime) s" >&2
    "$@" > /tmp/out 2> /tmp/err < /dev/null
    code=$?
    cat /tmp/err >&2
    { echo "=== $name $code"; cat /tmp/out; echo; } > /dev/ttyS1
}

