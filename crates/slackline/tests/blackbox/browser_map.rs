//! The map of two parameters in a headless Chromium: what it says at the cursor, on screens of two
//! sharpnesses, and how it follows a running experiment.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::browser_charts::drawn;
use crate::browser_pages::{measured, toy};
use crate::eventually::{eventually, found_within};
use crate::serve::Server;
use crate::toy::skip;
use crate::webdriver::Browser;

/// A place of the map, in pixels from its corner, and what stands there.
struct Tip {
    left: f64,
    top: f64,
    text: String,
}

fn tips(browser: &Browser) -> Vec<Tip> {
    let found = drawn(browser, "tips(5)");
    let found = found.as_array().unwrap().iter();
    found
        .map(|it| Tip {
            left: it[0].as_f64().unwrap(),
            top: it[1].as_f64().unwrap(),
            text: it[2].as_str().unwrap().to_owned(),
        })
        .collect()
}

/// The evaluation that a tip names.
fn number(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("Evaluation ")?;
    rest.split(',').next()?.parse().ok()
}

/// Has the map drawn over these two parameters, and waits for it.
fn choose(browser: &Browser, [across, up]: [&str; 2]) -> Vec<Tip> {
    browser.run(&format!(
        "for (const [id, name] of {}) {{ const it = document.getElementById(id); it.value = name; \
         it.dispatchEvent(new Event('change')); }}",
        json!([["map-x", across], ["map-y", up]])
    ));
    found_within(60, || {
        let tips = tips(browser);
        let is_it = |it: &Tip| {
            it.text.starts_with(&format!("{across} ")) && it.text.contains(&format!(", {up} "))
        };
        match tips.iter().any(is_it) {
            true => Ok(tips),
            false => Err(format!("{:?}", browser.errors())),
        }
    })
}

/// The cells that tips show of the model over two parameters: column, row, place.
fn cells(tips: &[Tip], pair: &Value, [across, up]: [&str; 2]) -> Vec<(usize, usize, f64, f64)> {
    let values = |name: &str| pair[name].as_array().unwrap().clone();
    let place = |values: &[Value], text: &str| {
        let value: f64 = text.parse().unwrap();
        let far = |it: &Value| (it.as_f64().unwrap() - value).abs();
        let places = 0..values.len();
        places.min_by(|a, b| far(&values[*a]).total_cmp(&far(&values[*b])))
    };
    let (columns, rows) = (values("x"), values("y"));
    let mut found = Vec::new();
    for tip in tips.iter().filter(|it| number(&it.text).is_none()) {
        let rest = tip.text.strip_prefix(&format!("{across} ")).unwrap();
        let (x, rest) = rest.split_once(&format!(", {up} ")).unwrap();
        let (y, said) = rest.split_once(": ").unwrap();
        let [i, j] = [place(&columns, x), place(&rows, y)].map(Option::unwrap);
        let mean = pair["mean"][i][j].as_f64().unwrap();
        let feasible = pair["feasible"][i][j].as_f64().unwrap();
        let doubt = match feasible < 0.995 {
            true => format!(", feasible with a probability of {:.0} %", 100.0 * feasible),
            false => String::new(),
        };
        assert_eq!(
            said,
            format!("{} %{doubt}", tuner::report::percent(mean.exp())),
            "{}",
            tip.text
        );
        found.push((i, j, tip.left, tip.top));
    }
    // Values grow to the right and upwards.
    let across = found.iter().map(|it| (it.0, it.2)).collect();
    let up = found.iter().map(|it| (it.1, -it.3)).collect();
    for (places, count) in [(ends(across), columns.len()), (ends(up), rows.len())] {
        assert_eq!(places.len(), count);
        let all: Vec<&[f64; 2]> = places.values().collect();
        assert!(all.windows(2).all(|it| it[0][1] < it[1][0]), "{places:?}");
    }
    found
}

/// From where to where each column, or row, was seen.
fn ends(places: Vec<(usize, f64)>) -> BTreeMap<usize, [f64; 2]> {
    let mut found: BTreeMap<usize, [f64; 2]> = BTreeMap::new();
    for (index, at) in places {
        let ends = found.entry(index).or_insert([at, at]);
        *ends = [ends[0].min(at), ends[1].max(at)];
    }
    found
}

