//! Reports of real runs of k6 0.52, 1.8 and 2.2, YCSB 0.1.4 to 0.17, memtier_benchmark 1.3 to 2.3,
//! HammerDB 3.3, 4.6 and 4.12 and netperf 2.4 to 2.7, against servers on loopback.

use super::*;

#[test]
fn k6_prints_its_text_before_the_json() {
    for (text, requests, per_s, p99_ms) in [
        (
            fixture!("k6-0.52.txt"),
            31_164.0,
            15_581.060_789_236_686,
            2.897_438_379_999_997_4,
        ),
        (
            fixture!("k6-1.8.txt"),
            27_871.0,
            13_913.555_894_438_967,
            2.262_429_599_999_999,
        ),
        (
            fixture!("k6-2.2.txt"),
            35_586.0,
            17_770.712_558_742_34,
            2.811_208_250_000_005_3,
        ),
    ] {
        let expected = [
            ("requests", requests),
            ("requests_per_s", per_s),
            ("latency_p99_us", p99_ms * 1e3),
            ("errors", 0.0),
        ];
        assert_has(Format::K6, text, &expected);
    }
    let expected = [
        ("latency_p99_us", 1_344.741_6),
        ("latency_p999_us", 4_793.366_88),
    ];
    for (name, us) in expected {
        let got = parse(&Format::K6, fixture!("k6-2.2-p999.txt")).unwrap()[name];
        assert!((got - us).abs() < 1e-6, "{name}: {got}");
    }
    assert_has(
        Format::K6,
        fixture!("k6-2.2-handle-summary.json"),
        &[("requests", 15_328.0), ("duration_s", 1.000_128_304)],
    );
    // A script without HTTP.
    assert_has(
        Format::K6,
        fixture!("k6-2.2-iterations.txt"),
        &[("requests", 193.0), ("latency_p50_us", 10_265.374)],
    );
}

#[test]
fn k6_with_requests_that_failed() {
    // Nineteen of twenty got a 503, and most iterations were not begun.
    assert_has(
        Format::K6,
        fixture!("k6-2.2-arrival-rate.txt"),
        &[
            ("requests", 1675.0),
            ("errors", 1635.0 + 2326.0),
            ("latency_mean_us", 114.288_85),
            ("latency_max_us", 222.023),
        ],
    );
    // Every other request was refused: for k6 it took 0 ms. The median of all is 16.59 µs.
    assert_has(
        Format::K6,
        fixture!("k6-2.2-half-refused.txt"),
        &[
            ("requests", 200.0),
            ("errors", 100.0),
            ("latency_p50_us", 109.3945),
            ("latency_p95_us", 7457.7119),
        ],
    );
    assert_no_requests(Format::K6, fixture!("k6-2.2-refused.txt"));
    // With --no-summary k6 exports none either.
    for text in [
        fixture!("k6-1.8-no-summary.txt"),
        fixture!("k6-2.2-text.txt"),
    ] {
        let error = parse(&Format::K6, text).unwrap_err().to_string();
        assert!(error.contains("without --no-summary"), "{error}");
    }
}

#[test]
fn k6_with_its_machine_readable_summary() {
    let text = fixture!("k6-2.2-machine-readable.txt");
    assert_report(
        Format::K6,
        text,
        &[
            ("requests", 34_715.0),
            ("duration_s", 2.000_117_6),
            ("requests_per_s", 34_715.0 / 2.000_117_6),
            ("latency_mean_us", 216.314_973_584_906_64),
            ("latency_p50_us", 111.648),
            ("latency_p95_us", 486.792_999_999_999),
            ("latency_max_us", 17_422.741),
            ("errors", 0.0),
            ("bytes_per_s", 102_166_085.0 / 2.000_117_6),
        ],
    );
    assert_has(
        Format::K6,
        fixture!("k6-2.2-machine-readable-arrival-rate.txt"),
        &[
            ("requests", 1665.0),
            ("errors", 1625.0 + 2336.0),
            ("latency_max_us", 2110.539),
        ],
    );
    assert_has(
        Format::K6,
        fixture!("k6-1.8-machine-readable.json"),
        &[("requests", 12_536.0), ("latency_p50_us", 56.1995)],
    );
}

