//! Tests of what is printed of experiments.

use serde_json::json;

use super::{list, short, show, state};

#[test]
fn a_state_says_what_becomes_of_it() {
    for (wish, said) in [
        (
            json!("pause"),
            "running, pauses after its current evaluation",
        ),
        (json!("stop"), "running, stops now"),
        (json!(null), "running"),
    ] {
        assert_eq!(state(&json!({ "state": "running", "wish": wish })), said);
    }
}

#[test]
fn a_list_has_the_beginning_of_what_show_has_whole() {
    for (text, said) in [
        (
            "Shown: −8.1 % [−9.0, −7.2] of latency_p99_us against the control (95 % confidence, 3 fresh runs).",
            "Shown: −8.1 % [−9.0, −7.2] of latency_p99_us",
        ),
        (
            "Better, but a run failed: −8.1 % [−9.0, −7.2] of a.",
            "Better, but a run failed",
        ),
        (
            "waits for experiment 3, which is in continuous mode and never ends. To let this experiment run, pause experiment 3",
            "waits for experiment 3",
        ),
        ("stopped; what was promoted stays in force", "stopped"),
        ("", ""),
    ] {
        assert_eq!(short(text), said);
    }
    let long = short(&"reason ".repeat(20));
    assert_eq!(long, format!("{}…", "reason ".repeat(8)));
    // A text without a space is cut all the same.
    assert!(short(&"x".repeat(100)).chars().count() <= 61);
}

#[test]
fn a_list_that_cuts_says_where_the_whole_is() {
    let of = |sentence: &str| {
        list(&json!([{ "id": 3, "name": "web", "state": "failed", "message": sentence }]))
    };
    let whole = "`slackline experiments show NUMBER` has the whole text";
    assert!(of(&"reason ".repeat(20)).contains(whole));
    assert!(!of("stopped").contains(whole));
}

#[test]
fn an_evaluation_without_a_block_yet_starts() {
    let shown = |done: u64, of: u64| {
        show(&json!({
            "id": 7, "name": "web", "state": "running", "evaluations": 0, "budget": 13,
            "progress": { "evaluation": 1, "blocks": done, "of_blocks": of },
        }))
    };
    let head = "web (experiment 7)\nrunning: 0 of 13 evaluations\n";
    assert_eq!(shown(0, 0), format!("{head}evaluation 1 starts\n"));
    assert_eq!(shown(3, 4), format!("{head}evaluation 1: 3 of 4 blocks\n"));
}

#[test]
fn what_happened_is_told_to_the_second() {
    let shown = show(&json!({
        "id": 7, "name": "web", "state": "running", "evaluations": 0, "budget": 13,
        "entries": [
            { "at": "2026-11-26T17:12:53.850408726Z", "kind": "search", "text": "begins: the first" },
            { "at": "2026-11-26T17:12:54Z", "kind": "held", "text": "outside the hours" },
        ],
    }));
    let told = "  2026-11-26T17:12:53Z search: begins: the first\n  2026-11-26T17:12:54Z waits: outside the hours\n";
    assert!(shown.ends_with(told), "{shown}");
}
