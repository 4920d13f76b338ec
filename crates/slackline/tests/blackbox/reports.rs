//! What is done with reports: two are compared, and a configuration is put in force or written to
//! files.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::toy::{Ended, FIRST, Toy};

/// The report of a tune.
fn report_of(toy: &Toy, name: &str, arguments: &[&str]) -> PathBuf {
    let report = toy.path(name);
    let mut tune = toy.tune(arguments);
    tune.args(["--json", report.to_str().unwrap()]);
    let ended = Ended::of(tune);
    assert!(ended.code < 2, "{}", ended.stderr);
    report
}

#[test]
fn two_reports_are_compared() {
    let mut toy = Toy::new();
    let a = report_of(&toy, "a.json", &["--only", "x=20"]);
    let b = report_of(&toy, "b.json", &["--only", "x=35"]);
    let compare = |toy: &Toy, more: &[&str], b: &PathBuf| {
        let mut command = toy.slackline(&["compare", a.to_str().unwrap(), b.to_str().unwrap()]);
        command.args(more);
        Ended::of(command).with_code(0).stdout
    };
    let text = compare(&toy, &[], &b);
    for part in [
        "A  toy: Shown: −",
        "A's candidate: x=20",
        "B's candidate: x=35",
        "B over A",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("The experiments differ"), "{text}");
    let table = text.lines().skip_while(|line| !line.contains("B over A:"));
    assert!(
        table.skip(1).all(|line| line.chars().count() <= 80),
        "{text}"
    );
    // 1,000 + (x − 20)², of 1,900 on the control.
    let json: Value = serde_json::from_str(&compare(&toy, &["--json"], &b)).unwrap();
    let row = &json["metrics"][0];
    assert_eq!(row["metric"], "latency_p99_us", "{json}");
    for (of, expected) in [
        ("a", 1000.0 / 1900.0),
        ("b", 1225.0 / 1900.0),
        ("b_over_a", 1225.0 / 1000.0),
    ] {
        let estimate = row[of]["estimate"].as_f64().unwrap();
        assert!((estimate / expected - 1.0).abs() < 0.03, "{of}: {row}");
    }
    assert!(row["b_over_a"]["low"].as_f64() > Some(1.0), "{row}");
    let wrong = toy.path("experiment.json");
    let no_report = ["compare", a.to_str().unwrap(), wrong.to_str().unwrap()];
    Ended::of(toy.slackline(&no_report))
        .with_code(2)
        .saying(&["a report is what `slackline tune --json FILE` writes"]);
    // Of another experiment.
    toy.spec["evaluation"]["blocks"] = json!(4);
    let other = report_of(&toy, "other.json", &["--only", "x=20"]);
    let text = compare(&toy, &[], &other);
    assert!(
        text.contains("workload or evaluation in the specification"),
        "{text}"
    );
}

#[test]
fn a_configuration_of_a_report_is_written_to_files_or_put_in_force() {
    let mut toy = Toy::attached();
    toy.spec["initial"] = json!([{ "x": 90 }]);
    toy.spec["budget"]["evaluations"] = json!(1);
    let report = report_of(&toy, "report.json", &[]);
    let apply = |more: &[&str]| {
        let mut command = toy.slackline(&["apply", report.to_str().unwrap()]);
        command.args(more);
        Ended::of(command)
    };
    // 90 is worse than the control.
    apply(&[])
        .with_code(2)
        .saying(&["shows no improvement", "--configuration N"]);
    apply(&["--configuration", "7"])
        .with_code(2)
        .saying(&["the report has no evaluation 7: it has 1"]);
    let first = ["--configuration", "1"];
    let unverified =
        "Evaluation 1 (completed) was not verified: its measured effect proves nothing.";
    let files = toy.path("files");
    let to = ["--to", files.to_str().unwrap()];
    apply(&[first, to].concat())
        .with_code(0)
        .saying(&[unverified, "settings.txt"]);
    let service = toy.path("service.conf");
    let written = files.join(service.strip_prefix("/").unwrap());
    let read = |path: &PathBuf| std::fs::read_to_string(path).unwrap();
    assert_eq!(read(&written), "x = 90\n");
    assert!(read(&files.join("settings.txt")).contains("90"));
    assert_eq!(read(&service), "x = first\n");
    toy.assert_as_before("after files elsewhere");

    apply(&first)
        .with_code(0)
        .saying(&[unverified, "Promoted. In force: ", "promotions undo 1"]);
    assert_eq!(
        (toy.knob().as_str(), read(&service).as_str()),
        ("90", "x = 90\n")
    );
    let listed = Ended::of(toy.slackline(&["promotions", "ls"])).with_code(0);
    assert!(listed.stdout.contains("toy"), "{}", listed.stdout);
    // What was promoted is no rest of a run, and is not called undone.
    toy.restore().with_code(0).saying(&[
        "Promoted for good, and so not undone here:",
        "promotion 1 (toy): ",
    ]);
    Ended::of(toy.slackline(&["promotions", "undo", "1"])).with_code(0);
    assert_eq!(
        (toy.knob().as_str(), read(&service).as_str()),
        (FIRST, "x = first\n")
    );
}
