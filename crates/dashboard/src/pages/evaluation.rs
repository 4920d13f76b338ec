//! The page of one evaluation: what was measured, when, and what the service printed.

use askama::Template;
use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use coordinator::Error;
use coordinator::store::ExperimentSummary;
use tuner::begun::Begun;
use tuner::evaluation::{Block, Outcome, SideOrder};
use tuner::metrics::lookup;
use tuner::report::EvaluationRecord;
use tuner::sentence::sentence;
use tuner::spec::Spec;

use super::frame::{Reader, answer, page};
use crate::access::Visitor;
use crate::api;
use crate::app::{App, Here, Who};
use crate::audit::Entry;
use crate::format::{self, Compared, When};
use crate::names::Names;
use crate::readers;
use crate::reply::blocking;
use crate::role::Role;
use crate::units::Unit;

/// So many of the newest entries of an experiment's audit log are searched for who killed an
/// evaluation.
const ENTRIES_MAX: usize = 5000;

/// A block, with the objective and the constrained metrics of both sides.
struct BlockRow {
    number: usize,
    order: &'static str,
    start: String,
    cells: Vec<(String, String)>,
}

/// A parameter's value here and on the control.
struct Setting {
    name: String,
    value: String,
    control: String,
}

#[derive(Template)]
#[template(path = "evaluation.html")]
struct EvaluationPage {
    reader: Reader,
    trouble: Option<String>,
    output: Option<String>,
    /// Slackline starts the service.
    is_started: bool,
    summary: ExperimentSummary,
    number: usize,
    previous: Option<usize>,
    next: Option<usize>,
    outcome: String,
    reason: String,
    objective: String,
    metric: String,
    unit: String,
    name: String,
    began: Option<When>,
    took: String,
    host: Option<String>,
    /// With which control it began, and after which warm-up.
    begun: Vec<String>,
    configuration: Vec<Setting>,
    compared: Vec<Compared>,
    /// What the requests of a block are too few for.
    few_requests: Option<String>,
    metrics: Vec<String>,
    blocks: Vec<BlockRow>,
    is_running: bool,
    may_write: bool,
    note: String,
    /// The body of a request that measures this configuration once more.
    again: String,
    /// What is said once it is enqueued, and what to do.
    enqueued: String,
}

fn block_rows(spec: &Spec, blocks: &[Block], metrics: &[String]) -> Vec<BlockRow> {
    let cell = |block: &Block, metric: &String| {
        let unit = Unit::in_spec(spec, metric);
        let text = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| unit.text(value));
        (
            text(lookup(&block.control, metric)),
            text(lookup(&block.experiment, metric)),
        )
    };
    let rows = (1..).zip(blocks).map(|(number, block)| BlockRow {
        number,
        order: match block.order {
            SideOrder::ControlFirst => "control, candidate",
            SideOrder::ExperimentFirst => "candidate, control",
            SideOrder::Parallel => "both at once",
        },
        start: format::duration(block.start_s),
        cells: metrics.iter().map(|metric| cell(block, metric)).collect(),
    });
    rows.collect()
}

/// What the requests of a block are too few for, among all that was measured.
fn too_few(spec: &Spec, blocks: &[Block]) -> Option<String> {
    let metrics = blocks.iter().flat_map(|it| it.experiment.keys());
    let blocks: Vec<&Block> = blocks.iter().collect();
    let said = tuner::tail::too_few_requests(spec, metrics.map(String::as_str), &blocks)?;
    Some(Names::of(spec).text(&said))
}

