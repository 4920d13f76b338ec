//! Experiments: their rows and their states.

use std::collections::BTreeMap;

use bayes_opt::Observation;
use host::Roots;
use serde::{Deserialize, Serialize};
use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::promotions::Served;
use tuner::report::{Finding, Report};
use tuner::sentence::counted;
use tuner::spec::{BudgetSpec, Mode, Spec};

use super::database::{Cell, Database};
use super::entries::happened;
use super::promotion::Promotion;
use super::queue::end_of_queue;
use super::{Store, json, name_of, to_json, usize_of, waiting};
use crate::error::Error;

/// What an experiment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its turn.
    Queued,
    /// Is measured.
    Running,
    /// Waits for its user.
    Paused,
    /// Came to its verified end.
    Done,
    /// Was stopped by its user.
    Stopped,
    /// An error ended it.
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

/// What its user wants of an experiment that runs or will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wish {
    /// To wait after the present evaluation.
    Pause,
    /// To end now.
    Stop,
    /// To search no further, and to verify what is there.
    Verify,
}

impl Wish {
    /// What becomes of the experiment, to be said after its name or its state.
    #[must_use]
    pub fn with_verb(self) -> &'static str {
        match self {
            Self::Pause => "pauses after its current evaluation",
            Self::Stop => "stops now",
            Self::Verify => "is verified next",
        }
    }

    fn name(self) -> &'static str {
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
    pub wish: Option<Wish>,
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
    /// The report of the last sitting, without evaluations and blocks.
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
            _ if self.state != State::Done || self.spec.mode != Mode::Once => return None,
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
        } else if self.spec.mode == Mode::Continuous && self.state != State::Done {
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
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its number.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: State,
    /// What its user wants, if that has not happened yet.
    pub wish: Option<Wish>,
    /// Why it waits or what ended it.
    pub message: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: i64,
    /// Evaluations that ended, the lost ones not counted.
    pub evaluations: usize,
    /// How many there may be.
    pub budget: usize,
    /// The lowest score of a completed evaluation: the logarithm of the ratio to the control, or
    /// the value itself.
    pub best_score: Option<f64>,
    /// What was shown, in one sentence; empty until there is something to say.
    pub sentence: String,
    /// The experiment whose evaluations it starts from.
    pub parent: Option<i64>,
    /// Whether its winner is in force on the host.
    pub promoted: bool,
    /// What its rollback could not restore, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_restored: Vec<String>,
    /// Whether it comes from a report of elsewhere.
    pub imported: bool,
    /// Whether it is in `mode = "continuous"`: it never ends, and the budget is that of one search.
    pub always_on: bool,
    /// What an experiment waits for, in words: another one, or that the queue is resumed.
    pub waits: Option<String>,
    /// Workers on other hosts measure it.
    #[serde(skip)]
    pub on_workers: bool,
}

