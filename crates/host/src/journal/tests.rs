//! The journal on fake trees: round trips, crashes after any byte, drift, refusals, a full disk.

use proptest::prelude::*;

use super::*;
use crate::cgroup::tests::fake;

fn sysctl(name: &str) -> Knob {
    Knob::Sysctl(format!("vm.{name}"))
}

/// A fake host with three knobs, and its state directory.
pub(super) fn host() -> (tempfile::TempDir, Roots, PathBuf) {
    let (dir, roots) = fake(&[
        ("proc/sys/vm/a", "60\n"),
        ("proc/sys/vm/b", "0\t1\n"),
        ("proc/sys/vm/c", "x [y] z\n"),
    ]);
    let state = dir.path().join("state");
    (dir, roots, state)
}

fn read(roots: &Roots, name: &str) -> String {
    sysctl(name).read(roots).unwrap().unwrap()
}

fn outcomes(report: &RestoreReport) -> Vec<(&str, &RestoreOutcome)> {
    report
        .items
        .iter()
        .map(|item| (item.subject.as_str(), &item.outcome))
        .collect()
}

#[test]
fn a_knob_written_often_goes_back_in_one_step_and_the_journal_is_empty() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    for value in ["10", "20", "30"] {
        journal.write(&roots, &sysctl("a"), value).unwrap();
    }
    journal.write(&roots, &sysctl("b"), "5 6").unwrap();
    assert_eq!(
        (read(&roots, "a"), read(&roots, "b")),
        ("30".into(), "5 6".into())
    );
    assert_eq!(journal.describe(), ["vm.a", "vm.b"]);
    assert_eq!(
        Journal::originals(&state).unwrap(),
        [
            (sysctl("a"), "60".to_owned()),
            (sysctl("b"), "0 1".to_owned())
        ]
        .into()
    );
    let dry = journal.restore(&roots, true).unwrap();
    assert_eq!(
        outcomes(&dry),
        [
            ("vm.b", &RestoreOutcome::Restored),
            ("vm.a", &RestoreOutcome::Restored)
        ]
    );
    assert_eq!(read(&roots, "a"), "30");
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report, dry);
    assert_eq!(
        (read(&roots, "a"), read(&roots, "b")),
        ("60".into(), "0 1".into())
    );
    assert!(journal.is_empty());
    assert_eq!(fs::read(state.join("journal.jsonl")).unwrap(), b"");
    assert!(journal.restore(&roots, false).unwrap().items.is_empty());
}

#[test]
fn what_another_changed_is_left_alone_reported_once_and_dropped() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    journal.write(&roots, &sysctl("b"), "5 6").unwrap();
    fs::write(sysctl("a").path(&roots), "77\n").unwrap();
    fs::remove_file(sysctl("b").path(&roots)).unwrap();
    let report = journal.restore(&roots, false).unwrap();
    let changed = RestoreOutcome::ChangedByOther {
        expected: "10".into(),
        found: "77".into(),
    };
    assert_eq!(
        outcomes(&report),
        [("vm.b", &RestoreOutcome::Vanished), ("vm.a", &changed)]
    );
    assert_eq!(report.changed_by_others().count(), 1);
    assert!(report.is_complete() && journal.is_empty());
    assert_eq!(read(&roots, "a"), "77");
}

#[test]
fn a_value_somebody_already_put_back_is_no_change() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    fs::write(sysctl("a").path(&roots), "60\n").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(
        outcomes(&report),
        [("vm.a", &RestoreOutcome::AlreadyOriginal)]
    );
}

