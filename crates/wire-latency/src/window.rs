//! The slices that a source gave, joined over a window of time. Knows no clock: moments are
//! parameters.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::distribution::Distribution;
use crate::reading::{Counts, Look, NoData, Reading, Slice};

/// Above this share of ambiguous exchanges the rest says too little of all.
const AMBIGUOUS_SHARE_MAX: f64 = 0.5;
/// Above this share of dropped packets too many requests or answers are missing.
const DROPPED_SHARE_MAX: f64 = 0.1;
/// Slices that are kept at most: ten minutes at ten polls a second.
const SLICES_MAX: usize = 6000;

/// Which data make a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowRules {
    /// Length of the window.
    pub length: Duration,
    /// Requests that a figure has to stand on.
    pub minimum_requests: u64,
    /// Age of the newest data beyond which there is no figure.
    pub stale_after: Duration,
}

impl Default for WindowRules {
    fn default() -> Self {
        Self {
            length: Duration::from_secs(15),
            minimum_requests: 100,
            stale_after: Duration::from_secs(5),
        }
    }
}

/// What a source gave within the last while.
#[derive(Debug)]
pub struct Window {
    rules: WindowRules,
    slices: VecDeque<Dated>,
    /// Everything since the last restart.
    total: Joined,
    /// What the last poll failed with.
    failure: Option<NoData>,
    /// Slices that began earlier do not count.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Dated {
    begin: Instant,
    end: Instant,
    slice: Slice,
}

impl Dated {
    fn length(&self) -> Duration {
        self.end.saturating_duration_since(self.begin)
    }
}

/// Slices one after the other, as one.
#[derive(Debug, Default)]
struct Joined {
    length_s: f64,
    /// Time that was looked at: a slice counts for the share that it sampled.
    looked_at_s: f64,
    own_cpu_s: f64,
    own_window: Option<Duration>,
    counts: Counts,
    waiting: u64,
    oldest_waiting_s: f64,
    distribution: Distribution,
}

impl Joined {
    fn add(&mut self, length: Duration, later: &Slice) {
        let length_s = length.as_secs_f64();
        self.length_s += length_s;
        self.looked_at_s += length_s * later.sampled_share;
        self.own_cpu_s += later.own_cpu_s;
        self.own_window = later.own_window;
        self.counts.add(&later.counts);
        if later.own_window.is_some() {
            self.distribution = later.distribution.clone();
        } else {
            self.distribution.merge(&later.distribution);
        }
        (self.waiting, self.oldest_waiting_s) = (later.waiting, later.oldest_waiting_s);
    }

    fn reading(&self, age: Duration) -> Reading {
        let share = |part: f64, otherwise| match self.length_s > 0.0 {
            true => part / self.length_s,
            false => otherwise,
        };
        let own_window_s = self.own_window.map(|window| window.as_secs_f64());
        Reading {
            window_s: own_window_s.unwrap_or(self.length_s),
            age_s: age.as_secs_f64(),
            requests: self.distribution.requests(),
            sampled_share: share(self.looked_at_s, 1.0),
            counts: self.counts,
            waiting: self.waiting,
            oldest_waiting_s: self.oldest_waiting_s,
            own_cpu_cores: share(self.own_cpu_s, 0.0),
            distribution: self.distribution.clone(),
        }
    }
}

impl Window {
    /// An empty one.
    #[must_use]
    pub fn new(rules: WindowRules) -> Self {
        Self {
            rules,
            slices: VecDeque::new(),
            total: Joined::default(),
            failure: None,
            since: None,
        }
    }

    /// Forgets what began before `now`.
    pub fn restart(&mut self, now: Instant) {
        self.slices.clear();
        self.total = Joined::default();
        self.failure = None;
        self.since = Some(now);
    }

    /// Takes in what a poll gave that lasted from `begin` to `end`.
    pub fn push(&mut self, begin: Instant, end: Instant, polled: Result<Slice, NoData>) {
        if self.since.is_some_and(|since| begin < since) {
            return;
        }
        match polled {
            Ok(slice) => {
                self.failure = None;
                let dated = Dated { begin, end, slice };
                self.total.add(dated.length(), &dated.slice);
                self.slices.push_back(dated);
            }
            Err(NoData::Starting) => {}
            Err(failure) => {
                // The service is another one since: what the former took says nothing of it.
                if failure == NoData::Reset {
                    self.slices.clear();
                    self.total = Joined::default();
                }
                self.failure = Some(failure);
            }
        }
        while self
            .slices
            .front()
            .is_some_and(|oldest| end.duration_since(oldest.end) >= self.rules.length)
            || self.slices.len() > SLICES_MAX
        {
            self.slices.pop_front();
        }
    }

