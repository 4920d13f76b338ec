//! `slackline worker` from outside: one coordinator, workers in network namespaces, PostgreSQL and
//! NATS with TLS and passwords; any of them is killed or cut off, and every evaluation ends once.
//!
//! `cargo xtask stress workers` runs the same for half an hour with eight workers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Part};
use crate::eventually::eventually;

/// What happens, how often compared with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillWorker,
    CutOff,
    KillCoordinator,
    KillNats,
    RestartPostgres,
}

/// A part that is away, until then.
struct Away {
    part: Part,
    until: Instant,
}

/// An experiment on the only knob of each namespace.
fn spec(name: &str, evaluations: usize, at_once: usize, measure_s: f64) -> Value {
    let script = format!(
        r#"v=$(cat /proc/sys/net/ipv4/tcp_fin_timeout); n=$(od -An -N1 -tu1 /dev/urandom)
sleep {measure_s}; us=$(( (v-40)*(v-40) + 5000 + n )); echo "{{\"requests\": 1000, \"latency_p99_us\": $us}}""#
    );
    json!({
        "name": name,
        "parameters": [{ "name": "fin", "type": "int", "low": 10, "high": 120, "sysctl": "net.ipv4.tcp_fin_timeout" }],
        "target": {
            "start": ["sleep", "1000"],
            "ready": { "command": ["true"], "timeout_s": 10 },
            "stop": { "signal": "TERM", "grace_s": 1 },
        },
        "workload": {
            "command": ["sh", "-c", script],
            "json": { "requests": "requests", "latency_p99_us": "latency_p99_us" },
        },
        "objective": { "metric": "latency_p99_us" },
        "evaluation": { "warm_up_s": 0, "block_s": 0.05, "blocks": 3, "early_abort": false },
        "budget": { "evaluations": evaluations },
        "verification": { "runs": 3 },
        "search": { "strategy": "random" },
        "workers": { "at_once": at_once, "labels": { "rack": "test" } },
    })
}

struct Plan {
    workers: usize,
    time: Duration,
    lease_s: f64,
    /// Seconds between faults.
    pause_s: (f64, f64),
    /// Seconds that a part is away.
    away_s: (f64, f64),
    /// The first time that NATS goes, for so long.
    first_nats_away_s: f64,
    experiments: usize,
    evaluations: usize,
    measure_s: f64,
    faults: &'static [(Fault, u32)],
}

/// Faults that come at random times, and the parts that are away because of them.
struct Faults<'a> {
    plan: &'a Plan,
    rng: ChaCha8Rng,
    /// Each kind once, then at random.
    order: Vec<Fault>,
    next: Instant,
    away: Vec<Away>,
    happened: BTreeMap<Fault, usize>,
}

impl<'a> Faults<'a> {
    fn new(plan: &'a Plan, began: Instant) -> Self {
        Self {
            plan,
            rng: ChaCha8Rng::seed_from_u64(11),
            order: plan.faults.iter().map(|(fault, _)| *fault).collect(),
            next: began + Duration::from_secs(1),
            away: Vec::new(),
            happened: BTreeMap::new(),
        }
    }

    /// Brings back the parts whose time is over, or all.
    fn bring_back(&mut self, cluster: &mut Cluster, all: bool) {
        let now = Instant::now();
        let (back, still): (Vec<Away>, Vec<Away>) = std::mem::take(&mut self.away)
            .into_iter()
            .partition(|it| it.until <= now || all);
        self.away = still;
        for it in back {
            cluster.bring_back(it.part);
        }
    }

