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
use std::path::Path;

use experiment_spec::Source;
use experiment_spec::SpecError;
use isolation::PolicySettings;
use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use wire_latency::SourceSpec;

use crate::policy_config::PolicyConfig;

/// A percentile's objective is judged over so many seconds by default (Heracles polls every 15 s).
const WINDOW_S: f64 = 15.0;
/// Groups that one host can have: beyond it a step takes longer than its period.
const GROUPS_MAX: usize = 1000;

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
    /// milliseconds. The percentile is at least 50 and below 100. `window_s` is the time over which
    /// the percentile is taken, in seconds: 1 to 600, 15 by default.
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
    /// it again when it ends.
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

/// A configuration, understood and checked against itself.
#[derive(Clone, Debug, PartialEq)]
pub struct IsolationConfig {
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
        Self::understand(&source, file)
    }

    fn understand(source: &Source, file: File) -> Result<Self, SpecError> {
        let (list, is_list) = match file.service {
            OneOrMore::One(service) => (vec![*service], false),
            OneOrMore::More(list) => (list, true),
        };
        if list.is_empty() {
            return Err(source.error("service", "name at least one service"));
        }
        if file.best_effort.len() > GROUPS_MAX {
            let why = format!("at most {GROUPS_MAX} groups; join them under one parent group");
            return Err(source.error("best_effort", why));
        }
        let mut services = Vec::new();
        for (index, mut service) in list.into_iter().enumerate() {
            let at = match is_list {
                true => format!("service[{index}]"),
                false => "service".to_owned(),
            };
            let pid = service.pid.map(|pid| format!("pid {pid}"));
            let by = [
                service.unit.clone(),
                service.cgroup.clone(),
                service.container.clone(),
                pid,
            ];
            let found_by = one_of(source, &at, &by, "unit, cgroup, container and pid")?;
            if service.name.is_empty() {
                service.name = found_by;
            }
            let objective = objective(source, &format!("{at}.objective"), &service.objective)?;
            let Some(latency) = service.latency.clone() else {
                let why = "an objective needs a source: latency = { wire = { port = … } }, or command, push, scrape, prometheus";
                return Err(source.error(&format!("{at}.latency"), why));
            };
            latency
                .check()
                .map_err(|wrong| source.error(&format!("{at}.latency.{}", wrong.key), wrong.why))?;
            if service
                .peak_requests_per_s
                .is_some_and(|peak| !(peak > 0.0 && peak.is_finite()))
            {
                return Err(source.error(&format!("{at}.peak_requests_per_s"), "must be above 0"));
            }
            services.push((service, objective, latency));
        }
        let mut best_effort = Vec::new();
        for (index, mut group) in file.best_effort.into_iter().enumerate() {
            let at = format!("best_effort[{index}]");
            let pid = group.pid.map(|pid| format!("pid {pid}"));
            let command = group
                .command
                .as_ref()
                .map(|words| words.first().cloned().unwrap_or_default());
            let by = [
                group.unit.clone(),
                group.cgroup.clone(),
                group.container.clone(),
                pid,
                command,
            ];
            let found_by = one_of(source, &at, &by, "unit, cgroup, container, pid and command")?;
            if found_by.is_empty() {
                return Err(source.error(&format!("{at}.command"), "name a program"));
            }
            if group.name.is_empty() {
                let base = found_by.rsplit('/').next().unwrap_or(&found_by).to_owned();
                group.name = base;
            }
            best_effort.push(group);
        }
        let names: Vec<&String> = services
            .iter()
            .map(|(service, ..)| &service.name)
            .chain(best_effort.iter().map(|group| &group.name))
            .collect();
        for (index, name) in names.iter().enumerate() {
            if names[..index].contains(name) {
                let at = match index.checked_sub(services.len()) {
                    Some(group) => format!("best_effort[{group}].name"),
                    None => format!("service[{index}].name"),
                };
                let why = format!(
                    "another service or best-effort group also has the name {name:?}: choose a name"
                );
                return Err(source.error(&at, why));
            }
        }
        let policy = file.policy;
        policy.check(source)?;
        Ok(Self {
            services,
            best_effort,
            policy,
        })
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

fn one_of(
    source: &Source,
    at: &str,
    by: &[Option<String>],
    keys: &str,
) -> Result<String, SpecError> {
    let mut given = by.iter().flatten();
    match (given.next(), given.next()) {
        (Some(found_by), None) => Ok(found_by.clone()),
        _ => Err(source.error(at, format!("give exactly one of {keys}"))),
    }
}

fn objective(
    source: &Source,
    at: &str,
    map: &BTreeMap<String, f64>,
) -> Result<LatencyObjective, SpecError> {
    let window_s = map.get("window_s").copied().unwrap_or(WINDOW_S);
    if !(1.0..=600.0).contains(&window_s) {
        return Err(source.error(&format!("{at}.window_s"), "must be between 1 and 600"));
    }
    let mut found = None;
    for (key, latency_ms) in map.iter().filter(|(key, _)| *key != "window_s") {
        let percentile = key
            .strip_prefix('p')
            .and_then(|rest| rest.strip_suffix("_ms"))
            .and_then(|number| number.parse::<f64>().ok())
            .filter(|percentile| (50.0..100.0).contains(percentile));
        let Some(percentile) = percentile else {
            let why = "must be a percentile from 50 to below 100, such as p99_ms or \"p99.9_ms\", or window_s";
            return Err(source.error(&format!("{at}.{key}"), why));
        };
        if !(*latency_ms > 0.0 && latency_ms.is_finite()) {
            return Err(source.error(&format!("{at}.{key}"), "must be above 0"));
        }
        if found.is_some() {
            return Err(source.error(at, "give one percentile, not several"));
        }
        found = Some(LatencyObjective {
            percentile,
            latency_ms: *latency_ms,
            window_s,
        });
    }
    found.ok_or_else(|| source.error(at, "needs a percentile, such as { p99_ms = 5 }"))
}

/// The JSON Schema of a configuration.
#[must_use]
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(File).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<IsolationConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.toml");
        std::fs::write(&path, text).unwrap();
        IsolationConfig::read(&path).map_err(|error| {
            let text = error.to_string();
            text.replace(&format!("{}/", dir.path().display()), "")
        })
    }

    const GOOD: &str = "[service]\nunit = \"memcached.service\"\nobjective = { p99_ms = 5 }\n\
        latency = { wire = { port = 11211 } }\n[[best_effort]]\nunit = \"batch.slice\"\n";

    #[test]
    fn a_configuration_is_understood() {
        let config = read(GOOD).unwrap();
        let (service, objective, _) = &config.services[0];
        assert_eq!(service.name, "memcached.service");
        assert_eq!(
            (
                objective.percentile,
                objective.latency_ms,
                objective.window_s
            ),
            (99.0, 5.0, 15.0)
        );
        assert_eq!(config.best_effort[0].name, "batch.slice");
        assert_eq!(config.policy.name, isolation::Policy::Slackline);
        let two = "[[service]]\nname = \"a\"\npid = 1\nobjective = { \"p99.9_ms\" = 2, window_s = 5 }\n\
            latency = { command = [\"x\"] }\n[[service]]\npid = 2\nobjective = { p95_ms = 1 }\nlatency = { command = [\"x\"] }\n";
        let config = read(two).unwrap();
        assert_eq!(config.services.len(), 2);
        assert!((config.services[0].1.percentile - 99.9).abs() < 1e-9);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let service = "[service]\npid = 1\nlatency = { command = [\"x\"] }\n";
        let of = |rest: &str| format!("{service}objective = {{ p99_ms = 5 }}\n{rest}");
        let one = "pid = 1\nobjective = { p99_ms = 5 }\nlatency = { command = [\"x\"] }\n";
        for (text, said) in [
            ("".to_owned(), "i.toml: the file is empty"),
            (
                "[service]\npid = 1\nobjective = { p99_ms = 5 }\n".to_owned(),
                "i.toml:1: service.latency: an objective needs a source",
            ),
            (
                format!("{service}objective = {{ p99 = 5 }}\n"),
                "i.toml:4: service.objective.p99: must be a percentile",
            ),
            (
                format!("{service}objective = {{ p99_ms = 0 }}\n"),
                "i.toml:4: service.objective.p99_ms: must be above 0",
            ),
            (
                format!("{service}objective = {{ window_s = 5 }}\n"),
                "i.toml:4: service.objective: needs a percentile",
            ),
            (
                format!("{service}objective = {{ p99_ms = 5, p95_ms = 2 }}\n"),
                "i.toml:4: service.objective: give one percentile",
            ),
            (
                format!("{service}unit = \"x\"\nobjective = {{ p99_ms = 5 }}\n"),
                "i.toml:1: service: give exactly one of",
            ),
            (
                "[service]\npid = 1\nobjective = { p99_ms = 5 }\nlatency = { wire = { port = 0 } }\n".to_owned(),
                "i.toml:4: service.latency.wire.port: 0 is no port",
            ),
            (
                "[service]\npid = 1\nobjective = { p99_ms = 5 }\n[service.latency.scrape]\nurl = \"x\"\nhistogram = \"h\"\n"
                    .to_owned(),
                "i.toml:5: service.latency.scrape.url: it has to begin with http",
            ),
            (
                "[service]\npid = 1\nobjective = { p99_ms = 5 }\n\
                 latency = { prometheus = { url = \"http://a:9090\", query = \"p99\" } }\n"
                    .to_owned(),
                "i.toml:4: service.latency.prometheus.window_s: write how far",
            ),
            (
                of("[[best_effort]]\n"),
                "i.toml:5: best_effort[0]: give exactly one of",
            ),
            (
                of("[[best_effort]]\ncommand = []\n"),
                "i.toml:6: best_effort[0].command: name a program",
            ),
            (
                of("[[best_effort]]\ncgroup = \"a\"\n[[best_effort]]\ncgroup = \"b/a\"\n"),
                "i.toml:7: best_effort[1].name: another service or best-effort group",
            ),
            (
                format!("[[service]]\nname = \"a\"\n{one}[[service]]\nname = \"a\"\n{one}"),
                "i.toml:7: service[1].name: another service or best-effort group",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.starts_with(said), "{error}\n{said}");
        }
        assert!(
            read(&of("[policy]\nname = \"magic\"\n"))
                .unwrap_err()
                .contains("unknown value")
        );
    }

    #[test]
    fn the_schema_names_every_key() {
        let text = schema().to_string();
        for key in [
            "objective",
            "latency",
            "best_effort",
            "progress",
            "observe",
            "peak_requests_per_s",
            "wire",
            "scrape",
            "histogram",
            "prometheus",
            "query",
            "command",
            "push",
        ] {
            assert!(text.contains(key), "{key}");
        }
    }
}
