//! The JSON interface: one handler a verb.

mod body;
mod budget;
mod columns;
mod creation;
mod evaluations;
mod notes;
mod path;
mod promotions;
mod shown;
mod status;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bayes_opt::Configuration;
use coordinator::store::{ExperimentSummary, State as ExperimentState};
use coordinator::{Coordinator, Error, LastVerification};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tuner::ledger::{PlannedArm, VerificationRun};
use tuner::report::{ArmResult, Finding};
use tuner::spec::Masks;

pub use body::OF_BODY;
use body::body;
pub(crate) use budget::{GivenBudget, set_budget};
pub(crate) use columns::{Points, Rounds, model, model_pair, points, rounds};
pub(crate) use creation::{
    GivenConfiguration, GivenFork, GivenSpec, SpecCheck, check, create, enqueue, fork, import,
};
pub(crate) use evaluations::{
    FullEvaluation, ListedEvaluation, OUTCOMES, evaluation, evaluations, export, kill,
};
pub(crate) use notes::{GivenNote, note, note_evaluation};
pub(crate) use path::number;
pub(crate) use promotions::{
    ENTRIES_MAX, InForce, OfCommand, commands, configuration, of_commands, promoted_by, promotions,
};
pub(crate) use shown::{ENTRIES, Shown, continuous, summary, winner_rank};
use shown::{act, act_with};
pub(crate) use status::{
    HostState, Status, WorkersState, changed, host, pause_queue, resume_queue, status, workers,
};

use crate::access::Visitor;
use crate::app::{Here, Who};
use crate::audit::Detail;
use crate::reply::{Refusal, Reply, blocking};
use crate::role::Role;
use crate::web::Params;

/// A confirmation.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenConfirmation {
    /// Must be `true`: the sender accepts that the files and knobs stay as they are.
    confirm: bool,
}

pub(crate) async fn nothing_here() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "there is nothing at this path; see /api/v1/openapi.json",
    )
}

pub(crate) async fn not_so() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not accept this method; see /api/v1/openapi.json",
    )
}

/// What `experiments` may be asked.
#[derive(Deserialize)]
pub(crate) struct ListQuery {
    #[serde(default)]
    state: Option<ExperimentState>,
    #[serde(default)]
    limit: Option<std::num::NonZeroUsize>,
}

pub(crate) async fn list(
    State(app): Here,
    Params(query): Params<ListQuery>,
) -> Reply<Vec<ExperimentSummary>> {
    blocking(move || {
        let all = app.coordinator.store().experiments()?.into_iter();
        let asked = all.filter(|it| query.state.is_none_or(|state| it.state == state));
        Ok(asked
            .take(query.limit.map_or(usize::MAX, Into::into))
            .collect())
    })
    .await
    .map(Json)
}

pub(crate) async fn show(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, |_, _| Ok(())).await
}

/// What `audit` may be asked.
#[derive(Deserialize)]
pub(crate) struct AuditQuery {
    #[serde(default)]
    limit: Option<std::num::NonZeroUsize>,
    #[serde(default)]
    experiment: Option<i64>,
}

/// As many entries as are shown where nobody says how many.
pub(crate) const AUDIT_ENTRIES: usize = 100;

/// The header that says how many lines of the audit log are damaged.
const DAMAGED_LINES: &str = "slackline-damaged-lines";

/// Who changed what, newest first. It has addresses and names of people, so it is for those who may
/// write.
pub(crate) async fn audit(
    State(app): Here,
    Extension(visitor): Who,
    Params(query): Params<AuditQuery>,
) -> Result<Response, Refusal> {
    may_see_audit(&visitor)?;
    let limit = query.limit.map_or(AUDIT_ENTRIES, Into::into);
    let last = blocking(move || {
        let last = app.audit.last(limit, query.experiment);
        last.map_err(|error| Error::Unavailable(error.to_string()))
    });
    let last = last.await?;
    let damaged = [(DAMAGED_LINES, last.damaged.to_string())];
    Ok((damaged, Json(last.entries)).into_response())
}

pub(crate) fn may_see_audit(visitor: &Visitor) -> Result<(), Refusal> {
    if visitor.role >= Role::Write {
        return Ok(());
    }
    let why = "the audit log is for tokens that may change things";
    Err(Refusal::new(StatusCode::FORBIDDEN, why))
}

