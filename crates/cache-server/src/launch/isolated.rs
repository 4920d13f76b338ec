//! The TCP stack in a process of its own: the application's part of the start, and the stack's.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::batch::{BOUND_MAX, BatchPolicy};
use dataplane::idle::IdlePolicy;
use dataplane::isolated::{
    ApplicationProcess, ApplicationSide, Limits, NoApplication, RING_BYTES, Rings, StackProcess,
    StackSide,
};
use dataplane::launch::{self, Shards};
use dataplane::sandbox::{self, Opens};
use dataplane::shard::{Plane, ShardConfig};
use dataplane::xdp::XdpBackend;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::CacheLaunchError;
use super::options::{CacheOptions, Isolation, Network, SEND_QUEUE_BYTES, shards};
use super::queues::XdpQueues;
use super::server::{CacheNotice, Server};
use crate::settings::CacheSettings;

/// How often the stack's process looks whether the application has ended.
const TICK: Duration = Duration::from_millis(20);

/// How long the stacks may take to reset their connections.
const END_MAX: Duration = Duration::from_secs(1);

/// What one process may ask of the other.
fn limits(options: &CacheOptions) -> Limits {
    Limits {
        flows_max: options.connections_max,
        queue_bytes: SEND_QUEUE_BYTES,
        pool_bytes: memory_bytes(options),
    }
}

/// Memory for answers of one shard: what the stack may hold, and what is on its way there.
fn memory_bytes(options: &CacheOptions) -> usize {
    let share = options.send_memory_bytes / usize::from(shards(options));
    share.max(2 * SEND_QUEUE_BYTES)
}

/// What a thread does while idle, where all threads of both processes have these CPUs. One that
/// spins would keep another one of the same CPU from running.
fn idle(wanted: IdlePolicy, all: &[usize], own: Option<usize>) -> IdlePolicy {
    match all.iter().filter(|&&cpu| Some(cpu) == own).count() {
        0 | 1 => wanted,
        _ => IdlePolicy::Sleep,
    }
}

/// The CPUs of all threads of both processes.
fn cpus(options: &CacheOptions) -> Vec<usize> {
    let stacks = options.isolation.iter().flat_map(|own| &own.stack_cores);
    options.cores.iter().chain(stacks).copied().collect()
}

/// Starts the stack's process, and serves as the application.
pub(super) fn serve(
    options: &CacheOptions,
    isolation: &Isolation,
    settings: CacheSettings,
    notice: &mut dyn FnMut(CacheNotice),
) -> Result<i32, CacheLaunchError> {
    let (stacks, shards) = (isolation.stack_cores.len(), usize::from(shards(options)));
    if stacks > 0 && stacks != shards {
        return Err(CacheLaunchError::StackCores { stacks, shards });
    }
    let addresses = options.listen.clone();
    let mut server = Server::<ApplicationSide>::new(options, settings, addresses, shards, notice)?;
    let mut command = Command::new(&isolation.program);
    command.args(&isolation.arguments);
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    let stack = StackProcess::start(command)?;
    let cpus = cpus(options);
    for (shard, rings) in (0..).zip(stack.rings(shards, RING_BYTES)?) {
        let side = ApplicationSide::new(rings, limits(options))?;
        let cache = server.cache(shard);
        let own = server.shard_config(shard);
        let config = ShardConfig {
            idle: idle(options.idle, &cpus, own.cpu),
            ..own
        };
        server.shards.start(config, move || Ok((side, cache)))?;
    }
    server.stack = Some(stack);
    server.run(notice)
}

/// Serves as the process of the TCP stack, until the application that has started it ends.
///
/// # Errors
/// No application has started this process, or the application did what it may not. What keeps the
/// interface from being opened is told to the application, and is no error here.
pub fn serve_stack(options: &CacheOptions) -> Result<(), CacheLaunchError> {
    let application = ApplicationProcess::adopt()?;
    // A name that differs from the application's. Where it cannot be set, nothing depends on it.
    let _ = rustix::thread::set_name(c"slackline-stack");
    // A terminal and systemd send signals to both processes: the application answers them.
    let _signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| launch::LaunchError::Start("signals cannot be caught", error))?;
    match Stacks::open(options, &application) {
        Ok(stacks) if application.wait_for_begin() => stacks.run(options, &application),
        // The application has ended.
        Ok(_) => Ok(()),
        Err(error) => {
            application.refuse(&error.to_string(), error.is_missing_privilege());
            Ok(())
        }
    }
}

type StackPlane = Plane<StackSide<XdpBackend>, NoApplication>;

/// The TCP stacks of all shards, before they run.
struct Stacks {
    plane: Arc<StackPlane>,
    sides: Vec<StackSide<XdpBackend>>,
}

impl Stacks {
    /// Opens the interface, and sends the application its ends of the rings.
    fn open(
        options: &CacheOptions,
        application: &ApplicationProcess,
    ) -> Result<Self, CacheLaunchError> {
        let Network::Xdp { interface, queue } = &options.network else {
            return Err(CacheLaunchError::NothingToIsolate);
        };
        let queues = XdpQueues::find(options, interface, *queue)?;
        let shards = shards(options);
        // A connection stays where it is, so all shards own queues from the start.
        let plane = Arc::new(StackPlane::with_groups(
            queues.count as usize,
            shards,
            shards,
        )?);
        let owner = |group| plane.groups.owner(group);
        let mut sides = Vec::new();
        for backend in queues.open(options, memory_bytes(options), &owner)? {
            let rings = Rings::new(RING_BYTES)?;
            application.send_rings(&rings)?;
            sides.push(StackSide::new(backend, rings, limits(options))?);
        }
        Ok(Self { plane, sides })
    }

    fn run(
        self,
        options: &CacheOptions,
        application: &ApplicationProcess,
    ) -> Result<(), CacheLaunchError> {
        let mut running = Shards::new(Arc::clone(&self.plane), options.is_sandboxed);
        if options.is_sandboxed {
            sandbox::drop_capabilities()?;
        }
        let all = cpus(options);
        let stacks = options.isolation.iter().flat_map(|own| &own.stack_cores);
        let mut stacks = stacks.copied();
        for (id, side) in (0..).zip(self.sides) {
            let cpu = stacks.next();
            let config = ShardConfig {
                id,
                cpu,
                batch: BatchPolicy::Fixed(options.fixed_batch.unwrap_or(BOUND_MAX)),
                idle: idle(options.idle, &all, cpu),
            };
            running.start(config, move || Ok((side, NoApplication)))?;
        }
        if options.is_sandboxed {
            sandbox::restrict_system_calls(&[], Opens::Nothing)?;
        }
        while running.wait(TICK)? {
            if application.has_ended() {
                // Connections are reset, as the kernel does with those of a process that ends. A
                // shard that does not answer keeps nobody from ending.
                self.plane.drain(Duration::ZERO);
                let end = Instant::now() + END_MAX;
                while Instant::now() < end && running.wait(TICK)? {}
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_shares_its_cpu_does_not_spin() {
        let spin = |all: &[usize], own| idle(IdlePolicy::Spin, all, own);
        assert_eq!(spin(&[0, 1, 2, 1], Some(0)), IdlePolicy::Spin);
        assert_eq!(spin(&[0, 1, 2, 1], Some(1)), IdlePolicy::Sleep);
        // Who may run anywhere finds a place.
        assert_eq!(spin(&[0, 0], None), IdlePolicy::Spin);
    }
}
