//! Queues of an interface, taken from the kernel.

use std::sync::Arc;

use dataplane::xdp::{Division, Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};

use super::error::CacheLaunchError;
use super::options::{CacheOptions, SEND_QUEUE_BYTES, shards};

/// Queues of an interface at most: shards are no more, and each queue has memory for frames.
const QUEUES_MAX: u32 = 255;
/// Frames of a queue each way at least: what comes in a millisecond of a million packets a second.
const FRAMES_MIN: u32 = 1024;

/// Queues of an interface: `count` of them, from `first` on.
pub(super) struct XdpQueues {
    interface: Interface,
    first: u32,
    pub(super) count: u32,
}

impl XdpQueues {
    /// The queue that was named, or all queues of the interface.
    pub(super) fn find(
        options: &CacheOptions,
        interface: &str,
        queue: Option<u32>,
    ) -> Result<Self, CacheLaunchError> {
        if let Some(queue) = queue
            && options.cores.len() > 1
        {
            let interface = interface.to_owned();
            return Err(CacheLaunchError::ManyShards { interface, queue });
        }
        let interface = Interface::find(interface).map_err(dataplane::Error::from)?;
        let count = match queue {
            Some(_) => 1,
            None => interface.queues.receive.min(QUEUES_MAX),
        };
        Ok(Self {
            interface,
            first: queue.unwrap_or(0),
            count,
        })
    }

    /// Takes the queues from the kernel, for one backend a shard. `owner` says which shard has a
    /// queue at first.
    pub(super) fn open(
        &self,
        options: &CacheOptions,
        memory_max_bytes: usize,
        owner: &dyn Fn(u16) -> u8,
    ) -> Result<Vec<XdpBackend>, CacheLaunchError> {
        let (interface, shards) = (&self.interface, shards(options));
        interface
            .check_queue(self.first)
            .and_then(|()| interface.check_shards(shards))
            .map_err(dataplane::Error::from)?;
        let settings = options.xdp_socket;
        // Many queues for few shards have fewer frames each.
        let frames = settings.frames * u32::from(shards) / self.count;
        let config = XdpConfig {
            socket: SocketConfig {
                queue: self.first,
                frames: frames.max(FRAMES_MIN).min(settings.frames),
                ..settings
            },
            listen: options.listen.clone(),
            connections_max: options.connections_max,
            extra_addresses: Vec::new(),
        };
        config.check(interface).map_err(dataplane::Error::from)?;
        let change = |stack: &mut dataplane::tcp::Config| {
            stack.memory_max_bytes = memory_max_bytes;
            stack.send_queue_max_bytes = u32::try_from(SEND_QUEUE_BYTES).unwrap_or(u32::MAX);
        };
        let division = Division {
            queues: self.count,
            shards,
            owner,
        };
        let backends = Program::attach(interface, self.first + self.count, XdpMode::Auto)
            .and_then(|program| {
                let program = Arc::new(program);
                XdpBackend::open_all(interface, &config, &program, division, &change)
            })
            .map_err(dataplane::Error::from)?;
        Ok(backends)
    }
}
