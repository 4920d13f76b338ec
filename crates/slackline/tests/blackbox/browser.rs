//! The pages in a headless Chromium: created → watched → one killed → paused → resumed → verified →
//! promoted → rolled back.

use serde_json::json;

use crate::serve::Server;
use crate::toy::{FIRST, Toy, skip};
use crate::webdriver::Browser;

/// Three parameters: the knob `x` with its best at 20, `pool` with its best at 12, and one that
/// does nothing.
pub(crate) fn toy() -> Toy {
    let mut toy = Toy::new();
    let parameters = toy.spec["parameters"].as_array_mut().unwrap();
    parameters.push(json!({ "name": "pool", "type": "int", "low": 1, "high": 64, "default": 32, "scale": "log" }));
    parameters.push(json!({ "name": "codec", "type": "categorical", "values": ["zstd", "none", "lz4"], "default": "none" }));
    // Slow enough for a hand on the mouse, as long as that file is there.
    let slow = toy.path("slow");
    std::fs::write(&slow, "").unwrap();
    toy.load_after(&format!(
        "us=$(( us + ({{pool}}-12)*({{pool}}-12) )); sleep 0.05; [ ! -e {} ] || sleep 2",
        slow.display()
    ));
    toy.spec["name"] = json!("pool and codec");
    toy.spec["search"] = json!({ "strategy": "sobol" });
    toy.spec["evaluation"]["blocks"] = json!(3);
    toy.spec["budget"]["evaluations"] = json!(9);
    toy
}

/// Whether the page says something.
fn says(text: &str) -> String {
    format!("document.body.innerText.includes({})", json!(text))
}

/// A specification by hand: an error at its line first.
fn creates(browser: &Browser, server: &Server<'_>, toy: &Toy) {
    browser.open(&server.page("/new"));
    let mut wrong = toy.spec.clone();
    wrong["parameters"][1]["low"] = json!(100);
    browser.run("document.getElementById('format').value = 'json'");
    browser.fill("#spec", &serde_json::to_string_pretty(&wrong).unwrap());
    browser.wait("document.querySelector('#verdict.wrong')");
    browser.wait(&says("parameters[1]"));
    assert_eq!(
        browser.run("return document.querySelectorAll('#lines b').length"),
        1
    );
    browser.fill("#spec", &serde_json::to_string_pretty(&toy.spec).unwrap());
    browser.wait("document.querySelector('#verdict.right')");
    browser.click("#create");
}

fn kills_one(browser: &Browser, toy: &Toy) {
    browser.wait("document.querySelector('#kill')");
    browser.click("#kill");
    browser.click("#sure-yes");
    browser.wait("document.querySelector('tr.killed')");
    std::fs::remove_file(toy.path("slow")).unwrap();
}

fn pauses_and_resumes(browser: &Browser, toy: &Toy) {
    browser.click("#verb-pause");
    browser.wait("document.querySelector('p[role=status] .tag.paused')");
    assert_eq!(toy.knob(), FIRST);
    browser.click("#verb-resume");
    browser.wait("document.querySelector('p[role=status] .tag.running')");
}

fn watches_to_the_end(browser: &Browser, server: &Server<'_>) {
    browser.wait("document.querySelectorAll('tr.completed').length >= 3");
    browser.click("tr.completed th a");
    browser.wait("document.querySelector('#plot-blocks canvas')");
    browser.run("history.back()");
    browser.wait("document.querySelector('p[role=status] .tag.done')");
    assert!(
        server.get("/experiments/1")["sentence"]
            .as_str()
            .unwrap()
            .starts_with("Shown: ")
    );
    browser.wait("document.querySelectorAll('#importance tbody tr').length === 3");
    browser.wait("document.querySelectorAll('#scatters canvas').length === 3");
    browser.wait("document.getElementById('map-caption').textContent.includes('model')");
}

fn verifies(browser: &Browser, server: &Server<'_>) {
    browser.click("#verb-verify");
    browser.wait("document.querySelector('p[role=status] .tag.running')");
    browser.wait("document.querySelector('p[role=status] .tag.done')");
    browser.open(&server.page("/experiments/1/verification"));
    browser.wait(&says("This is verification 2"));
    browser.wait("document.querySelector('#plot-integrals canvas')");
}

