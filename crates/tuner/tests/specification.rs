//! A specification with what the run time adds to its checks: the results of earlier experiments,
//! and remarks about this host.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use host::Roots;
use tuner::spec::{CheckedSpec, SpecError};

#[path = "../../experiment-spec/tests/spec_errors/fixture.rs"]
mod fixture;

use self::fixture::{error_with, expect_named, fake, with_knob};

fn load(path: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
    tuner::spec::context(roots).load(path)
}

#[test]
fn told_lines_have_the_direction_of_the_goal() {
    let dir = tempfile::tempdir().unwrap();
    let line = "{\"config\":{\"n\":1},\"value\":3,\"weight\":0.5}\n";
    std::fs::write(dir.path().join("earlier.jsonl"), line).unwrap();
    let parameters = "[[parameters]]\nname = \"n\"\ntype = \"int\"\nlow = 1\nhigh = 4\n";
    let goals = [
        ("minimise", 3.0),
        ("minimize", 3.0),
        ("maximise", -3.0),
        ("maximize", -3.0),
    ];
    for (goal, expected) in goals {
        let objective = format!("objective = {{ metric = \"rps\", goal = {goal:?} }}\n");
        let search = "search = { warm_start = [\"earlier.jsonl\"] }\n";
        let file = dir.path().join("spec.toml");
        std::fs::write(&file, objective + search + parameters).unwrap();
        let (_, settings, _) = tuner::spec::context(&host::Roots::default())
            .load_space(&file)
            .unwrap();
        let told = &settings.earlier[0][0];
        assert_eq!(
            told.outcome,
            bayes_opt::ObservedOutcome::completed(expected)
        );
        assert_eq!(told.weight, 0.5);
    }
}

#[test]
fn a_warm_start_needs_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        format!("metric = \"cpu_s_per_request\"\n[search]\nwarm_start = [{path:?}]")
    };
    let metric = "metric = \"cpu_s_per_request\"";
    expect_named(
        metric,
        "metric = \"cpu_s_per_request\"\n[search]\nwarm_start = [\"/none.json\"]",
        "spec.toml:16: search.warm_start[0]: ",
        &["/none.json", "No such file"],
    );
    expect_named(
        metric,
        &file("spec.json", "{}"),
        "spec.toml:16: search.warm_start[0]: ",
        &["spec.json", "is not a report"],
    );
    expect_named(
        metric,
        &file(
            "bad.jsonl",
            "{\"config\":{\"threads\":1},\"value\":1}\n\n{\"config\":{}}\n",
        ),
        "spec.toml:16: search.warm_start[0]: ",
        &["line 3", "give a finite \"value\""],
    );
    expect_named(
        metric,
        &file("other.jsonl", "{\"config\":{\"treads\":1},\"value\":1}\n"),
        "spec.toml:16: search.warm_start[0]: ",
        &["other.jsonl", "has none of this experiment's parameters"],
    );
    let good = "{\"config\":{\"threads\":1},\"value\":1}\n{\"config\":{},\"crashed\":true}\n";
    assert_eq!(error_with(metric, &file("good.jsonl", good)), "no error");
}

#[test]
fn a_default_that_is_not_what_runs_is_told() {
    let (_tree, roots) = fake();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(&path, with_knob("sysctl = \"vm.swappiness\"\ndefault = 10")).unwrap();
    let spec = load(&path, &roots).unwrap();
    let remarks = tuner::remarks(&spec, "".as_ref());
    let told = "another default: knob has 10, and vm.swappiness is 60 on this host now";
    assert!(
        remarks.iter().any(|remark| remark.starts_with(told)),
        "{remarks:?}"
    );
    std::fs::write(&path, with_knob("sysctl = \"vm.swappiness\"\ndefault = 60")).unwrap();
    let remarks = tuner::remarks(&load(&path, &roots).unwrap(), "".as_ref());
    assert!(
        !remarks
            .iter()
            .any(|remark| remark.starts_with("another default")),
        "{remarks:?}"
    );
}