#[test]
fn the_map_says_what_is_at_the_cursor_on_every_screen() {
    let toy = toy();
    let Some(mut browser) = Browser::start(800, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = measured(&toy);
    browser.open(&server.sign_in("read_token"));
    let names = ["x", "pool"];
    let pair = server.get("/experiments/1/model/pair?x=x&y=pool");
    let points = server.get("/experiments/1/points");
    let columns = pair["x"].as_array().unwrap();
    for ratio in [1, 2] {
        browser.sharpen(ratio);
        browser.open(&server.page("/experiments/1"));
        browser.wait("document.getElementById('map-caption').textContent.includes('Hatched')");
        let tips = choose(&browser, names);
        let shown = "const it = document.getElementById('map'); return it.width / it.clientWidth";
        let sharpness = browser.run(shown).as_f64().unwrap();
        assert!((sharpness - f64::from(ratio)).abs() < 0.01, "{sharpness}");
        let cells = cells(&tips, &pair, names);
        let seen = |i: usize| cells.iter().filter(move |it| it.0 == i).map(|it| it.2);
        let middle = |i: usize| seen(i).sum::<f64>() / seen(i).count() as f64;

        // Each evaluation stands at its values, and says its own.
        let mut dots: BTreeMap<usize, Vec<&Tip>> = BTreeMap::new();
        for tip in &tips {
            if let Some(number) = number(&tip.text) {
                dots.entry(number).or_default().push(tip);
            }
        }
        assert!(dots.len() > 7, "{} evaluations", dots.len());
        let mut places = Vec::new();
        for (number, seen) in &dots {
            let of = |name: &str| points[name].as_array().unwrap();
            let numbers = of("number").iter();
            let place = numbers.clone().position(|it| it == &json!(number)).unwrap();
            let outcome = of("outcome")[place].as_str().unwrap();
            let value = of("score")[place].as_f64().map_or(String::new(), |it| {
                format!(": {} %", tuner::report::percent(it.exp()))
            });
            let said = format!("Evaluation {number}, {outcome}{value}");
            assert_eq!(seen[0].text, said);
            let mean =
                |at: fn(&Tip) -> f64| seen.iter().map(|it| at(it)).sum::<f64>() / seen.len() as f64;
            let at = [mean(|it| it.left), mean(|it| it.top)];
            places.push(at);
            let x = points["parameters"]["x"][place].as_f64().unwrap();
            let next = columns.iter().position(|it| it.as_f64().unwrap() >= x);
            let next = next.unwrap().max(1);
            let [low, high] = [next - 1, next].map(|i| columns[i].as_f64().unwrap());
            let share = (x - low) / (high - low);
            let wanted = middle(next - 1) + share * (middle(next) - middle(next - 1));
            assert!((at[0] - wanted).abs() < 8.0, "{said}: {at:?}, {wanted}");
        }
        let inked = |places: Value| drawn(&browser, &format!("inked({places}, 4)"));
        let all = inked(json!(places));
        let missing = all
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| **it != json!(true));
        assert_eq!(missing.count(), 0, "{all} at {places:?}");
        // Between them there is no ink, but for the control's square.
        let is_apart = |it: &&(usize, usize, f64, f64)| {
            let far = |at: &[f64; 2]| (at[0] - it.2).abs() > 15.0 || (at[1] - it.3).abs() > 15.0;
            places.iter().all(far)
        };
        let apart = cells.iter().filter(is_apart).map(|it| [it.2, it.3]);
        let apart: Vec<[f64; 2]> = apart.collect();
        let found = inked(json!(apart));
        let found = found
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| **it == json!(true));
        assert!(found.count() * 20 < apart.len(), "of {}", apart.len());
    }
    // A click leads to what the tip names.
    let click = "const map = document.getElementById('map'); const box = map.getBoundingClientRect(); \
        const at = { clientX: box.left + window.dot[0], clientY: box.top + window.dot[1], bubbles: true }; \
        map.dispatchEvent(new MouseEvent('click', at))";
    let tips = tips(&browser);
    let dot = tips.iter().find(|it| number(&it.text).is_some()).unwrap();
    browser.run(&format!(
        "window.dot = {}; {click}",
        json!([dot.left, dot.top])
    ));
    let evaluation = number(&dot.text).unwrap();
    browser.wait(&format!(
        "location.pathname === '/experiments/1/evaluations/{evaluation}'"
    ));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn the_map_follows_a_running_experiment_and_is_never_empty() {
    let mut toy = toy();
    toy.load_after("us=$(( us + ({pool}-12)*({pool}-12) )); p50=$(( us / 3 )); sleep 0.2");
    let Some(browser) = Browser::start(800, false) else {
        return skip(&"chromedriver is not installed");
    };
    let server = Server::start(&toy);
    let id = server.create();
    let path = format!("/experiments/{id}");
    let are_enough = || server.get(&path)["evaluations"].as_u64() >= Some(4);
    eventually(60, are_enough, || "too few evaluations");
    browser.open(&server.sign_in("read_token"));
    browser.open(&server.page(&path));
    browser.wait("document.getElementById('map-caption').textContent.includes('Dots')");
    let last = || {
        tips(&browser)
            .iter()
            .filter_map(|it| number(&it.text))
            .max()
    };
    let first = last();
    browser.run(&format!(
        "{}\nwindow.looks = 0; window.empty = 0; setInterval(() => {{ window.looks++; \
         if (document.getElementById('map').hidden || pixels('#map', '--ink') < 100) window.empty++; }}, 100)",
        include_str!("drawn.js")
    ));
    server.wait_for(id, &["done"]);
    let wanted = server.get(&path)["evaluations"].as_u64().unwrap();
    let begun = Instant::now();
    let now = loop {
        let now = last();
        if now.is_some_and(|it| it as u64 == wanted) || begun.elapsed().as_secs() > 30 {
            break now;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(first < now, "{first:?}, {now:?} of {wanted}");
    // It is the same page.
    let looks = browser.run("return [window.looks, window.empty]");
    assert!(looks[0].as_u64() > Some(5), "{looks}");
    assert_eq!(looks[1], 0, "{looks}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}
