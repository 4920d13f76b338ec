//! `slackline throttle watch`.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use host::{Hierarchies, Roots, ServiceGroup, TightestQuota};
use serde::Serialize;
use throttle::{Counters, Limit, Observed, Verdict};
use tuner::process::Interrupt;

use super::collect::{self, Collected, Jobs};
use super::requests::{Latency, OfPort, Requests};
use super::{live, page, runtimes, text};
use crate::Done;
use crate::agent::names::container;

/// A day.
const LONGEST_S: f64 = 86_400.0;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    watched: Watched,
    #[command(flatten)]
    of_port: OfPort,
    /// How long to watch, in seconds. By default 10; with --live, until you press q.
    #[arg(long, value_name = "S")]
    duration_s: Option<f64>,
    /// Show the measurements in the terminal while they run. Keys: r starts the counts from zero, q
    /// ends.
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// Write the results to this file as JSON. `-` prints them instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the results to one HTML file, with its pictures inside.
    #[arg(long, value_name = "FILE", value_parser = crate::file_to_write)]
    html: Option<PathBuf>,
}

/// Whom to watch.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Watched {
    /// The service, given by the id of one of its processes. The whole control group of the process
    /// counts.
    #[arg(long, value_parser = process_number)]
    pid: Option<u32>,
    /// The service, given by its control group: the path below the root of the hierarchy, or the
    /// full path. `/` is the whole host.
    #[arg(long, value_name = "PATH", value_parser = not_empty)]
    cgroup: Option<String>,
    /// The service, given by its systemd unit, such as `nginx.service` or `nginx`.
    #[arg(long, value_parser = not_empty)]
    unit: Option<String>,
    /// The service, given by its container's id: the full id, or the first digits as `docker ps`
    /// prints them.
    #[arg(long, value_name = "ID", value_parser = not_empty)]
    container: Option<String>,
}

/// `--pid`. It is often `$(pidof NAME)`, which is empty where nothing runs, and several numbers
/// where several processes do.
pub(crate) fn process_number(text: &str) -> Result<u32, String> {
    let numbers = text.split_whitespace().count();
    match text.trim().parse() {
        Ok(pid) => Ok(pid),
        _ if numbers == 0 => {
            Err("the number of a process is missing: does the program run?".to_owned())
        }
        _ if numbers > 1 => Err(format!("give one process at a time: these are {numbers}")),
        _ => Err("the number of a process is meant, such as 4711".to_owned()),
    }
}

