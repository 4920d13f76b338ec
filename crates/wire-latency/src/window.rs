//! The slices that a source gave, joined over a window of time. Knows no clock: moments are
//! parameters.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::distribution::{Distribution, Fine};
use crate::reading::{Counts, Look, NoData, Reading, Slice};

/// Above this share of ambiguous exchanges the rest says too little of all.
const AMBIGUOUS_SHARE_MAX: f64 = 0.5;
/// Above this share of dropped packets too many requests or answers are missing.
const DROPPED_SHARE_MAX: f64 = 0.1;
/// Slices that are kept at most.
const SLICES_MAX: usize = 6000;
/// A slice that is shorter than this part of the window is joined with the one before it: a
/// histogram of a slice takes about 60 KiB, and a window can have thousands of polls.
const SLICES_OF_A_WINDOW: u32 = 256;

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
    /// The fine histograms of all slices, joined: a look does not join them again.
    sum: Fine,
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

    /// The fine histogram, where slices are to be added up.
    fn fine(&self) -> Option<&Fine> {
        match &self.slice.distribution {
            Distribution::Fine(fine) if self.slice.own_window.is_none() => Some(fine),
            _ => None,
        }
    }

    /// Joins the slice that follows at once, so that both are one of at most this length; the other
    /// one where that cannot be.
    fn join(&mut self, later: Self, at_most: Duration) -> Option<Self> {
        let is_short = later.end.saturating_duration_since(self.begin) <= at_most;
        let are_fine = self.fine().is_some() && later.fine().is_some();
        if !is_short || !are_fine || self.end != later.begin {
            return Some(later);
        }
        let (first_s, second_s) = (self.length().as_secs_f64(), later.length().as_secs_f64());
        self.end = later.end;
        let (mine, later) = (&mut self.slice, later.slice);
        // The mean of the shares by time. Equal shares stay exactly what they are.
        let part = second_s / (first_s + second_s).max(f64::MIN_POSITIVE);
        mine.sampled_share += part * (later.sampled_share - mine.sampled_share);
        mine.own_cpu_s += later.own_cpu_s;
        mine.counts.add(&later.counts);
        mine.distribution.merge(&later.distribution);
        (mine.waiting, mine.oldest_waiting_s) = (later.waiting, later.oldest_waiting_s);
        None
    }
}

