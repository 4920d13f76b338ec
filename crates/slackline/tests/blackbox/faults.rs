//! What can go wrong in a tune: whose fault it is said to be, how the command ends, and that
//! nothing is left.

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;

use serde_json::{Value, json};

use crate::toy::{Ended, Toy, through};

/// The control cannot be measured: the tune gives up with exit code 2, says why, and leaves
/// nothing.
fn gives_up(toy: &Toy, saying: &[&str]) {
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&["the control could not be measured (3 attempts)"])
        .saying(saying)
        .saying(&["Everything is restored."]);
    toy.assert_as_before(&format!("{saying:?}"));
}

/// The one evaluation of x = 90: its outcome and the reason.
fn evaluation_of_90(toy: &mut Toy) -> (String, String) {
    toy.spec["initial"] = json!([{ "x": 90 }]);
    toy.spec["budget"]["evaluations"] = json!(1);
    let ended = Ended::of(toy.tune(&["--json", "-"])).with_code(1);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let evaluation = &report["evaluations"][0];
    assert_eq!(evaluation["configuration"]["x"], 90);
    (
        evaluation["outcome"].as_str().unwrap().to_owned(),
        evaluation["reason"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn a_configuration_that_does_not_come_up_has_crashed() {
    let mut toy = Toy::new();
    toy.spec["target"]["start"] = json!([
        "sh",
        "-c",
        "[ {x} -lt 60 ] && exec sleep 1000; echo out of pages >&2; exit 3"
    ]);
    // The service is given the time to end before it is asked whether it is up.
    toy.spec["target"]["ready"]["command"] = json!(["sleep", "0.1"]);
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "crashed");
    assert!(reason.contains("exit status 3: out of pages"), "{reason}");
    toy.assert_as_before("after a crash");
}

#[test]
fn a_configuration_that_is_not_ready_in_time_has_crashed() {
    let mut toy = Toy::new();
    toy.spec["target"]["ready"] =
        json!({ "command": ["test", "{x}", "-lt", "60"], "timeout_s": 0.2 });
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "crashed");
    assert!(reason.contains("not ready within 0.2 s"), "{reason}");
    toy.assert_as_before("after a service that was not ready");
}

#[test]
fn a_configuration_that_dies_under_load_has_crashed() {
    let mut toy = Toy::new();
    toy.spec["target"]["start"] = json!(["sh", "-c", "echo $$ > {dir}/pid; exec sleep 1000"]);
    toy.spec["target"]["ready"]["command"] = json!(["test", "-s", "{dir}/pid"]);
    toy.load_after(r#"[ "$v" = 50 ] || { kill -SEGV $(cat {dir}/pid); sleep 30; }"#);
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "crashed");
    assert!(reason.contains("signal 11"), "{reason}");
    toy.assert_as_before("after a death under load");
}

/// A load of so many requests takes as long as a bad configuration makes it.
#[test]
fn a_load_that_takes_far_longer_than_the_controls_is_ended() {
    let mut toy = Toy::new();
    toy.load_after(r#"[ "$v" = 50 ] || sleep 300"#);
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "aborted");
    assert!(reason.contains("its load was ended after"), "{reason}");
    toy.assert_as_before("after a load without an end");
}

#[test]
fn a_control_that_dies_under_load_is_not_the_configurations_fault() {
    let mut toy = Toy::new();
    toy.spec["target"]["start"] = json!(["sh", "-c", "echo $$ > {dir}/pid; exec sleep 1000"]);
    toy.spec["target"]["ready"]["command"] = json!(["test", "-s", "{dir}/pid"]);
    toy.load_after(r#"[ "$v" != 50 ] || { kill -SEGV $(cat {dir}/pid); sleep 30; }"#);
    gives_up(&toy, &["control: ", "signal 11"]);
}

#[test]
fn a_control_that_does_not_come_up_ends_the_tune() {
    let mut toy = Toy::new();
    toy.spec["target"]["start"] = json!(["sh", "-c", "echo cannot bind >&2; exit 1"]);
    toy.spec["target"]["ready"]["command"] = json!(["sleep", "0.5"]);
    gives_up(&toy, &["control: ", "exit status 1: cannot bind"]);
    toy.spec["target"]["start"] = json!(["no-such-server"]);
    gives_up(&toy, &["no-such-server: there is no such program"]);
}

/// As nginx and Redis go, unless they are told to stay.
#[test]
fn a_service_that_goes_into_the_background_is_ended_and_its_option_asked_for() {
    let mut toy = Toy::new();
    // The parent of the process that stays has ended, and that process has a session of its own.
    let daemon = "(setsid sleep 1000 > /dev/null 2>&1 < /dev/null &); exit 0";
    toy.spec["target"]["start"] = json!(["sh", "-c", daemon]);
    toy.spec["target"]["ready"]["command"] = json!(["sleep", "0.3"]);
    gives_up(
        &toy,
        &[
            "the service went into the background: its first process ended with 0 and left sleep ",
            "give the option that keeps it in the foreground",
        ],
    );
}

#[test]
fn a_port_in_use_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut toy = Toy::new();
    toy.spec["target"]["ports"] = json!([port, port - 1]);
    gives_up(&toy, &[&format!("port {port} is in use"), "target.ports"]);
}

#[test]
fn a_lack_of_file_descriptors_is_named_with_a_remedy() {
    let toy = Toy::new();
    let by = ["sh", "-c", "ulimit -n 20 && exec \"$@\"", "sh"];
    Ended::of(through(&by, &toy.tune(&[])))
        .with_code(2)
        .saying(&[
            " of 20 file descriptors are left, too few to measure",
            "`ulimit -n`",
            "Everything is restored.",
        ]);
    toy.assert_as_before("after a lack of descriptors");
}

#[test]
fn a_workload_in_trouble_is_the_harness_fault() {
    let mut toy = Toy::new();
    toy.load_with("echo 'usage: load [OPTIONS]'");
    gives_up(&toy, &["workload: "]);
    toy.load_with(r#"echo '{"requests": 1000}'"#);
    gives_up(&toy, &["workload: ", "latency_p99_us"]);
    toy.load_with("echo connection refused >&2; exit 7");
    gives_up(
        &toy,
        &[
            "workload: ",
            "exit status 7 and printed: connection refused",
        ],
    );
    toy.spec["workload"]["grace_s"] = json!(0.1);
    toy.load_with("sleep 30");
    gives_up(&toy, &["workload: ", "did not end within"]);
    toy.spec["workload"]["command"] = json!(["no-such-load"]);
    gives_up(&toy, &["no-such-load: there is no such program"]);
}

#[test]
fn a_workload_below_its_minimum_is_too_slow() {
    let mut toy = Toy::new();
    toy.spec["workload"]["minimum"] = json!({ "requests": 5000 });
    gives_up(&toy, &["requests", "5000"]);
}

#[test]
fn a_knob_that_refuses_the_value_makes_it_a_crash() {
    // The kernel takes 0 to 31 (Documentation/networking/ip-sysctl.rst); the only value written is
    // refused, so the host is never changed.
    let path = "/proc/sys/net/ipv4/tcp_app_win";
    let first = std::fs::read_to_string(path).unwrap_or_default();
    if first.is_empty() || std::fs::write(path, &first).is_err() {
        assert!(
            std::env::var_os("SLACKLINE_CI").is_none(),
            "no right to write {path}"
        );
        eprintln!("SKIP: no right to write {path}");
        return;
    }
    let mut toy = Toy::new();
    toy.spec["parameters"][0] = json!({
        "name": "x", "type": "int", "low": 0, "high": 90, "sysctl": "net.ipv4.tcp_app_win",
    });
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "crashed");
    assert!(reason.contains(path) && reason.contains("90"), "{reason}");
    assert_eq!(std::fs::read_to_string(path).unwrap(), first);
    toy.assert_as_before("after a refused value");
}

#[test]
fn a_full_disk_at_the_journal_changes_nothing() {
    let toy = Toy::new();
    let state = toy.path("state");
    std::fs::create_dir(&state).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "none"])
        .arg(&state)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        assert!(
            std::env::var_os("SLACKLINE_CI").is_none(),
            "no right to mount a tmpfs"
        );
        eprintln!("SKIP: no right to mount a tmpfs");
        return;
    }
    // A write that fails for lack of space has filled what there was.
    assert!(std::fs::write(state.join("filler"), vec![0; 1 << 20]).is_err());
    let ended = Ended::of(toy.tune(&[]));
    let journal = std::fs::read(state.join("journal.jsonl")).unwrap_or_default();
    std::fs::remove_file(state.join("filler")).unwrap();
    let unmounted = Command::new("umount").arg(&state).status().unwrap();
    assert!(unmounted.success());
    ended
        .with_code(2)
        .saying(&["state/journal.jsonl", "No space left on device"]);
    assert_eq!(journal, b"");
    toy.assert_as_before("with a full disk");
}

