//! Each page in a headless Chromium, at three widths and in both colour schemes: nothing is cut
//! off, axe-core finds nothing serious, and the charts show what was measured.

use std::path::Path;

use serde_json::{Value, json};

use crate::browser;
use crate::serve::Server;
use crate::toy::{Toy, skip};
use crate::webdriver::Browser;

/// The browser's toy, in which a large `x` crashes the service.
fn toy() -> Toy {
    let mut toy = browser::toy();
    std::fs::remove_file(toy.path("slow")).unwrap();
    toy.load_after("us=$(( us + ({pool}-12)*({pool}-12) )); p50=$(( us / 3 ))");
    let script = "[ $1 -lt 60 ] || { echo 'x is too large' >&2; exit 1; }; exec sleep 1000";
    toy.spec["target"]["start"] = json!(["sh", "-c", script, "service", "{x}"]);
    toy.spec["budget"]["evaluations"] = json!(14);
    toy
}

/// axe-core's script, where it was fetched.
fn axe() -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join("target/axe/node_modules/axe-core/axe.min.js")).ok()
}

/// What is serious or worse on the present page: by all rules, or by those of colours alone.
fn serious(browser: &Browser, axe: &str, is_of_colours: bool) -> Value {
    browser.run(axe);
    let rules = if is_of_colours {
        "runOnly: ['color-contrast'],"
    } else {
        ""
    };
    browser.run(&format!(
        "window.found = null; axe.run(document, {{ {rules} resultTypes: ['violations'] }}).then(it => {{ window.found = \
         it.violations.filter(it => ['serious', 'critical'].includes(it.impact)).map(it => [it.id, it.help, \
         ...it.nodes.slice(0, 3).map(node => node.html.slice(0, 160))]); }});"
    ));
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

/// Pixels of a colour of the style sheet in the canvases of an element.
fn pixels(browser: &Browser, selector: &str, colour: &str) -> u64 {
    let script = format!(
        "const wanted = getComputedStyle(document.documentElement).getPropertyValue('{colour}').trim().slice(1); \
         const [r, g, b] = [0, 2, 4].map(at => parseInt(wanted.slice(at, at + 2), 16)); let count = 0; \
         for (const canvas of document.querySelectorAll('{selector}')) {{ \
         const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; \
         for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200 && Math.abs(data[at] - r) < 12 && \
         Math.abs(data[at + 1] - g) < 12 && Math.abs(data[at + 2] - b) < 12) count++; }} return count",
    );
    browser.run(&script).as_u64().unwrap()
}

/// Waits until there are more than so many: a canvas is drawn some time after its page is there.
fn wait_for_pixels(browser: &Browser, selector: &str, colour: &str, more_than: u64) {
    let begun = std::time::Instant::now();
    while pixels(browser, selector, colour) <= more_than {
        assert!(
            begun.elapsed().as_secs() < 30,
            "no {colour} in {selector}: {:?}",
            browser.errors()
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// The server with a finished experiment, and a second one that started from it.
fn measured(toy: &Toy) -> Server<'_> {
    let server = Server::start(toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    let fork = server.does(&["fork", &id.to_string()]).with_code(0);
    let fork: i64 = fork.stdout.trim().parse().unwrap();
    server.wait_for(fork, &["done"]);
    server
}

#[test]
fn every_page_is_whole_at_three_widths_in_both_colour_schemes() {
    let toy = toy();
    let Some(mut browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let axe = axe();
    if axe.is_none() {
        println!("SKIP: axe-core was not fetched, see `cargo xtask install test`");
    }
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
        for (width, is_dark) in [(360, true), (768, false), (1400, false)] {
            browser.look(width, is_dark);
            browser.open(&server.page(path));
            browser.wait("document.readyState === 'complete'");
            let what = format!("{path} at {width} px");
            assert_eq!(browser.run(TOO_WIDE), json!([]), "{what} is too wide");
            browser.wait(UNHINTED);
            if let Some(axe) = &axe {
                assert_eq!(serious(&browser, axe, false), json!([]), "{what}");
                // The other scheme has other colours, and nothing else.
                browser.look(width, !is_dark);
                let found = serious(&browser, axe, true);
                assert_eq!(found, json!([]), "{what}, dark: {}", !is_dark);
            }
            assert_eq!(browser.run(TOUCHING), json!([]), "{what}");
        }
    }
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn charts_show_crashes_and_what_is_probably_infeasible() {
    let toy = toy();
    let Some(mut browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    let evaluations = server.get("/experiments/1/evaluations?outcome=crashed");
    assert!(
        !evaluations.as_array().unwrap().is_empty(),
        "nothing crashed"
    );
    browser.open(&server.sign_in("read_token"));
    for (width, is_dark) in [(1400, false), (360, true)] {
        browser.look(width, is_dark);
        browser.open(&server.page("/experiments/1"));
        browser.wait("document.querySelectorAll('#importance tbody tr').length === 3");
        let shares = "return [...document.querySelectorAll('#importance tbody td:nth-child(2)')]\
            .reduce((sum, it) => sum + parseInt(it.textContent), 0)";
        assert_eq!(browser.run(shares), 100);
        browser.wait("document.getElementById('map-caption').textContent.includes('Hatched')");
        browser
            .wait("document.querySelector('.legend')?.textContent.includes('crashed: no value')");
        for (chart, colour, more_than) in [
            ("#plot-convergence canvas", "--bad", 20),
            ("#scatter-x canvas", "--bad", 20),
            ("#parallel", "--accent", 20),
            ("#map", "--ink", 100),
        ] {
            wait_for_pixels(&browser, chart, colour, more_than);
        }
        // The best of the map lies where nothing crashed.
        let selects = "[document.getElementById('map-x').value, document.getElementById('map-y').value].includes('x')";
        browser.wait(selects);
    }
    // No line joins what stands before and behind a promotion.
    browser.run(
        "import('/assets/plot.js').then(it => { window.parts = it.parted([[1, 2, 3], [7, 8, 9]], [0, 2]); }); return null",
    );
    browser.wait("window.parts !== undefined");
    assert_eq!(
        browser.run("return window.parts"),
        json!([[1, 2, 2, 3], [7, null, 8, 9]])
    );
    // Values at the cursor, and a click through to the evaluation.
    browser.look(1400, false);
    browser.open(&server.page("/experiments/1"));
    wait_for_pixels(&browser, "#plot-convergence canvas", "--bad", 20);
    // Found and clicked in one go: the chart moves while the page is still laid out.
    let sweep = "const it = document.getElementById('plot-convergence'); const box = it.getBoundingClientRect(); \
        for (let x = 0; x < box.width; x += 4) for (let y = 0; y < box.height; y += 4) { \
        const at = { clientX: box.left + x, clientY: box.top + y, bubbles: true }; \
        it.dispatchEvent(new PointerEvent('pointermove', at)); const tip = it.querySelector('.tip'); \
        if (!tip.hidden) { it.dispatchEvent(new MouseEvent('click', at)); return tip.textContent; } } return ''";
    let found = browser.run(sweep);
    assert!(
        found.as_str().unwrap().starts_with("Evaluation "),
        "{found}"
    );
    browser.wait("location.pathname.startsWith('/experiments/1/evaluations/')");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_drag_enlarges_a_part_of_a_chart_and_leads_nowhere() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    browser.open(&server.sign_in("read_token"));
    browser.open(&server.page("/experiments/1"));
    for chart in ["plot-convergence", "plot-runs"] {
        let over = format!("document.querySelector('#{chart} .u-over')");
        browser.wait(&over);
        // From a quarter to the half of the width, straight across; the browser clicks where a drag
        // ends.
        browser.run(&format!(
            "const over = {over}; const box = over.getBoundingClientRect(); const at = (name, share) => over.dispatchEvent(\
             new (name === 'click' ? MouseEvent : PointerEvent)(name, {{ clientX: box.left + share * box.width, clientY: \
             box.top + box.height / 2, bubbles: true, button: 0, pointerId: 1 }})); Element.prototype.setPointerCapture = \
             () => {{}}; at('pointerdown', 0.25); at('pointermove', 0.4); at('pointermove', 0.5); at('pointerup', 0.5); at('click', 0.5);"
        ));
        let part = format!("document.getElementById('{chart}').selection");
        browser.wait(&part);
        assert_eq!(
            browser.run(&format!("return {part}.y ?? null")),
            Value::Null
        );
        // A live page draws its charts again: the part stays.
        browser.run("document.dispatchEvent(new Event('refreshed'))");
        let all = format!("#{chart} ~ .tools .all");
        browser.wait(&format!("!document.querySelector('{all}').hidden"));
        browser.click(&all);
        browser.wait(&format!(
            "!{part} && document.querySelector('{all}').hidden"
        ));
    }
    assert_eq!(
        browser.run("return location.pathname"),
        json!("/experiments/1")
    );
    assert_eq!(browser.errors(), Vec::<String>::new());
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
    assert!(said.as_str().unwrap().contains("does not answer"), "{said}");
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
