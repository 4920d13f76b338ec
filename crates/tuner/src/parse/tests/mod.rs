//! Reports of real runs (wrk 4.1, ApacheBench 2.3, hey 0.1.5, oha 1.16, fio 3.33, sysbench 1.0.20,
//! pgbench 15, redis-benchmark 7.0, against servers on loopback). Each file in `fixtures/` is what
//! the tool printed.

use proptest::prelude::*;

use super::*;

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name))
    };
}

mod layouts;
mod older_versions;
mod real_runs;
mod tools;

/// The whole report, so that a metric too many is seen as well as one too few.
fn assert_report(format: Format, text: &str, expected: &[(&str, f64)]) {
    let got = parse(&format, text).unwrap();
    let names = |metrics: Vec<&str>| {
        let mut metrics = metrics;
        metrics.sort_unstable();
        metrics.join(" ")
    };
    assert_eq!(
        names(got.keys().map(String::as_str).collect()),
        names(expected.iter().map(|(name, _)| *name).collect())
    );
    for (name, value) in expected {
        let found = got[*name];
        assert!(
            (found - value).abs() <= 1e-9 * value.abs(),
            "{name}: {found}, not {value}"
        );
    }
}

/// Some metrics of a report, each with what the tool says.
fn assert_has(format: Format, text: &str, expected: &[(&str, f64)]) {
    let got = parse(&format, text).unwrap();
    for (name, value) in expected {
        let found = *got.get(*name).unwrap_or(&f64::NAN);
        assert!(
            (found - value).abs() <= 1e-9 * value.abs(),
            "{format:?}: {name}: {found}, not {value}"
        );
    }
}

fn assert_has_not(format: Format, text: &str, names: &[&str]) {
    let got = parse(&format, text).unwrap();
    for name in names {
        assert!(!got.contains_key(*name), "{format:?}: {name}: {got:?}");
    }
}

fn assert_no_requests(format: Format, text: &str) {
    let error = parse(&format, text).unwrap_err();
    assert!(
        matches!(error, ParseError::NoRequests { .. }),
        "{format:?}: {error}"
    );
}

const PERCENTILES: [&str; 6] = [
    "latency_p50_us",
    "latency_p75_us",
    "latency_p90_us",
    "latency_p95_us",
    "latency_p99_us",
    "latency_p999_us",
];

#[test]
fn a_format_has_the_name_that_a_specification_gives_it() {
    for format in Format::ALL {
        let named = serde_json::Value::String(format.name().to_owned());
        assert_eq!(serde_json::from_value::<Format>(named).unwrap(), format);
    }
}

#[test]
fn wrk() {
    assert_report(
        Format::Wrk,
        fixture!("wrk.txt"),
        &[
            ("requests", 79509.0),
            ("duration_s", 2.0),
            ("requests_per_s", 39747.72),
            ("latency_mean_us", 215.51),
            ("latency_sd_us", 220.44),
            ("latency_max_us", 4770.0),
            ("latency_p50_us", 186.0),
            ("latency_p75_us", 229.0),
            ("latency_p90_us", 285.0),
            ("latency_p99_us", 1170.0),
            ("errors", 0.0),
            ("bytes_per_s", 40.37 * 1048576.0),
        ],
    );
    let errors = parse(&Format::Wrk, fixture!("wrk-errors-no-latency.txt")).unwrap();
    assert_eq!(errors["errors"], 43298.0);
    assert!(!errors.contains_key("latency_p99_us"));
    let wrk2 = "    Latency     1.20ms    0.50ms   9.00ms   90.00%\n 50.000%    1.10ms\n 99.900%    8.00ms\n100.000%    9.01ms\n  10 requests in 1.00m, 1.00KB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\nRequests/sec: 0.17\n";
    let wrk2 = parse(&Format::Wrk, wrk2).unwrap();
    assert_eq!(wrk2["latency_p999_us"], 8000.0);
    assert_eq!(wrk2["duration_s"], 60.0);
    assert_eq!(wrk2["errors"], 10.0);
}

#[test]
fn ab() {
    assert_report(
        Format::Ab,
        fixture!("ab.txt"),
        &[
            ("requests", 2000.0),
            ("duration_s", 0.280),
            ("requests_per_s", 7146.92),
            ("latency_mean_us", 1119.0),
            ("latency_sd_us", 900.0),
            ("latency_p50_us", 1000.0),
            ("latency_p75_us", 1000.0),
            ("latency_p90_us", 2000.0),
            ("latency_p95_us", 3000.0),
            ("latency_p99_us", 5000.0),
            ("latency_max_us", 6000.0),
            ("errors", 0.0),
            ("bytes_per_s", 7398.17 * 1024.0),
        ],
    );
    assert_eq!(
        parse(&Format::Ab, fixture!("ab-errors.txt")).unwrap()["errors"],
        300.0
    );
    let both = "Complete requests:      100\nFailed requests:        12\n   (Connect: 0, Receive: 2, Length: 10, Exceptions: 0)\nNon-2xx responses:      9\nRequests per second:    10.00 [#/sec] (mean)\nTotal: 0 0 0.0 0 0\n";
    assert_eq!(parse(&Format::Ab, both).unwrap()["errors"], 12.0);
}

