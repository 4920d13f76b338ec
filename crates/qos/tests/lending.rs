//! What a latency-critical tenant left to others it may take back, within ten seconds and no more
//! than it reserved.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;
use qos::simulated::p3600_model;
use qos::{Objective, Operation, Scheduler, SharedDevice, TenantId, TenantRequest, TenantSpec};

/// 10,000 requests of 190 tokens a second.
const OBJECTIVE: Objective = Objective {
    p95_us: 1000,
    iops: 10_000,
    read_share: 0.9,
};
const RESERVED: u64 = 1_900_000;
/// What a tenant may owe: a hundred writes.
const DEBT: u64 = 100_000;
const READ: u64 = 100;
const STEP_US: u64 = 50;

struct World {
    scheduler: Scheduler<u32>,
    critical: TenantId,
    greedy: TenantId,
    now_us: u64,
}

impl World {
    fn new() -> Self {
        let device = Arc::new(SharedDevice::new(Some(p3600_model())));
        let mut scheduler = Scheduler::new(device).unwrap();
        let critical = scheduler
            .add_tenant(TenantSpec::latency_critical(OBJECTIVE))
            .unwrap();
        let greedy = scheduler.add_tenant(TenantSpec::best_effort()).unwrap();
        Self {
            scheduler,
            critical,
            greedy,
            now_us: 0,
        }
    }

    fn ask(&mut self, id: TenantId, operation: Operation, number: u64) {
        for _ in 0..number {
            let request = TenantRequest {
                operation,
                len_bytes: 4096,
                token: 0,
            };
            let _ = self.scheduler.enqueue(id, request, self.now_us * 1000);
        }
    }

    /// One round. The best-effort tenant always has enough to do.
    fn step(&mut self) {
        self.now_us += STEP_US;
        self.ask(self.greedy, Operation::Write, 20);
        self.scheduler.round(self.now_us * 1000, &mut |_, _| {});
    }

    fn spent(&self, id: TenantId) -> u64 {
        self.scheduler.status(id).unwrap().spent_tokens
    }

    fn queued(&self) -> u64 {
        self.scheduler.status(self.critical).unwrap().queued.into()
    }
}

#[test]
fn after_a_pause_the_line_is_worked_off_at_the_rate_of_the_device() {
    let mut world = World::new();
    for _ in 0..20_000 {
        world.step();
    }
    // 200,000 tokens: half of them are beyond the debt, and would take 53 ms of the reservation.
    world.ask(world.critical, Operation::Read, 2000);
    for _ in 0..100 {
        world.step();
    }
    assert_eq!(world.queued(), 0);
}

#[test]
fn best_effort_loses_only_what_it_was_lent() {
    let mut world = World::new();
    for _ in 0..20_000 {
        world.step();
    }
    let before = world.spent(world.greedy);
    for _ in 0..10 {
        world.ask(world.critical, Operation::Read, 2000);
        for _ in 0..2000 {
            world.step();
        }
    }
    // A second: 36M tokens, less 2M that the other tenant asked for.
    let spent = world.spent(world.greedy) - before;
    let rate = world.scheduler.device().status().tokens_per_s.unwrap();
    assert!(
        spent as f64 >= 0.95 * (rate - RESERVED) as f64,
        "{spent} of {rate}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However a tenant asks, in no time does it get more than its reservation of that time, of ten
    /// seconds, and its debt.
    #[test]
    fn nobody_takes_back_more_than_it_reserved(
        bursts in prop::collection::vec((0_u64..2048, 1_u64..2000), 1..20),
    ) {
        let mut world = World::new();
        let mut seen = vec![(0, 0)];
        for (number, steps) in bursts {
            world.ask(world.critical, Operation::Read, number);
            for _ in 0..steps {
                world.step();
            }
            seen.push((world.now_us, world.spent(world.critical)));
        }
        for (index, (from_us, before)) in seen.iter().enumerate() {
            for (to_us, after) in &seen[index..] {
                let made = RESERVED * (to_us - from_us + 10_000_000) / 1_000_000;
                // What it keeps of a few rounds, and one request.
                let most = made + DEBT + RESERVED / 1000 + READ;
                prop_assert!(after - before <= most, "{} of {most}", after - before);
            }
        }
    }
}
