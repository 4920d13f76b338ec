//! Answers of the JSON interface held against its OpenAPI description. Other tests hold each answer
//! that they read against it, too.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::api::answer;
use crate::rollback::ask;
use crate::serve::{Server, toy};

const PLACE: &str = "mem:///openapi.json";

/// An operation whose success answers JSON.
struct Operation {
    name: String,
    method: String,
    path: String,
    answer: boon::SchemaIndex,
}

struct Description {
    schemas: boon::Schemas,
    operations: Vec<Operation>,
    refusal: boon::SchemaIndex,
    /// The data of an event `changed`.
    changed: boon::SchemaIndex,
}

static DESCRIPTION: LazyLock<Description> = LazyLock::new(Description::new);

/// A pointer to a part of the description, in an address.
fn pointer(parts: &[&str]) -> String {
    let part = |part: &&str| {
        let escaped = part.replace('~', "~0").replace('/', "~1");
        escaped.replace('{', "%7B").replace('}', "%7D")
    };
    let parts: Vec<String> = parts.iter().map(part).collect();
    format!("{PLACE}#/{}", parts.join("/"))
}

/// The description, with schemas that take no field which they do not describe.
fn strict() -> Value {
    let mut document = dashboard::document();
    let schemas = document["components"]["schemas"].as_object_mut().unwrap();
    for schema in schemas.values_mut().filter_map(Value::as_object_mut) {
        let is_open = ["additionalProperties", "oneOf", "anyOf", "allOf"];
        if schema.contains_key("properties") && !is_open.iter().any(|it| schema.contains_key(*it)) {
            schema.insert("additionalProperties".to_owned(), json!(false));
        }
    }
    document
}

impl Description {
    fn new() -> Self {
        const JSON: &str = "application/json";
        let document = strict();
        let (mut compiler, mut schemas) = (boon::Compiler::new(), boon::Schemas::new());
        compiler.add_resource(PLACE, document.clone()).unwrap();
        let mut compiled = |parts: &[&str]| {
            let compiled = compiler.compile(&pointer(parts), &mut schemas);
            compiled.unwrap_or_else(|error| panic!("{parts:?}: {error:#}"))
        };
        let mut operations = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let mut statuses = operation["responses"].as_object().unwrap().keys();
                let status = statuses.find(|it| it.starts_with('2')).unwrap();
                if operation["responses"][status]["content"][JSON].is_null() {
                    continue;
                }
                let parts = ["paths", path, method, "responses", status];
                operations.push(Operation {
                    name: operation["operationId"].as_str().unwrap().to_owned(),
                    method: method.to_uppercase(),
                    path: path.clone(),
                    answer: compiled(&[&parts[..], &["content", JSON, "schema"]].concat()),
                });
            }
        }
        let events = ["paths", "/events", "get", "responses", "200", "content"];
        Self {
            operations,
            refusal: compiled(&["components", "schemas", "Refusal"]),
            changed: compiled(
                &[&events[..], &["text/event-stream", "x-events", "changed"]].concat(),
            ),
            schemas,
        }
    }

    fn operation(&self, method: &str, path: &str) -> &Operation {
        let path = path.split('?').next().unwrap();
        let is_of = |template: &str| {
            let is_part = |(is, of): (&str, &str)| is == of || of.starts_with('{');
            path.split('/').count() == template.split('/').count()
                && path.split('/').zip(template.split('/')).all(is_part)
        };
        let mut operations = self.operations.iter();
        operations
            .find(|it| it.method == method && is_of(&it.path))
            .unwrap_or_else(|| panic!("no answer to {method} {path} is described"))
    }

    fn check(&self, what: &str, answer: &Value, schema: boon::SchemaIndex) {
        if let Err(error) = self.schemas.validate(answer, schema) {
            panic!("{what} is not what is described: {error:#}\n{answer:#}");
        }
    }
}

/// Fails if an answer with JSON is not what is described; else the name of the operation.
pub(crate) fn check(method: &str, path: &str, status: u16, answer: &Value) -> &'static str {
    let what = format!("the answer to {method} {path}");
    if status >= 400 {
        DESCRIPTION.check(&what, answer, DESCRIPTION.refusal);
        return "refused";
    }
    let operation = DESCRIPTION.operation(method, path);
    DESCRIPTION.check(&what, answer, operation.answer);
    &operation.name
}

/// Fails if the data of an event `changed` is not what is described.
pub(crate) fn check_changed(data: &Value) {
    DESCRIPTION.check("the data of an event", data, DESCRIPTION.changed);
}

#[test]
fn an_answer_with_another_field_or_type_is_not_described() {
    let status = |is_active: Value, trouble: Value| {
        json!({
            "version": "0", "is_active": is_active, "trouble": trouble,
            "queue_is_paused": false, "progress": null,
        })
    };
    let is_described = |answer: &Value| {
        let operation = DESCRIPTION.operation("GET", "/status");
        let schemas = &DESCRIPTION.schemas;
        schemas.validate(answer, operation.answer).is_ok()
    };
    let right = status(json!(true), json!(null));
    assert!(is_described(&right));
    assert!(!is_described(&status(json!("yes"), json!(null))));
    assert!(!is_described(&status(json!(true), json!(1))));
    let mut more = right.clone();
    more["another"] = json!(1);
    assert!(!is_described(&more));
    let mut less = right;
    less.as_object_mut().unwrap().remove("progress");
    assert!(!is_described(&less));
}

