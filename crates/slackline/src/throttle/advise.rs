//! `slackline throttle advise`: what to set, by simulation of a service's own jobs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use throttle::JobQueue;
use throttle::advice::{self, Advice, AdviceInput, CandidateSetting, Prediction, Unreliable};
use throttle_watch::{ExperimentLoad, KnownService, PoolExperiment, ThrottleError};
use tuner::process::Interrupt;

use super::page;
use super::target::Watched;
use super::text::time;
use crate::done::CommandOutcome;
use crate::output::message;
use crate::table::table;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Option<Watched>,
    /// Read a recording that --save wrote, or a description in the same format, instead of a
    /// running service.
    #[arg(long, value_name = "FILE", conflicts_with = "Watched")]
    service: Option<PathBuf>,
    /// How long to record, in seconds. Record under the load that matters.
    #[arg(long, default_value_t = 30.0, value_name = "S")]
    duration_s: f64,
    /// Name of the threads whose jobs are timed. By default the pool that does the most jobs, among
    /// the pools with several threads.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Objective for the 99th percentile of a job's time, in milliseconds. With this option, advise
    /// also predicts the load at which the objective holds.
    #[arg(long, value_name = "MS")]
    slo_p99_ms: Option<f64>,
    /// Number of instances (shards) of the service that share the load today, including this one.
    /// With this option, advise also says how many instances, with which quota, would carry the
    /// whole load.
    #[arg(long, requires = "slo_p99_ms", value_name = "N")]
    shards: Option<usize>,
    /// Print more: the model's results even if the model does not fit the service, and settings for
    /// which the model shows no difference.
    #[arg(long)]
    all: bool,
    /// Write the recording to this file, for --service.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write a specification for `slackline tune` to this file. The experiment searches pool sizes
    /// under the quota, with a load on --url.
    #[arg(long, value_name = "FILE", conflicts_with = "service", requires_all = ["url", "rate"])]
    experiment: Option<PathBuf>,
    /// The URL that the experiment loads.
    #[arg(long, requires = "experiment", value_parser = crate::load::url)]
    url: Option<String>,
    /// Requests a second that the experiment sends.
    #[arg(long, requires = "experiment", value_name = "N")]
    rate: Option<f64>,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write an HTML page with two histograms of cores in use: today's and the recommended
    /// settings', both from the model.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    ensure!(
        arguments.duration_s >= 1.0 && arguments.duration_s <= 3600.0,
        "--duration-s must be between 1 and 3600"
    );
    ensure!(
        arguments
            .slo_p99_ms
            .is_none_or(|ms| ms > 0.0 && ms.is_finite()),
        "--slo-p99-ms must be above 0"
    );
    ensure!(arguments.shards != Some(0), "--shards must be above 0");
    crate::output::ensure_writable(&[
        arguments.save.as_deref(),
        arguments.experiment.as_deref(),
        arguments.json.as_deref(),
        arguments.html.as_deref(),
    ])?;
    let (known, group) = match (&arguments.service, &arguments.watched) {
        (Some(path), _) => (KnownService::read(path)?, None),
        (None, Some(watched)) => {
            let target = watched.target()?;
            let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
            let seconds = arguments.duration_s;
            match KnownService::record(&target, seconds, &interrupt, &message) {
                Err(ThrottleError::Stopped { signal }) => {
                    return Ok(CommandOutcome::Signal(signal));
                }
                recorded => recorded.map(|(known, group)| (known, Some(group)))?,
            }
        }
        (None, None) => {
            anyhow::bail!("give one of --pid, --cgroup, --unit, --container and --service")
        }
    };
    if let Some(path) = &arguments.save {
        let json = serde_json::to_string(&known)? + "\n";
        std::fs::write(path, json).with_context(|| format!("{}", path.display()))?;
        message(&format!("The recording is in {}.", path.display()));
    }
    let question = AdviceInput {
        shards: arguments.shards,
        ..known.question(arguments.pool.as_deref(), arguments.slo_p99_ms)?
    };
    let advice = advice::advise(&question)
        .context("there is no CPU quota: nothing is throttled, and there is nothing to advise")?;
    crate::output::publish(
        arguments.json.as_deref(),
        &advice,
        &text(&advice, &question, arguments.all),
        "Everything",
    )?;
    if let Some(file) = &arguments.html {
        page::write(
            file,
            &format!("What to set for {}", advice.pool),
            &html(&advice, &question, arguments.all),
        )?;
    }
    if let (Some(path), Some(group), Some(url), Some(rate)) = (
        &arguments.experiment,
        &group,
        &arguments.url,
        arguments.rate,
    ) {
        let load = ExperimentLoad { url, rate };
        let experiment = PoolExperiment::of(group, &advice, &question, &load)?;
        write_experiment(path, &experiment)?;
    }
    Ok(
        if advice.unreliable.is_none()
            && (advice.recommended.is_some() || advice.give_back.is_some())
        {
            CommandOutcome::Positive
        } else {
            CommandOutcome::Negative
        },
    )
}