#[test]
fn ycsb() {
    for (text, requests, p99_us) in [
        (fixture!("ycsb-0.1.4.txt"), 3000.0, 0.0),
        (fixture!("ycsb-0.5.txt"), 3000.0, 6479.0),
        (fixture!("ycsb-0.17-load.txt"), 1000.0, 4379.0),
        (fixture!("ycsb-0.17-status.txt"), 5000.0, 2235.0),
        (fixture!("ycsb-0.17-histogram.txt"), 3000.0, 0.0),
    ] {
        let expected = [
            ("requests", requests),
            ("latency_p99_us", p99_us),
            ("errors", 0.0),
        ];
        assert_has(Format::Ycsb, text, &expected);
        let errors = parse(&Format::Ycsb, text).unwrap()["errors"];
        assert!(errors.is_sign_positive());
    }
    assert_report(
        Format::Ycsb,
        fixture!("ycsb-0.17-percentiles.txt"),
        &[
            ("requests", 3000.0),
            ("duration_s", 0.298),
            ("requests_per_s", 10_067.114_093_959_732),
            ("latency_mean_us", 76.491_666_666_666_66),
            ("latency_p50_us", 24.0),
            ("latency_p90_us", 41.0),
            ("latency_p99_us", 1021.0),
            ("latency_p999_us", 11_023.0),
            ("latency_max_us", 24_911.0),
            ("errors", 0.0),
        ],
    );
    // Whole milliseconds, before version 0.4.
    let slow = fixture!("ycsb-0.1.4.txt").replace(
        "99thPercentileLatency(ms), 0",
        "99thPercentileLatency(ms), 7",
    );
    let slow = slow.replace("MaxLatency(us), 7", "MaxLatency(us), 7900");
    let slow = slow.replace("AverageLatency(us), 0.004", "AverageLatency(us), 90.0");
    assert_has(Format::Ycsb, &slow, &[("latency_p99_us", 7000.0)]);
}

#[test]
fn ycsb_of_several_operations() {
    assert_report(
        Format::Ycsb,
        fixture!("ycsb-0.17-updates.txt"),
        &[
            ("requests", 5000.0),
            ("duration_s", 0.401),
            ("requests_per_s", 12_468.827_930_174_564),
            (
                "latency_mean_us",
                (2529.0 * 124.004_744_958_481_61 + 2471.0 * 109.079_320_113_314_45) / 5000.0,
            ),
            ("latency_max_us", 41_791.0),
            ("errors", 0.0),
        ],
    );
    // Each counted from when it was due as well.
    for (text, requests, max_us) in [
        (fixture!("ycsb-0.17-both.txt"), 1000.0, 20_687.0),
        (fixture!("ycsb-0.12-both.txt"), 3000.0, 197.0),
        (fixture!("ycsb-0.17-scans.txt"), 1000.0, 77_311.0),
        (fixture!("ycsb-0.17-timeseries.txt"), 63_874.0, 20_117.0),
        // Two kinds of measurement of each operation.
        (fixture!("ycsb-0.17-two-kinds.txt"), 2000.0, 19_247.0),
    ] {
        let expected = [("requests", requests), ("latency_max_us", max_us)];
        assert_has(Format::Ycsb, text, &expected);
    }
    let text = fixture!("ycsb-0.17-read-modify-write.txt");
    assert_has(Format::Ycsb, text, &[("requests", 5000.0)]);
    assert_has_not(Format::Ycsb, text, &["latency_mean_us", "latency_max_us"]);
}

