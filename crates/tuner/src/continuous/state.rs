//! What a controller knows, as it is kept.

use std::collections::BTreeMap;

use bayes_opt::Configuration;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Alert;
use crate::figures::sentence;
use crate::ledger::Drift;

/// A search that leaves nothing in force is repeated after a day, then after two, four, and every
/// eight days.
pub(super) const SEARCH_AGAIN_S: f64 = 86_400.0;

/// All that a controller goes on from, beside the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ContinuousState {
    /// The promoted configuration, if one is in force instead of the control's.
    pub promoted: Option<Promoted>,
    /// Why a search is due.
    #[serde(rename = "due")]
    pub search_reason: Option<String>,
    /// The search that has begun.
    pub searching: Option<Searching>,
    /// The verified configuration that will be promoted as soon as that is allowed.
    pub candidate: Option<VerifiedCandidate>,
    /// The promotion or rollback that has begun. It is finished before anything else.
    #[serde(rename = "acting")]
    pub pending_change: Option<Acting>,
    /// A change that was refused is not tried again before this time, in UTC.
    #[schemars(with = "String")]
    pub not_before: Timestamp,
    /// When a search is due although nothing has drifted, because nothing is in force. In UTC.
    #[schemars(with = "Option<String>")]
    pub search_again: Option<Timestamp>,
    /// The time between a search that leaves nothing in force and the next search, in seconds.
    pub search_again_after_s: f64,
    /// When the next round is due, in UTC.
    #[schemars(with = "String")]
    pub next_round: Timestamp,
    /// Rounds so far, including rounds that could not be measured.
    pub rounds: usize,
    /// Rounds in a row that broke a constraint, or in which only the promoted configuration could
    /// not be measured.
    pub breaks: usize,
    /// Rounds in a row that could not be measured, for any reason.
    pub unmeasured: usize,
    /// Rounds in a row after which not everything could be restored.
    #[serde(default)]
    pub unsettled: usize,
    /// The part of the promoted configuration that somebody else has changed. Until it is put
    /// right, nothing is measured or promoted.
    #[serde(default, rename = "strayed")]
    pub externally_modified: Option<String>,
    /// Knobs, files and `apply` steps that the last rollback left undone, with the reasons.
    #[serde(default)]
    pub left: Vec<String>,
    /// Evaluations so far.
    pub evaluated: usize,
    /// For each drift test, the number of the last round before the test began.
    pub since: BTreeMap<String, usize>,
    /// The drifts so far, oldest first.
    pub drifts: Vec<Drift>,
    /// The times of the promotions on the last day with a promotion, in UTC.
    #[schemars(with = "Vec<String>")]
    pub changes: Vec<Timestamp>,
    /// The last answer to the alert query.
    #[serde(rename = "asked")]
    pub alert_check: Option<AlertCheck>,
    /// Why a change waits.
    #[serde(rename = "held")]
    pub blocked_by: Option<String>,
    /// Alarms of drift tests so far.
    pub alarms: usize,
    /// When the last alarm was, in UTC.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub last_alarm: Option<Timestamp>,
    /// Promotions so far.
    pub promotions: usize,
    /// Rollbacks so far.
    pub rollbacks: usize,
    /// `true`: a search follows the next rollback. `false`: a search led to the rollback, so none
    /// follows.
    pub is_search_wanted_after_rollback: bool,
}

impl ContinuousState {
    /// Nothing is known yet: a search is due.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            promoted: None,
            search_reason: Some("nothing has been searched yet".into()),
            searching: None,
            candidate: None,
            pending_change: None,
            not_before: now,
            search_again: None,
            search_again_after_s: SEARCH_AGAIN_S,
            next_round: now,
            rounds: 0,
            breaks: 0,
            unmeasured: 0,
            unsettled: 0,
            externally_modified: None,
            left: Vec::new(),
            evaluated: 0,
            since: BTreeMap::new(),
            drifts: Vec::new(),
            changes: Vec::new(),
            alert_check: None,
            blocked_by: None,
            alarms: 0,
            last_alarm: None,
            promotions: 0,
            rollbacks: 0,
            is_search_wanted_after_rollback: true,
        }
    }

    /// Promotions since midnight in a time zone.
    #[must_use]
    pub fn changes_today(&self, now: Timestamp, time_zone: &TimeZone) -> usize {
        let day = experiment_spec::day_start(now, time_zone);
        self.changes.iter().filter(|at| **at >= day).count()
    }

    /// What it is at, in one word.
    #[must_use]
    pub fn doing(&self) -> ContinuousPhase {
        let is_due =
            self.searching.is_some() || self.search_reason.is_some() || self.candidate.is_some();
        match &self.pending_change {
            Some(Acting::Promote(_)) => ContinuousPhase::Promoting,
            Some(Acting::RollBack(_)) => ContinuousPhase::RollingBack,
            None if self.externally_modified.is_some() => ContinuousPhase::Held,
            None if !is_due => ContinuousPhase::Watching,
            None if self.blocked_by.is_some() => ContinuousPhase::Held,
            None => ContinuousPhase::Searching,
        }
    }
}

