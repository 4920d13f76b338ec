//! Days, hours and seasons in the time zone of a specification.

use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

use crate::rules::ContinuousRules;

impl ContinuousRules {
    fn local(&self, now: Timestamp) -> Zoned {
        now.to_zoned(self.time_zone.clone())
    }

    /// With which rounds one of now is compared: the part of the day, from 0; those of weekends
    /// after all others.
    pub fn season(&self, now: Timestamp, parts: usize) -> usize {
        let local = self.local(now);
        let time = local.time();
        let is_weekend = matches!(local.weekday(), Weekday::Saturday | Weekday::Sunday);
        let first = if self.weekends && is_weekend {
            parts
        } else {
            0
        };
        let minute = i32::from(time.hour()) * 60 + i32::from(time.minute());
        first + usize::try_from(minute).unwrap_or(0) * parts / 1440
    }

    /// When the day of `now` began.
    pub fn day_start(&self, now: Timestamp) -> Timestamp {
        day_start(now, &self.time_zone)
    }

    /// When the day after that of `now` begins.
    pub fn next_day(&self, now: Timestamp) -> Timestamp {
        let tomorrow = self.local(now).checked_add(Span::new().days(1));
        let start = tomorrow.and_then(|tomorrow| tomorrow.start_of_day());
        start.map_or(now, |start| start.timestamp())
    }

    /// From when on something may be changed, as far as the hours go: `now`, or the next opening.
    pub fn opens(&self, now: Timestamp) -> Timestamp {
        self.edge(now, true)
    }

    /// Until when something may be changed, if it may now; `None` where the hours do not matter.
    pub fn closes(&self, now: Timestamp) -> Option<Timestamp> {
        if self.hours.is_empty() {
            return None;
        }
        Some(self.edge(now, false))
    }

    /// The first minute from `now` on at which the hours are open, or closed; two days ahead at the
    /// most.
    fn edge(&self, now: Timestamp, open: bool) -> Timestamp {
        let is_as_asked = |at: Timestamp| {
            let time = self.local(at).time();
            open == (self.hours.is_empty() || self.hours.iter().any(|hours| hours.holds(time)))
        };
        if is_as_asked(now) {
            return now;
        }
        let minute = Span::new().minutes(1);
        let mut at = Timestamp::from_second(now.as_second().div_euclid(60) * 60).unwrap_or(now);
        for _ in 0..2 * 1440 {
            at = at.checked_add(minute).unwrap_or(at);
            if is_as_asked(at) {
                break;
            }
        }
        at
    }
}

/// When the day of `now` began in a time zone.
pub fn day_start(now: Timestamp, time_zone: &TimeZone) -> Timestamp {
    let start = now.to_zoned(time_zone.clone()).start_of_day();
    start.map_or(now, |start| start.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hours;
    use crate::{Goal, ObjectiveScale, ObjectiveSpec};

    fn rules(hours: &[&str], zone: &str) -> ContinuousRules {
        ContinuousRules {
            objective: ObjectiveSpec {
                metric: "latency_p99_us".into(),
                goal: Goal::Minimise,
                std_weight: 0.0,
                scale: ObjectiveScale::Ratio,
            },
            round_every_s: 900.0,
            metrics: Vec::new(),
            seasons: 8,
            gain_seasons: 1,
            weekends: true,
            run_length: 1000.0,
            slo_rounds: 3,
            changes_per_day: 1,
            hours: hours
                .iter()
                .map(|text| Hours::parse(text).unwrap())
                .collect(),
            time_zone: jiff::tz::TimeZone::get(zone).unwrap(),
            alert: None,
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn hours_are_of_the_time_zone() {
        let rules = rules(&["09:00-17:00"], "Europe/Berlin");
        // Winter time is UTC + 1, summer time UTC + 2.
        assert_eq!(
            rules.opens(at("2026-01-10T07:30:00Z")),
            at("2026-01-10T08:00:00Z")
        );
        assert_eq!(
            rules.opens(at("2026-07-10T07:30:00Z")),
            at("2026-07-10T07:30:00Z")
        );
        assert_eq!(
            rules.closes(at("2026-07-10T07:30:00Z")),
            Some(at("2026-07-10T15:00:00Z"))
        );
        assert_eq!(
            rules.opens(at("2026-07-10T15:00:00Z")),
            at("2026-07-11T07:00:00Z")
        );
        assert_eq!(
            rules.day_start(at("2026-07-10T22:30:00Z")),
            at("2026-07-10T22:00:00Z")
        );
        assert_eq!(
            rules.next_day(at("2026-07-10T21:30:00Z")),
            at("2026-07-10T22:00:00Z")
        );
    }

    #[test]
    fn hours_go_over_midnight() {
        let rules = rules(&["22:00-04:00"], "UTC");
        assert_eq!(
            rules.opens(at("2026-01-10T23:00:30Z")),
            at("2026-01-10T23:00:30Z")
        );
        assert_eq!(
            rules.closes(at("2026-01-10T23:00:30Z")),
            Some(at("2026-01-11T04:00:00Z"))
        );
        assert_eq!(
            rules.opens(at("2026-01-10T12:00:00Z")),
            at("2026-01-10T22:00:00Z")
        );
    }

    #[test]
    fn seasons_divide_the_day() {
        let rules = rules(&[], "UTC");
        assert_eq!(rules.season(at("2026-01-09T02:59:59Z"), 8), 0);
        assert_eq!(rules.season(at("2026-01-09T03:00:00Z"), 8), 1);
        assert_eq!(rules.season(at("2026-01-09T23:59:59Z"), 8), 7);
        assert_eq!(rules.season(at("2026-01-10T00:00:00Z"), 8), 8);
        assert_eq!(rules.closes(at("2026-01-10T03:00:00Z")), None);
    }
}