#[test]
fn ycsb_with_operations_that_failed() {
    assert_has(
        Format::Ycsb,
        fixture!("ycsb-0.17-missing.txt"),
        &[
            ("requests", 2000.0),
            ("errors", 1507.0),
            ("latency_p99_us", 1023.0),
        ],
    );
    // Their own times are 0, and are none.
    let text = fixture!("ycsb-0.17-all-failed.txt");
    let expected = [("requests", 2000.0), ("errors", 2000.0)];
    assert_has(Format::Ycsb, text, &expected);
    assert_has_not(Format::Ycsb, text, &PERCENTILES);
    assert_has_not(Format::Ycsb, text, &["latency_max_us", "latency_mean_us"]);
    let text = fixture!("ycsb-0.17-reads-failed.txt");
    let expected = [("errors", 580.0), ("latency_max_us", 17_071.0)];
    assert_has(Format::Ycsb, text, &expected);
    // Reads that all failed beside updates: the times are those of the updates, and there are two
    // kinds of operation all the same.
    let reads = "[READ], Operations, 421\n[READ], AverageLatency(us), 39.581947743467936";
    assert!(text.contains(reads));
    let none = text.replace(
        reads,
        "[READ], Operations, 0\n[READ], AverageLatency(us), NaN",
    );
    let none = none.replace(
        "[READ-FAILED], Operations, 580",
        "[READ-FAILED], Operations, 1001",
    );
    let mean_us = [("latency_mean_us", 98.037_037_037_037_04)];
    assert_has(Format::Ycsb, &none, &mean_us);
    assert_has_not(Format::Ycsb, &none, &PERCENTILES);
    assert_no_requests(Format::Ycsb, fixture!("ycsb-0.17-refused.txt"));
    assert!(parse(&Format::Ycsb, fixture!("ycsb-0.17-json.txt")).is_err());
}

#[test]
fn ycsb_of_raw_measurements() {
    // A real run, without its lines of one operation each.
    let raw = "Raw data measurement: will output to stdout.\nREAD latency raw data: op, timestamp(ms), latency(us)\nREAD,1796134873722,7752\n[OVERALL], RunTime(ms), 394\n[OVERALL], Throughput(ops/sec), 7614.213197969543\n[READ], Total Operations, 3000\n[READ], Below is a summary of latency in microseconds:, -1\n[READ], Average, 116.72733333333333\n[READ], Min, 19\n[READ], Max, 31897\n[READ], p1, 21\n[READ], p5, 22\n[READ], p50, 28\n[READ], p90, 49\n[READ], p95, 101\n[READ], p99, 2174\n[READ], p99.9, 14059\n[READ], p99.99, 31897\n[READ], Return=OK, 3000\n[CLEANUP], Total Operations, 1\n[CLEANUP], Average, 664.0\n";
    assert_report(
        Format::Ycsb,
        raw,
        &[
            ("requests", 3000.0),
            ("duration_s", 0.394),
            ("requests_per_s", 7_614.213_197_969_543),
            ("latency_mean_us", 116.727_333_333_333_33),
            ("latency_p50_us", 28.0),
            ("latency_p90_us", 49.0),
            ("latency_p95_us", 101.0),
            ("latency_p99_us", 2174.0),
            ("latency_p999_us", 14_059.0),
            ("latency_max_us", 31_897.0),
            ("errors", 0.0),
        ],
    );
}

