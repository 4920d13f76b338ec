//! `slackline relayout status` and `explain`.

use std::fmt::Write as _;
use std::path::Path;

use ::relayout::{
    Footprint, KeptProfile, LayoutSummary, ManifestStore, ProcessState, RelayoutStatus,
};
use anyhow::Context as _;
use serde::Serialize;
use tuner::report::percent;

use super::picture;
use crate::done::CommandOutcome;
use crate::output::{message, print};
use crate::state_dir::with_state_dir;
use crate::table::table;

#[derive(Serialize)]
struct Printed<'a> {
    processes: &'a [RelayoutStatus],
}

pub(super) fn run(
    store: &ManifestStore,
    json: bool,
    state_dir: &Path,
) -> anyhow::Result<CommandOutcome> {
    let all = current(store)?;
    if json {
        let printed = Printed { processes: &all };
        print(&(serde_json::to_string_pretty(&printed)? + "\n"))?;
    } else if all.is_empty() {
        message(&format!(
            "No process was looked at yet, as far as {} knows: slackline relayout start --pid PID",
            store.directory().display()
        ));
    } else {
        let mut rows = table(&[
            "process",
            "pid",
            "state",
            "generation",
            "profile",
            "cover",
            "gain",
            "memory",
        ]);
        for status in &all {
            rows.add_row([
                status.name().to_owned(),
                status.pid.to_string(),
                status.state.to_string(),
                status.generation.to_string(),
                profile(status),
                cover(status),
                with_state_dir(&outcome(status), state_dir),
                memory(status),
            ]);
        }
        print(&format!("{rows}\n"))?;
    }
    Ok(CommandOutcome::Positive)
}

/// What is known, with the layout that the manifest says is in force: another command may have
/// switched since.
pub(super) fn current(store: &ManifestStore) -> anyhow::Result<Vec<RelayoutStatus>> {
    let mut all = RelayoutStatus::all(store)?;
    for status in &mut all {
        let manifest = store.load(status.pid, status.start_time)?;
        status.read(manifest.as_ref());
    }
    Ok(all)
}

/// What came of it; else why it runs its original code, or that nobody drives it any more.
fn outcome(status: &RelayoutStatus) -> String {
    let is_half_done = matches!(
        status.state,
        ProcessState::Profiling
            | ProcessState::Optimizing
            | ProcessState::Verifying
            | ProcessState::Reoptimizing
    );
    let is_left = is_half_done && status.by.is_some() && status.driven_by().is_none();
    match gain(status) {
        _ if is_left => {
            "the Slackline that changed it was killed: run `slackline restore`".to_owned()
        }
        // Somebody has switched: what was shown to be better is at hand, and not in force.
        None if status.state == ProcessState::Optimized && status.generation == 0 => {
            "in its original layout, by switch".to_owned()
        }
        Some(gain) => gain,
        None => status.reason.clone().unwrap_or_default(),
    }
}

/// Of the layout in force, where that was shown to be better.
fn gain(status: &RelayoutStatus) -> Option<String> {
    let is_in_force = status.state == ProcessState::Optimized && status.generation != 0;
    let gain = status.gain.as_ref().filter(|_| is_in_force)?;
    Some(format!(
        "{} % [{}, {}] {}",
        percent(gain.ratio),
        percent(gain.low),
        percent(gain.high),
        gain.metric
    ))
}

/// The layout in force, where it is not the original.
fn in_force(status: &RelayoutStatus) -> Option<&LayoutSummary> {
    let layout = status.layout.as_ref();
    layout.filter(|layout| layout.generation == status.generation)
}

/// Whose profile the layout in force was made by.
fn profile(status: &RelayoutStatus) -> String {
    match in_force(status).map(|layout| &layout.kept) {
        None => String::new(),
        Some(None) => "own".to_owned(),
        Some(Some(_)) => "kept".to_owned(),
    }
}

/// When it was made.
fn day(kept: &KeptProfile) -> Option<&str> {
    kept.made.as_deref()?.get(..10)
}

/// Which profile from an earlier process a layout was made by, to be said behind something else;
/// nothing where it was made by its own.
fn origin(layout: &LayoutSummary) -> String {
    match layout.kept.as_ref().map(|kept| (day(kept), &kept.file)) {
        None => String::new(),
        Some((day, file)) => {
            let on = day.map(|day| format!(" on {day}")).unwrap_or_default();
            format!(", by the profile kept{on} ({})", file.display())
        }
    }
}

/// How well the layout in force fits what ran when it was looked at last.
fn cover(status: &RelayoutStatus) -> String {
    in_force(status)
        .and(status.cover)
        .map_or_else(String::new, |fit| {
            let percent = |share: f64| share * 100.0;
            let (low, high) = (percent(fit.low), percent(fit.high));
            let share = format!("{:.0} % [{low:.0}, {high:.0}]", percent(fit.share));
            match fit.is_below() {
                true => format!("{share}: below {:.0} %", percent(fit.least)),
                false => share,
            }
        })
}

fn memory(status: &RelayoutStatus) -> String {
    format!("{:.1} MiB", status.memory_bytes as f64 / f64::from(1 << 20))
}

