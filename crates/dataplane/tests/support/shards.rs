//! Threads of a test that each run a shard on io_uring. The tests of the servers on this runtime
//! use it too.

use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::{JoinHandle, spawn};

use dataplane::shard::Plane;
use dataplane::uring::{OwnsGroup, Uring, UringConfig};
use dataplane::{Application, Shard, ShardConfig};

/// The threads of all shards of a plane. Each ends with what `finish` makes of its application.
/// `None`: this kernel has no io_uring.
pub(crate) fn start_shards<A: Application + 'static, T: Send + 'static>(
    plane: &Arc<Plane<Uring, A>>,
    shards: u8,
    mut listeners: Vec<OwnedFd>,
    configure: impl Fn(&mut UringConfig) + Clone + Send + 'static,
    application: impl Fn(u8) -> A + Clone + Send + 'static,
    finish: fn(A) -> T,
) -> Option<Vec<JoinHandle<Option<T>>>> {
    let mut threads = Vec::new();
    for id in 0..shards {
        let (plane, listeners) = (Arc::clone(plane), std::mem::take(&mut listeners));
        let (configure, application) = (configure.clone(), application.clone());
        let (ready, is_ready) = mpsc::channel();
        threads.push(spawn(move || {
            let owners = Arc::clone(&plane);
            let owns = move |group| owners.groups.owner(group) == id;
            let mut config = UringConfig {
                listeners,
                owns_group: Some(Box::new(owns) as OwnsGroup),
                ..UringConfig::default()
            };
            configure(&mut config);
            let backend = Uring::new(config);
            ready.send(backend.is_ok()).unwrap();
            let config = ShardConfig {
                id,
                ..ShardConfig::default()
            };
            let shard = Shard::new(config, backend.ok()?, application(id), plane).unwrap();
            Some(finish(shard.run().unwrap()))
        }));
        if !is_ready.recv().unwrap() {
            println!("SKIP: no io_uring on this kernel");
            return None;
        }
    }
    Some(threads)
}
