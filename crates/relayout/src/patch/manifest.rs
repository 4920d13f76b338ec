//! The undo manifest of one process: everything that was, or was about to be, written into it, with
//! the bytes that were there before. It is on disk, fsynced, before the first byte is written.
//!
//! It is no record of [`host::Journal`]: a relayout outlives the command that made it and goes with
//! its process, while the journal is empty between two runs, is locked for the length of one, and
//! undone at its end. The discipline is the same, and so is the file's replacement
//! ([`host::replace_synced`]).
//!
//! `STATE_DIR/relayout/PID-STARTTIME.json`; the start time keeps a later process with the same pid
//! apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use code_layout::Lookup;
use host::{HostError, Lock, Roots, hex};
use serde::{Deserialize, Serialize};

use crate::patch::unwinder::Unwinder;
use crate::{Process, RelayoutError};

pub use crate::process::maps::LoadedObject;

/// The version of the format; a manifest of another one is left alone.
const VERSION: u32 = 3;

/// How long an operation waits for another Slackline that is writing into some process: each takes
/// milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(20);

/// Bytes in JSON, as a hexadecimal string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        hex::decode(&text)
            .map(Self)
            .ok_or_else(|| serde::de::Error::custom("not pairs of hexadecimal digits"))
    }
}

/// Bytes of the process that are replaced. Never crosses a page, so that it is replaced as a whole
/// or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedPatch {
    /// The address in the process.
    pub address: u64,
    /// What was there at first.
    pub old: Bytes,
    /// What is there while the patch is in force; as long as `old`.
    pub new: Bytes,
}

impl AppliedPatch {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address + self.old.0.len() as u64
    }
}

/// Memory that was mapped into the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// The address in the process.
    pub address: u64,
    /// How much.
    pub bytes: u64,
    /// Code: something may return into it. Otherwise counters, which only such code knows.
    pub is_code: bool,
    /// The first bytes of it, by which it is known to be ours.
    pub mark: Bytes,
    /// What finds the unwind information of its code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<Lookup>,
}

impl Region {
    /// The first address behind it.
    pub(crate) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// One layout of the process. Number 0 is the original one and has none of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number, from 1.
    pub number: u32,
    /// In order of address, without overlaps.
    pub patches: Vec<AppliedPatch>,
    /// The memory that its patches lead into, by address.
    pub regions: Vec<u64>,
}

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    /// The process.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_time: u64,
    /// The boot.
    pub boot_id: String,
    /// Its executable.
    pub exe: String,
    /// Inode of the executable, by which children are known.
    pub exe_inode: u64,
    /// Where its stack begins: drawn at each `execve` and kept by each fork, so it tells one
    /// program from the next.
    pub stack_start: u64,
    /// The files that are patched.
    pub objects: Vec<LoadedObject>,
    /// Other processes that were written into: those that were forked from this one. (pid, start
    /// time)
    pub members: Vec<(u32, u64)>,
    /// Memory of ours in it (mapped, or about to be), also of generations that are gone.
    pub regions: Vec<Region>,
    /// The layouts.
    pub generations: Vec<Generation>,
    /// What is led to moved code, where the process has an unwinder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwinder: Option<Unwinder>,
    /// Code of ours in the process's own text: there for the length of a system call, or in what
    /// was forked meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stub: Option<AppliedPatch>,
    /// The layout in force, as far as known: after a crash in the middle of a switch some patches
    /// are of another one. Nothing is undone by it, so it lies in a small file of its own,
    /// `PID-STARTTIME.generation`, which is not synced.
    #[serde(skip)]
    pub generation: u32,
    #[serde(skip)]
    path: PathBuf,
}

impl Manifest {
    /// An empty one, not yet on disk.
    #[must_use]
    pub fn new(store: &ManifestStore, process: &Process) -> Self {
        let (pid, start_time) = (process.pid, process.start_time);
        Self {
            version: VERSION,
            pid,
            start_time,
            boot_id: host::boot_id(&Roots::default()),
            exe: process.exe.clone(),
            exe_inode: process.exe_inode,
            stack_start: process.stack_start,
            objects: Vec::new(),
            members: Vec::new(),
            regions: Vec::new(),
            generations: Vec::new(),
            unwinder: None,
            stub: None,
            generation: 0,
            path: store.path(pid, start_time),
        }
    }

    /// A generation by its number.
    ///
    /// # Errors
    /// [`RelayoutError::NoGeneration`].
    pub fn generation(&self, number: u32) -> Result<&Generation, RelayoutError> {
        self.generations
            .iter()
            .find(|generation| generation.number == number)
            .ok_or_else(|| self.no_generation(number))
    }

    fn no_generation(&self, number: u32) -> RelayoutError {
        let known = self.generations.iter().map(|generation| generation.number);
        let known = std::iter::once(0).chain(known);
        RelayoutError::NoGeneration {
            pid: self.pid,
            number,
            known: known
                .map(|number| number.to_string())
                .collect::<Vec<_>>()
                .join(", "),
        }
    }

