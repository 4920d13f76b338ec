//! The pages: each is a template filled with what the store holds. What is live in them is read
//! again by the browser when it is told of a change, so there is one way in which a page comes to
//! show anything.

mod compare;
mod evaluation;
mod experiment;
mod history;
mod promotions;
mod results;
mod verdict;

use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use coordinator::store::{ExperimentRow, State as ExperimentState, Summary};
use coordinator::{Coordinator, Error};
use host::{Probe, ProbeState};
use tuner::ledger::PlannedArm;
use tuner::report::{ArmResult, change, confidence_percent, difference};
use tuner::sentence::counted;
use tuner::spec::{Goal, ObjectiveSpec, Spec};

use crate::access::{Role, Visitor};
use crate::actions;
use crate::api;
use crate::audit::Entry;
use crate::format::{self, When};
use crate::names::Names;
use crate::readers;
use crate::reply::{Refusal, blocking};
use crate::server::App;
use crate::units::Unit;
use crate::web::{local_path, pairs};

pub(crate) use compare::compare;
pub(crate) use evaluation::evaluation;
pub(crate) use experiment::experiment;
pub(crate) use promotions::promotions;
pub(crate) use results::winner_rank;

type Here = State<Arc<App>>;
type Who = Extension<Visitor>;

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
    summary: Summary,
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

/// The best score of an experiment, in its objective's terms.
fn best(spec: &Spec, summary: &Summary) -> String {
    let measured = spec.objective.as_ref().zip(summary.best_score);
    measured.map_or_else(String::new, |(it, score)| format::score(spec, it, score))
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

/// A summary whose texts call metrics as people do.
fn told(summary: Summary, spec: &Spec) -> Summary {
    let names = Names::of(spec);
    Summary {
        sentence: names.text(&summary.sentence),
        message: summary.message.map(|it| names.text(&it)),
        ..summary
    }
}

/// What an experiment is doing, in one sentence.
fn status(summary: &Summary, coordinator: &Coordinator, role: Role) -> String {
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
fn before_rollback(coordinator: &Coordinator, summary: &Summary) -> Result<String, Error> {
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
    if summary.always_on && experiment::is_active(summary.state) {
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
struct InPart {
    id: i64,
    name: String,
    /// What is not restored, with the reasons.
    left: String,
}

fn in_part(all: &[Summary]) -> Vec<InPart> {
    let left = all.iter().filter(|it| !it.not_restored.is_empty());
    left.map(|it| InPart {
        id: it.id,
        name: it.name.clone(),
        left: it.not_restored.join(", "),
    })
    .collect()
}

/// The objective, also of a specification without one.
fn objective(row: &ExperimentRow) -> ObjectiveSpec {
    let none = || ObjectiveSpec {
        metric: String::new(),
        goal: tuner::spec::Goal::Minimise,
        std_weight: 0.0,
        scale: tuner::spec::ObjectiveScale::Ratio,
    };
    row.spec.objective.clone().unwrap_or_else(none)
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
    summary: Summary,
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
        let experiments: Vec<Summary> = experiments.map(|it| readers::summary(role, it)).collect();
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
            commands: readers::commands(role, api::of_commands(coordinator)?),
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
