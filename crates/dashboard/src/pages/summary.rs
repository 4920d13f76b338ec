//! What pages say of an experiment in few words.

use coordinator::store::{ExperimentRow, ExperimentSummary, State as ExperimentState};
use coordinator::{Coordinator, Error};
use tuner::sentence::counted;
use tuner::spec::{ObjectiveSpec, Spec};

use crate::format;
use crate::names::Names;
use crate::readers;
use crate::role::Role;

/// The best score of an experiment, in its objective's terms.
pub(super) fn best(spec: &Spec, summary: &ExperimentSummary) -> String {
    let measured = spec.objective.as_ref().zip(summary.best_score);
    measured.map_or_else(String::new, |(it, score)| format::score(spec, it, score))
}

/// A summary whose texts call metrics as people do.
pub(super) fn told(summary: ExperimentSummary, spec: &Spec) -> ExperimentSummary {
    let names = Names::of(spec);
    ExperimentSummary {
        sentence: names.text(&summary.sentence),
        message: summary.message.map(|it| names.text(&it)),
        ..summary
    }
}

/// What an experiment is doing, in one sentence.
pub(super) fn status(summary: &ExperimentSummary, coordinator: &Coordinator, role: Role) -> String {
    let mut text = summary.counted();
    if let Some(progress) = coordinator
        .progress()
        .filter(|progress| progress.experiment == summary.id)
    {
        let blocks = match progress.of_blocks {
            0 => "starting".to_owned(),
            of => format!("{} of {}", progress.blocks, counted(of, "block")),
        };
        if let Some(verifying) = progress.verifying {
            let verifying = readers::line(role, &verifying);
            text = match (summary.always_on, progress.of_blocks) {
                (true, 0) => verifying,
                (true, _) => format!("{verifying}, {blocks}"),
                (false, _) => format!("verifying: {verifying}, {blocks}"),
            };
        } else if let Some(number) = progress.evaluation {
            text = format!("{text}; evaluation {number}, {blocks}");
        }
    }
    if let Some(wish) = summary.wish {
        text = format!("{text}; {}", wish.with_verb());
    }
    // The sentence of one that has failed ends with why.
    let message = summary.message.as_ref();
    if let Some(message) = message.filter(|it| !summary.sentence.contains(*it)) {
        text = format!("{text}; {message}");
    }
    if let Some(why) = &summary.waits {
        text = format!("{text}; {why}");
    }
    text
}

/// What the user of a rollback should know before it.
pub(super) fn before_rollback(
    coordinator: &Coordinator,
    summary: &ExperimentSummary,
) -> Result<String, Error> {
    let mut text = "Undo the promotion? Each file becomes as it was before the promotion, and each knob gets the control's value.".to_owned();
    let progress = coordinator.progress();
    if progress.is_some_and(|it| it.evaluation.is_some() || it.verifying.is_some()) {
        text.push_str(" The evaluation that is being measured now is interrupted.");
    }
    if let Some(command) = host::GivesWay::holder(coordinator.state_dir()) {
        text.push_str(&format!(
            " {command} is measuring on this host: it is ended, and puts back what it has changed."
        ));
    }
    if summary.always_on && is_active(summary.state) {
        text.push_str(" The rollback also pauses this experiment.");
    }
    for other in coordinator.would_promote(summary.id)? {
        text.push_str(&format!(
            " Continuous experiment {other} may promote afterwards: to prevent this, pause it first."
        ));
    }
    Ok(text)
}

/// An experiment whose rollback could not restore everything.
pub(super) struct InPart {
    pub(super) id: i64,
    pub(super) name: String,
    /// What is not restored, with the reasons.
    pub(super) left: String,
}

pub(super) fn in_part(all: &[ExperimentSummary]) -> Vec<InPart> {
    let left = all.iter().filter(|it| !it.not_restored.is_empty());
    left.map(|it| InPart {
        id: it.id,
        name: it.name.clone(),
        left: it.not_restored.join(", "),
    })
    .collect()
}

/// The objective, also of a specification without one.
pub(super) fn objective(row: &ExperimentRow) -> ObjectiveSpec {
    let none = || ObjectiveSpec {
        metric: String::new(),
        goal: tuner::spec::Goal::Minimise,
        std_weight: 0.0,
        scale: tuner::spec::ObjectiveScale::Ratio,
    };
    row.spec.objective.clone().unwrap_or_else(none)
}

pub(super) fn is_active(state: ExperimentState) -> bool {
    matches!(state, ExperimentState::Queued | ExperimentState::Running)
}
