//! One reservation on several threads: a tenant's connections are on one of them, on all, or move,
//! and threads without work sleep. Simulated.
#![allow(clippy::unwrap_used, reason = "tests")]

mod machine;

use std::sync::{Arc, Barrier};

use machine::{CRITICAL, GREEDY, Load, Machine, OBJECTIVE};
use proptest::prelude::*;
use qos::simulated::p3600_model;
use qos::{Objective, Operation, Scheduler, SharedDevice, TenantId, TenantRequest, TenantSpec};

/// Tokens a second that it reserves.
const RESERVED: u64 = 3_800_000;

/// Where the connections of a tenant are.
#[derive(Clone, Copy, Debug)]
enum Place {
    First,
    All,
    /// On another thread each second.
    Moves,
}

impl Place {
    fn threads(self, of: usize, second: usize) -> Vec<usize> {
        match self {
            Self::First => vec![0],
            Self::All => (0..of).collect(),
            Self::Moves => vec![second % of],
        }
    }
}

/// Runs two tenants at their places for so long. Gives them back.
fn run(
    machine: &mut Machine,
    tenants: [(Place, Option<Objective>, Load); 2],
    seconds: usize,
) -> [usize; 2] {
    let threads = machine.schedulers.len();
    let clients = tenants.map(|(place, objective, load)| {
        machine.add_on(&place.threads(threads, 0), objective, load)
    });
    for second in 0..seconds {
        for (client, (place, _, _)) in clients.into_iter().zip(tenants) {
            machine.reconnect(client, &place.threads(threads, second));
        }
        machine.run(1);
    }
    clients
}

fn tokens_per_s(machine: &Machine, client: usize) -> f64 {
    let seconds = machine.seconds(client);
    let tokens: u64 = seconds.iter().map(|second| second.tokens).sum();
    tokens as f64 / seconds.len() as f64
}

const PLACES: [(Place, Place); 6] = [
    (Place::First, Place::First),
    (Place::First, Place::All),
    (Place::All, Place::First),
    (Place::All, Place::All),
    (Place::Moves, Place::All),
    (Place::Moves, Place::Moves),
];

fn the_objective_holds_on(threads: usize) {
    for (place, greedy) in PLACES {
        let mut machine = Machine::with_threads(threads, 11);
        let tenants = [(place, Some(OBJECTIVE), CRITICAL), (greedy, None, GREEDY)];
        let [critical, writer] = run(&mut machine, tenants, 14);
        let seconds = machine.seconds(critical);
        let held = seconds.iter().filter(|second| second.p95_us <= 500.0);
        let held = held.count() as f64 / seconds.len() as f64;
        assert!(held >= 0.99, "{held} with {place:?} beside {greedy:?}");
        let left = (36_000_000 - RESERVED) as f64;
        let taken = tokens_per_s(&machine, writer) / left;
        assert!(taken >= 0.9, "{taken} with {place:?} beside {greedy:?}");
    }
}

#[test]
fn the_objective_holds_on_two_threads_wherever_the_connections_are() {
    the_objective_holds_on(2);
}

#[test]
fn the_objective_holds_on_four_threads_wherever_the_connections_are() {
    the_objective_holds_on(4);
}

/// A tenant that asks for twice as much as it reserved, beside a writer that takes all it gets, has
/// its reservation: once, and whole.
#[test]
fn a_reservation_is_neither_doubled_nor_halved() {
    for threads in [2, 4] {
        for (place, greedy) in PLACES {
            let mut machine = Machine::with_threads(threads, 12);
            let asks = Load::Open {
                iops: 40_000.0,
                read_share: 0.9,
            };
            let tenants = [(place, Some(OBJECTIVE), asks), (greedy, None, GREEDY)];
            let [critical, _] = run(&mut machine, tenants, 5);
            let status = machine.device.status();
            assert_eq!(status.reserved_tokens_per_s, RESERVED);
            assert_eq!((status.latency_critical, status.best_effort), (1, 1));
            let share = tokens_per_s(&machine, critical) / RESERVED as f64;
            // A debt of 100 writes in 5 s is 0.5 %.
            assert!(
                (0.97..1.03).contains(&share),
                "{share} with {place:?} beside {greedy:?} on {threads}"
            );
        }
    }
}

