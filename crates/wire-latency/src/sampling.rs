//! Which connections are looked at: a hash of the client's address and port, the same here and in
//! the kernel's filter.

/// Multipliers of the hash: 2^32 over the golden ratio, and one of MurmurHash3's.
pub(crate) const FIRST: u32 = 0x9e37_79b1;
pub(crate) const SECOND: u32 = 0x85eb_ca6b;
/// Bits of the hash that are compared.
const BITS: u32 = 16;
/// Below it, every connection is looked at.
const ALL: u32 = 1 << BITS;
/// The least share that is worth looking at.
const SHARE_MIN: f64 = 0.001;
/// How far a share is moved at once, so that one busy second does not make the source blind.
const STEP_DOWN: f64 = 0.2;
const STEP_UP: f64 = 1.5;
/// After a period without a packet a share may grow by this much: whatever comes next, one busy
/// period is the worst that follows.
const STEP_UP_IDLE: f64 = 1.0 / STEP_DOWN;
/// Within this part of the budget nothing is changed.
const COMFORT: f64 = 0.6;
/// Where so few connections are left to sample from, time is sampled instead.
const CONNECTIONS_MIN: f64 = 16.0;

/// Above it, all the time is looked at.
const ALL_THE_TIME: f64 = 0.98;

/// Which connections are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold(u32);

impl Threshold {
    /// Every connection.
    pub(crate) const EVERYTHING: Self = Self(ALL);

    /// About this share of the connections; the connections of a lower share are among those of a
    /// higher one.
    pub(crate) fn of_share(share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 1 and 65,536"
        )]
        let threshold = (share * f64::from(ALL)).round().clamp(1.0, f64::from(ALL)) as u32;
        Self(threshold)
    }

    /// What the kernel's filter compares with; `None` where everything passes.
    pub(crate) fn bound(self) -> Option<u32> {
        (self.0 < ALL).then_some(self.0)
    }

    pub(crate) fn share(self) -> f64 {
        f64::from(self.0) / f64::from(ALL)
    }

    /// Whether a connection of this client is looked at.
    pub(crate) fn admits(self, client: u128, port: u16) -> bool {
        // The last four bytes of the address, of IPv6 too.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the last four bytes are meant"
        )]
        let address = client as u32;
        let mixed = u32::from(port).wrapping_mul(FIRST).wrapping_add(address);
        (mixed ^ mixed >> 15).wrapping_mul(SECOND) >> (32 - BITS) < self.0
    }
}

/// How much is looked at: which share of the connections, and of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    pub(crate) connections: Threshold,
    /// Share of the time, at most 1.
    pub(crate) time: f64,
}

/// What was seen in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) packets: u64,
    /// The most connections at once.
    pub(crate) connections: u64,
}

impl Share {
    pub(crate) const EVERYTHING: Self = Self {
        connections: Threshold::EVERYTHING,
        time: 1.0,
    };

    pub(crate) fn of_all(self) -> f64 {
        self.connections.share() * self.time
    }

    /// The share that keeps the budget, after a while in which `used_cores` were used at this share
    /// for what was seen. CPU time of a period without a packet was not used for packets: a smaller
    /// share would not save it.
    pub(crate) fn next(self, used_cores: f64, budget_cores: f64, seen: Traffic) -> Self {
        let (ratio, step_up) = match seen.packets {
            0 => (STEP_UP_IDLE, STEP_UP_IDLE),
            _ => (budget_cores / used_cores.max(1e-6), STEP_UP),
        };
        let is_whole = self.of_all() >= 1.0;
        // Below the comfortable part of the budget it may grow; between that and the budget it
        // stays.
        let is_fine = ratio >= 1.0 && (is_whole || ratio * COMFORT < 1.0);
        if is_fine {
            return self;
        }
        let aim = self.of_all() * (ratio * (1.0 + COMFORT) / 2.0).clamp(STEP_DOWN, step_up);
        let aim = aim.clamp(SHARE_MIN, 1.0);
        let all_connections = seen.connections as f64 / self.connections.share();
        let of_connections = aim.max((CONNECTIONS_MIN / all_connections.max(1.0)).min(1.0));
        let connections = Threshold::of_share(of_connections);
        let time = aim / connections.share();
        // A threshold is a whole number: what it lacks is no reason to leave time out.
        let time = if time > ALL_THE_TIME { 1.0 } else { time };
        Self { connections, time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_connections_is_about_that_share_and_shares_are_nested() {
        let (tenth, half) = (Threshold::of_share(0.1), Threshold::of_share(0.5));
        for client in [0xffff_7f00_0001_u128, 0xfe80 << 112 | 0x1234] {
            // Linux gives connections to one address every other port.
            let ports = || (32_768..60_999_u16).step_by(2);
            let admitted = |of: Threshold| ports().filter(|port| of.admits(client, *port)).count();
            let all = ports().count() as f64;
            assert!((admitted(tenth) as f64 / all - 0.1).abs() < 0.01);
            assert!((admitted(half) as f64 / all - 0.5).abs() < 0.02);
            assert!(ports().all(|port| !tenth.admits(client, port) || half.admits(client, port)));
            assert!(ports().all(|port| Threshold::EVERYTHING.admits(client, port)));
        }
    }

    /// So many connections, each with a packet.
    fn of(connections: u64) -> Traffic {
        Traffic {
            packets: connections,
            connections,
        }
    }

    /// A service whose packets cost so much at the whole share.
    fn settled(whole_cores: f64, all_connections: f64) -> Share {
        let mut share = Share::EVERYTHING;
        for _ in 0..50 {
            let seen = all_connections * share.connections.share();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small"
            )]
            let seen = seen.round() as u64;
            share = share.next(whole_cores * share.of_all(), 0.01, of(seen));
        }
        share
    }

    #[test]
    fn the_budget_is_kept_and_used() {
        assert_eq!(settled(0.005, 100.0), Share::EVERYTHING);
        let share = settled(0.1, 1000.0);
        assert!((0.06..=0.1).contains(&share.of_all()), "{share:?}");
        assert!((share.time - 1.0).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn of_few_connections_time_is_sampled() {
        let share = settled(0.1, 4.0);
        assert_eq!(share.connections, Threshold::EVERYTHING);
        assert!((0.06..=0.1).contains(&share.time), "{share:?}");
        let share = settled(0.1, 64.0);
        assert!((share.connections.share() - 0.25).abs() < 0.01, "{share:?}");
        assert!((0.06..=0.1).contains(&share.of_all()), "{share:?}");
    }

    #[test]
    fn a_load_that_goes_lets_the_share_grow_again() {
        let mut share = settled(0.1, 1000.0);
        for _ in 0..20 {
            share = share.next(0.001 * share.of_all(), 0.01, of(100));
        }
        assert_eq!(share.of_all(), 1.0);
    }

    #[test]
    fn what_an_idle_service_costs_does_not_lower_the_share() {
        // The thread itself used twice the budget, and there was no packet.
        let mut share = Share::EVERYTHING;
        for _ in 0..10 {
            share = share.next(0.02, 0.01, of(0));
        }
        assert_eq!(share, Share::EVERYTHING);
        // After a heavy load, everything is looked at again within seconds.
        let mut share = settled(10.0, 1000.0);
        assert!(share.of_all() < 0.002, "{share:?}");
        for _ in 0..5 {
            share = share.next(0.02, 0.01, of(0));
        }
        assert_eq!(share.of_all(), 1.0);
    }
}
