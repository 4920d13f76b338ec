//! The parts about many tenants: an objective beside a greedy writer, fairness, the scheduler's price.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block_load::generator::{self, Arrivals, Load};
use block_load::nbd::Nbd;
use qos::{Curve, Objective, Operation, Request, Scheduler, TenantSpec};

use crate::servers::{Server, next_port};
use crate::{Bench, Fallible};

const HALF_BYTES: u64 = 2 << 30;
/// Share of what the device takes at the objective that the tenant reserves, and share of its
/// reservation that the tenant asks for.
const RESERVED: f64 = 0.3;
const ASKED: f64 = 0.9;
const READ_SHARE: f64 = 0.9;
/// Requests that the writer keeps under way.
const WRITER_DEPTH: u32 = 64;
/// Seconds of each run with an objective.
const OBJECTIVE_S: u64 = 6;
const TENANTS: usize = 1000;
/// Connections of a tenant: 1 to 19, so that 1,000 tenants have about 10,000.
const CONNECTIONS_MAX: usize = 19;

/// What the calibration of the file says.
struct Calibrated {
    write_cost: f64,
    rate: f64,
    objective: Objective,
}

impl Bench {
    fn calibrated(&self, path: &std::path::Path, json: &std::path::Path) -> Fallible<Calibrated> {
        let picture = json.with_extension("svg");
        let status = std::process::Command::new(&self.slackline)
            .args(["serve-block", "calibrate"])
            .arg(path)
            .args([
                "--write-area",
                "2GiB:2GiB",
                "--seconds",
                "0.5",
                "--loads",
                "9",
                "--json",
            ])
            .arg(json)
            .arg("--picture")
            .arg(picture)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()?;
        if !status.success() {
            return Err("the file cannot be calibrated".into());
        }
        let text: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json)?)?;
        let curve: Curve = serde_json::from_value(text["curve"].clone())?;
        let write_cost = text["write_cost"].as_f64().ok_or("no write_cost")?;
        let column = curve.mixed.ok_or("no writes were calibrated")?;
        // Half a millisecond, or what the device can do at nine tenths of its highest rate.
        let at_most = column.p95_us_at(0.9 * column.max_tokens_per_s());
        let p95_us = 500.0_f64.max(at_most.ceil());
        let rate = column
            .tokens_per_s_at(p95_us)
            .ok_or("the objective is too strict")?;
        let each = READ_SHARE * 100.0 + (1.0 - READ_SHARE) * write_cost;
        let iops = (RESERVED * rate / each) as u32;
        Ok(Calibrated {
            write_cost,
            rate,
            objective: Objective {
                p95_us: p95_us as u32,
                iops,
                read_share: READ_SHARE,
            },
        })
    }

    /// A tenant with an objective beside a writer that takes all it gets, on the disk.
    pub(crate) fn objectives(&mut self) -> Fallible<()> {
        let path = self.file()?;
        let json = self.work.join("calibration.json");
        let known = self.calibrated(&path, &json)?;
        let Objective { p95_us, iops, .. } = known.objective;
        let reserved = RESERVED * known.rate;
        let left_iops = (known.rate - reserved) / known.write_cost;
        println!(
            "objective: {p95_us} µs at {iops} IOPS; a write costs {}; {:.0} tokens/s at {p95_us} µs, which leave {left_iops:.0} writes/s",
            known.write_cost, known.rate
        );
        let name = format!("{p95_us} µs, {iops} IOPS, beside a writer");
        for round in 0..self.rounds {
            for case in [
                "serve-block",
                "no objective",
                "qemu-storage-daemon, throttled",
                "qemu-storage-daemon",
            ] {
                let server = match case {
                    "serve-block" => self.two_tenants(&path, Some((&known, &json)))?,
                    "no objective" => self.two_tenants(&path, None)?,
                    _ => {
                        two_daemon_tenants(&path, case.ends_with("throttled").then_some(left_iops))?
                    }
                };
                let mut reader = self.load(
                    Arrivals::Open {
                        iops: ASKED * f64::from(iops),
                        depth_max: 256,
                    },
                    READ_SHARE,
                    4096,
                    HALF_BYTES,
                );
                reader.seed = round as u64;
                // The scheduler finds the device's rate in the first seconds.
                reader.warm_up = Duration::from_secs(2);
                reader.duration = Duration::from_secs(OBJECTIVE_S);
                let mut writer = Load {
                    arrivals: Arrivals::Closed {
                        depth: WRITER_DEPTH,
                    },
                    read_share: 0.0,
                    ..reader.clone()
                };
                writer.seed += 1000;
                let mut loads = [
                    (Nbd::connect(server.address, "critical", 1)?, reader),
                    (Nbd::connect(server.address, "greedy", 1)?, writer),
                ];
                let outcomes = generator::run_together(&mut loads)?;
                let [critical, greedy] = outcomes.as_slice() else {
                    unreachable!()
                };
                let windows = &critical.windows_p95_us;
                let held = windows
                    .iter()
                    .filter(|&&us| us <= f64::from(p95_us))
                    .count();
                let share = held as f64 / windows.len().max(1) as f64;
                self.rows
                    .add("objectives", &name, case, "seconds_held", share);
                self.rows.add(
                    "objectives",
                    &name,
                    case,
                    "p95_us",
                    critical.read_us(0.95).unwrap_or(f64::NAN),
                );
                self.rows
                    .add("objectives", &name, case, "iops", critical.iops());
                self.rows
                    .add("objectives", &name, case, "writer_iops", greedy.iops());
                self.rows.add(
                    "objectives",
                    &name,
                    case,
                    "writer_of_what_is_left",
                    greedy.iops() / left_iops,
                );
            }
        }
        Ok(())
    }

    fn two_tenants(
        &self,
        path: &std::path::Path,
        known: Option<(&Calibrated, &std::path::Path)>,
    ) -> Fallible<Server> {
        let mut config = format!("[[device]]\nname = \"d\"\npath = {path:?}\n");
        let mut objective = String::new();
        if let Some((known, json)) = known {
            let _ = writeln!(config, "calibration = {json:?}");
            let Objective {
                p95_us,
                iops,
                read_share,
            } = known.objective;
            objective = format!(
                "objective = {{ p95_us = {p95_us}, iops = {iops}, read_share = {read_share:.2} }}\n"
            );
        }
        let _ = write!(
            config,
            "[[tenant]]\nexport = \"critical\"\ndevice = \"d\"\nrange = {{ length = \"2GiB\" }}\n{objective}[[tenant]]\nexport = \"greedy\"\n\
             device = \"d\"\nrange = {{ offset = \"2GiB\" }}\n"
        );
        Server::ours(&config, "learn", &self.work, &self.slackline)
    }

    /// 1,000 tenants with 10,000 connections: fairness, and CPU time of a request.
    pub(crate) fn scale(&mut self) -> Fallible<()> {
        raise_descriptor_limit();
        let names: Vec<String> = (0..TENANTS).map(|index| format!("t{index}")).collect();
        let mut many: Vec<&str> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            many.extend(vec![name.as_str(); 1 + index % CONNECTIONS_MAX]);
        }
        let one = vec!["t0"; many.len()];
        let load_name = format!("{} connections", many.len());
        for round in 0..self.rounds {
            // CPU time, without an objective.
            for (case, exports, tenants) in
                [("1 tenant", &one, 1), ("1,000 tenants", &many, TENANTS)]
            {
                let server = self.many_tenants(&names[..tenants], None)?;
                let mut nbd = Nbd::connect_each(server.address, exports)?;
                let mut load = self.load(
                    Arrivals::Closed {
                        depth: exports.len() as u32,
                    },
                    1.0,
                    4096,
                    1 << 20,
                );
                load.seed = round as u64;
                load.is_polling = false;
                load.duration += load.warm_up;
                load.warm_up = Duration::ZERO;
                let before = server.cpu_s();
                let outcome = generator::run(&mut nbd, &load)?;
                let spent_us =
                    (server.cpu_s() - before) * 1e6 / outcome.read_ns.len().max(1) as f64;
                self.rows
                    .add("scale", &load_name, case, "iops", outcome.iops());
                self.rows
                    .add("scale", &load_name, case, "server_cpu_us", spent_us);
            }
            // Fairness, where tokens are short: 50,000 reads a second for all.
            let server = self.many_tenants(&names, Some(5e6))?;
            let mut nbd = Nbd::connect_each(server.address, &many)?;
            let mut load = self.load(
                Arrivals::Closed {
                    depth: many.len() as u32,
                },
                1.0,
                4096,
                1 << 20,
            );
            load.is_polling = false;
            load.duration = Duration::from_secs(2);
            generator::run(&mut nbd, &load)?;
            let before = reads(&server, TENANTS)?;
            load.duration = Duration::from_secs(6);
            let outcome = generator::run(&mut nbd, &load)?;
            let after = reads(&server, TENANTS)?;
            let each: Vec<f64> = after
                .iter()
                .zip(&before)
                .map(|(after, before)| after - before)
                .collect();
            let (sum, squares) = each
                .iter()
                .fold((0.0, 0.0), |(sum, squares), n| (sum + n, squares + n * n));
            self.rows.add(
                "scale",
                "unequal demand, tokens short",
                "1,000 tenants",
                "jain_index",
                sum * sum / (TENANTS as f64 * squares),
            );
            self.rows.add(
                "scale",
                "unequal demand, tokens short",
                "1,000 tenants",
                "iops",
                outcome.iops(),
            );
        }
        Ok(())
    }

    /// `tokens_per_s`: what all tenants share, because one more has an objective.
    fn many_tenants(&self, names: &[String], tokens_per_s: Option<f64>) -> Fallible<Server> {
        let mut config = String::from("[[device]]\nname = \"d\"\nmemory = \"1001MiB\"\n");
        if let Some(tokens_per_s) = tokens_per_s {
            let json = self.work.join("many.json");
            let point = format!("[{{\"p95_us\": 100.0, \"tokens_per_s\": {tokens_per_s}}}]");
            std::fs::write(
                &json,
                format!(
                    "{{\"write_cost\": 100, \"curve\": {{\"mixed\": {point}, \"read_only\": {point}}}}}"
                ),
            )?;
            let _ = writeln!(config, "calibration = {json:?}");
        }
        for (index, name) in names.iter().enumerate() {
            let _ = write!(
                config,
                "[[tenant]]\nexport = \"{name}\"\ndevice = \"d\"\nrange = {{ offset = \"{index}MiB\", length = \"1MiB\" }}\n"
            );
        }
        if tokens_per_s.is_some() {
            config.push_str(
                "[[tenant]]\nexport = \"critical\"\ndevice = \"d\"\nrange = { offset = \"1000MiB\" }\n\
                 objective = { p95_us = 1000000, iops = 1, read_share = 1.0 }\n",
            );
        }
        Server::ours(&config, "learn", &self.work, &self.slackline)
    }

    /// What the scheduler costs for each request, without any input or output.
    pub(crate) fn scheduler(&mut self) -> Fallible<()> {
        for _ in 0..self.rounds {
            for (tenants, has_objectives) in [(1, false), (1, true), (1000, false), (1000, true)] {
                let ns = price(tenants, has_objectives)?;
                let name = match has_objectives {
                    true => "one objective",
                    false => "no objective",
                };
                self.rows.add(
                    "scheduler",
                    name,
                    &format!("{tenants} tenants"),
                    "ns_per_request",
                    ns,
                );
            }
        }
        Ok(())
    }
}

