//! Layouts of other versions of a tool, several reports in one output, and reports that contradict
//! themselves.

use super::*;

/// One pair of a report's metrics; the rest is not looked at.
fn metric(format: Format, text: &str, name: &str) -> f64 {
    let metrics = parse(&format, text).unwrap();
    *metrics
        .get(name)
        .unwrap_or_else(|| panic!("no {name} in {metrics:?}"))
}

fn refusal(format: Format, text: &str) -> String {
    parse(&format, text).unwrap_err().to_string()
}

#[test]
fn memtier_of_version_1_2_and_of_two_commands() {
    // Version 1.2 had one latency, and no column of percentiles.
    let old = "Type        Ops/sec     Hits/sec   Misses/sec      Latency       KB/sec \n-----\nSets      100.00          ---          ---      1.50000        10.00 \nTotals    1100.00      500.00       500.00      2.50000       110.00 \n";
    assert_eq!(metric(Format::Memtier, old, "latency_mean_us"), 2500.0);
    let table = fixture!("memtier-1.4.txt");
    let two = format!("{table}\n{table}");
    assert!(refusal(Format::Memtier, &two).contains("two rows `Totals`"));
}

#[test]
fn memtier_of_other_columns_and_of_several_runs() {
    // 2.x with --print-percentiles 50,99.999: run_stats.cpp prints each name in 15 places, so the
    // longest has one space in front. With -x the average of all runs counts, with all columns of a
    // cluster.
    let table = |ops: &str| {
        format!(
            "Type              Ops/sec    MOVED/sec      ASK/sec    Avg. Latency     p50 Latency p99.999 Latency       KB/sec \n--------\nHgetalls       {ops}         0.00         0.00         1.50000         1.20000         9.10000        10.00 \nTotals         {ops}         0.00         0.00         1.50000         1.20000         9.10000        10.00 \n"
        )
    };
    let progress = "[RUN #2 100%,   5 secs]  0 threads 20 conns 3 conn errors:      250000 ops,   52000 (avg:   50000) ops/sec, 5.10MB/sec (avg: 5.12MB/sec),  1.80 (avg:  1.81) msec latency\n";
    let one = format!("{progress}ALL STATS\n{}", table("50000.00"));
    let one = parse(&Format::Memtier, &one).unwrap();
    assert_eq!((one["requests"], one["duration_s"]), (250_000.0, 5.0));
    assert_eq!(
        (one["latency_mean_us"], one["latency_p50_us"]),
        (1500.0, 1200.0)
    );
    assert_eq!(one["bytes_per_s"], 10_240.0);
    let several = format!(
        "{progress}BEST RUN RESULTS\n{}WORST RUN RESULTS\n{}AGGREGATED AVERAGE RESULTS (2 runs)\n{}",
        table("50000.00"),
        table("30000.00"),
        table("40000.00")
    );
    assert_report(
        Format::Memtier,
        &several,
        &[
            ("requests_per_s", 40_000.0),
            ("latency_mean_us", 1500.0),
            ("latency_p50_us", 1200.0),
            ("bytes_per_s", 10_240.0),
        ],
    );
}

const SYSBENCH_0_4: &str = "OLTP test statistics:\n    queries performed:\n        read:                            14000\n        total:                           20000\n    transactions:                        1000   (100.00 per sec.)\n    deadlocks:                           2      (0.20 per sec.)\n    read/write requests:                 19000  (1900.00 per sec.)\n\nTest execution summary:\n    total time:                          10.0003s\n    total number of events:              1000\n    total time taken by event execution: 39.9\n    per-request statistics:\n         min:                                  1.00ms\n         avg:                                 39.90ms\n         max:                                180.00ms\n         approx.  95 percentile:              90.00ms\n";

