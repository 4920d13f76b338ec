//! A program whose workload changes, and comes back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use relayout::{Session, Store};

use crate::layout::method;

struct Phases {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Phases {
    fn start(directory: &Path) -> Self {
        let path = directory.join("phases");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/phases.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-g0", "-s", "-pthread", "-o"]);
        let status = compiler.arg(&path).arg(source).status().unwrap();
        assert!(status.success());
        let mut program = Command::new(path);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Lets it do this from now on; how many rounds it has done until now.
    fn go_on_with(&mut self, workload: &str) -> u64 {
        writeln!(self.stdin, "{workload}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().parse().unwrap()
    }
}

impl Drop for Phases {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    let mut program = Phases::start(dir.path());
    let mut session = Session::open(&store, program.child.id(), method(None)).unwrap();
    let load = session.look().unwrap();
    assert_eq!((load.overlap, load.other), (None, None));
    let of_a = laid_out(&mut session);
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() > 0.5, "{load:?}");

    program.go_on_with("b");
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

    let before = program.go_on_with("a");
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
    program.go_on_with("b");
    let load = session.look().unwrap();
    assert!(load.overlap.unwrap() < 0.2, "{load:?}");
    assert_eq!(load.other.map(|(known, _)| known), Some(of_b), "{load:?}");
    session.resume(of_b).unwrap();
    session.settle().unwrap();

    assert!(program.go_on_with("b") > before);
    session.roll_back().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(program.go_on_with("a") > before, "it goes on");
}