/// What a tenant left on one thread it takes back on another one, or on all, and no more than ten
/// seconds of it. A server that starts has lent nothing.
#[test]
fn what_was_lent_is_taken_back_on_any_thread() {
    for place in [Place::First, Place::All] {
        let mut machine = Machine::with_threads(2, 14);
        let greedy = machine.add_on(&[0, 1], None, GREEDY);
        let lender = |depth| Load::Closed {
            depth,
            len_bytes: 4096,
            read_share: 1.0,
        };
        let at_start = machine.add_on(&[1], Some(OBJECTIVE), lender(64));
        machine.run(1);
        let tokens = |machine: &Machine, client: usize| machine.seconds(client)[0].tokens as f64;
        let share = tokens(&machine, at_start) / RESERVED as f64;
        assert!((1.0..1.1).contains(&share), "{share} at the start");

        let mut machine = Machine::with_threads(2, 14);
        let waits = Load::Open {
            iops: 0.2,
            read_share: 1.0,
        };
        let critical = machine.add_on(&[1], Some(OBJECTIVE), waits);
        let greedy_too = machine.add_on(&[0, 1], None, GREEDY);
        assert_eq!(greedy, 0);
        machine.run(12);
        machine.reconnect(critical, &place.threads(2, 0));
        machine.set_load(critical, lender(512));
        machine.run(3);
        let of = |client: usize| -> f64 {
            let seconds = machine.seconds(client)[12..15].iter();
            seconds.map(|second| second.tokens).sum::<u64>() as f64
        };
        // Ten seconds' worth and three, as far as the device takes it.
        let most = 13.0 * RESERVED as f64;
        let taken = of(critical) / most;
        assert!((0.8..1.02).contains(&taken), "{taken} at {place:?}");
        let left = of(greedy_too) / (3.0 * 36e6 - most);
        assert!(left >= 0.7, "{left} at {place:?}");
    }
}

/// Ten best-effort tenants get the same, although nine of them share a thread, or one of them has
/// connections on both.
#[test]
fn best_effort_tenants_share_alike_across_threads() {
    for last in [&[1][..], &[0, 1]] {
        let mut machine = Machine::with_threads(2, 13);
        machine.add_on(&[0], Some(OBJECTIVE), CRITICAL);
        let all: Vec<usize> = (0..10)
            .map(|number| {
                let threads = if number == 9 { last } else { &[0] };
                machine.add_on(threads, None, GREEDY)
            })
            .collect();
        machine.run(6);
        let tokens: Vec<f64> = all.iter().map(|it| tokens_per_s(&machine, *it)).collect();
        let index = machine::jain(&tokens);
        assert!(index >= 0.99, "{index}: {tokens:?}");
    }
}

/// The reservation of a tenant that sleeps on one thread and works on another one is not given to
/// others; that of a tenant that sleeps on both is.
#[test]
fn a_tenant_is_idle_only_when_no_instance_has_work() {
    for critical_works in [true, false] {
        let device = Arc::new(SharedDevice::for_threads(Some(p3600_model()), 2));
        let mut schedulers = [0, 1].map(|_| Scheduler::new(Arc::clone(&device)).unwrap());
        let objective = Objective {
            iops: 200_000,
            read_share: 1.0,
            ..OBJECTIVE
        };
        let add = |it: &mut Scheduler<u32>, name: &str, spec| it.add_admitted(name, spec).unwrap();
        let critical = TenantSpec::latency_critical(objective);
        let critical = schedulers
            .each_mut()
            .map(|it| add(it, "critical", critical));
        let greedy = schedulers
            .each_mut()
            .map(|it| add(it, "greedy", TenantSpec::best_effort()));
        let mut number = 0_u64;
        for at_us in (0..1_000_000_u64).step_by(25) {
            let now_ns = at_us * 1000;
            let mut fill = |thread: usize, id| {
                let scheduler: &mut Scheduler<u32> = &mut schedulers[thread];
                while scheduler.status(id).unwrap().queued < 100 {
                    scheduler.enqueue(id, read(), now_ns).unwrap();
                }
            };
            fill(1, greedy[1]);
            if critical_works {
                fill(0, critical[0]);
                schedulers[0].round(now_ns, &mut |_, _| {});
            }
            schedulers[1].round(now_ns, &mut |_, _| number += 1);
        }
        // 20M of 36M tokens/s are reserved.
        let expected = match critical_works {
            true => 150_000..=162_000,
            false => 340_000..=365_000,
        };
        assert!(expected.contains(&number), "{number}");
    }
}

