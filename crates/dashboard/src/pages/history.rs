//! What happened to an experiment, as a time line: what people did, and what it did by itself.

use coordinator::Error;
use coordinator::store::ExperimentRow;
use jiff::Timestamp;
use tuner::spec::Mode;

use crate::access::{Role, Visitor};
use crate::api;
use crate::format::When;
use crate::server::App;

/// As many events are shown.
const EVENTS_MAX: usize = 60;

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    at: Timestamp,
    pub(crate) when: When,
    pub(crate) what: String,
    pub(crate) detail: String,
    pub(crate) class: &'static str,
}

impl Event {
    fn new(at: Timestamp, what: &str, detail: String, class: &'static str) -> Self {
        Self {
            at,
            when: When::of(at),
            what: what.to_owned(),
            detail,
            class,
        }
    }
}

/// Words for what the interface calls its operations, and the store its entries.
fn word(action: &str) -> &str {
    match action {
        "pause" => "paused",
        "resume" => "resumed",
        "stop" => "stopped",
        "held" => "waits",
        "verify" => "verification requested",
        "promote" => "promoted",
        "rollback" => "rolled back",
        "budget" => "budget changed",
        "enqueue" => "configuration enqueued",
        "kill" => "evaluation killed",
        "fork" => "forked",
        "note" => "note written",
        "note-evaluation" => "note written",
        other => other,
    }
}

/// The events, newest first. Who did something is shown to those who may see the audit log.
pub(crate) fn of(app: &App, row: &ExperimentRow, visitor: &Visitor) -> Result<Vec<Event>, Error> {
    let store = app.coordinator.store();
    let ms = |at_ms: i64| Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut events = Vec::new();
    let origin = row
        .parent
        .map_or_else(String::new, |parent| format!("from experiment {parent}"));
    let made = if row.report.imported {
        "imported"
    } else {
        "made"
    };
    events.push(Event::new(ms(row.created_ms), made, origin, ""));
    let tally = store.tally(row.id)?;
    let begins = [
        (tally.first_ms, "first evaluation began"),
        (tally.last_ms, "latest evaluation began"),
    ];
    for (at_ms, what) in begins {
        if let Some(at_ms) = at_ms {
            events.push(Event::new(ms(at_ms), what, String::new(), ""));
        }
    }
    // A continuous experiment has an entry for each.
    let once = row.promotion.iter().filter(|_| row.spec.mode == Mode::Once);
    for promotion in once {
        events.push(Event::new(
            promotion.at,
            "promoted configuration in force",
            promotion.changed.join(", "),
            "good",
        ));
    }
    for entry in store.entries(row.id, EVENTS_MAX)? {
        let class = match entry.kind.as_str() {
            "promoted" => "good",
            "rollback" | "slo" | "refused" => "bad",
            "drift" | "held" | "changed" | "unmeasured" => "open",
            _ => "",
        };
        events.push(Event::new(entry.at, word(&entry.kind), entry.text, class));
    }
    let audit = app.audit.last(EVENTS_MAX, Some(row.id));
    let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
    for entry in audit.into_iter().filter(|entry| entry.refusal.is_none()) {
        let by = entry.who.filter(|_| visitor.role == Role::Write);
        let by = by.map(|who| format!("by {who}"));
        let number = entry
            .evaluation
            .map(|number| format!("evaluation {number}"));
        let detail: Vec<String> = [number, entry.detail, by].into_iter().flatten().collect();
        let class = match entry.action.as_str() {
            "promote" => "good",
            "rollback" | "stop" | "kill" => "bad",
            _ => "",
        };
        events.push(Event::new(
            entry.at,
            word(&entry.action),
            detail.join(", "),
            class,
        ));
    }
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    events.truncate(EVENTS_MAX.max(api::ENTRIES));
    Ok(events)
}
