//! Tests of calibrations.

use std::cell::Cell;

use super::*;
use crate::medium::{Done, IoRequest, MemoryMedium};

fn plan(read_percents: &[u8]) -> CalibrationPlan {
    CalibrationPlan {
        read_percents: read_percents.to_vec(),
        loads_each: 3,
        duration: Duration::from_millis(300),
        warm_up: Duration::from_millis(20),
        rest_max: Duration::from_millis(50),
        size_bytes: 1 << 20,
        write_area: Some(0..1 << 20),
        seed: 7,
    }
}

#[test]
fn rates_rise_to_nearly_the_highest() {
    let all: Vec<f64> = rates(10).collect();
    assert!((all[0] - 0.05).abs() < 1e-9 && (all[9] - 0.97).abs() < 1e-9);
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(rates(1).count(), 1);
}

#[test]
fn memory_is_calibrated_and_the_server_can_read_what_comes_out() {
    let mut memory = MemoryMedium::new(1 << 20);
    let mut heard = 0;
    let made = calibrate(&mut memory, "memory", &plan(&[100]), &mut |_| heard += 1).unwrap();
    // A load that a higher rate contradicts runs again.
    assert!(heard >= 3 && made.loads.len() == heard, "{made:?}");
    let json = serde_json::to_value(&made).unwrap();
    assert!(json["write_cost"].is_null());
    let curve: Curve = serde_json::from_value(json["curve"].clone()).unwrap();
    assert!(curve.mixed.is_none() && curve.read_only.max_tokens_per_s() > 1e6);
}

/// Memory that answers nothing from a moment on that the test decides.
struct Tired<'a> {
    memory: MemoryMedium,
    is_silent: &'a Cell<bool>,
}

impl Medium for Tired<'_> {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        self.memory.submit(io)
    }

    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        match self.is_silent.get() {
            true => Ok(()),
            false => self.memory.poll(waits, done),
        }
    }
}

#[test]
fn loads_without_an_answer_are_left_out() {
    let is_silent = Cell::new(false);
    let mut tired = Tired {
        memory: MemoryMedium::new(1 << 20),
        is_silent: &is_silent,
    };
    let mut short = plan(&[100]);
    short.loads_each = 2;
    let mut reasons = Vec::new();
    let made = calibrate(&mut tired, "tired", &short, &mut |load| {
        reasons.push(load.left_out.clone());
        // From the second load on.
        is_silent.set(true);
    });
    assert_eq!(reasons.len(), 2);
    assert!(reasons[1].as_ref().unwrap().contains("got no answer"));
    // A busy machine may not keep up with the first load, and then nothing is left.
    match (made, &reasons[0]) {
        (Ok(made), None) => assert_eq!(made.loads[1].left_out, reasons[1]),
        (Err(CalibrateError::NoFit { left_out: 2, .. }), Some(_)) => {}
        (made, first) => panic!("{first:?}: {made:?}"),
    }
    let none = fit(&[run(1.0, Some("8 requests got no answer"))]);
    let is_told = matches!(none, Err(CalibrateError::NoFit { left_out: 1, .. }));
    assert!(is_told, "{none:?}");
}

/// Memory whose answers wait from a certain number of answers on.
struct Slow {
    memory: MemoryMedium,
    answers: u64,
    from: u64,
    until: u64,
}

impl Medium for Slow {
    fn submit(&mut self, io: IoRequest) -> Result<(), LoadError> {
        self.memory.submit(io)
    }

