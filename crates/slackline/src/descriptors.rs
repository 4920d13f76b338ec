//! The limit on open files of this process (getrlimit(2), `RLIMIT_NOFILE`).

use rustix::process::{Resource, getrlimit, setrlimit};

/// What a server needs besides the descriptors of its connections.
const BESIDE_CONNECTIONS: u64 = 64;

/// Raises the limit to `wanted` where it is lower and the hard limit allows; returns what holds
/// then.
pub(crate) fn raise_limit(wanted: u64) -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        // Without it, accepting pauses when descriptors run out.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Room for a descriptor for each connection, where the hard limit allows.
pub(crate) fn raise_limit_for(connections: usize) {
    raise_limit(connections as u64 + BESIDE_CONNECTIONS);
}
