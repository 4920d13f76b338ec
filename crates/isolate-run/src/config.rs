//! The configuration: services with their objectives and latency sources, best-effort groups, and
//! the policy.
//!
//! ```toml
//! [service]
//! unit = "memcached.service"
//! objective = { p99_ms = 5 }
//! latency = { wire = { port = 11211 } }
//!
//! [[best_effort]]
//! unit = "batch.slice"
//!
//! [policy]
//! name = "slackline"
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use experiment_spec::Source;
use experiment_spec::SpecError;
use isolation::PolicySettings;
use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use wire_latency::SourceSpec;

use crate::distinct::{self, Named};
use crate::error::IsolateError;
use crate::form::{
    check_cgroup, check_command, check_container, check_name, check_pid, check_shell_command,
    check_source, check_unit, rounded,
};
use crate::origin::Origin;
use crate::policy_config::PolicyConfig;

/// A percentile's objective is judged over so many seconds by default (Heracles polls every 15 s).
const WINDOW_S: f64 = 15.0;
/// Groups that one host can have: beyond it a step takes longer than its period.
const GROUPS_MAX: usize = 1000;
/// The limit of an objective, in milliseconds: from the accuracy of the sources to an hour, beyond
/// which nobody waits for an answer.
const OBJECTIVE_MS: RangeInclusive<f64> = 0.001..=3_600_000.0;
/// Digits after the point of a percentile. The 99.9999th stands on a million requests.
const PERCENTILE_DECIMALS_MAX: usize = 4;
/// No machine answers more requests per second.
const REQUESTS_PER_S_MAX: f64 = 1e9;

/// What the file says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct File {
    /// The latency-critical service, or a list of them.
    service: OneOrMore,
    /// The best-effort groups. If there is none, the policies `slackline` and `autothrottle` lower
    /// the service's own CPU quota.
    #[serde(default)]
    best_effort: Vec<BestEffort>,
    /// The policy: how the machine is shared.
    #[serde(default)]
    policy: PolicyConfig,
}

/// One service or several.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
enum OneOrMore {
    One(Box<Service>),
    More(Vec<Service>),
}

impl<'de> Deserialize<'de> for OneOrMore {
    /// By hand, as an untagged enum would not say which key is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a service, or a list of services")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OneOrMore, A::Error> {
                let service = Service::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OneOrMore::One(Box::new(service)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMore, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMore::More)
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// A latency-critical service. Name it by exactly one of `unit`, `cgroup`, `container` and `pid`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// The name in reports. By default the value of `unit`, `cgroup` or `container`, or `pid` and
    /// the number.
    #[serde(default)]
    pub name: String,
    /// A systemd unit.
    pub unit: Option<String>,
    /// The path of a control group, below the root of the hierarchy.
    pub cgroup: Option<String>,
    /// A container's id: the full id, or its first twelve digits.
    pub container: Option<String>,
    /// A process id.
    pub pid: Option<u32>,
    /// The latency objective, such as `{ p99_ms = 5 }`: the limit for a percentile, in
    /// milliseconds, 0.001 to 3,600,000. The percentile is at least 50 and below 100, with at most
    /// four decimals. `window_s` is the time over which the percentile is taken, in seconds: 1 to
    /// 600, 15 by default.
    pub objective: BTreeMap<String, f64>,
    /// Where the latency of the requests is read. Every service needs it.
    pub latency: Option<SourceSpec>,
    /// Requests per second at the peak load. `heracles` decides by the present load as a share of
    /// the peak load. `autothrottle`, and `slackline` without best-effort groups, follow changes of
    /// this share. Without this key, these policies take the service's CPU use for its load.
    pub peak_requests_per_s: Option<f64>,
}

/// Best-effort work. Name it by exactly one of `unit`, `cgroup`, `container`, `pid` and `command`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BestEffort {
    /// The name in reports. By default the value of `unit` or `container`, the last part of the
    /// path in `cgroup`, `pid` and the number, or the program of `command` without its directories.
    #[serde(default)]
    pub name: String,
    /// A systemd unit.
    pub unit: Option<String>,
    /// The path of a control group, below the root of the hierarchy.
    pub cgroup: Option<String>,
    /// A container's id: the full id, or its first twelve digits.
    pub container: Option<String>,
    /// A process id. The process and its children are moved into a group of their own, and back at
    /// the end.
    pub pid: Option<u32>,
    /// A command and its arguments. `isolate` starts the command in a group of its own, and starts
    /// it again when it ends. Processes that the command leaves in the group are ended.
    pub command: Option<Vec<String>>,
    /// How the report measures the work done. By default in CPU seconds.
    pub progress: Option<WorkProgress>,
}

