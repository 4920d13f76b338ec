//! Pages that are made from a JSON Schema: every key of the specification and of the other files
//! that have a schema, with an example each, and every field of a report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::check_page;

const SPECIFICATION: &str = "# Every key of an experiment's specification

[tune](tune.md) explains how the parts work together. This page lists every table and key, made from the JSON Schema that
`slackline schema` prints. You may leave a key out, unless it is required. Below each table are examples of its keys.
";

const REPORT: &str = "# Every field of a report

[The report of an experiment](report.md) explains how to read a report. This page lists every field, made from the JSON Schema
that `slackline schema --report` prints. A field that is not required may be missing.
";

const ISOLATE: &str = "# Every key of `isolate`'s configuration

[isolate](isolate.md) explains how the parts work together. This page lists every table and key, made from the JSON Schema that
`slackline isolate schema` prints. You may leave a key out, unless it is required. Below each table are examples of its keys.
";

const BLOCKS: &str = "# Every key of `serve-block`'s configuration

[serve-block](serve-block.md) explains how the parts work together. This page lists every table and key, made from the JSON
Schema that `slackline serve-block schema` prints. You may leave a key out, unless it is required. Below each table are examples
of its keys. Sizes are whole numbers with `KiB`, `MiB`, `GiB` or `TiB`, in quotes.
";

const RELAYOUT: &str = "# Every key of `relayout`'s configuration

[relayout](relayout.md) explains how the parts work together. This page lists every table and key, made from the JSON Schema that
`slackline relayout schema` prints. You may leave a key out, unless it is required. Below each table are examples of its keys.
";

const SPECIFICATION_EXAMPLES: &str = include_str!("specification_examples.md");
const ISOLATE_EXAMPLES: &str = include_str!("isolate_examples.md");
const BLOCKS_EXAMPLES: &str = include_str!("blocks_examples.md");
const RELAYOUT_EXAMPLES: &str = include_str!("relayout_examples.md");

/// A page that is made from a schema.
struct Maker<'a> {
    schema: &'a Value,
    /// Paths as TOML has them, or as jq has them.
    is_toml: bool,
    /// Definitions that another page explains.
    elsewhere: Vec<String>,
    /// By heading.
    examples: BTreeMap<&'a str, &'a str>,
    /// What its examples are a part of: see the marks in CONTRIBUTING.md.
    mark: &'a str,
    /// Definitions that are on the page.
    seen: Vec<String>,
    page: String,
}

/// The table that a property leads to: the name of its definition, the path of its own properties,
/// and its heading.
fn table(property: &Value, path: &str, is_toml: bool) -> Option<(String, String, String)> {
    let named = |value: &Value| {
        let name = value["$ref"].as_str()?.strip_prefix("#/$defs/")?;
        Some(name.to_owned())
    };
    let any = property["anyOf"].as_array().into_iter().flatten();
    let path = path.to_owned();
    if let Some(name) = named(property).or_else(|| any.filter_map(named).next()) {
        let heading = if is_toml {
            format!("[{path}]")
        } else {
            path.clone()
        };
        return Some((name, path, heading));
    }
    if let Some(name) = named(&property["items"]) {
        return Some(match is_toml {
            true => (name, path.clone(), format!("[[{path}]]")),
            false => (name, format!("{path}[]"), format!("{path}[]")),
        });
    }
    let name = named(&property["additionalProperties"])?;
    Some(match is_toml {
        true => (name, path.clone(), format!("[{path}.NAME]")),
        false => (name, format!("{path}.NAME"), format!("{path}.NAME")),
    })
}

/// The definition of this name. A list of it, or one of it, is it.
fn definition<'a>(schema: &'a Value, name: &'a str) -> (&'a str, &'a Value) {
    let found = &schema["$defs"][name];
    let first = &found["anyOf"][0]["$ref"];
    match first.as_str().and_then(|it| it.strip_prefix("#/$defs/")) {
        Some(other) => definition(schema, other),
        None => (name, found),
    }
}

/// The keys of a definition, and those of each of its alternatives.
fn keys(definition: &Value) -> Vec<(&String, Value)> {
    let own = definition["properties"].as_object().into_iter().flatten();
    let own = own.map(|(key, property)| (key, property.clone()));
    let alternatives = definition["oneOf"].as_array().into_iter().flatten();
    let theirs = alternatives.flat_map(|it| {
        let properties = it["properties"].as_object().into_iter().flatten();
        properties.map(|(key, property)| {
            let mut property = property.clone();
            property["description"] = it["description"].clone();
            (key, property)
        })
    });
    own.chain(theirs).collect()
}

