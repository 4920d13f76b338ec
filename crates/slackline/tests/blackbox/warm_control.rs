//! A control that runs on from evaluation to evaluation, and warm-ups whose end is detected, on
//! real processes.

use std::collections::BTreeMap;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::serve::Server;
use crate::toy::{Ended, Toy};

/// Writes a line for each start, and its pid.
const SERVICE: &str = "echo {side} >> {spec_dir}/starts; echo $$ > {dir}/pid; exec sleep 1000";

/// A toy with two instances side by side; `load` sets `us` by `$n`, the loads that this instance
/// has had before.
fn side_by_side(load: &str) -> Toy {
    let mut toy = Toy::new();
    let spec = &mut toy.spec;
    spec["parameters"] =
        json!([{ "name": "x", "type": "int", "low": 0, "high": 100, "default": 50 }]);
    spec["target"]["pairing"] = json!("parallel");
    spec["target"]["start"] = json!(["sh", "-c", SERVICE]);
    spec["search"] = json!({ "strategy": "random" });
    spec["budget"]["evaluations"] = json!(4);
    spec["verification"] = json!({ "runs": 2, "max_runs": 2 });
    toy.load_with(&format!(
        "n=$(cat {{dir}}/loads 2>/dev/null || echo 0); echo $((n + 1)) > {{dir}}/loads; \
         r=$(od -An -N1 -tu1 /dev/urandom); side={{side}}; x={{x}}; {load}; \
         echo \"{{\\\"requests\\\": 1000, \\\"latency_p99_us\\\": $((us + r % 10))}}\""
    ));
    toy
}

/// The report of a tune that ends with one of these codes.
fn report_of(toy: &Toy, arguments: &[&str]) -> (Value, Ended) {
    let file = toy.path("report.json");
    let mut command = toy.tune(arguments);
    command.arg("--json").arg(&file);
    let ended = Ended::of(command);
    assert!(ended.code < 2, "{}\n{}", ended.stdout, ended.stderr);
    let text = std::fs::read_to_string(file).unwrap();
    (serde_json::from_str(&text).unwrap(), ended)
}

/// How often each side was started.
fn starts(toy: &Toy) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let text = std::fs::read_to_string(toy.path("starts")).unwrap();
    for line in text.lines() {
        *counts.entry(line.to_owned()).or_insert(0) += 1;
    }
    counts
}

/// For each evaluation, how many its control had been there for, and why it was started again.
fn controls(report: &Value) -> Vec<(u64, Option<String>)> {
    let evaluations = report["evaluations"].as_array().unwrap().iter();
    let controls = evaluations.map(|it| &it["begun"]["control"]);
    controls
        .map(|control| {
            let why = control["restarted"].as_str().map(str::to_owned);
            (control["evaluations"].as_u64().unwrap(), why)
        })
        .collect()
}

/// Runs of the verification.
fn runs(report: &Value) -> usize {
    let arms = report["verification"].as_array().unwrap().iter();
    let runs = arms.map(|arm| arm["runs"].as_u64().unwrap());
    usize::try_from(runs.sum::<u64>()).unwrap()
}

#[test]
fn the_control_runs_on_in_the_search_and_the_verification_starts_it_anew() {
    let mut toy = side_by_side("us=$((1000 + x))");
    let (report, ended) = report_of(&toy, &[]);
    let without = |it: (u64, Option<String>)| it.0;
    let served: Vec<u64> = controls(&report).into_iter().map(without).collect();
    assert_eq!(served, [0, 1, 2, 3]);
    let count = starts(&toy);
    assert_eq!(count["experiment"], 4 + runs(&report));
    assert_eq!(count["control"], 1 + runs(&report));
    assert!(
        ended
            .stdout
            .contains("evaluations 1 to 4: one control, from 0 s on"),
        "{}",
        ended.stdout
    );
    toy.assert_clean("a warm control");
    said_by_serve(&toy);

    std::fs::remove_file(toy.path("starts")).unwrap();
    toy.spec["evaluation"]["control"] = json!("fresh");
    let (report, ended) = report_of(&toy, &[]);
    assert!(report["evaluations"][3]["begun"].is_null());
    assert_eq!(starts(&toy)["control"], 4 + runs(&report));
    assert!(!ended.stdout.contains("one control"), "{}", ended.stdout);
}

/// The API and the pages of `serve` tell of the control what the report tells.
fn said_by_serve(toy: &Toy) {
    let server = Server::start(toy);
    let file = toy.path("report.json");
    server
        .does(&["import", file.to_str().unwrap()])
        .with_code(0);
    let last = server.get("/experiments/1/evaluations/4");
    assert_eq!(last["begun"]["control"]["evaluations"], 3, "{last}");
    let listed = server.get("/experiments/1/evaluations");
    assert_eq!(listed[3]["begun"], last["begun"]);
    let cookie = crate::api::session(&server, "read_token");
    let page = |path: &str| {
        let answer = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        answer.unwrap().into_body().read_to_string().unwrap()
    };
    let evaluation = page("/experiments/1/evaluations/4");
    assert!(
        evaluation.contains("into the search, and had served 3 evaluations before."),
        "{evaluation}"
    );
    let experiment = page("/experiments/1");
    assert!(
        experiment.contains("evaluations 1 to 4: one control, from 0 s on"),
        "{experiment}"
    );
}

