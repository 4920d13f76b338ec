//! Real servers under their usual load generators.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wire_latency::Fine;

use crate::{DEFAULT_BUDGET, monitor, reading};

pub(crate) const NGINX_PORT: u16 = 18_080;
const TLS_PORT: u16 = 18_443;
const H2C_PORT: u16 = 18_081;
const REDIS_PORT: u16 = 18_379;
const MEMCACHED_PORT: u16 = 18_211;
const MARIADB_PORT: u16 = 18_306;
const POSTGRES_PORT: u16 = 18_432;
const SECONDS: u32 = 4;

/// A process that ends with the value.
struct Started(Child);

impl Started {
    fn new(command: &mut Command) -> Option<Self> {
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        quiet.spawn().ok().map(Self)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn wait_for(port: u16) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    true
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(
        |_| String::new(),
        |it| String::from_utf8_lossy(&it.stdout).into_owned(),
    )
}

/// What a load generator says.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) requests: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

/// `1.23ms` and the like.
fn time_us(text: &str) -> Option<f64> {
    let end = text.find(|c: char| c.is_alphabetic() || c == 'µ')?;
    let number: f64 = text[..end].parse().ok()?;
    Some(
        number
            * match &text[end..] {
                "us" | "µs" => 1.0,
                "ms" => 1e3,
                _ => 1e6,
            },
    )
}

fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    text.split(label).nth(1)?.split_whitespace().next()
}

fn temporary(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("slackline-wire-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder");
    path
}

/// nginx on three ports: HTTP/1, TLS with HTTP/1 and HTTP/2, HTTP/2 without TLS.
pub(crate) struct Nginx(PathBuf, Option<Started>);

impl Nginx {
    pub(crate) fn start() -> Self {
        let dir = temporary("nginx");
        let at = |name: &str| dir.join(name).display().to_string();
        output(
            "openssl",
            &[
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                &at("key"),
                "-out",
                &at("certificate"),
            ],
        );
        let answer = "location / { return 200 \"0123456789\"; }";
        let text = format!(
            "daemon off; pid {}; error_log /dev/null; worker_processes 1; events {{}}\nhttp {{ access_log off; \
             keepalive_requests 1000000;\nserver {{ listen 127.0.0.1:{NGINX_PORT}; {answer} }}\n\
             server {{ listen 127.0.0.1:{H2C_PORT} http2; {answer} }}\n\
             server {{ listen 127.0.0.1:{TLS_PORT} ssl http2; ssl_certificate {}; ssl_certificate_key {}; {answer} }} }}",
            at("pid"),
            at("certificate"),
            at("key")
        );
        std::fs::write(dir.join("conf"), text).expect("a configuration");
        let started = Started::new(Command::new("nginx").arg("-c").arg(dir.join("conf")));
        wait_for(NGINX_PORT);
        Self(dir, started)
    }