/// What may stand for a property.
fn kind(schema: &Value, property: &Value) -> String {
    let definition = |value: &Value| {
        let name = value["$ref"].as_str()?.strip_prefix("#/$defs/")?.to_owned();
        Some((schema["$defs"][&name].clone(), name))
    };
    if let Some((found, name)) = definition(property) {
        if name == "Value" {
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
            "array" if property["prefixItems"].is_array() => {
                let each = property["prefixItems"].as_array().into_iter().flatten();
                let each = each.map(|it| kind(schema, it)).collect::<Vec<_>>();
                format!("list: {}", each.join(", "))
            }
            "array" => format!("list: {}", kind(schema, &property["items"])),
            "object" if property["additionalProperties"].is_object() => {
                format!("table: {}", kind(schema, &property["additionalProperties"]))
            }
            "object" => "table".to_owned(),
            number @ ("integer" | "number") => format!("{number}{}", range(property)),
            other => other.to_owned(),
        });
    words.collect::<Vec<_>>().join(" or ")
}

/// The range of a number, if the schema has both ends: `, 1 to 64`.
fn range(property: &Value) -> String {
    let end = |key: &str| {
        let number = property[key].as_f64().filter(|it| it.fract() == 0.0)?;
        let digits = format!("{:.0}", number.abs());
        let groups = digits.as_bytes().rchunks(3).rev();
        let groups = groups.map(|it| String::from_utf8_lossy(it).into_owned());
        let sign = if number < 0.0 { "−" } else { "" };
        Some(format!("{sign}{}", groups.collect::<Vec<_>>().join(",")))
    };
    match (end("minimum"), end("maximum")) {
        (Some(low), Some(high)) => format!(", {low} to {high}"),
        _ => String::new(),
    }
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

impl Maker<'_> {
    fn section(&mut self, heading: &str, definition: &Value) {
        let page = &mut self.page;
        let _ = write!(page, "\n## {heading}\n\n");
        if let Some(text) = definition["description"].as_str() {
            let _ = write!(page, "{}\n\n", text.replace('\n', " ").replace("  ", " "));
        }
        page.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
        let required = definition["required"].as_array().cloned();
        let required = required.unwrap_or_default();
        for (key, property) in keys(definition) {
            let default = match &property["default"] {
                _ if required.iter().any(|it| it == key) => "required".to_owned(),
                Value::Null | Value::Object(_) => String::new(),
                value => format!("`{value}`"),
            };
            let mut kind = kind(self.schema, &property);
            if !self.is_toml {
                kind = kind.replace("table", "object");
            }
            let meaning = property["description"].as_str().unwrap_or_default();
            let _ = writeln!(
                page,
                "| `{key}` | {} | {default} | {} |",
                cell(&kind),
                cell(meaning)
            );
        }
        if let Some(examples) = self.examples.get(heading) {
            let marked = format!("<!-- {}, in part -->\n```toml", self.mark);
            let marked = examples.replace("```toml", &marked);
            let _ = write!(page, "\n{marked}\n");
        }
    }

    /// The sections in the order of the schema, each table after the key that leads to it.
    fn walk(&mut self, path: &str, table_of: &Value) {
        for (key, property) in keys(table_of) {
            let path = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            let Some((name, path, heading)) = table(&property, &path, self.is_toml) else {
                continue;
            };
            let (name, found) = definition(self.schema, &name);
            let name = name.to_owned();
            let is_known = self.seen.contains(&name) || self.elsewhere.contains(&name);
            if keys(found).is_empty() || is_known {
                continue;
            }
            self.seen.push(name);
            self.section(&format!("`{heading}`"), found);
            self.walk(&path, found);
        }
    }

    fn page(mut self, head: &str, top: &str) -> String {
        self.page.push_str(head);
        let mut whole = self.schema.clone();
        whole["description"] = Value::Null;
        self.section(top, &whole);
        self.walk("", &whole);
        self.page
    }
}

/// None is lost on the way: each definition's keys are on the page.
fn check_keys(page: &str, schema: &Value, elsewhere: &[String]) {
    let definitions = schema["$defs"].as_object().unwrap();
    let own = definitions
        .iter()
        .filter(|(name, _)| !elsewhere.contains(name));
    for (name, definition) in own.chain([(&"the top".to_owned(), schema)]) {
        for (key, _) in keys(definition) {
            assert!(
                page.contains(&format!("| `{key}` |")),
                "{name}.{key} is not in the manual"
            );
        }
    }
}

