//! The parts that compare servers by throughput and latency.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use block_load::disk;
use block_load::generator::{self, AccessPattern, ArrivalProcess, LoadResult, LoadSpec};
use block_load::medium::Medium;
use block_load::nbd::Nbd;
use block_load::nvme::Nvme;

use crate::servers::{Disk, Kind, NQN, Server};
use crate::{Bench, Fallible, in_turn};

/// Bytes of memory-backed exports: more than the processor's caches, and little enough for all.
const RAM_BYTES: u64 = 512 << 20;
/// Bytes of the file on the disk.
const FILE_BYTES: u64 = 4 << 30;
/// How long the disk rests after that.
const AFTER_FILLING: Duration = Duration::from_secs(15);
const SPINNING: Kind = Kind::Ours("spin");
const OURS: Kind = Kind::Ours("learn");
const ALL: [Kind; 4] = [OURS, Kind::Nbdkit, Kind::QemuNbd, Kind::StorageDaemon];
const ALL_AND_SPINNING: [Kind; 5] = [
    OURS,
    SPINNING,
    Kind::Nbdkit,
    Kind::QemuNbd,
    Kind::StorageDaemon,
];
/// Loads of the picture, in requests a second.
const RATES: &[f64] = &[5e3, 1e4, 2e4, 3e4, 4e4, 5e4, 6e4, 7e4, 8e4, 9e4, 1e5];

impl Bench {
    pub(crate) fn load(
        &self,
        arrivals: ArrivalProcess,
        read_share: f64,
        len_bytes: u32,
        size_bytes: u64,
    ) -> LoadSpec {
        LoadSpec {
            arrivals,
            read_share,
            len_bytes,
            read_area: 0..size_bytes,
            write_area: Some(0..size_bytes),
            order: AccessPattern::Random,
            warm_up: Duration::from_millis(300),
            duration: Duration::from_secs_f64(self.seconds),
            is_polling: true,
            seed: 1,
        }
    }

    /// A file of random bytes on the disk, made once for each run.
    pub(crate) fn file(&self) -> Fallible<PathBuf> {
        self.filled(&self.work.join("disk"), FILE_BYTES)
    }

    fn tmpfs(&self) -> Fallible<PathBuf> {
        let path = PathBuf::from("/dev/shm").join(format!("bench-block-{}", std::process::id()));
        self.filled(&path, RAM_BYTES)
    }

    pub(crate) fn filled(&self, path: &Path, size_bytes: u64) -> Fallible<PathBuf> {
        if fs::metadata(path).is_ok_and(|metadata| metadata.len() == size_bytes) {
            return Ok(path.to_owned());
        }
        let status = Command::new("dd")
            .args(["if=/dev/urandom", "bs=4M", "conv=fsync", "status=none"])
            .arg(format!("of={}", path.display()))
            .arg(format!("count={}", size_bytes >> 22))
            .status()?;
        if !status.success() {
            return Err(format!("{} cannot be filled", path.display()).into());
        }
        // The host writes it down for a while yet: a calibration at once found a disk that is slow.
        std::thread::sleep(AFTER_FILLING);
        Ok(path.to_owned())
    }

    fn ram_disk(&self) -> Fallible<Disk> {
        Ok(Disk::Ram {
            size_bytes: RAM_BYTES,
            tmpfs: self.tmpfs()?,
        })
    }

    pub(crate) fn start(&self, kind: Kind, disk: &Disk) -> Fallible<Server> {
        Server::start(kind, disk, &self.work, &self.slackline)
    }

    /// The whole memory is written once, so that no read is one of a hole.
    fn fill(nbd: &mut Nbd, size_bytes: u64) -> Fallible<()> {
        let load = LoadSpec {
            arrivals: ArrivalProcess::Closed { depth: 8 },
            read_share: 0.0,
            len_bytes: 1 << 20,
            read_area: 0..size_bytes,
            write_area: Some(0..size_bytes),
            order: AccessPattern::Sequential,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(1),
            is_polling: true,
            seed: 1,
        };
        let mut written = 0;
        while written < size_bytes {
            written += generator::run(nbd, &load)?.answered << 20;
        }
        Ok(())
    }

    /// One load against a server: IOPS, 95th percentile and the server's CPU time of a request.
    fn measure(
        &mut self,
        part: &str,
        name: &str,
        kind: Kind,
        server: &Server,
        nbd: &mut impl Medium,
        load: &LoadSpec,
    ) -> Fallible<LoadResult> {
        // The warm-up is in the server's CPU time, so requests are counted in it as well.
        let mut whole = load.clone();
        whole.duration += whole.warm_up;
        whole.warm_up = Duration::ZERO;
        let before = server.cpu_s();
        let outcome = generator::run(nbd, &whole)?;
        let spent_us = (server.cpu_s() - before) * 1e6;
        let ended = outcome.read_ns.len() + outcome.write_ns.len();
        self.add(part, name, kind.name(), &outcome);
        self.rows.add(
            part,
            name,
            kind.name(),
            "server_cpu_us",
            spent_us / ended.max(1) as f64,
        );
        Ok(outcome)
    }

