//! What an attacker must not guess: initial sequence numbers (RFC 6528), SYN cookies (RFC 4987
//! §3.6), and the order of the connection table.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use super::sequence::low32;
use super::wire::Ip;

/// Seconds for which a cookie's counter stands. A cookie lives for one to two of these.
const COOKIE_PERIOD_S: u64 = 64;
/// Segment sizes that a cookie can name, in bytes. The peer's is rounded down.
const COOKIE_MSS: [u16; 8] = [216, 536, 1024, 1220, 1360, 1440, 1460, 8960];
/// Marks "no window scaling" in a cookie's timestamp.
const NO_SCALE: u32 = 0xf;

/// Both ends of a connection, as the remote end's segments name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Address of this stack.
    pub local: Ip,
    /// Port of this stack.
    pub local_port: u16,
    /// The peer's address.
    pub remote: Ip,
    /// The peer's port.
    pub remote_port: u16,
}

/// Two secret keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secrets {
    key: (u64, u64),
}

impl Secrets {
    pub(crate) fn new(key: (u64, u64)) -> Secrets {
        Secrets { key }
    }

    fn hash(&self, ends: &Ends, purpose: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.key.0, self.key.1 ^ purpose);
        hasher.write(ends.local.bytes());
        hasher.write(ends.remote.bytes());
        hasher.write_u32(u32::from(ends.local_port) << 16 | u32::from(ends.remote_port));
        hasher.finish()
    }

    /// An initial sequence number: a hash of the ends and a clock of 4 µs (RFC 6528 §3).
    pub(crate) fn initial_sequence(&self, ends: &Ends, now_us: u64) -> u32 {
        low32(self.hash(ends, 1)).wrapping_add(low32(now_us / 4))
    }

    /// A hash for the connection table. It is quick and has a secret, so that nobody can choose
    /// ports that collide.
    pub(crate) fn table_hash(&self, ends: &Ends) -> u64 {
        let half = |bytes: &[u8; 16]| {
            let value = u128::from_ne_bytes(*bytes);
            low64(value) ^ low64(value >> 64).rotate_left(23)
        };
        let ports = u64::from(ends.local_port) << 16 | u64::from(ends.remote_port);
        let first = fold(half(ends.remote.bytes()) ^ self.key.0, ports ^ self.key.1);
        fold(
            first ^ half(ends.local.bytes()),
            self.key.0.rotate_left(32) | 1,
        )
    }

    /// The sequence number of a SYN-ACK for which nothing is remembered.
    pub(crate) fn cookie(&self, ends: &Ends, peer_sequence: u32, mss: u16, now_us: u64) -> u32 {
        let counter = now_us / 1_000_000 / COOKIE_PERIOD_S;
        let fitting = COOKIE_MSS.iter().rposition(|known| *known <= mss);
        let index = u32::try_from(fitting.unwrap_or(0)).unwrap_or(0);
        self.cookie_of(ends, peer_sequence, counter, index)
    }

    /// 5 bits of counter, 3 bits of segment size, 24 bits of hash.
    fn cookie_of(&self, ends: &Ends, peer_sequence: u32, counter: u64, index: u32) -> u32 {
        let counter_bits = low32(counter & 0x1f) << 27;
        let tag = u64::from(peer_sequence) << 32 | (counter << 3 & 0xffff_fff8) | u64::from(index);
        let mut hasher = SipHasher13::new_with_keys(self.key.0 ^ tag, self.key.1 ^ 2);
        hasher.write(ends.local.bytes());
        hasher.write(ends.remote.bytes());
        hasher.write_u32(u32::from(ends.local_port) << 16 | u32::from(ends.remote_port));
        counter_bits | index << 24 | (low32(hasher.finish()) & 0x00ff_ffff)
    }

    /// What the cookie says, if this stack made it for these ends lately.
    pub(crate) fn check_cookie(
        &self,
        ends: &Ends,
        peer_sequence: u32,
        cookie: u32,
        now_us: u64,
    ) -> Option<u16> {
        let now = now_us / 1_000_000 / COOKIE_PERIOD_S;
        let index = cookie >> 24 & 7;
        let is_ours = (0..=1).any(|age| {
            now.checked_sub(age).is_some_and(|counter| {
                self.cookie_of(ends, peer_sequence, counter, index) == cookie
            })
        });
        is_ours.then(|| COOKIE_MSS[super::buffer::index(index)])
    }
}

