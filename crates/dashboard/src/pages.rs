//! The pages: each is a template filled with what the store holds. What is live in them is read
//! again by the browser when it is told of a change, so there is one way in which a page comes to
//! show anything.

mod compare;
mod evaluation;
mod experiment;
mod frame;
mod history;
mod promotions;
mod results;
mod summary;
mod verdict;

use askama::Template;
use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use coordinator::Error;
use coordinator::store::{ExperimentRow, ExperimentSummary, State as ExperimentState};
use host::{Probe, ProbeState};
use tuner::ledger::PlannedArm;
use tuner::report::{ArmResult, change, confidence_percent, difference};
use tuner::spec::Goal;

use crate::access::Visitor;
use crate::actions;
use crate::api;
use crate::app::{App, Here, Who};
use crate::audit::Entry;
use crate::format::When;
use crate::names::Names;
use crate::readers;
use crate::reply::{Refusal, blocking};
use crate::role::Role;
use crate::units::Unit;
use crate::web::{local_path, pairs};

pub(crate) use compare::compare;
pub(crate) use evaluation::evaluation;
pub(crate) use experiment::experiment;
use frame::{Reader, answer, page};
pub(crate) use promotions::promotions;
use summary::{InPart, best, in_part, objective, status, told};

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage<'a> {
    reader: Reader,
    title: &'static str,
    text: &'a str,
}

/// What went wrong, as a page for whoever asked.
pub(crate) fn refused(refusal: &Refusal, visitor: Option<&Visitor>) -> Response {
    let mut response = page(&MessagePage {
        reader: visitor.map(Reader::from).unwrap_or_default(),
        title: match refusal.status() {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::BAD_REQUEST => "Wrong address",
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            _ => "Not possible",
        },
        text: refusal.text(),
    });
    *response.status_mut() = refusal.status();
    response
}

pub(crate) async fn nothing_here() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "this page does not exist: go to the list of experiments",
    )
}

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    is_wrong: bool,
    next: &'a str,
}

/// The form; after it the browser goes to `next`.
pub(crate) fn login(is_wrong: bool, next: &str) -> Response {
    page(&LoginPage { is_wrong, next })
}

pub(crate) async fn login_form(request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let next = pairs(query).find(|(name, _)| name == "next");
    let next = local_path(&next.map_or_else(String::new, |(_, path)| path));
    if request.extensions().get::<Visitor>().is_some() {
        return axum::response::Redirect::to(&next).into_response();
    }
    // Of a token in an address that is none of ours.
    let is_wrong = pairs(query).any(|(name, _)| name == crate::web::WRONG_TOKEN);
    login(is_wrong, &next)
}

/// An experiment in the list.
struct Line {
    summary: ExperimentSummary,
    best: String,
    made: When,
    evaluations: String,
    /// Evaluations of the budget in per cent, while it runs.
    percent: Option<usize>,
    /// The first sentence of what was shown: the page of the experiment has all of them.
    shown: String,
    /// Its name says from which experiment it starts.
    is_named_after_parent: bool,
}

/// The text up to the first full stop that ends a sentence.
fn first_sentence(text: &str) -> &str {
    match text.find(". ") {
        Some(at) => &text[..=at],
        None => text,
    }
}

#[derive(Template)]
#[template(path = "experiments.html")]
struct ExperimentsPage {
    reader: Reader,
    /// What a shell calls to reach this server.
    command: String,
    lines: Vec<Line>,
    trouble: Option<String>,
    queue_is_paused: bool,
}

pub(crate) async fn experiments(State(app): Here, Extension(visitor): Who) -> Response {
    let made = blocking(move || {
        let coordinator = &app.coordinator;
        let lines = coordinator
            .store()
            .experiments()?
            .into_iter()
            .map(|summary| {
                let spec = coordinator.store().experiment(summary.id)?.spec;
                let summary = told(readers::summary(visitor.role, summary), &spec);
                Ok(Line {
                    best: best(&spec, &summary),
                    made: When::ms(summary.created_ms),
                    percent: (summary.state == ExperimentState::Running && !summary.always_on)
                        .then(|| (100 * summary.evaluations / summary.budget.max(1)).min(100)),
                    evaluations: summary.counted(),
                    shown: first_sentence(&summary.sentence).to_owned(),
                    is_named_after_parent: summary
                        .parent
                        .is_some_and(|id| summary.name.contains(&format!("(from {id})"))),
                    summary,
                })
            })
            // One that was deleted meanwhile is no trouble of the list.
            .filter(|line| !matches!(line, Err(Error::NotFound(_))));
        let lines = lines.collect::<Result<Vec<Line>, Error>>()?;
        Ok(page(&ExperimentsPage {
            reader: (&visitor).into(),
            command: app.command.clone(),
            lines,
            trouble: readers::trouble(coordinator, visitor.role),
            queue_is_paused: coordinator.store().is_queue_paused()?,
        }))
    });
    answer(made.await)
}