/// A best-effort tenant with connections on two threads. The first one's round always comes just
/// before the other's, and takes no more than two thirds.
#[test]
fn no_connection_of_a_tenant_starves() {
    let device = Arc::new(SharedDevice::for_threads(Some(p3600_model()), 2));
    let mut schedulers = [0, 1].map(|_| Scheduler::new(Arc::clone(&device)).unwrap());
    let mut add = |name: &str, spec| {
        let schedulers = schedulers.each_mut();
        schedulers.map(|it: &mut Scheduler<u32>| it.add_admitted(name, spec).unwrap())
    };
    // It uses all that it reserved, so that the bucket is empty.
    let critical = add("critical", TenantSpec::latency_critical(OBJECTIVE));
    let greedy = add("greedy", TenantSpec::best_effort());
    let mut numbers = [0_u64; 2];
    for at_us in (0..1_000_000_u64).step_by(25) {
        let now_ns = at_us * 1000;
        for (thread, scheduler) in schedulers.iter_mut().enumerate() {
            for id in [critical[thread], greedy[thread]] {
                while scheduler.status(id).unwrap().queued < 100 {
                    scheduler.enqueue(id, read(), now_ns).unwrap();
                }
            }
            let number = &mut numbers[thread];
            scheduler.round(now_ns, &mut |id, _| {
                *number += u64::from(id == greedy[thread])
            });
        }
    }
    assert!(numbers[1] * 3 >= numbers[0], "{numbers:?}");
    assert!(numbers.iter().sum::<u64>() > 300_000, "{numbers:?}");
}

/// The bucket is emptied after each round of the threads that have work, so that reserved tokens of
/// ten seconds make no burst. A thread that sleeps is not waited for.
#[test]
fn a_sleeping_thread_does_not_hold_up_the_emptying_of_the_bucket() {
    let device = Arc::new(SharedDevice::for_threads(Some(p3600_model()), 2));
    let mut schedulers = [0, 1].map(|_| Scheduler::new(Arc::clone(&device)).unwrap());
    let objective = Objective {
        iops: 300_000,
        read_share: 1.0,
        ..OBJECTIVE
    };
    let mut add = |name: &str, spec| {
        let schedulers = schedulers.each_mut();
        schedulers.map(|it: &mut Scheduler<u32>| it.add_admitted(name, spec).unwrap())
    };
    add("critical", TenantSpec::latency_critical(objective));
    let tenant = add("scan", TenantSpec::best_effort());
    let [awake, asleep] = &mut schedulers;
    // Both have work, and then one of them has none any more.
    for at_us in (25..1000_u64).step_by(25) {
        for (scheduler, id) in [(&mut *awake, tenant[0]), (&mut *asleep, tenant[1])] {
            scheduler.enqueue(id, read(), at_us * 1000).unwrap();
            scheduler.round(at_us * 1000, &mut |_, _| {});
        }
    }
    for at_us in (1000..2000_u64).step_by(25) {
        asleep.round(at_us * 1000, &mut |_, _| {});
    }
    assert_eq!(asleep.due_ns(), None);
    // The other one always has a little.
    for at_us in (2000..10_000_000_u64).step_by(25) {
        awake.enqueue(tenant[0], read(), at_us * 1000).unwrap();
        awake.round(at_us * 1000, &mut |_, _| {});
    }
    let write = TenantRequest {
        operation: Operation::Write,
        ..read()
    };
    let mut burst = 0;
    for at_us in (10_000_000..10_000_100_u64).step_by(25) {
        for _ in 0..500 {
            awake.enqueue(tenant[0], write, at_us * 1000).unwrap();
        }
        awake.round(at_us * 1000, &mut |_, _| burst += 1);
    }
    // 36M tokens/s are 0.9 writes in a round.
    assert!(burst <= 6, "{burst}");
}

