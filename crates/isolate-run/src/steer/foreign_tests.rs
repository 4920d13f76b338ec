//! What somebody else writes after us, on fake trees.

use std::fs;

use isolation::Reason;

use super::tests::{CPU, carry, host, place};
use super::*;

/// A group with a freezer, its files by their names below `/sys/fs/cgroup`, and what is read again.
struct Tree {
    dir: tempfile::TempDir,
    steer: Steer,
    journal: Journal,
}

impl Tree {
    fn new() -> Self {
        let mut files = CPU.to_vec();
        files.push(("sys/fs/cgroup/freezer/batch/freezer.state", "THAWED\n"));
        files.push(("sys/fs/cgroup/cpuset/batch/cpuset.cpus", "0-1\n"));
        files.push(("sys/fs/cgroup/cpuset/web/cpuset.cpus", "0-1\n"));
        files.push(("sys/devices/system/cpu/online", "0-1\n"));
        let (dir, steer, journal) = host(&files);
        Self {
            dir,
            steer,
            journal,
        }
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("sys/fs/cgroup").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        let text = fs::read_to_string(self.file(name)).unwrap();
        text.trim().to_owned()
    }

    fn apply(&mut self, setting: ActuatorSetting) {
        let outcome = carry(&mut self.steer, &mut self.journal, setting);
        assert_eq!(outcome, DecisionOutcome::Applied, "{setting}");
    }

    /// What is newly left to somebody else.
    fn look(&mut self) -> Vec<String> {
        let hierarchies = Hierarchies::of(&Roots::at(self.dir.path()));
        let news = self.steer.look_again(&self.journal, &hierarchies);
        let said = news.iter();
        said.map(|foreign| format!("{}: {}", foreign.decision, foreign.why))
            .collect()
    }

    /// What is in force instead.
    fn words(&self) -> Vec<(&'static str, Option<&str>)> {
        let foreign = self.steer.foreign();
        foreign
            .map(|(_, actuator, words)| (actuator, words))
            .collect()
    }
}

#[test]
fn a_setting_that_somebody_else_changes_is_left_to_them_before_the_next_write() {
    let mut tree = Tree::new();
    tree.apply(ActuatorSetting::CpuIdle(true));
    tree.apply(ActuatorSetting::QuotaCores(Some(0.5)));
    // The weight of an idle group is the kernel's.
    tree.write("cpu/batch/cpu.shares", "3\n");
    assert_eq!(tree.look(), [""; 0]);
    tree.write("cpu/batch/cpu.idle", "0\n");
    let said = "group batch: cpu.idle (slack): cgroup batch cpu.idle was changed by someone else, from 1 to 0, and is left as found";
    assert_eq!(tree.look(), [said]);
    assert_eq!(tree.words(), [("cpu_idle", Some("not cpu.idle"))]);
    let batch = Subject::Group("batch".to_owned());
    assert_eq!(tree.steer.foreign_of(&batch), ["cpu_idle"]);
    assert_eq!(tree.steer.foreign_of(&Subject::Machine), [""; 0]);
    tree.write("cpu/batch/cpu.cfs_quota_us", "33000\n");
    tree.write("cpu/batch/cpu.cfs_period_us", "200000\n");
    assert_eq!(tree.look().len(), 1);
    let words = [
        ("cpu_idle", Some("not cpu.idle")),
        ("quota", Some("quota 0.17 cores")),
    ];
    assert_eq!(tree.words(), words);
    // It is said once, and shown as it is.
    tree.write("cpu/batch/cpu.cfs_quota_us", "-1\n");
    assert_eq!(tree.look(), [""; 0]);
    assert_eq!(tree.words()[1], ("quota", Some("no quota")));
    assert!(tree.steer.yielded().any(|why| why.contains("to -1")));
    // Nothing is written any more.
    let outcome = carry(
        &mut tree.steer,
        &mut tree.journal,
        ActuatorSetting::QuotaCores(Some(0.7)),
    );
    assert!(
        matches!(outcome, DecisionOutcome::Yielded(_)),
        "{outcome:?}"
    );
    assert_eq!(tree.read("cpu/batch/cpu.cfs_quota_us"), "-1");
    // A reload tries what was wanted last.
    let again = tree.steer.reload(Devices::default());
    let wanted: Vec<String> = again.iter().map(ToString::to_string).collect();
    let all = [
        "group batch: cpu.idle (slack)",
        "group batch: quota 0.70 cores (slack)",
    ];
    assert_eq!(wanted, all);
}

#[test]
fn what_was_as_wanted_and_is_not_any_more_is_somebody_else_s() {
    let mut tree = Tree::new();
    tree.write("cpu/batch/cpu.idle", "1\n");
    tree.apply(ActuatorSetting::CpuIdle(true));
    assert!(tree.journal.is_empty());
    assert_eq!(tree.look(), [""; 0]);
    tree.write("cpu/batch/cpu.idle", "0\n");
    let said = "group batch: cpu.idle (slack): cpu.idle was changed by someone else, from on to 0, and is left as found";
    assert_eq!(tree.look(), [said]);
}