    /// Takes a part away, if it is time and the part is there.
    fn strike(&mut self, cluster: &mut Cluster) {
        let (now, plan, rng) = (Instant::now(), self.plan, &mut self.rng);
        if now < self.next {
            return;
        }
        let pause = rng.random_range(plan.pause_s.0..plan.pause_s.1);
        self.next = now + Duration::from_secs_f64(pause);
        let fault = match self.order.is_empty() {
            false => self.order.remove(0),
            true => plan.faults.choose_weighted(rng, |it| it.1).unwrap().0,
        };
        let part = match fault {
            Fault::KillWorker => Part::Worker(rng.random_range(0..plan.workers)),
            Fault::CutOff => Part::Link(rng.random_range(0..plan.workers)),
            Fault::KillCoordinator => Part::Coordinator,
            Fault::KillNats => Part::Nats,
            Fault::RestartPostgres => Part::Postgres,
        };
        if !cluster.is_there(part) {
            return;
        }
        let count = self.happened.entry(fault).or_default();
        *count += 1;
        cluster.take_away(part);
        let away_s = match (fault, *count) {
            (Fault::KillNats, 1) => plan.first_nats_away_s,
            _ => rng.random_range(plan.away_s.0..plan.away_s.1),
        };
        let until = now + Duration::from_secs_f64(away_s);
        self.away.push(Away { part, until });
    }
}

/// Every evaluation of an experiment ended once, with what its configuration says. How many each
/// host measured is added to `by_host`.
fn check_report(plan: &Plan, report: &Value, by_host: &mut BTreeMap<String, usize>) {
    let measured = report["evaluations"].as_array().unwrap();
    let numbers: Vec<u64> = measured
        .iter()
        .map(|it| it["number"].as_u64().unwrap())
        .collect();
    let budget = plan.evaluations as u64;
    assert_eq!(
        numbers,
        (1..=budget).collect::<Vec<_>>(),
        "each once, none lost"
    );
    for it in measured {
        assert_eq!(it["outcome"], "completed", "{it}");
        assert_eq!(
            it["blocks"].as_array().unwrap().len(),
            3,
            "of one attempt: {it}"
        );
        // The knob was what the configuration says, on both sides, in that host's own namespace.
        let fin = it["configuration"]["fin"].as_i64().unwrap();
        for block in it["blocks"].as_array().unwrap() {
            for (side, value) in [("control", 60), ("experiment", fin)] {
                let us = block[side]["latency_p99_us"].as_f64().unwrap();
                let least = ((value - 40).pow(2) + 5000) as f64;
                assert!(
                    (least..least + 256.0).contains(&us),
                    "{side} at {value}: {it}"
                );
            }
        }
        let host = it["host"].as_str().unwrap().to_owned();
        *by_host.entry(host).or_default() += 1;
    }
    // A search of so few may find nothing better than the control.
    let is_control = report["recommended"]["configuration"] == report["control"];
    let verified = report["verification"].as_array().unwrap();
    assert_eq!(verified.is_empty(), is_control, "{report}");
    for arm in verified {
        assert_eq!(
            (&arm["runs"], &arm["blocks"]),
            (&json!(3), &json!(9)),
            "{arm}"
        );
    }
}

/// Runs experiments while parts are killed and cut off, and checks what is left. What happened, for
/// the record.
fn stress(plan: &Plan) -> Option<String> {
    let mut cluster = Cluster::start(plan.workers, plan.lease_s)?;
    let began = Instant::now();
    let mut faults = Faults::new(plan, began);
    let mut made = 0;
    loop {
        let is_over = began.elapsed() > plan.time;
        faults.bring_back(&mut cluster, is_over);
        if is_over {
            break;
        }
        // As many experiments as there may be at once; another as one is done.
        if cluster.is_there(Part::Coordinator) {
            let unfinished = cluster.unfinished();
            if unfinished.is_some_and(|count| count < plan.experiments) {
                made += 1;
                let name = format!("stress {made}");
                let at_once = plan.workers.div_ceil(2);
                let spec = spec(&name, plan.evaluations, at_once, plan.measure_s);
                cluster.create(&spec);
            }
        }
        faults.strike(&mut cluster);
        std::thread::sleep(Duration::from_millis(100));
    }
    let faults_ended = began.elapsed();
    cluster.wait_until_all_rest(Duration::from_secs(300));
    let mut by_host: BTreeMap<String, usize> = BTreeMap::new();
    let all = cluster.get("/experiments");
    let all = all.as_array().unwrap();
    assert!(!all.is_empty());
    for shown in all {
        assert_eq!(shown["state"], "done", "{shown}");
        let report = cluster.export(shown["id"].as_i64().unwrap());
        check_report(plan, &report, &mut by_host);
    }
    let late = cluster.said("came too late");
    let undone = cluster.said("an earlier run was killed");
    cluster.end();
    let happened = faults.happened;
    for (fault, _) in plan.faults {
        assert!(happened.contains_key(fault), "{fault:?} did not happen");
    }
    Some(format!(
        "{} workers, {:.0} s of faults {happened:?}; {} experiments, {} evaluations, each ended once; \
         {late} late results refused, {undone} killed workers' hosts restored at their next start; by host {by_host:?}",
        plan.workers,
        faults_ended.as_secs_f64(),
        all.len(),
        by_host.values().sum::<usize>(),
    ))
}