fn read() -> TenantRequest<u32> {
    TenantRequest {
        operation: Operation::Read,
        len_bytes: 4096,
        token: 0,
    }
}

const WRITE: u64 = 1000;

#[derive(Clone, Debug)]
struct Step {
    pause_us: u64,
    tenant: usize,
    thread: usize,
    number: u32,
    is_write: bool,
    /// Threads that run a round: a bit each.
    rounds: u8,
}

fn step() -> impl Strategy<Value = Step> {
    let whole = (0_u64..200, 0_usize..4, 0_usize..4, 0_u32..40);
    (whole, any::<bool>(), any::<u8>()).prop_map(
        |((pause_us, tenant, thread, number), is_write, rounds)| Step {
            pause_us,
            tenant,
            thread,
            number,
            is_write,
            rounds,
        },
    )
}

/// Two tenants with an objective and two without, each on every thread.
fn world(threads: usize) -> (Arc<SharedDevice>, Vec<Scheduler<u32>>, Vec<Vec<TenantId>>) {
    let most = u32::try_from(threads).unwrap();
    let device = Arc::new(SharedDevice::for_threads(Some(p3600_model()), most));
    let mut schedulers: Vec<Scheduler<u32>> = (0..threads)
        .map(|_| Scheduler::new(Arc::clone(&device)).unwrap())
        .collect();
    let objective = Objective {
        p95_us: 1000,
        iops: 10_000,
        read_share: 0.9,
    };
    let critical = TenantSpec::latency_critical(objective);
    let best_effort = TenantSpec::best_effort();
    let specs = [critical, critical, best_effort, best_effort].into_iter();
    let tenants = specs.enumerate().map(|(number, spec)| {
        let schedulers = schedulers.iter_mut();
        let name = number.to_string();
        let ids = schedulers.map(|scheduler| scheduler.add_admitted(&name, spec).unwrap());
        ids.collect()
    });
    let tenants = tenants.collect();
    (device, schedulers, tenants)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whichever threads run, tokens that were spent are never more than those that the rate made
    /// and the debts of both latency-critical tenants; and everything that waits is submitted.
    #[test]
    fn tokens_are_conserved_across_threads(
        threads in 2_usize..5,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let (device, mut schedulers, tenants) = world(threads);
        let rate = device.status().tokens_per_s.unwrap();
        let mut now_us = 0;
        for step in steps {
            now_us += step.pause_us;
            let thread = step.thread % threads;
            let id = tenants[step.tenant][thread];
            let operation = if step.is_write { Operation::Write } else { Operation::Read };
            for _ in 0..step.number {
                let request = TenantRequest { operation, ..read() };
                let _ = schedulers[thread].enqueue(id, request, now_us * 1000);
            }
            for (thread, scheduler) in schedulers.iter_mut().enumerate() {
                if step.rounds & 1 << thread != 0 {
                    scheduler.round(now_us * 1000, &mut |_, _| {});
                }
            }
            for tenant in &tenants[..2] {
                let status = schedulers[0].status(tenant[0]).unwrap();
                // A request of each thread may go beyond the limit.
                let most = (100 + threads as i64) * WRITE as i64;
                prop_assert!(status.credit_tokens >= -most, "{status:?}");
            }
            for (thread, scheduler) in schedulers.iter().enumerate() {
                for tenant in &tenants[2..] {
                    // Best effort saves for what waits, and no more.
                    let status = scheduler.status(tenant[thread]).unwrap();
                    let saved = u64::try_from(status.credit_tokens).unwrap();
                    prop_assert!(saved <= status.queued_tokens, "{status:?}");
                }
            }
        }
        let spent: u64 = device.status().spent_tokens;
        let debt = 2 * (100 + threads as u64) * WRITE;
        // The first round comes after no pause at all, or finds at most one pause of 1 ms.
        let made = rate * (now_us + 1000) / 1_000_000;
        prop_assert!(spent <= made + debt, "{spent} of {made} and {debt}");
        let waits = |scheduler: &Scheduler<u32>| scheduler.due_ns().is_some();
        let until_us = now_us + 20_000_000;
        while schedulers.iter().any(waits) && now_us < until_us {
            now_us += 200;
            for scheduler in schedulers.iter_mut().filter(|it| waits(it)) {
                scheduler.round(now_us * 1000, &mut |_, _| {});
            }
        }
        prop_assert!(!schedulers.iter().any(waits));
    }
}

