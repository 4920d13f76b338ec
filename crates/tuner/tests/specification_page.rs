//! `docs/specification.md` has every key of the specification's JSON Schema.
//!
//! After a change of the specification,
//! `SLACKLINE_WRITE_DOCS=1 cargo test -p tuner --test specification_page` writes the page anew.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

const HEAD: &str = "# Every key of an experiment's specification

[tune](tune.md) explains how the parts work together. This page lists every table and key, made from the JSON Schema that
`slackline schema` prints. A key without a default may be left out, unless it is required.
";

/// The table that a property leads to: the name of its definition, and how it stands in TOML.
fn table<'a>(property: &'a Value, path: &str) -> Option<(&'a str, String)> {
    let named = |value: &'a Value| value["$ref"].as_str()?.strip_prefix("#/$defs/");
    let any = property["anyOf"].as_array().into_iter().flatten();
    if let Some(name) = named(property).or_else(|| any.filter_map(named).next()) {
        return Some((name, format!("[{path}]")));
    }
    if let Some(name) = named(&property["items"]) {
        return Some((name, format!("[[{path}]]")));
    }
    let name = named(&property["additionalProperties"])?;
    Some((name, format!("[{path}.NAME]")))
}

/// What may stand for a property.
fn kind(schema: &Value, property: &Value) -> String {
    let definition = |value: &Value| {
        let name = value["$ref"].as_str()?.strip_prefix("#/$defs/")?.to_owned();
        Some((schema["$defs"][&name].clone(), name))
    };
    if let Some((found, name)) = definition(property) {
        if name == "Scalar" {
            return "number, text or true/false".into();
        }
        return kind(schema, &found);
    }
    let alternatives = property["anyOf"]
        .as_array()
        .or(property["oneOf"].as_array());
    if let Some(alternatives) = alternatives {
        let words = alternatives.iter().filter(|it| it["type"] != "null");
        let mut words: Vec<String> = words.map(|it| kind(schema, it)).collect();
        words.dedup();
        return words.join(", ");
    }
    if let Some(word) = property["const"].as_str() {
        return format!("`{word}`");
    }
    if let Some(words) = property["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str);
        return words
            .map(|it| format!("`{it}`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let types = match &property["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one.as_str()],
        _ => Vec::new(),
    };
    let words = types
        .into_iter()
        .filter(|it| *it != "null")
        .map(|it| match it {
            "string" => "text".to_owned(),
            "boolean" => "true/false".to_owned(),
            "array" => format!("list: {}", kind(schema, &property["items"])),
            "object" if property["additionalProperties"].is_object() => {
                format!("table: {}", kind(schema, &property["additionalProperties"]))
            }
            "object" => "table".to_owned(),
            other => other.to_owned(),
        });
    words.collect::<Vec<_>>().join(" or ")
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

fn section(schema: &Value, heading: &str, definition: &Value, page: &mut String) {
    let _ = write!(page, "\n## {heading}\n\n");
    if let Some(text) = definition["description"].as_str() {
        let _ = write!(page, "{}\n\n", text.replace('\n', " ").replace("  ", " "));
    }
    page.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
    let required = definition["required"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    for (key, property) in definition["properties"].as_object().into_iter().flatten() {
        let default = match &property["default"] {
            _ if required.iter().any(|it| it == key) => "required".to_owned(),
            Value::Null | Value::Object(_) => String::new(),
            value => format!("`{value}`"),
        };
        let meaning = property["description"].as_str().unwrap_or_default();
        let _ = writeln!(
            page,
            "| `{key}` | {} | {default} | {} |",
            cell(&kind(schema, property)),
            cell(meaning)
        );
    }
}

/// The sections in the order of the specification, each table after what leads to it.
fn walk(schema: &Value, path: &str, definition: &Value, seen: &mut Vec<String>, page: &mut String) {
    for (key, property) in definition["properties"].as_object().into_iter().flatten() {
        let path = match path {
            "" => key.clone(),
            path => format!("{path}.{key}"),
        };
        let Some((name, heading)) = table(property, &path) else {
            continue;
        };
        let found = &schema["$defs"][name];
        if !found["properties"].is_object() || seen.iter().any(|it| it == name) {
            continue;
        }
        seen.push(name.to_owned());
        section(schema, &format!("`{heading}`"), found, page);
        walk(schema, &path, found, seen, page);
    }
}

fn page() -> String {
    let schema = tuner::spec::schema();
    let mut page = HEAD.to_owned();
    let mut top = schema.clone();
    top["description"] = Value::Null;
    section(&schema, "The top of the file", &top, &mut page);
    walk(&schema, "", &schema, &mut Vec::new(), &mut page);
    page
}

#[test]
fn every_key_is_in_the_manual() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/specification.md");
    let page = page();
    if std::env::var_os("SLACKLINE_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let is = std::fs::read_to_string(&file).unwrap();
    assert!(
        is == page,
        "docs/specification.md is older than the schema: SLACKLINE_WRITE_DOCS=1 writes it anew"
    );
    // None is lost on the way: each definition's keys are on the page.
    let schema = tuner::spec::schema();
    let definitions = schema["$defs"].as_object().unwrap();
    for (name, definition) in definitions.iter().chain([(&"the top".to_owned(), &schema)]) {
        for key in definition["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|it| it.0)
        {
            assert!(
                is.contains(&format!("| `{key}` |")),
                "{name}.{key} is not in the manual"
            );
        }
    }
}
