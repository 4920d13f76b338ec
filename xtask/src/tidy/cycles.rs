//! Files of one crate that need each other: whoever reads one of them has to read all.
//!
//! ARCHITECTURE.md has a table of those that stay. A row names the files of a cycle and its reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::finding::Finding;
use super::modules::Modules;

/// Where reasons are stated, and the heading above them.
const STATED_IN: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Files that need each other";

/// A row of the table below [`HEADING`].
#[derive(Debug, PartialEq)]
struct Stated {
    line: usize,
    name: String,
    /// The files of the cycle.
    files: BTreeSet<String>,
}

/// One cycle.
struct Cycle {
    files: BTreeSet<String>,
    /// Who needs whom, and for what.
    ties: String,
}

/// Checks all crates.
///
/// # Errors
/// A file cannot be read.
pub(super) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let text = std::fs::read_to_string(root.join(STATED_IN)).context(STATED_IN)?;
    let mut stated = stated(&text);
    let mut findings = Vec::new();
    for name in crates(root)? {
        let source = source_of(root, &name);
        let mut cycles = Vec::new();
        for entry in ["lib.rs", "main.rs"] {
            let entry = source.join(entry);
            if entry.exists() {
                cycles.extend(cycles_of(&Modules::read(&entry)?, &source));
            }
        }
        cycles.retain(|cycle| {
            let is_it = |row: &Stated| row.name == name && row.files == cycle.files;
            let place = stated.iter().position(is_it);
            place.map(|place| stated.remove(place)).is_none()
        });
        findings.extend(judge(&name, &cycles));
    }
    findings.extend(stated.iter().map(|row| Finding {
        path: PathBuf::from(STATED_IN),
        line: Some(row.line),
        message: format!("states a cycle of {} that is not there", row.name),
    }));
    Ok(findings)
}

/// What is said of the cycles of a crate that have no reason.
fn judge(name: &str, left: &[Cycle]) -> Vec<Finding> {
    let finding = |cycle: &Cycle| Finding {
        path: PathBuf::from(name),
        line: None,
        message: format!(
            "has a cycle of {} files: move what they share to a file below, or state the reason in {STATED_IN}. {}",
            cycle.files.len(),
            cycle.ties
        ),
    };
    left.iter().map(finding).collect()
}

/// The rows of the table of reasons: crate, files, reason.
fn stated(text: &str) -> Vec<Stated> {
    let lines = (1..).zip(text.lines());
    let section = lines
        .skip_while(|(_, line)| *line != HEADING)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with("## "));
    let mut rows = Vec::new();
    for (line, text) in section {
        let cells: Vec<&str> = text
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        let [name, files, reason] = cells.as_slice() else {
            continue;
        };
        let Some(name) = name
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'))
        else {
            continue;
        };
        if reason.is_empty() {
            continue;
        }
        let files = files
            .split(',')
            .map(|file| file.trim().trim_matches('`').to_owned());
        rows.push(Stated {
            line,
            name: name.to_owned(),
            files: files.collect(),
        });
    }
    rows
}

/// Crates that do not lie in `crates`.
const BESIDE: [&str; 2] = ["fuzz", "xtask"];

