//! `slackline serve-cache`: arguments, and what the server says while it runs.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cache_server::launch::{CacheNotice, CacheOptions, Isolation, Network};
use cache_server::settings::CacheSettings;
use dataplane::xdp::SocketConfig;
use sd_notify::NotifyState;

use crate::done::CommandOutcome;
use crate::idle::Idle;
use crate::output::message;
use crate::service_manager::ServiceManager;

/// The smallest memory for items: a few pages of 4 MiB for each of the usual sizes.
const MEMORY_MIN_BYTES: u64 = 16 << 20;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The network: `kernel`, or `xdp:INTERFACE[:QUEUE]` for AF_XDP with Slackline's own TCP. With
    /// xdp, the server takes the queue, or all queues, from the kernel while it runs. Give it an
    /// interface or a queue that nothing else uses, and an address of this interface in --listen.
    #[arg(long, value_name = "NETWORK", default_value = "kernel", value_parser = parse_network)]
    net: Network,
    /// With --net xdp: run the TCP stack in a separate process, so that a bug in the server's
    /// parser gives no access to the network interface. docs/serve-cache.md says what this costs.
    #[arg(long, conflicts_with = "no_sandbox")]
    isolate_stack: bool,
    /// With --isolate-stack: CPUs of the TCP stacks, one for each of --cores. By default any CPU. A
    /// thread that has a CPU of its own follows --idle. A thread that shares its CPU sleeps at
    /// once.
    #[arg(long, value_name = "LIST", requires = "isolate_stack", value_parser = parse_cores)]
    stack_cores: Option<Cores>,
    /// Be the process of the TCP stack: --isolate-stack starts it.
    #[arg(long, hide = true, requires = "isolate_stack")]
    as_stack: bool,
    /// Address and port. Repeatable. There is no password: listen on a trusted network only. If
    /// systemd passes sockets, they replace all addresses.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:11211")]
    listen: Vec<SocketAddr>,
    /// Memory for items, such as 512MiB or 2GiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_memory)]
    memory: u64,
    /// CPUs, such as 0 or 0,2-3. Each CPU gets one shard. A shard works only when the load needs
    /// it. By default one shard on any CPU.
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    cores: Option<Cores>,
    /// Limit for the 99th percentile of the time that a request spends in the server, in
    /// microseconds. Batches become smaller when the time comes near this limit. 0: no limit, and
    /// batches of up to 64 requests.
    #[arg(long, value_name = "US", default_value_t = 0)]
    objective_p99_us: u32,
    /// Take at most this number of requests at once, from 1 to 64. By default --objective-p99-us
    /// decides.
    #[arg(long, value_name = "N", conflicts_with = "objective_p99_us",
          value_parser = clap::value_parser!(u8).range(1..=64))]
    batch: Option<u8>,
    /// What an idle shard does.
    #[arg(long, value_enum, default_value = "learn")]
    idle: Idle,
    /// Largest number of connections of a shard. The server closes further connections at once.
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    max_connections: u32,
    /// Memory for answers that clients have not read yet, in addition to 4 KiB for each connection.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_memory)]
    send_memory: u64,
    /// Close a connection that sends nothing for this time, in seconds. 0: never.
    #[arg(long, value_name = "S", default_value_t = 0)]
    idle_timeout_s: u32,
    /// Serve metrics for Prometheus at this address and port, at /metrics.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// After SIGTERM, how long to wait for connections whose command is not complete, in seconds.
    #[arg(long, value_name = "S", default_value_t = 5)]
    drain_s: u32,
    /// A file with lines "name = number" for objective_p99_us and idle_timeout_s. Send SIGHUP to
    /// read it again.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Send answers of at least this size without a copy, in bytes. By default never. On a veth
    /// pair it was not faster. With a network card it has not been measured.
    #[arg(long, value_name = "BYTES")]
    zero_copy_from: Option<usize>,
    /// Let a kernel thread submit to io_uring (SQPOLL). The thread uses a CPU of its own, and
    /// sleeps after this idle time, in milliseconds. By default off.
    #[arg(long, value_name = "MS")]
    sqpoll_ms: Option<u32>,
    /// Run without the sandbox: keep capabilities and all system calls. Use this to find out
    /// whether the sandbox causes a failure.
    #[arg(long)]
    no_sandbox: bool,
}

/// A list of CPUs, as one value of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cores(Vec<usize>);

fn parse_memory(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "KiB" | "K" => 10,
        "MiB" | "M" => 20,
        "GiB" | "G" => 30,
        _ => return Err("a number and KiB, MiB or GiB are needed, as in 512MiB".into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{digits:?} is no whole number"))?;
    let bytes = number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes <= 1 << 38);
    match bytes {
        Some(bytes) if bytes >= MEMORY_MIN_BYTES => Ok(bytes),
        Some(_) => Err("at least 16MiB are needed".into()),
        None => Err("at most 256GiB can be used".into()),
    }
}

fn parse_network(text: &str) -> Result<Network, String> {
    let wrong = || "it has to be kernel or xdp:INTERFACE[:QUEUE], as in xdp:eth1".to_owned();
    if text == "kernel" {
        return Ok(Network::Kernel);
    }
    let rest = text.strip_prefix("xdp:").ok_or_else(wrong)?;
    let (interface, queue) = match rest.split_once(':') {
        Some((interface, queue)) => match queue.parse() {
            Ok(queue) if queue < 1024 => (interface, Some(queue)),
            _ => {
                return Err(format!(
                    "{queue:?} is no queue: a number from 0 to 1023 is needed"
                ));
            }
        },
        None => (rest, None),
    };
    if interface.is_empty() {
        return Err(wrong());
    }
    Ok(Network::Xdp {
        interface: interface.to_owned(),
        queue,
    })
}

