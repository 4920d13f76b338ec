//! Reports from elsewhere: what is absurd in one is refused where it stands, and nothing in one
//! shows a reader a secret.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::many::report_of;
use crate::serve::{Server, toy};
use crate::toy::Toy;

const SECRET: &str = "s3cr3tPW";

fn written(toy: &Toy, report: &Value) -> PathBuf {
    let file = toy.path("foreign.json");
    std::fs::write(&file, serde_json::to_string_pretty(report).unwrap()).unwrap();
    file
}

/// What a reader gets at these addresses.
fn read_by_a_reader(server: &Server<'_>) -> Vec<String> {
    let cookie = crate::api::session(server, "read_token");
    let api = [
        "",
        "?limit=9",
        "/1",
        "/1/evaluations",
        "/1/evaluations/1",
        "/1/queue",
        "/1/verification",
        "/1/points",
        "/1/export",
        "/1/export?format=csv",
        "/1/export?format=parquet",
    ];
    let api = api.map(|path| format!("/api/v1/experiments{path}"));
    let others = ["promotions", "host", "status", "workers"].map(|it| format!("/api/v1/{it}"));
    let pages = [
        "/",
        "/experiments/1",
        "/experiments/1?column=reason&column=host&column=note",
        "/experiments/1/evaluations/1",
        "/experiments/1/verification",
        "/compare?id=1",
        "/promotions",
        "/host",
        "/metrics",
    ];
    let pages = pages.map(str::to_owned);
    let all = api.iter().chain(&others).chain(&pages);
    all.map(|path| {
        let answer = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
        let bytes = answer.into_body().read_to_vec().unwrap();
        format!("{path}: {}", String::from_utf8_lossy(&bytes))
    })
    .collect()
}

#[test]
fn no_text_of_an_imported_report_shows_a_reader_a_secret() {
    let toy = toy();
    let server = Server::start(&toy);
    let mut report = report_of(3);
    let text = |what: &str| json!(format!("{what} --password={SECRET} http://me:{SECRET}@h/"));
    for key in ["sentence", "error"] {
        report[key] = text(key);
    }
    report["state"] = json!("failed");
    report["settings"] = json!([text("setting")]);
    report["skipped"] = json!([text("skipped")]);
    report["promoted"] = json!([text("promoted")]);
    report["machine"]["cpu_model"] = text("machine");
    report["note"] = text("note");
    let evaluation = &mut report["evaluations"][0];
    for key in ["reason", "host", "output", "note"] {
        evaluation[key] = text(key);
    }
    evaluation["outcome"] = json!("crashed");
    evaluation["crash"] =
        json!({ "kind": "ended-under-load", "message": text("crash"), "output": text("end") });
    evaluation["measurement"]["excess"][format!("--token={SECRET} <= 1")] = json!(0.5);
    evaluation["begun"] =
        json!({ "control": { "started_s": 1.0, "evaluations": 0, "restarted": text("begun") } });
    let arm = &mut report["verification"][0];
    arm["name"] = json!(format!("candidate --password={SECRET}"));
    arm["violated"] = json!([text("violated")]);
    arm["faults"] = json!([text("fault")]);
    arm["without_interval"]["m"] = text("no interval");
    report["spec"]["target"]["env"] = json!({ "DB_PASSWORD": SECRET, "LEVEL": "3" });
    let file = written(&toy, &report);
    server
        .does(&["import", file.to_str().unwrap()])
        .with_code(0);
    for text in read_by_a_reader(&server) {
        assert!(!text.contains(SECRET), "{text}");
    }
    // What is no secret is there, and who may write sees the specification as it is.
    let shown = server.get("/experiments/1");
    let said = shown["sentence"].as_str().unwrap();
    assert!(said.starts_with("sentence --password=…"), "{said}");
    assert_eq!(shown["spec"]["target"]["env"]["LEVEL"], "3");
    let of_writer = server.does(&["show", "1", "--json"]).with_code(0).stdout;
    let of_writer: Value = serde_json::from_str(&of_writer).unwrap();
    assert_eq!(of_writer["spec"]["target"]["env"]["DB_PASSWORD"], SECRET);
    assert!(!of_writer["sentence"].to_string().contains(SECRET));
}

/// The published report of another host, whose templates this host has not.
#[test]
fn a_continuous_experiment_of_another_host_can_be_looked_at() {
    let toy = toy();
    let server = Server::start(&toy);
    let report = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/results/nginx-continuous.json"
    );
    server.does(&["import", report]).with_code(0);
    let rounds = server.get("/experiments/1/rounds");
    assert_eq!(rounds["at_ms"], json!([]), "{rounds}");
    let shown = server.get("/experiments/1");
    assert!(shown["continuous"].is_object(), "{shown}");
}

