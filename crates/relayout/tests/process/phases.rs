//! A program whose workload changes, and comes back.

use std::process::Command;
use std::time::Duration;

use relayout::{LayoutCandidate, ManifestStore, Session};

use crate::layout::method;
use crate::talk::{Program, compile};

/// Lets it do this from now on; how many rounds it has done until now.
fn go_on_with(program: &mut Program, workload: &str) -> u64 {
    program.numbers(workload)[0]
}

/// How much of what runs a layout covers.
fn share(fit: Option<LayoutCandidate>) -> f64 {
    fit.unwrap().cover.share().estimate
}

fn laid_out(session: &mut Session) -> u32 {
    session.count().unwrap();
    let layout = session.install().unwrap();
    session.settle().unwrap();
    layout.generation
}

#[test]
fn a_workload_that_comes_back_is_known_and_gets_its_layout_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let path = compile("cc", "phases.c", "phases", &["-O2", "-s"]);
    let mut program = Program::run(&mut Command::new(path));
    let mut session = Session::open(&store, program.pid(), method(None)).unwrap();
    let load = session.look().unwrap();
    assert_eq!((load.fit, load.held), (None, Vec::new()));
    let of_a = laid_out(&mut session);
    let load = session.look().unwrap();
    assert!(share(load.fit) > 0.9, "{load:?}");

    go_on_with(&mut program, "b");
    // However often it is looked at: it is like the one that the layout was made for, or not.
    for _ in 0..2 {
        let load = session.look().unwrap();
        assert!(share(load.fit) < 0.2, "{load:?}");
        assert_eq!(load.held, Vec::new());
    }
    let of_b = laid_out(&mut session);
    let load = session.look().unwrap();
    assert!(share(load.fit) > 0.9, "{load:?}");
    assert!(share(Some(load.held[0].1)) < 0.2, "{load:?}");

    let before = go_on_with(&mut program, "a");
    let load = session.look().unwrap();
    assert!(share(load.fit) < 0.2, "{load:?}");
    let (held, fit) = load.held[0];
    assert!(held == of_a && share(Some(fit)) > 0.9, "{load:?}");
    let layout = session.resume(of_a).unwrap().unwrap();
    assert_eq!(layout.generation, of_a);
    session.settle().unwrap();
    // Its samples are told apart by where its own code comes from.
    let load = session.look().unwrap();
    assert!(share(load.fit) > 0.9, "{load:?}");
    assert_eq!(load.held[0].0, of_b);

    // The original layout may be what a workload runs best in.
    session.leave_original().unwrap();
    go_on_with(&mut program, "b");
    let load = session.look().unwrap();
    assert!(share(load.fit) < 0.2, "{load:?}");
    let of_b = load.held.iter().find(|(known, _)| *known == of_b).unwrap();
    assert!(share(Some(of_b.1)) > 0.9, "{load:?}");
    let of_b = of_b.0;
    session.resume(of_b).unwrap();
    session.settle().unwrap();

    assert!(go_on_with(&mut program, "b") > before);
    session.roll_back().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(go_on_with(&mut program, "a") > before, "it goes on");
}
