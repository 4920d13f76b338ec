//! The row of an experiment: its state, what its user wants, and what it says.

use bayes_opt::Observation;
use host::Roots;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::promotions::Served;
use tuner::report::{Finding, Report};
use tuner::sentence::counted;
use tuner::spec::{BudgetSpec, ExperimentMode, Spec};

use super::database::{Cell, Database};
use super::promotion::Promotion;
use super::{json, name_of, to_json};
use crate::error::Error;

/// The state of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ExperimentState")]
pub enum State {
    /// The experiment waits for its turn.
    Queued,
    /// The experiment is being measured.
    Running,
    /// The experiment waits until its user resumes it.
    Paused,
    /// The experiment came to its verified end.
    Done,
    /// A user stopped the experiment.
    Stopped,
    /// An error ended the experiment.
    Failed,
}

impl State {
    /// Each of them.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Running,
        Self::Paused,
        Self::Done,
        Self::Stopped,
        Self::Failed,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// The state as a sentence has it after its subject: `is done`, `has failed`.
    #[must_use]
    pub fn with_verb(self) -> String {
        match self {
            Self::Failed => "has failed".to_owned(),
            state => format!("is {state}"),
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A user's request to an experiment that is queued or running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UserRequest {
    /// Pause after the current evaluation.
    Pause,
    /// Stop now.
    Stop,
    /// Stop searching, and verify the best configurations so far.
    Verify,
}

impl UserRequest {
    /// What becomes of the experiment, to be said after its name or its state.
    #[must_use]
    pub fn with_verb(self) -> &'static str {
        match self {
            Self::Pause => "pauses after its current evaluation",
            Self::Stop => "stops now",
            Self::Verify => "is verified next",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Stop => "stop",
            Self::Verify => "verify",
        }
    }
}

/// An experiment, without what it measured.
#[derive(Clone, Debug)]
pub struct ExperimentRow {
    /// Its number, from 1; never given twice.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// What its user wants.
    pub wish: Option<UserRequest>,
    /// Where relative paths of its specification count from.
    pub dir: String,
    /// The specification as written.
    pub source: String,
    /// The specification with the control's values.
    pub spec: Spec,
    /// Another budget than the specification's.
    pub budget: Option<BudgetSpec>,
    /// What an earlier experiment measured.
    pub prior: Vec<Observation>,
    /// That experiment.
    pub parent: Option<i64>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Why it waits or what ended it.
    pub message: Option<String>,
    /// Which verification is the present one, from 1.
    pub verification: i64,
    /// The arms of the present verification, once it began.
    pub plan: Option<Vec<PlannedArm>>,
    /// The report of the last session, without evaluations and blocks.
    pub report: Report,
    /// What of it is in force on the host.
    pub promotion: Option<Promotion>,
    /// What a person has written about it.
    pub note: Option<String>,
}

/// The share of a budget in minutes with which it is used up: what passed between evaluations
/// counted too, and is not kept.
const MINUTES_USED_UP: f64 = 0.95;

impl ExperimentRow {
    /// The budget in force.
    pub fn budget(&self) -> &BudgetSpec {
        self.budget.as_ref().unwrap_or(&self.spec.budget)
    }

    /// Which one it is in the list of what is in force on a host.
    pub(crate) fn served(&self) -> Served {
        Served {
            experiment: self.id,
            made_ms: self.created_ms,
        }
    }

    /// What of it is in force: not what a rollback could not restore.
    pub fn in_force(&self) -> Option<&Promotion> {
        self.promotion.as_ref().filter(|it| it.left.is_empty())
    }

    /// What a rollback could not restore.
    pub fn unfinished_rollback(&self) -> Option<&Promotion> {
        self.promotion.as_ref().filter(|it| !it.left.is_empty())
    }

