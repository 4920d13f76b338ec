//! What a source is written as, and what cannot be meant.

use super::*;

fn parse(text: &str) -> Result<SourceSpec, String> {
    let table: std::collections::BTreeMap<String, SourceSpec> =
        toml::from_str(text).map_err(|error| error.to_string())?;
    table
        .into_values()
        .next()
        .ok_or_else(|| "nothing".to_owned())
}

#[test]
fn a_source_is_written_in_one_line() {
    let wire = SourceSpec::Wire(WireSpec::of_port(11211));
    assert_eq!(parse("latency = { wire = { port = 11211 } }"), Ok(wire));
    let command = SourceSpec::Command(vec!["p99".to_owned()]);
    assert_eq!(parse("latency = { command = [\"p99\"] }"), Ok(command));
    for (wrong, said) in [
        ("latency = { wire = { prot = 1 } }", "unknown field `prot`"),
        ("latency = { wire = { port = 70000 } }", "70000"),
        (
            "latency = { wire = { port = 1 }, command = [\"x\"] }",
            ONE_SOURCE,
        ),
        ("latency = {}", ONE_SOURCE),
        (
            "latency = { tape = 1 }",
            "unknown field `tape`, expected one of `wire`, `scrape`",
        ),
        ("latency = \"wire\"", "expected a source, such as"),
    ] {
        let error = parse(wrong).unwrap_err();
        assert!(error.contains(said), "{wrong}: {error}");
    }
}

#[test]
fn a_source_is_read_as_it_is_written() {
    for text in [
        "s = { wire = { port = 1, pid = 7, cpu_budget_cores = 0.5 } }",
        "s = { command = [\"p99\"] }",
        "s = { push = { unix = \"/run/t.sock\" } }",
    ] {
        let spec = parse(text).unwrap();
        assert_eq!(spec.check(), Ok(()), "{text}");
        let again = toml::to_string(&[("s", &spec)].into_iter().collect::<Table<'_>>()).unwrap();
        assert_eq!(parse(&again), Ok(spec.clone()), "{again}");
    }
}

type Table<'a> = std::collections::BTreeMap<&'static str, &'a SourceSpec>;

#[test]
fn what_cannot_be_meant_is_named_by_its_key() {
    for (text, key) in [
        ("s = { wire = { port = 0 } }", "wire.port"),
        (
            "s = { wire = { port = 1, cpu_budget_cores = 0.0 } }",
            "wire.cpu_budget_cores",
        ),
        (
            "s = { scrape = { url = \"x\", histogram = \"h\" } }",
            "scrape.url",
        ),
        (
            "s = { scrape = { url = \"http://a/\", histogram = \"\" } }",
            "scrape.histogram",
        ),
        (
            "s = { prometheus = { url = \"x\", query = \"a[5s]\" } }",
            "prometheus.url",
        ),
        (
            "s = { prometheus = { url = \"http://a/\", query = \"a\" } }",
            "prometheus.window_s",
        ),
        ("s = { push = { udp = \"1.2.3.4:5\" } }", "push.udp"),
        ("s = { push = { udp = \"127.0.0.1:0\" } }", "push.udp"),
        ("s = { push = { unix = \"\" } }", "push.unix"),
        ("s = { push = { unix = \"/run/a\\u0000b\" } }", "push.unix"),
        (
            "s = { push = { unix = \"/r\", timer = \"\" } }",
            "push.timer",
        ),
        (
            "s = { push = { unix = \"/r\", timer = \"a:1\" } }",
            "push.timer",
        ),
        ("s = { push = {} }", "push"),
        ("s = { command = [] }", "command"),
        ("s = { command = [\"a\", \"\\u0000\"] }", "command"),
        ("s = { wire = { port = 1, pid = 0 } }", "wire.pid"),
        ("s = { wire = { port = 1, pid = 4194305 } }", "wire.pid"),
        (
            "s = { wire = { port = 1, cpu_budget_cores = 1.5 } }",
            "wire.cpu_budget_cores",
        ),
        (
            "s = { scrape = { url = \"http://a:0/\", histogram = \"h\" } }",
            "scrape.url",
        ),
        (
            "s = { scrape = { url = \"http://a/\", histogram = \"h_bucket\" } }",
            "scrape.histogram",
        ),
        (
            "s = { scrape = { url = \"http://a/\", histogram = \"h{a=1}\" } }",
            "scrape.histogram",
        ),
        (
            "s = { scrape = { url = \"http://a/\", histogram = \"h\", labels = { le = \"1\" } } }",
            "scrape.labels.le",
        ),
        (
            "s = { prometheus = { url = \"http://a/\", query = \" \", window_s = 5 } }",
            "prometheus.query",
        ),
        (
            "s = { prometheus = { url = \"http://a/\", query = \"a[5s]\", requests = \"\" } }",
            "prometheus.requests",
        ),
    ] {
        assert_eq!(parse(text).unwrap().check().unwrap_err().key, key, "{text}");
    }
    let long = format!("s = {{ push = {{ unix = \"/{}\" }} }}", "a".repeat(107));
    let wrong = parse(&long).unwrap().check().unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "push.unix: the path has 108 bytes, and that of a socket has at most 107"
    );
    let good = "s = { scrape = { url = \"http://127.0.0.1:9/metrics\", histogram = \"h\" } }";
    assert_eq!(parse(good).unwrap().check(), Ok(()));
}

#[test]
fn the_window_is_that_of_the_query() {
    let window = |query: &str, window_s| {
        let spec = PrometheusSpec {
            url: String::new(),
            query: query.to_owned(),
            requests: None,
            window_s,
            unit: Unit::Seconds,
        };
        spec.window()
    };
    let seconds = |count| Ok(Duration::from_secs(count));
    assert_eq!(window("increase(a[30s])", None), seconds(30));
    assert_eq!(window("a[1h30m] / b[1h30m]", None), seconds(5400));
    assert_eq!(window("max_over_time(a[5m:10s])", None), seconds(300));
    assert_eq!(window("job:p99:30s", Some(30.0)), seconds(30));
    for (query, window_s) in [
        ("job:p99:30s", None),
        ("a[30s] / b[1m]", None),
        ("a[x]", None),
        ("a[30s]", Some(0.0)),
        ("a[30s]", Some(-1.0)),
        ("a[30s]", Some(f64::NAN)),
        ("a[30s]", Some(1e300)),
        ("a[30s]", Some(0.5)),
        ("a[2d]", None),
        ("a[500ms]", None),
    ] {
        let why = window(query, window_s).unwrap_err();
        assert_eq!(why.key, "prometheus.window_s", "{query}: {why}");
    }
}
