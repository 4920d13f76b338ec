//! `slackline promotions`: what was promoted on this host, and the way back.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use bayes_opt::Configuration;
use coordinator::store::{Location, Store};
use host::{BootSetting, Roots};
use tuner::live::{Changed, Changes, Live};
use tuner::promotions::{PromotionRecord, Standing};
use tuner::spec::CheckedSpec;

use crate::done::CommandOutcome;
use crate::output::{message, print};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List what is in force on this host from `tune --promote`, from `apply`, and from the
    /// experiments of a `slackline serve` with this state directory. The list says what a reboot
    /// would reset.
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Restore what was in force before a promotion by `tune --promote` or `apply`. Files and knobs
    /// that somebody else has changed since stay as they are. For an experiment, use `slackline
    /// experiments rollback`. Use this command for an experiment only if the server's database has
    /// lost the experiment.
    Undo {
        /// The promotion's number, as `ls` prints it.
        number: usize,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Forget the files and knobs that an undo could not restore. They stay as they are, and the
    /// promotion counts as undone. Without --yes, only list them (exit code 1).
    ForgetRest {
        /// The promotion's number, as `ls` prints it.
        number: usize,
        /// Forget them. Without this option they are only listed.
        #[arg(long)]
        yes: bool,
    },
}

pub(crate) fn run(command: &Command, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let roots = Roots::default();
    match command {
        Command::Ls { json } => {
            let mut records = tuner::promotions::list(state_dir)?;
            let served = match served(state_dir) {
                Ok(served) => served,
                Err(why) => {
                    message(&why);
                    Vec::new()
                }
            };
            records.retain(|it| known_to_server(it, &served).is_none());
            if *json {
                let listed = records.iter().map(|it| Listed::of(it, &roots));
                let listed = listed.map(serde_json::to_value);
                let mut listed = listed.collect::<Result<Vec<_>, _>>()?;
                for it in &served {
                    listed.push(serde_json::to_value(it)?);
                }
                print(&(serde_json::to_string_pretty(&listed)? + "\n"))?;
            } else if records.is_empty() && served.is_empty() {
                message("Nothing is in force now.");
            } else {
                let of_commands = records.iter().map(|it| text(it, &roots));
                let text: Vec<String> =
                    of_commands.chain(served.iter().map(Served::text)).collect();
                print(&text.join("\n"))?;
            }
            Ok(CommandOutcome::Positive)
        }
        Command::Undo { number, json } => {
            let records = tuner::promotions::list(state_dir)?;
            let record = records.iter().find(|it| it.number == *number);
            let served = served(state_dir).unwrap_or_default();
            if let Some(by) = record.and_then(|it| known_to_server(it, &served)) {
                anyhow::bail!(
                    "experiment {0} made this promotion. Roll it back through the server: `slackline experiments rollback {0}`",
                    by.id
                );
            }
            let changes = tuner::promotions::undo(state_dir, &roots, *number)?;
            if *json {
                print(&(serde_json::to_string_pretty(&changes)? + "\n"))?;
            } else {
                let lines: Vec<String> = changes.iter().map(ToString::to_string).collect();
                print(&(lines.join("\n") + "\n"))?;
            }
            if changes.iter().all(|it| it.outcome.is_undone()) {
                return Ok(CommandOutcome::Positive);
            }
            message(&format!(
                "promotion {number} is undone in part: the lines above say what could not be restored. Remove the cause, then undo the \
                 promotion again. If a file or knob is gone for good, forget it: `slackline promotions forget-rest {number}`"
            ));
            Ok(CommandOutcome::RestoreFailed)
        }
        Command::ForgetRest { number, yes } => {
            if !yes {
                let rest = tuner::promotions::rest(state_dir, *number)?.join(", ");
                message(&format!(
                    "Slackline would no longer try to restore: {rest}. Nothing is forgotten yet. To forget these files and knobs, run \
                     `slackline promotions forget-rest {number} --yes`"
                ));
                return Ok(CommandOutcome::Negative);
            }
            let rest = tuner::promotions::forget_rest(state_dir, *number)?.join(", ");
            message(&format!(
                "the rest of the undo of promotion {number} is forgotten; left as it is: {rest}"
            ));
            Ok(CommandOutcome::Positive)
        }
    }
}

