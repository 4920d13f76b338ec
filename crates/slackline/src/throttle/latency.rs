//! The latency of a port's requests, as arguments and as text.

use std::fmt::Write as _;
use std::num::NonZeroU16;

use throttle_watch::{LatencyMoment, PortLatency, RequestLatency};

/// Rows of the timeline as text.
const ROWS_MAX: usize = 30;
/// Length of the longest bar in them.
const BAR: f64 = 20.0;

/// Whose latency is read.
#[derive(clap::Args)]
pub(super) struct OfPort {
    /// Measure the latency of the requests on this TCP port from the network packets, in the
    /// service's network namespace. Needs CAP_NET_RAW.
    #[arg(long, value_name = "PORT")]
    port: Option<NonZeroU16>,
    /// Percentile of the latency, above 0 and below 100. By default 99.
    #[arg(long, value_name = "P", requires = "port", value_parser = percentile)]
    percentile: Option<f64>,
}

fn percentile(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|percentile| *percentile > 0.0 && *percentile < 100.0)
        .ok_or_else(|| "must be a number above 0 and below 100".to_owned())
}

impl OfPort {
    /// Which percentile of which port, where one is given.
    pub(super) fn wanted(&self) -> Option<PortLatency> {
        Some(PortLatency {
            port: self.port?,
            percentile: self.percentile.unwrap_or(99.0),
        })
    }
}

/// `4.20 ms`.
fn ms(us: f64) -> String {
    format!("{:.2} ms", us / 1000.0)
}

/// The latency of the whole watch, in a sentence.
pub(super) fn sentence(latency: &RequestLatency) -> String {
    let of = format!("{}: p{}", latency.source, latency.percentile);
    let Some(whole) = &latency.whole else {
        let why = latency.no_data.as_deref().unwrap_or("nothing was seen");
        return format!("{of}: no data: {why}");
    };
    let high = whole.high_us.map_or_else(|| "not bounded".to_owned(), ms);
    let mut text = format!(
        "{of} {} of {} requests (95 % interval {} to {high})",
        ms(whole.value_us),
        whole.requests,
        ms(whole.low_us),
    );
    if latency.sampled_share < 1.0 {
        let _ = write!(
            text,
            "; {:.0} % of the requests were looked at",
            100.0 * latency.sampled_share
        );
    }
    for (count, what) in [
        (latency.ambiguous, "requests could not be told apart"),
        (latency.dropped, "packets were dropped"),
    ] {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text
}

/// Moments together, so that a long watch fits: cores on average, the worst latency, all requests.
fn grouped(moments: &[LatencyMoment]) -> Vec<LatencyMoment> {
    let many = moments.len().div_ceil(ROWS_MAX).max(1);
    let groups = moments.chunks(many).filter_map(|group| {
        let last = group.last()?;
        let latencies = group.iter().filter_map(|moment| moment.latency_us);
        Some(LatencyMoment {
            at_s: last.at_s,
            cores: group.iter().map(|moment| moment.cores).sum::<f64>() / group.len() as f64,
            latency_us: latencies.reduce(f64::max),
            requests: group.iter().map(|moment| moment.requests).sum(),
            no_data: last.no_data.clone(),
        })
    });
    groups.collect()
}

/// The timeline: cores in use and latency, a line for each second or for several.
pub(super) fn text(latency: &RequestLatency) -> String {
    let mut text = format!("\nLatency, {}\n", sentence(latency));
    let rows = grouped(&latency.moments);
    if rows.is_empty() {
        return text;
    }
    let most = |of: &dyn Fn(&LatencyMoment) -> f64| rows.iter().map(of).fold(1e-9, f64::max);
    let (most_cores, most_us) = (
        most(&|row| row.cores),
        most(&|row| row.latency_us.unwrap_or(0.0)),
    );
    let bar = |value: f64, most: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to BAR"
        )]
        let length = (BAR * value / most).round() as usize;
        "█".repeat(length)
    };
    let width = 20;
    let _ = writeln!(
        text,
        "{:>8}  {:<27} {:<33} requests",
        "second",
        "cores in use",
        format!("p{}", latency.percentile)
    );
    for row in &rows {
        let figure = row.latency_us.map_or_else(|| "no data".to_owned(), ms);
        let _ = writeln!(
            text,
            "{:>8.0}  {:>6.2} {:<width$} {figure:>12} {:<width$} {}",
            row.at_s,
            row.cores,
            bar(row.cores, most_cores),
            bar(row.latency_us.unwrap_or(0.0), most_us),
            row.requests
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(second: u32, latency_us: Option<f64>) -> LatencyMoment {
        LatencyMoment {
            at_s: f64::from(second),
            cores: 0.5,
            latency_us,
            requests: 100,
            no_data: latency_us.is_none().then(|| "thin".to_owned()),
        }
    }

    #[test]
    fn a_long_watch_fits_and_shows_the_worst() {
        let moments: Vec<LatencyMoment> = (1..=300)
            .map(|second| moment(second, Some(f64::from(second))))
            .collect();
        let rows = grouped(&moments);
        assert_eq!(rows.len(), ROWS_MAX);
        assert_eq!(
            (rows[0].at_s, rows[0].latency_us, rows[0].requests),
            (10.0, Some(10.0), 1000)
        );
        assert!(grouped(&[]).is_empty());
    }

    #[test]
    fn a_moment_without_a_figure_says_so() {
        let latency = RequestLatency {
            source: "the wire, TCP port 80".to_owned(),
            percentile: 99.0,
            whole: None,
            no_data: Some("no request within the last 2.0 s".to_owned()),
            sampled_share: 1.0,
            ambiguous: 0,
            dropped: 0,
            moments: vec![moment(1, Some(4200.0)), moment(2, None)],
        };
        insta::assert_snapshot!(text(&latency));
    }
}
