//! `cargo xtask stress workers` and `cargo xtask bench workers`: evaluations on many hosts, killed
//! and cut off, and two thousand simulated workers against one coordinator.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::cargo::{build_release, cargo};
use crate::step::Started;
use crate::{install, step};

/// One coordinator, eight workers in network namespaces, any of them killed or cut off for that
/// many minutes.
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
    name: &'static str,
    workers: usize,
    /// Seconds that a simulated evaluation takes.
    evaluation_s: f64,
    /// Before the first look.
    settle_s: f64,
    run_s: f64,
}

/// Experiments and their search in the two large scenes.
const EXPERIMENTS: usize = 100;

const SCENES: [Scene; 3] = [
    Scene {
        name: "random",
        workers: 2000,
        evaluation_s: 30.0,
        settle_s: 45.0,
        run_s: 75.0,
    },
    Scene {
        name: "bayesian",
        workers: 2000,
        evaluation_s: 60.0,
        settle_s: 75.0,
        run_s: 75.0,
    },
    Scene {
        name: "slow-ask",
        workers: 200,
        evaluation_s: 1.0,
        settle_s: 10.0,
        run_s: 30.0,
    },
];

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

    /// CPU seconds of the server's processes that are there now.
    fn cpu_s(&self) -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(self.dir.join("data/postmaster.pid"))?;
        let first: u32 = text.lines().next().unwrap_or_default().trim().parse()?;
        let children = format!("/proc/{first}/task/{first}/children");
        let children = std::fs::read_to_string(children)?;
        let pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        Ok(pids.filter_map(|pid| cpu_s(pid).ok()).sum::<f64>() + cpu_s(first)?)
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

