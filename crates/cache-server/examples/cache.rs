//! A whole cache server from the library: `cache ADDRESS [MEBIBYTES] [CPU] [learn|spin]
//! [INTERFACE] [STACK_CPU]`. With INTERFACE its connections are AF_XDP's. With STACK_CPU the TCP
//! stack is a process of its own, on that CPU. `slackline serve-cache` is the same with all
//! options.
//!
//! Settings to be measured come from the environment: `BATCH`, `OBJECTIVE_US`, `ZERO_COPY` (bytes),
//! and on AF_XDP `FRAMES` of each direction, `CHECKSUMS=device` and `PAGES=large`.

use std::time::Duration;

use cache_server::launch::{CacheOptions, Isolation, Network, serve, serve_stack};
use cache_server::settings::CacheSettings;
use dataplane::idle::IdlePolicy;
use dataplane::xdp::SocketConfig;

/// The last argument of the process of the TCP stack, which the server starts itself.
const AS_STACK: &str = "as-stack";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().map_or("127.0.0.1:11211", String::as_str);
    let mebibytes: usize = arguments.get(1).map_or(Ok(64), |text| text.parse())?;
    let is_spinning = arguments.get(3).is_some_and(|word| word == "spin");
    let defaults = SocketConfig::default();
    let options = CacheOptions {
        network: match arguments.get(4) {
            Some(interface) => Network::Xdp {
                interface: interface.clone(),
                queue: None,
            },
            None => Network::Kernel,
        },
        isolation: match arguments.get(5) {
            Some(cpu) => Some(Isolation {
                program: "/proc/self/exe".into(),
                arguments: std::env::args_os()
                    .skip(1)
                    .chain([AS_STACK.into()])
                    .collect(),
                stack_cores: vec![cpu.parse()?],
            }),
            None => None,
        },
        listen: vec![address.parse()?],
        memory_bytes: mebibytes << 20,
        cores: arguments
            .get(2)
            .map(|cpu| cpu.parse())
            .transpose()?
            .into_iter()
            .collect(),
        connections_max: 16_384,
        send_memory_bytes: 256 << 20,
        fixed_batch: std::env::var("BATCH")
            .ok()
            .map(|bound| bound.parse())
            .transpose()?,
        idle: [IdlePolicy::Learn, IdlePolicy::Spin][usize::from(is_spinning)],
        metrics: None,
        drain: Duration::from_secs(5),
        settings: CacheSettings {
            objective: std::env::var("OBJECTIVE_US")
                .ok()
                .map(|us| us.parse().map(Duration::from_micros))
                .transpose()?,
            idle_timeout_s: 0,
        },
        settings_file: None,
        zero_copy_from_bytes: std::env::var("ZERO_COPY")
            .ok()
            .map(|from| from.parse())
            .transpose()?,
        submission_thread_idle: None,
        xdp_socket: SocketConfig {
            frames: std::env::var("FRAMES").map_or(Ok(defaults.frames), |count| count.parse())?,
            leaves_checksums: std::env::var_os("CHECKSUMS").is_some(),
            has_large_pages: std::env::var_os("PAGES").is_some(),
            ..defaults
        },
        is_sandboxed: true,
    };
    match arguments.last().is_some_and(|word| word == AS_STACK) {
        true => serve_stack(&options)?,
        false => drop(serve(&options, &mut |_| ())?),
    }
    Ok(())
}
