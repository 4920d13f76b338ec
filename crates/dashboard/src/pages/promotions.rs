//! What is in force on this host: since when, by whom, and what it gains.

use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use coordinator::Error;
use coordinator::store::ExperimentSummary;
use tuner::report::score_text;
use tuner::spec::ExperimentMode;

use super::frame::{Reader, answer, page};
use super::history::{is_in_entries, who_asked};
use super::summary::{InPart, before_rollback, in_part, objective};
use super::verdict::Verdict;
use crate::access::Visitor;
use crate::api;
use crate::app::{App, Here, Who};
use crate::audit::Entry;
use crate::format::{self, When};
use crate::readers;
use crate::reply::blocking;
use crate::role::Role;
use crate::units::Unit;

/// A promotion in force.
struct InForce {
    summary: ExperimentSummary,
    since: When,
    by: String,
    /// The values in force, where they are known.
    configuration: Option<String>,
    changed: Vec<String>,
    verdict: Option<Verdict>,
    objective: String,
    /// The gain when it was verified, of a continuous experiment.
    gain: String,
    is_complete: bool,
    is_always_on: bool,
    /// What a rollback will do.
    sure: String,
}

/// Something that was put in force or taken back.
struct Past {
    when: When,
    what: &'static str,
    experiment: i64,
    name: String,
    by: String,
    class: &'static str,
    at_ms: i64,
}

#[derive(Template)]
#[template(path = "promotions.html")]
struct PromotionsPage {
    /// What a shell calls to reach this server.
    command: String,
    reader: Reader,
    trouble: Option<String>,
    in_force: Vec<InForce>,
    in_part: Vec<InPart>,
    /// Those that commands have made, with their time.
    commands: Vec<(api::OfCommand, When)>,
    past: Vec<Past>,
    may_write: bool,
}

/// As many past changes are shown.
const PAST_MAX: usize = 50;

/// What a continuous experiment has promoted and rolled back.
fn own_past(
    app: &App,
    summary: &ExperimentSummary,
    audit: &[Entry],
    may_write: bool,
) -> Result<Vec<Past>, Error> {
    let id = summary.id;
    let mut past = Vec::new();
    for entry in app.coordinator.store().entries(id, PAST_MAX)? {
        let (what, class) = match entry.kind.as_str() {
            "promoted" => ("promoted", "good"),
            // Its end has an entry of its own.
            "rollback" if entry.is_begun() => continue,
            "rollback" => ("rolled back", "bad"),
            _ => continue,
        };
        let by = match entry.by_hand() {
            Some(_) => who_asked(audit, id, &entry)
                .filter(|_| may_write)
                .unwrap_or("a user"),
            None => "the experiment itself",
        };
        past.push(Past {
            when: When::of(entry.at),
            what,
            experiment: id,
            name: summary.name.clone(),
            by: by.to_owned(),
            class,
            at_ms: entry.at.as_millisecond(),
        });
    }
    Ok(past)
}

/// A change that somebody has asked for.
fn asked(entry: &Entry, id: i64, summary: Option<&ExperimentSummary>, may_write: bool) -> Past {
    let is_promotion = entry.action == "promote";
    Past {
        when: When::of(entry.at),
        what: if is_promotion {
            "promoted"
        } else {
            "rolled back"
        },
        experiment: id,
        name: summary.map_or_else(|| format!("experiment {id}, deleted"), |it| it.name.clone()),
        by: entry
            .who
            .clone()
            .filter(|_| may_write)
            .unwrap_or_else(|| "a user".into()),
        class: if is_promotion { "good" } else { "bad" },
        at_ms: entry.at.as_millisecond(),
    }
}

fn promotions_page(app: &App, visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let store = coordinator.store();
    let may_write = visitor.role == Role::Write;
    let audit = app.audit.last(api::ENTRIES_MAX, None);
    let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
    let audit = audit.entries;
    let changes: Vec<_> = audit
        .iter()
        .filter(|entry| entry.refusal.is_none())
        .filter(|entry| entry.action == "promote" || entry.action == "rollback")
        .collect();
    let summaries = store.experiments()?.into_iter();
    let summaries: Vec<ExperimentSummary> = summaries
        .map(|it| readers::summary(visitor.role, it))
        .collect();
    let mut in_force = Vec::new();
    let mut past = Vec::new();
    for summary in &summaries {
        let id = summary.id;
        if summary.always_on {
            past.extend(own_past(app, summary, &audit, may_write)?);
        }
        if !summary.promoted || coordinator.is_rollback_untold(id) {
            continue;
        }
        let row = readers::experiment(coordinator, id, visitor.role)?;
        let Some(promotion) = &row.promotion else {
            continue;
        };
        let is_always_on = row.spec.mode == ExperimentMode::Continuous;
        let configuration = api::configuration(store, &row)?;
        let configuration = readers::seen(visitor.role, configuration)?;
        let state = store.continuous(id)?;
        let promoted = state.and_then(|state| state.promoted);
        in_force.push(InForce {
            since: When::of(promotion.at),
            by: api::promoted_by(&audit, &row)
                .filter(|_| may_write || is_always_on)
                .unwrap_or_else(|| "a user".into()),
            configuration: configuration.as_ref().map(format::configuration),
            changed: promotion.done.sentences(),
            objective: Unit::in_spec(&row.spec, &objective(&row).metric).name(),
            verdict: Verdict::of(&row),
            gain: promoted.map_or_else(String::new, |it| score_text(it.gain, &objective(&row))),
            is_complete: promotion.is_complete,
            is_always_on,
            sure: before_rollback(coordinator, summary)?,
            summary: summary.clone(),
        });
    }
    for entry in changes {
        let Some(id) = entry.experiment else { continue };
        let name = summaries.iter().find(|it| it.id == id);
        // A continuous experiment has an entry of its own for each rollback and promotion.
        if name.is_some_and(|it| it.always_on) && is_in_entries(entry) {
            continue;
        }
        past.push(asked(entry, id, name, may_write));
    }
    past.sort_by_key(|it| std::cmp::Reverse(it.at_ms));
    past.truncate(PAST_MAX);
    let commands = api::of_commands(coordinator)?;
    let commands = api::commands(visitor.role, commands).into_iter();
    Ok(page(&PromotionsPage {
        command: app.command.clone(),
        commands: commands
            .map(|it| {
                let at = When::of(it.at);
                (it, at)
            })
            .collect(),
        reader: visitor.into(),
        trouble: readers::trouble(coordinator, visitor.role),
        in_force,
        in_part: in_part(&summaries),
        past,
        may_write,
    }))
}

pub(crate) async fn promotions(State(app): Here, Extension(visitor): Who) -> Response {
    answer(blocking(move || promotions_page(&app, &visitor)).await)
}
