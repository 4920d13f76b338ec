//! A process as the kernel shows it: who it is, which objects it has loaded, and whether it may be
//! re-laid out. All its files are read below `/proc/PID/root`, as it sees them itself.
//!
//! [`maps`] and [`memory`] read and write it. [`stop`] stops it by [`ptrace`]; `handlers`, `unused`
//! and [`sharing`] say where its threads are then. [`inject`] has a thread do a system call, from a
//! stub in a [`cave`]. [`sampling`] and [`units`] measure what it does.

pub(crate) mod cave;
pub(crate) mod handlers;
pub(crate) mod inject;
pub mod maps;
pub(crate) mod memory;
pub(crate) mod ptrace;
pub(crate) mod sampling;
pub(crate) mod sharing;
pub(crate) mod stop;
pub(crate) mod units;
pub(crate) mod unused;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use code_layout::{Error as LayoutError, Image};
use host::{HostError, Roots};

use crate::process::maps::{LoadedObject, Mapping};
use crate::process::stop::{is_filtered, one_stopped, status_field, threads_by_chance};
use crate::{Declined, ProcessMemory, RelayoutError};

/// A running process. Pid and start time name it for good; its memory handle goes with its address
/// space.
#[derive(Debug)]
pub struct Process {
    /// The process.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_time: u64,
    /// Its executable's path, as it sees it.
    pub exe: String,
    /// The executable's inode.
    pub exe_inode: u64,
    /// Where its stack begins: drawn at each `execve` and kept by each fork. (0 where the kernel
    /// draws nothing and tells nothing.)
    pub stack_start: u64,
    /// Its memory.
    pub memory: ProcessMemory,
}

/// A file whose code the process runs: its executable or a shared library.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its path, as the process sees it.
    pub path: String,
    /// Its mappings, in order of address.
    pub mappings: Vec<Mapping>,
}

impl Object {
    /// Where it is loaded.
    pub(crate) fn loaded(&self) -> LoadedObject {
        let (start, end) = self.range();
        LoadedObject {
            start,
            end,
            inode: self.mappings.first().map_or(0, |map| map.inode),
            path: self.path.clone(),
        }
    }

    /// First address, and first address behind it.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        let start = self.mappings.iter().map(|map| map.start).min();
        let end = self.mappings.iter().map(|map| map.end).max();
        (start.unwrap_or(0), end.unwrap_or(0))
    }

    /// Runtime address minus the file's own.
    #[must_use]
    pub fn load_bias(&self, image: &Image) -> Option<u64> {
        let map = self.mappings.iter().find(|map| map.is_executable)?;
        image
            .segments()
            .iter()
            .filter(|segment| segment.executable)
            .find_map(|segment| {
                let end = segment.file_offset + segment.file_bytes;
                (map.offset < end && segment.file_offset < map.offset + map.bytes()).then(|| {
                    map.start
                        .wrapping_sub(map.offset)
                        .wrapping_add(segment.file_offset)
                        .wrapping_sub(segment.vaddr)
                })
            })
    }
}

impl Process {
    /// Opens a process for reading and writing.
    ///
    /// # Errors
    /// [`HostError::NoSuchProcess`]; [`RelayoutError::Declined`] with [`Declined::NotPermitted`] or
    /// [`Declined::NoProgram`]; [`RelayoutError::OtherMachine`].
    pub fn open(pid: u32) -> Result<Self, RelayoutError> {
        let start_time = host::start_time(&Roots::default(), pid)?;
        let declined = |reason| RelayoutError::Declined { pid, reason };
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        let exe = match fs::read_link(&link) {
            Ok(exe) => exe.to_string_lossy().into_owned(),
            Err(error) if is_refusal(&error) => {
                return Err(declined(Declined::NotPermitted {
                    why: why_not_permitted(&Roots::default(), pid),
                }));
            }
            Err(_) => return Err(declined(Declined::NoProgram)),
        };
        let memory = ProcessMemory::open(pid).map_err(|error| match &error {
            RelayoutError::Memory { source, .. } if is_refusal(source) => {
                declined(Declined::NotPermitted {
                    why: why_not_permitted(&Roots::default(), pid),
                })
            }
            _ => error,
        })?;
        let exe_inode = fs::metadata(&link).map(|metadata| metadata.ino());
        Ok(Self {
            pid,
            start_time,
            exe,
            exe_inode: exe_inode.unwrap_or(0),
            stack_start: stack_start(pid),
            memory,
        })
    }

    /// Pid and start time: no other process has both.
    #[must_use]
    pub fn id(&self) -> (u32, u64) {
        (self.pid, self.start_time)
    }