    pub(crate) fn wrk(&self, seconds: u32) -> Said {
        wrk(&format!("http://127.0.0.1:{NGINX_PORT}/"), seconds)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.1 = None;
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn wrk(url: &str, seconds: u32) -> Said {
    let text = output(
        "wrk",
        &["-t1", "-c8", &format!("-d{seconds}"), "--latency", url],
    );
    Said {
        requests: text
            .lines()
            .find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok())
            .unwrap_or(0.0),
        p50_us: after(&text, "50%").and_then(time_us),
        p99_us: after(&text, "99%").and_then(time_us),
    }
}

fn h2load(url: &str, streams: u32) -> Said {
    let (duration, streams) = (format!("-D{SECONDS}"), format!("-m{streams}"));
    let text = output("h2load", &["-c8", "-t1", &duration, &streams, url]);
    Said {
        requests: after(&text, "requests:")
            .and_then(|it| it.parse().ok())
            .unwrap_or(0.0),
        // min, max, mean: no percentile.
        ..Said::default()
    }
}

/// Four connections, each with one request at a time.
fn memcached_client() -> Said {
    let one = || {
        let mut stream = TcpStream::connect(("127.0.0.1", MEMCACHED_PORT)).expect("memcached");
        stream.set_nodelay(true).expect("no delay");
        let (mut took, mut buffer) = (Fine::default(), [0; 256]);
        let end = Instant::now() + Duration::from_secs(SECONDS.into());
        while Instant::now() < end {
            let began = Instant::now();
            stream.write_all(b"get nothing\r\n").expect("a request");
            let length = stream.read(&mut buffer).expect("an answer");
            assert_eq!(&buffer[..length], b"END\r\n");
            took.record_ns(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        took
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(one)).collect();
    let mut all = Fine::default();
    for thread in threads {
        all.merge(&thread.join().expect("a client"));
    }
    Said {
        requests: all.requests() as f64,
        p50_us: all.quantile_us(0.5),
        p99_us: all.quantile_us(0.99),
    }
}

fn redis_benchmark(pipeline: u32) -> Said {
    let (port, pipeline) = (REDIS_PORT.to_string(), pipeline.to_string());
    let arguments = [
        "-p", &port, "-t", "get", "-n", "100000", "-c", "8", "-P", &pipeline, "--csv",
    ];
    let text = output("redis-benchmark", &arguments);
    // "test","rps","avg_latency_ms","min","p50","p95","p99","max"
    let cells: Vec<f64> = text
        .lines()
        .last()
        .unwrap_or_default()
        .split(',')
        .filter_map(|cell| cell.trim_matches('"').parse().ok())
        .collect();
    Said {
        requests: 100_000.0,
        p50_us: cells.get(3).map(|ms| 1000.0 * ms),
        p99_us: cells.get(5).map(|ms| 1000.0 * ms),
    }
}

fn mariadb(dir: &Path) -> Option<Started> {
    let data = format!("--datadir={}", dir.join("data").display());
    output(
        "mariadb-install-db",
        &[
            "--no-defaults",
            "--user=root",
            &data,
            "--auth-root-authentication-method=normal",
        ],
    );
    let (port, socket) = (
        format!("--port={MARIADB_PORT}"),
        format!("--socket={}/s", dir.display()),
    );
    let arguments = [
        "--no-defaults",
        "--user=root",
        &data,
        &port,
        &socket,
        "--bind-address=127.0.0.1",
    ];
    let started = Started::new(Command::new("mariadbd").args(arguments));
    wait_for(MARIADB_PORT);
    output(
        "mariadb",
        &[
            "-uroot",
            &format!("-S{}/s", dir.display()),
            "-e",
            "create database sbtest",
        ],
    );
    started
}

fn sysbench(step: &str) -> Said {
    let (port, time) = (
        format!("--mysql-port={MARIADB_PORT}"),
        format!("--time={SECONDS}"),
    );
    let arguments = [
        "oltp_point_select",
        "--mysql-host=127.0.0.1",
        &port,
        "--mysql-user=root",
        "--threads=4",
        "--table-size=1000",
        "--percentile=99",
        &time,
        step,
    ];
    let text = output("sysbench", &arguments);
    Said {
        requests: after(&text, "read:")
            .and_then(|it| it.parse().ok())
            .unwrap_or(0.0),
        p50_us: None,
        p99_us: after(&text, "99th percentile:")
            .and_then(|it| it.parse::<f64>().ok())
            .map(|ms| 1000.0 * ms),
    }
}

fn postgres(dir: &Path) -> Option<Started> {
    let bin = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .flatten()
        .next()?
        .path()
        .join("bin");
    output("chown", &["-R", "postgres", &dir.display().to_string()]);
    let as_user = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("runuser");
        command
            .args(["-u", "postgres", "--"])
            .arg(bin.join(program))
            .args(arguments);
        command
    };
    let data = dir.join("data").display().to_string();
    as_user("initdb", &["-D", &data, "-A", "trust"])
        .output()
        .ok()?;
    let (port, socket) = (POSTGRES_PORT.to_string(), dir.display().to_string());
    let started = Started::new(&mut as_user(
        "postgres",
        &["-D", &data, "-p", &port, "-k", &socket],
    ));
    wait_for(POSTGRES_PORT);
    std::thread::sleep(Duration::from_secs(1));
    pgbench(&["-i", "-s", "1"]);
    started
}

fn pgbench(arguments: &[&str]) -> String {
    let port = POSTGRES_PORT.to_string();
    let all = [
        &["-h", "127.0.0.1", "-p", &port, "-U", "postgres"],
        arguments,
        &["postgres"],
    ]
    .concat();
    output("pgbench", &all)
}

fn pgbench_select(mode: &str) -> Said {
    let time = SECONDS.to_string();
    let text = pgbench(&["-S", "-c", "4", "-T", &time, "-M", mode]);
    Said {
        requests: after(&text, "actually processed:")
            .and_then(|it| it.parse().ok())
            .unwrap_or(0.0),
        ..Said::default()
    }
}

/// A row: what the wire shows while the load runs.
fn row(text: &mut String, name: &str, port: u16, load: impl FnOnce() -> Said) {
    let monitor = monitor(port, DEFAULT_BUDGET);
    let said = load();
    let shown = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"));
    let line = match reading(&monitor) {
        Some(reading) => {
            let percentile = |of: f64| shown(reading.percentile(of).map(|it| it.value_us));
            let counts = reading.counts;
            format!(
                "| {name} | {:.0} | {} ({:.0} %) | {} / {} | {} / {} | {} | {} | {} | {:.4} |",
                said.requests,
                reading.requests,
                100.0 * reading.sampled_share,
                percentile(50.0),
                shown(said.p50_us),
                percentile(99.0),
                shown(said.p99_us),
                counts.ambiguous,
                counts.bounded,
                counts.dropped,
                reading.own_cpu_cores
            )
        }
        None => {
            let why = monitor
                .look()
                .err()
                .map_or_else(String::new, |no_data| no_data.to_string());
            format!(
                "| {name} | {:.0} | no data: {why} | | | | | | |",
                said.requests
            )
        }
    };
    crate::say(&line);
    let _ = writeln!(text, "{line}");
}

/// All servers that are installed.
pub(crate) fn table() -> String {
    let mut text = String::from(
        "\n`cargo xtask bench wire-latency servers`. The load generator's percentiles include its own waiting and that of the network. On a machine with 2 cores, \
         both are a large part of the latency. The budget is 0.01 core. *Ambiguous* counts requests whose answer \
         could not be assigned. *Bounded* counts requests whose latency is known only as an upper bound. *Dropped* \
         counts packets for which the kernel had no room.\n\n\
         | server, load | requests sent | seen (share looked at) | p50, µs: wire / generator | p99, µs: wire / generator | \
         ambiguous | bounded | dropped | CPU, cores |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    {
        let nginx = Nginx::start();
        row(&mut text, "nginx, HTTP/1, wrk", NGINX_PORT, || {
            nginx.wrk(SECONDS)
        });
        let tls = format!("https://127.0.0.1:{TLS_PORT}/");
        row(&mut text, "nginx, TLS, wrk", TLS_PORT, || {
            wrk(&tls, SECONDS)
        });
        row(
            &mut text,
            "nginx, HTTP/2 in TLS, h2load, 1 stream",
            TLS_PORT,
            || h2load(&tls, 1),
        );
        let h2c = format!("http://127.0.0.1:{H2C_PORT}/");
        row(
            &mut text,
            "nginx, HTTP/2, h2load, 1 stream",
            H2C_PORT,
            || h2load(&h2c, 1),
        );
        row(
            &mut text,
            "nginx, HTTP/2, h2load, 8 streams",
            H2C_PORT,
            || h2load(&h2c, 8),
        );
    }
    let port = MEMCACHED_PORT.to_string();
    let memcached = ["-u", "nobody", "-l", "127.0.0.1", "-p", &port];
    if let Some(_server) = Started::new(Command::new("memcached").args(memcached))
        && wait_for(MEMCACHED_PORT)
    {
        row(
            &mut text,
            "memcached, 4 connections",
            MEMCACHED_PORT,
            memcached_client,
        );
    }
    let port = REDIS_PORT.to_string();
    let redis = ["--port", &port, "--save", "", "--bind", "127.0.0.1"];
    if let Some(_server) = Started::new(Command::new("redis-server").args(redis))
        && wait_for(REDIS_PORT)
    {
        row(&mut text, "Redis, redis-benchmark", REDIS_PORT, || {
            redis_benchmark(1)
        });
        row(
            &mut text,
            "Redis, redis-benchmark -P 16",
            REDIS_PORT,
            || redis_benchmark(16),
        );
    }
    let dir = temporary("mariadb");
    if let Some(_server) = mariadb(&dir) {
        sysbench("prepare");
        row(
            &mut text,
            "MariaDB, sysbench point selects",
            MARIADB_PORT,
            || sysbench("run"),
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
    let dir = temporary("postgres");
    if let Some(_server) = postgres(&dir) {
        row(&mut text, "PostgreSQL, pgbench -S", POSTGRES_PORT, || {
            pgbench_select("simple")
        });
        row(
            &mut text,
            "PostgreSQL, pgbench -S -M prepared",
            POSTGRES_PORT,
            || pgbench_select("prepared"),
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
    text
}
