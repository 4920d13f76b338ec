//! What `slackline serve` promises to programs and to whoever runs it: the API's words, the client
//! of the manual, the log.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::{answer, header, status};
use crate::continuous::read;
use crate::eventually::eventually;
use crate::serve::{Server, toy};
use crate::toy::{Ended, FIRST, Toy, skip};

fn bearer(server: &Server<'_>) -> String {
    format!("Bearer {}", server.token("write_token"))
}

/// An experiment of so many evaluations, each slow enough to be caught at it.
/// A toy whose evaluations are slow enough to be caught at.
pub(crate) fn slow_toy(evaluations: usize) -> Toy {
    let mut toy = toy();
    toy.load_after("sleep 0.05");
    toy.spec["budget"]["evaluations"] = json!(evaluations);
    toy
}

/// The client of the manual, which sends this toy's specification as TOML.
fn client_of_manual(toy: &Toy) -> Command {
    let manual = include_str!("../../../../docs/api.md");
    let program = manual.split("```python\n").nth(1).unwrap();
    let program = program.split("```").next().unwrap();
    assert!(program.lines().count() <= 50, "it is to be read in one go");
    std::fs::write(toy.path("client.py"), program).unwrap();
    let spec = toml::Table::try_from(&toy.spec).unwrap();
    std::fs::write(toy.path("spec.toml"), spec.to_string()).unwrap();
    let mut client = Command::new("python3");
    client
        .arg(toy.path("client.py"))
        .arg(toy.path("state"))
        .arg(toy.path("spec.toml"));
    client
}

#[test]
fn the_client_of_the_manual_makes_an_experiment_and_promotes_it() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(4);
    let server = Server::start(&toy);
    let ended = Ended::of(client_of_manual(&toy)).with_code(0);
    assert!(ended.stdout.starts_with("Shown: "), "{}", ended.stdout);
    assert_ne!(toy.knob(), FIRST);
    server.does(&["rollback", "1"]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
}

#[test]
fn the_client_of_the_manual_waits_through_a_restart_of_the_server() {
    let toy = slow_toy(6);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let server = Server::start_at(&toy, &address);
    let mut client = client_of_manual(&toy);
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped());
    let client = client.spawn().unwrap();
    let runs = || server.get("/experiments")[0]["state"] == "running";
    eventually(20, runs, || "nothing runs");
    server.kill();
    // Longer than the client waits between two requests.
    std::thread::sleep(Duration::from_secs(3));
    let server = Server::start_at(&toy, &address);
    let ended = client.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{stderr}");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    assert!(stdout.starts_with("Shown: "), "{stdout}{stderr}");
    server.does(&["rollback", "1"]).with_code(0);
}

#[test]
fn a_command_without_a_server_says_how_to_start_it() {
    let toy = slow_toy(1);
    let state = toy.path("state").display().to_string();
    let start = format!("start it with `slackline --state-dir {state} serve`");
    let ls = || Ended::of(toy.slackline(&["experiments", "ls"])).with_code(2);
    ls().saying(&[
        "no server has run with the state directory ",
        &state,
        &start,
    ]);
    Server::start(&toy).kill();
    let ended = ls();
    ended.saying(&["does not answer", "has ended", &state]);
    let ended = ls().stderr;
    assert!(
        ended.to_lowercase().contains(&start.to_lowercase()),
        "{ended}"
    );
}

/// A queue that is paused holds what a restart has cut off: nothing promises that it goes on.
#[test]
fn nothing_promises_that_a_paused_queue_goes_on() {
    let toy = slow_toy(30);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["running"]);
    server.wait_for_evaluation(id);
    server.does(&["pause-queue"]).with_code(0);
    server.end();
    let server = Server::start(&toy);
    let shown = server.does(&["show", &id.to_string()]).with_code(0).stdout;
    let until = "waits until the queue is resumed: `slackline experiments resume-queue`";
    assert!(shown.contains(until), "{shown}");
    let page = page(&server.page("/experiments/1"), &server.token("read_token"));
    assert!(page.contains("waits until the queue is resumed"), "{page}");
    for promise in ["goes on after", "continues by itself"] {
        assert!(
            !shown.contains(promise) && !page.contains(promise),
            "{promise}"
        );
    }
    // Whatever would begin something says so, too.
    let created = toy.path("again.json");
    std::fs::write(&created, toy.spec.to_string()).unwrap();
    let created = created.to_str().unwrap();
    server
        .does(&["create", created])
        .with_code(0)
        .saying(&[&format!("experiment 2 {until}")]);
    server
        .does(&["enqueue", "2", "x=7"])
        .with_code(0)
        .saying(&[&format!("experiment 2 {until}")]);
}

