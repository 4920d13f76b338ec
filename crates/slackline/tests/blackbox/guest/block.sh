# A guest with Linux' own clients of NVMe/TCP and NBD, driven by nvme-cli and nbd-client.
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net \
    nvme-fabrics nvme-tcp nbd; do
    insmod /modules/$module.ko || echo "no module $module" >&2
done
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
# The server, which QEMU's user network shows at this address.
. /settings
HERE="--hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555
    --hostid=11111111-2222-3333-4444-555555555555"
THERE="--transport=tcp --traddr=10.0.2.2 --trsvcid=$NVME_PORT"
D=/dev/nvme0n1
B=/dev/nvme0n3
export PATH=/bin:/sbin

wait_for() {
    tries=0
    while ! [ -e "$1" ] && [ $tries -lt 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ -e "$1" ]
}

connect() {
    nvme connect $THERE $HERE --nqn=$NQN --nr-io-queues=2 --reconnect-delay=1 "$@" && wait_for $D
}

# Random data, written and read back past the page cache.
verify() {
    dd if=/dev/urandom of=/tmp/data bs=64k count=$1 2> /dev/null || return 1
    dd if=/tmp/data of=$D bs=$2 oflag=direct conv=fsync seek=$3 || return 1
    echo 3 > /proc/sys/vm/drop_caches
    dd if=$D of=/tmp/back bs=$2 iflag=direct skip=$3 count=$(($1 * 65536 / $2)) || return 1
    cmp /tmp/data /tmp/back && echo "$(($1 * 64)) KiB are the same"
}

# Random writes of several sizes by fio, read back with a checksum in each block.
fio_verify() {
    fio --name=verify --filename=$D --rw=randwrite --bsrange=4k-64k --size=8m --io_size=8m --direct=1 --iodepth=8 \
        --ioengine=io_uring --thread --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=1 "$@" > /tmp/fio.log 2>&1 ||
        { cat /tmp/fio.log; return 1; }
    grep -q 'READ: bw=' /tmp/fio.log && echo "fio verified what it wrote"
}

file_system() {
    mkfs.ext4 -q -F $D && mkdir -p /mnt && mount -t ext4 -o discard $D /mnt || return 1
    dd if=/dev/urandom of=/mnt/file bs=64k count=32 2> /dev/null && sync || return 1
    sha256sum < /mnt/file > /tmp/sum
    dd if=/dev/zero of=/mnt/gone bs=64k count=32 2> /dev/null && sync && rm /mnt/gone && umount /mnt || return 1
    e2fsck -f -n $D || return 1
    mount -t ext4 -o ro $D /mnt || return 1
    sha256sum < /mnt/file | cmp - /tmp/sum && echo "the file is the same"
    umount /mnt
}

write_zeroes() {
    nvme write-zeroes $D --start-block=8 --block-count=7 || return 1
    dd if=$D bs=4096 skip=1 count=1 iflag=direct 2> /dev/null | tr -d '\0' | wc -c
}

# What was discarded reads as zeros.
discard() {
    blkdiscard -o 1048576 -l 4194304 $D || return 1
    echo 3 > /proc/sys/vm/drop_caches
    dd if=$D bs=1048576 skip=1 count=4 iflag=direct 2> /dev/null | tr -d '\0' | wc -c
}

ask() {
    psql -h /tmp -U postgres -d postgres -At -q -v ON_ERROR_STOP=1 "$@"
}

# PostgreSQL on the third disk. Its data directory was made on the other host.
start_database() {
    mkdir -p /db && mount -t ext4 $B /db || return 1
    su pg -c "postgres -D /db/data -k /tmp -c listen_addresses= -c shared_buffers=8MB -c max_connections=5 -c autovacuum=off \
        -c dynamic_shared_memory_type=mmap" >> /tmp/database.log 2>&1 &
    tries=0
    while ! ask -c "SELECT 1" > /dev/null 2>&1 && [ $tries -lt 100 ]; do sleep 0.2; tries=$((tries + 1)); done
    ask -c "SELECT 'PostgreSQL answers'" || { cat /tmp/database.log; return 1; }
}

database() {
    start_database && ask -c "CREATE TABLE t (n int PRIMARY KEY, s text)" && : > /tmp/committed
}

# One transaction after the other. What is committed is in a file of the guest's memory.
commit() {
    i=0
    while [ -e /tmp/go ]; do
        i=$((i + 1))
        echo "INSERT INTO t VALUES ($i, repeat('x', 2000)) RETURNING n;"
        sleep 0.05
    done | ask > /tmp/committed 2>> /tmp/database.log || touch /tmp/failed
}

