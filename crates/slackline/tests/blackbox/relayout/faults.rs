//! Processes that cannot, or should not, be re-laid out: each is named with its reason, listed as
//! declined, and goes on as it was.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use relayout::{
    Drive, Driver, ManifestStore, Process, ProfilingOptions, RelayoutError, Session, drive,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::eventually::{eventually, found_within};
use crate::toy::{Ended, Toy, skip};

/// `nobody` of Debian.
const NOBODY: u32 = 65534;

/// Profiled for a short time only.
pub(super) fn in_a_hurry() -> ProfilingOptions {
    ProfilingOptions {
        sampling: Duration::from_millis(400),
        counting: Duration::from_millis(20),
        resting: Duration::from_millis(5),
        ..ProfilingOptions::default()
    }
}

pub(super) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&"this takes root");
    }
    is_root
}

pub(super) fn compile(name: &str, source: &Path, options: &[&str]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(options).arg("-o").arg(&path).arg(source);
    assert!(cc.status().unwrap().success());
    path
}

/// The pid of the child of a process.
fn only_child(pid: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.trim().parse().unwrap()
}

/// The program under test, compiled once.
fn executable() -> &'static Path {
    static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
    EXECUTABLE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = source.join("tests/blackbox/relayout/program.c");
        let name = format!("relayout-program-{}", std::process::id());
        compile(&name, &source, &["-O1", "-s", "-pthread"])
    })
}

/// One that runs.
pub(super) struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// That of the program, where `child` is what started it.
    pub(super) pid: u32,
}

impl Program {
    pub(super) fn start(mode: &[&str]) -> Self {
        let mut command = Command::new(executable());
        Self::run(command.args(mode))
    }

    pub(super) fn run(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut program = Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            pid: child.id(),
            child,
        };
        assert_eq!(program.line(), "ready");
        program
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Gives it a command; how many rounds were done.
    pub(super) fn say(&mut self, command: &str) -> u64 {
        self.stdin
            .write_all(format!("{command}\n").as_bytes())
            .unwrap();
        let line = self.line();
        let rounds = line.parse();
        rounds.unwrap_or_else(|_| panic!("it ended: {line:?} {:?}", self.child.try_wait()))
    }

