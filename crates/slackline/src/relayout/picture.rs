//! The picture of `slackline relayout explain --svg`: every page that the code which ran touches,
//! before and after.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ::relayout::{Footprint, LayoutSummary};

use crate::page::escaped;

/// A page's square, in pixels.
const CELL: u64 = 8;

/// Squares in a row.
const COLUMNS: u64 = 80;

const PAGE_BYTES: f64 = 4096.0;

/// An SVG of both footprints: a square a page, the darker the more of it ran. Pages that lie
/// together stay together; gaps of pages that never ran are drawn up to a row.
pub(super) fn svg(title: &str, layout: &LayoutSummary) -> String {
    let before = cells(&layout.before);
    let after = cells(&layout.after);
    let rows =
        |cells: &BTreeMap<u64, u64>| cells.keys().last().map_or(1, |last| last / COLUMNS + 1);
    // The line over each panel is longer than it.
    let width = COLUMNS * CELL + 120;
    let second = 90 + rows(&before) * CELL;
    let height = second + 50 + rows(&after) * CELL;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"20\" y=\"24\" font-size=\"16\">{}</text>\n",
        escaped(title)
    );
    panel(&mut text, "before", 52, &layout.before, &before);
    panel(&mut text, "after", second, &layout.after, &after);
    text + "</svg>\n"
}

/// Where each page is drawn: its index in the grid, and how many of its bytes ran.
fn cells(footprint: &Footprint) -> BTreeMap<u64, u64> {
    let mut cells = BTreeMap::new();
    let (mut at, mut last) = (0, None::<u64>);
    for (page, bytes) in &footprint.pages {
        at += last.map_or(0, |last: u64| (page - last).min(COLUMNS));
        last = Some(*page);
        cells.insert(at, *bytes);
    }
    cells
}

fn panel(
    text: &mut String,
    name: &str,
    top: u64,
    footprint: &Footprint,
    cells: &BTreeMap<u64, u64>,
) {
    let share = footprint.taken_share().unwrap_or(0.0) * 100.0;
    let _ = writeln!(
        text,
        "<text x=\"20\" y=\"{}\">{name}: {} KiB that ran, in {} lines of 64 bytes and {} pages; {share:.0} % of conditional branches taken</text>",
        top + 14,
        footprint.bytes >> 10,
        footprint.lines,
        footprint.pages.len(),
    );
    for (index, bytes) in cells {
        let (x, y) = (
            20 + index % COLUMNS * CELL,
            top + 24 + index / COLUMNS * CELL,
        );
        let opacity = 0.15 + 0.85 * (*bytes as f64 / PAGE_BYTES).min(1.0);
        let side = CELL - 1;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" fill=\"#c2410c\" fill-opacity=\"{opacity:.2}\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_a_square_and_gaps_are_bounded() {
        let footprint = |pages: &[(u64, u64)]| Footprint {
            bytes: pages.iter().map(|(_, bytes)| bytes).sum(),
            lines: 3,
            pages: pages.iter().copied().collect(),
            branches: 10,
            taken: 4,
        };
        let layout = LayoutSummary {
            before: footprint(&[(100, 64), (101, 4096), (90_000, 1)]),
            after: footprint(&[(7, 4096)]),
            ..LayoutSummary::default()
        };
        let drawn = cells(&layout.before);
        assert_eq!(
            drawn.keys().copied().collect::<Vec<_>>(),
            [0, 1, 1 + COLUMNS]
        );
        let svg = svg("a <b>", &layout);
        assert_eq!(svg.matches("fill=\"#c2410c\"").count(), 4);
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("40 % of conditional branches taken"));
    }
}