#[test]
fn sysbench_of_three_generations() {
    let old = parse(&Format::Sysbench, SYSBENCH_0_4).unwrap();
    assert_eq!(old["requests"], 1000.0);
    assert_eq!(old["errors"], 2.0);
    assert_eq!(old["latency_mean_us"], 39_900.0);
    assert_eq!(old["latency_p95_us"], 90_000.0);
    assert!((old["queries_per_s"] - 1900.0).abs() < 1e-6);
    let new = "SQL statistics:\n    transactions:                        0      (0.00 per sec.)\n\nThroughput:\n    events/s (eps):                      2011.5\n    time elapsed:                        1.0049s\n    total number of events:              2021\n\nLatency (ms):\n         min:                                    0.27\n         avg:                                    0.50\n         max:                                    8.43\n         percentile stats:               disabled\n         sum:                                  995.72\n";
    let new = new.replace(
        "    transactions:                        0      (0.00 per sec.)\n",
        "",
    );
    assert_eq!(metric(Format::Sysbench, &new, "duration_s"), 1.0049);
    assert!((metric(Format::Sysbench, &new, "requests_per_s") - 2021.0 / 1.0049).abs() < 1e-9);
}

#[test]
fn sysbench_with_checkpoints_is_taken_as_a_whole() {
    // A real run: each part says how long all of them took so far.
    let real = parse(&Format::Sysbench, fixture!("sysbench-checkpoints.txt")).unwrap();
    let events = 2030.0 + 2137.0 + 1946.0;
    assert_eq!(real["requests"], events);
    let seconds = 2030.0 / 2028.20 + 2137.0 / 2129.55 + 1946.0 / 1945.44;
    assert!((real["duration_s"] - seconds).abs() < 1e-9);
    assert_eq!(real["latency_max_us"], 24_400.0);
    let mean_us = (2030.0 * 980.0 + 2137.0 * 940.0 + 1946.0 * 1020.0) / events;
    assert!((real["latency_mean_us"] - mean_us).abs() < 1e-6);
    assert!(!real.contains_key("latency_p95_us"));
    // The last part cut short.
    let cut = fixture!("sysbench-checkpoints.txt");
    let cut = &cut[..cut.rfind("Latency (ms):").unwrap()];
    assert!(parse(&Format::Sysbench, cut).is_err());
}

#[test]
fn hey_beyond_a_million() {
    let report = parse(&Format::Hey, fixture!("hey-million.txt")).unwrap();
    // The run was of 1,500,000 requests.
    assert_eq!(report["requests"], 1_500_000.0);
    assert!((report["requests_per_s"] / 7553.78 - 1.0).abs() < 1e-4);
    // 20 connections at 7554 a second: 2.65 ms each. hey printed 4.0 ms.
    assert!((report["latency_mean_us"] / 2667.0 - 1.0).abs() < 1e-3);
    for unknown in ["latency_p99_us", "latency_max_us", "errors"] {
        assert!(!report.contains_key(unknown), "{unknown}");
    }
}

#[test]
fn oha_of_long_runs_and_other_versions() {
    let text = fixture!("oha-1.4.txt");
    let per_ten_s = "  Total:\t6.0000 10 sec\n  Slowest:\t1.2000 10 sec\n  Average:\t0.5000 10 sec\n  Requests/sec:\t1.0\nResponse time distribution:\n  99.00% in 1.1000 10 sec\nStatus code distribution:\n  [200] 60 responses\n";
    assert_eq!(metric(Format::Oha, per_ten_s, "duration_s"), 60.0);
    assert_eq!(metric(Format::Oha, per_ten_s, "latency_p99_us"), 11e6);
    let hours = per_ten_s.replace("10 sec", "hr");
    assert_eq!(metric(Format::Oha, &hours, "latency_mean_us"), 1800e6);
    let old = "Summary:\n  Success rate:\t1.0000\n  Total:\t2.0000 secs\n  Slowest:\t0.0300 secs\n  Average:\t0.0020 secs\n  Requests/sec:\t100.0\nLatency distribution:\n  50% in 0.0015 secs\n  99% in 0.0125 secs\nStatus code distribution:\n  [200] 200 responses\n";
    assert_eq!(metric(Format::Oha, old, "latency_p99_us"), 12_500.0);
    let twice = format!("{text}\n{text}");
    assert!(refusal(Format::Oha, &twice).contains("2 lines `Requests/sec:`"));
}

