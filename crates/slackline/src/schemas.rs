//! The JSON Schemas that the commands print describe the files of the manual, of `examples/` and of
//! `contrib/systemd/`.

use std::path::Path;

use serde_json::{Value, json};

use crate::pages;

/// The schema of a kind of file, by the marks of the manual. `None`: this kind has no schema.
fn schema_of(kind: &str) -> Option<Value> {
    match kind {
        "experiment" | "ask-tell" => Some(tuner::spec::schema()),
        "isolate" => Some(isolate_run::schema()),
        "blocks" => Some(block_server::config::schema()),
        "relayout" => Some(crate::relayout::config_schema()),
        _ => None,
    }
}

fn validate(schema: Value, file: &Value) -> Result<(), String> {
    const PLACE: &str = "mem:///schema.json";
    let (mut compiler, mut schemas) = (boon::Compiler::new(), boon::Schemas::new());
    let words = |error: boon::CompileError| format!("{error:#}");
    compiler.add_resource(PLACE, schema).map_err(words)?;
    let compiled = compiler.compile(PLACE, &mut schemas).map_err(words)?;
    let validated = schemas.validate(file, compiled);
    validated.map_err(|error| error.to_string())
}

fn parsed(text: &str) -> Result<Value, String> {
    let file: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    serde_json::to_value(file).map_err(|error| error.to_string())
}

/// What the schema of a kind of file says about a TOML text.
pub(crate) fn check(kind: &str, text: &str) -> Result<(), String> {
    match schema_of(kind) {
        Some(schema) => validate(schema, &parsed(text)?),
        None => Ok(()),
    }
}

/// A file below a directory of the repository, and what kind it is.
fn kind_of(path: &Path) -> &'static str {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("slackline-isolate.toml") => "isolate",
        Some("slackline-serve-block.toml") => "blocks",
        Some("slackline-relayout.toml") => "relayout",
        // The model of a machine, for `isolate simulate`.
        Some("plant.toml") => "no schema",
        _ => "experiment",
    }
}

fn tomls(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tomls(&path, found);
        } else if path.extension().is_some_and(|it| it == "toml") {
            found.push(path);
        }
    }
}

#[test]
fn the_examples_are_valid() {
    let mut files = Vec::new();
    for directory in ["examples", "contrib/systemd"] {
        tomls(&pages::root().join(directory), &mut files);
    }
    let mut kinds: Vec<&str> = Vec::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let checked = check(kind_of(file), &text);
        assert_eq!(checked, Ok(()), "{}", file.display());
        kinds.push(kind_of(file));
    }
    for kind in ["experiment", "isolate", "blocks", "relayout"] {
        assert!(kinds.contains(&kind), "no {kind} file in {files:?}");
    }
}

const EXPERIMENT: &str = r#"
    [[parameters]]
    name = "threads"
    type = "int"
    low = 1
    high = 64

    [target]
    start = ["app", "--threads={threads}"]

    [workload]
    command = ["load"]
    json = { latency_p99_us = "p99" }

    [objective]
    metric = "latency_p99_us"
"#;
const ISOLATE: &str = r#"
    [service]
    unit = "app.service"
    objective = { p99_ms = 5 }
    latency = { wire = { port = 80 } }

    [[best_effort]]
    unit = "batch.slice"

    [policy]
    name = "slackline"
"#;
const BLOCKS: &str = r#"
    nvme = { listen = ["127.0.0.1:4420"], subsystem = "nqn.2026-11.com.example:blocks" }

    [tls]
    certificate = "/etc/slackline/server.pem"
    key = "/etc/slackline/server.key"

    [[device]]
    path = "/dev/nvme1n1"

    [[tenant]]
    export = "db"
    device = "/dev/nvme1n1"
    range = { offset = "0", length = "1GiB" }
    allow = { addresses = ["10.0.0.0/8"] }
    objective = { p95_us = 500, iops = 20000, read_share = 0.9 }
"#;
const RELAYOUT: &str = r#"
    every_s = 30

    [[watch]]
    exe = "mariadbd"

    [log]
    file = "/var/log/slackline-relayout.log"