#[test]
fn a_group_that_somebody_else_thaws_is_off_by_the_least_quota() {
    let mut tree = Tree::new();
    tree.apply(ActuatorSetting::QuotaCores(Some(0.5)));
    tree.apply(ActuatorSetting::Off(true));
    assert_eq!(tree.read("freezer/batch/freezer.state"), "FROZEN");
    tree.write("freezer/batch/freezer.state", "THAWED\n");
    assert_eq!(tree.look().len(), 1);
    assert_eq!(tree.words(), [("freezer", Some("not frozen"))]);
    tree.apply(ActuatorSetting::Off(true));
    assert_eq!(tree.read("cpu/batch/cpu.cfs_quota_us"), "1000");
    assert_eq!(tree.read("freezer/batch/freezer.state"), "THAWED");
    assert_eq!(tree.look(), [""; 0]);
    tree.apply(ActuatorSetting::Off(false));
    assert_eq!(tree.read("cpu/batch/cpu.cfs_quota_us"), "50000");
    // One that is found at the write, too.
    let mut tree = Tree::new();
    tree.apply(ActuatorSetting::Off(true));
    tree.apply(ActuatorSetting::Off(false));
    tree.write("freezer/batch/freezer.state", "FREEZING\n");
    tree.apply(ActuatorSetting::Off(false));
    assert_eq!(tree.words(), [("freezer", Some("frozen"))]);
    // With the quota somebody else's as well, nothing is left.
    tree.apply(ActuatorSetting::QuotaCores(Some(0.5)));
    tree.write("cpu/batch/cpu.cfs_quota_us", "70000\n");
    let outcome = carry(
        &mut tree.steer,
        &mut tree.journal,
        ActuatorSetting::Off(true),
    );
    assert!(
        matches!(outcome, DecisionOutcome::Yielded(_)),
        "{outcome:?}"
    );
    let batch = Subject::Group("batch".to_owned());
    assert_eq!(tree.steer.foreign_of(&batch), ["freezer", "off"]);
    assert_eq!(tree.words()[1], ("off", None));
}

#[test]
fn a_line_of_another_disk_is_no_foreign_writer() {
    let files = [
        ("sys/fs/cgroup/cgroup.controllers", "cpu io\n"),
        ("sys/fs/cgroup/batch/io.max", ""),
        ("sys/block/vda/dev", "254:0\n"),
    ];
    let (dir, mut steer, mut journal) = host(&files);
    steer.devices.disk = Some("vda".to_owned());
    let setting = ActuatorSetting::IoReadBytesPerS(1000);
    let outcome = carry(&mut steer, &mut journal, setting);
    assert_eq!(outcome, DecisionOutcome::Applied);
    let hierarchies = Hierarchies::of(&Roots::at(dir.path()));
    let file = dir.path().join("sys/fs/cgroup/batch/io.max");
    let mut look = |text: &str| {
        fs::write(&file, text).unwrap();
        steer.look_again(&journal, &hierarchies).len()
    };
    assert_eq!(look("254:0 rbps=1000 wbps=max\n8:0 rbps=5\n"), 0);
    assert_eq!(look("254:0 rbps=2000 wbps=max\n8:0 rbps=5\n"), 1);
}

#[test]
fn cores_that_somebody_else_gives_to_the_service_are_found() {
    let mut tree = Tree::new();
    let decision = Decision::group("batch", ActuatorSetting::Cores(1), Reason::Slack);
    let services = [place("web")];
    let batch = place("batch");
    let outcome = tree
        .steer
        .carry_out(&mut tree.journal, &decision, Some(&batch), &services);
    assert_eq!(outcome, DecisionOutcome::Applied);
    // The kernel writes ranges.
    tree.write("cpuset/batch/cpuset.cpus", "1-1\n");
    assert_eq!(tree.look(), [""; 0]);
    tree.write("cpuset/web/cpuset.cpus", "0-1\n");
    assert_eq!(tree.look().len(), 1);
    assert_eq!(tree.words(), [("cpuset", Some("cpuset 0-1"))]);
}

#[test]
fn a_group_that_was_made_again_gets_what_was_wanted_last() {
    let mut tree = Tree::new();
    tree.apply(ActuatorSetting::CpuIdle(true));
    tree.apply(ActuatorSetting::QuotaCores(Some(0.5)));
    tree.apply(ActuatorSetting::Off(true));
    tree.write("cpu/batch/cpu.cfs_quota_us", "-1\n");
    tree.look();
    carry(
        &mut tree.steer,
        &mut tree.journal,
        ActuatorSetting::QuotaCores(Some(0.3)),
    );
    let batch = Subject::Group("batch".to_owned());
    let wanted = tree.steer.forget(&batch);
    let wanted: Vec<String> = wanted.iter().map(|wish| wish.setting.to_string()).collect();
    assert_eq!(wanted, ["cpu.idle", "off", "quota 0.30 cores"]);
    assert_eq!(tree.steer.yielded().count(), 0);
    assert_eq!(tree.look(), [""; 0]);
    assert!(tree.steer.forget(&batch).is_empty());
}