#[test]
fn a_refused_write_names_path_value_and_errno_and_leaves_nothing_to_undo() {
    let (dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    let absent = journal.write(&roots, &sysctl("none"), "1").unwrap_err();
    assert!(matches!(
        absent,
        HostError::Write {
            errno: libc::ENOENT,
            ..
        }
    ));
    assert!(!sysctl("none").path(&roots).exists());
    // A knob that reads and refuses every write: a full device.
    std::os::unix::fs::symlink("/dev/full", dir.path().join("proc/sys/vm/full")).unwrap();
    // /dev/full reads as endless zeros, which normalise to nothing.
    let full = journal.write(&roots, &sysctl("full"), "1").unwrap_err();
    assert!(matches!(&full, HostError::Write { errno: libc::ENOSPC, value, .. } if value == "1"));
    std::os::unix::fs::symlink("/dev/null", dir.path().join("proc/sys/vm/null")).unwrap();
    let ignored = journal.write(&roots, &sysctl("null"), "1").unwrap_err();
    assert!(matches!(&ignored, HostError::NotTaken { wanted, .. } if wanted == "1"));
    assert!(journal.is_empty());
    let reopened = {
        drop(journal);
        Journal::open(&state).unwrap()
    };
    assert!(reopened.is_empty());
}

#[test]
fn a_server_that_has_the_host_is_asked_to_pause_and_a_command_to_end() {
    let of = |command: &str| {
        let error = HostError::Locked {
            path: "/state/lock".into(),
            pid: 7,
            command: command.into(),
            started: "now".into(),
        };
        error.to_string()
    };
    let server = of("slackline --state-dir /state serve --listen 127.0.0.1:1");
    assert!(server.contains("pause-queue"), "{server}");
    assert!(!server.contains("kill"), "{server}");
    let command = of("slackline tune serve.toml");
    assert!(command.ends_with("kill -INT 7"), "{command}");
}

#[test]
fn a_second_journal_is_locked_out_and_told_by_whom() {
    let (_dir, _roots, state) = host();
    let journal = Journal::open(&state).unwrap();
    match Journal::open(&state).unwrap_err() {
        HostError::Locked {
            pid,
            command,
            started,
            path,
        } => {
            assert_eq!(pid, std::process::id());
            assert!(!command.is_empty() && !started.is_empty());
            assert_eq!(path, state.join("lock"));
        }
        other => panic!("{other}"),
    }
    // It has the lock, and has not said yet who it is.
    fs::write(state.join("lock"), "").unwrap();
    let said = Journal::open(&state).unwrap_err().to_string();
    let pid = format!("(pid {}) has held", std::process::id());
    assert!(said.contains(&pid), "{said}");
    drop(journal);
    Journal::open(&state).unwrap();
}

#[test]
fn promoted_knobs_stay_and_the_others_go_back() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    journal.write(&roots, &sysctl("b"), "5 6").unwrap();
    journal.promote(&[sysctl("a")]).unwrap();
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    assert_eq!(journal.describe(), ["vm.b"]);
    journal.restore(&roots, false).unwrap();
    assert_eq!(
        (read(&roots, "a"), read(&roots, "b")),
        ("10".into(), "0 1".into())
    );
    journal.write(&roots, &sysctl("b"), "7 7").unwrap();
    journal.promote_all().unwrap();
    assert!(journal.is_empty());
    drop(journal);
    assert!(Journal::open(&state).unwrap().is_empty());
    assert_eq!(read(&roots, "b"), "7 7");
}

#[test]
fn a_restore_that_fails_keeps_its_entry_for_the_next_attempt() {
    let (dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    journal.write(&roots, &sysctl("b"), "5 6").unwrap();
    let path = dir.path().join("proc/sys/vm/a");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(
        report.items[1].outcome,
        RestoreOutcome::Failed {
            errno: libc::EISDIR
        }
    );
    assert!(!report.is_complete());
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "10\n").unwrap();
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    assert_eq!(journal.describe(), ["vm.a"]);
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(read(&roots, "a"), "60");
}

#[test]
fn changing_the_scheduler_resets_its_files_and_that_is_nobody_elses_change() {
    let (_dir, roots) = fake(&[
        ("sys/block/vda/queue/scheduler", "mq-deadline\n"),
        ("sys/block/vda/queue/iosched/fifo_batch", "16\n"),
    ]);
    let state = roots.root.join("state");
    let knob = |file: &str| Knob::BlockQueue {
        device: "vda".into(),
        file: file.into(),
    };
    let mut journal = Journal::open(&state).unwrap();
    journal
        .write(&roots, &knob("iosched/fifo_batch"), "8")
        .unwrap();
    journal.write(&roots, &knob("scheduler"), "bfq").unwrap();
    fs::write(knob("iosched/fifo_batch").path(&roots), "99\n").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(
        report
            .items
            .iter()
            .all(|item| item.outcome == RestoreOutcome::Restored),
        "{report:?}"
    );
    assert_eq!(
        knob("iosched/fifo_batch").read(&roots).unwrap().as_deref(),
        Some("16")
    );
}

