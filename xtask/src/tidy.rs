//! House rules that the compiler does not know, as checks: which crate may use which, which files
//! need each other, how long a file and a function may be, what may not be written anywhere.

mod cycles;
mod edges;
mod finding;
mod functions;
mod modules;
mod prose;
mod text;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use finding::Finding;

/// Crates without any unsafe code, which their `lib.rs` promises.
const WITHOUT_UNSAFE: &[&str] = &[
    "config-errors",
    "prometheus-text",
    "paired-stats",
    "bayes-opt",
    "code-layout",
    "http-client",
    "throttle",
    "isolation",
    "qos",
    "isolate-run",
    "throttle-watch",
    "agent",
    "experiment-spec",
    "tuner",
    "coordinator",
    "dashboard",
    "dispatch",
    "cache-server",
    "block-server",
];

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
    let mut findings = edges::check(root)?;
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
            findings.extend(text::check(&path, text));
            findings.extend(functions::check(&path, text));
            if path.extension().is_some_and(|extension| extension == "md") {
                findings.extend(prose::check(&path, text, &|other| text_of(root, other)));
            }
        }
    }
    findings.extend(prose::check_summary(root)?);
    findings.extend(cycles::check(root)?);
    Ok(findings)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_crate_must_forbid_unsafe_code() {
        let path = Path::new("lib.rs");
        assert!(check_unsafe(path, "//! x\n#![forbid(unsafe_code)]\n").is_none());
        assert!(check_unsafe(path, "//! x\n// #![forbid(unsafe_code)]\n").is_some());
    }
}
