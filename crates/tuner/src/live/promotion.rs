//! Promotions and rollbacks: a configuration is put in force and left there.

use std::path::{Path, PathBuf};

use bayes_opt::Configuration;
use host::Knob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Live, knobs};
use crate::bench::Arm;
use crate::control_files::{Before, ControlFile, ControlFiles};
use crate::error::{Fault, TunerError};
use crate::promotions::{self, PromotionRecord, Served};
use crate::reapply::Reapply;
use crate::scratch;
use crate::side::Side;
use crate::target::Instance;

/// What a promotion or a rollback has changed.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// What it has done.
    pub done: Changes,
    /// Of a rollback: what it could not restore.
    pub left: Vec<Unrestored>,
    /// The promotion in the list of them.
    pub listed: Option<PromotionRecord>,
}

/// The subject of [`Unrestored`] where the service could not be told of what is restored.
pub const APPLY_STEPS: &str = "the apply steps";

/// What a promotion or a rollback has done: three lists of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// After a promotion: the knobs and files that are in force, each with its value
    /// (`vm.swappiness = 10`, `file /etc/app.conf`). After a rollback: what the rollback did to
    /// each knob and file. For an experiment whose rollback could not restore everything: the
    /// rest, with the reasons.
    pub changed: Vec<String>,
    /// The `apply` steps that were run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// The places of the copies of earlier contents of files, one sentence for each copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<String>,
}

impl Changes {
    /// Whether nothing was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.steps.is_empty() && self.copies.is_empty()
    }

    /// What a promotion has done, in sentences.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if !self.changed.is_empty() {
            sentences.push(format!("In force: {}.", self.changed.join(", ")));
        }
        if !self.steps.is_empty() {
            let s = if self.steps.len() == 1 { "" } else { "s" };
            let steps = self.steps.iter().map(|step| format!("`{step}`"));
            let steps = steps.collect::<Vec<_>>().join(", ");
            sentences.push(format!("Apply step{s}: {steps}."));
        }
        sentences.extend(self.copies.iter().cloned());
        sentences
    }

    /// What a rollback has done, a text each.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let all = self.changed.iter().chain(&self.steps).chain(&self.copies);
        all.cloned().collect()
    }

    fn of_knobs<'a>(knobs: impl Iterator<Item = &'a (Knob, String)>) -> Self {
        Self {
            changed: knobs.map(in_words).collect(),
            ..Self::default()
        }
    }
}

/// What a rollback could not restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrestored {
    /// The knob, the file, or [`APPLY_STEPS`].
    pub subject: String,
    /// The reason.
    pub why: String,
}

impl Unrestored {
    /// The reason does not repeat the name.
    fn new(subject: String, why: &impl std::fmt::Display) -> Self {
        let why = why.to_string();
        let rest = why.strip_prefix(&subject);
        let rest = rest.and_then(|it| it.strip_prefix(": ").or_else(|| it.strip_prefix(' ')));
        Self {
            why: rest.unwrap_or(&why).to_owned(),
            subject,
        }
    }
}

impl std::fmt::Display for Unrestored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.subject, self.why)
    }
}

/// The files that a rollback has written and removed.
#[derive(Debug, Default)]
struct FormerFiles {
    written: Vec<PathBuf>,
    /// Were not there before the promotion: their paths, and what the control's would hold.
    removed: Vec<(PathBuf, String)>,
}

