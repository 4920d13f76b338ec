//! A rollback by hand always works; and what keeps an experiment from its work is said everywhere.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::continuous::{attached_once, is_promoted, read, wait_until};
use crate::eventually::eventually;
use crate::serve::{Server, toy};
use crate::toy::{Ended, FIRST, Toy};

#[test]
fn a_rollback_interrupts_what_is_measured_and_that_goes_on() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    server.does(&["promote", &id.to_string()]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
    let mut longer = toy.spec.clone();
    longer["budget"]["evaluations"] = json!(60);
    let other = server.create_of(&longer);
    server.wait_for(other, &["running"]);
    let asked = Instant::now();
    server
        .does(&["rollback", &id.to_string()])
        .with_code(0)
        .saying(&["rolled back: ", " = 50"]);
    println!("rolled back after {:?}", asked.elapsed());
    let ls = server.does(&["ls"]).with_code(0).stdout;
    assert!(!ls.contains("promoted"), "{ls}");
    // The interrupted one goes on by itself, with its lost evaluation repeated.
    server.wait_for(other, &["running"]);
    server.does(&["stop", &other.to_string()]).with_code(0);
    server.wait_for(other, &["stopped"]);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before("after a rollback");
}

/// What is put in force is what was measured, and what is put back is what was there.
#[test]
fn a_file_that_was_edited_meanwhile_is_named() {
    let toy = attached_once("");
    // What the service has is not what the template gives with the control's values.
    std::fs::write(toy.path("service.conf"), "50 # mine\n").unwrap();
    let server = Server::start(&toy);
    let id = server.improved();
    let text = id.to_string();
    std::fs::write(toy.path("service.conf.in"), "{x} # edited\n").unwrap();
    let said = [
        "service.conf.in was changed after it was measured",
        "verify the experiment again",
    ];
    server.does(&["promote", &text]).with_code(2).saying(&said);
    assert_eq!(read(&toy, "service.conf"), "50 # mine");
    // The page offers no promotion that is refused, and says why.
    let page = html(&server, &format!("/experiments/{id}"));
    assert!(!page.contains("verb-promote"), "{page}");
    assert!(
        page.contains(&format!(
            "Slackline cannot promote this winner: the template {}",
            toy.path(said[0].split(' ').next().unwrap()).display()
        )),
        "{page}"
    );
    std::fs::write(toy.path("service.conf.in"), "{x}\n").unwrap();
    let page = html(&server, &format!("/experiments/{id}"));
    assert!(page.contains("verb-promote"), "{page}");
    server.does(&["promote", &text]).with_code(0);
    assert_ne!(read(&toy, "service.conf"), "50 # mine");
    // Both are edited while it is in force.
    std::fs::write(toy.path("service.conf.in"), "{x} # edited\n").unwrap();
    std::fs::write(toy.path("service.conf"), "33 # deployed\n").unwrap();
    let conf = toy.path("service.conf").display().to_string();
    server.does(&["rollback", &text]).with_code(0).saying(&[
        &format!("rolled back: wrote {conf} as it was before the promotion"),
        &format!("somebody else had changed {conf} since the promotion: their version is in "),
        "/state/replaced/",
    ]);
    assert_eq!(read(&toy, "service.conf"), "50 # mine");
    let replaced = std::fs::read_dir(toy.path("state/replaced")).unwrap();
    let kept = replaced.map(|it| std::fs::read_to_string(it.unwrap().path()).unwrap());
    assert!(kept.into_iter().any(|it| it == "33 # deployed\n"));
    let write = format!("Bearer {}", server.token("write_token"));
    let audit = ureq::get(server.url("/audit"))
        .header("authorization", &write)
        .call();
    let audit: serde_json::Value = audit.unwrap().into_body().read_json().unwrap();
    let detail = audit[0]["detail"].to_string();
    assert!(detail.contains("somebody else had changed "), "{audit}");
    let page = html(&server, &format!("/experiments/{id}"));
    assert!(page.contains("rolled the promotion back: wrote "), "{page}");
    // A higher budget asks for no verification.
    server
        .does(&["budget", &text, "--evaluations", "40"])
        .with_code(0);
    let page = html(&server, &format!("/experiments/{id}/verification"));
    assert!(page.contains("This is verification 1.</p>"), "{page}");
    assert!(page.contains("plot-integrals"), "{page}");
}

