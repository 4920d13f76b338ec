//! A program whose workload changes, and comes back.

use std::process::Command;
use std::time::Duration;

use relayout::{Session, Store};

use crate::layout::method;
use crate::talk::{Program, compile};

/// Lets it do this from now on; how many rounds it has done until now.
fn go_on_with(program: &mut Program, workload: &str) -> u64 {
    program.numbers(workload)[0]
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
    let store = Store::open(dir.path()).unwrap();
    let path = compile("cc", "phases.c", "phases", &["-O2", "-s"]);
    let mut program = Program::run(&mut Command::new(path));
    let mut session = Session::open(&store, program.pid(), method(None)).unwrap();
    let load = session.look().unwrap();
    assert_eq!((load.overlap, load.other), (None, None));
    let of_a = laid_out(&mut session);
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() > 0.5, "{load:?}");

    go_on_with(&mut program, "b");
    // However often it is looked at: it is like the one that the layout was made for, or not.
    for _ in 0..2 {
        let load = session.look().unwrap();
        assert!(load.overlap.unwrap() < 0.2, "{load:?}");
        assert_eq!(load.other, None);
    }
    let of_b = laid_out(&mut session);
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() > 0.5, "{load:?}");
    assert!(load.other.unwrap().1 < 0.2, "{load:?}");

    let before = go_on_with(&mut program, "a");
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() < 0.2, "{load:?}");
    let (other, alike) = load.other.unwrap();
    assert!(other == of_a && alike > 0.5, "{load:?}");
    let layout = session.resume(of_a).unwrap().unwrap();
    assert_eq!(layout.generation, of_a);
    session.settle().unwrap();
    // Its samples are told apart by where its own code comes from.
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() > 0.5, "{load:?}");
    assert_eq!(load.other.unwrap().0, of_b);

    // The original layout may be what a workload runs best in.
    session.leave_original().unwrap();
    go_on_with(&mut program, "b");
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() < 0.2, "{load:?}");
    assert_eq!(load.other.map(|(known, _)| known), Some(of_b), "{load:?}");
    session.resume(of_b).unwrap();
    session.settle().unwrap();

    assert!(go_on_with(&mut program, "b") > before);
    session.roll_back().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(go_on_with(&mut program, "a") > before, "it goes on");
}
