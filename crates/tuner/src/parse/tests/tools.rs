//! Tools of the second wave: reports of real runs (vegeta 12.13, h2load 1.52, ghz 0.93,
//! mariadb-slap 10.11, iperf 3.12, stress-ng 0.15, hyperfine 1.15, JMH 1.37) and, for k6, YCSB,
//! HammerDB and netperf, cases that those of `real_runs` lack.

use super::*;

pub(super) const K6_EXPORT: &str = r#"{
  "metrics": {
    "http_req_duration": {"avg": 12.5, "min": 1.0, "med": 10.0, "max": 250.0, "p(90)": 20.0, "p(95)": 30.0, "p(99)": 100.0},
    "http_reqs": {"count": 3000, "rate": 100.0},
    "http_req_failed": {"passes": 30, "fails": 2970, "thresholds": {"rate<0.05": false}, "value": 0.01},
    "data_received": {"count": 3000000, "rate": 100000.0},
    "dropped_iterations": {"count": 12, "rate": 0.4}
  }
}
"#;

const YCSB: &str = "[OVERALL], RunTime(ms), 10110\n[OVERALL], Throughput(ops/sec), 98.91196834817013\n[TOTAL_GCs], Count, 3\n[READ], Operations, 490\n[READ], AverageLatency(us), 1054.2\n[READ], MinLatency(us), 500\n[READ], MaxLatency(us), 9000\n[READ], 95thPercentileLatency(us), 1800\n[READ], 99thPercentileLatency(us), 2800\n[READ], Return=OK, 490\n[READ], Return=NOT_FOUND, 8\n[READ-FAILED], Operations, 8\n[READ-FAILED], AverageLatency(us), 99.0\n[CLEANUP], Operations, 1\n[CLEANUP], AverageLatency(us), 4\n[UPDATE], Operations, 502\n[UPDATE], AverageLatency(us), 2000.0\n[UPDATE], MaxLatency(us), 12000\n[UPDATE], 99thPercentileLatency(us), 3800\n[UPDATE], Return=OK, 502\n";

const HAMMERDB: &str = "Vuser 1:Beginning rampup time of 1 minutes\nVuser 1:Rampup complete, Taking start Transaction Count.\nVuser 1:Timing test period of 2 in minutes\nVuser 1:Test complete, Taking end Transaction Count.\nVuser 1:4 Active Virtual Users configured\nVuser 1:TEST RESULT : System achieved 6000 NOPM from 13800 MariaDB TPM\n";

const NETPERF_RR: &str = "MIGRATED TCP REQUEST/RESPONSE TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 127.0.0.1 () port 0 AF_INET\nLocal /Remote\nSocket Size   Request  Resp.   Elapsed  Trans.\nSend   Recv   Size     Size    Time     Rate         \nbytes  Bytes  bytes    bytes   secs.    per sec   \n\n16384  87380  1        1       10.00    3538.82   \n16384  87380 \n";

#[test]
fn k6() {
    let expected = [
        ("requests", 3000.0),
        ("duration_s", 30.0),
        ("requests_per_s", 100.0),
        ("latency_mean_us", 12_500.0),
        ("latency_p50_us", 10_000.0),
        ("latency_p90_us", 20_000.0),
        ("latency_p95_us", 30_000.0),
        ("latency_p99_us", 100_000.0),
        ("latency_max_us", 250_000.0),
        ("errors", 42.0),
        ("bytes_per_s", 100_000.0),
    ];
    assert_report(Format::K6, K6_EXPORT, &expected);
    // What handleSummary is given has the numbers one level deeper, and the time of the run.
    let data = r#"{"state": {"testRunDurationMs": 30000.5}, "metrics": {"http_reqs": {"type": "counter", "values": {"count": 3000, "rate": 99.99}}, "http_req_failed": {"values": {"rate": 0.01, "passes": 30, "fails": 2970}}, "http_req_duration": {"type": "trend", "contains": "time", "values": {"avg": 12.5, "med": 10, "max": 250, "p(95)": 30}}}}"#;
    let data = parse(&Format::K6, data).unwrap();
    assert_eq!((data["errors"], data["duration_s"]), (30.0, 30.0005));
    assert_eq!(data["latency_p95_us"], 30_000.0);
    let text = "http_reqs......................: 180 4.36938/s\n";
    let error = parse(&Format::K6, text).unwrap_err().to_string();
    assert!(error.contains("--summary-export"), "{error}");
}