/// Which of these, the promotions that the server's database has, a promotion in the list is.
/// `None`: a command has made it, or an experiment that the database has lost.
fn known_to_server<'a>(record: &PromotionRecord, served: &'a [Served]) -> Option<&'a Served> {
    let by = record.served.as_ref()?;
    served.iter().find(|it| it.id == by.experiment)
}

/// A promotion by an experiment of `slackline serve`.
#[derive(serde::Serialize)]
struct Served {
    by: &'static str,
    id: i64,
    experiment: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<jiff::Timestamp>,
    is_in_force: bool,
    /// False: it was interrupted, and what it has changed is not known.
    is_complete: bool,
    #[serde(flatten)]
    done: Changes,
    /// What the rollback could not restore, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    not_restored: Vec<String>,
}

impl Served {
    /// One whose rollback could not restore everything.
    fn in_part(id: i64, experiment: String, not_restored: Vec<String>) -> Self {
        Self {
            by: "serve",
            id,
            experiment,
            at: None,
            is_in_force: false,
            is_complete: true,
            done: Changes::default(),
            not_restored,
        }
    }

    fn text(&self) -> String {
        let (id, name) = (self.id, &self.experiment);
        let Some(at) = self.at.filter(|_| self.not_restored.is_empty()) else {
            return format!(
                "serve  experiment {id} ({name}) is rolled back in part. Not restored: {}.\n   Remove the cause, then roll back the rest: \
                 `slackline experiments rollback {id}`\n",
                self.not_restored.join(", ")
            );
        };
        let mut lines = vec![format!(
            "serve  experiment {id} ({name})  promoted {at:.0}: in force"
        )];
        if !self.is_complete {
            lines.push("   The promotion was interrupted: roll it back.".into());
        }
        lines.extend(self.done.sentences().iter().map(|it| format!("   {it}")));
        lines.push(format!(
            "   `slackline experiments rollback {id}` undoes the promotion."
        ));
        lines.join("\n") + "\n"
    }
}

/// What the server with this state directory has promoted. Its store is asked, so that a server
/// that is down hides nothing; one with a database elsewhere has to answer itself.
fn served(state_dir: &Path) -> Result<Vec<Served>, String> {
    let file = state_dir.join("slackline.db");
    if !file.exists() {
        return served_elsewhere(state_dir);
    }
    let location = Location::parse(&file.display().to_string());
    let promoted = || {
        let store = Store::open(&location)?;
        let mut found = Vec::new();
        for summary in store.experiments()? {
            if !summary.not_restored.is_empty() {
                found.push(Served::in_part(
                    summary.id,
                    summary.name,
                    summary.not_restored,
                ));
                continue;
            }
            if !summary.promoted {
                continue;
            }
            let promotion = store.experiment(summary.id)?.promotion;
            found.extend(promotion.map(|it| Served {
                by: "serve",
                id: summary.id,
                experiment: summary.name,
                at: Some(it.at),
                is_in_force: true,
                is_complete: it.is_complete,
                done: it.done,
                not_restored: Vec::new(),
            }));
        }
        Ok::<_, coordinator::Error>(found)
    };
    promoted().map_err(|error| {
        format!("What `slackline serve` has promoted is not known: {error}. `slackline experiments ls` shows it.")
    })
}

/// The same of a server whose store is not in the state directory.
fn served_elsewhere(state_dir: &Path) -> Result<Vec<Served>, String> {
    // Without the file, no server has run with this directory.
    if dashboard::Access::read(state_dir).is_err() {
        return Ok(Vec::new());
    }
    let answer = crate::experiments::promotions(state_dir).map_err(|error| {
        format!(
            "What `slackline serve` has promoted is not known: {}.",
            crate::output::error_chain(&error)
        )
    })?;
    let each = answer["experiments"].as_array().into_iter().flatten();
    let each = each.map(|it| Served {
        by: "serve",
        id: it["id"].as_i64().unwrap_or(0),
        experiment: it["name"].as_str().unwrap_or_default().to_owned(),
        at: it["at"].as_str().and_then(|at| at.parse().ok()),
        is_in_force: true,
        is_complete: it["is_complete"] == true,
        done: crate::experiments::done(it),
        not_restored: Vec::new(),
    });
    let in_part = answer["not_restored"].as_array().into_iter().flatten();
    let in_part = in_part.map(|it| {
        Served::in_part(
            it["id"].as_i64().unwrap_or(0),
            it["name"].as_str().unwrap_or_default().to_owned(),
            crate::experiments::texts(&it["what"]),
        )
    });
    Ok(each.chain(in_part).collect())
}

