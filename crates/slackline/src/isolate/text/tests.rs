//! What is said of a check, and of a controller that only observes.

use serde_json::json;

use super::super::metrics;
use super::*;

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
