//! The settings of a group over time, one picture for each actuator.

use std::collections::BTreeMap;

use isolate_run::{DecisionOutcome, RecordedRun};
use isolation::ActuatorSetting;

use crate::timeline::{Line, LineKind, timeline};

/// A setting over time: what was in force, and what was only decided.
#[derive(Default)]
struct Course {
    unit: &'static str,
    /// Whether there was no quota at a time.
    had_no_quota: bool,
    set: Vec<(f64, Option<f64>)>,
    planned: Vec<(f64, Option<f64>)>,
}

/// Goes on to the next value, in a step.
fn step(points: &mut Vec<(f64, Option<f64>)>, at_s: f64, value: Option<f64>) {
    if let Some((_, before @ Some(_))) = points.last().copied() {
        points.push((at_s, before));
    }
    points.push((at_s, value));
}

/// A setting as a number with its unit. There is no number where there is no limit, and nothing for
/// a word.
fn number(setting: &ActuatorSetting) -> Option<(Option<f64>, &'static str)> {
    let is = |on: bool| f64::from(u8::from(on));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let whole = |number: u64| number as f64;
    let mib = |bytes: u64| whole(bytes) / f64::from(1_u32 << 20);
    let (value, unit) = match *setting {
        ActuatorSetting::Off(off) => (is(off), "1 = off"),
        ActuatorSetting::CpuIdle(on) => (is(on), "1 = cpu.idle"),
        ActuatorSetting::IoCost(on) => (is(on), "1 = on"),
        ActuatorSetting::QuotaCores(cores) => return Some((cores, "cores")),
        ActuatorSetting::Frequency(share)
        | ActuatorSetting::Power(share)
        | ActuatorSetting::UclampMax(share)
        | ActuatorSetting::UclampMin(share) => (100.0 * share, "%"),
        ActuatorSetting::MemoryBandwidthPercent(percent) => (whole(percent), "%"),
        ActuatorSetting::EgressMbit(rate) => (rate, "Mbit/s"),
        ActuatorSetting::Weight(weight) | ActuatorSetting::IoWeight(weight) => {
            (whole(weight), "weight")
        }
        ActuatorSetting::Cores(cores) => (whole(cores), "cores"),
        ActuatorSetting::LlcWays(ways) => (whole(ways), "cache ways"),
        ActuatorSetting::MemoryHighBytes(bytes) | ActuatorSetting::MemoryLowBytes(bytes) => {
            (mib(bytes), "MiB")
        }
        ActuatorSetting::IoReadBytesPerS(rate) | ActuatorSetting::IoWriteBytesPerS(rate) => {
            (whole(rate) / 1e6, "MB/s")
        }
        ActuatorSetting::EnergyPreference(_) => return None,
    };
    Some((Some(value), unit))
}

/// The last second that the controller acted, or only observed.
fn last_s(recorded: &RecordedRun, observed: bool) -> f64 {
    let mut rows = recorded.rows.iter().rev();
    let last = rows.find(|row| row.observe == observed);
    last.map_or(0.0, |row| row.at_s)
}

/// The settings of a group that are numbers, by actuator.
fn courses<'a>(recorded: &'a RecordedRun, group: &str) -> BTreeMap<&'a str, Course> {
    let mut courses: BTreeMap<&str, Course> = BTreeMap::new();
    let subject = isolation::Subject::Group(group.to_owned());
    let mut was_observed = None;
    for (at_s, decision, outcome) in &recorded.decisions {
        let is_observed = match outcome {
            DecisionOutcome::Applied => false,
            DecisionOutcome::Observed => true,
            _ => continue,
        };
        if decision.subject != subject {
            continue;
        }
        // From observing to acting, or back, everything begins anew.
        if was_observed.replace(is_observed) == Some(!is_observed) {
            for course in courses.values_mut() {
                step(&mut course.set, *at_s, None);
                step(&mut course.planned, *at_s, None);
            }
        }
        let Some((value, unit)) = number(&decision.setting) else {
            continue;
        };
        let course = courses.entry(decision.setting.actuator()).or_default();
        course.unit = unit;
        course.had_no_quota |= value.is_none();
        let points = match is_observed {
            true => &mut course.planned,
            false => &mut course.set,
        };
        step(points, *at_s, value);
    }
    courses
}

/// A picture for each actuator of a group whose settings are numbers.
pub(super) fn pictures(recorded: &RecordedRun, group: &str, end_s: f64) -> String {
    let ends = [false, true].map(|observed| last_s(recorded, observed));
    let mut html = String::new();
    for (actuator, mut course) in courses(recorded, group) {
        for (points, last_s) in [(&mut course.set, ends[0]), (&mut course.planned, ends[1])] {
            if let Some((at_s, value)) = points.last().copied() {
                points.push((at_s.max(last_s), value));
            }
        }
        let lines = [
            (course.set, LineKind::Plain),
            (course.planned, LineKind::Planned),
        ]
        .map(|(points, kind)| Line { points, kind });
        let how = match [&lines[0], &lines[1]].map(Line::has_values) {
            [true, true] => "; dashed: decided while only observing, not set",
            [false, true] => ", decided while only observing, not set",
            _ => "",
        };
        let gap = match course.had_no_quota {
            true => "; a gap: no quota",
            false => "",
        };
        let title = format!("Actuator {actuator}{how}{gap}");
        html += &timeline(&title, course.unit, &lines, end_s, &[]);
    }
    html
}