    fn add(&mut self, part: &str, load: &str, server: &str, outcome: &LoadResult) {
        self.rows.add(part, load, server, "iops", outcome.iops());
        if let Some(p95_us) = outcome.read_us(0.95) {
            self.rows.add(
                part,
                load,
                server,
                "p50_us",
                outcome.read_us(0.5).unwrap_or(0.0),
            );
            self.rows.add(part, load, server, "p95_us", p95_us);
        }
        let lost = outcome.errors + outcome.unanswered;
        if lost > 0 {
            println!("{part} {load} {server}: {lost} requests failed or got no answer");
        }
    }

    /// 4 KiB random reads of memory, with the polling client.
    pub(crate) fn ram(&mut self) -> Fallible<()> {
        let disk = self.ram_disk()?;
        for round in 0..self.rounds {
            for kind in ALL_AND_SPINNING {
                let server = self.start(kind, &disk)?;
                let mut nbd = Nbd::connect(server.address, "a", 1)?;
                Self::fill(&mut nbd, RAM_BYTES)?;
                for (name, connections, depth) in [("1 × QD32", 1, 32), ("4 × QD32", 4, 128)] {
                    let mut nbd = Nbd::connect(server.address, "a", connections)?;
                    let mut load =
                        self.load(ArrivalProcess::Closed { depth }, 1.0, 4096, RAM_BYTES);
                    load.seed = round as u64;
                    self.measure("ram", name, kind, &server, &mut nbd, &load)?;
                    if kind == OURS {
                        let queues = u16::try_from(connections)?;
                        let mut nvme = Nvme::connect(server.nvme(), NQN, 1, queues)?;
                        self.measure("ram", name, Kind::OursNvme, &server, &mut nvme, &load)?;
                    }
                }
            }
        }
        fs::remove_file(self.tmpfs()?)?;
        Ok(())
    }

    /// The same with fio, which is the limit sooner.
    pub(crate) fn fio(&mut self) -> Fallible<()> {
        let disk = self.ram_disk()?;
        for _ in 0..self.rounds {
            for kind in ALL {
                let server = self.start(kind, &disk)?;
                let mut nbd = Nbd::connect(server.address, "a", 1)?;
                Self::fill(&mut nbd, RAM_BYTES)?;
                drop(nbd);
                let before = server.cpu_s();
                let result = self.run_fio(
                    &[
                        "--ioengine=nbd",
                        &format!("--uri=nbd://{}/a", server.address),
                        "--iodepth=32",
                    ],
                    RAM_BYTES,
                )?;
                let spent_us = (server.cpu_s() - before) * 1e6;
                self.rows.add("fio", "QD32", kind.name(), "iops", result.0);
                self.rows.add(
                    "fio",
                    "QD32",
                    kind.name(),
                    "server_cpu_us",
                    spent_us / result.2,
                );
            }
        }
        fs::remove_file(self.tmpfs()?)?;
        Ok(())
    }

    /// IOPS, median completion latency in microseconds, and requests in all.
    fn run_fio(&self, how: &[&str], size_bytes: u64) -> Fallible<(f64, f64, f64)> {
        let output = Command::new("fio")
            .args([
                "--name=j",
                "--rw=randread",
                "--bs=4k",
                "--time_based",
                "--norandommap",
                "--output-format=json",
            ])
            .arg(format!("--runtime={}", self.seconds.max(1.0).ceil()))
            .arg(format!("--size={size_bytes}"))
            .args(how)
            .current_dir(&self.work)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let start = text
            .find('{')
            .ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let json: serde_json::Value = serde_json::from_str(&text[start..])?;
        let read = &json["jobs"][0]["read"];
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(f64::NAN);
        Ok((
            number(&read["iops"]),
            number(&read["clat_ns"]["percentile"]["50.000000"]) / 1000.0,
            number(&read["total_ios"]),
        ))
    }