impl Summary {
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

fn wish(cell: &Cell) -> Result<Option<Wish>, Error> {
    let mut wishes = [Wish::Pause, Wish::Stop, Wish::Verify].into_iter();
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

/// Writes down what of an experiment is in force, inside a transaction. Whoever waits for the end
/// of its promotion is told of that.
pub(super) fn put_promotion(
    database: &mut Database,
    id: i64,
    promotion: Option<&Promotion>,
) -> Result<(), Error> {
    if promotion.is_none_or(|it| !it.left.is_empty()) {
        waiting::not_in_force(database, id)?;
    }
    let promotion = promotion.map(to_json).transpose()?;
    set(database, id, "promotion", promotion.into())
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

fn lose(database: &mut Database, id: i64, why: Option<&str>) -> Result<(), Error> {
    database.execute(
        "UPDATE evaluations SET outcome = 'failed', failure = 'lost', reason = $1 \
         WHERE experiment = $2 AND outcome = 'running'",
        &[why.into(), id.into()],
    )?;
    Ok(())
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

impl Store {
    /// Every experiment, newest first. Of its evaluations those are counted that
    /// `tuner::experiment::Search::counted` has.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn experiments(&self) -> Result<Vec<Summary>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT e.id, e.name, e.state, e.wish, e.message, e.created_ms, e.budget, e.spec, e.report, e.parent, \
                 e.promotion, e.plan, \
                 (SELECT COUNT(*) FROM evaluations v WHERE v.experiment = e.id AND v.outcome <> 'running' \
                  AND COALESCE(v.failure, '') <> 'lost' \
                  AND NOT (v.failure IS NOT NULL AND v.host IS NOT NULL AND EXISTS (SELECT 1 FROM evaluations o \
                   WHERE o.experiment = e.id AND o.score IS NOT NULL AND o.host <> v.host))), \
                 (SELECT MIN(score) FROM evaluations v WHERE v.experiment = e.id AND v.outcome = 'completed') \
                 FROM experiments e ORDER BY e.id DESC",
                &[],
            )
        })?;
        let mut targets = BTreeMap::new();
        let all = rows
            .iter()
            .map(|cells| {
                let budget: Option<BudgetSpec> = json(&cells[6])?;
                let spec: Spec = json(&cells[7])?;
                let report: Report = json(&cells[8])?;
                let promotion: Option<Promotion> = json(&cells[10])?;
                let id = cells[0].int().unwrap_or(0);
                targets.extend(spec.target.map(|target| (id, target)));
                let state = state(&cells[2])?;
                // A verification that has begun is no wish any more.
                let is_begun = state == State::Running && cells[11].text().is_some();
                Ok(Summary {
                    id,
                    name: name_of(&cells[1]),
                    state,
                    wish: wish(&cells[3])?.filter(|it| !(is_begun && *it == Wish::Verify)),
                    message: cells[4].text().map(str::to_owned),
                    created_ms: cells[5].int().unwrap_or(0),
                    evaluations: usize_of(&cells[12]),
                    always_on: spec.mode == Mode::Continuous,
                    on_workers: spec.workers.is_some(),
                    waits: None,
                    budget: budget.unwrap_or(spec.budget).evaluations,
                    best_score: cells[13].real(),
                    imported: report.imported,
                    sentence: report.sentence,
                    parent: cells[9].int(),
                    promoted: promotion.as_ref().is_some_and(|it| it.left.is_empty()),
                    not_restored: promotion
                        .filter(|it| !it.left.is_empty())
                        .map_or_else(Vec::new, |it| it.done.changed),
                })
            })
            .collect::<Result<Vec<_>, Error>>();
        let mut all = all?;
        waiting::say_what_waits(&mut all, &targets, self.is_queue_paused()?);
        Ok(all)
    }

