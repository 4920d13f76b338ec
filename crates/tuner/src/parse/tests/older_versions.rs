//! Reports of real runs of other versions: oha 0.5, 0.6 and 1.4, h2load 1.52, 1.66 and 1.69,
//! wrk2 4.0, iperf 3.1 and 3.21, sysbench 0.5 and 1.1, fio 2.16, hey 0.1.4, vegeta 12.8 and ghz
//! 0.60.

use super::*;

#[test]
fn oha_of_older_versions() {
    // Without colours, and percentiles without decimals.
    assert_report(
        Format::Oha,
        fixture!("oha-0.5.txt"),
        &[
            ("requests", 500.0),
            ("duration_s", 0.1286),
            ("requests_per_s", 500.0 / 0.1286),
            ("latency_mean_us", 2000.0),
            ("latency_p50_us", 300.0),
            ("latency_p75_us", 3700.0),
            ("latency_p90_us", 7800.0),
            ("latency_p95_us", 8100.0),
            ("latency_p99_us", 18_100.0),
            ("latency_max_us", 18_100.0),
            ("errors", 0.0),
            ("bytes_per_s", 10.03 * 1_048_576.0),
        ],
    );
    for (text, seconds, p99_us, p999_us) in [
        (fixture!("oha-0.6.txt"), 0.0682, 13_200.0, 13_200.0),
        (fixture!("oha-1.4.txt"), 0.0345, 6300.0, 11_800.0),
    ] {
        let expected = [
            ("requests", 500.0),
            ("duration_s", seconds),
            ("latency_p99_us", p99_us),
            ("latency_p999_us", p999_us),
            ("errors", 0.0),
        ];
        assert_has(Format::Oha, text, &expected);
    }
    for (text, seconds, mean_us, p99_us, bytes_per_s) in [
        (
            fixture!("oha-0.5.json"),
            0.033_741_424,
            432.044_978,
            1403.878,
            40_069_441.052_636_07,
        ),
        (
            fixture!("oha-0.6.json"),
            0.030_183_922,
            456.316_368,
            1589.407,
            44_792_058.500_548_735,
        ),
        (
            fixture!("oha-1.4.json"),
            0.028_608_687,
            432.686_166,
            3718.784,
            47_258_372.955_039_844,
        ),
    ] {
        let expected = [
            ("requests", 500.0),
            ("duration_s", seconds),
            ("requests_per_s", 500.0 / seconds),
            ("latency_mean_us", mean_us),
            ("latency_p99_us", p99_us),
            ("bytes_per_s", bytes_per_s),
            ("errors", 0.0),
        ];
        assert_has(Format::Oha, text, &expected);
    }
    let errors = [("requests", 100.0), ("errors", 82.0)];
    assert_has(Format::Oha, fixture!("oha-0.5-errors.txt"), &errors);
    // With --stats-success-breakdown, tables of the responses with 2xx and with 4xx or 5xx follow.
    assert_has(
        Format::Oha,
        fixture!("oha-1.4-breakdown.txt"),
        &[
            ("requests", 101.0),
            ("errors", 82.0),
            ("latency_p99_us", 900.0),
            ("latency_p999_us", 3800.0),
        ],
    );
    assert_no_requests(Format::Oha, fixture!("oha-0.6-refused.json"));
    assert_no_requests(Format::Oha, fixture!("oha-1.4-refused.txt"));
}