/// An arm of a verification.
#[derive(Default)]
struct ArmRow {
    name: String,
    difference: String,
    runs: String,
    ratios: Vec<(String, String)>,
    violated: String,
    faults: String,
}

#[derive(Template)]
#[template(path = "verification.html")]
struct VerificationPage {
    reader: Reader,
    trouble: Option<String>,
    summary: ExperimentSummary,
    status: String,
    number: i64,
    /// The verification that is shown, while the present one has no runs.
    last: Option<i64>,
    /// It waits for its turn, or is measured: a verification may follow.
    is_active: bool,
    metric: String,
    name: String,
    unit: String,
    arms: Vec<ArmRow>,
    /// Some arm has a change to explain.
    has_ratios: bool,
    is_more_better: bool,
    /// That of all intervals, in per cent.
    confidence: Option<String>,
    /// Some arm has broken a constraint.
    has_violated: bool,
    /// Some arm has runs without a result.
    has_faults: bool,
}

/// An arm of which the report says what came of it.
fn judged_row(row: &ExperimentRow, judged: &ArmResult, runs: String) -> ArmRow {
    let names = Names::of(&row.spec);
    // `latency_p99_us mean + 0.1 std` is more than a metric.
    let name = |metric: &str| match metric.contains(' ') {
        true => names.text(metric),
        false => Unit::in_spec(&row.spec, metric).name(),
    };
    let with = judged
        .ratios
        .iter()
        .map(|(metric, interval)| (name(metric), change(interval)));
    let without = judged
        .without_interval
        .iter()
        .map(|(metric, why)| (name(metric), why.clone()));
    ArmRow {
        name: judged.name.clone(),
        difference: difference(&judged.configuration, &row.report.control),
        runs,
        ratios: with.chain(without).collect(),
        violated: names.text(&judged.violated.join(", ")),
        faults: names.text(&judged.faults.join("; ")),
    }
}

/// How many runs an arm has, and how many of them gave a result, where not every one did.
fn runs_text(done: &str, measured: usize, of: usize) -> String {
    match of - measured.min(of) {
        0 => done.to_owned(),
        _ => format!("{done}, {measured} with a result"),
    }
}

fn verification_page(app: &App, id: i64, visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let row = readers::experiment(coordinator, id, visitor.role)?;
    let summary = readers::summary(visitor.role, api::summary(coordinator, id)?);
    let summary = told(summary, &row.spec);
    let runs = coordinator.store().runs(id)?;
    let rules = &row.spec.verification;
    let control = &row.report.control;
    // The capacity is measured of what was found to be better alone.
    let is_begun = |(index, arm): &(usize, &PlannedArm)| {
        arm.capacity_of.is_none() || runs.iter().any(|run| run.arm == *index)
    };
    let last = coordinator.last_verification(&row)?;
    let planned = row.plan.iter().flatten().enumerate().filter(is_begun);
    let planned = planned.map(|(index, arm)| {
        let of_arm = runs.iter().filter(|run| run.arm == index);
        let done = of_arm.clone().count();
        let measured = of_arm.filter(|run| run.fault.is_none()).count();
        let planned = rules.stage_end(done.max(1));
        let judged = row
            .report
            .verification
            .iter()
            .find(|judged| judged.name == arm.name);
        let runs = runs_text(&format!("{done} of {planned}"), measured, done);
        match judged {
            Some(judged) => ArmRow {
                difference: difference(&arm.configuration, control),
                ..judged_row(&row, judged, runs)
            },
            None => ArmRow {
                name: arm.name.clone(),
                difference: difference(&arm.configuration, control),
                runs,
                ..ArmRow::default()
            },
        }
    });
    // A new verification without a run does not hide the last one.
    let arms: Vec<ArmRow> = match &last {
        Some(_) => row
            .report
            .verification
            .iter()
            .map(|arm| {
                // Each fault is a run without a result.
                let done = arm.runs + arm.faults.len();
                judged_row(&row, arm, runs_text(&done.to_string(), arm.runs, done))
            })
            .collect(),
        None => planned.collect(),
    };
    let unit = Unit::in_spec(&row.spec, &objective(&row).metric);
    let intervals = row.report.verification.iter();
    let intervals = intervals.flat_map(|arm| arm.ratios.values());
    let mut confidences: Vec<String> = intervals
        .map(|it| confidence_percent(it.confidence).to_string())
        .collect();
    confidences.sort();
    confidences.dedup();
    Ok(page(&VerificationPage {
        has_ratios: arms.iter().any(|arm| !arm.ratios.is_empty()),
        is_more_better: objective(&row).goal == Goal::Maximise,
        confidence: match confidences.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        },
        name: unit.name(),
        unit: serde_json::to_string(&unit).unwrap_or_default(),
        reader: visitor.into(),
        trouble: readers::trouble(coordinator, visitor.role),
        status: status(&summary, coordinator, visitor.role),
        number: row.verification,
        last: last.map(|it| it.number),
        is_active: matches!(
            row.state,
            ExperimentState::Queued | ExperimentState::Running
        ),
        metric: row
            .spec
            .objective
            .as_ref()
            .map_or_else(String::new, |spec| spec.metric.clone()),
        has_violated: arms.iter().any(|arm| !arm.violated.is_empty()),
        has_faults: arms.iter().any(|arm| !arm.faults.is_empty()),
        arms,
        summary,
    }))
}

