//! `slackline promotions`: what was promoted on this host, and the way back.

use std::path::Path;

use anyhow::Context as _;
use bayes_opt::Configuration;
use host::{BootSetting, Roots};
use tuner::live::{Changed, Live};
use tuner::promotions::{PromotionRecord, Standing, UndoOutcome, UndoneChange};

use crate::{Done, message, print};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List what `tune --promote` and `apply` have put in force, whether it still is, and what a
    /// boot would reset. What `slackline serve` promoted is rolled back by `slackline experiments`.
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Put back what was in force before a promotion, but for what somebody else has changed since.
    Undo {
        /// The promotion's number, as `ls` prints it.
        number: usize,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<Done> {
    let roots = Roots::default();
    match command {
        Command::Ls { json } => {
            let records = tuner::promotions::list(state_dir)?;
            if *json {
                let listed: Vec<Listed> = records.iter().map(|it| Listed::of(it, &roots)).collect();
                print(&(serde_json::to_string_pretty(&listed)? + "\n"))?;
            } else if records.is_empty() {
                message("Nothing was promoted with this state directory.");
            } else {
                let text: Vec<String> = records.iter().map(|it| text(it, &roots)).collect();
                print(&text.join("\n"))?;
            }
            Ok(Done::Positive)
        }
        Command::Undo { number, json } => {
            let changes = tuner::promotions::undo(state_dir, &roots, *number)?;
            if *json {
                print(&(serde_json::to_string_pretty(&changes)? + "\n"))?;
            } else {
                let lines: Vec<String> = changes.iter().map(undone_line).collect();
                print(&(lines.join("\n") + "\n"))?;
            }
            Ok(match changes.iter().all(|it| it.outcome.is_undone()) {
                true => Done::Positive,
                false => Done::RestoreFailed,
            })
        }
    }
}

#[derive(serde::Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    record: &'a PromotionRecord,
    is_in_force: bool,
    /// Each knob and file with what has become of it.
    standing: Vec<(String, Standing)>,
    /// What sets the knobs again at boot: file and line.
    at_boot: Vec<(String, String)>,
}

impl<'a> Listed<'a> {
    fn of(record: &'a PromotionRecord, roots: &Roots) -> Self {
        let settings = record.boot_settings(roots).into_iter();
        Self {
            record,
            is_in_force: record.is_in_force(roots),
            standing: standings(record, roots),
            at_boot: settings
                .map(|it| (it.file.display().to_string(), it.line))
                .collect(),
        }
    }
}

fn standings(record: &PromotionRecord, roots: &Roots) -> Vec<(String, Standing)> {
    let knobs = record.knobs.iter();
    let knobs = knobs.map(|it| (it.knob.to_string(), it.standing(roots)));
    let files = record.files.iter();
    let files = files.map(|it| (it.path.display().to_string(), it.standing()));
    knobs.chain(files).collect()
}

/// One promotion in the list.
fn text(record: &PromotionRecord, roots: &Roots) -> String {
    let state = match (&record.undone, record.is_in_force(roots)) {
        (Some(at), _) => format!("undone {at:.0}"),
        (None, true) => "in force".to_owned(),
        (None, false) => "not in force any more".to_owned(),
    };
    let mut lines = vec![format!(
        "{}  {}  promoted {:.0}: {state}",
        record.number, record.experiment, record.at
    )];
    for knob in &record.knobs {
        let said = said(&knob.standing(roots));
        lines.push(format!(
            "   {} = {}, was {}{said}",
            knob.knob, knob.new, knob.old
        ));
    }
    for file in &record.files {
        let before = match &file.kept {
            Some(kept) => format!("what was in it is kept in {}", kept.display()),
            None => "there was no such file".to_owned(),
        };
        let said = said(&file.standing());
        lines.push(format!("   {}, {before}{said}", file.path.display()));
    }
    if record.is_in_force(roots) {
        lines.extend(
            boot_lines(&record.boot_settings(roots))
                .into_iter()
                .map(|it| format!("   {it}")),
        );
    }
    lines.join("\n") + "\n"
}

fn said(standing: &Standing) -> String {
    match standing {
        Standing::InForce => String::new(),
        Standing::Former => "; has its former value again".to_owned(),
        Standing::Other(found) => format!("; now {found}"),
        Standing::Absent => "; not there any more".to_owned(),
    }
}

fn undone_line(change: &UndoneChange) -> String {
    let subject = &change.subject;
    match &change.outcome {
        UndoOutcome::Restored { value: Some(value) } => format!("{subject}: restored to {value}"),
        UndoOutcome::Restored { value: None } => format!("{subject}: restored"),
        UndoOutcome::AlreadyFormer => format!("{subject}: already as it was"),
        UndoOutcome::LeftAlone { found } => {
            format!("{subject}: left alone: somebody else has changed it to {found}")
        }
        UndoOutcome::Told => format!("{subject}: done"),
        UndoOutcome::NotTold { reason } => format!("{subject}: FAILED: {reason}"),
    }
}

/// What a boot resets, and the lines to write where that is not wanted.
pub(crate) fn boot_lines(settings: &[BootSetting]) -> Vec<String> {
    if settings.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["A boot resets these. To keep them, write:".to_owned()];
    let mut last = None;
    for setting in settings {
        if last != Some(&setting.file) {
            lines.push(format!("  {}", setting.file.display()));
            lines.extend(setting.section.map(|section| format!("    {section}")));
            last = Some(&setting.file);
        }
        lines.extend(setting.line.lines().map(|line| format!("    {line}")));
    }
    lines
}

/// Puts a configuration in force for good, listed as a promotion, and says what a boot would reset.
pub(crate) fn put_in_force(
    live: &mut Live<'_>,
    configuration: &Configuration,
) -> anyhow::Result<Changed> {
    let promoted = live.promote_listed(configuration);
    // After a refusal, what was applied so far is taken back; else there is nothing to take back.
    live.restore()?;
    let changed = promoted?;
    if !changed.done.is_empty() {
        message(&format!("Promoted: {}", changed.done.join(", ")));
    }
    if let Some(listed) = &changed.listed {
        for line in boot_lines(&listed.boot_settings(&Roots::default())) {
            message(&line);
        }
        message(&format!(
            "`slackline promotions undo {}` takes it back.",
            listed.number
        ));
    }
    Ok(changed)
}

/// What of the list of promotions is in force, a line each.
pub(crate) fn in_force(state_dir: &Path, roots: &Roots) -> anyhow::Result<Vec<String>> {
    let records = tuner::promotions::list(state_dir).context("the list of promotions")?;
    let in_force = records.iter().filter(|it| it.is_in_force(roots));
    Ok(in_force
        .map(|it| {
            let knobs = it.knobs.iter();
            let knobs = knobs.map(|it| format!("{} = {}, was {}", it.knob, it.new, it.old));
            let files = it.files.iter().map(|it| it.path.display().to_string());
            let what: Vec<String> = knobs.chain(files).collect();
            format!(
                "promotion {} ({}): {}",
                it.number,
                it.experiment,
                what.join("; ")
            )
        })
        .collect())
}
