//! A simulated flash device after published curves, for planning and for tests. Nothing that it
//! shows is a measurement of a device.
//!
//! The curves are those that ReFlex publishes with its source for an Intel P3600 class device
//! (`sample.devmodel`: 36 to 80 million tokens a second at 0.5 to 3 ms, 85 to 100 million while
//! nobody writes, a write as dear as ten reads). Below 500 µs, where the file has no points, the
//! curve follows figure 3 of the paper by eye.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::cost::Operation;
use crate::{Column, Costs, Curve, CurvePoint, DeviceModel};

/// Tokens of a write of 4 KiB on the simulated P3600.
const P3600_WRITE_COST: u32 = 1000;

/// 95th percentile in microseconds, tokens a second while somebody writes.
const P3600_MIXED: &[(f64, f64)] = &[
    (120.0, 5e6),
    (200.0, 18e6),
    (300.0, 27e6),
    (400.0, 32.5e6),
    (500.0, 36e6),
    (1000.0, 50e6),
    (1500.0, 52e6),
    (2000.0, 57e6),
    (2500.0, 75e6),
    (3000.0, 80e6),
];

/// The same while nobody writes.
const P3600_READ_ONLY: &[(f64, f64)] = &[
    (110.0, 20e6),
    (150.0, 50e6),
    (250.0, 72e6),
    (500.0, 85e6),
    (1000.0, 95e6),
    (1500.0, 98e6),
    (2000.0, 100e6),
];

/// Time in which the device feels its load: about the length of its queue at 1 ms.
const LOAD_NS: f64 = 1e6;
/// After a write, reads are as slow as in a mixed load for so long.
const AFTER_WRITE_NS: u64 = 10_000_000;
/// Standard deviation of the logarithm of a latency.
const SIGMA: f64 = 0.35;
/// 95 % of a normal distribution lie below so many standard deviations.
const Z95: f64 = 1.644_85;
/// A write is answered from the device's memory, in so short a time at no load.
const WRITE_US: f64 = 25.0;

fn column(points: &[(f64, f64)]) -> Vec<CurvePoint> {
    let point = |&(p95_us, tokens_per_s): &(f64, f64)| CurvePoint {
        p95_us,
        tokens_per_s,
    };
    points.iter().map(point).collect()
}

/// The calibration of the simulated P3600.
pub fn p3600_model() -> DeviceModel {
    #[expect(clippy::expect_used, reason = "constants, which a test checks")]
    let checked = |points| Column::new(column(points)).expect("the points rise");
    DeviceModel {
        costs: Costs::new(P3600_WRITE_COST),
        curve: Curve {
            mixed: Some(checked(P3600_MIXED)),
            read_only: checked(P3600_READ_ONLY),
        },
    }
}

/// The calibration of a simulated device by its name; `None`: there is no such device.
pub fn model(name: &str) -> Option<DeviceModel> {
    match name {
        "p3600" => Some(p3600_model()),
        _ => None,
    }
}

/// A device whose latencies follow a calibration: their 95th percentile at a load is that of the
/// curve, and what comes faster than the device's most waits in line.
#[derive(Clone, Debug)]
pub struct Flash {
    model: DeviceModel,
    random: ChaCha8Rng,
    /// Tokens of about the last [`LOAD_NS`], decayed.
    load: f64,
    /// Tokens that wait because the device is at its most.
    backlog: f64,
    at_ns: u64,
    written_ns: Option<u64>,
    /// How much slower than its calibration the device is.
    slowness: f64,
    stalls: Option<Stalls>,
}

/// A device that stands still for a while, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Stalls {
    /// From the beginning of one stall to that of the next, in nanoseconds.
    pub every_ns: u64,
    /// How long nothing is completed, in nanoseconds.
    pub length_ns: u64,
}

impl Stalls {
    /// The moment, or the end of the stall in which it lies.
    fn after(&self, at_ns: u64) -> u64 {
        let since_ns = at_ns % self.every_ns.max(1);
        // The first stall comes after the first time without one.
        if at_ns < self.every_ns || since_ns >= self.length_ns {
            return at_ns;
        }
        at_ns - since_ns + self.length_ns
    }
}

impl Flash {
    /// A device that behaves as the model says. The seed decides every latency.
    pub fn new(model: DeviceModel, seed: u64) -> Self {
        Self {
            model,
            random: ChaCha8Rng::seed_from_u64(seed),
            load: 0.0,
            backlog: 0.0,
            at_ns: 0,
            written_ns: None,
            slowness: 1.0,
            stalls: None,
        }
    }

