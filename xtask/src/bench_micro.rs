//! `cargo xtask bench micro`: what the pure parts cost, by criterion, beside the baseline in the
//! tree.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::cargo::cargo;
use crate::step;

/// Where the baseline lies.
const BASELINE: &str = "docs/results/micro.json";
/// Where cargo builds the benches, and criterion keeps its figures.
const TARGET: &str = "target/benches";
/// A difference above this is named in the table. Criterion's own noise threshold is lower, but the
/// baseline is of another day.
const WORTH_NAMING: f64 = 0.1;

/// The baseline: medians, and the machine on which they were measured.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Baseline {
    cpu: String,
    /// The middle and the 95 % interval of each bench, in nanoseconds.
    median_ns: BTreeMap<String, [f64; 3]>,
}

/// The part of criterion's `estimates.json` that is read.
#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
    confidence_interval: Bounds,
}

#[derive(Deserialize)]
struct Bounds {
    lower_bound: f64,
    upper_bound: f64,
}

/// Runs the benches whose names contain `only`, or all. With `is_kept` the figures become the
/// baseline.
///
/// # Errors
/// The benches do not build, or their figures cannot be read.
pub(crate) fn run(root: &Path, only: Option<&str>, is_kept: bool) -> anyhow::Result<ExitCode> {
    let target = root.join(TARGET);
    let kept = target.join("criterion");
    if kept.exists() {
        std::fs::remove_dir_all(&kept)?;
    }
    let mut bench = cargo();
    bench
        .args(["bench", "--manifest-path", "benches/Cargo.toml"])
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "--noplot"])
        .args(only)
        .env("CRITERION_HOME", &kept)
        .current_dir(root);
    if !step::run("bench micro", &mut bench)? {
        bail!("the benches failed");
    }
    let mut now = Baseline {
        cpu: cpu()?,
        median_ns: BTreeMap::new(),
    };
    read(&kept, &mut now.median_ns)?;
    let path = root.join(BASELINE);
    let before = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| BASELINE.to_owned())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Baseline {
            cpu: now.cpu.clone(),
            median_ns: BTreeMap::new(),
        },
        Err(error) => return Err(error).with_context(|| BASELINE.to_owned()),
    };
    println!("\n{}", table(&before, &now));
    if is_kept {
        let mut text = serde_json::to_string_pretty(&now)?;
        text.push('\n');
        std::fs::write(&path, text)?;
        println!("These figures are the baseline now: {BASELINE}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The processor, as the kernel names it.
fn cpu() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    Ok(name.map_or("unknown", |(_, name)| name.trim()).to_owned())
}

/// Reads the figures of all benches below a folder.
fn read(folder: &Path, into: &mut BTreeMap<String, [f64; 3]>) -> anyhow::Result<()> {
    let benchmark = folder.join("new/benchmark.json");
    if benchmark.is_file() {
        let about: serde_json::Value = serde_json::from_slice(&std::fs::read(&benchmark)?)?;
        let name = about["full_id"].as_str().context("a bench has no name")?;
        let estimates = std::fs::read(folder.join("new/estimates.json"))?;
        let Estimates { median } = serde_json::from_slice(&estimates)?;
        let bounds = median.confidence_interval;
        into.insert(
            name.to_owned(),
            [
                median.point_estimate,
                bounds.lower_bound,
                bounds.upper_bound,
            ],
        );
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(&path, into)?;
        }
    }
    Ok(())
}

/// Each bench: before, now, and what a difference means.
fn table(before: &Baseline, now: &Baseline) -> String {
    let mut lines = vec![format!(
        "{:<42} {:>12} {:>12} {:>7}",
        "bench", "baseline", "now", "ratio"
    )];
    let is_same_cpu = before.cpu == now.cpu;
    for (name, [middle, low, high]) in &now.median_ns {
        let Some([earlier, earlier_low, earlier_high]) = before.median_ns.get(name) else {
            lines.push(format!("{name:<42} {:>12} {:>12}", "none", time(*middle)));
            continue;
        };
        let ratio = middle / earlier;
        let is_apart = low > earlier_high || high < earlier_low;
        let is_large = (ratio - 1.0).abs() > WORTH_NAMING;
        let word = match is_apart && is_large && is_same_cpu {
            true if ratio > 1.0 => "  slower",
            true => "  faster",
            false => "",
        };
        lines.push(format!(
            "{name:<42} {:>12} {:>12} {ratio:>7.2}{word}",
            time(*earlier),
            time(*middle)
        ));
    }
    if !is_same_cpu {
        lines.push(format!(
            "The baseline is of another processor ({}): compare two commits on this machine instead.",
            before.cpu
        ));
    }
    lines.join("\n")
}

/// A time with its unit.
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.1} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(cpu: &str, median_ns: [f64; 3]) -> Baseline {
        Baseline {
            cpu: cpu.into(),
            median_ns: BTreeMap::from([("ask".to_owned(), median_ns)]),
        }
    }

    #[test]
    fn a_difference_is_named_where_intervals_are_apart_and_the_processor_is_the_same() {
        let before = baseline("a", [100.0, 98.0, 102.0]);
        let with = |cpu, now| table(&before, &baseline(cpu, now));
        assert!(with("a", [150.0, 148.0, 152.0]).contains("slower"));
        assert!(with("a", [50.0, 48.0, 52.0]).contains("faster"));
        assert!(!with("a", [150.0, 101.0, 200.0]).contains("slower"));
        assert!(!with("a", [104.0, 103.0, 105.0]).contains("slower"));
        let other = with("b", [150.0, 148.0, 152.0]);
        assert!(!other.contains("slower") && other.contains("another processor"));
    }

    #[test]
    fn the_figures_of_criterion_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("ask/30x8/new");
        std::fs::create_dir_all(&new).unwrap();
        std::fs::write(new.join("benchmark.json"), r#"{"full_id": "ask/30x8"}"#).unwrap();
        let estimates = r#"{"median": {"point_estimate": 2.0,
            "confidence_interval": {"lower_bound": 1.0, "upper_bound": 3.0}}}"#;
        std::fs::write(new.join("estimates.json"), estimates).unwrap();
        let mut found = BTreeMap::new();
        read(folder.path(), &mut found).unwrap();
        assert_eq!(found["ask/30x8"], [2.0, 1.0, 3.0]);
    }
}
