# A guest that exports its disk until its power is cut.
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci failover net_failover virtio_net virtio_blk; do
    insmod /modules/$module.ko || echo "no module $module" >&2
done
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
slackline serve-block run /blocks.toml &
tries=0
while ! nc -z 10.0.2.15 10809 && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
echo "=== serving 0" > /dev/ttyS1
wait
poweroff -f