/// How the work done by best-effort work is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Progress")]
pub struct WorkProgress {
    /// A shell command. The last number that it prints is the number of units of work done since
    /// the start.
    pub command: String,
}

/// An objective, understood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyObjective {
    /// 0 to 100.
    pub percentile: f64,
    /// The latency that the percentile has to stay below.
    pub latency_ms: f64,
    /// The window that it is judged over.
    pub window_s: f64,
}

impl Service {
    /// The key that names it.
    fn key(&self) -> &'static str {
        match (&self.unit, &self.cgroup, &self.container) {
            (Some(_), ..) => "unit",
            (_, Some(_), _) => "cgroup",
            (.., Some(_)) => "container",
            _ => "pid",
        }
    }
}

impl BestEffort {
    /// The key that names it.
    pub(crate) fn key(&self) -> &'static str {
        match (&self.unit, &self.cgroup, &self.container, self.pid) {
            (Some(_), ..) => "unit",
            (_, Some(_), ..) => "cgroup",
            (_, _, Some(_), _) => "container",
            (.., Some(_)) => "pid",
            _ => "command",
        }
    }
}

/// A configuration, understood and checked against itself.
#[derive(Clone, Debug, PartialEq)]
pub struct IsolationConfig {
    /// Where the keys stand.
    pub(crate) origin: Origin,
    /// The services with their objectives and sources.
    pub services: Vec<(Service, LatencyObjective, SourceSpec)>,
    /// The best-effort groups.
    pub best_effort: Vec<BestEffort>,
    /// The policy.
    pub policy: PolicyConfig,
}

impl IsolationConfig {
    /// Reads a file: JSON where its name ends so, else TOML.
    ///
    /// # Errors
    /// Each names file, line and key.
    pub fn read(path: &Path) -> Result<Self, SpecError> {
        let source = Source::read(path)?;
        let file: File = source.parse()?;
        Self::understand(source, file)
    }

    fn understand(source: Source, file: File) -> Result<Self, SpecError> {
        let (list, is_list) = match file.service {
            OneOrMore::One(service) => (vec![*service], false),
            OneOrMore::More(list) => (list, true),
        };
        let origin = Origin::new(source, is_list);
        if list.is_empty() {
            return Err(origin.error("service", "name at least one service"));
        }
        if file.best_effort.len() > GROUPS_MAX {
            let why = format!("at most {GROUPS_MAX} groups; join them under one parent group");
            return Err(origin.error("best_effort", why));
        }
        let services = list.into_iter().enumerate();
        let services = services.map(|(index, service)| {
            let at = origin.service(index);
            understood_service(&origin, &at, service)
        });
        let services = services.collect::<Result<Vec<_>, _>>()?;
        let best_effort = file.best_effort.into_iter().enumerate();
        let best_effort = best_effort.map(|(index, work)| {
            let at = format!("best_effort[{index}]");
            understood_work(&origin, &at, work)
        });
        let best_effort = best_effort.collect::<Result<Vec<_>, _>>()?;
        let config = Self {
            origin,
            services,
            best_effort,
            policy: file.policy,
        };
        distinct::check(config.origin.source(), &config.named())?;
        config.check_names()?;
        config.policy.check(config.origin.source())?;
        Ok(config)
    }

    /// What of the host the entries name.
    fn named(&self) -> Vec<Named> {
        let text = |pid: Option<u32>| pid.map(|pid| format!("pid {pid}"));
        let services = self.services.iter().enumerate().map(|(index, (it, ..))| {
            let by = [&it.unit, &it.cgroup, &it.container, &text(it.pid)].map(Option::clone);
            Named::of(&self.origin.service(index), &by)
        });
        let work = self.best_effort.iter().enumerate().map(|(index, it)| {
            let by = [&it.unit, &it.cgroup, &it.container, &text(it.pid)].map(Option::clone);
            Named::of(&format!("best_effort[{index}]"), &by)
        });
        services.chain(work).flatten().collect()
    }

