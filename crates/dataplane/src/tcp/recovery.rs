//! Loss recovery: which bytes are lost, and what to send next (RFC 6675 with SACK, RFC 6582
//! without, RFC 6298 §5 after a timeout).
//!
//! A connection has a [`Recovery`] only from the first sign of a loss until everything that was
//! outstanding then is acknowledged.

use super::sequence::{at_most, before, distance, earlier, later};

/// Duplicate acknowledgements that show a loss (RFC 5681 §3.2).
pub(crate) const DUPLICATES: u32 = 3;
/// Ranges that are remembered. More are forgotten, which only costs retransmissions.
const RANGES_MAX: usize = 64;

/// Why the sender recovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Some acknowledgements were duplicates, but too few.
    Suspicion,
    /// Fast recovery.
    Fast,
    /// The retransmission timer went off.
    Timeout,
}

/// What was acknowledged selectively, what counts as lost, and what was sent again.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) phase: Phase,
    /// Ranges above the cumulative acknowledgement that the peer has, in order, none touching.
    ranges: Vec<(u32, u32)>,
    /// Everything before this counts as lost, unless the peer has it.
    lost_end: u32,
    /// Everything before this that was lost has been sent again.
    resent_end: u32,
    /// Recovery ends when this is acknowledged.
    pub(crate) point: u32,
    /// Acknowledgements without news, for peers without SACK.
    duplicates: u32,
    /// Whether the peer sends SACK.
    has_sack: bool,
}

impl Recovery {
    pub(crate) fn new(acknowledged: u32, has_sack: bool) -> Recovery {
        Recovery {
            phase: Phase::Suspicion,
            ranges: Vec::new(),
            lost_end: acknowledged,
            resent_end: acknowledged,
            point: acknowledged,
            duplicates: 0,
            has_sack,
        }
    }

    /// Takes the ranges of an acknowledgement. True if they say something new.
    pub(crate) fn sacked(&mut self, ranges: &[(u32, u32)], acknowledged: u32, sent: u32) -> bool {
        let mut is_news = false;
        for &(start, end) in ranges {
            // Ranges of what was never sent, or is acknowledged already, say nothing (RFC 2883).
            let valid = before(start, end) && at_most(end, sent) && before(acknowledged, start);
            if valid {
                is_news |= self.add(start, end);
            }
        }
        is_news
    }

    fn add(&mut self, start: u32, end: u32) -> bool {
        let first = self.ranges.partition_point(|range| before(range.1, start));
        let past = self.ranges.partition_point(|range| at_most(range.0, end));
        if let Some(&(known_start, known_end)) = self.ranges.get(first)
            && at_most(known_start, start)
            && at_most(end, known_end)
        {
            return false;
        }
        let merged = self
            .ranges
            .get(first..past)
            .unwrap_or(&[])
            .iter()
            .fold((start, end), |(start, end), range| {
                (earlier(start, range.0), later(end, range.1))
            });
        self.ranges.splice(first..past.max(first), [merged]);
        self.ranges.truncate(RANGES_MAX);
        true
    }

