//! What was found: one row for each server under each load, with the figures of all rounds.

use std::fmt::Write as _;
use std::path::Path;

use block_load::picture::{Chart, PlotLine};
use paired_stats::{Pair, mean_interval, quantile, ratio_interval};
use serde::{Deserialize, Serialize};

use crate::Fallible;

/// One server under one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) part: String,
    pub(crate) load: String,
    pub(crate) server: String,
    pub(crate) metric: String,
    pub(crate) rounds: Vec<f64>,
}

/// All rows.
#[derive(Default)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    /// What earlier runs of other parts found.
    pub(crate) fn read(path: &Path) -> Fallible<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self(serde_json::from_str(&text)?)),
            Err(_) => Ok(Self::default()),
        }
    }

    pub(crate) fn write(&self, path: &Path) -> Fallible<()> {
        Ok(std::fs::write(
            path,
            serde_json::to_string_pretty(&self.0)? + "\n",
        )?)
    }

    /// Forgets what was found of a part.
    pub(crate) fn forget(&mut self, part: &str) {
        self.0.retain(|row| row.part != part);
    }

    /// Adds the figure of one round.
    pub(crate) fn add(&mut self, part: &str, load: &str, server: &str, metric: &str, value: f64) {
        let mut rows = self.0.iter_mut();
        let found = rows.find(|row| {
            row.part == part && row.load == load && row.server == server && row.metric == metric
        });
        match found {
            Some(row) => row.rounds.push(value),
            None => self.0.push(Row {
                part: part.to_owned(),
                load: load.to_owned(),
                server: server.to_owned(),
                metric: metric.to_owned(),
                rounds: vec![value],
            }),
        }
    }

    /// 95th percentile against IOPS, of the part `curve`: the medians of the rounds.
    pub(crate) fn chart(&self) -> Option<Chart> {
        let mut chart = Chart {
            title: "4 KiB random reads of a virtual disk: the tail against the rate, medians"
                .into(),
            x_label: "requests a second, one server core".into(),
            y_label: "95th percentile, µs".into(),
            series: Vec::new(),
        };
        let of = |metric: &'static str| {
            let rows = self.0.iter().filter(|row| row.part == "curve");
            rows.filter(move |row: &&Row| row.metric == metric)
        };
        let most = of("p95_us").map(|row| row.rounds.len()).max().unwrap_or(0);
        for row in of("p95_us") {
            // A line ends where most rounds fell behind the rate: the others would flatter it.
            if 2 * row.rounds.len() <= most {
                continue;
            }
            let rate =
                of("iops").find(|other| other.load == row.load && other.server == row.server)?;
            let point = (quantile(&rate.rounds, 0.5)?, quantile(&row.rounds, 0.5)?);
            let mut series = chart.series.iter_mut();
            match series.find(|series| series.name == row.server) {
                Some(series) => series.points.push(point),
                None => chart.series.push(PlotLine {
                    name: row.server.clone(),
                    points: vec![point],
                }),
            }
        }
        for series in &mut chart.series {
            series
                .points
                .sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        (!chart.series.is_empty()).then_some(chart)
    }

    /// Tables in Markdown: means with 95 % intervals, and the ratio to `serve-block`'s by rounds.
    pub(crate) fn tables(&self, parts: &[&str]) -> String {
        let mut text = String::new();
        for part in parts {
            let _ = writeln!(
                text,
                "\n### {part}\n\n| load | server | metric | mean [95 %] | ours / this [95 %] |\n|---|---|---|---|---|"
            );
            for row in self.0.iter().filter(|row| row.part == *part) {
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} |",
                    row.load,
                    row.server,
                    row.metric,
                    interval(&row.rounds),
                    self.ratio(row)
                );
            }
        }
        text
    }

    fn ratio(&self, row: &Row) -> String {
        let ours = self.0.iter().find(|other| {
            other.part == row.part
                && other.load == row.load
                && other.metric == row.metric
                && other.server.starts_with("serve-block")
        });
        let Some(ours) = ours.filter(|ours| !row.server.starts_with(&ours.server)) else {
            return String::new();
        };
        let pairs: Vec<Pair> = ours
            .rounds
            .iter()
            .zip(&row.rounds)
            .map(|(&experiment, &control)| Pair {
                control,
                experiment,
            })
            .collect();
        match ratio_interval(&pairs, 0.95) {
            Ok(ratio) => format!(
                "{:.2} [{:.2}, {:.2}]",
                ratio.estimate, ratio.low, ratio.high
            ),
            Err(_) => String::new(),
        }
    }
}

fn interval(values: &[f64]) -> String {
    let digits = |value: f64| match value.abs() {
        1000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    match mean_interval(values, 0.95) {
        Ok(mean) => format!(
            "{} [{}, {}]",
            digits(mean.estimate),
            digits(mean.low),
            digits(mean.high)
        ),
        Err(_) => values
            .first()
            .map_or_else(String::new, |value| digits(*value)),
    }
}