#[test]
fn hey() {
    assert_report(
        Format::Hey,
        fixture!("hey.txt"),
        &[
            ("requests", 2000.0),
            ("duration_s", 0.4053),
            ("requests_per_s", 4934.7041),
            ("latency_mean_us", 1600.0),
            ("latency_max_us", 66800.0),
            ("latency_p50_us", 1200.0),
            ("latency_p75_us", 1700.0),
            ("latency_p90_us", 2000.0),
            ("latency_p95_us", 2300.0),
            ("latency_p99_us", 5400.0),
            ("errors", 0.0),
            ("bytes_per_s", 1_654_000.0 / 0.4053),
        ],
    );
    assert_eq!(
        parse(&Format::Hey, fixture!("hey-errors.txt")).unwrap()["errors"],
        200.0
    );
    let half = "Summary:\n  Total:\t1.0000 secs\n  Requests/sec:\t40.0\nStatus code distribution:\n  [200]\t30 responses\nError distribution:\n  [10]\tGet: refused\n";
    let half = parse(&Format::Hey, half).unwrap();
    assert_eq!((half["requests_per_s"], half["errors"]), (30.0, 10.0));
}

#[test]
fn oha_1_16() {
    let json = parse(&Format::Oha, fixture!("oha.json")).unwrap();
    let text = parse(&Format::Oha, fixture!("oha.txt")).unwrap();
    // Of two runs of 200 requests.
    for report in [&json, &text] {
        assert_eq!((report["requests"], report["errors"]), (200.0, 0.0));
        assert!(report["latency_p999_us"] <= report["latency_max_us"]);
    }
    let names = |report: &BTreeMap<String, f64>| report.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&json), names(&text));
    assert!((json["requests_per_s"] - 1_569.248_6).abs() < 1e-3);
    assert!((json["latency_p99_us"] - 16_119.329).abs() < 1e-6);
    assert_eq!(text["latency_p99_us"], 16_808.7);
    assert!((text["duration_s"] - 0.162_397).abs() < 1e-9);
    // The four that were under way at the end are no errors, unlike answers of 404.
    let missing = parse(&Format::Oha, fixture!("oha-404.txt")).unwrap();
    assert_eq!((missing["requests"], missing["errors"]), (1252.0, 1252.0));
}

#[test]
fn fio() {
    let one = parse(&Format::Fio, fixture!("fio-randread.json")).unwrap();
    for name in [
        "latency_p50_us",
        "latency_p99_us",
        "latency_p999_us",
        "latency_sd_us",
        "latency_max_us",
    ] {
        assert!(one.contains_key(name), "{name}");
    }
    assert!((one["requests"] / one["duration_s"] / one["requests_per_s"] - 1.0).abs() < 1e-3);
    assert!((one["bytes_per_s"] / one["requests_per_s"] / 4096.0 - 1.0).abs() < 1e-3);

    let both = parse(&Format::Fio, fixture!("fio-randrw.json")).unwrap();
    assert!(both["requests"] > 7548.0, "reads and writes");
    assert!(both.contains_key("latency_mean_us") && !both.contains_key("latency_p99_us"));
    let warned = format!("fio: some warning\n{}", fixture!("fio-randrw.json"));
    assert_eq!(parse(&Format::Fio, &warned).unwrap(), both);
}

#[test]
fn sysbench() {
    assert_report(
        Format::Sysbench,
        fixture!("sysbench-oltp.txt"),
        &[
            ("requests", 581.0),
            ("duration_s", 2.0076),
            ("requests_per_s", 289.34),
            ("queries_per_s", 5812.75),
            ("latency_mean_us", 6890.0),
            ("latency_max_us", 1_005_160.0),
            ("latency_p99_us", 10090.0),
            ("errors", 3.0),
        ],
    );
    assert_report(
        Format::Sysbench,
        fixture!("sysbench-cpu.txt"),
        &[
            ("requests", 6864.0),
            ("duration_s", 1.0003),
            ("requests_per_s", 6864.0 / 1.0003),
            ("latency_mean_us", 290.0),
            ("latency_max_us", 11340.0),
            ("latency_p95_us", 340.0),
        ],
    );
}

