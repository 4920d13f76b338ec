//! How the examples open an interface for AF_XDP.

use std::sync::Arc;

use dataplane::Error;
use dataplane::tcp::{Config, KeepAlive};
use dataplane::xdp::{Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};

/// Frames for 10,000 requests under way: a ring that overflows loses requests.
pub(crate) const SOCKET: SocketConfig = SocketConfig {
    queue: 0,
    frames: 1 << 14,
    busy_poll_us: None,
};

/// The first queue of the interface. Connections that were silent for `keep_alive_s` seconds are
/// probed (`None`: after two hours).
pub(crate) fn open(
    interface: &Interface,
    config: &XdpConfig,
    keep_alive_s: Option<u32>,
) -> Result<XdpBackend, Error> {
    config.check(interface)?;
    let program = Arc::new(Program::attach(interface, 1, XdpMode::Auto)?);
    let change = |stack: &mut Config| {
        if let Some(seconds) = keep_alive_s {
            stack.keep_alive = Some(KeepAlive {
                idle_ms: seconds.saturating_mul(1000),
                interval_ms: 10_000,
                probes: 9,
            });
        }
    };
    Ok(XdpBackend::open(interface, config, program, &change)?)
}
