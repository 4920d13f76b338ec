//! House rules that the compiler does not know, as checks: which crate may use which, which files
//! need each other, how long a file may be, what may not be written anywhere.

mod cycles;
mod finding;
mod modules;
mod prose;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::cargo;
use finding::Finding;

/// Which crates of the workspace a crate may use, and why. A crate that is not here may not exist;
/// dependencies point down only, so no crate below the roof knows the one above it.
const EDGES: &[Edges] = &[
    Edges {
        from: "config-errors",
        to: &[],
        reason: "pure: words for what a reader of a file says, the same for every file",
    },
    Edges {
        from: "paired-stats",
        to: &[],
        reason: "pure arithmetic on samples: others must be able to use it without the rest",
    },
    Edges {
        from: "bayes-opt",
        to: &[],
        reason: "a pure optimiser knows nothing of hosts, services or time",
    },
    Edges {
        from: "code-layout",
        to: &[],
        reason: "pure: bytes and counts come in, code comes out; nobody's process is touched here",
    },
    Edges {
        from: "host",
        to: &[],
        reason: "reads and writes kernel files for everyone, decides nothing",
    },
    Edges {
        from: "perf-events",
        to: &[],
        reason: "unsafe code of one interface: it must be readable by itself",
    },
    Edges {
        from: "http-client",
        to: &[],
        reason: "one client and one Prometheus query for all: what it asks is decided by others",
    },
    Edges {
        from: "wire-latency",
        to: &["http-client"],
        reason: "the latency of a service for everyone who steers by it: sources and packets, no decision",
    },
    Edges {
        from: "load",
        to: &["host", "http-client"],
        reason: "threads of its own: nobody else's measurement may share them; host counts CPU time and takes real-time priority, http-client checks URLs",
    },
    Edges {
        from: "throttle",
        to: &["paired-stats"],
        reason: "pure: observations come in, findings go out, with intervals",
    },
    Edges {
        from: "isolation",
        to: &[],
        reason: "pure controllers: observations come in, decisions go out, tested on a modelled machine",
    },
    Edges {
        from: "qos",
        to: &["paired-stats"],
        reason: "pure: who may submit what to a device, by arithmetic; intervals for its benchmark",
    },
    Edges {
        from: "tuner",
        to: &[
            "bayes-opt",
            "config-errors",
            "host",
            "http-client",
            "paired-stats",
            "load",
            "wire-latency",
        ],
        reason: "the experiment asks the optimiser, writes knobs through the journal, compares blocks, asks Prometheus and services over HTTP",
    },
    Edges {
        from: "isolate-run",
        to: &["host", "isolation", "tuner", "wire-latency"],
        reason: "the controllers' way to a host: sources, actuators, journal; tuner reads files with their lines",
    },
    Edges {
        from: "coordinator",
        to: &["bayes-opt", "host", "http-client", "tuner"],
        reason: "databases, and the thread that runs what they hold: `tune` needs neither",
    },
    Edges {
        from: "dashboard",
        to: &[
            "bayes-opt",
            "coordinator",
            "host",
            "http-client",
            "paired-stats",
            "tuner",
        ],
        reason: "the asynchronous part: what a request means is decided below it",
    },
    Edges {
        from: "dispatch",
        to: &["host", "http-client", "tuner"],
        reason: "NATS, for coordinators and workers: a worker needs neither a database nor a page",
    },
    Edges {
        from: "relayout",
        to: &["code-layout", "host", "paired-stats", "perf-events"],
        reason: "the only crate that writes into another process: what it writes is decided below it",
    },
    Edges {
        from: "dataplane",
        to: &[],
        reason: "a runtime for anybody's server: it knows none of them",
    },
    Edges {
        from: "cache-server",
        to: &["dataplane"],
        reason: "a program on the runtime: it knows a memcached's protocol, not how packets come",
    },
    Edges {
        from: "block-server",
        to: &["config-errors", "dataplane", "qos"],
        reason: "a program on the runtime: it knows disks and NBD, not how packets come; qos decides whose request is next",
    },
    Edges {
        from: "block-load",
        to: &["dataplane", "paired-stats", "qos"],
        reason: "load for disks and servers: buffers of dataplane, costs of qos; intervals for its benchmark",
    },
    Edges {
        from: "slackline",
        to: &[
            "bayes-opt",
            "block-load",
            "block-server",
            "cache-server",
            "coordinator",
            "dashboard",
            "dataplane",
            "dispatch",
            "host",
            "http-client",
            "isolate-run",
            "isolation",
            "paired-stats",
            "load",
            "perf-events",
            "qos",
            "relayout",
            "throttle",
            "tuner",
            "wire-latency",
        ],
        reason: "the binary wires everything",
    },
    Edges {
        from: "xtask",
        to: &[],
        reason: "must build and say what is wrong when the product does not build",
    },
];

