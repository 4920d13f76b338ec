//! Actuators of v2 alone: memory, disks, the cost model, utilisation clamps.

use super::*;

const V2: &[(&str, &str)] = &[
    ("sys/fs/cgroup/cgroup.controllers", "cpu memory io\n"),
    ("sys/fs/cgroup/io.cost.qos", ""),
    ("sys/fs/cgroup/batch/io.max", ""),
    ("sys/fs/cgroup/batch/io.weight", "default 100\n"),
    ("sys/fs/cgroup/batch/memory.high", "max\n"),
    ("sys/fs/cgroup/batch/cpu.uclamp.min", "0.00\n"),
    ("sys/fs/cgroup/batch/cpu.uclamp.max", "max\n"),
    ("sys/fs/cgroup/a/memory.low", "0\n"),
    ("sys/fs/cgroup/a/b/memory.low", "1048576\n"),
    ("sys/fs/cgroup/a/b/web/memory.low", "0\n"),
    ("sys/fs/cgroup/a/b/other/memory.low", "4096\n"),
    ("sys/fs/cgroup/a/cache/memory.low", "8192\n"),
];

/// A fake v2 host, its journal, and the kernel's rules until the guard goes.
fn v2() -> (tempfile::TempDir, Roots, Journal, fake_kernel::Guard) {
    let (dir, roots) = fake(V2);
    let journal = Journal::open(&roots.root.join("state")).unwrap();
    (dir, roots, journal, fake_kernel::set(kernel))
}

fn io(direction: IoDirection) -> IoMax {
    IoMax {
        group: group(),
        device: "254:0".into(),
        direction,
    }
}

#[test]
fn reads_and_writes_are_limited_apart() {
    let (_dir, roots, mut journal, _guard) = v2();
    let file = roots.sys("fs/cgroup/batch/io.max");
    fs::write(&file, "8:0 rbps=max wbps=max riops=100 wiops=max\n").unwrap();
    let (read, write) = (io(IoDirection::Read), io(IoDirection::Write));
    let mebibyte = Wanted::Bytes(Some(1 << 20));
    read.apply(&mut journal, &roots, &mebibyte).unwrap();
    assert!(read.verify(&roots, &mebibyte).unwrap());
    assert!(!write.verify(&roots, &mebibyte).unwrap());
    assert!(write.verify(&roots, &Wanted::Bytes(None)).unwrap());
    write
        .apply(&mut journal, &roots, &Wanted::Bytes(Some(5000)))
        .unwrap();
    assert_eq!(
        read.read(&roots).unwrap(),
        "rbps=1048576 wbps=5000 riops=max wiops=max"
    );
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(text_of(&file), "8:0 rbps=max wbps=max riops=100 wiops=max");
}

/// The kernel keeps the line of a device whose model was switched off.
#[test]
fn a_cost_model_is_switched_on_and_off_again_and_keeps_its_parameters() {
    let (_dir, roots, mut journal, _guard) = v2();
    let file = roots.sys("fs/cgroup/io.cost.qos");
    let cost = IoCost {
        device: "254:0".into(),
    };
    assert_eq!(cost.probe(&roots).unwrap(), "v2");
    assert_eq!(cost.neighbour(&roots).unwrap(), Wanted::On(true));
    cost.apply(&mut journal, &roots, &Wanted::On(true)).unwrap();
    assert!(cost.verify(&roots, &Wanted::On(true)).unwrap());
    let report = cost.restore(&mut journal, &roots).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert!(cost.verify(&roots, &Wanted::On(false)).unwrap());
    assert!(text_of(&file).starts_with("254:0 enable=0"));
    // An administrator's parameters.
    fs::write(&file, "254:0 enable=0 ctrl=user rpct=95.00 wpct=90.00\n").unwrap();
    cost.apply(&mut journal, &roots, &Wanted::On(true)).unwrap();
    assert_eq!(
        text_of(&file),
        "254:0 enable=1 ctrl=user rpct=95.00 wpct=90.00"
    );
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(
        text_of(&file),
        "254:0 enable=0 ctrl=user rpct=95.00 wpct=90.00"
    );
    // A model that stays on after the undo was not undone.
    cost.apply(&mut journal, &roots, &Wanted::On(true)).unwrap();
    let stubborn = |_: &Path, _: &str| Ok(Some("254:0 enable=1 ctrl=auto".to_owned()));
    let _guard = fake_kernel::set(stubborn);
    assert!(!journal.restore(&roots, false).unwrap().is_complete());
}

