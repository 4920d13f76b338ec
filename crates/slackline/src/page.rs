//! Reports as one HTML file with their pictures inside: nothing is loaded from elsewhere.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::output::message;

/// Width of a picture, in its own units: about the CSS pixels of a small phone.
pub(crate) const WIDTH: f64 = 340.0;
/// Below this width of a column, every other label is left out, so that they do not touch.
const LABEL_WIDTH: f64 = 26.0;

const STYLE: &str = "
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --faint: #d5dae0; --bar: #4878a8; --over: #c2502e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #16191d; --faint: #3c434b; --bar: #6f9fd0; --over: #e57a52 }
}
body { margin: 0 auto; padding: 12px; max-width: 860px; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.35rem } h2 { font-size: 1.1rem; margin-top: 2rem } h3 { font-size: 1rem; margin-bottom: 0 }
figure { margin: 0 } figcaption { font-size: .85rem; margin: .3rem 0 1rem }
svg { display: block; width: 100%; max-width: 520px; height: auto; overflow: visible } svg text { fill: var(--ink); font: 11px system-ui, sans-serif }
.bar { fill: var(--bar) } .over { fill: var(--over) } .axis { stroke: var(--faint) }
.limit { stroke: var(--over); stroke-dasharray: 4 3 }
.time { display: grid; grid-template-columns: 3.2rem minmax(0, 1fr); column-gap: 6px; font-size: .75rem }
.time svg { max-width: none; height: 130px } .time svg * { vector-effect: non-scaling-stroke }
.time polyline { fill: none; stroke-width: 1.5px; stroke-linecap: round }
.time .scale { display: flex; flex-direction: column; justify-content: space-between; text-align: right; line-height: 1 }
.time .end { grid-column: 2; text-align: right } .time figcaption { grid-column: 1 / -1 }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 16px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem; white-space: nowrap }
th, td { padding: 3px 8px; text-align: right; border-bottom: 1px solid var(--faint) }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 9rem }
.text { width: 100%; white-space: normal; overflow-wrap: anywhere }
.text th, .text td { text-align: left; vertical-align: top }
.text th:first-child, .text td:first-child { white-space: nowrap; min-width: 0 }
.text th:nth-child(2), .text td:nth-child(2) { min-width: 8rem }
";

/// A whole page; `body` is HTML.
pub(crate) fn document(title: &str, body: &str) -> String {
    let title = escaped(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<h1>{title}</h1>\n{body}</html>\n"
    )
}

/// Writes a page, and says where it is.
pub(crate) fn write(file: &Path, title: &str, body: &str) -> anyhow::Result<()> {
    std::fs::write(file, document(title, body)).with_context(|| format!("{}", file.display()))?;
    message(&format!("The page is in {}.", file.display()));
    Ok(())
}

/// One column of [`columns`].
pub(crate) struct Column {
    pub(crate) label: String,
    /// Where the label's number is: 0 at the column's left edge, 1 at its right edge.
    pub(crate) label_at: f64,
    pub(crate) value: f64,
    /// The part of `value` that is beyond the limit.
    pub(crate) over: f64,
}

/// Which columns have a label: all, or every other one. The label nearest to the limit is among
/// them.
fn is_labelled(columns: &[Column], step: f64, limit_at: Option<f64>, index: usize) -> bool {
    if step >= LABEL_WIDTH {
        return true;
    }
    let distance = |at: usize| (at as f64 + columns[at].label_at - limit_at.unwrap_or(0.0)).abs();
    let all = 0..columns.len();
    let nearest = all.min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    index % 2 == nearest.unwrap_or(0) % 2
}

/// Upright columns, with a dashed line so many columns from the left, which `title` explains below
/// them. The axis is linear where the columns are: a number's label and a line at the same number
/// are above each other.
pub(crate) fn columns(columns: &[Column], limit_at: Option<f64>, title: &str) -> String {
    let (height, base) = (130.0, 108.0);
    let step = WIDTH / columns.len().max(1) as f64;
    let values = || columns.iter().map(|column| column.value);
    let most = values().fold(0.0, f64::max).max(1e-9);
    let all = values().sum::<f64>().max(1e-9);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let title = escaped(title);
    let mut svg = format!(
        "<figure><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\
         <title>{title}</title>\n"
    );
    let caption = format!("<figcaption>{title}</figcaption></figure>\n");
    for (index, column) in columns.iter().enumerate() {
        let x = index as f64 * step;
        let label = escaped(&column.label);
        let share = percent(column.value / all);
        let within = 88.0 * (column.value - column.over).max(0.0) / most;
        let over = 88.0 * column.over / most;
        for (class, bottom, tall) in [("bar", base, within), ("over", base - within, over)] {
            if tall > 0.0 {
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"><title>{label}: {share}</title></rect>",
                    x + 1.0,
                    bottom - tall,
                    step - 2.0,
                );
            }
        }
        if is_labelled(columns, step, limit_at, index) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{label}</text>",
                x + column.label_at * step,
                base + 14.0,
            );
        }
    }
    if let Some(limit_at) = limit_at {
        let x = limit_at * step;
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"4\" y2=\"{base}\"/>"
        );
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/>\n\
         <text x=\"{WIDTH}\" y=\"11\" text-anchor=\"end\">highest: {}</text>\n</svg>",
        percent(most / all)
    );
    svg + &caption
}

/// A paragraph for each text.
pub(crate) fn paragraphs(texts: &[String]) -> String {
    texts
        .iter()
        .map(|text| format!("<p>{}</p>\n", escaped(text)))
        .collect()
}

/// A table of numbers. It scrolls sideways by itself if it is too wide for the page.
pub(crate) fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    format!(
        "<div class=\"wide\"><table>\n{}</table></div>\n",
        table_rows(head, rows)
    )
}

/// A table of words below a moment or a name. Long cells wrap, so the table is never wider than the
/// page.
pub(crate) fn text_table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    format!(
        "<table class=\"text\">\n{}</table>\n",
        table_rows(head, rows)
    )
}

fn table_rows(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut html = "<tr>".to_owned();
    for cell in head {
        let _ = write!(html, "<th>{}</th>", escaped(cell));
    }
    html.push_str("</tr>\n");
    for row in rows {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escaped(cell)));
        let _ = writeln!(html, "<tr>{}</tr>", cells.collect::<String>());
    }
    html
}

/// Text as HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
