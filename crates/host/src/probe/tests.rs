//! Tests of what a host is found to have.

use super::*;
use crate::cgroup::tests::fake;

fn state(roots: &Roots, name: &str) -> Result<String, String> {
    match probe(roots)
        .into_iter()
        .find(|probe| probe.name == name)
        .unwrap()
        .state
    {
        ProbeState::Available { detail } => Ok(detail),
        ProbeState::Missing { why } => Err(why),
    }
}

#[test]
fn where_there_is_no_group_yet_the_kernels_version_tells() {
    let found = |release: &str, group: &str| {
        let (_dir, roots) = fake(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
            ("proc/sys/kernel/osrelease", release),
            (group, "0\n"),
        ]);
        ["cpu.idle", "cgroup freezer"].map(|name| state(&roots, name).is_ok())
    };
    let (none, old) = ("proc/x", "sys/fs/cgroup/batch/cpu.weight");
    assert_eq!(found("6.18.1-cloud\n", none), [true, true]);
    assert_eq!(found("5.15.0\n", none), [true, true]);
    assert_eq!(found("5.4.0-200-generic\n", none), [false, true]);
    assert_eq!(found("4.19.0\n", none), [false, false]);
    assert_eq!(found("garbage\n", none), [false, false]);
    // A group that lacks the file says more than a version.
    assert_eq!(found("6.18.1\n", old), [false, false]);
}

#[test]
fn an_empty_tree_has_nothing_and_says_why() {
    for probe in probe(&Roots::at("/nonexistent")) {
        assert!(!probe.is_available(), "{probe:?}");
        assert!(
            matches!(&probe.state, ProbeState::Missing { why } if why.len() > 10),
            "{probe:?}"
        );
    }
}

#[test]
fn a_well_equipped_tree_has_everything() {
    let (_dir, roots) = fake(&[
        ("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n"),
        ("sys/fs/cgroup/cgroup.controllers", "cpu cpuset memory\n"),
        ("sys/fs/cgroup/batch/cpu.idle", "0\n"),
        ("sys/fs/cgroup/batch/cgroup.freeze", "0\n"),
        ("proc/sys/vm/swappiness", "60\n"),
        ("sys/block/vda/queue/scheduler", "none\n"),
        ("sys/block/loop0/queue/scheduler", "none\n"),
        ("sys/kernel/debug/sched/base_slice_ns", "1\n"),
        ("sys/fs/resctrl/schemata", "L3:0=fffff\n"),
        (
            "sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw",
            "150000000\n",
        ),
        (
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
            "3000000\n",
        ),
        ("proc/sys/kernel/perf_event_paranoid", "2\n"),
        (
            "sys/kernel/tracing/events/sched/sched_switch/format",
            "name: sched_switch\n",
        ),
        ("proc/self/net/packet", "sk       RefCnt Type\n"),
        ("proc/sys/kernel/io_uring_disabled", "0\n"),
        ("tmp/hsperfdata_app/42", ""),
    ]);
    for probe in probe(&roots) {
        assert!(probe.is_available(), "{probe:?}");
    }
    assert_eq!(state(&roots, "block queues").unwrap(), "vda");
    assert_eq!(
        state(&roots, "JVM performance data").unwrap(),
        "JVMs now: 1"
    );
}

/// `doctor` reads this table, and `isolate check` asks the actuators.
#[test]
fn what_the_processor_offers_is_told_as_its_actuators_tell_it() {
    let rapl = "sys/class/powercap/intel-rapl:0/";
    let limit = format!("{rapl}constraint_0_power_limit_uw");
    let enabled = format!("{rapl}enabled");
    let mounted = ("sys/fs/resctrl/schemata", "MB:0=100\n");
    let locked = [
        (limit.as_str(), "150000000\n"),
        (enabled.as_str(), "0\n"),
        mounted,
    ];
    for files in [
        &[][..],
        &[("proc/cpuinfo", "flags\t: fpu cat_l3\n")],
        &locked,
    ] {
        let (_dir, roots) = fake(files);
        let name = String::new();
        let zone = "intel-rapl:0".to_owned();
        assert_eq!(state(&roots, "resctrl"), Resctrl { name }.probe(&roots));
        assert_eq!(state(&roots, "powercap"), PowerCap { zone }.probe(&roots));
        let cpus = vec![0];
        assert_eq!(state(&roots, "cpufreq"), Frequency { cpus }.probe(&roots));
    }
}

