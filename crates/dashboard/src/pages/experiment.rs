//! The page of one experiment: what it found, what can be done, and every evaluation.

use askama::Template;
use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse as _, Response};
use coordinator::store::{
    ExperimentRow, ExperimentSummary, State as ExperimentState, Store, Tally, UserRequest,
};
use coordinator::{Coordinator, Error};
use tuner::report::difference;
use tuner::sentence::sentence;
use tuner::spec::ExperimentMode;

use super::frame::{Reader, answer, page};
use super::results::{Look, Results, results};
use super::summary::{before_rollback, best, is_active, objective, status, told};
use super::verdict::Verdict;
use crate::access::Visitor;
use crate::api;
use crate::app::{App, Here, Who};
use crate::format::{self, When};
use crate::names::Names;
use crate::readers;
use crate::reply::blocking;
use crate::role::Role;
use crate::units::Unit;

/// The controls of a search that are listed; a search of days may have hundreds.
const CONTROLS_MAX: usize = 50;

/// What can be done to an experiment now.
#[derive(Default)]
struct Verbs {
    pause: bool,
    resume: bool,
    stop: bool,
    verify: bool,
    promote: bool,
    /// It could be promoted if this experiment were not being measured.
    promote_later: Option<i64>,
    roll_back: bool,
    /// A rollback is unfinished: its rest can be forgotten.
    forget: bool,
    delete: bool,
    fork: bool,
}

/// What matters for that besides the experiment's row.
struct Now {
    /// The experiment that is being measured on this host.
    busy: Option<i64>,
    /// It is done, and has used up its budget.
    is_used_up: bool,
    /// A promotion would be refused, whatever is being measured.
    is_barred: bool,
}

impl Verbs {
    fn of(row: &ExperimentRow, role: Role, has_measured: bool, now: &Now) -> Self {
        if role < Role::Write {
            return Self::default();
        }
        let state = row.state;
        let is_active = is_active(state);
        let is_promoted = row.in_force().is_some();
        // What runs by itself cannot be measured while another configuration is in force on it.
        let is_unfinished = row.unfinished_rollback().is_some();
        let may_measure =
            !is_unfinished && (!is_promoted || row.spec.mode == ExperimentMode::Continuous);
        Self {
            pause: is_active && row.wish != Some(UserRequest::Pause),
            resume: (!is_active && may_measure && !now.is_used_up)
                || row.wish == Some(UserRequest::Pause),
            stop: is_active || state == ExperimentState::Paused,
            // A continuous one does so by itself.
            verify: row.spec.mode != ExperimentMode::Continuous
                && may_measure
                && row.wish != Some(UserRequest::Verify)
                && !row.is_verifying()
                && (has_measured || state == ExperimentState::Running),
            promote: !now.is_barred && !is_promoted && now.busy.is_none(),
            // What keeps it from that goes away by itself, or can be paused.
            promote_later: now.busy.filter(|_| !now.is_barred && !is_promoted),
            roll_back: row.promotion.is_some(),
            // A continuous one has to rest.
            forget: is_unfinished
                && (row.spec.mode == ExperimentMode::Once || state != ExperimentState::Running),
            delete: state != ExperimentState::Running && row.promotion.is_none(),
            fork: true,
        }
    }
}

/// How far something has come.
struct Progress {
    label: String,
    done: usize,
    of: usize,
    /// How long it will still take.
    left: String,
}

