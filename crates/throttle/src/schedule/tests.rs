//! Threads followed, event by event.

use super::*;

const MS: u64 = 1_000_000;

fn switch(previous: u32, previous_is_runnable: bool, next: u32) -> SchedEvent {
    SchedEvent::Switch {
        cpu: 0,
        previous,
        left: if previous_is_runnable {
            SwitchOut::Runnable
        } else {
            SwitchOut::Sleeping
        },
        next,
    }
}

#[test]
fn a_wait_between_wakeup_and_cpu_is_run_queue_delay() {
    let mut schedule = SchedTrace::new(0);
    schedule.add(7, "worker");
    schedule.take(5 * MS, SchedEvent::Wakeup { thread: 7 });
    schedule.take(8 * MS, switch(0, false, 7));
    schedule.take(18 * MS, switch(7, false, 0));
    let observed = schedule.finish(40 * MS);
    let worker = &observed.names["worker"];
    assert_eq!(
        (worker.waits, worker.waited_us, worker.cpu_us),
        (1, 3000.0, 10_000.0)
    );
    assert_eq!(observed.cores.windows(), 4);
    assert_eq!((observed.cores.bins[2], observed.cores.bins[8]), (1, 1));
    assert!((observed.runnable_mean - 13.0 / 40.0).abs() < 1e-9);
}

#[test]
fn preempted_threads_go_on_wanting() {
    let mut schedule = SchedTrace::new(0);
    schedule.add(1, "a");
    schedule.add(2, "a");
    schedule.take(0, switch(0, false, 1));
    schedule.take(0, SchedEvent::Wakeup { thread: 2 });
    schedule.take(10 * MS, switch(1, true, 2));
    schedule.take(20 * MS, switch(2, false, 1));
    let observed = schedule.finish(30 * MS);
    assert_eq!(observed.runnable_max, 2);
    let a = &observed.names["a"];
    assert_eq!(
        (a.threads, a.waits, a.cpu_us, a.waited_max_us),
        (2, 3, 30_000.0, 10_000.0)
    );
    assert_eq!(a.woken_at_once_max, 2);
}

#[test]
fn waits_are_for_others_where_a_cpu_of_the_group_runs_one() {
    let on = |cpu: usize, previous: u32, next: u32| SchedEvent::Switch {
        cpu,
        previous,
        left: SwitchOut::Runnable,
        next,
    };
    let mut schedule = SchedTrace::new(0);
    (1..=4).for_each(|thread| schedule.add(thread, "a"));
    // Strangers where the group never runs are in nobody's way.
    schedule.take(0, on(7, 0, 90));
    schedule.take(0, on(0, 0, 1));
    // Three wait for each other on CPUs 0 and 1…
    schedule.take(0, on(1, 0, 2));
    schedule.take(0, SchedEvent::Wakeup { thread: 3 });
    schedule.take(0, SchedEvent::Wakeup { thread: 4 });
    // …until a stranger takes one of them, for 5 ms, and both, for 2 ms.
    schedule.take(10 * MS, on(0, 1, 91));
    schedule.take(15 * MS, on(1, 2, 92));
    schedule.take(17 * MS, on(0, 91, 1));
    schedule.take(17 * MS, on(1, 92, 2));
    let observed = schedule.finish(20 * MS);
    assert_eq!((observed.cpus, observed.waited_for_others_us), (2, 9000.0));
}

#[test]
fn a_job_lasts_from_waking_to_sleeping() {
    let mut schedule = SchedTrace::recorder(0);
    schedule.add(7, "worker");
    schedule.add(8, "worker");
    schedule.take(5 * MS, SchedEvent::Wakeup { thread: 7 });
    schedule.take(8 * MS, switch(0, false, 7));
    // Preempted in between.
    schedule.take(10 * MS, switch(7, true, 0));
    schedule.take(14 * MS, switch(0, false, 7));
    schedule.take(17 * MS, switch(7, false, 8));
    let recording = schedule.recording(20 * MS);
    let work = Work::Recorded(vec![
        Job {
            at_us: 5000.0,
            cpu_us: 5000.0,
            process: 0,
        },
        Job {
            at_us: 17_000.0,
            cpu_us: 3000.0,
            process: 0,
        },
    ]);
    assert_eq!(recording.service.pools[0].work, work);
    assert_eq!(recording.service.pools[0].threads, 2);
    assert_eq!(recording.latencies_us, [[12_000.0]]);
}