    fn rounds(&mut self) -> u64 {
        self.say("c")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn state(&self) -> char {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        state.unwrap().trim().chars().next().unwrap()
    }

    pub(super) fn start_arguments(&self) -> Vec<String> {
        let pid = self.pid.to_string();
        let words = ["relayout", "start", "--pid", &pid, "--once", "--json"];
        words.map(str::to_owned).to_vec()
    }

    /// It works, and nothing of it was changed.
    pub(super) fn assert_as_before(&mut self) {
        self.wait_for_rounds(1);
        assert_unchanged(self.pid);
    }

    /// It works: until it has done so many more.
    pub(super) fn wait_for_rounds(&mut self, count: u64) {
        let before = self.rounds();
        let goes_on = || self.rounds() >= before + count;
        eventually(60, goes_on, || "it stands still");
    }

    /// `start` leaves it alone, says why, and so does `status`.
    fn assert_declined(&mut self, toy: &Toy, said: &[&str]) {
        self.declined_by(toy, toy.slackline(&as_str(&self.start_arguments())), said);
        self.assert_as_before();
    }

    fn declined_by(&self, toy: &Toy, start: Command, said: &[&str]) {
        let ended = Ended::of(start).with_code(1);
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_reason(&printed["processes"][0], said);
        assert_reason(&status(toy, self.pid), said);
    }

    /// Puts a layout in force that nobody verifies.
    pub(super) fn lay_out(&self, toy: &Toy) {
        self.lay_out_by(toy, in_a_hurry());
    }

    /// The same, profiled like this. No command of Slackline does that.
    pub(super) fn lay_out_by(&self, toy: &Toy, options: ProfilingOptions) {
        let store = ManifestStore::open(&toy.path("state")).unwrap();
        let mut session = Session::open(&store, self.pid, options).unwrap();
        session.look().unwrap();
        session.count().unwrap();
        assert_ne!(session.install().unwrap().generation, 0);
        session.keep_profile(&store, None).unwrap();
    }

    /// Until nothing of ours is left.
    pub(super) fn roll_back(&self, toy: &Toy) {
        let ended = roll_back_all(toy);
        assert!(ended.stdout.contains("restored"), "{}", ended.stdout);
        self.roll_back_the_rest(toy);
    }

    /// Where a thread waits for a CPU inside moved code its memory stays for now.
    pub(super) fn roll_back_the_rest(&self, toy: &Toy) {
        let process = Process::open(self.pid).unwrap();
        found_within(20, || match has_code_cache(&process) {
            true => Err(roll_back_all(toy).stdout),
            false => Ok(()),
        });
    }

    pub(super) fn quit(mut self) {
        self.stdin.write_all(b"q\n").unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn as_str(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn roll_back_all(toy: &Toy) -> Ended {
    Ended::of(toy.slackline(&["relayout", "rollback", "--all"])).with_code(0)
}

fn assert_reason(process: &Value, said: &[&str]) {
    assert_eq!(process["state"], "declined", "{process}");
    let reason = process["reason"].as_str().unwrap();
    for text in said {
        assert!(reason.contains(text), "{text:?} is not in: {reason}");
    }
}

/// What `status` says of a process.
fn status(toy: &Toy, pid: u32) -> Value {
    let ended = Ended::of(toy.slackline(&["relayout", "status", "--json"])).with_code(0);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let processes = printed["processes"].as_array().unwrap();
    let known = processes.iter().find(|process| process["pid"] == pid);
    known.unwrap_or_else(|| panic!("{printed}")).clone()
}

/// All its code is its files', and there is no memory of ours.
fn assert_unchanged(pid: u32) {
    assert_text_unchanged(pid);
    assert!(!has_code_cache(&Process::open(pid).unwrap()));
}

fn assert_text_unchanged(pid: u32) {
    let process = Process::open(pid).unwrap();
    for object in process.objects().unwrap() {
        // What was deleted is read by the mapping itself, not by its name.
        let Ok(file) = process.file(&object) else {
            continue;
        };
        assert_eq!(process.text_difference(&object, &file).unwrap(), None);
    }
}

pub(super) fn has_code_cache(process: &Process) -> bool {
    let maps = process.maps().unwrap();
    maps.iter()
        .any(|map| map.is_anonymous() && map.is_executable)
}

#[test]
fn a_process_with_another_tracer_is_declined() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["traced"]);
    program.assert_declined(&toy, &["already traced, by process"]);
    program.quit();
}

#[test]
fn a_process_that_may_not_be_traced_is_named_with_the_rule_and_declined() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(toy.path(""), open.clone()).unwrap();
    let copy = toy.path("program");
    fs::copy(executable(), &copy).unwrap();
    fs::set_permissions(&copy, open).unwrap();
    let theirs = Program::run(Command::new(&copy).uid(NOBODY));
    let ours = Program::start(&["plain"]);
    let without_capability: &[&str] = &["setpriv", "--bounding-set=-sys_ptrace"];
    let elsewhere: &[&str] = &["unshare", "--user", "--map-root-user"];
    let mut programs = [theirs, ours];
    for (which, with, said) in [
        (0, without_capability, "belongs to uid 65534"),
        (1, without_capability, "CAP_SYS_PTRACE"),
        (1, elsewhere, "another user namespace"),
    ] {
        let program: &mut Program = &mut programs[which];
        let slackline = toy.slackline(&as_str(&program.start_arguments()));
        let mut start = Command::new(with[0]);
        start.args(&with[1..]);
        start
            .arg(slackline.get_program())
            .args(slackline.get_args());
        Ended::of(start).with_code(3).saying(&[said]);
        assert_reason(&status(&toy, program.pid), &[said]);
        program.assert_as_before();
    }
    programs.into_iter().for_each(Program::quit);
}

#[test]
fn programs_that_are_not_understood_are_declined() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let assembly = toy.path("loop.S");
    // Sleeps for ever. The mark is at the place where UPX leaves its own; no real one is in Debian
    // 12.
    let nap = |call: &str| {
        format!(
            ".globl _start\n.ascii \"UPX!\"\n_start: {call}\njmp _start\n.balign 8\nnap: .quad 1000,0\n"
        )
    };
    let wide = nap("mov $35, %eax; lea nap(%rip), %rdi; xor %esi, %esi; syscall");
    let narrow = nap("mov $162, %eax; mov $nap, %ebx; xor %ecx, %ecx; int $0x80");
    let bare = &[
        "-nostdlib",
        "-static",
        "-Wl,-n",
        "-Wl,--build-id=none",
        "-s",
    ];
    fs::write(&assembly, narrow).unwrap();
    let narrow = compile(
        "relayout-32-bit",
        &assembly,
        &[bare as &[&str], &["-m32"]].concat(),
    );
    fs::write(&assembly, wide).unwrap();
    let packed = compile("relayout-packed", &assembly, bare);
    // Without section headers, as packed files are: e_shoff, e_shnum and e_shstrndx (elf(5)).
    let mut bytes = fs::read(&packed).unwrap();
    bytes[0x28..0x30].fill(0);
    bytes[0x3c..0x40].fill(0);
    let mark = bytes.windows(4).position(|word| word == b"UPX!");
    assert!(mark.unwrap() < 1024);
    fs::write(&packed, bytes).unwrap();
    for (path, said) in [(&narrow, "a 32-bit ELF file"), (&packed, "packed by UPX")] {
        let mut sleeper = Command::new(path).spawn().unwrap();
        let pid = sleeper.id().to_string();
        let start = toy.slackline(&["relayout", "start", "--pid", &pid, "--once"]);
        let ended = Ended::of(start).with_code(1);
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
        assert_reason(&status(&toy, sleeper.id()), &[said]);
        assert!(sleeper.try_wait().unwrap().is_none(), "it lives on");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/blackbox/relayout/program.c");
    let fixed = compile("relayout-static", &source, &["-O1", "-static", "-pthread"]);
    let mut program = Program::run(&mut Command::new(fixed));
    program.assert_declined(&toy, &["statically linked"]);
    program.quit();
    let bare = toy.path("bare");
    let mut objcopy = Command::new("objcopy");
    objcopy.args([
        "--remove-section=.eh_frame",
        "--remove-section=.eh_frame_hdr",
    ]);
    assert!(
        objcopy
            .arg(executable())
            .arg(&bare)
            .status()
            .unwrap()
            .success()
    );
    let mut program = Program::run(&mut Command::new(bare));
    program.assert_declined(&toy, &["no .eh_frame"]);
    program.quit();
}

#[test]
fn a_program_whose_file_was_deleted_or_replaced_is_declined() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let path = toy.path("program");
    for is_replaced in [false, true] {
        fs::copy(executable(), &path).unwrap();
        let mut program = Program::run(&mut Command::new(&path));
        if is_replaced {
            fs::copy("/bin/true", toy.path("next")).unwrap();
            fs::rename(toy.path("next"), &path).unwrap();
        } else {
            fs::remove_file(&path).unwrap();
        }
        program.assert_declined(
            &toy,
            &["program was deleted or replaced since it was loaded"],
        );
        program.quit();
    }
}

