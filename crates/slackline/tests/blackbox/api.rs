//! The JSON interface of `slackline serve` from outside: who is let in, that all that is described
//! is there, and what is said of requests that cannot be.

use serde_json::{Value, json};

use crate::serve::{Server, toy};

/// The status of a request with these headers.
pub(crate) fn status(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> u16 {
    answer(method, url, headers, body).status().as_u16()
}

pub(crate) fn answer(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> ureq::http::Response<ureq::Body> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .build()
        .into();
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    agent.run(request.body(body.to_owned()).unwrap()).unwrap()
}

#[test]
fn only_those_with_a_token_are_let_in() {
    let toy = toy();
    let server = Server::start(&toy);
    let token = |role: &str| server.token(role);
    let (read, write) = (
        format!("Bearer {}", token("read_token")),
        format!("Bearer {}", token("write_token")),
    );
    let list = server.url("/experiments");
    let page = server.page("/");
    for (what, expected, got) in [
        ("no token", 401, status("GET", &list, &[], "")),
        (
            "a wrong token",
            401,
            status("GET", &list, &[("authorization", "Bearer x")], ""),
        ),
        (
            "looking",
            200,
            status("GET", &list, &[("authorization", &read)], ""),
        ),
        (
            "changing with a token for looking",
            403,
            status("POST", &list, &[("authorization", &read)], "{}"),
        ),
        (
            "changing",
            400,
            status("POST", &list, &[("authorization", &write)], "{}"),
        ),
        ("a page without a token", 303, status("GET", &page, &[], "")),
        (
            "the sign-in form",
            200,
            status("GET", &format!("{page}login"), &[], ""),
        ),
        (
            "another name",
            421,
            status(
                "GET",
                &list,
                &[("authorization", &read), ("host", "evil.example")],
                "",
            ),
        ),
        (
            "the metrics",
            401,
            status("GET", &format!("{page}metrics"), &[], ""),
        ),
    ] {
        assert_eq!(got, expected, "{what}");
    }
    let first = format!("{page}?page=2&token={}", token("write_token"));
    let signed_in = answer("GET", &first, &[], "");
    assert_eq!(signed_in.status(), 303);
    assert_eq!(
        header(&signed_in, "location"),
        "/?page=2",
        "the token leaves the address"
    );
    let cookie = cookie_of(&signed_in);
    assert!(!cookie.contains(&token("write_token")), "{cookie}");
    let text = ureq::get(&page).header("cookie", &cookie).call();
    let text = text.unwrap().body_mut().read_to_string().unwrap();
    assert_eq!(
        status("POST", &list, &[("cookie", &cookie)], "{}"),
        403,
        "another site cannot make a browser change anything"
    );
    let csrf = csrf_of(&text);
    let headers = [("cookie", cookie.as_str()), ("x-slackline-csrf", csrf)];
    assert_eq!(
        status("POST", &list, &headers, "{}"),
        400,
        "our own page can"
    );
    let foreign = [headers[0], headers[1], ("origin", "http://evil.example")];
    assert_eq!(status("POST", &list, &foreign, "{}"), 403);
    assert_eq!(status("POST", &format!("{page}logout"), &headers, ""), 303);
    assert_eq!(
        status("GET", &list, &[("cookie", &cookie)], ""),
        401,
        "a session ends with the sign-out"
    );
}

pub(crate) fn header(answer: &ureq::http::Response<ureq::Body>, name: &str) -> String {
    let value = answer.headers().get(name);
    value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

/// The cookie that an answer sets, as a browser sends it.
pub(crate) fn cookie_of(answer: &ureq::http::Response<ureq::Body>) -> String {
    let cookie = header(answer, "set-cookie");
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite"),
        "{cookie}"
    );
    cookie.split(';').next().unwrap().to_owned()
}

pub(crate) fn csrf_of(page: &str) -> &str {
    let rest = page.split("name=\"csrf\" content=\"").nth(1).unwrap();
    rest.split('"').next().unwrap()
}

/// A browser's session for a token of `serve.json`.
pub(crate) fn session(server: &Server<'_>, role: &str) -> String {
    let url = server.sign_in(role);
    cookie_of(&answer("GET", &url, &[], ""))
}

#[test]
fn no_sign_in_leads_to_another_host_and_a_deep_link_survives_it() {
    let toy = toy();
    let server = Server::start(&toy);
    let token = server.token("write_token");
    for (path, to) in [
        ("//evil.example/?token=", "/evil.example/"),
        ("/experiments/3?page=2&token=", "/experiments/3?page=2"),
    ] {
        let answer = answer("GET", &server.page(&format!("{path}{token}")), &[], "");
        assert_eq!(
            (answer.status().as_u16(), header(&answer, "location")),
            (303, to.to_owned())
        );
    }
    let asked = answer("GET", &server.page("/experiments/3?page=2"), &[], "");
    let login = header(&asked, "location");
    assert_eq!(login, "/login?next=/experiments/3%3Fpage%3D2");
    let form = answer("GET", &server.page(&login), &[], "");
    let form = form.into_body().read_to_string().unwrap();
    assert!(form.contains("value=\"/experiments/3?page=2\""), "{form}");
    for (next, to) in [
        ("/experiments/3%3Fpage%3D2", "/experiments/3?page=2"),
        ("//evil.example/", "/evil.example/"),
    ] {
        let body = format!("token={token}&next={next}");
        let answer = answer("POST", &server.page("/login"), &[], &body);
        assert_eq!(
            (answer.status().as_u16(), header(&answer, "location")),
            (303, to.to_owned())
        );
    }
}

/// Requests that cannot be, with their statuses.
const IMPOSSIBLE: &[(&str, &str, u16)] = &[
    ("GET", "/api/v1/experiments/99", 404),
    ("GET", "/api/v1/nothing", 404),
    ("PATCH", "/api/v1/experiments", 405),
    ("GET", "/api/v1/experiments?sate=done", 400),
    ("GET", "/api/v1/experiments?state=dun", 400),
    ("GET", "/api/v1/experiments?limit=x", 400),
    ("GET", "/api/v1/experiments?limit=0", 400),
    ("GET", "/api/v1/experiments/1/evaluations?limit=0", 400),
    ("GET", "/api/v1/audit?limit=0", 400),
    (
        "GET",
        "/api/v1/experiments/1/evaluations?outcome=nonsense",
        400,
    ),
    ("GET", "/api/v1/experiments/1/evaluations?from=-1", 400),
    ("GET", "/api/v1/experiments/1/export?format=xls", 400),
    ("GET", "/api/v1/audit?experiment=x", 400),
    ("GET", "/experiments/1?outcome=nonsense", 400),
    ("GET", "/experiments/1?column=m:none", 400),
    ("GET", "/experiments/1?column=took&column=p:none", 400),
    ("GET", "/experiments/1?sort=-none", 400),
    ("GET", "/api/v1/experiments/1/model/pair?x=none&y=x", 400),
    ("GET", "/api/v1/experiments/1/model/pair?x=x&y=x", 400),
    ("GET", "/api/v1/experiments/1/model/pair?x=x", 400),
    ("GET", "/compare?id=x", 400),
    ("POST", "/api/v1/experiments", 400),
    ("GET", "/assets/a/b", 404),
    ("GET", "/experiments/1?page=abc", 400),
    ("GET", "/?x=1", 400),
    ("GET", "/new?x=1", 400),
    ("GET", "/host?x=1", 400),
    ("GET", "/audit?x=1", 400),
    ("GET", "/promotions?x=1", 400),
    ("GET", "/compare?x=1", 400),
    ("GET", "/login?x=1", 400),
    ("GET", "/metrics?x=1", 400),
    ("GET", "/experiments/1?x=1", 400),
    ("GET", "/experiments/1/verification?x=1", 400),
    ("GET", "/experiments/1/evaluations/1?x=1", 400),
    ("GET", "/experiments/99", 404),
];

/// The answer to a request that cannot be is a problem in JSON, or a page for a person.
fn check_impossible(server: &Server<'_>, bearer: (&str, &str), request: &(&str, &str, u16)) {
    let (method, path, expected) = *request;
    let answer_to = |accept: &str| {
        let headers = [bearer, ("accept", accept)];
        answer(method, &server.page(path), &headers, "")
    };
    let problem = answer_to("application/json");
    assert_eq!(problem.status().as_u16(), expected, "{path}");
    assert_eq!(
        header(&problem, "content-type"),
        "application/problem+json",
        "{path}"
    );
    let problem: Value = problem.into_body().read_json().unwrap();
    crate::described::check(method, path, expected, &problem);
    assert_eq!(problem["status"], expected, "{path}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(!detail.is_empty(), "{path}");
    if path.contains("limit=") {
        assert!(detail.starts_with("limit must be "), "{detail}");
    }
    if path.contains("none") && !path.contains("/api/") {
        assert!(detail.contains("p:x"), "{detail}");
        assert!(path.contains("sort") || detail.contains("m:latency_p99_us"));
    }
    if path.contains("/pair") {
        assert!(detail.contains("must be x") || detail.contains("two different parameters"));
    }
    if path.contains("nonsense") {
        assert!(
            detail.contains("violated, crashed, killed or failed"),
            "{detail}"
        );
    }
    let for_people = answer_to("text/html");
    let is_page = header(&for_people, "content-type").starts_with("text/html");
    assert_eq!(is_page, !path.starts_with("/api/"), "{path}");
}

#[test]
fn every_error_is_a_problem_in_json_or_a_page() {
    let toy = toy();
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    server.create();
    let write = format!("Bearer {}", server.token("write_token"));
    let bearer = ("authorization", write.as_str());
    let lower = write.replace("Bearer", "bearer");
    assert_eq!(
        status(
            "GET",
            &server.url("/experiments"),
            &[("authorization", &lower)],
            ""
        ),
        200
    );
    for request in IMPOSSIBLE {
        check_impossible(&server, bearer, request);
    }
    assert_eq!(status("GET", &server.page("/healthz"), &[], ""), 200);
    assert_eq!(status("GET", &server.page("/readyz"), &[], ""), 200);
    // A page of an error is one of this user's pages.
    let cookie = session(&server, "write_token");
    let headers = [("cookie", cookie.as_str()), ("accept", "text/html")];
    let page = answer("GET", &server.page("/experiments/99"), &headers, "");
    let page = page.into_body().read_to_string().unwrap();
    for part in ["<h1>Not found</h1>", "/audit", "sign-out"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let called = [
        ("authorization", write.as_str()),
        ("host", "evil.example:1"),
    ];
    let other = answer("GET", &server.page("/api/v1/status"), &called, "");
    assert_eq!(other.status(), 421);
    let other = other.into_body().read_to_string().unwrap();
    assert!(
        other.contains("restart it with `--name evil.example`"),
        "{other}"
    );
}

#[test]
fn a_wrong_token_in_an_address_is_said_so() {
    let toy = toy();
    let server = Server::start(&toy);
    let asked = answer("GET", &server.page("/host?token=wrong"), &[], "");
    let login = header(&asked, "location");
    assert_eq!(login, "/login?wrong&next=/host");
    let form = answer("GET", &server.page(&login), &[], "");
    let form = form.into_body().read_to_string().unwrap();
    assert!(form.contains("This token is not valid."), "{form}");
    // By the command line, the advice is that of the command line.
    let asked = std::process::Command::new(env!("CARGO_BIN_EXE_slackline"))
        .args(["experiments", "--url", &server.page(""), "ls"])
        .env("SLACKLINE_TOKEN", "wrong")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(
        said.contains("the token in SLACKLINE_TOKEN is not valid")
            && said.contains("lists the named tokens and when each expires"),
        "{said}"
    );
    assert!(!said.contains("/login"), "{said}");
}

#[test]
fn a_request_that_is_sent_again_makes_one_experiment() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(1);
    let server = Server::start(&toy);
    let write = format!("Bearer {}", server.token("write_token"));
    let make = |key: &str, name: &str| {
        let body = json!({ "spec": toy.spec.to_string(), "format": "json", "name": name, "dir": toy.path("") });
        let headers = [("authorization", write.as_str()), ("idempotency-key", key)];
        answer(
            "POST",
            &server.url("/experiments"),
            &headers,
            &body.to_string(),
        )
    };
    let first = make("k1", "a");
    assert_eq!(
        (first.status().as_u16(), header(&first, "location")),
        (201, "/api/v1/experiments/1".to_owned())
    );
    assert_eq!(
        header(&make("k1", "a"), "location"),
        "/api/v1/experiments/1"
    );
    assert_eq!(
        make("k1", "b").status(),
        422,
        "another request with the same key"
    );
    assert_eq!(
        header(&make("k2", "a"), "location"),
        "/api/v1/experiments/2"
    );
    assert_eq!(server.get("/experiments").as_array().unwrap().len(), 2);
    // So does one that enqueues a configuration: it is there once.
    for id in [1, 2] {
        server.wait_for(id, &["done", "failed"]);
    }
    let queue = server.url("/experiments/1/queue");
    let enqueue = |key: &str, x: u8| {
        let body = json!({ "configuration": { "x": x } }).to_string();
        let headers = [("authorization", write.as_str()), ("idempotency-key", key)];
        answer("POST", &queue, &headers, &body)
    };
    for _ in 0..2 {
        let mut made = enqueue("q1", 7);
        assert_eq!(
            (made.status().as_u16(), header(&made, "location")),
            (201, "/api/v1/experiments/1/queue".to_owned())
        );
        let made: Value = made.body_mut().read_json().unwrap();
        assert_eq!(made, json!({ "x": 7 }));
    }
    assert_eq!(
        enqueue("q1", 8).status(),
        422,
        "another request with the same key"
    );
    assert_eq!(enqueue("k1", 7).status(), 422, "the key of the experiment");
    assert_eq!(enqueue("q2", 7).status(), 201);
    let queued = server.get("/experiments/1/queue");
    assert_eq!(queued, json!([{ "x": 7 }, { "x": 7 }]));
    assert_eq!(
        server.get("/experiments?limit=1").as_array().unwrap().len(),
        1
    );
    // The key outlives its experiment.
    let deleted = answer(
        "DELETE",
        &server.url("/experiments/2"),
        &[("authorization", write.as_str())],
        "",
    );
    assert_eq!(deleted.status(), 204);
    let mut gone = make("k2", "a");
    assert_eq!(gone.status(), 410);
    let why: Value = gone.body_mut().read_json().unwrap();
    let why = why["detail"].as_str().unwrap();
    assert!(
        why.contains("experiment 2, which was deleted since"),
        "{why}"
    );
    assert_eq!(make("k2", "b").status(), 422);
    assert_eq!(server.get("/experiments").as_array().unwrap().len(), 1);
}

#[test]
fn named_tokens_sign_what_they_do_in_the_audit_log() {
    let toy = toy();
    let server = Server::start(&toy);
    let tokens = |arguments: &[&str]| {
        crate::toy::Ended::of(toy.slackline(&[&["serve", "tokens"], arguments].concat()))
    };
    let made = tokens(&[
        "new",
        "--name",
        "anna",
        "--role",
        "write",
        "--expires",
        "90d",
    ])
    .with_code(0);
    let anna = format!("Bearer {}", made.stdout.trim());
    let reader = tokens(&["new", "--name", "bob"]).with_code(0);
    let bob = format!("Bearer {}", reader.stdout.trim());
    let list = tokens(&["ls"]).with_code(0);
    assert!(list.stdout.contains("anna") && !list.stdout.contains(made.stdout.trim()));
    let pause = server.url("/queue/pause");
    assert_eq!(status("POST", &pause, &[("authorization", &anna)], ""), 200);
    assert_eq!(status("POST", &pause, &[("authorization", &bob)], ""), 403);
    let audit = answer(
        "GET",
        &server.url("/audit"),
        &[("authorization", &anna)],
        "",
    );
    let audit: Value = audit.into_body().read_json().unwrap();
    let entry = |index: usize| {
        (
            &audit[index]["who"],
            &audit[index]["action"],
            &audit[index]["status"],
        )
    };
    assert_eq!(
        entry(0),
        (&json!("bob"), &json!("refused"), &json!(403)),
        "{audit}"
    );
    assert_eq!(
        entry(1),
        (&json!("anna"), &json!("pause-queue"), &json!(200)),
        "{audit}"
    );
    assert_eq!(audit[1]["from"], "127.0.0.1");
    assert_eq!(
        status("GET", &server.url("/audit"), &[("authorization", &bob)], ""),
        403
    );
    tokens(&["revoke", "anna"]).with_code(0);
    assert_eq!(status("POST", &pause, &[("authorization", &anna)], ""), 401);
}

#[test]
fn a_note_is_written_by_hand_and_goes_with_an_export() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    server
        .does(&["note", "1", "after the kernel was updated"])
        .with_code(0);
    server
        .does(&["note", "1", "--evaluation", "2", "beside a backup"])
        .with_code(0);
    let shown = server.does(&["show", "1"]).with_code(0).stdout;
    assert!(
        shown.contains("note: after the kernel was updated"),
        "{shown}"
    );
    assert_eq!(
        server.get("/experiments/1/evaluations/2")["note"],
        "beside a backup"
    );
    // Who may only look reads it, and cannot change it; nor can a text be too long or have an
    // escape sequence in it.
    let put = |role: &str, text: &str| {
        let token = format!("Bearer {}", server.token(role));
        let body = json!({ "text": text }).to_string();
        let headers = [("authorization", token.as_str())];
        status("PUT", &server.url("/experiments/1/note"), &headers, &body)
    };
    assert_eq!(put("read_token", "x"), 403);
    assert_eq!(put("write_token", &"x".repeat(10_001)), 422);
    assert_eq!(put("write_token", "\u{1b}[31m"), 422);
    let read = format!("Bearer {}", server.token("read_token"));
    let page = |path: &str| {
        let headers = [("authorization", read.as_str()), ("accept", "text/html")];
        let mut page = answer("GET", &server.page(path), &headers, "");
        page.body_mut().read_to_string().unwrap()
    };
    assert!(page("/experiments/1").contains("after the kernel was updated"));
    assert!(page("/experiments/1/evaluations/2").contains("beside a backup"));
    assert!(page("/experiments/1?search=backup&column=note").contains("1 to 1 of 1"));
    // It goes to another store and back.
    let export = server.does(&["export", "1"]).with_code(0).stdout;
    let file = toy.path("export.json");
    std::fs::write(&file, export).unwrap();
    server
        .does(&["import", file.to_str().unwrap()])
        .with_code(0);
    assert_eq!(
        server.get("/experiments/2")["note"],
        "after the kernel was updated"
    );
    let imported = server.get("/experiments/2/evaluations/2");
    assert_eq!(imported["note"], "beside a backup");
    assert_eq!(imported["started_ms"], Value::Null);
    assert_eq!(put("write_token", ""), 200);
    assert_eq!(server.get("/experiments/1")["note"], Value::Null);
}

#[test]
fn what_is_described_is_there() {
    let toy = toy();
    let server = Server::start(&toy);
    let write = format!("Bearer {}", server.token("write_token"));
    let described = server.get("/openapi.json");
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() > 20, "{}", paths.len());
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let url = server.url(&path.replace("{id}", "77").replace("{number}", "1"));
            let got = status(
                &method.to_uppercase(),
                &url,
                &[("authorization", &write)],
                "{}",
            );
            assert_ne!(got, 405, "{method} {path}");
            assert!(got < 500, "{method} {path}: {got}");
            assert_eq!(
                got == 404,
                path.contains("{id}") && got != 400,
                "{method} {path}: {got}"
            );
        }
    }
}

