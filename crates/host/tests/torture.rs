//! `kill -9` at random moments, more than a hundred times: after each, restoring gives every knob,
//! file and group its first state.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use host::{Journal, Knob, RestoreOutcome, Roots};
use rand::{Rng, SeedableRng};

const KILLS: u64 = 120;
/// So many if the first ones met little work.
const KILLS_MOST: u64 = 10 * KILLS;

const TREE: [(&str, &str); 8] = [
    ("proc/sys/vm/swappiness", "60\n"),
    ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t33554432\n"),
    ("sys/block/vda/queue/iosched/fifo_batch", "16\n"),
    ("sys/fs/cgroup/cpu/service/cpu.cfs_quota_us", "-1\n"),
    ("sys/fs/cgroup/cpuacct/service/cpuacct.usage", "0\n"),
    ("service.conf", "workers 1;\n"),
    ("etc/limit", "5\n"),
    ("etc/limit-with-two-links", "6\n"),
];

/// Makes the tree. A file has two names, and another one a symbolic link.
fn make_tree(root: &Path) {
    for (path, text) in TREE {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let etc = root.join("etc");
    fs::hard_link(etc.join("limit-with-two-links"), etc.join("second-link")).unwrap();
    std::os::unix::fs::symlink("limit", etc.join("link")).unwrap();
}

/// Every file and directory below `root`, without the state directory, values with single spaces
/// between words.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path == root.join("state") {
                continue;
            }
            if path.is_dir() {
                found.insert(path.clone(), "directory".to_owned());
                directories.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path, text.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    found
}

/// Names the tree to the process that is to write in it.
const ROOT_VARIABLE: &str = "SLACKLINE_TORTURE_ROOT";
const SEED_VARIABLE: &str = "SLACKLINE_TORTURE_SEED";

/// Starts this test binary once more, as the writer.
fn start(root: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture"])
        .env(ROOT_VARIABLE, root)
        .env(SEED_VARIABLE, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What the writer prints once it begins to change things.
const AT_WORK: &str = "at work";

/// Waits until the writer has begun, however long the machine takes to start it.
fn wait_for_work(child: &mut Child) {
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(AT_WORK)), "it ended");
}

/// The victim: changes things through the journal until it is killed. As an ordinary test it does
/// nothing.
#[test]
fn writer() {
    let Some(root) = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from) else {
        return;
    };
    let seed = std::env::var(SEED_VARIABLE).unwrap().parse().unwrap();
    let roots = Roots::at(&root);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut journal = Journal::open(&root.join("state")).unwrap();
    println!("{AT_WORK}");
    loop {
        let value = rng.random_range(0..1000).to_string();
        let knob = match rng.random_range(0..10) {
            0 => Knob::Sysctl("vm.swappiness".into()),
            1 => Knob::Sysctl("net.ipv4.tcp_rmem".into()),
            2 => Knob::BlockQueue {
                device: "vda".into(),
                file: "iosched/fifo_batch".into(),
            },
            3 => Knob::Cgroup {
                group: "service".into(),
                file: "cpu.cfs_quota_us".into(),
            },
            4 => {
                journal
                    .replace_file(
                        &root.join("service.conf"),
                        format!("workers {value};\n").as_bytes(),
                    )
                    .unwrap();
                continue;
            }
            5 => {
                journal
                    .replace_file(&root.join("new.conf"), value.as_bytes())
                    .unwrap();
                continue;
            }
            6 => {
                journal
                    .make_cgroup(&roots, &format!("slackline/{}", rng.random_range(0..3)))
                    .unwrap();
                continue;
            }
            7 => Knob::File("/etc/link".into()),
            8 => Knob::File("/etc/limit-with-two-links".into()),
            _ => continue,
        };
        journal.write(&roots, &knob, &value).unwrap();
    }
}

#[test]
fn after_every_kill_everything_is_as_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    make_tree(root);
    let (first, roots) = (snapshot(root), Roots::at(root));
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut restored = 0;
    for kill in 0..KILLS_MOST {
        // On a busy machine the writer has written little by then.
        if kill >= KILLS && restored > 100 {
            break;
        }
        let mut child = start(root, kill);
        // A few are killed while they start.
        if kill % 8 != 0 {
            wait_for_work(&mut child);
        }
        sleep(Duration::from_micros(rng.random_range(100..30_000)));
        assert!(
            child.try_wait().unwrap().is_none(),
            "the writer ended by itself (kill {kill})"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        let mut journal = Journal::open(&root.join("state")).unwrap();
        let report = journal.restore(&roots, false).unwrap();
        assert!(
            report.is_complete() && report.changed_by_others().count() == 0,
            "kill {kill}: {report:?}"
        );
        assert!(journal.is_empty());
        restored += report
            .items
            .iter()
            .filter(|item| item.outcome == RestoreOutcome::Restored)
            .count();
        assert_eq!(snapshot(root), first, "kill {kill}: {report:?}");
    }
    // The kills did meet it at work.
    assert!(
        restored > 100,
        "only {restored} things were ever to restore"
    );
}

#[test]
fn while_the_writer_lives_its_lock_is_named() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(dir.path());
    let mut child = start(dir.path(), 1);
    let journal = dir.path().join("state/journal.jsonl");
    for _ in 0..500 {
        if fs::metadata(&journal).is_ok_and(|metadata| metadata.len() > 0) {
            break;
        }
        sleep(Duration::from_millis(10));
    }
    let message = Journal::open(&dir.path().join("state"))
        .unwrap_err()
        .to_string();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        message.contains(&format!("pid {}", child.id())) && message.contains("--exact writer"),
        "{message}"
    );
}
