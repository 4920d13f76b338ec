//! `cargo xtask bench fleet`: what `slackline throttle fleet` costs a Prometheus that holds a
//! simulated fleet of recorded shapes.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::cargo::build_release;
use crate::{install, simulated_fleet, step};

/// A sample a minute for ten minutes.
const STEP_S: u64 = 60;
const STEPS: u64 = 10;

/// Makes the fleet, asks, and writes figures and page into `docs/results/`.
pub(crate) fn run(root: &Path, options: &[&str]) -> anyhow::Result<ExitCode> {
    let (services, shards) = match options {
        [] => (500, 100),
        [services, shards] => (services.parse()?, shards.parse()?),
        _ => bail!("usage: cargo xtask bench fleet [SERVICES SHARDS]"),
    };
    install::install(install::BENCH_FLEET)?;
    let binary = build_release(root)?;
    let work = root.join("target/bench/fleet");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let shapes = root.join("crates/slackline/tests/blackbox/fleet/shapes.txt");
    let shapes = fs::read_to_string(&shapes).with_context(|| shapes.display().to_string())?;
    let text = work.join("fleet.om");
    println!("==> {services} services in {shards} shards each, as text");
    let mut out = BufWriter::new(File::create(&text)?);
    let series = simulated_fleet::write(
        &mut out,
        &simulated_fleet::shapes(&shapes),
        services,
        shards,
        STEP_S,
        STEPS,
    )?;
    drop(out);
    let mut make = Command::new("promtool");
    make.args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
        .args([&text, &work.join("tsdb")]);
    if !step::run("a database of it", &mut make)? {
        bail!("promtool failed");
    }
    fs::remove_file(&text)?;
    let server = Server::start(&work)?;
    let results = root.join("docs/results");
    let mut rows = String::new();
    for run in 0..3 {
        let before = server.figures()?;
        let start = Instant::now();
        let at = (simulated_fleet::START_S + STEPS * STEP_S).to_string();
        let output = Command::new(&binary)
            .args([
                "throttle",
                "fleet",
                "--prometheus",
                &server.url(),
                "--at",
                &at,
            ])
            .args(["--window-s", "600", "--json", "-", "--html"])
            .arg(results.join("fleet.html"))
            .output()?;
        let took = start.elapsed();
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let after = server.figures()?;
        let json = String::from_utf8_lossy(&output.stdout);
        let queries = json
            .lines()
            .find_map(|line| line.trim().strip_prefix("\"queries\": "));
        let _ = writeln!(
            rows,
            "| {} | {:.1} s | {} | {:.1} s | {:.0} MiB |",
            [
                "first, nothing in Prometheus' page cache",
                "second",
                "third"
            ][run],
            took.as_secs_f64(),
            queries.unwrap_or("?").trim_end_matches(','),
            after.cpu_s - before.cpu_s,
            after.resident_bytes / 1_048_576.0
        );
    }
    let mut file = File::create(results.join("fleet.md"))?;
    write!(
        file,
        "# What a fleet's ranking costs Prometheus\n\n\
         `cargo xtask bench fleet {services} {shards}`: {services} services with {shards} shards (instances) each, {series} series, \
         a sample every {STEP_S} s for {} s. The series have six recorded shapes at four sizes \
         (`crates/slackline/tests/blackbox/fleet/shapes.txt`: real groups with real loads, recorded by `slackline agent` \
         for 30 s). Only the number of services and shards is simulated. {}\n\n\
         | run of `slackline throttle fleet` | took | queries | CPU time of Prometheus | Prometheus' memory afterwards |\n\
         |---|---|---|---|---|\n{rows}\n\
         The number of samples that are read grows with the window divided by the scrape interval. A query of histograms reads at \
         most about 20,000 series. The other queries read one or two series for each shard. `throttle fleet --html` wrote \
         [this page](fleet.html).\n",
        STEPS * STEP_S,
        machine()
    )?;
    println!("{rows}");
    Ok(ExitCode::SUCCESS)
}

fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let version = Command::new("prometheus").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = version.unwrap_or_default();
    let version = version.split(" (").next().unwrap_or_default();
    format!("{cpus} virtual cores, Linux {}, {version}.", kernel.trim())
}

struct Server {
    child: Child,
    address: String,
}

struct Figures {
    cpu_s: f64,
    resident_bytes: f64,
}

impl Server {
    fn start(work: &Path) -> anyhow::Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        fs::write(work.join("prometheus.yml"), "global: {}\n")?;
        let child = Command::new("prometheus")
            .current_dir(work)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
            .args(["--storage.tsdb.retention.time=100y", "--log.level=error"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .spawn()
            .context("prometheus")?;
        let server = Self { child, address };
        let end = Instant::now() + Duration::from_secs(120);
        while !server
            .get("/-/ready")
            .is_ok_and(|answer| answer.contains(" 200 "))
        {
            if Instant::now() > end {
                bail!("Prometheus did not become ready");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(server)
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address)?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn figures(&self) -> anyhow::Result<Figures> {
        let text = self.get("/metrics")?;
        let value = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse().ok())
                .with_context(|| format!("Prometheus has no {name}"))
        };
        Ok(Figures {
            cpu_s: value("process_cpu_seconds_total")?,
            resident_bytes: value("process_resident_memory_bytes")?,
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
