//! What earlier processes of the same program left for a session, and what it leaves to later ones.

use std::time::Instant;

use code_layout::{BuildId, Profile};

use super::Session;
use crate::comparison::Gain;
use crate::session::cover::{COVER_MIN, Hot, LayoutCandidate, Ran};
use crate::session::kept::{self, CachedProfile, Summary};
use crate::session::layout::{KeptProfile, LayoutSummary};
use crate::{Declined, ManifestStore, RelayoutError};

impl Session {
    /// How well the profiles that earlier processes of the same program left on disk fit what ran
    /// at the last look, and what is to be said of files that are not used.
    pub fn consider_kept(&mut self, store: &ManifestStore) -> (Vec<LayoutCandidate>, Vec<String>) {
        let start = Instant::now();
        let all = kept::all(store, &self.build_id());
        let (mut candidates, mut files) = (Vec::new(), Vec::new());
        for file in all.files {
            let hot = self.hot(&file.kept.profiles);
            if let Some(candidate) = hot.candidate(&self.ran) {
                candidates.push(candidate);
                files.push(file);
            }
        }
        self.kept = files;
        self.time("considering kept profiles", start);
        (candidates, all.notes)
    }

    /// Lays it out by one of the profiles that were considered last.
    ///
    /// # Errors
    /// Those of [`Session::install`].
    pub fn install_kept(&mut self, index: usize) -> Result<LayoutSummary, RelayoutError> {
        let start = Instant::now();
        let considered = std::mem::take(&mut self.kept).into_iter().nth(index);
        let Some(file) = considered else {
            return Err(RelayoutError::Declined {
                pid: self.cache.process.pid,
                reason: Declined::NothingToWin("no such kept profile was considered".into()),
            });
        };
        let mut fresh = Vec::new();
        for loaded in &mut self.objects {
            let build_id = loaded.profile.build_id.clone();
            let profiles = file.kept.profiles.iter();
            let profile = profiles.clone().find(|known| known.build_id == build_id);
            let profile = profile.cloned().unwrap_or_else(|| Profile {
                build_id,
                ..Profile::default()
            });
            fresh.push(std::mem::replace(&mut loaded.profile, profile).samples);
            loaded.choose(&self.method);
        }
        let layout = self.install_by(Some(KeptProfile {
            file: file.path,
            made: file.kept.summary.made,
            gain: file.kept.summary.gain,
        }));
        // Where it turns out to be no better, what runs now is counted.
        for (loaded, samples) in self.objects.iter_mut().zip(fresh) {
            loaded.profile.samples = samples;
        }
        self.time("installing by the kept profile", start);
        layout
    }

    /// Keeps the profile that the layout in force was made by, for the next process of the program,
    /// with what was shown of it. It takes the place of those of the same workload. Where it is
    /// from disk, it was used just now. What is to be said of files that are not used comes back.
    ///
    /// # Errors
    /// [`HostError::Journal`](host::HostError::Journal),
    /// [`HostError::Locked`](host::HostError::Locked).
    pub fn keep_profile(
        &mut self,
        store: &ManifestStore,
        gain: Option<Gain>,
    ) -> Result<Vec<String>, RelayoutError> {
        let build_id = self.build_id();
        if build_id.0.is_empty() || self.method.random.is_some() {
            return Ok(Vec::new());
        }
        let Some(phase) = self.phase() else {
            return Ok(Vec::new());
        };
        if let Some(kept) = &phase.layout.kept {
            kept::mark_used(&kept.file);
            return Ok(Vec::new());
        }
        let (hot, profiles) = (phase.hot.clone(), phase.profiles.clone());
        let ran = self.ran_in(&profiles);
        let all = kept::all(store, &build_id);
        let mut replaced = Vec::new();
        for file in all.files {
            let other = self.hot(&file.kept.profiles);
            let other_ran = self.ran_in(&file.kept.profiles);
            let fits = [hot.candidate(&other_ran), other.candidate(&ran)];
            let mut covers = fits.iter().flatten().map(|fit| fit.cover);
            if !covers.any(|cover| cover.is_below(COVER_MIN)) {
                replaced.push(file.path);
            }
        }
        let profiles: Vec<Profile> = profiles
            .into_iter()
            .filter(|profile| !profile.functions.is_empty())
            .collect();
        let samples = profiles.iter().flat_map(|profile| profile.samples.values());
        let summary = Summary {
            made: Some(jiff::Timestamp::now().to_string()),
            slackline: Some(env!("CARGO_PKG_VERSION").to_owned()),
            counted_by: self.counted_by,
            samples: samples.sum(),
            functions: profiles.iter().map(|profile| profile.functions.len()).sum(),
            hot_bytes: hot.bytes(),
            gain,
        };
        CachedProfile::new(build_id, summary, profiles).save(store, &replaced)?;
        Ok(all.notes)
    }

    /// The executable's.
    fn build_id(&self) -> BuildId {
        let exe = &self.cache.process.exe;
        let executable = self
            .objects
            .iter()
            .find(|loaded| loaded.object.path == *exe);
        executable.map_or_else(BuildId::default, |loaded| loaded.profile.build_id.clone())
    }

    /// The blocks that a layout by some profiles moves.
    pub(super) fn hot(&mut self, profiles: &[Profile]) -> Hot {
        let (mut hot, method) = (Hot::default(), self.method);
        for (index, loaded) in self.objects.iter_mut().enumerate() {
            let same = |profile: &&Profile| profile.build_id == loaded.profile.build_id;
            if let Some(profile) = profiles.iter().find(same) {
                loaded.add_hot(index, profile, &method, &mut hot);
            }
        }
        hot
    }

    /// The samples of some profiles.
    fn ran_in(&mut self, profiles: &[Profile]) -> Ran {
        let mut ran = Ran::default();
        for (index, loaded) in self.objects.iter_mut().enumerate() {
            let same = |profile: &&Profile| profile.build_id == loaded.profile.build_id;
            if let Some(profile) = profiles.iter().find(same) {
                loaded.add_ran(index, profile, &mut ran);
            }
        }
        ran
    }
}
