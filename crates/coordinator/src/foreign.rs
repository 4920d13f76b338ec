//! Reports from elsewhere: anybody may have written them. What is absurd is refused with its key,
//! every text is bounded, and no text keeps a secret, because whoever may look reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bayes_opt::{Configuration, Space, readable};
use serde_json::Value;
use tuner::SpecError;
use tuner::evaluation::Block;
use tuner::metrics::{CGROUP, PROCESS, SideMetrics, WORKLOAD};
use tuner::report::{EvaluationRecord, Report};
use tuner::spec::{
    EVALUATIONS_MAX, Masks, NAME_CHARS_MAX, check_numbers, is_deceptive, is_line, line_of,
};

use crate::actions::{NOTE_CHARS_MAX, SOURCE_BYTES_MAX, within_limits};
use crate::error::Error;
use crate::store::State;

/// The longest text that Slackline itself writes about an experiment is shorter.
const TEXT_CHARS_MAX: usize = 10_000;
/// The last lines of a service, 200 of each stream.
const OUTPUT_CHARS_MAX: usize = 1 << 20;
/// The longest key: a constraint, with two metrics in it.
const KEY_CHARS_MAX: usize = 1000;
/// A year of blocks and runs, at seconds for each.
const COUNT_MAX: usize = 1_000_000;
/// The longest time in an experiment, in seconds: 30 years.
const TIME_MAX_S: f64 = 1e9;
/// No metric of a service is larger: its square can be computed with, and so can sums of that.
const NUMBER_MAX: f64 = 1e30;

/// Fields that are counts, times or spreads.
const NEVER_NEGATIVE: [&str; 3] = ["ratio", "sd", "took_s"];

/// Why a report is not taken in: the key, and what is wrong with it.
type Wrong = (String, String);

/// The report as it may be kept: whole, bounded, and without secrets.
///
/// # Errors
/// [`Error::Spec`] with the key of what is wrong, and with its line where `text` has it.
pub(crate) fn admitted(report: Report, text: Option<&str>) -> Result<Report, Error> {
    let refused = |(key, message): Wrong| {
        Error::Spec(SpecError {
            file: Path::new("the report").to_owned(),
            line: text.and_then(|text| line_of(text, &key)),
            key,
            message,
        })
    };
    check(&report).map_err(refused)?;
    let spec = report.spec.clone();
    let invalid = |error: serde_json::Error| Error::Invalid(error.to_string());
    let mut value = serde_json::to_value(&report).map_err(invalid)?;
    bounded("", None, &value).map_err(refused)?;
    Texts::default().mask(&mut value);
    let mut kept: Report = serde_json::from_value(value).map_err(invalid)?;
    // Those who may change things see the specification as it is; readers see it masked.
    kept.spec = spec;
    kept.dir = report.dir;
    Ok(kept)
}

fn wrong(key: impl Into<String>, message: impl Into<String>) -> Wrong {
    (key.into(), message.into())
}