    /// One experiment.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn experiment(&self, id: i64) -> Result<ExperimentRow, Error> {
        self.read(|database| find(database, id))
    }

    /// When an experiment was made; `None` where there is none of that number.
    pub(crate) fn made_ms(&self, id: i64) -> Result<Option<i64>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT created_ms FROM experiments WHERE id = $1",
                &[id.into()],
            )
        })?;
        Ok(rows.first().and_then(|row| row[0].int()))
    }

    /// The experiment whose turn it is on this host, if any waits.
    pub(crate) fn next_in_queue(&self) -> Result<Option<i64>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id FROM experiments WHERE state = 'queued' AND on_workers = 0 ORDER BY queued_ms, id LIMIT 1",
                &[],
            )
        })?;
        Ok(rows.first().and_then(|row| row[0].int()))
    }

    /// Changes the state of an experiment, if `decide` allows it in the present one: the new state,
    /// the wish that goes with it, and a message.
    pub(crate) fn transition(
        &self,
        id: i64,
        decide: impl FnOnce(&ExperimentRow) -> Result<(State, Option<Wish>, Option<String>), Error>,
    ) -> Result<(), Error> {
        self.change(|database| {
            let row = find(database, id)?;
            let (state, wish, message) = decide(&row)?;
            let joins = state == State::Queued && row.state != State::Queued;
            let queued_ms = joins.then(|| end_of_queue(database)).transpose()?;
            database.execute(
                "UPDATE experiments SET state = $1, wish = $2, message = $3, queued_ms = COALESCE($4, queued_ms) \
                 WHERE id = $5",
                &[
                    state.name().into(),
                    wish.map(Wish::name).into(),
                    message.into(),
                    queued_ms.into(),
                    id.into(),
                ],
            )?;
            Ok(())
        })
    }

    /// The end of a sitting: its report and the state that it leaves. An error may have ended it in
    /// the middle of an evaluation, which is lost then.
    pub(crate) fn sat(
        &self,
        id: i64,
        state: State,
        message: Option<&str>,
        report: &Report,
    ) -> Result<(), Error> {
        let sentence = report.sentence.as_str();
        let report = to_json(report)?;
        let message = message.map(http_client::redact);
        let message = message.as_deref();
        let said = match state {
            State::Done => Some(sentence),
            State::Failed => message,
            // Who has stopped or paused it is in the audit log.
            _ => None,
        };
        self.change(|database| {
            if let Some(said) = said {
                happened(database, id, state.name(), said)?;
            }
            database.execute(
                "UPDATE experiments SET state = $1, wish = NULL, message = $2, report = $3 WHERE id = $4",
                &[state.name().into(), message.into(), report.as_str().into(), id.into()],
            )?;
            lose(database, id, message)
        })
    }

    /// The end of a search in the middle of an evaluation, while its experiment goes on.
    pub(crate) fn lose(&self, id: i64, why: &str) -> Result<(), Error> {
        self.change(|database| lose(database, id, Some(why)))
    }

    /// Why an experiment waits, if it does.
    pub(crate) fn say(&self, id: i64, message: Option<&str>) -> Result<(), Error> {
        let message = message.map(http_client::redact);
        self.change(|database| set(database, id, "message", message.into()))
    }

    /// The report so far, of an experiment that goes on.
    pub(crate) fn set_report(&self, id: i64, report: &Report) -> Result<(), Error> {
        let report = to_json(report)?;
        self.change(|database| set(database, id, "report", report.into()))
    }

    /// Another budget, made of what the experiment has.
    pub(crate) fn set_budget(
        &self,
        id: i64,
        change: impl FnOnce(&ExperimentRow) -> BudgetSpec,
    ) -> Result<(), Error> {
        self.change(|database| {
            let budget = change(&find(database, id)?);
            set(database, id, "budget", to_json(&budget)?.into())
        })
    }

    /// What a person has written about an experiment; `None` takes it away.
    pub(crate) fn note(&self, id: i64, note: Option<&str>) -> Result<(), Error> {
        let note = note.map(http_client::redact);
        self.change(|database| {
            find(database, id)?;
            set(database, id, "note", note.into())
        })
    }

    /// What of an experiment is in force on the host.
    pub(crate) fn set_promotion(
        &self,
        id: i64,
        promotion: Option<&Promotion>,
    ) -> Result<(), Error> {
        self.change(|database| put_promotion(database, id, promotion))
    }

    /// Writes down that a promotion has begun, if `decide` allows it in the present state: whoever
    /// resumes the experiment from now on finds it promoted.
    pub(crate) fn begin_promotion(
        &self,
        id: i64,
        promotion: &Promotion,
        decide: impl FnOnce(&ExperimentRow) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let promotion = to_json(promotion)?;
        self.change(|database| {
            decide(&find(database, id)?)?;
            set(database, id, "promotion", promotion.into())
        })
    }

    /// Forgets what a rollback could not restore, and returns it.
    pub(crate) fn forget_rest(&self, id: i64) -> Result<Vec<String>, Error> {
        self.change(|database| {
            let row = find(database, id)?;
            let rest = row.unfinished_rollback().ok_or_else(|| {
                Error::Conflict(format!(
                    "experiment {id} has nothing to forget: its rollbacks restored everything, or there was none"
                ))
            })?;
            set(database, id, "promotion", Cell::Null)?;
            Ok(rest.done.changed.clone())
        })
    }

    /// What rollbacks could not restore, by the experiments' numbers.
    pub(crate) fn left(&self) -> Result<Vec<(i64, Vec<String>)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT id, promotion FROM experiments WHERE promotion IS NOT NULL ORDER BY id",
                &[],
            )
        })?;
        let mut all = Vec::new();
        for cells in &rows {
            let promotion: Promotion = json(&cells[1])?;
            if !promotion.left.is_empty() {
                all.push((cells[0].int().unwrap_or(0), promotion.left));
            }
        }
        Ok(all)
    }

    /// Forgets the plan of the verification: the next one is planned and measured anew; the runs of
    /// the last one stay.
    pub(crate) fn new_verification(&self, id: i64) -> Result<(), Error> {
        self.change(|database| {
            database.execute(
                "UPDATE experiments SET plan = NULL, verification = verification + 1 \
                 WHERE id = $1 AND plan IS NOT NULL",
                &[id.into()],
            )?;
            Ok(())
        })
    }

    /// The arms of the present verification.
    pub(crate) fn set_plan(&self, id: i64, plan: &[PlannedArm]) -> Result<(), Error> {
        let names: Vec<&str> = plan.iter().map(|arm| arm.name.as_str()).collect();
        let names = names.join(", ");
        let plan = to_json(&plan)?;
        self.change(|database| {
            let text = format!("The verification of {names} begins.");
            happened(database, id, "verification", &text)?;
            set(database, id, "plan", plan.into())
        })
    }

    /// A run of the present verification.
    pub(crate) fn add_run(&self, id: i64, run: &VerificationRun) -> Result<(), Error> {
        self.change(|database| insert_run(database, id, run))
    }

    /// The runs of the present verification.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub fn runs(&self, id: i64) -> Result<Vec<VerificationRun>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT r.measured FROM runs r JOIN experiments e ON e.id = r.experiment \
                 AND e.verification = r.verification WHERE e.id = $1 ORDER BY r.run, r.arm",
                &[id.into()],
            )
        })?;
        rows.iter().map(|row| json(&row[0])).collect()
    }

    /// The newest verification that has runs, and its runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Corrupt`].
    pub(crate) fn last_runs(&self, id: i64) -> Result<Option<(i64, Vec<VerificationRun>)>, Error> {
        let rows = self.read(|database| {
            database.query(
                "SELECT verification, measured FROM runs WHERE experiment = $1 AND verification = \
                 (SELECT MAX(verification) FROM runs WHERE experiment = $2) ORDER BY run, arm",
                &[id.into(), id.into()],
            )
        })?;
        let Some(number) = rows.first().and_then(|row| row[0].int()) else {
            return Ok(None);
        };
        let runs: Result<_, Error> = rows.iter().map(|row| json(&row[1])).collect();
        Ok(Some((number, runs?)))
    }

    /// Deletes an experiment that does not run, with all that it measured.
    pub(crate) fn delete(&self, id: i64) -> Result<(), Error> {
        self.change(|database| {
            let row = find(database, id)?;
            if row.state == State::Running {
                return Err(Error::Conflict(format!(
                    "experiment {id} is running: stop it first"
                )));
            }
            if row.in_force().is_some() {
                return Err(Error::Conflict(format!(
                    "the winner of experiment {id} is in force on this host: roll back experiment {id} first"
                )));
            }
            if let Some(rest) = row.unfinished_rollback() {
                return Err(Error::Conflict(unfinished(id, &rest.left)));
            }
            database.execute("DELETE FROM experiments WHERE id = $1", &[id.into()])?;
            Ok(())
        })
    }
}
