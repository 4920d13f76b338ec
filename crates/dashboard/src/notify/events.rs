//! What there is to tell: the difference between two looks at the store.

use std::collections::BTreeMap;

use coordinator::store::{ExperimentRow, State};
use coordinator::{Coordinator, Error};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tuner::report::Finding;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// An experiment is done, stopped or failed.
    Ended,
    /// A verification has shown an improvement.
    Shown,
    /// A configuration is in force.
    Promoted,
    /// A promotion is undone.
    RolledBack,
    /// A drift test has raised an alarm.
    Drifted,
    /// The server, or an experiment, waits for somebody.
    NeedsAttention,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Shown => "shown",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled-back",
            Self::Drifted => "drifted",
            Self::NeedsAttention => "needs-attention",
        }
    }

    /// The end of a sentence about an experiment.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Ended => "has ended",
            Self::Shown => "has shown an improvement",
            Self::Promoted => "was promoted",
            Self::RolledBack => "was rolled back",
            Self::Drifted => "has drifted",
            Self::NeedsAttention => "needs attention",
        }
    }
}

/// Something to tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// It grows; a receiver that has seen it can leave it out.
    pub(crate) number: u64,
    pub(crate) event: Kind,
    pub(crate) at: Timestamp,
    /// None of what concerns the whole server.
    pub(crate) experiment: Option<i64>,
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) url: String,
}

impl Event {
    pub(crate) fn new(
        event: Kind,
        at: Timestamp,
        experiment: Option<i64>,
        name: &str,
        text: &str,
    ) -> Self {
        Self {
            number: 0,
            event,
            at,
            experiment,
            name: name.to_owned(),
            text: http_client::redact(text),
            url: String::new(),
        }
    }
}

/// An experiment, as far as events tell of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Standing {
    name: String,
    /// It was measured elsewhere: its end is no news.
    #[serde(default)]
    is_imported: bool,
    state: State,
    is_shown: bool,
    /// Which verification its finding is of.
    verification: i64,
    is_promoted: bool,
    #[serde(default)]
    is_continuous: bool,
    alarms: usize,
    promotions: usize,
    rollbacks: usize,
    /// Why it waits for somebody.
    needs: Option<String>,
    /// Its rollback could not restore everything.
    #[serde(default)]
    is_in_part: bool,
    sentence: String,
    message: Option<String>,
}

impl Standing {
    /// An experiment that was made a moment ago: it may have come to its end before it was first
    /// looked at.
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_imported: false,
            state: State::Queued,
            is_shown: false,
            verification: 1,
            is_promoted: false,
            is_continuous: false,
            alarms: 0,
            promotions: 0,
            rollbacks: 0,
            needs: None,
            is_in_part: false,
            sentence: String::new(),
            message: None,
        }
    }
}

/// The store at one look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    experiments: BTreeMap<i64, Standing>,
    trouble: Option<String>,
}

impl Seen {
    /// Looks at the store; `before` is what was seen last.
    pub(crate) fn of(coordinator: &Coordinator, before: Option<&Self>) -> Result<Self, Error> {
        let store = coordinator.store();
        let always_on = store.all_continuous()?;
        let mut experiments = BTreeMap::new();
        for summary in store.experiments()? {
            let id = summary.id;
            let continuous = always_on.iter().find(|it| it.id == id).map(|it| &it.state);
            let was = before.and_then(|before| before.experiments.get(&id));
            // The row is read only where it can tell something: most experiments are at rest.
            let row = match summary.sentence.is_empty() && was.is_some() {
                true => None,
                false => Some(store.experiment(id)?),
            };
            let left = summary.not_restored.join(", ");
            let is_in_part = !left.is_empty();
            let needs = match is_in_part {
                true => Some(format!(
                    "The rollback could not restore {left}. Remove the cause, then roll back again: /experiments/{id}."
                )),
                false => continuous
                    .and_then(|state| state.externally_modified.as_ref())
                    .map(|what| {
                        format!("A promoted setting was changed outside Slackline: {what}.")
                    }),
            };
            experiments.insert(
                id,
                Standing {
                    name: summary.name,
                    is_imported: row.as_ref().map_or_else(
                        || was.is_some_and(|was| was.is_imported),
                        |row| row.report.imported,
                    ),
                    state: summary.state,
                    is_shown: row
                        .as_ref()
                        .is_some_and(|row| row.report.finding == Finding::Improvement),
                    verification: row.as_ref().map_or(0, last_begun),
                    is_promoted: summary.promoted && !coordinator.is_rollback_untold(id),
                    is_continuous: continuous.is_some(),
                    alarms: continuous.map_or(0, |state| state.alarms),
                    promotions: continuous.map_or(0, |state| state.promotions),
                    rollbacks: continuous.map_or(0, |state| state.rollbacks),
                    needs,
                    is_in_part,
                    sentence: summary.sentence,
                    message: summary.message,
                },
            );
        }
        Ok(Self {
            experiments,
            trouble: coordinator.trouble(),
        })
    }

