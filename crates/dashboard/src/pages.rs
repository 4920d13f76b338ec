//! The pages: each is a template filled with what the store holds. What is live in them is read again by the browser when
//! it is told of a change, so there is one way in which a page comes to show anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use coordinator::store::{ExperimentRow, State as ExperimentState, Summary, Wish};
use coordinator::{Coordinator, Error};
use host::{Probe, ProbeState};
use serde::Deserialize;
use tuner::ledger::PlannedArm;
use tuner::report::{change, difference, score_text};
use tuner::spec::{Mode, ObjectiveSpec};

use crate::access::{Role, Visitor};
use crate::api;
use crate::audit::Entry;
use crate::format;
use crate::reply::{Refusal, blocking};
use crate::server::App;
use crate::web::{Params, local_path, pairs};

type Here = State<Arc<App>>;
type Who = Extension<Visitor>;

/// Results on a page: what a reader looks through at once.
const ROWS: usize = 50;

fn page(template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => Html(text).into_response(),
        Err(error) => Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the page could not be made: {error}"),
        )
        .into_response(),
    }
}

/// What every page shows of its reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader {
    csrf: String,
    name: String,
    may_sign_out: bool,
    may_write: bool,
}

impl From<&Visitor> for Reader {
    fn from(visitor: &Visitor) -> Self {
        Self {
            csrf: visitor.csrf.clone(),
            name: visitor.name.clone(),
            may_sign_out: visitor.may_sign_out,
            may_write: visitor.role == Role::Write,
        }
    }
}

/// A page, or why there is none.
fn answer(made: Result<Response, Refusal>) -> Response {
    made.unwrap_or_else(IntoResponse::into_response)
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage<'a> {
    reader: Reader,
    text: &'a str,
}

/// What went wrong, as a page.
pub(crate) fn refused(refusal: &Refusal) -> Response {
    let mut response = page(&MessagePage {
        reader: Reader::default(),
        text: refusal.text(),
    });
    *response.status_mut() = refusal.status();
    response
}

pub(crate) async fn nothing_here() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "there is nothing here")
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
    login(false, &next)
}

/// An experiment in the list.
struct Line {
    summary: Summary,
    best: String,
    made: String,
    evaluations: String,
}

#[derive(Template)]
#[template(path = "experiments.html")]
struct ExperimentsPage {
    reader: Reader,
    lines: Vec<Line>,
    trouble: Option<String>,
    queue_is_paused: bool,
}

/// The best score of an experiment, in its objective's terms.
fn best(coordinator: &Coordinator, summary: &Summary) -> Result<String, Error> {
    let Some(score) = summary.best_score else {
        return Ok(String::new());
    };
    let row = coordinator.store().experiment(summary.id)?;
    let objective = row.spec.objective.as_ref();
    Ok(objective.map_or_else(String::new, |objective| score_text(score, objective)))
}

pub(crate) async fn experiments(State(app): Here, Extension(visitor): Who) -> Response {
    let made = blocking(move || {
        let coordinator = &app.coordinator;
        let lines = coordinator
            .store()
            .experiments()?
            .into_iter()
            .map(|summary| {
                Ok(Line {
                    best: best(coordinator, &summary)?,
                    made: format::time(summary.created_ms),
                    evaluations: summary.counted(),
                    summary,
                })
            });
        let lines = lines.collect::<Result<Vec<Line>, Error>>()?;
        Ok(page(&ExperimentsPage {
            reader: (&visitor).into(),
            lines,
            trouble: coordinator.trouble(),
            queue_is_paused: coordinator.store().is_queue_paused()?,
        }))
    });
    answer(made.await)
}

/// One evaluation in the table of results.
struct ResultRow {
    number: usize,
    rank: usize,
    outcome: String,
    objective: String,
    difference: String,
    constraints: String,
    duration: String,
    reason: String,
    is_running: bool,
}

/// What can be done to an experiment now.
#[derive(Default)]
struct Verbs {
    pause: bool,
    resume: bool,
    stop: bool,
    verify: bool,
    promote: bool,
    roll_back: bool,
    delete: bool,
}

impl Verbs {
    fn of(row: &ExperimentRow, role: Role, has_measured: bool) -> Self {
        if role < Role::Write {
            return Self::default();
        }
        let state = row.state;
        let is_active = matches!(state, ExperimentState::Queued | ExperimentState::Running);
        let is_promoted = row.promotion.is_some();
        Self {
            pause: is_active && row.wish != Some(Wish::Pause),
            resume: !is_active || row.wish == Some(Wish::Pause),
            stop: is_active || state == ExperimentState::Paused,
            // A continuous one does so by itself.
            verify: row.spec.mode != Mode::Continuous
                && row.wish != Some(Wish::Verify)
                && (has_measured || state == ExperimentState::Running),
            promote: row.not_promotable().is_none() && !is_promoted,
            roll_back: is_promoted,
            delete: state != ExperimentState::Running && !is_promoted,
        }
    }
}

