//! An experiment of ten thousand evaluations: its page shows fifty of them, in any order.

use std::time::Instant;

use serde_json::{Value, json};

use crate::serve::{Server, toy};
use crate::toy::Ended;

/// A report of that many evaluations, made up.
pub(crate) fn report_of(evaluations: usize) -> Value {
    let toy = toy();
    let file = toy.path("experiment.json");
    std::fs::write(&file, toy.spec.to_string()).unwrap();
    let tuned = Ended::of(toy.tune(&["--evaluations", "2", "--json", "-"]));
    let mut report: Value = serde_json::from_str(&tuned.stdout).unwrap();
    let first = report["evaluations"][0].clone();
    let all = (1..=evaluations).map(|number| {
        let mut it = first.clone();
        it["number"] = json!(number);
        it["configuration"]["x"] = json!(number % 101);
        it["measurement"]["score"] = json!(((number % 101) as f64 - 20.0).abs() / 100.0);
        it
    });
    report["evaluations"] = all.collect();
    report
}

#[test]
fn ten_thousand_evaluations_are_shown_fifty_at_a_time() {
    let toy = toy();
    let server = Server::start(&toy);
    let file = toy.path("report.json");
    std::fs::write(&file, report_of(10_000).to_string()).unwrap();
    server
        .does(&["import", file.to_str().unwrap()])
        .with_code(0);
    let cookie = crate::api::session(&server, "read_token");
    let read = |path: &str| {
        let asked = Instant::now();
        let answer = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        let text = answer
            .unwrap()
            .body_mut()
            .with_config()
            .limit(1 << 26)
            .read_to_string()
            .unwrap();
        (text, asked.elapsed())
    };
    let (page, page_took) = read("/experiments/1");
    assert_eq!(page.matches("<tr class=\"completed\">").count(), 50);
    assert!(page.contains("1 to 50 of 10000"));
    let (last, _) = read("/experiments/1?page=200");
    assert!(last.contains("9951 to 10000 of 10000"));
    let (points, points_took) = read("/api/v1/experiments/1/points");
    let points: Value = serde_json::from_str(&points).unwrap();
    assert_eq!(points["score"].as_array().unwrap().len(), 10_000);
    println!("page {page_took:?}, points {points_took:?}");
}