    /// What happened since an earlier look.
    pub(crate) fn since(&self, before: &Self) -> Vec<Event> {
        let now = Timestamp::now();
        let mut events = Vec::new();
        if let Some(trouble) = &self.trouble
            && before.trouble.is_none()
        {
            events.push(Event::new(
                Kind::NeedsAttention,
                now,
                None,
                "slackline serve",
                trouble,
            ));
        }
        for (id, it) in &self.experiments {
            let was = before.experiments.get(id);
            let mut tell = |kind: Kind, text: &str| {
                events.push(Event::new(kind, now, Some(*id), &it.name, text));
            };
            let is_over =
                |state: State| matches!(state, State::Done | State::Stopped | State::Failed);
            let message = it.message.as_deref().unwrap_or_default();
            let says = if it.sentence.is_empty() {
                message
            } else {
                &it.sentence
            };
            // Between two looks an experiment can be made and come to its end. An imported one
            // tells nothing.
            let new = Standing::new(&it.name);
            let was = match was {
                None if it.is_imported => continue,
                was => was.unwrap_or(&new),
            };
            let is_shown_anew =
                it.is_shown && (!was.is_shown || was.verification != it.verification);
            // A continuous experiment searches on after each verification.
            if is_shown_anew && (it.state != State::Running || it.is_continuous) {
                tell(Kind::Shown, &it.sentence);
            }
            if is_over(it.state) && !is_over(was.state) {
                let text = format!("The experiment {}. {says}", it.state.with_verb());
                tell(Kind::Ended, text.trim_end());
            }
            if it.state == State::Failed && was.state != State::Failed {
                tell(
                    Kind::NeedsAttention,
                    &format!("The experiment has failed: {message}"),
                );
            }
            let is_promoted =
                it.promotions > was.promotions || (it.is_promoted && !was.is_promoted);
            if is_promoted {
                tell(Kind::Promoted, "The winner is in force on the host.");
            }
            let is_rolled_back =
                it.rollbacks > was.rollbacks || (was.is_promoted && !it.is_promoted);
            // One that is unfinished needs attention.
            if is_rolled_back && !it.is_in_part {
                tell(Kind::RolledBack, "The promotion is undone.");
            }
            if it.alarms > was.alarms {
                tell(
                    Kind::Drifted,
                    "A drift test has raised an alarm: a new search begins.",
                );
            }
            if let Some(needs) = &it.needs
                && was.needs != it.needs
            {
                tell(Kind::NeedsAttention, needs);
            }
        }
        events
    }
}

/// The number of the last verification that has begun. A larger budget already gives the next one
/// its number, and the finding is still the one before's.
fn last_begun(row: &ExperimentRow) -> i64 {
    row.verification - i64::from(row.plan.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        Standing {
            state: State::Running,
            ..Standing::new("web")
        }
    }

    fn told(change: impl Fn(&mut Standing), from: impl Fn(&mut Standing)) -> Vec<Kind> {
        let seen = |change: &dyn Fn(&mut Standing)| {
            let mut it = standing();
            change(&mut it);
            Seen {
                experiments: [(1, it)].into(),
                trouble: None,
            }
        };
        let events = seen(&change).since(&seen(&from));
        events.into_iter().map(|event| event.event).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let nothing = |_: &mut Standing| ();
        let done = |it: &mut Standing| (it.state, it.is_shown) = (State::Done, true);
        assert_eq!(told(done, nothing), [Kind::Shown, Kind::Ended]);
        assert_eq!(told(done, done), []);
        let again =
            |it: &mut Standing| (it.state, it.is_shown, it.verification) = (State::Done, true, 2);
        assert_eq!(told(again, done), [Kind::Shown], "another verification");
        let failed = |it: &mut Standing| it.state = State::Failed;
        assert_eq!(told(failed, nothing), [Kind::Ended, Kind::NeedsAttention]);
        let promoted = |it: &mut Standing| (it.is_promoted, it.promotions) = (true, 1);
        assert_eq!(told(promoted, nothing), [Kind::Promoted]);
        let by_hand = |it: &mut Standing| it.is_promoted = true;
        assert_eq!(told(nothing, by_hand), [Kind::RolledBack]);
        let in_part = |it: &mut Standing| (it.needs, it.is_in_part) = (Some("x".into()), true);
        assert_eq!(told(in_part, by_hand), [Kind::NeedsAttention]);
        assert_eq!(told(|it| it.alarms = 1, nothing), [Kind::Drifted]);
        let needs = |it: &mut Standing| it.needs = Some("x".into());
        assert_eq!(told(needs, nothing), [Kind::NeedsAttention]);
        assert_eq!(told(needs, needs), []);
    }

    #[test]
    fn an_experiment_that_was_over_before_the_first_look_is_told() {
        let one = |it: Standing| Seen {
            experiments: [(1, it)].into(),
            trouble: None,
        };
        let kinds = |it: Standing| {
            let events = one(it).since(&Seen::default()).into_iter();
            events.map(|event| event.event).collect::<Vec<_>>()
        };
        let failed = Standing {
            state: State::Failed,
            ..standing()
        };
        assert_eq!(kinds(failed.clone()), [Kind::Ended, Kind::NeedsAttention]);
        assert_eq!(kinds(standing()), [], "it runs");
        let imported = Standing {
            is_imported: true,
            is_shown: true,
            ..failed
        };
        assert_eq!(kinds(imported), []);
    }

    #[test]
    fn trouble_is_told_and_a_password_is_not() {
        let seen = Seen {
            trouble: Some("http://me:s3cr3t@h is down".into()),
            ..Seen::default()
        };
        let events = seen.since(&Seen::default());
        assert_eq!(events.len(), 1);
        assert!(!events[0].text.contains("s3cr3t"), "{}", events[0].text);
        assert!(seen.since(&seen).is_empty());
    }
}