impl Live<'_> {
    /// Applies a verified configuration of a server's experiment to the running system and leaves
    /// it there: its knobs, and, for a service that Slackline did not start, its files and `apply`
    /// steps. The control's is a rollback: see [`roll_back`](Self::roll_back). The list of
    /// promotions ([`crate::promotions`]) has it until it is rolled back.
    ///
    /// # Errors
    /// A knob or an `apply` step refuses, or the list cannot be written; everything is restored by
    /// the next [`Live::restore`].
    pub fn promote(
        &mut self,
        configuration: &Configuration,
        by: &Served,
    ) -> Result<Changed, TunerError> {
        match *configuration == self.spec.space.default_configuration() {
            true => self.roll_back(&[]),
            false => self.put_in_force(configuration, Some(by)),
        }
    }

    /// As [`promote`](Self::promote), for a command: the list of promotions is what undoes it.
    ///
    /// # Errors
    /// As [`promote`](Self::promote).
    pub fn promote_listed(&mut self, configuration: &Configuration) -> Result<Changed, TunerError> {
        self.put_in_force(configuration, None)
    }

    fn put_in_force(
        &mut self,
        configuration: &Configuration,
        served: Option<&Served>,
    ) -> Result<Changed, TunerError> {
        let attached = self.spec.target().start.is_none();
        if attached {
            self.keep_control_files(served.is_none()).map_err(refused)?;
        }
        let instance = self.prepare_promotion(configuration).map_err(refused)?;
        let knobs =
            knobs::knob_values(self.spec, configuration, &instance.variables).map_err(refused)?;
        self.applied = None;
        if attached {
            self.remember_apply().map_err(refused)?;
        }
        let knobs = knobs::of_host(knobs);
        self.journal.write_together(&self.roots, &knobs)?;
        let mut changed = Changed {
            done: Changes::of_knobs(knobs.iter()),
            ..Changed::default()
        };
        if attached {
            instance
                .write_files(self.spec, Some(&mut self.journal))
                .map_err(refused)?;
            let files = self.spec.target().files.iter();
            let files = files.map(|file| format!("file {}", file.path));
            changed.done.changed.extend(files);
        }
        if self.tell_service(&instance)? {
            let told = instance.reapply(self.spec).map_err(refused)?;
            changed.done.steps = told.steps.iter().map(|step| step.in_words()).collect();
        }
        if changed.done.is_empty() {
            return Ok(changed);
        }
        let reapply = Reapply::left_in(&self.state_dir).map_err(TunerError::Reapply)?;
        let (dir, name) = (&self.state_dir, &self.spec.name);
        let listed = promotions::record(dir, name, served, &self.journal, reapply)?;
        changed.listed = served.is_none().then_some(listed);
        self.control_files_in_force(&instance).map_err(refused)?;
        let former = self.journal.promote_all()?.into_iter();
        let copies = former.map(|former| {
            let (path, kept) = (former.path.display(), former.kept.display());
            format!("The previous contents of {path} are in {kept}.")
        });
        changed.done.copies = copies.collect();
        Reapply::forget(&self.state_dir);
        Ok(changed)
    }

    /// Puts back what a promotion has changed, as far as it can: files as they were before it, and
    /// the control's values of knobs. What cannot be restored keeps nothing else from being
    /// restored, and is named. Where `only` names some of that, the rest is not touched.
    ///
    /// # Errors
    /// The journal cannot be written, or an `apply` step refuses; everything is restored by the
    /// next [`Live::restore`].
    pub fn roll_back(&mut self, only: &[String]) -> Result<Changed, TunerError> {
        self.put_back(only, false)
    }

    /// As [`roll_back`](Self::roll_back), for a user: an `apply` step that refuses keeps nothing
    /// from being restored, and is named as what is left ([`APPLY_STEPS`]).
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn roll_back_by_hand(&mut self, only: &[String]) -> Result<Changed, TunerError> {
        self.put_back(only, true)
    }

    fn put_back(&mut self, only: &[String], is_by_hand: bool) -> Result<Changed, TunerError> {
        let is_asked = |subject: &str| only.is_empty() || only.iter().any(|it| it == subject);
        let attached = self.spec.target().start.is_none();
        if let Some(in_memory) = scratch::for_full_disk(&self.scratch) {
            self.scratch = in_memory;
        }
        let control = self.spec.space.default_configuration();
        let instance = self.prepare_promotion(&control).map_err(refused)?;
        let knobs =
            knobs::knob_values(self.spec, &control, &instance.variables).map_err(refused)?;
        self.applied = None;
        if attached {
            // A full disk keeps nobody from rolling back.
            let _ = self.remember_apply();
        }
        let mut knobs = knobs::of_host(knobs);
        knobs.retain(|(knob, _)| is_asked(&knob.to_string()));
        let refused_knobs = self.journal.write_as_many(&self.roots, &knobs)?;
        let is_done = |knob: &Knob| refused_knobs.iter().all(|(refused, _)| refused != knob);
        let done = knobs.iter().filter(|(knob, _)| is_done(knob));
        let mut changed = Changed {
            done: Changes::of_knobs(done),
            ..Changed::default()
        };
        let left = refused_knobs.iter();
        let left = left.map(|(knob, why)| Unrestored::new(knob.to_string(), why));
        changed.left.extend(left);
        let mut files = FormerFiles::default();
        if attached {
            files = self
                .write_former_files(&instance, &is_asked, &mut changed)
                .map_err(refused)?;
        }
        match self.apply_rollback(&instance, &files, &mut changed) {
            Err(TunerError::Promotion(why)) if is_by_hand => {
                Reapply::forget(&self.state_dir);
                changed
                    .left
                    .push(Unrestored::new(APPLY_STEPS.to_owned(), &why));
            }
            applied => applied?,
        }
        if changed.done.is_empty() {
            return Ok(changed);
        }
        let former = self.journal.promote_all()?.into_iter();
        let copies = former.map(|former| {
            let (path, kept) = (former.path.display(), former.kept.display());
            format!(
                "somebody else had changed {path} since the promotion: their version is in {kept}"
            )
        });
        changed.done.copies = copies.collect();
        Reapply::forget(&self.state_dir);
        let removed = files.removed.iter().map(|(path, _)| path);
        let back: Vec<&Path> = files
            .written
            .iter()
            .chain(removed)
            .map(PathBuf::as_path)
            .collect();
        let knobs = knobs.into_iter().map(|(knob, _)| knob);
        let knobs: Vec<Knob> = knobs.filter(|knob| is_done(knob)).collect();
        promotions::rolled_back(&self.state_dir, &knobs, &back);
        if let Ok(mut kept) = ControlFiles::kept_in(&self.state_dir) {
            for path in &back {
                kept.roll_back(path);
            }
            // A full disk keeps nobody from rolling back.
            let _ = kept.keep(&self.state_dir);
        }
        Ok(changed)
    }

    /// Runs the apply steps of a service that runs by itself. Returns whether there are any.
    fn tell_service(&mut self, instance: &Instance) -> Result<bool, TunerError> {
        if self.spec.target().start.is_some() || self.spec.target().apply.is_empty() {
            return Ok(false);
        }
        instance
            .apply(self.spec, &self.interrupt)
            .map_err(refused)?;
        Ok(true)
    }

    /// Tells the service of a rollback. Where it refuses to be without a file that was not there
    /// before the promotion, the file becomes the control's: else nothing could be rolled back.
    fn apply_rollback(
        &mut self,
        instance: &Instance,
        files: &FormerFiles,
        changed: &mut Changed,
    ) -> Result<(), TunerError> {
        let mut tell = |live: &mut Self| {
            if live.tell_service(instance)? {
                changed.done.steps = vec!["ran the apply steps".to_owned()];
            }
            Ok(())
        };
        let applied = tell(self);
        if applied.is_ok() || files.removed.is_empty() {
            let removed = files.removed.iter();
            changed.done.changed.extend(removed.map(|(path, _)| {
                format!(
                    "removed {}, which did not exist before the promotion",
                    path.display()
                )
            }));
            return applied;
        }
        for (path, of_control) in &files.removed {
            instance
                .write_file(path, of_control.as_bytes(), Some(&mut self.journal))
                .map_err(refused)?;
        }
        tell(self)?;
        let why = applied.err().map(|why| why.to_string()).unwrap_or_default();
        changed.done.changed.extend(files.removed.iter().map(|(path, _)| {
            format!(
                "wrote {} with the control's values (it did not exist before the promotion, but the apply steps fail without it: {why})",
                path.display()
            )
        }));
        Ok(())
    }

    /// What is promoted, and what it is rolled back to, has the experiment's side.
    fn prepare_promotion(&self, configuration: &Configuration) -> Result<Instance, Fault> {
        let arm = Arm {
            configuration: configuration.clone(),
            ..Arm::default()
        };
        Instance::prepare(self.spec, &arm, Side::Experiment, &self.scratch)
    }

    /// Keeps on disk what a rollback is to write: what the files hold before the promotion, or,
    /// one is in force already, before that one. The list alone has that of a command.
    fn keep_control_files(&self, is_command_s: bool) -> Result<(), Fault> {
        if self.spec.target().files.is_empty() {
            return Ok(());
        }
        let control = self.spec.space.default_configuration();
        let instance = self.prepare_promotion(&control)?;
        let mut kept = ControlFiles::kept_in(&self.state_dir).map_err(Fault::Harness)?;
        for file in &self.spec.target().files {
            let contents = instance.contents_of(self.spec, file);
            let template = self.spec.dir.join(&file.template);
            let path = instance.path_of(file)?;
            let earlier = kept.of(&path, &template, &control);
            let earlier = earlier.filter(|it| it.is_in_force).cloned();
            let before = match &earlier {
                Some(earlier) => earlier.before.clone(),
                None if is_command_s || instance.is_own(&path) => None,
                None => Some(
                    Before::at(&path)
                        .map_err(|error| Fault::Harness(format!("{}: {error}", path.display())))?,
                ),
            };
            let of_control = ControlFile {
                is_in_force: earlier.is_some(),
                before,
                template,
                control: control.clone(),
                contents: contents.map_err(Fault::Harness)?,
            };
            kept.insert(path, of_control);
        }
        kept.keep(&self.state_dir).map_err(Fault::Harness)
    }

    fn control_files_in_force(&self, instance: &Instance) -> Result<(), Fault> {
        if self.spec.target().start.is_some() || self.spec.target().files.is_empty() {
            return Ok(());
        }
        let mut kept = ControlFiles::kept_in(&self.state_dir).map_err(Fault::Harness)?;
        let paths = self.spec.target().files.iter();
        let paths: Result<Vec<PathBuf>, Fault> = paths.map(|it| instance.path_of(it)).collect();
        kept.come_into_force(&paths?);
        kept.keep(&self.state_dir).map_err(Fault::Harness)
    }

    /// Writes the files as they were before the promotion, and removes those that were not there.
    /// Of a file that is not known of, it writes the control's: made from the template, or as it
    /// was kept where that gives nothing. A file of which there is neither is left.
    fn write_former_files(
        &mut self,
        instance: &Instance,
        is_asked: &dyn Fn(&str) -> bool,
        changed: &mut Changed,
    ) -> Result<FormerFiles, Fault> {
        let kept = ControlFiles::kept_in(&self.state_dir);
        let control = self.spec.space.default_configuration();
        let mut files = FormerFiles::default();
        for file in &self.spec.target().files {
            let path = instance.path_of(file)?;
            let subject = path.display().to_string();
            if !is_asked(&subject) {
                continue;
            }
            let template = self.spec.dir.join(&file.template);
            let of_file = kept.as_ref().ok();
            let of_file = of_file.and_then(|kept| kept.of(&path, &template, &control));
            let before = of_file.and_then(|kept| kept.before.as_ref());
            let of_template = instance.contents_of(self.spec, file);
            let (contents, done) = match (before.map(Before::contents), of_template, of_file) {
                (Some(Some(before)), ..) => (
                    before.to_vec(),
                    format!("wrote {subject} as it was before the promotion"),
                ),
                (Some(None), of_template, _) => {
                    match self.journal.remove_file(&path) {
                        Ok(_) => {
                            let of_kept = of_file.map(|kept| kept.contents.clone());
                            let of_control = of_template.ok().or(of_kept).unwrap_or_default();
                            files.removed.push((path, of_control));
                        }
                        Err(why) => changed.left.push(Unrestored::new(subject, &why)),
                    }
                    continue;
                }
                (None, Ok(contents), _) => (
                    contents.into_bytes(),
                    format!("wrote {subject} with the control's values"),
                ),
                (None, Err(why), Some(kept)) => (
                    kept.contents.clone().into_bytes(),
                    format!(
                        "wrote {subject} with the control's values, as kept at the promotion ({why})"
                    ),
                ),
                (None, Err(why), None) => {
                    let damage = kept.as_ref().err().map(|why| format!(": {why}"));
                    let why = format!(
                        "{why}, and no copy of the control's was kept{}",
                        damage.unwrap_or_default()
                    );
                    changed.left.push(Unrestored { subject, why });
                    continue;
                }
            };
            match instance.write_file(&path, &contents, Some(&mut self.journal)) {
                Ok(()) => {
                    changed.done.changed.push(done);
                    files.written.push(path);
                }
                Err(why) => changed.left.push(Unrestored::new(subject, &why)),
            }
        }
        Ok(files)
    }

    /// Keeps on disk how the service is told of its own configuration: the control's, or what is in
    /// force between evaluations.
    pub(super) fn remember_apply(&self) -> Result<(), Fault> {
        let is_kept = Reapply::left_in(&self.state_dir).is_ok_and(|kept| kept.is_some());
        if self.spec.target().apply.is_empty() || is_kept {
            return Ok(());
        }
        let own = match &self.baseline {
            Some(baseline) => {
                let arm = Arm {
                    configuration: baseline.clone(),
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

fn refused(fault: Fault) -> TunerError {
    TunerError::Promotion(fault.to_string())
}

fn in_words((knob, value): &(Knob, String)) -> String {
    format!("{knob} = {value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_and_what_a_file_held_before_are_not_in_force() {
        let copy = "The previous contents of /etc/app.conf are in /state/replaced/app.conf.0.";
        let done = Changes {
            changed: vec!["vm.swappiness = 10".into(), "file /etc/app.conf".into()],
            // Whatever a step is called, it is a step.
            steps: vec!["previous contents of x, kept in y".into()],
            copies: vec![copy.into()],
        };
        let said = [
            "In force: vm.swappiness = 10, file /etc/app.conf.",
            "Apply step: `previous contents of x, kept in y`.",
            copy,
        ];
        assert_eq!(done.sentences(), said);
        assert_eq!(Changes::default().sentences(), [""; 0]);
        // What an earlier Slackline kept has one list.
        let kept = serde_json::from_str::<Changes>(r#"{ "changed": ["x = 1"] }"#).unwrap();
        assert_eq!(kept.sentences(), ["In force: x = 1."]);
    }

    #[test]
    fn the_reason_of_what_is_left_does_not_repeat_its_name() {
        let left = |why: &str| Unrestored::new("/etc/app.conf".into(), &why).to_string();
        assert_eq!(left("/etc/app.conf: gone"), "/etc/app.conf (gone)");
        assert_eq!(
            left("/etc/app.conf cannot be replaced: it is a directory"),
            "/etc/app.conf (cannot be replaced: it is a directory)"
        );
        assert_eq!(left("the disk is full"), "/etc/app.conf (the disk is full)");
    }
}
