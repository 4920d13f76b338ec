//! Tests of the counters of a process and its descendants.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use super::*;
use crate::cgroup::tests::fake;

fn stat(pid: u32, parent: u32, ticks: [u64; 4]) -> String {
    let [user, system, children_user, children_system] = ticks;
    format!(
        "{pid} (x) S {parent} 0 0 0 -1 0 1 2 3 4 {user} {system} {children_user} {children_system} 20 0 1 0 {pid}00 1"
    )
}

fn set(roots: &Roots, pid: u32, parent: u32, ticks: [u64; 4], run_ns: u64, switches: u64) {
    let task = roots.proc(format!("{pid}/task/{pid}"));
    fs::create_dir_all(&task).unwrap();
    fs::write(roots.proc(format!("{pid}/stat")), stat(pid, parent, ticks)).unwrap();
    let status =
        format!("Name:\tx\nvoluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t1\n");
    fs::write(task.join("status"), status).unwrap();
    fs::write(task.join("schedstat"), format!("{run_ns} 5 6\n")).unwrap();
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn a_tree_is_summed_finer_than_ticks() {
    let (_dir, roots) = fake(&[("proc/1/stat", &stat(1, 0, [9, 9, 9, 9]))]);
    set(&roots, 10, 1, [2, 1, 0, 0], 34_000_000, 5);
    set(&roots, 11, 10, [1, 0, 0, 0], 16_000_000, 7);
    set(&roots, 99, 1, [50, 50, 0, 0], 1_000_000_000, 7);
    let sample = ProcessTree::of(10).read(&roots).unwrap();
    assert_eq!((sample.processes, sample.threads), (2, 2));
    assert_eq!(
        (sample.voluntary_switches, sample.involuntary_switches),
        (12, 2)
    );
    assert!(close(sample.cpu.total_s(), 0.050), "{sample:?}");
    assert!(close(sample.cpu.user_s, 0.050 * 0.75), "{sample:?}");
    assert!(matches!(
        ProcessTree::of(5).read(&roots),
        Err(HostError::NoSuchProcess { pid: 5 })
    ));
}

#[test]
fn a_group_is_what_its_files_list() {
    let (_dir, roots) = fake(&[
        ("sys/fs/cgroup/cpu/g/cgroup.procs", "10\n"),
        ("sys/fs/cgroup/cpu/g/below/cgroup.procs", "12\n77\n"),
    ]);
    set(&roots, 10, 1, [0, 0, 0, 0], 34_000_000, 5);
    set(&roots, 11, 10, [0, 0, 0, 0], 16_000_000, 7);
    set(&roots, 12, 1, [0, 0, 0, 0], 1_000_000, 30);
    let mut tree = ProcessTree::of_group("g");
    let sample = tree.read(&roots).unwrap();
    // 11 is outside, although its parent is in; 77 ended while the list was read.
    assert_eq!((sample.processes, sample.voluntary_switches), (2, 35));
    fs::write(roots.sys("fs/cgroup/cpu/g/cgroup.procs"), "").unwrap();
    assert_eq!(tree.read(&roots).unwrap().voluntary_switches, 35);
    fs::remove_dir_all(roots.sys("fs/cgroup/cpu/g")).unwrap();
    assert!(matches!(tree.read(&roots), Err(HostError::Absent { .. })));
}

#[test]
fn ended_threads_children_and_orphans_do_not_turn_the_counters_back() {
    let (_dir, roots) = fake(&[]);
    set(&roots, 10, 1, [10, 0, 0, 0], 100_000_000, 5);
    set(&roots, 11, 10, [20, 0, 0, 0], 203_000_000, 7);
    set(&roots, 12, 11, [30, 0, 0, 0], 300_000_000, 9);
    let mut tree = ProcessTree::of(10);
    let first = tree.read(&roots).unwrap();
    assert!(close(first.cpu.total_s(), 0.603));
    // 11 ends and is waited for, to within a tick; 12 loses its parent, and is still counted.
    fs::remove_dir_all(roots.proc("11")).unwrap();
    set(&roots, 10, 1, [10, 0, 20, 0], 100_000_000, 5);
    set(&roots, 12, 1, [30, 0, 0, 0], 300_000_000, 9);
    let second = tree.read(&roots).unwrap();
    assert!(close(second.cpu.total_s(), 0.603), "{second:?}");
    assert_eq!((second.processes, second.voluntary_switches), (2, 21));
    // 12 ends and nobody of the tree waits for it.
    fs::remove_dir_all(roots.proc("12")).unwrap();
    let third = tree.read(&roots).unwrap();
    assert!(close(third.cpu.total_s(), 0.603), "{third:?}");
    // A child that lived between two readings is known from its parent, and a thread's tail from
    // the ticks.
    set(&roots, 10, 1, [15, 0, 50, 0], 100_000_000, 5);
    let fourth = tree.read(&roots).unwrap();
    assert!(
        close(fourth.cpu.total_s(), 0.150 + 0.500 + 0.300),
        "{fourth:?}"
    );
    fs::remove_dir_all(roots.proc("10")).unwrap();
    assert!(matches!(
        tree.read(&roots),
        Err(HostError::NoSuchProcess { .. })
    ));
}

#[test]
fn a_malformed_stat_is_named() {
    let (_dir, roots) = fake(&[("proc/10/stat", "10 (x) S 1")]);
    let error = ProcessTree::of(10).read(&roots).unwrap_err().to_string();
    assert!(error.contains("proc/10/stat"), "{error}");
}

#[test]
fn a_real_tree_with_short_lived_children_counts_them() {
    let script = "i=0; while [ $i -lt 30 ]; do (j=0; while [ $j -lt 3000 ]; do j=$((j+1)); done); i=$((i+1)); done; sleep 30";
    let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let mut tree = ProcessTree::of(child.id());
    let roots = Roots::default();
    let mut last = tree.read(&roots).unwrap();
    for _ in 0..20 {
        sleep(Duration::from_millis(25));
        let now = tree.read(&roots).unwrap();
        assert!(
            now.cpu.user_s >= last.cpu.user_s && now.cpu.system_s >= last.cpu.system_s,
            "{last:?} {now:?}"
        );
        assert!(now.voluntary_switches >= last.voluntary_switches);
        last = now;
    }
    assert!(last.cpu.total_s() > 0.0 && last.processes >= 1);
    child.kill().unwrap();
    child.wait().unwrap();
}
