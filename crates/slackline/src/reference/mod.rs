//! Pages of the manual that the code itself writes. `cargo xtask docs` writes them anew.

mod schema;

use std::fmt::Write as _;

use serde_json::Value;

/// A page is what the manual has. With `SLACKLINE_WRITE_DOCS` it is written first.
fn check_page(name: &str, page: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/").to_owned() + name;
    if std::env::var_os("SLACKLINE_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/{name} is not what the code says: run cargo xtask docs"
    );
}

#[test]
fn the_reference_of_the_command_line_is_up_to_date() {
    let options = clap_markdown::MarkdownOptions::new()
        .title("The command line".to_owned())
        .show_footer(false);
    let page = clap_markdown::help_markdown_custom::<crate::Arguments>(&options);
    let page = page.lines().map(str::trim_end).collect::<Vec<_>>();
    check_page("command-line.md", &(page.join("\n") + "\n"));
}

#[test]
fn the_exit_codes_of_the_manual_are_those_of_the_help() {
    let page = include_str!("../../../../docs/operations.md");
    let codes = crate::EXIT_CODES.strip_prefix("Exit codes: ").unwrap();
    for line in codes.trim_end_matches('.').split("; ") {
        let (code, meaning) = line.split_once(' ').unwrap();
        let row = format!("\n| {code} | {meaning}");
        assert!(page.contains(&row), "{row}");
    }
}

const OPERATIONS: &str = "# Every operation of the JSON API

This page is made from the OpenAPI description that the server gives at `/api/v1/openapi.json`. [The JSON API](api.md) has the rules
and examples. Each path begins with `/api/v1`. An answer is JSON, unless the row says otherwise. A refused request is answered with
problem details in JSON ([Refusal](#refusal)).
";

/// What stands for a schema in a cell.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or(name);
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let any = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(any) = any {
        let kinds = any.iter().filter(|it| it["type"] != "null").map(kind);
        return kinds.collect::<Vec<_>>().join(" or ");
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("`{word}`");
    }
    if let Some(words) = schema["enum"].as_array() {
        let words = words
            .iter()
            .map(|it| format!("`{}`", it.as_str().unwrap_or_default()));
        return words.collect::<Vec<_>>().join(", ");
    }
    let types = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        _ => vec!["any value"],
    };
    let types = types
        .into_iter()
        .filter(|it| *it != "null")
        .map(|it| match it {
            "array" => format!("list of {}", kind(&schema["items"])),
            "object" if schema["additionalProperties"].is_object() => {
                format!(
                    "object with values: {}",
                    kind(&schema["additionalProperties"])
                )
            }
            other => other.to_owned(),
        });
    types.collect::<Vec<_>>().join(" or ")
}

fn cell(text: &Value) -> String {
    let words: Vec<&str> = text
        .as_str()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    words.join(" ").replace('|', "\\|")
}

#[test]
fn the_reference_of_the_api_is_up_to_date() {
    let document = dashboard::document();
    let mut page = OPERATIONS.to_owned();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let _ = write!(
            page,
            "\n## `{path}`\n\n| method | operation | parameters | body | answer |\n|---|---|---|---|---|\n"
        );
        for (method, operation) in methods.as_object().unwrap() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters = parameters.filter(|it| it["in"] != "path").map(|it| {
                let name = cell(&it["name"]);
                let kind = kind(&it["schema"]);
                match cell(&it["description"]).as_str() {
                    "" => format!("`{name}` ({kind})"),
                    text => format!("`{name}` ({kind}): {text}"),
                }
            });
            let parameters = parameters.collect::<Vec<_>>().join("<br>");
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body = if body.is_null() {
                String::new()
            } else {
                kind(body)
            };
            let success = operation["responses"].as_object().unwrap().iter();
            let mut success = success.filter(|(status, _)| status.starts_with('2'));
            let (status, answer) = success.next().unwrap();
            let kinds = answer["content"].as_object().into_iter().flatten();
            let kinds = kinds
                .map(|(kind, _)| kind.as_str())
                .filter(|it| *it != "application/json");
            let answer = kinds.fold(status.clone(), |all, kind| format!("{all}, `{kind}`"));
            let _ = writeln!(
                page,
                "| {} | **{}**: {} | {parameters} | {body} | {answer} |",
                method.to_uppercase(),
                cell(&operation["operationId"]),
                cell(&operation["summary"]),
            );
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let _ = write!(page, "\n## {name}\n\n");
        if schema["description"].is_string() {
            let _ = write!(page, "{}\n\n", cell(&schema["description"]));
        }
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        if !schema["properties"].is_object() {
            let _ = writeln!(page, "Value: {}.", kind(schema));
            continue;
        }
        page.push_str("| key | value | meaning |\n|---|---|---|\n");
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let needed = if required.iter().any(|it| it == key) {
                ", required"
            } else {
                ""
            };
            let meaning = cell(&property["description"]);
            let _ = writeln!(page, "| `{key}` | {}{needed} | {meaning} |", kind(property));
        }
    }
    check_page("api-operations.md", &page);
}
