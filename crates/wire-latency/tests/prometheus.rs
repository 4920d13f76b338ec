//! A real Prometheus, which measures its own requests: its page of metrics scraped, and itself
//! asked.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's helpers fail with it, and say what is left out"
)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wire_latency::{
    Monitor, NoData, PrometheusSpec, Reading, ScrapeSpec, SourceSpec, Surroundings, Unit,
    WindowRules,
};

const RULES: WindowRules = WindowRules {
    length: Duration::from_secs(600),
    minimum_requests: 20,
    stale_after: Duration::from_secs(3),
};
const PATIENCE: Duration = Duration::from_secs(60);
const HISTOGRAM: &str = "prometheus_http_request_duration_seconds";

/// A server that ends with the test.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// `None`, with a line on standard output, where Prometheus is not installed.
    fn start(directory: &std::path::Path) -> Option<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let configuration = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: itself\n    static_configs:\n      \
             - targets: ['{address}']\n"
        );
        std::fs::write(directory.join("prometheus.yml"), configuration).unwrap();
        let child = Command::new("prometheus")
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                assert!(std::env::var_os("SLACKLINE_CI").is_none(), "{error}");
                println!("SKIP: prometheus: {error}");
                return None;
            }
        };
        let server = Self { child, address };
        let began = Instant::now();
        while !server.get("/-/ready").contains(" 200 ") {
            assert!(began.elapsed() < PATIENCE, "Prometheus does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(server)
    }

    /// The answer, or nothing.
    fn get(&self, path: &str) -> String {
        let mut answer = String::new();
        let Ok(mut stream) = TcpStream::connect(self.address) else {
            return answer;
        };
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    fn monitor(&self, spec: &SourceSpec) -> Monitor {
        let every = Duration::from_millis(100);
        let monitor = Monitor::start(spec, &Surroundings::default(), RULES, every).unwrap();
        assert!(monitor.description().contains(&self.address.to_string()));
        monitor
    }

    /// Sends requests until there is a figure.
    fn wait_for_figure(&self, monitor: &Monitor) -> Reading {
        let began = Instant::now();
        loop {
            match monitor.look() {
                Ok(reading) => return reading,
                Err(NoData::Starting | NoData::Thin { .. } | NoData::Idle { .. }) => {}
                Err(other) => panic!("{other}"),
            }
            assert!(began.elapsed() < PATIENCE, "{:?}", monitor.look());
            assert!(self.get("/api/v1/query?query=1").contains(" 200 "));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_real_prometheus_is_scraped_and_asked_and_its_end_is_no_data() {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = Server::start(directory.path()) else {
        return;
    };
    let url = format!("http://{}", server.address);
    let scrape = SourceSpec::Scrape(ScrapeSpec {
        url: format!("{url}/metrics"),
        histogram: HISTOGRAM.to_owned(),
        labels: [("handler".to_owned(), "/api/v1/query".to_owned())].into(),
        unit: Unit::Seconds,
    });
    // The series has to be there before its gain can be seen.
    server.get("/api/v1/query?query=1");
    let asks = |query: String, requests: Option<String>| {
        SourceSpec::Prometheus(PrometheusSpec {
            url: url.clone(),
            query,
            requests,
            window_s: None,
            unit: Unit::Seconds,
        })
    };
    let buckets = format!("sum by (le) (increase({HISTOGRAM}_bucket[20s]))");
    let count = format!("sum(increase({HISTOGRAM}_count[20s]))");
    let number = format!("histogram_quantile(0.99, {buckets})");
    let monitors = [
        server.monitor(&scrape),
        server.monitor(&asks(buckets, None)),
        server.monitor(&asks(number, Some(count))),
    ];
    for monitor in &monitors {
        let reading = server.wait_for_figure(monitor);
        assert!(reading.requests >= 20, "{reading:?}");
        let p99 = reading.percentile(99.0).unwrap();
        assert!(p99.value_us > 0.0 && p99.value_us < 60e6, "{p99:?}");
    }
    assert!((monitors[1].look().unwrap().window_s - 20.0).abs() < 1e-9);
    let median = |monitor: &Monitor| monitor.look().unwrap().percentile(50.0);
    assert!(
        median(&monitors[1]).is_some(),
        "buckets give each percentile"
    );
    assert!(
        median(&monitors[2]).is_none(),
        "a number is its own percentile alone"
    );
    drop(server);
    let began = Instant::now();
    for monitor in &monitors {
        let why = loop {
            assert!(began.elapsed() < PATIENCE);
            match monitor.look() {
                Err(NoData::Stale { why, .. }) => break why,
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        assert!(why.is_some(), "a stale figure says why");
    }
}