/// What a controller is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContinuousPhase {
    /// Rounds, and nothing else.
    Watching,
    /// A search and its verification, or what follows it.
    Searching,
    /// A search or a promotion waits for the hours, the budget or the alert, or for what another
    /// experiment has in force; or the rounds wait, as somebody else has changed what is promoted.
    Held,
    /// A promotion has begun.
    Promoting,
    /// A rollback has begun.
    RollingBack,
}

impl ContinuousPhase {
    /// Each of them.
    pub const ALL: [Self; 5] = [
        Self::Watching,
        Self::Searching,
        Self::Held,
        Self::Promoting,
        Self::RollingBack,
    ];
}

impl std::fmt::Display for ContinuousPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Watching => "watching",
            Self::Searching => "searching",
            Self::Held => "held",
            Self::Promoting => "promoting",
            Self::RollingBack => "rolling back",
        })
    }
}

/// A configuration in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Promoted {
    /// The configuration.
    pub configuration: Configuration,
    /// The logarithm of the verified ratio to the control. Below 0 is better, for any goal.
    pub gain: f64,
    /// When the configuration was promoted, in UTC.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The state of the host just after the promotion.
    #[serde(default)]
    pub host: Option<HostThen>,
}

/// The state of a host at some time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HostThen {
    /// The kernel's identifier of the boot.
    pub boot_id: String,
    /// For each knob of the experiment, the value that was read. The kernel may have rounded the
    /// value that was written.
    pub knobs: BTreeMap<String, String>,
    /// The fingerprint of each templated file and of each template.
    pub files: BTreeMap<String, String>,
}

impl HostThen {
    /// What reads otherwise now, in words; `None` where nothing does.
    #[must_use]
    pub fn changed_to(&self, now: &Self) -> Option<String> {
        self.changed_since("when promoted", now)
    }

    /// What reads otherwise after a round that began when the host was like this.
    #[must_use]
    pub fn changed_in_round(&self, after: &Self) -> Option<String> {
        self.changed_since("when the round began", after)
    }

    fn changed_since(&self, when: &str, now: &Self) -> Option<String> {
        let each = self.knobs.iter().filter_map(|(knob, was)| {
            let is = now.knobs.get(knob).map_or("not to be read", String::as_str);
            (is != was).then(|| format!("{knob} is {is}, not {was}"))
        });
        let changed: Vec<String> = self.other_files(when, now).chain(each).collect();
        (!changed.is_empty()).then(|| changed.join(", "))
    }

    /// Whether a boot is all that can have changed what reads otherwise now: files and templates
    /// outlive one.
    #[must_use]
    pub fn is_reset_by_boot(&self, now: &Self) -> bool {
        self.boot_id != now.boot_id && self.other_files("", now).next().is_none()
    }

    /// Files and templates that are not as they were then, in words.
    fn other_files(&self, when: &str, now: &Self) -> impl Iterator<Item = String> {
        let each = self.files.iter();
        each.filter_map(move |(file, was)| match now.files.get(file) {
            Some(is) if is == was => None,
            Some(_) => Some(format!("{file} has other contents than {when}")),
            None => Some(format!("{file} cannot be read any more")),
        })
    }
}

/// A verified configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedCandidate {
    /// The configuration.
    pub configuration: Configuration,
    /// The logarithm of the verified ratio to the control. Below 0 is better, for any goal.
    pub gain: f64,
}

/// A search that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Searching {
    /// When the search began, in UTC.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Number of evaluations before the search.
    pub from: usize,
    /// `true`: the store of evaluations knows about the search, too.
    pub is_begun: bool,
}

/// A change of the service that has begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "PendingChange")]
pub enum Acting {
    /// A promotion of this configuration.
    Promote(VerifiedCandidate),
    /// A rollback to the control's configuration, for this reason.
    RollBack(String),
}

/// An answer to the alert query, with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AlertCheck {
    /// When the query was answered, in UTC.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The answer.
    pub alert: Alert,
}

/// An entry of an experiment's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// When it happened, in UTC.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `drift`, `search`, `promoted`, `rollback`, `forgotten`, `slo`, `held`, `refused`, `changed`,
    /// `unmeasured` or `measured`. Of an experiment that ends: `verification`, `done` or `failed`.
    pub kind: String,
    /// What happened, in words.
    pub text: String,
}