#[test]
fn pgbench() {
    assert_report(
        Format::Pgbench,
        fixture!("pgbench.txt"),
        &[
            ("requests", 2471.0),
            ("duration_s", 2471.0 / 1238.935568),
            ("requests_per_s", 1238.935568),
            ("latency_mean_us", 1608.0),
            ("latency_sd_us", 718.0),
            ("errors", 0.0),
        ],
    );
    let counted = parse(&Format::Pgbench, fixture!("pgbench-t.txt")).unwrap();
    assert_eq!(counted["requests"], 100.0);
    let scripts = parse(&Format::Pgbench, fixture!("pgbench-scripts.txt")).unwrap();
    assert_eq!(
        (scripts["requests"], scripts["latency_mean_us"]),
        (304.0, 267.0)
    );
    let old = "number of transactions actually processed: 10\nlatency average = 1.000 ms\ntps = 90.0 (including connections establishing)\ntps = 100.0 (excluding connections establishing)\n";
    assert_eq!(
        parse(&Format::Pgbench, old).unwrap()["requests_per_s"],
        100.0
    );
}

#[test]
fn redis_benchmark() {
    assert_report(
        Format::RedisBenchmark,
        fixture!("redis-get.txt"),
        &[
            ("requests", 20000.0),
            ("duration_s", 0.79),
            ("requests_per_s", 25284.45),
            ("latency_mean_us", 224.0),
            ("latency_p50_us", 143.0),
            ("latency_p75_us", 183.0),
            ("latency_p95_us", 247.0),
            ("latency_p99_us", 3151.0),
            ("latency_p999_us", 7047.0),
            ("latency_max_us", 7791.0),
        ],
    );
    assert_report(
        Format::RedisBenchmark,
        fixture!("redis-both.txt"),
        &[
            ("requests", 6000.0),
            ("duration_s", 0.19),
            ("requests_per_s", 2.0 / (1.0 / 34482.76 + 1.0 / 30000.0)),
            ("latency_mean_us", 87.0),
            ("latency_max_us", 2711.0),
        ],
    );
    assert_report(
        Format::RedisBenchmark,
        fixture!("redis-csv.txt"),
        &[
            ("requests_per_s", 2.0 / (1.0 / 29940.12 + 1.0 / 30864.20)),
            ("latency_mean_us", 88.5),
            ("latency_max_us", 2279.0),
        ],
    );
    let quiet =
        "SET: rps=0.0 (overall: 4000.0)\r   \rSET: 32467.53 requests per second, p50=0.079 msec\n";
    assert_report(
        Format::RedisBenchmark,
        quiet,
        &[("requests_per_s", 32467.53), ("latency_p50_us", 79.0)],
    );
    assert!(parse(&Format::RedisBenchmark, fixture!("redis-q.txt")).is_ok());
}

#[test]
fn runs_that_completed_nothing() {
    for (format, text) in [
        (Format::Wrk, fixture!("wrk-closed.txt")),
        (Format::Hey, fixture!("hey-refused.txt")),
        (Format::Fio, "{\"jobs\": []}"),
        (
            Format::Pgbench,
            "number of transactions actually processed: 0\n",
        ),
        (
            Format::Sysbench,
            "total time: 1.0s\ntotal number of events: 0\n",
        ),
        (
            Format::Memtier,
            "Type  Ops/sec  KB/sec\nTotals  0.00  0.00\n",
        ),
        (
            Format::Oha,
            "{\"summary\": {\"total\": 1.0}, \"errorDistribution\": {\"refused\": 4}}",
        ),
        (Format::RedisBenchmark, "GET: 0.00 requests per second\n"),
        (
            Format::Ab,
            "Complete requests: 0\nRequests per second: 0.00 [#/sec]\n",
        ),
    ] {
        let error = parse(&format, text).unwrap_err();
        assert!(
            matches!(error, ParseError::NoRequests { .. }),
            "{format:?}: {error}"
        );
    }
}