#[test]
fn vegeta() {
    let json = parse(&Format::Vegeta, fixture!("vegeta.json")).unwrap();
    let text = parse(&Format::Vegeta, fixture!("vegeta.txt")).unwrap();
    assert_eq!(json["requests"], 500.0);
    assert_eq!(json["errors"], 0.0);
    assert_eq!(json["latency_p99_us"], 2537.011);
    assert_eq!(json["latency_max_us"], 7671.918);
    for (name, value) in &json {
        assert!(
            (text[name] / value - 1.0).abs() < 1e-3 || *value == 0.0,
            "{name}"
        );
    }
    // A third of the requests reached nobody, another third was answered with 503.
    for errors in [
        fixture!("vegeta-errors.json"),
        fixture!("vegeta-errors.txt"),
    ] {
        let errors = parse(&Format::Vegeta, errors).unwrap();
        assert_eq!((errors["requests"], errors["errors"]), (33.0, 33.0));
    }
    // `report -every`: the last one counts.
    let both = format!(
        "{}\n{}",
        fixture!("vegeta-errors.txt"),
        fixture!("vegeta.txt")
    );
    assert_eq!(parse(&Format::Vegeta, &both).unwrap()["requests"], 500.0);
}

#[test]
fn h2load() {
    let report = parse(&Format::H2load, fixture!("h2load.txt")).unwrap();
    assert_eq!(report["requests"], 2000.0);
    assert_eq!(report["requests_per_s"], 11258.85);
    assert_eq!(report["latency_max_us"], 3060.0);
    assert_eq!(report["latency_mean_us"], 607.0);
    assert_eq!(report["latency_sd_us"], 305.0);
    assert!((report["bytes_per_s"] / (7.80 * 1048576.0) - 1.0).abs() < 1e-2);
    let unavailable = parse(&Format::H2load, fixture!("h2load-503.txt")).unwrap();
    assert_eq!(
        (unavailable["requests"], unavailable["errors"]),
        (20.0, 20.0)
    );
    let nobody = parse(&Format::H2load, fixture!("h2load-refused.txt")).unwrap_err();
    assert!(matches!(nobody, ParseError::NoRequests { .. }), "{nobody}");
}

#[test]
fn ghz() {
    let json = parse(&Format::Ghz, fixture!("ghz.json")).unwrap();
    let text = parse(&Format::Ghz, fixture!("ghz.txt")).unwrap();
    for report in [&json, &text] {
        assert_eq!((report["requests"], report["errors"]), (500.0, 0.0));
        assert!(report["latency_p99_us"] <= report["latency_max_us"]);
    }
    let nobody = parse(&Format::Ghz, fixture!("ghz-refused.txt")).unwrap_err();
    assert!(matches!(nobody, ParseError::NoRequests { .. }), "{nobody}");
}

