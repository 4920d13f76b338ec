//! `slackline relayout rollback` and `switch`, and what `slackline restore` does about relayouts.

use ::relayout::{
    Manifest, ManifestStore, PatchedProcess, ProcessState, RelayoutError, RelayoutStatus,
};
use anyhow::Context as _;
use serde::Serialize;

use crate::done::CommandOutcome;
use crate::output::{error_chain, message, print};
use crate::throttle::process_number;

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Arguments {
    /// The process id.
    #[arg(required = true, value_parser = process_number)]
    pid: Option<u32>,
    /// All processes that have a new layout.
    #[arg(long)]
    all: bool,
}

/// What became of one process.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Undone {
    pub(crate) pid: u32,
    pub(crate) exe: String,
    /// In a person's words.
    pub(crate) outcome: String,
    pub(crate) is_restored: bool,
}

impl Undone {
    fn of(manifest: &Manifest, outcome: String, is_restored: bool) -> Self {
        Self {
            pid: manifest.pid,
            exe: manifest.exe.clone(),
            outcome,
            is_restored,
        }
    }

    pub(crate) fn line(&self) -> String {
        let Self {
            pid, exe, outcome, ..
        } = self;
        match exe.as_str() {
            "" => format!("code of process {pid}: {outcome}"),
            exe => format!("code of process {pid} ({exe}): {outcome}"),
        }
    }
}

pub(super) fn run(arguments: &Arguments, store: &ManifestStore) -> anyhow::Result<CommandOutcome> {
    let undone = match arguments.pid {
        None => each(store, |manifest| undo(store, manifest, BY_USER, false))?,
        Some(pid) => {
            let manifest = of_process(store, pid)?;
            vec![undo(store, &manifest, BY_USER, false)]
        }
    };
    if undone.is_empty() {
        message(&format!(
            "Nothing to roll back: no process is re-laid out, as far as {} knows.",
            store.directory().display()
        ));
    }
    let text: String = undone.iter().map(|undone| undone.line() + "\n").collect();
    print(&text)?;
    Ok(match undone.iter().all(|undone| undone.is_restored) {
        true => CommandOutcome::Positive,
        false => CommandOutcome::RestoreFailed,
    })
}

/// What is on record about a process. One that was forked from another is told of it: a family is
/// one.
fn of_process(store: &ManifestStore, pid: u32) -> anyhow::Result<Manifest> {
    let all = store.all()?;
    let leader = |manifest: &&Manifest| manifest.pid == pid && manifest.is_alive();
    if let Some(manifest) = all.iter().find(leader) {
        return Ok(manifest.clone());
    }
    for manifest in &all {
        if manifest.is_of_this_boot()
            && let Some(mut cache) = PatchedProcess::of(store, manifest.clone())?
            && cache.pids().contains(&pid)
        {
            if !manifest.is_alive() {
                return Ok(manifest.clone());
            }
            anyhow::bail!(
                "process {pid} was forked from {}, and has its layout: give {} instead",
                manifest.pid,
                manifest.pid
            );
        }
    }
    Err(RelayoutError::NotRelaidOut {
        pid,
        state_dir: store.directory().to_owned(),
    }
    .into())
}

/// Why a process runs its original code again, where nothing else is known.
const BY_USER: &str = "as its user wished";
const BY_RESTORE: &str = "by slackline restore, because the Slackline that changed it was killed";

/// Rolls back what a killed Slackline left half done; in a dry run only says so. What was verified
/// stays, and so does what another Slackline is at work on.
pub(crate) fn undo_left(store: &ManifestStore, dry_run: bool) -> anyhow::Result<Vec<Undone>> {
    each(store, |manifest| {
        let status = RelayoutStatus::load(store, manifest.pid, manifest.start_time);
        // Of one that has ended nothing is kept.
        let status = status.filter(|_| manifest.is_alive());
        let left = |why: String| Undone::of(manifest, why, true);
        match status
            .as_ref()
            .map(|status| (status.driven_by(), status.is_kept()))
        {
            Some((Some(by), _)) => left(format!("left alone: slackline {by} is working on it")),
            Some((None, true)) => left(format!(
                "left alone, as it was shown to be better; undone by: slackline relayout rollback {}",
                manifest.pid
            )),
            _ => undo(store, manifest, BY_RESTORE, dry_run),
        }
    })
}