#[test]
fn tools_that_gave_up() {
    assert_eq!(
        parse(&Format::Pgbench, fixture!("pgbench-aborted.txt"))
            .unwrap_err()
            .to_string(),
        "pgbench gave up: client 0 script 0 aborted in command 0 query 0: ERROR:  division by zero"
    );
    let error = parse(&Format::Sysbench, fixture!("sysbench-fatal.txt")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("database \"nope\" does not exist"),
        "{error}"
    );
    for (format, text, words) in [
        (
            Format::Wrk,
            fixture!("wrk-refused.txt"),
            "Connection refused",
        ),
        (Format::Ab, fixture!("ab-refused.txt"), "Connection refused"),
        (
            Format::RedisBenchmark,
            fixture!("redis-refused.txt"),
            "Connection refused",
        ),
        (
            Format::Fio,
            fixture!("fio-normal.txt"),
            "--output-format=json",
        ),
    ] {
        let error = parse(&format, text).unwrap_err();
        assert!(
            matches!(error, ParseError::Missing { .. }),
            "{format:?}: {error}"
        );
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn a_missing_report_is_shown() {
    let refused = "unable to connect to 127.0.0.1:1 Connection refused\n";
    insta::assert_snapshot!(parse(&Format::Wrk, refused).unwrap_err());
    insta::assert_snapshot!(parse(&Format::Memtier, "").unwrap_err());
}

const COMPLETE: [(Format, &str); 30] = [
    (Format::Wrk, fixture!("wrk.txt")),
    (Format::Ab, fixture!("ab.txt")),
    (Format::Hey, fixture!("hey.txt")),
    (Format::Oha, fixture!("oha-0.5.json")),
    (Format::Oha, fixture!("oha-1.4.txt")),
    (Format::Oha, fixture!("oha.json")),
    (Format::Oha, fixture!("oha.txt")),
    (Format::Fio, fixture!("fio-randread.json")),
    (Format::Sysbench, fixture!("sysbench-oltp.txt")),
    (Format::Pgbench, fixture!("pgbench.txt")),
    (Format::RedisBenchmark, fixture!("redis-get.txt")),
    (Format::RedisBenchmark, fixture!("redis-csv.txt")),
    (Format::RedisBenchmark, fixture!("redis-q.txt")),
    (Format::Memtier, fixture!("memtier-1.4.txt")),
    (Format::Vegeta, fixture!("vegeta.json")),
    (Format::Vegeta, fixture!("vegeta.txt")),
    (Format::H2load, fixture!("h2load.txt")),
    (Format::Iperf3, fixture!("iperf3-tcp.json")),
    (Format::Iperf3, fixture!("iperf3-udp.json")),
    (Format::StressNg, fixture!("stress-ng.txt")),
    (Format::Hyperfine, fixture!("hyperfine.json")),
    (Format::Jmh, fixture!("jmh-sample.json")),
    (Format::Mysqlslap, fixture!("mysqlslap.txt")),
    (Format::K6, fixture!("k6-2.2.txt")),
    (Format::K6, fixture!("k6-2.2-machine-readable.txt")),
    (Format::Ycsb, fixture!("ycsb-0.17-updates.txt")),
    (Format::Hammerdb, fixture!("hammerdb-4.12.txt")),
    (Format::Netperf, fixture!("netperf-2.7-rr.txt")),
    (Format::Wrk2, fixture!("wrk2.txt")),
    (Format::H2load, fixture!("h2load-1.69.txt")),
];

#[test]
fn the_first_half_of_a_report_is_no_report() {
    for (format, text) in COMPLETE {
        let half: String = text.chars().take(text.chars().count() / 2).collect();
        // Rows of CSV, quiet lines and a row of a table are complete each for itself.
        if !matches!(format, Format::RedisBenchmark | Format::StressNg) {
            assert!(parse(&format, &half).is_err(), "{format:?}: {half}");
        }
    }
}

#[test]
fn one_tool_is_not_taken_for_another() {
    for (of, text) in COMPLETE {
        for format in Format::ALL.into_iter().filter(|format| *format != of) {
            // hey and oha print the same layout, and so do wrk and wrk2.
            let pair = [of, format];
            let is_alike = |alike: [Format; 2]| pair.iter().all(|f| alike.contains(f));
            if !is_alike([Format::Hey, Format::Oha]) && !is_alike([Format::Wrk, Format::Wrk2]) {
                assert!(parse(&format, text).is_err(), "{of:?} read as {format:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_panics(text in any::<String>()) {
        for format in Format::ALL {
            prop_assert!(parse(&format, &text).is_err());
        }
    }

    /// A report cut anywhere and with a piece overwritten: an error or finite numbers.
    #[test]
    fn damaged_reports(
        which in 0..COMPLETE.len(),
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        junk in "[-0-9a-zé%:\\[\\]{}\",. \\n\\r]{0,12}",
    ) {
        let (format, text) = COMPLETE[which];
        let chars: Vec<char> = text.chars().collect();
        let (cut, at) = (cut.index(chars.len()), at.index(chars.len()));
        let damaged: String = chars[..at].iter().copied().chain(junk.chars())
            .chain(chars[at..].iter().copied()).take(cut.max(1)).collect();
        for format in [format, Format::Wrk, Format::Oha, Format::Netperf] {
            if let Ok(metrics) = parse(&format, &damaged) {
                prop_assert!(metrics.values().all(|v| v.is_finite() && *v >= 0.0));
                let rate = metrics.get("requests_per_s").or(metrics.get("bytes_per_s"));
                prop_assert!(rate.is_some_and(|rate| *rate > 0.0));
            }
        }
    }
}