    fn poll(&mut self, waits: bool, done: &mut Vec<Done>) -> Result<(), LoadError> {
        let before = done.len();
        self.memory.poll(waits, done)?;
        self.answers += (done.len() - before) as u64;
        if done.len() > before && (self.from..self.until).contains(&self.answers) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[test]
fn a_load_begins_when_the_device_is_at_rest() {
    let mut short = plan(&[100]);
    short.duration = Duration::from_millis(60);
    let long = Duration::from_secs(20);
    let waited = |until: u64, rest_max: Duration| {
        let mut slow = Slow {
            memory: MemoryMedium::new(1 << 20),
            answers: 0,
            from: u64::MAX,
            until,
        };
        let mut plan = short.clone();
        plan.rest_max = long;
        let mut rest = Rest {
            lowest_us: f64::INFINITY,
            looks: 0,
        };
        assert_eq!(rest.wait(&mut slow, &plan).unwrap(), None);
        let looks = rest.looks;
        plan.rest_max = rest_max;
        slow.from = slow.answers;
        slow.until = slow.answers.saturating_add(until);
        let why = rest.wait(&mut slow, &plan).unwrap();
        (why, rest.looks - looks)
    };
    // 200 answers of a millisecond each are more than two looks.
    let (why, looks) = waited(200, long);
    assert!(why.is_none() && looks > u64::from(LOOKS), "{why:?} {looks}");
    let (why, _) = waited(u64::MAX, Duration::from_millis(300));
    assert!(why.unwrap().contains("not at rest 0 s after"));
}

#[test]
fn a_device_that_answers_nothing_has_no_latency_to_name() {
    let mut tired = Tired {
        memory: MemoryMedium::new(1 << 20),
        is_silent: &Cell::new(true),
    };
    let mut rest = Rest {
        lowest_us: f64::INFINITY,
        looks: 0,
    };
    let why = rest.wait(&mut tired, &plan(&[100])).unwrap().unwrap();
    assert!(why.ends_with("reads one at a time got no answer"), "{why}");
}

fn run(p95_us: f64, left_out: Option<&str>) -> CalibrationRun {
    CalibrationRun {
        read_percent: 90,
        offered_iops: 100.0,
        iops: 100.0,
        p50_us: None,
        p95_us: Some(p95_us),
        p99_us: None,
        left_out: left_out.map(str::to_owned),
        disturbed_by: None,
    }
}

#[test]
fn a_load_that_a_higher_rate_contradicts_runs_again() {
    // Of another share, and not looked at.
    let mut loads = vec![run(99.0, None)];
    loads.extend([
        run(1.0, None),
        run(50.0, None),
        run(3.0, None),
        run(9.0, None),
    ]);
    let mut tails_us = [2.0, 60.0].into_iter();
    again(&mut loads, 1, &mut |iops| {
        assert_eq!(iops, 100.0);
        Ok(run(tails_us.next().unwrap(), None))
    })
    .unwrap();
    assert_eq!(tails_us.next(), None);
    let counts = |load: &CalibrationRun| (load.p95_us.unwrap(), load.left_out.is_none());
    let seen: Vec<(f64, bool)> = loads.iter().map(counts).collect();
    let counting = [
        (99.0, true),
        (1.0, true),
        (50.0, true),
        (3.0, true),
        (9.0, true),
    ];
    assert_eq!(seen[..5], counting);
    assert!(seen[5..].iter().all(|(_, counts)| !counts), "{seen:?}");
    // Two runs without the stall: one of them counts.
    let mut loads = vec![run(50.0, None), run(3.0, None)];
    again(&mut loads, 0, &mut |_| Ok(run(2.0, None))).unwrap();
    assert_eq!(counts(&loads[0]), (2.0, true));
    assert_eq!(loads.len(), 4);
    // Nothing contradicts: nothing runs.
    let mut loads = vec![run(2.0, None), run(3.0, None)];
    again(&mut loads, 0, &mut |_| panic!("no load is contradicted")).unwrap();
}

#[test]
fn the_middle_run_counts_and_the_slower_one_of_two() {
    let counted = |mut runs: Vec<CalibrationRun>| -> Vec<f64> {
        middle_first(&mut runs);
        assert!(runs[0].left_out.is_none());
        let counts = runs.iter().filter(|run| run.left_out.is_none());
        counts.filter_map(|run| run.p95_us).collect()
    };
    let three = vec![run(9.0, None), run(1.0, None), run(2.0, None)];
    assert_eq!(counted(three), [2.0]);
    let two = vec![run(9.0, None), run(1.0, None), run(2.0, Some("failed"))];
    assert_eq!(counted(two), [9.0]);
    let rising = [
        run(1.0, None),
        run(1.4, None),
        run(1.0, None),
        run(5.0, None),
    ];
    assert!(contradicting(&rising).is_empty());
    let blip = [run(5.0, None), run(2.0, Some("failed")), run(3.0, None)];
    assert_eq!(contradicting(&blip), [0]);
}

#[test]
fn a_model_is_drawn_by_its_columns() {
    let model = qos::simulated::p3600_model();
    let chart = of_model("p3600", &model).chart();
    assert_eq!(chart.series.len(), 2);
    assert!(chart.svg().contains("somebody writes"));
}