#[test]
fn the_stream_of_events_says_what_changed() {
    let toy = toy();
    let server = Server::start(&toy);
    let events = answer(
        "GET",
        &server.url("/events"),
        &[("authorization", &bearer(&server))],
        "",
    );
    assert_eq!(header(&events, "content-type"), "text/event-stream");
    let mut lines = BufReader::new(events.into_body().into_reader()).lines();
    let mut next = || -> Value {
        let mut lines = lines.by_ref().map(Result::unwrap);
        assert!(lines.any(|line| line == "event: changed"));
        let data = lines.next().unwrap();
        let data = serde_json::from_str(data.trim_start_matches("data: ")).unwrap();
        crate::described::check_changed(&data);
        data
    };
    let first = next();
    for key in ["revision", "progress", "trouble"] {
        assert!(first.get(key).is_some(), "{first}");
    }
    server.does(&["pause-queue"]).with_code(0);
    assert!(next()["revision"].as_u64() > first["revision"].as_u64());
}

#[test]
fn a_promotion_that_has_to_wait_says_for_what() {
    let toy = slow_toy(4);
    let server = Server::start(&toy);
    let id = server.create();
    let shown = server.wait_for(id, &["done"]);
    assert_eq!(shown["finding"], "improvement", "{shown}");
    let longer = slow_toy(200);
    let other = server.create_of(&longer.spec);
    server.wait_for(other, &["running"]);
    let wanted = format!(
        "experiment {other} is being measured: pause it, or pause the queue, wait for the end of its evaluation, and try again"
    );
    server
        .does(&["promote", &id.to_string()])
        .with_code(2)
        .saying(&[&wanted]);
    server.does(&["stop", &other.to_string()]).with_code(0);
}

fn page(url: &str, token: &str) -> String {
    let token = format!("Bearer {token}");
    let headers = [("authorization", token.as_str()), ("accept", "text/html")];
    let mut page = answer("GET", url, &headers, "").into_body();
    page.read_to_string().unwrap()
}

/// Waits until all that shows an experiment says what keeps the server from its work: two commands
/// (`asked`) and the pages (`page`).
pub(crate) fn says_trouble(
    id: i64,
    trouble: &str,
    asked: impl Fn(&[&str]) -> String,
    page: impl Fn(&str) -> String,
) {
    let until = |what: &str, text: &dyn Fn() -> String| {
        let says_so = || text().contains(trouble);
        eventually(30, says_so, || format!("{what}: {}", text()));
    };
    let id = id.to_string();
    for arguments in [&["ls"][..], &["show", &id]] {
        until(arguments[0], &|| asked(arguments));
    }
    let own = format!("/experiments/{id}");
    for path in ["/", &own, "/host", "/promotions"] {
        until(path, &|| page(path));
    }
}

#[test]
fn a_second_server_waits_for_the_first() {
    let toy = toy();
    let first = Server::start(&toy);
    let address = first.page("/");
    // It waits, and leaves the address of the first one for the command line.
    let second = Server::start(&toy);
    assert_eq!(second.page("/"), address);
    let messages = || read(&toy, "serve.stderr");
    let until = |text: &str| {
        eventually(30, || messages().contains(text), messages);
    };
    until(
        "commands reach that one. This server waits until the other one ends, then takes over at http://127.0.0.1:",
    );
    // It says where it serves when it does.
    let served = || messages().matches("(the tokens are in ").count();
    assert_eq!(served(), 1, "{}", messages());
    until("another `slackline serve` uses the store");
    let id = first.create();
    first.wait_for(id, &["done"]);
    let log = messages();
    let waits_at = log.split("then takes over at ").nth(1).unwrap();
    let waits_at = waits_at.split("/").take(3).collect::<Vec<_>>().join("/");
    let token = first.token("write_token");
    let trouble = "another `slackline serve` uses the store";
    says_trouble(
        id,
        trouble,
        |arguments| {
            let arguments = [&["experiments", "--url", &waits_at], arguments].concat();
            let mut asked = toy.slackline(&arguments);
            asked.env("SLACKLINE_TOKEN", &token);
            Ended::of(asked).with_code(0).stdout
        },
        |path| page(&format!("{waits_at}{path}"), &token),
    );
    // When it ends, the first one is reached as before; the next one waits, too.
    assert_eq!(second.end(), 128 + 15);
    assert_eq!(first.page("/"), address);
    let listed = first.does(&["ls"]).with_code(0).stdout;
    assert!(
        listed.contains("toy") && !listed.contains("TROUBLE"),
        "{listed}"
    );
    let second = Server::start(&toy);
    let waits = || messages().matches("then takes over at").count();
    eventually(30, || waits() >= 2, messages);
    first.kill();
    until("commands reach this server now\n");
    assert_ne!(second.page("/"), address);
    let id = second.create();
    second.wait_for(id, &["done"]);
}

#[test]
fn a_budget_below_the_evaluations_that_there_are_is_refused() {
    let toy = slow_toy(6);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    server
        .does(&["budget", &id.to_string(), "--evaluations", "2"])
        .with_code(2)
        .saying(&["has 6 evaluations already: give a number of evaluations above 6"]);
    let shown = server.does(&["show", &id.to_string()]).with_code(0).stdout;
    assert!(shown.contains("6 of 6 evaluations"), "{shown}");
}

