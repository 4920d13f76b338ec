//! What `watch`, `advise` and `loadtest` found, as HTML.

use std::fmt::Write as _;

use throttle::advice::Prediction;
use throttle::{BIN_CORES, Cores};
use throttle_watch::{LatencyMoment, RequestLatency, WatchReport};

use crate::page::{Column, columns, escaped};
use crate::timeline::{Line, LineKind, timeline};

pub(super) use crate::page::{paragraphs, table, write};

/// A watch: the verdict, the histogram, the pools.
pub(super) fn watch(report: &WatchReport) -> String {
    let notes = report.runtimes.iter().map(|note| format!("Note: {note}."));
    let said: Vec<String> = std::iter::once(report.verdict.sentence.clone())
        .chain(notes)
        .collect();
    let mut html = paragraphs(&said);
    html.push_str("<h2>Cores in use, windows of 10 ms</h2>\n");
    html.push_str(&histogram(report, 0));
    if let Some(latency) = &report.latency {
        html.push_str(&time_line(latency));
    }
    html.push_str("<h2>Threads</h2>\n");
    html + &table(&super::text::NAME_HEAD, super::text::name_rows(report))
}

/// Latency and cores in use, one above the other over the same seconds.
fn time_line(latency: &RequestLatency) -> String {
    let moments = &latency.moments;
    let begin_s = moments.first().map_or(0.0, |first| first.at_s);
    let end_s = moments.last().map_or(0.0, |last| last.at_s) - begin_s;
    let line = |value: &dyn Fn(&LatencyMoment) -> Option<f64>, kind| Line {
        points: moments
            .iter()
            .map(|moment| (moment.at_s - begin_s, value(moment)))
            .collect(),
        kind,
    };
    let tail = line(&|moment| Some(moment.latency_us? / 1000.0), LineKind::Over);
    let cores = line(&|moment| Some(moment.cores), LineKind::Plain);
    let of = format!("p{} of each second's requests", latency.percentile);
    format!(
        "<h2>Latency beside the cores in use</h2>\n{}{}\n{}\n",
        paragraphs(&[super::latency::sentence(latency)]),
        timeline(&of, "ms", &[tail], end_s, &[]),
        timeline(
            "Cores in use, each second's mean",
            "cores",
            &[cores],
            end_s,
            &[]
        ),
    )
}

/// Watches side by side, each with a heading.
pub(super) fn side_by_side(sides: &[(&str, &WatchReport)]) -> String {
    let bins = widest(sides.iter().map(|(_, report)| &report.observed.cores));
    beside(
        sides
            .iter()
            .map(|(name, report)| (*name, histogram(report, bins))),
    )
}

/// The same of what the model says of two settings.
pub(super) fn predictions(sides: &[(&str, &Prediction)]) -> String {
    let bins = widest(sides.iter().map(|(_, prediction)| &prediction.cores));
    beside(sides.iter().map(|(name, prediction)| {
        let quota = prediction.setting.limit.in_cores();
        let throttled = 100.0 * prediction.throttled_share;
        let html = format!(
            "{}<p>{:.1} cores in use on average<br>Throttled: {throttled:.0} % of the periods<br>99 % of all jobs end within {}</p>\n",
            cores(&prediction.cores, bins, quota),
            prediction.cores.mean(),
            super::text::time(prediction.p99_us)
        );
        (*name, html)
    }))
}

/// Bins of the widest histogram, so that all of a row have one scale.
fn widest<'a>(all: impl Iterator<Item = &'a Cores>) -> usize {
    all.map(|cores| cores.bins.len()).max().unwrap_or(0)
}

fn beside<'a>(sides: impl Iterator<Item = (&'a str, String)>) -> String {
    let mut html = "<div class=\"beside\">\n".to_owned();
    for (name, side) in sides {
        let _ = writeln!(html, "<div><h3>{}</h3>\n{side}</div>", escaped(name));
    }
    html + "</div>\n"
}

