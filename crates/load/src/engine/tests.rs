//! The loop in a simulated world: a slow generator, a slow service, and a CPU that somebody else
//! has are told apart.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::Arrivals;
use crate::counts::{Counts, RequestTimes};
use crate::report::{Bottleneck, Circumstances, LoadReport};

const MS: u64 = 1_000_000;

/// A machine of which every cost is known.
#[derive(Clone, Debug)]
struct Simulated {
    now: Ns,
    /// What the generator needs to send a request and to read an answer.
    send_ns: u64,
    read_ns: u64,
    /// The service answers so many at once, each in this time.
    servers: usize,
    service_ns: u64,
    connections: usize,
    /// From when to when the generator's thread has no CPU.
    no_cpu: Vec<(Ns, Ns)>,
    stolen_share: f64,
    /// When each server is free.
    free_at: Vec<Ns>,
    /// Answers on their way, in order: when they are there.
    answers: VecDeque<(Ns, u32)>,
    ready: usize,
    busy_connections: usize,
    cpu_ns: u64,
    run_queue_ns: u64,
    busy_poll: bool,
    /// How long a look for answers takes, and how late a sleeping thread wakes.
    poll_ns: u64,
    wake_ns: u64,
}

impl Simulated {
    fn new(send_and_read_us: f64, servers: usize, service_us: f64, connections: usize) -> Self {
        let ns = |us: f64| crate::arrivals::nanoseconds(us / 1e6);
        Self {
            now: 0,
            send_ns: ns(send_and_read_us * 0.6),
            read_ns: ns(send_and_read_us * 0.4),
            servers,
            service_ns: ns(service_us),
            connections,
            no_cpu: Vec::new(),
            stolen_share: 0.0,
            free_at: vec![0; servers],
            answers: VecDeque::new(),
            ready: 0,
            busy_connections: 0,
            cpu_ns: 0,
            run_queue_ns: 0,
            busy_poll: false,
            poll_ns: 200,
            wake_ns: 0,
        }
    }

    /// The same machine with a generator that polls, which takes long enough for a quick test.
    fn polling(self, busy_poll: bool) -> Self {
        let poll_ns = if busy_poll { 2000 } else { self.poll_ns };
        Self {
            busy_poll,
            poll_ns,
            ..self
        }
    }

    /// The thread works for so long, and longer where it has no CPU.
    fn work(&mut self, ns: u64) {
        self.now += ns;
        self.cpu_ns += ns;
        self.lose_cpu();
    }

    fn lose_cpu(&mut self) {
        let now = self.now;
        let at = self.no_cpu.partition_point(|(_, to)| *to <= now);
        if let Some((from, to)) = self.no_cpu.get(at)
            && *from <= now
        {
            self.run_queue_ns += to - now;
            self.now = *to;
        }
    }

    fn per_s(&self) -> f64 {
        let by_servers = self.servers as f64 / (self.service_ns as f64 / 1e9);
        let by_connections = self.connections as f64
            / ((self.service_ns + self.send_ns + self.read_ns) as f64 / 1e9);
        by_servers.min(by_connections)
    }

    fn run(self, pace: Option<&Arrivals>, seconds: f64) -> LoadReport {
        let end_ns = crate::arrivals::nanoseconds(seconds);
        let task = Task {
            schedule: pace.map(|arrivals| Schedule::new(arrivals, seconds, 0, 1)),
            end_ns,
            tickets: u32::try_from(self.connections).unwrap(),
            requests: 1,
            timeout_ns: 10 * SECOND_NS,
            repeat_max_ns: 2 * SECOND_NS,
            busy_poll: self.busy_poll,
            stop: &|| false,
        };
        let counts = Engine::new(self, task).run();
        let duration_s = counts.wall_ns as f64 / 1e9;
        let run = Circumstances {
            is_closed_loop: pace.is_none(),
            threads: 1,
            planned_s: seconds,
            duration_s,
            neighbours: None,
            stolen_share: 0.0,
        };
        LoadReport::of(counts, &run)
    }
}

impl World for Simulated {
    fn now_ns(&mut self) -> Ns {
        self.now
    }

    fn has_room(&self) -> bool {
        self.busy_connections < self.connections
    }

    fn begin(&mut self, ticket: u32, _: usize, _: &mut Vec<Answered>) {
        self.work(self.send_ns);
        self.busy_connections += 1;
        let server = self.free_at.iter_mut().min().unwrap();
        *server = (*server).max(self.now) + self.service_ns;
        self.answers.push_back((*server, ticket));
    }

    fn abandon(&mut self, ticket: u32) {
        self.answers.retain(|(_, other)| *other != ticket);
        self.busy_connections -= 1;
    }