#[derive(Template)]
#[template(path = "experiment.html")]
struct ExperimentPage {
    reader: Reader,
    trouble: Option<String>,
    summary: Summary,
    status: String,
    best: String,
    objective: String,
    rows: Vec<ResultRow>,
    of_rows: usize,
    first: usize,
    last: usize,
    previous: Option<usize>,
    next: Option<usize>,
    parameters: Vec<String>,
    queue: Vec<String>,
    settings: Vec<String>,
    promoted: Vec<String>,
    verbs: Verbs,
    may_write: bool,
    wall_time_min: String,
    has_verification: bool,
    /// How `mode = "continuous"` stands, and what happened, newest first.
    always_on: Vec<String>,
    entries: Vec<tuner::continuous::Entry>,
    source: String,
}

/// What `experiments/{id}` may be asked.
#[derive(Deserialize)]
pub(crate) struct PageQuery {
    #[serde(default)]
    page: Option<usize>,
}

/// What an experiment is doing, in one sentence.
fn status(summary: &Summary, coordinator: &Coordinator) -> String {
    let mut text = summary.counted();
    if let Some(progress) = coordinator
        .progress()
        .filter(|progress| progress.experiment == summary.id)
    {
        let blocks = match progress.of_blocks {
            0 => "starting".to_owned(),
            of => format!("{} of {of} blocks", progress.blocks),
        };
        if let Some(verifying) = progress.verifying {
            text = format!("verifying: {verifying}, {blocks}");
        } else if let Some(number) = progress.evaluation {
            text = format!("{text}; evaluation {number}, {blocks}");
        }
    }
    match summary.wish {
        Some(Wish::Pause) => text.push_str("; will pause after this evaluation"),
        Some(Wish::Stop) => text.push_str("; will stop"),
        Some(Wish::Verify) => text.push_str("; verifies next"),
        None => {}
    }
    if let Some(message) = &summary.message {
        text = format!("{text}; {message}");
    }
    if let Some(why) = &summary.waits {
        text = format!("{text}; {why}");
    }
    text
}

fn experiment_page(app: &App, id: i64, at: usize, visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let summary = api::summary(coordinator, id)?;
    let row = coordinator.store().experiment(id)?;
    let first = at.saturating_sub(1) * ROWS;
    let (found, of_rows) = coordinator.store().ranked(id, first, ROWS)?;
    let objective = row.spec.objective.clone().unwrap_or_else(|| ObjectiveSpec {
        metric: String::new(),
        goal: tuner::spec::Goal::Minimise,
        std_weight: 0.0,
        scale: tuner::spec::ObjectiveScale::Ratio,
    });
    let mut rows = Vec::new();
    for (index, shown) in (first..).zip(&found) {
        let record = &shown.record;
        let blocks = coordinator
            .store()
            .evaluation(id, record.number)?
            .record
            .blocks;
        let measurement = record.measurement.as_ref();
        let interval = format::objective(&objective, &blocks);
        let excess = measurement.map(|measurement| {
            let broken = measurement
                .excess
                .iter()
                .filter(|(_, excess)| **excess > 0.0);
            broken
                .map(|(text, _)| text.clone())
                .collect::<Vec<_>>()
                .join(", ")
        });
        rows.push(ResultRow {
            number: record.number,
            rank: index + 1,
            outcome: if shown.is_running {
                "running".into()
            } else {
                record.outcome.to_string()
            },
            objective: match measurement {
                Some(measurement) if interval.is_empty() => {
                    score_text(measurement.score, &objective)
                }
                _ => interval,
            },
            difference: difference(&record.configuration, &row.report.control),
            constraints: excess.unwrap_or_default(),
            duration: if shown.is_running {
                String::new()
            } else {
                format::duration(record.duration_s)
            },
            reason: record.reason.clone().unwrap_or_default(),
            is_running: shown.is_running,
        });
    }
    let last = (first + rows.len()).min(of_rows);
    let queue = coordinator.store().queue(id)?;
    Ok(page(&ExperimentPage {
        reader: visitor.into(),
        trouble: coordinator.trouble(),
        status: status(&summary, coordinator),
        best: best(coordinator, &summary)?,
        objective: objective.name(),
        of_rows,
        first: (first + 1).min(of_rows),
        last,
        previous: (first > 0).then(|| at.saturating_sub(1)),
        next: (last < of_rows).then_some(at + 1),
        rows,
        parameters: row.report.control.0.keys().cloned().collect(),
        queue: queue
            .iter()
            .map(|it| difference(it, &row.report.control))
            .collect(),
        settings: row.report.settings.clone(),
        promoted: row
            .promotion
            .iter()
            .filter(|_| !coordinator.is_rollback_untold(id))
            .flat_map(|it| it.changed.clone())
            .collect(),
        verbs: Verbs::of(&row, visitor.role, coordinator.store().has_measured(id)?),
        may_write: visitor.role == Role::Write,
        wall_time_min: row
            .budget()
            .wall_time_min
            .map_or_else(String::new, |it| it.to_string()),
        has_verification: row.plan.is_some() || !row.report.verification.is_empty(),
        always_on: api::continuous(coordinator, id)?
            .map(|view| view.lines)
            .unwrap_or_default(),
        entries: coordinator.store().entries(id, api::ENTRIES)?,
        source: api::masks(visitor.role).text(&row.source),
        summary,
    }))
}

