//! Everything that can die, dies at random moments: the controller, its watchdog, both, the batch
//! work, the service, and the source of the latency. `SLACKLINE_ISOLATE_KILLS` says how often; 100
//! takes a quarter of an hour.

use std::time::{Duration, Instant};

use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;

use super::{Bench, Group, signal};
use crate::eventually::eventually;
use crate::toy::{Ended, kill};

/// In CI: each kill of a controller once. The other ends have tests of their own.
const KILLS: usize = 3;
/// What a group is set to, of both versions.
const FILES: [&str; 9] = [
    "cpu.shares",
    "cpu.weight",
    "cpu.idle",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
    "cpu.cfs_burst_us",
    "cpu.max",
    "cpu.max.burst",
    "cgroup.freeze",
];

#[derive(Clone, Copy, Debug)]
enum Victim {
    Controller,
    Both,
    Watchdog,
    Source,
    Service,
    Work,
}

const VICTIMS: [Victim; 6] = [
    Victim::Controller,
    Victim::Both,
    Victim::Watchdog,
    Victim::Source,
    Victim::Service,
    Victim::Work,
];

fn settings(group: &Group) -> Vec<(&'static str, String)> {
    let read = |name| Some((name, std::fs::read_to_string(group.path.join(name)).ok()?));
    FILES.into_iter().filter_map(read).collect()
}

fn is_on(status: &Value) -> bool {
    let group = &status["groups"][0];
    group["settings"]["quota"].is_string() && group["settings"]["off"].is_null()
}

/// Waits until the batch work is off, for this reason, and says how long it took.
fn off(bench: &Bench, reason: &str) -> Duration {
    let began = Instant::now();
    bench.until(reason, |status| {
        Bench::is_off(status) && status["groups"][0]["reason"] == reason
    });
    began.elapsed()
}

/// One end of one of them; the longest time until the batch work was off, where that is what has to
/// happen.
fn once(bench: &Bench, work: &Group, service: &Group, victim: Victim, pause: Duration) -> Duration {
    let (mut serving, mut busy) = (service.sleeper(), work.sleeper());
    let mut child = bench.start();
    let mut took = Duration::ZERO;
    std::thread::sleep(pause);
    let watchdog = bench
        .status()
        .and_then(|status| status["watchdog_pid"].as_u64());
    match victim {
        Victim::Controller => kill([&mut child]),
        Victim::Both => {
            signal(watchdog.unwrap(), rustix::process::Signal::KILL);
            kill([&mut child]);
        }
        Victim::Watchdog => {
            signal(watchdog.unwrap(), rustix::process::Signal::KILL);
            bench.until("another watchdog", |status| {
                status["watchdog_pid"].as_u64() != watchdog
            });
        }
        Victim::Source => {
            bench.until("batch work", is_on);
            std::fs::remove_file(bench.toy.path("latency")).unwrap();
            took = off(bench, "no_data");
            bench.latency("1.0 5000");
            bench.until("batch work again", is_on);
        }
        Victim::Service => {
            bench.until("batch work", is_on);
            kill([&mut serving]);
            took = off(bench, "service_gone");
            serving = service.sleeper();
            bench.until("batch work again", is_on);
        }
        Victim::Work => {
            bench.until("batch work", is_on);
            kill([&mut busy]);
            bench.until("its end", |status| {
                status["groups"][0]["is_running"] == false
            });
            busy = work.sleeper();
            bench.until("batch work again", is_on);
        }
    }
    if let Ok(None) = child.try_wait() {
        signal(child.id().into(), rustix::process::Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(143), "{victim:?}");
    } else if matches!(victim, Victim::Both) {
        Ended::of(bench.toy.slackline(&["restore"])).with_code(0);
    }
    kill([&mut serving, &mut busy]);
    took
}

#[test]
fn whatever_dies_everything_is_as_it_was() {
    let Some(bench) = Bench::new("kills") else {
        return;
    };
    let (Some(service), Some(work)) = (Group::new("kills-service"), Group::new("kills-work"))
    else {
        return;
    };
    bench.config_of(
        &format!("cgroup = \"{}\"", service.name),
        &format!("cgroup = \"{}\"", work.name),
        "",
    );
    let before = (settings(&service), settings(&work));
    let count = std::env::var("SLACKLINE_ISOLATE_KILLS").map(|text| text.parse().unwrap());
    let mut chance = rand_chacha::ChaCha8Rng::seed_from_u64(46);
    let (mut slowest, mut done) = (Duration::ZERO, 0);
    for victim in VICTIMS.into_iter().cycle().take(count.unwrap_or(KILLS)) {
        // Until then batch work may be off, on, or growing.
        let pause = Duration::from_millis(chance.random_range(0..3000));
        slowest = slowest.max(once(&bench, &work, &service, victim, pause));
        let now = || (settings(&service), settings(&work));
        let what = || {
            format!(
                "after {done} kills and {victim:?}: {:?} is not {before:?}",
                now()
            )
        };
        eventually(120, || now() == before, what);
        done += 1;
    }
    eprintln!("{done} kills; without data or service, batch work was off within {slowest:.1?}");
}