#[test]
fn groups_are_made_on_v1_and_removed() {
    let (_dir, roots) = fake(&[
        ("sys/fs/cgroup/cpu/cgroup.procs", ""),
        ("sys/fs/cgroup/cpuacct/cgroup.procs", ""),
        ("sys/fs/cgroup/cpuset/cpuset.cpus", "0-1\n"),
    ]);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    journal.make_cgroup(&roots, "slackline/experiment").unwrap();
    assert!(roots.sys("fs/cgroup/cpu/slackline/experiment").is_dir());
    assert!(roots.sys("fs/cgroup/cpuacct/slackline/experiment").is_dir());
    assert!(!roots.sys("fs/cgroup/cpuset/slackline").exists());
    assert!(matches!(
        journal.make_cgroup_with(&roots, "x", &["hugetlb"]),
        Err(HostError::NoController { controller }) if controller == "hugetlb"
    ));
    assert!(matches!(
        journal.make_cgroup(&roots, "../x"),
        Err(HostError::InvalidName { .. })
    ));
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.items.len(), 4);
    assert!(report.is_complete());
    assert!(
        !roots.sys("fs/cgroup/cpu/slackline").exists()
            && !roots.sys("fs/cgroup/cpuacct/slackline").exists()
    );
}

#[test]
fn a_v2_controller_is_enabled_and_disabled_unless_somebody_came_to_use_it() {
    let files = [
        ("sys/fs/cgroup/cgroup.controllers", "cpu io memory\n"),
        ("sys/fs/cgroup/cgroup.subtree_control", "memory\n"),
    ];
    let control =
        |roots: &Roots| fs::read_to_string(roots.sys("fs/cgroup/cgroup.subtree_control")).unwrap();
    let (_dir, roots) = fake(&files);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    journal.make_cgroup(&roots, "g").unwrap();
    assert_eq!(control(&roots), "+cpu\n");
    journal.restore(&roots, false).unwrap();
    assert_eq!(control(&roots), "-cpu\n");
    assert!(!roots.sys("fs/cgroup/g").exists());

    let (_dir, roots) = fake(&files);
    let mut journal = Journal::open(&roots.root.join("state")).unwrap();
    journal.make_cgroup(&roots, "g").unwrap();
    fs::create_dir(roots.sys("fs/cgroup/other.slice")).unwrap();
    fs::write(roots.sys("fs/cgroup/other.slice/cpu.max"), "50000 100000\n").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert!(
        matches!(&report.items[1].outcome,
        RestoreOutcome::ChangedByOther { found, .. } if found == "used by other.slice"),
        "{report:?}"
    );
    assert_eq!(control(&roots), "+cpu\n");
}

#[test]
fn a_process_left_over_is_ended_and_another_with_its_pid_is_not() {
    let (_dir, _roots, state) = host();
    let real = Roots::default();
    let mut child = std::process::Command::new("sleep")
        .arg("100")
        .spawn()
        .unwrap();
    let started = crate::start_time(&real, child.id()).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    journal.process(child.id(), started + 1).unwrap();
    assert_eq!(
        journal.restore(&real, false).unwrap().items[0].outcome,
        RestoreOutcome::Vanished
    );
    journal.process(child.id(), started).unwrap();
    assert_eq!(
        journal.restore(&real, true).unwrap().items[0].outcome,
        RestoreOutcome::Restored
    );
    assert!(crate::is_running(&real, child.id(), started));
    assert_eq!(
        journal.restore(&real, false).unwrap().items[0].outcome,
        RestoreOutcome::Restored
    );
    assert!(!crate::is_running(&real, child.id(), started));
    child.wait().unwrap();
    journal.process(child.id(), started).unwrap();
    journal.forget_process(child.id()).unwrap();
    assert!(journal.is_empty());
}

#[test]
fn a_full_disk_at_the_journal_stops_before_the_knob() {
    let (dir, roots, state) = host();
    fs::create_dir_all(&state).unwrap();
    let mount = |source: &str, target: &Path, args: &[&str]| {
        std::process::Command::new(source)
            .args(args)
            .arg(target)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !mount("mount", &state, &["-t", "tmpfs", "-o", "size=16k", "tmpfs"]) {
        println!("SKIP: mounting a tmpfs needs root");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let mut journal = Journal::open(&state).unwrap();
        journal.write(&roots, &sysctl("b"), "1 1").unwrap();
        fs::write(state.join("filler"), vec![0; 64 << 10]).ok();
        // What was reserved may still do for some writes; the one for which it does not leaves the
        // knob alone.
        let mut last = "60".to_owned();
        let error = (0..200).find_map(|value| {
            let result = journal.write(&roots, &sysctl("a"), &value.to_string());
            if result.is_ok() {
                last = value.to_string();
            }
            result.err()
        });
        assert!(
            matches!(
                error,
                Some(HostError::Journal {
                    errno: libc::ENOSPC,
                    ..
                })
            ),
            "{error:?}"
        );
        assert_eq!(read(&roots, "a"), last);
        let file = dir.path().join("f.conf");
        fs::write(&file, vec![b'x'; 20_000]).unwrap();
        assert!(matches!(
            journal.replace_file(&file, b"new"),
            Err(HostError::Journal { .. })
        ));
        assert_eq!(fs::read(&file).unwrap().len(), 20_000);
        let error = journal.check_writable().unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
        // What was done before can still be undone, full as the disk is.
        assert!(journal.restore(&roots, false).unwrap().is_complete());
        assert_eq!(
            (read(&roots, "a"), read(&roots, "b")),
            ("60".into(), "0 1".into())
        );
    });
    assert!(mount("umount", &state, &[]));
    result.unwrap();
}