#[test]
fn ycsb() {
    let report = parse(&Format::Ycsb, YCSB).unwrap();
    assert_eq!((report["requests"], report["errors"]), (1000.0, 8.0));
    assert_eq!(report["duration_s"], 10.11);
    // Two kinds of operation: a mean over both, no percentile.
    let mean = (490.0 * 1054.2 + 502.0 * 2000.0) / 992.0;
    assert!((report["latency_mean_us"] - mean).abs() < 1e-6);
    assert_eq!(report["latency_max_us"], 12_000.0);
    assert!(!report.contains_key("latency_p99_us"));
    // A kind is missing.
    let cut = &YCSB[..YCSB.find("[UPDATE]").unwrap()];
    let cut = parse(&Format::Ycsb, cut).unwrap_err();
    assert!(matches!(cut, ParseError::Contradiction { .. }), "{cut}");
    let half = YCSB.replace("98.91196834817013", "49.258");
    let reads: String = half
        .lines()
        .filter(|line| !line.starts_with("[UPDATE]"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(
        parse(&Format::Ycsb, &reads).unwrap()["latency_p99_us"],
        2800.0
    );
    // A read-modify-write is in the sections of its parts as well.
    let both = YCSB.replace("UPDATE", "READ-MODIFY-WRITE");
    assert!(
        !parse(&Format::Ycsb, &both)
            .unwrap()
            .contains_key("latency_mean_us")
    );
}

#[test]
fn hammerdb() {
    let expected = [
        ("requests", 12_000.0),
        ("duration_s", 120.0),
        ("requests_per_s", 100.0),
        ("queries_per_s", 230.0),
    ];
    assert_report(Format::Hammerdb, HAMMERDB, &expected);
    // Before version 4.
    let old = HAMMERDB.replace(
        "6000 NOPM from 13800 MariaDB TPM",
        "13800 MySQL TPM at 6000 NOPM",
    );
    assert_report(Format::Hammerdb, &old, &expected);
    let failed = format!("{HAMMERDB}Vuser 3:FINISHED FAILED\n");
    assert!(matches!(
        parse(&Format::Hammerdb, &failed),
        Err(ParseError::GaveUp { .. })
    ));
}

#[test]
fn mysqlslap() {
    let plain = parse(&Format::Mysqlslap, fixture!("mysqlslap.txt")).unwrap();
    assert_report(
        Format::Mysqlslap,
        fixture!("mysqlslap.txt"),
        &[("requests_per_s", 400.0 / 0.221)],
    );
    let csv = parse(&Format::Mysqlslap, fixture!("mysqlslap.csv")).unwrap();
    assert_eq!(csv["requests_per_s"], 400.0 / 0.188);
    assert_eq!(plain.len(), csv.len());
    let several = parse(&Format::Mysqlslap, fixture!("mysqlslap-several.txt")).unwrap_err();
    assert!(several.to_string().contains("4 lines"), "{several}");
    let refused = parse(&Format::Mysqlslap, fixture!("mysqlslap-refused.txt")).unwrap_err();
    assert!(refused.to_string().contains("Can't connect"), "{refused}");
}

#[test]
fn netperf() {
    let expected = [
        ("requests", 35_388.0),
        ("duration_s", 10.0),
        ("requests_per_s", 3538.82),
    ];
    assert_report(Format::Netperf, NETPERF_RR, &expected);
    let stream = "MIGRATED TCP STREAM TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to localhost () port 0 AF_INET\nRecv   Send    Send                          Utilization       Service Demand\nSocket Socket  Message  Elapsed              Send     Recv     Send    Recv\nSize   Size    Size     Time     Throughput  local    remote   local   remote\nbytes  bytes   bytes    secs.    10^6bits/s  % S      % S      us/KB   us/KB\n\n 87380  16384  16384    10.00      2997.84   45.00    45.00    1.2     1.2\n";
    assert_report(
        Format::Netperf,
        stream,
        &[("duration_s", 10.0), ("bytes_per_s", 2997.84 * 125e3)],
    );
    let udp = "MIGRATED UDP STREAM TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to localhost () port 0 AF_INET\nSocket  Message  Elapsed      Messages                \nSize    Size     Time         Okay Errors   Throughput\nbytes   bytes    secs            #      #   10^6bits/sec\n\n212992   65507   10.00      101234      0    5304.12\n212992           10.00      100000           5240.00\n";
    let udp = parse(&Format::Netperf, udp).unwrap();
    assert_eq!((udp["requests"], udp["errors"]), (100_000.0, 1234.0));
    assert_eq!(udp["bytes_per_s"], 5240.0 * 125e3);
    let keys = "OMNI TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to localhost () port 0 AF_INET : demo\nTHROUGHPUT=59092.65\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=10.00\nP50_LATENCY=16\nP99_LATENCY=31\nMEAN_LATENCY=16.79\nMAX_LATENCY=-1\n";
    let keys = parse(&Format::Netperf, keys).unwrap();
    assert_eq!(
        (keys["latency_p99_us"], keys["requests"]),
        (31.0, 590_927.0)
    );
    assert!(!keys.contains_key("latency_max_us"));
    let two = format!("{NETPERF_RR}{NETPERF_RR}");
    assert!(matches!(
        parse(&Format::Netperf, &two),
        Err(ParseError::Several { .. })
    ));
}

#[test]
fn iperf3() {
    let tcp = parse(&Format::Iperf3, fixture!("iperf3-tcp.json")).unwrap();
    assert!((tcp["bytes_per_s"] / (3_498_180_608.0 / 2.004472) - 1.0).abs() < 1e-6);
    assert!(!tcp.contains_key("requests_per_s"));
    let udp = parse(&Format::Iperf3, fixture!("iperf3-udp.json")).unwrap();
    assert_eq!((udp["requests"], udp["errors"]), (191.0, 0.0));
    // Before version 3.10 UDP has one sum, of what was sent.
    let old = r#"{"start": {}, "intervals": [], "end": {"sum": {"seconds": 10, "bytes": 1000000, "bits_per_second": 800000, "lost_packets": 10, "packets": 100, "lost_percent": 10}}}"#;
    let old = parse(&Format::Iperf3, old).unwrap();
    assert_eq!((old["bytes_per_s"], old["errors"]), (90_000.0, 10.0));
    let refused = parse(&Format::Iperf3, fixture!("iperf3-refused.json")).unwrap_err();
    assert!(
        refused.to_string().contains("Connection refused"),
        "{refused}"
    );
}

#[test]
fn a_message_of_any_length_is_cut() {
    let words = "word ".repeat(100_000);
    let reports = [
        (Format::Iperf3, format!("{{\"error\": \"{words}\"}}")),
        (Format::Sysbench, format!("FATAL: {words}\n")),
        (Format::Mysqlslap, format!("mysqlslap: Error {words}\n")),
        (Format::Hammerdb, format!("Error in Virtual User {words}\n")),
    ];
    for (format, text) in reports {
        let error = parse(&format, &text).unwrap_err();
        assert!(matches!(error, ParseError::GaveUp { .. }), "{format:?}");
        let length = error.to_string().len();
        assert!((600..1000).contains(&length), "{format:?}: {length} bytes");
    }
}

#[test]
fn stress_ng() {
    for text in [fixture!("stress-ng.txt"), fixture!("stress-ng.yaml")] {
        let report = parse(&Format::StressNg, text).unwrap();
        assert_eq!(report["requests"], 105_933.0);
        assert!((report["requests_per_s"] / 105_900.0 - 1.0).abs() < 1e-2);
    }
    let two = parse(&Format::StressNg, fixture!("stress-ng-two.txt")).unwrap_err();
    assert!(two.to_string().contains("rows of cpu, vm"), "{two}");
    // Version 0.09 marked all lines with `info`.
    let old = fixture!("stress-ng.txt").replace("metrc", "info");
    assert_eq!(
        parse(&Format::StressNg, &old).unwrap()["requests"],
        105_933.0
    );
    let nothing = parse(&Format::StressNg, "").unwrap_err();
    assert!(nothing.to_string().contains("--stdout"), "{nothing}");
}

#[test]
fn hyperfine() {
    let report = parse(&Format::Hyperfine, fixture!("hyperfine.json")).unwrap();
    assert_eq!((report["requests"], report["errors"]), (5.0, 0.0));
    assert!((report["latency_mean_us"] - 15_172.434_4).abs() < 1e-6);
    let two = parse(&Format::Hyperfine, fixture!("hyperfine-two.json")).unwrap_err();
    assert!(two.to_string().contains("2 commands"), "{two}");
}

#[test]
fn jmh() {
    let sample = parse(&Format::Jmh, fixture!("jmh-sample.json")).unwrap();
    assert!((sample["latency_mean_us"] - 0.0587).abs() < 1e-4);
    assert!((sample["duration_s"] - 0.6).abs() < 1e-9);
    assert!(sample.contains_key("latency_p99_us"));
    // Two threads: twice the rate of one.
    let average = parse(&Format::Jmh, fixture!("jmh-avgt.json")).unwrap();
    let per_s = 2e6 / average["latency_mean_us"];
    assert!((average["requests_per_s"] / per_s - 1.0).abs() < 1e-9);
    assert!(!average.contains_key("latency_p99_us"));
    let two = parse(&Format::Jmh, fixture!("jmh-two.json")).unwrap_err();
    assert!(two.to_string().contains("2 benchmarks"), "{two}");
}
