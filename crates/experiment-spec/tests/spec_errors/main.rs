//! What is wrong with a specification is said with file, line, key and what would be right, before
//! anything is started or changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use experiment_spec::{CheckedSpec, SpecContext, SpecError};
use host::Roots;

use self::fixture::{SOUND, error_in, error_with, expect_named};

mod continuous;
mod fixture;
mod knobs;
mod latency;
mod ranges;

fn load(path: &Path, roots: &Roots) -> Result<CheckedSpec, SpecError> {
    SpecContext::new(roots).load(path)
}

#[track_caller]
fn expect(from: &str, to: &str, error: &str) {
    assert_eq!(error_with(from, to), error);
}

#[test]
fn a_sound_one_has_none() {
    assert_eq!(error_in("spec.toml", SOUND, &Roots::default()), "no error");
}

#[test]
fn an_empty_file_is_said_to_be_empty() {
    for (file, text) in [
        ("spec.toml", ""),
        ("spec.json", "\n"),
        ("spec.toml", " \n\n"),
    ] {
        let error = error_in(file, text, &Roots::default());
        assert_eq!(error, format!("{file}: the file is empty"));
    }
}

#[test]
fn keys_and_types() {
    expect(
        "high = 32",
        "high = 32\nvalues = [1, 2]",
        "spec.toml:7: parameters[0].values: means nothing here: an int has low, high, step and scale",
    );
    expect_named(
        "high = 32",
        "hihg = 32",
        "spec.toml:6: parameters[0].hihg: ",
        &["unknown key `hihg`", "high"],
    );
    expect_named(
        "low = 1",
        "low = \"one\"",
        "spec.toml:5: parameters[0].low: ",
        &["a text", "expected a number"],
    );
    expect_named(
        "type = \"int\"",
        "type = \"integer\"",
        "spec.toml:4: parameters[0].type: ",
        &["integer", "int"],
    );
    expect_named("[target]", "[target", "spec.toml:8: ", &[]);
    expect(
        "[target]\nstart = [\"sleep\", \"9\"]\n",
        "",
        "spec.toml: target: [target] is missing",
    );
}

#[test]
fn ranges() {
    expect(
        "low = 1\n",
        "low = 32\n",
        "spec.toml:5: parameters[0].low: is 32, but it has to be below `high`, 32",
    );
    expect(
        "low = 1\n",
        "",
        "spec.toml:4: parameters[0].type: low is missing",
    );
    expect(
        "low = 1\n",
        "low = 1.5\n",
        "spec.toml:5: parameters[0].low: 1.5 is not a whole number",
    );
    expect(
        "low = 1\n",
        "scale = \"log\"\nlow = 0\n",
        "spec.toml:6: parameters[0].low: is 0, but a log scale starts at 1 or above; list 0 as a special value",
    );
    expect(
        "high = 32",
        "high = 32\nstep = 40",
        "spec.toml:7: parameters[0].step: is 40, but it has to be at least 1 and at most the whole range, 31",
    );
    expect(
        "high = 32",
        "high = 32\nstep = 0",
        "spec.toml:7: parameters[0].step: is 0, but it has to be at least 1 and at most the whole range, 31",
    );
    expect_named(
        "default = 16",
        "default = 64",
        "spec.toml:7: parameters[0].default: ",
        &["64"],
    );
    expect_named(
        "default = 16",
        "default = \"many\"",
        "spec.toml:7: parameters[0].default: ",
        &["many"],
    );
    expect(
        "name = \"threads\"",
        "name = \"port\"",
        "spec.toml:3: parameters[0].name: \"port\" must be a plain word other than port, dir, side, spec_dir, duration_s",
    );
}

#[test]
fn objective_and_constraints() {
    expect(
        "name = \"sound\"",
        "constraints = [\"p99 is fine\"]",
        "spec.toml:1: constraints[0]: \"p99 is fine\" is not a constraint: write METRIC <= NUMBER, METRIC <= NUMBER * control, or the same with >= or =",
    );
    expect(
        "name = \"sound\"",
        "constraints = [\"latency_p99_us <= 0 * control\"]",
        "spec.toml:1: constraints[0]: \"latency_p99_us <= 0 * control\": the factor of control must be above 0",
    );
    let listed = "there are context_switches, cpu_s, cpu_system_s, cpu_user_s, duration_s, involuntary_switches, \
        jvm_allocated_bytes, jvm_gc_cycles, jvm_gc_time_s, jvm_jit_time_s, latency_p99_us, memory_bytes, requests";
    expect(
        "name = \"sound\"",
        "constraints = [\"latency_p98_us <= 1.05 * control\"]",
        &format!(
            "spec.toml:1: constraints[0]: no metric is called \"latency_p98_us\"; {listed}, and X_per_request and X_per_s of each"
        ),
    );
    expect(
        "metric = \"cpu_s_per_request\"",
        "metric = \"cpu\"",
        &format!(
            "spec.toml:14: objective.metric: no metric is called \"cpu\"; {listed}, and X_per_request and X_per_s of each"
        ),
    );
    expect_named(
        "name = \"sound\"",
        "parameter_constraints = [\"threads <= cores\"]",
        "spec.toml:1: parameter_constraints",
        &["cores"],
    );
}

