//! Scripts and styles, embedded: the pages load nothing from elsewhere.
//!
//! uPlot 1.6.32 (`assets/uplot`, from its npm package, MIT, licence beside it) draws time series
//! and scatter plots.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use crate::reply::Refusal;

const FILES: &[(&str, &str, &str)] = &[
    (
        "style.css",
        "text/css; charset=utf-8",
        include_str!("../assets/style.css"),
    ),
    (
        "live.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/live.js"),
    ),
    (
        "events.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/events.js"),
    ),
    (
        "plot.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/plot.js"),
    ),
    (
        "zoom.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/zoom.js"),
    ),
    (
        "experiment.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/experiment.js"),
    ),
    (
        "parameters.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/parameters.js"),
    ),
    (
        "map.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/map.js"),
    ),
    (
        "parallel.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/parallel.js"),
    ),
    (
        "series.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/series.js"),
    ),
    (
        "new.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/new.js"),
    ),
    (
        "uplot.js",
        "text/javascript; charset=utf-8",
        include_str!("../assets/uplot/uPlot.iife.min.js"),
    ),
    (
        "uplot.css",
        "text/css; charset=utf-8",
        include_str!("../assets/uplot/uPlot.min.css"),
    ),
    (
        "uplot-licence.txt",
        "text/plain; charset=utf-8",
        include_str!("../assets/uplot/LICENSE"),
    ),
];

pub(crate) async fn asset(Path(name): Path<String>) -> Response {
    match FILES.iter().find(|(file, ..)| *file == name) {
        Some((_, kind, text)) => (
            // A new version of the program has new assets under the same names.
            [(CONTENT_TYPE, *kind), (CACHE_CONTROL, "max-age=300")],
            *text,
        )
            .into_response(),
        None => {
            Refusal::new(StatusCode::NOT_FOUND, format!("there is no asset {name}")).into_response()
        }
    }
}
