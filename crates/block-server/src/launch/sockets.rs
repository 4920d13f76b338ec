//! The sockets that clients connect to.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use dataplane::launch::{self, AddressInUse};
use dataplane::uring;

use super::error::BlockLaunchError;
use crate::config::BlockConfig;

/// Sockets that clients connect to: first those for NBD, then those for NVMe/TCP.
pub(super) struct Sockets {
    pub(super) listeners: Vec<OwnedFd>,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) nvme: Vec<SocketAddr>,
}

/// The sockets of systemd, or those of the configuration. A socket of systemd is for NVMe/TCP if
/// its address is one of those in the configuration.
pub(super) fn sockets(
    config: &BlockConfig,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<Sockets, BlockLaunchError> {
    let for_nvme = config.nvme.iter().flat_map(|spec| &spec.listen);
    let for_nvme: Vec<SocketAddr> = for_nvme.copied().collect();
    let inherited = uring::inherited()?.into_iter();
    let (mut nvme, mut nbd): (Vec<_>, Vec<_>) =
        inherited.partition(|(_, address)| for_nvme.contains(address));
    for &(_, address) in &nbd {
        config
            .may_serve_nbd_at(address)
            .map_err(|reason| BlockLaunchError::SystemdSocket { address, reason })?;
    }
    if nbd.is_empty() && nvme.is_empty() {
        for &address in &config.listen {
            nbd.push((listen(config, address, waits)?, address));
        }
    }
    for address in for_nvme {
        if !nvme.iter().any(|(_, open)| *open == address) {
            nvme.push((listen(config, address, waits)?, address));
        }
    }
    let (mut listeners, addresses): (Vec<_>, Vec<_>) = nbd.into_iter().unzip();
    let (own, nvme): (Vec<_>, Vec<_>) = nvme.into_iter().unzip();
    listeners.extend(own);
    Ok(Sockets {
        listeners,
        addresses,
        nvme,
    })
}

fn listen(
    config: &BlockConfig,
    address: SocketAddr,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<OwnedFd, BlockLaunchError> {
    launch::listen(address, waits).map_err(|error| at_address(config, Some(address), error))
}

/// Why an address cannot be listened on, at its place in the file.
pub(super) fn at_address(
    config: &BlockConfig,
    address: Option<SocketAddr>,
    error: launch::LaunchError,
) -> BlockLaunchError {
    let kind = match &error {
        launch::LaunchError::Metrics(_, source)
        | launch::LaunchError::Dataplane(dataplane::Error::Listen { source, .. }) => source.kind(),
        _ => std::io::ErrorKind::Other,
    };
    let hint = match kind {
        std::io::ErrorKind::AddrInUse => ". `ss -ltnp` shows the process that has the address",
        std::io::ErrorKind::AddrNotAvailable => ". `ip address` shows the addresses of this host",
        _ => "",
    };
    BlockLaunchError::Address {
        place: address.and_then(|address| config.place_of_address(address).cloned()),
        source: Box::new(error),
        hint,
    }
}
