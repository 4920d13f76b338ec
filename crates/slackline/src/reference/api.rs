//! The page of the JSON API, which is made from its OpenAPI description.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::check_page;

const OPERATIONS: &str = "# Every operation of the JSON API

This page is made from the OpenAPI description that the server gives at `/api/v1/openapi.json`. [The JSON API](api.md) has the rules
and examples. Each path begins with `/api/v1`. An answer is JSON, unless the row says otherwise. A field of an answer is always there
if it is required, and may be missing otherwise. A refused request is answered with problem details in JSON ([Refusal](#refusal)).
";

/// Types that other pages explain.
const ELSEWHERE: &[(&str, &str)] = &[("Spec", "specification.md"), ("Report", "report-fields.md")];

/// The page that explains a type, if it is another one.
fn elsewhere(name: &str) -> Option<&'static str> {
    let mut pages = ELSEWHERE.iter();
    pages
        .find(|(known, _)| *known == name)
        .map(|(_, page)| *page)
}

/// The name of the type that a schema refers to.
fn named(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.rsplit('/').next()
}

/// The alternatives of a schema.
fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    schema["anyOf"].as_array().or(schema["oneOf"].as_array())
}

fn listed(schemas: &[Value], between: &str) -> String {
    schemas.iter().map(kind).collect::<Vec<_>>().join(between)
}

/// What stands for a schema in a cell.
fn kind(schema: &Value) -> String {
    if let Some(name) = named(schema) {
        return match elsewhere(name) {
            Some(page) => format!("[{name}]({page})"),
            None => format!("[{name}](#{})", name.to_lowercase()),
        };
    }
    if let Some(any) = alternatives(schema) {
        return listed(any, " or ");
    }
    match &schema["const"] {
        Value::Null => {}
        Value::String(word) => return format!("`{word}`"),
        value => return format!("`{value}`"),
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
    let types = types.into_iter().map(|it| match it {
        "array" => match schema["prefixItems"].as_array() {
            Some(each) => format!("list: {}", listed(each, ", ")),
            None => format!("list of {}", kind(&schema["items"])),
        },
        "object" => object(schema),
        other => other.to_owned(),
    });
    types.collect::<Vec<_>>().join(" or ")
}

/// What stands for an object that has no name.
fn object(schema: &Value) -> String {
    if let Some(properties) = schema["properties"].as_object() {
        let each = properties
            .iter()
            .map(|(key, property)| format!("`{key}`: {}", kind(property)));
        return format!("object with {}", each.collect::<Vec<_>>().join(", "));
    }
    match &schema["additionalProperties"] {
        values @ Value::Object(_) => format!("object with values: {}", kind(values)),
        _ => "object".to_owned(),
    }
}

fn cell(text: &Value) -> String {
    let words: Vec<&str> = text
        .as_str()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    words.join(" ").replace('|', "\\|")
}

/// The parameters of an operation that are not in its path.
fn parameters(operation: &Value) -> String {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let parameters = parameters.filter(|it| it["in"] != "path").map(|it| {
        let name = cell(&it["name"]);
        let kind = kind(&it["schema"]);
        match cell(&it["description"]).as_str() {
            "" => format!("`{name}` ({kind})"),
            text => format!("`{name}` ({kind}): {text}"),
        }
    });
    parameters.collect::<Vec<_>>().join("<br>")
}

/// The status and the content of an operation's success.
fn answer(operation: &Value) -> String {
    let mut answers = operation["responses"].as_object().unwrap().iter();
    let (status, answer) = answers.find(|(it, _)| it.starts_with('2')).unwrap();
    let contents = answer["content"].as_object().into_iter().flatten();
    let contents = contents.map(|(media, content)| {
        let events = content["x-events"].as_object().into_iter().flatten();
        let events = events.map(|(name, data)| format!(", event `{name}`: {}", kind(data)));
        match media.as_str() {
            "application/json" => format!(" {}", kind(&content["schema"])),
            media => format!(" `{media}`{}", events.collect::<String>()),
        }
    });
    status.clone() + &contents.collect::<Vec<_>>().join(" or")
}

/// The names of the types that a part of the description needs, without what other pages explain.
fn needed(document: &Value, part: &Value, found: &mut BTreeSet<String>) {
    if let Some(name) = named(part)
        && elsewhere(name).is_none()
        && found.insert(name.to_owned())
    {
        needed(document, &document["components"]["schemas"][name], found);
    }
    match part {
        Value::Object(fields) => fields.values().for_each(|it| needed(document, it, found)),
        Value::Array(items) => items.iter().for_each(|it| needed(document, it, found)),
        _ => {}
    }
}

/// The section of a type.
fn section(name: &str, schema: &Value) -> String {
    let mut section = format!("\n## {name}\n\n");
    if schema["description"].is_string() {
        let _ = write!(section, "{}\n\n", cell(&schema["description"]));
    }
    let Some(properties) = schema["properties"].as_object() else {
        let alternatives = alternatives(schema).filter(|all| {
            let mut all = all.iter();
            all.all(|it| it["description"].is_string())
        });
        match alternatives {
            Some(all) => {
                section.push_str("| value | meaning |\n|---|---|\n");
                for it in all {
                    let meaning = cell(&it["description"]);
                    let _ = writeln!(section, "| {} | {meaning} |", kind(it));
                }
            }
            None => {
                let _ = writeln!(section, "Value: {}.", kind(schema));
            }
        }
        return section;
    };
    section.push_str("| key | value | meaning |\n|---|---|---|\n");
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (key, property) in properties {
        let needed = match required.iter().any(|it| it == key) {
            true => ", required",
            false => "",
        };
        let (kind, meaning) = (kind(property), cell(&property["description"]));
        let _ = writeln!(section, "| `{key}` | {kind}{needed} | {meaning} |");
    }
    section
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
            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            let body = match body {
                Value::Null => String::new(),
                body => kind(body),
            };
            let _ = writeln!(
                page,
                "| {} | **{}**: {} | {} | {body} | {} |",
                method.to_uppercase(),
                cell(&operation["operationId"]),
                cell(&operation["summary"]),
                parameters(operation),
                answer(operation),
            );
        }
    }
    let mut on_page = BTreeSet::new();
    needed(&document, &document["paths"], &mut on_page);
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if on_page.contains(name) {
            page.push_str(&section(name, schema));
        }
    }
    check_page("api-operations.md", &page);
}