    /// Whether it still runs, and no `execve` has put another program in its place.
    #[must_use]
    pub fn is_current(&self) -> bool {
        host::is_running(&Roots::default(), self.pid, self.start_time)
            && stack_start(self.pid) == self.stack_start
    }

    /// What is mapped now.
    ///
    /// # Errors
    /// [`RelayoutError::Gone`], [`HostError::Read`].
    pub fn maps(&self) -> Result<Vec<Mapping>, RelayoutError> {
        maps::read(&Roots::default(), self.pid).map_err(|error| match error {
            HostError::NoSuchProcess { pid } => RelayoutError::Gone { pid },
            error => error.into(),
        })
    }

    /// Whether anything speaks against tracing it, before its program is looked at.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`].
    pub fn preflight(&self) -> Result<(), RelayoutError> {
        let pid = self.pid;
        let declined = |reason| Err(RelayoutError::Declined { pid, reason });
        let field = |key| status_field(pid, pid, key).unwrap_or_default();
        match field("State").chars().next() {
            Some('Z' | 'X') => return declined(Declined::NoProgram),
            Some('T') => return declined(Declined::Stopped),
            _ => {}
        }
        if let Some(tracer) = field("TracerPid")
            .parse()
            .ok()
            .filter(|tracer| *tracer != 0)
        {
            return declined(Declined::Traced { tracer });
        }
        if is_filtered(pid, pid) {
            return declined(Declined::Seccomp);
        }
        if field("x86_Thread_features")
            .split_whitespace()
            .any(|word| word == "shstk")
        {
            return declined(Declined::ShadowStack);
        }
        Ok(())
    }