#[test]
fn targets() {
    expect(
        "start = [\"sleep\", \"9\"]",
        "pairing = \"parallel\"",
        "spec.toml:9: target.pairing: parallel needs target.start, because it measures two instances",
    );
    expect(
        "[target]",
        "[target]\nports = [8080, 8080]",
        "spec.toml:9: target.ports: must be two different ports above 0",
    );
    expect_named(
        "[target]",
        "[target]\ncpus = [\"0\", \"x\"]",
        "spec.toml:9: target.cpus[1]: ",
        &["x"],
    );
    expect_named(
        "[target]",
        "[target]\ncpus = [\"0\", \"900\"]",
        "spec.toml:9: target.cpus[1]: CPU 900 is not online here (online: ",
        &[],
    );
    expect_named(
        "[target]",
        "[target]\nfiles = [{ template = \"absent.in\", path = \"{dir}/x\" }]",
        "spec.toml:9: target.files[0].template: ",
        &["absent.in is not a file"],
    );
    expect(
        "json = {",
        "parse = \"wrk\"\njson = {",
        "spec.toml:10: workload: give exactly one of parse, json, regex: how its output is read",
    );
}

#[test]
fn json_says_the_same_as_toml() {
    let value: toml::Value = toml::from_str(SOUND).unwrap();
    let text = serde_json::to_string_pretty(&value).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let checked = |path: &Path| {
        let spec = load(path, &Roots::default()).unwrap();
        serde_json::to_value(spec.written()).unwrap()
    };
    assert_eq!(
        checked(&write("a.toml", SOUND)),
        checked(&write("a.json", &text))
    );

    let wrong = text.replace("\"low\": 1", "\"low\": 32");
    assert_ne!(wrong, text);
    let line = 1 + wrong
        .lines()
        .position(|line| line.contains("\"low\""))
        .unwrap();
    assert_eq!(
        error_in("spec.json", &wrong, &Roots::default()),
        format!("spec.json:{line}: parameters[0].low: is 32, but it has to be below `high`, 32")
    );
    let unknown = text.replace("\"low\"", "\"lwo\"");
    let error = error_in("spec.json", &unknown, &Roots::default());
    assert!(
        error.starts_with(&format!("spec.json:{line}: ")) && error.contains("lwo"),
        "{error}"
    );
}

#[test]
fn names_in_templates_are_known() {
    let known = "dir, port, side, spec_dir, threads";
    expect(
        "\"9\"",
        "\"{thread}\"",
        &format!(
            "spec.toml:9: target.start[1]: {{thread}} is neither a parameter nor a variable (known: {known}); \
             write {{{{thread}}}} for the text itself"
        ),
    );
    expect_named(
        "[target]",
        "[target]\nready = { url = \"http://127.0.0.1:{prot}/\" }",
        "spec.toml:9: target.ready.url: ",
        &["{prot}"],
    );
    expect_named(
        "[\"true\"]",
        "[\"true\", \"{duration}\"]",
        "spec.toml:11: workload.command[1]: ",
        &["{duration}", "duration_s"],
    );
    // The same name is known to the workload alone.
    expect_named(
        "[target]",
        "[target]\nprepare = [\"sleep\", \"{duration_s}\"]",
        "spec.toml:9: target.prepare[1]: ",
        &["{duration_s}"],
    );
    assert_eq!(
        error_with("[\"true\"]", "[\"true\", \"{duration_s}\", \"{{x}}\"]"),
        "no error"
    );
}