#[test]
fn the_log_says_what_was_recovered_after_a_kill() {
    let toy = slow_toy(30);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["running"]);
    std::thread::sleep(Duration::from_millis(300));
    server.kill();
    let server = Server::start(&toy);
    let said = "experiment 1 (toy) was running when the last server ended: it goes on";
    let messages = || read(&toy, "serve.stderr");
    eventually(20, || messages().contains(said), messages);
    server.does(&["stop", &id.to_string()]).with_code(0);
}

#[test]
fn a_table_has_units_and_metrics_of_both_sides_and_numbers_for_prometheus() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(2);
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done", "failed"]);
    let csv = server
        .does(&["export", &id.to_string(), "--format", "csv"])
        .with_code(0)
        .stdout;
    let heading = csv.lines().next().unwrap();
    for column in [
        "latency_p99_us of control [us]",
        "latency_p99_us of candidate [us]",
    ] {
        assert!(heading.contains(column), "{heading}");
    }
    let metrics = answer(
        "GET",
        &server.page("/metrics"),
        &[("authorization", &bearer(&server))],
        "",
    );
    let metrics = metrics.into_body().read_to_string().unwrap();
    for name in [
        "slackline_evaluations_by_outcome{experiment=\"1\",name=\"toy\",outcome=\"completed\"}",
        "slackline_queue_paused 0",
        "slackline_build_info{version=",
        "slackline_http_answers_total{class=\"2xx\"}",
        "slackline_experiments{state=\"done\"} 1",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
}

#[test]
fn a_list_is_printed_again_until_it_is_ended() {
    let toy = toy();
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    server.create();
    let mut command = toy.slackline(&["experiments", "ls", "--watch"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let rows = lines
        .map_while(Result::ok)
        .filter(|line| line.contains("toy"));
    assert_eq!(rows.take(2).count(), 2);
    crate::toy::kill([&mut child]);
}

#[test]
fn behind_tls_a_cookie_is_secure_and_named_after_the_port() {
    let toy = toy();
    let listen = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--trusted-proxy",
        "127.0.0.1",
    ];
    let more = [
        "--name",
        "tuner.example",
        "--user-header",
        "X-Forwarded-User",
        "--writer",
        "owner",
    ];
    let mut command = toy.slackline(&[&listen[..], &more[..]].concat());
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = log.map_while(Result::ok);
    let line = lines
        .find(|line| line.contains("(the tokens are in"))
        .unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    let from = line.find("http://").unwrap();
    let page = line[from..]
        .split(' ')
        .next()
        .unwrap()
        .trim_end_matches('/');
    let access = std::fs::read_to_string(toy.path("state/serve.json")).unwrap();
    let access: Value = serde_json::from_str(&access).unwrap();
    let first = format!("{page}/?token={}", access["write_token"].as_str().unwrap());
    let forwarded = [("host", "tuner.example"), ("x-forwarded-proto", "https")];
    let cookie = header(&answer("GET", &first, &forwarded, ""), "set-cookie");
    assert!(
        cookie.starts_with("slackline-443=") && cookie.contains("; Secure"),
        "{cookie}"
    );
    let plain = header(&answer("GET", &first, &[], ""), "set-cookie");
    assert!(
        !plain.contains("Secure") && !plain.starts_with("slackline-443="),
        "{plain}"
    );
    // A user of the proxy is nobody with a token, whatever his name is.
    let user = [("host", "tuner.example"), ("x-forwarded-user", "owner")];
    let audit = answer("GET", &format!("{page}/api/v1/audit"), &user, "");
    assert_eq!(audit.status(), 200);
    assert_eq!(
        status("POST", &format!("{page}/api/v1/queue/pause"), &user, ""),
        403,
        "a browser may send it"
    );
    let audit = answer("GET", &format!("{page}/api/v1/audit"), &user, "");
    let audit: Value = audit.into_body().read_json().unwrap();
    assert_eq!(audit[0]["who"], "proxy:owner", "{audit}");
    crate::toy::kill([&mut child]);
}

#[test]
fn a_flood_without_a_token_costs_nobody_with_one() {
    let toy = toy();
    let server = Server::start_with_rate(&toy, "5");
    let (list, metrics) = (server.url("/experiments"), server.page("/metrics"));
    let token = bearer(&server);
    let mut refused = 0;
    for round in 0..300 {
        refused += usize::from(status("GET", &list, &[], "") == 429);
        if round % 60 == 0 {
            assert_eq!(
                status("GET", &metrics, &[("authorization", &token)], ""),
                200
            );
        }
    }
    assert!(refused > 0, "nothing was refused");
}

/// Beyond loopback, in a network of its own.
#[test]
fn a_server_that_others_can_reach_warns() {
    let toy = toy();
    let mut probe = Command::new("unshare");
    let is_there = probe.args(["--net", "true"]).stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return skip(&"no network of its own can be made here");
    }
    let mut command = Command::new("unshare");
    command
        .args(["--net", env!("CARGO_BIN_EXE_slackline"), "--state-dir"])
        .arg(toy.path("state"));
    command.args(["serve", "--listen", "0.0.0.0:0"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = log.map_while(Result::ok).next().unwrap();
    assert!(first.contains("other hosts can reach 0.0.0.0:0"), "{first}");
    crate::toy::kill([&mut child]);
}
