//! Each page in a headless Chromium, at three widths and in both colour schemes: nothing is cut
//! off, and axe-core finds nothing serious.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::browser;
use crate::serve::Server;
use crate::toy::{Ended, Toy, skip};
use crate::webdriver::Browser;

/// The browser's toy, in which a large `x` crashes the service.
pub(crate) fn toy() -> Toy {
    let mut toy = browser::toy();
    std::fs::remove_file(toy.path("slow")).unwrap();
    toy.load_after("us=$(( us + ({pool}-12)*({pool}-12) )); p50=$(( us / 3 ))");
    let script = "[ $1 -lt 60 ] || { echo 'x is too large' >&2; exit 1; }; exec sleep 1000";
    toy.spec["target"]["start"] = json!(["sh", "-c", script, "service", "{x}"]);
    toy.spec["budget"]["evaluations"] = json!(14);
    toy
}

/// axe-core's script. Where it was not fetched, that is said; in CI it must be there.
pub(crate) fn axe() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = std::fs::read_to_string(root.join("target/axe/node_modules/axe-core/axe.min.js"));
    if script.is_err() {
        let is_set =
            |name| std::env::var(name).is_ok_and(|it| !["", "0", "false"].contains(&it.as_str()));
        without_axe(["CI", "SLACKLINE_CI"].into_iter().any(is_set));
    }
    script.ok()
}

fn without_axe(is_ci: bool) {
    let why = "axe-core was not fetched, so nothing checks the pages' accessibility: see `cargo xtask install test`";
    assert!(!is_ci, "{why}");
    // What a test prints is shown where it fails alone; what it writes is always shown.
    let _ = writeln!(std::io::stderr(), "warning: {why}");
}

/// What is serious or worse on the present page.
fn serious(browser: &Browser, axe: &str) -> Value {
    browser.run(axe);
    browser.run(
        "window.found = null; axe.run(document, { resultTypes: ['violations'] }).then(it => { window.found = \
         it.violations.filter(it => ['serious', 'critical'].includes(it.impact)).map(it => [it.id, it.help, \
         ...it.nodes.slice(0, 3).map(node => node.html.slice(0, 160))]); });",
    );
    browser.wait("window.found !== null");
    browser.run("return window.found")
}

/// Elements that make the page wider than the screen.
const TOO_WIDE: &str = "const width = window.innerWidth; return document.documentElement.scrollWidth <= width ? [] : \
    [...document.querySelectorAll('main *')].filter(it => it.getBoundingClientRect().right > width && \
    !it.parentElement.closest('.scroll, pre')).map(it => it.outerHTML.slice(0, 100))";

/// Labels above their fields that touch them; every part of the page is unfolded first.
const TOUCHING: &str = "document.querySelectorAll('details').forEach(it => { it.open = true; }); \
    return [...document.querySelectorAll('main label[for]')].filter(label => { \
    const [a, b] = [label, document.getElementById(label.htmlFor)].map(it => it.getBoundingClientRect()); \
    return a.height > 1 && b.height > 0 && b.left < a.right && b.top > a.top + a.height / 2 && b.top - a.bottom < 2; \
    }).map(it => it.outerHTML)";

/// Each table that scrolls sideways says so, and its first column leaves room for the others.
const UNHINTED: &str = "[...document.querySelectorAll('.scroll')].every(it => it.scrollWidth <= it.clientWidth + 1 || \
    (it.classList.contains('is-wide') && [...it.querySelectorAll('.stick')].every(cell => \
    cell.offsetWidth < 0.6 * it.clientWidth && cell.offsetHeight < 200)))";

/// The server with a finished experiment, and a second one that started from it.
pub(crate) fn measured(toy: &Toy) -> Server<'_> {
    let server = Server::start(toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    let fork = server.does(&["fork", &id.to_string()]).with_code(0);
    let fork: i64 = fork.stdout.trim().parse().unwrap();
    server.wait_for(fork, &["done"]);
    server
}

