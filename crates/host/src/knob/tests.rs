//! Tests of reading knobs from fake trees.

use proptest::prelude::*;

use super::*;

fn fake(path: &str, text: &str) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
    let roots = Roots::at(dir.path());
    (dir, roots)
}

#[test]
fn a_sysctl_with_tabs_reads_with_single_spaces() {
    let (_dir, roots) = fake("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432\n");
    let value = Knob::Sysctl("net.ipv4.tcp_rmem".into())
        .read(&roots)
        .unwrap();
    assert_eq!(value.as_deref(), Some("4096 131072 33554432"));
    assert_eq!(Knob::Sysctl("vm.none".into()).read(&roots).unwrap(), None);
}

#[test]
fn a_sysctl_of_an_interface_with_a_dot_is_named_as_in_sysctl_8() {
    assert_eq!(
        sysctl_path("net.ipv4.conf.eth0/1.x"),
        Path::new("net/ipv4/conf/eth0.1/x")
    );
    assert_eq!(
        sysctl_path("net/ipv4/conf/eth0.1/x"),
        Path::new("net/ipv4/conf/eth0.1/x")
    );
}

#[test]
fn a_choice_reads_as_its_bracketed_word() {
    let (_dir, roots) = fake(
        "sys/block/vda/queue/scheduler",
        "none [mq-deadline] kyber bfq \n",
    );
    let knob = Knob::BlockQueue {
        device: "vda".into(),
        file: "scheduler".into(),
    };
    assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("mq-deadline"));
    let absent = Knob::BlockQueue {
        device: "vdb".into(),
        file: "scheduler".into(),
    };
    assert_eq!(absent.read(&roots).unwrap(), None);
}

#[test]
fn a_file_is_taken_below_the_root_and_an_unreadable_one_is_an_error() {
    let (_dir, roots) = fake("sys/kernel/debug/sched/base_slice_ns", "3000000\n");
    let knob = Knob::File("/sys/kernel/debug/sched/base_slice_ns".into());
    assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("3000000"));
    let directory = Knob::File("/sys/kernel/debug".into());
    assert!(matches!(
        directory.read(&roots),
        Err(HostError::Read {
            errno: libc::EISDIR,
            ..
        })
    ));
}

#[test]
fn a_pipe_is_an_error_and_waited_for_by_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let error = Knob::File(path).read(&Roots::default()).unwrap_err();
    assert!(error.to_string().contains("a pipe"), "{error}");
}

#[test]
fn a_knob_without_a_value_and_one_that_only_the_kernel_sets_are_told_apart() {
    let (_dir, roots) = fake("proc/sys/kernel/ngroups_max", "65536\n");
    let knob = Knob::Sysctl("kernel.ngroups_max".into());
    assert!(knob.check_writable(&roots).is_ok());
    let path = knob.path(&roots);
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
    assert_eq!(knob.read(&roots).unwrap().as_deref(), Some("65536"));
    let error = knob.check_writable(&roots).unwrap_err();
    assert!(error.to_string().contains("is read-only"), "{error}");
    // Only the kernel refuses root what has no read bit.
    let flush = Knob::Sysctl("net.ipv4.route.flush".into());
    if flush.path(&Roots::default()).exists() {
        let error = flush.read(&Roots::default()).unwrap_err();
        assert!(matches!(error, HostError::WriteOnly { .. }), "{error}");
        assert!(error.to_string().contains("could not be undone"), "{error}");
    }
}

#[test]
fn a_file_of_debugfs_is_found_or_its_lockdown_is_told() {
    let knob = Knob::File("/sys/kernel/debug/sched/base_slice_ns".into());
    match knob.read(&Roots::default()) {
        // Mounted or not: root reads it, unless the kernel is old or locked down.
        Ok(Some(value)) => assert!(value.parse::<u64>().is_ok(), "{value}"),
        Ok(None) => {}
        Err(HostError::LockedDown { path }) => {
            assert!(path.starts_with("/sys/kernel/debug"), "{}", path.display());
        }
        Err(HostError::Read { path, errno }) => {
            assert!(path.starts_with("/sys/kernel/debug"), "{}", path.display());
            assert_ne!(errno, libc::ENOENT);
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn names_cannot_leave_their_tree() {
    let roots = Roots::default();
    for knob in [
        Knob::Sysctl("../../etc/passwd".into()),
        Knob::Sysctl(String::new()),
        Knob::BlockQueue {
            device: "..".into(),
            file: "x".into(),
        },
        Knob::BlockQueue {
            device: "vda".into(),
            file: "../../x".into(),
        },
        Knob::Cgroup {
            group: "a/../../b".into(),
            file: "cpu.max".into(),
        },
        Knob::File("relative".into()),
    ] {
        assert!(
            matches!(knob.read(&roots), Err(HostError::InvalidName { .. })),
            "{knob:?}"
        );
    }
}

#[test]
fn the_kernel_prints_some_values_differently() {
    assert!(is_taken_as("50000", "50000 100000"));
    assert!(is_taken_as("max", "max 100000"));
    assert!(is_taken_as("1", "Y"));
    assert!(is_taken_as("1G", "1073741824"));
    assert!(is_taken_as("0,1", "0-1\n"));
    assert!(is_taken_as("a  b", "a\tb\n"));
    assert!(!is_taken_as("5", "50"));
    assert!(!is_taken_as("10", "20"));
}

proptest! {
    #[test]
    fn normalising_twice_changes_nothing(text in "[ \\t\\n\\[\\]a-z0-9]{0,40}") {
        // A word that is itself bracketed inside brackets is no kernel output.
        prop_assume!(!text.contains("[[") && !text.contains("]]"));
        let once = normalise(&text);
        prop_assert_eq!(normalise(&once), once);
    }

    #[test]
    fn a_knob_survives_json(name in "[a-z.]{1,20}", path in "/[a-z/]{1,20}") {
        for knob in [
            Knob::Sysctl(name.clone()),
            Knob::BlockQueue { device: name.clone(), file: name.clone() },
            Knob::Cgroup { group: name.clone(), file: name.clone() },
            Knob::File(path.clone().into()),
        ] {
            let json = serde_json::to_string(&knob).unwrap();
            prop_assert_eq!(serde_json::from_str::<Knob>(&json).unwrap(), knob);
        }
    }
}
