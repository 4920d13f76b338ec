//! Pictures over time.

use std::fmt::Write as _;

use crate::page::escaped;

/// Size of the drawing, in its own units. The page stretches it to its own width.
const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 128.0;
/// Room above the highest value for the width of a line.
const TOP: f64 = 2.0;
const BASE: f64 = HEIGHT - TOP;
/// Points of a line: more do not fit into the pixels.
const POINTS_MAX: usize = 1600;
/// A scale ends at one of these times a power of ten.
const ROUND: [f64; 11] = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];

/// Enough for a billionth.
const DECIMALS_MAX: usize = 10;

/// What a line shows, which decides its colour and whether it is dashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Blue.
    Plain,
    /// Red.
    Over,
    /// Red and dashed: a limit.
    Limit,
    /// Blue and dashed: what was only decided.
    Planned,
}

impl LineKind {
    fn style(self) -> &'static str {
        match self {
            Self::Plain => "stroke:var(--bar)",
            Self::Over => "stroke:var(--over)",
            Self::Limit => "stroke:var(--over);stroke-dasharray:5 4",
            Self::Planned => "stroke:var(--bar);stroke-dasharray:5 4",
        }
    }
}

/// One line of a picture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    /// Seconds and values. The line has a gap where there is no value.
    pub(crate) points: Vec<(f64, Option<f64>)>,
    pub(crate) kind: LineKind,
}

impl Line {
    /// Whether there is anything to draw.
    pub(crate) fn has_values(&self) -> bool {
        self.points.iter().any(|(_, value)| value.is_some())
    }

    /// Runs of points without a gap between them.
    fn parts(&self) -> Vec<Vec<(f64, f64)>> {
        let mut parts = vec![Vec::new()];
        for (at_s, value) in &self.points {
            match (value, parts.last_mut()) {
                (Some(value), Some(part)) => part.push((*at_s, *value)),
                _ => parts.push(Vec::new()),
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// The least round number that is not below `most`: the upper end of a scale.
fn scale_end(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(most.log10().floor());
    let round = ROUND.iter().map(|round| round * power);
    // A number that is round already stays.
    let fits = |end: &f64| *end >= most * (1.0 - 1e-9);
    round.into_iter().find(fits).unwrap_or(10.0 * power)
}

/// A number of a scale with at least two significant digits.
fn label(value: f64) -> String {
    let (unit, suffix) = match value {
        value if value >= 1e9 => (1e9, " G"),
        value if value >= 1e6 => (1e6, " M"),
        _ => (1.0, ""),
    };
    let value = value / unit;
    let (mut decimals, mut shown) = (0, value);
    while shown < 9.999 && decimals < DECIMALS_MAX {
        shown *= 10.0;
        decimals += 1;
    }
    format!("{value:.decimals$}{suffix}")
}

/// A picture over time as HTML, with grey marks where decisions fell.
pub(crate) fn timeline(
    title: &str,
    unit: &str,
    lines: &[Line],
    end_s: f64,
    marks: &[f64],
) -> String {
    let values = lines
        .iter()
        .flat_map(|line| line.points.iter().filter_map(|(_, value)| *value));
    let end = scale_end(values.fold(0.0, f64::max));
    let x = |at_s: f64| WIDTH * at_s / end_s.max(1e-9);
    let y = |value: f64| BASE - (BASE - TOP) * value / end;
    let title = escaped(title);
    let mut svg = format!(
        "<figure class=\"time\"><div class=\"scale\"><span>{}</span><span>0</span></div>\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{title}\"><title>{title}</title>\n",
        label(end)
    );
    for at_s in marks {
        let _ = writeln!(
            svg,
            "<line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{BASE}\"/>",
            x(*at_s)
        );
    }
    for line in lines {
        let every = line.points.len().div_ceil(POINTS_MAX).max(1);
        for part in line.parts() {
            let mut points: Vec<String> = part
                .iter()
                .step_by(every)
                .map(|(at_s, value)| format!("{:.1},{:.1}", x(*at_s), y(*value)))
                .collect();
            // A line of no length is drawn as a dot, a single point is not drawn.
            if let [alone] = points.as_slice() {
                points.push(alone.clone());
            }
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" style=\"{}\"/>",
                points.join(" "),
                line.kind.style()
            );
        }
    }
    let _ = writeln!(
        svg,
        "<line class=\"axis\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{BASE}\" y2=\"{BASE}\"/></svg>\
         <div class=\"end\">{end_s:.0} s</div><figcaption>{title} ({})</figcaption></figure>",
        escaped(unit)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_a_round_number_with_two_digits() {
        for (most, wanted) in [
            (0.0, "1.0"),
            (0.037, "0.040"),
            (0.04, "0.040"),
            (0.0421, "0.050"),
            (0.9, "1.0"),
            (1.0, "1.0"),
            (1.05, "1.2"),
            (2.0, "2.0"),
            (2.1, "2.5"),
            (9.1, "10"),
            (10.0, "10"),
            (11.0, "12"),
            (240.0, "250"),
            (1000.0, "1000"),
            (61_234.0, "80000"),
            (1.1e6, "1.2 M"),
            (4_294_967_296.0, "5.0 G"),
        ] {
            let end = scale_end(most);
            assert!(
                end >= most * (1.0 - 1e-9) && end <= 1.51 * most.max(0.67),
                "{most}: {end}"
            );
            assert_eq!(label(end), wanted, "{most}");
        }
    }

    #[test]
    fn the_highest_value_is_within_the_picture_and_a_gap_is_no_line() {
        let line = Line {
            points: vec![
                (0.0, Some(1.0)),
                (1.0, Some(2.0)),
                (2.0, None),
                (3.0, Some(2.0)),
            ],
            kind: LineKind::Plain,
        };
        assert!(line.has_values());
        let html = timeline("quota", "cores", &[line], 4.0, &[]);
        assert!(html.contains("<span>2.0</span>"), "{html}");
        // The first line goes up to the upper end, then there is a gap and a dot.
        assert!(html.contains("points=\"0.0,64.0 205.0,2.0\""), "{html}");
        assert!(html.contains("points=\"615.0,2.0 615.0,2.0\""), "{html}");
        let nothing = Line {
            points: vec![(0.0, None)],
            kind: LineKind::Limit,
        };
        assert!(!nothing.has_values());
        let html = timeline("quota", "cores", &[nothing], 4.0, &[]);
        assert!(!html.contains("polyline"), "{html}");
    }
}