    fn poll(&mut self, until_ns: Option<Ns>) -> usize {
        self.work(self.poll_ns);
        let there = |answers: &VecDeque<(Ns, u32)>, now| {
            answers.iter().take_while(|(at, _)| *at <= now).count()
        };
        self.ready = there(&self.answers, self.now);
        if let (0, Some(until)) = (self.ready, until_ns) {
            let first = self.answers.front().map_or(u64::MAX, |(at, _)| *at);
            self.now = self.now.max(until.min(first) + self.wake_ns);
            self.lose_cpu();
            self.ready = there(&self.answers, self.now);
        }
        self.ready
    }

    fn run_queue_ns(&mut self) -> u64 {
        self.run_queue_ns
    }

    fn handle(&mut self, _: usize, answers: &mut Vec<Answered>) {
        self.work(self.read_ns);
        let (_, ticket) = self.answers.pop_front().unwrap();
        self.busy_connections -= 1;
        answers.push(Answered {
            ticket,
            result: Ok(200),
        });
    }

    fn sample(&mut self) -> Sample {
        let all_s = self.now as f64 / 1e9;
        Sample {
            cpu_ns: self.cpu_ns,
            run_queue_ns: self.run_queue_ns,
            machine: host::MachineCpu {
                all_s,
                stolen_s: self.stolen_share * all_s,
                ..host::MachineCpu::default()
            },
            known_s: None,
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

fn random(per_s: f64, seed: u64) -> Arrivals {
    Arrivals::Random { per_s, seed }
}

#[test]
fn the_issues_case_names_the_generator() {
    // 100 µs a request are 10,000 a second at most; the service takes ten times as many.
    let report = Simulated::new(100.0, 10, 100.0, 64).run(Some(&random(30_000.0, 1)), 3.0);
    assert_eq!(report.bottleneck, Some(Bottleneck::Generator), "{report:?}");
    assert!(
        report
            .complaint()
            .unwrap()
            .contains("the load generator was the bottleneck")
    );
    assert!(report.latency_p99_at_least_us() < 1.0);
    assert!(report.complaint().unwrap().contains("--busy-poll"));
    // At a third of what it sends, it is not in the way.
    let report = Simulated::new(100.0, 10, 100.0, 64).run(Some(&random(3000.0, 1)), 3.0);
    assert_eq!(report.bottleneck, None, "{report:?}");
    assert!(report.latency.latency_p99_us < 1000.0, "{report:?}");
}

#[test]
fn a_service_at_its_limit_is_named_and_its_latency_counts() {
    let report = Simulated::new(10.0, 1, 1000.0, 16).run(Some(&random(2000.0, 1)), 3.0);
    assert_eq!(report.bottleneck, Some(Bottleneck::Service), "{report:?}");
    assert!(report.complaint().is_none() && report.remarks().len() == 1);
    assert!(report.waited_share > 0.9, "{report:?}");
    // 1000/s of 2000/s are answered: the last ones wait for 3 s.
    let p99_us = report.latency_p99_at_least_us();
    assert!((2.5e6..3.2e6).contains(&p99_us), "{p99_us}");
}

#[test]
fn a_closed_loop_shows_who_is_at_its_limit() {
    let service = Simulated::new(10.0, 1, 100.0, 16).run(None, 2.0);
    assert_eq!(service.bottleneck, Some(Bottleneck::Service));
    assert!(
        (service.requests_per_s / 10_000.0 - 1.0).abs() < 0.02,
        "{service:?}"
    );
    let generator = Simulated::new(20.0, 8, 10.0, 16).run(None, 2.0);
    assert_eq!(generator.bottleneck, Some(Bottleneck::Generator));
    assert!(generator.own_busy_share > 0.99, "{generator:?}");
}

#[test]
fn a_generator_that_polls_leaves_its_wake_ups_out_of_the_latency() {
    let world = Simulated {
        wake_ns: 100_000,
        ..Simulated::new(5.0, 1, 20.0, 64)
    };
    let sleeping = world.clone().run(Some(&random(2000.0, 1)), 2.0);
    let polling = world.polling(true).run(Some(&random(2000.0, 1)), 2.0);
    assert!(sleeping.latency.latency_p50_us > 200.0, "{sleeping:?}");
    assert!(polling.latency.latency_p50_us < 40.0, "{polling:?}");
    assert_eq!(polling.bottleneck, None);
    // It has its CPU whenever an answer or a request is near; what it needs for a request is told
    // apart from that.
    assert!(polling.own_cpu_s > 0.3, "{polling:?}");
    assert!(polling.own_busy_share < 0.3, "{polling:?}");
    assert!(
        (5.0..25.0).contains(&polling.own_cpu_per_request_us),
        "{polling:?}"
    );
    // Five requests a second cost next to no CPU: it sleeps.
    let idle = Simulated::new(5.0, 1, 20.0, 64).polling(true);
    let idle = idle.run(Some(&random(5.0, 1)), 2.0);
    assert!(idle.own_cpu_s < 0.1, "{idle:?}");
}

#[test]
fn seconds_in_which_the_generator_had_no_cpu_are_repeated() {
    let mut world = Simulated::new(10.0, 10, 500.0, 64);
    // In the second second, 20 ms four times: 8 % of the requests.
    world.no_cpu = (0..4)
        .map(|i| (SECOND_NS + i * 200 * MS, SECOND_NS + i * 200 * MS + 20 * MS))
        .collect();
    let report = world.run(Some(&random(2000.0, 1)), 4.0);
    assert_eq!(report.bottleneck, None, "{report:?}");
    assert_eq!(report.disturbed.len(), 1, "{report:?}");
    assert!((report.disturbed[0].at_s - 1.0).abs() < 1e-9);
    assert!(report.duration_s > 4.9, "{report:?}");
    // All requests count, those of the repeated second too; latency is of the others.
    assert!((9_500..10_500).contains(&report.requests), "{report:?}");
    assert!(report.latency.latency_max_us < 5000.0, "{report:?}");
    let remarks = report.remarks().join(" ");
    assert!(
        remarks.contains("another process had the generator's CPU for"),
        "{remarks}"
    );
}

#[test]
fn a_generator_that_never_gets_its_cpu_says_so() {
    let mut world = Simulated::new(10.0, 10, 500.0, 64);
    world.no_cpu = (0..1000)
        .map(|i| (i * 50 * MS, i * 50 * MS + 10 * MS))
        .collect();
    let report = world.run(Some(&random(2000.0, 1)), 3.0);
    assert_eq!(report.bottleneck, Some(Bottleneck::Neighbour), "{report:?}");
    // As many seconds were repeated as there may be.
    assert!((4.9..5.2).contains(&report.duration_s), "{report:?}");
}

#[test]
fn an_overload_of_a_generator_that_shares_its_cpu_is_not_the_service_s() {
    // A quarter of a CPU sends 12,500 of the 20,000 that are due. Each is sent at most 3 ms late by
    // the generator, and waits for seconds.
    let mut world = Simulated::new(20.0, 10, 300.0, 16);
    world.no_cpu = (0..2500)
        .map(|i| (i * 4 * MS, i * 4 * MS + 3 * MS))
        .collect();
    let report = world.run(Some(&random(20_000.0, 1)), 3.0);
    assert_eq!(report.bottleneck, Some(Bottleneck::Neighbour), "{report:?}");
    assert!(report.waited_share > 0.9, "{report:?}");
}

#[test]
fn a_generator_without_time_left_is_the_limit_though_no_connection_is_free() {
    // As under a tracer: half of the requests wait for the generator, and half for a connection
    // whose answer the generator has not read.
    let judged = |busy_ns| {
        let mut counts = Counts::new();
        for number in 0..1000 {
            let own_wait_ns = if number % 2 == 0 { 900 * MS } else { 0 };
            let times = RequestTimes {
                due_ns: 0,
                sent_ns: SECOND_NS,
                answered_ns: SECOND_NS + MS,
                own_wait_ns,
                own_read_ns: 0,
            };
            counts.kept.record(&times, true);
            counts.requests += 1;
        }
        (counts.busy_ns, counts.wall_ns) = (busy_ns, SECOND_NS);
        counts.kept.length_ns = SECOND_NS;
        let circumstances = Circumstances {
            is_closed_loop: false,
            threads: 1,
            planned_s: 1.0,
            duration_s: 1.0,
            neighbours: None,
            stolen_share: 0.0,
        };
        LoadReport::of(counts, &circumstances).bottleneck
    };
    assert_eq!(judged(SECOND_NS), Some(Bottleneck::Generator));
    assert_eq!(judged(SECOND_NS / 2), Some(Bottleneck::GeneratorAndService));
}

#[test]
fn one_late_moment_refuses_nothing() {
    let mut world = Simulated::new(10.0, 10, 500.0, 64);
    world.no_cpu = vec![(1500 * MS, 1505 * MS)];
    let report = world.run(Some(&random(2000.0, 1)), 3.0);
    assert_eq!(
        (report.bottleneck, report.disturbed.len()),
        (None, 0),
        "{report:?}"
    );
}

#[test]
fn a_hypervisor_that_always_takes_its_share_is_remarked() {
    let mut world = Simulated::new(10.0, 10, 500.0, 64);
    world.stolen_share = 0.03;
    let report = world.run(Some(&random(1000.0, 1)), 2.0);
    assert_eq!(report.bottleneck, None, "{report:?}");
    assert!(report.latency.latency_p50_us > 400.0, "{report:?}");
    let remarks = report.remarks().join(" ");
    assert!(remarks.contains("steal 3.0 %"), "{remarks}");
}

#[test]
fn answers_that_do_not_come_are_given_up() {
    let mut world = Simulated::new(10.0, 1, 1.0, 4);
    world.service_ns = 3600 * SECOND_NS;
    let report = world.run(Some(&random(5.0, 1)), 2.0);
    assert!(
        report.errors > 4 && report.errors == report.due,
        "{report:?}"
    );
    // Each of the four connections is given up, and another request with it.
    assert!(report.error_kinds[NO_ANSWER] >= 4, "{report:?}");
    assert!(report.error_kinds[NEVER_SENT] > 0, "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Wherever one of the two is clearly too slow for the load, and the other is not, that one is
    /// named.
    #[test]
    fn the_slower_one_is_named(
        generator_per_s in 2_000.0..30_000.0_f64,
        service_per_s in 2_000.0..30_000.0_f64,
        rate_share in prop_oneof![0.2..0.6_f64, 1.6..3.0_f64],
        servers in 1_usize..8,
        connections in 8_usize..64,
        busy_poll in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let lower = generator_per_s.min(service_per_s);
        prop_assume!(generator_per_s.max(service_per_s) > 2.0 * lower);
        let service_us = 1e6 * servers as f64 / service_per_s;
        let world = Simulated::new(1e6 / generator_per_s, servers, service_us, connections);
        let world = world.polling(busy_poll);
        // Not a case of too few connections.
        prop_assume!(world.per_s() > 0.95 * service_per_s);
        let arrivals = random(rate_share * lower, seed);
        let report = world.clone().run(Some(&arrivals), 1.0);
        // Where the load holds, a slow generator may still be most of a fast service's latency. At
        // the limit itself one request more or less decides, so those cases are left out.
        let limit_us = (0.1 * report.latency.latency_p99_us).max(1000.0);
        prop_assume!(!(0.95..1.05).contains(&(report.lateness_p99_us / limit_us)));
        let expected = match (rate_share > 1.0, generator_per_s < service_per_s) {
            (false, true) if report.lateness_p99_us > limit_us => Some(Bottleneck::Generator),
            (false, _) => None,
            (true, true) => Some(Bottleneck::Generator),
            (true, false) => Some(Bottleneck::Service),
        };
        prop_assert_eq!(report.bottleneck, expected, "{:?}", report);
    }

    /// A closed loop measures the lower of both capacities, and says whose it is.
    #[test]
    fn a_closed_loop_is_as_fast_as_the_slower_one(
        generator_us in 5.0..200.0_f64,
        service_us in 5.0..200.0_f64,
        busy_poll in any::<bool>(),
    ) {
        let world = Simulated::new(generator_us, 1, service_us, 32).polling(busy_poll);
        // Each request costs the generator a look for its answer, too, unless it comes with others.
        let with_look_us = generator_us + world.poll_ns as f64 / 1000.0;
        let ratio = generator_us / service_us;
        prop_assume!(ratio >= 1.4 || with_look_us / service_us < 0.7);
        let report = world.run(None, 1.0);
        let (slower_us, named) = if ratio > 1.0 {
            (generator_us, Bottleneck::Generator)
        } else {
            (service_us, Bottleneck::Service)
        };
        prop_assert_eq!(report.bottleneck, Some(named), "{:?}", report);
        let share = report.requests_per_s / (1e6 / slower_us);
        prop_assert!((0.9..1.05).contains(&share), "{} {:?}", share, report);
    }

    /// Every request is settled once: answered, failed or never sent.
    #[test]
    fn nothing_is_lost(
        generator_us in 5.0..500.0_f64,
        service_us in 5.0..5000.0_f64,
        per_s in 10.0..20_000.0_f64,
        connections in 1_usize..64,
        seed in any::<u64>(),
    ) {
        let arrivals = random(per_s, seed);
        let mut schedule = Schedule::new(&arrivals, 1.0, 0, 1);
        let mut due = 0;
        while schedule.peek().is_some() {
            schedule.advance();
            due += 1;
        }
        let report = Simulated::new(generator_us, 2, service_us, connections).run(Some(&arrivals), 1.0);
        prop_assert_eq!(report.due, due);
        prop_assert!(report.latency.latency_p50_us + 1.0 >= (service_us * 0.9).floor() || report.requests == 0);
    }
}
