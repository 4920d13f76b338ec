//! How long a function may be. rustfmt puts its closing brace below its first column.

use std::path::Path;

use super::finding::Finding;

/// Past this many lines a function has a second subject (the house style).
const LINES_MAX: usize = 100;

/// The functions of a file that are too long.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    if path.extension().is_none_or(|extension| extension != "rs") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = name(line) else { continue };
        let length = length(&lines[at..]);
        if length > LINES_MAX {
            findings.push(Finding {
                path: path.to_path_buf(),
                line: Some(at + 1),
                message: format!(
                    "the function {name} has {length} lines, more than {LINES_MAX}: look for its second subject"
                ),
            });
        }
    }
    findings
}

/// The name of the function whose signature begins in this line.
fn name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let mut word = words.next()?;
    while is_qualifier(word) {
        word = words.next()?;
    }
    let name = (word == "fn").then(|| words.next())??;
    name.split(['(', '<']).next()
}

fn is_qualifier(word: &str) -> bool {
    let is_word = ["pub", "const", "async", "unsafe", "extern"].contains(&word);
    is_word || word.starts_with("pub(") || word.starts_with('"')
}

/// How many lines a function has that begins in the first of these. Without a body it has one.
fn length(lines: &[&str]) -> usize {
    let first = lines[0];
    let ends = |line: &&str| line.ends_with(['{', '}', ';']);
    let has_body = lines.iter().find(|line| ends(line));
    if !has_body.is_some_and(|line| line.ends_with('{')) {
        return 1;
    }
    let indent = &first[..first.len() - first.trim_start().len()];
    let end = format!("{indent}}}");
    let last = lines.iter().position(|line| *line == end);
    last.map_or(lines.len(), |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(head: &str, indent: &str, lines: usize) -> String {
        let body = format!("{indent}    a();\n").repeat(lines - 2);
        format!("{indent}{head} {{\n{body}{indent}}}\n")
    }

    #[test]
    fn a_long_function_is_found_with_its_name() {
        let path = Path::new("src/a.rs");
        for (head, indent) in [
            ("fn long()", ""),
            ("pub(crate) async fn long<T: Copy>(it: T)", "    "),
            ("pub const unsafe extern \"C\" fn long()", ""),
            ("fn long(\n        a: u8,\n    )", "    "),
        ] {
            let extra = head.lines().count() - 1;
            let fits = function(head, indent, LINES_MAX - extra);
            assert_eq!(check(path, &fits), [], "{head}");
            let long = function(head, indent, LINES_MAX - extra + 1);
            let text = format!("fn before();\n{fits}{long}{fits}");
            let found = check(path, &text);
            assert_eq!(found.len(), 1, "{head}");
            assert_eq!(found[0].line, Some(2 + LINES_MAX));
            assert!(found[0].message.contains("long has 101 lines"));
        }
        let long = function("fn long()", "", LINES_MAX + 1);
        assert_eq!(check(Path::new("a.md"), &long), []);
    }

    #[test]
    fn a_function_without_a_body_has_one_line() {
        let after = "    a();\n".repeat(2 * LINES_MAX);
        for head in ["fn a(&self);", "fn a(\n    b: u8,\n) -> u8;", "fn a() {}"] {
            let text = format!("{head}\n{after}");
            assert_eq!(check(Path::new("a.rs"), &text), [], "{head}");
        }
    }
}
