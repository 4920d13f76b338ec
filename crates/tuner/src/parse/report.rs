//! Pieces shared by the readers of reports: metrics being collected, lines, times and sizes with
//! units.

use std::collections::BTreeMap;

use super::consistency::contradiction;
use super::error::ParseError;

/// How many lines of unexpected output an error shows, and how much of each: enough for the message
/// behind a banner.
const SHOWN_LINES: usize = 8;
/// How many of these are the last ones: tools say at the end why they gave up.
const SHOWN_LAST_LINES: usize = 4;
const SHOWN_CHARS: usize = 160;
/// How much of a tool's own message an error repeats.
const MESSAGE_CHARS: usize = 600;

/// Metrics of one report, being collected.
pub(super) struct Report<'a> {
    tool: &'static str,
    text: &'a str,
    metrics: BTreeMap<String, f64>,
    /// The step in which the tool prints times.
    resolution_us: f64,
}

impl<'a> Report<'a> {
    pub(super) fn new(tool: &'static str, text: &'a str) -> Self {
        Self {
            tool,
            text,
            metrics: BTreeMap::new(),
            resolution_us: 10.0,
        }
    }

    /// Says in which steps the tool prints times, if they are coarser than 10 µs.
    pub(super) fn set_resolution_us(&mut self, resolution_us: f64) {
        self.resolution_us = resolution_us;
    }

    /// Refuses an output that holds more than one report: `marker` is in each of them exactly once.
    pub(super) fn only_one(&self, marker: &str) -> Result<(), ParseError> {
        let lines = self.text.lines().map(str::trim_start);
        match lines.filter(|line| line.starts_with(marker)).count() {
            0 | 1 => Ok(()),
            reports => Err(self.several(format!("{reports} lines `{marker}`"))),
        }
    }

    /// The error that says that the output holds `found`, so that it is unclear what counts.
    pub(super) fn several(&self, found: String) -> ParseError {
        ParseError::Several {
            tool: self.tool,
            found: beginning(&found, MESSAGE_CHARS),
        }
    }

    /// The error that says which two numbers cannot both be true.
    pub(super) fn contradicts(&self, message: String) -> ParseError {
        ParseError::Contradiction {
            tool: self.tool,
            message,
        }
    }

    /// The error that repeats what the tool says of its failure.
    pub(super) fn gave_up(&self, message: &str) -> ParseError {
        ParseError::GaveUp {
            tool: self.tool,
            message: beginning(without_controls(message).trim(), MESSAGE_CHARS),
        }
    }

    /// Keeps a value that the report gives; one that is missing, negative, infinite or not a number
    /// is left out.
    pub(super) fn set(&mut self, metric: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|v| v.is_finite() && *v >= 0.0) {
            // In Rust the sum of no numbers is −0.
            self.metrics.insert(metric.to_owned(), value.abs());
        }
    }

    /// The same for a latency percentile, if it is one that has a name.
    pub(super) fn set_percentile(&mut self, percent: f64, latency_us: Option<f64>) {
        let metric = match percent {
            50.0 => "latency_p50_us",
            75.0 => "latency_p75_us",
            90.0 => "latency_p90_us",
            95.0 => "latency_p95_us",
            99.0 => "latency_p99_us",
            99.9 => "latency_p999_us",
            100.0 => "latency_max_us",
            _ => return,
        };
        if !self.has(metric) {
            self.set(metric, latency_us);
        }
    }

    pub(super) fn has(&self, metric: &str) -> bool {
        self.metrics.contains_key(metric)
    }

    /// A value that was set.
    pub(super) fn get(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).copied()
    }

    /// The error that says what was looked for in vain.
    pub(super) fn missing(&self, looked_for: &'static str) -> ParseError {
        ParseError::Missing {
            tool: self.tool,
            looked_for,
            got: first_lines(self.text),
        }
    }

    pub(super) fn no_requests(&self) -> ParseError {
        ParseError::NoRequests {
            tool: self.tool,
            got: first_lines(self.text),
        }
    }

    /// The metrics, if the report has a rate (printed by the tool as `rate_line`), the rate is
    /// above zero, and its numbers do not contradict each other.
    pub(super) fn finish(
        self,
        rate_line: &'static str,
    ) -> Result<BTreeMap<String, f64>, ParseError> {
        // What only moves bytes has no requests.
        let rate = self.metrics.get("requests_per_s");
        match rate.or_else(|| self.metrics.get("bytes_per_s")) {
            None => return Err(self.missing(rate_line)),
            Some(rate) if *rate <= 0.0 || self.metrics.get("requests") == Some(&0.0) => {
                return Err(self.no_requests());
            }
            Some(_) => {}
        }
        match contradiction(&self.metrics, self.resolution_us) {
            Some(message) => Err(self.contradicts(message)),
            None => Ok(self.metrics),
        }
    }
}