/// Seconds as people say how long they wait.
fn about(left_s: f64) -> String {
    match left_s {
        s if s < 90.0 => format!("about {:.0} s left", s.max(1.0)),
        s if s < 5400.0 => format!("about {:.0} min left", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("about {:.1} h left", s / 3600.0),
        s => format!("about {:.1} days left", s / 86_400.0),
    }
}

/// How long a search still takes at most, by what is left of its evaluations and of its minutes.
/// The search counts how long its evaluations took, not the pauses between them; of several at
/// once, each counts its share.
fn left_s(tally: &Tally, left: usize, minutes: Option<f64>, at_once: usize) -> Option<f64> {
    let at_once = at_once.max(1) as f64;
    let by_count = tally.mean_s.map(|mean| mean * left as f64 / at_once);
    let by_time = minutes
        .filter(|_| tally.first_ms.is_some())
        .map(|minutes| (minutes * 60.0 - tally.measured_s / at_once).max(0.0));
    match (by_count, by_time) {
        (Some(count), Some(time)) => Some(count.min(time)),
        (count, time) => count.or(time),
    }
}

/// Which run of a stage of the verification is measured, and how many runs its next stage has.
fn verification_label(done: usize, of: usize, more: usize) -> String {
    let run = format!("Verification: run {} of {of}", (done + 1).min(of));
    match more {
        0 => run,
        1 => format!("{run}. 1 more run follows if these do not decide."),
        _ => format!("{run}. {more} more runs follow if these do not decide."),
    }
}

fn progress(
    coordinator: &Coordinator,
    row: &ExperimentRow,
    summary: &ExperimentSummary,
) -> Result<Option<Progress>, Error> {
    if row.state != ExperimentState::Running || summary.always_on {
        return Ok(None);
    }
    let tally = coordinator.store().tally(row.id)?;
    let present = coordinator.progress().filter(|it| it.experiment == row.id);
    let is_verifying = present.is_some_and(|it| it.verifying.is_some());
    if let (true, Some(plan)) = (is_verifying, &row.plan) {
        let runs = coordinator.store().runs(row.id)?;
        let done = runs.len();
        // The capacity is measured of what was found to be better alone.
        let arms = plan.iter().enumerate().filter(|(index, arm)| {
            arm.capacity_of.is_none() || runs.iter().any(|run| run.arm == *index)
        });
        let arms = arms.count().max(1);
        let of = arms * row.spec.verification.stage_end((done / arms).max(1));
        let of = of.max(done);
        let more = arms * row.spec.verification.stage_end(of / arms + 1);
        return Ok(Some(Progress {
            label: verification_label(done, of, more.saturating_sub(of)),
            left: tally.mean_s.map_or_else(String::new, |mean| {
                format!("{} for these runs", about(mean * (of - done) as f64))
            }),
            done,
            of,
        }));
    }
    let left = summary.budget.saturating_sub(summary.evaluations);
    let at_once = row.spec.workers.as_ref().map_or(1, |it| it.at_once);
    let left_s = left_s(&tally, left, row.budget().wall_time_min, at_once);
    Ok(Some(Progress {
        label: format!("Search: {}", summary.counted()),
        done: summary.evaluations.min(summary.budget),
        of: summary.budget,
        left: left_s.map_or_else(String::new, |left_s| {
            format!("{}, verification not counted", about(left_s))
        }),
    }))
}

#[derive(Template)]
#[template(path = "experiment.html")]
struct ExperimentPage {
    reader: Reader,
    trouble: Option<String>,
    summary: ExperimentSummary,
    made: When,
    status: String,
    /// Why it has failed.
    failure: Option<String>,
    progress: Option<Progress>,
    verdict: Option<Verdict>,
    /// What a shell calls to reach this server.
    command: String,
    best: String,
    objective: String,
    results: Results,
    /// Why the winner is not the first of the table.
    winner_rank: Option<String>,
    /// The controls that ran on from evaluation to evaluation.
    controls: Vec<String>,
    parameters: Vec<String>,
    queue: Vec<String>,
    promoted: Vec<String>,
    /// What the rollback could not restore, with the reasons.
    not_restored: String,
    promoted_at: Option<When>,
    /// What a rollback will do.
    sure: String,
    /// What is asked before it is forked.
    fork_question: String,
    verbs: Verbs,
    /// It waits for its turn, or is measured.
    is_active: bool,
    queue_is_paused: bool,
    wall_time_min: String,
    has_verification: bool,
    /// How `mode = "continuous"` stands, in words.
    always_on: Vec<String>,
    history: Vec<super::history::Event>,
    /// The settings of the winner, where it can be promoted.
    winner: String,
    /// How many evaluations it has, in words.
    measured: String,
    /// From how many evaluations of its parent the search starts, in words.
    carried: Option<String>,
    /// What its maker should know.
    remark: Option<&'static str>,
    note: String,
    source: String,
}

/// Why an experiment has failed, in a sentence.
fn failure(summary: &ExperimentSummary) -> Option<String> {
    let has_failed = summary.state == ExperimentState::Failed;
    let why = summary.message.as_ref().filter(|_| has_failed)?;
    Some(sentence(&format!("the experiment failed: {why}")))
}

/// What is asked before an experiment is forked.
fn fork_question(id: i64, has_measured: bool) -> String {
    match has_measured {
        true => format!(
            "Fork experiment {id}? The new experiment starts from the evaluations of experiment {id} and waits in the queue."
        ),
        false => format!(
            "Fork experiment {id}? Experiment {id} has no evaluations to start from. The new experiment starts without any and waits \
             in the queue."
        ),
    }
}

/// The newest controls that ran on from evaluation to evaluation, and why each was started again.
fn controls(store: &Store, id: i64) -> Result<Vec<String>, Error> {
    let begun = store.begun(id)?;
    let begun = begun.iter().map(|(number, begun)| (*number, begun));
    let lines = tuner::begun::control_runs(begun);
    let skipped = lines.len().saturating_sub(CONTROLS_MAX);
    Ok(lines.into_iter().skip(skipped).collect())
}

/// What the last rollback could not restore.
fn not_restored(row: &ExperimentRow, role: Role) -> String {
    let unfinished = row.unfinished_rollback();
    let lines = unfinished.map_or_else(Vec::new, |it| it.done.changed.clone());
    readers::lines(role, lines).join(", ")
}

/// What the verification has shown, and why its winner cannot be put in force.
fn verdict_of(
    coordinator: &Coordinator,
    row: &ExperimentRow,
    summary: &ExperimentSummary,
) -> Result<(Option<Verdict>, Option<String>), Error> {
    let mut verdict = Verdict::of(row);
    let is_found = verdict.as_ref().is_some_and(|it| it.is_better);
    let barred = match is_found && !summary.promoted {
        true => coordinator.bars_winner(row.id)?,
        false => row.not_promotable().map(str::to_owned),
    };
    if let Some(verdict) = &mut verdict {
        verdict.not_promotable.clone_from(&barred);
    }
    Ok((verdict, barred))
}

fn experiment_page(app: &App, id: i64, look: &Look, visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let store = coordinator.store();
    let role = visitor.role;
    let summary = readers::summary(role, api::summary(coordinator, id)?);
    let moment = store.moment(id, super::history::EVENTS_MAX)?;
    let always_on = api::continuous(coordinator, &moment)?;
    let row = readers::row(role, moment.row)?;
    let summary = told(summary, &row.spec);
    let names = Names::of(&row.spec);
    let failure = failure(&summary);
    // The reason of a failure stands where it says what to do.
    let without_reason = ExperimentSummary {
        message: summary.message.clone().filter(|_| failure.is_none()),
        ..summary.clone()
    };
    let status = status(&without_reason, coordinator, role);
    if let Err(refusal) = look.check(&row) {
        return Ok(refusal.into_response());
    }
    let queue = readers::seen(role, store.queue(id)?)?;
    let has_measured = store.has_measured(id)?;
    let (verdict, barred) = verdict_of(coordinator, &row, &summary)?;
    let now = Now {
        is_barred: barred.is_some(),
        busy: coordinator.progress().map(|it| it.experiment),
        is_used_up: row
            .nothing_to_resume(summary.evaluations, store.tally(id)?.measured_s)
            .is_some(),
    };
    let in_force = row
        .in_force()
        .into_iter()
        .filter(|_| !coordinator.is_rollback_untold(id));
    Ok(page(&ExperimentPage {
        reader: visitor.into(),
        trouble: readers::trouble(coordinator, role),
        made: When::ms(summary.created_ms),
        status,
        not_restored: not_restored(&row, role),
        failure,
        progress: progress(coordinator, &row, &summary)?,
        verdict,
        sure: match row.promotion.is_some() && role == Role::Write {
            true => before_rollback(coordinator, &summary)?,
            false => String::new(),
        },
        fork_question: fork_question(id, has_measured),
        command: app.command.clone(),
        best: best(&row.spec, &summary),
        objective: Unit::in_spec(&row.spec, &objective(&row).metric).name(),
        results: results(store, &row, look, role)?,
        winner_rank: api::winner_rank(store, &row)?,
        controls: readers::lines(role, controls(store, id)?)
            .iter()
            .map(|line| names.text(line))
            .collect(),
        parameters: row.report.control.0.keys().cloned().collect(),
        queue: queue
            .iter()
            .map(|it| difference(it, &row.report.control))
            .collect(),
        promoted: in_force
            .clone()
            .flat_map(|it| it.done.sentences())
            .collect(),
        promoted_at: in_force.clone().map(|it| When::of(it.at)).next(),
        is_active: is_active(row.state),
        queue_is_paused: store.is_queue_paused()?,
        verbs: Verbs::of(&row, role, has_measured, &now),
        wall_time_min: row
            .budget()
            .wall_time_min
            .map_or_else(String::new, |it| it.to_string()),
        has_verification: row.plan.is_some() || !row.report.verification.is_empty(),
        always_on: always_on
            .map(|view| readers::lines(role, view.lines))
            .unwrap_or_default()
            .iter()
            .map(|line| names.text(line))
            .collect(),
        history: super::history::of(app, &row, moment.entries, visitor)?,
        source: row.source.clone(),
        winner: (row.report.winner())
            .map_or_else(String::new, |arm| format::configuration(&arm.configuration)),
        measured: format::evaluations(summary.evaluations),
        carried: match row.parent.map(|_| row.carried_over()) {
            None | Some(0) => None,
            Some(carried) => Some(format::evaluations(carried)),
        },
        remark: row.carries_nothing_over(),
        note: row.note.clone().unwrap_or_default(),
        summary,
    }))
}

pub(crate) async fn experiment(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let made = async {
        let id: i64 = api::number(&id, "experiment")?;
        let look = Look::parse(&query.unwrap_or_default())?;
        blocking(move || experiment_page(&app, id, &look, &visitor)).await
    };
    answer(made.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_takes_nothing_of_the_time_that_is_left() {
        // It began in 1970; since then, it measured for ten minutes.
        let tally = Tally {
            ended: 10,
            measured_s: 600.0,
            mean_s: Some(60.0),
            first_ms: Some(1),
            ..Tally::default()
        };
        assert_eq!(left_s(&tally, 90, Some(60.0), 1), Some(3000.0));
        assert_eq!(left_s(&tally, 5, Some(60.0), 1), Some(300.0));
        assert_eq!(left_s(&tally, 90, None, 1), Some(5400.0));
        assert_eq!(left_s(&tally, 90, Some(60.0), 2), Some(2700.0));
        assert_eq!(left_s(&tally, 90, Some(5.0), 1), Some(0.0));
        assert_eq!(left_s(&Tally::default(), 90, Some(60.0), 1), None);
    }

    #[test]
    fn a_verification_says_which_runs_may_follow() {
        assert_eq!(
            verification_label(4, 6, 3),
            "Verification: run 5 of 6. 3 more runs follow if these do not decide."
        );
        assert_eq!(verification_label(9, 9, 0), "Verification: run 9 of 9");
    }

    #[test]
    fn a_wait_is_said_in_people_s_units() {
        assert_eq!(about(0.2), "about 1 s left");
        assert_eq!(about(600.0), "about 10 min left");
        assert_eq!(about(2.5 * 3600.0), "about 2.5 h left");
    }
}