pub(crate) async fn delete(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<StatusCode, Refusal> {
    let id = path::id(&id)?;
    blocking(move || app.coordinator.delete(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn pause(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::pause).await
}

pub(crate) async fn resume(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::resume).await
}

pub(crate) async fn stop(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::stop).await
}

pub(crate) async fn verify(State(app): Here, Path(id): Path<String>) -> Reply<Shown> {
    act(app, &id, Coordinator::verify).await
}

/// What was changed is in the audit log.
pub(crate) async fn promote(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<(Extension<Detail>, Json<Shown>), Refusal> {
    let (promotion, shown) = act_with(app, &id, Coordinator::promote).await?;
    let detail = promotion.done.sentences().join(" ");
    Ok((Extension(Detail(detail)), Json(shown)))
}

/// An experiment after its rollback.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RolledBackExperiment")]
pub(crate) struct RolledBack {
    #[serde(flatten)]
    shown: Shown,
    /// What the rollback has done: a text for each file, knob and copy.
    rolled_back: Vec<String>,
    /// Numbers of the continuous experiments that may promote now.
    may_promote: Vec<i64>,
}

/// What could not be restored is `promotion.left`, and in the audit log.
pub(crate) async fn roll_back(
    State(app): Here,
    Path(id): Path<String>,
) -> Result<(Extension<Detail>, Json<RolledBack>), Refusal> {
    let rolled_back = act_with(app, &id, |coordinator, id| {
        Ok((coordinator.roll_back(id)?, coordinator.would_promote(id)?))
    });
    let ((changed, may_promote), shown) = rolled_back.await?;
    let left = changed.left.iter().map(|it| format!("not restored: {it}"));
    let done = changed.done.texts();
    let detail: Vec<String> = left.chain(done.iter().cloned()).collect();
    let answer = RolledBack {
        shown,
        rolled_back: done,
        may_promote,
    };
    Ok((Extension(Detail(detail.join("; "))), Json(answer)))
}

/// Forgets what a rollback could not restore, so that the experiment can be deleted. Without the
/// confirmation nothing is forgotten, and the refusal says what that would be.
pub(crate) async fn forget_rest(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<(Extension<Detail>, Json<Shown>), Refusal> {
    let is_confirmed = match bytes.is_empty() {
        true => false,
        false => body::<GivenConfirmation>(&bytes)?.confirm,
    };
    let forgotten = act_with(app, &id, move |coordinator, id| {
        let rest = coordinator.not_restored(id)?;
        if !is_confirmed && !rest.is_empty() {
            return Err(Error::Invalid(format!(
                "Slackline would no longer try to restore: {}. Nothing is forgotten yet. To forget these files and knobs, send {{\"confirm\": true}}",
                rest.join(", ")
            )));
        }
        coordinator.forget_rest(id)
    });
    let (forgotten, shown) = forgotten.await?;
    let detail = format!("left as it is: {}", forgotten.join(", "));
    Ok((Extension(Detail(detail)), Json(shown)))
}

pub(crate) async fn queue(State(app): Here, Path(id): Path<String>) -> Reply<Vec<Configuration>> {
    let id = path::id(&id)?;
    blocking(move || {
        app.coordinator.store().experiment(id)?;
        app.coordinator.store().queue(id)
    })
    .await
    .map(Json)
}

/// The verification of an experiment.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Verification {
    /// Number of the present verification, from 1.
    number: i64,
    /// The arms of the present verification. `null` before it began.
    // Arms have variables of their own, which are masked.
    #[schemars(with = "Option<Vec<PlannedArm>>")]
    plan: Value,
    /// The runs of the present verification.
    #[schemars(with = "Vec<VerificationRun>")]
    runs: Value,
    /// The previous verification, as long as the present one has no runs.
    #[schemars(with = "Option<LastVerification>")]
    last: Value,
    /// The results of the last verification that came to its end, winner first.
    #[schemars(with = "Vec<ArmResult>")]
    arms: Value,
    /// What the verification has shown, as one word.
    finding: Finding,
    /// What the verification has shown, as one sentence.
    sentence: String,
}

pub(crate) async fn verification(State(app): Here, Path(id): Path<String>) -> Reply<Verification> {
    let id = path::id(&id)?;
    let masks = Masks::ForWriters;
    blocking(move || {
        let row = app.coordinator.store().experiment(id)?;
        let runs = app.coordinator.store().runs(id)?;
        let report = app.coordinator.with_runs(&row)?;
        let last = app.coordinator.last_verification(&row)?;
        Ok(Verification {
            number: row.verification,
            plan: masks.value(&row.plan),
            runs: masks.value(&runs),
            last: masks.value(&last),
            arms: masks.value(&report.verification),
            finding: report.finding,
            sentence: report.sentence,
        })
    })
    .await
    .map(Json)
}
