//! What happened to an experiment, as a timeline: what people did, and what it did by itself.

use coordinator::Error;
use coordinator::store::ExperimentRow;
use jiff::Timestamp;
use tuner::spec::Mode;

use crate::access::{Role, Visitor};
use crate::api;
use crate::audit::Entry;
use crate::format::When;
use crate::readers;
use crate::server::App;

/// As many events are shown.
pub(super) const EVENTS_MAX: usize = 60;

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
pub(super) fn word(action: &str) -> &str {
    match action {
        "create" => "created",
        "import" => "imported",
        "delete" => "deleted",
        "pause-queue" => "queue paused",
        "resume-queue" => "queue resumed",
        "make-token" => "token made",
        "revoke-token" => "token revoked",
        "sign-in" => "signed in",
        "sign-out" => "signed out",
        "pause" => "paused",
        "resume" => "resumed",
        "stop" => "stopped",
        "held" => "waits",
        "slo" => "constraint",
        "verify" => "verification requested",
        "verification" => "verification began",
        "promote" => "promoted",
        "rollback" => "rolled back",
        "forget-rest" | "forgotten" => "rest of the rollback forgotten",
        "budget" => "budget changed",
        "enqueue" => "configuration enqueued",
        "kill" => "evaluation killed",
        "fork" => "forked",
        "note" => "note written",
        "note-evaluation" => "note written",
        other => other,
    }
}

/// Whether a continuous experiment has an entry of its own for what the audit log says.
pub(super) fn is_in_entries(entry: &Entry) -> bool {
    match entry.action.as_str() {
        "rollback" | "forget-rest" => true,
        "promote" => entry.who.as_deref() == Some(crate::audit::ITSELF),
        _ => false,
    }
}

/// Who rolled a continuous experiment back by hand, of which it has an entry of that time: the
/// audit log, newest first, has the request before it.
pub(super) fn who_rolled_back(audit: &[Entry], id: i64, at: Timestamp) -> Option<&str> {
    let mut asked = audit.iter().filter(|it| it.experiment == Some(id));
    let asked = asked.find(|it| it.action == "rollback" && it.at <= at)?;
    asked.who.as_deref()
}

/// The events, newest first, with what happened in the experiment. Who did something is shown to
/// those who may see the audit log.
pub(crate) fn of(
    app: &App,
    row: &ExperimentRow,
    happened: Vec<tuner::continuous::Entry>,
    visitor: &Visitor,
) -> Result<Vec<Event>, Error> {
    let store = app.coordinator.store();
    let ms = |at_ms: i64| Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut events = Vec::new();
    let origin = row
        .parent
        .map_or_else(String::new, |parent| format!("from experiment {parent}"));
    let made = if row.report.imported {
        "imported"
    } else {
        "created"
    };
    events.push(Event::new(ms(row.created_ms), made, origin, ""));
    let tally = store.tally(row.id)?;
    let last = match super::experiment::is_active(row.state) {
        true => "latest evaluation began",
        false => "last evaluation began",
    };
    let begins = [
        (tally.first_ms, "first evaluation began"),
        (tally.last_ms, last),
    ];
    for (at_ms, what) in begins {
        if let Some(at_ms) = at_ms {
            events.push(Event::new(ms(at_ms), what, String::new(), ""));
        }
    }
    // A continuous experiment has an entry for each.
    let once = row.promotion.iter().filter(|_| row.spec.mode == Mode::Once);
    for promotion in once {
        let (what, class) = match promotion.left.is_empty() {
            true => ("promoted configuration in force", "good"),
            false => ("not restored by the rollback", "bad"),
        };
        let changed = promotion.changed.join(", ");
        events.push(Event::new(promotion.at, what, changed, class));
    }
    let may_see_who = visitor.role == Role::Write;
    let audit = app.audit.last(EVENTS_MAX, Some(row.id));
    let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
    let audit = audit.entries;
    for mut entry in happened {
        let who = who_rolled_back(&audit, row.id, entry.at).filter(|_| may_see_who);
        if let (Some(who), Some(rest)) = (who, entry.by_hand()) {
            entry.text = format!("by {who}{rest}");
        }
        let class = match entry.kind.as_str() {
            "promoted" => "good",
            "rollback" | "slo" | "refused" | "forgotten" | "failed" => "bad",
            "drift" | "held" | "changed" | "unmeasured" => "open",
            _ => "",
        };
        let what = match entry.is_begun() {
            true => "rollback",
            false => word(&entry.kind),
        };
        events.push(Event::new(entry.at, what, entry.text.clone(), class));
    }
    // A continuous experiment has an entry of its own for each rollback and promotion.
    let is_told = |entry: &Entry| row.spec.mode == Mode::Continuous && is_in_entries(entry);
    let done = audit.into_iter().filter(|entry| entry.refusal.is_none());
    for entry in done.filter(|entry| !is_told(entry)) {
        let by = entry.who.filter(|_| may_see_who);
        let number = entry
            .evaluation
            .map(|number| format!("evaluation {number}"));
        let detail: Vec<String> = [number, entry.detail].into_iter().flatten().collect();
        let detail = detail.join(", ");
        let detail = match by {
            Some(who) if detail.is_empty() => format!("by {who}"),
            Some(who) => format!("by {who}: {detail}"),
            None => detail,
        };
        let class = match entry.action.as_str() {
            "promote" => "good",
            "rollback" | "stop" | "kill" | "forget-rest" => "bad",
            _ => "",
        };
        events.push(Event::new(entry.at, word(&entry.action), detail, class));
    }
    for event in &mut events {
        event.detail = readers::line(visitor.role, &event.detail);
    }
    events.sort_by_key(|event| std::cmp::Reverse(event.at));
    events.truncate(EVENTS_MAX.max(api::ENTRIES));
    Ok(events)
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    #[test]
    fn a_rollback_by_hand_is_whose_request_came_just_before_it() {
        let asked = |second: i64, who: &str, id: i64| Entry {
            at: Timestamp::UNIX_EPOCH.checked_add(second.seconds()).unwrap(),
            experiment: Some(id),
            ..Entry::new("rollback", Some(who), None, 200)
        };
        let audit = [
            asked(30, "bob", 1),
            asked(20, "eve", 2),
            asked(10, "anna", 1),
        ];
        let at = |second: i64| Timestamp::UNIX_EPOCH.checked_add(second.seconds()).unwrap();
        assert_eq!(who_rolled_back(&audit, 1, at(31)), Some("bob"));
        assert_eq!(who_rolled_back(&audit, 1, at(29)), Some("anna"));
        assert_eq!(who_rolled_back(&audit, 1, at(9)), None);
    }
}