fn parse_cores(text: &str) -> Result<Cores, String> {
    let mut cores = Vec::new();
    let number = |text: &str| -> Result<usize, String> {
        text.parse()
            .map_err(|_| format!("{text:?} is no CPU; a list is like 0,2-3"))
    };
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if last < first || last >= 1024 {
            return Err(format!("{part:?} is no range of CPUs"));
        }
        cores.extend(first..=last);
    }
    if cores.len() > 255 {
        return Err("at most 255 CPUs".into());
    }
    for (index, core) in cores.iter().enumerate() {
        if cores[..index].contains(core) {
            return Err(format!("CPU {core} is named twice"));
        }
    }
    Ok(Cores(cores))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    let objective = u64::from(arguments.objective_p99_us);
    let options = CacheOptions {
        network: arguments.net.clone(),
        isolation: arguments.isolate_stack.then(|| isolation(arguments)),
        listen: arguments.listen.clone(),
        memory_bytes: usize::try_from(arguments.memory)?,
        cores: arguments
            .cores
            .clone()
            .map_or_else(Vec::new, |cores| cores.0),
        connections_max: usize::try_from(arguments.max_connections)?,
        send_memory_bytes: usize::try_from(arguments.send_memory)?,
        fixed_batch: arguments.batch.map(usize::from),
        idle: arguments.idle.into(),
        metrics: arguments.metrics,
        drain: Duration::from_secs(arguments.drain_s.into()),
        settings: CacheSettings {
            objective: (objective > 0).then(|| Duration::from_micros(objective)),
            idle_timeout_s: arguments.idle_timeout_s,
        },
        settings_file: arguments.settings.clone(),
        zero_copy_from_bytes: arguments.zero_copy_from,
        submission_thread_idle: arguments
            .sqpoll_ms
            .map(|ms| Duration::from_millis(ms.into())),
        xdp_socket: SocketConfig::default(),
        is_sandboxed: !arguments.no_sandbox,
    };
    if arguments.as_stack {
        cache_server::launch::serve_stack(&options)?;
        return Ok(CommandOutcome::Positive);
    }
    crate::descriptors::raise_limit_for(options.connections_max);
    let manager = ServiceManager::connect();
    let signal = cache_server::launch::serve(&options, &mut |notice| say(notice, &manager))?;
    Ok(if signal == rustix::process::Signal::TERM.as_raw() {
        CommandOutcome::Positive
    } else {
        CommandOutcome::Signal(signal)
    })
}

/// The process of the TCP stack: this program once more, with the same arguments.
fn isolation(arguments: &Arguments) -> Isolation {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = words.iter().position(|word| word == "serve-cache");
    words.insert(command.map_or(0, |at| at + 1), "--as-stack".into());
    Isolation {
        // Also where the file has been replaced since the start.
        program: "/proc/self/exe".into(),
        arguments: words,
        stack_cores: arguments
            .stack_cores
            .clone()
            .map_or_else(Vec::new, |cores| cores.0),
    }
}

fn say(notice: CacheNotice, manager: &ServiceManager) {
    match notice {
        CacheNotice::AddressInUse(held) => message(&held.to_string()),
        CacheNotice::Ready(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            message(&format!(
                "serving memcached's protocol on {}",
                addresses.join(", ")
            ));
            manager.tell(NotifyState::Ready);
        }
        CacheNotice::Reloaded(settings) => {
            let objective = settings.objective.map_or_else(
                || "no objective".to_owned(),
                |objective| format!("p99 below {} µs", objective.as_micros()),
            );
            message(&format!(
                "settings read again: {objective}, idle timeout {} s",
                settings.idle_timeout_s
            ));
        }
        CacheNotice::NotReloaded(reason) => message(&format!("the old settings stay: {reason}")),
        CacheNotice::Draining => {
            manager.tell(NotifyState::Stopping);
            message("draining: no new connections; a second signal ends it at once");
        }
        CacheNotice::Shards(shards) => message(&format!("{shards} shards serve connections now")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let xdp = |interface: &str, queue| Network::Xdp {
            interface: interface.into(),
            queue,
        };
        assert_eq!(parse_network("kernel"), Ok(Network::Kernel));
        assert_eq!(parse_network("xdp:eth1"), Ok(xdp("eth1", None)));
        assert_eq!(parse_network("xdp:eth1:3"), Ok(xdp("eth1", Some(3))));
        for wrong in [
            "",
            "xdp",
            "xdp:",
            "xdp::1",
            "xdp:eth1:x",
            "xdp:eth1:9999",
            "dpdk:eth1",
        ] {
            assert!(parse_network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_and_lists_of_cpus() {
        assert_eq!(parse_memory("1GiB"), Ok(1 << 30));
        assert_eq!(parse_memory("64M"), Ok(64 << 20));
        for wrong in ["", "1", "1MiB", "x", "-1GiB", "999999GiB", "1.5GiB"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_cores("0,2-3"), Ok(Cores(vec![0, 2, 3])));
        for wrong in ["", "a", "3-2", "1,1", "0-4000"] {
            assert!(parse_cores(wrong).is_err(), "{wrong}");
        }
    }
}