#[test]
fn a_process_whose_file_an_upgrade_replaced_is_found_by_its_name_all_the_same() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let path = toy.path("slackline-test-replaced");
    fs::copy(executable(), &path).unwrap();
    let program = Program::run(&mut Command::new(&path));
    fs::remove_file(&path).unwrap();
    let name = "slackline-test-replaced";
    let start = toy.slackline(&["relayout", "start", "--exe", name, "--once", "--json"]);
    program.declined_by(&toy, start, &["restart the process to run the new one"]);
    program.quit();
}

#[test]
fn a_thread_is_not_taken_for_a_process() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    let tasks = fs::read_dir(format!("/proc/{}/task", program.pid)).unwrap();
    let names = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let thread = names.max_by_key(|name| name.parse::<u32>().unwrap());
    let thread = thread.unwrap();
    let said = format!("is a thread of process {0}: --pid {0}", program.pid);
    Ended::of(toy.slackline(&["relayout", "start", "--pid", &thread, "--once"]))
        .with_code(2)
        .saying(&[&said]);
    program.assert_as_before();
    program.quit();
}

#[test]
fn a_process_that_cannot_have_memory_for_code_is_declined() {
    if !is_root() {
        return;
    }
    for (mode, said) in [
        ("seccomp", "a seccomp filter is installed"),
        ("crowded", "no room of"),
        (
            "full",
            "may not map memory for the code cache: Cannot allocate memory",
        ),
    ] {
        let toy = Toy::new();
        let mut program = Program::start(&[mode]);
        program.assert_declined(&toy, &[said]);
        let rollback = toy.slackline(&["relayout", "rollback", "--all"]);
        Ended::of(rollback).with_code(0);
        program.quit();
    }
}