/// Writes the specification, and says what is left to fill in.
fn write_experiment(path: &Path, experiment: &PoolExperiment) -> anyhow::Result<()> {
    std::fs::write(path, &experiment.text).with_context(|| format!("{}", path.display()))?;
    message(&format!(
        "The experiment is in {}: run slackline check on it, then slackline tune.",
        path.display()
    ));
    for (pool, parameter) in &experiment.unset_sizes {
        message(&format!(
            "The command of the service does not set the number of {pool} threads: put {{{parameter}}} where the service reads this \
             number."
        ));
    }
    if !experiment.is_port_in_command {
        message(
            "The command of the service does not contain the port of the URL, so both sides would use one port. Put {port} where the \
             service reads its port.",
        );
    }
    Ok(())
}

fn text(advice: &Advice, question: &AdviceInput<'_>, is_all: bool) -> String {
    if advice.unreliable.is_some() && !is_all {
        return findings(advice, question, is_all).join("\n") + "\n";
    }
    let mut rows = table(&HEAD);
    for row in rows_of(advice, question, is_all) {
        rows.add_row(row);
    }
    let mut text = format!(
        "{}\n\n{rows}\n{OF_TODAYS}\n",
        findings(advice, question, is_all).join("\n")
    );
    if !advice.sharding.is_empty() {
        let mut rows = table(&SHARDING_HEAD);
        for row in sharding_rows(advice, question) {
            rows.add_row(row);
        }
        text.push_str(&format!("\n{SHARDING}:\n{rows}\n"));
    }
    text + "\nConfirm it under load: slackline throttle apply, or throttle loadtest --before … --after ….\n"
}

/// The same as a page, with the model's histograms.
fn html(advice: &Advice, question: &AdviceInput<'_>, is_all: bool) -> String {
    let mut html = page::paragraphs(&findings(advice, question, is_all));
    if advice.unreliable.is_some() && !is_all {
        return html;
    }
    html.push_str("<h2>Cores in use, windows of 10 ms, simulated</h2>\n");
    let mut sides = vec![("today", &advice.today)];
    sides.extend(advice.recommended.iter().map(|best| ("recommended", best)));
    let recommended = advice.recommended.as_ref().map(|best| &best.setting);
    let pools = advice
        .pools()
        .filter(|pools| Some(&pools.setting) != recommended);
    sides.extend(pools.map(|pools| ("by pools alone", pools)));
    html.push_str(&page::predictions(&sides));
    html.push_str("<h2>What was tried</h2>\n");
    html.push_str(&page::table(&HEAD, rows_of(advice, question, is_all)));
    html.push_str(&page::paragraphs(&[OF_TODAYS.to_owned()]));
    if !advice.sharding.is_empty() {
        html.push_str(&format!("<h2>{SHARDING}</h2>\n"));
        html.push_str(&page::table(
            &SHARDING_HEAD,
            sharding_rows(advice, question),
        ));
    }
    html
}

/// What it comes to, a sentence each.
fn findings(advice: &Advice, question: &AdviceInput<'_>, is_all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &advice.pool;
    let is_off = advice.unreliable.is_some();
    let off = advice.model_error.as_ref().map_or_else(
        || "There is no recording to compare the model with.".to_owned(),
        |error| {
            format!(
                "The model differs from today's measurement by {}.",
                tuner::report::change(error)
            )
        },
    );
    match advice.unreliable {
        Some(Unreliable::Saturated) => lines.push(
            "The service uses almost all the CPU time of its quota. Then the model cannot predict other settings, \
             because waiting requests reach the service later than they were due."
                .to_owned(),
        ),
        Some(Unreliable::ModelIsOff) => {
            lines.push(format!("{off} The model does not describe this service."));
        }
        None => {}
    }
    if is_off && !is_all {
        lines.push(
            "So nothing is recommended. --all prints the results of the model. To see what helps, compare settings under load: \
             slackline throttle loadtest --before … --after …."
                .to_owned(),
        );
        return lines;
    }
    if is_off {
        lines.push(
            "Use the following results only to decide what to try first under load.".to_owned(),
        );
    }
    let verb = if is_off { "To try" } else { "Recommended" };
    match &advice.recommended {
        Some(best) => lines.push(format!(
            "{verb}: {}; 99 % of all jobs of {name} end within {} then, {} now: {} (simulated).",
            best.setting.changes(question),
            time(best.p99_us),
            time(advice.today.p99_us),
            change(best),
        )),
        None => {
            lines.push(format!(
                "No change at the same quota is shown to make {name} faster (simulated). 99 % of its jobs end within {}. If clients wait \
                 much longer, they wait for something other than CPU time.",
                time(jobs_p99_us(advice, question))
            ));
        }
    }
    match question.service.pools[question.pool].queue {
        JobQueue::Shared => {}
        JobQueue::PerProcess => lines.push(format!(
            "The processes of {name} hold several connections each. So in the model, a request waits for the process of its connection, \
             even while another one is idle."
        )),
        JobQueue::PerConnection => lines.push(format!(
            "Each process of {name} serves one connection as long as it is open. So advise tries no fewer processes: connections would \
             wait for one another."
        )),
    }
    for (name, then, now) in resized(advice) {
        lines.push(format!(
            "The price: 99 % of the jobs of {name} itself end within {} then, {} now. The model does not include what waits for \
             these jobs, such as requests while a collector stops all threads.",
            time(then),
            time(now)
        ));
    }
    if let Some(lower) = &advice.give_back {
        lines.push(format!(
            "CPU could be given back: with {}, the jobs are not slower than today in the model ({} of the 99th percentile).",
            lower.setting.changes(question),
            change(lower),
        ));
    }
    if !is_off {
        lines.push(off);
    }
    lines
}