#[test]
fn h2load() {
    // 1.66 has no percentiles yet.
    let text = fixture!("h2load-1.66.txt");
    let expected = [
        ("requests", 2000.0),
        ("requests_per_s", 46_314.52),
        ("latency_mean_us", 166.0),
        ("latency_max_us", 1800.0),
    ];
    assert_has(Format::H2load, text, &expected);
    assert_has_not(Format::H2load, text, &PERCENTILES);
    for (text, requests, per_s, latencies_us) in [
        (
            fixture!("h2load-1.69.txt"),
            2000.0,
            8294.18,
            [939.0, 3450.0, 108.0, 6000.0, 20_150.0, 27_180.0],
        ),
        (
            fixture!("h2load-1.69-histogram.txt"),
            2000.0,
            7358.87,
            [1050.0, 9500.0, 108.0, 695.0, 12_530.0, 148_330.0],
        ),
        (
            fixture!("h2load-1.69-warm-up.txt"),
            24_580.0,
            24_580.0,
            [162.0, 523.0, 87.0, 137.0, 3380.0, 7240.0],
        ),
    ] {
        let [mean, sd, p50, p95, p99, max] = latencies_us;
        let expected = [
            ("requests", requests),
            ("requests_per_s", per_s),
            ("latency_mean_us", mean),
            ("latency_sd_us", sd),
            ("latency_p50_us", p50),
            ("latency_p95_us", p95),
            ("latency_p99_us", p99),
            ("latency_max_us", max),
        ];
        assert_has(Format::H2load, text, &expected);
    }
    // The bytes of the main part, with a warm-up (of 0 s in the first one) and without.
    for (text, mib_per_s) in [
        (fixture!("h2load-1.52-time.txt"), 119.33),
        (fixture!("h2load-1.52-warm-up.txt"), 132.29),
        (fixture!("h2load-1.69-warm-up.txt"), 68.99),
        (fixture!("h2load-1.69.txt"), 23.28),
    ] {
        let bytes_per_s = parse(&Format::H2load, text).unwrap()["bytes_per_s"];
        let printed = mib_per_s * 1_048_576.0;
        assert!((bytes_per_s / printed - 1.0).abs() < 1e-3, "{bytes_per_s}");
    }
    assert_no_requests(Format::H2load, fixture!("h2load-1.69-refused.txt"));
}

#[test]
fn wrk2() {
    assert_report(
        Format::Wrk2,
        fixture!("wrk2.txt"),
        &[
            ("requests", 3968.0),
            ("duration_s", 2.0),
            ("requests_per_s", 1983.04),
            ("latency_mean_us", 1760.0),
            ("latency_sd_us", 3490.0),
            ("latency_p50_us", 980.0),
            ("latency_p75_us", 1380.0),
            ("latency_p90_us", 2850.0),
            ("latency_p99_us", 21_420.0),
            ("latency_p999_us", 33_090.0),
            ("latency_max_us", 34_660.0),
            ("errors", 0.0),
            ("bytes_per_s", 5.57 * 1_048_576.0),
        ],
    );
    let expected = [("requests", 1987.0), ("errors", 1947.0)];
    assert_has(Format::Wrk2, fixture!("wrk2-errors.txt"), &expected);
    assert_has_not(Format::Wrk2, fixture!("wrk2-no-latency.txt"), &PERCENTILES);
}

#[test]
fn iperf3() {
    for (text, bits_per_s) in [
        (fixture!("iperf3-3.1-tcp.json"), 23_469_560_000.0),
        (fixture!("iperf3-3.21-tcp.json"), 21_791_291_611.852_91),
        (
            fixture!("iperf3-3.21-tcp-both-ways.json"),
            38_055_998_634.047_94 + 25_108_007_195.073_044,
        ),
    ] {
        let expected = [("bytes_per_s", bits_per_s / 8.0)];
        assert_has(Format::Iperf3, text, &expected);
        assert_has_not(Format::Iperf3, text, &["requests", "errors"]);
    }
    for (text, arrived, lost, seconds, bits_per_s) in [
        (
            fixture!("iperf3-3.1-udp.json"),
            1871.0,
            887.0,
            1.005_37,
            179_782_871.659_556 * (1871.0 / 2758.0),
        ),
        (
            fixture!("iperf3-3.21-udp.json"),
            764.0,
            0.0,
            1.001_438,
            199_990_429.762_002_23,
        ),
        (
            fixture!("iperf3-3.21-udp-both-ways.json"),
            382.0 + 384.0,
            0.0,
            1.005_979,
            99_543_835.408_095 + 99_804_421.364_660_7,
        ),
    ] {
        let expected = [
            ("requests", arrived),
            ("duration_s", seconds),
            ("requests_per_s", arrived / seconds),
            ("errors", lost),
            ("bytes_per_s", bits_per_s / 8.0),
        ];
        assert_report(Format::Iperf3, text, &expected);
    }
}