/// Nothing is cut off on a page, and axe-core finds nothing serious.
pub(crate) fn is_whole(browser: &mut Browser, server: &Server<'_>, path: &str, axe: Option<&str>) {
    for width in [360, 768, 1400] {
        browser.look(width, false);
        browser.open(&server.page(path));
        browser.wait("document.readyState === 'complete'");
        for is_dark in [false, true] {
            browser.look(width, is_dark);
            let what = format!("{path} at {width} px, dark: {is_dark}");
            assert_eq!(browser.run(TOO_WIDE), json!([]), "{what} is too wide");
            browser.wait(UNHINTED);
            if let Some(axe) = axe {
                assert_eq!(serious(browser, axe), json!([]), "{what}");
            }
            assert_eq!(browser.run(TOUCHING), json!([]), "{what}");
        }
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn every_page_is_whole_at_three_widths_in_both_colour_schemes() {
    let toy = toy();
    let Some(mut browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let axe = axe();
    let server = measured(&toy);
    browser.open(&server.sign_in("write_token"));
    for path in [
        "/",
        "/experiments/1",
        "/experiments/1?sort=-p%3Ax&search=pool&column=outcome&column=m%3Alatency_p99_us",
        "/experiments/1/evaluations/1",
        "/experiments/1/verification",
        "/compare?id=1&id=2",
        "/promotions",
        "/host",
        "/new",
        "/audit",
    ] {
        is_whole(&mut browser, &server, path, axe.as_deref());
    }
}

#[test]
#[should_panic(expected = "axe-core was not fetched")]
fn in_ci_axe_must_be_there() {
    without_axe(true);
}

#[test]
fn the_table_is_sorted_filtered_and_searched() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    browser.open(&server.sign_in("write_token"));
    browser.open(&server.page("/experiments/1"));
    browser.wait("document.querySelector('.tag.winner')");
    let numbers = "return [...document.querySelectorAll('#live-results tbody th a')].map(it => Number(it.textContent))";
    // The first column stays where the table is scrolled sideways.
    assert_eq!(
        browser.run(
            "return getComputedStyle(document.querySelector('#live-results tbody th')).position"
        ),
        json!("sticky")
    );
    // The heading sorts, and sorts the other way at the second click; the page is not left.
    browser.run("window.mine = true");
    browser.click("#live-results th.stick a");
    browser.wait("document.querySelector('#live-results th.stick').ariaSort === 'ascending'");
    assert_eq!(browser.run(numbers), json!((1..=14).collect::<Vec<_>>()));
    browser.click("#live-results th.stick a");
    browser.wait("document.querySelector('#live-results th.stick').ariaSort === 'descending'");
    assert_eq!(browser.run(numbers)[0], json!(14));
    browser.run(
        "const it = document.querySelector('#look [name=outcome]'); it.value = 'crashed'; \
         it.dispatchEvent(new Event('input', { bubbles: true }))",
    );
    browser.wait("[...document.querySelectorAll('#live-results tbody tr')].every(it => it.className === 'crashed')");
    browser.fill("#look [name=search]", "no such thing");
    browser.wait(
        "document.getElementById('live-results').innerText.includes('No evaluation matches')",
    );
    assert_eq!(browser.run("return window.mine"), json!(true));
    browser.run("history.back()");
    browser.wait("document.querySelectorAll('#live-results tbody tr').length > 0");

    // An evaluation: its neighbours, every metric, and once more.
    browser.open(&server.page("/experiments/1/evaluations/2"));
    browser.wait("document.querySelector('[rel=prev]') && document.querySelector('[rel=next]')");
    browser.click("#again");
    browser.wait("!document.getElementById('done').hidden");
    assert_eq!(
        server.get("/experiments/1/queue").as_array().unwrap().len(),
        1
    );
    // A note is shown where it was written, and read as text.
    browser.run("document.querySelector('[data-shape=note]').closest('details').open = true");
    browser.fill("#note-text", "<b>odd</b>, see the log");
    browser.run("document.querySelector('[data-shape=note] button').click()");
    browser.wait("document.querySelector('.remark')?.innerText === '<b>odd</b>, see the log'");
    // What was copied is said on the button, which has its own label again.
    browser.open(&server.page("/experiments/1"));
    let label = "document.querySelector('.card button.copy:not(.copied *)')?.textContent";
    browser.wait(&format!("{label} === 'Copy all'"));
    browser.click(".card button.copy:not(.copied *)");
    browser.wait(&format!(
        "{label}.startsWith('Cop') && {label} !== 'Copy all'"
    ));
    browser.wait(&format!("{label} === 'Copy all'"));
    // What ends something asks first, and can be taken back.
    browser.open(&server.page("/experiments/2"));
    browser.click("#verb-delete");
    browser.click("#sure-no");
    assert_eq!(server.get("/experiments/2")["state"], "done");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_choice_of_too_many_to_compare_is_kept() {
    let toy = toy();
    let Some(browser) = Browser::start(390, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    for _ in 0..6 {
        server.create();
    }
    browser.open(&server.sign_in("read_token"));
    browser.open(&server.page("/compare"));
    browser.run("for (const it of document.querySelectorAll('[name=id]')) it.checked = true");
    browser.click("form button");
    browser.wait("document.querySelector('.complaint[role=alert]:not([hidden])')?.innerText.includes('You chose 6')");
    let chosen = browser.run("return document.querySelectorAll('[name=id]:checked').length");
    assert_eq!(chosen, json!(6));
    browser.run("document.querySelector('[name=id]').checked = false");
    browser.click("form button");
    browser.wait("document.querySelectorAll('thead th[scope=col]').length === 5");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_page_says_that_the_server_is_away_and_recovers() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    let address = server.page("/");
    browser.open(&format!("{address}?token={}", server.token("write_token")));
    browser.wait("document.querySelector('#live-list')");
    assert_eq!(
        browser.run("return document.getElementById('away').hidden"),
        json!(true)
    );
    server.end();
    browser.wait("!document.getElementById('away').hidden");
    let said = browser.run("return document.getElementById('away').textContent");
    let said = said.as_str().unwrap();
    assert!(said.contains("does not answer"), "{said}");
    // The time is written as all times on the pages.
    assert!(said.contains(" UTC."), "{said}");
    // At the same address again.
    let listen = address
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .to_owned();
    let again = Server::start_at(&toy, &listen);
    browser.wait("document.getElementById('away').hidden");
    again.create();
    browser.wait("document.querySelector('#live-list tbody tr')");
}

#[test]
fn a_page_whose_token_is_revoked_says_so_and_asks_for_nothing_more() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    let tokens = |arguments: &[&str]| {
        Ended::of(toy.slackline(&[&["serve", "tokens"], arguments].concat())).with_code(0)
    };
    let made = tokens(&["new", "--name", "anna", "--role", "write"]).stdout;
    browser.open(&server.page(&format!("/?token={}", made.trim())));
    let path = format!("/experiments/{id}?sort=number");
    browser.open(&server.page(&path));
    browser.wait("document.querySelector('#model-note').textContent.startsWith('The model was')");
    let write = format!("Bearer {}", server.token("write_token"));
    let audit = || -> Vec<Value> {
        let headers = [("authorization", write.as_str())];
        let answer = crate::api::answer("GET", &server.url("/audit"), &headers, "");
        answer.into_body().read_json().unwrap()
    };
    let before = audit().len();
    tokens(&["revoke", "anna"]);
    browser.wait("document.querySelector('#complaint a')");
    // Whatever is clicked or changed, nothing is asked for any more.
    browser.run(
        "const map = document.getElementById('map-x'); map.selectedIndex = 1; map.dispatchEvent(new Event('change')); \
         document.querySelector('#look [name=outcome]').dispatchEvent(new Event('input', { bubbles: true })); \
         document.dispatchEvent(new Event('refreshed')); document.getElementById('verb-fork').dataset.sure = ''; \
         document.getElementById('verb-fork').click();",
    );
    std::thread::sleep(std::time::Duration::from_secs(7));
    let said = browser.run(
        "return [...document.querySelectorAll('.complaint:not([hidden])')].map(it => it.textContent)",
    );
    assert_eq!(said, json!(["You are signed out. Sign in again."]));
    let text = browser.run("return document.body.innerText");
    assert!(!text.as_str().unwrap().contains("needs a token"), "{text}");
    let audit = audit();
    let new = &audit[..audit.len() - before];
    assert!(
        new.iter().all(|it| it["action"] == "revoke-token"),
        "{new:?}"
    );
    // The form leads back to where the page was.
    browser.click("#complaint a");
    browser.wait("document.querySelector('form[action=\"/login\"]')");
    browser.fill("#token", &server.token("read_token"));
    browser.click("form button");
    browser.wait(&format!(
        "location.pathname + location.search === '{path}' && document.querySelector('#look')"
    ));
}

#[test]
fn a_reader_checks_a_specification_and_is_offered_nothing_more() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    browser.open(&server.sign_in("read_token"));
    browser.open(&server.page("/new"));
    browser.run("document.getElementById('format').value = 'json'");
    browser.fill("#spec", &toy.spec.to_string());
    browser.wait("document.querySelector('#verdict.right')");
    browser.fill("#spec", "{}");
    browser.wait("document.querySelector('#verdict.wrong')");
    assert_eq!(
        browser.run("return document.querySelectorAll('#create').length"),
        json!(0)
    );
}