    /// Makes every latency so many times as long from now on, as if the device had aged.
    pub fn set_slowness(&mut self, slowness: f64) {
        self.slowness = slowness;
    }

    /// Has the device stand still from time to time, as virtual disks do when their host is busy.
    pub fn set_stalls(&mut self, stalls: Option<Stalls>) {
        self.stalls = stalls;
    }

    /// Takes a request, and says when it will be completed. `now_ns` never goes back.
    pub fn submit(&mut self, operation: Operation, len_bytes: u32, now_ns: u64) -> u64 {
        if operation == Operation::Write {
            self.written_ns = Some(now_ns);
        }
        let is_mixed = self
            .written_ns
            .is_some_and(|written| now_ns.saturating_sub(written) <= AFTER_WRITE_NS);
        let column = match (&self.model.curve.mixed, is_mixed) {
            (Some(mixed), true) => mixed,
            _ => &self.model.curve.read_only,
        };
        let passed_ns = now_ns.saturating_sub(self.at_ns) as f64;
        self.at_ns = self.at_ns.max(now_ns);
        let most = column.max_tokens_per_s();
        let cost = f64::from(self.model.costs.of(operation, len_bytes));
        self.load = self.load * (-passed_ns / LOAD_NS).exp() + cost;
        self.backlog = (self.backlog - most * passed_ns / 1e9).max(0.0) + cost;
        let tokens_per_s = self.load * 1e9 / LOAD_NS;
        let p95_us = column.p95_us_at(tokens_per_s) * self.slowness;
        let normal = normal(&mut self.random);
        let spread = (SIGMA * (normal - Z95)).exp();
        // A line of less than a millisecond is in the curve already.
        let line_us = (self.backlog / most * 1e6 - LOAD_NS / 1000.0).max(0.0);
        let latency_us = line_us
            + match operation {
                Operation::Read => p95_us * spread,
                Operation::Write => (p95_us * spread / 4.0).max(WRITE_US),
            };
        let done_ns = now_ns + crate::rounded(latency_us * 1000.0);
        self.stalls.map_or(done_ns, |stalls| stalls.after(done_ns))
    }
}

/// A standard normal number (Box and Muller, 1958).
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LatencyWindow;

    /// The 95th percentile of reads at a rate of tokens, some of which writes spend.
    fn p95_us(tokens_per_s: f64, write_every: u32) -> f64 {
        let mut flash = Flash::new(p3600_model(), 7);
        let mut window = LatencyWindow::default();
        let mut at_ns = 0.0;
        let step_tokens = match write_every {
            0 => 100.0,
            every => (f64::from(every - 1) * 100.0 + 1000.0) / f64::from(every),
        };
        for number in 0..200_000_u32 {
            at_ns += step_tokens / tokens_per_s * 1e9;
            let now_ns = crate::rounded(at_ns);
            let is_write = write_every > 0 && number.is_multiple_of(write_every);
            let operation = match is_write {
                true => Operation::Write,
                false => Operation::Read,
            };
            let done_ns = flash.submit(operation, 4096, now_ns);
            // The first requests find an empty device.
            if !is_write && number > 50_000 {
                window.record(done_ns - now_ns);
            }
        }
        window.p95_us().unwrap()
    }

    #[test]
    fn the_device_is_as_its_calibration() {
        for point in P3600_READ_ONLY {
            let seen = p95_us(point.1, 0);
            assert!((seen / point.0 - 1.0).abs() < 0.1, "{point:?}: {seen}");
        }
        for point in P3600_MIXED {
            let seen = p95_us(point.1, 10);
            assert!((seen / point.0 - 1.0).abs() < 0.15, "{point:?}: {seen}");
        }
        // Beyond its most, requests wait in line.
        assert!(p95_us(110e6, 0) > 3.0 * P3600_READ_ONLY[6].0);
    }

    #[test]
    fn the_seed_decides_everything() {
        let run = |seed| {
            let mut flash = Flash::new(p3600_model(), seed);
            let submit = |at: u64| flash.submit(Operation::Read, 4096, at * 1000);
            (0..100).map(submit).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn only_known_devices_are_simulated() {
        assert!(model("p3600").is_some());
        assert!(model("p9999").is_none());
    }
}
