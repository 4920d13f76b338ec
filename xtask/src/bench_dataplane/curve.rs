//! The part `curve`: mean and 99th percentile of caches against the load, and their picture. IX's
//! figure of memcached (OSDI'14) is drawn the same way: a linear axis of latencies, and a line at
//! the objective.

use std::fmt::Write as _;

use super::measure::{Bench, OBJECTIVE_P99_US};
use super::peers::cache_shape;
use super::report::median;
use super::row::{Row, Sample};

const PART: &str = "curve";
/// Shapes of the load, a panel each.
const SHAPES: [&str; 2] = ["usr", "etc"];
/// Loads of each server, up to what the fastest one does in a closed loop.
const STEPS: u32 = 8;
/// The servers, and their colours.
const SERVERS: [(&str, &str); 3] = [
    ("memcached", "#666"),
    ("serve-cache", "#c2502e"),
    ("serve-cache xdp", "#7a3ea8"),
];
/// Latencies above this one leave the picture.
const TOP_US: f64 = 1000.0;
const PANEL_WIDTH: f64 = 290.0;
const PANEL_BOTTOM: f64 = 330.0;
const PANEL_HEIGHT: f64 = 290.0;

/// One of a sample's latencies.
type Pick = fn(&Sample) -> f64;

impl Bench {
    pub(super) fn curve(&mut self) -> anyhow::Result<()> {
        let mut servers = self.cache_servers();
        servers.retain(|(name, _)| SERVERS.iter().any(|(shown, _)| shown == name));
        for shape in SHAPES {
            let most = self.most(&servers[servers.len() - 1], shape)?;
            for step in 1..=STEPS {
                let rate = most * f64::from(step) / f64::from(STEPS);
                let load = format!("{shape}, {rate:.0}/s");
                self.compare(PART, &load, &servers, |bench, server| {
                    let shape = cache_shape(server, shape);
                    bench.load(&shape, 64, rate).map(Some)
                });
            }
        }
        Ok(())
    }
}

/// The picture. `None` if the part has not run.
pub(super) fn picture(rows: &[Row]) -> Option<String> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.part == PART).collect();
    if rows.is_empty() {
        return None;
    }
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 400\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Latency of caches against the load</title><rect width=\"720\" height=\"400\" fill=\"white\"/>\n",
    );
    for (index, (name, colour)) in (0_u32..).zip(SERVERS) {
        let x = 60 + index * 130;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"18\" fill=\"{colour}\">{name}</text>"
        );
    }
    svg.push_str("<text x=\"470\" y=\"18\">solid: 99th percentile, dashed: mean</text>\n");
    for (left, shape) in [60.0, 410.0].into_iter().zip(SHAPES) {
        panel(&mut svg, &rows, shape, left);
    }
    Some(svg + "</svg>\n")
}

fn panel(svg: &mut String, rows: &[&Row], shape: &str, left: f64) {
    let own: Vec<&Row> = rows
        .iter()
        .filter(|row| row.load.starts_with(&format!("{shape}, ")))
        .copied()
        .collect();
    let rate_of = |row: &Row| median(&row.rounds, |sample| sample.requests_per_s);
    let most = own
        .iter()
        .filter_map(|row| rate_of(row))
        .fold(1.0, f64::max);
    let x = |rate: f64| left + PANEL_WIDTH * rate / most;
    let y = |us: f64| PANEL_BOTTOM - PANEL_HEIGHT * us / TOP_US;
    let right = left + PANEL_WIDTH;
    let _ = writeln!(
        svg,
        "<clipPath id=\"{shape}\"><rect x=\"{left}\" y=\"{:.0}\" width=\"{PANEL_WIDTH}\" height=\"{PANEL_HEIGHT}\"/></clipPath>",
        y(TOP_US)
    );
    for step in 0..=4 {
        let us = TOP_US * f64::from(step) / 4.0;
        let colour = if us == OBJECTIVE_P99_US {
            "#d00"
        } else {
            "#ddd"
        };
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{0:.0}\" y2=\"{0:.0}\" stroke=\"{colour}\"/><text x=\"{1:.0}\" y=\"{0:.0}\" text-anchor=\"end\">{us:.0} µs</text>",
            y(us),
            left - 4.0
        );
        let rate = most * f64::from(step) / 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"348\" text-anchor=\"middle\">{:.0}k</text>",
            x(rate),
            rate / 1000.0
        );
    }
    let picks: [(Pick, &str); 2] = [
        (|sample| sample.p99_us, "none"),
        (|sample| sample.mean_us, "4 3"),
    ];
    for (name, colour) in SERVERS {
        for (pick, dashes) in picks {
            let points = own.iter().filter(|row| row.server == name);
            let line: Vec<String> = points
                .filter_map(|row| Some((rate_of(row)?, median(&row.rounds, pick)?)))
                // A server that is far behind would draw a line through the whole page.
                .map(|(rate, us)| format!("{:.1},{:.1}", x(rate), y(us.min(4.0 * TOP_US))))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline clip-path=\"url(#{shape})\" points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>",
                line.join(" ")
            );
        }
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"376\" text-anchor=\"middle\">{}: requests/s, server on one core</text>",
        left + PANEL_WIDTH / 2.0,
        shape.to_uppercase()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(shape: &str, server: &str, rate: f64, p99_us: f64) -> Row {
        let sample = Sample {
            requests_per_s: rate,
            mean_us: p99_us / 2.0,
            p50_us: 0.0,
            p99_us,
            p999_us: 0.0,
            failed: 0,
            dropped: 0,
            late_share: 0.0,
            stolen_ms: 0.0,
            searched: None,
        };
        Row {
            part: PART.to_owned(),
            load: format!("{shape}, {rate:.0}/s"),
            server: server.to_owned(),
            rounds: vec![Some(sample), None],
            held: None,
        }
    }

    #[test]
    fn a_server_has_two_lines_in_each_panel_and_the_objective_one() {
        let mut rows = vec![
            row("usr", "memcached", 100_000.0, 200.0),
            row("usr", "memcached", 200_000.0, 50_000.0),
            row("etc", "memcached", 50_000.0, 500.0),
        ];
        let svg = picture(&rows).unwrap();
        assert_eq!(svg.matches("<polyline").count(), 2 * 2 * SERVERS.len());
        assert_eq!(svg.matches("stroke=\"#d00\"").count(), 2);
        // Half of the panel's width and a fifth of its height; then far above it.
        assert!(svg.contains("points=\"205.0,272.0 350.0,-830.0\""), "{svg}");
        // The objective's height, at the right edge of the second panel.
        assert!(svg.contains("points=\"700.0,185.0\""), "{svg}");
        rows.iter_mut().for_each(|row| row.part = "echo".to_owned());
        assert_eq!(picture(&rows), None);
    }
}