/// Why it ended as it did. Who killed it is shown to those who may see the audit log.
fn reason(
    app: &App,
    id: i64,
    record: &EvaluationRecord,
    visitor: &Visitor,
) -> Result<String, Error> {
    let why = record.why().unwrap_or_default();
    if record.outcome != Outcome::Killed || visitor.role < Role::Write {
        return Ok(why);
    }
    let audit = app.audit.last(ENTRIES_MAX, Some(id));
    let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
    let is_kill = |it: &Entry| it.action == "kill" && it.evaluation == Some(record.number);
    let mut kills = audit.entries.into_iter();
    let who = kills.find(|it| it.refusal.is_none() && is_kill(it));
    Ok(match who.and_then(|it| it.who) {
        Some(who) => format!("{who} killed it"),
        None => why,
    })
}

/// What is said once a configuration is enqueued: what to do, where it does not come by itself.
fn enqueued(summary: &ExperimentSummary) -> String {
    let is_used_up = summary.evaluations >= summary.budget;
    let hint = summary.state.until_enqueued(summary.id, is_used_up);
    let hint = hint.filter(|_| !summary.always_on);
    let waits = summary.waits.as_ref();
    let hint = hint.or_else(|| waits.map(|why| format!("experiment {} {why}", summary.id)));
    let hint = hint.map_or_else(String::new, |hint| format!(" {}", sentence(&hint)));
    format!("The configuration is enqueued.{hint}")
}

fn evaluation_page(
    app: &App,
    id: i64,
    number: usize,
    visitor: &Visitor,
) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let store = coordinator.store();
    let role = visitor.role;
    let row = readers::experiment(coordinator, id, role)?;
    let shown = readers::evaluation(role, store.evaluation(id, number)?)?;
    let record = shown.record;
    let metrics = super::results::metrics(&row);
    let objective = row.spec.objective.as_ref();
    let control = &row.report.control;
    let settings = record.configuration.0.iter().map(|(name, value)| Setting {
        name: name.clone(),
        value: value.to_string(),
        control: control
            .get(name)
            .map_or_else(String::new, ToString::to_string),
    });
    let metric = objective.map_or_else(String::new, |objective| objective.metric.clone());
    let unit = Unit::in_spec(&row.spec, &metric);
    let is_there = |number: usize| store.evaluation(id, number).is_ok();
    let summary = readers::summary(role, api::summary(coordinator, id)?);
    let again = serde_json::json!({ "configuration": record.configuration });
    let names = Names::of(&row.spec);
    let begun = record.begun.iter().flat_map(Begun::told);
    Ok(page(&EvaluationPage {
        reader: visitor.into(),
        trouble: readers::trouble(coordinator, role),
        output: record.output.clone(),
        is_started: row
            .spec
            .target
            .as_ref()
            .is_some_and(|it| it.start.is_some()),
        number,
        previous: number
            .checked_sub(1)
            .filter(|before| *before > 0 && is_there(*before)),
        next: Some(number + 1).filter(|after| is_there(*after)),
        outcome: match shown.is_running {
            true => "running".into(),
            false => record.outcome.to_string(),
        },
        reason: names.text(&reason(app, id, &record, visitor)?),
        begun: begun.map(|line| names.text(&line)).collect(),
        objective: objective.map_or_else(String::new, |it| {
            format::objective(&row.spec, it, &record.blocks)
        }),
        unit: serde_json::to_string(&unit).unwrap_or_default(),
        name: unit.name(),
        metric,
        began: shown.started_ms.map(When::ms),
        took: match shown.is_running {
            true => String::new(),
            false => format::duration(record.duration_s),
        },
        host: record.host.clone(),
        configuration: settings.collect(),
        compared: format::compared(&row.spec, &record.blocks, &metrics),
        few_requests: too_few(&row.spec, &record.blocks),
        blocks: block_rows(&row.spec, &record.blocks, &metrics),
        metrics: metrics
            .iter()
            .map(|metric| Unit::in_spec(&row.spec, metric).name())
            .collect(),
        is_running: shown.is_running,
        may_write: visitor.role == Role::Write,
        note: record.note.clone().unwrap_or_default(),
        again: again.to_string(),
        enqueued: enqueued(&summary),
        summary,
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
