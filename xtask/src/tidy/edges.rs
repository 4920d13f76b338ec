//! Which crate may use which.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::finding::Finding;
use crate::cargo::cargo;

/// Which crates of the workspace a crate may use, and why. A crate that is not here may not exist;
/// dependencies point down only, so no crate below the roof knows the one above it.
const EDGES: &[Edges] = &[
    Edges {
        from: "config-errors",
        to: &[],
        reason: "pure: words for what a reader of a file says, the same for every file",
    },
    Edges {
        from: "prometheus-text",
        to: &[],
        reason: "pure: how a page of metrics is written, the same for every server",
    },
    Edges {
        from: "paired-stats",
        to: &[],
        reason: "pure arithmetic on samples: others must be able to use it without the rest",
    },
    Edges {
        from: "bayes-opt",
        to: &[],
        reason: "a pure optimiser knows nothing of hosts, services or time",
    },
    Edges {
        from: "code-layout",
        to: &[],
        reason: "pure: bytes and counts come in, code comes out; nobody's process is touched here",
    },
    Edges {
        from: "host",
        to: &[],
        reason: "reads and writes kernel files for everyone, decides nothing",
    },
    Edges {
        from: "perf-events",
        to: &[],
        reason: "unsafe code of one interface: it must be readable by itself",
    },
    Edges {
        from: "http-client",
        to: &[],
        reason: "one client and one Prometheus query for all: what it asks is decided by others",
    },
    Edges {
        from: "wire-latency",
        to: &["http-client"],
        reason: "the latency of a service for everyone who steers by it: sources and packets, no decision",
    },
    Edges {
        from: "experiment-spec",
        to: &[
            "bayes-opt",
            "config-errors",
            "host",
            "http-client",
            "paired-stats",
            "wire-latency",
        ],
        reason: "what somebody asks for, checked: values and spaces of the optimiser, knobs of the host, addresses, how often a test looks, sources of latency; who runs it stands above",
    },
    Edges {
        from: "load",
        to: &["host", "http-client"],
        reason: "threads of its own: nobody else's measurement may share them; host counts CPU time and takes real-time priority, http-client checks URLs",
    },
    Edges {
        from: "throttle",
        to: &["paired-stats"],
        reason: "pure: observations come in, findings go out, with intervals",
    },
    Edges {
        from: "isolation",
        to: &["paired-stats"],
        reason: "pure controllers: observations come in, decisions go out, tested on a modelled machine; bounds of a share",
    },
    Edges {
        from: "qos",
        to: &["paired-stats"],
        reason: "pure: who may submit what to a device, by arithmetic; intervals for its benchmark",
    },
    Edges {
        from: "tuner",
        to: &[
            "bayes-opt",
            "config-errors",
            "experiment-spec",
            "host",
            "http-client",
            "paired-stats",
            "load",
            "wire-latency",
        ],
        reason: "the experiment does what its specification says: it asks the optimiser, writes knobs through the journal, compares blocks, asks Prometheus and services over HTTP",
    },
    Edges {
        from: "isolate-run",
        to: &["experiment-spec", "host", "isolation", "wire-latency"],
        reason: "the controllers' way to a host: sources, actuators, journal; experiment-spec reads files with their lines",
    },
    Edges {
        from: "throttle-watch",
        to: &[
            "host",
            "http-client",
            "load",
            "paired-stats",
            "perf-events",
            "throttle",
            "tuner",
            "wire-latency",
        ],
        reason: "the way of throttle's models to a host: tracepoints, counters, loads, limits through the journal; tuner catches signals and reads other generators' reports",
    },
    Edges {
        from: "agent",
        to: &[
            "host",
            "perf-events",
            "prometheus-text",
            "throttle",
            "throttle-watch",
        ],
        reason: "one thread that serves metrics: tracepoints and names of containers of throttle-watch, no loads and no trials",
    },
    Edges {
        from: "coordinator",
        to: &["bayes-opt", "host", "http-client", "tuner"],
        reason: "databases, and the thread that runs what they hold: `tune` needs neither",
    },
    Edges {
        from: "dashboard",
        to: &[
            "bayes-opt",
            "coordinator",
            "host",
            "http-client",
            "paired-stats",
            "prometheus-text",
            "tuner",
        ],
        reason: "the asynchronous part: what a request means is decided below it",
    },
    Edges {
        from: "dispatch",
        to: &["host", "http-client", "tuner"],
        reason: "NATS, for coordinators and workers: a worker needs neither a database nor a page",
    },
    Edges {
        from: "relayout",
        to: &["code-layout", "host", "paired-stats", "perf-events"],
        reason: "the only crate that writes into another process: what it writes is decided below it",
    },
    Edges {
        from: "dataplane",
        to: &["prometheus-text"],
        reason: "a runtime for anybody's server: it knows none of them; its metrics are a part of their pages",
    },
    Edges {
        from: "cache-server",
        to: &["dataplane", "prometheus-text"],
        reason: "a program on the runtime: it knows a memcached's protocol, not how packets come",
    },
    Edges {
        from: "block-server",
        to: &["config-errors", "dataplane", "prometheus-text", "qos"],
        reason: "a program on the runtime: it knows disks and NBD, not how packets come; qos decides whose request is next",
    },
    Edges {
        from: "block-load",
        to: &["dataplane", "paired-stats", "qos"],
        reason: "load for disks and servers: buffers of dataplane, costs of qos; intervals for its benchmark",
    },
    Edges {
        from: "slackline",
        to: &[
            "agent",
            "bayes-opt",
            "block-load",
            "block-server",
            "cache-server",
            "coordinator",
            "dashboard",
            "dataplane",
            "dispatch",
            "host",
            "http-client",
            "isolate-run",
            "isolation",
            "paired-stats",
            "load",
            "perf-events",
            "prometheus-text",
            "qos",
            "relayout",
            "throttle",
            "throttle-watch",
            "tuner",
            "wire-latency",
        ],
        reason: "the binary wires everything",
    },
    Edges {
        from: "fuzz",
        to: &[
            "block-server",
            "cache-server",
            "code-layout",
            "dataplane",
            "experiment-spec",
            "host",
            "perf-events",
            "tuner",
        ],
        reason: "tests only: each crate whose parsers read foreign bytes",
    },
    Edges {
        from: "xtask",
        to: &[],
        reason: "must build and say what is wrong when the product does not build",
    },
];