/// Slices one after the other, as one.
#[derive(Clone, Debug, Default)]
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
        self.add_counts(length, later);
        if later.own_window.is_some() {
            self.distribution = later.distribution.clone();
        } else {
            self.distribution.merge(&later.distribution);
        }
    }

    /// All but the latencies.
    fn add_counts(&mut self, length: Duration, later: &Slice) {
        let length_s = length.as_secs_f64();
        self.length_s += length_s;
        self.looked_at_s += length_s * later.sampled_share;
        self.own_cpu_s += later.own_cpu_s;
        self.own_window = later.own_window;
        self.counts.add(&later.counts);
        (self.waiting, self.oldest_waiting_s) = (later.waiting, later.oldest_waiting_s);
    }

    fn into_reading(self, age: Duration) -> Reading {
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
            distribution: self.distribution,
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
            sum: Fine::default(),
            total: Joined::default(),
            failure: None,
            since: None,
        }
    }

    /// Forgets what began before `now`.
    pub fn restart(&mut self, now: Instant) {
        self.clear();
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
                self.append(dated);
            }
            Err(NoData::Starting) => {}
            Err(failure) => {
                // The service is another one since: what the former took says nothing of it.
                if failure == NoData::Reset {
                    self.clear();
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
            self.drop_oldest();
        }
    }

    fn clear(&mut self) {
        self.slices.clear();
        self.sum = Fine::default();
        self.total = Joined::default();
    }

    fn append(&mut self, dated: Dated) {
        if let Some(fine) = dated.fine() {
            self.sum.merge(fine);
        }
        let at_most = self.rules.length / SLICES_OF_A_WINDOW;
        let rest = match self.slices.back_mut() {
            Some(last) => last.join(dated, at_most),
            None => Some(dated),
        };
        self.slices.extend(rest);
    }

    fn drop_oldest(&mut self) {
        let Some(oldest) = self.slices.pop_front() else {
            return;
        };
        if let Some(fine) = oldest.fine()
            && !self.sum.remove(fine)
        {
            // A count that was too large for its counter is not what was added.
            self.sum = Fine::default();
            let rest = self.slices.iter().filter_map(Dated::fine);
            rest.for_each(|fine| self.sum.merge(fine));
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
        let is_before = |dated: &Dated| now.saturating_duration_since(dated.end) >= length;
        let first = self.slices.partition_point(is_before);
        let mut joined = Joined::default();
        let sum = self.sum_from(first);
        for dated in self.slices.range(first..) {
            match sum {
                Some(_) => joined.add_counts(dated.length(), &dated.slice),
                None => joined.add(dated.length(), &dated.slice),
            }
        }
        joined.distribution = sum.map_or(joined.distribution, Distribution::Fine);
        self.judge(joined.into_reading(age))
    }

    /// The sum of the slices from this one on. `None` where joining them costs less, or where
    /// slices are not added up.
    fn sum_from(&self, first: usize) -> Option<Fine> {
        if first > self.slices.len() / 2 || self.slices.iter().any(|dated| dated.fine().is_none()) {
            return None;
        }
        let mut sum = self.sum.clone();
        let mut before = self.slices.range(..first).filter_map(Dated::fine);
        before.all(|fine| sum.remove(fine)).then_some(sum)
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
        self.judge(self.total.clone().into_reading(age))
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
    use proptest::prelude::*;

    use super::*;

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
    fn short_slices_of_a_long_window_are_joined() {
        let mut window = Window::new(RULES);
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        for poll in 0..2000 {
            let shared = Slice {
                sampled_share: 0.5,
                own_cpu_s: 0.001,
                waiting: poll,
                ..slice(3, 1 + poll)
            };
            window.push(at(10 * poll), at(10 * (poll + 1)), Ok(shared));
        }
        assert!(window.slices.len() <= 350, "{}", window.slices.len());
        let reading = window.look(at(20_000)).unwrap();
        // The oldest slice that is left may have begun before the window.
        assert!((3000..=3012).contains(&reading.requests), "{reading:?}");
        assert_eq!(reading.sampled_share, 0.5);
        assert!((reading.own_cpu_cores - 0.1).abs() < 1e-9, "{reading:?}");
        assert_eq!(reading.waiting, 1999);
        // A gap between two polls stays one.
        window.push(at(21_000), at(21_010), Ok(slice(1, 1)));
        assert_eq!(window.slices.back().unwrap().begin, at(21_000));
    }

    proptest! {
        #[test]
        fn a_look_is_the_sum_of_the_slices_within(
            polls in prop::collection::vec((40_u64..900, prop::collection::vec(1_u64..100_000_000, 0..5)), 1..60),
            length_ms in 100_u64..10_000,
            later_ms in 0_u64..2000,
        ) {
            let mut window = Window::new(WindowRules { minimum_requests: 0, ..RULES });
            let mut end = Instant::now();
            // Polls that are too long to be joined.
            let mut all = Vec::new();
            for (took_ms, latencies) in polls {
                let begin = end;
                end += Duration::from_millis(took_ms);
                let mut fine = Fine::default();
                latencies.iter().for_each(|ns| fine.record_ns(*ns));
                all.push((end, latencies));
                let distribution = Distribution::Fine(fine);
                window.push(begin, end, Ok(Slice { distribution, sampled_share: 1.0, ..Slice::default() }));
            }
            let (now, length) = (end + Duration::from_millis(later_ms), Duration::from_millis(length_ms));
            let within = all.iter().filter(|(end, _)| now.duration_since(*end) < length);
            let wanted: Vec<u64> = within.flat_map(|(_, latencies)| latencies.clone()).collect();
            match window.look_over(now, length) {
                Ok(reading) => {
                    prop_assert_eq!(reading.requests, wanted.len() as u64);
                    let most = reading.distribution.quantile_us(1.0).unwrap();
                    let wanted = *wanted.iter().max().unwrap() as f64 / 1000.0;
                    prop_assert!((most / wanted - 1.0).abs() < 1e-3, "{} {}", most, wanted);
                }
                Err(NoData::Idle { .. }) => prop_assert!(wanted.is_empty()),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    #[test]
    fn few_requests_bound_a_tail_from_below_only() {
        let (window, start) = filled(4, 50);
        let reading = window.look(start + Duration::from_secs(4)).unwrap();
        assert_eq!(reading.percentile(99.0).unwrap().high_us, None);
        assert!(reading.percentile(50.0).unwrap().high_us.is_some());
    }
}
