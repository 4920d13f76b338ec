//! The report of wrk (units and layout as in its `src/units.c` and `src/wrk.c`), and of wrk2 with
//! its longer percentiles.

use std::collections::BTreeMap;

use super::error::ParseError;
use super::report::{Report, after, leading_number, number, size_bytes, time_us};

pub(super) fn parse(tool: &'static str, text: &str) -> Result<BTreeMap<String, f64>, ParseError> {
    let mut report = Report::new(tool, text);
    report.only_one("Requests/sec:")?;
    for line in text.lines().map(str::trim) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            // "  79509 requests in 2.00s, 80.75MB read"
            [count, "requests", "in", time, ..] => {
                report.set("requests", number(count));
                let seconds = time_us(time.trim_end_matches(',')).map(|us| us / 1e6);
                report.set("duration_s", seconds);
            }
            // "    Latency   215.51us  220.44us   4.77ms   97.92%": mean, deviation, maximum
            ["Latency", mean, sd, max, _] => {
                report.set("latency_mean_us", time_us(mean));
                report.set("latency_sd_us", time_us(sd));
                report.set("latency_max_us", time_us(max));
            }
            // "     99%    1.17ms"
            [percent, time] => {
                if let Some(percent) = percent.strip_suffix('%').and_then(number) {
                    report.set_percentile(percent, time_us(time));
                }
            }
            _ => {}
        }
    }
    report.set("errors", Some(errors(text)));
    let per_s = after(text, "Transfer/sec:").and_then(size_bytes);
    report.set("bytes_per_s", per_s);
    let rate = after(text, "Requests/sec:").and_then(leading_number);
    report.set("requests_per_s", rate);
    if rate.is_some() && !report.has("requests") {
        return Err(report.missing("line `N requests in`"));
    }
    report.finish("line `Requests/sec:`")
}

/// Socket errors and responses that are neither 2xx nor 3xx; wrk prints each line only where there
/// were some.
fn errors(text: &str) -> f64 {
    let sockets: f64 = after(text, "Socket errors:")
        .into_iter()
        .flat_map(|kinds| kinds.split(','))
        .filter_map(|kind| number(kind.split_whitespace().last()?))
        .sum();
    let statuses = after(text, "Non-2xx or 3xx responses:").and_then(number);
    sockets + statuses.unwrap_or(0.0)
}