#[test]
fn a_job_is_of_the_process_of_its_thread() {
    let mut schedule = SchedTrace::recorder(0);
    for (thread, process) in [(7, 70), (8, 80), (9, 0), (10, 70)] {
        schedule.add(thread, "worker");
        schedule.set_process(thread, process);
    }
    for (at, thread) in [(1, 8), (2, 9), (3, 7), (4, 10)] {
        schedule.take(at * MS, switch(0, false, thread));
        schedule.take(at * MS + MS / 2, switch(thread, false, 0));
    }
    let recording = schedule.recording(20 * MS);
    let Work::Recorded(jobs) = &recording.service.pools[0].work else {
        panic!("{recording:?}");
    };
    let processes: Vec<usize> = jobs.iter().map(|job| job.process).collect();
    assert_eq!(processes, [1, 2, 0, 0], "the one that is not known is last");
}

#[test]
fn children_belong_to_the_group_and_strangers_do_not() {
    let mut schedule = SchedTrace::new(0);
    schedule.add(1, "a");
    schedule.take(
        0,
        SchedEvent::Fork {
            parent: 1,
            child: 2,
        },
    );
    schedule.take(
        0,
        SchedEvent::Fork {
            parent: 9,
            child: 10,
        },
    );
    schedule.take(0, switch(0, false, 10));
    schedule.take(MS, switch(10, false, 2));
    // Its own name was not known at the fork.
    schedule.add(2, "worker-17");
    schedule.take(3 * MS, switch(2, false, 0));
    let observed = schedule.finish(3 * MS);
    assert_eq!(observed.cpu_us, 2000.0);
    let threads = |name: &str| observed.names[name].threads;
    assert_eq!((threads("a"), threads("worker-*")), (1, 1));
}

#[test]
fn threads_that_come_and_go_are_as_many_as_there_were_at_once() {
    let fork = |child| SchedEvent::Fork { parent: 1, child };
    let exit = |previous| SchedEvent::Switch {
        cpu: 0,
        previous,
        left: SwitchOut::Dead,
        next: 0,
    };
    let mut schedule = SchedTrace::recorder(0);
    schedule.add(1, "a");
    // Always two at a time; numbers are used again.
    for number in 0..100 {
        let child = 10 + u32::try_from(number % 7).unwrap();
        schedule.take(number * MS, fork(child));
        schedule.take(number * MS, switch(0, false, child));
        schedule.take((number + 1) * MS, exit(child));
    }
    // One that was found before its fork was read keeps its name.
    schedule.add(99, "b");
    schedule.take(100 * MS, fork(99));
    let recording = schedule.clone().recording(100 * MS);
    let pool = &recording.service.pools[0];
    assert_eq!((pool.threads, recording.latencies_us[0].len()), (2, 100));
    let observed = schedule.finish(100 * MS);
    let threads = |name: &str| observed.names[name].threads;
    assert_eq!((threads("a"), threads("b")), (2, 1));
    assert_eq!(observed.cpu_us, 100_000.0);
}

#[test]
fn what_leaves_the_group_counts_until_then() {
    let mut schedule = SchedTrace::new(0);
    (1..=3).for_each(|thread| schedule.add(thread, "a"));
    schedule.take(0, switch(0, false, 1));
    schedule.take(0, SchedEvent::Wakeup { thread: 2 });
    schedule.take(10 * MS, SchedEvent::Wakeup { thread: 9 });
    (1..=3).for_each(|thread| schedule.forget(thread));
    schedule.take(20 * MS, switch(1, true, 2));
    schedule.take(30 * MS, switch(2, false, 0));
    let observed = schedule.finish(40 * MS);
    assert_eq!((observed.cpu_us, observed.gaps), (10_000.0, 0));
    assert_eq!((observed.runnable_mean, observed.runnable_max), (0.5, 2));
}

#[test]
fn a_switch_that_was_not_seen_costs_little() {
    let mut schedule = SchedTrace::new(0);
    schedule.add(1, "a");
    schedule.add(2, "a");
    schedule.take(2 * MS, switch(1, false, 0));
    // The switch to 2, some time in between, is missing.
    schedule.take(5 * MS, switch(2, false, 0));
    // From idleness to 1 is missing, but its wake-up is there.
    schedule.take(7 * MS, SchedEvent::Wakeup { thread: 1 });
    schedule.take(8 * MS, switch(1, false, 0));
    let observed = schedule.finish(9 * MS);
    assert_eq!((observed.cpu_us, observed.gaps), (3000.0, 1));
}

#[test]
fn ten_thousand_threads_share_a_bounded_number_of_names() {
    let mut schedule = SchedTrace::new(0);
    for thread in 1..=10_000 {
        schedule.add(thread, &format!("worker-{thread}-of-many"));
    }
    for thread in 1..=10_000 {
        schedule.take(MS, SchedEvent::Wakeup { thread });
    }
    let observed = schedule.finish(2 * MS);
    assert_eq!(observed.runnable_max, 10_000);
    assert_eq!(observed.names.len(), NAMES_MAX + 1);
    assert_eq!(observed.names["(other)"].threads, 10_000 - NAMES_MAX);
}