/// A page, as its owner sees it.
pub(crate) fn html(server: &Server<'_>, path: &str) -> String {
    let write = format!("Bearer {}", server.token("write_token"));
    let headers = [("authorization", write.as_str()), ("accept", "text/html")];
    let answer = crate::api::answer("GET", &server.page(path), &headers, "");
    answer.into_body().read_to_string().unwrap()
}

/// A toy with a second parameter, and the file that has its value.
fn with_other(is_optional: bool) -> (Toy, PathBuf) {
    let mut toy = toy();
    let other = toy.path("other");
    std::fs::write(&other, "7\n").unwrap();
    let more = json!({
        "name": "y", "type": "int", "low": 0, "high": 9, "file": other, "optional": is_optional,
    });
    toy.spec["parameters"].as_array_mut().unwrap().push(more);
    toy.spec["budget"]["evaluations"] = json!(4);
    (toy, other)
}

/// Removes a file that was promoted and rolls back: the rollback names the file, and says this.
fn left_by_rollback(server: &Server<'_>, id: i64, file: &Path, said: &str) -> String {
    std::fs::remove_file(file).unwrap();
    let path = file.display().to_string();
    server
        .does(&["rollback", &id.to_string()])
        .with_code(4)
        .saying(&["could not restore", &path, said]);
    path
}