#[test]
fn what_cannot_be_asked_is_refused_in_words() {
    let toy = toy();
    let server = Server::start(&toy);
    let write = format!("Bearer {}", server.token("write_token"));
    let long = " ".repeat((64 << 20) + 1);
    for (method, path, body, expected, words) in [
        (
            "POST",
            "/experiments",
            "[1, 2]",
            400,
            "an object in JSON with the keys spec, format, dir, name",
        ),
        (
            "POST",
            "/experiments",
            r#"{"spec": 1}"#,
            400,
            "spec: invalid type: integer `1`, expected a text",
        ),
        (
            "DELETE",
            "/experiments",
            "",
            405,
            "does not accept this method",
        ),
        ("POST", "/specs/check", &long, 413, "longer than 64 MiB"),
        ("GET", "/nothing", "", 404, "nothing at this path"),
    ] {
        let headers = [("authorization", write.as_str())];
        let mut got = answer(method, &server.url(path), &headers, body);
        assert_eq!(got.status().as_u16(), expected, "{method} {path}");
        let refusal: Value = got.body_mut().read_json().unwrap();
        let error = refusal["detail"].as_str().unwrap();
        assert!(error.contains(words), "{method} {path}: {error}");
    }
}

#[test]
fn a_reader_s_check_shows_nothing_of_the_host() {
    let toy = toy();
    let server = Server::start(&toy);
    std::fs::write(toy.path("secret"), "s3cr3t {hidden}\n").unwrap();
    let mut knob = toy.spec.clone();
    knob["parameters"][0]["file"] = json!(toy.path("secret"));
    let mut template = toy.spec.clone();
    let file = json!({ "template": toy.path("secret"), "path": "{dir}/other" });
    template["target"]["files"] = json!([file]);
    let check = |role: &str, spec: &Value| {
        let token = format!("Bearer {}", server.token(role));
        let body = json!({ "spec": spec.to_string(), "format": "json" }).to_string();
        let headers = [("authorization", token.as_str())];
        let mut answer = answer("POST", &server.url("/specs/check"), &headers, &body);
        assert_eq!(answer.status().as_u16(), 200);
        answer.body_mut().read_to_string().unwrap()
    };
    // Nobody is shown the text of a file that is named as a knob.
    for (spec, shown) in [(&knob, "is not of this type"), (&template, "hidden")] {
        let said = check("write_token", spec);
        assert!(
            said.contains(shown),
            "whoever may run commands sees why: {said}"
        );
        let said = check("read_token", spec);
        assert!(
            !said.contains(shown) && said.contains("\"ok\":true"),
            "{said}"
        );
        assert!(
            !said.contains("control") && !said.contains("s3cr3t"),
            "{said}"
        );
    }
    // What the text alone tells is told.
    let mut wrong = toy.spec.clone();
    wrong["evaluation"]["block_s"] = json!(-1);
    let said = check("read_token", &wrong);
    assert!(
        said.contains("evaluation.block_s") && said.contains("\"ok\":false"),
        "{said}"
    );
}