/// A variable of a script that is not set names nobody: it must not stand for the root group, which
/// is the whole host.
fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("it names nobody: is a variable not set?".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

/// Everything that a watch saw.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) group: String,
    pub(super) cpus: usize,
    pub(super) limit: Option<Limit>,
    /// The group that has the limit: itself or an ancestor.
    pub(super) limited_by: Option<String>,
    pub(super) counters: Option<Counters>,
    pub(super) observed: Observed,
    pub(super) lost_events: u64,
    /// Slackline's own CPU time over the time of the watch.
    pub(super) own_cpu_cores: f64,
    pub(super) verdict: Verdict,
    /// The latency of the requests on a port, where one is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency: Option<Latency>,
    /// A sentence for each runtime that runs more threads at once than the quota has cores.
    pub(super) runtimes: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Done> {
    let otherwise_s = if arguments.live { LONGEST_S } else { 10.0 };
    let duration_s = arguments.duration_s.unwrap_or(otherwise_s);
    anyhow::ensure!(
        (0.1..=LONGEST_S).contains(&duration_s),
        "--duration-s must be between 0.1 and 86400"
    );
    anyhow::ensure!(
        !arguments.live || std::io::stdout().is_terminal(),
        "--live needs a terminal, and standard output is none"
    );
    crate::ensure_writable(&[arguments.json.as_deref(), arguments.html.as_deref()])?;
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let report = if arguments.live {
        let group = group_of(&Roots::default(), &arguments.watched)?;
        live::run(&group, duration_s, &arguments.of_port, &interrupt)?
    } else {
        observe_with(
            &arguments.watched,
            &arguments.of_port,
            duration_s,
            &interrupt,
        )?
    };
    let text = text::report(&report);
    crate::publish(arguments.json.as_deref(), &report, &text, "Everything")?;
    if let Some(file) = &arguments.html {
        let title = format!("CPU throttling of {}", named(&report.group));
        page::write(file, &title, &page::watch(&report))?;
    }
    Ok(match interrupt.signal() {
        Some(signal) => Done::Signal(signal),
        None => Done::Positive,
    })
}

/// Watches for so many seconds, or until a signal comes.
pub(super) fn observe(
    watched: &Watched,
    duration_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    observe_with(watched, &OfPort::default(), duration_s, interrupt)
}

/// The same, with the latency of a port's requests.
fn observe_with(
    watched: &Watched,
    of_port: &OfPort,
    duration_s: f64,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let roots = Roots::default();
    let group = group_of(&roots, watched)?;
    let mut requests = Requests::watch(of_port, &group)?;
    let started = |pid| host::start_time(&roots, pid).ok();
    let began = watched.pid.map(started);
    let mut goes_on = |seen: &Collected| {
        if let Some(requests) = &mut requests {
            requests.note(seen);
        }
        Ok(interrupt.signal().is_none())
    };
    let (mut report, collected) = observe_group(group, duration_s, Jobs::Summed, &mut goes_on)?;
    report.latency = requests.map(|mut requests| {
        requests.note(&collected);
        requests.report()
    });
    if let (Some(pid), Some(began)) = (watched.pid, began)
        && started(pid) != began
    {
        crate::message(&format!(
            "Process {pid} ended meanwhile, and its number may be another's by now; what follows is of its control group."
        ));
    }
    Ok(report)
}

/// Watches a group, and hands over what was collected beside what is said of it.
pub(super) fn observe_group(
    group: String,
    duration_s: f64,
    jobs: Jobs,
    goes_on: &mut dyn FnMut(&Collected) -> anyhow::Result<bool>,
) -> anyhow::Result<(Report, Collected)> {
    let mut watch = Watch::begin(group)?;
    let duration = Duration::from_secs_f64(duration_s);
    let collected = collect::collect(&watch.group, watch.limited_by(), duration, jobs, goes_on)?;
    Ok((watch.report(&collected), collected))
}

/// A watch that has begun: what does not come from the tracepoints.
pub(super) struct Watch {
    roots: Roots,
    pub(super) group: String,
    tightest: Option<TightestQuota>,
    own_before_s: f64,
    cpus: usize,
    /// Found once: it means reading whole programs.
    runtimes: Option<Vec<String>>,
}

impl Watch {
    pub(super) fn begin(group: String) -> anyhow::Result<Self> {
        let roots = Roots::default();
        Ok(Self {
            tightest: host::tightest_quota(&roots, &group)?,
            own_before_s: host::own_cpu_s(),
            cpus: host::online_cpus(&roots)?.len(),
            roots,
            group,
            runtimes: None,
        })
    }

    /// The group whose counters tell of throttling.
    pub(super) fn limited_by(&self) -> &str {
        self.tightest
            .as_ref()
            .map_or(&self.group, |tightest| &tightest.group)
    }

    /// What is to be said by now.
    pub(super) fn report(&mut self, collected: &Collected) -> Report {
        let counters = collected.counters;
        let observed = collected.schedule.clone().finish(collected.end_ns);
        let limit = self.tightest.as_ref().map(limit_of);
        let quota = limit.and_then(|limit| limit.in_cores());
        let (group, cpus) = (self.group.clone(), self.cpus);
        let runtimes = self.runtimes.get_or_insert_with(|| {
            quota.map_or_else(Vec::new, |cores| {
                runtimes::ignoring(&self.roots, &group, &observed, cores, cpus)
            })
        });
        let runtimes = runtimes.clone();
        Report {
            runtimes,
            latency: None,
            verdict: throttle::judge(
                &observed,
                limit.as_ref(),
                Some(self.limited_by()).filter(|by| *by != self.group),
                counters.as_ref(),
                cpus,
            ),
            own_cpu_cores: (host::own_cpu_s() - self.own_before_s)
                / (observed.duration_us / 1e6).max(0.001),
            limited_by: self
                .tightest
                .as_ref()
                .map(|tightest| tightest.group.clone()),
            observed,
            lost_events: collected.lost,
            group,
            cpus,
            limit,
            counters,
        }
    }
}

/// That no other group's limit is the one that counts for this one; what is done `to` a limit is
/// done to its own.
pub(super) fn ensure_own_limit(roots: &Roots, group: &str, to: &str) -> anyhow::Result<()> {
    let tightest = host::tightest_quota(roots, group)?;
    match tightest.filter(|tightest| tightest.group != group) {
        None => Ok(()),
        Some(tightest) => anyhow::bail!(
            "what limits {} is {}, {:.2} cores: {to} that one, give --cgroup {}",
            named(group),
            named(&tightest.group),
            tightest.quota.cores(),
            tightest.group
        ),
    }
}

/// A group's name for people.
pub(super) fn named(group: &str) -> &str {
    if group.is_empty() {
        "the root group"
    } else {
        group
    }
}

pub(crate) fn group_of(roots: &Roots, target: &Watched) -> anyhow::Result<String> {
    if let Some(pid) = target.pid {
        return Ok(host::group_of(roots, pid)?);
    }
    if let Some(unit) = &target.unit {
        return group_of_unit(roots, unit);
    }
    if let Some(id) = &target.container {
        return group_of_container(roots, id);
    }
    let path = target
        .cgroup
        .as_deref()
        .context("give one of --pid, --cgroup, --unit and --container")?;
    host::group_of_path(roots, path).map_err(|error| match error {
        // Its path in another controller's hierarchy, most likely.
        host::HostError::Absent { path: at, .. }
            if Path::new(path).starts_with(roots.sys("fs/cgroup")) && at != Path::new(path) =>
        {
            anyhow::anyhow!(
                "{path} is not in the hierarchy of the cpu controller: name the group from the root of that on, such as \
                 --cgroup system.slice/nginx.service"
            )
        }
        host::HostError::Absent { path, .. } => anyhow::anyhow!(
            "there is no control group {}: is the service running, and in this hierarchy?",
            path.display()
        ),
        error => error.into(),
    })
}

/// A unit's name as systemctl(1) takes it: without an ending it is a service.
fn full_unit_name(unit: &str) -> String {
    // systemd.unit(5).
    const ENDINGS: [&str; 11] = [
        "service",
        "socket",
        "device",
        "mount",
        "automount",
        "swap",
        "target",
        "path",
        "timer",
        "slice",
        "scope",
    ];
    match unit.rsplit_once('.') {
        Some((_, ending)) if ENDINGS.contains(&ending) => unit.to_owned(),
        _ => format!("{unit}.service"),
    }
}

/// The group of a systemd unit: the directory of that name, wherever systemd has put its slice.
fn group_of_unit(roots: &Roots, unit: &str) -> anyhow::Result<String> {
    let unit = &full_unit_name(unit);
    let name_of = |group: &str| {
        let name = group.rsplit('/').next()?;
        (name == unit).then(|| name.to_owned())
    };
    let pattern = match unit.contains(['*', '?', '[']) {
        true => " Patterns are not taken: name one unit.",
        false => "",
    };
    let none = format!(
        "no control group is named {unit} in the hierarchy of the cpu controller: is the unit active?{pattern}"
    );
    // As where systemd runs in a container too, or of a user.
    only_group(roots, &name_of, none, |first, second| {
        format!(
            "several control groups are named {unit}, {} and {} among them: give --cgroup",
            first.group, second.group
        )
    })
}

fn group_of_container(roots: &Roots, id: &str) -> anyhow::Result<String> {
    let is_it = |short: &&str| short.starts_with(id) || id.starts_with(short);
    let name_of = |group: &str| {
        let short = container(group.rsplit('/').next()?).filter(is_it)?;
        Some(short.to_owned())
    };
    let none = format!("no control group is that of a container {id}: does it run on this host?");
    only_group(roots, &name_of, none, |first, second| {
        format!(
            "{id} is the beginning of several containers' ids, {} and {} among them: give more of it",
            first.service, second.service
        )
    })
}

/// The group that `name_of` has a name for; an error in these words where there is none, or another
/// one.
fn only_group(
    roots: &Roots,
    name_of: &dyn Fn(&str) -> Option<String>,
    none: String,
    several: impl FnOnce(&ServiceGroup, &ServiceGroup) -> String,
) -> anyhow::Result<String> {
    let found = host::service_groups(&Hierarchies::of(roots), name_of)?;
    match found.as_slice() {
        [one] => Ok(one.group.clone()),
        [] => anyhow::bail!(none),
        [first, second, ..] => anyhow::bail!(several(first, second)),
    }
}

fn limit_of(tightest: &TightestQuota) -> Limit {
    Limit {
        quota_us: tightest.quota.quota_us,
        period_us: tightest.quota.period_us,
        burst_us: tightest.quota.burst_us.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_without_an_ending_is_a_service() {
        for (given, full) in [
            ("shadow-rust@config", "shadow-rust@config.service"),
            ("nginx", "nginx.service"),
            ("user@1000.service", "user@1000.service"),
            ("a.b", "a.b.service"),
            ("my\\x2dslice.slice", "my\\x2dslice.slice"),
            ("session-3.scope", "session-3.scope"),
        ] {
            assert_eq!(full_unit_name(given), full);
        }
    }
}