#[test]
fn wrong_types_are_said_in_words() {
    let metric = "metric = \"cpu_s_per_request\"";
    for (section, words) in [
        ("[budget]\nevaluations = \"13\"", "expected a whole number"),
        ("[evaluation]\nblock_s = \"1s\"", "expected a number"),
        ("[evaluation]\nearly_abort = 1", "expected true or false"),
        ("[evaluation]\nblocks = 9000000000", "be at most 1000000"),
        ("[verification]\nruns = 1", "at least 2: one fresh run"),
        ("[search]\nwarm_start = 3", "expected a list"),
        ("[workers]\nat_once = []", "expected a whole number"),
        (
            "[workers]\nat_once = -1",
            "integer `-1`, expected a whole number from 0",
        ),
    ] {
        let error = error_with(metric, &format!("{metric}\n{section}"));
        assert!(error.contains(words), "{error}");
    }
    let error = error_with("[target]", "[target]\nquota = 3");
    assert!(error.contains("expected a table of keys"), "{error}");
}

#[test]
fn addresses_can_be_asked() {
    let metric = "metric = \"cpu_s_per_request\"";
    let with = |more: &str, url: &str| {
        let more = more.replace("URL", &format!("{url:?}"));
        error_with(metric, &format!("{metric}\n{more}"))
    };
    for (more, key) in [
        ("[target.ready]\nurl = URL", "target.ready.url"),
        ("[[target.apply]]\nurl = URL", "target.apply[0].url"),
        (
            "[metrics.m]\nprometheus = URL\nquery = \"up\"",
            "metrics.m.prometheus",
        ),
    ] {
        for (url, why) in [
            ("127.0.0.1:80", "it has to begin with http:// or https://"),
            (
                "http://h:99999/",
                "\"99999\" is no port: it has to be 1 to 65535",
            ),
            ("http://h/a b", "a space has to be written as %20"),
        ] {
            let error = with(more, url);
            assert!(
                error.starts_with("spec.toml:") && error.ends_with(&format!("{key}: {why}")),
                "{error}"
            );
        }
        assert_eq!(with(more, "HTTPS://[::1]:9090/a?b=%20"), "no error");
    }
    let workload = SOUND
        .lines()
        .filter(|line| line.starts_with("command") || line.starts_with("json"));
    let workload = workload.collect::<Vec<_>>().join("\n");
    let load = |url: &str| error_with(&workload, &format!("http = {{ url = {url:?}, rate = 9 }}"));
    let refused = "spec.toml:11: workload.http.url: it has to begin with http:// or https://";
    assert_eq!(load("127.0.0.1:{port}/"), refused);
    for url in ["http://127.0.0.1:{port}/{side}?a=1", "{side}/a"] {
        let ready = with("[target.ready]\nurl = URL", url);
        assert_eq!(
            (ready.as_str(), load(url).as_str()),
            ("no error", "no error")
        );
    }
}

#[test]
fn what_would_not_be_measured_is_an_error() {
    expect_named(
        "name = \"sound\"",
        "constraints = [\"throttled_periods = 0\"]",
        "spec.toml:1: constraints[0]: ",
        &[
            "throttled_periods",
            "target.quota limits the service, or target.observe names its cgroup",
        ],
    );
    expect_named(
        "start = [\"sleep\", \"9\"]",
        "",
        "spec.toml:14: objective.metric: ",
        &["cpu_s_per_request", "target.start starts them"],
    );
    expect_named(
        "start = [\"sleep\", \"9\"]",
        "observe = { cgroup = \"a\" }",
        "no error",
        &[],
    );
    expect(
        "default = 16\n",
        "",
        "spec.toml:2: parameters[0]: threads needs a default: it is the control's value, and cannot be read from the system",
    );
    expect_named(
        "metric = \"cpu_s_per_request\"",
        "metric = \"cpu_s_per_request\"\n[verification]\nruns = 1",
        "spec.toml:16: verification.runs: ",
        &["at least 2"],
    );
}

