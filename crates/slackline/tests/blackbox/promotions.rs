//! What is in force on a host is listed by the commands and by the server, whoever has promoted it.

use serde_json::{Value, json};

use crate::continuous::{attached_once, read, wait_until};
use crate::serve::Server;
use crate::toy::{Ended, FIRST, Toy};

/// The control of a later experiment is what an earlier one has promoted.
#[test]
fn a_tune_names_what_it_measures_of_an_earlier_promotion() {
    let toy = Toy::new();
    let server = Server::start(&toy);
    server.improved();
    let report = toy.path("report.json");
    let tune = || {
        let ended =
            Ended::of(toy.tune(&["--evaluations", "1", "--json", report.to_str().unwrap()]));
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        (ended, report)
    };
    let warning = "the winner of experiment 1 (toy) is in force on this host: ";
    let (ended, written) = tune();
    assert!(!ended.stderr.contains(warning), "{}", ended.stderr);
    assert_eq!(written["promoted_before"], Value::Null);
    server.does(&["promote", "1"]).with_code(0);
    let way = format!(
        "slackline --state-dir {} experiments rollback 1",
        toy.path("state").display()
    );
    let (ended, written) = tune();
    assert!(ended.stdout.contains(warning), "{}", ended.stdout);
    let ended = ended.saying(&[warning, &way]);
    assert!(
        ended
            .stderr
            .contains("The control uses the promoted values"),
        "{}",
        ended.stderr
    );
    let kept = written["promoted_before"][0].as_str().unwrap();
    assert!(kept.starts_with(warning), "{kept}");
    let spec = toy.path("experiment.json");
    let check = || Ended::of(toy.slackline(&["check", spec.to_str().unwrap()])).with_code(0);
    check().saying(&[warning]);
    server.does(&["rollback", "1"]).with_code(0);
    assert!(!check().stderr.contains(warning));
    // What a command has promoted counts as well.
    Ended::of(toy.tune(&["--promote"])).with_code(0);
    let way = format!(
        "slackline --state-dir {} promotions undo 1",
        toy.path("state").display()
    );
    check().saying(&["promotion 1 (", &way]);
}

/// What `slackline promotions ls` prints.
fn ls(toy: &Toy, arguments: &[&str]) -> String {
    let ended = Ended::of(toy.slackline(&[&["promotions", "ls"], arguments].concat()));
    ended.with_code(0).stdout
}

/// A page as a browser with a token of this role gets it.
fn page(server: &Server<'_>, role: &str, path: &str) -> String {
    let cookie = crate::api::session(server, role);
    let page = ureq::get(server.page(path))
        .header("cookie", &cookie)
        .call();
    page.unwrap().body_mut().read_to_string().unwrap()
}

/// What `GET /promotions` answers to a token of this role.
fn promotions(server: &Server<'_>, role: &str) -> Value {
    let token = format!("Bearer {}", server.token(role));
    let headers = [("authorization", token.as_str())];
    let answer = crate::api::answer("GET", &server.url("/promotions"), &headers, "");
    answer.into_body().read_json().unwrap()
}