#[test]
fn a_journal_that_was_found_writable_is_as_it_was() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    let length = || fs::metadata(state.join("journal.jsonl")).unwrap().len();
    journal.check_writable().unwrap();
    assert_eq!(length(), 0);
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    let before = length();
    journal.check_writable().unwrap();
    assert_eq!(length(), before);
    journal.write(&roots, &sysctl("a"), "20").unwrap();
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(read(&roots, "a"), "60");
}

#[test]
fn the_members_of_a_group_are_undone_once_and_those_of_another_boot_are_not() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.own_members("jobs").unwrap();
    journal.own_members("jobs").unwrap();
    assert_eq!(journal.describe(), ["processes in cgroup jobs"]);
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    // Nobody is in it.
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.items[0].outcome, RestoreOutcome::Vanished);
    assert!(journal.is_empty());
    fs::create_dir_all(roots.sys("fs/cgroup/cpu/jobs")).unwrap();
    fs::write(roots.sys("fs/cgroup/cpu/jobs/cgroup.procs"), "7\n").unwrap();
    fs::create_dir_all(roots.proc("7")).unwrap();
    let stat = "7 (x) S 1 0 0 0 -1 0 1 2 3 4 11 12 13 14 20 0 5 0 777 1 1";
    fs::write(roots.proc("7/stat"), stat).unwrap();
    for (boot_id, outcome) in [
        (crate::boot_id(&Roots::default()), RestoreOutcome::Restored),
        ("another".to_owned(), RestoreOutcome::Vanished),
    ] {
        let action = Action::Members {
            group: "jobs".to_owned(),
            boot_id,
        };
        journal.will(action).unwrap();
        let report = journal.restore(&roots, true).unwrap();
        assert_eq!(report.items[0].outcome, outcome);
        journal.restore(&roots, false).unwrap();
    }
}

#[test]
fn a_torn_line_stays_until_there_is_something_to_write() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    drop(journal);
    let path = state.join("journal.jsonl");
    let mut torn = fs::read(&path).unwrap();
    torn.extend(br#"{"seq":9,"wi"#);
    fs::write(&path, &torn).unwrap();
    let mut journal = Journal::open(&state).unwrap();
    journal.restore(&roots, true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), torn);
    journal.write(&roots, &sysctl("b"), "5 6").unwrap();
    drop(journal);
    let mut journal = Journal::open(&state).unwrap();
    assert_eq!(journal.describe(), ["vm.a", "vm.b"]);
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn what_somebody_else_wrote_is_not_overwritten() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    fs::write(sysctl("a").path(&roots), "777\n").unwrap();
    let error = journal.write(&roots, &sysctl("a"), "20").unwrap_err();
    assert!(
        error
            .to_string()
            .contains("changed by someone else, from 10 to 777"),
        "{error}"
    );
    assert_eq!(read(&roots, "a"), "777");
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.changed_by_others().count(), 1);
    assert_eq!(read(&roots, "a"), "777");
}

#[test]
fn what_a_killed_undo_left_empty_comes_back() {
    let (_dir, roots, state) = host();
    let old = read(&roots, "a");
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    fs::write(sysctl("a").path(&roots), "").unwrap();
    let report = journal.restore(&roots, false).unwrap();
    assert_eq!(report.changed_by_others().count(), 0);
    assert_eq!(read(&roots, "a"), old);
}

