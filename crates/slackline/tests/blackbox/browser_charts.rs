//! The charts in a headless Chromium: what they draw of what was measured, in which colours, and
//! what a mouse does to them.

use serde_json::{Value, json};

use crate::browser_pages::{axe, is_whole, measured, toy};
use crate::continuous;
use crate::eventually::eventually;
use crate::serve::Server;
use crate::toy::skip;
use crate::webdriver::Browser;

/// What a function of `drawn.js` returns.
pub(crate) fn drawn(browser: &Browser, call: &str) -> Value {
    browser.run(&format!("{}\nreturn {call}", include_str!("drawn.js")))
}

/// Waits until there are more than so many pixels of a colour of the style sheet: a canvas is drawn
/// some time after its page is there.
fn wait_for_pixels(browser: &Browser, selector: &str, colour: &str, more_than: u64) {
    let pixels = || drawn(browser, &format!("pixels('{selector}', '{colour}')"));
    let is_drawn = || pixels().as_u64().unwrap() > more_than;
    let missing = || format!("no {colour} in {selector}: {:?}", browser.errors());
    eventually(30, is_drawn, missing);
}

/// How much of a line through a chart, at a value of its scale `x` or `y`, has a colour.
fn covered(browser: &Browser, chart: &str, scale: &str, value: f64, colour: &str) -> f64 {
    let call = format!("covered('{chart}', '{scale}', {value}, '{colour}')");
    drawn(browser, &call).as_f64().unwrap()
}

/// The evaluations that ended with a value: number, and change of the objective in per cent.
fn changes(server: &Server<'_>, id: i64) -> Vec<(u64, f64)> {
    let points = server.get(&format!("/experiments/{id}/points"));
    let column = |name: &str| points[name].as_array().unwrap().clone();
    let rows = column("number").into_iter().zip(column("score"));
    let rows = rows.zip(column("outcome"));
    rows.filter(|(_, outcome)| outcome == "completed")
        .map(|((number, score), _)| {
            let change = score.as_f64().unwrap().exp_m1() * 100.0;
            (number.as_u64().unwrap(), change)
        })
        .collect()
}

/// The best so far of an experiment, halfway between one evaluation and the next.
fn steps_of(server: &Server<'_>, id: i64) -> Vec<(f64, f64)> {
    let mut best = f64::INFINITY;
    let steps = changes(server, id).into_iter().map(|(number, change)| {
        best = best.min(change);
        // Halfway to the next evaluation a step has its height still.
        (number as f64 + 0.5, best)
    });
    let mut steps: Vec<(f64, f64)> = steps.collect();
    // Behind the last one the chart ends.
    steps.pop();
    assert!(steps[0].1 > best, "no step: {steps:?}");
    steps
}

/// The charts of an experiment's page.
fn charts_of_experiment(browser: &Browser, steps: &[(f64, f64)]) {
    browser.wait("document.querySelectorAll('#importance tbody tr').length === 3");
    let shares = "return [...document.querySelectorAll('#importance tbody td:nth-child(2)')]\
        .reduce((sum, it) => sum + parseInt(it.textContent), 0)";
    assert_eq!(browser.run(shares), 100);
    browser.wait("document.getElementById('map-caption').textContent.includes('Hatched')");
    browser.wait("document.querySelector('.legend')?.textContent.includes('crashed: no value')");
    for (chart, colour, more_than) in [
        ("#plot-convergence canvas", "--bad", 20),
        ("#scatter-x canvas", "--bad", 20),
        ("#parallel", "--accent", 20),
        ("#map", "--ink", 100),
    ] {
        wait_for_pixels(browser, chart, colour, more_than);
    }
    // The best of the map lies where nothing crashed.
    let selects = "[document.getElementById('map-x').value, document.getElementById('map-y').value].includes('x')";
    browser.wait(selects);
    let call = format!("missing('plot-convergence', {}, '--accent')", json!(steps));
    assert_eq!(drawn(browser, &call), json!([]), "the best so far");
    // The control is a dashed line, at 0.
    let control = covered(browser, "plot-convergence", "y", 0.0, "--quiet");
    assert!((0.4..0.9).contains(&control), "{control}");
}