/// Four threads serve all tenants at once, each with work without end: together they spend what
/// the rate makes, and each tenant with an objective what it reserved.
#[test]
fn real_threads_share_reservations() {
    const END_US: u64 = 500_000;
    let (device, schedulers, tenants) = world(4);
    let rate = device.status().tokens_per_s.unwrap();
    let barrier = Barrier::new(4);
    let spent: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let (tenants, barrier) = (&tenants, &barrier);
        let threads = schedulers.into_iter().enumerate();
        let running: Vec<_> = threads
            .map(|(thread, mut scheduler)| {
                scope.spawn(move || {
                    for now_us in (0..=END_US).step_by(50) {
                        for tenant in tenants {
                            let id = tenant[thread];
                            while scheduler.status(id).unwrap().queued < 64 {
                                scheduler.enqueue(id, read(), now_us * 1000).unwrap();
                            }
                        }
                        scheduler.round(now_us * 1000, &mut |_, _| {});
                        for tenant in tenants {
                            let took_ns = 220_000 * (1 + thread as u64);
                            let read = Some(Operation::Read);
                            scheduler.completed(tenant[thread], read, took_ns, took_ns);
                        }
                        barrier.wait();
                    }
                    let spent = tenants.iter().map(|tenant| {
                        let status = scheduler.status(tenant[thread]).unwrap();
                        // The percentile is that of all threads.
                        let p95_us = status.p95_us.unwrap();
                        assert!((840.0..920.0).contains(&p95_us), "{p95_us}");
                        status.spent_tokens
                    });
                    spent.collect()
                })
            })
            .collect();
        let ended = running.into_iter().map(|thread| thread.join().unwrap());
        ended.collect()
    });
    let of = |tenant: usize| spent.iter().map(|thread| thread[tenant]).sum::<u64>();
    let all: u64 = (0..4).map(of).sum();
    assert_eq!(device.status().best_effort, 0, "the schedulers are gone");
    assert_eq!(device.status().spent_tokens, all);
    let made = rate * (END_US + 1000) / 1_000_000;
    let debt = 100 * WRITE + 4 * 100;
    assert!(all <= made + 2 * debt, "{all} of {made}");
    assert!(all >= made * 9 / 10, "{all} of {made}");
    for tenant in [0, 1] {
        let reserved = 1_900_000 * (END_US + 1000) / 1_000_000;
        let spent = of(tenant);
        assert!(spent <= reserved + debt, "{spent} of {reserved}");
        assert!(spent >= reserved, "{spent} of {reserved}");
    }
    let best_effort = [of(2), of(3)];
    assert!(
        best_effort[0].abs_diff(best_effort[1]) < all / 20,
        "{best_effort:?}"
    );
    // No thread starves.
    for thread in &spent {
        assert!(thread.iter().all(|tokens| *tokens > 0), "{spent:?}");
    }
}