/// What the kinds of the fields do not say.
fn check(report: &Report) -> Result<(), Wrong> {
    if !is_line(&report.name) {
        return Err(wrong("name", "a name must be a line of text"));
    }
    let since = jiff::Timestamp::from_second(946_684_800).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24);
    if report.started < since || report.started > until {
        let why = format!(
            "{} is before the year 2000, or in the future",
            report.started
        );
        return Err(wrong("started", why));
    }
    check_time("duration_s", report.duration_s)?;
    if !(0.0..=1e6).contains(&report.own_cpu_cores) {
        return Err(wrong("own_cpu_cores", "must be from 0 to 1000000"));
    }
    if report.interrupted.is_some_and(|it| !(1..=64).contains(&it)) {
        return Err(wrong("interrupted", "must be a signal, from 1 to 64"));
    }
    let states = State::ALL.map(State::name);
    if let Some(state) = report.state.as_deref().filter(|it| !states.contains(it)) {
        let why = format!("{state:?} is none of {}", states.join(", "));
        return Err(wrong("state", why));
    }
    if let Err(error) = within_limits(&report.spec.budget) {
        return Err(wrong("spec.budget", error.to_string()));
    }
    check_numbers(&report.spec)
        .map_err(|error| wrong(format!("spec.{}", error.key), error.message))?;
    check_machine(&report.machine)?;
    let parameters = Parameters::of(report)?;
    parameters.check("control", &report.control)?;
    if let Some(recommended) = &report.recommended {
        parameters.check("recommended.configuration", &recommended.configuration)?;
    }
    let mut numbers = BTreeSet::new();
    for (index, record) in report.evaluations.iter().enumerate() {
        let key = |field: &str| format!("evaluations[{index}].{field}");
        if !(1..=EVALUATIONS_MAX).contains(&record.number) {
            let why = format!("{} must be from 1 to {EVALUATIONS_MAX}", record.number);
            return Err(wrong(key("number"), why));
        }
        if !numbers.insert(record.number) {
            let why = format!("evaluation {} occurs twice", record.number);
            return Err(wrong(key("number"), why));
        }
        parameters.check(&key("configuration"), &record.configuration)?;
        check_record(&key, record)?;
    }
    for (index, arm) in report.verification.iter().enumerate() {
        let key = |field: &str| format!("verification[{index}].{field}");
        if !is_line(&arm.name) {
            return Err(wrong(key("name"), "a name must be a line of text"));
        }
        for (field, count) in [("runs", arm.runs), ("blocks", arm.blocks)] {
            if count > COUNT_MAX {
                let why = format!("{count} is above {COUNT_MAX}");
                return Err(wrong(key(field), why));
            }
        }
        parameters.check(&key("configuration"), &arm.configuration)?;
        for (run, blocks) in arm.runs_blocks.iter().enumerate() {
            check_blocks(&key(&format!("runs_blocks[{run}]")), blocks)?;
        }
    }
    Ok(())
}

/// What each parameter of the specification allows.
struct Parameters(BTreeMap<String, Space>);

impl Parameters {
    fn of(report: &Report) -> Result<Self, Wrong> {
        let mut spaces = BTreeMap::new();
        for (index, parameter) in report.spec.parameters.iter().enumerate() {
            // The control may be what its host had, outside the range.
            let mut parameter = parameter.clone();
            if let Some(value) = report.control.get(&parameter.name) {
                parameter.pin(value);
            }
            let space = parameter.space();
            let space = space.map_err(|(field, message)| {
                wrong(format!("spec.parameters[{index}].{field}"), message)
            })?;
            spaces.insert(parameter.name, space);
        }
        Ok(Self(spaces))
    }

    /// A configuration under a key of the report.
    fn check(&self, key: &str, configuration: &Configuration) -> Result<(), Wrong> {
        for (name, value) in &configuration.0 {
            let refused = |why: String| wrong(format!("{key}.{name}"), why);
            let space = self.0.get(name);
            let space =
                space.ok_or_else(|| refused("is no parameter of the specification".into()))?;
            let alone = Configuration([(name.clone(), value.clone())].into());
            let checked = space.check(&alone);
            checked.map_err(|error| refused(error.to_string()))?;
        }
        Ok(())
    }
}

/// The largest machines that Linux runs on have 8192 CPUs (arch/x86/Kconfig, `NR_CPUS`) and 4 PiB
/// of memory (Documentation/arch/x86/x86_64/5level-paging.rst): some times that.
fn check_machine(machine: &host::Machine) -> Result<(), Wrong> {
    const CPUS_MAX: usize = 1 << 20;
    const MEMORY_MAX_BYTES: u64 = 1 << 60;
    if machine.cpus > CPUS_MAX {
        let why = format!("{} is above {CPUS_MAX}", machine.cpus);
        return Err(wrong("machine.cpus", why));
    }
    if machine.memory_bytes > MEMORY_MAX_BYTES {
        let why = format!("{} is above {MEMORY_MAX_BYTES}", machine.memory_bytes);
        return Err(wrong("machine.memory_bytes", why));
    }
    Ok(())
}