#[derive(serde::Serialize)]
struct Listed<'a> {
    by: &'static str,
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
            by: "command",
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
    if let Some(by) = &record.served {
        lines.push(format!(
            "   Experiment {} of `slackline serve` promoted it. The server's database has lost the record of this promotion.",
            by.experiment
        ));
    }
    for knob in &record.knobs {
        let said = said(&knob.standing(roots));
        lines.push(format!(
            "   {} = {}, was {}{said}",
            knob.knob, knob.new, knob.old
        ));
    }
    for file in &record.files {
        let before = match &file.kept {
            Some(kept) => format!("the former contents are kept in {}", kept.display()),
            None => "there was no such file".to_owned(),
        };
        let said = said(&file.standing());
        lines.push(format!("   {}, {before}{said}", file.path.display()));
    }
    let left = match record.undone {
        Some(_) => "left as it is",
        None => "the last undo could not restore",
    };
    lines.extend(record.left.iter().map(|it| format!("   {left}: {it}")));
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

/// What a boot resets, and the lines to write where that is not wanted.
pub(crate) fn boot_lines(settings: &[BootSetting]) -> Vec<String> {
    if settings.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["A reboot resets these. To keep them, write:".to_owned()];
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
        message(&format!("Promoted. {}", changed.done.sentences().join(" ")));
    }
    if let Some(listed) = &changed.listed {
        for line in boot_lines(&listed.boot_settings(&Roots::default())) {
            message(&line);
        }
        message(&format!(
            "`slackline promotions undo {}` undoes the promotion.",
            listed.number
        ));
    }
    Ok(changed)
}

/// The promotions in force that set a knob or a file of this specification: a sentence each, with
/// the command that rolls it back. The control has these values wherever it takes the live ones.
fn measured_by(spec: &CheckedSpec, state_dir: &Path) -> Vec<String> {
    let roots = Roots::default();
    let command = crate::state_dir::shell_command(state_dir);
    let mut by_server = served(state_dir).unwrap_or_else(|why| {
        message(&format!("warning: {why}"));
        Vec::new()
    });
    by_server.retain(|it| it.is_in_force);
    let in_force = tuner::promotions::list(state_dir).and_then(|mut records| {
        records.retain(|it| it.served.is_none() && it.is_in_force(&roots));
        let by_experiments = tuner::promotions::in_force_by_experiments(state_dir, &roots)?;
        Ok([records, by_experiments].concat())
    });
    let in_force = in_force.unwrap_or_else(|error| {
        message(&format!("warning: {error}"));
        Vec::new()
    });
    let sentences = in_force.into_iter().filter_map(|record| {
        // What the server knows is rolled back by the server.
        let (what, undo) = match known_to_server(&record, &by_server) {
            Some(by) => (
                format!("the winner of experiment {} ({})", by.id, by.experiment),
                format!("{command} experiments rollback {}", by.id),
            ),
            None => (
                format!("promotion {} ({})", record.number, record.experiment),
                format!("{command} promotions undo {}", record.number),
            ),
        };
        Before { what, record, undo }.sentence(spec)
    });
    sentences.collect()
}

/// A promotion that is in force before an experiment begins.
struct Before {
    what: String,
    record: PromotionRecord,
    undo: String,
}