pub(crate) async fn experiment(
    State(app): Here,
    Extension(visitor): Who,
    Path(id): Path<String>,
    Params(query): Params<PageQuery>,
) -> Response {
    let made = async {
        let id: i64 = api::number(&id, "experiment")?;
        let at = query.page.unwrap_or(1).clamp(1, 1 << 20);
        blocking(move || experiment_page(&app, id, at, &visitor)).await
    };
    answer(made.await)
}

/// A block, with the metrics that both sides have.
struct BlockRow {
    number: usize,
    order: String,
    start: String,
    cells: Vec<(String, String)>,
}

#[derive(Template)]
#[template(path = "evaluation.html")]
struct EvaluationPage {
    reader: Reader,
    trouble: Option<String>,
    output: Option<String>,
    summary: Summary,
    number: usize,
    outcome: String,
    reason: String,
    objective: String,
    metric: String,
    configuration: Vec<(String, String, String)>,
    metrics: Vec<String>,
    blocks: Vec<BlockRow>,
    may_kill: bool,
}

fn evaluation_page(
    app: &App,
    id: i64,
    number: usize,
    visitor: &Visitor,
) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let row = coordinator.store().experiment(id)?;
    let shown = coordinator.store().evaluation(id, number)?;
    let record = shown.record;
    let spec = row.spec.objective.clone();
    // The objective, what is constrained, what is reported: nobody reads thirty columns.
    let mut metrics: Vec<String> = spec
        .iter()
        .map(|objective| objective.metric.clone())
        .collect();
    let constrained = row
        .spec
        .constraints
        .iter()
        .filter_map(|text| text.split_whitespace().next());
    let reported = row.spec.verification.report.iter().map(String::as_str);
    for metric in constrained.chain(reported) {
        if !metrics.iter().any(|known| known == metric) {
            metrics.push(metric.to_owned());
        }
    }
    let text = |side: &BTreeMap<String, f64>, metric: &str| {
        tuner::metrics::lookup(side, metric).map_or_else(|| "–".into(), format::number)
    };
    let blocks = (1..).zip(&record.blocks).map(|(number, block)| BlockRow {
        number,
        order: match block.order {
            tuner::evaluation::Order::ControlFirst => "control, experiment".into(),
            tuner::evaluation::Order::ExperimentFirst => "experiment, control".into(),
            tuner::evaluation::Order::Parallel => "both at once".into(),
        },
        start: format::duration(block.start_s),
        cells: metrics
            .iter()
            .map(|metric| {
                (
                    text(&block.control, metric),
                    text(&block.experiment, metric),
                )
            })
            .collect(),
    });
    let values = record.configuration.0.iter().map(|(name, value)| {
        let control = row.report.control.get(name);
        (
            name.clone(),
            value.to_string(),
            control.map_or_else(String::new, ToString::to_string),
        )
    });
    Ok(page(&EvaluationPage {
        reader: visitor.into(),
        trouble: coordinator.trouble(),
        output: record.output.clone(),
        summary: api::summary(coordinator, id)?,
        number,
        outcome: if shown.is_running {
            "running".into()
        } else {
            record.outcome.to_string()
        },
        reason: record.reason.clone().unwrap_or_default(),
        objective: spec
            .as_ref()
            .map_or_else(String::new, |spec| format::objective(spec, &record.blocks)),
        metric: spec.map_or_else(String::new, |spec| spec.metric),
        configuration: values.collect(),
        blocks: blocks.collect(),
        metrics,
        may_kill: shown.is_running && visitor.role == Role::Write,
    }))
}