/// Why a search or a promotion waits.
pub(super) fn held(why: &str) -> String {
    format!("a change waits: {why}")
}

/// How the words begin of a rollback that is begun.
pub(super) const BEGINS: &str = "A rollback begins: ";

/// Who did what somebody asked for: the name of the user can stand in its place.
const USER: &str = "A user";

/// How the words begin of what somebody asked for.
pub(super) const BY_HAND: &str = "A user rolled the promotion back";
pub(super) const REST_BY_HAND: &str = "A user rolled back what the last rollback had left";
pub(super) const FORGOTTEN: &str = "A user forgot the rest of the rollback, which stays as it is";

impl HistoryEntry {
    /// Whether it says of a promotion or rollback, done, that nobody asked for.
    #[must_use]
    pub fn is_own_act(&self) -> bool {
        match self.kind.as_str() {
            "promoted" => true,
            "rollback" => !self.is_begun() && self.by_hand().is_none(),
            _ => false,
        }
    }

    /// What is said of something that somebody asked for, behind the words for who it was: ` rolled
    /// the promotion back.`
    #[must_use]
    pub fn by_hand(&self) -> Option<&str> {
        let is_of_user = matches!(self.kind.as_str(), "rollback" | "forgotten");
        self.text.strip_prefix(USER).filter(|_| is_of_user)
    }

    /// It is a rollback that begins: another entry says how it ended.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.kind == "rollback" && self.text.starts_with(BEGINS)
    }

    /// The entry in whole sentences.
    #[must_use]
    pub fn in_sentences(self) -> Self {
        let was = self.text.as_str();
        let text = match self.kind.as_str() {
            "verification" if was.starts_with("of ") => format!("the verification {was} begins"),
            _ => was.to_owned(),
        };
        Self {
            text: sentence(&text),
            ..self
        }
    }
}

/// One comparison of what is in force with the control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// From 1.
    pub number: usize,
    /// When it ended.
    pub at: Timestamp,
    /// A promoted configuration was compared; else the control with itself.
    pub of_promoted: bool,
    /// The part of the day within which the workload is compared.
    pub season: usize,
    /// The part within which the gain is.
    pub gain_season: usize,
    /// The drift tests count it.
    pub counts: bool,
    /// What was seen.
    pub seen: Seen,
}

/// What a round saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Seen {
    /// Measured.
    Measured(RoundResult),
    /// Nobody's fault that is known: says nothing.
    Unmeasured(String),
    /// Somebody else changed a knob in it, or the service could not be told of what stays in force
    /// after it: says nothing.
    Unsettled(String),
    /// Somebody else has changed this of what is promoted: nothing was measured.
    #[serde(rename = "strayed")]
    ExternallyModified(String),
    /// This was not as promoted, as the host has been started again, and has been put back: nothing
    /// was measured.
    PutBack(String),
    /// The control was measured, and what it was compared with could not be.
    OneSided(String),
    /// The service did not survive the configuration in force.
    Crashed(String),
}

/// What a round measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundResult {
    /// Mean logarithm of the ratio to the control; below 0 is better, whatever the goal.
    pub gain: f64,
    /// The variance of that mean.
    pub gain_variance: f64,
    /// The watched metrics of the control, on average over the blocks.
    pub workload: BTreeMap<String, f64>,
    /// The largest excess over a constraint.
    pub excess: f64,
    /// Constraints that were broken.
    pub broken: Vec<String>,
    /// Constraints that the control broke by as much.
    pub broken_by_both: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_told_in_whole_sentences() {
        let entry = |kind: &str, text: &str| HistoryEntry {
            at: Timestamp::UNIX_EPOCH,
            kind: kind.into(),
            text: text.into(),
        };
        for (kind, text, told, by_hand) in [
            (
                "rollback",
                "A user rolled the promotion back (x = 1).",
                "A user rolled the promotion back (x = 1).",
                true,
            ),
            (
                "rollback",
                "A rollback begins: it is worse.",
                "A rollback begins: it is worse.",
                false,
            ),
            (
                "held",
                "A change waits: an alert fires.",
                "A change waits: an alert fires.",
                false,
            ),
            (
                "verification",
                "of candidate 1",
                "The verification of candidate 1 begins.",
                false,
            ),
            (
                "slo",
                "the constraints hold again",
                "The constraints hold again.",
                false,
            ),
        ] {
            let entry = entry(kind, text).in_sentences();
            assert_eq!(entry.text, told);
            assert_eq!(entry.clone().in_sentences(), entry);
            assert_eq!(entry.by_hand().is_some(), by_hand, "{text}");
            let is_rollback = kind == "rollback";
            assert_eq!(entry.is_begun(), is_rollback && !by_hand, "{text}");
            assert!(!entry.is_own_act(), "{text}");
        }
    }
}