    /// Why it cannot search on, if it is done and has measured so many evaluations, for so long:
    /// its budget is used up, and nothing is left to be measured but another verification.
    pub fn nothing_to_resume(&self, evaluations: usize, measured_s: f64) -> Option<String> {
        let budget = self.budget();
        let most = budget.evaluations;
        let at_once = self.spec.workers.as_ref().map_or(1, |it| it.at_once.max(1));
        let took_min = measured_s / 60.0 / at_once as f64;
        let minutes = budget.wall_time_min;
        let minutes = minutes.filter(|minutes| took_min >= MINUTES_USED_UP * minutes);
        let (used_up, options) = match minutes {
            _ if self.state != State::Done || self.spec.mode != ExperimentMode::Once => {
                return None;
            }
            _ if evaluations >= most => (counted(most, "evaluation"), "--evaluations N".to_owned()),
            Some(minutes) => (
                format!("{minutes} min of measuring"),
                format!("--evaluations {most} --wall-time-min MINUTES"),
            ),
            None => return None,
        };
        Some(format!(
            "its budget of {used_up} is used up. To search on, raise it first: `slackline experiments budget {} {options}`. \
             To measure the result again, verify it",
            self.id
        ))
    }

    /// How many evaluations of the experiment that it starts from tell its search something.
    pub fn carried_over(&self) -> usize {
        let own = &self.report.control.0;
        let is_shared =
            |it: &&Observation| it.configuration.0.keys().any(|name| own.contains_key(name));
        self.prior.iter().filter(is_shared).count()
    }

    /// Whether it is being verified now.
    pub fn is_verifying(&self) -> bool {
        self.state == State::Running && self.plan.is_some()
    }

    /// What to say of a fork whose parameters are all other ones than those it starts from.
    pub fn carries_nothing_over(&self) -> Option<&'static str> {
        (!self.prior.is_empty() && self.carried_over() == 0).then_some(
            "no evaluation of the earlier experiment carries over, because the two have no parameter in common",
        )
    }

    /// Why its winner cannot be put in force, if it cannot. A verification stands until another one
    /// has come to its end, also where the experiment was resumed since and stopped, or paused, or
    /// has failed.
    pub fn not_promotable(&self) -> Option<&'static str> {
        if self.report.finding == Finding::Paid {
            Some("a guard is worse: name it in verification.allow_worse of a fork, and verify that")
        } else if self.report.finding != Finding::Improvement {
            Some("only a verified improvement can be promoted")
        } else if self.spec.mode == ExperimentMode::Continuous && self.state != State::Done {
            Some("a continuous experiment promotes by itself")
        } else if self.state == State::Queued {
            Some("it waits to be measured again: stop it first, or wait for its new result")
        } else if self.state == State::Running {
            Some("it is being measured again: stop it first, or wait for its new result")
        } else if self.report.imported && !self.report.verified_here {
            // A file can be changed, also one that this host has exported.
            Some(match self.report.machine.is_here(&Roots::default()) {
                Some(true) => "it was imported from a file: verify it here first",
                Some(false) => {
                    "it was imported, and its improvement was shown on another host: verify it here first"
                }
                None => {
                    "it was imported, and may have been shown on another host: verify it here first"
                }
            })
        } else if !self.spec.changes_host() {
            Some(
                "Slackline starts this service only for the experiment. Copy the winner's settings into your own service's configuration",
            )
        } else {
            None
        }
    }
}

/// An experiment in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ExperimentSummary {
    /// Number of the experiment, from 1.
    pub id: i64,
    /// Name of the experiment.
    pub name: String,
    /// The state.
    pub state: State,
    /// The user's request, if it has not been carried out yet.
    pub wish: Option<UserRequest>,
    /// Why the experiment waits, or what ended it.
    pub message: Option<String>,
    /// When the experiment was created, in milliseconds since 1970.
    pub created_ms: i64,
    /// Evaluations that ended and count against the budget. Lost evaluations do not count, nor
    /// evaluations that failed on one worker while another worker could measure.
    pub evaluations: usize,
    /// The largest number of evaluations.
    pub budget: usize,
    /// The lowest score of a completed evaluation. A score is the logarithm of the ratio to the
    /// control, or the value itself.
    pub best_score: Option<f64>,
    /// What the verification has shown, as one sentence. Empty before that.
    pub sentence: String,
    /// The experiment whose evaluations this one started from.
    pub parent: Option<i64>,
    /// `true`: the winner is in force on the host.
    pub promoted: bool,
    /// Knobs and files that the rollback could not restore, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
    /// `true`: the experiment was imported as a report.
    pub imported: bool,
    /// `true`: the experiment is in `mode = "continuous"`. It does not end, and the budget is that
    /// of one search.
    pub always_on: bool,
    /// What the experiment waits for, in words: another experiment, or the queue to be resumed.
    pub waits: Option<String>,
    /// Workers on other hosts measure it.
    #[serde(skip)]
    pub on_workers: bool,
}

