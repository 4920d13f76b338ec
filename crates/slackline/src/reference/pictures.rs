//! The pictures of the loop and of the concepts. The intervals, the sequential test and the drift
//! test in them are computed by the product's own code, from random numbers with a seed.

use std::fmt::Write as _;

use paired_stats::{DriftTest, SequentialTest, SequentialVerdict, abba, mean_interval};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::check_page;

const WIDTH: f64 = 680.0;
const CONTROL: &str = "#6b7280";
const CANDIDATE: &str = "#1d4ed8";
const ALARM: &str = "#c2410c";
const FAINT: &str = "#d1d5db";

struct Picture(String);

impl Picture {
    fn new(height: f64, label: &str) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\" role=\"img\" aria-label=\"{label}\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
        ))
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, colour: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, more: &str) {
        let _ = writeln!(
            self.0,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" {more}/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\" fill=\"{colour}\"/>"
        );
    }

    /// A line with a head at its end, to the right or down.
    fn arrow(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        self.line(from, to, colour, "stroke-width=\"1.5\"");
        let (x, y) = to;
        let back = match from.0 < to.0 {
            true => [(x - 8.0, y - 4.0), (x - 8.0, y + 4.0)],
            false => [(x - 4.0, y - 8.0), (x + 4.0, y - 8.0)],
        };
        let points = format!(
            "{x},{y} {},{} {},{}",
            back[0].0, back[0].1, back[1].0, back[1].1
        );
        let _ = writeln!(self.0, "<polygon points=\"{points}\" fill=\"{colour}\"/>");
    }

    fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(
            self.0,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
        );
    }

    fn curve(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let points = points.join(" ");
        let _ = writeln!(
            self.0,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
    }

    fn check(self, name: &str) {
        check_page(&format!("pictures/{name}.svg"), &(self.0 + "</svg>\n"));
    }
}

/// About a standard normal number: twelve uniform ones have the variance 1.
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0
}

/// The place of a positive number on a logarithmic axis from `low` at the bottom to `high`.
fn on_log_axis(value: f64, (low, high): (f64, f64), (bottom, top): (f64, f64)) -> f64 {
    let share = (value.clamp(low, high) / low).ln() / (high / low).ln();
    bottom + share * (top - bottom)
}

#[test]
fn the_reference_has_its_picture_of_the_loop() {
    let mut picture = Picture::new(
        210.0,
        "The loop: observe, decide, act, verify, and observe again. Each write goes through the undo journal. The control is measured beside every candidate",
    );
    let steps = [
        ("observe", "paired blocks"),
        ("decide", "Gaussian process"),
        ("act", "flags, files, settings"),
        ("verify", "fresh runs, interval"),
    ];
    let middle = |step: usize| 89.0 + step as f64 * 168.0;
    for (step, (name, by)) in steps.into_iter().enumerate() {
        picture.rect((middle(step) - 74.0, 34.0), (148.0, 52.0), CANDIDATE);
        picture.text((middle(step), 56.0), "middle", "#fff", name);
        picture.text((middle(step), 75.0), "middle", "#fff", by);
        if step > 0 {
            let ends = [middle(step - 1) + 74.0, middle(step) - 74.0];
            picture.arrow((ends[0], 60.0), (ends[1], 60.0), CANDIDATE);
        }
    }
    let corners = [(middle(2), 34.0), (middle(2), 14.0), (middle(0), 14.0)];
    picture.curve(&corners, CANDIDATE);
    picture.arrow((middle(0), 14.0), (middle(0), 34.0), CANDIDATE);
    picture.arrow((middle(2), 86.0), (middle(2), 116.0), ALARM);
    picture.rect((middle(2) - 94.0, 116.0), (336.0, 76.0), ALARM);
    let notes = [
        (middle(2) + 74.0, "middle", "#fff", "undo journal"),
        (
            middle(2) + 74.0,
            "middle",
            "#fff",
            "The old value is on disk before any change.",
        ),
        (
            middle(2) + 74.0,
            "middle",
            "#fff",
            "After a kill -9, slackline restore writes it back.",
        ),
        (15.0, "start", CONTROL, "control"),
        (
            15.0,
            "start",
            CONTROL,
            "The unchanged configuration is measured",
        ),
        (15.0, "start", CONTROL, "beside every candidate."),
    ];
    for (at, (x, anchor, colour, text)) in notes.into_iter().enumerate() {
        let y = 138.0 + (at % 3) as f64 * 20.0;
        picture.text((x, y), anchor, colour, text);
    }
    picture.check("loop");
}