#[test]
fn memtier() {
    assert_report(
        Format::Memtier,
        fixture!("memtier-1.3.txt"),
        &[
            ("requests_per_s", 44_116.03),
            ("latency_mean_us", 90.0),
            ("bytes_per_s", (308.94 + 1728.52) * 1024.0),
        ],
    );
    for (text, per_s, mean_us, p99_us, p999_us, kib_per_s) in [
        (
            fixture!("memtier-1.4.txt"),
            60_073.14,
            66.13,
            111.0,
            1183.0,
            420.69 + 2353.73,
        ),
        (
            fixture!("memtier-2.0.txt"),
            44_443.95,
            91.4,
            495.0,
            3439.0,
            311.24 + 1741.37,
        ),
        // From here on the table counts the bytes twice.
        (
            fixture!("memtier-2.1-command.txt"),
            35_891.18,
            111.19,
            743.0,
            8959.0,
            2728.29,
        ),
        (
            fixture!("memtier-2.3-commands.txt"),
            6592.02,
            607.06,
            15_871.0,
            30_079.0,
            254.0 + 138.43,
        ),
        // Two runs: their average.
        (
            fixture!("memtier-2.3-runs.txt"),
            16_849.36,
            262.21,
            6207.0,
            16_063.0,
            119.2 + 596.31,
        ),
    ] {
        let got = parse(&Format::Memtier, text).unwrap();
        let expected = [
            ("requests_per_s", per_s),
            ("latency_mean_us", mean_us),
            ("latency_p99_us", p99_us),
            ("latency_p999_us", p999_us),
            ("bytes_per_s", kib_per_s * 1024.0),
        ];
        for (name, value) in expected {
            assert!(
                (got[name] / value - 1.0).abs() < 1e-6,
                "{name}: {}",
                got[name]
            );
        }
        assert!(!got.contains_key("requests"));
    }
    assert_report(
        Format::Memtier,
        fixture!("memtier-2.3-percentiles.txt"),
        &[
            ("requests_per_s", 34_031.69),
            ("latency_mean_us", 117.93),
            ("latency_p50_us", 71.0),
            ("bytes_per_s", (238.32 + 1205.15) * 1024.0),
        ],
    );
    assert_no_requests(Format::Memtier, fixture!("memtier-2.3-refused.txt"));
}

#[test]
fn memtier_with_its_progress() {
    // 2,000 operations in "0 secs", and the histogram below the table.
    let text = fixture!("memtier-2.3.txt");
    assert_report(
        Format::Memtier,
        text,
        &[
            ("requests", 2000.0),
            ("duration_s", 2000.0 / 43_319.11),
            ("requests_per_s", 43_319.11),
            ("latency_mean_us", 93.13),
            ("latency_p50_us", 79.0),
            ("latency_p99_us", 991.0),
            ("latency_p999_us", 3967.0),
            ("bytes_per_s", (306.45 + 2186.09) * 1024.0),
        ],
    );
    let long = text.replace("100%,   0 secs", "100%,   3 secs");
    assert_ne!(long, text);
    let error = parse(&Format::Memtier, &long).unwrap_err();
    assert!(matches!(error, ParseError::Contradiction { .. }), "{error}");
    assert!(
        error.to_string().contains("2000 operations in 3 seconds"),
        "{error}"
    );
}