/// The limit of a running process on its open files: the soft one.
fn limit_on_files(pid: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find(|line| line.contains("open files"));
    line.unwrap().split_whitespace().nth(3).unwrap().to_owned()
}

#[test]
fn half_sent_requests_take_nothing_from_an_evaluation_and_hold_up_no_end() {
    use std::io::Write as _;
    let mut toy = toy();
    toy.load_after("sleep 0.05");
    // Where the hard limit allows more, more is taken.
    let server = Server::start_limited(&toy, "-S -n 96");
    assert_eq!(limit_on_files(server.pid()), "1024");
    server.end();
    let server = Server::start_limited(&toy, "-n 96");
    assert_eq!(limit_on_files(server.pid()), "96");
    let address = server.page("");
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    let token = server.token("write_token");
    let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
    let body = format!("POST /api/v1/experiments HTTP/1.1\r\n{head}Content-Length: 99\r\n\r\n{{");
    let stream = format!("GET /api/v1/events HTTP/1.1\r\n{head}\r\n");
    let half = "GET / HTTP/1.1\r\nHost: h\r\nX-Half:".to_owned();
    let id = server.create();
    server.wait_for_evaluation(id);
    let half_a_body = body.clone();
    let texts = std::iter::repeat_n(half, 230).chain([body, stream]);
    let sent = texts.map(|text| {
        let mut connection = std::net::TcpStream::connect(address).unwrap();
        // One that made room for another is closed already.
        let _ = connection.write_all(text.as_bytes());
        connection
    });
    let mut open: Vec<_> = sent.collect();
    assert!(server.get("/status")["trouble"].is_null());
    let shown = server.wait_for(id, &["done", "failed"]);
    assert_eq!(shown["finding"], "improvement", "{shown}");
    let evaluations = server.get(&format!("/experiments/{id}/evaluations"));
    for it in evaluations.as_array().unwrap() {
        assert_eq!(it["outcome"], "completed", "{it}");
    }
    // Who sent half a body is told in time, and whoever announces too long a one at once.
    let within = |connection: &mut std::net::TcpStream, seconds| {
        let limit = std::time::Duration::from_secs(seconds);
        connection.set_read_timeout(Some(limit)).unwrap();
        let mut status = [0; 12];
        std::io::Read::read_exact(connection, &mut status).unwrap();
        String::from_utf8_lossy(&status).into_owned()
    };
    assert_eq!(within(&mut open[230], 30), "HTTP/1.1 408");
    let mut cut = std::net::TcpStream::connect(address).unwrap();
    cut.write_all(half_a_body.as_bytes()).unwrap();
    cut.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut cut, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let said = "the connection ended before the whole body of the request had arrived";
    assert!(answer.contains(said), "{answer}");
    let mut long = std::net::TcpStream::connect(address).unwrap();
    let text =
        format!("POST /api/v1/experiments HTTP/1.1\r\n{head}Content-Length: 99999999999\r\n\r\n");
    long.write_all(text.as_bytes()).unwrap();
    assert_eq!(within(&mut long, 5), "HTTP/1.1 413");
    let begun = std::time::Instant::now();
    assert_eq!(server.end(), 128 + 15);
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    drop(open);
}

