//! Processes and groups of a fake host, each with what may become of it as batch work.

use std::path::PathBuf;

use super::*;

/// The process in all of these trees that is an ordinary one.
const OTHER: u32 = 4_100_090;

/// A fake host of v2. Each process has its parent, its flags and its group.
fn host_of(processes: &[(u32, &str, u32, u32, &str)]) -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let roots = Roots::at(dir.path());
    let write = |path: PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for file in ["cgroup.controllers", "cgroup.subtree_control"] {
        write(roots.sys(format!("fs/cgroup/{file}")), "cpu\n");
    }
    for (pid, name, parent, flags, group) in processes {
        let stat = format!(
            "{pid} ({name}) S {parent} 0 0 0 -1 {flags} 1 2 3 4 11 12 13 14 20 0 5 0 777 1 1"
        );
        write(roots.proc(format!("{pid}/stat")), &stat);
        write(roots.proc(format!("{pid}/cgroup")), &format!("{group}\n"));
    }
    (dir, roots)
}

fn usual() -> (tempfile::TempDir, Roots) {
    let own = std::process::id();
    host_of(&[
        (1, "init", 0, 0, "0::/init.scope"),
        (2, "kthreadd", 0, 0x0020_8040, "0::/"),
        (4100040, "sshd", 1, 0, "0::/ssh"),
        (4100050, "bash", 4100040, 0, "0::/user.slice/b.scope"),
        (own, "slackline", 4100050, 0, "0::/user.slice/a.scope"),
        (4100060, "slackline", own, 0, "0::/watch"),
        (4100065, "runner", 1, 0, "0::/runner"),
        (4100070, "web", 4100065, 0, "5:freezer:/strange\n0::/runner"),
        (OTHER, "job", 1, 0, "0::/jobs"),
        (4100095, "job", 1, 0, "0::/runner"),
    ])
}

fn reserved(roots: &Roots) -> Reserved {
    let mut reserved = Reserved::of_slackline(roots, Some(4100060));
    reserved.add_service(roots, "web", Some("pods/web"), [4100070]);
    reserved
}

#[test]
fn a_group_that_holds_who_has_to_go_on_is_no_batch_work() {
    let (_dir, roots) = usual();
    let reserved = reserved(&roots);
    for (group, said) in [
        ("user.slice/a.scope", Some("holds slackline itself")),
        ("user.slice", Some("holds slackline itself")),
        (
            "user.slice/b.scope",
            Some("holds bash (pid 4100050), from which"),
        ),
        ("ssh", Some("holds sshd (pid 4100040), from which")),
        ("init.scope", Some("holds the first process of this host")),
        ("watch", Some("holds the watchdog (pid 4100060)")),
        // In one hierarchy alone.
        ("strange", Some("holds process 4100070 of service web")),
        ("pods", Some("use separate control groups")),
        ("pods/web", Some("use separate control groups")),
        ("pods/web/below", Some("use separate control groups")),
        ("pods/other", None),
        ("jobs", None),
        ("user.slice/a", None),
    ] {
        let found = reserved.objection(group);
        match (&found, said) {
            (Some(found), Some(said)) => assert!(found.contains(said), "{group}: {found}"),
            _ => assert_eq!(found.is_some(), said.is_some(), "{group}: {found:?}"),
        }
    }
}

#[test]
fn a_process_that_has_to_go_on_or_has_started_one_is_no_batch_work() {
    let (_dir, roots) = usual();
    let reserved = reserved(&roots);
    for (pid, said) in [
        (0, Some("no process has the pid 0")),
        (999_999_999, Some("process 999999999 does not exist")),
        (1, Some("this is the first process of this host (pid 1)")),
        (2, Some("process 2 is a thread of the kernel")),
        (4100040, Some("this is sshd (pid 4100040), from which")),
        (std::process::id(), Some("this is slackline itself")),
        (4100060, Some("this is the watchdog (pid 4100060)")),
        (
            4100065,
            Some("process 4100065 has started process 4100070 of service web"),
        ),
        (4100070, Some("this is process 4100070 of service web")),
        (OTHER, None),
    ] {
        let found = reserved.objection_to_process(&roots, pid);
        match (&found, said) {
            (Some(found), Some(said)) => assert!(found.contains(said), "{pid}: {found}"),
            _ => assert_eq!(found.is_some(), said.is_some(), "{pid}: {found:?}"),
        }
    }
}

/// What is said of a configuration: a service by these keys, and best-effort groups by these.
fn said_of(roots: &Roots, services: &[&str], work: &[&str], judge: Judge<'_>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.toml");
    let mut text = String::new();
    for service in services {
        text += &format!(
            "[[service]]\n{service}\nobjective = {{ p99_ms = 5 }}\nlatency = {{ command = [\"x\"] }}\n"
        );
    }
    for work in work {
        text += &format!("[[best_effort]]\n{work}\n");
    }
    std::fs::write(&path, text).unwrap();
    let config = IsolationConfig::read(&path).unwrap();
    let said = refusals(&config, roots, judge);
    let start = format!("{}/", dir.path().display());
    said.iter()
        .map(|error| error.to_string().replace(&start, ""))
        .collect()
}

