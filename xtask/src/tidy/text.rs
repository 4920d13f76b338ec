//! What one file's text is enough for: its purpose, its length, its comments, and what may not be
//! written anywhere.

use std::path::Path;

use super::finding::Finding;

/// Past this many lines a file has a second subject (the house style, rule 4).
const LINES_MAX: usize = 600;
/// A file of tests may be longer: each test can be read by itself.
const LINES_OF_TESTS_MAX: usize = 800;

/// A wider comment is hard to read beside its code.
const COLUMNS_MAX: usize = 100;

/// Words that say nothing if a doc comment has no other.
const EMPTY_WORDS: &[&str] = &[
    "he", "how", "it", "so", "that", "they", "this", "those", "what", "when", "where", "which",
    "who", "why",
];

/// Text that may not be in any tracked file, with the reason. Written in two parts, so that this
/// file may hold it.
const FORBIDDEN: &[(&str, &str, &str)] = &[
    ("/wor", "k/", "a path of one machine"),
    ("replace-", "with =", "a registry mirror of one network"),
    ("<mirr", "or>", "a registry mirror of one network"),
    ("--index", "-url", "a registry mirror of one network"),
    (
        "registry",
        ".npmjs.org",
        "the host name of a registry: use its client's default",
    ),
    (
        "index.",
        "crates.io",
        "the host name of a registry: use its client's default",
    ),
    (
        "repo.maven.apache",
        ".org",
        "the host name of a registry: use its client's default",
    ),
    (
        "repo1.",
        "maven.org",
        "the host name of a registry: use its client's default",
    ),
    (
        "deb.",
        "debian.org",
        "the host name of a registry: use its client's default",
    ),
];

/// The only source of dependencies in `Cargo.lock`.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The rules that one file's text is enough for.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut complain = |line, message: String| {
        findings.push(Finding {
            path: path.to_path_buf(),
            line,
            message,
        });
    };
    let lock = path.file_name().is_some_and(|name| name == "Cargo.lock");
    if path.extension().is_some_and(|extension| extension == "rs") {
        if !text.starts_with("//!") {
            complain(
                Some(1),
                "does not begin with a //! paragraph on what the file is for".into(),
            );
        }
        let most = match is_of_tests(path) {
            true => LINES_OF_TESTS_MAX,
            false => LINES_MAX,
        };
        let lines = text.lines().count();
        if lines > most {
            complain(
                None,
                format!("has {lines} lines, more than {most}: look for its second subject"),
            );
        }
    }
    if path.extension().is_some_and(|extension| extension == "rs") {
        for number in wide_comments(text) {
            complain(
                Some(number),
                format!("a comment of more than {COLUMNS_MAX} columns"),
            );
        }
        for number in empty_comments(text) {
            let message = "a doc comment of one word that says nothing: name the thing";
            complain(Some(number), message.into());
        }
    }
    for (number, line) in (1..).zip(text.lines()) {
        if lock {
            if let Some(source) = line.strip_prefix("source = ")
                && source.trim_matches('"') != CRATES_IO
            {
                complain(
                    Some(number),
                    format!("a dependency from elsewhere than crates.io: {source}"),
                );
            }
            continue;
        }
        for (head, tail, reason) in FORBIDDEN {
            if contains_word(line, &format!("{head}{tail}")) {
                complain(Some(number), format!("holds {head}{tail}: {reason}"));
            }
        }
    }
    findings
}

/// Whether a file has tests alone: `tests.rs`, `…_tests.rs`, or one below a folder `tests`.
fn is_of_tests(path: &Path) -> bool {
    let mut folders = path.parent().into_iter().flatten();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    stem == "tests" || stem.ends_with("_tests") || folders.any(|folder| folder == "tests")
}

/// The lines of comments that are too wide, but for tables and code in them.
fn wide_comments(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut wide = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_code = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']).trim_start();
        if comment.starts_with("```") {
            in_code = !in_code;
        }
        let is_free = in_code || comment.starts_with('|');
        if !is_free && line.chars().count() > COLUMNS_MAX {
            wide.push(number);
        }
    }
    wide
}

/// The lines of doc comments that are only "It.", "What." or the like.
fn empty_comments(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_comment = |at: Option<usize>| {
        let line = at.and_then(|at| lines.get(at));
        line.is_some_and(|line| line.starts_with("///"))
    };
    let is_empty = |at: usize| {
        let word = lines[at].strip_prefix("///")?.trim().trim_end_matches('.');
        let is_alone = !is_comment(at.checked_sub(1)) && !is_comment(Some(at + 1));
        let says_nothing = EMPTY_WORDS.contains(&word.to_lowercase().as_str());
        (is_alone && says_nothing).then_some(at + 1)
    };
    (0..lines.len()).filter_map(is_empty).collect()
}

/// Whether `needle` is in the line and does not continue a longer path or name to its left
/// (`net{needle}` is no match).
fn contains_word(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(start, _)| {
        !line[..start]
            .ends_with(|before: char| before.is_alphanumeric() || matches!(before, '.' | '_' | '}'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_source_file_needs_a_purpose_and_may_not_be_long() {
        let path = Path::new("src/a.rs");
        assert_eq!(check(path, "//! A subject.\n"), []);
        assert_eq!(check(path, "use x;\n").len(), 1);
        let long = format!("//! A subject.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(
            messages(&check(path, &long)),
            ["src/a.rs: has 601 lines, more than 600: look for its second subject"]
        );
        assert_eq!(check(Path::new("a.txt"), &long), []);
        let of_tests = ["src/a/tests.rs", "src/a_tests.rs", "tests/main.rs"];
        for path in of_tests.map(Path::new) {
            assert_eq!(check(path, &long), []);
            let longer = format!("//! A subject.\n{}", "\n".repeat(LINES_OF_TESTS_MAX));
            assert!(messages(&check(path, &longer))[0].contains("has 801 lines, more than 800"));
        }
    }

    #[test]
    fn a_wide_comment_is_found_but_no_code_in_it() {
        let wide = "word ".repeat(25);
        let text = format!(
            "//! {wide}\n//! ```\n//! {wide}\n//! ```\nfn a() {{\n    // {wide}\n    let x = \"{wide}\";\n}}\n/// | {wide} |\n"
        );
        assert_eq!(wide_comments(&text), [1, 6]);
    }

    #[test]
    fn a_doc_comment_says_something() {
        let text = "/// It.\nlet a;\n    /// Why.\n    b: u8,\n/// What\n/// it is.\nfn c() {}\n/// Whose.\n// It.\n";
        assert_eq!(empty_comments(text), [1, 3]);
    }

    #[test]
    fn forbidden_text_is_found_with_its_line() {
        let path = Path::new("a.md");
        for (head, tail, _) in FORBIDDEN {
            let findings = check(path, &format!("fine\nsee {head}{tail}x\n"));
            assert_eq!(findings.len(), 1, "{head}{tail}");
            assert_eq!(findings[0].line, Some(2));
        }
        let (head, tail, _) = FORBIDDEN[0];
        assert_eq!(
            check(path, &format!("net{head}{tail}x and target{head}{tail}\n")),
            []
        );
    }

    #[test]
    fn the_lock_file_names_crates_io_only() {
        let lock = Path::new("Cargo.lock");
        assert_eq!(check(lock, &format!("source = \"{CRATES_IO}\"\n")), []);
        assert_eq!(
            check(lock, "source = \"git+https://example.org/x\"\n").len(),
            1
        );
    }
}
