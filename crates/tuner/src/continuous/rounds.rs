//! What a round shows: a constraint that is broken, a service that cannot be measured, a drift.

use jiff::Timestamp;
use paired_stats::{DriftTest, mean_interval};

use super::state::{Round, Seen};
use super::{AGAIN_S, ContinuousController, DRIFT_SD_MIN, GAIN, UNSETTLED_MAX, after};
use crate::figures::significant;
use crate::ledger::Drift;
use crate::report::score_text;

/// The rounds that are looked at to say how large a change was.
const RECENT_MAX: usize = 8;

impl ContinuousController {
    pub(super) fn watched(&mut self, now: Timestamp, seen: Seen) -> Round {
        self.state.rounds += 1;
        let mut round = Round {
            number: self.state.rounds,
            at: now,
            of_promoted: self.state.promoted.is_some(),
            season: self.rules.season(now, self.rules.seasons),
            gain_season: self.rules.season(now, self.rules.gain_seasons),
            counts: false,
            seen,
        };
        let every_s = self.rules.round_every_s;
        self.state.next_round = after(now, every_s);
        if !matches!(round.seen, Seen::Unsettled(_)) {
            self.state.unsettled = 0;
        }
        if !matches!(round.seen, Seen::ExternallyModified(_)) {
            self.state.externally_modified = None;
        }
        match &round.seen {
            Seen::Measured(measured) => {
                if std::mem::take(&mut self.state.unmeasured) > 0 {
                    self.say(now, "measured", "the service can be measured again");
                }
                if measured.broken.is_empty() {
                    if self.state.breaks > 0 {
                        self.say(now, "slo", "the constraints hold again");
                    }
                    self.state.breaks = 0;
                    if !measured.broken_by_both.is_empty() {
                        let which = measured.broken_by_both.join("; ");
                        let text = format!("no rollback: the control breaks it as much: {which}");
                        self.say(now, "slo", text);
                    }
                } else if round.of_promoted {
                    let which = measured.broken.join("; ");
                    let why = format!("a constraint is broken: {which}");
                    self.broke(now, why, measured.excess);
                }
                // Repeats of a bad moment are no independent rounds.
                round.counts = self.state.breaks == 0;
            }
            Seen::Unsettled(reason) => {
                self.state.unmeasured += 1;
                self.state.unsettled += 1;
                // Soon: until a round ends well, it is open what is in force.
                self.state.next_round = after(now, every_s.min(AGAIN_S as f64));
                let row = format!("{} of {UNSETTLED_MAX} in a row", self.state.unsettled);
                self.say(now, "unmeasured", format!("not measured: {reason} ({row})"));
            }
            Seen::ExternallyModified(what) => {
                self.state.unmeasured += 1;
                if self.state.externally_modified.as_ref() != Some(what) {
                    let then =
                        "Restore it, or roll back. Until then no round, search or promotion begins";
                    let text = format!("changed outside Slackline: {what}. {then}");
                    self.say(now, "changed", text);
                    self.state.externally_modified = Some(what.clone());
                }
            }
            Seen::PutBack(what) => {
                self.say(
                    now,
                    "changed",
                    format!("the host has been started again: {what}. Slackline has put it back"),
                );
                if let Some(promoted) = &mut self.state.promoted {
                    promoted.host = None;
                }
                self.state.next_round = now;
            }
            Seen::OneSided(reason) if round.of_promoted => {
                self.state.unmeasured += 1;
                let what = "what is promoted cannot be measured, and the control can";
                self.broke(now, format!("{what}: {reason}"), DRIFT_SD_MIN);
            }
            Seen::Unmeasured(reason) | Seen::OneSided(reason) => {
                if self.state.unmeasured == 0 {
                    self.say(
                        now,
                        "unmeasured",
                        format!("not measured: {reason}. Nothing is concluded from it"),
                    );
                }
                self.state.unmeasured += 1;
            }
            Seen::Crashed(reason) => {
                if round.of_promoted {
                    self.doubt(DRIFT_SD_MIN);
                    self.roll_back(now, format!("the service does not survive it: {reason}"));
                }
            }
        }
        for series in self.count(&round) {
            self.drifted(now, &series);
        }
        round
    }

    /// A round that speaks against what is promoted. The others of the row follow at once.
    fn broke(&mut self, now: Timestamp, why: String, excess: f64) {
        self.state.breaks += 1;
        self.state.next_round = now;
        let (breaks, of) = (self.state.breaks, self.rules.slo_rounds);
        self.say(
            now,
            "slo",
            format!("{why} ({breaks} of {of} rounds in a row)"),
        );
        if breaks >= of {
            self.doubt(excess);
            self.roll_back(now, why);
        }
    }

    /// Gives a round to the tests; returns those that alarm.
    pub(super) fn count(&mut self, round: &Round) -> Vec<String> {
        let Seen::Measured(measured) = &round.seen else {
            return Vec::new();
        };
        if !round.counts {
            return Vec::new();
        }
        let mut alarms = Vec::new();
        for (name, test) in &mut self.tests {
            if round.number <= self.state.since.get(name).copied().unwrap_or(0) {
                continue;
            }
            let value = if name == GAIN {
                if !round.of_promoted {
                    continue;
                }
                self.gains.push(measured.gain);
                Some((round.gain_season, measured.gain))
            } else {
                let value = measured.workload.get(name);
                value.map(|value| (round.season, *value))
            };
            if value.is_some_and(|(season, value)| test.push(season, value)) {
                alarms.push(name.clone());
            }
        }
        alarms
    }

    /// A test has raised an alarm.
    fn drifted(&mut self, now: Timestamp, series: &str) {
        if self.state.pending_change.is_some() {
            self.restart(series);
            return;
        }
        let mut sd = 0.0;
        let mut text = format!("the workload's {series} has changed");
        if series == GAIN {
            let split = self.gains.len() - (self.gains.len() / 2).min(RECENT_MAX);
            let (before, recent) = self.gains.split_at(split);
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
            let change = mean(recent) - mean(before);
            sd = change.abs();
            text = format!(
                "the gain has changed by {}",
                score_text(change, &self.rules.objective)
            );
            let is_loss = mean_interval(recent, 0.95).is_ok_and(|interval| interval.low > 0.0);
            if is_loss {
                self.roll_back(now, "it has become worse than the control".into());
            }
        }
        let evidence = self.tests.get(series).map_or(0.0, DriftTest::evidence);
        self.say(
            now,
            "drift",
            format!(
                "{text} (evidence {}, alarm at {})",
                significant(evidence),
                significant(self.rules.run_length)
            ),
        );
        self.state.alarms += 1;
        self.state.last_alarm = Some(now);
        self.doubt(sd);
        // What is verified now was measured before.
        self.state.candidate = None;
        self.state.searching = None;
        self.state.search_reason = Some(text);
        self.restart(series);
    }

    /// What was measured so far may be off by so much.
    pub(super) fn doubt(&mut self, sd: f64) {
        self.state.drifts.push(Drift {
            before: self.state.evaluated,
            variance: sd.max(DRIFT_SD_MIN).powi(2),
        });
    }

    pub(super) fn restart(&mut self, series: &str) {
        if let Some(test) = self.tests.get_mut(series) {
            test.restart();
        }
        self.state
            .since
            .insert(series.to_owned(), self.state.rounds);
        if series == GAIN {
            self.gains.clear();
        }
    }
}
