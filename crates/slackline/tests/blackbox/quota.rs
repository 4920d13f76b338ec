//! Services under a CPU quota: each side in a control group of its own, which goes with it.

use std::path::PathBuf;

use host::{Hierarchies, Roots};
use serde_json::{Value, json};

use crate::signals::HANG_ON_EXPERIMENT;
use crate::toy::{Ended, Toy, skip};

/// A service that wants a whole core and gets less than a tenth, so that it is throttled on a busy
/// machine too.
fn greedy() -> Toy {
    let mut toy = Toy::new();
    toy.spec["parameters"][0]["low"] = json!(20);
    toy.spec["parameters"][0]["high"] = json!(90);
    toy.spec["target"]["start"] = json!(["sh", "-c", "while :; do :; done"]);
    toy.spec["target"]["quota"] = json!({ "cores": "0.0{x}", "period_us": 50_000 });
    toy
}

/// The group that a run made.
fn group_of(run: u32) -> PathBuf {
    let hierarchies = Hierarchies::of(&Roots::default());
    let (_, base) = hierarchies.require("cpu").unwrap();
    base.join(format!("slackline-{run}"))
}

/// Whether control groups can be made here; says why not.
fn can_make_groups() -> bool {
    let state = tempfile::tempdir().unwrap();
    let name = state.path().file_name().unwrap().to_str().unwrap();
    let mut journal = host::Journal::open(state.path()).unwrap();
    let made = journal.make_cgroup(&Roots::default(), name);
    let _ = journal.restore(&Roots::default(), false);
    made.inspect_err(|error| skip(error)).is_ok()
}

#[test]
fn each_side_has_its_quota_and_counts_what_it_throttled() {
    if !can_make_groups() {
        return;
    }
    let mut toy = greedy();
    toy.spec["evaluation"]["block_s"] = json!(0.5);
    toy.spec["budget"]["evaluations"] = json!(2);
    toy.spec["constraints"] = json!(["throttled_periods <= 1000000"]);
    toy.load_after("sleep 0.5");
    let report = toy.path("report.json");
    let run = toy
        .tune(&["--json", report.to_str().unwrap()])
        .spawn()
        .unwrap();
    let group = group_of(run.id());
    let _ = Ended::from(run.wait_with_output().unwrap());
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    for evaluation in report["evaluations"].as_array().unwrap() {
        let x = evaluation["configuration"]["x"].as_f64().unwrap();
        let blocks = evaluation["blocks"].as_array().unwrap();
        assert_eq!(blocks.len(), 3, "{evaluation}");
        for (side, cores) in [("control", 0.05), ("experiment", x / 1000.0)] {
            let sum = |metric: &str| {
                let values = blocks.iter().map(|block| block[side][metric].as_f64());
                values.sum::<Option<f64>>().unwrap()
            };
            // A neighbour can take CPU time from it; the quota is never exceeded by more than
            // slices.
            let used = sum("cpu_s") / sum("duration_s");
            assert!(used < cores + 0.04, "{side}: {used} of {cores} cores");
            assert!(used > 0.3 * cores, "{side}: {used} of {cores} cores");
            assert!(
                sum("throttled_periods") > 0.3 * sum("periods"),
                "{blocks:?}"
            );
            assert!(sum("throttled_s") > 0.0 && sum("context_switches") > 0.0);
        }
    }
    toy.assert_as_before("after a tune under a quota");
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn a_killed_run_leaves_no_group_after_a_restore() {
    if !can_make_groups() {
        return;
    }
    let mut toy = greedy();
    // One that leaves the process group, forgets its environment, and moves into a group of its own
    // below.
    let escape = "for d in $(sed -n 's/^[0-9]*:cpu[^:]*:/\\/sys\\/fs\\/cgroup\\/cpu/p' /proc/self/cgroup); do mkdir $d/own; \
                  setsid env -i sh -c \"echo \\$\\$ > $d/own/cgroup.procs; exec sleep 999\" & done; while :; do :; done";
    toy.spec["target"]["start"] = json!(["sh", "-c", escape]);
    toy.load_after(HANG_ON_EXPERIMENT);
    let mut tune = toy.tune_in_background();
    let group = group_of(tune.id());
    toy.wait_for("measuring");
    assert!(group.is_dir());
    tune.kill().unwrap();
    tune.wait().unwrap();
    let restored = toy.restore().with_code(0);
    let named = format!("cgroup {}", group.display());
    assert!(restored.stdout.contains(&named), "{}", restored.stdout);
    assert!(!group.exists(), "{}", group.display());
}

#[test]
fn a_quota_that_the_kernel_would_refuse_is_an_error_of_the_specification() {
    let mut toy = greedy();
    for (key, value, words) in [
        (
            "cores",
            json!("{y}"),
            "is neither a parameter nor a variable",
        ),
        ("cores", json!("none"), "\"none\" is not a number above 0"),
        ("cores", json!(0.01), "500 µs in a period"),
        (
            "period_us",
            json!(100),
            "the kernel takes 1,000 to 1,000,000",
        ),
        ("burst_us", json!(2_501), "at most the quota, 2500 µs"),
    ] {
        let sound = toy.spec["target"]["quota"].clone();
        toy.spec["target"]["quota"][key] = value;
        let place = format!("target.quota.{key}");
        Ended::of(toy.tune(&[]))
            .with_code(2)
            .saying(&[&place, words]);
        toy.spec["target"]["quota"] = sound;
    }
}

#[test]
fn a_group_is_used_again_and_its_service_keeps_its_environment() {
    if !can_make_groups() {
        return;
    }
    let mut toy = greedy();
    // No knob: nothing is restored between two evaluations, and the quota shrinks below the burst
    // of the one before.
    toy.spec["parameters"] = json!([
        { "name": "cores", "type": "float", "low": 0.05, "high": 0.5, "default": 0.4 },
        { "name": "period", "type": "ordinal", "values": [20_000, 50_000, 100_000], "default": 50_000 },
    ]);
    toy.spec["initial"] =
        json!([{ "cores": 0.05, "period": 100_000 }, { "cores": 0.1, "period": 20_000 }]);
    toy.spec["target"]["quota"] =
        json!({ "cores": "{cores}", "period_us": "{period}", "burst_us": 1000 });
    toy.spec["target"]["env"] = json!({ "a.b": "kept", "C": "x y" });
    let seen = toy.path("seen");
    let start = format!(
        "tr '\\0' '\\n' < /proc/$$/environ > {}; setsid sleep 998 & exec sleep 997",
        seen.display()
    );
    toy.spec["target"]["start"] = json!(["sh", "-c", start]);
    toy.spec["target"]["ready"] = json!({ "command": ["test", "-s", seen], "timeout_s": 5 });
    toy.spec["budget"]["evaluations"] = json!(3);
    toy.load_with(r#"echo '{"requests": 1000, "latency_p99_us": 1000}'"#);
    let run = toy
        .tune(&["--json", "-"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let group = group_of(run.id());
    let ended = Ended::from(run.wait_with_output().unwrap());
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    for evaluation in report["evaluations"].as_array().unwrap() {
        assert_eq!(evaluation["outcome"], "completed", "{evaluation}");
    }
    let environment = std::fs::read_to_string(seen).unwrap();
    for line in ["a.b=kept\n", "C=x y\n"] {
        assert!(environment.contains(line), "{environment}");
    }
    toy.assert_clean("after a tune without knobs");
    assert!(!group.exists(), "{}", group.display());
}