    /// A region by its address.
    ///
    /// # Errors
    /// [`RelayoutError::NoGeneration`]: it was given back, by somebody who rolled back before a
    /// generation led there.
    pub(crate) fn region(&mut self, address: u64) -> Result<&mut Region, RelayoutError> {
        let is_there = |region: &Region| region.address == address;
        match self.regions.iter().position(is_there) {
            Some(index) => Ok(&mut self.regions[index]),
            None => Err(self.no_generation(self.next_number())),
        }
    }

    /// Memory of the process that is mapped for code and counters, and for what could not be given
    /// back yet.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }

    /// The number that the next generation gets.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        let last = self.generations.iter().map(|generation| generation.number);
        last.max().unwrap_or(0) + 1
    }

    /// Whether the process it speaks of still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let roots = Roots::default();
        self.is_of_this_boot() && host::is_running(&roots, self.pid, self.start_time)
    }

    /// Whether its pids mean anything.
    #[must_use]
    pub fn is_of_this_boot(&self) -> bool {
        host::boot_id(&Roots::default()) == self.boot_id
    }

    /// Whether it speaks of this process and of the program that it runs now.
    #[must_use]
    pub fn is_of(&self, process: &Process) -> bool {
        (self.pid, self.start_time) == process.id()
            && self.stack_start == process.stack_start
            && self.exe_inode == process.exe_inode
    }

    /// Writes it; on return it is on disk.
    ///
    /// # Errors
    /// [`HostError::Journal`]: then nothing may be written into the process.
    pub fn save(&self) -> Result<(), RelayoutError> {
        let text = serde_json::to_vec(self)
            .map_err(|error| HostError::journal_io(&self.path, &error.into()))?;
        Ok(host::replace_synced(&self.path, &text)?)
    }

    /// Says which layout is in force.
    ///
    /// # Errors
    /// [`HostError::Journal`].
    pub fn save_generation(&self) -> Result<(), RelayoutError> {
        let path = self.path.with_extension("generation");
        // Without the file it is the original one: the way back needs no space on disk.
        let saved = match self.generation {
            0 => fs::remove_file(&path).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            generation => fs::write(&path, generation.to_string()),
        };
        saved.map_err(|error| HostError::journal_io(&path, &error).into())
    }

    /// Reads which layout is in force.
    pub(crate) fn load_generation(&mut self) {
        let text = fs::read_to_string(self.path.with_extension("generation"));
        self.generation = text.ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    }

    /// What tells one version of the file from another, without reading it; `None` where there is
    /// none.
    pub(crate) fn version_on_disk(&self) -> Option<(u64, i64, i64)> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = fs::metadata(&self.path).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    }

    /// A script by which `gdb` knows the moved code; there is one while something is re-laid out.
    #[must_use]
    pub fn debugger_script(&self) -> PathBuf {
        self.path.with_extension("gdb")
    }

    /// What the script loads for the object of that number.
    pub(crate) fn symbols(&self, index: usize) -> PathBuf {
        self.path.with_extension(format!("{index}.elf"))
    }

    /// Removes it, and what was written for debuggers: there is nothing left to undo.
    ///
    /// # Errors
    /// [`HostError::Journal`].
    pub fn remove(&self) -> Result<(), RelayoutError> {
        let _ = fs::remove_file(self.path.with_extension("generation"));
        let _ = fs::remove_file(self.debugger_script());
        let mut symbols = (0..).map(|index| self.symbols(index));
        while symbols
            .next()
            .is_some_and(|path| fs::remove_file(path).is_ok())
        {}
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HostError::journal_io(&self.path, &error).into())
            }
            _ => Ok(()),
        }
    }
}

/// A process, and what is on record about it.
pub type RecordedProcess = (u32, Result<Manifest, RelayoutError>);

/// The directory of all manifests.
#[derive(Clone, Debug)]
pub struct ManifestStore {
    directory: PathBuf,
}

impl ManifestStore {
    /// The directory below the state directory, which need not exist: then nothing was ever re-laid
    /// out.
    #[must_use]
    pub fn at(state_dir: &Path) -> Self {
        let state_dir = std::path::absolute(state_dir).unwrap_or_else(|_| state_dir.to_owned());
        Self {
            directory: state_dir.join("relayout"),
        }
    }