    /// Counts a duplicate acknowledgement.
    pub(crate) fn duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
    }

    /// Whether fast retransmit is due.
    pub(crate) fn is_loss_shown(&self, acknowledged: u32, mss: u32) -> bool {
        if self.has_sack {
            // RFC 6675 §5: three duplicates, or IsLost of the first byte.
            self.duplicates >= DUPLICATES
                || before(acknowledged, self.sack_lost_end(acknowledged, mss))
        } else {
            self.duplicates >= DUPLICATES
        }
    }

    /// IsLost of RFC 6675: the end of what has three ranges, or more than two segments, above.
    fn sack_lost_end(&self, acknowledged: u32, mss: u32) -> u32 {
        let mut count = 0;
        let mut bytes = 0;
        for &(start, end) in self.ranges.iter().rev() {
            count += 1;
            bytes += distance(start, end);
            if count >= DUPLICATES || bytes > 2 * mss {
                return start;
            }
        }
        acknowledged
    }

    /// Begins fast recovery.
    pub(crate) fn enter_fast(&mut self, acknowledged: u32, sent: u32, mss: u32) {
        self.phase = Phase::Fast;
        self.point = sent;
        self.resent_end = acknowledged;
        self.lost_end = acknowledged;
        self.update_lost(acknowledged, mss);
    }

    /// Everything outstanding counts as lost and is sent again.
    pub(crate) fn enter_timeout(&mut self, acknowledged: u32, sent: u32) {
        self.phase = Phase::Timeout;
        self.point = sent;
        self.resent_end = acknowledged;
        self.lost_end = sent;
        self.duplicates = 0;
        // RFC 2018 §8: after a timeout the peer may have thrown away what it had out of order.
        self.ranges.clear();
    }

    /// What counts as lost, after an acknowledgement.
    pub(crate) fn update_lost(&mut self, acknowledged: u32, mss: u32) {
        self.resent_end = later(self.resent_end, acknowledged);
        self.lost_end = later(self.lost_end, acknowledged);
        if self.phase == Phase::Fast {
            // The first segment counts as lost in any case (RFC 6675 §5 (4.1), RFC 6582 §3.2).
            let first = earlier(acknowledged.wrapping_add(mss), self.point);
            self.lost_end = later(self.lost_end, first);
            if self.has_sack {
                let end = self.sack_lost_end(acknowledged, mss);
                self.lost_end = later(self.lost_end, end);
            }
        }
    }

    /// Forgets what the cumulative acknowledgement covers.
    pub(crate) fn acknowledge(&mut self, acknowledged: u32) {
        self.ranges.retain(|range| before(acknowledged, range.1));
        if let Some(first) = self.ranges.first_mut() {
            first.0 = later(first.0, acknowledged);
        }
        if self.phase != Phase::Fast || self.has_sack {
            self.duplicates = 0;
        } else {
            // A partial acknowledgement: one of the duplicates was for what is acknowledged now.
            self.duplicates = self.duplicates.saturating_sub(1);
        }
    }

    /// Bytes in flight, as RFC 6675 estimates them (`SetPipe`).
    pub(crate) fn pipe_bytes(&self, acknowledged: u32, sent: u32, mss: u32) -> u32 {
        let sacked_in = |start: u32, end: u32| -> u32 {
            self.ranges
                .iter()
                .map(|range| distance(later(range.0, start), earlier(range.1, end)))
                .sum()
        };
        // Neither lost nor arrived.
        let unlost_start = later(self.lost_end, acknowledged);
        let mut bytes = distance(unlost_start, sent)
            - sacked_in(unlost_start, sent).min(distance(unlost_start, sent));
        // Sent again and not known to have arrived.
        let resent = earlier(self.resent_end, self.lost_end);
        let again = distance(acknowledged, resent);
        bytes += again - sacked_in(acknowledged, resent).min(again);
        if !self.has_sack {
            // Each duplicate says that one segment has left the network.
            bytes = bytes.saturating_sub(self.duplicates.saturating_mul(mss));
        }
        bytes
    }

    /// The next lost range to send again, `mss` bytes at most.
    pub(crate) fn next_lost(&self, acknowledged: u32, mss: u32) -> Option<(u32, u32)> {
        let mut start = later(self.resent_end, acknowledged);
        let mut end = self.lost_end;
        for range in &self.ranges {
            if at_most(range.1, start) {
                continue;
            }
            if at_most(range.0, start) {
                start = range.1;
            } else {
                end = earlier(end, range.0);
                break;
            }
        }
        before(start, end).then(|| (start, start.wrapping_add(distance(start, end).min(mss))))
    }

    /// Whether nothing speaks for a loss any more.
    pub(crate) fn is_idle(&self) -> bool {
        self.ranges.is_empty() && self.duplicates == 0
    }

    /// Notes that everything before `end` was sent again.
    pub(crate) fn resent(&mut self, end: u32) {
        self.resent_end = later(self.resent_end, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MSS: u32 = 1000;

    #[test]
    fn three_ranges_or_more_than_two_segments_show_a_loss() {
        let mut recovery = Recovery::new(0, true);
        recovery.sacked(&[(1000, 3000)], 0, 10_000);
        assert!(!recovery.is_loss_shown(0, MSS), "two segments");
        recovery.sacked(&[(1000, 3001)], 0, 10_000);
        assert!(recovery.is_loss_shown(0, MSS));
        let mut recovery = Recovery::new(0, true);
        recovery.sacked(&[(1000, 1100), (1200, 1300)], 0, 10_000);
        assert!(!recovery.is_loss_shown(0, MSS));
        recovery.sacked(&[(1400, 1500)], 0, 10_000);
        assert!(recovery.is_loss_shown(0, MSS));
    }

    #[test]
    fn holes_are_sent_again_in_order_and_once() {
        let mut recovery = Recovery::new(0, true);
        recovery.sacked(&[(1000, 2000), (3000, 6000)], 0, 10_000);
        recovery.enter_fast(0, 10_000, MSS);
        assert_eq!(recovery.next_lost(0, MSS), Some((0, 1000)));
        recovery.resent(1000);
        assert_eq!(recovery.next_lost(0, MSS), Some((2000, 3000)));
        recovery.resent(3000);
        assert_eq!(recovery.next_lost(0, MSS), None);
        // In flight: 6,000 to 10,000 and the two that were sent again.
        assert_eq!(recovery.pipe_bytes(0, 10_000, MSS), 6000);
    }

    #[test]
    fn after_a_timeout_everything_is_sent_again() {
        let mut recovery = Recovery::new(0, false);
        recovery.enter_timeout(0, 2500);
        assert_eq!(recovery.pipe_bytes(0, 2500, MSS), 0);
        let mut starts = Vec::new();
        while let Some((start, end)) = recovery.next_lost(0, MSS) {
            starts.push(start);
            recovery.resent(end);
        }
        assert_eq!(starts, [0, 1000, 2000]);
        assert_eq!(recovery.pipe_bytes(0, 2500, MSS), 2500);
    }

    #[test]
    fn without_sack_a_partial_acknowledgement_shows_the_next_hole() {
        let mut recovery = Recovery::new(0, false);
        for _ in 0..DUPLICATES {
            recovery.duplicate();
        }
        assert!(recovery.is_loss_shown(0, MSS));
        recovery.enter_fast(0, 5000, MSS);
        assert_eq!(recovery.next_lost(0, MSS), Some((0, 1000)));
        recovery.resent(1000);
        assert_eq!(recovery.next_lost(0, MSS), None);
        recovery.acknowledge(2000);
        recovery.update_lost(2000, MSS);
        assert_eq!(recovery.next_lost(2000, MSS), Some((2000, 3000)));
    }

    proptest! {
        #[test]
        fn ranges_stay_in_order(
            ranges in proptest::collection::vec((1u32..50_000, 1u32..3000), 1..50),
            first in any::<u32>(),
        ) {
            let mut recovery = Recovery::new(first, true);
            let sent = first.wrapping_add(60_000);
            for (start, length) in ranges {
                let start = first.wrapping_add(start);
                recovery.sacked(&[(start, start.wrapping_add(length))], first, sent);
                for pair in recovery.ranges.windows(2) {
                    prop_assert!(before(pair[0].1, pair[1].0));
                }
                prop_assert!(recovery.pipe_bytes(first, sent, MSS) <= 60_000);
                // Nothing that the peer has is sent again.
                recovery.enter_fast(first, sent, MSS);
                while let Some((start, end)) = recovery.next_lost(first, MSS) {
                    prop_assert!(before(start, end));
                    for range in &recovery.ranges {
                        prop_assert!(at_most(end, range.0) || at_most(range.1, start));
                    }
                    recovery.resent(end);
                }
            }
        }
    }
}
