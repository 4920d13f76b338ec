//! A fleet as one HTML file with its pictures inside: nothing is loaded from elsewhere.

use std::fmt::Write as _;

use throttle::fleet::Finding;

use super::Report;
use super::text::{giving, in_use, optional, percent, summary, throttled};

/// Width of a picture, in its own units: about the CSS pixels of a small phone.
const WIDTH: f64 = 340.0;
const ROW: f64 = 30.0;
/// Services whose histogram is drawn.
const HISTOGRAMS: usize = 6;
/// Upper bounds of the classes of the fleet figure: threads that want to run per reserved core.
const PER_CORE: [f64; 9] = [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d5dae0; --bar: #4878a8; --over: #c2502e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #16191d; --faint: #3c434b; --bar: #6f9fd0; --over: #e57a52 }
}
body { margin: 0 auto; padding: 12px; max-width: 720px; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif }
h1 { font-size: 1.35rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem; margin-bottom: 0 }
svg { display: block; width: 100%; height: auto } svg text { fill: var(--ink); font: 11px system-ui, sans-serif }
.bar { fill: var(--bar) } .over { fill: var(--over) } .axis { stroke: var(--faint) }
.limit { stroke: var(--over); stroke-dasharray: 4 3 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; white-space: nowrap }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid var(--faint) }
th:first-child, td:first-child { text-align: left }
";

pub(super) fn html(report: &Report, top: usize) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>CPU throttling of a fleet</title>\n\
         <style>{STYLE}</style>\n<h1>CPU throttling of a fleet</h1>\n"
    );
    for sentence in summary(report) {
        let _ = writeln!(page, "<p>{}</p>", escaped(&sentence));
    }
    page.push_str("<h2>Threads that want to run per reserved core</h2>\n");
    page.push_str(&per_core(report));
    let held: Vec<&Finding> = throttled(report).take(top).collect();
    if !held.is_empty() {
        page.push_str("<h2>Latency to be won</h2>\n<p>Threads that stand still because of the quota, on average.</p>\n");
        let rows = held.iter().map(|finding| {
            let threads = finding.service.waiting.unwrap_or(0.0);
            (
                finding.service.name.as_str(),
                threads,
                format!("{threads:.1}"),
            )
        });
        page.push_str(&bars(&rows.collect::<Vec<_>>(), "over"));
        page.push_str(&throttled_table(report, &held));
        page.push_str("<h2>Cores in use, windows of 10 ms</h2>\n<p>Of the limit, which is the dashed line.</p>\n");
        for finding in held.iter().take(HISTOGRAMS) {
            page.push_str(&histogram(finding));
        }
    }
    let giving: Vec<&Finding> = giving(report).into_iter().take(top).collect();
    if !giving.is_empty() {
        page.push_str(
            "<h2>CPU to be given back</h2>\n<p>Cores above what 999 of 1,000 windows of 10 ms stay within.</p>\n",
        );
        let rows = giving.iter().map(|finding| {
            let cores = finding.give_back_cores;
            (finding.service.name.as_str(), cores, format!("{cores:.1}"))
        });
        page.push_str(&bars(&rows.collect::<Vec<_>>(), "bar"));
        page.push_str(&giving_table(&giving));
    }
    page + "</html>\n"
}

/// The fleet figure: how many services have so many threads per reserved core.
fn per_core(report: &Report) -> String {
    let mut counts = vec![0_u32; PER_CORE.len() + 1];
    for per_core in &report.fleet.runnable_per_core {
        counts[PER_CORE.partition_point(|bound| per_core > bound)] += 1;
    }
    let label = |bound: f64| match bound {
        bound if bound < 1.0 => format!("1/{:.0}", 1.0 / bound),
        bound => format!("{bound:.0}"),
    };
    let columns: Vec<Column> = counts
        .iter()
        .enumerate()
        .map(|(class, count)| Column {
            label: PER_CORE
                .get(class)
                .map_or_else(|| "more".to_owned(), |bound| label(*bound)),
            value: f64::from(*count),
            is_over: class > 3,
        })
        .collect();
    columns_picture(
        &columns,
        4,
        "Services by threads that want to run per reserved core, up to …",
    )
}

