//! The page about a recorded run: it fits a desktop and a telephone.

use serde_json::{Value, json};

use crate::toy::{Ended, Toy, skip};
use crate::webdriver::Browser;

/// A second of a run. The objective and the observing change at second 30.
fn row(second: u32) -> Value {
    let is_early = second < 30;
    json!({ "row": {
        "time": "2026-01-01T00:00:00Z",
        "at_s": second,
        "pid": 1,
        "watchdog_pid": null,
        "policy": "slackline",
        "observe": is_early,
        "explanation": "",
        "services": [{
            "name": "web",
            "source": "packets of TCP port 8080",
            "is_running": true,
            "percentile": 99.0,
            "objective_ms": if is_early { 10.0 } else { 20.0 },
            "latency_ms": if second == 40 { Value::Null } else { json!(12.0) },
            "fresh_ms": 3.0 + f64::from(second % 7),
            "slack": 0.1,
            "requests": 1000,
            "requests_per_s": 123_456.0,
            "no_data": null,
            "cpu_cores": 0.037,
            "quota_cores": null,
            "waiting_share": null,
        }],
        "groups": [{
            "name": "batch",
            "group": null,
            "is_running": true,
            "cpu_cores": 1.5,
            "cpu_s": second,
            "progress": null,
            "settings": {},
            "reason": null,
        }],
        "cores": 2.0,
        "busy_cores": 2.0,
        "own_cores": 0.001,
        "step_s": 0.25,
        "decisions": {},
        "troubles": {},
        "recent": [],
        "yielded": [],
    } })
}

fn record(toy: &Toy) -> String {
    let directory = toy.path("run");
    std::fs::create_dir_all(&directory).unwrap();
    let decision = json!({
        "subject": { "group": "batch" },
        "setting": { "quota_cores": 0.5 },
        "reason": "slack",
    });
    let path =
        "/sys/fs/cgroup/cpu/kubepods/burstable/".to_owned() + &"pod0123456789abcdef".repeat(12);
    let why = format!("somebody else has written 70000 to {path}/cpu.cfs_quota_us");
    let outcome = json!({ "outcome": "yielded", "why": why });
    let mut lines: Vec<Value> = (1..=60).map(row).collect();
    lines.push(json!({ "decision": { "at_s": 35.0, "decision": decision, "outcome": outcome } }));
    lines.push(
        json!({ "note": { "at_s": 30.0, "text": format!("the old configuration stays: {path}") } }),
    );
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    std::fs::write(directory.join("run.jsonl"), text).unwrap();
    directory.display().to_string()
}

/// Elements that make the page wider than the screen.
const TOO_WIDE: &str = "const width = window.innerWidth; return document.documentElement.scrollWidth <= width ? [] : \
    [width, ...[...document.querySelectorAll('*')].filter(it => it.getBoundingClientRect().right > width).map(it => \
    it.outerHTML.slice(0, 100))]";
/// Texts that are too small to read, or cut off.
const UNREADABLE: &str = "return [...document.querySelectorAll('.scale span, .end, figcaption, td, th')].filter(it => \
     parseFloat(getComputedStyle(it).fontSize) < 11 || it.getBoundingClientRect().left < 0).map(it => it.outerHTML)";
/// The last column of the decisions is on the screen, and reads from the left.
const OUTCOME: &str = "const cell = document.querySelector('.text tr:nth-child(2) td:last-child'); \
     const box = cell.getBoundingClientRect(); return [getComputedStyle(cell).textAlign, box.width > 80 && \
     box.right <= window.innerWidth]";

#[test]
fn the_page_of_a_run_fits_a_desktop_and_a_telephone() {
    let toy = Toy::new();
    let page = toy.path("page.html").display().to_string();
    let report = ["isolate", "report", &record(&toy), "--html", &page];
    Ended::of(toy.slackline(&report)).with_code(0);
    for width in [1000, 360] {
        let Some(browser) = Browser::start(width, false) else {
            return skip(&"chromedriver is not installed");
        };
        browser.open(&format!("file://{page}"));
        browser.wait("document.readyState === 'complete'");
        assert_eq!(browser.run(TOO_WIDE), json!([]), "{width}");
        assert_eq!(browser.run(UNREADABLE), json!([]), "{width}");
        assert_eq!(browser.run(OUTCOME), json!(["left", true]), "{width}");
        // Each picture has its line within itself.
        let beyond = "return [...document.querySelectorAll('polyline')].filter(it => { const line = \
             it.getBoundingClientRect(); const all = it.ownerSVGElement.getBoundingClientRect(); return line.top < \
             all.top - 2 || line.bottom > all.bottom + 2 || line.right > all.right + 2 }).length";
        assert_eq!(browser.run(beyond), 0, "{width}");
    }
}
