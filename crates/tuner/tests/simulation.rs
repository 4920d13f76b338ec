//! The whole loop against services that do not exist: search, early abort, verification and finding
//! under seeds, with the truth known.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;

use bayes_opt::Configuration;
use host::Roots;
use tuner::TunerError;
use tuner::evaluation::{Evaluation, EvaluationRules, Outcome, Step};
use tuner::experiment::run;
use tuner::ledger::LedgerEvent;
use tuner::metrics::lookup;
use tuner::report::{Finding, Report};
use tuner::simulation::{Noise, POOLED_SPEC, SimulatedService, Truth, pooled_service};
use tuner::spec::{CheckedSpec, context};

const EVALUATION: &str = "[evaluation]\nblock_s = 5\nblocks = 6\n";

const OBJECTIVE: &str = "[objective]\nmetric = \"cpu_s_per_request\"\n";

/// [`POOLED_SPEC`] under a seed, with `first` before every table and `last` after them.
fn checked(seed: u64, first: &str, last: &str) -> CheckedSpec {
    let text = format!("seed = {seed}\n{first}\n{POOLED_SPEC}\n{EVALUATION}\n{last}");
    // Throttling is only counted of a service whose group is known.
    let text = if first.contains("throttled") {
        text.replace(
            "start = [\"sleep\", \"9\"]",
            "observe = { cgroup = \"any\" }",
        )
    } else {
        text
    };
    loaded(&text)
}

fn loaded(text: &str) -> CheckedSpec {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("simulated.toml");
    std::fs::write(&path, text).unwrap();
    context(&Roots::default()).load(&path).unwrap()
}

fn budget(evaluations: usize) -> String {
    format!("{OBJECTIVE}[budget]\nevaluations = {evaluations}\n")
}

