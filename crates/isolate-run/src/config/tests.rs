//! Configurations that are understood, and what is said of the others.

use super::*;

fn read(text: &str) -> Result<IsolationConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.toml");
    std::fs::write(&path, text).unwrap();
    IsolationConfig::read(&path).map_err(|error| {
        let text = error.to_string();
        text.replace(&format!("{}/", dir.path().display()), "")
    })
}

const GOOD: &str = "[service]\nunit = \"memcached.service\"\nobjective = { p99_ms = 5 }\n\
    latency = { wire = { port = 11211 } }\n[[best_effort]]\nunit = \"batch.slice\"\n";

#[test]
fn a_configuration_is_understood() {
    let config = read(GOOD).unwrap();
    let (service, objective, _) = &config.services[0];
    assert_eq!(service.name, "memcached.service");
    assert_eq!(
        (
            objective.percentile,
            objective.latency_ms,
            objective.window_s
        ),
        (99.0, 5.0, 15.0)
    );
    assert_eq!(config.best_effort[0].name, "batch.slice");
    assert_eq!(config.policy.name, isolation::Policy::Slackline);
    let two = "[[service]]\nname = \"a\"\npid = 1\nobjective = { \"p99.9_ms\" = 2, window_s = 5 }\n\
        latency = { command = [\"x\"] }\n[[service]]\npid = 2\nobjective = { p95_ms = 1 }\nlatency = { command = [\"x\"] }\n";
    let config = read(two).unwrap();
    assert_eq!(config.services.len(), 2);
    assert!((config.services[0].1.percentile - 99.9).abs() < 1e-9);
}

const SERVICE: &str = "[service]\npid = 1\nlatency = { command = [\"x\"] }\n";
const ONE: &str = "pid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"x\"] }\n";

/// A sound service, and this after it from line 5 on.
fn of(rest: &str) -> String {
    format!("{SERVICE}objective = {{ p99_ms = 5 }}\n{rest}")
}

#[track_caller]
fn assert_said<const N: usize>(cases: [(String, &str); N]) {
    for (text, said) in cases {
        let error = read(&text).unwrap_err();
        assert!(error.starts_with(said), "{error}\n{said}");
    }
}

#[test]
fn errors_name_file_line_and_key() {
    let (service, one) = (SERVICE, ONE);
    let two = one.replace("pid = 1", "pid = 2");
    assert_said([
        ("".to_owned(), "i.toml: the file is empty"),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\n".to_owned(),
            "i.toml:1: service.latency: an objective needs a source",
        ),
        (
            format!("{service}objective = {{ p99 = 5 }}\n"),
            "i.toml:4: service.objective.p99: must be a percentile",
        ),
        (
            format!("{service}objective = {{ p99_ms = 0 }}\n"),
            "i.toml:4: service.objective.p99_ms: must be between 0.001 (1 µs) and 3600000 (an hour)",
        ),
        (
            format!("{service}objective = {{ window_s = 5 }}\n"),
            "i.toml:4: service.objective: needs a percentile",
        ),
        (
            format!("{service}objective = {{ p99_ms = 5, p95_ms = 2 }}\n"),
            "i.toml:4: service.objective: give one percentile",
        ),
        (
            format!("{service}unit = \"x\"\nobjective = {{ p99_ms = 5 }}\n"),
            "i.toml:1: service: give exactly one of",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { wire = { port = 0 } }\n".to_owned(),
            "i.toml:4: service.latency.wire.port: 0 is no port",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\n[service.latency.scrape]\nurl = \"x\"\nhistogram = \"h\"\n"
                .to_owned(),
            "i.toml:5: service.latency.scrape.url: it has to begin with http",
        ),
        (
            "[service]\npid = 1\nobjective = { p99_ms = 5 }\n\
             latency = { prometheus = { url = \"http://a:9090\", query = \"p99\" } }\n"
                .to_owned(),
            "i.toml:4: service.latency.prometheus.window_s: write how far",
        ),
        (
            of("[[best_effort]]\n"),
            "i.toml:5: best_effort[0]: give exactly one of",
        ),
        (
            of("[[best_effort]]\ncommand = []\n"),
            "i.toml:6: best_effort[0].command: name a program",
        ),
        (
            of("[[best_effort]]\ncgroup = \"a\"\n[[best_effort]]\ncgroup = \"b/a\"\n"),
            "i.toml:7: best_effort[1].name: another service or best-effort group",
        ),
        (
            format!("[[service]]\nname = \"a\"\n{one}[[service]]\nname = \"a\"\n{two}"),
            "i.toml:7: service[1].name: another service or best-effort group",
        ),
        (
            format!("[[service]]\nname = \"a\"\n{one}[[service]]\nname = \"b\"\n{one}"),
            "i.toml:8: service[1].pid: service[0].pid already names this process",
        ),
        (
            of("[[best_effort]]\npid = 1\n"),
            "i.toml:6: best_effort[0].pid: service.pid already names this process",
        ),
        (
            of("[[best_effort]]\ncgroup = \"a/b\"\n[[best_effort]]\ncgroup = \"/a//b/\"\n"),
            "i.toml:8: best_effort[1].cgroup: best_effort[0].cgroup already names this control group",
        ),
    ]);
    assert!(
        read(&of("[policy]\nname = \"magic\"\n"))
            .unwrap_err()
            .contains("unknown value")
    );
}

