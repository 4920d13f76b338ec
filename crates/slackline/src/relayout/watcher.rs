//! Who watches processes, and `slackline relayout stop`.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ::relayout::ManifestStore;
use serde::{Deserialize, Serialize};

use crate::done::CommandOutcome;
use crate::output::message;

#[derive(Serialize, Deserialize)]
struct Watcher {
    pid: u32,
    start_time: u64,
}

/// Leaves a note of this watcher, for `stop`.
pub(super) fn note_watcher(store: &ManifestStore) -> anyhow::Result<()> {
    let pid = std::process::id();
    let start_time = host::start_time(&host::Roots::default(), pid)?;
    let path = store.directory().join(format!("watcher-{pid}.json"));
    fs::write(&path, serde_json::to_vec(&Watcher { pid, start_time })?)
        .map_err(|error| host::HostError::journal_io(&path, &error))?;
    Ok(())
}

/// The file of each `start` that watches, and who that is, where one runs.
fn watchers(store: &ManifestStore) -> anyhow::Result<Vec<(PathBuf, Watcher)>> {
    let roots = host::Roots::default();
    let paths = store.files()?.into_iter().filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("watcher") && name.ends_with(".json")
    });
    let running = paths.filter_map(|path| {
        let watcher: Watcher = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        if host::is_running(&roots, watcher.pid, watcher.start_time) {
            return Some((path, watcher));
        }
        let _ = fs::remove_file(path);
        None
    });
    Ok(running.collect())
}

/// `slackline relayout stop`.
pub(super) fn stop(store: &ManifestStore) -> anyhow::Result<CommandOutcome> {
    let watchers = watchers(store)?;
    if watchers.is_empty() {
        message("Nobody watches.");
        return Ok(CommandOutcome::Positive);
    }
    for (path, watcher) in watchers {
        host::end_process(watcher.pid, watcher.start_time, Duration::from_secs(60)).map_err(
            |errno| {
                let why = std::io::Error::from_raw_os_error(errno);
                anyhow::anyhow!("process {} cannot be ended: {why}", watcher.pid)
            },
        )?;
        let _ = fs::remove_file(&path);
    }
    message("Stopped. Optimised processes stay so: slackline relayout rollback --all undoes them.");
    Ok(CommandOutcome::Positive)
}