/// Nanoseconds of a request from `enqueue` to `completed`, 32 of them in each round.
fn price(tenants: usize, has_objectives: bool) -> Fallible<f64> {
    const BATCH: usize = 32;
    const ROUNDS: usize = 20_000;
    let device = Arc::new(qos::Device::new(Some(qos::simulated::p3600_model())));
    let mut scheduler: Scheduler<u32> = Scheduler::new(device)?;
    let mut ids = Vec::new();
    for index in 0..tenants {
        let objective = Objective {
            p95_us: 500,
            iops: 10,
            read_share: 1.0,
        };
        let spec = match has_objectives && index == 0 {
            true => TenantSpec::latency_critical(objective),
            false => TenantSpec::best_effort(),
        };
        ids.push(scheduler.add_tenant(spec)?);
    }
    let begun = Instant::now();
    let mut now_ns = 1_000;
    let mut ended = Vec::new();
    let mut at = 0;
    for _ in 0..ROUNDS {
        // 32 requests in 100 µs: below what the device takes, so that none waits.
        now_ns += 100_000;
        for _ in 0..BATCH {
            at = (at + 1) % ids.len();
            let request = Request {
                operation: Operation::Read,
                len_bytes: 4096,
                token: 0,
            };
            let _ = scheduler.enqueue(ids[at], request, now_ns);
        }
        scheduler.round(now_ns, &mut |id, _| ended.push(id));
        for id in ended.drain(..) {
            scheduler.completed(id, Operation::Read, 80_000);
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / (ROUNDS * BATCH) as f64)
}

/// Two exports of one file by `qemu-storage-daemon`: ranges by its `raw` driver, and a token bucket
/// for the writer.
fn two_daemon_tenants(path: &std::path::Path, writer_iops: Option<f64>) -> Fallible<Server> {
    let mut words: Vec<String> = vec!["qemu-storage-daemon".into()];
    let mut add = |option: &str, text: String| words.extend([option.to_owned(), text]);
    let file = path.display();
    add(
        "--blockdev",
        format!("driver=file,node-name=f,filename={file},aio=io_uring,cache.direct=on"),
    );
    add(
        "--blockdev",
        format!("driver=raw,node-name=c,file=f,offset=0,size={HALF_BYTES}"),
    );
    add(
        "--blockdev",
        format!("driver=raw,node-name=g0,file=f,offset={HALF_BYTES},size={HALF_BYTES}"),
    );
    let greedy = match writer_iops {
        Some(iops) => {
            add(
                "--object",
                format!("throttle-group,id=t,x-iops-total={}", iops as u64),
            );
            add(
                "--blockdev",
                "driver=throttle,node-name=g,throttle-group=t,file=g0".into(),
            );
            "g"
        }
        None => "g0",
    };
    add(
        "--nbd-server",
        format!(
            "addr.type=inet,addr.host=127.0.0.1,addr.port={},max-connections=0",
            next_port()
        ),
    );
    add(
        "--export",
        "type=nbd,id=a,node-name=c,name=critical,writable=on".into(),
    );
    add(
        "--export",
        format!("type=nbd,id=b,node-name={greedy},name=greedy,writable=on"),
    );
    Server::spawn(&words)
}

/// Reads of each tenant until now, by the server's own page.
fn reads(server: &Server, tenants: usize) -> Fallible<Vec<f64>> {
    let mut stream = TcpStream::connect((server.address.ip(), server.address.port() + 1))?;
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status: serde_json::Value = serde_json::from_str(body)?;
    let all = status["tenants"].as_array().ok_or("no tenants")?;
    Ok(all[..tenants]
        .iter()
        .map(|tenant| tenant["reads"].as_f64().unwrap_or(0.0))
        .collect())
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