    /// Each name is of one service or one group.
    fn check_names(&self) -> Result<(), SpecError> {
        let services = self.services.iter().enumerate().map(|(index, service)| {
            let at = self.origin.service(index);
            (at, &service.0.name)
        });
        let groups = self.best_effort.iter().enumerate();
        let groups = groups.map(|(index, work)| (format!("best_effort[{index}]"), &work.name));
        let names: Vec<(String, &String)> = services.chain(groups).collect();
        for (index, (at, name)) in names.iter().enumerate() {
            if names[..index].iter().any(|(_, other)| other == name) {
                let why = format!(
                    "another service or best-effort group also has the name {name:?}: choose a name"
                );
                return Err(self.origin.error(&format!("{at}.name"), why));
            }
        }
        Ok(())
    }

    /// An error of this host about a service, with the place of the key that names the service.
    pub(crate) fn about_service(&self, index: usize, error: IsolateError) -> IsolateError {
        let at = self.origin.service(index);
        let key = self.services.get(index).map_or("pid", |it| it.0.key());
        self.origin.because_of(&format!("{at}.{key}"), error)
    }

    /// An error of this host about best-effort work, with the place of the key that names the work.
    pub(crate) fn about_work(&self, index: usize, error: IsolateError) -> IsolateError {
        let key = self.best_effort.get(index).map_or("", BestEffort::key);
        let key = format!("best_effort[{index}].{key}");
        self.origin.because_of(&key, error)
    }

    /// An error of this host about a service's source, with the place of the key that is its cause.
    pub(crate) fn about_source(&self, index: usize, error: IsolateError) -> IsolateError {
        let of_source = match &error {
            IsolateError::Source { source, .. } => Some(source),
            _ => None,
        };
        let key = self.key_of_source(index, of_source);
        self.origin.because_of(&key, error)
    }

    /// The key of a service's source, and of the part of the source that an error is about.
    pub(crate) fn key_of_source(
        &self,
        index: usize,
        error: Option<&wire_latency::Error>,
    ) -> String {
        let source = self.services.get(index).map(|(.., source)| source);
        let below = match (source, error) {
            (_, Some(wire_latency::Error::Spec(wrong))) => wrong.key.as_str(),
            (Some(SourceSpec::Wire(wire)), Some(wire_latency::Error::Namespace { .. }))
                if wire.pid.is_some() =>
            {
                "wire.pid"
            }
            (Some(SourceSpec::Push(push)), Some(_)) if push.udp.is_some() => "push.udp",
            (Some(SourceSpec::Push(_)), Some(_)) => "push.unix",
            (Some(SourceSpec::Wire(_)), _) => "wire",
            (Some(SourceSpec::Scrape(_)), _) => "scrape",
            (Some(SourceSpec::Prometheus(_)), _) => "prometheus",
            (Some(SourceSpec::Command(_)), _) => "command",
            (Some(SourceSpec::Push(_)), _) => "push",
            (None, _) => "",
        };
        format!("{}.latency.{below}", self.origin.service(index))
    }

    /// The controller's settings.
    #[must_use]
    pub fn policy_settings(&self) -> PolicySettings {
        PolicySettings {
            policy: self.policy.name,
            fixed: self.policy.fixed.clone(),
            suppress_share: self.policy.suppress_percent / 100.0,
        }
    }
}

/// A service with its name, its objective and its source.
fn understood_service(
    origin: &Origin,
    at: &str,
    mut service: Service,
) -> Result<(Service, LatencyObjective, SourceSpec), SpecError> {
    let wrong = |key: &str, why: String| origin.error(&format!("{at}.{key}"), why);
    let by = [
        by_text("unit", &service.unit, check_unit),
        by_text("cgroup", &service.cgroup, check_cgroup),
        by_text("container", &service.container, check_container),
        by_pid(service.pid),
    ];
    let found_by = one_of(origin, at, by, "unit, cgroup, container and pid")?;
    if service.name.is_empty() {
        service.name = found_by;
    } else {
        check_name(&service.name).map_err(|why| wrong("name", why))?;
    }
    let objective = objective(origin, &format!("{at}.objective"), &service.objective)?;
    let Some(latency) = service.latency.clone() else {
        let why = "an objective needs a source: latency = { wire = { port = … } }, or command, push, scrape, prometheus";
        return Err(origin.error(&format!("{at}.latency"), why));
    };
    latency
        .check()
        .map_err(|error| origin.error(&format!("{at}.latency.{}", error.key), error.why))?;
    check_source(&latency)
        .map_err(|(key, why)| origin.error(&format!("{at}.latency.{key}"), why))?;
    let is_rate = |rate: f64| rate > 0.0 && rate <= REQUESTS_PER_S_MAX;
    if !service.peak_requests_per_s.is_none_or(is_rate) {
        let why = format!("must be above 0 and at most {REQUESTS_PER_S_MAX}");
        return Err(wrong("peak_requests_per_s", why));
    }
    Ok((service, objective, latency))
}

