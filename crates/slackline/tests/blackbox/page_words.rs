//! The words of the pages, as snapshots: what a reader of an experiment, of its verification and of
//! one evaluation is told.

use crate::serve::Server;
use crate::toy::Toy;

/// Elements that stand within a line.
const INLINE: &[&str] = &[
    "a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "sub", "sup", "time",
];

/// Elements whose contents nobody reads.
const UNREAD: &[&str] = &["head", "script", "style", "svg", "template"];

/// The words of a page, a line for each of its elements. A moment is not the same in each run.
fn words(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = after.split_once('>').unwrap();
        let name = tag.split(|it: char| it.is_whitespace()).next().unwrap();
        let within = |after: &'_ str| after.find(&format!("</{name}>")).unwrap_or(0);
        rest = match name {
            "time" => {
                text.push('…');
                &after[within(after)..]
            }
            _ if UNREAD.contains(&name) => &after[within(after)..],
            _ => after,
        };
        if !INLINE.contains(&name.trim_matches('/')) {
            text.push('\n');
        }
    }
    text.push_str(rest);
    let lines = text.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ");
        // A choice in a form has its moment as text.
        match line.split_once(", created ") {
            Some((before, _)) => format!("{before}, created …"),
            None => line,
        }
    });
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

#[test]
fn the_words_of_a_page_are_those_that_are_seen() {
    let page = "<html><head><title>x</title></head><body><p>A <b>bold</b>\n word, <time datetime=\"1\">now</time>.</p>\
        <script>let a = 1 < 2;</script><ul><li>one<li>two</ul></body></html>";
    assert_eq!(words(page), "A bold\nword, ….\none\ntwo");
}

#[test]
fn pages_in_words() {
    let toy = Toy::new();
    let server = Server::start(&toy);
    let report = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/results/nginx-workers.json"
    );
    server.does(&["pause-queue"]).with_code(0);
    server.does(&["import", report]).with_code(0);
    let cookie = crate::api::session(&server, "write_token");
    for (name, path) in [
        ("experiments", "/"),
        ("new", "/new"),
        ("experiment", "/experiments/1"),
        ("verification", "/experiments/1/verification"),
        ("evaluation", "/experiments/1/evaluations/2"),
        ("compare", "/compare?id=1"),
        ("promotions", "/promotions"),
    ] {
        let page = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        let page = page.unwrap().body_mut().read_to_string().unwrap();
        let state = toy.path("state").display().to_string();
        insta::assert_snapshot!(
            format!("page-{name}"),
            words(&page).replace(&state, "STATE")
        );
    }
}