#[test]
fn a_parameter_s_file_that_is_gone_does_not_hold_up_the_rollback_of_the_rest() {
    let (toy, other) = with_other(false);
    let server = Server::start(&toy);
    let id = server.improved();
    let text = id.to_string();
    server.does(&["promote", &text]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
    let path = left_by_rollback(&server, id, &other, "only the rest is tried then");
    assert_eq!(toy.knob(), FIRST);
    let shown = server.get(&format!("/experiments/{id}"));
    assert_eq!(shown["promotion"]["left"], json!([path]), "{shown}");
    assert_eq!(shown["promoted"], false, "{shown}");
    // Nothing says that the promotion is undone.
    let in_part = format!("is rolled back in part. Not restored: {path}");
    let listed = toy.slackline(&["promotions", "ls"]);
    let listed = crate::toy::Ended::of(listed).with_code(0).stdout;
    for told in [html(&server, "/promotions"), html(&server, "/host"), listed] {
        assert!(told.contains(&in_part), "{told}");
    }
    let left = server.get("/promotions")["not_restored"].clone();
    assert_eq!(left[0]["id"], id, "{left}");
    let page = html(&server, &format!("/experiments/{id}"));
    let repair = "Remove the cause and press <strong>Roll back the rest</strong>";
    assert!(page.contains(repair), "{page}");
    assert!(!page.contains("is being measured now"), "{page}");
    // Only the rest is tried again.
    std::fs::write(&other, "1\n").unwrap();
    std::fs::write(toy.path("knob"), "44\n").unwrap();
    server.does(&["rollback", &text]).with_code(0);
    assert_eq!(
        (read(&toy, "other").as_str(), toy.knob().as_str()),
        ("7", "44")
    );
    assert!(server.get(&format!("/experiments/{id}"))["promotion"].is_null());
    server
        .does(&["rollback", &text])
        .with_code(2)
        .saying(&["there is nothing to roll back"]);
}

/// What is promoted is rolled back by hand while the disk is full, and the store is told of it as
/// soon as there is room. What has to be seen then is seen by `goes_on`.
fn is_rolled_back_on_a_full_disk(
    toy: &Toy,
    is_promoted: impl Fn(&Server<'_>, i64),
    goes_on: impl Fn(&Server<'_>),
) {
    let state = toy.path("state");
    std::fs::create_dir(&state).unwrap();
    let at = state.to_str().unwrap().to_owned();
    let run = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program)
            .args(arguments)
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    let options = ["-t", "tmpfs", "-o", "size=16m", "slackline-test", &at];
    if !run("mount", &options) {
        return crate::toy::skip(&"a file system cannot be mounted here");
    }
    let server = Server::start(toy);
    let id = server.create();
    is_promoted(&server, id);
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    server.does(&["rollback", &id.to_string()]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    let shown = server.get(&format!("/experiments/{id}"));
    assert!(shown["promotion"].is_null(), "{shown}");
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    let is_promoted = |it: &serde_json::Value| it["id"] == id && it["promoted"] == true;
    let is_told = || {
        let all = server.get("/experiments");
        !all.as_array().unwrap().iter().any(is_promoted)
    };
    eventually(20, is_told, || "the store is not told");
    let shown = server.wait_for(id, &["done", "paused"]);
    assert_eq!(shown["promoted"], false, "{shown}");
    goes_on(&server);
    server.end();
    assert_eq!(toy.knob(), FIRST);
    assert!(run("umount", &[&at]));
}

fn promote(toy: &Toy, server: &Server<'_>, id: i64) {
    server.wait_for(id, &["done"]);
    server.does(&["promote", &id.to_string()]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
}

#[test]
fn a_rollback_works_on_a_full_disk() {
    let toy = toy();
    let is_promoted = |server: &Server<'_>, id| promote(&toy, server, id);
    is_rolled_back_on_a_full_disk(&toy, is_promoted, |_| assert_eq!(toy.knob(), FIRST));
}

/// An evaluation of another experiment is measured, which does not end by itself.
#[test]
fn a_rollback_on_a_full_disk_interrupts_what_is_measured() {
    let mut toy = toy();
    let [long, measuring] = ["long", "measuring"].map(|name| toy.path(name).display().to_string());
    toy.load_after(&format!(
        "[ ! -e {long} ] || touch {measuring}; while [ -e {long} ]; do sleep 0.1; done"
    ));
    let is_promoted = |server: &Server<'_>, id| {
        promote(&toy, server, id);
        std::fs::write(&long, "").unwrap();
        let other = server.create();
        server.wait_for_evaluation(other);
        toy.wait_for("measuring");
        // The evaluation goes on, but after its end the knob is left alone.
        server.does(&["pause-queue"]).with_code(0);
    };
    is_rolled_back_on_a_full_disk(&toy, is_promoted, |server| {
        std::fs::remove_file(&long).unwrap();
        server.does(&["resume-queue"]).with_code(0);
        let shown = server.wait_for(2, &["done", "failed"]);
        assert_eq!(shown["state"], "done", "{shown}");
        let lost = server.get("/experiments/2/evaluations?outcome=failed");
        assert_eq!(lost[0]["failure"], "lost", "{lost}");
    });
}

/// While a round of it is measured, and nothing of that can be kept.
#[test]
fn an_always_on_experiment_is_rolled_back_on_a_full_disk() {
    let toy = crate::continuous::toy();
    let is_promoted = |server: &Server<'_>, id| drop(wait_until(server, id, is_promoted));
    is_rolled_back_on_a_full_disk(&toy, is_promoted, |_| assert_eq!(toy.knob(), FIRST));
}

#[test]
fn a_paused_queue_begins_nothing_until_it_is_resumed() {
    let toy = toy();
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    let id = server.create();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(server.get(&format!("/experiments/{id}"))["state"], "queued");
    for verb in [vec!["ls"], vec!["show", "1"]] {
        let shown = server.does(&verb).with_code(0).stdout;
        assert!(shown.contains("The queue is paused"), "{shown}");
    }
    server.does(&["resume-queue"]).with_code(0);
    server.wait_for(id, &["done"]);
}

#[test]
fn a_password_in_an_address_is_shown_nowhere() {
    const SECRET: &str = "s3cr3tPW";
    let mut toy = toy();
    toy.spec["metrics"] = json!({
        "m": { "prometheus": format!("http://admin:{SECRET}@127.0.0.1:9"), "query": "up" }
    });
    let server = Server::start(&toy);
    let id = server.create();
    let shown = server.wait_for(id, &["failed"]);
    assert!(
        shown["message"]
            .as_str()
            .unwrap()
            .contains("http://…@127.0.0.1:9"),
        "{shown}"
    );
    let text = id.to_string();
    let mut all = Vec::new();
    for verb in [
        vec!["ls"],
        vec!["ls", "--json"],
        vec!["show", &text],
        vec!["show", &text, "--json"],
    ] {
        all.push(server.does(&verb).with_code(0).stdout);
    }
    for format in ["json", "csv"] {
        all.push(
            server
                .does(&["export", &text, "--format", format])
                .with_code(0)
                .stdout,
        );
    }
    for path in [
        "/experiments",
        "/experiments/1",
        "/experiments/1/evaluations",
        "/experiments/1/evaluations/1",
        "/host",
    ] {
        all.push(server.get(path).to_string());
    }
    let cookie = crate::api::session(&server, "write_token");
    for path in [
        "/",
        "/experiments/1",
        "/experiments/1/evaluations/1",
        "/host",
        "/audit",
    ] {
        let page = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        all.push(page.unwrap().body_mut().read_to_string().unwrap());
    }
    all.push(std::fs::read_to_string(toy.path("serve.stderr")).unwrap());
    for text in &all {
        assert!(!text.contains(SECRET), "{text}");
    }
    assert!(all.iter().any(|text| text.contains("http://…@127.0.0.1:9")));
}

#[test]
fn a_reader_sees_no_secret_and_the_service_gets_it_from_its_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut toy = toy();
    std::fs::write(toy.path("token.txt"), "t0k3n\n").unwrap();
    toy.spec["target"]["env"] = json!({
        "DB_PASSWORD": "s3cr3tPW", "API_TOKEN": { "file": "token.txt" },
    });
    // What the service has of it.
    let start = toy.spec["target"]["start"].as_array().unwrap().clone();
    let words: Vec<&str> = start.iter().map(|word| word.as_str().unwrap()).collect();
    let seen = toy.path("seen");
    let script = format!(
        "echo \"$DB_PASSWORD $API_TOKEN\" > {}; exec \"$@\"",
        seen.display()
    );
    toy.spec["target"]["start"] = json!([vec!["sh", "-c", &script, "sh"], words].concat());
    // And in a script, in JSON and in the experiment's name.
    toy.spec["target"]["prepare"] = json!([
        "sh",
        "-c",
        ": mysql -ps3cr3tPW me:s3cr3tPW@h; DB_PASSWORD='s3cr3tPW' true",
        r#"{"password": "s3cr3tPW"}"#,
    ]);
    toy.spec["name"] = json!("of --password=s3cr3tPW");
    toy.spec["budget"]["evaluations"] = json!(1);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done", "failed"]);
    let cookie = crate::api::session(&server, "read_token");
    for path in [
        "/",
        "/experiments/1",
        "/experiments/1/evaluations/1",
        "/compare?id=1",
    ] {
        let page = ureq::get(server.page(path))
            .header("cookie", &cookie)
            .call();
        let page = page.unwrap().into_body().read_to_string().unwrap();
        assert!(!page.contains("s3cr3tPW"), "{path}: {page}");
    }
    assert!(!server.get("/experiments").to_string().contains("s3cr3tPW"));
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), "s3cr3tPW t0k3n\n");
    let shown = server.get(&format!("/experiments/{id}"));
    assert_eq!(shown["spec"]["target"]["env"]["DB_PASSWORD"], "…");
    assert_eq!(
        shown["spec"]["target"]["env"]["API_TOKEN"]["file"],
        "token.txt"
    );
    let of_writer = server.does(&["show", "1", "--json"]).with_code(0).stdout;
    assert!(of_writer.contains("s3cr3tPW") && !of_writer.contains("t0k3n"));
    for path in ["/experiments/1", "/experiments/1/export"] {
        assert!(!server.get(path).to_string().contains("s3cr3tPW"), "{path}");
    }
    // All that the server keeps is its owner's alone.
    for entry in std::fs::read_dir(toy.path("state")).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        let is_file = entry.file_type().unwrap().is_file();
        assert!(
            !is_file || mode & 0o077 == 0,
            "{:?} is {mode:o}",
            entry.path()
        );
    }
}