#[test]
fn hammerdb() {
    for (text, new_orders, transactions) in [
        (fixture!("hammerdb-3.3.txt"), 40_959.0, 124_097.0),
        (fixture!("hammerdb-4.6.txt"), 37_182.0, 86_681.0),
        (fixture!("hammerdb-4.12.txt"), 37_029.0, 86_010.0),
    ] {
        let expected = [
            ("requests", new_orders),
            ("duration_s", 60.0),
            ("requests_per_s", new_orders / 60.0),
            ("queries_per_s", transactions / 60.0),
        ];
        assert_report(Format::Hammerdb, text, &expected);
    }
    // Version 3.3 moves the cursor before each line.
    for (text, words) in [
        (
            fixture!("hammerdb-3.3-failed.txt"),
            "HammerDB gave up: Error in Virtual User 2: mysqlexec/db server: Incorrect number of arguments",
        ),
        (
            fixture!("hammerdb-4.12-refused.txt"),
            "HammerDB gave up: Error in Virtual User 1: mysqlconnect/db server: Can't connect to server",
        ),
    ] {
        let error = parse(&Format::Hammerdb, text).unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn netperf() {
    for (text, seconds, per_s) in [
        (fixture!("netperf-2.4-rr.txt"), 1.01, 1826.36),
        (fixture!("netperf-2.5-rr.txt"), 1.0, 17_313.49),
        (fixture!("netperf-2.6-rr.txt"), 1.0, 17_301.75),
        (fixture!("netperf-2.7-rr.txt"), 1.0, 66_121.90),
        (fixture!("netperf-2.7-crr.txt"), 1.0, 12_889.16),
        (fixture!("netperf-2.7-udp-rr.txt"), 1.0, 75_408.99),
        (fixture!("netperf-2.7-rr-cpu.txt"), 1.0, 68_447.93),
        (fixture!("netperf-2.7-rr-v2.txt"), 1.0, 43_309.98),
    ] {
        let expected = [
            ("requests", f64::round(per_s * seconds)),
            ("duration_s", seconds),
            ("requests_per_s", per_s),
        ];
        assert_report(Format::Netperf, text, &expected);
    }
    for (text, seconds, bytes_per_s) in [
        (fixture!("netperf-2.4-stream.txt"), 1.01, 10_867.74 * 125e3),
        (fixture!("netperf-2.5-stream.txt"), 1.01, 4752.82 * 125e3),
        (fixture!("netperf-2.6-stream.txt"), 1.0, 4913.29 * 125e3),
        (fixture!("netperf-2.7-stream.txt"), 1.0, 24_373.74 * 125e3),
        (
            fixture!("netperf-2.7-stream-cpu.txt"),
            1.01,
            20_872.97 * 125e3,
        ),
        (
            fixture!("netperf-2.7-stream-fM.txt"),
            1.01,
            600.71 * 1_048_576.0,
        ),
    ] {
        let expected = [("duration_s", seconds), ("bytes_per_s", bytes_per_s)];
        assert_report(Format::Netperf, text, &expected);
    }
    for (text, seconds, sent, arrived, bytes_per_s) in [
        (
            fixture!("netperf-2.7-udp.txt"),
            1.0,
            157_089.0,
            117_684.0,
            963.95 * 125e3,
        ),
        (
            fixture!("netperf-2.7-udp-cpu.txt"),
            1.01,
            121_419.0,
            91_067.0,
            741.8 * 125e3,
        ),
    ] {
        let expected = [
            ("requests", arrived),
            ("duration_s", seconds),
            ("requests_per_s", arrived / seconds),
            ("errors", sent - arrived),
            ("bytes_per_s", bytes_per_s),
        ];
        assert_report(Format::Netperf, text, &expected);
    }
    // The tables of omni tests are not read, nor is a client that reached nobody.
    for text in [
        fixture!("netperf-2.7-omni.txt"),
        fixture!("netperf-2.7-refused.txt"),
    ] {
        let error = parse(&Format::Netperf, text).unwrap_err().to_string();
        assert!(error.contains("-- -k all"), "{error}");
    }
}

#[test]
fn netperf_with_keys() {
    for (text, per_s, latencies_us) in [
        (
            fixture!("netperf-2.7-rr-k.txt"),
            73_205.31,
            [13.63, 37.59, 13.0, 15.0, 17.0, 8292.0],
        ),
        (
            fixture!("netperf-2.5-rr-k.txt"),
            72_398.50,
            [13.78, 69.60, 13.0, 13.0, 14.0, 11_289.0],
        ),
    ] {
        let [mean, sd, p50, p90, p99, max] = latencies_us;
        let expected = [
            ("requests", f64::round(per_s)),
            ("duration_s", 1.0),
            ("requests_per_s", per_s),
            ("latency_mean_us", mean),
            ("latency_sd_us", sd),
            ("latency_p50_us", p50),
            ("latency_p90_us", p90),
            ("latency_p99_us", p99),
            ("latency_max_us", max),
        ];
        assert_report(Format::Netperf, text, &expected);
    }
    assert_has(
        Format::Netperf,
        fixture!("netperf-2.7-stream-k.txt"),
        &[("duration_s", 1.01), ("bytes_per_s", 14_788.42 * 125e3)],
    );
    assert_has(
        Format::Netperf,
        fixture!("netperf-2.7-udp-k.txt"),
        &[
            ("requests", 126_387.0),
            ("requests_per_s", 126_387.0),
            ("errors", 146_723.0 - 126_387.0),
            ("bytes_per_s", 1035.17 * 125e3),
        ],
    );
}
