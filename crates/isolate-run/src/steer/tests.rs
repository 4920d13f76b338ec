//! Decisions carried out on fake trees.

use std::fs;

use isolation::{FixedSettings, Reason};

use super::*;

pub(super) fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Steer, Journal) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let steer = Steer::new(Roots::at(dir.path()), Devices::default());
    let journal = Journal::open(&dir.path().join("state")).unwrap();
    (dir, steer, journal)
}

pub(super) const CPU: &[(&str, &str)] = &[
    ("sys/fs/cgroup/cpu/batch/cpu.idle", "0\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.shares", "1024\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us", "-1\n"),
    ("sys/fs/cgroup/cpu/batch/cpu.cfs_period_us", "100000\n"),
];

pub(super) fn place(group: &str) -> Place {
    Place {
        group: Some(group.to_owned()),
        pid: None,
    }
}

pub(super) fn carry(
    steer: &mut Steer,
    journal: &mut Journal,
    setting: ActuatorSetting,
) -> DecisionOutcome {
    let decision = Decision::group("batch", setting, Reason::Slack);
    steer.carry_out(journal, &decision, Some(&place("batch")), &[])
}

#[test]
fn without_a_freezer_off_is_the_least_quota_and_on_the_last_one() {
    let (dir, mut steer, mut journal) = host(CPU);
    let quota =
        || fs::read_to_string(dir.path().join("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us")).unwrap();
    let all = [
        (ActuatorSetting::QuotaCores(Some(0.5)), "50000"),
        (ActuatorSetting::Off(true), "1000"),
        (ActuatorSetting::QuotaCores(Some(0.7)), "1000"),
        (ActuatorSetting::Off(false), "70000"),
        (ActuatorSetting::QuotaCores(None), "-1"),
    ];
    for (setting, wanted) in all {
        assert_eq!(
            carry(&mut steer, &mut journal, setting),
            DecisionOutcome::Applied
        );
        assert_eq!(quota().trim(), wanted, "{setting:?}");
    }
}

#[test]
fn what_a_host_lacks_and_who_else_writes_is_said() {
    let (dir, mut steer, mut journal) = host(CPU);
    for setting in [
        ActuatorSetting::LlcWays(2),
        ActuatorSetting::Cores(1),
        ActuatorSetting::EgressMbit(1.0),
        ActuatorSetting::Power(0.5),
    ] {
        let outcome = carry(&mut steer, &mut journal, setting);
        assert!(
            matches!(
                outcome,
                DecisionOutcome::Lacking(_) | DecisionOutcome::Refused(_)
            ),
            "{setting:?} {outcome:?}"
        );
    }
    carry(
        &mut steer,
        &mut journal,
        ActuatorSetting::QuotaCores(Some(0.5)),
    );
    let file = dir.path().join("sys/fs/cgroup/cpu/batch/cpu.cfs_quota_us");
    fs::write(&file, "33000\n").unwrap();
    let outcome = carry(
        &mut steer,
        &mut journal,
        ActuatorSetting::QuotaCores(Some(0.6)),
    );
    assert!(
        matches!(outcome, DecisionOutcome::Yielded(_)),
        "{outcome:?}"
    );
    // Left to them from now on, whatever they do.
    fs::write(&file, "50000\n").unwrap();
    carry(
        &mut steer,
        &mut journal,
        ActuatorSetting::QuotaCores(Some(0.6)),
    );
    assert_eq!(fs::read_to_string(&file).unwrap().trim(), "50000");
    assert_eq!(steer.yielded().count(), 1);
    steer.reload(Devices::default());
    assert_eq!(
        carry(
            &mut steer,
            &mut journal,
            ActuatorSetting::QuotaCores(Some(0.6))
        ),
        DecisionOutcome::Applied
    );
    fs::remove_dir_all(dir.path().join("sys/fs/cgroup/cpu/batch")).unwrap();
    assert_eq!(
        carry(
            &mut steer,
            &mut journal,
            ActuatorSetting::QuotaCores(Some(0.1))
        ),
        DecisionOutcome::Vanished
    );
}

const V2: &[(&str, &str)] = &[
    ("sys/fs/cgroup/cgroup.controllers", "cpu cpuset memory io\n"),
    ("sys/fs/cgroup/io.cost.qos", ""),
    ("sys/fs/cgroup/batch/cpuset.cpus", "\n"),
    ("sys/fs/cgroup/batch/memory.high", "max\n"),
    ("sys/fs/cgroup/batch/io.max", ""),
    ("sys/fs/cgroup/batch/io.weight", "default 100\n"),
    ("sys/fs/cgroup/batch/cpu.uclamp.max", "max\n"),
    ("sys/fs/cgroup/web.slice/memory.low", "0\n"),
    ("sys/fs/cgroup/web.slice/web/memory.low", "0\n"),
    ("sys/fs/cgroup/web.slice/web/cpuset.cpus", "\n"),
    ("sys/fs/cgroup/web.slice/web/cpu.uclamp.min", "0.00\n"),
    ("sys/block/vda/dev", "254:0\n"),
    ("sys/devices/system/cpu/online", "0-1\n"),
];