#[test]
fn times_have_a_limit_that_clocks_can_take() {
    let limit = "must be at most 2592000, which is 30 days";
    for (from, to, key) in [
        (
            "",
            "evaluation = { block_s = 1e300 }",
            "1: evaluation.block_s",
        ),
        (
            "",
            "evaluation = { warm_up_s = 1e20 }",
            "1: evaluation.warm_up_s",
        ),
        (
            "",
            "evaluation = { settle_s = 1e20 }",
            "1: evaluation.settle_s",
        ),
        (
            "[target]",
            "[target]\nstop = { grace_s = 1e20 }",
            "9: target.stop.grace_s",
        ),
        (
            "[target]",
            "[target]\nready = { url = \"http://a\", timeout_s = 1e20 }",
            "9: target.ready.timeout_s",
        ),
        (
            "[workload]",
            "[workload]\ngrace_s = 1e20",
            "11: workload.grace_s",
        ),
        (
            "command = [\"true\"]\njson = { requests = \"requests\", latency_p99_us = \"p99\" }",
            "http = { url = \"http://a/\", rate = 1, timeout_s = 1e20 }",
            "11: workload.http.timeout_s",
        ),
    ] {
        let error = match from {
            "" => error_in("spec.toml", &format!("{to}\n{SOUND}"), &Roots::default()),
            from => error_with(from, to),
        };
        assert!(
            error.starts_with(&format!("spec.toml:{key}: ")) && error.ends_with(limit),
            "{error}"
        );
    }
}

#[test]
fn a_time_that_is_none_is_refused_with_the_least() {
    for (to, error) in [
        (
            "budget = { wall_time_min = 1e-320 }",
            "budget.wall_time_min: must be a number of minutes from 0.01 (0.6 seconds) to 10000000 (19 years), not 1e-320",
        ),
        (
            "evaluation = { block_s = 1e-320 }",
            "evaluation.block_s: 1e-320 must be at least 0.001, which is a millisecond",
        ),
        (
            "evaluation = { settle_s = 1e-9 }",
            "evaluation.settle_s: 1e-9 must be 0, or at least 0.001, which is a millisecond",
        ),
    ] {
        let said = error_in("spec.toml", &format!("{to}\n{SOUND}"), &Roots::default());
        assert_eq!(said, format!("spec.toml:1: {error}"));
    }
    for to in [
        "budget = { wall_time_min = 0.01 }",
        "evaluation = { settle_s = 0 }",
    ] {
        let said = error_in("spec.toml", &format!("{to}\n{SOUND}"), &Roots::default());
        assert_eq!(said, "no error", "{to}");
    }
}

#[test]
fn commands_ports_and_names_are_looked_at_before_anything_starts() {
    for (from, to, error) in [
        (
            "command = [\"true\"]",
            "command = [\"\"]",
            "spec.toml:11: workload.command: the command is empty",
        ),
        (
            "[objective]",
            "[metrics.x]\ncommand = []\n[objective]",
            "spec.toml:14: metrics.x.command: the command is empty",
        ),
        (
            "[workload]",
            "ready = { command = [] }\n[workload]",
            "spec.toml:10: target.ready.command: the command is empty",
        ),
        (
            "[workload]",
            "apply = [{ command = [] }]\n[workload]",
            "spec.toml:10: target.apply[0].command: the command is empty",
        ),
        (
            "[workload]",
            "ready = { port = \"http\" }\n[workload]",
            "spec.toml:10: target.ready.port: \"http\" is not a port: write \"{port}\", or a number from 1 to 65535",
        ),
        (
            "[objective]",
            "minimum = { requests = nan }\n[objective]",
            "spec.toml:13: workload.minimum.requests: must be a finite number, not NaN",
        ),
        (
            "name = \"sound\"",
            "name = \"\"",
            "spec.toml:1: name: \"\" must be a line of text that is not empty",
        ),
        (
            "name = \"sound\"",
            "name = \"a\\u001b[31m\"",
            r#"spec.toml:1: name: "a\u{1b}[31m" must be a line of text that is not empty"#,
        ),
        (
            "[objective]",
            "[verification]\narms = [{ name = \"a\" }, { name = \"a\" }]\n[objective]",
            "spec.toml:14: verification.arms[1].name: \"a\" is another arm's name",
        ),
        (
            "[objective]",
            "[verification]\narms = [{ name = \"candidate 1\" }]\n[objective]",
            "spec.toml:14: verification.arms[0].name: \"candidate 1\" is another arm's name",
        ),
    ] {
        expect(from, to, error);
    }
}