#[test]
fn of_two_workers_of_one_name_one_is_refused_and_both_sides_say_so() {
    let Some(mut cluster) = Cluster::start(1, 1.5) else {
        return;
    };
    let wait_for = |holds: &dyn Fn() -> bool, what: &str, cluster: &Cluster| {
        let logs = || {
            format!(
                "{what}:\n{}\n{}",
                cluster.log("w0.log"),
                cluster.log("serve.log")
            )
        };
        eventually(20, holds, logs);
    };
    let workers = |cluster: &Cluster| cluster.get("/workers")["workers"].clone();
    let is_there = || workers(&cluster)[0]["name"] == "w0";
    wait_for(&is_there, "the first is not there", &cluster);
    let says_so = || {
        cluster
            .log("w0.log")
            .contains("worker \"w0\" waits for orders")
    };
    wait_for(&says_so, "the first does not say it", &cluster);
    // On one host the later one has the name, as it has after the earlier one was killed.
    let mut twin = cluster.twin(0);
    let refusal =
        "another worker named \"w0\" is alive, started later on this host. If the other worker";
    let is_refused = || cluster.log("w0.log").contains(refusal);
    wait_for(&is_refused, "the first is not told", &cluster);
    let complaint = "two workers are named \"w0\"";
    let is_said = || cluster.log("serve.log").contains(complaint);
    wait_for(&is_said, "the coordinator does not say it", &cluster);
    let shown = workers(&cluster);
    assert!(
        shown[0]["complaint"].as_str().unwrap().contains(complaint),
        "{shown}"
    );
    assert!(!cluster.log("twin.log").contains("another worker"));
    cluster.create(&spec("one of two", 3, 2, 0.05));
    cluster.wait_until_all_rest(Duration::from_secs(60));
    assert_eq!(cluster.get("/experiments")[0]["state"], "done");
    let said = cluster.log("twin.log") + &cluster.log("w0.log");
    assert!(!said.contains("came too late"), "{said}");
    twin.kill().unwrap();
    twin.wait().unwrap();
    let is_back = || cluster.log("w0.log").contains("the server answers");
    wait_for(&is_back, "the first does not follow", &cluster);
    // Killed and started again it has its name at once.
    cluster.take_away(Part::Worker(0));
    cluster.bring_back(Part::Worker(0));
    cluster.create(&spec("started again", 3, 2, 0.05));
    cluster.wait_until_all_rest(Duration::from_secs(60));
    assert_eq!(
        cluster.said("another worker"),
        1,
        "{}",
        cluster.log("w0.log")
    );
    assert_eq!(cluster.log("serve.log").matches(complaint).count(), 1);
    cluster.end();
}

