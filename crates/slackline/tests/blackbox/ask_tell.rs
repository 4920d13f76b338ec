//! The `ask-tell` protocol: JSON lines in both directions.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::toy::{Ended, Toy};

const SPACE: &str = r#"seed = 3
[[parameters]]
name = "x"
type = "float"
low = 0
high = 10
[[parameters]]
name = "y"
type = "int"
low = 0
high = 20
"#;

/// Four configurations.
const FOUR: &str = r#"[[parameters]]
name = "n"
type = "int"
low = 1
high = 4
"#;

struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn start(toy: &Toy) -> Self {
        Self::of(toy, SPACE)
    }

    fn of(toy: &Toy, spec: &str) -> Self {
        let file = toy.path("space.toml");
        std::fs::write(&file, spec).unwrap();
        let mut child = toy
            .slackline(&["ask-tell", file.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn say_bytes(&mut self, bytes: &[u8]) {
        self.input.write_all(bytes).unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn end(self) -> Ended {
        drop(self.input);
        let mut ended = Ended::from(self.child.wait_with_output().unwrap());
        let mut rest = self.output;
        std::io::Read::read_to_string(&mut rest, &mut ended.stdout).unwrap();
        ended
    }
}

/// Its least value is 1, at x = 7, y = 5.
fn quadratic(config: &Value) -> f64 {
    let (x, y) = (config["x"].as_f64().unwrap(), config["y"].as_f64().unwrap());
    1.0 + (x - 7.0).powi(2) + 0.1 * (y - 5.0).powi(2)
}

#[test]
fn twenty_questions_find_the_optimum_of_a_quadratic() {
    let toy = Toy::new();
    let mut session = Session::start(&toy);
    for _ in 0..20 {
        session.say(r#"{"ask":1}"#);
        let answer = session.hear();
        let config = &answer["config"];
        // Nothing is printed for a tell: the next line heard is the next answer, or the end.
        session.say(
            &json!({"tell": {"config": config, "value": quadratic(config), "variance": 0.0001}})
                .to_string(),
        );
    }
    session.say(r#"{"best":1}"#);
    let best = session.hear();
    assert!(quadratic(&best["config"]) < 1.5, "{best}");
    assert!((best["mean"].as_f64().unwrap() - 1.0).abs() < 0.7, "{best}");
    assert!(best["sd"].as_f64().unwrap() >= 0.0);
    let ended = session.end().with_code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
}

#[test]
fn several_at_once_crashes_and_constraints_are_taken() {
    let toy = Toy::new();
    let mut session = Session::start(&toy);
    session.say(r#"{"best":1}"#);
    assert_eq!(session.hear(), json!({ "config": null }));
    session.say(r#"{"ask":3}"#);
    let configs: Vec<Value> = (0..3).map(|_| session.hear()["config"].clone()).collect();
    assert!(configs[0] != configs[1] && configs[1] != configs[2]);
    session.say(&json!({"tell": {"config": configs[0], "crashed": true}}).to_string());
    session.say(
        &json!({"tell": {"config": configs[1], "value": 1.0, "constraints": {"p99": 0.2}}})
            .to_string(),
    );
    session.say(
        &json!({"tell": {"config": configs[2], "value": 2.0, "constraints": {"p99": -0.2}}})
            .to_string(),
    );
    session.say("");
    session.say(r#"{"best":1}"#);
    // The cheaper one violates the constraint, so it is not the best.
    assert_eq!(session.hear()["config"], configs[2]);
    session.end().with_code(0);
}

#[test]
fn what_is_maximised_is_told_as_it_is() {
    let toy = Toy::new();
    let objective = "[objective]\nmetric = \"rps\"\ngoal = \"maximise\"\n";
    let mut session = Session::of(&toy, &format!("{objective}{FOUR}"));
    for n in 1..=4 {
        session.say(&json!({"tell": {"config": {"n": n}, "value": 100 + n}}).to_string());
    }
    session.say(r#"{"best":1}"#);
    let best = session.hear();
    assert_eq!(best["config"], json!({"n": 4}));
    assert!(
        (best["mean"].as_f64().unwrap() - 104.0).abs() < 1.0,
        "{best}"
    );
    assert_eq!(best["feasible"], json!(1.0));
    session.end().with_code(0);
}

#[test]
fn names_are_lines_of_text() {
    let toy = Toy::new();
    let spec = r#"parameter_constraints = ['"jvm.heap-size" >= 2 * port']
[[parameters]]
name = "jvm.heap-size"
type = "ordinal"
values = [1, 1.5, 2, 4]
default = 4
[[parameters]]
name = "port"
type = "int"
low = 0
high = 2
[[parameters]]
name = "--gc=Größe, [x]"
type = "categorical"
values = ["", "-XX:+UseG1GC", "{dir}"]
"#;
    let mut session = Session::of(&toy, spec);
    for _ in 0..12 {
        session.say(r#"{"ask":1}"#);
        let config = session.hear()["config"].clone();
        assert_eq!(config.as_object().unwrap().len(), 3, "{config}");
        let (heap, port) = (&config["jvm.heap-size"], &config["port"]);
        assert!(
            heap.as_f64().unwrap() >= 2.0 * port.as_f64().unwrap(),
            "{config}"
        );
        session.say(&json!({ "tell": { "config": config, "value": heap } }).to_string());
    }
    session.end().with_code(0);
    let lines = SPACE.replace("name = \"y\"", "name = \"a\\nb\"");
    Session::of(&toy, &lines)
        .end()
        .with_code(2)
        .saying(&["parameters[1].name: \"a\\nb\" must be a line of text that is not empty"]);
}

#[test]
fn of_more_than_there_are_the_rest_is_null() {
    let toy = Toy::new();
    let mut session = Session::of(&toy, FOUR);
    session.say(r#"{"ask":6}"#);
    let nulls: Vec<bool> = (0..6).map(|_| session.hear()["config"].is_null()).collect();
    assert_eq!(nulls, [false, false, false, false, true, true]);
    session.end().with_code(0);
}

#[test]
fn bytes_that_are_no_text_have_the_number_of_their_line() {
    let toy = Toy::new();
    let mut session = Session::start(&toy);
    session.say(r#"{"ask":1}"#);
    session.hear();
    session.say_bytes(b"{\"best\":\xff}\n");
    session
        .end()
        .with_code(2)
        .saying(&["standard input, line 2: it is not UTF-8"]);
}

#[test]
fn a_line_without_an_end_is_not_waited_for() {
    let toy = Toy::new();
    let mut session = Session::start(&toy);
    session.say_bytes(&vec![b' '; (1 << 20) + 1]);
    session
        .end()
        .with_code(2)
        .saying(&["line 1: it is longer than 1048576 bytes"]);
}

#[test]
fn a_bad_line_ends_with_2_and_its_number() {
    for (line, message) in [
        ("{\"ask\":", "expected {\"ask\":1}"),
        ("{\"aks\":1}", "expected {\"ask\":1}"),
        (r#"{"ask":-1}"#, "expected {\"ask\":1}"),
        (r#"{"ask":-1}"#, "expected a whole number from 0"),
        (r#"{"ask":1001}"#, "ask for at most 1000 at once"),
        (r#"{"tell":{"config":{"x":1,"y":1}}}"#, "finite \"value\""),
        (
            r#"{"tell":{"config":{"x":1,"y":1},"value":NaN}}"#,
            "column 41; JSON has no NaN or Infinity",
        ),
        (
            r#"{"tell":{"config":{"x":null,"y":1},"value":1}}"#,
            "expected true, false, a number or a text",
        ),
        (
            r#"{"tell":{"config":{"x":"1","y":1},"value":1}}"#,
            "`x` cannot be \"1\"",
        ),
        (
            r#"{"tell":{"config":{"x":1,"y":1},"value":1,"crashed":true}}"#,
            "what crashed has no \"value\"",
        ),
        (
            r#"{"tell":{"config":{"x":1,"y":1},"value":null}}"#,
            "finite \"value\"",
        ),
        (r#"{"tell":{"config":{"x":99,"y":1},"value":1}}"#, "x"),
        (r#"{"tell":{"config":{"y":1},"value":1}}"#, "x"),
        (
            r#"{"tell":{"config":{"x":1,"y":1},"value":1,"variance":-1}}"#,
            "variance",
        ),
    ] {
        let toy = Toy::new();
        let mut session = Session::start(&toy);
        session.say(r#"{"ask":1}"#);
        session.hear();
        session.say(line);
        let ended = session.end();
        assert_eq!(ended.code, 2, "{line}: {}", ended.stderr);
        assert!(
            ended.stderr.contains("standard input, line 2"),
            "{}",
            ended.stderr
        );
        assert!(ended.stderr.contains(message), "{line}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{line}");
    }
}