/// A timestamp that carries the peer's window scale and SACK permission in its low six bits. It
/// never lies in the future, so that later timestamps do not go back.
pub(crate) fn cookie_timestamp(now: u32, scale: Option<u8>, is_sack_permitted: bool) -> u32 {
    let bits = scale.map_or(NO_SCALE, u32::from) | u32::from(is_sack_permitted) << 4;
    let value = now & !0x3f | bits;
    if super::sequence::before(now, value) {
        value.wrapping_sub(0x40)
    } else {
        value
    }
}

/// The options in a timestamp that the peer echoed.
pub(crate) fn options_of_timestamp(echo: u32) -> (Option<u8>, bool) {
    let scale = echo & 0xf;
    let scale = u8::try_from(scale).ok().filter(|scale| *scale <= 14);
    (scale, echo & 0x10 != 0)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b | 1);
    low64(product) ^ low64(product >> 64)
}

const fn low64(value: u128) -> u64 {
    (value & 0xffff_ffff_ffff_ffff) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(port: u16) -> Ends {
        Ends {
            local: Ip::v4([10, 7, 0, 2]),
            local_port: 11211,
            remote: Ip::v4([10, 7, 0, 1]),
            remote_port: port,
        }
    }

    #[test]
    fn a_cookie_is_known_again_for_its_ends_alone_and_not_for_long() {
        let secrets = Secrets::new((1, 2));
        let start = 640_000_000_000;
        let cookie = secrets.cookie(&ends(4000), 77, 1460, start);
        assert_eq!(
            secrets.check_cookie(&ends(4000), 77, cookie, start),
            Some(1460)
        );
        assert_eq!(
            secrets.check_cookie(&ends(4000), 77, cookie, start + 64_000_000),
            Some(1460)
        );
        for (port, sequence, later_us) in [(4001, 77, 0), (4000, 78, 0), (4000, 77, 128_000_000)] {
            assert_eq!(
                secrets.check_cookie(&ends(port), sequence, cookie, start + later_us),
                None
            );
        }
        let guesses = (0..100_000u32).filter(|guess| {
            secrets
                .check_cookie(&ends(4000), 77, cookie ^ (guess + 1), start)
                .is_some()
        });
        assert_eq!(guesses.count(), 0);
    }

    #[test]
    fn an_initial_number_is_a_connections_own_and_moves_on() {
        let secrets = Secrets::new((1, 2));
        let start = |port, now_us| secrets.initial_sequence(&ends(port), now_us);
        // A step every 4 µs: 250,000 a second.
        assert_eq!(start(1, 8_000_000).wrapping_sub(start(1, 0)), 2_000_000);
        // The number of one connection says nothing about that of the next port.
        let steps: std::collections::HashSet<u32> = (0..1000)
            .map(|port| start(port + 1, 0).wrapping_sub(start(port, 0)))
            .collect();
        assert_eq!(steps.len(), 1000);
        let other = Secrets::new((1, 3));
        assert_ne!(other.initial_sequence(&ends(1), 0), start(1, 0));
    }

    #[test]
    fn a_cookie_rounds_the_segment_size_down() {
        let secrets = Secrets::new((1, 2));
        for (mss, kept) in [(100, 216), (536, 536), (1459, 1440), (9000, 8960)] {
            let cookie = secrets.cookie(&ends(1), 0, mss, 0);
            assert_eq!(secrets.check_cookie(&ends(1), 0, cookie, 0), Some(kept));
        }
    }

    #[test]
    fn a_timestamp_carries_the_options_and_is_not_of_the_future() {
        for now in [0u32, 63, 64, 12_345, u32::MAX] {
            for scale in [None, Some(0), Some(7), Some(14)] {
                for sack in [false, true] {
                    let value = cookie_timestamp(now, scale, sack);
                    assert!(super::super::sequence::at_most(value, now));
                    assert_eq!(options_of_timestamp(value), (scale, sack));
                }
            }
        }
    }

    #[test]
    fn the_table_hash_spreads() {
        let secrets = Secrets::new((0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321));
        let mut buckets = [0u32; 256];
        for port in 0..=u16::MAX {
            let hash = secrets.table_hash(&ends(port));
            buckets[usize::try_from(hash & 0xff).unwrap()] += 1;
        }
        // 256 a bucket on average, with a standard deviation of 16.
        assert!(
            buckets.iter().all(|count| (150..370).contains(count)),
            "{buckets:?}"
        );
    }
}
