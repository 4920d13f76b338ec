//! What of a process runs where: from addresses in the code cache to those that its files have, for
//! samples, for `perf` and for debuggers.
//!
//! `perf` reads `/tmp/perf-PID.map` (tools/perf/Documentation/jit-interface.txt in Linux), as the
//! process sees `/tmp`, and only a file of the process's user or of root.

use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use code_layout::{Emitted, Image};

use crate::process::stop::status_field;
use crate::{Manifest, Process};

/// What each line of ours ends with: so a file is known to be ours.
const SUFFIX: &str = ".relayout";

/// The layout of one object in the code cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moved {
    /// (address in the code cache, the same instruction's in the object's own code), in order of
    /// the first.
    instructions: Vec<(u64, u64)>,
    /// Where the code is.
    code: Range<u64>,
    /// Each function's address in the code cache, and its name, which says that it is not where its
    /// file has it.
    functions: Vec<(Range<u64>, String)>,
    /// The same with unwind information, for debuggers; empty where it does not fit into a file.
    symbols: Vec<u8>,
}

impl Moved {
    pub(crate) fn new(image: &Image, path: &str, bias: u64, emitted: &Emitted) -> Self {
        let instructions = emitted.map.instructions().iter();
        let functions = emitted.functions.iter();
        let functions: Vec<_> = functions
            .map(|(vaddr, range)| (range.clone(), name(image, path, *vaddr) + SUFFIX))
            .collect();
        Self {
            symbols: code_layout::symbol_file(emitted, &functions).unwrap_or_default(),
            instructions: instructions
                .filter_map(|one| Some((one.new, one.old?.wrapping_add(bias))))
                .collect(),
            code: emitted.address + emitted.code.start as u64
                ..emitted.address + emitted.code.end as u64,
            functions,
        }
    }

    /// The old instruction that stands for, or comes before, a new one.
    pub(crate) fn to_old(&self, address: u64) -> Option<u64> {
        if !self.code.contains(&address) {
            return None;
        }
        let after = self
            .instructions
            .partition_point(|(new, _)| *new <= address);
        after.checked_sub(1).map(|index| self.instructions[index].1)
    }
}

/// A function's name, or its file and address there.
pub(crate) fn name(image: &Image, path: &str, vaddr: u64) -> String {
    let id = image.function_at(vaddr);
    let known = id.and_then(|id| image.name(id)).map(str::to_owned);
    let file = path.rsplit('/').next().unwrap_or(path);
    known.unwrap_or_else(|| format!("{file}+{vaddr:#x}"))
}

/// Writes the map for a process. Where another file is there already it stays: false.
pub(crate) fn write_perf_map(process: &Process, moved: &[Moved]) -> std::io::Result<bool> {
    let path = perf_map_path(process);
    if fs::symlink_metadata(&path).is_ok() && !remove_perf_map(process) {
        return Ok(false);
    }
    let mut text = String::new();
    for (range, name) in moved.iter().flat_map(|moved| &moved.functions) {
        use std::fmt::Write as _;
        let _ = writeln!(
            text,
            "{:x} {:x} {name}",
            range.start,
            range.end - range.start
        );
    }
    // Never through a link that somebody put there.
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)?
        .write_all(text.as_bytes())?;
    Ok(true)
}

/// Writes what `gdb` needs to go through moved code: a file for each object, and a script that
/// loads them.
pub(crate) fn write_symbols(manifest: &Manifest, moved: &[Moved]) -> std::io::Result<()> {
    let mut script = format!("# gdb -p {} -x this file\n", manifest.pid);
    for (index, moved) in moved.iter().enumerate() {
        let path = manifest.symbols(index);
        fs::write(&path, &moved.symbols)?;
        script += &format!("add-symbol-file \"{}\"\n", path.display());
    }
    fs::write(manifest.debugger_script(), script)
}

/// Removes the map, where it is one of ours: false where it is not.
pub(crate) fn remove_perf_map(process: &Process) -> bool {
    let path = perf_map_path(process);
    let is_file = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file());
    let is_ours = |text: Vec<u8>| {
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().all(|line| line.ends_with(SUFFIX))
    };
    is_file && fs::read(&path).is_ok_and(is_ours) && fs::remove_file(&path).is_ok()
}

fn perf_map_path(process: &Process) -> PathBuf {
    // In a container the process has another number, the last one here, and `perf` looks for that.
    let inside = status_field(process.pid, process.pid, "NSpid")
        .and_then(|pids| pids.split_whitespace().next_back().map(str::to_owned))
        .unwrap_or_else(|| process.pid.to_string());
    process.outside(&format!("/tmp/perf-{inside}.map"))
}