#[test]
fn commands_show_what_a_server_has_promoted() {
    let toy = Toy::new();
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    assert_eq!(ls(&toy, &[]), "");
    let of_one = page(&server, "write_token", "/experiments/1");
    let asks = "Put the winner of experiment 1 (toy) in force on this host? It sets ";
    assert!(of_one.contains(asks), "{of_one}");
    assert!(
        of_one.contains("Delete experiment 1 (toy) with its "),
        "{of_one}"
    );
    server.does(&["promote", "1"]).with_code(0);
    let listed = ls(&toy, &[]);
    assert!(listed.contains("experiment 1 (toy)"), "{listed}");
    assert!(
        listed.contains("`slackline experiments rollback 1`"),
        "{listed}"
    );
    let listed: Value = serde_json::from_str(&ls(&toy, &["--json"])).unwrap();
    assert_eq!(
        (&listed[0]["by"], &listed[0]["id"]),
        (&json!("serve"), &json!(1)),
        "{listed}"
    );
    let in_force = promotions(&server, "write_token");
    let one = &in_force["experiments"][0];
    assert_eq!((&one["id"], &one["by"]), (&json!(1), &json!("owner")));
    // Who may only look does not see who promoted, neither here nor on the page.
    let seen = promotions(&server, "read_token");
    assert_eq!(seen["experiments"][0]["by"], Value::Null, "{seen}");
    assert_eq!(
        seen["experiments"][0]["configuration"], one["configuration"],
        "{seen}"
    );
    let settings = one["configuration"].as_object().unwrap().iter();
    let settings: Vec<String> = settings
        .map(|(name, it)| format!("{name} = {it}"))
        .collect();
    assert!(!settings.is_empty(), "{in_force}");
    let shown = page(&server, "write_token", "/promotions");
    for part in [
        settings.join(", ").as_str(),
        "experiment 1",
        "promoted by owner",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(in_force["commands"], json!([]));
    server.does(&["rollback", "1"]).with_code(0);
    assert_eq!(ls(&toy, &[]), "");
}

#[test]
fn a_server_shows_what_a_command_has_promoted() {
    let toy = Toy::new();
    let server = Server::start(&toy);
    server.improved();
    let report = toy.path("report.json");
    let export = server.does(&["export", "1"]).with_code(0).stdout;
    std::fs::write(&report, export).unwrap();
    let apply = toy.slackline(&["apply", report.to_str().unwrap()]);
    Ended::of(apply).with_code(0);
    let in_force = server.get("/promotions");
    assert_eq!(in_force["commands"][0]["number"], 1, "{in_force}");
    assert_eq!(in_force["experiments"], json!([]));
    let listed = server.does(&["ls"]).with_code(0).stdout;
    assert!(listed.contains("Promotion 1 (toy)"), "{listed}");
    let page = page(&server, "read_token", "/promotions");
    // What is copied reaches this server from any shell.
    let command = format!(
        "slackline --state-dir {} promotions undo 1",
        toy.path("state").display()
    );
    assert!(page.contains(&command), "{page}");
    Ended::of(toy.slackline(&["promotions", "undo", "1"])).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    assert_eq!(server.get("/promotions")["commands"], json!([]));

    // What is wrong with the specification in a report is said of the report's own file.
    let mut other: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    other["spec"]["objective"]["metric"] = json!("not_measured");
    let other_path = toy.path("other.json");
    std::fs::write(&other_path, other.to_string()).unwrap();
    let place = format!("{}: objective.metric: ", other_path.display());
    let apply = toy.slackline(&["apply", other_path.to_str().unwrap()]);
    Ended::of(apply).with_code(2).saying(&[&place]);
}

/// The service refuses to be told of anything while a file `stuck` is there, and is slow to be told
/// while there is a file `slow`.
const STUCK: &str = "[ ! -e stuck ] || exit 3; [ ! -e slow ] || { touch telling; sleep 30; }";

#[test]
fn a_service_that_refuses_keeps_no_file_from_being_rolled_back() {
    let toy = attached_once(STUCK);
    let server = Server::start(&toy);
    server.improved();
    let stuck = toy.path("stuck");
    std::fs::write(&stuck, "").unwrap();

    // A promotion that is refused is none, although the service cannot be told so.
    server.does(&["promote", "1"]).with_code(2);
    let shown = server.get("/experiments/1");
    assert_eq!(shown["promoted"], false, "{shown:#}");
    assert_eq!(read(&toy, "service.conf"), FIRST);

    std::fs::remove_file(&stuck).unwrap();
    server.does(&["promote", "1"]).with_code(0);
    let promoted = read(&toy, "live");
    assert_ne!(promoted, FIRST);
    std::fs::write(&stuck, "").unwrap();
    let said = ["the apply steps", "exit status 3"];
    server.does(&["rollback", "1"]).with_code(4).saying(&said);
    assert_eq!(read(&toy, "service.conf"), FIRST);
    assert_eq!(read(&toy, "live"), promoted, "the service refuses");
    // Another experiment is not held up by it, and the rest is done once the service is mended.
    server.does(&["rollback", "1"]).with_code(4).saying(&said);
    std::fs::remove_file(&stuck).unwrap();
    server.does(&["rollback", "1"]).with_code(0);
    assert_eq!(read(&toy, "live"), FIRST);
    assert!(server.get("/experiments/1")["promotion"].is_null());
}

#[test]
fn a_promotion_that_a_kill_interrupted_is_none() {
    let toy = attached_once(STUCK);
    let server = Server::start(&toy);
    server.improved();
    std::fs::write(toy.path("slow"), "").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| Ended::of(toy.slackline(&["experiments", "promote", "1"])));
        toy.wait_for("telling");
        server.kill();
    });
    std::fs::remove_file(toy.path("slow")).unwrap();
    let server = Server::start(&toy);
    // The host is restored before the row says so.
    wait_until(&server, 1, |shown| shown["promoted"] == false);
    assert_eq!(read(&toy, "service.conf"), FIRST);
    assert_eq!(read(&toy, "live"), FIRST);
    server.does(&["promote", "1"]).with_code(0);
    assert_ne!(read(&toy, "live"), FIRST);
}
