//! `slackline throttle fleet` against a real Prometheus that holds a simulated fleet of recorded
//! shapes.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::agent::spinners;
use crate::eventually::{eventually, found_within};
use crate::openssl::make_server;
use crate::toy::{Ended, Toy, kill, skip};

#[path = "../../../../xtask/src/simulated_fleet.rs"]
mod simulated_fleet;

const SHAPES: &str = include_str!("fleet/shapes.txt");
const SERVICES: usize = 24;
const SHARDS: usize = 3;
const STEP_S: u64 = 60;
const STEPS: u64 = 20;

/// A Prometheus with the fleet in it.
pub(crate) struct Prometheus {
    child: Child,
    pub(crate) url: String,
    data: tempfile::TempDir,
}

impl Prometheus {
    /// `None`, with the reason printed, where it is not installed.
    fn new() -> Option<Self> {
        let mut text = Vec::new();
        let shapes = simulated_fleet::shapes(SHAPES);
        simulated_fleet::write(&mut text, &shapes, SERVICES, SHARDS, STEP_S, STEPS).unwrap();
        Self::holding(&text)
    }

    /// A Prometheus with what is written as OpenMetrics in it.
    fn holding(metrics: &[u8]) -> Option<Self> {
        let data = tempfile::tempdir().unwrap();
        let text = data.path().join("fleet.om");
        std::fs::write(&text, metrics).unwrap();
        let made = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics"])
            .args([&text, &data.path().join("tsdb")])
            .output();
        match made {
            Ok(output) => assert!(output.status.success(), "{output:?}"),
            Err(error) => {
                skip(&error);
                return None;
            }
        }
        Self::of(data, "global: {}\n")
    }

    /// What a folder holds, under a configuration.
    pub(crate) fn of(data: tempfile::TempDir, configuration: &str) -> Option<Self> {
        Self::with(data, configuration, &[])
    }