# All processes of the database die, and so does everything that they held in memory.
database_crash() {
    killall -9 postgres
    tries=0
    while ! umount /db 2> /dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    e2fsck -f -n $B > /dev/null || return 1
    start_database || return 1
    committed=$(tail -n 1 /tmp/committed)
    found=$(ask -c "SELECT count(*) FROM t WHERE n <= $committed AND length(s) = 2000")
    [ "$committed" -gt 0 ] && [ "$found" = "$committed" ] && echo "all committed rows are there"
    echo "$found of $committed rows" >&2
    killall -INT postgres
    tries=0
    while ! umount /db 2> /dev/null && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    ! mount | grep -q /db
}

# Writes, transactions of the database, and fio, while the server is killed and started again. fio writes for 8 s, elsewhere
# on the disk, and then verifies.
outlive() {
    : > /tmp/go
    (i=0; while [ -e /tmp/go ] && [ $i -lt 2000 ]; do
        dd if=/tmp/data of=$D bs=64k count=1 seek=$((i % 32)) oflag=direct conv=fsync 2> /dev/null || touch /tmp/failed
        i=$((i + 1)); echo $i > /tmp/writes
    done) &
    writer=$!
    commit &
    committer=$!
    fio_verify --offset=32m --rate=1m > /tmp/verified &
    verifier=$!
    echo "=== killme 0" > /dev/ttyS1
    wait_for /sys/class/nvme/nvme0/state
    tries=0
    while [ "$(cat /sys/class/nvme/nvme0/state)" = live ] && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
    [ "$(cat /sys/class/nvme/nvme0/state)" != live ] && echo "connection lost"
    tries=0
    while [ "$(cat /sys/class/nvme/nvme0/state)" != live ] && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
    echo "state $(cat /sys/class/nvme/nvme0/state)"
    [ -s /tmp/verified ] || echo "fio goes on"
    before=$(cat /tmp/writes)
    rows=$(wc -l < /tmp/committed)
    sleep 1
    tries=0
    while [ "$(wc -l < /tmp/committed)" -le "$rows" ] && [ $tries -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
    [ "$(wc -l < /tmp/committed)" -gt "$rows" ] && echo "commits go on"
    rm /tmp/go
    wait $writer $committer $verifier
    cat /tmp/verified
    [ "$(cat /tmp/writes)" -gt "$before" ] && ! [ -e /tmp/failed ] && echo "writes go on"
}

step discover nvme discover $THERE $HERE
step connect connect
if ! [ -e $D ]; then
    poweroff -f
fi
step list nvme list
step id_ctrl nvme id-ctrl /dev/nvme0
step id_ns nvme id-ns $D
step sizes cat /sys/block/nvme0n1/size /sys/block/nvme0n1/queue/physical_block_size /sys/block/nvme0n1/queue/write_cache \
    /sys/block/nvme0n1/queue/fua /sys/block/nvme0n1/wwid
step smart nvme smart-log /dev/nvme0
step features nvme get-feature /dev/nvme0 --feature-id=7 --human-readable
step errors nvme error-log /dev/nvme0 --log-entries=2
step firmware nvme fw-log /dev/nvme0
step effects nvme effects-log /dev/nvme0
step flush nvme flush $D
step verify verify 64 4096 100
step verify_long verify 64 1048576 2
step fio fio_verify
step zeroes write_zeroes
step discard blkdiscard -o 1048576 -l 4194304 $D
step beyond nvme read $D --start-block=999999999 --block-count=0 --data-size=512
step read_only dd if=/tmp/data of=/dev/nvme0n2 bs=4096 count=1 oflag=direct
step file_system file_system
step database database
step outlive outlive
step database_crash database_crash
step reload sh -c 'echo "=== hangup 0" > /dev/ttyS1; i=0; while ! [ -e /dev/nvme0n4 ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; ls /dev/nvme0n4'
step disconnect nvme disconnect --nqn=$NQN
# With digests of headers and data.
step connect_digests connect --hdr-digest --data-digest
step verify_digests verify 16 65536 3
step disconnect_digests nvme disconnect --nqn=$NQN
step gone sh -c "! ls $D"

# The same disk by NBD, over two connections.
D=/dev/nbd0
step nbd_connect nbd-client 10.0.2.2 $NBD_PORT $D -name disk -connections 2
step nbd_sizes cat /sys/block/nbd0/size /sys/block/nbd0/queue/write_cache /sys/block/nbd0/queue/fua /sys/block/nbd0/ro
step nbd_verify verify 64 4096 100
step nbd_verify_long verify 64 1048576 2
step nbd_fio fio_verify
step nbd_file_system file_system
step nbd_discard discard
step nbd_disconnect nbd-client -d $D
step nbd_connect_read_only nbd-client 10.0.2.2 $NBD_PORT -N fixed $D
step nbd_read_only cat /sys/block/nbd0/ro
step nbd_disconnect_read_only nbd-client -d $D
step nbd_connected nbd-client -c $D
step nbd_no_such_export nbd-client 10.0.2.2 $NBD_PORT $D -name none
echo "guest: done at $(cut -d' ' -f1 /proc/uptime) s" >&2
poweroff -f
