//! Control groups v2 for real: a small guest whose cpu controller is on v2, whatever this host's is
//! on. Its only programs are a static busybox and `slackline`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::{Machine, Steps};

/// About 20 s on an idle machine.
const GUEST_TIMEOUT: Duration = Duration::from_secs(300);
const INIT: &str = include_str!("guest/init.sh");

fn json(steps: &Steps, name: &str, code: i32) -> Value {
    let text = steps.with_code(name, code);
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
}

/// Boots the guest and waits until it switches itself off.
fn boot(specs: &[(&str, &Value)]) -> Option<Steps> {
    let machine = Machine::new(INIT)?;
    machine.install(assert_cmd::cargo::cargo_bin!("slackline"));
    for (name, spec) in specs {
        machine.write(&format!("spec/{name}"), &spec.to_string());
    }
    let guest = machine.boot("cgroup_no_v1=all psi=1", &[]);
    Some(guest.finish(GUEST_TIMEOUT))
}

/// Each side in a group of its own, whose quota and burst differ.
fn quota_spec() -> Value {
    json!({
        "name": "quota",
        "seed": 1,
        "parameters": [{ "name": "hundredths", "type": "int", "low": 10, "high": 30, "default": 10 }],
        "initial": [{ "hundredths": 30 }],
        "target": {
            "start": ["sh", "-c", "while :; do :; done"],
            "quota": { "cores": "0.{hundredths}", "period_us": 50_000, "burst_us": 1000 },
            "ready": { "command": ["true"], "timeout_s": 20 },
            "stop": { "signal": "KILL", "grace_s": 5 },
        },
        "workload": {
            "command": ["sh", "-c", "sleep 0.5; echo '{\"requests\": 1000, \"latency_p99_us\": 1000}'"],
            "json": { "requests": "requests", "latency_p99_us": "latency_p99_us" },
        },
        "objective": { "metric": "latency_p99_us" },
        "constraints": ["throttled_periods <= 1000000"],
        "evaluation": { "warm_up_s": 0, "block_s": 0.5, "blocks": 2, "early_abort": false },
        "budget": { "evaluations": 2 },
        "verification": { "runs": 2 },
    })
}

/// Two files of an existing group as knobs beside a quota of its own; the load hangs once they are
/// changed.
fn kill_spec() -> Value {
    let mut spec = quota_spec();
    spec["parameters"] = json!([
        { "name": "limit", "type": "categorical", "values": ["20000 100000", "60000 50000"], "cgroup": "outer/cpu.max" },
        { "name": "burst", "type": "int", "low": 0, "high": 5000, "cgroup": "outer/cpu.max.burst" },
    ]);
    spec["initial"] = json!([{ "limit": "60000 50000", "burst": 5000 }]);
    spec["target"]["start"] = json!(["sleep", "999"]);
    spec["target"]["quota"] = json!({ "cores": 0.2 });
    let load = "[ $(cat /sys/fs/cgroup/outer/cpu.max.burst) = 1000 ] || { touch /tmp/measuring; sleep 90; }; \
                echo '{\"requests\": 1000, \"latency_p99_us\": 1000}'";
    spec["workload"]["command"] = json!(["sh", "-c", load]);
    spec
}

#[test]
fn a_host_of_cgroups_v2_is_watched_tuned_and_restored() {
    let (quota, kill) = (quota_spec(), kill_spec());
    let Some(steps) = boot(&[("quota.json", &quota), ("kill.json", &kill)]) else {
        return;
    };
    doctor(&steps);
    each_side_had_its_quota(&steps);
    nested_limits(&steps);
    killed_and_restored(&steps);
}

