//! Promotions by hand, and what they and their unfinished rollbacks keep from being done.

use std::path::{Path, PathBuf};

use bayes_opt::Configuration;
use host::{Knob, Roots};
use tuner::live::{Changed, Changes, Live};
use tuner::process::Interrupt;
use tuner::spec::{CheckedSpec, ExperimentMode, TargetSpec};

use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::lock::lock;
use crate::shared_service::shared_service;
use crate::store::{ExperimentRow, Promotion, State, for_rollback, refused, unfinished};

/// What is in force where a promotion was interrupted and there was nothing to undo.
const UNKNOWN: &str = "not known, because the promotion was interrupted: roll it back";

impl Coordinator {
    /// Applies the winner of a verified improvement to the running system, and leaves it there.
    ///
    /// # Errors
    /// [`Error::Conflict`] where no improvement was shown, it or another promotion is in force, or
    /// the host is in use.
    pub fn promote(&self, id: i64) -> Result<Promotion, Error> {
        let promoting = lock(&self.promoting);
        let row = self.may_be_promoted(id)?;
        let winner = row.report.winner().map(|arm| arm.configuration.clone());
        let winner = winner.ok_or_else(|| refused(id, row.state, "it has no winner"))?;
        let spec = self.checked(&row)?;
        if let Some(why) = row.report.changed_template(&spec) {
            return Err(Error::Conflict(why));
        }
        if let Some(why) = has_vanished(&winner, &spec) {
            return Err(Error::Conflict(why));
        }
        let done = self.apply(&row, &spec, &winner)?.done;
        if done.is_empty() {
            self.store.set_promotion(id, None)?;
            return Err(Error::Conflict(
                "Slackline starts this service only for the experiment. Copy the winner's settings into your own service's configuration"
                    .into(),
            ));
        }
        let promotion = Promotion {
            is_complete: true,
            done,
            left: Vec::new(),
            at: jiff::Timestamp::now(),
        };
        self.store.set_promotion(id, Some(&promotion))?;
        drop(promoting);
        Ok(promotion)
    }

    /// The experiment, if nothing speaks against promoting its winner now.
    fn may_be_promoted(&self, id: i64) -> Result<ExperimentRow, Error> {
        let row = self.store.experiment(id)?;
        may_promote(&row)?;
        match self.bars_promotion(id)? {
            Some(why) => Err(Error::Conflict(why)),
            None => Ok(row),
        }
    }

    /// Why a promotion of an experiment's winner would be refused now, whatever is being measured;
    /// `None` where it would not.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`].
    pub fn bars_winner(&self, id: i64) -> Result<Option<String>, Error> {
        let row = self.store.experiment(id)?;
        if let Some(why) = row.not_promotable() {
            return Ok(Some(why.to_owned()));
        }
        let spec = match self.checked(&row) {
            Err(error @ Error::Spec(_)) => return Ok(Some(error.to_string())),
            spec => spec?,
        };
        if let Some(why) = row.report.changed_template(&spec) {
            return Ok(Some(why));
        }
        let winner = row.report.winner();
        match winner.and_then(|winner| has_vanished(&winner.configuration, &spec)) {
            Some(why) => Ok(Some(why)),
            None => self.bars_promotion(id),
        }
    }

    /// Why nothing of an experiment may be promoted: the winner of another one is in force, or a
    /// rollback of another one has left what this one would change.
    pub(crate) fn bars_promotion(&self, id: i64) -> Result<Option<String>, Error> {
        if let Some(why) = self.unknown_promotion()? {
            return Ok(Some(why));
        }
        let others = self.store.experiments()?.into_iter();
        let mut others = others.filter(|other| other.promoted && other.id != id);
        if let Some(other) = others.next() {
            return Ok(Some(format!(
                "the winner of experiment {0} is in force on this host: roll back experiment {0} first",
                other.id
            )));
        }
        let mut left = self.store.left()?;
        left.retain(|(other, _)| *other != id);
        if left.is_empty() {
            return Ok(None);
        }
        let spec = self.checked(&self.store.experiment(id)?)?;
        let mut barred = left.into_iter().filter_map(|(other, mut left)| {
            left.retain(|subject| may_change(&spec, subject, &self.roots));
            (!left.is_empty()).then(|| unfinished(other, &left))
        });
        Ok(barred.next())
    }