    /// Whether some thread's system calls do not go to a handler of the process's own. One of them
    /// is stopped at a time, as a rule the first only; so a process that is idle is not asked.
    ///
    /// # Errors
    /// [`Declined::Dispatched`], and those of stopping.
    pub fn check_dispatch(&self) -> Result<(), RelayoutError> {
        let mut is_any = false;
        for thread in threads_by_chance(self.pid)? {
            let dispatched = one_stopped(self.pid, &self.memory, &[thread], |_| {
                Ok(ptrace::is_dispatched(thread))
            });
            match dispatched {
                Ok((true, _)) => is_any = true,
                // Whether this one can be stopped is seen when that is needed.
                Ok((false, _)) | Err(RelayoutError::NotStopping { .. }) => return Ok(()),
                Err(RelayoutError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        match is_any {
            false => Ok(()),
            true => Err(self.declined(Declined::Dispatched)),
        }
    }

    /// Whether its executable is one that can be laid out again, as far as the file's headers tell.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`].
    pub fn check_program(&self) -> Result<(), RelayoutError> {
        let executable = Object {
            path: self.exe.clone(),
            mappings: Vec::new(),
        };
        let file = self.file(&executable)?;
        let inode = fs::metadata(self.outside(&self.exe)).map(|metadata| metadata.ino());
        if inode.is_ok_and(|inode| inode != self.exe_inode) {
            return Err(self.unfit(
                &executable.path,
                "another file has its name now: restart the process to run that",
            ));
        }
        code_layout::preflight(file).map_err(|error| self.not_understood(&executable, error))
    }

    /// The objects whose code it runs, the executable first; one that was loaded twice (`dlmopen`)
    /// twice.
    ///
    /// # Errors
    /// As [`Process::maps`].
    pub fn objects(&self) -> Result<Vec<Object>, RelayoutError> {
        let mut objects = objects(self.maps()?);
        objects.sort_by_key(|object| object.path != self.exe);
        Ok(objects)
    }

    /// The path of a file of the process, for us. (The kernel tells paths from our own root where
    /// it reaches the file, so also of a process that has changed its root.)
    #[must_use]
    pub fn outside(&self, path: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        let changed = fs::read_link(&root).unwrap_or_else(|_| PathBuf::from("/"));
        let inside = Path::new(path).strip_prefix(changed);
        root.join(inside.unwrap_or(Path::new(path.trim_start_matches('/'))))
    }

    /// An object's file, after showing that the code in memory is the file's.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`]: the file is gone, replaced or not understood, or the code was
    /// changed.
    pub fn image(&self, object: &Object) -> Result<Image, RelayoutError> {
        let bytes = self.file(object)?;
        self.check_text(object, &bytes)?;
        Image::parse(bytes).map_err(|error| self.not_understood(object, error))
    }

    fn not_understood(&self, object: &Object, error: LayoutError) -> RelayoutError {
        match error {
            LayoutError::Runtime { name, why } => {
                self.declined(Declined::Runtime { runtime: name, why })
            }
            error => self.unfit(&object.path, error.to_string()),
        }
    }

    fn declined(&self, reason: Declined) -> RelayoutError {
        RelayoutError::Declined {
            pid: self.pid,
            reason,
        }
    }

    /// Declined for what one of its files is, or for how it is loaded.
    pub(crate) fn unfit(&self, path: &str, why: impl Into<String>) -> RelayoutError {
        self.declined(Declined::Program {
            path: path.to_owned(),
            why: why.into(),
        })
    }

    /// The bytes of an object's file on disk.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`], [`RelayoutError::Gone`].
    pub fn file(&self, object: &Object) -> Result<Vec<u8>, RelayoutError> {
        if let Some(path) = object.path.strip_suffix(" (deleted)") {
            return Err(self.unfit(&object.path,
                format!("{path} was deleted or replaced since it was loaded: restart the process to run the new one"),
            ));
        }
        fs::read(self.outside(&object.path)).map_err(|error| match self.is_current() {
            true => self.unfit(&object.path, format!("cannot be read: {error}")),
            // With it goes the way to its files.
            false => RelayoutError::Gone { pid: self.pid },
        })
    }

    /// Compares all code of an object with its file.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`] naming the first difference.
    pub fn check_text(&self, object: &Object, file: &[u8]) -> Result<(), RelayoutError> {
        match self.text_difference(object, file)? {
            None => Ok(()),
            Some(address) => Err(self.unfit(&object.path,
                format!("the code in memory is not the file's (first at {address:#x}): the file was replaced, or somebody else changes the code"),
            )),
        }
    }

    /// The first address at which an object's code differs from its file, if any.
    ///
    /// # Errors
    /// [`RelayoutError::Gone`], [`RelayoutError::Memory`].
    pub fn text_difference(
        &self,
        object: &Object,
        file: &[u8],
    ) -> Result<Option<u64>, RelayoutError> {
        const CHUNK: usize = 1 << 20;
        let mut bytes = vec![0; CHUNK];
        for map in object.mappings.iter().filter(|map| map.is_executable) {
            let start = usize::try_from(map.offset).unwrap_or(usize::MAX);
            let length = usize::try_from(map.bytes()).unwrap_or(usize::MAX);
            let end = start.saturating_add(length).min(file.len());
            let Some(expected) = file.get(start..end) else {
                return Ok(Some(map.start));
            };
            let mut address = map.start;
            for expected in expected.chunks(CHUNK) {
                let found = &mut bytes[..expected.len()];
                self.memory.read_into(address, found)?;
                if found != expected {
                    let at = found.iter().zip(expected).position(|(a, b)| a != b);
                    return Ok(Some(address + at.unwrap_or(0) as u64));
                }
                address += expected.len() as u64;
            }
        }
        Ok(None)
    }
}

/// Field 28 of `/proc/PID/stat` (proc_pid_stat(5)); 0 where it cannot be read.
fn stack_start(pid: u32) -> u64 {
    let text = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // The name may hold spaces and brackets; field 3 follows it.
    text.rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(28 - 3)?.parse().ok())
        .unwrap_or(0)
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// `CAP_SYS_PTRACE`'s bit (include/uapi/linux/capability.h).
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Which of the rules of ptrace(2), "Ptrace access mode checking", is the likely one.
fn why_not_permitted(roots: &Roots, pid: u32) -> String {
    let ours = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(roots.proc(pid.to_string())).map(|metadata| metadata.uid());
    let status = fs::read_to_string(roots.proc("self/status")).unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let has_capability = effective.is_some_and(|bits| bits & CAP_SYS_PTRACE != 0);
    let scope = fs::read_to_string(roots.proc("sys/kernel/yama/ptrace_scope")).unwrap_or_default();
    let user_namespace = |pid: &str| fs::read_link(roots.proc(format!("{pid}/ns/user")));
    let own_namespace = user_namespace("self").ok();
    // That of a process that may not be traced may not be read either: it is told from the first
    // one's only where we may.
    let is_in_initial = fs::read_to_string(roots.proc("self/uid_map"))
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    match (scope.trim(), owner) {
        // yama_ptrace_access_check in security/yama/yama_lsm.c: 3 forbids it to everyone.
        ("3", _) => {
            "Yama forbids it to everyone (kernel.yama.ptrace_scope = 3) until the next boot".into()
        }
        _ if has_capability && !is_in_initial => {
            "it is in another user namespace, in which this process has no CAP_SYS_PTRACE: run outside of containers"
                .into()
        }
        _ if user_namespace(&pid.to_string()).is_ok_and(|theirs| own_namespace != Some(theirs)) => {
            "it is in another user namespace, in which this process has no CAP_SYS_PTRACE".into()
        }
        (_, Ok(owner)) if owner != ours => format!(
            "it belongs to uid {owner}, and this is uid {ours} without CAP_SYS_PTRACE: run as root, with all capabilities"
        ),
        ("" | "0", _) => {
            "it has privileges that this process lacks, or is not dumpable: run as root, with CAP_SYS_PTRACE".into()
        }
        (scope, _) => format!(
            "Yama forbids it (kernel.yama.ptrace_scope = {scope}): run as root, with CAP_SYS_PTRACE, or lower it"
        ),
    }
}

/// How much further apart segments may lie in memory than in the file: some pages each, by their
/// alignment.
const SEGMENTS_APART: u64 = 16 << 20;

/// The mappings that the dynamic linker or the kernel made of each file with code, from its
/// beginning on and as far apart as in the file. What else is mapped of it, as V8 does with some of
/// its code, and who reads a file's symbols, is no object.
fn objects(maps: Vec<Mapping>) -> Vec<Object> {
    let mut objects: Vec<Object> = Vec::new();
    for map in maps {
        if map.inode == 0 || !map.path.starts_with('/') {
            continue;
        }
        let goes_on = |last: &Mapping| {
            let (in_file, in_memory) =
                (map.offset.checked_sub(last.offset), map.start - last.start);
            in_file.is_some_and(|in_file| in_memory.wrapping_sub(in_file) <= SEGMENTS_APART)
        };
        let mut known = objects.iter_mut().rev();
        let last = known.find(|object| object.path == map.path);
        match last.filter(|object| object.mappings.last().is_some_and(goes_on)) {
            Some(object) => object.mappings.push(map),
            None => objects.push(Object {
                path: map.path.clone(),
                mappings: vec![map],
            }),
        }
    }
    objects.retain(|object| {
        let mut mappings = object.mappings.iter();
        object.mappings[0].offset == 0 && mappings.any(|map| map.is_executable)
    });
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `/proc` in which this process has these capabilities, and Yama this scope.
    fn why(effective: &str, uid_map: &str, scope: Option<&str>) -> String {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        for path in ["self", "7", "sys/kernel/yama"] {
            fs::create_dir_all(roots.proc(path)).unwrap();
        }
        fs::write(roots.proc("self/status"), format!("CapEff:\t{effective}\n")).unwrap();
        fs::write(roots.proc("self/uid_map"), uid_map).unwrap();
        if let Some(scope) = scope {
            fs::write(roots.proc("sys/kernel/yama/ptrace_scope"), scope).unwrap();
        }
        why_not_permitted(&roots, 7)
    }

    #[test]
    fn other_mappings_of_a_file_are_no_part_of_the_object() {
        let map = |start: u64, offset: u64, is_executable: bool, path: &str| Mapping {
            start,
            end: start + 0x1000,
            is_readable: true,
            is_writable: false,
            is_executable,
            is_private: true,
            offset,
            inode: 7,
            path: path.to_owned(),
        };
        let maps = vec![
            map(0x40_0000, 0, false, "/node"),
            map(0x40_1000, 0x1000, true, "/node"),
            map(0x40_2000, 0x1000, false, "/node"),
            map(0x7f00_0000_0000, 0, true, "/libgcc"),
            map(0x7f00_0000_1000, 0x1000, false, "/libgcc"),
            // A copy of some code, a file that is read, and a library in a namespace of its own.
            map(0x7f00_1000_0000, 0, true, "/libgcc"),
            map(0x7f00_2000_0000, 0, false, "/libgcc"),
            map(0x7f00_3000_0000, 0, false, "/node"),
            map(0x7f00_4000_0000, 0x1000, true, "/node"),
        ];
        let found = objects(maps);
        let ranges: Vec<(&str, u64, u64)> = found
            .iter()
            .map(|object| (object.path.as_str(), object.range().0, object.range().1))
            .collect();
        assert_eq!(
            ranges,
            [
                ("/node", 0x40_0000, 0x40_3000),
                ("/libgcc", 0x7f00_0000_0000, 0x7f00_0000_2000),
                ("/libgcc", 0x7f00_1000_0000, 0x7f00_1000_1000),
            ]
        );
    }

    #[test]
    fn the_rule_that_forbids_it_is_named() {
        const ALL: &str = "000001ffffffffff";
        const INITIAL: &str = "         0          0 4294967295\n";
        let none = "0000000000000000";
        for (effective, map, scope, said) in [
            (none, INITIAL, Some("1\n"), "kernel.yama.ptrace_scope = 1"),
            (none, INITIAL, Some("2\n"), "kernel.yama.ptrace_scope = 2"),
            (ALL, INITIAL, Some("3\n"), "until the next boot"),
            (none, INITIAL, Some("0\n"), "CAP_SYS_PTRACE"),
            (none, INITIAL, None, "not dumpable"),
            (ALL, "0 1000 1\n", None, "user namespace"),
        ] {
            let why = why(effective, map, scope);
            assert!(why.contains(said), "{why}");
        }
    }
}