#[test]
fn a_hidden_proc_says_nothing_of_the_kernel() {
    let names = ["perf events", "io_uring"];
    let (_dir, roots) = fake(&[]);
    for name in names {
        let why = state(&roots, name).unwrap_err();
        assert!(why.contains("mount /proc"), "{name}: {why}");
    }
    let (_dir, roots) = fake(&[("proc/sys/kernel/osrelease", "6.6.1\n")]);
    for name in names {
        let why = state(&roots, name).unwrap_err();
        assert!(why.starts_with("the kernel lacks CONFIG_"), "{name}: {why}");
    }
}

#[test]
fn tracepoints_need_tracefs_and_the_right_to_use_it() {
    let found = |capabilities: &str, paranoid: &str, filesystems: &str| {
        let (_dir, roots) = fake(&[
            ("proc/self/status", &format!("CapEff:\t{capabilities}\n")),
            ("proc/sys/kernel/perf_event_paranoid", paranoid),
            ("proc/filesystems", filesystems),
        ]);
        (
            state(&roots, "perf events"),
            state(&roots, "scheduler tracepoints"),
        )
    };
    // Nobody.
    let (profiles, tracepoints) = found("0000000000000000", "2\n", "nodev\ttracefs\n");
    assert!(profiles.unwrap_err().contains("perf_event_paranoid = 2"));
    assert!(tracepoints.unwrap_err().contains("set it to -1"));
    let (profiles, tracepoints) = found("0000000000000000", "0\n", "nodev\ttracefs\n");
    assert!(profiles.is_ok());
    assert!(tracepoints.unwrap_err().contains("perf_event_paranoid = 0"));
    // CAP_PERFMON alone mounts nothing.
    let (profiles, tracepoints) = found("0000004000000000", "2\n", "nodev\ttracefs\n");
    assert!(profiles.is_ok());
    assert!(tracepoints.unwrap_err().contains("CAP_SYS_ADMIN"));
    let (_, tracepoints) = found("0000004000200000", "2\n", "nodev\ttracefs\n");
    assert!(tracepoints.is_ok());
    let (_, tracepoints) = found("0000004000200000", "2\n", "nodev\tproc\n");
    assert!(tracepoints.unwrap_err().contains("CONFIG_FTRACE"));
}

#[test]
fn packet_sockets_need_the_kernels_and_a_capability() {
    let found = |capabilities: &str| {
        let (_dir, roots) = fake(&[
            ("proc/self/status", &format!("CapEff:\t{capabilities}\n")),
            ("proc/self/net/packet", "sk       RefCnt Type\n"),
        ]);
        state(&roots, "packet sockets")
    };
    let why = found("0000000000200000").unwrap_err();
    assert!(why.contains("CAP_NET_RAW"), "{why}");
    assert!(found("0000000000002000").unwrap().contains("others need"));
    assert!(found("0000000000202000").unwrap().contains("every"));
}

#[test]
fn half_of_a_feature_says_which_half_is_missing() {
    let (_dir, roots) = fake(&[
        ("proc/self/status", "CapEff:\t0000000000200000\n"),
        ("proc/filesystems", "nodev\tresctrl\n"),
        ("proc/sys/kernel/io_uring_disabled", "2\n"),
        ("sys/kernel/debug/sched/debug", ""),
    ]);
    assert!(
        state(&roots, "privilege")
            .unwrap_err()
            .contains("CAP_NET_ADMIN")
    );
    assert!(
        state(&roots, "resctrl")
            .unwrap_err()
            .contains("mount -t resctrl")
    );
    assert!(
        state(&roots, "io_uring")
            .unwrap_err()
            .contains("kernel.io_uring_disabled=0")
    );
    assert!(
        state(&roots, "scheduler debugfs")
            .unwrap_err()
            .contains("6.6")
    );
    let (_dir, roots) = fake(&[("proc/sys/kernel/osrelease", "5.15.0-91-generic\n")]);
    assert!(state(&roots, "io_uring").unwrap().contains("5.15"));
}