struct Edges {
    from: &'static str,
    to: &'static [&'static str],
    reason: &'static str,
}

/// Checks what each crate's manifest says.
///
/// # Errors
/// cargo cannot be asked.
pub(super) fn check(root: &Path) -> anyhow::Result<Vec<Finding>> {
    Ok(check_edges(&metadata(root)?.packages))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Only dependencies inside the workspace have one.
    path: Option<PathBuf>,
}

fn metadata(root: &Path) -> anyhow::Result<Metadata> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root)
        .output()
        .context("cargo metadata cannot be run")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    serde_json::from_slice(&output.stdout)
        .context("cargo metadata printed something else than its JSON")
}

fn check_edges(packages: &[Package]) -> Vec<Finding> {
    let table: BTreeMap<&str, &Edges> = EDGES.iter().map(|edges| (edges.from, edges)).collect();
    let mut findings = Vec::new();
    for package in packages {
        let mut complain = |message| {
            findings.push(Finding {
                path: package.manifest_path.clone(),
                line: None,
                message,
            });
        };
        let Some(edges) = table.get(package.name.as_str()) else {
            complain(format!(
                "{} is not in the table of crates in xtask/src/tidy/edges.rs",
                package.name
            ));
            continue;
        };
        for dependency in package
            .dependencies
            .iter()
            .filter(|dependency| dependency.path.is_some())
        {
            if !edges.to.contains(&dependency.name.as_str()) {
                complain(format!(
                    "{} may not use {}: {}",
                    package.name, dependency.name, edges.reason
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, uses: &[(&str, bool)]) -> Package {
        Package {
            name: name.into(),
            manifest_path: format!("{name}/Cargo.toml").into(),
            dependencies: uses
                .iter()
                .map(|(name, inside)| Dependency {
                    name: (*name).into(),
                    path: inside.then(|| PathBuf::from("..")),
                })
                .collect(),
        }
    }

    #[test]
    fn an_edge_upwards_and_an_unknown_crate_are_found() {
        let findings = check_edges(&[
            package("bayes-opt", &[("nalgebra", false), ("tuner", true)]),
            package("helpers", &[]),
            package(
                "tuner",
                &[("bayes-opt", true), ("host", true), ("toml", false)],
            ),
        ]);
        assert_eq!(
            findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "bayes-opt/Cargo.toml: bayes-opt may not use tuner: a pure optimiser knows nothing of hosts, services or time",
                "helpers/Cargo.toml: helpers is not in the table of crates in xtask/src/tidy/edges.rs",
            ]
        );
    }

    #[test]
    fn the_table_of_edges_has_no_cycle_and_names_only_known_crates() {
        let mut done: Vec<&str> = Vec::new();
        for edges in EDGES {
            for to in edges.to {
                assert!(
                    done.contains(to),
                    "{} uses {to}, which stands below it",
                    edges.from
                );
            }
            done.push(edges.from);
        }
    }
}