#[test]
fn paths_of_files_are_looked_at_before_anything_starts() {
    let file = |path: &str, rest: &str| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("template"), "x").unwrap();
        let path = format!("{rest}files = [{{ template = \"template\", path = \"{path}\" }}]");
        let text = SOUND.replacen("start = [\"sleep\", \"9\"]", &path, 1);
        let spec = dir.path().join("spec.toml");
        std::fs::write(&spec, text).unwrap();
        match load(&spec, &Roots::default()) {
            Ok(_) => "no error".to_owned(),
            Err(error) => format!("{}: {}", error.key, error.message),
        }
    };
    let started = "start = [\"sleep\", \"9\"]\n";
    let attached = "observe = { pid = 1 }\n";
    for (path, rest, error) in [
        ("{dir}/conf", started, "no error"),
        ("/etc/conf", attached, "no error"),
        (
            "/etc/conf",
            started,
            "target.files[0].path: \"/etc/conf\" must begin with {dir}, as each of the two instances has its own",
        ),
        (
            "{dir}/../../conf",
            started,
            "target.files[0].path: \"{dir}/../../conf\" must not have .. in it",
        ),
        (
            "conf",
            attached,
            "target.files[0].path: \"conf\" must be absolute",
        ),
        (
            "/etc/conf\" }, { template = \"template\", path = \"/etc/conf",
            attached,
            "target.files[1].path: \"/etc/conf\" is written twice",
        ),
        (
            "/dev/null",
            attached,
            "target.files[0].path: /dev/null cannot be replaced: it is a directory, a pipe, a socket or a device, not a file with contents",
        ),
    ] {
        assert_eq!(file(path, rest), error);
    }
}

#[test]
fn the_key_that_is_wrong_is_named_in_inline_tables_and_in_json() {
    let hint = "unknown value `json`, expected one of `wrk`, `wrk2`, `ab`, `hey`, `oha`, `k6`, `vegeta`, \
                `h2load`, `ghz`, `fio`, `sysbench`, `pgbench`, `mysqlslap`, `hammerdb`, `ycsb`, `redis-benchmark`, `memtier`, \
                `netperf`, `iperf3`, `stress-ng`, `hyperfine`, `jmh`; what any other command prints is read by json = { requests = \"path.in.it\" } or regex = \
                { requests = 'with a (group)' } in place of parse";
    expect(
        "json = { requests = \"requests\", latency_p99_us = \"p99\" }",
        "parse = \"json\"",
        &format!("spec.toml:12: workload.parse: {hint}"),
    );
    expect(
        "[workload]",
        "ready = { port = 80, timeout_s = 5 }\n[workload]",
        "spec.toml:10: target.ready.port: invalid type: integer `80`, expected a text",
    );
    expect(
        "[workload]",
        "ports = [70000, 1]\n[workload]",
        "spec.toml:10: target.ports[0]: invalid value: integer `70000`, expected a whole number from 0 to 65535",
    );
    expect(
        "default = 16",
        "default = [16]",
        "spec.toml:7: parameters[0].default: expected true, false, a number or a text",
    );
    let json = |text: &str| error_in("spec.json", text, &Roots::default());
    assert_eq!(
        json(r#"{"parameters": [{"name": "x", "type": "int", "low": "one", "high": 2}]}"#),
        "spec.json:1: parameters[0].low: invalid type: a text, expected a number"
    );
    assert!(
        json("{\"parameters\": [],\n\"sede\": 1}")
            .starts_with("spec.json:2: sede: unknown key `sede`"),
    );
    assert_eq!(
        json("{\"parameters\": [],\n\"workload\": {\"command\": [\"a\"], \"parse\": \"json\"}}"),
        format!("spec.json:2: workload.parse: {hint}")
    );
    assert_eq!(
        json("{\"parameters\": [{\"name\": \"x\"}]}"),
        "spec.json:1: `type` is missing"
    );
    // What is missing from the whole file has no line; from the first table, that of its head.
    assert_eq!(
        json("{\n\"name\": \"a\"\n}\n"),
        "spec.json: the specification has no `parameters`: add at least one parameter"
    );
    let toml = |text: &str| error_in("spec.toml", text, &Roots::default());
    for text in [
        "name = \"a\"\n",
        "\nseed = 1\n[target]\nstart = [\"a\"]\n",
        "parameters = []\n",
    ] {
        let said = toml(text);
        assert!(
            said.ends_with("the specification has no `[[parameters]]`: add at least one parameter"),
            "{said}"
        );
        assert_eq!(
            said.starts_with("spec.toml:1: "),
            text.starts_with("par"),
            "{said}"
        );
    }
    assert_eq!(
        toml("[[parameters]]\nname = \"x\"\n"),
        "spec.toml:1: parameters[0]: `type` is missing"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spec.toml");
    std::fs::write(&path, b"seed = 1\nname = \"b\xe4se\"\n").unwrap();
    let error = load(&path, &Roots::default()).unwrap_err();
    assert_eq!(
        (error.line, error.message.as_str()),
        (Some(2), "is not UTF-8 text")
    );
}