pub(crate) async fn verification(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
) -> Response {
    let made = async {
        let id: i64 = api::number(&id, "experiment")?;
        blocking(move || verification_page(&app, id, &visitor)).await
    };
    answer(made.await)
}

#[derive(Template)]
#[template(path = "host.html")]
struct HostPage {
    reader: Reader,
    /// What a shell calls to reach this server.
    command: String,
    queue_is_paused: bool,
    measured: String,
    trouble: Option<String>,
    workers: Vec<String>,
    store: String,
    changed: Vec<String>,
    promoted: Vec<(i64, String)>,
    in_part: Vec<InPart>,
    commands: Vec<api::OfCommand>,
    probes: Vec<Probe>,
}

impl HostPage {
    fn detail<'b>(&self, probe: &'b Probe) -> &'b str {
        match &probe.state {
            ProbeState::Available { detail } => detail,
            ProbeState::Missing { why } => why,
        }
    }
}

pub(crate) async fn host(State(app): Here, Extension(visitor): Who) -> Response {
    let made = blocking(move || {
        let coordinator = &app.coordinator;
        let role = visitor.role;
        let experiments = coordinator.store().experiments()?.into_iter();
        let experiments: Vec<ExperimentSummary> =
            experiments.map(|it| readers::summary(role, it)).collect();
        let running = experiments
            .iter()
            .find(|summary| summary.state == ExperimentState::Running);
        let promoted = experiments.iter().filter(|summary| summary.promoted);
        Ok(page(&HostPage {
            reader: (&visitor).into(),
            command: app.command.clone(),
            queue_is_paused: coordinator.store().is_queue_paused()?,
            measured: running.map_or_else(
                || "Nothing is measured now.".to_owned(),
                |summary| {
                    let status = status(summary, coordinator, role);
                    format!("Measuring now: {} ({status}).", summary.name)
                },
            ),
            trouble: readers::trouble(coordinator, role),
            workers: readers::lines(role, coordinator.workers().complaints()),
            store: coordinator.store().location().to_string(),
            changed: readers::lines(role, api::changed(coordinator.state_dir())?),
            promoted: promoted
                .map(|summary| (summary.id, summary.name.clone()))
                .collect(),
            in_part: in_part(&experiments),
            commands: api::commands(role, api::of_commands(coordinator)?),
            probes: ::host::probe(&::host::Roots::default()),
        }))
    });
    answer(made.await)
}

/// An entry of the audit log, for people.
struct AuditRow {
    entry: Entry,
    at: When,
}

impl AuditRow {
    /// What was done or asked for, in words.
    fn what(&self) -> &str {
        actions::verb(&self.entry.action)
    }

    fn is_refusal(&self) -> bool {
        self.entry.refusal.is_some()
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    reader: Reader,
    rows: Vec<AuditRow>,
    /// Lines of the log that cannot be read.
    damaged: usize,
}

pub(crate) async fn audit(State(app): Here, Extension(visitor): Who) -> Response {
    let made = async {
        api::may_see_audit(&visitor)?;
        blocking(move || {
            let last = app.audit.last(api::AUDIT_ENTRIES, None);
            let last = last.map_err(|error| Error::Unavailable(error.to_string()))?;
            let damaged = last.damaged;
            let rows = last.entries.into_iter().map(|entry| AuditRow {
                at: When::of(entry.at),
                entry,
            });
            Ok(page(&AuditPage {
                reader: (&visitor).into(),
                rows: rows.collect(),
                damaged,
            }))
        })
        .await
    };
    answer(made.await)
}

#[derive(Template)]
#[template(path = "new.html")]
struct NewPage {
    reader: Reader,
    may_write: bool,
}

pub(crate) async fn new(Extension(visitor): Who) -> Response {
    page(&NewPage {
        reader: (&visitor).into(),
        may_write: visitor.role == Role::Write,
    })
}

#[cfg(test)]
mod tests {
    use super::{first_sentence, runs_text};

    #[test]
    fn runs_without_a_result_are_not_counted_as_measured() {
        assert_eq!(runs_text("6 of 6", 6, 6), "6 of 6");
        assert_eq!(runs_text("6 of 6", 5, 6), "6 of 6, 5 with a result");
    }

    #[test]
    fn a_number_ends_no_sentence() {
        let text = "Shown: −8.1 % [−9.0, −7.2] of a. Every constraint held.";
        assert_eq!(first_sentence(text), "Shown: −8.1 % [−9.0, −7.2] of a.");
        assert_eq!(first_sentence("Paused."), "Paused.");
        assert_eq!(first_sentence(""), "");
    }
}
