//! `cargo xtask stress workers` and `cargo xtask bench workers`: evaluations on many hosts, killed and cut off, and two
//! thousand simulated workers against one coordinator.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::step::Started;
use crate::{build_release, cargo, install, step};

/// One coordinator, eight workers in network namespaces, any of them killed or cut off for that many minutes.
pub(crate) fn stress(root: &Path, minutes: &str) -> anyhow::Result<ExitCode> {
    let _: f64 = minutes.parse().context("--minutes N")?;
    install::install(install::TEST)?;
    let mut tests = cargo();
    tests
        .args(["test", "--package", "slackline", "--test", "blackbox", "--"])
        .args(["workers::killed_and_cut_off", "--nocapture"])
        .env("SLACKLINE_STRESS_MINUTES", minutes)
        .current_dir(root);
    Ok(match step::run("stress workers", &mut tests)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// What is simulated.
struct Scene {
    workers: usize,
    experiments: usize,
    /// Seconds that a simulated evaluation takes.
    evaluation_s: f64,
    strategy: &'static str,
    run_s: u64,
}

/// A PostgreSQL server in a directory, which is stopped with the bench.
struct Postgres {
    bin: PathBuf,
    dir: PathBuf,
}

impl Postgres {
    fn start(dir: &Path) -> anyhow::Result<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql")?.flatten();
        let bin = versions
            .map(|version| version.path().join("bin"))
            .find(|bin| bin.join("initdb").exists())
            .context("PostgreSQL's server is missing")?;
        std::fs::create_dir_all(dir)?;
        let server = Self {
            bin,
            dir: dir.to_owned(),
        };
        if !Command::new("chown")
            .arg("postgres")
            .arg(dir)
            .status()?
            .success()
        {
            bail!("{} cannot be given to postgres", dir.display());
        }
        server.run("initdb", &["-A", "trust", "-U", "postgres"])?;
        let socket = format!(
            "-c listen_addresses='' -c unix_socket_directories='{}'",
            dir.display()
        );
        let log = dir.join("log").display().to_string();
        server.run("pg_ctl", &["-w", "-l", &log, "-o", &socket, "start"])?;
        Ok(server)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let status = Command::new("setpriv")
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(self.bin.join(program))
            .arg("-D")
            .arg(self.dir.join("data"))
            .args(arguments)
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("{program} {arguments:?} ended with {status}");
        }
        Ok(())
    }

    fn url(&self) -> String {
        format!(
            "postgresql:///postgres?host={}&user=postgres",
            self.dir.display()
        )
    }

    /// One number.
    fn ask(&self, sql: &str) -> anyhow::Result<f64> {
        let output = Command::new(self.bin.join("psql"))
            .args(["-h"])
            .arg(&self.dir)
            .args(["-U", "postgres", "-At", "-c", sql])
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim()
            .parse()
            .with_context(|| format!("{sql}: {text}"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.run("pg_ctl", &["-w", "-m", "fast", "stop"]);
    }
}

/// CPU seconds of a process so far: utime and stime of proc_pid_stat(5), in ticks of 10 ms.
fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    // Fields 14 and 15; the third is the first after the name.
    let (user, system) = (ticks(11).unwrap_or(0.0), ticks(12).unwrap_or(0.0));
    Ok((user + system) / 100.0)
}

/// Two thousand simulated workers and a hundred experiments against one coordinator, real NATS and real PostgreSQL.
pub(crate) fn bench(root: &Path) -> anyhow::Result<ExitCode> {
    install::install(install::TEST)?;
    let binary = build_release(root)?;
    let mut example = cargo();
    example
        .args([
            "build",
            "--release",
            "--package",
            "dispatch",
            "--example",
            "simulated_workers",
        ])
        .current_dir(root);
    if !step::run("build the simulated workers (release)", &mut example)? {
        bail!("the build failed");
    }
    let simulator = binary.with_file_name("examples").join("simulated_workers");
    let mut text = String::from(
        "| strategy | workers | experiments | evaluation | evaluations/s | coordinator CPU | per evaluation | PostgreSQL CPU | NATS CPU |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let scenes = [
        Scene {
            workers: 2000,
            experiments: 100,
            evaluation_s: 30.0,
            strategy: "random",
            run_s: 75,
        },
        Scene {
            workers: 2000,
            experiments: 100,
            evaluation_s: 60.0,
            strategy: "bayesian",
            run_s: 100,
        },
    ];
    for scene in scenes {
        text.push_str(&run(&binary, &simulator, &scene)?);
    }
    println!("\n{text}");
    Ok(ExitCode::SUCCESS)
}

fn run(binary: &Path, simulator: &Path, scene: &Scene) -> anyhow::Result<String> {
    let work = PathBuf::from("/var/tmp").join(format!("slackline-bench-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir_all(work.join("state"))?;
    let measured = measure(binary, simulator, scene, &work);
    let _ = std::fs::remove_dir_all(&work);
    measured
}

fn measure(binary: &Path, simulator: &Path, scene: &Scene, work: &Path) -> anyhow::Result<String> {
    let postgres = Postgres::start(&work.join("pg"))?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let url = format!("nats://127.0.0.1:{port}");
    let nats = Command::new("nats-server")
        .args([
            "--addr",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--jetstream",
            "--store_dir",
        ])
        .arg(work.join("jetstream"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("nats-server")?;
    let nats = Started(nats);
    let config = work.join("workers.toml");
    std::fs::write(&config, format!("lease_s = 60\n[nats]\nurl = \"{url}\"\n"))?;
    let serve = Command::new(binary)
        .arg("--state-dir")
        .arg(work.join("state"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--rate",
            "10000",
            "--store",
            &postgres.url(),
            "--workers",
        ])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let serve = Started(serve);
    let spec = work.join("experiment.json");
    std::fs::write(&spec, self::spec(scene).to_string())?;
    let access = work.join("state/serve.json");
    let end = Instant::now() + Duration::from_secs(30);
    while !access.exists() {
        if Instant::now() > end {
            bail!("the coordinator did not start");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for _ in 0..scene.experiments {
        let made = Command::new(binary)
            .arg("--state-dir")
            .arg(work.join("state"))
            .args(["experiments", "create"])
            .arg(&spec)
            .stdout(Stdio::null())
            .status()?;
        if !made.success() {
            bail!("no experiment could be made");
        }
    }
    let _simulator = Started(
        Command::new(simulator)
            .args([
                &url,
                &scene.workers.to_string(),
                &scene.evaluation_s.to_string(),
            ])
            .stdout(std::fs::File::create(work.join("simulator.log"))?)
            .spawn()?,
    );
    // Until the first of them have ended.
    std::thread::sleep(Duration::from_secs_f64(scene.evaluation_s + 15.0));
    let ended = "SELECT COUNT(*) FROM evaluations WHERE outcome <> 'running'";
    let size = "SELECT SUM(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                WHERE n.nspname = 'public' AND c.relkind = 'r'";
    let blocks = "SELECT COUNT(*) FROM blocks";
    let database_cpu = || -> anyhow::Result<f64> {
        let output = Command::new("pgrep").args(["-u", "postgres"]).output()?;
        let pids = String::from_utf8_lossy(&output.stdout);
        let pids = pids.split_whitespace().filter_map(|pid| pid.parse().ok());
        Ok(pids.filter_map(|pid| cpu_s(pid).ok()).sum())
    };
    let look = || -> anyhow::Result<[f64; 7]> {
        Ok([
            postgres.ask(ended)?,
            cpu_s(serve.0.id())?,
            database_cpu()?,
            cpu_s(nats.0.id())?,
            postgres.ask(size)?,
            postgres.ask(blocks)?,
            postgres.ask("SELECT COUNT(*) FROM evaluations WHERE outcome = 'running'")?,
        ])
    };
    let (began, first) = (Instant::now(), look()?);
    std::thread::sleep(Duration::from_secs(scene.run_s));
    let last = look()?;
    let took_s = began.elapsed().as_secs_f64();
    let by = |index: usize| last[index] - first[index];
    let mut row = String::new();
    writeln!(
        row,
        "| {} | {} ({:.0} measuring) | {} | {} s | {:.1} | {:.0} % of a core | {:.2} ms | {:.0} % | {:.0} % |",
        scene.strategy,
        scene.workers,
        last[6],
        scene.experiments,
        scene.evaluation_s,
        by(0) / took_s,
        100.0 * by(1) / took_s,
        1000.0 * by(1) / by(0),
        100.0 * by(2) / took_s,
        100.0 * by(3) / took_s,
    )?;
    println!(
        "{}: {:.0} evaluations with {:.0} blocks in {took_s:.0} s; the tables grew from {:.0} to {:.0} KiB: {:.0} bytes an evaluation",
        scene.strategy,
        by(0),
        by(5),
        first[4] / 1024.0,
        last[4] / 1024.0,
        by(4) / by(0),
    );
    print!("{row}");
    Ok(row)
}

fn spec(scene: &Scene) -> Value {
    json!({
        "parameters": [
            { "name": "threads", "type": "int", "low": 1, "high": 64, "default": 16 },
            { "name": "buffer_kib", "type": "int", "low": 4, "high": 300, "default": 16, "scale": "log" },
            { "name": "a", "type": "float", "low": 0, "high": 1, "default": 0.5 },
            { "name": "b", "type": "float", "low": 0, "high": 1, "default": 0.5 },
        ],
        "target": { "start": ["true"] },
        "workload": { "command": ["true"], "json": { "requests": "r", "latency_p99_us": "p" } },
        "objective": { "metric": "cpu_s_per_request" },
        "constraints": ["latency_p99_us <= 1.05 * control"],
        "evaluation": { "blocks": 6, "early_abort": false },
        "budget": { "evaluations": 100_000 },
        "search": { "strategy": scene.strategy },
        "workers": { "at_once": scene.workers / scene.experiments, "labels": { "kind": "simulated" } },
    })
}
