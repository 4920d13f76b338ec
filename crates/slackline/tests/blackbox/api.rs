//! The JSON interface of `slackline serve` from outside: who is let in, that all that is described is there, and what is said of
//! requests that cannot be.

use serde_json::Value;

use crate::serve::{Server, toy};

/// The status of a request with these headers.
fn status(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> u16 {
    answer(method, url, headers, body).status().as_u16()
}

fn answer(
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
    let cookie = format!("slackline={}", token("write_token"));
    assert_eq!(status("GET", &page, &[("cookie", &cookie)], ""), 200);
    assert_eq!(
        status("POST", &list, &[("cookie", &cookie)], "{}"),
        403,
        "another site cannot make a browser change anything"
    );
    let text = ureq::get(&page)
        .header("cookie", &cookie)
        .call()
        .unwrap()
        .body_mut()
        .read_to_string()
        .unwrap();
    let csrf = text
        .split("name=\"csrf\" content=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let headers = [("cookie", cookie.as_str()), ("x-slackline-csrf", csrf)];
    assert_eq!(
        status("POST", &list, &headers, "{}"),
        400,
        "our own page can"
    );
    let foreign = [headers[0], headers[1], ("origin", "http://evil.example")];
    assert_eq!(status("POST", &list, &foreign, "{}"), 403);
    let first = format!("{page}?token={}", token("write_token"));
    assert_eq!(
        status("GET", &first, &[], ""),
        303,
        "the token leaves the address"
    );
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
            "it is a list, not an object",
        ),
        (
            "POST",
            "/experiments",
            r#"{"spec": 1}"#,
            400,
            "expected a text",
        ),
        ("DELETE", "/experiments", "", 405, "another method"),
        ("POST", "/specs/check", &long, 413, "longer than 64 MiB"),
        ("GET", "/nothing", "", 404, "nothing at this path"),
    ] {
        let headers = [("authorization", write.as_str())];
        let mut got = answer(method, &server.url(path), &headers, body);
        assert_eq!(got.status().as_u16(), expected, "{method} {path}");
        let refusal: Value = got.body_mut().read_json().unwrap();
        let error = refusal["error"].as_str().unwrap();
        assert!(error.contains(words), "{method} {path}: {error}");
    }
}