/// What becomes of every process on record; a record that cannot be read keeps no other from it.
fn each(
    store: &ManifestStore,
    become_of: impl Fn(&Manifest) -> Undone,
) -> anyhow::Result<Vec<Undone>> {
    let all = store.each()?.into_iter();
    Ok(all
        .map(|(pid, manifest)| match manifest {
            Ok(manifest) => become_of(&manifest),
            Err(error) => Undone {
                pid,
                exe: String::new(),
                outcome: format!("COULD NOT BE RESTORED: {error}"),
                is_restored: false,
            },
        })
        .collect())
}

/// Of a process that has ended, or runs another program: rolls back what it forked, and forgets it.
pub(super) fn forget_gone(store: &ManifestStore, pid: u32, start_time: u64) -> anyhow::Result<()> {
    if let Some(manifest) = store.load(pid, start_time)? {
        try_undo(store, &manifest, BY_USER, false)?;
    }
    Ok(())
}

fn undo(store: &ManifestStore, manifest: &Manifest, why: &str, dry_run: bool) -> Undone {
    let (outcome, is_restored) = match try_undo(store, manifest, why, dry_run) {
        Ok(outcome) => outcome,
        Err(error) => (
            format!(
                "COULD NOT BE RESTORED: {}; it stays on record, try again",
                error_chain(&error)
            ),
            false,
        ),
    };
    Undone::of(manifest, outcome, is_restored)
}

fn try_undo(
    store: &ManifestStore,
    manifest: &Manifest,
    why: &str,
    dry_run: bool,
) -> anyhow::Result<(String, bool)> {
    let gone = || Ok(("gone, nothing to do".to_owned(), true));
    if !manifest.is_of_this_boot() {
        if !dry_run {
            manifest.remove()?;
        }
        return gone();
    }
    if dry_run {
        return Ok(match manifest.is_alive() {
            true => ("would be restored to the original bytes".into(), true),
            false => (
                "has ended; the processes that it forked would be restored to the original bytes"
                    .into(),
                true,
            ),
        });
    }
    let Some(mut cache) = PatchedProcess::of(store, manifest.clone())? else {
        return gone();
    };
    let (switched, kept) = match cache.rollback() {
        Ok(done) => done,
        Err(RelayoutError::Gone { .. }) => {
            manifest.remove()?;
            return gone();
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(mut status) = RelayoutStatus::load(store, manifest.pid, manifest.start_time) {
        status.state = ProcessState::RolledBack;
        status.reason = Some(why.into());
        status.read(Some(&cache.manifest));
        // It is for people: that the disk is full changes nothing of what was undone.
        let _ = status.save(store);
    }
    let mut outcome = match switched.processes {
        1 => String::from("restored to the original bytes"),
        processes => {
            format!(
                "restored to the original bytes, with the processes that it forked: {processes} processes"
            )
        }
    };
    outcome += &format!("; it stood still for {} µs", switched.pause.us);
    for (pid, why) in &switched.left_out {
        outcome += &format!("; process {pid} is NOT RESTORED: {why}");
    }
    for path in &switched.closed {
        outcome += &format!("; {path} was closed meanwhile");
    }
    if kept.bytes > 0 {
        let why = kept
            .why
            .as_deref()
            .unwrap_or("something may still return into it");
        outcome += &format!(
            "; {} KiB of memory stay for now ({why}): roll back again later",
            kept.bytes >> 10
        );
    }
    if !switched.changed_by_others.is_empty() {
        outcome += &format!(
            "; left alone, because someone else changed them: {} places, first at {:#x}",
            switched.changed_by_others.len(),
            switched.changed_by_others[0]
        );
    }
    if !switched.occupied.is_empty() {
        outcome += &format!(
            "; {} places are NOT RESTORED, because a thread waits inside them: roll back again later, to restore them",
            switched.occupied.len()
        );
    }
    Ok((outcome, switched.is_whole()))
}

pub(super) fn switch(
    store: &ManifestStore,
    pid: u32,
    generation: u32,
) -> anyhow::Result<CommandOutcome> {
    let manifest = of_process(store, pid)?;
    let mut cache = PatchedProcess::of(store, manifest)?.ok_or(RelayoutError::Gone { pid })?;
    let switched = cache
        .switch(generation)
        .with_context(|| format!("process {pid} stays as it is"))?;
    message(&format!(
        "process {pid} runs in generation {generation}; {} threads stood still for {} µs",
        switched.pause.threads, switched.pause.us
    ));
    for (pid, why) in &switched.left_out {
        message(&format!("process {pid} stays as it is: {why}"));
    }
    Ok(CommandOutcome::Positive)
}
