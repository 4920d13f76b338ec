//! `slackline serve-block status`: how the tenants of a running server fare, once or as it goes.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use block_server::config::metrics_of;
use block_server::launch::{CALIBRATE_AGAIN, LOST_WRITES, RESERVE_MORE};
use block_server::metrics::{ServerStatus, TenantStatus};
use http_client::{Client, Url};
use qos::{Grouped, Operation};
use ratatui::DefaultTerminal;
use tuner::process::Interrupt;

use crate::done::CommandOutcome;
use crate::live::{self, DRAW_EVERY, History, Key, LINE_ROWS, Line};

/// How long a server may take to say how it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Far above what 16,384 tenants need.
const ANSWER_MAX_BYTES: u64 = 64 << 20;
/// The server counts rates anew each second.
const POINT_EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The server's configuration. Only the key `metrics` is read: the server's address.
    #[arg(default_value = super::run::CONFIG)]
    config: PathBuf,
    /// The address of the running server's `metrics`, instead of the one in the file.
    #[arg(long, value_name = "ADDR")]
    address: Option<SocketAddr>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Update the view twice a second. q closes the view, not the server.
    #[arg(long, conflicts_with = "json")]
    live: bool,
}

/// Where a server says how it is.
struct Source {
    client: Client,
    url: Url,
    address: SocketAddr,
}

impl Source {
    fn text(&self) -> anyhow::Result<String> {
        let text = self.client.text(&self.url, ANSWER_MAX_BYTES);
        text.map_err(|error| {
            anyhow::anyhow!(
                "no `serve-block` answers at {}: {error}. Give the address that `metrics` had when the server \
                 started, by `status --address ADDR`",
                self.address
            )
        })
    }

    fn status(&self) -> anyhow::Result<ServerStatus> {
        serde_json::from_str(&self.text()?).with_context(|| {
            let address = self.address;
            format!("the server at {address} is no `serve-block`, or one of another version")
        })
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let address = address(arguments)?;
    let source = Source {
        client: Client::new(ANSWER_TIMEOUT),
        url: Url::parse(&format!("http://{address}/status")).map_err(anyhow::Error::msg)?,
        address,
    };
    if arguments.json {
        crate::output::print(&(source.text()? + "\n"))?;
    } else if arguments.live {
        anyhow::ensure!(
            std::io::stdout().is_terminal(),
            "--live needs a terminal. Use `status --json` in scripts"
        );
        let first = source.status()?;
        let interrupt = Interrupt::on_signals()?;
        return live::on_screen(|terminal| watch(terminal, &source, first, &interrupt));
    } else {
        crate::output::print(&text(&source.status()?))?;
    }
    Ok(CommandOutcome::Positive)
}

fn address(arguments: &Arguments) -> anyhow::Result<SocketAddr> {
    if let Some(address) = arguments.address {
        return Ok(address);
    }
    let file = &arguments.config;
    metrics_of(file)?.with_context(|| {
        format!(
            "{}: `metrics` is missing. Add metrics = \"127.0.0.1:9152\" and restart the server: `status` reads from that \
             address. A running server keeps the address from its start: give it as `status --address ADDR`",
            file.display()
        )
    })
}

/// The lines above the tables, a value each second.
#[derive(Default)]
struct Seen {
    /// The last value of `worst`; `None`: no tenant with an objective has enough requests.
    worst_now: Option<f64>,
    worst: History,
    iops: History,
}

impl Seen {
    fn push(&mut self, status: &ServerStatus) {
        let tenants = status.tenants.iter();
        let shares = tenants.filter_map(|tenant| {
            let objective = tenant.objective?;
            Some(100.0 * tenant.window_p95_us? / f64::from(objective.p95_us))
        });
        self.worst_now = shares.reduce(f64::max);
        self.worst.push(self.worst_now.unwrap_or(0.0));
        self.iops
            .push(status.tenants.iter().map(|tenant| tenant.iops).sum());
    }

