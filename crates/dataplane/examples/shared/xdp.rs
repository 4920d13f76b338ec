//! How the examples open an interface for AF_XDP.
//!
//! Settings to be measured come from the environment: `FRAMES` of each direction,
//! `CHECKSUMS=device`, `PAGES=large`, and `DELAYED_ACK_MS`.

use std::sync::Arc;

use dataplane::Error;
use dataplane::tcp::{Config, KeepAlive};
use dataplane::xdp::{Interface, Program, SocketConfig, XdpBackend, XdpConfig, XdpMode};

/// Frames for 10,000 requests under way: a ring that overflows loses requests.
const FRAMES: u32 = 1 << 14;

/// The first queue, with the settings of the environment.
pub(crate) fn socket() -> SocketConfig {
    SocketConfig {
        frames: number("FRAMES").unwrap_or(FRAMES),
        leaves_checksums: std::env::var_os("CHECKSUMS").is_some(),
        has_large_pages: std::env::var_os("PAGES").is_some(),
        ..SocketConfig::default()
    }
}

/// A number of the environment.
fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

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
        if let Some(wait_ms) = number("DELAYED_ACK_MS") {
            stack.delayed_ack_ms = wait_ms;
        }
    };
    Ok(XdpBackend::open(interface, config, program, &change)?)
}
