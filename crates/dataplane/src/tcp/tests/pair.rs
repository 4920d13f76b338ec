//! Two stacks on a simulated network that loses, reorders, duplicates and corrupts frames.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{Frames, LOCAL, LOCAL_MAC, REMOTE, REMOTE_MAC, config};
use crate::api::FlowId;
use crate::tcp::{Config, Data, Event, Stack};

const PORT: u16 = 11_211;

/// What the network does to frames, in parts of 10,000.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trouble {
    pub(super) loss: u32,
    pub(super) reordering: u32,
    pub(super) duplication: u32,
    pub(super) corruption: u32,
}

/// A small generator of pseudo-random numbers (xorshift64*, Vigna 2016).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let value = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        u32::try_from(value % u64::from(bound)).unwrap()
    }
}

struct Host {
    stack: Stack,
    frames: Frames,
    flow: Option<FlowId>,
    /// Bytes of the stream that were queued, and that came.
    sent: usize,
    received: usize,
    is_finished: bool,
    is_dead: bool,
}

fn byte(offset: usize, side: usize) -> u8 {
    u8::try_from((offset * 31 + offset / 251 + side * 97) % 256).unwrap()
}

impl Host {
    fn new(config: Config, now_us: u64) -> Host {
        Host {
            stack: Stack::new(config, now_us),
            frames: Frames::default(),
            flow: None,
            sent: 0,
            received: 0,
            is_finished: false,
            is_dead: false,
        }
    }

    fn work(&mut self, side: usize, total: usize, frame: &[u8]) {
        let mut events = Vec::new();
        self.stack.take_events(&mut events);
        for event in events {
            match event {
                Event::Knock { flow, .. } => self.flow = Some(flow),
                Event::Received { flow, data } => {
                    let bytes = match &data {
                        Data::Frame { start, length, .. } => &frame[*start..start + length],
                        Data::Owned(bytes) => bytes,
                    };
                    for found in bytes {
                        assert_eq!(*found, byte(self.received, 1 - side));
                        self.received += 1;
                    }
                    self.stack.receive_done(flow, bytes.len());
                }
                Event::Finished { .. } => self.is_finished = true,
                Event::Dead { reason, .. } => {
                    assert_eq!(reason, crate::api::DeadReason::Closed);
                    self.is_dead = true;
                }
                Event::Connected { .. } | Event::Sent { .. } => {}
            }
        }
        let Some(flow) = self.flow else {
            self.stack.flush(&mut self.frames);
            return;
        };
        while self.sent < total {
            let length = (total - self.sent).min(5000);
            let bytes: Vec<u8> = (self.sent..self.sent + length)
                .map(|at| byte(at, side))
                .collect();
            let taken = self.stack.send(flow, &bytes);
            self.sent += taken;
            if taken < length {
                break;
            }
        }
        if self.sent == total && self.received == total {
            self.stack.close(flow);
        }
        self.stack.flush(&mut self.frames);
    }
}