/// `script` of util-linux gives a command a terminal.
#[test]
fn on_a_terminal_the_address_has_the_token() {
    let toy = crate::toy::Toy::new();
    let state = toy.path("state");
    let command = format!(
        "exec {} serve --state-dir {} --listen 127.0.0.1:0",
        env!("CARGO_BIN_EXE_slackline"),
        state.display()
    );
    let mut terminal = std::process::Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let shown = std::io::BufReader::new(terminal.stdout.take().unwrap());
    let line = std::io::BufRead::lines(shown)
        .map_while(Result::ok)
        .find(|line| line.contains("?token="))
        .unwrap();
    let access = std::fs::read_to_string(state.join("serve.json")).unwrap();
    let access: Value = serde_json::from_str(&access).unwrap();
    let token = access["write_token"].as_str().unwrap();
    assert!(
        line.trim_end().ends_with(&format!("?token={token}")),
        "{line}"
    );
    let pid = terminal.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    for child in children.split_whitespace() {
        let _ = std::process::Command::new("kill").arg(child).status();
    }
    terminal.wait().unwrap();
}

/// A proxy may heed one of two headers, and the server the other.
#[test]
fn a_header_that_stands_twice_is_refused() {
    use std::io::{Read as _, Write as _};
    let toy = toy();
    let server = Server::start(&toy);
    let address = server.page("");
    let address = address.trim_start_matches("http://").trim_end_matches('/');
    let (read, write) = (server.token("read_token"), server.token("write_token"));
    let answer = |headers: &[String]| {
        let mut connection = std::net::TcpStream::connect(address).unwrap();
        let headers = headers.join("\r\n");
        let request =
            format!("GET /api/v1/status HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    let host = format!("Host: {address}");
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let without = answer(&[bearer(&read)]);
    assert!(without.starts_with("HTTP/1.1 400"), "{without}");
    let right = answer(&[host.clone(), bearer(&read)]);
    assert!(right.starts_with("HTTP/1.1 200"), "{right}");
    for headers in [
        vec![host.clone(), "Host: evil.example".to_owned(), bearer(&read)],
        vec![host, bearer(&write), bearer(&read)],
    ] {
        let refused = answer(&headers);
        assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
        assert!(refused.contains("more than one header"), "{refused}");
    }
}