#[test]
fn sysbench_and_fio() {
    assert_report(
        Format::Sysbench,
        fixture!("sysbench-0.5-cpu.txt"),
        &[
            ("requests", 83_633.0),
            ("duration_s", 2.0001),
            ("requests_per_s", 83_633.0 / 2.0001),
            ("latency_mean_us", 20.0),
            ("latency_p99_us", 40.0),
            ("latency_max_us", 11_290.0),
        ],
    );
    assert_report(
        Format::Sysbench,
        fixture!("sysbench-1.1-cpu.txt"),
        &[
            ("requests", 26_902.0),
            ("duration_s", 1.0167),
            ("requests_per_s", 26_902.0 / 1.0167),
            ("latency_mean_us", 40.0),
            ("latency_p95_us", 20.0),
            ("latency_max_us", 24_480.0),
        ],
    );
    // Version 0.5 prints "MB" where 1.0 prints "MiB".
    for (text, mib_per_s) in [
        (fixture!("sysbench-0.5-memory.txt"), 6186.62),
        (fixture!("sysbench-1.1-memory.txt"), 3766.53),
    ] {
        let expected = [
            ("requests", 102_400.0),
            ("bytes_per_s", mib_per_s * 1_048_576.0),
        ];
        assert_has(Format::Sysbench, text, &expected);
    }
    let text = fixture!("sysbench-1.1-checkpoints.txt");
    let expected = [
        ("requests", 29_784.0 + 24_876.0 + 24_358.0),
        ("latency_max_us", 20_300.0),
    ];
    assert_has(Format::Sysbench, text, &expected);
    assert_has_not(Format::Sysbench, text, &PERCENTILES);
    assert_report(
        Format::Fio,
        fixture!("fio-2.16.json"),
        &[
            ("requests", 1_082_191.0),
            ("duration_s", 1.007),
            ("requests_per_s", 1_074_668.321_748),
            ("latency_mean_us", 1.517_055),
            ("latency_sd_us", 85.877_057),
            ("latency_p50_us", 1.0),
            ("latency_p90_us", 1.0),
            ("latency_p95_us", 1.0),
            ("latency_p99_us", 1.0),
            ("latency_p999_us", 37.0),
            ("latency_max_us", 28_061.0),
            ("errors", 0.0),
            ("bytes_per_s", 4_298_673.0 * 1024.0),
        ],
    );
}

#[test]
fn older_hey_vegeta_and_ghz() {
    let p99_us = |us| [("errors", 0.0), ("latency_p99_us", us)];
    assert_has(Format::Hey, fixture!("hey-0.1.4.txt"), &p99_us(8200.0));
    assert_has(Format::Ghz, fixture!("ghz-0.60.txt"), &p99_us(2620.0));
    for text in [fixture!("vegeta-12.8.txt"), fixture!("vegeta-12.8.json")] {
        assert_has(Format::Vegeta, text, &p99_us(383.475));
    }
    assert_no_requests(Format::Vegeta, fixture!("vegeta-12.8-refused.json"));
    // Half of the calls, and all of them, were answered with `NotFound`.
    let half = [("requests", 200.0), ("errors", 100.0)];
    assert_has(Format::Ghz, fixture!("ghz-half-failed.txt"), &half);
    assert_no_requests(Format::Ghz, fixture!("ghz-failed.txt"));
}