#[test]
fn each_text_and_number_of_an_entry_has_its_form() {
    let (service, one) = (SERVICE, ONE);
    assert_said([
        (
            format!("{service}objective = {{ p99_ms = 1e308 }}\n"),
            "i.toml:4: service.objective.p99_ms: must be between",
        ),
        (
            format!("{service}objective = {{ p9e1_ms = 1 }}\n"),
            "i.toml:4: service.objective.p9e1_ms: must be a percentile",
        ),
        (
            format!("{service}objective = {{ \"p99.99999_ms\" = 1 }}\n"),
            "i.toml:4: service.objective.p99.99999_ms: must be a percentile",
        ),
        (
            of("peak_requests_per_s = -1\n"),
            "i.toml:5: service.peak_requests_per_s: must be above 0 and at most 1000000000",
        ),
        (
            of("name = \"a\\nb\"\n"),
            "i.toml:5: service.name: must be one line of text",
        ),
        (
            one.replace("pid = 1", "[service]\nunit = \"\""),
            "i.toml:2: service.unit: must be the name of a systemd unit",
        ),
        (
            one.replace("pid = 1", "[service]\ncgroup = \"/\""),
            "i.toml:2: service.cgroup: the root group is everybody's",
        ),
        (
            one.replace("pid = 1", "[service]\npid = 0"),
            "i.toml:2: service.pid: must be the id of a process",
        ),
        (
            format!("[service]\n{one}").replace("command = [\"x\"]", ""),
            "i.toml:4: service.latency: give exactly one of wire, scrape, prometheus, command and push",
        ),
        (
            format!("[service]\n{one}").replace("\"x\"]", "\"x\"], push = {}"),
            "i.toml:4: service.latency: give exactly one of wire, scrape, prometheus, command and push",
        ),
        (
            format!("[service]\n{one}").replace("command = [\"x\"]", "push = { udp = \"here\" }"),
            "i.toml:4: service.latency.push.udp: expected an address and a port, such as 127.0.0.1:8125",
        ),
        (
            format!("[service]\n{one}").replace("\"x\"", "\"a\\u202Eb\""),
            "i.toml:4: service.latency.command: the program must be one line of text",
        ),
        (
            of("[[best_effort]]\ncgroup = \"\"\n"),
            "i.toml:6: best_effort[0].cgroup: must be the path of a control group",
        ),
        (
            of("[[best_effort]]\ncontainer = \"0123\"\n"),
            "i.toml:6: best_effort[0].container: must be the id of a container",
        ),
        (
            of("[[best_effort]]\ncommand = [\"a\", \"\\u0000\"]\n"),
            "i.toml:6: best_effort[0].command: a word of a command has no NUL",
        ),
        (
            of("[[best_effort]]\npid = 2\nprogress = { command = \"\" }\n"),
            "i.toml:7: best_effort[0].progress.command: write a command",
        ),
        (
            of("[policy]\nname = 5\n"),
            "i.toml:6: policy.name: expected a text in quotes",
        ),
    ]);
}

#[test]
fn two_sources_in_a_file_of_json_are_said_by_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("i.json");
    let of = |latency: &str| {
        format!(
            "{{ \"service\": {{ \"pid\": 1,\n\"objective\": {{ \"p99_ms\": 5 }},\n\"latency\": {latency} }} }}\n"
        )
    };
    for latency in ["{}", "{ \"command\": [\"x\"], \"push\": {} }"] {
        std::fs::write(&path, of(latency)).unwrap();
        let error = IsolationConfig::read(&path).unwrap_err();
        assert_eq!(error.line, Some(3), "{error}");
        assert!(error.key.starts_with("service.latency"), "{error}");
        let said = "give exactly one of wire, scrape, prometheus, command and push";
        assert!(error.message.starts_with(said), "{error}");
    }
}

#[test]
fn a_name_is_the_last_part_of_a_path() {
    for (cgroup, name) in [("/brk_be/", "brk_be"), ("a/b", "b"), ("a//b//", "b")] {
        let text = GOOD.replace("unit = \"batch.slice\"", &format!("cgroup = \"{cgroup}\""));
        assert_eq!(read(&text).unwrap().best_effort[0].name, name);
    }
}

#[test]
fn the_schema_names_every_key() {
    let text = schema().to_string();
    for key in [
        "objective",
        "latency",
        "best_effort",
        "progress",
        "observe",
        "peak_requests_per_s",
        "wire",
        "scrape",
        "histogram",
        "prometheus",
        "query",
        "command",
        "push",
    ] {
        assert!(text.contains(key), "{key}");
    }
}