#[test]
fn of_two_documents_of_one_run_each_neither_is_taken() {
    for (format, text) in [
        (Format::Oha, fixture!("oha-1.4.json")),
        (Format::Ghz, fixture!("ghz.json")),
        (Format::Iperf3, fixture!("iperf3-tcp.json")),
        (Format::Hyperfine, fixture!("hyperfine.json")),
        (Format::K6, tools::K6_EXPORT),
    ] {
        let alone = parse(&format, text).unwrap();
        let logged = format!("{{\"level\": \"info\"}}\n{text}\n[1] ended\n");
        assert_eq!(parse(&format, &logged).unwrap(), alone, "{format:?}");
        let twice = refusal(format, &format!("{text}\n{text}"));
        assert!(
            twice.contains("2 JSON objects with `"),
            "{format:?}: {twice}"
        );
    }
}

fn fio(jobs: &str) -> String {
    format!("{{\"fio version\": \"fio-3.33\", \"jobs\": [{jobs}]}}")
}

/// One job that reads: so many I/Os in so many milliseconds.
fn fio_job(group: u32, ios: u32, runtime_ms: u32, latency: &str) -> String {
    let iops = f64::from(ios) * 1e3 / f64::from(runtime_ms);
    format!(
        "{{\"groupid\": {group}, \"error\": 0, \"read\": {{\"total_ios\": {ios}, \"iops\": {iops}, \"bw_bytes\": {}, \"runtime\": {runtime_ms}, {latency}}}}}",
        iops * 4096.0
    )
}

const NANOSECONDS: &str = "\"clat_ns\": {\"min\": 1000, \"max\": 7012345, \"mean\": 350000.5, \"stddev\": 12.5, \"percentile\": {\"50.000000\": 333824, \"99.000000\": 1204224, \"0.00\": 0, \"0.00\": 0}}";

#[test]
fn fio_of_old_versions() {
    // 3.1 has no "N"; a key may stand twice.
    let report = parse(&Format::Fio, &fio(&fio_job(0, 25600, 10_000, NANOSECONDS))).unwrap();
    assert!((report["latency_p99_us"] - 1204.224).abs() < 1e-6);
    assert!((report["latency_mean_us"] - 350.0005).abs() < 1e-6);
    // 2.16 counts in microseconds and KiB.
    let microseconds = NANOSECONDS
        .replace("clat_ns", "clat")
        .replace("350000.5", "350.5");
    let microseconds = microseconds
        .replace("7012345", "7012")
        .replace("1204224", "1204");
    let microseconds = microseconds.replace("333824", "333");
    let job = fio_job(0, 25600, 10_000, &microseconds);
    let job = job.replace("\"bw_bytes\": 10485760", "\"bw\": 10240");
    let report = parse(&Format::Fio, &fio(&job)).unwrap();
    assert_eq!(report["latency_p99_us"], 1204.0);
    assert_eq!(report["bytes_per_s"], 10_485_760.0);
}

#[test]
fn fio_groups_run_one_after_the_other() {
    let jobs = [
        fio_job(0, 10_000, 10_000, NANOSECONDS),
        fio_job(1, 30_000, 10_000, NANOSECONDS),
    ];
    let report = parse(&Format::Fio, &fio(&jobs.join(","))).unwrap();
    assert_eq!((report["requests"], report["duration_s"]), (40_000.0, 20.0));
    assert_eq!(report["requests_per_s"], 2000.0);
    assert_eq!(report["bytes_per_s"], 2000.0 * 4096.0);
    // In one group they run at once.
    let jobs = jobs.join(",").replace("\"groupid\": 1", "\"groupid\": 0");
    assert_eq!(metric(Format::Fio, &fio(&jobs), "requests_per_s"), 4000.0);
}

#[test]
fn fio_takes_the_last_status_and_the_sum_of_clients() {
    let first = fio(&fio_job(0, 1000, 1000, NANOSECONDS));
    let last = fio(&fio_job(0, 5000, 5000, NANOSECONDS));
    let text = format!("{first}\nfio: a warning\n{last}\n");
    assert_eq!(metric(Format::Fio, &text, "requests"), 5000.0);
    let cut = &text[..text.len() - 5];
    assert!(matches!(
        parse(&Format::Fio, cut),
        Err(ParseError::Missing { .. })
    ));
    let one = fio_job(0, 1000, 1000, NANOSECONDS);
    let sum =
        fio_job(0, 2000, 1000, NANOSECONDS).replacen('{', "{\"jobname\": \"All clients\", ", 1);
    let clients = format!("{{\"client_stats\": [{one}, {one}, {sum}]}}");
    assert_eq!(metric(Format::Fio, &clients, "requests"), 2000.0);
    let wrong = fio(&one.replace("\"iops\": 1000", "\"iops\": 2000"));
    assert!(
        refusal(Format::Fio, &wrong).contains("requests is 1000, but"),
        "{wrong}"
    );
}