    /// Puts a configuration in force. Until that is done, the row says that it was begun.
    fn apply(
        &self,
        row: &ExperimentRow,
        spec: &CheckedSpec,
        configuration: &Configuration,
    ) -> Result<Changed, Error> {
        self.must_be_active()?;
        let open = || {
            Live::new(spec, &self.state_dir, Interrupt::default()).map_err(|error| match error {
                tuner::TunerError::Host(error @ host::HostError::Locked { .. }) => {
                    Error::Conflict(self.who_has_the_host(&error))
                }
                error => error.into(),
            })
        };
        let mut live = open()?;
        if !live.left_over().is_empty() {
            // Of a run that was killed. A promotion forgets what there is to undo, so that has to
            // be undone before.
            drop(live);
            self.undo(&|_| ())?;
            live = open()?;
        }
        // Whoever had the host until now may have promoted something, or verified something else.
        let now = self.may_be_promoted(row.id)?;
        if now.report.winner().map(|arm| &arm.configuration) != Some(configuration) {
            let why = "it was verified again meanwhile: look at the result, and promote again";
            return Err(refused(now.id, now.state, why));
        }
        let begun = Promotion {
            is_complete: false,
            done: Changes::default(),
            left: Vec::new(),
            at: jiff::Timestamp::now(),
        };
        self.store.begin_promotion(row.id, &begun, may_promote)?;
        let promoted = live.promote(configuration, &row.served());
        // After a refusal, what was applied so far is taken back; else there is nothing to take
        // back.
        let restored = live.restore();
        match promoted {
            Ok(changed) => {
                restored?;
                Ok(changed)
            }
            Err(error) => {
                // What could not be taken back is in the journal: nothing is promoted.
                self.store.set_promotion(row.id, row.promotion.as_ref())?;
                let also = restored.err().map(|it| format!("; {it}"));
                Err(Error::Conflict(format!(
                    "{error}{}",
                    also.unwrap_or_default()
                )))
            }
        }
    }

    /// Settles a promotion that a killed server had begun, after its changes are undone. If
    /// something was undone, it was the promotion, and nothing is in force. Else nobody knows how
    /// far the promotion had come, and the row says so.
    pub(crate) fn settle_interrupted(
        &self,
        is_undone: bool,
        report: &dyn Fn(&str),
    ) -> Result<(), Error> {
        let mut all = self.store.experiments()?;
        all.retain(|it| it.promoted && !it.always_on);
        for id in all.into_iter().map(|it| it.id) {
            let row = self.store.experiment(id)?;
            let begun = row.in_force();
            let begun = begun.filter(|it| !it.is_complete && it.done.is_empty());
            let Some(begun) = begun else { continue };
            let known = (!is_undone).then(|| Promotion {
                done: Changes {
                    changed: vec![UNKNOWN.to_owned()],
                    ..Changes::default()
                },
                ..begun.clone()
            });
            self.store.set_promotion(id, known.as_ref())?;
            report(&match is_undone {
                true => format!("the promotion of experiment {id} was interrupted, and is undone"),
                false => format!("the promotion of experiment {id} was interrupted: roll it back"),
            });
        }
        Ok(())
    }

    /// Forgets what a rollback could not restore: it stays as it is, nothing tries it again, and
    /// the experiment can be deleted. Returns what that is, with the reasons.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Conflict`] where no rollback has left anything.
    pub fn forget_rest(&self, id: i64) -> Result<Vec<String>, Error> {
        self.must_be_active()?;
        let row = self.store.experiment(id)?;
        if row.spec.mode == ExperimentMode::Continuous {
            if row.state == State::Running {
                return Err(refused(id, row.state, "pause it first"));
            }
            let mut controller = self.controller(id, &self.checked(&row)?)?;
            let forgotten = self.store.forget_rest(id)?;
            controller.forgot_rest(jiff::Timestamp::now());
            let entries = controller.take_entries();
            let state = controller.state();
            self.store
                .keep_continuous(id, state, None, &entries, None)?;
            tuner::promotions::forget_experiment(&self.state_dir, id)?;
            return Ok(forgotten);
        }
        let forgotten = self.store.forget_rest(id)?;
        tuner::promotions::forget_experiment(&self.state_dir, id)?;
        Ok(forgotten)
    }

