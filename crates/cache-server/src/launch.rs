//! Starts the shards, waits for signals, and ends them.

mod error;
mod isolated;
mod options;
mod queues;
mod server;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use dataplane::groups::GROUPS;
use dataplane::launch;
use dataplane::uring::{self, Uring, UringConfig};
use dataplane::xdp::XdpBackend;

pub use error::CacheLaunchError;
pub use isolated::serve_stack;
use options::SEND_QUEUE_BYTES;
pub use options::{CacheOptions, Isolation, Network};
use queues::XdpQueues;
pub use server::CacheNotice;
use server::Server;

/// Serves until a signal ends it; gives the signal. `notice` hears what happens.
///
/// # Errors
/// [`CacheLaunchError`]: nothing is left behind.
pub fn serve(
    options: &CacheOptions,
    notice: &mut dyn FnMut(CacheNotice),
) -> Result<i32, CacheLaunchError> {
    let settings = match &options.settings_file {
        Some(path) => options.settings.read(path)?,
        None => options.settings,
    };
    match (&options.network, &options.isolation) {
        (Network::Kernel, Some(_)) => Err(CacheLaunchError::NothingToIsolate),
        (Network::Kernel, None) => {
            let (listeners, addresses) = sockets(options, notice)?;
            let mut server = Server::new(options, settings, addresses, GROUPS, notice)?;
            server.start_uring(listeners)?;
            server.run(notice)
        }
        (Network::Xdp { .. }, Some(isolation)) => {
            isolated::serve(options, isolation, settings, notice)
        }
        (Network::Xdp { interface, queue }, None) => {
            let queues = XdpQueues::find(options, interface, *queue)?;
            let addresses = options.listen.clone();
            let groups = queues.count as usize;
            let mut server = Server::new(options, settings, addresses, groups, notice)?;
            server.start_xdp(&queues)?;
            server.run(notice)
        }
    }
}

impl Server<'_, Uring> {
    fn start_uring(&mut self, listeners: Vec<OwnedFd>) -> Result<(), CacheLaunchError> {
        let options = self.options;
        let shards = self.plane.mailboxes.len();
        let mut listeners = Some(listeners);
        for shard in 0..u8::try_from(shards).unwrap_or(u8::MAX) {
            let owners = Arc::clone(&self.plane);
            let owns = move |group| owners.groups.owner(group) == shard;
            let backend = UringConfig {
                // The first shard accepts for all.
                listeners: listeners.take().unwrap_or_default(),
                flows_max: options.connections_max,
                send_queue_bytes: SEND_QUEUE_BYTES,
                send_memory_bytes: options.send_memory_bytes / shards,
                zero_copy_from_bytes: options.zero_copy_from_bytes,
                submission_thread_idle: options.submission_thread_idle,
                owns_group: (shards > 1).then(|| Box::new(owns) as uring::OwnsGroup),
                ..UringConfig::default()
            };
            let cache = self.cache(shard);
            let config = self.shard_config(shard);
            self.shards
                .start(config, move || Ok((Uring::new(backend)?, cache)))?;
        }
        Ok(())
    }
}

impl Server<'_, XdpBackend> {
    fn start_xdp(&mut self, queues: &XdpQueues) -> Result<(), CacheLaunchError> {
        let memory_max_bytes = self.options.send_memory_bytes / self.plane.mailboxes.len();
        let owner = |group| self.plane.groups.owner(group);
        let backends = queues.open(self.options, memory_max_bytes, &owner)?;
        for (shard, backend) in (0..).zip(backends) {
            let cache = self.cache(shard);
            self.shards
                .start(self.shard_config(shard), move || Ok((backend, cache)))?;
        }
        Ok(())
    }
}

/// The sockets of systemd, and those of `--listen`.
fn sockets(
    options: &CacheOptions,
    notice: &mut dyn FnMut(CacheNotice),
) -> Result<(Vec<OwnedFd>, Vec<SocketAddr>), CacheLaunchError> {
    let (mut listeners, mut addresses): (Vec<_>, Vec<_>) = uring::inherited()?.into_iter().unzip();
    // With sockets of systemd, the default address is not wanted.
    let own = if listeners.is_empty() {
        &options.listen[..]
    } else {
        &[]
    };
    for &address in own {
        let mut waits = |held| notice(CacheNotice::AddressInUse(held));
        listeners.push(launch::listen(address, &mut waits)?);
        addresses.push(address);
    }
    if listeners.is_empty() {
        return Err(CacheLaunchError::NoAddress);
    }
    Ok((listeners, addresses))
}