fn promotes_and_rolls_back(browser: &Browser, server: &Server<'_>, toy: &Toy) {
    browser.open(&server.page("/experiments/1"));
    browser.click("#verb-promote");
    browser.click("#sure-yes");
    browser.wait("document.querySelector('.tag.promoted')");
    assert_ne!(toy.knob(), FIRST);
    browser.click("#verb-rollback");
    browser.click("#sure-yes");
    browser.wait("!document.querySelector('.tag.promoted')");
    assert_eq!(toy.knob(), FIRST);
    browser.open(&server.page("/host"));
    browser.wait(&says("no change waits to be restored"));
}

/// On a telephone, in the dark: nothing is wider than the screen but what scrolls by itself, and
/// everything has a name.
fn fits_a_telephone(server: &Server<'_>) {
    let small = Browser::start(360, true).unwrap();
    small.open(&server.sign_in("read_token"));
    for path in [
        "/",
        "/new",
        "/host",
        "/experiments/1",
        "/experiments/1/verification",
        "/experiments/1/evaluations/2",
    ] {
        small.open(&server.page(path));
        small.wait("document.readyState === 'complete'");
        let wide = small.run(
            "const width = window.innerWidth; return document.documentElement.scrollWidth <= width ? [] : \
             [width, document.documentElement.scrollWidth, ...[...document.querySelectorAll('*')].filter(it => \
             it.getBoundingClientRect().right > width).map(it => it.outerHTML.slice(0, 100))]",
        );
        assert_eq!(wide, json!([]), "{path} is too wide");
        let unnamed = small.run(
            "return [...document.querySelectorAll('button, a, input:not([type=hidden]), select, textarea')].filter(it => \
             !(it.textContent.trim() || it.getAttribute('aria-label') || it.labels?.length)).map(it => it.outerHTML)",
        );
        assert_eq!(
            unnamed,
            json!([]),
            "{path}: a screen reader has no name for these"
        );
        assert_eq!(
            small.run("return document.querySelectorAll('h1').length"),
            1,
            "{path}"
        );
    }
    small.open(&server.page("/experiments/1"));
    assert_eq!(
        small.run("return document.querySelectorAll('[data-post], [data-delete]').length"),
        0,
        "who may only look is offered nothing to change"
    );
    small.wait("document.querySelectorAll('#scatters canvas').length === 3");
    assert_eq!(small.errors(), Vec::<String>::new());
}

#[test]
fn a_person_clicks_through_all_of_it() {
    let toy = toy();
    let Some(browser) = Browser::start(1200, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    browser.open(&server.sign_in("write_token"));
    browser.wait(&says("There is none yet"));
    assert_eq!(
        browser.run("return location.search"),
        "",
        "the token has left the address"
    );
    creates(&browser, &server, &toy);
    kills_one(&browser, &toy);
    pauses_and_resumes(&browser, &toy);
    watches_to_the_end(&browser, &server);
    verifies(&browser, &server);
    promotes_and_rolls_back(&browser, &server, &toy);
    browser.open(&server.page("/"));
    browser.wait(&says("pool and codec"));
    assert_eq!(browser.errors(), Vec::<String>::new());
    fits_a_telephone(&server);
}

#[test]
fn a_person_signs_in_by_the_form() {
    let toy = toy();
    let Some(browser) = Browser::start(1200, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    browser.open(&server.page("/"));
    browser.wait("document.querySelector('form[action=\"/login\"]')");
    let fill = format!(
        "document.querySelector('form[action=\"/login\"] [name=token]').value = '{}'",
        server.token("write_token")
    );
    browser.run(&fill);
    browser.click("form[action=\"/login\"] button");
    browser.wait("document.querySelector('#sign-out')");
}

#[test]
fn ten_tabs_of_one_browser_are_live() {
    let toy = toy();
    let Some(browser) = Browser::start(1200, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    let base = server.page("/");
    browser.open(&server.sign_in("write_token"));
    for _ in 0..9 {
        browser.tab();
        browser.open(&base);
        browser.wait("document.querySelector('#live-list')");
    }
    // The last one is told of a change, and signs the browser out.
    server.create();
    browser.wait("document.querySelector('#live-list tbody tr')");
    browser.click("#sign-out");
    browser.wait("document.querySelector('form[action=\"/login\"]')");
    browser.open(&base);
    browser.wait("document.querySelector('form[action=\"/login\"]')");
}
