//! The retransmission timeout (RFC 6298).

/// Timeout before the first measurement (RFC 6298 §2.1).
pub(crate) const INITIAL_MS: u32 = 1000;
/// The same after a lost SYN (§5.7).
const INITIAL_AFTER_LOSS_MS: u32 = 3000;
/// Timeout at most. RFC 6298 §2.5 allows a bound of 60 s or more.
pub(crate) const MAX_MS: u32 = 60_000;
/// Clock granularity, G in the RFC.
const GRANULARITY_US: u32 = 1000;

/// Smoothed round-trip time, its variation, and the timeout that follows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimator {
    smoothed_us: u32,
    variation_us: u32,
    /// Doublings of the timeout since the last measurement.
    backoff: u8,
    is_measured: bool,
    was_syn_lost: bool,
}

impl Estimator {
    /// Takes a measurement. Retransmitted segments are not measured (Karn's algorithm, §3).
    pub(crate) fn measure(&mut self, rtt_us: u32) {
        if self.is_measured {
            let difference = self.smoothed_us.abs_diff(rtt_us);
            self.variation_us = self.variation_us - self.variation_us / 4 + difference / 4;
            self.smoothed_us = self.smoothed_us - self.smoothed_us / 8 + rtt_us / 8;
        } else {
            self.smoothed_us = rtt_us;
            self.variation_us = rtt_us / 2;
            self.is_measured = true;
        }
        self.backoff = 0;
    }

    /// Doubles the timeout (§5.5).
    pub(crate) fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1).min(16);
    }

    /// Ends the doubling: new data was acknowledged.
    pub(crate) fn progress(&mut self) {
        self.backoff = 0;
    }

    /// The SYN was sent more than once: until there is a measurement, the timeout is longer (§5.7).
    pub(crate) fn syn_was_lost(&mut self) {
        self.was_syn_lost = true;
    }

    /// The timeout, `floor_ms` at least.
    pub(crate) fn timeout_ms(&self, floor_ms: u32) -> u32 {
        let base_ms = if self.is_measured {
            let spread_us = (self.variation_us.saturating_mul(4)).max(GRANULARITY_US);
            (self.smoothed_us.saturating_add(spread_us).div_ceil(1000)).max(floor_ms)
        } else if self.was_syn_lost {
            INITIAL_AFTER_LOSS_MS
        } else {
            INITIAL_MS
        };
        let doubled = u64::from(base_ms) << self.backoff;
        u32::try_from(doubled.min(u64::from(MAX_MS))).unwrap_or(MAX_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_2() {
        let mut rtt = Estimator::default();
        assert_eq!(rtt.timeout_ms(200), INITIAL_MS);
        // (2.2): SRTT = R, RTTVAR = R/2, RTO = R + 4 * R/2.
        rtt.measure(400_000);
        assert_eq!(rtt.timeout_ms(200), 1200);
        // (2.3): RTTVAR = 3/4 * 200 + 1/4 * 200, SRTT = 7/8 * 400 + 1/8 * 600.
        rtt.measure(600_000);
        assert_eq!(rtt.timeout_ms(200), 425 + 4 * 200);
        // (2.4): the floor.
        let mut rtt = Estimator::default();
        rtt.measure(50);
        assert_eq!(rtt.timeout_ms(200), 200);
        assert_eq!(rtt.timeout_ms(1), 2);
    }

    #[test]
    fn section_5_7_waits_longer_after_a_lost_syn() {
        let mut rtt = Estimator::default();
        rtt.syn_was_lost();
        assert_eq!(rtt.timeout_ms(200), 3000);
        rtt.measure(400_000);
        assert_eq!(rtt.timeout_ms(200), 1200);
    }

    #[test]
    fn section_5_5_doubles_up_to_the_bound() {
        let mut rtt = Estimator::default();
        rtt.measure(50);
        rtt.back_off();
        assert_eq!(rtt.timeout_ms(200), 400);
        rtt.back_off();
        assert_eq!(rtt.timeout_ms(200), 800);
        for _ in 0..300 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout_ms(200), MAX_MS);
        rtt.progress();
        assert_eq!(rtt.timeout_ms(200), 200);
    }
}