/// The crates with a source folder, and those beside them.
fn crates(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = BESIDE.map(str::to_owned).to_vec();
    for entry in std::fs::read_dir(root.join("crates")).context("crates")? {
        let entry = entry.context("crates")?;
        if entry.path().join("src").is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn source_of(root: &Path, name: &str) -> PathBuf {
    match BESIDE.contains(&name) {
        true => root.join(name).join("src"),
        false => root.join("crates").join(name).join("src"),
    }
}

/// The cycles of a crate: files each of which leads to each other.
fn cycles_of(modules: &Modules, source: &Path) -> Vec<Cycle> {
    let needs = modules.needs();
    let reached: Vec<BTreeSet<usize>> = (0..needs.len())
        .map(|start| {
            let mut reached = BTreeSet::new();
            let mut work = vec![start];
            while let Some(file) = work.pop() {
                work.extend(needs[file].keys().filter(|next| reached.insert(**next)));
            }
            reached
        })
        .collect();
    let name = |file: usize| {
        let file = &modules.files[file];
        file.strip_prefix(source)
            .unwrap_or(file)
            .display()
            .to_string()
    };
    let mut cycles = Vec::new();
    for file in 0..needs.len() {
        let together: BTreeSet<usize> = reached[file]
            .iter()
            .copied()
            .filter(|other| reached[*other].contains(&file))
            .collect();
        // Once for each cycle: by its first file. A file that reaches itself alone is none.
        if together.len() < 2 || together.first() != Some(&file) {
            continue;
        }
        let mut ties = Vec::new();
        for from in &together {
            for (to, names) in needs[*from].iter().filter(|(to, _)| together.contains(to)) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                ties.push(format!(
                    "{} → {} ({})",
                    name(*from),
                    name(*to),
                    names.join(", ")
                ));
            }
        }
        cycles.push(Cycle {
            files: together.iter().map(|file| name(*file)).collect(),
            ties: ties.join("; "),
        });
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cycles of a crate with these files.
    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let modules = Modules::read(&directory.path().join("lib.rs")).unwrap();
        let cycles = cycles_of(&modules, directory.path()).into_iter();
        cycles
            .map(|cycle| cycle.files.into_iter().collect())
            .collect()
    }

    #[test]
    fn files_that_need_each_other_are_found() {
        let lib = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\n");
        let a = ("a.rs", "use crate::b::B;\npub struct A(B);\n");
        let c = ("c.rs", "use crate::A;\nfn f(_: A) {}\n");
        let without = ("b.rs", "pub struct B;\n");
        assert!(found(&[lib, a, c, without]).is_empty());
        // By `use`, by a path, by what another file hands on, and from within a function.
        for b in [
            "use crate::a::A;\npub struct B(Option<Box<A>>);\n",
            "pub struct B;\nfn f(_: super::a::A) {}\n",
            "use crate::A;\npub struct B;\n",
            "pub struct B;\nfn f() { use super::a; let _ = a::A::new(); }\n",
            "use super::*;\npub struct B;\nfn f(_: A) {}\n",
            "pub struct B;\nmod inner { use super::super::A; }\n",
        ] {
            assert_eq!(found(&[lib, a, c, ("b.rs", b)]), [["a.rs", "b.rs"]], "{b}");
        }
        // Not by tests, comments, texts, fields and what is merely handed on.
        for b in [
            "pub struct B;\n#[cfg(test)]\nmod tests { use crate::A; }\n",
            "/// [`crate::A`]\npub struct B;\n",
            "pub struct B;\nconst TEXT: &str = \"crate::A\";\n",
            "pub use crate::a::A;\npub struct B;\nfn f(b: &X) { b.A; }\n",
            "pub struct B {\n    #[cfg(test)]\n    of: crate::A,\n    a: u8,\n}\n",
        ] {
            assert!(found(&[lib, a, c, ("b.rs", b)]).is_empty(), "{b}");
        }
    }

    #[test]
    fn a_parent_and_its_child_are_files_like_others() {
        let child = "use super::One;\npub(super) fn f(_: One) {}\n";
        let cycle = found(&[
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod b;\nstruct One;\nfn g() { b::f(One); }\n"),
            ("a/b.rs", child),
        ]);
        assert_eq!(cycle, [["a/b.rs", "a/mod.rs"]]);
        let none = found(&[
            ("lib.rs", "mod a;\n"),
            ("a.rs", "mod b;\nstruct One;\n"),
            ("a/b.rs", child),
        ]);
        assert!(none.is_empty());
    }

    #[test]
    fn reasons_are_read_from_their_section_only() {
        let text = format!(
            "| `x` | `a.rs` | other |\n{HEADING}\n\n| crate | files | reason |\n|---|---|---|\n\
             | `x` | `a.rs`, `b/c.rs` | both |\n| `y` | `a.rs` | |\n## More\n\
             | `z` | `a.rs` | no |\n"
        );
        let rows = stated(&text);
        let expected = Stated {
            line: 6,
            name: "x".to_owned(),
            files: ["a.rs", "b/c.rs"].map(str::to_owned).into(),
        };
        assert_eq!(rows, [expected]);
    }

    #[test]
    fn a_cycle_without_a_reason_is_refused_with_what_ties_it() {
        assert!(judge("x", &[]).is_empty());
        let cycle = Cycle {
            files: ["a.rs", "b.rs"].map(str::to_owned).into(),
            ties: "a.rs → b.rs (B)".to_owned(),
        };
        let text = judge("x", &[cycle])[0].to_string();
        assert!(
            text.contains("a cycle of 2 files") && text.contains("(B)"),
            "{text}"
        );
    }
}