struct Edges {
    from: &'static str,
    to: &'static [&'static str],
    reason: &'static str,
}

/// Crates without any unsafe code, which their `lib.rs` promises.
const WITHOUT_UNSAFE: &[&str] = &[
    "config-errors",
    "paired-stats",
    "bayes-opt",
    "code-layout",
    "http-client",
    "throttle",
    "isolation",
    "qos",
    "isolate-run",
    "tuner",
    "coordinator",
    "dashboard",
    "dispatch",
    "cache-server",
    "block-server",
];

/// Past this many lines a file has a second subject (the house style, rule 4).
const LINES_MAX: usize = 800;

/// A wider comment is hard to read beside its code.
const COLUMNS_MAX: usize = 100;

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

/// `cargo xtask tidy`.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    let findings = check(root)?;
    print(&findings);
    Ok(if findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints the findings and their number.
pub(crate) fn print(findings: &[Finding]) {
    for finding in findings {
        println!("{finding}");
    }
    println!("tidy: {} findings", findings.len());
}

/// Checks the whole repository.
///
/// # Errors
/// cargo or git cannot be asked, or a tracked file cannot be read.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let metadata = metadata(root)?;
    let mut findings = check_edges(&metadata.packages);
    for name in WITHOUT_UNSAFE {
        let path = PathBuf::from(format!("crates/{name}/src/lib.rs"));
        let text = std::fs::read_to_string(root.join(&path))
            .with_context(|| path.display().to_string())?;
        findings.extend(check_unsafe(&path, &text));
    }
    for path in tracked_files(root)? {
        let bytes = match std::fs::read(root.join(&path)) {
            Ok(bytes) => bytes,
            // Deleted, but not yet committed; or a directory behind a link.
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::IsADirectory
                ) =>
            {
                continue;
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        if let Ok(text) = std::str::from_utf8(&bytes) {
            findings.extend(check_text(&path, text));
            if path.extension().is_some_and(|extension| extension == "md") {
                findings.extend(prose::check(&path, text, &|other| text_of(root, other)));
            }
        }
    }
    findings.extend(prose::check_summary(root)?);
    findings.extend(cycles::check(root)?);
    Ok(findings)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Only dependencies inside the workspace have one.
    path: Option<PathBuf>,
}

fn metadata(root: &Path) -> anyhow::Result<Metadata> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo metadata cannot be run")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout)
        .context("cargo metadata printed something else than its JSON")
}

/// The text of a file; nothing of a folder or a picture, which links may lead to as well.
fn text_of(root: &Path, path: &Path) -> Option<String> {
    let path = root.join(path);
    path.exists()
        .then(|| std::fs::read_to_string(path).unwrap_or_default())
}

fn tracked_files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("git cannot be run")?;
    if !output.status.success() {
        bail!(
            "git ls-files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let names = String::from_utf8(output.stdout).context("a tracked file's name is not UTF-8")?;
    Ok(names.split_terminator('\0').map(PathBuf::from).collect())
}

fn check_edges(packages: &[Package]) -> Vec<Finding> {
    let table: BTreeMap<&str, &Edges> = EDGES.iter().map(|edges| (edges.from, edges)).collect();
    let mut findings = Vec::new();
    for package in packages {
        let mut complain = |message| {
            findings.push(Finding {
                path: package.manifest_path.clone(),
                line: None,
                message,
            });
        };
        let Some(edges) = table.get(package.name.as_str()) else {
            complain(format!(
                "{} is not in the table of crates in xtask/src/tidy.rs",
                package.name
            ));
            continue;
        };
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.path.is_some())
        {
            if !edges.to.contains(&dependency.name.as_str()) {
                complain(format!(
                    "{} may not use {}: {}",
                    package.name, dependency.name, edges.reason
                ));
            }
        }
    }
    findings
}

