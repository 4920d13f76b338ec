//! `slackline throttle advise`: what to set, by simulation of a service's own jobs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use host::Roots;
use serde::{Deserialize, Serialize};
use throttle::advice::{self, Advice, AdviceInput, CandidateSetting, Prediction, Unreliable};
use throttle::{Limit, LimitedHost, LimitedService};
use tuner::process::Interrupt;

use super::collect::{Collected, Jobs};
use super::target::{Watched, ensure_own_limit, group_of, named};
use super::text::time;
use super::{experiment, page, runtimes, watch};
use crate::done::CommandOutcome;
use crate::output::message;
use crate::table::table;

/// A recording that lost more than this share of its switches says little about demands.
const MISSED_SHARE: f64 = 0.05;

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
    /// Name of the threads whose jobs are timed. By default the pool of several threads that does
    /// most jobs.
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Objective for the 99th percentile of a job's time, in milliseconds. With it, advise also
    /// predicts the load at which the objective holds.
    #[arg(long, value_name = "MS")]
    slo_p99_ms: Option<f64>,
    /// Number of shards like this one that share the load today. With it, advise also says how many
    /// shards, with which quota, would carry the whole load.
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

/// The most CPU time a period, in µs (kernel/sched/sched.h, MAX_BW: 44 bits).
const QUOTA_MAX_US: u64 = (1 << 44) - 1;
/// The most threads of a host (include/linux/threads.h, PID_MAX_LIMIT).
const THREADS_MAX: usize = 4 << 20;
/// Jobs a second, beyond which the simulator takes hours. A choice of this command.
const JOBS_PER_S_MAX: f64 = 1e6;

/// The most CPU time of a job, in µs: an hour, as long as a recording may be.
const DEMAND_MAX_US: f64 = 3.6e9;
/// The longest recording that is taken in, in µs: a day.
const DURATION_MAX_US: f64 = 8.64e10;

/// A service with its limit and host, recorded or described.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Known {
    pub(super) host: LimitedHost,
    pub(super) limit: Limit,
    // A `Recording`, field by field: flattened, it would let misspelt keys pass.
    #[serde(default)]
    duration_us: f64,
    service: LimitedService,
    #[serde(default)]
    latencies_us: Vec<Vec<f64>>,
    #[serde(default)]
    left_out: u64,
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
        (Some(path), _) => (read(path)?, None),
        (None, Some(watched)) => {
            let roots = Roots::default();
            let group = group_of(&roots, watched)?;
            // Others may use it, too: their jobs belong to the recording.
            ensure_own_limit(&roots, &group, "for advice on")?;
            match record(arguments, &group)? {
                Ok(known) => (known, Some(group)),
                Err(done) => return Ok(done),
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
        experiment::write(
            path,
            group,
            &advice,
            &question,
            &experiment::Load { url, rate },
        )?;
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

fn read(path: &Path) -> anyhow::Result<Known> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    // The path of keys leads to the place; a line does not, where all is in one.
    let mut json = serde_json::Deserializer::from_str(&text);
    let known: Known = serde_path_to_error::deserialize(&mut json)
        .with_context(|| format!("{}", path.display()))?;
    json.end().with_context(|| format!("{}", path.display()))?;
    known
        .check()
        .with_context(|| format!("{}", path.display()))?;
    Ok(known)
}

/// Records the group; a signal ends everything.
fn record(arguments: &Arguments, group: &str) -> anyhow::Result<Result<Known, CommandOutcome>> {
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let mut goes_on = |_: &Collected| Ok(interrupt.signal().is_none());
    let seconds = arguments.duration_s;
    message(&format!("Recording {seconds} s of {}…", named(group)));
    let (report, collected) =
        watch::observe_group(group.to_owned(), seconds, Jobs::Recorded, &mut goes_on)?;
    if let Some(signal) = interrupt.signal() {
        return Ok(Err(CommandOutcome::Signal(signal)));
    }
    message(&report.verdict.sentence);
    let mut recording = collected.schedule.recording(collected.end_ns);
    let switches: u64 = report.observed.names.values().map(|by| by.waits).sum();
    let missed = report.observed.gaps + report.lost_events;
    if missed as f64 > MISSED_SHARE * switches as f64 {
        message(&format!(
            "{missed} of about {switches} switches were not seen: the jobs' CPU times are blurred."
        ));
    }
    let limit = report.limit.with_context(|| {
        format!(
            "{} has no CPU quota, nor has a group above it: nothing is throttled",
            named(group)
        )
    })?;
    runtimes::name_worker_settings(&Roots::default(), group, &mut recording.service.pools);
    runtimes::size_go_pools(
        &Roots::default(),
        group,
        &mut recording.service.pools,
        limit.in_cores().unwrap_or(f64::INFINITY),
        report.cpus,
    );
    Ok(Ok(Known {
        host: LimitedHost::new(report.cpus),
        limit,
        duration_us: recording.duration_us,
        service: recording.service,
        latencies_us: recording.latencies_us,
        left_out: recording.left_out,
    }))
}

impl Known {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            (1..=4096).contains(&self.host.cpus),
            "host.cpus must be between 1 and 4096"
        );
        ensure!(
            self.host.tick_us > 0 && self.host.turn_us > 0,
            "host.tick_us and host.turn_us must be above 0"
        );
        ensure!(
            (1000..=1_000_000).contains(&self.limit.period_us),
            "limit.period_us must be between 1000 and 1000000, as the kernel has it"
        );
        let quota_us = self.limit.quota_us.unwrap_or(0);
        ensure!(
            self.limit.quota_us.is_none() || (1000..=QUOTA_MAX_US).contains(&quota_us),
            "limit.quota_us must be between 1000 and {QUOTA_MAX_US}, as the kernel has it"
        );
        ensure!(
            self.limit.burst_us <= quota_us,
            "limit.burst_us may not be above limit.quota_us"
        );
        for (index, pool) in self.service.pools.iter().enumerate() {
            let at = || format!("service.pools[{index}] ({})", pool.name);
            ensure!(
                (1..=THREADS_MAX).contains(&pool.threads),
                "{}: threads must be above 0, and at most {THREADS_MAX}",
                at()
            );
            if let throttle::Work::Batches { every_us, .. } = &pool.work {
                ensure!(*every_us > 0.0, "{}: every_us must be above 0", at());
            }
            ensure!(
                (0.0..=JOBS_PER_S_MAX).contains(&jobs_per_s(&pool.work)),
                "{}: there may be 0 to {JOBS_PER_S_MAX} jobs a second",
                at()
            );
            ensure!(
                has_demands(&pool.work),
                "{}: the CPU time of a job must be between 0 and {DEMAND_MAX_US} µs",
                at()
            );
            if let throttle::Work::Recorded(jobs) = &pool.work {
                ensure!(
                    jobs.iter().all(|job| job.at_us >= 0.0),
                    "{}: at_us counts from the beginning: it must not be below 0",
                    at()
                );
                ensure!(
                    jobs.is_sorted_by(|a, b| a.at_us <= b.at_us),
                    "{}: the jobs must be in order of at_us",
                    at()
                );
                ensure!(
                    self.duration_us > 0.0 && self.duration_us <= DURATION_MAX_US,
                    "{}: recorded jobs need duration_us, above 0 and at most {DURATION_MAX_US}",
                    at()
                );
            }
        }
        Ok(())
    }

    pub(super) fn question(
        &self,
        pool: Option<&str>,
        objective_ms: Option<f64>,
    ) -> anyhow::Result<AdviceInput<'_>> {
        let pools = &self.service.pools;
        let names = || {
            let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
            names.join(", ")
        };
        let jobs = |index: &usize| match &pools[*index].work {
            throttle::Work::Recorded(jobs) => jobs.len() as f64,
            described => jobs_per_s(described),
        };
        let is_runtimes =
            |pool: &throttle::ThreadPool| throttle::RuntimePool::of(&pool.name).is_some();
        let index = match pool {
            Some(name) => pools
                .iter()
                .position(|pool| pool.name == name)
                .with_context(|| format!("no pool is named {name:?}; there are {}", names()))?,
            // Requests are what the threads of a pool do most often; a single thread hands them
            // out.
            None => (0..pools.len())
                .max_by(|a, b| {
                    let key =
                        |index: &usize| pools[*index].threads > 1 && !is_runtimes(&pools[*index]);
                    key(a).cmp(&key(b)).then(jobs(a).total_cmp(&jobs(b)))
                })
                .context("no thread of the group did anything: is it under load?")?,
        };
        Ok(AdviceInput {
            service: &self.service,
            duration_us: self.duration_us,
            latencies_us: self.latencies_us.get(index).map_or(&[], Vec::as_slice),
            host: self.host,
            limit: self.limit,
            pool: index,
            objective_us: objective_ms.map(|ms| 1000.0 * ms),
            shards: None,
        })
    }
}

