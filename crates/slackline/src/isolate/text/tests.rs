//! What is said of a check, of a run, and of a controller that only observes.

use serde_json::json;

use super::super::metrics;
use super::*;
use crate::isolate::samples;

fn row(actuator: &str, is_used: bool) -> CheckRow {
    CheckRow {
        subject: "group batch".to_owned(),
        actuator: actuator.to_owned(),
        available: Some("v2".to_owned()),
        now: Some("0".to_owned()),
        missing: None,
        is_used,
    }
}

#[test]
fn a_check_shows_what_the_policy_may_write_and_on_demand_the_rest() {
    let found = Check {
        rows: vec![
            row("weight", false),
            row("cpu.idle", true),
            row("power", false),
        ],
        ..Check::default()
    };
    let used = check(&found, false);
    assert!(used.contains("may write these settings"), "{used}");
    assert!(
        used.contains("cpu.idle") && !used.contains("weight"),
        "{used}"
    );
    assert!(used.contains("--all also lists 2 settings"), "{used}");
    let all = check(&found, true);
    let ends = |actuator: &str, end: &str| {
        let mut lines = all.lines();
        let line = lines.find(|line| line.contains(actuator)).unwrap();
        assert!(line.ends_with(end), "{line}");
    };
    ends("setting", "used by the policy");
    ends("cpu.idle", "yes");
    ends("weight", "no");
    // First what is used.
    assert!(all.find("cpu.idle") < all.find("weight"), "{all}");
    let nothing = Check {
        rows: vec![row("weight", false)],
        ..Check::default()
    };
    let said = check(&nothing, false);
    assert!(said.contains("The policy writes no setting."), "{said}");
}

/// A controller that only observes, on a host that counts no CPU time.
fn observed() -> IsolationStatus {
    let status = json!({
        "time": "2026-01-01T00:00:00Z", "at_s": 5.0, "pid": 1, "watchdog_pid": null,
        "policy": "slackline", "observe": true,
        "explanation": "best-effort work would have 0.15 cores together (slack)",
        "services": [{
            "name": "web", "source": "a file", "is_running": true, "percentile": 99.0,
            "objective_ms": 5.0, "latency_ms": 1.0, "requests": 100, "cpu_cores": null
        }],
        "groups": [{
            "name": "batch", "group": "batch", "is_running": true, "cpu_cores": null,
            "settings": {}, "observed_settings": { "off": "off", "quota": "quota 0.15 cores" },
            "reason": "slack"
        }],
        "cores": 2.0, "busy_cores": 1.0, "own_cores": 0.001, "step_s": 0.25,
        "decisions": {}, "troubles": {}, "recent": [], "yielded": [],
        "notes": ["the command of group more is not started"]
    });
    serde_json::from_value(status).unwrap()
}

#[test]
fn settings_that_are_only_observed_are_headed_so_and_unknown_figures_are_dashes() {
    let said = status(&observed());
    assert!(said.contains("would be"), "{said}");
    assert!(!said.contains("settings"), "{said}");
    assert!(said.contains("off, quota 0.15 cores"), "{said}");
    let note = "\nNote: the command of group more is not started\n";
    assert!(said.contains(note), "{said}");
    assert!(!said.contains("0.00"), "{said}");
    assert!(line(&observed()).ends_with("batch: – cores"));
    let acting = IsolationStatus {
        observe: false,
        ..observed()
    };
    assert!(status(&acting).contains("settings"));
}

#[test]
fn metrics_of_a_controller_that_only_observes_claim_no_setting_and_no_unknown_figure() {
    let page = metrics::page(&observed());
    for line in [
        "slackline_isolate_observing 1",
        "slackline_isolate_group_off{group=\"batch\"} 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{page}");
    }
    assert!(!page.contains("_cores{group="), "{page}");
    assert!(!page.contains("_service_cores{"), "{page}");
}

#[test]
fn a_run_says_at_its_start_how_it_ends_and_at_its_end_what_was_done() {
    let mut status = samples::row(60.4, false, samples::service(5.0, 0.71));
    let metrics = "127.0.0.1:9100".parse().ok();
    assert_eq!(
        begun(&status, Some(Duration::from_secs(60)), metrics),
        "Policy slackline runs for web (p99 below 5 ms) with best-effort work batch. It ends after 60 s or by Ctrl-C, and \
         then restores every setting. Metrics: http://127.0.0.1:9100/metrics"
    );
    assert_eq!(
        ended(&status),
        "Ended after 60 s. web: p99 0.71 ms of 5 ms; batch: 60.4 CPU seconds of work"
    );
    status.groups[0].progress = Some(1200.0);
    assert!(ended(&status).ends_with("; batch: 1200 units in 60.4 CPU seconds"));
    status.groups[0].progress = None;
    status.groups[0].cpu_cores = None;
    status.groups[0].cpu_s = 0.0;
    assert!(ended(&status).ends_with("; batch: CPU time not known"));
    status.observe = true;
    status.groups.clear();
    assert_eq!(
        begun(&status, None, None),
        "Policy slackline observes, and changes nothing, for web (p99 below 5 ms) with no best-effort work. It ends by \
         Ctrl-C."
    );
    assert_eq!(ended(&status), "Ended after 60 s. web: p99 0.71 ms of 5 ms");
}

#[test]
fn a_service_has_a_column_of_settings_where_something_is_set() {
    let mut status = samples::row(60.4, false, samples::service(5.0, 0.71));
    let head = |status: &IsolationStatus| {
        let text = super::status(status);
        let mut lines = text.lines();
        let head = lines.find(|line| line.starts_with(" service"));
        head.unwrap().to_owned()
    };
    assert!(head(&status).ends_with("quota"), "{}", head(&status));
    let set = ("weight".to_owned(), "weight 500".to_owned());
    status.services[0].settings.extend([set]);
    assert!(head(&status).ends_with("settings"), "{}", head(&status));
}