#[test]
fn pgbench_counts_what_was_skipped() {
    let text = "pgbench (15.6)\nnumber of transactions actually processed: 2000\nnumber of failed transactions: 5 (0.250%)\nnumber of transactions skipped: 8000 (80.000%)\nnumber of transactions above the 50.0 ms latency limit: 120/2000 (6.000%)\nlatency average = 31.100 ms\ntps = 200.120000 (without initial connection time)\n";
    let report = parse(&Format::Pgbench, text).unwrap();
    assert_eq!(report["errors"], 8005.0);
    assert_eq!(
        (report["late"], report["latency_limit_us"]),
        (120.0, 50_000.0)
    );
    // Version 10: other words around the same numbers.
    let old = "number of transactions actually processed: 2000\nnumber of transactions skipped: 8000 (80.000 %)\nnumber of transactions above the 50.0 ms latency limit: 120 (6.000 %)\nlatency average = 31.100 ms\ntps = 199.0 (including connections establishing)\ntps = 200.12 (excluding connections establishing)\n";
    let old = parse(&Format::Pgbench, old).unwrap();
    assert_eq!((old["errors"], old["late"]), (8000.0, 120.0));
    let twice = format!("{text}{text}");
    assert!(refusal(Format::Pgbench, &twice).contains("2 lines"));
}

#[test]
fn redis_benchmark_before_6_2() {
    let section = "====== GET ======\n  100000 requests completed in 1.19 seconds\n  50 parallel clients\n  3 bytes payload\n  keep alive: 1\n\n99.93% <= 1 milliseconds\n100.00% <= 2 milliseconds\n84175.09 requests per second\n\n";
    assert_report(
        Format::RedisBenchmark,
        section,
        &[
            ("requests", 100_000.0),
            ("duration_s", 1.19),
            ("requests_per_s", 84175.09),
        ],
    );
    let two = format!("{section}{}", section.replace("GET", "SET"));
    assert_eq!(metric(Format::RedisBenchmark, &two, "requests"), 200_000.0);
    assert_report(
        Format::RedisBenchmark,
        "\"GET\",\"84175.09\"\n",
        &[("requests_per_s", 84175.09)],
    );
}

#[test]
fn two_reports_are_refused_and_so_are_contradictions() {
    for (format, text) in [
        (Format::Wrk, fixture!("wrk.txt")),
        (Format::Ab, fixture!("ab.txt")),
        (Format::Hey, fixture!("hey.txt")),
        (Format::Pgbench, fixture!("pgbench.txt")),
        (Format::H2load, fixture!("h2load.txt")),
        (Format::Mysqlslap, fixture!("mysqlslap.txt")),
    ] {
        let twice = format!("{text}\n{text}");
        let error = parse(&format, &twice).unwrap_err();
        assert!(
            matches!(error, ParseError::Several { .. }),
            "{format:?}: {error}"
        );
    }
    let wrong = fixture!("wrk.txt").replace("39747.72", "9747.72");
    assert!(
        refusal(Format::Wrk, &wrong)
            .contains("requests is 79509, but requests_per_s × duration_s is 9747.72 × 2 = 19495"),
        "{}",
        refusal(Format::Wrk, &wrong)
    );
    let wrong = fixture!("wrk.txt").replace("4.77ms", "4.77us");
    assert!(refusal(Format::Wrk, &wrong).contains("latency_max_us"));
    // ab prints whole milliseconds: a mean of 0.4 ms beside a maximum of 0 is none.
    let fast = "Complete requests:      1000\nRequests per second:    10000.00 [#/sec] (mean)\nTime per request:       0.400 [ms] (mean)\nTime taken for tests:   0.100 seconds\nTotal:        0    0   0.0      0       0\n 100%      0 (longest request)\n";
    assert_eq!(metric(Format::Ab, fast, "latency_mean_us"), 400.0);
}