/// Of a described pool; a recorded one has what it had.
fn jobs_per_s(work: &throttle::Work) -> f64 {
    match work {
        throttle::Work::Recorded(_) => 0.0,
        throttle::Work::Random { per_s, .. } => *per_s,
        throttle::Work::Batches { every_us, jobs, .. } => *jobs as f64 * 1e6 / every_us,
    }
}

/// Whether each of a pool's jobs has a CPU time that can be simulated.
fn has_demands(work: &throttle::Work) -> bool {
    let is_demand = |us: f64| (0.0..=DEMAND_MAX_US).contains(&us);
    match work {
        throttle::Work::Recorded(jobs) => jobs.iter().all(|job| is_demand(job.cpu_us)),
        throttle::Work::Random { demand, .. } | throttle::Work::Batches { demand, .. } => {
            is_demand(demand.mean_us())
        }
    }
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
                "The model is off by {} today.",
                tuner::report::change(error)
            )
        },
    );
    match advice.unreliable {
        Some(Unreliable::Saturated) => lines.push(
            "The service uses about all the CPU time that it may have. The model cannot say how it would do otherwise: requests \
             that wait come when they are let in, not when they were due."
                .to_owned(),
        ),
        Some(Unreliable::ModelIsOff) => {
            lines.push(format!("{off} The model does not describe this service."));
        }
        None => {}
    }
    if is_off && !is_all {
        lines.push(
            "Nothing is recommended from it. --all prints what it says all the same. To see what helps, compare under load: \
             slackline throttle loadtest --before … --after …."
                .to_owned(),
        );
        return lines;
    }
    if is_off {
        lines.push("What follows says what to try first under load, and no more.".to_owned());
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
        None => lines.push(format!(
            "No change at the same quota is shown to make {name} faster (simulated)."
        )),
    }
    for (name, then, now) in resized(advice) {
        lines.push(format!(
            "The price: 99 % of the jobs of {name} itself end within {} then, {} now; what waits for them, as requests do for a \
             collector that stops all threads, is not in the model.",
            time(then),
            time(now)
        ));
    }
    if let Some(lower) = &advice.give_back {
        lines.push(format!(
            "Could be given back: {} is no slower than today in the model ({} of the 99th percentile).",
            lower.setting.changes(question),
            change(lower),
        ));
    }
    if !is_off {
        lines.push(off);
    }
    lines
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