    /// As [`ManifestStore::at`], and makes the directory where it does not exist.
    ///
    /// # Errors
    /// [`HostError::Journal`].
    pub fn open(state_dir: &Path) -> Result<Self, RelayoutError> {
        let Self { directory } = Self::at(state_dir);
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| HostError::journal_io(&directory, &error))?;
        Ok(Self { directory })
    }

    /// Where the manifests are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps every other Slackline from writing into any process until the lock is dropped. Waits
    /// for one at work.
    ///
    /// # Errors
    /// [`HostError::Locked`], [`HostError::Journal`].
    pub fn lock(&self) -> Result<Lock, RelayoutError> {
        let give_up = Instant::now() + LOCK_WAIT;
        loop {
            match Lock::take(&self.directory) {
                Err(HostError::Locked { .. }) if Instant::now() < give_up => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return Ok(other?),
            }
        }
    }

    fn path(&self, pid: u32, start_time: u64) -> PathBuf {
        self.directory.join(format!("{pid}-{start_time}.json"))
    }

    /// Everything in the directory; nothing where there is none.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub fn files(&self) -> Result<Vec<PathBuf>, RelayoutError> {
        let failed = |error: std::io::Error| HostError::read(&self.directory, &error).into();
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        paths.collect::<Result<_, _>>().map_err(failed)
    }

    /// The manifest of a process; `None` where nothing was ever written into it.
    ///
    /// # Errors
    /// [`RelayoutError::Manifest`], [`HostError::Read`].
    pub fn load(&self, pid: u32, start_time: u64) -> Result<Option<Manifest>, RelayoutError> {
        let path = self.path(pid, start_time);
        match fs::read(&path) {
            Ok(bytes) => read(&path, &bytes).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HostError::read(&path, &error).into()),
        }
    }

    /// All manifests.
    ///
    /// # Errors
    /// As [`ManifestStore::load`].
    pub fn all(&self) -> Result<Vec<Manifest>, RelayoutError> {
        self.each()?
            .into_iter()
            .map(|(_, manifest)| manifest)
            .collect()
    }

    /// The pids of all manifests with each, or with why it cannot be read.
    ///
    /// # Errors
    /// [`HostError::Read`] for the directory.
    pub fn each(&self) -> Result<Vec<RecordedProcess>, RelayoutError> {
        let mut manifests = Vec::new();
        for path in self.files()? {
            if let Some(process) = process_of(&path) {
                let bytes = fs::read(&path).map_err(|error| HostError::read(&path, &error).into());
                manifests.push((process, bytes.and_then(|bytes| read(&path, &bytes))));
            }
        }
        manifests.sort_by_key(|(process, _)| *process);
        let by_pid = manifests.into_iter();
        Ok(by_pid.map(|((pid, _), read)| (pid, read)).collect())
    }
}

/// The process (pid, start) of which a file is the manifest; `None` for other files.
fn process_of(path: &Path) -> Option<(u32, u64)> {
    let name = path.file_name()?.to_str()?;
    let (pid, start) = name.strip_suffix(".json")?.split_once('-')?;
    Some((pid.parse().ok()?, start.parse().ok()?))
}

fn read(path: &Path, bytes: &[u8]) -> Result<Manifest, RelayoutError> {
    let damaged = |why: String| RelayoutError::Manifest {
        path: path.to_owned(),
        why,
    };
    let mut manifest: Manifest =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if manifest.version != VERSION {
        return Err(damaged(format!(
            "format {}, and this Slackline knows {VERSION}",
            manifest.version
        )));
    }
    for patch in manifest
        .generations
        .iter()
        .flat_map(|generation| &generation.patches)
    {
        if patch.old.0.len() != patch.new.0.len() {
            return Err(damaged(format!(
                "the patch at {:#x} changes its length",
                patch.address
            )));
        }
    }
    manifest.path = path.to_owned();
    manifest.load_generation();
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let mut process = Process::open(std::process::id()).unwrap();
        (process.pid, process.start_time) = (12, 34);
        let mut manifest = Manifest::new(&store, &process);
        manifest.generations.push(Generation {
            number: 1,
            patches: vec![AppliedPatch {
                address: 0x1000,
                old: Bytes(vec![0x55, 0]),
                new: Bytes(vec![0xe9, 255]),
            }],
            regions: Vec::new(),
        });
        assert!(store.load(12, 34).unwrap().is_none());
        manifest.save().unwrap();
        assert_eq!(store.load(12, 34).unwrap(), Some(manifest.clone()));
        assert_eq!(store.all().unwrap(), [manifest.clone()]);
        assert_eq!(manifest.next_number(), 2);
        let error = manifest.generation(7).unwrap_err().to_string();
        assert_eq!(
            error,
            "process 12 has no generation 7: its generations are 0, 1"
        );
        assert!(!manifest.is_alive());
        manifest.remove().unwrap();
        assert!(store.all().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_manifest_is_named_and_left() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let path = store.directory().join("1-2.json");
        for text in ["{", r#"{"version":2}"#] {
            fs::write(&path, text).unwrap();
            let error = store.all().unwrap_err().to_string();
            assert!(
                error.contains("1-2.json") && error.contains("it is not changed"),
                "{error}"
            );
            assert!(path.exists());
        }
    }
}