#[test]
fn a_configuration_whose_load_fails_is_left_alone_and_the_rest_goes_on() {
    let mut toy = Toy::new();
    toy.load_after(r#"[ "$v" -gt 60 ] && { echo too many clients >&2; exit 7; }"#);
    toy.spec["initial"] = json!([{ "x": 90 }, { "x": 30 }]);
    toy.spec["budget"]["evaluations"] = json!(5);
    let file = toy.path("report.json");
    let ended = Ended::of(toy.tune(&["--json", &file.display().to_string()]));
    assert!([0, 1].contains(&ended.code), "{}", ended.stderr);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let of_90: Vec<&Value> = report["evaluations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|evaluation| evaluation["configuration"]["x"] == 90)
        .map(|evaluation| &evaluation["outcome"])
        .collect();
    assert_eq!(of_90, ["failed", "failed"]);
    let reason = report["evaluations"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("too many clients"), "{reason}");
    assert_eq!(report["evaluations"][2]["outcome"], "completed");
    toy.assert_as_before("after a load that failed");
}

#[test]
fn what_was_measured_before_an_error_is_reported() {
    let mut toy = Toy::new();
    toy.spec["budget"]["evaluations"] = json!(20);
    // The load generator breaks for good after 20 blocks.
    toy.load_after(r#"echo x >> "$SLACKLINE_TEST_TOY/blocks"; [ $(wc -l < "$SLACKLINE_TEST_TOY/blocks") -gt 20 ] && { echo broken >&2; exit 7; }"#);
    let file = toy.path("report.json");
    let ended = Ended::of(toy.tune(&["--json", &file.display().to_string()]));
    ended
        .with_code(2)
        .saying(&["broken", "Everything is restored."]);
    let report: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(report["evaluations"][0]["outcome"], "completed");
    assert!(report["error"].as_str().unwrap().contains("broken"));
    assert!(
        report["sentence"]
            .as_str()
            .unwrap()
            .contains("There is no result")
    );
    toy.assert_as_before("after a broken load");
}

#[test]
fn a_report_that_cannot_be_written_is_known_at_once() {
    let toy = Toy::new();
    let file = toy.path("none/report.json");
    let ended = Ended::of(toy.tune(&["--json", &file.display().to_string()]));
    ended.with_code(2).saying(&["none/report.json"]);
    assert!(!toy.path("blocks").exists());
    let page = toy.path("page.html");
    let watch = |more: &[&str]| {
        let mut arguments = vec![
            "throttle",
            "watch",
            "--pid",
            "1",
            "--duration-s",
            "1000",
            "--html",
        ];
        arguments.push(page.to_str().unwrap());
        arguments.extend(more);
        Ended::of(toy.slackline(&arguments)).with_code(2)
    };
    watch(&["--json", &file.display().to_string()]).saying(&["none/report.json"]);
    assert!(!page.exists(), "nothing is left of the attempt");
    toy.assert_as_before("before anything");
}

#[test]
fn a_knob_of_a_read_only_file_system_is_refused() {
    let mut toy = Toy::new();
    let dir = toy.path("sealed");
    std::fs::create_dir(&dir).unwrap();
    let mount = |arguments: &[&str]| {
        let status = Command::new("mount").args(arguments).arg(&dir).status();
        status.is_ok_and(|status| status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=64k", "none"]) {
        assert!(
            std::env::var_os("SLACKLINE_CI").is_none(),
            "no right to mount a tmpfs"
        );
        eprintln!("SKIP: no right to mount a tmpfs");
        return;
    }
    std::fs::write(dir.join("knob"), "50\n").unwrap();
    let is_sealed = mount(&["-o", "remount,ro"]);
    toy.spec["parameters"][0]["file"] = json!(dir.join("knob"));
    let ended = Ended::of(toy.tune(&[]));
    let unmounted = Command::new("umount").arg(&dir).status().unwrap();
    assert!(is_sealed && unmounted.success());
    ended
        .with_code(2)
        .saying(&["sealed/knob", "is read-only", "optional = true"]);
}

#[test]
fn what_commands_left_in_the_background_ends_with_its_evaluation() {
    let mut toy = Toy::new();
    toy.load_after("setsid sleep 1000 >/dev/null 2>&1 &\nsleep 1000 >/dev/null 2>&1 &");
    Ended::of(toy.tune(&[])).with_code(0);
    toy.assert_as_before("after background processes");
    // Nothing of it is in the way of the next one.
    Ended::of(toy.tune(&["--evaluations", "1"]));
    toy.assert_as_before("after the next one");
}

#[test]
fn no_file_is_written_out_of_its_directory_without_a_record() {
    let mut toy = Toy::new();
    std::fs::write(toy.path("template"), "x").unwrap();
    // What the name stands for is not known when the specification is checked.
    toy.spec["variables"] = json!({ "place": "/tmp/../escaped" });
    toy.spec["target"]["files"] = json!([{ "template": "template", "path": "{dir}{place}" }]);
    gives_up(&toy, &["has .. in it"]);
}

/// Others may write to an instance's directory, as its service may be of any user.
#[test]
fn no_file_is_written_where_a_link_in_its_directory_leads() {
    let mut toy = Toy::new();
    std::fs::write(toy.path("template"), "x").unwrap();
    let elsewhere = toy.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    toy.spec["target"]["prepare"] = json!(["ln", "-s", elsewhere, "{dir}/conf"]);
    toy.spec["target"]["files"] = json!([{ "template": "template", "path": "{dir}/conf/file" }]);
    gives_up(&toy, &["outside {dir}"]);
    assert_eq!(std::fs::read_dir(elsewhere).unwrap().count(), 0);
}

#[test]
fn a_counter_that_a_restart_of_the_service_has_reset_is_no_improvement() {
    let mut toy = Toy::new();
    toy.spec["target"]["prepare"] = json!(["sh", "-c", "echo 1000 > {dir}/errors"]);
    toy.spec["metrics"] =
        json!({ "errors": { "command": ["cat", "{dir}/errors"], "counter": true } });
    toy.spec["constraints"] = json!(["errors <= 5"]);
    toy.load_after(r#"[ "$v" = 50 ] || echo 400 > {dir}/errors"#);
    let (outcome, reason) = evaluation_of_90(&mut toy);
    assert_eq!(outcome, "failed", "{reason}");
    assert!(reason.contains("errors went from 1000 to 400"), "{reason}");
}