#[test]
fn a_control_that_changes_with_its_age_is_started_again() {
    let load = "us=1000; [ $side = control ] && [ $n -ge 3 ] && us=700";
    let (report, ended) = report_of(&side_by_side(load), &[]);
    let controls = controls(&report);
    let served: Vec<u64> = controls.iter().map(|it| it.0).collect();
    assert_eq!(served, [0, 1, 0, 1]);
    let why = controls[2].1.as_deref().unwrap();
    assert!(
        why.starts_with("its latency_p99_us had changed by −") && why.contains("first evaluation"),
        "{why}"
    );
    assert!(ended.stdout.contains(why), "{}", ended.stdout);
}

#[test]
fn a_control_that_ended_is_started_again() {
    let load = "us=1000; [ $side = control ] && [ $n = 4 ] && [ ! -e {spec_dir}/once ] \
                && touch {spec_dir}/once && kill $(cat {dir}/pid) && sleep 5";
    let toy = side_by_side(load);
    let (report, _) = report_of(&toy, &[]);
    let controls = controls(&report);
    assert_eq!(report["evaluations"][1]["outcome"], "failed");
    assert_eq!(controls[1].0, 1);
    assert_eq!(controls[2].0, 0);
    let why = controls[2].1.as_deref().unwrap();
    assert!(why.contains("the service ended by itself"), "{why}");
    toy.assert_clean("a control that ended");
}

#[test]
fn after_a_kill_or_a_signal_no_control_is_left_and_the_search_goes_on() {
    for (signal, report) in [
        (Signal::KILL, "report.json.partial"),
        (Signal::TERM, "report.json"),
    ] {
        let mut toy = side_by_side("us=$((1000 + x)); echo >> {spec_dir}/loads");
        toy.spec["budget"]["evaluations"] = json!(1000);
        let file = toy.path("report.json");
        let mut tune = toy.tune(&["--json"]);
        tune.arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
        let mut tune = tune.spawn().unwrap();
        let loads = || std::fs::read_to_string(toy.path("loads")).unwrap_or_default();
        let are_enough = || loads().lines().count() >= 20;
        eventually(60, are_enough, || "too few loads");
        kill_process(Pid::from_child(&tune), signal).unwrap();
        tune.wait().unwrap();
        if signal == Signal::KILL {
            toy.restore().with_code(0);
            // Killed is not yet gone.
            toy.wait_for_end(report);
        }
        toy.assert_clean(report);
        let earlier = toy.path("earlier.json");
        std::fs::rename(toy.path(report), &earlier).unwrap();
        let text = std::fs::read_to_string(&earlier).unwrap();
        let kept: Value = serde_json::from_str(&text).unwrap();
        let kept = kept["evaluations"].as_array().unwrap().iter();
        let done = kept.filter(|it| it["outcome"] != "killed").count();
        assert!(done > 1, "{done}");
        toy.spec["budget"]["evaluations"] = json!(done + 2);
        let (report, _) = report_of(&toy, &["--resume", &earlier.display().to_string()]);
        let controls = controls(&report);
        let last: Vec<u64> = controls[done..].iter().map(|it| it.0).collect();
        assert_eq!(last, [0, 1], "{controls:?}");
    }
}

#[test]
fn measuring_begins_when_the_warm_up_is_over() {
    let mut toy = side_by_side("us=1000; [ $n -lt 5 ] && us=$((3000 - 400 * n))");
    toy.spec["budget"]["evaluations"] = json!(2);
    toy.spec["evaluation"]["warm_up"] = json!("auto");
    toy.spec["evaluation"]["warm_up_at_most_s"] = json!(60);
    let (report, _) = report_of(&toy, &[]);
    for evaluation in report["evaluations"].as_array().unwrap() {
        assert_eq!(evaluation["outcome"], "completed");
        assert!(evaluation["reason"].is_null(), "{evaluation}");
        let warm_up = &evaluation["begun"]["warm_up"];
        assert!(warm_up["took_s"].as_f64().unwrap() > 0.0, "{evaluation}");
        assert!(warm_up["unsteady"].is_null(), "{evaluation}");
        for block in evaluation["blocks"].as_array().unwrap() {
            let us = block["experiment"]["latency_p99_us"].as_f64().unwrap();
            assert!(us < 1100.0, "{evaluation}");
        }
    }
}

#[test]
fn what_is_never_steady_is_said_and_measured_all_the_same() {
    let load = "us=1000; i=0; while [ $i -lt $n ]; do us=$((us * 11 / 10)); i=$((i + 1)); done; \
                [ $n -gt 60 ] && us=400000; [ $side = control ] && us=1000";
    let mut toy = side_by_side(load);
    toy.spec["budget"]["evaluations"] = json!(2);
    toy.spec["evaluation"]["early_abort"] = json!(false);
    toy.spec["evaluation"]["warm_up"] = json!("auto");
    toy.spec["evaluation"]["warm_up_at_most_s"] = json!(0.8);
    let (report, ended) = report_of(&toy, &[]);
    let first = &report["evaluations"][0];
    assert_eq!(first["outcome"], "completed");
    let reason = first["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("never steady within 1 s (experiment: "),
        "{reason}"
    );
    assert!(ended.stdout.contains(reason), "{}", ended.stdout);
}
