//! The parts of the bench, but for `million`: which servers run under which loads.

use super::measure::{Bench, OBJECTIVE_P99_US, Start};
use super::peers::{cache_shape, echo_shape};
use super::servers::{INTERFACE, Steering};

impl Bench {
    pub(super) fn echo(&mut self) -> anyhow::Result<()> {
        let servers = self.echo_servers()?;
        for connections in [64, 1000, 10_000] {
            let load = format!("{connections} connections");
            self.compare("echo", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), connections, 0.0).map(Some)
            });
        }
        Ok(())
    }

    pub(super) fn tail(&mut self) -> anyhow::Result<()> {
        let mut servers = self.echo_servers()?;
        // The rates are epoll's, and nginx has more to do for each.
        servers.retain(|(name, _)| !matches!(*name, "nginx" | "dataplane sqpoll"));
        let most = self.most(&servers[0], "echo")?;
        for percent in [25_u32, 50, 75] {
            let load = format!("{percent} % of epoll's {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("tail", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), 64, rate).map(Some)
            });
        }
        Ok(())
    }

    pub(super) fn cache(&mut self) {
        let servers = self.cache_servers();
        for (shape, connections) in [("memtier", 64), ("memtier", 1000), ("usr", 64), ("etc", 64)] {
            let load = format!("{shape}, {connections} connections");
            self.compare("cache", &load, &servers, |bench, server| {
                let shape = cache_shape(server, shape);
                bench.load(&shape, connections, 0.0).map(Some)
            });
        }
    }

    pub(super) fn objective(&mut self) {
        let mut servers = self.cache_servers();
        // In the closed loop a shard that spins has the same rate as one that may sleep.
        servers.retain(|(name, _)| !name.ends_with("spin"));
        for shape in ["memtier", "usr", "etc"] {
            let load = format!("{shape}, 64 connections, p99 at most {OBJECTIVE_P99_US} µs");
            self.compare("objective", &load, &servers, |bench, server| {
                bench.highest_rate(&cache_shape(server, shape), 64)
            });
        }
    }

    pub(super) fn batch(&mut self) -> anyhow::Result<()> {
        let command = |bound: &str| self.cache_server(bound, &["spin"]);
        let servers: [Start<'static>; 3] = [
            ("bound 1", command("BATCH=1")),
            ("bound 64", command("BATCH=64")),
            ("adaptive", command("OBJECTIVE_US=500")),
        ];
        let most = self.most(&servers[1], "memtier")?;
        for percent in [25_u32, 50, 75, 90] {
            let load = format!("{percent} % of {most:.0}/s");
            let rate = most * f64::from(percent) / 100.0;
            self.compare("batch", &load, &servers, |bench, _| {
                bench.load("memtier", 64, rate).map(Some)
            });
        }
        let load = "closed loop, 64 connections";
        self.compare("batch", load, &servers, |bench, _| {
            bench.load("memtier", 64, 0.0).map(Some)
        });
        Ok(())
    }

    /// The echo server of the runtime with other settings of the io_uring backend.
    pub(super) fn uring(&mut self) {
        let server = |settings: &[&str]| self.uring_server(&[&["spin"], settings].concat());
        let servers: [Start<'static>; 5] = [
            ("as it is", server(&[])),
            ("registered sockets", server(&["registered"])),
            ("64 receive buffers", server(&["buffers=64"])),
            ("128 receive buffers", server(&["buffers=128"])),
            ("registered, 128", server(&["registered", "buffers=128"])),
        ];
        for connections in [64, 1000] {
            let load = format!("{connections} connections");
            self.compare("uring", &load, &servers, |bench, _| {
                bench.load("echo", connections, 0.0).map(Some)
            });
        }
    }

    /// Answers of 64 KiB, sent by SEND_ZC and not. On a veth pair the kernel copies what was sent
    /// without a copy when the other side receives it.
    pub(super) fn copies(&mut self) {
        let command = |setting: &str| self.cache_server(setting, &["learn"]);
        let servers: [Start<'static>; 2] = [
            ("copied", command("ZERO_COPY=1000000000")),
            ("not copied", command("ZERO_COPY=16384")),
        ];
        for connections in [1, 16] {
            let load = format!("64 KiB, {connections} connections");
            self.compare("copies", &load, &servers, |bench, _| {
                bench.load("large", connections, 0.0).map(Some)
            });
        }
    }

    /// The echo with each side's receive work on its own CPU. On a veth pair the sender's CPU does
    /// it otherwise: the client's CPU then does a part of a kernel server's TCP, and may bound all
    /// of them alike.
    pub(super) fn steered(&mut self) -> anyhow::Result<()> {
        let mut servers = self.echo_servers()?;
        servers.retain(|(name, _)| !matches!(*name, "nginx" | "dataplane sqpoll"));
        let _steering = Steering::start(&self.namespace)?;
        for connections in [64, 1000] {
            let load = format!("{connections} connections");
            self.compare("steered", &load, &servers, |bench, server| {
                bench.load(echo_shape(server), connections, 0.0).map(Some)
            });
        }
        Ok(())
    }

    /// The cache with its TCP stack in the same process, and in one of its own: on the same CPU,
    /// and on another one where neither server nor client runs.
    pub(super) fn isolated(&mut self) -> anyhow::Result<()> {
        let command = |stack_cpu: &[&str]| {
            self.cache_server("", &[&["learn", INTERFACE], stack_cpu].concat())
        };
        let mut servers: Vec<Start<'static>> = vec![
            ("one process", command(&[])),
            ("two processes, one CPU", command(&["0"])),
        ];
        if std::thread::available_parallelism()?.get() > 2 {
            servers.push(("two processes, two CPUs", command(&["2"])));
        } else {
            println!("a stack on a CPU of its own is left out: that needs three CPUs");
        }
        for (shape, connections) in [
            ("memtier", 1),
            ("memtier", 64),
            ("memtier", 1000),
            ("etc", 64),
        ] {
            let load = format!("{shape}, {connections} connections");
            self.compare("isolated", &load, &servers, |bench, _| {
                bench.load(shape, connections, 0.0).map(Some)
            });
        }
        let most = self.most(&servers[1], "memtier")?;
        let load = format!("half of {most:.0}/s");
        self.compare("isolated", &load, &servers, |bench, _| {
            bench.load("memtier", 64, most / 2.0).map(Some)
        });
        Ok(())
    }
}