/// Asks a server, and remembers which operations answered as they are described.
struct Asked<'a> {
    server: &'a Server<'a>,
    names: BTreeSet<&'static str>,
}

impl Asked<'_> {
    fn ask(&mut self, method: &str, path: &str, body: &Value) -> Value {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let (status, answer) = ask(self.server, method, path, &body);
        assert!(status < 300, "{method} {path}: {answer}");
        let name = match answer {
            Value::Null => return answer,
            _ => check(method, path, status, &answer),
        };
        self.names.insert(name);
        answer
    }

    fn get(&mut self, path: &str) -> Value {
        self.ask("GET", path, &Value::Null)
    }
}

#[test]
fn each_answer_is_what_is_described() {
    let mut toy = toy();
    std::fs::write(toy.path("other"), "0\n").unwrap();
    let other =
        json!({ "name": "y", "type": "int", "low": 0, "high": 3, "file": toy.path("other") });
    toy.spec["parameters"].as_array_mut().unwrap().push(other);
    let server = Server::start(&toy);
    let mut asked = Asked {
        server: &server,
        names: BTreeSet::new(),
    };
    let given = json!({ "spec": toy.spec.to_string(), "format": "json" });
    asked.ask("POST", "/queue/pause", &Value::Null);
    let made = asked.ask("POST", "/experiments", &given);
    assert_eq!(made["id"], 1);
    let enqueued = json!({ "configuration": { "x": 21 } });
    asked.ask("POST", "/experiments/1/queue", &enqueued);
    asked.get("/experiments/1/queue");
    let budget = json!({ "evaluations": 5, "wall_time_min": 10 });
    asked.ask("PUT", "/experiments/1/budget", &budget);
    asked.ask("POST", "/queue/resume", &Value::Null);
    let shown = server.wait_for(1, &["done", "failed"]);
    assert_eq!(shown["finding"], "improvement", "{shown}");
    reads_all(&mut asked);
    checks_specifications(&mut asked, given);
    let note = json!({ "text": "beside a backup" });
    asked.ask("PUT", "/experiments/1/note", &note);
    asked.ask("PUT", "/experiments/1/evaluations/1/note", &note);
    asked.ask("POST", "/experiments/1/promote", &Value::Null);
    let promotions = asked.get("/promotions");
    assert_eq!(promotions["experiments"][0]["id"], 1, "{promotions}");
    asked.ask("POST", "/experiments/1/rollback", &Value::Null);
    asked.ask("POST", "/queue/pause", &Value::Null);
    let forked = asked.ask("POST", "/experiments/1/fork", &json!({}));
    assert_eq!(forked["id"], 2);
    for verb in ["pause", "resume", "stop"] {
        asked.ask("POST", &format!("/experiments/2/{verb}"), &Value::Null);
    }
    let report = asked.get("/experiments/1/export");
    let imported = asked.ask("POST", "/experiments/import", &report);
    assert_eq!(imported["id"], 3);
    asked.ask("DELETE", "/experiments/3", &Value::Null);
    asked.ask("POST", "/experiments/1/verify", &Value::Null);
    let all = DESCRIPTION.operations.iter().map(|it| it.name.as_str());
    let left: Vec<&str> = all.filter(|name| !asked.names.contains(name)).collect();
    // Nothing is measured that could be killed, and the rollback has left nothing. Both answer with
    // the type of `show`. Rounds are of an experiment in continuous mode: see `imports`.
    assert_eq!(left, ["forget-rest", "rounds", "kill"]);
}

/// All that can be read of an experiment, of the host and of the server.
fn reads_all(asked: &mut Asked<'_>) {
    for path in [
        "/experiments",
        "/experiments/1",
        "/experiments/1/points",
        "/experiments/1/model",
        "/experiments/1/model/pair?x=x&y=y",
        "/experiments/1/verification",
        "/experiments/1/evaluations",
        "/experiments/1/evaluations/2",
        "/experiments/1/export?format=json",
        "/host",
        "/workers",
        "/status",
        "/audit",
        "/openapi.json",
    ] {
        let answer = asked.get(path);
        let is_empty = answer.as_array().is_some_and(Vec::is_empty);
        assert!(!is_empty, "{path}");
    }
}

/// The three answers to a specification that is to be checked.
fn checks_specifications(asked: &mut Asked<'_>, given: Value) {
    let right = asked.ask("POST", "/specs/check", &given);
    assert_eq!(right["control"], json!({ "x": 50, "y": 0 }), "{right}");
    let read = format!("Bearer {}", asked.server.token("read_token"));
    let url = asked.server.url("/specs/check");
    let headers = [("authorization", read.as_str())];
    let mut text = answer("POST", &url, &headers, &given.to_string());
    let text: Value = text.body_mut().read_json().unwrap();
    assert_eq!(text["ok"], true, "{text}");
    check("POST", "/specs/check", 200, &text);
    let wrong = json!({ "spec": "objective = 5" });
    let wrong = asked.ask("POST", "/specs/check", &wrong);
    assert_eq!(wrong["ok"], false, "{wrong}");
}
