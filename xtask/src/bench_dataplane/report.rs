//! What the rounds say: intervals of ratios, the table, and the picture.

use std::fmt::Write as _;

use super::row::{Row, Sample};

/// Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom.
const T_95: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// Geometric mean of paired ratios, and its 95 % interval. `None` with less than two pairs.
pub(super) fn ratio(
    ours: &[Option<Sample>],
    theirs: &[Option<Sample>],
    pick: fn(&Sample) -> f64,
) -> Option<(f64, f64, f64)> {
    let pairs = ours.iter().zip(theirs);
    let pairs = pairs.filter_map(|(a, b)| a.as_ref().zip(b.as_ref()));
    let logs: Vec<f64> = pairs.map(|(a, b)| (pick(a) / pick(b)).ln()).collect();
    let n = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / n;
    let spread = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let degrees = logs.len().checked_sub(2)?;
    let quantile = T_95.get(degrees).copied().unwrap_or(1.96);
    let half = quantile * (spread / n).sqrt();
    Some((mean.exp(), (mean - half).exp(), (mean + half).exp()))
}

/// `None` without a sample.
pub(super) fn median(samples: &[Option<Sample>], pick: fn(&Sample) -> f64) -> Option<f64> {
    let mut values: Vec<f64> = samples.iter().flatten().map(pick).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The server with which the others of its part are compared.
fn control(part: &str) -> &'static str {
    match part {
        "echo" | "tail" | "steered" | "ways-uring" => "epoll-spin",
        "cache" | "objective" | "curve" | "ways-xdp" => "memcached",
        "isolated" => "one process",
        "uring" => "as it is",
        "copies" => "copied",
        "million" | "ways-million" => super::million::CONTROL,
        _ => "bound 64",
    }
}

pub(super) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "\n| load | server | rounds | requests/s | mean µs | p99 µs | rate against control | p99 against control |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let control = rows.iter().find(|other| {
            other.part == row.part && other.load == row.load && other.server == control(&row.part)
        });
        let [rate, tail] = [
            (|sample: &Sample| sample.requests_per_s) as fn(&Sample) -> f64,
            |sample| sample.p99_us,
        ]
        .map(|pick| match control {
            Some(control) if control.server != row.server => {
                ratio(&row.rounds, &control.rounds, pick).map_or_else(
                    || "–".to_owned(),
                    |(mean, low, high)| format!("{mean:.2} [{low:.2}, {high:.2}]"),
                )
            }
            _ => "control".to_owned(),
        });
        let cell = |digits: usize, pick: fn(&Sample) -> f64| {
            let value = median(&row.rounds, pick);
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} of {} | {} | {} | {} | {rate} | {tail} |",
            row.load,
            row.server,
            row.rounds.iter().flatten().count(),
            row.rounds.len(),
            cell(0, |sample| sample.requests_per_s),
            cell(1, |sample| sample.mean_us),
            cell(1, |sample| sample.p99_us),
        );
    }
    for row in rows {
        let searched = row
            .rounds
            .iter()
            .flatten()
            .filter_map(|sample| sample.searched);
        let (loads, discarded) = searched.fold((0, 0), |(loads, discarded), search| {
            (loads + search.0, discarded + search.1)
        });
        if loads > 0 {
            let (load, server) = (&row.load, &row.server);
            let _ = writeln!(
                text,
                "\n{load}, {server}: {loads} loads counted, {discarded} were disturbed and discarded"
            );
        }
        if let Some(held) = &row.held {
            let _ = writeln!(text, "\n{}: {held}", row.server);
        }
    }
    text
}

/// The 99th percentile against the rate, for the parts with a rate of their own.
pub(super) fn picture(rows: &[Row]) -> String {
    let points: Vec<(&str, f64, f64)> = rows
        .iter()
        .filter(|row| row.part == "tail")
        .filter_map(|row| {
            let rate = median(&row.rounds, |sample| sample.requests_per_s)?;
            let tail = median(&row.rounds, |sample| sample.p99_us)?;
            Some((row.server.as_str(), rate, tail))
        })
        .collect();
    let most = points.iter().map(|point| point.1).fold(1.0, f64::max);
    let highest = points
        .iter()
        .map(|point| point.2)
        .fold(100.0, f64::max)
        .log10()
        .ceil();
    let x = |rate: f64| 60.0 + 560.0 * rate / most;
    let y = |tail: f64| 330.0 - 300.0 * tail.max(1.0).log10() / highest;
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 680 390\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>99th percentile of an echo against the rate</title><rect width=\"680\" height=\"390\" fill=\"white\"/>\n",
    );
    for decade in 0..=6 {
        let tail = 10_f64.powi(decade);
        if f64::from(decade) <= highest {
            let _ = writeln!(
                svg,
                "<line x1=\"60\" x2=\"620\" y1=\"{0:.0}\" y2=\"{0:.0}\" stroke=\"#ddd\"/><text x=\"4\" y=\"{0:.0}\">{tail} µs</text>",
                y(tail)
            );
        }
    }
    let colours = [
        ("epoll", "#888"),
        ("epoll-spin", "#4878a8"),
        ("io_uring", "#5a9a5a"),
        ("dataplane", "#c2502e"),
        ("dataplane xdp", "#7a3ea8"),
    ];
    for (index, (name, colour)) in colours.iter().enumerate() {
        let line: Vec<String> = points
            .iter()
            .filter(|point| point.0 == *name)
            .map(|point| format!("{:.1},{:.1}", x(point.1), y(point.2)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"20\" fill=\"{colour}\">{name}</text>",
            70 + index * 110
        );
    }
    for step in 0..=4 {
        let rate = most * f64::from(step) / 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"350\">{:.0}k</text>",
            x(rate) - 12.0,
            rate / 1000.0
        );
    }
    svg + "<text x=\"250\" y=\"376\">requests/s, server on one core</text>\n</svg>\n"
}