/// The 99th percentile of the timed jobs: as recorded, or of a described service as simulated.
fn jobs_p99_us(advice: &Advice, question: &AdviceInput<'_>) -> f64 {
    paired_stats::quantile(question.latencies_us, advice::QUANTILE).unwrap_or(advice.today.p99_us)
}

/// Pools other than the timed one that the recommendation makes slower, then and now.
fn resized(advice: &Advice) -> impl Iterator<Item = (&String, f64, f64)> {
    let best = advice.recommended.as_ref();
    let names = best
        .into_iter()
        .flat_map(|best| best.setting.threads.keys());
    names.filter_map(move |name| {
        let then = *best?.pools_p99_us.get(name)?;
        let now = *advice.today.pools_p99_us.get(name)?;
        (*name != advice.pool && then > now).then_some((name, then, now))
    })
}

const HEAD: [&str; 5] = [
    "setting",
    "p99 of a job",
    "of today's",
    "periods throttled",
    "load within the objective",
];

/// Said below [`rows_of`]: the two columns do not divide to each other.
const OF_TODAYS: &str = "p99 is of all jobs together; \"of today's\" is the geometric mean over five parts, with its 95 % interval.";

/// Settings of which the model shows neither that they are better nor that they are worse are left
/// out, unless all are asked for.
fn rows_of(
    advice: &Advice,
    question: &AdviceInput<'_>,
    is_all: bool,
) -> impl Iterator<Item = Vec<String>> {
    let verb = if advice.unreliable.is_some() {
        "to try: "
    } else {
        "recommended: "
    };
    let says_something = move |prediction: &&Prediction| {
        let ratio = prediction.ratio.as_ref();
        is_all || ratio.is_some_and(|ratio| ratio.low > 1.0 || ratio.high < 1.0)
    };
    let named: Vec<(&str, &Prediction)> = std::iter::once(("today: ", &advice.today))
        .chain(advice.recommended.as_ref().map(|best| (verb, best)))
        .chain(
            advice
                .give_back
                .as_ref()
                .map(|lower| ("could be given back: ", lower)),
        )
        .collect();
    let settings: Vec<&CandidateSetting> = named.iter().map(|(_, of)| &of.setting).collect();
    let others = advice
        .tried
        .iter()
        .filter(move |tried| !settings.contains(&&tried.setting))
        .filter(says_something)
        .map(|tried| ("", tried));
    named.into_iter().chain(others).map(|(name, prediction)| {
        vec![
            format!("{name}{}", prediction.setting.changes(question)),
            time(prediction.p99_us),
            change(prediction),
            format!("{:.0} %", 100.0 * prediction.throttled_share),
            prediction
                .load_within_objective
                .map_or("–".to_owned(), load),
        ]
    })
}

const SHARDING: &str =
    "The whole load in shards, each with the most that it takes within the objective (no headroom)";
const SHARDING_HEAD: [&str; 4] = ["each", "shards", "cores in all", "load of each"];

fn sharding_rows(advice: &Advice, question: &AdviceInput<'_>) -> impl Iterator<Item = Vec<String>> {
    advice.sharding.iter().map(|sharding| {
        let each = sharding.each.load_within_objective.unwrap_or(0.0);
        vec![
            sharding.each.setting.changes(question),
            sharding.shards.to_string(),
            format!("{:.1}", sharding.cores),
            load(each),
        ]
    })
}

fn load(load: f64) -> String {
    let at_least = if load < advice::LOAD_MAX {
        ""
    } else {
        "at least "
    };
    format!("{at_least}{load:.2} × today's")
}

fn change(prediction: &Prediction) -> String {
    prediction
        .ratio
        .as_ref()
        .map_or("–".to_owned(), tuner::report::change)
}
