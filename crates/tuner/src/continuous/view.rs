//! How a continuous experiment stands, in numbers and in words.

use bayes_opt::Configuration;
use jiff::Timestamp;
use paired_stats::DriftTest;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Acting, ContinuousController, ContinuousRules, ContinuousState, Round};
use crate::figures::counted;
use crate::report::score_text;
use crate::spec::ObjectiveSpec;

/// The present value of a drift test.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "DriftTestValue")]
pub struct TestValue {
    /// The series that is tested: a metric of the control, or `gain`.
    pub series: String,
    /// Evidence for a change.
    pub evidence: f64,
    /// The evidence that raises an alarm.
    pub threshold: f64,
    /// Rounds since the test began.
    pub rounds: usize,
}

/// A drift test, round by round since it began.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "DriftTestHistory")]
pub struct Evidence {
    /// The series that is tested: a metric of the control, or `gain`.
    pub series: String,
    /// The evidence that raises an alarm.
    pub threshold: f64,
    /// When each round ended, in milliseconds since 1970.
    pub at_ms: Vec<i64>,
    /// Evidence for a change after each round.
    pub evidence: Vec<f64>,
}

/// The state of a continuous experiment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ContinuousView {
    /// The state.
    #[serde(flatten)]
    pub state: ContinuousState,
    /// The drift tests.
    pub tests: Vec<TestValue>,
    /// Promotions since midnight.
    pub changes_today: usize,
    /// The largest number of promotions in a day.
    pub changes_per_day: usize,
    /// The earliest time at which something may be changed, in UTC: now, or the next time that
    /// `hours` and the budget of changes allow it.
    #[schemars(with = "String")]
    pub next_window: Timestamp,
    /// The time zone of days and hours.
    pub time_zone: String,
    /// The same in words, one line for each fact.
    pub lines: Vec<String>,
}

impl ContinuousView {
    fn in_words(
        &self,
        now: Timestamp,
        resting: Option<&str>,
        objective: &ObjectiveSpec,
    ) -> Vec<String> {
        let state = &self.state;
        let what = match (&state.pending_change, &state.promoted) {
            (Some(Acting::Promote(_)), _) => "promoting".to_owned(),
            (Some(Acting::RollBack(why)), _) => format!("rolling back: {why}"),
            (None, Some(promoted)) => format!(
                "promoted {:.0}, {} when verified",
                promoted.since,
                score_text(promoted.gain, objective),
            ),
            (None, None) if state.left.is_empty() => "nothing is promoted".to_owned(),
            (None, None) => format!(
                "nothing is promoted; the rollback could not restore: {}",
                state.left.join(", ")
            ),
        };
        let rounds = state.rounds;
        let externally_modified = state.externally_modified.as_ref();
        let unwatched = resting
            .map(|resting| format!("the experiment is {resting}"))
            .or_else(|| {
                externally_modified
                    .map(|what| format!("a promoted setting was changed outside Slackline: {what}"))
            });
        let mut lines = vec![match (unwatched, &state.pending_change, &state.promoted) {
            (Some(why), Some(_), _) => format!("{what}; it waits: {why}"),
            (Some(why), None, _) => {
                let watched = match &state.promoted {
                    Some(_) => "not watched",
                    None => "nothing is watched",
                };
                let rounds = counted(rounds, "round");
                format!("{what}, and {watched}: {why}; {rounds} so far")
            }
            (None, Some(_), _) => what,
            (None, None, Some(_)) => {
                format!("{what}; watched against the control, round {rounds}")
            }
            (None, None, None) => format!("{what}, round {rounds}"),
        }];
        // What was changed outside Slackline keeps every round from being measured, as said above.
        if state.unmeasured > 0 && externally_modified.is_none() {
            lines.push(format!(
                "rounds in a row that could not be measured, up to now: {}",
                state.unmeasured
            ));
        }
        let doing = match (&state.searching, &state.search_reason, &state.candidate) {
            (Some(searching), ..) if resting.is_some() => {
                Some(format!("a search has begun {:.0}", searching.since))
            }
            (Some(searching), ..) => Some(format!(
                "searching since {:.0}: {}",
                searching.since,
                state.search_reason.as_deref().unwrap_or("")
            )),
            (None, _, Some(_)) => {
                Some("a verified configuration waits for its promotion".to_owned())
            }
            (None, Some(due), None) => Some(format!("a search is due: {due}")),
            (None, None, None) => None,
        };
        lines.extend(doing);
        lines.extend(
            state
                .blocked_by
                .as_ref()
                .map(|why| format!("waits now: {why}")),
        );
        lines.extend(self.tests.iter().map(|test| {
            let counted = counted(test.rounds, "round");
            format!(
                "{}: evidence of a drift {} (an alarm at 1), after {counted}",
                test.series,
                evidence(test.evidence / test.threshold)
            )
        }));
        let window = if self.next_window <= now {
            "now".to_owned()
        } else {
            self.next_window.strftime("from %F %T UTC on").to_string()
        };
        lines.push(format!(
            "promotions today ({}): {} of {}; the next is allowed {window}",
            self.time_zone, self.changes_today, self.changes_per_day
        ));
        lines.push(format!(
            "so far: {}, {}, {}",
            counted(state.alarms, "alarm"),
            counted(state.promotions, "promotion"),
            counted(state.rollbacks, "rollback")
        ));
        lines
    }
}