    fn lines(&self) -> [Line; 2] {
        let line = |title: String, history: &History| Line {
            title,
            values: history.values(),
            max: None,
        };
        let now = |history: &History| history.values().last().copied().unwrap_or(0);
        [
            line(
                format!(
                    " p95 of the worst tenant: {} % of its objective ",
                    self.worst_now.map_or_else(|| "–".to_owned(), number)
                ),
                &self.worst,
            ),
            line(
                format!(
                    " IOPS of all tenants: {} · q quits ",
                    Grouped(now(&self.iops))
                ),
                &self.iops,
            ),
        ]
    }
}

fn watch(
    terminal: &mut DefaultTerminal,
    source: &Source,
    first: ServerStatus,
    interrupt: &Interrupt,
) -> anyhow::Result<CommandOutcome> {
    let mut seen = Seen::default();
    let mut status = Ok(first);
    let mut point: Option<Instant> = None;
    loop {
        let shown = match &status {
            Ok(status) => {
                if point.is_none_or(|point| point.elapsed() >= POINT_EVERY) {
                    point = Some(Instant::now());
                    seen.push(status);
                }
                text(status)
            }
            // The server may be starting again.
            Err(error) => format!("{error:#}"),
        };
        terminal.draw(|frame| live::draw(frame, &seen.lines(), LINE_ROWS, &shown))?;
        if let Some(Key::Quit) = live::key(DRAW_EVERY)? {
            return Ok(CommandOutcome::Positive);
        }
        if let Some(signal) = interrupt.signal() {
            return Ok(CommandOutcome::Signal(signal));
        }
        status = source.status();
    }
}

/// Everything about the tenants, for people.
fn text(status: &ServerStatus) -> String {
    let mut text = draining(status).unwrap_or_default();
    let _ = write!(text, "{}\n{}\n", now(status), percentile(status));
    text.push_str(&devices(status));
    text.push_str(&lost_writes(status));
    text.push_str(&lending(status));
    for tenant in status.tenants.iter().filter(|tenant| tenant.in_deficit) {
        let _ = writeln!(
            text,
            "{} asks for more than its objective reserved. Tokens/s: {} reserved, {} asked for in the last second, {} used. \
             {}, for {} tokens. {RESERVE_MORE}.",
            tenant.export,
            Grouped(tenant.reserved_tokens_per_s),
            number(tenant.asked_tokens_per_s),
            number(tenant.spent_tokens_per_s),
            waiting(tenant.queued),
            Grouped(tenant.queued_tokens)
        );
    }
    let _ = writeln!(text, "\nSince the start:\n{}", since_start(status));
    let refused = status
        .tenants
        .iter()
        .filter(|tenant| tenant.refused_clients > 0);
    let refused: Vec<String> = refused
        .map(|tenant| format!("{} {}", tenant.export, Grouped(tenant.refused_clients)))
        .collect();
    if !refused.is_empty() {
        let _ = writeln!(text, "Refused clients: {}.", refused.join(", "));
    }
    let namespaces: Vec<String> = status
        .tenants
        .iter()
        .filter_map(|tenant| Some(format!("{} is {}", tenant.export, tenant.namespace?)))
        .collect();
    if !namespaces.is_empty() {
        let _ = writeln!(text, "NVMe namespaces: {}.", namespaces.join(", "));
    }
    if let Some(failures) = &status.tls_failures {
        let _ = writeln!(
            text,
            "Connections that ended because TLS failed: {}. The last one{}{}: {}",
            Grouped(failures.connections),
            failures
                .last_address
                .map_or_else(String::new, |address| format!(", from {address}")),
            time(failures.last_unix_s).map_or_else(String::new, |time| format!(", at {time}")),
            failures.last_reason
        );
    }
    if let Some(reason) = &status.not_reloaded {
        let _ = writeln!(
            text,
            "The last reload was refused, and the old configuration stays in force: {reason}"
        );
    }
    let _ = writeln!(text, "Connections: {}", Grouped(status.connections));
    text
}

/// What the end of the server waits for.
fn draining(status: &ServerStatus) -> Option<String> {
    let draining = status.draining?;
    let since = time(draining.since_unix_s)?;
    let count = |number: u64, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", Grouped(number)),
    };
    Some(format!(
        "The server has been draining since {}: {} and {} are left. It ends in {} s at the latest.\n\n",
        since,
        count(status.connections, "connection"),
        count(draining.requests, "request"),
        Grouped(draining.left_s)
    ))
}