/// The beginning of a line, or of a name, for an error message.
pub(super) fn shown(text: &str) -> String {
    beginning(text, SHOWN_CHARS)
}

/// A text without the sequences that colour it or move the cursor, and without other control
/// characters but line breaks and tabs. A sequence ends with a character from `@` to `~`
/// (ECMA-48, 5.4).
pub(super) fn without_controls(text: &str) -> String {
    let mut parts = text.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| ('@'..='~').contains(&c));
        plain.push_str(end.map_or("", |end| &part[end + 1..]));
    }
    plain.retain(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
    plain
}

/// At most so many characters of a text, and a mark where it was cut.
fn beginning(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The first and the last lines of an output for an error message.
pub(super) fn first_lines(text: &str) -> String {
    let text = without_controls(text);
    let lines: Vec<&str> = text
        .split(['\n', '\r'])
        .map(str::trim_end)
        .filter(|line| !line.trim().is_empty())
        .collect();
    let cut = |line: &&str| format!("  {}", shown(line));
    if lines.is_empty() {
        return "  (nothing was printed)".to_owned();
    }
    if lines.len() <= SHOWN_LINES {
        return lines.iter().map(cut).collect::<Vec<_>>().join("\n");
    }
    let (first, last) = (
        &lines[..SHOWN_LINES - SHOWN_LAST_LINES],
        &lines[lines.len() - SHOWN_LAST_LINES..],
    );
    let left_out = lines.len() - SHOWN_LINES;
    let shown: Vec<String> = first
        .iter()
        .map(cut)
        .chain([format!("  … ({left_out} lines left out)")])
        .chain(last.iter().map(cut))
        .collect();
    shown.join("\n")
}

/// What follows `label` on the first line that begins with it, spaces aside.
pub(super) fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.trim_start().strip_prefix(label))
        .map(str::trim)
}

/// A finite number; spaces around it are fine.
pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|v: &f64| v.is_finite())
}

/// The number that a text begins with, up to a space.
pub(super) fn leading_number(text: &str) -> Option<f64> {
    number(text.split_whitespace().next()?)
}

/// Splits `1.5ms` or `1.5 ms` into its number and unit.
fn quantity(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (value, unit) = text.split_at(unit_at);
    Some((number(value)?, unit.trim()))
}

/// A time with a unit, in microseconds.
pub(super) fn time_us(text: &str) -> Option<f64> {
    let (value, unit) = quantity(text)?;
    let us = match unit {
        "ns" => 1e-3,
        "us" | "µs" | "μs" | "usec" => 1.0,
        "ms" | "msec" => 1e3,
        "s" | "sec" | "secs" | "second" | "seconds" => 1e6,
        // oha's `timescale.rs`: 1.5 of "10 sec" are 15 s.
        "10 sec" => 10e6,
        "m" | "min" | "minute" => 60e6,
        "10 min" => 600e6,
        "h" | "hr" | "hour" => 3600e6,
        _ => return None,
    };
    Some(value * us)
}

/// A size with a unit, in bytes. Both KB and KiB are 1024: the tools here count so.
pub(super) fn size_bytes(text: &str) -> Option<f64> {
    let (value, unit) = quantity(text)?;
    let power = match unit {
        "B" | "bytes" => 0,
        "KB" | "KiB" => 1,
        "MB" | "MiB" => 2,
        "GB" | "GiB" => 3,
        "TB" | "TiB" => 4,
        _ => return None,
    };
    Some(value * 1024f64.powi(power))
}

