//! Promotions and rollbacks: a configuration is put in force and left there.

use bayes_opt::Configuration;

use super::{Live, knobs};
use crate::bench::Arm;
use crate::control_files::{ControlFile, ControlFiles};
use crate::error::{Fault, TunerError};
use crate::promotions::{self, PromotionRecord};
use crate::reapply::Reapply;
use crate::scratch;
use crate::target::{Instance, Side};

/// What a promotion or a rollback has changed.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// What it has put in force, in words, and where copies of what somebody else had written there are kept.
    pub done: Vec<String>,
    /// Of a rollback: files that it had to leave as they were, in words.
    pub left: Vec<String>,
    /// The promotion in the list of them.
    pub listed: Option<PromotionRecord>,
}

impl Live<'_> {
    /// Applies a verified configuration to the running system and leaves it there: its knobs, and,
    /// for a service that Slackline did not start, its files and `apply` steps. The control's is a rollback, which needs no
    /// template that its promotion had.
    ///
    /// # Errors
    /// A knob or an `apply` step refuses; everything is restored by the next [`Live::restore`].
    pub fn promote(&mut self, configuration: &Configuration) -> Result<Changed, TunerError> {
        self.put_in_force(configuration, false)
    }

    /// As [`promote`](Self::promote), kept in the list of promotions ([`crate::promotions`]), by
    /// which it can be undone.
    ///
    /// # Errors
    /// As [`promote`](Self::promote), and where the list cannot be written.
    pub fn promote_listed(&mut self, configuration: &Configuration) -> Result<Changed, TunerError> {
        self.put_in_force(configuration, true)
    }

    fn put_in_force(
        &mut self,
        configuration: &Configuration,
        is_listed: bool,
    ) -> Result<Changed, TunerError> {
        let refused = |fault: Fault| TunerError::Promotion(fault.to_string());
        let attached = self.spec.target.start.is_none();
        let is_rollback = *configuration == self.spec.space.default_configuration();
        if attached && !is_rollback {
            self.keep_control_files().map_err(refused)?;
        }
        if is_rollback && let Some(in_memory) = scratch::for_full_disk(&self.scratch) {
            self.scratch = in_memory;
        }
        let instance = self.prepare_promotion(configuration).map_err(refused)?;
        let knobs =
            knobs::knob_values(self.spec, configuration, &instance.variables).map_err(refused)?;
        self.applied = None;
        if attached {
            let remembered = self.remember_apply();
            // A full disk keeps nobody from rolling back.
            if !is_rollback {
                remembered.map_err(refused)?;
            }
        }
        let knobs = knobs::of_host(knobs);
        self.journal.write_together(&self.roots, &knobs)?;
        let mut changed = Changed::default();
        let done = &mut changed.done;
        done.extend(
            knobs
                .iter()
                .map(|(knob, value)| format!("{knob} = {value}")),
        );
        if attached && is_rollback {
            let written = self.write_control_files(&instance).map_err(refused)?;
            done.extend(written.done);
            changed.left = written.left;
        } else if attached {
            instance
                .write_files(self.spec, Some(&mut self.journal))
                .map_err(refused)?;
            done.extend(self.spec.target.files.iter().map(|file| file.path.clone()));
        }
        if attached && !self.spec.target.apply.is_empty() {
            instance
                .apply(self.spec, &self.interrupt)
                .map_err(refused)?;
            done.push("the apply steps".to_owned());
        }
        if !done.is_empty() {
            if is_listed {
                let reapply = Reapply::left_in(&self.state_dir).map_err(TunerError::Reapply)?;
                let (dir, name) = (&self.state_dir, &self.spec.name);
                changed.listed = Some(promotions::record(dir, name, &self.journal, reapply)?);
            }
            let former = self.journal.promote_all()?;
            done.extend(former.iter().map(|former| {
                let (path, kept) = (former.path.display(), former.kept.display());
                format!("{path} as it was before is kept in {kept}")
            }));
            Reapply::forget(&self.state_dir);
        }
        Ok(changed)
    }

    /// What is promoted, and what it is rolled back to, has the experiment's side.
    fn prepare_promotion(&self, configuration: &Configuration) -> Result<Instance, Fault> {
        let arm = Arm {
            configuration: configuration.clone(),
            ..Arm::default()
        };
        Instance::prepare(self.spec, &arm, Side::Experiment, &self.scratch)
    }

    /// Keeps on disk what a rollback is to write where it has no template any more.
    fn keep_control_files(&self) -> Result<(), Fault> {
        if self.spec.target.files.is_empty() {
            return Ok(());
        }
        let control = self.spec.space.default_configuration();
        let instance = self.prepare_promotion(&control)?;
        let mut kept = ControlFiles::kept_in(&self.state_dir);
        for file in &self.spec.target.files {
            let contents = instance.contents_of(self.spec, file);
            let of_control = ControlFile {
                template: self.spec.dir.join(&file.template),
                control: control.clone(),
                contents: contents.map_err(Fault::Harness)?,
            };
            kept.insert(instance.path_of(file)?, of_control);
        }
        kept.keep(&self.state_dir).map_err(Fault::Harness)
    }

    /// Writes the control's files: those that have no template any more as they were kept; a file
    /// of which there is no copy either is left, so that it does not hold up the rest of a
    /// rollback.
    fn write_control_files(&mut self, instance: &Instance) -> Result<Changed, Fault> {
        let kept = ControlFiles::kept_in(&self.state_dir);
        let control = self.spec.space.default_configuration();
        let mut changed = Changed::default();
        for file in &self.spec.target.files {
            let path = instance.path_of(file)?;
            let template = self.spec.dir.join(&file.template);
            let name = path.display();
            let (contents, done) = match instance.contents_of(self.spec, file) {
                Ok(contents) => (contents, name.to_string()),
                Err(why) => match kept.contents(&path, &template, &control) {
                    Some(kept) => (
                        kept.to_owned(),
                        format!("{name} as it was kept at the promotion ({why})"),
                    ),
                    None => {
                        let left = format!("{name} ({why}, and no copy of the control's was kept)");
                        changed.left.push(left);
                        continue;
                    }
                },
            };
            instance.write_file(&path, &contents, Some(&mut self.journal))?;
            changed.done.push(done);
        }
        Ok(changed)
    }

    /// Keeps on disk how the service is told of its own configuration: the control's, or what is in
    /// force between evaluations.
    pub(super) fn remember_apply(&self) -> Result<(), Fault> {
        let is_kept = Reapply::left_in(&self.state_dir).is_ok_and(|kept| kept.is_some());
        if self.spec.target.apply.is_empty() || is_kept {
            return Ok(());
        }
        let own = match &self.home {
            Some(home) => {
                let arm = Arm {
                    configuration: home.clone(),
                    ..Arm::default()
                };
                Instance::prepare(self.spec, &arm, Side::Experiment, &self.scratch)?
            }
            None => Instance::prepare(self.spec, &Arm::default(), Side::Control, &self.scratch)?,
        };
        own.reapply(self.spec)?
            .save(&self.state_dir)
            .map_err(Fault::Harness)
    }
}
