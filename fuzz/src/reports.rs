//! Any text as what a load tool prints: each known format, a path in JSON, a regular expression.

use std::collections::BTreeMap;

use tuner::parse::{Format, ParseError, parse, parse_json, parse_regex};

use crate::seeds::files;
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "reports",
    run,
    seeds,
    memory_max_bytes: 32 << 20,
};

/// An error shows the first and last lines of a report, each of them cut, and one name or line that
/// was found: so much, however long the report is.
const MESSAGE_MAX_BYTES: usize = 8 << 10;

/// Percentiles, in their order.
const RISING: [&str; 7] = [
    "latency_p50_us",
    "latency_p75_us",
    "latency_p90_us",
    "latency_p95_us",
    "latency_p99_us",
    "latency_p999_us",
    "latency_max_us",
];

/// Each report of the tests behind the number of its format, which its file's name begins with.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (file, text) in files("crates/tuner/src/parse/fixtures") {
        let tool = file.split(['-', '.']).next().unwrap_or_default();
        let formats = (0..).zip(Format::ALL);
        let of_tool = formats.filter(|(_, format)| format.name().starts_with(tool));
        let before = seeds.len();
        seeds.extend(of_tool.map(|(number, _): (u8, _)| [&[number][..], &text].concat()));
        assert!(seeds.len() > before, "{file} is of no known format");
    }
    let free = [
        (
            0,
            "a.b[1][\"c.d\"]\n{\"a\": {\"b\": [1, {\"c.d\": \"2.5\"}]}, \"99.9\": 7}",
        ),
        (1, "^rate: ([0-9.]+)/s$\ndone\nrate: 120.5/s\n"),
    ];
    let beyond = u8::try_from(Format::ALL.len()).expect("few formats");
    let free = free.map(|(kind, text)| [&[beyond + kind][..], text.as_bytes()].concat());
    seeds.extend(free);
    seeds
}

fn run(data: &[u8]) -> bool {
    let Some((which, bytes)) = data.split_first() else {
        return false;
    };
    // The product reads what a tool prints in the same way.
    let text = String::from_utf8_lossy(bytes);
    let which = usize::from(*which);
    let result = match Format::ALL.get(which) {
        Some(format) => {
            let result = parse(format, &text);
            if let Ok(metrics) = &result {
                check_metrics(metrics);
                // A report that was read once is read in the same way again.
                assert_eq!(parse(format, &text).as_ref(), Ok(metrics));
            }
            result
        }
        None => {
            let (expression, text) = text.split_once('\n').unwrap_or((&text, ""));
            let named = BTreeMap::from([("m".to_owned(), expression.to_owned())]);
            match which % 2 == Format::ALL.len() % 2 {
                true => parse_json(&named, text),
                false => parse_regex(&named, text),
            }
        }
    };
    match result {
        Ok(metrics) => {
            assert!(!metrics.is_empty());
            assert!(
                metrics.values().all(|value| value.is_finite()),
                "{metrics:?}"
            );
            true
        }
        Err(error) => {
            check_message(&error, &text);
            false
        }
    }
}

/// What a report of a known tool promises: it is not of zeros, and its numbers fit each other.
fn check_metrics(metrics: &BTreeMap<String, f64>) {
    for (name, value) in metrics {
        assert!(*value >= 0.0 && value.is_finite(), "{name} is {value}");
    }
    let get = |name: &str| metrics.get(name).copied();
    let rate = get("requests_per_s").or_else(|| get("bytes_per_s"));
    assert!(
        rate.is_some_and(|rate| rate > 0.0),
        "no rate in {metrics:?}"
    );
    assert_ne!(get("requests"), Some(0.0));
    let known: Vec<f64> = RISING.iter().filter_map(|name| get(name)).collect();
    // The check's tolerance is 3 %, and a step in which the tool prints times: 1 ms at most.
    let fits = |low: f64, high: f64| low <= high * 1.03 + 1000.0;
    assert!(
        known.windows(2).all(|pair| fits(pair[0], pair[1])),
        "{metrics:?}"
    );
}

/// An error names what it is about, and is not as long as the report.
fn check_message(error: &ParseError, text: &str) {
    let message = error.to_string();
    // Patterns and paths are the user's own, and are repeated whole.
    let own = text.split('\n').next().map_or(0, str::len);
    assert!(
        message.len() <= MESSAGE_MAX_BYTES + 4 * own,
        "an error of {} bytes",
        message.len()
    );
}