#[test]
fn a_group_is_protected_as_far_as_the_groups_above_it() {
    let (_dir, roots, mut journal, _guard) = v2();
    let read = |group: &str| {
        let file = roots.sys("fs/cgroup").join(group).join("memory.low");
        text_of(&file).parse::<u64>().unwrap()
    };
    let low = MemoryLow {
        group: "a/b/web".into(),
    };
    assert_eq!(low.probe(&roots).unwrap(), "v2");
    let wanted = Wanted::Bytes(Some((2 << 20) + 1));
    let files: Vec<String> = low
        .writes(&roots, &wanted)
        .unwrap()
        .into_iter()
        .map(|(knob, value)| format!("{knob} {value}"))
        .collect();
    // From above. Of the groups beside, those that are protected count.
    assert_eq!(
        files,
        [
            "cgroup a memory.low 2109440",
            "cgroup a/b memory.low 2101248",
            "cgroup a/b/web memory.low 2097152"
        ]
    );
    low.apply(&mut journal, &roots, &wanted).unwrap();
    assert!(low.verify(&roots, &wanted).unwrap());
    assert_eq!((read("a"), read("a/b")), (2_109_440, 2_101_248));
    // What is enough already stays.
    low.apply(&mut journal, &roots, &Wanted::Bytes(Some(4096)))
        .unwrap();
    assert_eq!((read("a"), read("a/b/web")), (2_109_440, 4096));
    assert!(low.restore(&mut journal, &roots).unwrap().is_complete());
    let all = ["a", "a/b", "a/b/web"].map(read);
    assert_eq!(all, [0, 1_048_576, 0]);
}

#[test]
fn clamps_are_percent_and_all_of_a_cpu_is_max() {
    let (_dir, roots, mut journal, _guard) = v2();
    for (bound, share, text) in [
        (UclampBound::Min, 0.25, "25.00"),
        (UclampBound::Min, 1.0, "max"),
        (UclampBound::Max, 0.305, "30.50"),
        // The kernel counts in 1/1024: it would print this as max.
        (UclampBound::Max, 0.9999, "max"),
    ] {
        let clamp = Uclamp {
            group: group(),
            bound,
        };
        clamp
            .apply(&mut journal, &roots, &Wanted::Share(share))
            .unwrap();
        assert_eq!(clamp.read(&roots).unwrap(), text);
        assert!(clamp.verify(&roots, &Wanted::Share(share)).unwrap());
        assert!(clamp.writes(&roots, &Wanted::Share(1.5)).is_err());
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(
        text_of(&roots.sys("fs/cgroup/batch/cpu.uclamp.min")),
        "0.00"
    );
}

/// kernel/sched/fair.c, `sched_group_set_idle`: the flag is the group's own entity's. Groups below
/// compete with each other alone, so their flags are theirs.
#[test]
fn idle_is_set_on_the_named_group_and_not_below_it() {
    let (_dir, roots) = fake(&[
        ("sys/fs/cgroup/cgroup.controllers", "cpu\n"),
        ("sys/fs/cgroup/cpu.weight", ""),
        ("sys/fs/cgroup/batch/cpu.idle", "0\n"),
        ("sys/fs/cgroup/batch/cpu.weight", "100\n"),
        ("sys/fs/cgroup/batch/first/cpu.idle", "0\n"),
        ("sys/fs/cgroup/batch/second/cpu.idle", "1\n"),
    ]);
    let _guard = fake_kernel::set(kernel);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    let idle = CpuIdle { group: group() };
    let read = || {
        ["batch", "batch/first", "batch/second"]
            .map(|group| text_of(&roots.sys("fs/cgroup").join(group).join("cpu.idle")))
    };
    let files: Vec<String> = idle
        .writes(&roots, &Wanted::On(true))
        .unwrap()
        .into_iter()
        .map(|(knob, _)| knob.to_string())
        .collect();
    assert_eq!(files, ["cgroup batch cpu.weight", "cgroup batch cpu.idle"]);
    for (on, wanted) in [
        (true, ["1", "0", "1"]),
        (false, ["0", "0", "1"]),
        (true, ["1", "0", "1"]),
    ] {
        idle.apply(&mut journal, &roots, &Wanted::On(on)).unwrap();
        assert_eq!(read(), wanted);
    }
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(read(), ["0", "0", "1"]);
    // The root group competes with nobody and has no such file.
    let root = CpuIdle {
        group: String::new(),
    };
    let why = root.probe(&roots).unwrap_err();
    assert!(why.contains("below the root"), "{why}");
}
