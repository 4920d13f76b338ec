//! Runs the examples: one of them as a demonstration, or all to keep their reports.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::cargo::{build_release, target_directory};
use crate::{install, step};

/// The example of the demonstration.
const DEMO_SPEC: &str = "examples/nginx-workers/experiment.toml";

/// `cargo xtask demo`: tunes nginx for a few minutes and ends with what was shown.
pub(crate) fn run(root: &Path) -> anyhow::Result<ExitCode> {
    install::install(install::DEMO)?;
    let binary = build_release(root)?;
    let report = target_directory(root).join("demo-report.json");
    let mut tune = tune_command(root, &binary, Path::new(DEMO_SPEC), &report);
    println!("\n==> {}", line_of(&tune));
    let start = std::time::Instant::now();
    let status = tune
        .status()
        .with_context(|| format!("{} cannot be run", binary.display()))?;
    println!(
        "==> demo: {:.0} s; the report is in {}",
        start.elapsed().as_secs_f64(),
        report.display()
    );
    // 1 is a finding as well ("no difference shown"); a signal has no code.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

/// `cargo xtask examples [NAME…]`: runs them one after the other into `docs/results/NAME.json`.
pub(crate) fn run_examples(root: &Path, names: &[&str]) -> anyhow::Result<ExitCode> {
    let all = examples(&root.join("examples"))?;
    if let Some(unknown) = names
        .iter()
        .find(|name| all.iter().all(|(known, _)| known != *name))
    {
        let known: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        bail!("no example {unknown:?}; there are {}", known.join(", "));
    }
    install::install(install::EXAMPLES)?;
    let binary = build_release(root)?;
    let results = root.join("docs/results");
    std::fs::create_dir_all(&results)
        .with_context(|| format!("cannot make {}", results.display()))?;
    let (mut passed, mut failed) = (0, 0);
    for (name, spec) in all {
        if !names.is_empty() && !names.contains(&name.as_str()) {
            continue;
        }
        set_up(&spec)?;
        let report = results.join(format!("{name}.json"));
        let mut tune = tune_command(root, &binary, &spec, &report);
        println!("\n==> {}", line_of(&tune));
        let code = tune
            .status()
            .with_context(|| format!("{} cannot be run", binary.display()))?
            .code();
        // "No difference shown" is an honest result of an example, not its failure.
        match code {
            Some(0 | 1) => passed += 1,
            _ => failed += 1,
        }
        println!(
            "==> {name}: ended with {}",
            code.map_or("a signal".to_owned(), |code| code.to_string())
        );
    }
    println!("\nexamples: {passed} passed, {failed} failed");
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the example's own `setup`, which builds what it needs, where it has one.
fn set_up(spec: &Path) -> anyhow::Result<()> {
    let setup = spec.with_file_name("setup");
    if setup.is_file() && !step::run(&format!("{}", setup.display()), &mut Command::new(&setup))? {
        bail!("{} failed", setup.display());
    }
    Ok(())
}

/// Every specification below `directory` that `tune` runs, with its name: the directory's for
/// `experiment.toml`, `DIRECTORY-STEM` for a further one beside it. A continuous one has no end,
/// and a `run` of its own.
fn examples(directory: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in sorted_entries(directory)? {
        let Some(example) = entry
            .file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
        else {
            continue;
        };
        if !entry.join("experiment.toml").is_file() {
            continue;
        }
        for file in sorted_entries(&entry)? {
            let text = match file.extension() {
                Some(extension) if extension == "toml" => std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))?,
                _ => continue,
            };
            if !text.contains("[[parameters]]") || text.contains("mode = \"continuous\"") {
                continue;
            }
            let name = match file.file_stem().and_then(|stem| stem.to_str()) {
                Some("experiment") | None => example.clone(),
                Some(stem) => format!("{example}-{stem}"),
            };
            found.push((name, file));
        }
    }
    Ok(found)
}

fn sorted_entries(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

fn tune_command(root: &Path, binary: &Path, spec: &Path, report: &Path) -> Command {
    let mut tune = Command::new(binary);
    tune.arg("tune")
        .arg(spec)
        .arg("--json")
        .arg(report)
        .current_dir(root);
    tune
}

fn line_of(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_named_after_their_directory_and_file() {
        let directory = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("one/experiment.toml", "[[parameters]]"),
            ("one/other.toml", "[[parameters]]"),
            ("one/unrelated.toml", "[package]"),
            (
                "endless/experiment.toml",
                "mode = \"continuous\"\n[[parameters]]",
            ),
            ("two/readme.md", ""),
        ] {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let names: Vec<String> = examples(directory.path())
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, ["one", "one-other"]);
    }

    #[test]
    fn the_demo_is_one_of_the_examples() {
        let root = crate::repository();
        let all = examples(&root.join("examples")).unwrap();
        assert!(
            all.iter().any(|(_, spec)| *spec == root.join(DEMO_SPEC)),
            "{all:?}"
        );
    }
}
