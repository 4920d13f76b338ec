//! Latency against rate, as SVG.

use std::fmt::Write as _;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct PlotLine {
    /// What the line is of.
    pub name: String,
    /// (rate, latency), in the order of the line.
    pub points: Vec<(f64, f64)>,
}

/// A chart. The vertical axis is logarithmic.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What the chart shows.
    pub title: String,
    /// What the horizontal axis counts.
    pub x_label: String,
    /// What the vertical axis counts.
    pub y_label: String,
    /// The lines.
    pub series: Vec<PlotLine>,
}

/// Colours that people with any colour vision can tell apart (Okabe and Ito, 2008).
const COLOURS: &[&str] = &[
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
];
const LEFT: f64 = 70.0;
const WIDTH: f64 = 560.0;
const TOP: f64 = 40.0;
const HEIGHT: f64 = 300.0;

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}

/// A round step that divides `most` into four to ten parts.
fn step(most: f64) -> f64 {
    let decade = 10_f64.powf((most / 4.0).log10().floor());
    let fits = [5.0, 2.0, 1.0];
    let best = fits.iter().find(|&&times| decade * times <= most / 4.0);
    decade * best.copied().unwrap_or(1.0)
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{}M", (value / 1e5).round() / 10.0)
    } else if value >= 1e3 {
        format!("{}k", (value / 1e2).round() / 10.0)
    } else {
        format!("{value}")
    }
}

impl Chart {
    /// The picture.
    pub fn svg(&self) -> String {
        let all = || self.series.iter().flat_map(|series| series.points.iter());
        let most = all().map(|point| point.0).fold(1.0, f64::max);
        let lowest = all().map(|point| point.1).fold(f64::INFINITY, f64::min);
        let highest = all().map(|point| point.1).fold(1.0, f64::max);
        let low = lowest.clamp(1e-3, 1e9).log10().floor();
        let high = highest.clamp(1e-3, 1e9).log10().ceil().max(low + 1.0);
        let x = |rate: f64| LEFT + WIDTH * rate / most;
        let y = |us: f64| TOP + HEIGHT - HEIGHT * (us.max(1e-3).log10() - low) / (high - low);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 400\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n<rect width=\"800\" height=\"400\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n",
            title = escaped(&self.title)
        );
        let mut power = low;
        while power <= high {
            let at = y(10_f64.powf(power));
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.0}\" y2=\"{at:.0}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
                LEFT + WIDTH,
                LEFT - 6.0,
                at + 4.0,
                short(10_f64.powf(power))
            );
            power += 1.0;
        }
        let mut rate = 0.0;
        while rate <= most {
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                x(rate),
                TOP + HEIGHT + 18.0,
                short(rate)
            );
            rate += step(most);
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"14\" y=\"{:.0}\" transform=\"rotate(-90 14 {3:.0})\" text-anchor=\"middle\">{}</text>",
            LEFT + WIDTH / 2.0,
            TOP + HEIGHT + 40.0,
            escaped(&self.x_label),
            TOP + HEIGHT / 2.0,
            escaped(&self.y_label)
        );
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let at = |point: &(f64, f64)| format!("{:.1},{:.1}", x(point.0), y(point.1));
            let line: Vec<String> = series.points.iter().map(at).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                line.join(" ")
            );
            for point in &series.points {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\" fill=\"{colour}\"/>",
                    x(point.0),
                    y(point.1)
                );
            }
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
                LEFT + WIDTH + 12.0,
                TOP + 14.0 + 18.0 * index as f64,
                escaped(&series.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_inside_and_names_are_escaped() {
        let chart = Chart {
            title: "a < b".into(),
            x_label: "rate".into(),
            y_label: "µs".into(),
            series: vec![PlotLine {
                name: "R&D".into(),
                points: vec![(10_000.0, 80.0), (90_000.0, 2_000.0)],
            }],
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b") && svg.contains("R&amp;D"));
        assert!(svg.contains("630.0,"), "{svg}");
        // Nothing to draw is no reason to fail.
        assert!(
            Chart {
                series: Vec::new(),
                ..chart
            }
            .svg()
            .ends_with("</svg>\n")
        );
    }

    #[test]
    fn steps_are_round() {
        for (most, expected) in [(100.0, 20.0), (90_000.0, 20_000.0), (1e6, 200_000.0)] {
            assert!(
                (step(most) - expected).abs() < 1e-6,
                "{most}: {}",
                step(most)
            );
        }
    }
}
