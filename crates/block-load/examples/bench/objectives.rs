//! The part about an objective beside a greedy writer, on the disk.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use block_load::generator::{self, ArrivalProcess, LoadResult, LoadSpec};
use block_load::nbd::Nbd;
use qos::{Curve, Objective};

use crate::servers::{Server, next_port};
use crate::{Bench, Fallible, in_turn};

const HALF_BYTES: u64 = 2 << 30;
/// Share of what the device takes at the strictest objective that the tenant reserves, and share of
/// its reservation that the tenant asks for.
const RESERVED: f64 = 0.3;
const ASKED: f64 = 0.9;
const READ_SHARE: f64 = 0.9;
/// Share of the highest rate of the calibration that counts instead, where the device does not hold
/// that objective.
const OF_MOST: f64 = 0.7;
/// Objectives, in microseconds, beside one that the disk's slowest second holds.
const FIXED_US: [u32; 3] = [1000, 2200, 5000];
/// Requests that the writer keeps under way, and its connections. Fewer break no objective here.
const WRITER_DEPTH: u32 = 2048;
const WRITER_CONNECTIONS: usize = 8;
/// Seconds that are counted, of `serve-block` and of the others.
const OURS_S: u64 = 15;
const OTHERS_S: u64 = 5;
/// How long the tenant runs alone to find what the disk can hold, and the room above the worst
/// second.
const ALONE_S: u64 = 12;
const ROOM: f64 = 1.25;
/// Before the calibration and between two cases: the disk of a virtual machine is slow for seconds,
/// up to minutes, after much has been written. It is calm where no second's p95 is above this many
/// times the fastest second's: under a light load before the calibration, and under the tenant's
/// own one between two cases.
const CALM: f64 = 3.0;
const CALM_IOPS: f64 = 1000.0;
/// Seconds that have to be calm one after another, and how long they are waited for.
const CALM_S_FIRST: u64 = 10;
const CALM_S_BETWEEN: u64 = 3;
const CALM_WAIT: Duration = Duration::from_secs(90);

/// What the calibration of the file says.
struct Calibrated {
    write_cost: f64,
    rate: f64,
    objective: Objective,
}

/// Tokens of a request of the tenant in the mean.
fn tokens_each(write_cost: f64) -> f64 {
    READ_SHARE * f64::from(qos::READ_COST) + (1.0 - READ_SHARE) * write_cost
}

/// Who is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Alone,
    Ours,
    NoObjective,
    Blkio,
    TokenBucket,
    Daemon,
}

impl Case {
    const ALL: [Self; 6] = [
        Self::Alone,
        Self::Ours,
        Self::NoObjective,
        Self::Blkio,
        Self::TokenBucket,
        Self::Daemon,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Ours => "serve-block",
            Self::NoObjective => "serve-block without an objective",
            Self::Blkio => "two servers, blkio throttle for the writer's",
            Self::TokenBucket => "qemu-storage-daemon, token bucket for the writer",
            Self::Daemon => "qemu-storage-daemon",
        }
    }
}

impl Bench {
    /// The file's curve, with each objective that it can hold.
    fn calibrated(&self, path: &Path, json: &Path) -> Fallible<Vec<Calibrated>> {
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
        let text: serde_json::Value = serde_json::from_str(&fs::read_to_string(json)?)?;
        let curve: Curve = serde_json::from_value(text["curve"].clone())?;
        let write_cost = text["write_cost"].as_f64().ok_or("no write_cost")?;
        let column = curve.mixed.ok_or("no writes were calibrated")?;
        // A disk that does not hold the strictest one has the others.
        let strictest = column
            .tokens_per_s_at(f64::from(FIXED_US[0]))
            .unwrap_or(OF_MOST * column.max_tokens_per_s());
        let objective = Objective {
            p95_us: FIXED_US[0],
            iops: (RESERVED * strictest / tokens_each(write_cost)) as u32,
            read_share: READ_SHARE,
        };
        let objectives_us = match std::env::var("OBJECTIVES_US") {
            Ok(text) => text.split(',').map(str::parse).collect::<Result<_, _>>()?,
            Err(_) => {
                let mut all = FIXED_US.to_vec();
                all.push(self.held_alone(path, &objective)?.ceil() as u32);
                all
            }
        };
        let mut known = Vec::new();
        for p95_us in objectives_us {
            match column.tokens_per_s_at(f64::from(p95_us)) {
                Some(rate) => known.push(Calibrated {
                    write_cost,
                    rate,
                    objective: Objective {
                        p95_us,
                        ..objective
                    },
                }),
                None => println!("{p95_us} µs: less than the disk's least load takes"),
            }
        }
        Ok(known)
    }

