//! What an experiment has shown, as the card on top of its page has it.

use coordinator::store::ExperimentRow;
use tuner::conclusion::{ConstraintResult, ConstraintVerdict, Guard, GuardResult, GuardVerdict};
use tuner::report::{AGAINST_MEANS, ArmResult, Finding, change};
use tuner::spec::Spec;

use crate::format::interval;
use crate::names::Names;
use crate::units::{Unit, digits};

/// A row of the card: what, how it turned out, and the class that colours the word.
pub(super) struct Line {
    pub(super) what: String,
    pub(super) word: &'static str,
    pub(super) class: &'static str,
}

pub(super) struct Verdict {
    /// `good`, `open` or `bad`.
    pub(super) class: &'static str,
    pub(super) title: &'static str,
    pub(super) sentence: String,
    /// The objective's name, its change, and both means.
    pub(super) objective: String,
    pub(super) change: String,
    pub(super) means: Option<(String, String)>,
    /// Why the means say the opposite of the change, where they do.
    pub(super) contrast: Option<&'static str>,
    /// What the requests of a block are too few for.
    pub(super) few_requests: Option<String>,
    /// Constraints and guards.
    pub(super) lines: Vec<Line>,
    pub(super) settings: Vec<String>,
    pub(super) settings_heading: &'static str,
    /// The control's values of what the winner changes, to undo it by hand.
    pub(super) control: Vec<String>,
    /// Why the server cannot promote it.
    pub(super) not_promotable: Option<String>,
    /// Slackline changes nothing on this host for it: its user copies the settings.
    pub(super) is_copied: bool,
    pub(super) is_better: bool,
}

impl Verdict {
    /// `None` where nothing was verified or concluded.
    pub(super) fn of(row: &ExperimentRow) -> Option<Self> {
        let report = &row.report;
        let winner = report.winner();
        let is_broken = winner.is_some_and(ArmResult::breaks_a_constraint);
        let (class, title) = match report.finding {
            Finding::Improvement => ("good", "Shown to be better"),
            Finding::Paid => ("open", "Better, but a guard is worse"),
            Finding::Undecided => ("open", "Better, but not everything is decided"),
            Finding::NoDifference => ("open", "No difference shown"),
            Finding::Worse => ("bad", "Worse than the control"),
            Finding::ConstraintViolated if is_broken => ("bad", "Better, but a limit is broken"),
            Finding::ConstraintViolated => ("bad", "Better, but a run failed"),
            Finding::Unfinished => return None,
        };
        let objective = super::summary::objective(row);
        let unit = Unit::in_spec(&row.spec, &objective.metric);
        let ratio = winner.and_then(|winner| {
            let named = winner.ratios.get(&objective.name());
            named.or_else(|| winner.ratios.get(&objective.metric))
        });
        let means = winner.and_then(|winner| winner.means.get(&objective.metric));
        let names = Names::of(&row.spec);
        let constraints = winner.iter().flat_map(|winner| &winner.constraints);
        let guards = winner.iter().flat_map(|winner| &winner.guards);
        let lines = constraints
            .map(|it| of_constraint(&row.spec, &names, it))
            .chain(guards.filter_map(|it| of_guard(&row.spec, it)))
            .collect();
        let changed = winner.iter().flat_map(|winner| &winner.configuration.0);
        let control = &report.control;
        let control = changed.filter_map(|(name, value)| {
            let own = control.get(name)?;
            (own != value).then(|| format!("{name} = {own}"))
        });
        Some(Self {
            class,
            title,
            sentence: names.text(&report.sentence),
            objective: unit.name(),
            change: ratio.map_or_else(String::new, change),
            contrast: winner
                .is_some_and(|winner| winner.is_against_means(&objective.metric))
                .then_some(AGAINST_MEANS),
            few_requests: winner
                .and_then(|it| it.few_requests.as_ref())
                .map(|it| names.text(it)),
            means: means.map(|(control, arm)| (unit.mean(*control), unit.mean(*arm))),
            lines,
            settings: report.settings.clone(),
            settings_heading: report.finding.settings_heading(),
            control: control.collect(),
            not_promotable: row.not_promotable().map(str::to_owned),
            is_copied: !row.spec.changes_host(),
            is_better: report.finding.is_better() && winner.is_some(),
        })
    }
}

fn of_constraint(spec: &Spec, names: &Names<'_>, constraint: &ConstraintResult) -> Line {
    let (word, class) = match constraint.verdict {
        ConstraintVerdict::Held => ("held", "good"),
        ConstraintVerdict::Broken => ("broken", "bad"),
        ConstraintVerdict::NotDecidable => ("not decided", "open"),
    };
    let metric = constraint
        .constraint
        .split_whitespace()
        .next()
        .unwrap_or_default();
    let measured = constraint
        .observed
        .as_ref()
        .map(|it| match constraint.is_ratio {
            true => change(it),
            false => interval(&Unit::in_spec(spec, metric), it),
        });
    let told = names.text(&constraint.constraint);
    let what = match measured {
        Some(measured) => format!("{told}: {measured}"),
        None => told,
    };
    Line { what, word, class }
}

/// `None` of one that the specification is about anyway.
fn of_guard(spec: &Spec, guard: &GuardResult) -> Option<Line> {
    let word = guard.word(spec.verification.smallest_effect);
    let class = match guard.verdict {
        GuardVerdict::Worse if guard.is_allowed => "open",
        GuardVerdict::Worse => "bad",
        GuardVerdict::NotWorse => "good",
        GuardVerdict::NotMeasured => "",
        GuardVerdict::Specified => return None,
    };
    let name = guard
        .metric
        .as_deref()
        .map(|metric| Unit::in_spec(spec, metric).name());
    let name = name.unwrap_or_else(|| guard.guard.name().to_owned());
    let what = match (&guard.change, guard.guard) {
        (None, _) => name,
        // Of errors it is the difference, as there may be none on the control.
        (Some(it), Guard::Errors) => format!(
            "{name}: {} more [{}, {}]",
            digits(it.estimate),
            digits(it.low),
            digits(it.high)
        ),
        (Some(it), _) => format!("{name}: {}", change(it)),
    };
    Some(Line { what, word, class })
}