#[test]
fn the_reference_has_its_picture_of_blocks_and_pairs() {
    let mut picture = Picture::new(
        190.0,
        "Blocks of the control (A) and of the candidate (B) in the order A B, B A, A B, B A. Each pair gives a ratio",
    );
    let ratios = [0.91, 0.94, 0.92, 0.9];
    picture.text((20.0, 24.0), "start", "#111", "time →");
    for (pair, ratio) in ratios.iter().enumerate() {
        let left = 20.0 + pair as f64 * 160.0;
        for (at, side) in abba(pair, ["A", "B"]).iter().enumerate() {
            let x = left + at as f64 * 72.0;
            let (y, colour) = match *side {
                "A" => (44.0, CONTROL),
                _ => (84.0, CANDIDATE),
            };
            picture.rect((x, y), (68.0, 32.0), colour);
            picture.text((x + 34.0, y + 21.0), "middle", "#fff", side);
        }
        picture.line((left, 130.0), (left + 140.0, 130.0), "#111", "");
        let text = format!("pair {}: B ÷ A = {ratio:.2}", pair + 1);
        picture.text((left + 70.0, 150.0), "middle", "#111", &text);
    }
    picture.text((20.0, 180.0), "start", CONTROL, "A: control");
    picture.text((110.0, 180.0), "start", CANDIDATE, "B: candidate");
    picture.check("blocks");
}

#[test]
fn the_reference_has_its_picture_of_intervals() {
    let mut picture = Picture::new(
        220.0,
        "Three intervals: one below zero is shown to be better, one across zero shows no difference, one above zero is shown to be worse",
    );
    let x = |percent: f64| 340.0 + percent * 18.0;
    for percent in [-15, -10, -5, 0, 5, 10, 15] {
        let at = x(f64::from(percent));
        picture.line((at, 40.0), (at, 186.0), FAINT, "");
        let text = format!("{percent:+} %")
            .replace('-', "−")
            .replace("+0", "0");
        picture.text((at, 206.0), "middle", "#111", &text);
    }
    picture.line((x(0.0), 40.0), (x(0.0), 186.0), "#111", "");
    let heading = "change against the control, with the 95 % interval over runs";
    picture.text((340.0, 24.0), "middle", "#111", heading);
    let runs: [(&[f64], &str); 3] = [
        (&[-8.4, -6.1, -9.0, -7.3, -8.2], CANDIDATE),
        (&[-3.1, 1.2, -2.4, 0.9, -1.3], CONTROL),
        (&[5.2, 7.9, 6.4, 8.3, 6.0], ALARM),
    ];
    for (row, (values, colour)) in runs.into_iter().enumerate() {
        let interval = mean_interval(values, 0.95).unwrap();
        let (y, is_shown) = (64.0 + row as f64 * 44.0, interval.excludes(0.0));
        let said = match interval.estimate < 0.0 {
            _ if !is_shown => "no difference shown",
            true => "shown to be better",
            false => "shown to be worse",
        };
        let ends = (x(interval.low), x(interval.high));
        picture.line((ends.0, y), (ends.1, y), colour, "stroke-width=\"3\"");
        picture.dot((x(interval.estimate), y), colour);
        let text = format!(
            "{said}: {:.1} % [{:.1}, {:.1}]",
            interval.estimate, interval.low, interval.high
        );
        let text = text.replace('-', "−");
        picture.text(
            (f64::midpoint(ends.0, ends.1), y + 20.0),
            "middle",
            colour,
            &text,
        );
    }
    picture.check("intervals");
}

/// The p values of an evaluation after each pair, from the second on, and where the test ended it.
fn p_values(effect: f64, seed: u64) -> (Vec<f64>, Option<usize>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut test = SequentialTest::new(0.0, 0.05, 3, 12);
    let mut values = Vec::new();
    for pair in 1..=12 {
        let verdict = test.push(0.05 * (effect + normal(&mut rng)));
        values.push(test.p_value());
        if verdict == SequentialVerdict::Worse {
            return (values, Some(pair));
        }
    }
    (values, None)
}