/// The kernel sets one of a pair to 0 when the other is written; here the test does.
#[test]
fn the_knob_that_a_write_zeroes_comes_back() {
    let (_dir, roots, state) = host();
    let (ratio, bytes) = (
        Knob::Sysctl("vm.dirty_ratio".into()),
        Knob::Sysctl("vm.dirty_bytes".into()),
    );
    let set = |knob: &Knob, value: &str| {
        let path = knob.path(&roots);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, value).unwrap();
    };
    set(&ratio, "0\n");
    set(&bytes, "4096000\n");
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &ratio, "30").unwrap();
    set(&bytes, "0\n");
    drop(journal);
    // As after a kill: the announcement of the loss has no second line then, or one with the value
    // still there.
    let mut journal = Journal::open(&state).unwrap();
    assert_eq!(journal.describe(), ["vm.dirty_ratio", "vm.dirty_bytes"]);
    let report = journal.restore(&roots, false).unwrap();
    let order: Vec<&str> = report
        .items
        .iter()
        .map(|item| item.subject.as_str())
        .collect();
    assert_eq!(order, ["vm.dirty_bytes", "vm.dirty_ratio"]);
}

#[test]
fn a_long_search_does_not_grow_the_journal_without_end() {
    let (_dir, roots, state) = host();
    let mut journal = Journal::open(&state).unwrap();
    journal.write(&roots, &sysctl("a"), "10").unwrap();
    journal.length_bytes = COMPACT_ABOVE_BYTES + 1;
    journal.write(&roots, &sysctl("a"), "20").unwrap();
    assert!(fs::metadata(state.join("journal.jsonl")).unwrap().len() < 2000);
    drop(journal);
    Journal::open(&state)
        .unwrap()
        .restore(&roots, false)
        .unwrap();
    assert_eq!(read(&roots, "a"), "60");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any sequence of writes, cut after any byte of the journal: what the complete lines announce
    /// is undone. A crash at that byte means that later writes never happened, so the knobs are put
    /// as they were at that moment.
    #[test]
    fn a_crash_after_any_byte_restores_the_first_values(
        writes in prop::collection::vec((0usize..3, 0u32..100), 1..8),
        cut in 0.0f64..1.0,
        is_last_done in any::<bool>(),
    ) {
        let (_dir, roots, state) = host();
        let names = ["a", "b", "c"];
        let first: BTreeMap<&str, String> = names.iter().map(|name| (*name, read(&roots, name))).collect();
        let mut journal = Journal::open(&state).unwrap();
        // The knobs' values after each complete announcement: (length of the journal when
        // announced, values before).
        let mut moments = Vec::new();
        for (which, value) in writes {
            let before: Vec<String> = names.iter().map(|name| read(&roots, name)).collect();
            let start = journal.length_bytes;
            journal.write(&roots, &sysctl(names[which]), &value.to_string()).unwrap();
            moments.push((start, before));
        }
        let last: Vec<String> = names.iter().map(|name| read(&roots, name)).collect();
        moments.push((journal.length_bytes, last));
        drop(journal);
        let path = state.join("journal.jsonl");
        let bytes = fs::read(&path).unwrap();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a small file")]
        let cut = (bytes.len() as f64 * cut) as usize;
        // The write under way at the cut: if its announcement is complete, it may or may not have
        // happened.
        let at = moments.iter().rposition(|(start, _)| *start <= cut as u64).unwrap();
        let is_announced = bytes.get(..cut).unwrap()[usize::try_from(moments[at].0).unwrap()..].contains(&b'\n');
        let values = if is_announced && is_last_done && at + 1 < moments.len() { &moments[at + 1].1 } else { &moments[at].1 };
        // After its second line it has happened.
        let complete_lines = bytes[usize::try_from(moments[at].0).unwrap()..cut].iter().filter(|b| **b == b'\n').count();
        let values = if complete_lines == 2 { &moments[at + 1].1 } else { values };
        for (name, value) in names.iter().zip(values) {
            fs::write(sysctl(name).path(&roots), format!("{value}\n")).unwrap();
        }
        fs::write(&path, &bytes[..cut]).unwrap();
        let mut journal = Journal::open(&state).unwrap();
        let report = journal.restore(&roots, false).unwrap();
        prop_assert!(report.is_complete() && report.changed_by_others().count() == 0, "{:?}", report);
        for (name, value) in &first {
            prop_assert_eq!(&read(&roots, name), value);
        }
        prop_assert!(journal.is_empty());
    }

    #[test]
    fn foreign_bytes_in_the_journal_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = record::load(Path::new("journal"), &bytes);
    }
}