    pub(crate) fn local(&self, path: &Path) -> Fallible<disk::Disk> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        Ok(disk::Disk::new(Arc::new(options.open(path)?.into()))?)
    }

    fn add_local(&mut self, part: &str, name: &str, path: &Path, load: &LoadSpec) -> Fallible<()> {
        let outcome = generator::run(&mut self.local(path)?, load)?;
        self.add(part, name, "local io_uring", &outcome);
        if !load.is_polling {
            let each = outcome.cpu_s * 1e6 / outcome.answered.max(1) as f64;
            self.rows
                .add(part, name, "local io_uring", "server_cpu_us", each);
        }
        Ok(())
    }

    /// 4 KiB random reads of the virtual disk.
    pub(crate) fn disk(&mut self) -> Fallible<()> {
        let path = self.file()?;
        for round in 0..self.rounds {
            let mut load = self.load(ArrivalProcess::Closed { depth: 32 }, 1.0, 4096, FILE_BYTES);
            load.seed = round as u64;
            load.is_polling = false;
            self.add_local("disk", "QD32", &path, &load)?;
            for kind in in_turn(round, &ALL_AND_SPINNING) {
                let server = self.start(kind, &Disk::File(path.clone()))?;
                let mut nbd = Nbd::connect(server.address, "a", 1)?;
                self.measure("disk", "QD32", kind, &server, &mut nbd, &load)?;
            }
        }
        Ok(())
    }

    /// One request at a time, with a client that polls.
    pub(crate) fn qd1(&mut self) -> Fallible<()> {
        let path = self.file()?;
        for round in 0..self.rounds {
            let mut load = self.load(ArrivalProcess::Closed { depth: 1 }, 1.0, 4096, FILE_BYTES);
            load.seed = round as u64;
            self.add_local("qd1", "QD1", &path, &load)?;
            for kind in in_turn(round, &ALL_AND_SPINNING) {
                let server = self.start(kind, &Disk::File(path.clone()))?;
                let mut nbd = Nbd::connect(server.address, "a", 1)?;
                self.measure("qd1", "QD1", kind, &server, &mut nbd, &load)?;
            }
        }
        Ok(())
    }

    /// One request at a time, with fio, which sleeps.
    pub(crate) fn qd1_fio(&mut self) -> Fallible<()> {
        let path = self.file()?;
        let part = "qd1-fio";
        for round in 0..self.rounds {
            let file = format!("--filename={}", path.display());
            let local = self.run_fio(&["--ioengine=io_uring", "--direct=1", &file], FILE_BYTES)?;
            self.rows
                .add(part, "QD1", "local io_uring", "p50_us", local.1);
            for kind in in_turn(round, &ALL_AND_SPINNING) {
                let server = self.start(kind, &Disk::File(path.clone()))?;
                let uri = format!("--uri=nbd://{}/a", server.address);
                let found = self.run_fio(&["--ioengine=nbd", &uri], FILE_BYTES)?;
                self.rows.add(part, "QD1", kind.name(), "p50_us", found.1);
            }
        }
        Ok(())
    }

    /// 128 KiB one after the other, of memory and of the disk.
    pub(crate) fn sequential(&mut self) -> Fallible<()> {
        let ram = self.ram_disk()?;
        let file = self.file()?;
        for round in 0..self.rounds {
            for (where_, disk, size_bytes) in [
                ("RAM", ram.clone(), RAM_BYTES),
                ("disk", Disk::File(file.clone()), FILE_BYTES),
            ] {
                for kind in in_turn(round, &ALL_AND_SPINNING) {
                    let server = self.start(kind, &disk)?;
                    let mut nbd = Nbd::connect(server.address, "a", 1)?;
                    if where_ == "RAM" {
                        Self::fill(&mut nbd, size_bytes)?;
                    }
                    for (way, share) in [("read", 1.0), ("write", 0.0)] {
                        let mut load = self.load(
                            ArrivalProcess::Closed { depth: 8 },
                            share,
                            128 << 10,
                            size_bytes,
                        );
                        load.order = AccessPattern::Sequential;
                        let name = format!("128 KiB {way}, {where_}, QD8");
                        self.measure("sequential", &name, kind, &server, &mut nbd, &load)?;
                    }
                }
            }
        }
        fs::remove_file(self.tmpfs()?)?;
        Ok(())
    }

    /// The tail against the rate.
    pub(crate) fn curve(&mut self) -> Fallible<()> {
        let path = self.file()?;
        for round in 0..self.rounds {
            for kind in in_turn(
                round,
                &[
                    None,
                    Some(OURS),
                    Some(Kind::Nbdkit),
                    Some(Kind::QemuNbd),
                    Some(Kind::StorageDaemon),
                ],
            ) {
                let server = kind
                    .map(|kind| self.start(kind, &Disk::File(path.clone())))
                    .transpose()?;
                for &iops in RATES {
                    let arrivals = ArrivalProcess::Open {
                        iops,
                        depth_max: 128,
                    };
                    let mut load = self.load(arrivals, 1.0, 4096, FILE_BYTES);
                    load.seed = round as u64;
                    let name = format!("{:.0}k", iops / 1e3);
                    let outcome = match (&server, kind) {
                        (Some(server), Some(_)) => {
                            generator::run(&mut Nbd::connect(server.address, "a", 4)?, &load)?
                        }
                        _ => generator::run(&mut self.local(&path)?, &load)?,
                    };
                    // Past what a server can do, the tail is the length of the load.
                    if outcome.iops() < 0.9 * iops {
                        break;
                    }
                    let server = kind.map_or("local io_uring", Kind::name);
                    self.add("curve", &name, server, &outcome);
                }
            }
        }
        Ok(())
    }
}