fn check_unsafe(path: &Path, text: &str) -> Option<Finding> {
    let promised = text
        .lines()
        .any(|line| line.trim() == "#![forbid(unsafe_code)]");
    (!promised).then(|| Finding {
        path: path.to_path_buf(),
        line: None,
        message: "has no #![forbid(unsafe_code)], which this crate promises".into(),
    })
}

/// The rules that one file's text is enough for.
fn check_text(path: &Path, text: &str) -> Vec<Finding> {
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
        let lines = text.lines().count();
        if lines > LINES_MAX {
            complain(
                None,
                format!("has {lines} lines, more than {LINES_MAX}: look for its second subject"),
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

    fn package(name: &str, uses: &[(&str, bool)]) -> Package {
        Package {
            name: name.into(),
            manifest_path: format!("{name}/Cargo.toml").into(),
            dependencies: uses
                .iter()
                .map(|(name, inside)| Dependency {
                    name: (*name).into(),
                    path: inside.then(|| PathBuf::from("..")),
                })
                .collect(),
        }
    }

    fn messages(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_edge_upwards_and_an_unknown_crate_are_found() {
        let findings = check_edges(&[
            package("bayes-opt", &[("nalgebra", false), ("tuner", true)]),
            package("helpers", &[]),
            package(
                "tuner",
                &[("bayes-opt", true), ("host", true), ("toml", false)],
            ),
        ]);
        assert_eq!(
            messages(&findings),
            [
                "bayes-opt/Cargo.toml: bayes-opt may not use tuner: a pure optimiser knows nothing of hosts, services or time",
                "helpers/Cargo.toml: helpers is not in the table of crates in xtask/src/tidy.rs",
            ]
        );
    }

    #[test]
    fn the_table_of_edges_has_no_cycle_and_names_only_known_crates() {
        let mut done: Vec<&str> = Vec::new();
        for edges in EDGES {
            for to in edges.to {
                assert!(
                    done.contains(to),
                    "{} uses {to}, which stands below it",
                    edges.from
                );
            }
            done.push(edges.from);
        }
    }

    #[test]
    fn a_pure_crate_must_forbid_unsafe_code() {
        let path = Path::new("lib.rs");
        assert!(check_unsafe(path, "//! x\n#![forbid(unsafe_code)]\n").is_none());
        assert!(check_unsafe(path, "//! x\n// #![forbid(unsafe_code)]\n").is_some());
    }

    #[test]
    fn a_source_file_needs_a_purpose_and_may_not_be_long() {
        let path = Path::new("src/a.rs");
        assert_eq!(check_text(path, "//! A subject.\n"), []);
        assert_eq!(check_text(path, "use x;\n").len(), 1);
        let long = format!("//! A subject.\n{}", "\n".repeat(LINES_MAX));
        assert_eq!(
            messages(&check_text(path, &long)),
            ["src/a.rs: has 801 lines, more than 800: look for its second subject"]
        );
        assert_eq!(check_text(Path::new("a.txt"), &long), []);
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
    fn forbidden_text_is_found_with_its_line() {
        let path = Path::new("a.md");
        for (head, tail, _) in FORBIDDEN {
            let findings = check_text(path, &format!("fine\nsee {head}{tail}x\n"));
            assert_eq!(findings.len(), 1, "{head}{tail}");
            assert_eq!(findings[0].line, Some(2));
        }
        let (head, tail, _) = FORBIDDEN[0];
        assert_eq!(
            check_text(path, &format!("net{head}{tail}x and target{head}{tail}\n")),
            []
        );
    }

    #[test]
    fn the_lock_file_names_crates_io_only() {
        let lock = Path::new("Cargo.lock");
        assert_eq!(check_text(lock, &format!("source = \"{CRATES_IO}\"\n")), []);
        assert_eq!(
            check_text(lock, "source = \"git+https://example.org/x\"\n").len(),
            1
        );
    }
}