/// Simulated workers against one coordinator, real NATS and real PostgreSQL: the scenes of these
/// names, or all.
pub(crate) fn bench(root: &Path, names: &[&str]) -> anyhow::Result<ExitCode> {
    let chosen: Vec<&Scene> = SCENES
        .iter()
        .filter(|scene| names.is_empty() || names.contains(&scene.name))
        .collect();
    if chosen.len() < names.len() {
        bail!("there are {}", SCENES.map(|scene| scene.name).join(", "));
    }
    install::install(install::TEST)?;
    let binary = build_release(root)?;
    let mut example = cargo();
    example
        .args(["build", "--release", "--package", "dispatch"])
        .args(["--example", "simulated_workers"])
        .current_dir(root);
    if !step::run("build the simulated workers (release)", &mut example)? {
        bail!("the build failed");
    }
    let simulator = binary.with_file_name("examples").join("simulated_workers");
    let kept = root.join("docs/results/workers.json");
    let mut results: Value = match std::fs::read_to_string(&kept) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(_) => json!({}),
    };
    for scene in chosen {
        println!("\n==> {}", scene.name);
        let work =
            PathBuf::from("/var/tmp").join(format!("slackline-bench-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&work);
        std::fs::create_dir_all(work.join("state"))?;
        let measured =
            Stage::start(&binary, &simulator, &work).and_then(|stage| match scene.name {
                "slow-ask" => slow_ask(&stage, scene),
                _ => many(&stage, scene),
            });
        let _ = std::fs::remove_dir_all(&work);
        let measured = measured?;
        println!("{measured:#}");
        results[scene.name] = measured;
        std::fs::write(&kept, serde_json::to_string_pretty(&results)? + "\n")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A coordinator with its PostgreSQL and NATS.
struct Stage<'a> {
    binary: &'a Path,
    simulator: &'a Path,
    work: &'a Path,
    url: String,
    // They end in this order.
    serve: Started,
    nats: Started,
    postgres: Postgres,
}

impl<'a> Stage<'a> {
    fn start(binary: &'a Path, simulator: &'a Path, work: &'a Path) -> anyhow::Result<Self> {
        let postgres = Postgres::start(&work.join("pg"))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let url = format!("nats://127.0.0.1:{port}");
        let nats = Command::new("nats-server")
            .args(["--addr", "127.0.0.1", "--port", &port.to_string()])
            .args(["--jetstream", "--store_dir"])
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
            .args(["serve", "--listen", "127.0.0.1:0", "--rate", "10000"])
            .args(["--store", &postgres.url(), "--workers"])
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let serve = Started(serve);
        let access = work.join("state/serve.json");
        let end = Instant::now() + Duration::from_secs(30);
        while !access.exists() {
            if Instant::now() > end {
                bail!("the coordinator did not start");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(Self {
            binary,
            simulator,
            work,
            url,
            serve,
            nats,
            postgres,
        })
    }

    /// `slackline experiments …`; what it prints.
    fn experiments(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(self.binary)
            .arg("--state-dir")
            .arg(self.work.join("state"))
            .arg("experiments")
            .args(arguments)
            .output()?;
        if !output.status.success() {
            bail!(
                "experiments {arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// A specification's file.
    fn file(&self, spec: &Value) -> anyhow::Result<String> {
        let file = self.work.join("experiment.json");
        std::fs::write(&file, spec.to_string())?;
        Ok(file.display().to_string())
    }

    /// Its number.
    fn create(&self, spec: &Value) -> anyhow::Result<String> {
        self.experiments(&["create", &self.file(spec)?])
    }

    fn workers(&self, scene: &Scene) -> anyhow::Result<Started> {
        let simulator = Command::new(self.simulator)
            .arg(&self.url)
            .args([scene.workers.to_string(), scene.evaluation_s.to_string()])
            .stdout(std::fs::File::create(self.work.join("simulator.log"))?)
            .spawn()?;
        Ok(Started(simulator))
    }

    fn look(&self) -> anyhow::Result<Look> {
        let ended = "SELECT COUNT(*) FROM evaluations WHERE outcome <> 'running'";
        let running = "SELECT COUNT(*) FROM evaluations WHERE outcome = 'running'";
        let size = "SELECT SUM(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = 'public' AND c.relkind = 'r'";
        Ok(Look {
            at: Instant::now(),
            ended: self.postgres.ask(ended)?,
            running: self.postgres.ask(running)?,
            blocks: self.postgres.ask("SELECT COUNT(*) FROM blocks")?,
            bytes: self.postgres.ask(size)?,
            coordinator_cpu_s: cpu_s(self.serve.0.id())?,
            postgres_cpu_s: self.postgres.cpu_s()?,
            nats_cpu_s: cpu_s(self.nats.0.id())?,
        })
    }
}

/// What there is at a moment.
struct Look {
    at: Instant,
    ended: f64,
    running: f64,
    blocks: f64,
    bytes: f64,
    coordinator_cpu_s: f64,
    postgres_cpu_s: f64,
    nats_cpu_s: f64,
}

/// Two thousand workers and a hundred experiments.
fn many(stage: &Stage<'_>, scene: &Scene) -> anyhow::Result<Value> {
    for _ in 0..EXPERIMENTS {
        stage.create(&spec(scene.name, scene.workers / EXPERIMENTS, 4))?;
    }
    let _workers = stage.workers(scene)?;
    // Until the first of them have ended.
    std::thread::sleep(Duration::from_secs_f64(scene.settle_s));
    let mut looks = vec![stage.look()?];
    for _ in 0..5 {
        std::thread::sleep(Duration::from_secs_f64(scene.run_s / 5.0));
        looks.push(stage.look()?);
    }
    let (first, last) = (&looks[0], &looks[5]);
    let took_s = last.at.duration_since(first.at).as_secs_f64();
    let evaluations = last.ended - first.ended;
    // Least squares of the size by evaluations, and the largest distance from that line.
    let mean = |of: fn(&Look) -> f64| looks.iter().map(of).sum::<f64>() / 6.0;
    let (ended, bytes) = (mean(|look| look.ended), mean(|look| look.bytes));
    let products = looks
        .iter()
        .map(|it| (it.ended - ended) * (it.bytes - bytes));
    let squares = looks.iter().map(|it| (it.ended - ended).powi(2));
    let slope = products.sum::<f64>() / squares.sum::<f64>();
    let off = |it: &Look| (it.bytes - bytes - slope * (it.ended - ended)).abs();
    let cpu = |of: fn(&Look) -> f64| (of(last) - of(first)) / took_s;
    Ok(json!({
        "workers": scene.workers,
        "measuring": last.running,
        "experiments": EXPERIMENTS,
        "evaluation_s": scene.evaluation_s,
        "seconds": took_s,
        "evaluations": evaluations,
        "evaluations_per_s": evaluations / took_s,
        "coordinator_cores": cpu(|look| look.coordinator_cpu_s),
        "coordinator_ms_per_evaluation": 1000.0 * (last.coordinator_cpu_s - first.coordinator_cpu_s) / evaluations,
        "postgres_cores": cpu(|look| look.postgres_cpu_s),
        "nats_cores": cpu(|look| look.nats_cpu_s),
        "blocks_per_evaluation": (last.blocks - first.blocks) / evaluations,
        "bytes_per_evaluation": slope,
        "bytes": looks.iter().map(|look| look.bytes).collect::<Vec<_>>(),
        "evaluations_then": looks.iter().map(|look| look.ended).collect::<Vec<_>>(),
        "largest_distance_from_the_line": looks.iter().map(off).fold(0.0, f64::max),
    }))
}

/// Experiments that search at random beside one whose `ask` takes long.
fn slow_ask(stage: &Stage<'_>, scene: &Scene) -> anyhow::Result<Value> {
    const QUICK: usize = 20;
    for _ in 0..QUICK {
        stage.create(&spec("random", 1, 4))?;
    }
    let _workers = stage.workers(scene)?;
    // From the commit of one evaluation's row to that of the next of its experiment, without the
    // evaluation itself.
    let gaps = |which: &str, since_ms: f64| -> anyhow::Result<Value> {
        let all = format!(
            "FROM (SELECT started_ms AS at, started_ms - lag(started_ms) OVER (PARTITION BY experiment ORDER BY number) \
             - {} AS gap FROM evaluations WHERE experiment {which}) g WHERE at > {since_ms} AND gap IS NOT NULL",
            1000.0 * scene.evaluation_s
        );
        let quantile = |q: f64| {
            let sql = format!("SELECT percentile_cont({q}) WITHIN GROUP (ORDER BY gap) {all}");
            stage.postgres.ask(&sql)
        };
        let count = stage.postgres.ask(&format!("SELECT COUNT(*) {all}"))?;
        Ok(
            json!({ "orders": count, "median_ms": quantile(0.5)?, "p99_ms": quantile(0.99)?, "max_ms": quantile(1.0)? }),
        )
    };
    let now = || {
        stage
            .postgres
            .ask("SELECT 1000 * EXTRACT(EPOCH FROM clock_timestamp())")
    };
    let measure = || -> anyhow::Result<(Value, f64)> {
        std::thread::sleep(Duration::from_secs_f64(scene.settle_s));
        let since = now()?;
        std::thread::sleep(Duration::from_secs_f64(scene.run_s));
        Ok((gaps(&format!("<= {QUICK}"), since)?, since))
    };
    let (alone, _) = measure()?;
    // A core less is what the slow one costs in any case.
    let burner = Started(
        Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()?,
    );
    let (beside_burner, _) = measure()?;
    drop(burner);
    // So many evaluations in twelve dimensions that a model takes long.
    let feed = stage.create(&spec("random", 150, 12))?;
    let evaluations = format!("SELECT COUNT(*) FROM evaluations WHERE experiment = {feed}");
    let end = Instant::now() + Duration::from_secs(40);
    while stage.postgres.ask(&evaluations)? < 1500.0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(500));
    }
    stage.experiments(&["stop", &feed])?;
    let prior = stage.postgres.ask(&evaluations)?;
    let slow = stage.experiments(&["fork", &feed, &stage.file(&spec("bayesian", 4, 12))?])?;
    let cpu = cpu_s(stage.serve.0.id())?;
    let (beside, since) = measure()?;
    let cpu = cpu_s(stage.serve.0.id())? - cpu;
    let of_slow = format!("FROM evaluations WHERE experiment = {slow}");
    let orders = stage.postgres.ask(&format!(
        "SELECT COUNT(*) {of_slow} AND started_ms > {since}"
    ))?;
    Ok(json!({
        "quick_experiments": QUICK,
        "evaluation_s": scene.evaluation_s,
        "quick_alone": alone,
        "quick_beside_a_busy_loop": beside_burner,
        "quick_beside_the_slow_one": beside,
        "slow_one": {
            "evaluations_of_its_prior": prior,
            "orders": orders,
            "seconds_an_order": if orders > 0.0 { json!(scene.run_s / orders) } else { Value::Null },
        },
        "coordinator_cores_beside": cpu / (scene.settle_s + scene.run_s),
    }))
}

fn spec(strategy: &str, at_once: usize, dimensions: usize) -> Value {
    // The simulated service knows the first two; the others change nothing.
    let mut parameters = vec![
        json!({ "name": "threads", "type": "int", "low": 1, "high": 64, "default": 16 }),
        json!({ "name": "buffer_kib", "type": "int", "low": 4, "high": 300, "default": 16, "scale": "log" }),
    ];
    parameters.extend((2..dimensions).map(|index| {
        json!({ "name": format!("p{index}"), "type": "float", "low": 0, "high": 1, "default": 0.5 })
    }));
    json!({
        "parameters": parameters,
        "target": { "start": ["true"] },
        "workload": { "command": ["true"], "json": { "requests": "r", "latency_p99_us": "p" } },
        "objective": { "metric": "cpu_s_per_request" },
        "constraints": ["latency_p99_us <= 1.05 * control"],
        "evaluation": { "blocks": 6, "early_abort": false },
        "budget": { "evaluations": 100_000 },
        "search": { "strategy": strategy },
        "workers": { "at_once": at_once, "labels": { "kind": "simulated" } },
    })
}