/// A moment in seconds since 1970, for people.
fn time(unix_s: u64) -> Option<String> {
    let seconds = i64::try_from(unix_s).ok()?;
    let time = jiff::Timestamp::from_second(seconds).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn number(value: f64) -> String {
    Grouped::rounded(value).to_string()
}

fn waiting(requests: u32) -> String {
    match requests {
        1 => "1 request waits".to_owned(),
        _ => format!("{} requests wait", Grouped(requests.into())),
    }
}

fn now(status: &ServerStatus) -> comfy_table::Table {
    let mut rows = crate::table::narrow(&[
        "export",
        "objective",
        "p95 µs",
        "IOPS",
        "tokens/s",
        "waiting",
    ]);
    for tenant in &status.tenants {
        let objective = tenant.objective.map_or_else(
            || "best effort".to_owned(),
            |objective| {
                let (p95_us, iops) = (objective.p95_us.into(), objective.iops.into());
                format!("{} µs, {} IOPS", Grouped(p95_us), Grouped(iops))
            },
        );
        let p95 = tenant.window_p95_us;
        rows.add_row([
            tenant.export.clone(),
            objective,
            p95.map_or_else(|| "–".to_owned(), |us| window(us, tenant)),
            number(tenant.iops),
            number(tenant.spent_tokens_per_s),
            Grouped(tenant.queued.into()).to_string(),
        ]);
    }
    crate::table::fitted(rows)
}

/// A percentile of the last window, and whether it is above the tenant's objective.
fn window(p95_us: f64, tenant: &TenantStatus) -> String {
    let objective = tenant.objective;
    match objective.is_some_and(|objective| p95_us > f64::from(objective.p95_us)) {
        true => format!("{} (above)", number(p95_us)),
        false => number(p95_us),
    }
}

/// What the percentiles of the first table are of.
fn percentile(status: &ServerStatus) -> String {
    let tenants = status.tenants.iter();
    let of_writes: Vec<&str> = tenants
        .filter(|tenant| tenant.window_p95_of == Operation::Write)
        .map(|tenant| tenant.export.as_str())
        .collect();
    let writes = match &of_writes[..] {
        [] => String::new(),
        names => format!(" ({}: of writes)", names.join(", ")),
    };
    let is_above = |tenant: &TenantStatus| {
        let objective = tenant.objective?;
        Some(tenant.window_p95_us? > f64::from(objective.p95_us))
    };
    let above = match status.tenants.iter().any(|it| is_above(it) == Some(true)) {
        true => " (above): above the objective.",
        false => "",
    };
    format!(
        "p95: of reads{writes}, in the last full window. –: too few reads, or none for 5 s.{above}"
    )
}

/// What devices with a calibration have to give.
fn devices(status: &ServerStatus) -> String {
    let mut text = String::new();
    for device in &status.devices {
        if let Some(rate) = device.tokens_per_s {
            let _ = writeln!(
                text,
                "{} takes {} tokens/s at the strictest objective now, of which {} are reserved.",
                device.device,
                Grouped(rate),
                Grouped(device.reserved_tokens_per_s)
            );
        }
        if let Some(drift) = device.drift {
            let _ = writeln!(
                text,
                "{} no longer behaves as calibrated: {drift}. {CALIBRATE_AGAIN}.",
                device.device
            );
        }
    }
    text
}

/// Devices that may have lost writes, each once.
fn lost_writes(status: &ServerStatus) -> String {
    let tenants = status.tenants.iter().filter(|it| it.has_lost_writes);
    let mut devices: Vec<&str> = tenants.map(|tenant| tenant.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let lines = devices
        .iter()
        .map(|device| format!("{device}: {LOST_WRITES}.\n"));
    lines.collect()
}

/// Who pays for whom: what tenants of one device leave to others goes into one pot.
fn lending(status: &ServerStatus) -> String {
    let mut devices: Vec<&str> = Vec::new();
    for tenant in &status.tenants {
        if !devices.contains(&tenant.device.as_str()) {
            devices.push(&tenant.device);
        }
    }
    let mut text = String::new();
    for device in devices {
        let list = |pick: fn(&TenantStatus) -> f64| {
            let of = status
                .tenants
                .iter()
                .filter(|tenant| tenant.device == device);
            let named: Vec<String> = of
                .filter(|tenant| pick(tenant) >= 1.0)
                .map(|tenant| format!("{} {}", tenant.export, number(pick(tenant))))
                .collect();
            named.join(", ")
        };
        let given = list(|tenant| tenant.given_tokens_per_s);
        let received = list(|tenant| tenant.received_tokens_per_s);
        for (what, tenants) in [("left to", given), ("used from", received)] {
            if !tenants.is_empty() {
                let _ = writeln!(text, "Tokens/s of {device} {what} others: {tenants}.");
            }
        }
    }
    text
}

fn since_start(status: &ServerStatus) -> comfy_table::Table {
    let mut rows = crate::table::narrow(&[
        "export",
        "reads",
        "read p95 µs",
        "writes",
        "write p95 µs",
        "errors",
        "refused",
    ]);
    let p95 = |requests: u64, us: f64| match requests {
        0 => "–".to_owned(),
        _ => number(us),
    };
    for tenant in &status.tenants {
        rows.add_row([
            tenant.export.clone(),
            Grouped(tenant.reads).to_string(),
            p95(tenant.reads, tenant.read_p95_us),
            Grouped(tenant.writes).to_string(),
            p95(tenant.writes, tenant.write_p95_us),
            Grouped(tenant.errors).to_string(),
            Grouped(tenant.refused_requests).to_string(),
        ]);
    }
    crate::table::fitted(rows)
}

#[cfg(test)]
mod tests {
    use block_server::metrics::{Draining, TlsFailures};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn tenant(export: &str, rest: serde_json::Value) -> serde_json::Value {
        let mut tenant = serde_json::json!({
            "export": export, "namespace": null, "device": "flash", "size_bytes": 1 << 20, "is_read_only": false,
            "reads": 1000, "writes": 20, "flushes": 1, "read_bytes": 4096, "written_bytes": 4096,
            "errors": 3, "refused_requests": 2, "refused_clients": 1, "has_lost_writes": false, "iops": 1000.0,
            "spent_tokens_per_s": 100_000.0, "asked_tokens_per_s": 100_000.0, "given_tokens_per_s": 0.0,
            "received_tokens_per_s": 0.0, "read_p50_us": 90.0, "read_p95_us": 210.0,
            "write_p50_us": 30.0, "write_p95_us": 55.0, "objective": null, "reserved_tokens_per_s": 0, "window_p95_us": null, "window_p95_of": "read",
            "credit_tokens": 0, "spent_tokens": 1, "asked_tokens": 1, "given_tokens": 1, "received_tokens": 1,
            "queued": 0, "queued_tokens": 0, "in_deficit": false,
        });
        for (key, value) in rest.as_object().unwrap() {
            tenant[key] = value.clone();
        }
        tenant
    }

    fn status() -> ServerStatus {
        let tenants = [
            tenant(
                "db",
                serde_json::json!({
                    "objective": {"p95_us": 500, "iops": 20000, "read_share": 0.9},
                    "reserved_tokens_per_s": 180_000,
                    "namespace": 1, "window_p95_us": 430.4, "given_tokens_per_s": 180_000.0, "in_deficit": true,
                    "asked_tokens_per_s": 250_000.0, "queued": 1500, "queued_tokens": 150_000,
                }),
            ),
            tenant(
                "scan",
                serde_json::json!({"namespace": 7, "received_tokens_per_s": 170_000.0, "queued": 64, "writes": 0}),
            ),
        ];
        let status = serde_json::json!({
            "connections": 3, "not_reloaded": "blocks.toml:9: device.path: no such file",
            "devices": [{
                "device": "flash", "tokens_per_s": 400_000, "reserved_tokens_per_s": 180_000,
                "drift": {
                    "tokens_per_s": 300_000.0, "calibrated_p95_us": 400.0, "measured_p95_us": 700.0,
                },
            }],
            "tenants": tenants,
        });
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn tables_fit_80_columns_and_headings_one_line() {
        let shown = text(&status());
        let lines: Vec<&str> = shown.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let is_table = line.starts_with(['─', '═', ' ']);
            assert!(!is_table || line.chars().count() <= 80, "{line}");
            if line.starts_with('═') {
                assert!(lines[at - 2].starts_with('─'), "{shown}");
            }
        }
    }

    #[test]
    fn everything_about_the_tenants_is_said() {
        insta::assert_snapshot!(text(&status()));
    }

    #[test]
    fn a_missed_objective_is_marked() {
        let mut status = status();
        assert!(!text(&status).contains("above"));
        status.tenants[0].window_p95_us = Some(530.0);
        let shown = text(&status);
        assert!(shown.contains(" 530 (above) "), "{shown}");
        assert!(shown.contains("(above): above the objective."), "{shown}");
        let mut seen = Seen::default();
        seen.push(&status);
        assert!(seen.lines()[0].title.contains(" 106 % of its objective"));
        status.tenants[0].window_p95_us = None;
        seen.push(&status);
        assert!(seen.lines()[0].title.contains(" – % of its objective"));
    }

    #[test]
    fn a_device_that_may_have_lost_writes_is_named_once() {
        let mut status = status();
        assert!(!text(&status).contains("lost"));
        for tenant in &mut status.tenants {
            tenant.has_lost_writes = true;
        }
        let line = format!("\nflash: {LOST_WRITES}.\n");
        assert_eq!(text(&status).matches(&line).count(), 1);
    }

    #[test]
    fn why_tls_failed_is_said() {
        let mut status = status();
        assert!(!text(&status).contains("TLS"));
        status.tls_failures = Some(TlsFailures {
            connections: 1200,
            last_unix_s: 1_795_934_771,
            last_address: "10.0.0.7".parse().ok(),
            last_reason: "peer sent no certificates".to_owned(),
        });
        let line = "\nConnections that ended because TLS failed: 1,200. The last one, from 10.0.0.7, at \
                    2026-11-29 06:46:11 UTC: peer sent no certificates\n";
        assert!(text(&status).contains(line), "{}", text(&status));
    }

    #[test]
    fn a_drain_comes_first() {
        let mut status = status();
        status.draining = Some(Draining {
            since_unix_s: 1_795_934_771,
            left_s: 7,
            requests: 17,
        });
        let shown = text(&status);
        let expected = "The server has been draining since 2026-11-29 06:46:11 UTC: 3 connections and 17 requests are left. \
                        It ends in 7 s at the latest.\n\n";
        assert!(shown.starts_with(expected), "{shown}");
        status.connections = 1;
        assert!(text(&status).contains(": 1 connection and 17 requests are left."));
    }

    #[test]
    fn the_view_has_lines_and_tables() {
        let mut seen = Seen::default();
        seen.push(&status());
        let mut terminal = Terminal::new(TestBackend::new(100, 40)).unwrap();
        let shown = text(&status());
        terminal
            .draw(|frame| live::draw(frame, &seen.lines(), LINE_ROWS, &shown))
            .unwrap();
        let screen = terminal.backend().to_string();
        for expected in [
            "p95 of the worst tenant: 86 % of its objective",
            "IOPS of all tenants: 2,000",
            "Tokens/s of flash left to others: db 180,000.",
            "Tokens/s of flash used from others: scan 170,000.",
            "Connections: 3",
        ] {
            assert!(screen.contains(expected), "{expected}: {screen}");
        }
    }
}