"#;

/// The value with an unknown key, once for each of its tables, beside the path of the table. Tables
/// with names of the author's choice take any key.
fn strays(value: &Value, path: &str) -> Vec<(String, Value)> {
    const FREE: &[&str] = &[".workload.json", ".service.objective"];
    let mut found = Vec::new();
    match value {
        Value::Object(table) => {
            if !FREE.contains(&path) {
                let mut stray = table.clone();
                stray.insert("nonsense".to_owned(), json!(1));
                found.push((path.to_owned(), Value::Object(stray)));
            }
            for (key, inner) in table {
                for (place, stray) in strays(inner, &format!("{path}.{key}")) {
                    let mut table = table.clone();
                    table.insert(key.clone(), stray);
                    found.push((place, Value::Object(table)));
                }
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                for (place, stray) in strays(inner, &format!("{path}[{index}]")) {
                    let mut list = list.clone();
                    list[index] = stray;
                    found.push((place, Value::Array(list)));
                }
            }
        }
        _ => {}
    }
    found
}

#[test]
fn an_unknown_key_is_refused_in_every_table() {
    for (kind, text, tables) in [
        ("experiment", EXPERIMENT, 5),
        ("isolate", ISOLATE, 6),
        ("blocks", BLOCKS, 8),
        ("relayout", RELAYOUT, 3),
    ] {
        let schema = schema_of(kind).unwrap();
        let file = parsed(text).unwrap();
        assert_eq!(validate(schema.clone(), &file), Ok(()), "{kind}");
        let strays = strays(&file, "");
        assert_eq!(strays.len(), tables, "{kind}: {strays:?}");
        for (place, stray) in strays {
            let refused = validate(schema.clone(), &stray);
            assert!(refused.is_err(), "{kind}: a stray key in {place}");
        }
    }
}

#[test]
fn a_value_that_the_reader_refuses_is_not_valid() {
    for (kind, text, wrong, right) in [
        ("blocks", BLOCKS, "iops = 0", "iops = 20000"),
        ("blocks", BLOCKS, "read_share = 1.5", "read_share = 0.9"),
        ("blocks", BLOCKS, "length = 1", "length = \"1GiB\""),
        ("blocks", BLOCKS, "iqn.", "nqn."),
        ("blocks", BLOCKS, "[]", "[\"127.0.0.1:4420\"]"),
        ("relayout", RELAYOUT, "every_s = 0.5", "every_s = 30"),
        ("relayout", RELAYOUT, "\"/bin/x\"", "\"mariadbd\""),
        ("relayout", RELAYOUT, "exec", "exe"),
    ] {
        let text = text.replace(right, wrong);
        assert!(text.contains(wrong), "{wrong}");
        assert!(check(kind, &text).is_err(), "{kind}: {wrong}");
    }
}

#[test]
fn every_key_of_the_schemas_has_a_description() {
    fn walk(value: &Value, path: &str, missing: &mut Vec<String>) {
        let properties = value["properties"].as_object().into_iter().flatten();
        for (key, property) in properties {
            // An alternative's own text stands above its only key.
            let is_alternative = value["description"].is_string() && path.contains("oneOf");
            if !property["description"].is_string() && !is_alternative {
                missing.push(format!("{path}/{key}"));
            }
        }
        match value {
            Value::Object(table) => {
                for (key, inner) in table {
                    walk(inner, &format!("{path}/{key}"), missing);
                }
            }
            Value::Array(list) => {
                for inner in list {
                    walk(inner, path, missing);
                }
            }
            _ => {}
        }
    }
    let kinds = ["experiment", "isolate", "blocks", "relayout"];
    let files = kinds.map(|kind| (kind, schema_of(kind).unwrap()));
    let more = [
        ("report", tuner::report::schema()),
        ("api", dashboard::document()),
    ];
    for (kind, schema) in files.into_iter().chain(more) {
        let mut missing = Vec::new();
        walk(&schema, kind, &mut missing);
        assert!(missing.is_empty(), "without a description: {missing:?}");
    }
}