/// A service's cores in use as a share of its limit.
fn histogram(finding: &Finding) -> String {
    let mut below = 0.0;
    let mut columns = Vec::new();
    let mut limit_at = 0;
    for (bound, cumulative) in &finding.service.shares {
        let is_over = *bound > 1.0 + 1e-9;
        limit_at += usize::from(!is_over);
        columns.push(Column {
            label: if bound.is_finite() {
                format!("{bound}")
            } else {
                "more".to_owned()
            },
            value: (cumulative - below).max(0.0),
            is_over,
        });
        below = cumulative.max(below);
    }
    let title = format!("<h3>{}</h3>\n", escaped(&finding.service.name));
    if columns.is_empty() {
        return title + "<p>No histogram: the agents there do not trace.</p>\n";
    }
    title
        + &columns_picture(
            &columns,
            limit_at,
            "Windows by cores in use, as a share of the limit, up to …",
        )
}

struct Column {
    label: String,
    value: f64,
    is_over: bool,
}

/// Upright columns, with a dashed line before the one of number `limit_at`.
fn columns_picture(columns: &[Column], limit_at: usize, title: &str) -> String {
    let (height, base) = (130.0, 108.0);
    let step = WIDTH / columns.len().max(1) as f64;
    let most = columns
        .iter()
        .map(|column| column.value)
        .fold(0.0, f64::max)
        .max(1e-9);
    let all: f64 = columns
        .iter()
        .map(|column| column.value)
        .sum::<f64>()
        .max(1e-9);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\"><title>{title}</title>\n"
    );
    // Where labels would touch, every other one is left out.
    let every = if step < 26.0 { 2 } else { 1 };
    for (index, column) in columns.iter().enumerate() {
        let (x, tall) = (index as f64 * step, 88.0 * column.value / most);
        let class = if column.is_over { "over" } else { "bar" };
        let middle = x + step / 2.0;
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"><title>{}: {}</title></rect>",
            x + 1.0,
            base - tall,
            step - 2.0,
            column.label,
            percent(column.value / all)
        );
        if (columns.len() - 1 - index).is_multiple_of(every) {
            let _ = writeln!(
                svg,
                "<text x=\"{middle:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                base + 14.0,
                column.label
            );
        }
    }
    let x = limit_at as f64 * step;
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/>\n\
         <line class=\"limit\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{base}\"/>\n\
         <text x=\"{WIDTH}\" y=\"11\" text-anchor=\"end\">largest: {}</text>\n</svg>",
        percent(most / all)
    );
    svg
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

fn throttled_table(report: &Report, findings: &[&Finding]) -> String {
    let rows = findings.iter().map(|finding| {
        let service = &finding.service;
        let worst = report.worst.get(&service.name);
        vec![
            service.name.clone(),
            format!("{:.0}", service.shards),
            format!("{:.1}", service.limit_cores),
            in_use(finding),
            optional(finding.throttled_share, percent),
            optional(finding.runnable_per_core, |per_core| {
                format!("{per_core:.2}")
            }),
            optional(service.mean_wait_s, |s| format!("{:.2} ms", 1e3 * s)),
            worst.map_or_else(String::new, |shard| {
                format!("{} {}", shard.instance, shard.group)
            }),
        ]
    });
    table(
        &[
            "service",
            "shards",
            "cores",
            "in use",
            "throttled",
            "want to run per core",
            "mean wait",
            "worst shard",
        ],
        rows,
    )
}

fn giving_table(findings: &[&Finding]) -> String {
    let rows = findings.iter().map(|finding| {
        vec![
            finding.service.name.clone(),
            format!("{:.0}", finding.service.shards),
            format!("{:.1}", finding.service.limit_cores),
            in_use(finding),
            optional(finding.peak_share, percent),
            format!("{:.1}", finding.give_back_cores),
        ]
    });
    table(
        &["service", "shards", "cores", "in use", "peak", "give back"],
        rows,
    )
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cells = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let body: String = rows.map(|row| cells("td", &row)).collect();
    format!(
        "<div class=\"wide\"><table>\n{}{body}</table></div>\n",
        cells("th", &head)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