    /// An objective that the disk holds without any neighbour.
    fn held_alone(&self, path: &Path, objective: &Objective) -> Fallible<f64> {
        let server = self.two_tenants(path, None)?;
        let alone = self.reader(objective, ALONE_S, 0);
        let outcome = generator::run(&mut Nbd::connect(server.address, "critical", 1)?, &alone)?;
        println!("alone: {:.0?} µs", outcome.windows_p95_us);
        let worst_us = outcome.windows_p95_us.iter().copied().fold(0.0, f64::max);
        Ok(ROOM * worst_us)
    }

    /// The load of the tenant with the objective.
    fn reader(&self, objective: &Objective, seconds: u64, round: usize) -> LoadSpec {
        let arrivals = ArrivalProcess::Open {
            iops: ASKED * f64::from(objective.iops),
            depth_max: 256,
        };
        let mut load = self.load(arrivals, READ_SHARE, 4096, HALF_BYTES);
        load.seed = round as u64;
        // The scheduler finds the device's rate in the first seconds.
        load.warm_up = Duration::from_secs(2);
        load.duration = Duration::from_secs(seconds);
        load
    }

    fn add_critical(&mut self, name: &str, case: Case, p95_us: u32, outcome: &LoadResult) {
        let windows = &outcome.windows_p95_us;
        println!("{}: {windows:.0?} µs", case.name());
        let held = windows
            .iter()
            .filter(|&&us| us <= f64::from(p95_us))
            .count();
        let figures = [
            ("seconds_held", held as f64 / windows.len().max(1) as f64),
            ("p95_us", outcome.read_us(0.95).unwrap_or(f64::NAN)),
            ("iops", outcome.iops()),
        ];
        for (metric, value) in figures {
            self.rows
                .add("objectives", name, case.name(), metric, value);
        }
    }

    /// A tenant with an objective beside a writer that takes all it gets, on the disk.
    pub(crate) fn objectives(&mut self) -> Fallible<()> {
        let path = self.file()?;
        let other = self.filled(&self.work.join("writer"), HALF_BYTES)?;
        let json = self.work.join("calibration.json");
        let mut fastest_us = f64::INFINITY;
        self.wait_until_calm(&path, (CALM_S_FIRST, CALM_IOPS), &mut fastest_us)?;
        for known in self.calibrated(&path, &json)? {
            self.objective(&path, &other, &json, &known, &mut fastest_us)?;
        }
        Ok(())
    }

    /// Waits until the disk is calm for so many seconds under a load of so many requests a second,
    /// or says that it is not. `fastest_us` is the p95 of the fastest second so far.
    fn wait_until_calm(
        &self,
        path: &Path,
        (seconds, iops): (u64, f64),
        fastest_us: &mut f64,
    ) -> Fallible<()> {
        let arrivals = ArrivalProcess::Open {
            iops,
            depth_max: 256,
        };
        let mut load = self.load(arrivals, READ_SHARE, 4096, HALF_BYTES);
        load.duration = Duration::from_secs(seconds);
        let start = Instant::now();
        loop {
            let outcome = generator::run(&mut self.local(path)?, &load)?;
            let windows_us = &outcome.windows_p95_us;
            *fastest_us = windows_us.iter().copied().fold(*fastest_us, f64::min);
            let slowest_us = windows_us.iter().copied().fold(0.0, f64::max);
            let waited = start.elapsed();
            if slowest_us <= CALM * *fastest_us {
                return Ok(());
            }
            if waited >= CALM_WAIT {
                println!(
                    "the disk is not calm after {waited:.0?}: p95 of a second up to {slowest_us:.0} µs, of the fastest {fastest_us:.0} µs"
                );
                return Ok(());
            }
        }
    }