fn check_record(key: &dyn Fn(&str) -> String, record: &EvaluationRecord) -> Result<(), Wrong> {
    check_time(key("duration_s"), record.duration_s)?;
    check_time(key("own_cpu_s"), record.own_cpu_s)?;
    let begun = record.begun.as_ref();
    if let Some(control) = begun.and_then(|it| it.control.as_ref()) {
        check_time(key("begun.control.started_s"), control.started_s)?;
        if control.evaluations > EVALUATIONS_MAX {
            let why = format!("{} is above {EVALUATIONS_MAX}", control.evaluations);
            return Err(wrong(key("begun.control.evaluations"), why));
        }
    }
    if let Some(warm_up) = begun.and_then(|it| it.warm_up.as_ref()) {
        check_time(key("begun.warm_up.took_s"), warm_up.took_s)?;
    }
    if let Some(measurement) = &record.measurement {
        let variances = measurement.excess_variance.values();
        let mut variances = variances.chain([&measurement.score_variance]);
        if variances.any(|variance| *variance < 0.0) {
            return Err(wrong(key("measurement"), "a variance is below 0"));
        }
    }
    check_blocks(&key("blocks"), &record.blocks)
}

fn check_blocks(key: &str, blocks: &[Block]) -> Result<(), Wrong> {
    for (index, block) in blocks.iter().enumerate() {
        check_time(format!("{key}[{index}].start_s"), block.start_s)?;
        check_counts(&format!("{key}[{index}].control"), &block.control)?;
        check_counts(&format!("{key}[{index}].experiment"), &block.experiment)?;
    }
    Ok(())
}

/// Counts, times and latencies that Slackline itself measures are not below 0.
fn check_counts(key: &str, metrics: &SideMetrics) -> Result<(), Wrong> {
    let mut own = WORKLOAD.iter().chain(&PROCESS).chain(&CGROUP);
    let negative = own.find_map(|name| {
        let value = metrics.get(*name).filter(|value| **value < 0.0)?;
        Some((name, value))
    });
    match negative {
        Some((name, value)) => Err(wrong(
            format!("{key}.{name}"),
            format!("{} is below 0", readable(*value)),
        )),
        None => Ok(()),
    }
}

fn check_time(key: impl Into<String>, time_s: f64) -> Result<(), Wrong> {
    if (0.0..=TIME_MAX_S).contains(&time_s) {
        return Ok(());
    }
    let why = format!(
        "{} must be from 0 to {TIME_MAX_S} seconds",
        readable(time_s)
    );
    Err(wrong(key, why))
}