#[test]
fn what_no_experiment_has_is_refused_with_its_line_and_key() {
    let toy = toy();
    let server = Server::start(&toy);
    let report = report_of(2);
    let long = "x".repeat(10_001);
    let absurd: [(&str, Value); 15] = [
        ("/evaluations/1/number", json!(u64::MAX)),
        ("/evaluations/1/number", json!(1)),
        ("/evaluations/0/number", json!(0)),
        ("/evaluations/0/duration_s", json!(-1.0)),
        ("/evaluations/0/own_cpu_s", json!(1e12)),
        ("/evaluations/0/reason", json!(long)),
        ("/evaluations/0/blocks/0/start_s", json!(-0.5)),
        ("/evaluations/0/measurement/score", json!(1e300)),
        ("/evaluations/0/measurement/score_variance", json!(-1.0)),
        ("/verification/0/name", json!(long)),
        ("/verification/0/runs", json!(u32::MAX)),
        ("/settings", json!([long])),
        ("/duration_s", json!(-3)),
        ("/started", json!("9999-01-01T00:00:00Z")),
        ("/state", json!("odd")),
    ];
    for (pointer, value) in absurd {
        let mut report = report.clone();
        if report.pointer(pointer).is_none() {
            report["state"] = json!("done");
        }
        *report.pointer_mut(pointer).unwrap() = value;
        let file = written(&toy, &report);
        let said = server
            .does(&["import", file.to_str().unwrap()])
            .with_code(2);
        // `evaluations[1].number`, or what it belongs to.
        let parts = pointer.trim_start_matches('/').split('/');
        let key = parts.fold(String::new(), |key, part| match part.parse::<usize>() {
            Ok(index) => format!("{key}[{index}]"),
            Err(_) if key.is_empty() => part.to_owned(),
            Err(_) => format!("{key}.{part}"),
        });
        let stem = key.replace(".score_variance", "");
        assert!(said.stderr.contains(&stem), "{pointer}: {}", said.stderr);
        let line = said.stderr.split("line ").nth(1).unwrap();
        let line: usize = line.split(':').next().unwrap().parse().unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let last = stem.rsplit('.').next().unwrap();
        let last = last.split('[').next().unwrap();
        let of_line = text.lines().nth(line - 1).unwrap();
        let is_there = of_line.contains(&format!("{last:?}")) || of_line.contains(&long);
        assert!(is_there, "{pointer}: line {line} is {of_line}");
    }
    // Who imports a file knows of no request.
    for text in ["[1]", "{\"a\": 1}", "{}", "name = \"toml\""] {
        let file = toy.path("none.json");
        std::fs::write(&file, text).unwrap();
        let path = file.to_str().unwrap();
        let said = server.does(&["import", path]).with_code(2).stderr;
        assert!(said.contains(path) && !said.contains("body"), "{said}");
    }
    assert_eq!(server.get("/experiments"), json!([]));
    // The bounds leave room for what is real.
    let file = written(&toy, &report);
    server
        .does(&["import", file.to_str().unwrap()])
        .with_code(0);
}

#[test]
fn a_report_of_this_host_is_not_said_to_be_of_another() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.improved().to_string();
    let exported = server.does(&["export", &id]).with_code(0).stdout;
    let mut report: Value = serde_json::from_str(&exported).unwrap();
    let own = report["machine"]["id"].clone();
    let refused = |report: &Value| {
        let file = written(&toy, report);
        let imported = server.does(&["import", file.to_str().unwrap()]);
        let imported = imported.with_code(0).stdout;
        let refused = server.does(&["promote", imported.trim()]).with_code(2);
        refused
            .saying(&["it was imported", "verify it here first"])
            .stderr
    };
    // A host without /etc/machine-id does not know its own reports.
    let (ours, theirs) = match own.is_string() {
        true => ("imported from a file", "was shown on another host"),
        false => ("may have been shown", "may have been shown"),
    };
    let said = refused(&report);
    assert!(said.contains(ours), "{said}");
    report["machine"]["id"] = json!("00112233445566778899aabbccddeeff");
    let said = refused(&report);
    assert!(said.contains(theirs), "{said}");
    // Reports of earlier versions have no such number.
    report["machine"].as_object_mut().unwrap().remove("id");
    let said = refused(&report);
    assert!(
        said.contains("may have been shown on another host"),
        "{said}"
    );
}

#[test]
fn a_number_has_one_form_and_a_directory_is_one() {
    let toy = toy();
    let server = Server::start(&toy);
    server.create();
    let write = format!("Bearer {}", server.token("write_token"));
    let page = [("authorization", write.as_str()), ("accept", "text/html")];
    for (path, status) in [
        ("/experiments/1?page=0", 400),
        ("/experiments/1?page=18446744073709551616", 400),
        ("/experiments/1?page=1", 200),
        ("/experiments/+1", 404),
        ("/experiments/01", 404),
        ("/experiments/1/evaluations/+1", 404),
        ("/api/v1/experiments/+1", 404),
        ("/api/v1/experiments/1/export?format=", 400),
        ("/api/v1/experiments/1/export", 200),
    ] {
        let answered = crate::api::status("GET", &server.page(path), &page, "");
        assert_eq!(answered, status, "{path}");
    }
    let json = [
        ("authorization", write.as_str()),
        ("content-type", "application/json"),
    ];
    let file = toy.path("file");
    std::fs::write(&file, "").unwrap();
    let (absent, file) = (toy.path("absent"), file.display().to_string());
    let absent = absent.display().to_string();
    for (dir, status, said) in [
        ("relative", 400, "dir must be an absolute path".to_owned()),
        (
            &absent,
            422,
            format!("{absent} cannot be used: No such file"),
        ),
        (&file, 422, format!("{file} is not a directory")),
    ] {
        let body =
            json!({ "spec": toy.spec.to_string(), "format": "json", "dir": dir }).to_string();
        let answer = crate::api::answer("POST", &server.url("/experiments"), &json, &body);
        assert_eq!(answer.status(), status, "{dir}");
        let answer: Value = answer.into_body().read_json().unwrap();
        assert!(answer["detail"].to_string().contains(&said), "{answer}");
        if status == 422 {
            assert_eq!(answer["key"], "dir", "{answer}");
        }
        let checked = crate::api::answer("POST", &server.url("/specs/check"), &json, &body);
        let checked = checked.into_body().read_to_string().unwrap();
        assert!(checked.contains(&said), "{checked}");
    }
}