    /// The latencies of the window that ends `now`.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look(&self, now: Instant) -> Look {
        self.look_over(now, self.rules.length)
    }

    /// The latencies of a window of another length, at most the one of the rules.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look_over(&self, now: Instant, length: Duration) -> Look {
        let age = self.age(now)?;
        let within = |dated: &&Dated| now.saturating_duration_since(dated.end) < length;
        let mut joined = Joined::default();
        for dated in self.slices.iter().filter(within) {
            joined.add(dated.length(), &dated.slice);
        }
        self.judge(joined.reading(age))
    }

    /// Age of the newest data, where it is not too old.
    fn age(&self, now: Instant) -> Result<Duration, NoData> {
        let Some(newest) = self.slices.back() else {
            return Err(self.failure.clone().unwrap_or(NoData::Starting));
        };
        let age = now.saturating_duration_since(newest.end);
        if age > self.rules.stale_after {
            return Err(NoData::Stale {
                age_s: age.as_secs_f64(),
                limit_s: self.rules.stale_after.as_secs_f64(),
                why: self.failure.as_ref().map(ToString::to_string),
            });
        }
        if let Some(failure @ (NoData::NobodyListens { .. } | NoData::Reset)) = &self.failure {
            return Err(failure.clone());
        }
        Ok(age)
    }

    /// As [`Window::look`], of everything since the last restart, however long ago.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look_since_restart(&self, now: Instant) -> Look {
        let age = self.age(now)?;
        self.judge(self.total.reading(age))
    }

    fn judge(&self, reading: Reading) -> Look {
        let (counts, window_s) = (&reading.counts, reading.window_s);
        let share = |part: u64, rest: u64| part as f64 / (part + rest).max(1) as f64;
        let dropped = share(counts.dropped, counts.packets);
        if dropped > DROPPED_SHARE_MAX {
            return Err(NoData::Dropped { share: dropped });
        }
        let ambiguous = share(counts.ambiguous, reading.requests);
        if ambiguous > AMBIGUOUS_SHARE_MAX {
            return Err(NoData::Ambiguous { share: ambiguous });
        }
        if reading.requests == 0 && reading.waiting > 0 {
            return Err(NoData::Stalled {
                waiting: reading.waiting,
                oldest_s: reading.oldest_waiting_s,
            });
        }
        if reading.requests == 0 {
            return Err(NoData::Idle { window_s });
        }
        if reading.requests < self.rules.minimum_requests {
            return Err(NoData::Thin {
                requests: reading.requests,
                minimum: self.rules.minimum_requests,
                window_s,
            });
        }
        Ok(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::Fine;

    const RULES: WindowRules = WindowRules {
        length: Duration::from_secs(10),
        minimum_requests: 100,
        stale_after: Duration::from_secs(3),
    };

    fn slice(requests: u64, latency_us: u64) -> Slice {
        let mut fine = Fine::default();
        (0..requests).for_each(|_| fine.record_ns(latency_us * 1000));
        Slice {
            distribution: Distribution::Fine(fine),
            sampled_share: 1.0,
            ..Slice::default()
        }
    }

    /// A window with one slice a second, of so many requests each.
    fn filled(seconds: u64, requests: u64) -> (Window, Instant) {
        let (mut window, start) = (Window::new(RULES), Instant::now());
        for second in 0..seconds {
            let begin = start + Duration::from_secs(second);
            window.push(
                begin,
                begin + Duration::from_secs(1),
                Ok(slice(requests, second + 1)),
            );
        }
        (window, start)
    }

    #[test]
    fn a_window_has_what_ended_within_it() {
        let (window, start) = filled(30, 50);
        let reading = window.look(start + Duration::from_secs(30)).unwrap();
        assert_eq!((reading.requests, reading.window_s), (500, 10.0));
        assert!((reading.requests_per_s() - 50.0).abs() < 1e-9);
        let median = reading.percentile(50.0).unwrap();
        assert!((25.0..26.1).contains(&median.value_us), "{median:?}");
        assert!(
            median.low_us < 25.1 && median.high_us.unwrap() > 25.9,
            "{median:?}"
        );
        let whole = window.look_since_restart(start + Duration::from_secs(30));
        let whole = whole.unwrap();
        assert_eq!((whole.requests, whole.window_s), (1500, 30.0));
        let short = window
            .look_over(start + Duration::from_secs(30), Duration::from_secs(3))
            .unwrap();
        assert_eq!(short.requests, 150);
    }

    #[test]
    fn stale_thin_idle_and_stalled_are_no_data() {
        let now = |start: Instant, s: u64| start + Duration::from_secs(s);
        let (window, start) = filled(3, 50);
        assert!(window.look(now(start, 3)).is_ok());
        assert!(matches!(
            window.look(now(start, 7)),
            Err(NoData::Stale { .. })
        ));
        let (window, start) = filled(3, 5);
        let thin = window.look(now(start, 3)).unwrap_err();
        assert!(
            matches!(
                thin,
                NoData::Thin {
                    requests: 15,
                    minimum: 100,
                    ..
                }
            ),
            "{thin}"
        );
        let (mut window, start) = filled(3, 0);
        assert!(matches!(
            window.look(now(start, 3)),
            Err(NoData::Idle { .. })
        ));
        let waiting = Slice {
            waiting: 3,
            oldest_waiting_s: 2.0,
            ..slice(0, 1)
        };
        window.push(now(start, 3), now(start, 4), Ok(waiting));
        assert!(matches!(
            window.look(now(start, 4)),
            Err(NoData::Stalled { waiting: 3, .. })
        ));
        assert_eq!(
            Window::new(RULES).look(start).unwrap_err(),
            NoData::Starting
        );
    }

    #[test]
    fn what_cannot_be_told_apart_is_no_data() {
        let (mut window, start) = filled(1, 200);
        let mut slice = slice(200, 5);
        slice.counts.ambiguous = 500;
        window.push(
            start + Duration::from_secs(1),
            start + Duration::from_secs(2),
            Ok(slice),
        );
        let no_data = window.look(start + Duration::from_secs(2)).unwrap_err();
        assert!(
            matches!(no_data, NoData::Ambiguous { share } if share > 0.5),
            "{no_data}"
        );
    }

    #[test]
    fn a_failing_source_is_stale_with_its_reason_and_a_reset_starts_again() {
        let (mut window, start) = filled(3, 200);
        let at = |s: u64| start + Duration::from_secs(s);
        let failed = || NoData::Failed {
            why: "connection refused".into(),
        };
        window.push(at(3), at(4), Err(failed()));
        assert!(window.look(at(4)).is_ok());
        window.push(at(4), at(7), Err(failed()));
        let stale = window.look(at(7)).unwrap_err().to_string();
        assert!(stale.contains("connection refused"), "{stale}");
        window.push(at(7), at(8), Err(NoData::Reset));
        assert_eq!(window.look(at(8)).unwrap_err(), NoData::Reset);
        window.push(at(8), at(9), Ok(slice(200, 1)));
        assert_eq!(window.look(at(9)).unwrap().requests, 200);
    }

    #[test]
    fn a_source_with_a_window_of_its_own_counts_nothing_twice() {
        let (mut window, start) = (Window::new(RULES), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        for second in 0..5 {
            let slice = Slice {
                own_window: Some(Duration::from_secs(30)),
                ..slice(300, 1)
            };
            window.push(at(second), at(second + 1), Ok(slice));
        }
        let reading = window.look(at(5)).unwrap();
        assert_eq!((reading.requests, reading.window_s), (300, 30.0));
        assert!((reading.requests_per_s() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_restart_forgets_what_began_before() {
        let (mut window, start) = filled(3, 200);
        let at = |ms: u64| start + Duration::from_millis(ms);
        window.restart(at(3500));
        window.push(at(3000), at(4000), Ok(slice(200, 1)));
        assert_eq!(window.look(at(4000)).unwrap_err(), NoData::Starting);
        window.push(at(4000), at(5000), Ok(slice(150, 1)));
        assert_eq!(window.look(at(5000)).unwrap().requests, 150);
        assert_eq!(window.look_since_restart(at(5000)).unwrap().requests, 150);
    }

    #[test]
    fn few_requests_bound_a_tail_from_below_only() {
        let (window, start) = filled(4, 50);
        let reading = window.look(start + Duration::from_secs(4)).unwrap();
        assert_eq!(reading.percentile(99.0).unwrap().high_us, None);
        assert!(reading.percentile(50.0).unwrap().high_us.is_some());
    }
}