/// What is probably infeasible is hatched, and nothing else.
fn map_is_hatched(browser: &Browser) {
    browser.wait("document.getElementById('map-caption').textContent.includes('Hatched')");
    let count = drawn(browser, "hatched()");
    let of = |what: &str, how: &str| count[what][how].as_f64().unwrap();
    assert!(
        of("infeasible", "lined") > 9.0 * of("infeasible", "plain"),
        "{count}"
    );
    assert!(
        of("feasible", "plain") > 9.0 * of("feasible", "lined"),
        "{count}"
    );
}

/// The charts of the verification, of an evaluation and of a comparison.
fn charts_of_other_pages(browser: &Browser, server: &Server<'_>) {
    // Each candidate has a colour of its own, and neither has the control's.
    browser.open(&server.page("/experiments/1/verification"));
    for colour in ["--line-1", "--line-2"] {
        wait_for_pixels(browser, "#plot-integrals canvas", colour, 100);
    }
    let number = changes(server, 1)[0].0;
    browser.open(&server.page(&format!("/experiments/1/evaluations/{number}")));
    for colour in ["--accent", "--quiet"] {
        wait_for_pixels(browser, "#plot-blocks canvas", colour, 50);
    }
    browser.open(&server.page("/compare?id=1&id=2"));
    for colour in ["--line-1", "--line-2"] {
        wait_for_pixels(browser, "#plot-compare canvas", colour, 100);
    }
    // A legend has names alone until the cursor is over the chart.
    let legend = browser.run("return document.querySelector('#plot-compare .u-legend').innerText");
    assert!(!legend.as_str().unwrap().contains('–'), "{legend}");
    let form = browser.run("return document.querySelector('.choices').textContent");
    assert!(
        form.as_str().unwrap().contains("done, created 20"),
        "{form}"
    );
}

/// The scales, ends and parts that the scripts compute.
fn scripts_compute(browser: &Browser) {
    // The colours of a map end where the measured values end, however far the model goes.
    browser.run(
        "const unit = { control: 0, sign: 1 }; import('/assets/map.js').then(it => { window.scales = [\
         it.scaled([-0.3, -0.1, -0.2, null], [-0.2, 2.8], unit), it.scaled([-0.3, 0.1], [-0.2], unit)]; }); return null",
    );
    browser.wait("window.scales");
    let scales = browser.run("return window.scales");
    assert_eq!(
        scales,
        json!([
            { "low": -0.3, "high": 0, "middle": 0, "far": 0.3, "isExceeded": true },
            { "low": -0.3, "high": 0.1, "middle": 0, "far": 0.3, "isExceeded": false },
        ])
    );
    // An outlier does not flatten the rest, and what must be seen is seen. Round numbers stand
    // beside a map, with room between them.
    browser.run(
        "Promise.all(['plot', 'map'].map(it => import(`/assets/${it}.js`))).then(([plot, map]) => { window.ends = [\
         plot.extent([1, 2, 3, 4, 5, 6, 7, 8, 900]), plot.extent([1, 2, 3, 4, 5, 6, 7, 8, 900], [20]), \
         plot.extent([1, 2, 900]), map.round([20, 80, 321, 1286, 5150, 20632], 3), map.round([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)]; }); \
         return null",
    );
    browser.wait("window.ends");
    assert_eq!(
        browser.run("return window.ends"),
        json!([[1, 8], [1, 20], [1, 900], [100, 1000, 10000], [2, 4, 6, 8]])
    );
    // No line joins what stands before and behind a promotion.
    browser.run(
        "import('/assets/plot.js').then(it => { window.parts = it.parted([[1, 2, 3], [7, 8, 9]], [0, 2]); }); return null",
    );
    browser.wait("window.parts !== undefined");
    assert_eq!(
        browser.run("return window.parts"),
        json!([[1, 2, 2, 3], [7, null, 8, 9]])
    );
}

