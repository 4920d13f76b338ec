//! `cargo xtask fuzz NAME`: libFuzzer on the targets of the crate `fuzz`, with its mutations guided
//! by coverage. The tests of that crate run the same targets for a few seconds.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use crate::cargo::cargo;
use crate::{install, step};

/// What makes the compiler count edges and comparisons for libFuzzer.
const INSTRUMENT: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Ccodegen-units=1",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Names for several targets. A target has its own name, too, and `all` is all of them.
const GROUPS: &[(&str, &[&str])] = &[
    ("layout", &["elf", "unwind", "lsda"]),
    ("block", &["nbd", "nvme"]),
    ("dataplane", &["frames", "memcached", "rings"]),
];

/// The largest input that libFuzzer makes, in bytes: larger than any seed.
const LEN_MAX_BYTES: usize = 32 << 10;

/// Where the targets are built. The same directory has the inputs of each target below `NAME`.
const FOLDER: &str = "target/fuzz";

/// The targets of a name, one after the other, that many minutes each. Inputs that reach new code
/// are kept, and are the next run's beginning.
///
/// # Errors
/// There are no such targets, or they do not build.
pub(crate) fn guided(root: &Path, name: &str, minutes: &str) -> anyhow::Result<ExitCode> {
    let minutes: f64 = minutes.parse().context("--minutes N")?;
    let targets = targets(root, name)?;
    // Seeds are compiled.
    install::install(install::FUZZ)?;
    let folder = root.join(FOLDER);
    let build_folder = folder.join("build");
    let mut build = cargo();
    build
        .args(["build", "--package", "fuzz", "--features", "guided"])
        .args(["--profile", "fuzz", "--target", "x86_64-unknown-linux-gnu"])
        .arg("--target-dir")
        .arg(&build_folder)
        .env("RUSTFLAGS", INSTRUMENT.join(" "))
        .current_dir(root);
    for target in &targets {
        build.args(["--bin", target]);
    }
    if !step::run("build the fuzz targets", &mut build)? {
        bail!("the build failed");
    }
    let programs = build_folder.join("x86_64-unknown-linux-gnu/fuzz");
    let mut code = ExitCode::SUCCESS;
    for target in &targets {
        let own = folder.join(target);
        let (corpus, seeds) = (own.join("corpus"), own.join("seeds"));
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&seeds)?;
        let mut fuzzer = Command::new(programs.join(target));
        fuzzer
            .arg(&corpus)
            .arg(&seeds)
            .arg(format!("-max_total_time={:.0}", minutes * 60.0))
            .arg(format!("-max_len={LEN_MAX_BYTES}"))
            .arg(format!("-artifact_prefix={}/", own.display()))
            .args(["-timeout=10", "-print_final_stats=1"])
            .env("SLACKLINE_FUZZ_SEEDS", &seeds)
            .current_dir(&own);
        if !step::run(&format!("fuzz {target}"), &mut fuzzer)? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// The targets that a name stands for.
fn targets(root: &Path, name: &str) -> anyhow::Result<Vec<String>> {
    let all = all_targets(root)?;
    if name == "all" {
        return Ok(all);
    }
    if let Some((_, group)) = GROUPS.iter().find(|(group, _)| *group == name) {
        return Ok(group.iter().map(|target| (*target).to_owned()).collect());
    }
    if !all.iter().any(|target| target == name) {
        let groups: Vec<&str> = GROUPS.iter().map(|(group, _)| *group).collect();
        bail!(
            "no target {name:?} to fuzz; there are api, {}, and the groups {} and all",
            all.join(", "),
            groups.join(", ")
        );
    }
    Ok(vec![name.to_owned()])
}

/// Each target has a program, in a file of its name.
fn all_targets(root: &Path) -> anyhow::Result<Vec<String>> {
    let folder = root.join("fuzz/src/bin");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).context("fuzz/src/bin")? {
        let path = entry?.path();
        names.extend(
            path.file_stem()
                .map(|stem| stem.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_target_or_a_group_of_targets() {
        let root = crate::repository();
        let all = targets(&root, "all").unwrap();
        for (group, names) in GROUPS {
            assert!(
                !all.contains(&(*group).to_owned()),
                "{group} is a target's name"
            );
            for name in *names {
                assert!(all.contains(&(*name).to_owned()), "{name}");
            }
            assert_eq!(targets(&root, group).unwrap(), *names);
        }
        assert_eq!(targets(&root, "lsda").unwrap(), ["lsda"]);
        let error = targets(&root, "lsdb").unwrap_err().to_string();
        assert!(
            error.contains("lsda") && error.contains("dataplane"),
            "{error}"
        );
    }
}
