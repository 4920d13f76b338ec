//! A fleet as one HTML file with its pictures inside: nothing is loaded from elsewhere.

use std::fmt::Write as _;

use throttle::fleet::FleetFinding;
use throttle_watch::FleetReport;

use super::text::{
    GIVING_HEAD, THROTTLED_HEAD, giving, giving_row, summary, throttled, throttled_row,
};
use crate::page::{Column, WIDTH, columns, document, escaped, paragraphs, table};

const ROW: f64 = 30.0;
/// Services whose histogram is drawn.
const HISTOGRAMS: usize = 6;
/// Where the last column, which has no upper bound, says so: to the right of its middle, clear of
/// the bound before it.
const MORE_AT: f64 = 0.75;
/// Upper bounds of the classes of the fleet figure: threads that want to run per reserved core.
const PER_CORE: [f64; 9] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

pub(super) fn html(report: &FleetReport, top: usize) -> String {
    let mut page = paragraphs(&summary(report));
    page.push_str("<h2>Threads that want to run per reserved core</h2>\n");
    page.push_str(&per_core(report));
    let held: Vec<&FleetFinding> = throttled(report).take(top).collect();
    if !held.is_empty() {
        page.push_str("<h2>Throttled services</h2>\n<p>Threads that stand still because of the quota, on average.</p>\n");
        let rows = held.iter().map(|finding| {
            let threads = finding.service.waiting.unwrap_or(0.0);
            (
                finding.service.name.as_str(),
                threads,
                format!("{threads:.1}"),
            )
        });
        page.push_str(&bars(&rows.collect::<Vec<_>>(), "over"));
        let rows = held.iter().map(|finding| throttled_row(report, finding));
        page.push_str(&table(&THROTTLED_HEAD, rows));
        page.push_str("<h2>Cores in use, windows of 10 ms</h2>\n");
        for finding in held.iter().take(HISTOGRAMS) {
            page.push_str(&histogram(finding));
        }
    }
    let giving: Vec<&FleetFinding> = giving(report).into_iter().take(top).collect();
    if !giving.is_empty() {
        page.push_str(
            "<h2>CPU to be given back</h2>\n<p>Cores above what 999 of 1,000 windows of 10 ms stay within.</p>\n",
        );
        let rows = giving.iter().map(|finding| {
            let cores = finding.give_back_cores;
            (finding.service.name.as_str(), cores, format!("{cores:.1}"))
        });
        page.push_str(&bars(&rows.collect::<Vec<_>>(), "bar"));
        let rows = giving.iter().map(|finding| giving_row(finding, ""));
        page.push_str(&table(&GIVING_HEAD, rows));
    }
    document("CPU throttling of a fleet", &page)
}

/// The fleet figure: how many services have so many threads per reserved core.
fn per_core(report: &FleetReport) -> String {
    let mut counts = vec![0_u32; PER_CORE.len() + 1];
    for per_core in &report.fleet.runnable_per_core {
        counts[PER_CORE.partition_point(|bound| per_core > bound)] += 1;
    }
    let label = |bound: f64| match bound {
        bound if bound < 1.0 => format!("1/{:.0}", 1.0 / bound),
        bound => format!("{bound:.0}"),
    };
    let bars: Vec<Column> = counts
        .iter()
        .enumerate()
        .map(|(class, count)| {
            let bound = PER_CORE.get(class);
            Column {
                label: bound.map_or_else(|| "more".to_owned(), |bound| label(*bound)),
                label_at: bound.map_or(MORE_AT, |_| 1.0),
                value: f64::from(*count),
                over: if class > 3 { f64::from(*count) } else { 0.0 },
            }
        })
        .collect();
    columns(
        &bars,
        Some(4.0),
        "Services by threads that want to run per reserved core, up to …; the dashed line is one thread per core",
    )
}

/// A service's cores in use as a share of its limit.
fn histogram(finding: &FleetFinding) -> String {
    let mut below = 0.0;
    let mut bars = Vec::new();
    let mut limit_at = 0.0;
    for (bound, cumulative) in &finding.service.shares {
        let is_over = *bound > 1.0 + 1e-9;
        limit_at += f64::from(u8::from(!is_over));
        let value = (cumulative - below).max(0.0);
        let (label, label_at) = match bound.is_finite() {
            true => (format!("{bound}"), 1.0),
            false => ("more".to_owned(), MORE_AT),
        };
        bars.push(Column {
            label,
            label_at,
            value,
            over: if is_over { value } else { 0.0 },
        });
        below = cumulative.max(below);
    }
    let title = format!("<h3>{}</h3>\n", escaped(&finding.service.name));
    if bars.is_empty() {
        return title + "<p>No histogram: the agents there do not trace.</p>\n";
    }
    title
        + &columns(
            &bars,
            Some(limit_at),
            "Windows by cores in use, as a share of the limit, up to …; the dashed line is the limit",
        )
}

/// Lying bars, each under its name.
fn bars(rows: &[(&str, f64, String)], class: &str) -> String {
    let most = rows.iter().map(|row| row.1).fold(0.0, f64::max).max(1e-9);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\">\n",
        ROW * rows.len() as f64
    );
    for (index, (name, value, label)) in rows.iter().enumerate() {
        let y = ROW * index as f64;
        let width = 280.0 * value / most;
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.0}\">{}</text><rect class=\"{class}\" x=\"0\" y=\"{:.0}\" width=\"{width:.1}\" height=\"10\"/>\
             <text x=\"{:.1}\" y=\"{:.0}\">{label}</text>",
            y + 11.0,
            escaped(name),
            y + 15.0,
            width + 4.0,
            y + 24.0,
        );
    }
    svg + "</svg>\n"
}
