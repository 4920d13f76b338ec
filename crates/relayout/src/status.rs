//! What is known of a process: kept beside its manifest, for people, and for whoever comes next to
//! see who is at work on it and what was verified. Where it is lost, that is nobody and nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use code_layout::Skipped;
use paired_stats::Interval;
use serde::{Deserialize, Serialize};

use crate::comparison::{Compared, Gain};
use crate::driver::ProcessState;
use crate::session::cover::Cover;
use crate::session::layout::LayoutSummary;
use crate::{Manifest, ManifestStore, RelayoutError};

/// How much of what runs a layout covers: the share of samples that lie in code which it moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// The share, 0 to 1.
    pub share: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Of how many samples.
    pub samples: u64,
    /// Where it is shown to be below this, there is to be another layout.
    pub least: f64,
}

impl Fit {
    /// Of what was measured.
    #[must_use]
    pub fn new(cover: Cover, least: f64) -> Self {
        let Interval {
            estimate,
            low,
            high,
            ..
        } = cover.share();
        Self {
            share: estimate,
            low,
            high,
            samples: cover.samples(),
            least,
        }
    }

    /// Whether the layout is shown not to fit.
    #[must_use]
    pub fn is_below(&self) -> bool {
        self.high < self.least
    }
}

/// How long switches kept the process from running, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseUs {
    /// Of the comparison's switches.
    pub median: u64,
    /// Of the same.
    pub worst: u64,
    /// Threads stopped.
    pub threads: usize,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelayoutStatus {
    /// The process.
    pub pid: u32,
    /// Clock ticks between boot and its start.
    pub start_time: u64,
    /// Its executable.
    pub exe: String,
    /// Where it stands.
    pub state: ProcessState,
    /// Why it stands there: why it was declined or rolled back, or why it gets another layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The Slackline that drives it, or did: its pid and the clock ticks between boot and its
    /// start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<(u32, u64)>,
    /// The layout in force; 0 is the original.
    pub generation: u32,
    /// What was shown of it.
    pub gain: Option<Gain>,
    /// How long it stood still.
    pub pause_us: PauseUs,
    /// Functions and places left as they are, by reason.
    pub skipped: Skipped,
    /// What the layout consists of.
    pub layout: Option<LayoutSummary>,
    /// How well the layout in force, if it is not the original, fitted what ran when it was looked
    /// at last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cover: Option<Fit>,
    /// The comparison with all its blocks.
    pub comparison: Option<Compared>,
    /// Length of each step, in seconds.
    pub seconds: BTreeMap<String, f64>,
    /// Memory of the process for layouts, and what could not be given back yet, in bytes.
    #[serde(default)]
    pub memory_bytes: u64,
    /// What else is to be said: a file that was refused, processes that were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// When it was written.
    pub time: String,
}

impl RelayoutStatus {
    /// What is in force and in memory, by the manifest; without one, nothing is.
    pub fn read(&mut self, manifest: Option<&Manifest>) {
        self.generation = manifest.map_or(0, |manifest| manifest.generation);
        self.memory_bytes = manifest.map_or(0, Manifest::mapped_bytes);
    }

    /// The layout that it runs in now, if any but the original.
    pub(crate) fn lay_out(&mut self, layout: Option<LayoutSummary>) {
        let skipped = layout.iter().flat_map(|layout| layout.skipped.clone());
        self.skipped = skipped.collect();
        self.layout = layout;
    }

    /// Of a process that was just found.
    #[must_use]
    pub fn new(pid: u32, start_time: u64, exe: &str) -> Self {
        Self {
            pid,
            start_time,
            exe: exe.to_owned(),
            state: ProcessState::Monitoring,
            reason: None,
            by: None,
            generation: 0,
            gain: None,
            pause_us: PauseUs::default(),
            skipped: Skipped::new(),
            layout: None,
            cover: None,
            comparison: None,
            seconds: BTreeMap::new(),
            memory_bytes: 0,
            notes: Vec::new(),
            time: String::new(),
        }
    }

    /// Puts down that this Slackline drives a process; which other one does, where one is at work
    /// on it already.
    ///
    /// # Errors
    /// [`host::HostError::Locked`], [`host::HostError::Journal`].
    pub fn claim(
        store: &ManifestStore,
        (pid, start_time): (u32, u64),
        exe: &str,
    ) -> Result<Option<u32>, RelayoutError> {
        let _lock = store.lock()?;
        let mut status =
            Self::load(store, pid, start_time).unwrap_or_else(|| Self::new(pid, start_time, exe));
        let other = status.driven_by();
        if other.is_none() {
            let own = std::process::id();
            status.by = Some((own, host::start_time(&host::Roots::default(), own)?));
            status.save(store)?;
        }
        Ok(other)
    }

    /// The Slackline that is at work on it now, if it is another one than this.
    #[must_use]
    pub fn driven_by(&self) -> Option<u32> {
        let (pid, start_time) = self.by?;
        let is_other = pid != std::process::id();
        (is_other && host::is_running(&host::Roots::default(), pid, start_time)).then_some(pid)
    }

    /// Nobody is at work on it, and its layout was verified: it stays as it is until its user
    /// wishes otherwise.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.state == ProcessState::Optimized
    }

    /// The executable's name without its directory.
    #[must_use]
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or(&self.exe)
    }

    fn path(store: &ManifestStore, pid: u32, start_time: u64) -> PathBuf {
        store
            .directory()
            .join(format!("{pid}-{start_time}.status.json"))
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`host::HostError::Journal`].
    pub fn save(&mut self, store: &ManifestStore) -> Result<(), RelayoutError> {
        self.time = jiff::Timestamp::now().to_string();
        let path = Self::path(store, self.pid, self.start_time);
        let failed = |error: &std::io::Error| host::HostError::journal_io(&path, error);
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(&error.into()))?;
        let next = path.with_extension("next");
        fs::write(&next, text)
            .and_then(|()| fs::rename(&next, &path))
            .map_err(|error| failed(&error))?;
        Ok(())
    }

    /// Reads that of a process; `None` where there is none that can be read.
    #[must_use]
    pub fn load(store: &ManifestStore, pid: u32, start_time: u64) -> Option<Self> {
        let bytes = fs::read(Self::path(store, pid, start_time)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// All there are, of processes that still run; those of others are removed.
    ///
    /// # Errors
    /// [`HostError::Read`](host::HostError::Read) for the directory.
    pub fn all(store: &ManifestStore) -> Result<Vec<Self>, RelayoutError> {
        let mut all: Vec<Self> = Vec::new();
        for path in store.files()? {
            if !path.to_string_lossy().ends_with(".status.json") {
                continue;
            }
            let read = fs::read(&path).ok();
            let Some(status) = read.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok())
            else {
                continue;
            };
            let roots = host::Roots::default();
            if host::is_running(&roots, status.pid, status.start_time) {
                all.push(status);
            } else {
                let _ = fs::remove_file(&path);
            }
        }
        all.sort_by_key(|status| (status.pid, status.start_time));
        Ok(all)
    }
}