/// Evidence of a drift, on the scale of the chart: at 1 there is an alarm.
fn evidence(share: f64) -> String {
    match share < 0.001 {
        true => "below 0.001".to_owned(),
        false => format!("{share:.3}"),
    }
}

impl ContinuousController {
    /// The evidence of every drift test after each round that the test counts, from what was kept.
    #[must_use]
    pub fn evidence(
        rules: ContinuousRules,
        control: Configuration,
        state: ContinuousState,
        rounds: &[Round],
    ) -> Vec<Evidence> {
        let mut controller = Self::resume(rules, control, state, &[]);
        let of = |(series, test): (&String, &DriftTest)| Evidence {
            series: series.clone(),
            threshold: test.threshold(),
            at_ms: Vec::new(),
            evidence: Vec::new(),
        };
        let mut all: Vec<Evidence> = controller.tests.iter().map(of).collect();
        for round in rounds {
            let lengths: Vec<usize> = controller.tests.values().map(DriftTest::len).collect();
            controller.count(round);
            let tests = controller.tests.values().zip(lengths);
            for (one, (test, length)) in all.iter_mut().zip(tests) {
                if test.len() != length {
                    one.at_ms.push(round.at.as_millisecond());
                    one.evidence.push(test.evidence());
                }
            }
        }
        all
    }

    /// How it stands. `resting` is what its experiment is where that does not run: then nothing is
    /// watched.
    #[must_use]
    pub fn view(&self, now: Timestamp, resting: Option<&str>) -> ContinuousView {
        let test = |(name, test): (&String, &DriftTest)| TestValue {
            series: name.clone(),
            evidence: test.evidence(),
            threshold: test.threshold(),
            rounds: test.len(),
        };
        let mut view = ContinuousView {
            lines: Vec::new(),
            tests: self.tests.iter().map(test).collect(),
            changes_today: self.changes_today(now),
            changes_per_day: self.rules.changes_per_day,
            next_window: self.next_window(now),
            time_zone: self.rules.time_zone.iana_name().unwrap_or("UTC").to_owned(),
            state: self.state.clone(),
        };
        view.lines = view.in_words(now, resting, &self.rules.objective);
        view
    }
}

#[cfg(test)]
mod tests {
    use super::evidence;

    #[test]
    fn numbers_are_told_as_people_write_them() {
        assert_eq!(evidence(9.4 / 11_520_000.0), "below 0.001");
        assert_eq!(evidence(0.0163), "0.016");
    }
}