/// The experiment against a service of this truth.
fn simulate(
    spec: &CheckedSpec,
    noise: Noise,
    truth: impl Fn(&Configuration) -> Truth,
) -> Result<Report, TunerError> {
    let mut service = service(spec, noise, truth);
    run(spec, &mut service, &mut |_: &LedgerEvent<'_>| {})
}

fn service<F: Fn(&Configuration) -> Truth>(
    spec: &CheckedSpec,
    noise: Noise,
    truth: F,
) -> SimulatedService<F> {
    let control = spec.space.default_configuration();
    SimulatedService::new(spec.written().seed ^ 0x5eed, noise, control, truth)
}

/// The winner's true cost over that of the optimum, 80 µs.
fn true_cost(report: &Report) -> f64 {
    let winner = report
        .verification
        .first()
        .map_or(&report.control, |arm| &arm.configuration);
    pooled_service(winner).cpu_us_per_request / 80.0
}

fn flat(_: &Configuration) -> Truth {
    Truth::default()
}

/// At 95 % confidence, a verified arm that makes no difference is called better in 2.5 % of the
/// experiments and worse in 2.5 %: 1 of 20 is expected at the most, fewer since an experiment whose
/// model recommends the control claims nothing.
#[test]
fn without_a_difference_none_is_shown() {
    let claims: Vec<(u64, Finding)> = (0..20)
        .map(|seed| {
            let report = simulate(&checked(seed, "", &budget(10)), Noise::default(), flat);
            (seed, report.unwrap().finding)
        })
        .filter(|(_, finding)| *finding != Finding::NoDifference)
        .collect();
    assert!(claims.len() <= 1, "{claims:?}");
}

/// How many of ten seeds end with an improvement, and their true costs.
fn found(noise: Noise, last: &str) -> (usize, Vec<f64>) {
    let reports: Vec<Report> = (100..110)
        .map(|seed| simulate(&checked(seed, "", last), noise, pooled_service).unwrap())
        .collect();
    let shown = reports
        .iter()
        .filter(|report| report.finding == Finding::Improvement)
        .count();
    (shown, reports.iter().map(true_cost).collect())
}

fn close(costs: &[f64], within: f64) -> usize {
    costs.iter().filter(|cost| **cost <= 1.0 + within).count()
}

/// The control is 23 % above the optimum.
#[test]
fn a_known_optimum_is_found_and_shown() {
    let (shown, costs) = found(Noise::default(), &budget(12));
    assert!(shown >= 9, "{shown} {costs:?}");
    assert!(close(&costs, 0.05) >= 8, "{costs:?}");
}

#[test]
fn drift_of_the_machine_fools_nobody() {
    // 5 % from one side of a block to the next: some 50 % over a search, which both sides feel.
    let noise = Noise {
        drift_sd: 0.05,
        ..Noise::default()
    };
    let (shown, costs) = found(noise, &budget(12));
    assert!(shown >= 7, "{shown} {costs:?}");
    assert!(close(&costs, 0.10) >= 8, "{costs:?}");
    let claims = (0..20)
        .filter(|seed| {
            let report = simulate(&checked(*seed, "", &budget(10)), noise, flat).unwrap();
            report.finding != Finding::NoDifference
        })
        .count();
    // 5 % of 20 are expected; more than 3 would come about in 1.6 % of correct implementations.
    assert!(claims <= 3, "{claims}");
}

#[test]
fn heavy_tails_fool_nobody() {
    let noise = Noise {
        outlier_probability: 0.02,
        ..Noise::default()
    };
    let claims = (0..10)
        .filter(|seed| {
            let report = simulate(&checked(*seed, "", &budget(10)), noise, flat).unwrap();
            report.finding != Finding::NoDifference
        })
        .count();
    assert!(claims <= 1, "{claims}");
    // Outliers widen the intervals: what is shown less often is chosen as well.
    let (_, costs) = found(noise, &budget(12));
    assert!(close(&costs, 0.10) >= 7, "{costs:?}");
}

/// The cheapest pool is throttled: the winner must lie below, at 24 threads or fewer.
#[test]
fn the_winner_is_not_throttled() {
    for seed in 300..306 {
        let first = "constraints = [\"throttled_periods = 0\"]";
        let report = simulate(&checked(seed, first, &budget(12)), Noise::default(), |at| {
            let threads = tuner::simulation::number(at, "threads", 0.0);
            Truth {
                cpu_us_per_request: 100.0 * (16.0 / threads).powf(0.3),
                ..pooled_service(at)
            }
        })
        .unwrap();
        let winner = &report.verification[0];
        let truth = pooled_service(&winner.configuration);
        assert_eq!(truth.throttled_share, 0.0, "seed {seed}: {winner:?}");
        // Fewer threads may be paid with latency: a guard says so, and the gain is shown all the
        // same.
        let is_shown = matches!(report.finding, Finding::Improvement | Finding::Paid);
        assert!(is_shown, "seed {seed}: {:?}", report.finding);
        assert!(winner.violated.is_empty());
    }
}

/// Evaluations of a configuration whose cost is `ratio` of the control's, beside an incumbent of
/// the control's cost: how many were aborted, and the blocks they took.
fn evaluations(ratio: f64, count: u64) -> (u64, usize) {
    use tuner::bench::{Arm, Bench};
    let longer = EVALUATION.replace("blocks = 6", "blocks = 12");
    let rules = loaded(&format!("seed = 1\n{POOLED_SPEC}\n{longer}\n{OBJECTIVE}"));
    let mut aborted = 0;
    let mut blocks = 0;
    for seed in 0..count {
        let experiment = Configuration([("threads".to_owned(), 1_i64.into())].into());
        // Without a part of the run: the evaluation is of this start, as good as the incumbent.
        let noise = Noise {
            block_sd: 0.05,
            ..Noise::NONE
        };
        let mut bench = SimulatedService::new(seed, noise, Configuration::default(), |at| Truth {
            cpu_us_per_request: if at.0.is_empty() {
                100.0
            } else {
                100.0 * ratio
            },
            ..Truth::default()
        });
        let arm = Arm {
            configuration: experiment,
            ..Arm::default()
        };
        bench.begin(&arm).unwrap();
        let mut evaluation = Evaluation::new(EvaluationRules::of(&rules), Some(0.0));
        for index in 0.. {
            blocks += 1;
            if evaluation.push(bench.block(index).unwrap()).unwrap() == Step::Stop {
                break;
            }
        }
        let (outcome, ..) = evaluation.finish().unwrap();
        aborted += u64::from(outcome == Outcome::Aborted);
    }
    (aborted, blocks)
}

/// `abort_alpha` is 5 %: at most 40 of 800 are expected, and the test's bound holds for every
/// number of looks.
#[test]
fn the_early_abort_keeps_its_error_rate_and_saves_blocks() {
    let (aborted, _) = evaluations(1.0, 800);
    assert!(aborted <= 40, "{aborted} of 800");
    let (aborted, blocks) = evaluations(1.25, 100);
    assert!(aborted >= 95, "{aborted} of 100");
    assert!(blocks <= 600, "{blocks} of 1200 blocks");
}

/// A crash share over the second halves of searches.
fn late_crashes(strategy: &str, crashes: fn(&Configuration) -> bool) -> (usize, usize) {
    let mut counts = (0, 0);
    for seed in 200..280 {
        let last = format!("{}[search]\nstrategy = \"{strategy}\"\n", budget(20));
        let report = simulate(&checked(seed, "", &last), Noise::default(), |at| Truth {
            crashes: crashes(at),
            ..pooled_service(at)
        })
        .unwrap();
        let second = &report.evaluations[10..];
        counts.0 += second
            .iter()
            .filter(|record| record.outcome == Outcome::Crashed)
            .count();
        counts.1 += second.len();
        let winner = report.verification.first();
        assert!(winner.is_none_or(|arm| !crashes(&arm.configuration)));
    }
    counts
}

/// Three tenths of the space (in logarithms) crash, two thirds of an octave above the optimum. (An
/// optimum on the very border is not learned to be left alone, and should not be.)
#[test]
fn crashes_are_learned() {
    let crashes = |at: &Configuration| tuner::simulation::number(at, "buffer_kib", 0.0) > 200.0;
    let (learned, of) = late_crashes("bayesian", crashes);
    // A search that learns nothing meets three tenths.
    assert!(learned * 2 * 10 < of * 3, "{learned} of {of}");
    // A random one at least leaves alone what crashed twice for one reason.
    let (random, of) = late_crashes("random", crashes);
    assert!(random * 2 * 10 < of * 3, "{random} of {of}");
}

#[test]
fn a_failure_of_the_harness_teaches_nothing_and_is_tried_again() {
    let spec = checked(5, "", &budget(8));
    let calm = simulate(&spec, Noise::NONE, pooled_service).unwrap();
    let mut bench = service(&spec, Noise::NONE, pooled_service).failing_starts([1, 4, 5]);
    let report = run(&spec, &mut bench, &mut |_: &LedgerEvent<'_>| {}).unwrap();
    let failed: Vec<usize> = report
        .evaluations
        .iter()
        .filter(|record| record.outcome == Outcome::Failed)
        .map(|record| record.number)
        .collect();
    assert_eq!(failed, [2, 5, 6]);
    for record in &report.evaluations {
        let is_failed = record.outcome == Outcome::Failed;
        if is_failed {
            assert!(record.measurement.is_none());
            let again = &report.evaluations[record.number];
            assert_eq!(record.configuration, again.configuration);
            assert!(
                record
                    .reason
                    .as_deref()
                    .unwrap()
                    .contains("did not come up")
            );
        }
    }
    // Without noise the optimiser asks what it asks without failures: it has not heard of them.
    let asked: Vec<_> = report
        .evaluations
        .iter()
        .filter(|record| record.outcome != Outcome::Failed)
        .map(|record| &record.configuration)
        .collect();
    let calmly: Vec<_> = calm
        .evaluations
        .iter()
        .map(|record| &record.configuration)
        .collect();
    assert_eq!(asked, calmly[..asked.len()]);
}

#[test]
fn blocks_that_fail_now_and_then_are_lived_with() {
    let noise = Noise {
        harness_failure_probability: 0.03,
        ..Noise::default()
    };
    let report = simulate(&checked(6, "", &budget(20)), noise, pooled_service).unwrap();
    let failed = report
        .evaluations
        .iter()
        .filter(|e| e.outcome == Outcome::Failed);
    assert!(failed.count() >= 1);
    assert!(true_cost(&report) < 1.15, "{}", report.sentence);
}

#[test]
fn three_failures_in_a_row_end_the_experiment() {
    let spec = checked(5, "", &budget(10));
    let mut bench = service(&spec, Noise::default(), pooled_service).failing_starts(2..5);
    let mut ended = 0;
    let error = run(&spec, &mut bench, &mut |event: &LedgerEvent<'_>| {
        ended += usize::from(matches!(event, LedgerEvent::Ended { .. }));
    })
    .unwrap_err();
    assert!(
        matches!(error, TunerError::Control { attempts: 3, .. }),
        "{error}"
    );
    assert_eq!(
        error.to_string(),
        "the control could not be measured (3 attempts). Last attempt: the control did not come up"
    );
    assert!(ended >= 2, "{ended}");
}

#[test]
fn an_interrupt_leaves_a_report_that_claims_nothing() {
    let spec = checked(5, "", &budget(10));
    // In the middle of the second evaluation at the latest; and in the verification.
    let mut bench = service(&spec, Noise::default(), pooled_service).interrupted_at(8, 2);
    let report = run(&spec, &mut bench, &mut |_: &LedgerEvent<'_>| {}).unwrap();
    assert_eq!(report.interrupted, Some(2));
    assert_eq!(report.finding, Finding::Unfinished);
    assert!(report.verification.is_empty() && report.settings.is_empty());
    let last = report.evaluations.last().unwrap();
    assert_eq!(last.outcome, Outcome::Killed);
    assert_eq!(last.reason.as_deref(), Some("signal 2"));
    assert!(
        !last.blocks.is_empty(),
        "the blocks measured so far are kept"
    );
    let count = report.evaluations.len();
    assert!(
        report
            .sentence
            .starts_with(&format!("Stopped by signal 2 after {count} evaluations")),
        "{}",
        report.sentence
    );

    let verifying = Cell::new(false);
    let mut bench = service(&spec, Noise::default(), pooled_service);
    run(&spec, &mut bench, &mut |event: &LedgerEvent<'_>| {
        verifying.set(verifying.get() || matches!(event, LedgerEvent::Verifying { .. }));
    })
    .unwrap();
    assert!(verifying.get());
    let before_the_end = bench.measured_blocks() - 2;
    let mut bench =
        service(&spec, Noise::default(), pooled_service).interrupted_at(before_the_end, 15);
    let report = run(&spec, &mut bench, &mut |_: &LedgerEvent<'_>| {}).unwrap();
    assert_eq!(report.interrupted, Some(15));
    assert_eq!(report.finding, Finding::Unfinished, "{}", report.sentence);
    assert!(report.sentence.contains("nothing") || report.sentence.starts_with("Unfinished"));
}

#[test]
fn the_wall_time_ends_the_search() {
    // An evaluation takes 2 s + 6 · 10 s at the most.
    let last = format!("{OBJECTIVE}[budget]\nevaluations = 1000\nwall_time_min = 5\n");
    let report = simulate(&checked(7, "", &last), Noise::default(), pooled_service).unwrap();
    let searched_s: f64 = report
        .evaluations
        .iter()
        .map(|record| record.duration_s)
        .sum();
    assert!((300.0..362.0).contains(&searched_s), "{searched_s}");
    assert!(
        report.duration_s > searched_s,
        "and is verified all the same"
    );
    assert!(!report.verification.is_empty());
}

#[test]
fn more_requests_are_found_when_more_is_better() {
    for scale in ["ratio", "absolute"] {
        let last = format!(
            "[objective]\nmetric = \"requests_per_s\"\ngoal = \"maximise\"\nscale = \"{scale}\"\n[budget]\nevaluations = 12\n"
        );
        let report = simulate(&checked(8, "", &last), Noise::default(), pooled_service).unwrap();
        assert_eq!(
            report.finding,
            Finding::Improvement,
            "{scale}: {}",
            report.sentence
        );
        let winner = &report.verification[0];
        assert!(winner.ratios["requests_per_s"].low > 1.0);
        assert!(
            pooled_service(&winner.configuration).requests_per_s > 5500.0,
            "{scale}"
        );
    }
}

#[test]
fn a_latency_with_its_spread_is_an_objective() {
    let last =
        "[objective]\nmetric = \"latency_p99_us\"\nstd_weight = 0.1\n[budget]\nevaluations = 12\n";
    let report = simulate(&checked(9, "", last), Noise::default(), pooled_service).unwrap();
    assert_eq!(report.finding, Finding::Improvement, "{}", report.sentence);
    assert!(
        report.sentence.contains("latency_p99_us mean + 0.1 std"),
        "{}",
        report.sentence
    );
    assert!(true_cost(&report) < 1.1);
}

#[test]
fn equal_seeds_give_equal_reports() {
    let text = |seed| {
        let mut report = simulate(
            &checked(seed, "", &budget(10)),
            Noise::default(),
            pooled_service,
        )
        .unwrap();
        report.started = jiff::Timestamp::UNIX_EPOCH;
        serde_json::to_value(&report).unwrap()
    };
    let (mut first, mut second) = (text(11), text(11));
    for report in [&mut first, &mut second] {
        // Uptime, load, folders and the like are the host's, not the experiment's.
        report["machine"] = serde_json::Value::Null;
        report["dir"] = serde_json::Value::Null;
    }
    assert_eq!(first, second);
    assert_ne!(first["evaluations"], text(12)["evaluations"]);
}

/// What one experiment found is where the next one starts: three evaluations then do about as well
/// as its sixteen.
#[test]
fn an_earlier_report_is_a_warm_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("first.json");
    let warm = format!("{}[search]\nwarm_start = [{path:?}]\n", budget(3));
    let found = |seed, last: &str| {
        let spec = checked(seed, "", last);
        simulate(&spec, Noise::default(), pooled_service).unwrap()
    };
    let (mut costs, seeds) = ([0.0; 3], 12);
    for seed in (0..seeds).map(|seed| 21 + 100 * seed) {
        let first = found(seed, &budget(16));
        std::fs::write(&path, serde_json::to_string(&first).unwrap()).unwrap();
        let second = found(seed + 1, &warm);
        assert_eq!(second.finding, Finding::Improvement, "{}", second.sentence);
        let cold = found(seed + 1, &budget(3));
        for (sum, report) in costs.iter_mut().zip([&first, &second, &cold]) {
            *sum += (true_cost(report) - 1.0) / seeds as f64;
        }
    }
    let [first, second, cold] = costs;
    assert!(second < 0.5 * cold && second < first + 0.02, "{costs:?}");
    for other in [
        "latency_p99_us\"\n",
        "cpu_s_per_request\"\ngoal = \"maximise\"\n",
    ] {
        let other = format!("[objective]\nmetric = \"{other}");
        let text =
            format!("{POOLED_SPEC}\n{EVALUATION}\n{other}[search]\nwarm_start = [{path:?}]\n");
        let wrong = dir.path().join("wrong.toml");
        std::fs::write(&wrong, text).unwrap();
        let error = context(&Roots::default())
            .load(&wrong)
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot be compared"), "{error}");
    }
}

#[test]
fn a_report_survives_its_json() {
    let report = simulate(
        &checked(13, "", &budget(6)),
        Noise::default(),
        pooled_service,
    )
    .unwrap();
    let text = serde_json::to_string(&report).unwrap();
    let back: Report = serde_json::from_str(&text).unwrap();
    // Not the whole text: serde_json reads a number to the last digit but one.
    assert_eq!(back.sentence, report.sentence);
    assert_eq!(back.control, report.control);
    assert_eq!(back.verification.len(), report.verification.len());
    for (ours, theirs) in report.evaluations.iter().zip(&back.evaluations) {
        assert_eq!(ours.configuration, theirs.configuration);
        assert_eq!(ours.outcome, theirs.outcome);
        assert_eq!(ours.blocks.len(), theirs.blocks.len());
    }
    let block = &back.evaluations[0].blocks[0];
    assert!(lookup(&block.control, "cpu_s_per_request").is_some());
}