    fn objective(
        &mut self,
        path: &Path,
        other: &Path,
        json: &Path,
        known: &Calibrated,
        fastest_us: &mut f64,
    ) -> Fallible<()> {
        let Objective { p95_us, iops, .. } = known.objective;
        let reserved = f64::from(iops) * tokens_each(known.write_cost);
        let left_iops = (known.rate - reserved) / known.write_cost;
        println!(
            "objective: {p95_us} µs at {iops} IOPS; a write costs {}; {:.0} tokens/s at {p95_us} µs, which leave {left_iops:.0} writes/s",
            known.write_cost, known.rate
        );
        let name = format!("{p95_us} µs, {iops} IOPS, beside a writer");
        for round in 0..self.rounds {
            for case in in_turn(round, &Case::ALL) {
                let asked = ASKED * f64::from(iops);
                self.wait_until_calm(path, (CALM_S_BETWEEN, asked), fastest_us)?;
                let seconds = if case == Case::Ours { OURS_S } else { OTHERS_S };
                let reader = self.reader(&known.objective, seconds, round);
                let mut second = None;
                let server = match case {
                    Case::Ours | Case::Alone => self.two_tenants(path, Some((known, json)))?,
                    Case::NoObjective => self.two_tenants(path, None)?,
                    Case::Blkio => {
                        second = Some(Throttled::start(self, other, left_iops)?);
                        self.two_tenants(path, None)?
                    }
                    Case::TokenBucket => two_daemon_tenants(path, Some(left_iops))?,
                    Case::Daemon => two_daemon_tenants(path, None)?,
                };
                let nbd = Nbd::connect(server.address, "critical", 1)?;
                if case == Case::Alone {
                    let outcome = generator::run(&mut { nbd }, &reader)?;
                    self.add_critical(&name, case, p95_us, &outcome);
                    continue;
                }
                let mut writer = LoadSpec {
                    arrivals: ArrivalProcess::Closed {
                        depth: WRITER_DEPTH,
                    },
                    read_share: 0.0,
                    ..reader.clone()
                };
                writer.seed += 1000;
                let address = second
                    .as_ref()
                    .map_or(server.address, |other| other.server.address);
                let greedy = Nbd::connect(address, "greedy", WRITER_CONNECTIONS)?;
                let mut loads = [(nbd, reader), (greedy, writer)];
                let outcomes = generator::run_together(&mut loads)?;
                let [critical, greedy] = outcomes.as_slice() else {
                    unreachable!()
                };
                self.add_critical(&name, case, p95_us, critical);
                for (metric, value) in [
                    ("writer_iops", greedy.iops()),
                    ("writer_of_what_is_left", greedy.iops() / left_iops),
                ] {
                    self.rows
                        .add("objectives", &name, case.name(), metric, value);
                }
            }
        }
        Ok(())
    }

    fn two_tenants(&self, path: &Path, known: Option<(&Calibrated, &Path)>) -> Fallible<Server> {
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
}

/// Two exports of one file by `qemu-storage-daemon`: ranges by its `raw` driver, and a token bucket
/// for the writer.
fn two_daemon_tenants(path: &Path, writer_iops: Option<f64>) -> Fallible<Server> {
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

/// A server of the writer alone, in a group whose writes the kernel holds to a rate.
struct Throttled {
    server: Server,
    group: PathBuf,
}

impl Throttled {
    fn start(bench: &Bench, path: &Path, iops: f64) -> Fallible<Self> {
        let config = format!(
            "[[device]]\nname = \"d\"\npath = {path:?}\n[[tenant]]\nexport = \"greedy\"\ndevice = \"d\"\n"
        );
        let server = Server::ours(&config, "learn", &bench.work, &bench.slackline)?;
        let device = std::os::unix::fs::MetadataExt::dev(&fs::metadata(path)?);
        let device = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        // `ip netns exec` hides the control groups of the host. This mount is gone with the
        // namespace.
        let root = bench.work.join("blkio");
        fs::create_dir_all(&root)?;
        let mount = |kind: &[&str]| -> Fallible<bool> {
            let status = std::process::Command::new("mount")
                .args(kind)
                .arg("none")
                .arg(&root)
                .stderr(std::process::Stdio::null())
                .status()?;
            Ok(status.success())
        };
        let is_mounted = fs::metadata(root.join("cgroup.procs")).is_ok();
        // Version 1 of control groups, or version 2.
        if !is_mounted && !mount(&["-t", "cgroup", "-o", "blkio"])? && !mount(&["-t", "cgroup2"])? {
            return Err("no control group for block devices".into());
        }
        let group = root.join(format!("bench-block-{}", std::process::id()));
        fs::create_dir_all(&group)?;
        let is_first = group.join("blkio.throttle.write_iops_device").exists();
        let (knob, value) = match is_first {
            true => (
                "blkio.throttle.write_iops_device",
                format!("{device} {iops:.0}"),
            ),
            false => ("io.max", format!("{device} wiops={iops:.0}")),
        };
        let throttled = Self { server, group };
        fs::write(throttled.group.join(knob), value)?;
        let pid = throttled.server.pid().to_string();
        fs::write(throttled.group.join("cgroup.procs"), pid)?;
        Ok(throttled)
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        // A group can be removed once it is empty.
        let root = self
            .group
            .parent()
            .map(|parent| parent.join("cgroup.procs"));
        if let Some(root) = root {
            let _ = fs::write(root, self.server.pid().to_string());
        }
        let _ = fs::remove_dir(&self.group);
    }
}
