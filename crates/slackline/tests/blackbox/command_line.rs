//! Help, `check`, `schema`, usage errors: nothing that changes a host.

use std::path::Path;

use serde_json::Value;

use crate::toy::{Ended, Toy};

#[test]
fn help_texts() {
    let toy = Toy::new();
    let help = |arguments: &[&str]| {
        let mut command = toy.slackline(arguments);
        // They would show in the text, or change where its lines end.
        command
            .env_remove("SLACKLINE_STATE_DIR")
            .env_remove("COLUMNS");
        Ended::of(command).with_code(0).stdout
    };
    insta::assert_snapshot!("help", help(&["--help"]));
    insta::assert_snapshot!("help-tune", help(&["tune", "--help"]));
    insta::assert_snapshot!("help-restore", help(&["restore", "--help"]));
    insta::assert_snapshot!("help-serve", help(&["serve", "--help"]));
    insta::assert_snapshot!("help-experiments", help(&["experiments", "--help"]));
}

#[test]
fn shells_and_man_know_every_command() {
    let toy = Toy::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = Ended::of(toy.slackline(&["completions", shell])).with_code(0);
        for command in ["serve-cache", "ask-tell", "--state-dir"] {
            let word = command.trim_start_matches('-');
            assert!(script.stdout.contains(word), "{shell}: {command}");
        }
    }
    let pages = toy.path("man");
    Ended::of(toy.slackline(&["man", pages.to_str().unwrap()])).with_code(0);
    for page in [
        "slackline.1",
        "slackline-tune.1",
        "slackline-throttle-watch.1",
    ] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.starts_with(".ie"), "{page}: roff");
    }
    let version = Ended::of(toy.slackline(&["--version"])).with_code(0).stdout;
    assert!(version.starts_with("slackline 0.1.0"), "{version}");
}

#[test]
fn usage_errors_end_with_2() {
    let toy = Toy::new();
    for arguments in [&["tun"][..], &["tune"], &["tune", "x", "--seed", "many"]] {
        let ended = Ended::of(toy.slackline(arguments)).with_code(2);
        assert!(ended.stdout.is_empty(), "{arguments:?}: {}", ended.stdout);
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
    }
    let mut messages = String::new();
    for arguments in [
        "tun",
        "tune",
        "tune x --seed many",
        "check",
        "check /no/such.toml",
        "apply /no/such.json",
        "parse wkr",
        "promotions undo x",
        "experiments show x",
        "serve --rate x",
        "throttle watch",
        "throttle advise",
        "throttle loadtest",
        "relayout start",
        "isolate run /no/such.toml",
        "load",
        "ask-tell /no/such.toml",
        "serve-cache --memory much",
        "serve-block run /no/such.toml",
        "completions tcsh",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        let ended = Ended::of(toy.slackline(&words)).with_code(2);
        messages.push_str(&format!("$ slackline {arguments}\n{}\n", ended.stderr));
    }
    insta::assert_snapshot!("usage", messages);
    // Without a configuration that of the systemd unit is meant.
    let tenant = ["--p95-us", "500", "--iops", "20000", "--read", "0.9"];
    for command in [&["status"][..], &[&["admit"][..], &tenant].concat()] {
        let ended = Ended::of(toy.slackline(&[&["serve-block"], command].concat()));
        let stderr = ended.with_code(2).stderr;
        assert!(stderr.contains("/etc/slackline/blocks.toml"), "{stderr}");
    }
    // A file where a number is meant.
    for verb in ["show", "enqueue", "delete"] {
        let ended = Ended::of(toy.slackline(&["experiments", verb, "experiment.toml"]));
        let stderr = ended.with_code(2).stderr;
        assert!(
            stderr.contains("experiments create FILE"),
            "{verb}: {stderr}"
        );
    }
    // `--pid "$(pidof NAME)"` where nothing runs, and where two do.
    for (pid, says) in [
        ("", "does the program run?"),
        ("12 34", "these are 2"),
        ("x", "4711"),
    ] {
        for command in [&["relayout", "start"][..], &["throttle", "watch"]] {
            let ended = Ended::of(toy.slackline(&[command, &["--pid", pid]].concat()));
            let stderr = ended.with_code(2).stderr;
            assert!(stderr.contains(says), "{command:?} {pid:?}: {stderr}");
        }
    }
    Ended::of(toy.tune(&["--evaluations", "0"]))
        .with_code(2)
        .saying(&["--evaluations must be above 0"]);
}

