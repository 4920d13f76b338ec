//! The section `[continuous]`.

use host::Roots;

use crate::error_in;

#[test]
fn continuous_is_checked() {
    const CONTINUOUS: &str = r#"name = "sound"
mode = "continuous"
[[parameters]]
name = "threads"
type = "int"
low = 1
high = 32
default = 16
[target]
apply = [{ command = ["true"] }]
observe = { pid = 1 }
[workload]
command = ["true"]
json = { requests = "requests", latency_p99_us = "p99" }
[objective]
metric = "cpu_s_per_request"
[continuous]
hours = ["09:00-17:00"]
time_zone = "Europe/Berlin"
"#;
    let error = |from: &str, to: &str| {
        assert!(CONTINUOUS.contains(from), "{from}");
        error_in(
            "spec.toml",
            &CONTINUOUS.replacen(from, to, 1),
            &Roots::default(),
        )
    };
    assert_eq!(error("name", "name"), "no error");
    for (from, to, expected) in [
        (
            "mode = \"continuous\"\n",
            "",
            "spec.toml:16: continuous: needs mode = \"continuous\"",
        ),
        (
            "time_zone = \"Europe/Berlin\"",
            "",
            "spec.toml:18: continuous.hours: needs time_zone, such as \"Europe/Berlin\" or \"UTC\"",
        ),
        (
            "09:00-17:00",
            "9 to 5",
            "spec.toml:18: continuous.hours[0]: \"9 to 5\" is not HH:MM-HH:MM, such as 09:00-17:00",
        ),
        (
            "hours =",
            "control_share = 0.9\nhours =",
            "spec.toml:18: continuous.control_share: must be above 0 and at most 0.5",
        ),
        (
            "hours =",
            "changes_per_day = 0\nhours =",
            "spec.toml:18: continuous.changes_per_day: must be above 0: without a change there is nothing to tune",
        ),
        (
            "hours =",
            "alert = { prometheus = \"localhost\", query = \"x\" }\nhours =",
            "spec.toml:18: continuous.alert.prometheus: it has to begin with http:// or https://",
        ),
        (
            "[continuous]",
            "[workers]\n[continuous]",
            "spec.toml:17: workers: continuous watches the service of this host: leave the section out, or mode",
        ),
        (
            "apply = [{ command = [\"true\"] }]\nobserve = { pid = 1 }",
            "start = [\"sleep\", \"9\"]",
            "spec.toml:2: mode: continuous needs a service that keeps running after a promotion: use only parameters of sysctl, block_queue, cgroup and file, or a service that Slackline does not start (leave out target.start, and use files and apply)",
        ),
    ] {
        assert_eq!(error(from, to), expected);
    }
    let zone = error("Europe/Berlin", "Europe/Atlantis");
    assert!(
        zone.starts_with("spec.toml:19: continuous.time_zone: \"Europe/Atlantis\""),
        "{zone}"
    );
}