#[test]
fn what_is_one_group_under_two_names_is_named_by_both_keys() {
    let (_dir, roots) = usual();
    for group in ["pods/web.service", "jobs/x.slice/y", "jobs/z"] {
        std::fs::create_dir_all(roots.sys(format!("fs/cgroup/{group}"))).unwrap();
    }
    let of = |services: &[&str], work: &[&str]| said_of(&roots, services, work, Judge::default());
    let web = "unit = \"web.service\"";
    let said = of(
        &[web],
        &[
            "unit = \"x.slice\"",
            "name = \"b\"\ncgroup = \"jobs/x.slice\"",
        ],
    );
    assert_eq!(
        said,
        [
            "i.toml:9: best_effort[1].cgroup: best_effort[0].unit is the same control group, \
          jobs/x.slice: name each group once"
        ]
    );
    let said = of(
        &[web],
        &["unit = \"x.slice\"", "cgroup = \"jobs/x.slice/y\""],
    );
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("its CPU time would count twice"),
        "{said:?}"
    );
    let said = of(&[web, "name = \"b\"\ncgroup = \"pods/web.service\""], &[]);
    assert_eq!(said.len(), 1, "{said:?}");
    let wanted = "i.toml:5: service[1]: service[0] is the same control group, pods/web.service";
    assert!(said[0].starts_with(wanted), "{said:?}");
    let said = of(&[web], &["name = \"b\"\ncgroup = \"pods/web.service\""]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("use separate control groups"), "{said:?}");
    // A group that is not there is said elsewhere.
    let said = of(
        &[web],
        &[
            "cgroup = \"jobs/z\"",
            "cgroup = \"nope\"",
            "command = [\"x\"]",
        ],
    );
    assert_eq!(said, [""; 0]);
    // Two processes of one group are two services, and a third one is neither.
    let procs = roots.sys("fs/cgroup/runner/cgroup.procs");
    std::fs::create_dir_all(procs.parent().unwrap()).unwrap();
    std::fs::write(procs, "4100065\n4100070\n4100095\n").unwrap();
    let said = of(&["pid = 4100065"], &["pid = 4100095"]);
    assert_eq!(said, [""; 0]);
    let said = of(&["pid = 4100065"], &["pid = 4100070"]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("this is process 4100070 of service pid 4100065"),
        "{said:?}"
    );
    let said = of(&["pid = 4100065", "pid = 4100070"], &[]);
    assert_eq!(said, [""; 0]);
}

#[test]
fn work_that_is_steered_already_is_not_asked_whether_it_runs() {
    let (_dir, roots) = usual();
    let work = "pid = 4190000";
    let said = said_of(&roots, &["pid = 4100070"], &[work], Judge::default());
    assert_eq!(
        said,
        ["i.toml:6: best_effort[0].pid: process 4190000 does not exist (any more)"]
    );
    let known: [BestEffort; 1] =
        [serde_json::from_str(r#"{ "pid": 4190000, "name": "pid 4190000" }"#).unwrap()];
    let judge = Judge {
        known: &known,
        state_dir: None,
    };
    assert_eq!(said_of(&roots, &["pid = 4100070"], &[work], judge), [""; 0]);
}

#[test]
fn an_own_group_with_processes_of_others_is_not_taken() {
    let (_dir, roots) = usual();
    let state = tempfile::tempdir().unwrap();
    let (ours, others) = (state.path().join("ours"), state.path().join("others"));
    let group = "slackline-isolate-batch";
    let mut journal = Journal::open(&ours).unwrap();
    journal.make_cgroup_with(&roots, group, &["cpu"]).unwrap();
    let procs = roots.sys(format!("fs/cgroup/{group}/cgroup.procs"));
    let work = "name = \"batch\"\ncommand = [\"x\"]";
    for (pids, state_dir, is_refused) in [
        ("", Some(others.as_path()), false),
        ("4100090\n", Some(others.as_path()), true),
        ("4100090\n", Some(ours.as_path()), false),
        ("4100090\n", None, false),
    ] {
        std::fs::write(&procs, pids).unwrap();
        let judge = Judge {
            known: &[],
            state_dir,
        };
        let said = said_of(&roots, &["pid = 4100070"], &[work], judge);
        assert_eq!(
            !said.is_empty(),
            is_refused,
            "{pids} {state_dir:?} {said:?}"
        );
        if is_refused {
            assert!(said[0].contains("such as pid 4100090"), "{said:?}");
        }
    }
}
