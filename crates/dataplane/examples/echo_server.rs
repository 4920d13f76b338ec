//! Echo servers of the runtime with settings, to try the backends and to measure them:
//!
//! ```text
//! echo_server xdp INTERFACE ADDRESS:PORT [CPU [learn|spin [KEEP_ALIVE_S]]]
//! echo_server uring ADDRESS:PORT [CPU [learn|spin [SETTING…]]]
//! ```
//!
//! On AF_XDP, connections that were silent for KEEP_ALIVE_S seconds are probed (default: two
//! hours). The settings of io_uring: `registered` (sockets), `buffers=64` (for receiving), `sqpoll`
//! (a submission thread on any CPU) or `sqpoll=2` (on CPU 2).
#![expect(clippy::print_stderr, reason = "the output of a program")]

#[allow(dead_code, reason = "the tests read how much had no room")]
#[path = "shared/echo.rs"]
mod echo;
#[path = "shared/xdp.rs"]
mod xdp;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dataplane::idle::IdlePolicy;
use dataplane::shard::Plane;
use dataplane::uring::{Uring, UringConfig, listen};
use dataplane::xdp::{Interface, XdpConfig};
use dataplane::{Backend, Error, Shard, ShardConfig};

use echo::Echo;

fn by_xdp(words: &[String]) -> Result<(), Failure> {
    let [interface, address, rest @ ..] = words else {
        return Err(Failure::Usage);
    };
    let interface = Interface::find(interface).map_err(Error::from)?;
    let address: SocketAddr = address.parse().map_err(|_| Failure::Usage)?;
    let config = XdpConfig {
        socket: xdp::socket(),
        listen: vec![address],
        connections_max: 1 << 20,
        extra_addresses: Vec::new(),
    };
    let backend = xdp::open(&interface, &config, number(rest.get(2))?)?;
    eprintln!(
        "echo on {address} of {}: {:?}",
        interface.name,
        backend.attached()
    );
    serve(backend, rest)
}

fn by_uring(words: &[String]) -> Result<(), Failure> {
    let [address, rest @ ..] = words else {
        return Err(Failure::Usage);
    };
    let address: SocketAddr = address.parse().map_err(|_| Failure::Usage)?;
    let mut config = UringConfig {
        listeners: vec![listen(address)?],
        ..UringConfig::default()
    };
    for setting in rest.iter().skip(2) {
        set(&mut config, setting)?;
    }
    serve(Uring::new(config)?, rest)
}

fn set(config: &mut UringConfig, setting: &str) -> Result<(), Failure> {
    let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
    match (name, value) {
        ("registered", "") => config.registers_sockets = true,
        ("buffers", count) => {
            config.receive_buffers = count.parse().map_err(|_| Failure::Usage)?;
        }
        ("sqpoll", cpu) => {
            config.submission_thread_idle = Some(Duration::from_secs(1));
            if !cpu.is_empty() {
                config.submission_thread_cpu = Some(cpu.parse().map_err(|_| Failure::Usage)?);
            }
        }
        _ => return Err(Failure::Usage),
    }
    Ok(())
}

/// `rest` has the CPU and how to idle.
fn serve<B: Backend>(backend: B, rest: &[String]) -> Result<(), Failure> {
    let is_spinning = rest.get(1).is_some_and(|word| word == "spin");
    let shard = ShardConfig {
        cpu: number(rest.first())?,
        idle: [IdlePolicy::Learn, IdlePolicy::Spin][usize::from(is_spinning)],
        ..ShardConfig::default()
    };
    let plane = Arc::new(Plane::new(1, 1)?);
    Shard::new(shard, backend, Echo::default(), plane)?.run()?;
    Ok(())
}

fn number<T: std::str::FromStr>(word: Option<&String>) -> Result<Option<T>, Failure> {
    word.map(|word| word.parse().map_err(|_| Failure::Usage))
        .transpose()
}

enum Failure {
    Usage,
    Dataplane(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Dataplane(error)
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let [backend, rest @ ..] = arguments else {
        return Err(Failure::Usage);
    };
    match backend.as_str() {
        "xdp" => by_xdp(rest),
        "uring" => by_uring(rest),
        _ => Err(Failure::Usage),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage) => {
            eprintln!("usage: echo_server xdp|uring …: see the top of examples/echo_server.rs");
            ExitCode::from(2)
        }
        Err(Failure::Dataplane(error)) => {
            eprintln!("echo_server: {error}");
            ExitCode::from(if error.is_missing_privilege() { 3 } else { 2 })
        }
    }
}