    /// What a rollback of this experiment could not restore, with the reasons.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`].
    pub fn not_restored(&self, id: i64) -> Result<Vec<String>, Error> {
        let row = self.store.experiment(id)?;
        let rest = row.unfinished_rollback();
        Ok(rest.map_or_else(Vec::new, |it| it.done.changed.clone()))
    }

    /// An error where the experiment may not be measured now.
    pub(crate) fn may_be_measured(&self, row: &ExperimentRow) -> Result<(), Error> {
        match self.bars_measuring(row)? {
            Some(why) => Err(Error::Conflict(why)),
            None => Ok(()),
        }
    }

    /// Why measuring the experiment would spoil what is in force, or would compare with a control
    /// that is not in force.
    pub(crate) fn bars_measuring(&self, row: &ExperimentRow) -> Result<Option<String>, Error> {
        if let Some(why) = bars_measuring(row) {
            return Ok(Some(why));
        }
        let Some(target) = row.spec.target.as_ref().filter(|it| it.is_reconfigurable()) else {
            return Ok(None);
        };
        let others = self.store.experiments()?.into_iter();
        for other in others.filter(|it| it.promoted && it.id != row.id) {
            let theirs = self.store.experiment(other.id)?.spec.target;
            let shared = theirs.and_then(|theirs| shared_service(target, &theirs));
            if let Some(shared) = shared {
                return Ok(Some(for_rollback(other.id, &shared)));
            }
        }
        Ok(None)
    }
}

/// An error where the experiment itself is in no state to be promoted.
fn may_promote(row: &ExperimentRow) -> Result<(), Error> {
    if let Some(why) = row.not_promotable() {
        return Err(refused(row.id, row.state, why));
    }
    match row.in_force() {
        Some(it) if it.is_complete => Err(Error::Conflict(format!(
            "the winner of experiment {} is already in force",
            row.id
        ))),
        Some(_) => Err(refused(
            row.id,
            row.state,
            "its promotion is under way, or was interrupted: if it was interrupted, roll back the experiment first",
        )),
        None => Ok(()),
    }
}

/// Why an experiment may not be measured now.
///
/// What was promoted on a service that runs by itself may not be measured in turns with the
/// control: a session would leave the service told of the control's values. (Knobs come back to
/// what is in force.) And where a rollback is unfinished, the control is not what the host has.
pub(crate) fn bars_measuring(row: &ExperimentRow) -> Option<String> {
    if let Some(rest) = row.unfinished_rollback() {
        return Some(unfinished(row.id, &rest.left));
    }
    let is_reconfigurable = row
        .spec
        .target
        .as_ref()
        .is_some_and(TargetSpec::is_reconfigurable);
    (row.spec.mode == ExperimentMode::Once && row.in_force().is_some() && is_reconfigurable).then(|| {
        format!(
            "experiment {0} cannot be measured while its winner is in force. Roll back experiment {0} first. You can promote the \
             winner again after the verification",
            row.id
        )
    })
}

/// Why a verified configuration cannot be put in force whole: this host has lost a knob of it.
fn has_vanished(winner: &Configuration, spec: &CheckedSpec) -> Option<String> {
    let has = |name: &str| spec.space.parameters().iter().any(|it| it.name == name);
    let gone = winner.0.keys().find(|name| !has(name))?;
    let starts = format!("{gone}: ");
    let why = spec.skipped.iter().find_map(|it| it.strip_prefix(&starts));
    Some(format!(
        "{gone} belongs to what was verified, and this host does not have it any more ({}): verify the experiment again",
        why.unwrap_or("it is gone")
    ))
}

/// Whether a promotion may change a knob or a file, by whatever name. Where variables name the
/// file, nobody knows.
fn may_change(spec: &CheckedSpec, subject: &str, roots: &Roots) -> bool {
    let path = match subject.starts_with('/') {
        true => PathBuf::from(subject),
        false => Knob::Sysctl(subject.to_owned()).path(roots),
    };
    let mut knobs = spec.knobs.values();
    let mut files = spec.target().files.iter();
    let is_it = |knob: &Knob| {
        let is_path = !matches!(knob, Knob::Sched { .. } | Knob::Egress { .. });
        knob.to_string() == subject || is_path && host::is_same_file(&knob.path(roots), &path)
    };
    knobs.any(|binding| is_it(&binding.knob))
        || files
            .any(|file| file.path.contains('{') || host::is_same_file(Path::new(&file.path), &path))
}