#[test]
fn the_reference_has_its_picture_of_the_sequential_test() {
    let mut picture = Picture::new(
        290.0,
        "The p value after each of 12 pairs. Under a bad configuration it falls below the limit of a look, and the evaluation ends early. \
         Under a good one it does not",
    );
    let (bad, ended) = p_values(2.0, 3);
    let (good, never) = p_values(-0.3, 5);
    let ended = ended.expect("the bad configuration ends early");
    assert!(ended < 12 && never.is_none(), "{ended} {never:?}");
    let looks = SequentialTest::looks(3, 12);
    let level = (1.0 - paired_stats::confidence_of_each_look(0.9, looks)) / 2.0;
    let place = |pair: usize, p: f64| {
        let x = 70.0 + pair as f64 * 46.0;
        (x, on_log_axis(p, (1e-4, 1.0), (240.0, 40.0)))
    };
    picture.text(
        (20.0, 24.0),
        "start",
        "#111",
        "p value of “worse than the best so far”",
    );
    for (p, text) in [(1.0, "1"), (0.1, "0.1"), (0.01, "0.01"), (0.001, "0.001")] {
        let (left, right) = (place(1, p), place(12, p));
        picture.line(left, right, FAINT, "");
        picture.text((left.0 - 12.0, left.1 + 4.0), "end", "#111", text);
    }
    for pair in 1..=12 {
        let at = (place(pair, 1.0).0, 262.0);
        picture.text(at, "middle", "#111", &pair.to_string());
    }
    picture.text(
        (340.0, 282.0),
        "middle",
        "#111",
        "pairs measured, of 12 planned",
    );
    let (first, last) = (place(3, level), place(11, level));
    picture.line(first, last, ALARM, "stroke-dasharray=\"6 4\"");
    picture.text((last.0, last.1 - 6.0), "end", ALARM, "limit of each look");
    for (values, colour) in [(&good, CONTROL), (&bad, CANDIDATE)] {
        let points = values.iter().zip(1..).map(|(p, pair)| place(pair, *p));
        picture.curve(&points.collect::<Vec<_>>(), colour);
    }
    let end = place(ended, bad[ended - 1]);
    picture.dot(end, CANDIDATE);
    picture.text(
        (end.0 + 10.0, end.1 + 5.0),
        "start",
        CANDIDATE,
        "a bad configuration: ended here",
    );
    let end = place(12, good[11]);
    picture.text(
        (end.0, end.1 + 30.0),
        "end",
        CONTROL,
        "a good one is measured to its end",
    );
    picture.check("sequential-test");
}

#[test]
fn the_reference_has_its_picture_of_the_drift_test() {
    const CHANGE: usize = 90;
    let mut picture = Picture::new(
        290.0,
        "The evidence of a drift test, round by round. It stays low until the load changes, and then rises above the limit: an alarm",
    );
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut test = DriftTest::new(1000.0, 1);
    let place = |round: usize, evidence: f64| {
        let x = 70.0 + round as f64 * 4.4;
        (x, on_log_axis(evidence, (0.1, 10_000.0), (240.0, 40.0)))
    };
    let (mut points, mut alarm) = (Vec::new(), None);
    for round in 1..=130 {
        let shift = if round > CHANGE { 2.0 } else { 0.0 };
        let is_alarm = test.push(0, shift + normal(&mut rng));
        points.push(place(round, test.evidence()));
        if is_alarm {
            alarm = Some(round);
            break;
        }
    }
    let alarm = alarm.expect("the change is noticed");
    assert!(alarm > CHANGE, "{alarm}");
    picture.text((20.0, 24.0), "start", "#111", "evidence for a change");
    for (evidence, text) in [
        (1.0, "1"),
        (10.0, "10"),
        (100.0, "100"),
        (10_000.0, "10,000"),
    ] {
        let (left, right) = (place(0, evidence), place(130, evidence));
        picture.line(left, right, FAINT, "");
        picture.text((left.0 - 12.0, left.1 + 4.0), "end", "#111", text);
    }
    let (left, right) = (place(0, test.threshold()), place(130, test.threshold()));
    picture.line(left, right, ALARM, "stroke-dasharray=\"6 4\"");
    picture.text((left.0 - 12.0, left.1 + 4.0), "end", ALARM, "1,000");
    let limit = "limit: one false alarm in 1,000 rounds at most";
    picture.text((left.0 + 4.0, left.1 - 6.0), "start", ALARM, limit);
    let at = place(CHANGE, 1.0).0;
    picture.line((at, 40.0), (at, 240.0), "#111", "stroke-dasharray=\"2 3\"");
    picture.text((at - 6.0, 232.0), "end", "#111", "the load changes");
    picture.curve(&points, CANDIDATE);
    let end = points[points.len() - 1];
    picture.dot(end, ALARM);
    let text = format!("alarm, {} rounds later", alarm - CHANGE);
    picture.text((end.0 + 8.0, end.1 - 8.0), "start", ALARM, &text);
    for round in [0, 30, 60, 90, 120] {
        picture.text(
            (place(round, 1.0).0, 262.0),
            "middle",
            "#111",
            &round.to_string(),
        );
    }
    picture.text((340.0, 282.0), "middle", "#111", "rounds");
    picture.check("drift-test");
}
