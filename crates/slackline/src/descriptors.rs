//! The limit on open files of this process (getrlimit(2), `RLIMIT_NOFILE`).

use qos::Grouped;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::output::message;

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

/// Room for a descriptor for each connection, where the hard limit allows. A warning where it does
/// not.
pub(crate) fn raise_limit_for(connections: usize) {
    let wanted = connections as u64 + BESIDE_CONNECTIONS;
    let limit = raise_limit(wanted);
    if limit < wanted {
        message(&format!(
            "{} connections are allowed, and the limit of open descriptors (`ulimit -n`) is {}: some clients will have to \
             wait. Raise the limit, or allow fewer connections",
            Grouped(connections as u64),
            Grouped(limit)
        ));
    }
}