/// Best-effort work with its name.
fn understood_work(
    origin: &Origin,
    at: &str,
    mut work: BestEffort,
) -> Result<BestEffort, SpecError> {
    let wrong = |key: &str, why: String| origin.error(&format!("{at}.{key}"), why);
    let program = work.command.as_ref().map(|words| {
        let program = words.first().cloned().unwrap_or_default();
        check_command(words).map(|()| program)
    });
    let by = [
        by_text("unit", &work.unit, check_unit),
        by_text("cgroup", &work.cgroup, check_cgroup),
        by_text("container", &work.container, check_container),
        by_pid(work.pid),
        ("command", program),
    ];
    let found_by = one_of(origin, at, by, "unit, cgroup, container, pid and command")?;
    if work.name.is_empty() {
        let base = found_by.trim_end_matches('/').rsplit('/').next();
        work.name = base.unwrap_or(&found_by).to_owned();
    } else {
        check_name(&work.name).map_err(|why| wrong("name", why))?;
    }
    if let Some(progress) = &work.progress {
        check_shell_command(&progress.command).map_err(|why| wrong("progress.command", why))?;
    }
    Ok(work)
}

/// A key that says what an entry is: the key, and its value or what is wrong with the value; `None`
/// where the key is not given.
type NamedBy = (&'static str, Option<Result<String, String>>);

fn by_text(
    key: &'static str,
    text: &Option<String>,
    check: impl Fn(&str) -> Result<(), String>,
) -> NamedBy {
    let checked = text.as_ref().map(|text| check(text).map(|()| text.clone()));
    (key, checked)
}

fn by_pid(pid: Option<u32>) -> NamedBy {
    let checked = pid.map(|pid| check_pid(pid).map(|()| format!("pid {pid}")));
    ("pid", checked)
}

/// The value of the one key that says what an entry is.
fn one_of<const N: usize>(
    origin: &Origin,
    at: &str,
    by: [NamedBy; N],
    keys: &str,
) -> Result<String, SpecError> {
    let given = by.into_iter();
    let mut given = given.filter_map(|(key, checked)| Some((key, checked?)));
    match (given.next(), given.next()) {
        (Some((key, checked)), None) => {
            checked.map_err(|why| origin.error(&format!("{at}.{key}"), why))
        }
        _ => Err(origin.error(at, format!("give exactly one of {keys}"))),
    }
}

/// The percentile in a key such as `p99.9_ms`.
fn percentile_of(key: &str) -> Option<f64> {
    let number = key.strip_prefix('p')?.strip_suffix("_ms")?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number =
        |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let is_plain = is_number(whole) && is_number(decimals);
    let is_short = decimals.len() <= PERCENTILE_DECIMALS_MAX;
    let percentile: f64 = number.parse().ok()?;
    let is_one = is_plain && is_short && (50.0..100.0).contains(&percentile);
    is_one.then_some(percentile)
}

fn objective(
    origin: &Origin,
    at: &str,
    map: &BTreeMap<String, f64>,
) -> Result<LatencyObjective, SpecError> {
    let window_s = map.get("window_s").copied().unwrap_or(WINDOW_S);
    if !(1.0..=600.0).contains(&window_s) {
        return Err(origin.error(&format!("{at}.window_s"), "must be between 1 and 600"));
    }
    let mut found = None;
    for (key, latency_ms) in map.iter().filter(|(key, _)| *key != "window_s") {
        let Some(percentile) = percentile_of(key) else {
            let why = "must be a percentile from 50 to below 100, such as p99_ms or \"p99.9_ms\", or window_s";
            return Err(origin.error(&format!("{at}.{key}"), why));
        };
        if !OBJECTIVE_MS.contains(latency_ms) {
            let (least, most) = (OBJECTIVE_MS.start(), OBJECTIVE_MS.end());
            let why = format!("must be between {least} (1 µs) and {most} (an hour)");
            return Err(origin.error(&format!("{at}.{key}"), why));
        }
        if found.is_some() {
            return Err(origin.error(at, "give one percentile, not several"));
        }
        found = Some(LatencyObjective {
            percentile,
            latency_ms: rounded(*latency_ms),
            window_s: rounded(window_s),
        });
    }
    found.ok_or_else(|| origin.error(at, "needs a percentile, such as { p99_ms = 5 }"))
}

/// The JSON Schema of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(File).to_value()
}

#[cfg(test)]
mod tests;