/// Services sandbox themselves once they have begun, or some of their threads.
#[test]
fn who_is_under_seccomp_is_asked_for_no_system_call() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["sandbox"]);
    program.lay_out(&toy);
    let before = program.rounds();
    while program.rounds() == before {}
    Ended::of(toy.slackline(&["relayout", "rollback", "--all"])).with_code(0);
    program.assert_as_before();
    program.quit();
    let mut program = Program::start(&["plain"]);
    program.lay_out(&toy);
    program.say("s");
    let rollback = toy.slackline(&["relayout", "rollback", "--all"]);
    let rolled_back = Ended::of(rollback).with_code(0);
    let said = &rolled_back.stdout;
    assert!(
        said.contains("restored to the original bytes") && said.contains("seccomp filter"),
        "{said}"
    );
    let before = program.rounds();
    while program.rounds() == before {}
    // The memory stays.
    assert_text_unchanged(program.pid);
    program.quit();
}

#[test]
fn a_thread_in_an_uninterruptible_sleep_holds_nobody_up() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["vfork"]);
    let start = toy.slackline(&as_str(&program.start_arguments()));
    program.declined_by(&toy, start, &["state D", "a child that it made by vfork"]);
    let before = program.rounds();
    while program.rounds() == before {}
    assert_text_unchanged(program.pid);
    // Its memory cannot be looked through while the thread sleeps; it can when the child has ended.
    let children = format!("/proc/{}/task", program.pid);
    let child_of = |task: &Path| fs::read_to_string(task.join("children")).unwrap();
    let tasks = fs::read_dir(children).unwrap().flatten();
    let children: String = tasks.map(|task| child_of(&task.path())).collect();
    let child = Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    kill_process(child, Signal::KILL).unwrap();
    while program_has_sleeper(program.pid) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let process = Process::open(program.pid).unwrap();
    while has_code_cache(&process) {
        Ended::of(toy.slackline(&["relayout", "rollback", "--all"])).with_code(0);
    }
    program.assert_as_before();
    program.quit();
}

fn program_has_sleeper(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.contains(") D ")
    })
}

#[test]
fn a_process_that_its_user_stopped_stays_stopped_and_comes_back() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = Program::start(&["plain"]);
    program.signal(Signal::STOP);
    while program.state() != 'T' {
        std::thread::sleep(Duration::from_millis(1));
    }
    let start = toy.slackline(&as_str(&program.start_arguments()));
    program.declined_by(&toy, start, &["it is stopped (SIGSTOP, or Ctrl-Z)"]);
    assert_eq!(program.state(), 'T');
    program.signal(Signal::CONT);
    program.assert_as_before();
    program.quit();
}