#[test]
fn schema_is_json_with_parameters() {
    let ended = Ended::of(Toy::new().slackline(&["schema"])).with_code(0);
    let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(schema["properties"]["parameters"].is_object());
    assert_eq!(schema["required"], serde_json::json!(["parameters"]));
}

#[test]
fn each_configuration_file_has_its_schema() {
    for (command, key) in [
        ("isolate", "best_effort"),
        ("relayout", "watch"),
        ("serve-block", "tenant"),
    ] {
        let ended = Ended::of(Toy::new().slackline(&[command, "schema"])).with_code(0);
        let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(schema["properties"][key].is_object(), "{command}");
    }
}

#[test]
fn check_of_a_good_specification_changes_nothing() {
    let toy = Toy::new();
    toy.tune(&[]);
    let file = toy.path("experiment.json");
    let ended = Ended::of(toy.slackline(&["check", file.to_str().unwrap()])).with_code(0);
    assert!(
        ended
            .stdout
            .contains("toy: 1 parameter, 101 configurations")
    );
    assert!(
        ended.stdout.contains("x = 50  of 0 to 100"),
        "{}",
        ended.stdout
    );
    for warning in ["missing here", "is not used"] {
        assert!(!ended.stderr.contains(warning), "{}", ended.stderr);
    }
    assert!(!toy.path("state").exists());
}

/// What a run at work has in force needs no restore.
#[test]
fn check_names_the_run_whose_values_are_in_force() {
    let mut toy = Toy::new();
    let began = toy.path("began");
    toy.load_after(&format!("touch {}; sleep 20", began.display()));
    toy.tune(&[]);
    let file = toy.path("experiment.json");
    let check = || Ended::of(toy.slackline(&["check", file.to_str().unwrap()])).with_code(0);
    let mut at_work = toy.tune_in_background();
    toy.wait_for("began");
    let said = check().saying(&["values of another run are in force", "is at work"]);
    let pid = format!("pid {}", at_work.id());
    assert!(said.stderr.contains(&pid), "{}", said.stderr);
    assert!(!said.stderr.contains(" restore`"), "{}", said.stderr);
    at_work.kill().unwrap();
    at_work.wait().unwrap();
    let state = toy.path("state").display().to_string();
    check().saying(&[&format!(
        "run `slackline --state-dir {state} restore` first"
    )]);
    toy.restore().with_code(0);
    let said = check();
    assert!(
        !said.stderr.contains("values of another run"),
        "{}",
        said.stderr
    );
}

#[test]
fn check_names_programs_that_are_missing_and_all_ranges() {
    let toy = Toy::new();
    let file = toy.path("good.toml");
    let text = GOOD
        .replace("command = [\"true\"]", "command = [\"no-such-load\"]")
        .replace("high = 100", "high = 100\nstep = 5\nspecial = [-1]")
        + "\n[metrics.queue]\ncommand = [\"no-such-meter\"]\n[metrics.other]\ncommand = [\"true\"]\n\
        [target.ready]\ncommand = [\"no-such-knock\"]\n[[target.apply]]\ncommand = [\"no-such-push\"]\n";
    std::fs::write(&file, text).unwrap();
    let ended = Ended::of(toy.slackline(&["check", file.to_str().unwrap()])).with_code(0);
    let line = "x = 50  of 0 to 100 by 5, or -1";
    assert!(ended.stdout.contains(line), "{}", ended.stdout);
    for line in [
        "warning: missing here: workload.command is \"no-such-load\", and there is no such program on the PATH",
        "warning: parameter x is not used: it is no knob, and no command, file or environment has {x}",
        "missing here: metrics.queue.command is \"no-such-meter\", and",
        "missing here: target.ready.command is \"no-such-knock\", and",
        "missing here: target.apply[0].command is \"no-such-push\", and",
    ] {
        assert!(ended.stderr.contains(line), "{}", ended.stderr);
    }
    assert_eq!(ended.stderr.matches("missing here").count(), 4);
}

#[test]
fn check_names_a_file_that_is_not_as_its_template_has_it() {
    let mut toy = Toy::attached();
    toy.tune(&[]);
    let file = toy.path("experiment.json");
    let conf = toy.path("service.conf");
    let other = format!(
        "other contents: {} (target.files[0]) differs from its template with the control's values",
        conf.display()
    );
    let says = |toy: &Toy| {
        toy.tune(&[]);
        let ended = Ended::of(toy.slackline(&["check", file.to_str().unwrap()])).with_code(0);
        ended.stderr.contains(&other)
    };
    assert!(says(&toy));
    std::fs::write(&conf, "x = 50\n").unwrap();
    assert!(!says(&toy));
    std::fs::remove_file(&conf).unwrap();
    assert!(!says(&toy), "it is made");
    // What is not known before it is measured says nothing.
    std::fs::write(&conf, "x = 50\n").unwrap();
    std::fs::write(toy.path("service.conf.in"), "x = {x}, in {dir}\n").unwrap();
    assert!(!says(&toy));
    std::fs::write(toy.path("service.conf.in"), "x = {x}, port {port}\n").unwrap();
    toy.spec["target"]["ports"] = serde_json::json!([8080, 8081]);
    assert!(says(&toy));
    std::fs::write(&conf, "x = 50, port 8080\n").unwrap();
    assert!(!says(&toy));
}