#[test]
fn charts_show_what_was_measured_and_what_is_probably_infeasible() {
    let mut toy = toy();
    toy.spec["verification"]["top"] = json!(2);
    let Some(mut browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    let evaluations = server.get("/experiments/1/evaluations?outcome=crashed");
    assert!(
        !evaluations.as_array().unwrap().is_empty(),
        "nothing crashed"
    );
    let steps = steps_of(&server, 1);
    browser.open(&server.sign_in("read_token"));
    for (width, is_dark) in [(1400, false), (360, true)] {
        browser.look(width, is_dark);
        browser.open(&server.page("/experiments/1"));
        charts_of_experiment(&browser, &steps);
    }
    browser.look(1400, false);
    browser.open(&server.page("/experiments/1"));
    map_is_hatched(&browser);
    charts_of_other_pages(&browser, &server);
    scripts_compute(&browser);
    // A list stands in the specification's order, which is not that of the alphabet.
    let points = server.get("/experiments/1/points");
    assert_eq!(points["values"]["codec"], json!(["zstd", "none", "lz4"]));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_mouse_reads_selects_and_enlarges() {
    let toy = toy();
    let Some(browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    browser.open(&server.sign_in("read_token"));
    browser.open(&server.page("/experiments/1"));
    // From a quarter to the half of the width, straight across.
    for chart in ["plot-convergence", "plot-runs"] {
        let over = format!("#{chart} .u-over");
        browser.wait(&format!("document.querySelector('{over}')"));
        browser.wait("document.getElementById('map-caption').textContent.includes('Hatched')");
        browser.drag(&over, [0.25, 0.5], [0.5, 0.5]);
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

    // The lower half of the last axis of the parallel coordinates: the better half, without those
    // that crashed, which end at the top.
    let caption = "document.getElementById('parallel-caption').textContent";
    browser.wait(&format!("{caption}.includes('Drag along an axis')"));
    wait_for_pixels(&browser, "#parallel", "--accent", 100);
    let value = browser.run("const width = document.getElementById('parallel').clientWidth; return (width - 44) / width");
    let value = value.as_f64().unwrap();
    browser.drag("#parallel", [value, 0.98], [value, 0.5]);
    browser.wait(&format!("{caption}.includes('are selected')"));
    let told = browser.run(&format!("return {caption}"));
    let told = told.as_str().unwrap();
    let changes = changes(&server, 1);
    let best = changes.iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
    let named = format!("The best of them is evaluation {} with", best.0);
    assert!(told.contains(&named), "{told}");
    let selected: usize = told.split(' ').next().unwrap().parse().unwrap();
    assert!((1..changes.len()).contains(&selected), "{told}");
    let crashed = "pixels('#parallel', '--bad')";
    assert_eq!(drawn(&browser, crashed), json!(0), "what is not selected");
    browser.drag("#parallel", [value, 0.5], [value, 0.5]);
    browser.wait(&format!("{caption}.includes('Drag along an axis')"));

    // Values at the cursor, and a click through to the evaluation. Found and clicked in one go: the
    // chart moves while the page is still laid out.
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

/// The numbers of tables and charts, by the server's rule and by the scripts'.
#[test]
fn scripts_write_numbers_as_the_server_does() {
    let toy = toy();
    let Some(browser) = Browser::start(800, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    browser.open(&server.sign_in("read_token"));
    let mut values = vec![
        0.0,
        1.0,
        12_345.0,
        98_765.4,
        999_999.6,
        1e6,
        1.5e9,
        -2.5e-7,
        1e-4,
        0.000_123_45,
    ];
    // From the smallest to the largest that anybody measures.
    values.extend((-900..1200).map(|step| {
        let sign = if step % 3 == 0 { -1.0 } else { 1.0 };
        sign * 1.029_f64.powi(step)
    }));
    browser.run(&format!(
        "const values = {}; import('/assets/plot.js').then(it => {{ window.texts = \
         [it.digits, it.signed].map(as => values.map(as)); }})",
        json!(values)
    ));
    browser.wait("window.texts");
    let texts = browser.run("return window.texts");
    let change = |value: &f64| format!("{} %", tuner::report::percent(1.0 + value / 100.0));
    for (index, value) in values.iter().enumerate() {
        let text = tuner::report::significant(*value);
        assert_eq!(texts[0][index], text, "{value}");
        assert_ne!(texts[1][index], "−0.0 %", "{value}");
        if (1e-3..1e6).contains(&value.abs()) {
            assert_eq!(texts[1][index], change(value), "{value}");
        }
    }
}

#[test]
fn what_is_always_on_is_drawn_as_it_happens() {
    let toy = continuous::toy();
    let Some(mut browser) = Browser::start(1400, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    let id = server.create();
    assert_eq!(id, 1);
    let shown = continuous::wait_until(&server, id, |shown| {
        continuous::is_promoted(shown)
            && shown["continuous"]["tests"][0]["rounds"].as_u64() > Some(2)
    });
    browser.open(&server.sign_in("write_token"));
    browser.open(&server.page("/experiments/1"));
    browser.run("window.mine = true");
    // A promotion is an upright line, the change itself a line with a band around it.
    let at = |shown: &Value, kind: &str| {
        let mut entries = shown["entries"].as_array().unwrap().iter();
        let entry = entries.rfind(|it| it["kind"] == kind).unwrap();
        let at: jiff::Timestamp = entry["at"].as_str().unwrap().parse().unwrap();
        at.as_millisecond() as f64 / 1000.0
    };
    wait_for_pixels(&browser, "#plot-gain canvas", "--accent", 20);
    let promoted = covered(&browser, "plot-gain", "x", at(&shown, "promoted"), "--good");
    assert!(promoted > 0.7, "{promoted}");
    // Before the promotion the control is compared with itself: that line lies on the control's.
    let control = covered(&browser, "plot-gain", "y", 0.0, "--quiet");
    assert!((0.05..0.9).contains(&control), "{control}");
    // Evidence stands against the line of the alarm.
    wait_for_pixels(&browser, "#plot-evidence canvas", "--accent", 20);
    let alarm = covered(&browser, "plot-evidence", "y", 1.0, "--bad");
    assert!((0.4..0.9).contains(&alarm), "{alarm}");
    // Both go on with the rounds, without another visit.
    let rounds = "['gain', 'evidence'].map(it => document.getElementById(`plot-${it}`).zoom.plot.data[0].length)";
    let before = browser.run(&format!("return {rounds}"));
    browser.wait(&format!(
        "{rounds}.every((it, index) => it > {before}[index]) && window.mine"
    ));

    // Each promotion has a chart, one that is added while the page is open too. The server has one
    // promotion at the most, so the page's answer is given a second one.
    browser.open(&server.page("/promotions"));
    wait_for_pixels(&browser, "#plot-gain-1 canvas", "--good", 100);
    browser.run(
        "const real = window.fetch; window.fetch = async (url, ...more) => { const answer = await real(url, ...more); \
         if (url !== location.href) return answer; \
         const page = new DOMParser().parseFromString(await answer.text(), 'text/html'); \
         const card = page.querySelector('#live-promotions .card'); if (card) { const twin = card.cloneNode(true); \
         twin.innerHTML = twin.innerHTML.replaceAll('gain-1', 'gain-2').replaceAll('rollback-1', 'rollback-2'); \
         card.after(twin); } return new Response(page.documentElement.outerHTML, { status: answer.status }); }",
    );
    for chart in ["#plot-gain-2 canvas", "#plot-gain-1 canvas"] {
        wait_for_pixels(&browser, chart, "--good", 100);
    }
    server.does(&["pause", "1"]).with_code(0);
    server.wait_for(id, &["paused"]);
    let axe = axe();
    for path in ["/experiments/1", "/promotions"] {
        is_whole(&mut browser, &server, path, axe.as_deref());
    }
    browser.look(1400, false);
    browser.open(&server.page("/promotions"));
    // It can be rolled back from here; then nothing is in force, and the chart says when.
    browser.click("#rollback-1");
    browser.click("#sure-yes");
    let shown = continuous::wait_until(&server, id, |shown| {
        shown["continuous"]["rollbacks"].as_u64() > Some(0)
    });
    browser.wait("document.querySelector('#live-past li.bad')");
    browser.open(&server.page("/experiments/1"));
    wait_for_pixels(&browser, "#plot-gain canvas", "--bad", 100);
    let rolled_back = covered(&browser, "plot-gain", "x", at(&shown, "rollback"), "--bad");
    assert!(rolled_back > 0.7, "{rolled_back}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}
