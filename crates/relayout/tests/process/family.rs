//! A layout in a family of processes: who lives already, who is forked later, who leaves it; and
//! what else happens to a process that is patched: an `execve`, a library that is closed.

use std::path::PathBuf;
use std::process::Command;

use relayout::{ManifestStore, PatchedProcess, Process, RelayoutError};

use crate::talk::{self, Program};
use crate::target::two;

struct Family {
    program: Program,
    answer: u64,
    children: Vec<u32>,
}

fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    let name = format!("{name}-{}", std::process::id());
    talk::compile("cc", source, &name, &[&["-O1"], options].concat())
}

impl Family {
    fn start(name: &str) -> Self {
        let mut program = Program::run(&mut Command::new(compile("family.c", name, &[])));
        Self {
            answer: program.address(),
            program,
            children: Vec::new(),
        }
    }

    fn fork(&mut self) -> u32 {
        self.program.say("f");
        let pid = self.program.line().parse().unwrap();
        self.children.push(pid);
        pid
    }

    /// What each process's `answer` gives: the parent's first.
    fn answers(&mut self) -> Vec<u32> {
        self.program.numbers("c")
    }

    fn pid(&self) -> u32 {
        self.program.pid()
    }

    fn open(&self, store: &ManifestStore) -> PatchedProcess {
        PatchedProcess::open(store, Process::open(self.pid()).unwrap()).unwrap()
    }

    fn assert_original(&self) {
        for pid in self.children.iter().chain([&self.pid()]) {
            let Ok(process) = Process::open(*pid) else {
                continue;
            };
            for object in process.objects().unwrap() {
                let file = process.file(&object).unwrap();
                let difference = process.text_difference(&object, &file).unwrap();
                assert_eq!(difference, None, "{pid} {}", object.path);
            }
            let maps = process.maps().unwrap();
            let is_ours = |map: &relayout::maps::Mapping| map.is_anonymous() && map.is_executable;
            assert!(!maps.iter().any(is_ours), "{pid} has its memory back");
        }
    }
}

#[test]
fn who_lives_already_and_who_is_forked_later_has_the_layout_and_loses_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut family = Family::start("members");
    family.fork();
    family.fork();
    let mut cache = family.open(&store);
    let number = two(&mut cache, family.answer);
    assert_eq!(family.answers(), [1, 1, 1]);
    let switched = cache.switch(number).unwrap();
    assert_eq!((switched.processes, switched.left_out.len()), (3, 0));
    assert_eq!(family.answers(), [2, 2, 2]);
    // Forked from one that has it.
    let late = family.fork();
    assert_eq!(family.answers(), [2, 2, 2, 2]);
    assert_eq!(cache.pids().len(), 4);
    cache.switch(0).unwrap();
    assert_eq!(family.answers(), [1, 1, 1, 1]);
    cache.switch(number).unwrap();
    // One of them ends, and nobody minds.
    Command::new("kill")
        .args(["-9", &late.to_string()])
        .status()
        .unwrap();
    // Another Slackline, which knows only what is on disk.
    drop(cache);
    let (switched, kept) = family.open(&store).rollback().unwrap();
    assert!(switched.is_whole(), "{switched:?}");
    assert_eq!(kept.bytes, 0, "{kept:?}");
    assert_eq!(family.answers()[..3], [1, 1, 1]);
    family.assert_original();
    assert_eq!(store.all().unwrap(), []);
}

#[test]
fn a_member_that_is_stopped_stays_as_it_is_and_is_done_later() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut family = Family::start("stopped");
    let member = family.fork().to_string();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &member]).status();
        assert!(status.unwrap().success());
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    let mut cache = family.open(&store);
    let number = two(&mut cache, family.answer);
    signal("-STOP");
    let switched = cache.switch(number).unwrap();
    assert_eq!(switched.left_out.len(), 1);
    assert!(switched.left_out[0].1.contains("stopped"), "{switched:?}");
    signal("-CONT");
    assert_eq!(family.answers(), [2, 1]);
    assert!(cache.switch(number).unwrap().is_whole());
    assert_eq!(family.answers(), [2, 2]);
    assert!(cache.rollback().unwrap().0.is_whole());
    family.assert_original();
}

#[test]
fn what_a_parent_forked_before_it_executed_another_program_is_rolled_back_and_the_program_left_alone()
 {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut family = Family::start("executes");
    let mut cache = family.open(&store);
    let number = two(&mut cache, family.answer);
    cache.switch(number).unwrap();
    let member = family.fork();
    assert_eq!(family.answers(), [2, 2]);
    family.program.say("x");
    family.answer = family.program.address();
    assert_eq!(family.answers(), [1]);
    assert!(!cache.process.is_current());
    let error = cache.process.memory.read(cache.process.stack_start & !7, 8);
    assert!(
        matches!(error, Err(RelayoutError::Gone { .. })),
        "{error:?}"
    );
    // The same pid and start time, the same file, and yet nobody that the manifest speaks of.
    let manifest = store.all().unwrap().remove(0);
    assert!(manifest.is_alive() && !manifest.is_of(&Process::open(family.pid()).unwrap()));
    let mut earlier = PatchedProcess::of(&store, manifest).unwrap().unwrap();
    assert_eq!(earlier.pids(), [member]);
    assert!(earlier.rollback().unwrap().0.is_whole());
    family.assert_original();
    assert_eq!(store.all().unwrap(), []);
}

#[test]
fn a_manifest_of_a_process_whose_pid_is_in_use_again_touches_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut family = Family::start("reused");
    let mut cache = family.open(&store);
    two(&mut cache, family.answer);
    // As if the process of the manifest had ended, and another one had its pid now.
    let mut manifest = store.all().unwrap().remove(0);
    manifest.start_time -= 1;
    manifest.stack_start ^= 1 << 20;
    assert!(!manifest.is_alive());
    assert!(PatchedProcess::of(&store, manifest).unwrap().is_none());
    assert_eq!(family.answers(), [1]);
}

#[test]
fn a_patched_library_that_is_closed_or_opened_elsewhere_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let library = compile("plugin.c", "plugin.so", &["-shared", "-fPIC"]);
    let mut family = Family::start("closes");
    let open = format!("l {}", library.display());
    family.program.say(&open);
    let plugged = family.program.address();
    assert_ne!(plugged, 0);
    let mut cache = family.open(&store);
    let number = two(&mut cache, plugged);
    cache.switch(number).unwrap();
    family.program.say("u");
    assert_eq!(family.program.line(), "0");
    // Something else at the same place: nothing of it is ours.
    let switched = cache.switch(0).unwrap();
    assert!(switched.is_whole(), "{switched:?}");
    assert_eq!(
        switched.closed.iter().collect::<Vec<_>>(),
        [&library.display().to_string()]
    );
    let (switched, kept) = cache.rollback().unwrap();
    assert!(
        switched.is_whole() && kept.bytes == 0,
        "{switched:?} {kept:?}"
    );
    family.program.say(&open);
    assert_ne!(family.program.address(), 0);
    family.assert_original();
}