    /// And with further options.
    fn with(data: tempfile::TempDir, configuration: &str, options: &[String]) -> Option<Self> {
        std::fs::write(data.path().join("prometheus.yml"), configuration).unwrap();
        let address = free_address();
        let started = Command::new("prometheus")
            .arg(option("config.file", &data.path().join("prometheus.yml")))
            .arg(option("storage.tsdb.path", &data.path().join("tsdb")))
            .arg("--storage.tsdb.retention.time=100y")
            .arg(format!("--web.listen-address={address}"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(error) => {
                skip(&error);
                return None;
            }
        };
        let server = Self {
            child,
            url: format!("http://{address}"),
            data,
        };
        let listens = || TcpStream::connect(&address).is_ok();
        eventually(60, listens, || "Prometheus does not listen");
        Some(server)
    }

    /// Another text for a file of its folder, which its configuration names.
    pub(crate) fn changes(&self, name: &str, text: &str) {
        std::fs::write(self.data.path().join(name), text).unwrap();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    /// The values of an instant query.
    pub(crate) fn values(&self, query: &str) -> Vec<f64> {
        let answer = ureq::get(format!("{}/api/v1/query", self.url))
            .query("query", query)
            .call();
        let Ok(mut answer) = answer else {
            return Vec::new();
        };
        let answer: serde_json::Value = answer.body_mut().read_json().unwrap();
        let series = answer["data"]["result"].as_array().into_iter().flatten();
        series
            .map(|one| one["value"][1].as_str().unwrap().parse().unwrap())
            .collect()
    }

    /// Waits for it to open its database.
    fn wait_until_open(&self, toy: &Toy) {
        let answers = || self.fleet(toy, &[]).code == 0;
        eventually(60, answers, || "it does not open its database");
    }

    /// As of the end of the simulated time.
    fn fleet(&self, toy: &Toy, arguments: &[&str]) -> Ended {
        let at = (simulated_fleet::START_S + STEPS * STEP_S).to_string();
        let mut command = toy.slackline(&["throttle", "fleet", "--prometheus", &self.url]);
        command
            .args(["--at", &at, "--window-s", "1200"])
            .args(arguments);
        Ended::of(command)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        kill([&mut self.child]);
    }
}

/// What the first series of a metric advanced by each second; of a gauge, its value.
fn rate(shape: &simulated_fleet::Shape, metric: &str) -> f64 {
    let mut found = shape.series.iter().filter(|series| series.metric == metric);
    let series = found.next().unwrap();
    if simulated_fleet::is_gauge(metric) {
        series.value
    } else {
        series.per_s
    }
}

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_fleet_is_ranked_as_its_shapes_are() {
    let Some(server) = Prometheus::new() else {
        return;
    };
    let toy = Toy::new();
    server.wait_until_open(&toy);
    let page = toy.path("fleet.html");
    let ended = server.fleet(&toy, &["--json", "-", "--html", page.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&ended.with_code(0).stdout).unwrap();
    let shapes = simulated_fleet::shapes(SHAPES);
    let services = report["services"].as_array().unwrap();
    assert_eq!(services.len(), SERVICES);
    assert_eq!(report["shards"], (SERVICES * SHARDS) as f64);
    let mut limits = 0.0;
    for service in services {
        let name = service["name"].as_str().unwrap();
        let (shape, number) = name.split_once('-').unwrap();
        let shape = shapes.iter().find(|one| one.name == shape).unwrap();
        let size = simulated_fleet::size(number.parse().unwrap()) * SHARDS as f64;
        let close = |key: &str, wanted: f64| {
            let found = service[key].as_f64().unwrap();
            // A shard that began anew loses an interval or two of twenty.
            assert!(
                (found - wanted).abs() <= 0.06 * wanted + 1e-9,
                "{name} {key}: {found}, not {wanted}"
            );
        };
        close(
            "limit_cores",
            size * rate(shape, "slackline_cpu_limit_cores"),
        );
        close(
            "used_cores",
            size * rate(shape, "slackline_cpu_usage_seconds_total"),
        );
        let runnable = rate(shape, "slackline_runnable_thread_seconds_total")
            / rate(shape, "slackline_traced_seconds_total");
        close("runnable", size * runnable);
        limits += service["limit_cores"].as_f64().unwrap();
        let state = service["state"].as_str().unwrap();
        match shape.name.as_str() {
            "pool" => assert_eq!(state, "throttled", "{service}"),
            "greedy" => {
                assert_eq!(state, "quota_too_small", "{service}");
                let worst = &report["worst"][name];
                assert_eq!(worst["group"], format!("system.slice/{name}"), "{report}");
            }
            "idle" => {
                assert_eq!(state, "roomy", "{service}");
                let peak = service["peak_share"].as_f64().unwrap();
                assert!(peak <= 0.6, "{service}");
                close("give_back_cores", (1.0 - peak) * size);
            }
            _ => {}
        }
    }
    assert!((report["limit_cores"].as_f64().unwrap() - limits).abs() < 1e-6 * limits);
    assert_eq!(
        report["runnable_per_core"].as_array().unwrap().len(),
        SERVICES
    );
    assert_eq!(report["missing"], serde_json::json!([]));
    let page = std::fs::read_to_string(page).unwrap();
    for part in [
        "<svg",
        "prefers-color-scheme: dark",
        "width=device-width",
        "pool-003",
        "idle-002",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is loaded from elsewhere.
    for part in ["<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(part), "{part}");
    }
    let text = server.fleet(&toy, &["--top", "3"]).with_code(0).stdout;
    for part in [
        "24 services in 72 shards",
        "Throttled services",
        "CPU to be given back",
        "Threads that want to run per reserved core",
        "host-00",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    faults(&server, &toy);
}

#[test]
fn a_limit_that_services_share_is_reserved_once() {
    let mut text = String::new();
    let mut series = |metric: &str, labels: &str, value: &dyn Fn(u64) -> f64| {
        for step in 0..=STEPS {
            let at_s = simulated_fleet::START_S + step * STEP_S;
            let value = value(step * STEP_S);
            text +=
                &format!("slackline_{metric}{{{labels},instance=\"host:9753\"}} {value} {at_s}\n");
        }
    };
    // The last one's agent does not say whose its limit is.
    let services = ["a", "b", "c", "own"].map(|name| {
        let slice = if name == "own" {
            ""
        } else {
            "limit_group=\"slice\","
        };
        (format!("service=\"{name}\",group=\"slice/{name}\""), slice)
    });
    for (labels, slice) in &services {
        series("cpu_limit_cores", &format!("{slice}{labels}"), &|_| 1.0);
    }
    for (metric, per_s) in [
        ("cpu_usage_seconds_total", 0.05),
        ("cpu_periods_total", 10.0),
        ("cpu_throttled_periods_total", 0.0),
    ] {
        for (labels, _) in &services {
            series(metric, labels, &|at_s| per_s * at_s as f64);
        }
    }
    for bound in ["0.1", "+Inf"] {
        for (labels, _) in &services {
            let labels = format!("{labels},le=\"{bound}\"");
            series("cpu_use_of_limit_bucket", &labels, &|at_s| {
                10.0 * at_s as f64
            });
        }
    }
    let Some(server) = Prometheus::holding((text + "# EOF\n").as_bytes()) else {
        return;
    };
    let toy = Toy::new();
    server.wait_until_open(&toy);
    let ended = server.fleet(&toy, &["--json", "-"]).with_code(0);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["limit_cores"], 2.0, "{report}");
    let given = report["give_back_cores"].as_f64().unwrap();
    assert!((given - 0.9).abs() < 1e-9, "{report}");
    let states = report["services"].as_array().unwrap().iter();
    let states: Vec<&Value> = states.map(|one| &one["state"]).collect();
    assert_eq!(states, ["roomy", "shares", "shares", "shares"]);
    let text = server.fleet(&toy, &[]).with_code(0).stdout;
    assert!(
        text.contains("3 leave CPU unused, but their limit is that of a group above them"),
        "{text}"
    );
}

/// What a server may answer instead.
fn faults(server: &Prometheus, toy: &Toy) {
    server
        .fleet(toy, &["--match", "cluster=\"none\""])
        .with_code(2)
        .saying(&[
            "slackline_cpu_usage_seconds_total",
            "{cluster=\"none\"}",
            "scrape",
        ]);
    server
        .fleet(toy, &["--match", "cluster="])
        .with_code(2)
        .saying(&["Prometheus refused", "bad_data"]);
    // One sample only: no rate.
    server
        .fleet(toy, &["--window-s", "30"])
        .with_code(2)
        .saying(&["--window-s"]);
    // Of the histogram, whose classes alone have a label le, nothing is there.
    let ended = server
        .fleet(toy, &["--match", "le=\"\"", "--json", "-"])
        .with_code(0);
    let ended = ended.saying(&[
        "Not judged, because metrics are missing",
        "slackline_cpu_use_of_limit_bucket",
    ]);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        report["missing"],
        serde_json::json!(["slackline_cpu_use_of_limit_bucket"])
    );
    assert_eq!(report["give_back_cores"], 0.0);
    let mut elsewhere = toy.slackline(&["throttle", "fleet", "--prometheus"]);
    elsewhere.arg(format!("{}/elsewhere", server.url));
    Ended::of(elsewhere)
        .with_code(2)
        .saying(&["/elsewhere/api/v1/query answered 404", "base URL"]);
}

/// Nothing simulated: a throttled group of this host, its agent, and a Prometheus that asks it.
#[test]
fn a_throttled_group_comes_from_its_agent_into_the_ranking() {
    let Some((toy, agent, _group)) = spinners() else {
        return;
    };
    let configuration = format!(
        "scrape_configs:\n- job_name: slackline\n  scrape_interval: 1s\n  static_configs: [{{targets: [\"{}\"]}}]\n",
        agent.address
    );
    let Some(server) = Prometheus::of(tempfile::tempdir().unwrap(), &configuration) else {
        return;
    };
    // Until the series fill the window, and the tracepoints' have two samples in it.
    let spinners = found_within(60, || {
        let arguments = ["throttle", "fleet", "--prometheus", &server.url];
        let mut command = toy.slackline(&arguments);
        command.args(["--window-s", "10", "--json", "-"]);
        let ended = Ended::of(command);
        let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_default();
        let services = report["services"].as_array().cloned().unwrap_or_default();
        let found = services.into_iter().find(|one| one["name"] == "spinners");
        let is_whole = |one: &Value| {
            one["used_cores"].as_f64() > Some(0.15) && one["runnable"].as_f64() > Some(1.0)
        };
        let found = found.filter(is_whole);
        found.ok_or_else(|| format!("{}{}", ended.stdout, ended.stderr))
    });
    assert_eq!(spinners["limit_cores"], 0.2, "{spinners}");
    // By whether the whole quota was used, on a busy machine.
    let state = spinners["state"].as_str().unwrap();
    assert!(
        ["throttled", "quota_too_small"].contains(&state),
        "{spinners}"
    );
    let used = spinners["used_cores"].as_f64().unwrap();
    assert!((0.1..0.3).contains(&used), "{spinners}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let toy = Toy::new();
    let url = format!("http://{}", free_address());
    Ended::of(toy.slackline(&["throttle", "fleet", "--prometheus", &url]))
        .with_code(2)
        .saying(&[&url, "is Prometheus running"]);
    let url = "prometheus:9090";
    Ended::of(toy.slackline(&["throttle", "fleet", "--prometheus", url]))
        .with_code(2)
        .saying(&[url, "has to begin with http://"]);
}

#[test]
fn a_server_behind_tls_is_believed_where_the_machine_trusts_its_authority() {
    let toy = Toy::new();
    let (key, certificate) = (toy.path("key.pem"), toy.path("certificate.pem"));
    if make_server("prometheus", &certificate, &key).is_none() {
        return skip(&"openssl is missing here");
    }
    let web = toy.path("web.yml");
    let (key, certificate) = (key.display(), certificate.display());
    let text = format!("tls_server_config:\n  cert_file: {certificate}\n  key_file: {key}\n");
    std::fs::write(&web, text).unwrap();
    let data = tempfile::tempdir().unwrap();
    let Some(server) = Prometheus::with(data, "global: {}\n", &[option("web.config.file", &web)])
    else {
        return;
    };
    let url = server.url.replace("http://", "https://");
    let ask = || toy.slackline(&["throttle", "fleet", "--prometheus", &url]);
    Ended::of(ask()).with_code(2).saying(&[&url, "certificate"]);
    // It was asked, and holds nothing.
    let ended = found_within(60, || {
        let mut trusting = ask();
        trusting.env("SSL_CERT_FILE", certificate.to_string());
        let ended = Ended::of(trusting);
        match ended.stderr.contains("503") {
            true => Err(ended.stderr),
            false => Ok(ended),
        }
    });
    ended
        .with_code(2)
        .saying(&["does this Prometheus scrape the agents"]);
}