/// Sends `total` bytes each way, and says how long that took in simulated milliseconds.
pub(super) fn transfer(
    seed: u64,
    total: usize,
    trouble: Trouble,
    change: &dyn Fn(&mut Config),
) -> u64 {
    let mut random = Random(seed | 1);
    let mut now_us = 5_000_000;
    let host = |mac, own, now_us| {
        let mut config = config(mac, &[(own, 24)]);
        change(&mut config);
        Host::new(config, now_us)
    };
    let mut hosts = [
        host(LOCAL_MAC, LOCAL, now_us),
        host(REMOTE_MAC, REMOTE, now_us),
    ];
    hosts[0].stack.listen(None, PORT);
    hosts[1].flow = Some(hosts[1].stack.connect((REMOTE, 0), (LOCAL, PORT)).unwrap());
    // Frames on their way, by time of arrival.
    let mut network: BTreeMap<(u64, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let mut number = 0;
    let start_us = now_us;
    while !(hosts[0].is_dead && hosts[1].is_dead) {
        for (side, host) in hosts.iter_mut().enumerate() {
            host.work(side, total, &[]);
            while let Some(frame) = host.frames.sent.pop_front() {
                let mut copies = 1;
                if random.below(10_000) < trouble.loss {
                    copies = 0;
                } else if random.below(10_000) < trouble.duplication {
                    copies = 2;
                }
                for _ in 0..copies {
                    let mut frame = frame.clone();
                    if random.below(10_000) < trouble.corruption {
                        let length = u32::try_from(frame.len()).unwrap();
                        let at = usize::try_from(random.below(length)).unwrap();
                        frame[at] ^= 1 << random.below(8);
                    }
                    let delay_us = if random.below(10_000) < trouble.reordering {
                        100 + u64::from(random.below(3000))
                    } else {
                        100
                    };
                    number += 1;
                    network.insert((now_us + delay_us, number), (1 - side, frame));
                }
            }
        }
        // On to the next arrival or the next millisecond.
        let next_ms = (now_us / 1000 + 1) * 1000;
        let arrival = network.first_key_value().map(|((at, _), _)| *at);
        now_us = arrival.map_or(next_ms, |at| at.min(next_ms)).max(now_us);
        while let Some(entry) = network.first_entry()
            && entry.key().0 <= now_us
        {
            let (side, frame) = entry.remove();
            let host = &mut hosts[side];
            host.stack.expire(now_us);
            host.stack.receive(0, &frame, &mut host.frames);
            host.work(side, total, &frame);
        }
        for host in &mut hosts {
            host.stack.expire(now_us);
        }
        assert!(now_us - start_us < 600_000_000_000, "stuck");
    }
    for (side, host) in hosts.iter_mut().enumerate() {
        assert_eq!(host.received, total, "side {side}");
        assert!(host.is_finished);
        host.stack.expire(now_us + 62_000_000);
        host.stack.expire(now_us + 130_000_000);
        assert_eq!(host.stack.connections(), 0);
        assert_eq!(host.stack.context.pool.used_bytes(), 0, "memory came back");
    }
    (now_us - start_us) / 1000
}

/// Bad luck alone ends no connection, not even while it opens.
fn patient(config: &mut Config) {
    config.retries_max = 30;
    config.syn_retries_max = 30;
}

#[test]
fn a_good_network_needs_no_retransmission() {
    let milliseconds = transfer(1, 1_000_000, Trouble::default(), &|_| {});
    assert!(milliseconds < 1500, "{milliseconds} ms");
}

#[test]
fn without_options_it_works_too() {
    let trouble = Trouble {
        loss: 200,
        ..Trouble::default()
    };
    transfer(2, 300_000, trouble, &|config| {
        config.timestamps = false;
        config.sack = false;
        config.window_scaling = false;
    });
}

/// SACK is worth its code: the same losses cost less time with it.
#[test]
fn sack_recovers_sooner() {
    let trouble = Trouble {
        loss: 300,
        ..Trouble::default()
    };
    let time = |sack: bool| -> u64 {
        (1..=8)
            .map(|seed| transfer(seed, 300_000, trouble, &|config| config.sack = sack))
            .sum()
    };
    let (with, without) = (time(true), time(false));
    assert!(with < without, "{with} ms with SACK, {without} ms without");
}

/// A FIN that first went out with data that was sent again was not counted as sent, and the peer's
/// acknowledgement of the FIN was refused for ever.
#[test]
fn a_fin_that_travels_with_a_retransmission_is_acknowledged() {
    let trouble = Trouble {
        loss: 610,
        reordering: 2215,
        duplication: 81,
        corruption: 297,
    };
    transfer(14_327_253_870_519_750_900, 60_000, trouble, &patient);
}

/// Many short connections, for what happens around their ends: close, FIN and TIME-WAIT.
#[test]
#[ignore = "takes minutes: cargo xtask stress dataplane"]
fn many_seeds() {
    let seeds = std::env::var("SLACKLINE_SEEDS").map_or(100_000, |text| text.parse().unwrap());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in 1..=seeds {
        let trouble = Trouble {
            loss: random.below(1500),
            reordering: random.below(3000),
            duplication: random.below(1000),
            corruption: random.below(1000),
        };
        let total = usize::try_from(1 + random.below(20_000)).unwrap();
        println!("seed {seed}, {total} bytes, {trouble:?}");
        transfer(seed, total, trouble, &patient);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_byte_arrives_once_and_in_order(
        seed in 1u64..u64::MAX,
        loss in 0u32..1500,
        reordering in 0u32..3000,
        duplication in 0u32..1000,
        corruption in 0u32..1000,
    ) {
        let trouble = Trouble { loss, reordering, duplication, corruption };
        transfer(seed, 60_000, trouble, &patient);
    }
}
