//! `slackline relayout` and what it says of processes that it leaves alone.

mod debugger;
mod faults;
mod tables;
mod turns;
mod workloads;

use serde_json::Value;

use crate::toy::{Ended, Toy, skip};

#[test]
fn who_is_not_there_or_not_re_laid_out_is_named() {
    let toy = Toy::new();
    Ended::of(toy.slackline(&["relayout", "start", "--pid", "4294967", "--once"]))
        .with_code(2)
        .saying(&["process 4294967 does not exist"]);
    Ended::of(toy.slackline(&["relayout", "rollback", "4294967"]))
        .with_code(2)
        .saying(&["4294967", "no relayout on record"]);
    Ended::of(toy.slackline(&["relayout", "start", "--once"])).with_code(2);
    Ended::of(toy.slackline(&["relayout", "rollback", "--all"]))
        .with_code(0)
        .saying(&["Nothing to roll back"]);
    Ended::of(toy.slackline(&["relayout", "stop"]))
        .with_code(0)
        .saying(&["Nobody watches"]);
}

#[test]
fn doctor_and_the_commands_agree_on_the_processor() {
    let toy = Toy::new();
    let doctor = Ended::of(toy.slackline(&["doctor", "--json"])).with_code(0);
    let probes: Vec<Value> = serde_json::from_str(&doctor.stdout).unwrap();
    let mut probes = probes.iter();
    let probe = probes
        .find(|probe| probe["name"] == "machine code")
        .unwrap();
    let status = Ended::of(toy.slackline(&["relayout", "status"]));
    match probe["state"]["missing"]["why"].as_str() {
        None => status.with_code(0),
        Some(why) => status.with_code(3).saying(&[why]),
    };
    Ended::of(toy.slackline(&["relayout", "schema"])).with_code(0);
}

/// A `start --once` on a process that sleeps, after these arguments; `None` where a privilege is
/// missing.
fn start_on_a_sleeper(toy: &Toy, arguments: &[&str]) -> Option<Ended> {
    let mut sleeper = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let pid = sleeper.id().to_string();
    let mut start = toy.slackline(&["relayout", "start"]);
    start.args(arguments);
    start.args(["--pid", &pid, "--once", "--json"]);
    let ended = Ended::of(start);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    if ended.code == 3 {
        skip(&ended.stderr);
        return None;
    }
    Some(ended)
}

#[test]
fn an_idle_process_is_declined_with_the_reason() {
    let toy = Toy::new();
    let Some(ended) = start_on_a_sleeper(&toy, &[]) else {
        return;
    };
    let ended = ended.with_code(1);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let process = &printed["processes"][0];
    assert_eq!(process["state"], "declined");
    assert_eq!(process["generation"], 0);
    assert!(
        process["reason"].as_str().unwrap().contains("idle"),
        "{process}"
    );
}

#[test]
fn a_bad_configuration_file_is_named_with_line_and_key() {
    let toy = Toy::new();
    let path = toy.path("relayout.toml");
    std::fs::write(&path, "[[watch]]\nexe = \"mariadbd\"\nuser = 5\n").unwrap();
    let file = path.display().to_string();
    Ended::of(toy.slackline(&["relayout", "start", "--config", &file]))
        .with_code(2)
        .saying(&["relayout.toml:3: watch[0].user"]);
    std::fs::write(
        &path,
        "[[watch]]\nexe = \"x\"\n[log]\nfile = \"/nonexistent/log\"\n",
    )
    .unwrap();
    Ended::of(toy.slackline(&["relayout", "start", "--config", &file]))
        .with_code(2)
        .saying(&["/nonexistent/log"]);
    Ended::of(toy.slackline(&["relayout", "start", "--config", "/nonexistent.toml"]))
        .with_code(2)
        .saying(&["/nonexistent.toml"]);
}

#[test]
fn the_unit_s_configuration_file_is_understood() {
    let toy = Toy::new();
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../contrib/systemd/slackline-relayout.toml"
    );
    // Its users need not be on this host; everything else is to be.
    let text = std::fs::read_to_string(example).unwrap();
    let text = text
        .replace("user = \"mysql\"", "user = \"0\"")
        .replace("user = \"postgres\"", "user = \"0\"")
        .replace("mariadbd", "no-such-program")
        .replace("\"postgres\"", "\"no-such-program\"")
        .replace("every_s = 30", "every_s = 30\nonce = true");
    let path = toy.path("relayout.toml");
    std::fs::write(&path, text).unwrap();
    let file = path.display().to_string();
    Ended::of(toy.slackline(&["relayout", "start", "--config", &file]))
        .with_code(2)
        .saying(&["no process has an executable of that name"]);
}

#[test]
fn what_names_nobody_or_cannot_be_is_an_error_of_usage() {
    let toy = Toy::new();
    for (arguments, said) in [
        (
            ["--exe", "/usr/sbin/mariadbd"],
            "name without its directory",
        ),
        (["--exe", ""], "name without its directory"),
        (
            ["--pairs", "9000000000000000000"],
            "--pairs must be between 2 and",
        ),
        (["--pairs", "1"], "--pairs must be between 2 and"),
    ] {
        let own = std::process::id().to_string();
        let mut start = toy.slackline(&["relayout", "start", "--pid", &own]);
        Ended::of({
            start.args(arguments);
            start
        })
        .with_code(2)
        .saying(&[said]);
    }
}

#[test]
fn what_is_wrong_with_one_process_keeps_no_other_from_its_turn() {
    let toy = Toy::new();
    let Some(ended) = start_on_a_sleeper(&toy, &["--pid", "0"]) else {
        return;
    };
    let ended = ended.with_code(2);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(printed["processes"][0]["state"], "declined", "{printed}");
    ended.saying(&["process 0 does not exist"]);
}

#[test]
fn a_state_directory_that_cannot_be_read_is_not_one_in_which_nothing_is() {
    let toy = Toy::new();
    std::fs::create_dir(toy.path("state")).unwrap();
    std::fs::write(toy.path("state/relayout"), "").unwrap();
    for command in [
        &["status"] as &[&str],
        &["status", "--json"],
        &["stop"],
        &["rollback", "--all"],
    ] {
        let mut slackline = toy.slackline(&["relayout"]);
        slackline.args(command);
        let ended = Ended::of(slackline).with_code(2);
        assert_eq!(ended.stdout, "");
        ended.saying(&["cannot read", "state/relayout"]);
    }
}
