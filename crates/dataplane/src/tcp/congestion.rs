//! Congestion control: Reno (RFC 5681) with appropriate byte counting (RFC 3465).

/// Initial window in segments (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// Largest window in bytes. It bounds what one connection may have in flight.
const WINDOW_MAX_BYTES: u32 = 16 << 20;

/// Window and threshold of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Congestion {
    window_bytes: u32,
    threshold_bytes: u32,
    /// Bytes acknowledged since the window last grew, in congestion avoidance.
    counted_bytes: u32,
}

impl Default for Congestion {
    fn default() -> Congestion {
        Congestion {
            window_bytes: 0,
            threshold_bytes: u32::MAX,
            counted_bytes: 0,
        }
    }
}

/// RFC 6928: ten segments, but 14,600 bytes at most unless two segments are more.
fn initial_window(mss: u32) -> u32 {
    (INITIAL_SEGMENTS * mss).min((2 * mss).max(14_600))
}

impl Congestion {
    /// The state after the handshake. A lost SYN begins with one segment (RFC 5681 §3.1).
    pub(crate) fn start(&mut self, mss: u32, was_syn_lost: bool) {
        self.window_bytes = if was_syn_lost {
            mss
        } else {
            initial_window(mss)
        };
    }

    /// The congestion window in bytes.
    pub(crate) const fn window_bytes(&self) -> u32 {
        self.window_bytes
    }

    /// New data was acknowledged outside of recovery. `is_limited` says whether the window, rather
    /// than the application, held the sender back: else the window does not grow (RFC 7661).
    pub(crate) fn acknowledged(&mut self, bytes: u32, mss: u32, is_limited: bool) {
        if !is_limited {
            return;
        }
        if self.window_bytes < self.threshold_bytes {
            // RFC 3465 §2.2 with L = 2.
            self.window_bytes += bytes.min(2 * mss);
        } else {
            self.counted_bytes += bytes;
            if self.counted_bytes >= self.window_bytes {
                self.counted_bytes -= self.window_bytes;
                self.window_bytes += mss;
            }
        }
        self.window_bytes = self.window_bytes.min(WINDOW_MAX_BYTES);
    }

    /// Fast retransmit: half of what is in flight (RFC 5681 §3.2, RFC 6675 §5).
    pub(crate) fn lost(&mut self, flight_bytes: u32, mss: u32) {
        self.threshold_bytes = (flight_bytes / 2).max(2 * mss);
        self.window_bytes = self.threshold_bytes;
        self.counted_bytes = 0;
    }

    /// A retransmission timeout: one segment (RFC 5681 §3.1). The threshold is lowered by the first
    /// timeout alone.
    pub(crate) fn timed_out(&mut self, flight_bytes: u32, mss: u32, is_first: bool) {
        if is_first {
            self.threshold_bytes = (flight_bytes / 2).max(2 * mss);
        }
        self.window_bytes = mss;
        self.counted_bytes = 0;
    }

    /// Nothing was sent for a timeout: the window starts anew (RFC 5681 §4.1).
    pub(crate) fn idle(&mut self, mss: u32) {
        self.window_bytes = self.window_bytes.min(initial_window(mss));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1460;

    #[test]
    fn the_initial_window_is_rfc_6928s() {
        assert_eq!(initial_window(1460), 14_600);
        assert_eq!(initial_window(536), 5360);
        assert_eq!(initial_window(8960), 17_920);
    }

    #[test]
    fn slow_start_doubles_and_avoidance_adds_a_segment_a_window() {
        let mut control = Congestion::default();
        control.start(MSS, false);
        for _ in 0..10 {
            control.acknowledged(MSS, MSS, true);
        }
        assert_eq!(control.window_bytes(), 20 * MSS);
        control.lost(20 * MSS, MSS);
        assert_eq!(control.window_bytes(), 10 * MSS);
        for _ in 0..10 {
            control.acknowledged(MSS, MSS, true);
        }
        assert_eq!(control.window_bytes(), 11 * MSS);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_half_the_flight() {
        let mut control = Congestion::default();
        control.start(MSS, false);
        control.timed_out(10 * MSS, MSS, true);
        assert_eq!(control.window_bytes(), MSS);
        control.timed_out(MSS, MSS, false);
        assert_eq!(control.threshold_bytes, 5 * MSS);
    }

    #[test]
    fn an_application_that_sends_little_does_not_earn_a_large_window() {
        let mut control = Congestion::default();
        control.start(MSS, false);
        for _ in 0..1000 {
            control.acknowledged(64, MSS, false);
        }
        assert_eq!(control.window_bytes(), 14_600);
    }
}