#[test]
fn what_a_service_or_a_load_says_of_its_secrets_is_masked() {
    let toy = toy();
    let server = Server::start(&toy);
    let mut of_service = toy.spec.clone();
    of_service["target"]["env"] = json!({ "DB_PASSWORD": "s3cr3tPW" });
    let script = "echo \"the password is $DB_PASSWORD, not $1\" >&2; exit 3";
    of_service["target"]["start"] = json!(["sh", "-c", script, "db", "--password=0ptionPW"]);
    let mut of_load = toy.spec.clone();
    of_load["workload"]["command"] =
        json!(["sh", "-c", "echo \"$1\"; exit 3", "load", "--token=l0adPW"]);
    for spec in [&of_service, &of_load] {
        let id = server.create_of(spec);
        let shown = server.wait_for(id, &["failed"]);
        let evaluation = server.get(&format!("/experiments/{id}/evaluations/1"));
        let list = server.get("/experiments");
        for text in [shown, evaluation, list].map(|it| it.to_string()) {
            for secret in ["s3cr3tPW", "0ptionPW", "l0adPW"] {
                assert!(!text.contains(secret), "{secret}: {text}");
            }
        }
    }
    let reason = server.get("/experiments/1/evaluations/1")["reason"].to_string();
    assert!(reason.contains("the password is …"), "{reason}");
    let reason = server.get("/experiments/2/evaluations/1")["reason"].to_string();
    assert!(reason.contains("--token=…"), "{reason}");
}

