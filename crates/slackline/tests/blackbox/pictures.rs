//! The pictures of the manual, made anew from a running server with real experiments where
//! `SLACKLINE_PICTURES` says so:
//!
//! ```text
//! SLACKLINE_PICTURES=docs/pictures cargo test -p slackline --test blackbox pictures -- --nocapture
//! ```
//!
//! `examples/nginx-workers` is measured on this host, about five minutes; the reports of
//! `docs/results` are imported. Needs nginx, wrk and chromedriver.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::serve::Server;
use crate::toy::Toy;
use crate::webdriver::Browser;

const REPORTS: [&str; 3] = ["nginx-sysctl", "nginx-workers-aa", "nginx-workers"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The example's experiment, measured to its end. A real one takes longer than a toy's.
fn measured(server: &Server<'_>) -> i64 {
    let spec = root().join("examples/nginx-workers/experiment.toml");
    let made = server
        .does(&["create", spec.to_str().unwrap()])
        .with_code(0);
    let id: i64 = made.stdout.trim().parse().unwrap();
    let end = Instant::now() + Duration::from_secs(1200);
    while server.get(&format!("/experiments/{id}"))["state"] != "done" {
        assert!(Instant::now() < end, "the experiment does not end");
        std::thread::sleep(Duration::from_secs(1));
    }
    id
}

#[test]
fn pictures_are_made_where_they_are_wanted() {
    let Some(wanted) = std::env::var_os("SLACKLINE_PICTURES") else {
        return;
    };
    let dir = root().join(wanted);
    let toy = Toy::new();
    let server = Server::start(&toy);
    for name in REPORTS {
        let report = root().join(format!("docs/results/{name}.json"));
        server
            .does(&["import", report.to_str().unwrap()])
            .with_code(0);
    }
    let id = measured(&server);
    std::fs::write(
        dir.join("../../target/pictures.json"),
        server
            .does(&["export", &id.to_string()])
            .with_code(0)
            .stdout,
    )
    .unwrap();
    let mut browser = Browser::start(1200, false).unwrap();
    browser.open(&server.sign_in("write_token"));
    browser.wait("document.querySelector('#live-list tbody tr')");
    browser.picture(&dir.join("serve-experiments.png"));
    let experiment = format!("/experiments/{id}");
    let open = |browser: &Browser| {
        browser.open(&server.page(&experiment));
        browser.wait("document.getElementById('map-caption').textContent.includes('square')");
    };
    open(&browser);
    browser.part("#live-head", &dir.join("serve-experiment.png"));
    browser.part("#charts", &dir.join("serve-charts.png"));
    browser.part(
        "section[aria-labelledby=h-results]",
        &dir.join("serve-table.png"),
    );
    let best = browser.run("return document.querySelector('tr.completed th a').pathname");
    browser.open(&server.page(best.as_str().unwrap()));
    browser.wait("document.querySelector('#plot-blocks canvas')");
    browser.picture(&dir.join("serve-evaluation.png"));
    browser.open(&server.page(&format!("{experiment}/verification")));
    browser.wait("document.querySelector('#plot-integrals canvas')");
    browser.picture(&dir.join("serve-verification.png"));
    browser.open(&server.page(&format!("/compare?id={id}&id=2&id=3")));
    browser.wait("document.querySelector('#plot-compare canvas')");
    browser.picture(&dir.join("serve-compare.png"));
    browser.look(360, true);
    open(&browser);
    browser.top(&dir.join("serve-360.png"), 1800);
    assert_eq!(browser.errors(), Vec::<String>::new());
}

/// The page of `throttle loadtest` that `docs/results` keeps.
#[test]
fn the_picture_of_loadtest_is_made_where_it_is_wanted() {
    let Some(wanted) = std::env::var_os("SLACKLINE_PICTURES") else {
        return;
    };
    let page = root().join("docs/results/throttled-go.html");
    let page = page.canonicalize().unwrap();
    let browser = Browser::start(860, false).unwrap();
    browser.open(&format!("file://{}", page.display()));
    browser.top(&root().join(wanted).join("throttle-loadtest.png"), 640);
}