impl Before {
    /// What of it a specification measures; `None` where that is nothing.
    fn sentence(&self, spec: &CheckedSpec) -> Option<String> {
        let control = spec.space.default_configuration();
        let mut measured = Vec::new();
        let mut of_control = Vec::new();
        for promoted in &self.record.knobs {
            let mut knobs = spec.knobs.iter();
            let own = knobs.find(|(_, binding)| binding.knob == promoted.knob);
            let Some((name, binding)) = own else { continue };
            measured.push(promoted.to_string());
            let value = control.get(name);
            let value = value.and_then(|it| tuner::knob_text(binding, it, &BTreeMap::new()).ok());
            if value.as_deref() == Some(promoted.new.as_str()) {
                of_control.push(promoted.knob.to_string());
            }
        }
        let files = self.record.files.iter().filter(|file| {
            let mut own = spec.target().files.iter();
            own.any(|it| host::is_same_file(it.path.as_ref(), &file.path))
        });
        measured.extend(files.map(ToString::to_string));
        if measured.is_empty() {
            return None;
        }
        let control = match of_control.is_empty() {
            true => "The control has other values, which the specification gives.".to_owned(),
            false => format!(
                "The control uses the promoted values of {}. So each result is a change against the promotion, not against the host before it.",
                of_control.join(", ")
            ),
        };
        Some(format!(
            "{} is in force on this host: {}. {control} To measure against what the host had before, run `{}` first.",
            self.what,
            measured.join("; "),
            self.undo
        ))
    }
}

/// Warns of the promotions in force that set a knob or a file of this specification, and returns
/// the warnings.
pub(crate) fn warn_of_measured(spec: &CheckedSpec, state_dir: &Path) -> Vec<String> {
    let before = measured_by(spec, state_dir);
    for sentence in &before {
        message(&format!("warning: {sentence}"));
    }
    before
}

/// What of the list of promotions is in force, a line each.
pub(crate) fn in_force(state_dir: &Path, roots: &Roots) -> anyhow::Result<Vec<String>> {
    let records = tuner::promotions::list(state_dir).context("the list of promotions")?;
    let in_force = records.iter().filter(|it| it.is_in_force(roots));
    Ok(in_force
        .map(|it| {
            let what = it.changed().join("; ");
            format!("promotion {} ({}): {what}", it.number, it.experiment)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use host::Knob;
    use tuner::promotions::PromotedKnob;

    use super::*;

    #[test]
    fn a_promotion_is_named_where_the_specification_measures_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/sys/vm")).unwrap();
        std::fs::write(dir.path().join("proc/sys/vm/swappiness"), "10\n").unwrap();
        let roots = Roots::at(dir.path());
        let spec = |control: &str| {
            let text = format!(
                r#"parameters = [{{ name = "swappiness", type = "int", low = 0, high = 100, sysctl = "vm.swappiness"{control} }}]
target = {{ start = ["sleep", "9"] }}
workload = {{ command = ["wrk"], parse = "wrk" }}
objective = {{ metric = "latency_p99_us" }}"#
            );
            tuner::spec::context(&roots)
                .check(text, "x.toml".as_ref())
                .unwrap()
        };
        let before = |knob: &str| {
            let knob = PromotedKnob {
                knob: Knob::Sysctl(knob.to_owned()),
                old: "60".to_owned(),
                new: "10".to_owned(),
            };
            Before {
                what: "the winner of experiment 3 (web)".to_owned(),
                record: PromotionRecord {
                    number: 1,
                    experiment: "web".to_owned(),
                    served: None,
                    at: jiff::Timestamp::UNIX_EPOCH,
                    knobs: vec![knob],
                    files: Vec::new(),
                    reapply: None,
                    undone: None,
                    left: Vec::new(),
                },
                undo: "slackline experiments rollback 3".to_owned(),
            }
        };
        let live = before("vm.swappiness").sentence(&spec("")).unwrap();
        assert_eq!(
            live,
            "the winner of experiment 3 (web) is in force on this host: vm.swappiness = 10, was 60. The control uses the promoted \
             values of vm.swappiness. So each result is a change against the promotion, not against the host before it. To measure \
             against what the host had before, run `slackline experiments rollback 3` first."
        );
        let given = before("vm.swappiness").sentence(&spec(", default = 60"));
        let given = given.unwrap();
        assert!(given.contains("The control has other values"), "{given}");
        let other = before("net.core.somaxconn");
        assert_eq!(other.sentence(&spec("")), None);
    }
}