#[test]
fn a_process_that_ends_or_becomes_another_while_it_is_laid_out_is_left_alone() {
    if !is_root() {
        return;
    }
    for (mode, after_us) in [("exit", 0), ("exec", 60_000)] {
        let toy = Toy::new();
        let mut program = Program::start(&[mode, &after_us.to_string()]);
        let start = toy.slackline(&as_str(&program.start_arguments()));
        let ended = Ended::of(start).with_code(1);
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        let said = "it ended, or executed another program, while it was being counted or laid out";
        assert_reason(&printed["processes"][0], &[said]);
        if mode == "exec" {
            assert_reason(&status(&toy, program.pid), &[said]);
            program.assert_as_before();
            program.quit();
        } else {
            assert!(program.child.wait().unwrap().success(), "{after_us}");
        }
        Ended::of(toy.slackline(&["relayout", "rollback", "--all"]))
            .with_code(0)
            .saying(&["Nothing to roll back"]);
    }
}

/// Nothing is counted here, so that it ends while its code is written.
#[test]
fn a_process_that_ends_or_becomes_another_while_its_code_is_written_is_left_alone() {
    if !is_root() {
        return;
    }
    for (mode, after_us) in [("exit", 0), ("exec", 0), ("exec", 3_000)] {
        let toy = Toy::new();
        // By a shell: who traces its own child takes the child's end from whoever waits for it.
        let mut shell = Command::new("sh");
        shell.args(["-c", "\"$0\" \"$@\"; exit $?"]);
        shell.arg(executable()).args([mode, &after_us.to_string()]);
        let mut program = Program::run(&mut shell);
        program.pid = only_child(program.child.id());
        let store = ManifestStore::open(&toy.path("state")).unwrap();
        let with = Drive {
            method: ProfilingOptions {
                random: Some(1),
                ..ProfilingOptions::default()
            },
            ..Drive::default()
        };
        let mut driver = Driver::new(with.settings);
        let driven = Session::open(&store, program.pid, with.method).and_then(|mut session| {
            let (mut goes_on, mut show) = (|| false, |_: &_| {});
            drive(
                &store,
                &mut session,
                &mut driver,
                &with,
                &mut goes_on,
                &mut show,
            )
        });
        assert!(
            matches!(driven, Err(RelayoutError::Gone { .. })),
            "{driven:?}"
        );
        if mode == "exec" {
            program.assert_as_before();
            program.quit();
        } else {
            assert!(program.child.wait().unwrap().success(), "{after_us}");
        }
        let roll_back_all = || Ended::of(toy.slackline(&["relayout", "rollback", "--all"]));
        roll_back_all().with_code(0);
        let again = roll_back_all().with_code(0);
        again.saying(&["Nothing to roll back"]);
    }
}

#[test]
fn a_process_in_a_container_is_laid_out_from_outside_and_back() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    // A file that is nowhere outside of it, and a /tmp of its own.
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/inside && mount -t tmpfs none /tmp && exec /mnt/inside";
    let mut unshare = Command::new("unshare");
    unshare.args(["-pmf", "--mount-proc", "--kill-child", "sh", "-c", script]);
    let mut program = Program::run(unshare.arg(executable()));
    program.pid = only_child(program.child.id());
    program.lay_out(&toy);
    let process = Process::open(program.pid).unwrap();
    assert!(has_code_cache(&process));
    let map = process.outside("/tmp/perf-1.map");
    assert!(fs::read_to_string(&map).unwrap().contains("inside+0x"));
    let before = program.rounds();
    while program.rounds() == before {}
    program.roll_back(&toy);
    assert!(!map.exists());
    program.assert_as_before();
    program.quit();
}

#[test]
fn a_process_with_a_root_of_its_own_is_laid_out_and_back() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let root = toy.path("jail");
    for library in [executable(), Path::new("/lib64/ld-linux-x86-64.so.2")]
        .into_iter()
        .chain([Path::new("/lib/x86_64-linux-gnu/libc.so.6")])
    {
        let inside = match library == executable() {
            true => root.join("program"),
            false => root.join(library.strip_prefix("/").unwrap()),
        };
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::copy(library, inside).unwrap();
    }
    let mut chroot = Command::new("chroot");
    let mut program = Program::run(chroot.args([root.as_os_str(), OsStr::new("/program")]));
    program.lay_out(&toy);
    program.roll_back(&toy);
    program.assert_as_before();
    program.quit();
}