#[test]
fn a_worker_that_cannot_measure_leaves_it_to_others_and_costs_nothing() {
    let Some(mut cluster) = Cluster::start(2, 1.5) else {
        return;
    };
    let restart = |cluster: &mut Cluster, key: &str| {
        cluster.configure_worker(1, key);
        cluster.take_away(Part::Worker(1));
        cluster.bring_back(Part::Worker(1));
    };
    let key = cluster.log("state/signing.pub");
    // Long enough for the other one to have been in the way of all of them.
    let mut unsigned = spec("unsigned", 4, 2, 0.3);
    unsigned["verification"] = json!({ "runs": 2, "max_runs": 2 });
    let mut unstarted = unsigned.clone();
    unstarted["name"] = json!("unstarted");
    // The control is the first to be waited for.
    let only_first = "ip -o addr show eth0 | grep -q '\\.10/'";
    unstarted["target"]["ready"] = json!({ "command": ["sh", "-c", only_first], "timeout_s": 0.5 });
    let of_others = "5a".repeat(32);
    let cases = [
        (
            unsigned,
            of_others.as_str(),
            "the command",
            "the order is not signed with a key that it knows",
        ),
        (unstarted, key.trim(), "control: ", ""),
    ];
    for (id, (spec, key, begins, has)) in (1..).zip(cases) {
        restart(&mut cluster, key);
        cluster.create(&spec);
        cluster.wait_until_all_rest(Duration::from_secs(60));
        let report = cluster.export(id);
        let evaluations = report["evaluations"].as_array().unwrap();
        assert_eq!(evaluations.len(), 4, "{report}");
        for it in evaluations {
            let seen = (&it["outcome"], &it["host"]);
            assert_eq!(seen, (&json!("completed"), &json!("w0")));
        }
        for arm in report["verification"].as_array().unwrap() {
            assert_eq!(arm["runs"], 2, "{arm}");
        }
        assert!(cluster.log("w1.log").contains(has));
        let said = format!("worker \"w1\" cannot measure experiment {id}: {begins}");
        assert!(
            cluster.log("serve.log").contains(&said),
            "{}",
            cluster.log("serve.log")
        );
        let workers = cluster.get("/workers")["workers"].clone();
        let complaint = workers[1]["complaint"].as_str().unwrap();
        assert!(complaint.starts_with(&said), "{complaint}");
    }

    // Where none can, it ends.
    let mut none = spec("none can", 4, 2, 0.05);
    none["target"]["ready"] = json!({ "command": ["false"], "timeout_s": 0.5 });
    cluster.create(&none);
    cluster.wait_until_all_rest(Duration::from_secs(60));
    let shown = cluster.get("/experiments");
    let states: BTreeMap<&str, &str> = shown
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["state"].as_str().unwrap()))
        .collect();
    let all = [
        ("none can", "failed"),
        ("unsigned", "done"),
        ("unstarted", "done"),
    ];
    assert_eq!(states, BTreeMap::from(all));
    let message = shown[0]["message"]
        .as_str()
        .or(shown[2]["message"].as_str());
    let message = message.unwrap();
    assert!(
        message.starts_with("no worker can measure it; the last reason: \"w1\": control: "),
        "{message}"
    );
    cluster.end();
}

#[test]
fn killed_and_cut_off_at_random_every_evaluation_ends_once() {
    let minutes = std::env::var("SLACKLINE_STRESS_MINUTES").ok();
    let minutes: Option<f64> = minutes.map(|text| text.parse().expect("minutes"));
    let plan = match minutes {
        Some(minutes) => Plan {
            workers: 8,
            time: Duration::from_secs_f64(minutes * 60.0),
            lease_s: 4.0,
            pause_s: (1.0, 6.0),
            away_s: (0.2, 15.0),
            first_nats_away_s: if minutes < 10.0 { 15.0 } else { 300.0 },
            experiments: 3,
            evaluations: 40,
            measure_s: 0.7,
            faults: &[
                (Fault::KillWorker, 10),
                (Fault::CutOff, 10),
                (Fault::KillCoordinator, 3),
                (Fault::KillNats, 2),
                (Fault::RestartPostgres, 2),
            ],
        },
        None => Plan {
            workers: 3,
            time: Duration::from_secs(9),
            lease_s: 1.5,
            pause_s: (0.8, 1.6),
            away_s: (0.2, 1.5),
            first_nats_away_s: 1.0,
            experiments: 1,
            evaluations: 8,
            measure_s: 0.08,
            faults: &[
                (Fault::KillWorker, 3),
                (Fault::CutOff, 3),
                (Fault::KillCoordinator, 1),
                (Fault::KillNats, 1),
            ],
        },
    };
    if let Some(record) = stress(&plan) {
        println!("{record}");
    }
}