fn histogram(report: &WatchReport, bins: usize) -> String {
    let quota = report.limit.and_then(|limit| limit.in_cores());
    let throttled = super::text::throttled(report);
    let runnable = super::text::runnable(report);
    format!(
        "{}<p>Throttled: {}<br>Threads that want to run: {}</p>\n",
        cores(&report.observed.cores, bins, quota),
        escaped(&throttled),
        escaped(&runnable)
    )
}

/// The histogram of cores in use in at least so many bins, with the quota marked.
fn cores(cores: &Cores, bins: usize, quota: Option<f64>) -> String {
    let mut cores = cores.clone();
    cores.bins.resize(cores.bins.len().max(bins), 0);
    let rows = super::text::rows(&cores, quota);
    let width = rows.first().map_or(BIN_CORES, |row| row.width);
    let limit_at = quota
        .map(|quota| (quota + BIN_CORES / 2.0) / width)
        .filter(|limit_at| *limit_at <= rows.len() as f64);
    let bars: Vec<Column> = rows
        .iter()
        .map(|row| Column {
            label: format!("{:.1}", row.low),
            // A bin reaches half a bin to either side of its cores.
            label_at: BIN_CORES / 2.0 / width,
            value: row.share,
            over: row.over,
        })
        .collect();
    let windows = "Windows of 10 ms by cores in use";
    let title = match quota {
        Some(quota) if limit_at.is_some() => {
            format!("{windows}; the dashed line is the quota, {quota:.2}")
        }
        Some(quota) => format!("{windows}; all are below the quota, {quota:.2}"),
        None => windows.to_owned(),
    };
    columns(&bars, limit_at, &title)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The places of a mark in a picture.
    fn places(svg: &str, before: &str, after: &str) -> Vec<f64> {
        let parts = svg.split(before).skip(1);
        let texts = parts.filter_map(|part| part.split_once(after));
        texts.map(|(place, _)| place.parse().unwrap()).collect()
    }

    #[test]
    fn the_dashed_line_is_above_the_quota_s_own_number() {
        let drawn = |bins: usize, quota: f64| {
            let mut all = Cores::default();
            all.bins.resize(bins, 1);
            cores(&all, 0, Some(quota))
        };
        // Rows of a tenth, of two tenths, and of a whole core.
        for (bins, quota, number) in [
            (13, 1.0, "1.0"),
            (22, 1.0, "1.0"),
            (22, 1.2, "1.2"),
            (200, 10.0, "10.0"),
            (200, 16.0, "16.0"),
        ] {
            let svg = drawn(bins, quota);
            let line = places(&svg, "class=\"limit\" x1=\"", "\"");
            let label = svg.split("<text x=\"").find_map(|text| {
                let (x, rest) = text.split_once('"')?;
                rest.contains(&format!(">{number}</text>"))
                    .then(|| x.parse::<f64>().unwrap())
            });
            let label = label.unwrap_or_else(|| panic!("no label {number}: {svg}"));
            assert!(
                (line[0] - label).abs() < 0.11,
                "{number}: {line:?} {label} {svg}"
            );
        }
    }

    #[test]
    fn what_is_above_the_quota_is_coloured_to_the_bin() {
        let over = |bins: usize, quota: f64| {
            let mut all = Cores::default();
            all.bins.resize(bins, 1);
            let svg = cores(&all, 0, Some(quota));
            let share = |class: &str| {
                let parts = svg.split(class).skip(1);
                parts
                    .filter_map(|part| part.split_once("height=\"")?.1.split_once('"'))
                    .map(|(tall, _)| tall.parse::<f64>().unwrap())
                    .sum::<f64>()
            };
            let (above, below) = (share("class=\"over\""), share("class=\"bar\""));
            (above / (above + below), all.share_above(quota))
        };
        for (bins, quota) in [(200, 10.0), (200, 10.7), (22, 1.0), (5, 0.2)] {
            let (drawn, counted) = over(bins, quota);
            assert!(
                (drawn - counted).abs() < 0.003,
                "{bins} {quota}: {drawn} {counted}"
            );
        }
        let mut all = Cores::default();
        all.bins.resize(5, 1);
        let svg = cores(&all, 0, Some(20.0));
        assert!(!svg.contains("class=\"limit\"") && svg.contains("below the quota, 20.00"));
    }
}
