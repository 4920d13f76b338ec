//! Whatever the tenants do: no token is made up, nobody starves, no debt is unbounded.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Barrier};

use proptest::prelude::*;
use qos::simulated::p3600_model;
use qos::{Objective, Operation, Scheduler, SharedDevice, TenantId, TenantRequest, TenantSpec};

const WRITE: i64 = 1000;
/// The largest request of these tests, in blocks.
const BLOCKS_MAX: u32 = 16;

#[derive(Clone, Debug)]
struct Step {
    pause_us: u64,
    tenant: usize,
    number: u32,
    operation: Operation,
    blocks: u32,
}

fn step() -> impl Strategy<Value = Step> {
    let operation = prop_oneof![Just(Operation::Read), Just(Operation::Write)];
    (0_u64..200, 0_usize..8, 0_u32..40, operation, 1..=BLOCKS_MAX).prop_map(
        |(pause_us, tenant, number, operation, blocks)| Step {
            pause_us,
            tenant,
            number,
            operation,
            blocks,
        },
    )
}

/// Tenants over two threads of a device: the first half is latency-critical.
struct World {
    device: Arc<SharedDevice>,
    schedulers: Vec<Scheduler<u32>>,
    tenants: Vec<(usize, TenantId)>,
}

fn world(threads: usize, critical: usize, best_effort: usize) -> World {
    let device = Arc::new(SharedDevice::new(Some(p3600_model())));
    let mut schedulers: Vec<Scheduler<u32>> = (0..threads)
        .map(|_| Scheduler::new(Arc::clone(&device)).unwrap())
        .collect();
    let objective = Objective {
        p95_us: 1000,
        iops: 10_000,
        read_share: 0.9,
    };
    let specs = std::iter::repeat_n(TenantSpec::latency_critical(objective), critical)
        .chain(std::iter::repeat_n(TenantSpec::best_effort(), best_effort));
    let tenants = specs
        .enumerate()
        .map(|(number, spec)| {
            let thread = number % threads;
            (thread, schedulers[thread].add_tenant(spec).unwrap())
        })
        .collect();
    World {
        device,
        schedulers,
        tenants,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Tokens that were spent are never more than those that the rate made, the debts of
    /// latency-critical tenants, and one request of each.
    #[test]
    fn tokens_are_conserved_and_debts_are_bounded(
        threads in 1_usize..3,
        critical in 1_usize..5,
        best_effort in 0_usize..5,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let mut world = world(threads, critical, best_effort);
        let rate = world.device.status().tokens_per_s.unwrap();
        let (mut now_us, mut queued, mut submitted) = (0, 0_u64, 0_u64);
        for step in steps {
            now_us += step.pause_us;
            let (thread, tenant) = world.tenants[step.tenant % world.tenants.len()];
            for _ in 0..step.number {
                let request = TenantRequest { operation: step.operation, len_bytes: step.blocks * 4096, token: 0 };
                queued += u64::from(world.schedulers[thread].enqueue(tenant, request, now_us * 1000).is_ok());
            }
            for scheduler in &mut world.schedulers {
                scheduler.round(now_us * 1000, &mut |_, _| submitted += 1);
            }
            for (thread, tenant) in &world.tenants[..critical] {
                let status = world.schedulers[*thread].status(*tenant).unwrap();
                let most = i64::from(BLOCKS_MAX) * WRITE;
                prop_assert!(status.credit_tokens >= -100 * WRITE - most, "{status:?}");
            }
        }
        let spent: u64 = world.device.status().spent_tokens;
        let debt = critical as u64 * (100 + u64::from(BLOCKS_MAX)) * WRITE.unsigned_abs();
        // The first round comes after no pause at all, or finds at most one pause of 1 ms.
        let made = rate as f64 * (now_us as f64 + 1000.0) / 1e6;
        prop_assert!(spent as f64 <= made + debt as f64, "{spent} of {made} and {debt}");
        // No request is lost or made up.
        let waiting: u64 = world
            .tenants
            .iter()
            .map(|(thread, tenant)| u64::from(world.schedulers[*thread].status(*tenant).unwrap().queued))
            .sum();
        prop_assert_eq!(queued, submitted + waiting);
    }

    /// Everything that waits is submitted within the time that its tokens take at the tenant's
    /// rate; one request more for a tenant that is in debt.
    #[test]
    fn nobody_starves(
        threads in 1_usize..3,
        critical in 1_usize..4,
        best_effort in 1_usize..5,
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut world = world(threads, critical, best_effort);
        let mut now_us = 0;
        for step in steps {
            now_us += step.pause_us;
            let (thread, tenant) = world.tenants[step.tenant % world.tenants.len()];
            for _ in 0..step.number {
                let request = TenantRequest { operation: step.operation, len_bytes: step.blocks * 4096, token: 0 };
                let _ = world.schedulers[thread].enqueue(tenant, request, now_us * 1000);
            }
            for scheduler in &mut world.schedulers {
                scheduler.round(now_us * 1000, &mut |_, _| {});
            }
        }
        let status = world.device.status();
        let reserved = 10_000 * 190;
        let wait_us = world.tenants.iter().enumerate().map(|(number, (thread, tenant))| {
            let rate = if number < critical { reserved } else { status.best_effort_each_tokens_per_s };
            let tokens = world.schedulers[*thread].status(*tenant).unwrap().queued_tokens;
            tokens.saturating_mul(1_000_000) / rate.max(1)
        });
        let until_us = now_us + wait_us.max().unwrap_or(0) + 15_000;
        while now_us < until_us {
            now_us += 50;
            for scheduler in &mut world.schedulers {
                scheduler.round(now_us * 1000, &mut |_, _| {});
            }
        }
        for (thread, tenant) in &world.tenants {
            let status = world.schedulers[*thread].status(*tenant).unwrap();
            prop_assert_eq!(status.queued, 0, "{:?}", status);
        }
    }

    /// A request waits in the order in which its tenant's requests came.
    #[test]
    fn a_tenants_requests_keep_their_order(steps in prop::collection::vec(step(), 1..100)) {
        let mut world = world(1, 2, 2);
        let mut tokens = [(0_u32, 0_u32); 4];
        let ids: Vec<TenantId> = world.tenants.iter().map(|(_, id)| *id).collect();
        let mut now_us = 0;
        for step in steps {
            now_us += step.pause_us;
            let number = step.tenant % ids.len();
            for _ in 0..step.number {
                let request = TenantRequest { operation: step.operation, len_bytes: step.blocks * 4096, token: tokens[number].0 };
                tokens[number].0 += u32::from(world.schedulers[0].enqueue(ids[number], request, now_us * 1000).is_ok());
            }
            let mut in_order = true;
            world.schedulers[0].round(now_us * 1000, &mut |id, token| {
                let seen = &mut tokens[ids.iter().position(|other| *other == id).unwrap()].1;
                in_order &= token == *seen;
                *seen += 1;
            });
            prop_assert!(in_order);
        }
    }
}

/// Four threads do their rounds of one device at once, each with work without end: together they
/// spend no more than the rate makes, leave less than a tenth of it, and the device's count is the
/// sum of theirs.
#[test]
fn real_threads_share_a_rate() {
    const END_US: u64 = 500_000;
    let world = world(4, 2, 6);
    let (device, step) = (world.device, Barrier::new(4));
    let rate = device.status().tokens_per_s.unwrap();
    let tenants = &world.tenants;
    let spent: u64 = std::thread::scope(|scope| {
        let threads = world.schedulers.into_iter().enumerate();
        let running: Vec<_> = threads
            .map(|(number, mut scheduler)| {
                let step = &step;
                scope.spawn(move || {
                    let own = tenants.iter().filter(|(thread, _)| *thread == number);
                    let own: Vec<TenantId> = own.map(|(_, tenant)| *tenant).collect();
                    for now_us in (0..=END_US).step_by(50) {
                        for tenant in &own {
                            let request = TenantRequest {
                                operation: Operation::Read,
                                len_bytes: 4096,
                                token: 0,
                            };
                            while scheduler.status(*tenant).unwrap().queued < 64 {
                                scheduler.enqueue(*tenant, request, now_us * 1000).unwrap();
                            }
                        }
                        scheduler.round(now_us * 1000, &mut |_, _| {});
                        step.wait();
                    }
                    own.iter()
                        .map(|tenant| scheduler.status(*tenant).unwrap().spent_tokens)
                        .sum::<u64>()
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(device.status().spent_tokens, spent);
    // Each latency-critical tenant may be in debt by 100 writes and one request.
    let made = rate * (END_US + 1000) / 1_000_000;
    let debt = 2 * (100 * WRITE.unsigned_abs() + 100);
    assert!(spent <= made + debt, "{spent} of {made}");
    assert!(spent >= made * 9 / 10, "{spent} of {made}");
}