#[test]
fn a_number_in_a_list_of_texts_can_be_enqueued() {
    let mut toy = toy();
    toy.spec["parameters"].as_array_mut().unwrap().push(json!(
        { "name": "level", "type": "categorical", "values": ["1", "2", "true"], "default": "1" }
    ));
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    let id = server.create().to_string();
    for (given, taken) in [("2", "2"), ("true", "true")] {
        server
            .does(&["enqueue", &id, &format!("level={given}")])
            .with_code(0);
        let queue = server.get(&format!("/experiments/{id}/queue"));
        assert_eq!(queue.as_array().unwrap().last().unwrap()["level"], taken);
    }
    server
        .does(&["enqueue", &id, "level=3"])
        .with_code(2)
        .saying(&["level"]);
}

#[test]
fn the_output_of_a_service_that_does_not_come_up_is_kept_whole() {
    let mut toy = toy();
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo \"line $i\" >&2; done; exit 3";
    toy.spec["target"]["start"] = json!(["sh", "-c", script]);
    let server = Server::start(&toy);
    let id = server.create();
    // Whether three in a row die on the control's side, which ends the experiment, is chance.
    server.wait_for(id, &["failed", "done"]);
    let evaluation = server.get(&format!("/experiments/{id}/evaluations/1"));
    let output = evaluation["output"].as_str().unwrap();
    assert_eq!(output.lines().count(), 200, "{output}");
    assert!(output.starts_with("line 101\n") && output.ends_with("line 300"));
    let cookie = crate::api::session(&server, "read_token");
    let page = ureq::get(server.page(&format!("/experiments/{id}/evaluations/1")));
    let page = page.header("cookie", &cookie).call().unwrap();
    let page = page.into_body().read_to_string().unwrap();
    assert!(page.contains("line 101"), "{page}");
    // Nothing was measured, so there is a sentence and no empty plot.
    assert!(
        page.contains("No block was measured.") && !page.contains("plot-blocks"),
        "{page}"
    );
}

#[test]
fn the_end_of_the_output_of_every_measured_service_is_kept() {
    let mut toy = toy();
    let script = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo \"line $i with x = {x}\"; done; exec sleep 1000";
    toy.spec["target"]["start"] = json!(["sh", "-c", script]);
    toy.spec["target"]["ready"]["command"] = json!(["grep", "-q", "line 300", "{dir}/service.out"]);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    for number in 1..=6 {
        let evaluation = server.get(&format!("/experiments/{id}/evaluations/{number}"));
        assert_eq!(evaluation["outcome"], "completed", "{evaluation}");
        let output = evaluation["output"].as_str().unwrap();
        let x = &evaluation["configuration"]["x"];
        assert!(
            output.ends_with(&format!("line 300 with x = {x}")),
            "{output}"
        );
        assert_eq!(output.lines().count(), 200, "{output}");
    }
    let page = html(&server, &format!("/experiments/{id}/evaluations/1"));
    assert!(page.contains("line 300 with x = "), "{page}");
    // Not where it would be read, or written, thousands of times.
    let export = server.does(&["export", &id.to_string()]).with_code(0);
    let list = server.get(&format!("/experiments/{id}/evaluations"));
    assert!(!export.stdout.contains("line 299") && !list.to_string().contains("line 299"));
    server.end();
    let report = Ended::of(toy.tune(&["--json", "-"])).with_code(0).stdout;
    assert!(!report.contains("line 299"), "{report}");
}