impl ExperimentSummary {
    /// How many evaluations there are, and may be, in words.
    #[must_use]
    pub fn counted(&self) -> String {
        let budget = self.budget;
        let done = counted(self.evaluations, "evaluation");
        match (self.always_on, self.evaluations > budget) {
            (true, _) => format!("{done}; each search may use {budget}"),
            (false, true) => format!("{done}, above the budget of {budget}"),
            (false, false) => {
                format!("{} of {}", self.evaluations, counted(budget, "evaluation"))
            }
        }
    }
}

const COLUMNS: &str = "id, name, state, wish, dir, source, spec, budget, prior, parent, created_ms, message, \
    verification, plan, report, promotion, note";

fn row(cells: &[Cell]) -> Result<ExperimentRow, Error> {
    let text = |index: usize| cells[index].text().unwrap_or_default().to_owned();
    let optional = |index: usize| cells[index].text().map(str::to_owned);
    Ok(ExperimentRow {
        id: cells[0].int().unwrap_or(0),
        name: name_of(&cells[1]),
        state: state(&cells[2])?,
        wish: wish(&cells[3])?,
        dir: text(4),
        source: text(5),
        spec: json(&cells[6])?,
        budget: json(&cells[7])?,
        prior: json::<Option<_>>(&cells[8])?.unwrap_or_default(),
        parent: cells[9].int(),
        created_ms: cells[10].int().unwrap_or(0),
        message: optional(11),
        verification: cells[12].int().unwrap_or(1),
        plan: json(&cells[13])?,
        report: json(&cells[14])?,
        promotion: json(&cells[15])?,
        note: optional(16),
    })
}

pub(super) fn state(cell: &Cell) -> Result<State, Error> {
    let text = cell.text().unwrap_or_default();
    let mut states = State::ALL.into_iter();
    states
        .find(|state| state.name() == text)
        .ok_or_else(|| Error::Corrupt(format!("an experiment is in the state {text:?}")))
}

pub(super) fn wish(cell: &Cell) -> Result<Option<UserRequest>, Error> {
    let mut wishes = [UserRequest::Pause, UserRequest::Stop, UserRequest::Verify].into_iter();
    match cell.text() {
        None => Ok(None),
        Some(text) => wishes
            .find(|wish| wish.name() == text)
            .map(Some)
            .ok_or_else(|| Error::Corrupt(format!("an experiment has the wish {text:?}"))),
    }
}

/// One experiment, inside a transaction.
pub(super) fn find(database: &mut Database, id: i64) -> Result<ExperimentRow, Error> {
    let rows = database.query(
        &format!("SELECT {COLUMNS} FROM experiments WHERE id = $1"),
        &[id.into()],
    )?;
    let found = rows
        .first()
        .ok_or_else(|| Error::NotFound(format!("experiment {id}")))?;
    row(found)
}

/// Why nothing else may be done to what a rollback could not restore.
pub(crate) fn unfinished(id: i64, left: &[String]) -> String {
    let left = left.join(", ");
    format!(
        "the rollback of experiment {id} could not restore {left}: roll back the rest first, or forget it"
    )
}

/// Changes one column of an experiment, inside a transaction.
pub(super) fn set(
    database: &mut Database,
    id: i64,
    column: &'static str,
    value: Cell,
) -> Result<(), Error> {
    let changed = format!("UPDATE experiments SET {column} = $1 WHERE id = $2");
    database.execute(&changed, &[value, id.into()]).map(drop)
}

/// A run of the present verification, inside a transaction.
pub(super) fn insert_run(
    database: &mut Database,
    id: i64,
    run: &VerificationRun,
) -> Result<(), Error> {
    let measured = to_json(run)?;
    database.execute(
        "INSERT INTO runs (experiment, verification, arm, run, measured) \
         SELECT id, verification, $1, $2, $3 FROM experiments WHERE id = $4",
        &[
            run.arm.into(),
            run.run.into(),
            measured.as_str().into(),
            id.into(),
        ],
    )?;
    Ok(())
}

/// The refusal of what cannot be done to an experiment in its state.
pub(crate) fn refused(id: i64, state: State, why: &str) -> Error {
    let is = state.with_verb();
    Error::Conflict(format!("experiment {id} {is}: {why}"))
}
