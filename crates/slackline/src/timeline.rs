//! Pictures over time.

use std::fmt::Write as _;

use crate::page::escaped;

/// Size of a timeline, in its own units.
const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 44.0;
const BASE: f64 = 128.0;
/// Points of a line: more do not fit into the pixels.
const POINTS_MAX: usize = 1600;
/// One line of a picture.
pub(crate) struct Line {
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) is_over: bool,
}

/// A picture over time as HTML, with marks where decisions fell and a dashed line at the limit.
pub(crate) fn timeline(
    title: &str,
    unit: &str,
    lines: &[Line],
    limit: Option<f64>,
    end_s: f64,
    marks: &[f64],
) -> String {
    let values = lines
        .iter()
        .flat_map(|line| line.points.iter().map(|(_, value)| *value));
    // The objective stays visible where the latency is far above it.
    let most = values.chain(limit).fold(1e-9, f64::max) * 1.05;
    let x = |at_s: f64| LEFT + (WIDTH - LEFT) * at_s / end_s.max(1e-9);
    let y = |value: f64| BASE - (BASE - 8.0) * value / most;
    let title = escaped(title);
    let mut svg = format!(
        "<figure><svg style=\"max-width:none\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\"><title>{title}</title>\n"
    );
    for at_s in marks {
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"8\" y2=\"{BASE}\"/>",
            x(*at_s)
        );
    }
    for line in lines {
        let every = line.points.len().div_ceil(POINTS_MAX).max(1);
        let points: Vec<String> = line
            .points
            .iter()
            .step_by(every)
            .map(|(at_s, value)| format!("{:.1},{:.1}", x(*at_s), y(*value)))
            .collect();
        let color = if line.is_over {
            "var(--over)"
        } else {
            "var(--bar)"
        };
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" style=\"fill:none;stroke:{color};stroke-width:1.5\"/>",
            points.join(" ")
        );
    }
    if let Some(limit) = limit {
        let _ = writeln!(
            svg,
            "<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/>",
            y(limit)
        );
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{BASE}\" y2=\"{BASE}\"/>\n\
         <text x=\"{0}\" y=\"16\" text-anchor=\"end\">{most:.1}</text><text x=\"{0}\" y=\"{BASE}\" text-anchor=\"end\">0</text>\n\
         <text x=\"{WIDTH}\" y=\"{1}\" text-anchor=\"end\">{end_s:.0} s</text></svg>\
         <figcaption>{title} ({unit})</figcaption></figure>",
        LEFT - 4.0,
        BASE + 15.0
    );
    svg
}