#[test]
fn what_ran_before_the_watch_counts_from_its_start() {
    let mut schedule = SchedTrace::new(100 * MS);
    schedule.add(1, "a");
    schedule.take(104 * MS, switch(1, false, 0));
    assert_eq!(schedule.finish(110 * MS).cpu_us, 4000.0);
}

/// Whatever is seen, and whatever is missed, what is counted on the way is what a count of all
/// says.
#[test]
fn counts_are_kept_whatever_comes() {
    let mut state = 7_u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..300 {
        let mut schedule = SchedTrace::new(0);
        for step in 0..200 {
            let thread = u32::try_from(draw(8)).unwrap();
            let other = u32::try_from(draw(8)).unwrap();
            let event = match draw(8) {
                0 => SchedEvent::Wakeup { thread },
                1 => SchedEvent::Fork {
                    parent: thread,
                    child: other,
                },
                2 if thread > 0 => {
                    schedule.add(thread, ["a", "b"][usize::from(other > 3)]);
                    continue;
                }
                3 if draw(4) == 0 => {
                    schedule.forget(thread);
                    continue;
                }
                _ => SchedEvent::Switch {
                    cpu: usize::try_from(draw(3)).unwrap(),
                    previous: thread,
                    left: [SwitchOut::Runnable, SwitchOut::Sleeping, SwitchOut::Dead]
                        [usize::try_from(draw(3)).unwrap()],
                    next: other,
                },
            };
            schedule.take(step * MS + draw(MS), event);
            let in_state = |is_it: fn(&State) -> bool| {
                let threads = schedule.threads.values();
                threads.filter(|thread| is_it(&thread.state)).count()
            };
            assert_eq!(
                (schedule.waiting, schedule.runnable),
                (
                    in_state(|state| matches!(state, State::Waiting { .. })),
                    in_state(|state| *state != State::Sleeping)
                )
            );
            let taken = schedule.cpus.values().filter(|cpu| cpu.is_taken).count();
            let named: usize = schedule.names.iter().map(|name| name.threads).sum();
            let unnamed: usize = schedule.names.iter().map(|name| name.unnamed).sum();
            let without_name = schedule.threads.values().filter(|thread| !thread.is_named);
            assert_eq!(
                (schedule.taken, named, unnamed),
                (taken, schedule.threads.len(), without_name.count())
            );
        }
        let observed = schedule.finish(300 * MS);
        assert!(observed.cores.mean() <= 3.0, "{}", observed.cores.mean());
    }
}

/// Eight cluster workers of Node.js: each has one busy thread, and seven that sleep.
#[test]
fn a_pool_of_processes_is_counted_by_what_is_busy() {
    let mut schedule = SchedTrace::new(0);
    for process in 1..=8_u32 {
        for thread in 0..8 {
            let thread = process * 100 + thread;
            schedule.add(thread, "node");
            schedule.set_process(thread, process);
        }
    }
    let mut now = 0;
    for process in 1..=8_u32 {
        let busy = process * 100;
        schedule.take(
            now,
            SchedEvent::Switch {
                cpu: 0,
                previous: 0,
                left: SwitchOut::Runnable,
                next: busy,
            },
        );
        now += 5_000_000;
        schedule.take(
            now,
            SchedEvent::Switch {
                cpu: 0,
                previous: busy,
                left: SwitchOut::Sleeping,
                next: 0,
            },
        );
        // A thread that tidies up for a moment is not busy.
        let idle = busy + 1;
        schedule.take(
            now,
            SchedEvent::Switch {
                cpu: 0,
                previous: 0,
                left: SwitchOut::Runnable,
                next: idle,
            },
        );
        now += 10_000;
        schedule.take(
            now,
            SchedEvent::Switch {
                cpu: 0,
                previous: idle,
                left: SwitchOut::Sleeping,
                next: 0,
            },
        );
    }
    let observed = schedule.finish(now);
    let node = &observed.names["node"];
    assert_eq!((node.threads, node.processes, node.busy), (64, 8, 8));
    assert_eq!(node.size(), 8);
    assert_eq!(
        node.describe("node"),
        "a pool of 8 processes named node (one busy thread each)"
    );
    let threads = ThreadNameStats {
        threads: 40,
        processes: 1,
        busy: 3,
        ..ThreadNameStats::default()
    };
    assert_eq!(threads.describe("w"), "a pool of 40 threads named w");
    // PHP-FPM's children that have nothing to do are of the pool.
    let children = ThreadNameStats {
        threads: 50,
        processes: 50,
        busy: 8,
        ..ThreadNameStats::default()
    };
    assert_eq!(children.size(), 50);
}