fn doctor(steps: &Steps) {
    let probes = json(steps, "doctor", 0);
    let probe = |name: &str| {
        let mut all = probes.as_array().unwrap().iter();
        all.find(|probe| probe["name"] == name).unwrap()["state"].clone()
    };
    assert_eq!(
        probe("cgroup cpu controller"),
        json!({ "available": { "detail": "v2 at /sys/fs/cgroup" } })
    );
    assert!(probe("privilege")["available"].is_object(), "{probes}");
    // A serial line has no width of its own.
    let is_whole = |row: &str| {
        let words: Vec<&str> = row.split_whitespace().collect();
        words
            .join(" ")
            .starts_with("cgroup cpu controller available: v2 at /sys/fs/cgroup tune:")
    };
    assert!(steps.console.lines().any(is_whole), "{}", steps.console);
}

fn each_side_had_its_quota(steps: &Steps) {
    // No improvement is shown: the load measures nothing.
    let report = json(steps, "quota", 1);
    let evaluations = report["evaluations"].as_array().unwrap();
    assert_eq!(evaluations.len(), 2, "{report}");
    for evaluation in evaluations {
        let hundredths = evaluation["configuration"]["hundredths"].as_f64().unwrap();
        let blocks = evaluation["blocks"].as_array().unwrap();
        assert_eq!(blocks.len(), 2, "{evaluation}");
        for (side, cores) in [("control", 0.1), ("experiment", hundredths / 100.0)] {
            let sum = |metric: &str| {
                let values = blocks.iter().map(|block| block[side][metric].as_f64());
                values.sum::<Option<f64>>().unwrap()
            };
            let used = sum("cpu_s") / sum("duration_s");
            assert!(used < cores + 0.3, "{side}: {used} of {cores} cores");
            assert!(used > 0.3 * cores, "{side}: {used} of {cores} cores");
            assert!(
                sum("throttled_periods") > 0.3 * sum("periods"),
                "{blocks:?}"
            );
            assert!(sum("throttled_s") > 0.0, "{blocks:?}");
        }
    }
    assert_eq!(steps.with_code("controllers", 0).trim(), "");
}

fn nested_limits(steps: &Steps) {
    let report = json(steps, "watch", 0);
    assert_eq!(report["group"], "outer/inner");
    assert_eq!(report["limited_by"], "outer");
    assert_eq!(
        report["limit"],
        json!({ "quota_us": 20_000, "period_us": 100_000, "burst_us": 1000 })
    );
    let cause = &report["verdict"]["cause"]["cause"];
    assert_eq!(cause, "quota_below_use", "{}", report["verdict"]);
    let counters = &report["counters"];
    assert!(
        counters["throttled_periods"].as_u64() > Some(5),
        "{counters}"
    );
    assert!(counters["throttled_s"].as_f64() > Some(0.0), "{counters}");
    let used = 1e6 * counters["cpu_s"].as_f64().unwrap()
        / report["observed"]["duration_us"].as_f64().unwrap();
    // Of two cores that they want. On a busy machine the guest's clocks run unevenly.
    assert!((0.1..0.5).contains(&used), "{used}");
    assert_eq!(report["observed"]["names"]["sh"]["threads"], 2, "{report}");
    let text = steps.with_code("watch_pid", 0);
    assert!(
        text.contains("0.20 cores in periods of 100 ms, burst 1 ms, of outer"),
        "{text}"
    );
    let text = steps.with_code("watch_free", 0);
    assert!(text.starts_with("Nothing to throttle"), "{text}");
}

fn killed_and_restored(steps: &Steps) {
    let killed = steps.with_code("killed", 0);
    for part in ["60000 50000", "\n5000\n", "/sys/fs/cgroup/slackline-"] {
        assert!(killed.contains(part), "{part}: {killed}\n{}", steps.console);
    }
    steps.with_code("refused", 2);
    let restored = steps.with_code("restore", 0);
    for part in [
        "20000 100000",
        "restored to 1000",
        "cgroup /sys/fs/cgroup/slackline-",
    ] {
        assert!(restored.contains(part), "{part}: {restored}");
    }
    assert_eq!(steps.with_code("after", 0), steps.with_code("before", 0));
}
