//! The parts `ways-uring`, `ways-xdp` and `ways-million`: more ways to goals that were missed. Each
//! is a setting of an example. The servers of `slackline` have none of them.

use super::measure::{Bench, Start};
use super::million::{self, Settings};
use super::peers::pinned;
use super::row::{Rounds, Row};
use super::servers::{INTERFACE, PORT, SERVER};

/// Has malloc ask for pages of 2 MiB (glibc 2.35).
const LARGE_PAGES: &str = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

impl Bench {
    /// Echo servers without the runtime: what a way is worth to the kernel's part of the work.
    pub(super) fn ways_uring(&mut self) {
        let address = format!("{SERVER}:{PORT}");
        let way = |words: &str| {
            let mut command = vec![self.example("echo_ways"), address.clone(), "0".into()];
            command.extend(words.split_whitespace().map(str::to_owned));
            command
        };
        let mut spin = vec![self.example("echo_peer"), "epoll-spin".into()];
        spin.extend([address.clone(), "0".into()]);
        let mut servers: Vec<Start<'static>> = vec![("epoll-spin", spin), ("io_uring", way(""))];
        for words in [
            "lean",
            "direct",
            "poll",
            "linked",
            "linked direct lean",
            "multi",
            "multi call",
            "multi direct lean",
        ] {
            servers.push((words, way(words)));
        }
        for connections in [64, 1000] {
            let load = format!("{connections} connections");
            self.compare("ways-uring", &load, &servers, |bench, _| {
                bench.load("echo", connections, 0.0).map(Some)
            });
        }
    }

    /// The cache on AF_XDP beside memcached. What a setting has that memcached may have as well,
    /// memcached has in a row of its own.
    pub(super) fn ways_xdp(&mut self) {
        let memcached = format!("memcached -t 1 -m 1024 -c 16384 -u nobody -l {SERVER} -p {PORT}");
        let cache = |settings: &str| {
            let mut command = vec!["env".to_owned()];
            command.extend(settings.split_whitespace().map(str::to_owned));
            command.extend(self.cache_server("", &["spin", INTERFACE]));
            command
        };
        let large = format!("PAGES=large {LARGE_PAGES}");
        let with_large_pages = format!("env {LARGE_PAGES} {memcached} -L");
        let servers: Vec<Start<'static>> = vec![
            ("memcached", pinned(&memcached)),
            ("memcached, large pages", pinned(&with_large_pages)),
            ("xdp", cache("")),
            ("xdp, 1,024 frames", cache("FRAMES=1024")),
            ("xdp, large pages", cache(&large)),
            ("xdp, checksums left", cache("CHECKSUMS=device")),
            (
                "xdp, all three",
                cache(&format!("FRAMES=1024 CHECKSUMS=device {large}")),
            ),
        ];
        for (frames, client) in [(None, ""), (Some(1024), ", client with 1,024 frames")] {
            self.client_frames = frames;
            for shape in ["memtier", "etc"] {
                let load = format!("{shape}, 64 connections{client}");
                self.compare("ways-xdp", &load, &servers, |bench, _| {
                    bench.load(shape, 64, 0.0).map(Some)
                });
            }
        }
        self.client_frames = None;
    }

    /// A million connections with other settings of client and server.
    pub(super) fn ways_million(&mut self) {
        let at_once: &[&str] = &["DELAYED_ACK_MS=1"];
        let large: &[&str] = &[LARGE_PAGES, "PAGES=large"];
        let both: &[&str] = &["DELAYED_ACK_MS=1", LARGE_PAGES, "PAGES=large"];
        let settings = |server, client| Settings { server, client };
        let many = million::MANY_CONNECTIONS;
        let cases = [
            (million::CONTROL, 1_000, settings(&[], &[])),
            ("1,000,000 connections", many, settings(&[], &[])),
            (
                "…, answers acknowledged at once",
                many,
                settings(&[], at_once),
            ),
            ("…, large pages", many, settings(large, large)),
            ("…, both", many, settings(large, both)),
        ];
        let mut rates: Vec<Rounds> = vec![Rounds::new(); cases.len()];
        for _ in 0..self.rounds {
            for ((name, connections, settings), rounds) in cases.iter().zip(&mut rates) {
                let run = self.connected(*connections, 0, *settings);
                match &run {
                    Ok(run) => println!("{name}: {:.0}/s", run.first.requests_per_s),
                    Err(error) => println!("{name}: {error:#}"),
                }
                rounds.push(run.ok().map(|run| run.first));
            }
        }
        for ((name, ..), rounds) in cases.iter().zip(rates) {
            self.rows.push(Row {
                part: "ways-million".to_owned(),
                load: million::load_name(),
                server: (*name).to_owned(),
                rounds,
                held: None,
            });
        }
    }
}