/// `static` on a host of v2 with two CPUs, and each file before and after.
#[test]
fn settings_of_memory_disks_clamps_and_cores_go_through_the_journal() {
    let (dir, mut steer, mut journal) = host(V2);
    steer.devices.disk = Some("vda".to_owned());
    for cpu in 0..2 {
        let cpufreq = dir
            .path()
            .join(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq"));
        fs::create_dir_all(&cpufreq).unwrap();
        let preference = cpufreq.join("energy_performance_preference");
        fs::write(preference, "balance_performance\n").unwrap();
        let words = cpufreq.join("energy_performance_available_preferences");
        fs::write(words, "default performance balance_performance power\n").unwrap();
    }
    let read = |file: &str| {
        let text = fs::read_to_string(dir.path().join("sys").join(file)).unwrap();
        text.trim().to_owned()
    };
    let epp = |cpu: u32| {
        read(&format!(
            "devices/system/cpu/cpu{cpu}/cpufreq/energy_performance_preference"
        ))
    };
    let fixed: FixedSettings = serde_json::from_str(
        r#"{ "cores": 1, "memory_high_mib": 64, "io_max_read_mb_per_s": 20, "io_weight": 10,
            "uclamp_max_percent": 40, "epp": "power", "io_cost": true,
            "service_memory_low_mib": 128, "service_uclamp_min_percent": 60,
            "service_epp": "performance" }"#,
    )
    .unwrap();
    let web = place("web.slice/web");
    let mut carry = |subject: Subject, place: Option<&Place>, setting| {
        let decision = Decision {
            subject,
            setting,
            reason: Reason::Start,
        };
        let services = [web.clone()];
        let outcome = steer.carry_out(&mut journal, &decision, place, &services);
        assert_eq!(outcome, DecisionOutcome::Applied, "{decision}");
    };
    for (_, setting) in fixed.of_machine() {
        carry(Subject::Machine, None, setting);
    }
    for (_, setting) in fixed.of_group(1) {
        carry(
            Subject::Group("batch".to_owned()),
            Some(&place("batch")),
            setting,
        );
    }
    for (_, setting) in fixed.of_service() {
        carry(Subject::Service("web".to_owned()), Some(&web), setting);
    }
    for (file, text) in [
        ("fs/cgroup/io.cost.qos", "254:0 enable=1"),
        ("fs/cgroup/batch/memory.high", "67108864"),
        ("fs/cgroup/batch/io.max", "254:0 rbps=20000000"),
        ("fs/cgroup/batch/io.weight", "default 10"),
        ("fs/cgroup/batch/cpu.uclamp.max", "40.00"),
        ("fs/cgroup/web.slice/memory.low", "134217728"),
        ("fs/cgroup/web.slice/web/memory.low", "134217728"),
        ("fs/cgroup/web.slice/web/cpu.uclamp.min", "60.00"),
    ] {
        assert_eq!(read(file), text, "{file}");
    }
    // The last core is the batch work's.
    assert_eq!((epp(0).as_str(), epp(1).as_str()), ("performance", "power"));
    // A file with a line a device is the kernel's to empty.
    fs::write(dir.path().join("sys/fs/cgroup/batch/io.max"), "").unwrap();
    let report = journal.restore(&Roots::at(dir.path()), false).unwrap();
    assert!(report.is_complete(), "{report:?}");
    for (file, text) in [
        ("fs/cgroup/batch/memory.high", "max"),
        ("fs/cgroup/batch/io.weight", "default 100"),
        ("fs/cgroup/web.slice/memory.low", "0"),
        ("fs/cgroup/web.slice/web/cpu.uclamp.min", "0.00"),
    ] {
        assert_eq!(read(file), text, "{file}");
    }
    assert_eq!((epp(0), epp(1)), (epp(1), "balance_performance".to_owned()));
}

#[test]
fn a_disk_that_is_not_there_and_cores_that_are_shared_are_said() {
    let (_dir, mut steer, mut journal) = host(V2);
    for cores in [2, 99_999, u64::MAX] {
        let outcome = carry(&mut steer, &mut journal, ActuatorSetting::Cores(cores));
        assert!(
            matches!(&outcome, DecisionOutcome::Lacking(why) if why.contains("set at most 1")),
            "{outcome:?}"
        );
    }
    for (disk, said) in [(None, "policy.io_device"), (Some("sdz"), "no disk sdz")] {
        steer.devices.disk = disk.map(str::to_owned);
        let outcome = carry(
            &mut steer,
            &mut journal,
            ActuatorSetting::IoWriteBytesPerS(1),
        );
        assert!(
            matches!(&outcome, DecisionOutcome::Lacking(why) if why.contains(said)),
            "{outcome:?}"
        );
    }
    let outcome = carry(
        &mut steer,
        &mut journal,
        ActuatorSetting::EnergyPreference(isolation::EnergyPreference::Power),
    );
    assert!(
        matches!(&outcome, DecisionOutcome::Lacking(why) if why.contains("no cores of its own")),
        "{outcome:?}"
    );
    assert!(journal.is_empty());
}