/// Somebody who sends a request with a token.
pub(crate) fn ask(
    server: &Server<'_>,
    method: &str,
    path: &str,
    body: &str,
) -> (u16, serde_json::Value) {
    let token = format!("Bearer {}", server.token("write_token"));
    let headers = [("authorization", token.as_str())];
    let mut answer = crate::api::answer(method, &server.url(path), &headers, body);
    let status = answer.status().as_u16();
    let said = answer.body_mut().read_json().unwrap_or_default();
    if status != 204 {
        crate::described::check(method, path, status, &said);
    }
    (status, said)
}

#[test]
fn of_four_promotions_at_once_one_succeeds() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(4);
    let server = Server::start(&toy);
    let id = server.improved();
    for _ in 0..3 {
        let path = format!("/experiments/{id}/promote");
        let at_once = std::sync::Barrier::new(4);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                at_once.wait();
                ask(&server, "POST", &path, "")
            };
            let all = [0; 4].map(|_| scope.spawn(one));
            all.map(|it| it.join().unwrap()).into()
        });
        let promoted = answers.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(promoted, 1, "{answers:?}");
        for (status, said) in answers.iter().filter(|(status, _)| *status != 200) {
            let why = said["detail"].as_str().unwrap();
            assert_eq!(*status, 409, "{said}");
            assert!(why.contains("is already in force"), "{why}");
        }
        assert_ne!(toy.knob(), FIRST);
        server.does(&["rollback", &id.to_string()]).with_code(0);
        assert_eq!(toy.knob(), FIRST);
    }
}

