//! What happened to an experiment, as a timeline: what people did, and what it did by itself.

use coordinator::Error;
use coordinator::store::ExperimentRow;
use jiff::Timestamp;
use tuner::spec::ExperimentMode;

use crate::access::Visitor;
use crate::actions;
use crate::api;
use crate::app::App;
use crate::audit::Entry;
use crate::format::When;
use crate::names::Names;
use crate::readers;
use crate::role::Role;

/// As many events are shown.
pub(super) const EVENTS_MAX: usize = 60;

/// Something that happened.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    at: Timestamp,
    pub(crate) when: When,
    /// Who did it, or what it is about.
    pub(crate) what: String,
    /// A sentence; behind a person what that person did.
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

/// Who did something, where that is not shown.
const SOMEBODY: &str = "A user";

/// A heading for what the store says of an experiment that goes on by itself, and the class that
/// colours it.
fn heading(entry: &tuner::continuous::HistoryEntry) -> (&'static str, &'static str) {
    match entry.kind.as_str() {
        "search" => ("Search", ""),
        "verification" => ("Verification", ""),
        "done" => ("Result", ""),
        "failed" => ("Failure", "bad"),
        "promoted" => ("Promotion", "good"),
        "rollback" | "forgotten" => ("Rollback", "bad"),
        "slo" => ("Constraint", "bad"),
        "drift" => ("Drift", "open"),
        "held" => ("Waiting", "open"),
        "refused" => ("Refusal", "bad"),
        "changed" => ("Change", "open"),
        "unmeasured" => ("Measurement", "open"),
        "measured" => ("Measurement", ""),
        _ => ("Experiment", ""),
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

/// Who asked for what a continuous experiment has an entry of at that time: the audit log, newest
/// first, has the request before it.
pub(super) fn who_asked<'a>(
    audit: &'a [Entry],
    id: i64,
    entry: &tuner::continuous::HistoryEntry,
) -> Option<&'a str> {
    let action = match entry.kind.as_str() {
        "forgotten" => "forget-rest",
        _ => "rollback",
    };
    let mut asked = audit.iter().filter(|it| it.experiment == Some(id));
    let asked = asked.find(|it| it.action == action && it.at <= entry.at)?;
    asked.who.as_deref()
}

/// What an entry of the audit log says that somebody did: `killed evaluation 4.`
fn done(entry: &Entry) -> String {
    let past = actions::past(&entry.action);
    let past = match entry.evaluation {
        Some(number) => past.replace("an evaluation", &format!("evaluation {number}")),
        None => past.to_owned(),
    };
    match &entry.detail {
        Some(detail) => format!("{past}: {}.", detail.trim_end_matches('.')),
        None => format!("{past}."),
    }
}

/// The events, newest first, with what happened in the experiment. Who did something is shown to
/// those who may see the audit log.
pub(crate) fn of(
    app: &App,
    row: &ExperimentRow,
    happened: Vec<tuner::continuous::HistoryEntry>,
    visitor: &Visitor,
) -> Result<Vec<Event>, Error> {
    let store = app.coordinator.store();
    let ms = |at_ms: i64| Timestamp::from_millisecond(at_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut events = Vec::new();
    let origin = row
        .parent
        .map_or_else(String::new, |parent| format!(" from experiment {parent}"));
    let made = match row.report.imported {
        true => "imported",
        false => "created",
    };
    let made = format!("The experiment was {made}{origin}.");
    events.push(Event::new(ms(row.created_ms), "Experiment", made, ""));
    let tally = store.tally(row.id)?;
    let last = match super::summary::is_active(row.state) {
        true => "The latest evaluation began.",
        false => "The last evaluation began.",
    };
    let begins = [
        (tally.first_ms, "The first evaluation began."),
        (tally.last_ms, last),
    ];
    for (at_ms, what) in begins {
        if let Some(at_ms) = at_ms {
            events.push(Event::new(ms(at_ms), "Evaluation", what.to_owned(), ""));
        }
    }
    let may_see_who = visitor.role == Role::Write;
    let audit = app.audit.last(EVENTS_MAX, Some(row.id));
    let audit = audit.map_err(|error| Error::Unavailable(error.to_string()))?;
    let audit = audit.entries;
    let mut is_promotion_in_audit = audit.iter().filter(|it| it.refusal.is_none());
    let is_promotion_in_audit = is_promotion_in_audit.any(|it| it.action == "promote");
    // A continuous experiment has an entry for each.
    let once = row
        .promotion
        .iter()
        .filter(|_| row.spec.mode == ExperimentMode::Once);
    for promotion in once {
        let (what, detail, class) = match promotion.left.is_empty() {
            true if is_promotion_in_audit => continue,
            true => ("Promotion", promotion.done.sentences().join(" "), "good"),
            false => (
                "Rollback",
                format!(
                    "The rollback could not restore {}.",
                    promotion.done.changed.join(", ")
                ),
                "bad",
            ),
        };
        events.push(Event::new(promotion.at, what, detail, class));
    }
    let mut is_said_above = row.state == coordinator::store::State::Failed;
    for mut entry in happened {
        let (what, class) = heading(&entry);
        if entry.kind == "failed" && std::mem::take(&mut is_said_above) {
            entry.text = "The experiment failed. The top of this page says why.".to_owned();
        }
        let event = match entry.by_hand() {
            Some(rest) => {
                let who = who_asked(&audit, row.id, &entry).filter(|_| may_see_who);
                let rest = rest.trim_start().to_owned();
                Event::new(entry.at, who.unwrap_or(SOMEBODY), rest, class)
            }
            None => Event::new(entry.at, what, entry.text, class),
        };
        events.push(event);
    }
    // A continuous experiment has an entry of its own for each rollback and promotion.
    let is_told =
        |entry: &Entry| row.spec.mode == ExperimentMode::Continuous && is_in_entries(entry);
    let acts = audit.iter().filter(|entry| entry.refusal.is_none());
    for entry in acts.filter(|entry| !is_told(entry)) {
        let by = entry.who.as_deref().filter(|_| may_see_who);
        let class = match entry.action.as_str() {
            "promote" => "good",
            "rollback" | "stop" | "kill" | "forget-rest" => "bad",
            _ => "",
        };
        events.push(Event::new(
            entry.at,
            by.unwrap_or(SOMEBODY),
            done(entry),
            class,
        ));
    }
    let names = Names::of(&row.spec);
    for event in &mut events {
        event.detail = names.text(&readers::line(visitor.role, &event.detail));
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
        let entry = |second: i64| tuner::continuous::HistoryEntry {
            at: Timestamp::UNIX_EPOCH.checked_add(second.seconds()).unwrap(),
            kind: "rollback".into(),
            text: "A user rolled the promotion back.".into(),
        };
        assert_eq!(who_asked(&audit, 1, &entry(31)), Some("bob"));
        assert_eq!(who_asked(&audit, 1, &entry(29)), Some("anna"));
        assert_eq!(who_asked(&audit, 1, &entry(9)), None);
    }

    #[test]
    fn what_somebody_did_is_a_sentence() {
        let mut entry = Entry::new("kill", Some("anna"), None, 200);
        assert_eq!(done(&entry), "killed an evaluation.");
        entry.evaluation = Some(4);
        assert_eq!(done(&entry), "killed evaluation 4.");
        entry.action = "note-evaluation".into();
        entry.detail = Some("12 characters".into());
        assert_eq!(
            done(&entry),
            "changed the note on evaluation 4: 12 characters."
        );
        // One of another version.
        entry.action = "shuffle".into();
        assert_eq!(done(&entry), "shuffle: 12 characters.");
    }
}
