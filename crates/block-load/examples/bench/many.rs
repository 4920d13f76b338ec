//! The parts about many tenants: fairness, CPU time of a request, the scheduler's price.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use block_load::generator::{self, ArrivalProcess};
use block_load::nbd::Nbd;
use qos::{Objective, Operation, Scheduler, TenantRequest, TenantSpec};

use crate::servers::Server;
use crate::{Bench, Fallible};

const TENANTS: usize = 1000;
/// Connections of a tenant: 1 to 19, so that 1,000 tenants have about 10,000.
const CONNECTIONS_MAX: usize = 19;

impl Bench {
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
                    ArrivalProcess::Closed {
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
            // Fairness, where tokens are short: 15,000 reads a second for all, fewer than the core
            // can do.
            let server = self.many_tenants(&names, Some(1.5e6))?;
            let mut nbd = Nbd::connect_each(server.address, &many)?;
            let mut load = self.load(
                ArrivalProcess::Closed {
                    depth: many.len() as u32,
                },
                1.0,
                4096,
                1 << 20,
            );
            load.is_polling = false;
            load.duration = Duration::from_secs(8);
            // The load's beginning and its end are left out: not all tenants ask then.
            let address = server.address;
            let look = std::thread::spawn(move || {
                let after = |seconds| {
                    std::thread::sleep(Duration::from_secs(seconds));
                    reads(address, TENANTS).map_err(|error| error.to_string())
                };
                Ok::<_, String>((after(2)?, after(5)?))
            });
            let outcome = generator::run(&mut nbd, &load)?;
            let (before, after) = look.join().map_err(|_| "the look panicked")??;
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
    let model = qos::simulated::p3600_model();
    let device = Arc::new(qos::SharedDevice::for_threads(Some(model), 1));
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
            let request = TenantRequest {
                operation: Operation::Read,
                len_bytes: 4096,
                token: 0,
            };
            let _ = scheduler.enqueue(ids[at], request, now_ns);
        }
        scheduler.round(now_ns, &mut |id, _| ended.push(id));
        for id in ended.drain(..) {
            scheduler.completed(id, Some(Operation::Read), 80_000, 80_000);
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / (ROUNDS * BATCH) as f64)
}

/// Reads of each tenant until now, by the server's own page.
fn reads(server: SocketAddr, tenants: usize) -> Fallible<Vec<f64>> {
    let mut stream = TcpStream::connect((server.ip(), server.port() + 1))?;
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