/// Bounds every text, number and interval of a report, whatever they are called.
fn bounded(path: &str, name: Option<&str>, value: &Value) -> Result<(), Wrong> {
    match value {
        Value::String(text) => {
            let is_of_spec = path.starts_with("spec.");
            let most = match name {
                Some("name") => NAME_CHARS_MAX,
                Some("note") => NOTE_CHARS_MAX,
                Some("output") => OUTPUT_CHARS_MAX,
                _ if is_of_spec => SOURCE_BYTES_MAX,
                _ => TEXT_CHARS_MAX,
            };
            let length = text.chars().count();
            if length > most {
                let why = format!("the text has {length} characters; the limit is {most}");
                return Err(wrong(path, why));
            }
            check_characters(path, name, text)?;
        }
        Value::Number(number)
            if NEVER_NEGATIVE.iter().any(|it| name == Some(it))
                && number.as_f64().is_some_and(|it| it < 0.0) =>
        {
            return Err(wrong(path, format!("{number} is below 0")));
        }
        Value::Number(number) if number.as_f64().is_none_or(|it| it.abs() > NUMBER_MAX) => {
            return Err(wrong(path, format!("{number} is above {NUMBER_MAX:e}")));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                bounded(&format!("{path}[{index}]"), name, item)?;
            }
        }
        Value::Object(fields) => {
            let number = |name: &str| fields.get(name).and_then(Value::as_f64);
            let interval = [number("low"), number("estimate"), number("high")];
            if let ([Some(low), Some(estimate), Some(high)], Some(confidence)) =
                (interval, number("confidence"))
                && !(low <= estimate && estimate <= high && (0.0..=1.0).contains(&confidence))
            {
                return Err(wrong(
                    path,
                    "low, estimate and high are out of order, or the confidence is not from 0 to 1",
                ));
            }
            for (name, field) in fields {
                if name.chars().count() > KEY_CHARS_MAX {
                    let why = format!("a key has more than {KEY_CHARS_MAX} characters");
                    return Err(wrong(path, why));
                }
                let path = match path.is_empty() {
                    true => name.clone(),
                    false => format!("{path}.{name}"),
                };
                check_characters(&path, None, name)?;
                bounded(&path, Some(name), field)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// A text looks like what it is, and can be kept.
fn check_characters(path: &str, name: Option<&str>, text: &str) -> Result<(), Wrong> {
    if let Some(odd) = text.chars().find(|it| is_deceptive(*it)) {
        let what = match odd {
            '\0' => "NUL".to_owned(),
            odd => format!(
                "U+{:04X}, which turns the direction of writing",
                u32::from(odd)
            ),
        };
        return Err(wrong(path, format!("has the character {what}: remove it")));
    }
    let is_control = |it: char| it.is_control() && !matches!(it, '\n' | '\t');
    if matches!(name, Some("note" | "name")) && text.chars().any(is_control) {
        return Err(wrong(path, "has control characters"));
    }
    Ok(())
}

/// Takes the secrets out of texts and keys. The same keys come again and again.
#[derive(Default)]
struct Texts {
    keys: BTreeMap<String, String>,
}

impl Texts {
    fn text(text: &str) -> String {
        // Most are one word of Slackline's own, such as an outcome.
        let is_word = text
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'-');
        match is_word {
            true => text.to_owned(),
            false => Masks::ForReaders.line(text),
        }
    }

    fn mask(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = Self::text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mask(item)),
            Value::Object(fields) => {
                for field in fields.values_mut() {
                    self.mask(field);
                }
                let known = |key: &String| self.keys.get(key) == Some(key);
                if fields.keys().all(known) {
                    return;
                }
                let masked = std::mem::take(fields).into_iter().map(|(key, field)| {
                    let shown = self.keys.entry(key);
                    let shown = shown.or_insert_with_key(|key| Self::text(key));
                    (shown.clone(), field)
                });
                *fields = masked.collect();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A report with one evaluation of one block.
    fn report() -> Value {
        let side = json!({ "requests": 9.0, "own": -3.0 });
        let record = json!({
            "number": 1, "configuration": { "x": 4, "mode": "a" }, "outcome": "completed", "reason": null,
            "measurement": { "score": 0.1, "score_variance": 0.0, "excess": {}, "excess_variance": {} },
            "blocks": [{ "start_s": 0.0, "order": "parallel", "control": side, "experiment": side }],
            "duration_s": 1.0, "own_cpu_s": 0.0,
            "begun": { "control": { "started_s": 0.0, "evaluations": 0 }, "warm_up": { "took_s": 1.0 } },
        });
        let arm = json!({
            "name": "candidate 1", "configuration": { "x": 4 }, "ratios": {}, "without_interval": {}, "means": {},
            "violated": [], "faults": [], "runs": 0, "blocks": 0, "runs_blocks": [],
        });
        json!({
            "name": "web", "started": "2026-01-01T00:00:00Z", "duration_s": 1.0, "own_cpu_cores": 0.0,
            "version": "1", "machine": host::Machine::describe(&host::Roots::default()),
            "spec": {
                "parameters": [
                    { "name": "x", "type": "int", "low": 0, "high": 9 },
                    { "name": "mode", "type": "categorical", "values": ["a", "b"] },
                ],
                "target": { "start": ["true"] },
                "workload": { "command": ["true"], "json": { "requests": "n" } },
                "objective": { "metric": "requests" },
                "evaluation": {}, "verification": {},
            },
            // What its host had, outside the range.
            "skipped": [], "control": { "x": 12, "mode": "a" }, "evaluations": [record],
            "recommended": { "configuration": { "x": 4 }, "mean": 0.1, "sd": 0.1 },
            "verification": [arm], "finding": "unfinished", "sentence": "", "interrupted": null,
            "promoted": [], "settings": ["x = 4"],
        })
    }

    fn taken(report: &Value) -> Result<Report, Wrong> {
        let report: Report = serde_json::from_value(report.clone()).unwrap();
        match admitted(report, None) {
            Ok(report) => Ok(report),
            Err(Error::Spec(error)) => Err((error.key, error.message)),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_no_parameter_and_no_count_allows_is_refused_with_its_field() {
        let good = report();
        taken(&good).unwrap();
        for (pointer, value) in [
            ("/evaluations/0/configuration/x", json!(13)),
            ("/evaluations/0/configuration/x", json!("4")),
            ("/evaluations/0/configuration/mode", json!("c")),
            ("/evaluations/0/configuration/y", json!(1)),
            ("/control/mode", json!(true)),
            ("/recommended/configuration/x", json!(1.5)),
            ("/recommended/sd", json!(-1)),
            ("/verification/0/configuration/x", json!(-1)),
            ("/spec/parameters/0/low", json!(10)),
            ("/evaluations/0/blocks/0/control/requests", json!(-9.0)),
            ("/evaluations/0/blocks/0/experiment/requests", json!(-1)),
            ("/evaluations/0/measurement/ratio", json!(-0.5)),
            ("/evaluations/0/begun/control/started_s", json!(1e18)),
            (
                "/evaluations/0/begun/control/evaluations",
                json!(1_000_000_000),
            ),
            ("/evaluations/0/begun/warm_up/took_s", json!(-1)),
            ("/machine/cpus", json!(1_000_000_000_000_000_000_u64)),
            ("/machine/memory_bytes", json!(u64::MAX)),
            ("/spec/evaluation/block_s", json!(1e18)),
            ("/spec/verification/confidence", json!(7)),
        ] {
            let mut bad = good.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            bad.pointer_mut(parent).unwrap()[field] = value;
            let (key, why) = taken(&bad).expect_err(pointer);
            assert!(key.ends_with(field), "{pointer}: {key}: {why}");
        }
    }

    #[test]
    fn a_text_that_looks_like_another_one_is_refused_with_its_field() {
        let good = report();
        for odd in ["a\0b", "a\u{202e}b", "\u{2067}a"] {
            for (pointer, key) in [
                ("/name", "name"),
                ("/note", "note"),
                ("/sentence", "sentence"),
                ("/settings/0", "settings[0]"),
                ("/evaluations/0/output", "evaluations[0].output"),
                ("/verification/0/name", "verification[0].name"),
                ("/spec/target/start/0", "spec.target.start[0]"),
            ] {
                let mut bad = good.clone();
                if bad.pointer(pointer).is_none() {
                    let (parent, field) = pointer.rsplit_once('/').unwrap();
                    bad.pointer_mut(parent).unwrap()[field] = json!("");
                }
                *bad.pointer_mut(pointer).unwrap() = json!(odd);
                assert_eq!(taken(&bad).expect_err(pointer).0, key);
            }
        }
        let mut right_to_left = good;
        right_to_left["note"] = json!("שלום");
        taken(&right_to_left).unwrap();
    }
}