#[test]
fn an_optional_knob_that_is_gone_for_good_is_named_and_can_be_forgotten() {
    let (toy, other) = with_other(true);
    let server = Server::start(&toy);
    let id = server.create();
    let text = id.to_string();
    let shown = server.wait_for(id, &["done", "failed"]);
    assert_eq!(shown["finding"], "improvement", "{shown}");
    // What was verified is put in force whole or not at all.
    let hidden = toy.path("hidden");
    std::fs::rename(&other, &hidden).unwrap();
    let said = [
        "y belongs to what was verified",
        "verify the experiment again",
    ];
    server.does(&["promote", &text]).with_code(2).saying(&said);
    assert_eq!(toy.knob(), FIRST);
    std::fs::rename(&hidden, &other).unwrap();
    server.does(&["promote", &text]).with_code(0);
    let refused = server.does(&["forget-rest", &text, "--yes"]).with_code(2);
    refused.saying(&["has nothing to forget"]);
    let path = left_by_rollback(&server, id, &other, "forget-rest");
    assert_eq!(toy.knob(), FIRST);
    // Until it is mended or forgotten, nothing compares with a control that is not there.
    for verb in ["resume", "verify", "delete"] {
        let said = [path.as_str(), "roll back the rest first, or forget it"];
        server.does(&[verb, &text]).with_code(2).saying(&said);
    }
    let cookie = crate::api::session(&server, "write_token");
    let page = || {
        let page = ureq::get(server.page("/experiments/1")).header("cookie", &cookie);
        page.call().unwrap().into_body().read_to_string().unwrap()
    };
    let before = page();
    for shown in [
        "verb-forget",
        "Roll back the rest",
        "could not restore",
        &path,
    ] {
        assert!(before.contains(shown), "{shown}: {before}");
    }
    for hidden in ["verb-delete", "verb-resume", "verb-verify"] {
        assert!(!before.contains(hidden), "{hidden}: {before}");
    }
    // Nothing is forgotten unseen.
    let said = ["no longer try to restore", &path, "--yes"];
    server
        .does(&["forget-rest", &text])
        .with_code(1)
        .saying(&said);
    for (body, status) in [("", 422), (r#"{"confirm": false}"#, 422), ("{}", 400)] {
        let answer = ask(&server, "POST", "/experiments/1/forget-rest", body);
        assert_eq!(answer.0, status, "{answer:?}");
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(status == 400 || detail.contains(&path), "{detail}");
    }
    assert!(server.get("/experiments/1")["promotion"].is_object());
    let said = ["left as it is: ", &path];
    server
        .does(&["forget-rest", &text, "--yes"])
        .with_code(0)
        .saying(&said);
    assert!(server.get("/experiments/1")["promotion"].is_null());
    let (_, audit) = ask(&server, "GET", "/audit?limit=1", "");
    assert_eq!(audit[0]["action"], "forget-rest", "{audit}");
    let detail = audit[0]["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("left as it is: ") && detail.contains(&path),
        "{audit}"
    );
    let after = page();
    assert!(after.contains("forgot the rest of the rollback"), "{after}");
    assert!(!after.contains("verb-forget"), "{after}");
    server.does(&["delete", &text]).with_code(0);
}

#[test]
fn what_is_promoted_on_a_running_service_keeps_others_from_being_measured_on_it() {
    let toy = attached_once("");
    let server = Server::start(&toy);
    server.improved();
    server.does(&["promote", "1"]).with_code(0);
    let promoted = read(&toy, "live");
    let other = server.create();
    let shown = server.wait_for(other, &["paused"]);
    let why = shown["message"].as_str().unwrap();
    assert!(
        why.starts_with("the configuration of experiment 1 is in force on this host (/"),
        "{why}"
    );
    let said = ["Roll back experiment 1, then resume this experiment"];
    server.does(&["resume", "2"]).with_code(2).saying(&said);
    assert_eq!(read(&toy, "live"), promoted);
    server.does(&["rollback", "1"]).with_code(0);
    let shown = server.get("/experiments/2");
    let now = "the configuration of experiment 1 is not in force any more: resume this experiment";
    assert_eq!(shown["message"], now, "{shown}");
    server.does(&["resume", "2"]).with_code(0);
    server.wait_for(other, &["done", "failed"]);
}

#[test]
fn a_time_limit_goes_only_where_somebody_says_so() {
    let mut toy = toy();
    toy.spec["budget"]["wall_time_min"] = json!(30);
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    let id = server.create();
    let (text, path) = (id.to_string(), format!("/experiments/{id}"));
    let limit = || server.get(&path)["wall_time_min"].clone();
    let budget = |more: &[&str]| {
        let given = ["budget", text.as_str(), "--evaluations", "9"];
        server.does(&[&given, more].concat()).with_code(0)
    };
    budget(&[]).saying(&["and 30 min of measuring"]);
    assert_eq!(limit(), 30.0);
    budget(&["--wall-time-min", "45"]).saying(&["and 45 min of measuring"]);
    let put = |body: &str| ask(&server, "PUT", &format!("{path}/budget"), body).0;
    assert_eq!(put(r#"{"evaluations": 8, "wall_time_min": null}"#), 200);
    assert_eq!(limit(), 45.0);
    let both = r#"{"evaluations": 8, "wall_time_min": 3, "no_wall_time": true}"#;
    assert_eq!(put(both), 422);
    budget(&["--no-wall-time"]).saying(&["without a time limit"]);
    assert!(limit().is_null());
}

/// Somebody has killed this evaluation and paused its experiment, which has no constraints.
pub(crate) fn pages_tell_who_did_what(server: &Server<'_>, id: i64, killed: u64) {
    let page = |path: &str| html(server, path);
    let shown = page(&format!("/experiments/{id}"));
    let kill = format!("<strong>owner</strong> killed evaluation {killed}.");
    for part in [
        "<strong>owner</strong> paused the experiment.",
        kill.as_str(),
        ">Reason</th>",
        ">a user killed it</td>",
        "The experiment was created.",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("Constraints broken"), "{shown}");
    let evaluation = page(&format!("/experiments/{id}/evaluations/{killed}"));
    assert!(evaluation.contains("owner killed it"), "{evaluation}");
    // A refusal is called as what was done.
    let again = server.does(&["kill", &id.to_string(), &killed.to_string()]);
    again.with_code(2);
    let audit = page("/audit");
    assert_eq!(audit.matches(">kill an evaluation</td>").count(), 2);
    assert!(audit.contains(">pause an experiment</td>"), "{audit}");
}