/// Status codes and errors as hey and oha list them: `  [200] 1000 responses`, and `  [3] message`
/// in a list of errors.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Distribution {
    /// Responses of any status.
    pub(super) responses: f64,
    /// Responses whose status is not 2xx.
    pub(super) not_2xx: f64,
    /// Requests that got no response.
    pub(super) errors: f64,
}

impl Distribution {
    /// Adds responses of one status.
    pub(super) fn add_status(&mut self, status: f64, count: f64) {
        self.responses += count;
        if !(200.0..300.0).contains(&status) {
            self.not_2xx += count;
        }
    }

    /// Adds failures of one kind. oha reports the requests that were under way when its time was
    /// over as errors: at most one per connection and no fault of the target, so they are not
    /// counted.
    pub(super) fn add_errors(&mut self, message: &str, count: f64) {
        if message != "aborted due to deadline" {
            self.errors += count;
        }
    }

    pub(super) fn of_text(text: &str) -> Self {
        let mut distribution = Self::default();
        let mut in_errors = false;
        for line in text.lines() {
            let line = line.trim();
            if line.starts_with("Status code distribution:") {
                in_errors = false;
            } else if line.starts_with("Error distribution:") {
                in_errors = true;
            } else if let Some((bracketed, rest)) =
                line.strip_prefix('[').and_then(|l| l.split_once(']'))
            {
                let (bracketed, rest) = (number(bracketed), rest.trim());
                if in_errors {
                    distribution.add_errors(rest, bracketed.unwrap_or(0.0));
                } else if let (Some(status), Some(count)) =
                    (bracketed, rest.strip_suffix("responses").and_then(number))
                {
                    distribution.add_status(status, count);
                }
            }
        }
        distribution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes() {
        assert_eq!(time_us("186.00us"), Some(186.0));
        assert_eq!(time_us("1.17ms"), Some(1170.0));
        assert_eq!(time_us("0.5 secs"), Some(500_000.0));
        assert_eq!(time_us("2.00m"), Some(120e6));
        assert_eq!(time_us("1.5 10 sec"), Some(15e6));
        assert_eq!(time_us("0.5 hr"), Some(1800e6));
        assert_eq!(time_us("5"), None);
        assert_eq!(time_us("-1ms"), None);
        assert_eq!(size_bytes("0.00B"), Some(0.0));
        assert_eq!(size_bytes("1.50 KiB"), Some(1536.0));
        assert_eq!(size_bytes("nan"), None);
    }

    #[test]
    fn messages_have_no_control_characters() {
        let moved = "\r\u{1b}[10C\rError in Virtual User 2: \u{1b}[1mno\u{1b}[0m \u{7}server";
        let error = Report::new("HammerDB", "").gave_up(moved);
        assert_eq!(
            error.to_string(),
            "HammerDB gave up: Error in Virtual User 2: no server"
        );
        assert_eq!(first_lines("\u{1b}[31mred\u{1b}[39m\r\n"), "  red");
    }

    #[test]
    fn what_a_report_sums_up_to_nothing_is_zero() {
        let mut report = Report::new("YCSB", "");
        report.set("requests_per_s", Some(1.0));
        report.set("errors", Some(std::iter::empty::<f64>().sum()));
        let metrics = report.finish("a rate").unwrap();
        assert!(metrics["errors"].is_sign_positive());
    }

    #[test]
    fn long_output_is_cut() {
        let shown = first_lines(&format!("{}\n{}", "x".repeat(500), "line\n".repeat(20)));
        assert_eq!(shown.lines().count(), SHOWN_LINES + 1);
        assert!(shown.contains("(13 lines left out)"), "{shown}");
        assert!(shown.lines().all(|l| l.chars().count() <= SHOWN_CHARS + 3));
        assert_eq!(first_lines(" \n\n"), "  (nothing was printed)");
    }
}