#[test]
fn what_is_missing_is_what_can_be_given() {
    let toy = Toy::new();
    let complaint = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let ended = Ended::of(toy.slackline(&arguments)).with_code(2);
        let complaint = ended.stderr.split("Usage:").next().unwrap();
        complaint.to_owned()
    };
    let advise = complaint("throttle advise");
    assert!(
        advise.contains("--pid") && advise.contains("--service"),
        "{advise}"
    );
    let loadtest = "throttle loadtest --slo-p99-ms 10";
    let of_either = complaint(loadtest);
    assert!(
        of_either.contains("<--url <URL>|--command <COMMAND>>"),
        "{of_either}"
    );
    let unread = complaint(&format!("{loadtest} --command true={{rate}}"));
    assert!(
        unread.contains("--parse") && !unread.contains("--url"),
        "{unread}"
    );
    // It says by itself how it loads.
    let both = format!("{loadtest} --command true={{rate}} --parse oha --connections 5");
    let both = complaint(&both);
    assert!(
        both.contains("'--command <COMMAND>' cannot be used with")
            && both.contains("--connections"),
        "{both}"
    );
}

/// A specification in which each test breaks one line.
const GOOD: &str = r#"constraints = ["latency_p99_us <= 1.05 * control"]

[[parameters]]
name = "x"
type = "int"
low = 0
high = 100
default = 50

[target]
start = ["sleep", "1000"]

[workload]
command = ["true"]
json = { latency_p99_us = "p99" }

[objective]
metric = "latency_p99_us"
"#;

#[test]
fn one_file_is_not_written_twice() {
    let toy = Toy::new();
    let (file, again) = (toy.path("seen"), toy.path("./seen"));
    let watch = |json: &Path, html: &Path| {
        let mut command = toy.slackline(&["throttle", "watch", "--cgroup", "no/such-group"]);
        command.arg("--json").arg(json).arg("--html").arg(html);
        Ended::of(command).with_code(2)
    };
    watch(&file, &again).saying(&["seen is given for two options that write a file"]);
    assert!(!file.exists());
    let device = Path::new("/dev/null");
    watch(device, device).saying(&["no control group"]);
}

#[test]
fn check_names_file_line_and_key() {
    let toy = Toy::new();
    let file = toy.path("broken.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Ended::of(toy.slackline(&["check", file.to_str().unwrap()]))
    };
    check(GOOD).with_code(0);
    let mut messages = String::new();
    for (from, to) in [
        ("high = 100", "hihg = 100"),
        ("high = 100", "high = -1"),
        ("high = 100", "high = \"much\""),
        ("high = 100", "high = = 100"),
        ("default = 50", "default = 200"),
        ("type = \"int\"", "type = \"integer\""),
        ("default = 50", "file = \"/no/such/knob\""),
        ("default = 50", "sysctl = \"no.such_sysctl\""),
        ("metric = \"latency_p99_us\"", "metric = \"latency\""),
        ("<= 1.05 * control", "<= 1.05 us"),
        ("json = { latency_p99_us = \"p99\" }", "parse = \"wkr\""),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let ended = check(&GOOD.replacen(from, to, 1)).with_code(2);
        assert!(ended.stdout.is_empty());
        let line = ended
            .stderr
            .replace(&toy.path("").display().to_string(), "");
        // The list of metrics grows with the product; that there is one is enough here.
        let line = match line.split_once("; there are") {
            Some((said, _)) => format!("{said}; there are …\n"),
            None => line,
        };
        messages.push_str(&format!("{to}\n{line}\n"));
    }
    insta::assert_snapshot!("check", messages);
    assert!(!toy.path("state").exists());
}

#[test]
fn a_missing_specification_is_named() {
    let toy = Toy::new();
    Ended::of(toy.slackline(&["tune", "/no/such.toml"]))
        .with_code(2)
        .saying(&["/no/such.toml", "No such file"]);
}