pub(crate) async fn evaluation(
    State(app): Here,
    Extension(visitor): Who,
    Path((id, number)): Path<(String, String)>,
) -> Response {
    let made = async {
        let id: i64 = api::number(&id, "experiment")?;
        let number: usize = api::number(&number, "evaluation")?;
        blocking(move || evaluation_page(&app, id, number, &visitor)).await
    };
    answer(made.await)
}

/// An arm of a verification.
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
    summary: Summary,
    status: String,
    number: i64,
    metric: String,
    arms: Vec<ArmRow>,
}

fn verification_page(app: &App, id: i64, visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let row = coordinator.store().experiment(id)?;
    let summary = api::summary(coordinator, id)?;
    let runs = coordinator.store().runs(id)?;
    let rules = &row.spec.verification;
    let control = &row.report.control;
    // The capacity is measured of what was found to be better alone.
    let is_begun = |(index, arm): &(usize, &PlannedArm)| {
        arm.capacity_of.is_none() || runs.iter().any(|run| run.arm == *index)
    };
    let arms = row.plan.iter().flatten().enumerate().filter(is_begun);
    let arms = arms.map(|(index, arm)| {
        let done = runs.iter().filter(|run| run.arm == index).count();
        let planned = rules.stage_end(done.max(1));
        let judged = row
            .report
            .verification
            .iter()
            .find(|judged| judged.name == arm.name);
        let ratios = judged.map(|judged| {
            let with = judged
                .ratios
                .iter()
                .map(|(metric, interval)| (metric.clone(), change(interval)));
            let without = judged
                .without_interval
                .iter()
                .map(|(metric, why)| (metric.clone(), why.clone()));
            with.chain(without).collect()
        });
        ArmRow {
            name: arm.name.clone(),
            difference: difference(&arm.configuration, control),
            runs: format!("{done} of {planned}"),
            ratios: ratios.unwrap_or_default(),
            violated: judged.map_or_else(String::new, |judged| judged.violated.join(", ")),
            faults: judged.map_or_else(String::new, |judged| judged.faults.join("; ")),
        }
    });
    Ok(page(&VerificationPage {
        reader: visitor.into(),
        trouble: coordinator.trouble(),
        status: status(&summary, coordinator),
        number: row.verification,
        metric: row
            .spec
            .objective
            .as_ref()
            .map_or_else(String::new, |spec| spec.metric.clone()),
        arms: arms.collect(),
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
    queue_is_paused: bool,
    measured: String,
    trouble: Option<String>,
    workers: Vec<String>,
    store: String,
    changed: Vec<String>,
    promoted: Vec<(i64, String)>,
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
        let experiments = coordinator.store().experiments()?;
        let running = experiments
            .iter()
            .find(|summary| summary.state == ExperimentState::Running);
        let promoted = experiments.iter().filter(|summary| summary.promoted);
        Ok(page(&HostPage {
            reader: (&visitor).into(),
            queue_is_paused: coordinator.store().is_queue_paused()?,
            measured: running.map_or_else(
                || "Nothing is measured now.".to_owned(),
                |summary| format!("{}, {}", summary.name, status(summary, coordinator)),
            ),
            trouble: coordinator.trouble(),
            workers: coordinator.workers().complaints(),
            store: coordinator.store().location().to_string(),
            changed: api::changed(coordinator.state_dir())?,
            promoted: promoted
                .map(|summary| (summary.id, summary.name.clone()))
                .collect(),
            probes: ::host::probe(&::host::Roots::default()),
        }))
    });
    answer(made.await)
}

/// An entry of the audit log, for people.
struct AuditRow {
    entry: Entry,
    at: String,
}

impl AuditRow {
    fn is_refusal(&self) -> bool {
        self.entry.refusal.is_some()
    }
}

#[derive(Template)]
#[template(path = "audit.html")]
struct AuditPage {
    reader: Reader,
    rows: Vec<AuditRow>,
}

pub(crate) async fn audit(State(app): Here, Extension(visitor): Who) -> Response {
    let made = async {
        api::may_see_audit(&visitor)?;
        blocking(move || {
            let last = app.audit.last(api::AUDIT_ENTRIES, None);
            let last = last.map_err(|error| Error::Unavailable(error.to_string()))?;
            let rows = last.into_iter().map(|entry| AuditRow {
                at: format::time(entry.at.as_millisecond()),
                entry,
            });
            Ok(page(&AuditPage {
                reader: (&visitor).into(),
                rows: rows.collect(),
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
    dir: String,
    may_write: bool,
}

pub(crate) async fn new(State(app): Here, Extension(visitor): Who) -> Response {
    page(&NewPage {
        reader: (&visitor).into(),
        dir: app.coordinator.state_dir().display().to_string(),
        may_write: visitor.role == Role::Write,
    })
}