/// One line on a process, as it goes along.
pub(super) fn line(status: &RelayoutStatus) -> String {
    let mut line = format!("{} {}  {}", status.name(), status.pid, status.state);
    if let Some(reason) = &status.reason {
        let _ = write!(line, ": {reason}");
    } else if status.state == ProcessState::Optimized {
        if let Some(gain) = gain(status) {
            let _ = write!(line, "  {gain}");
        }
        let _ = write!(
            line,
            ", {}, generation {}",
            memory(status),
            status.generation
        );
        line.push_str(&in_force(status).map(origin).unwrap_or_default());
        // Its numbers change with each look; that it no longer fits is worth a line.
        if status.cover.is_some_and(|fit| fit.is_below()) {
            line.push_str(", no longer fits what runs");
        }
    }
    for note in &status.notes {
        let _ = write!(line, "\n  {note}");
    }
    line
}

/// What the code that ran takes, before and after, and which functions it is.
fn footprints(text: &mut String, layout: &LayoutSummary) {
    let mut rows = table(&["the code that ran", "before", "after"]);
    let (before, after) = (&layout.before, &layout.after);
    let mut row = |name: &str, value: &dyn Fn(&Footprint) -> String| {
        rows.add_row([name.to_owned(), value(before), value(after)]);
    };
    row("bytes", &|one| one.bytes.to_string());
    row("lines of 64 bytes", &|one| one.lines.to_string());
    row("pages of 4 KiB", &|one| one.pages.len().to_string());
    row("conditional branches taken", &|one| {
        one.taken_share()
            .map_or_else(String::new, |share| format!("{:.1} %", share * 100.0))
    });
    let _ = writeln!(text, "{rows}");
    let mut rows = table(&["function", "samples", "bytes", "that ran", ""]);
    for top in &layout.top {
        rows.add_row([
            top.name.clone(),
            format!("{:.1} %", top.share * 100.0),
            top.bytes.to_string(),
            top.hot_bytes.to_string(),
            if top.is_moved { "" } else { "left as it is" }.to_owned(),
        ]);
    }
    let _ = writeln!(text, "{rows}");
}

pub(super) fn explain(
    store: &ManifestStore,
    pid: u32,
    json: bool,
    svg: Option<&Path>,
) -> anyhow::Result<CommandOutcome> {
    let all = current(store)?;
    let status = all
        .iter()
        .find(|status| status.pid == pid)
        .with_context(|| format!("process {pid} was not examined, or has ended: slackline relayout status lists the processes"))?;
    if let Some(path) = svg {
        let layout = status.layout.as_ref();
        let layout = layout.with_context(|| format!("process {pid} was never re-laid out"))?;
        let title = format!("{} {pid}, generation {}", status.name(), layout.generation);
        std::fs::write(path, picture::svg(&title, layout))
            .with_context(|| path.display().to_string())?;
    }
    if json {
        print(&(serde_json::to_string_pretty(status)? + "\n"))?;
        return Ok(CommandOutcome::Positive);
    }
    let mut text = line(status) + "\n";
    if in_force(status).is_some()
        && let Some(fit) = status.cover
    {
        let _ = writeln!(
            text,
            "cover: {} of what ran at the last look, by {} samples",
            cover(status),
            fit.samples
        );
    }
    if let Some(layout) = &status.layout {
        let _ = writeln!(
            text,
            "\n{} functions moved, {} bytes of code, {} places patched ({} left out)",
            layout.functions, layout.code_bytes, layout.patches, layout.patches_left_out
        );
        if !layout.top.is_empty() {
            footprints(&mut text, layout);
        }
        if !layout.skipped.is_empty() {
            let mut rows = table(&["left as it is, because", "how many"]);
            for (reason, count) in &layout.skipped {
                rows.add_row([reason.to_string(), count.to_string()]);
            }
            let _ = writeln!(text, "{rows}");
        }
    }
    if let Some(compared) = &status.comparison {
        let mut rows = table(&["new layout over original", "change", "95 %"]);
        let mut row = |name: &str, interval: &paired_stats::Interval| {
            rows.add_row([
                name.to_owned(),
                format!("{} %", percent(interval.estimate)),
                format!("[{}, {}]", percent(interval.low), percent(interval.high)),
            ]);
        };
        row(&compared.metric, &compared.per_cpu_s);
        if let Some(per_user_s) = &compared.per_user_s {
            row("the same per second of user CPU time", per_user_s);
        }
        row("the same per second", &compared.per_s);
        let _ = writeln!(
            text,
            "{rows}\n{} pairs of blocks in {:.0} s; {} threads stood still for {} µs (median), {} µs (worst)",
            compared.blocks.len() / 2,
            compared.seconds,
            compared.threads,
            compared.pause_us_median,
            compared.pause_us_worst
        );
    }
    for (step, seconds) in &status.seconds {
        let _ = writeln!(text, "{step}: {seconds:.1} s");
    }
    let script = store.load(status.pid, status.start_time)?;
    let script = script.map(|manifest| manifest.debugger_script());
    if let Some(script) = script.filter(|script| script.exists()) {
        let _ = writeln!(text, "debugger: gdb -p {pid} -x {}", script.display());
    }
    print(&text)?;
    Ok(CommandOutcome::Positive)
}