/// By the headings of the page that they are for.
fn examples(text: &str) -> BTreeMap<&str, &str> {
    let sections = text.split("\n## ").skip(1);
    let sections = sections.map(|it| it.split_once('\n').unwrap());
    sections
        .map(|(heading, text)| (heading, text.trim()))
        .collect()
}

/// A page of a file's keys, with examples.
fn check_file(name: &str, head: &str, schema: &Value, mark: &str, text: &str) {
    let maker = Maker {
        schema,
        is_toml: true,
        elsewhere: Vec::new(),
        examples: examples(text),
        mark,
        seen: Vec::new(),
        page: String::new(),
    };
    let page = maker.page(head, "The top of the file");
    check_page(name, &page);
    check_keys(&page, schema, &[]);
    check_examples(&page, examples(text));
}

#[test]
fn the_reference_of_the_specification_is_up_to_date() {
    let schema = tuner::spec::schema();
    let (name, examples) = ("specification.md", SPECIFICATION_EXAMPLES);
    check_file(name, SPECIFICATION, &schema, "experiment", examples);
}

#[test]
fn the_reference_of_isolate_is_up_to_date() {
    let schema = isolate_run::schema();
    let (name, examples) = ("isolate-keys.md", ISOLATE_EXAMPLES);
    check_file(name, ISOLATE, &schema, "isolate", examples);
}

#[test]
fn the_reference_of_serve_block_is_up_to_date() {
    let schema = block_server::config::schema();
    let (name, examples) = ("serve-block-keys.md", BLOCKS_EXAMPLES);
    check_file(name, BLOCKS, &schema, "blocks", examples);
}

#[test]
fn the_reference_of_relayout_is_up_to_date() {
    let schema = crate::relayout::config_schema();
    let (name, examples) = ("relayout-keys.md", RELAYOUT_EXAMPLES);
    check_file(name, RELAYOUT, &schema, "relayout", examples);
}

#[test]
fn the_reference_of_a_report_is_up_to_date() {
    let schema = tuner::report::schema();
    let specification = tuner::spec::schema();
    let names = specification["$defs"].as_object().unwrap().keys().cloned();
    let elsewhere: Vec<String> = names.chain(["Spec".to_owned()]).collect();
    let maker = Maker {
        schema: &schema,
        is_toml: false,
        elsewhere: elsewhere.clone(),
        examples: BTreeMap::new(),
        mark: "",
        seen: Vec::new(),
        page: String::new(),
    };
    let page = maker.page(REPORT, "The top of the report");
    check_page("report-fields.md", &page);
    check_keys(&page, &schema, &elsewhere);
}

/// The tables at a path, where `NAME` is any name, and a name that is left out of the path as well.
fn tables<'a>(value: &'a toml::Value, path: &[&str], found: &mut Vec<&'a toml::Table>) {
    if let Some(list) = value.as_array() {
        return list.iter().for_each(|it| tables(it, path, found));
    }
    let Some(table) = value.as_table() else {
        return;
    };
    match path {
        [] => found.push(table),
        [first, rest @ ..] => match table.get(*first) {
            Some(next) => tables(next, rest, found),
            None if *first == "NAME" => table.values().for_each(|it| tables(it, rest, found)),
            None => table.values().for_each(|it| tables(it, path, found)),
        },
    }
}

/// Each key of a table has an example in the table's section, and there is no other section.
fn check_examples(page: &str, mut examples: BTreeMap<&str, &str>) {
    let mut missing = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let (heading, text) = section.split_once('\n').unwrap();
        let example = examples.remove(heading).unwrap_or_default();
        let path = heading.trim_matches(['`', '[', ']']);
        let path: Vec<&str> = match heading.starts_with('`') {
            true => path.split('.').collect(),
            false => Vec::new(),
        };
        let blocks = example.split("```toml\n").skip(1);
        let blocks: Vec<toml::Value> = blocks
            .map(|it| toml::Value::Table(it.split("```").next().unwrap().parse().unwrap()))
            .collect();
        let mut found = Vec::new();
        blocks.iter().for_each(|it| tables(it, &path, &mut found));
        let keys = text
            .lines()
            .filter_map(|it| it.strip_prefix("| `")?.split('`').next());
        let lacks = |key: &&str| !found.iter().any(|it| it.contains_key(*key));
        missing.extend(keys.filter(lacks).map(|key| format!("{heading}: {key}")));
    }
    assert!(missing.is_empty(), "without an example: {missing:?}");
    assert!(examples.is_empty(), "for no table: {:?}", examples.keys());
}
