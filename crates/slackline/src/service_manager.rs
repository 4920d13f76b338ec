//! Tells systemd how a server is (sd_notify(3)), also after the server has given up the system
//! calls that open a socket.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};

use sd_notify::NotifyState;

use crate::output::message;

/// The socket of systemd, if systemd started this process and wants to be told.
pub(crate) struct ServiceManager(Option<UnixDatagram>);

impl ServiceManager {
    /// Opens the socket. Call it before the sandbox begins.
    pub(crate) fn connect() -> Self {
        let name = std::env::var_os("NOTIFY_SOCKET");
        let socket = name.map(|name| connect(name.as_bytes())).transpose();
        Self(socket.unwrap_or_else(|error| {
            message(&format!(
                "systemd cannot be told that the server is ready: NOTIFY_SOCKET: {error}"
            ));
            None
        }))
    }

    /// Sends a state.
    pub(crate) fn tell(&self, state: NotifyState<'_>) {
        if let Some(socket) = &self.0 {
            // Where systemd is gone, nobody is left to be told.
            let _ = socket.send(state.to_string().as_bytes());
        }
    }
}

/// A name that begins with `@` is in the abstract namespace.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => UnixAddress::from_abstract_name(name)?,
        None => UnixAddress::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_has_a_path_or_an_abstract_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("@{}", path.display());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let address = UnixAddress::from_abstract_name(&name[1..]).unwrap();
        let at_name = UnixDatagram::bind_addr(&address).unwrap();
        for (socket, name) in [(at_path, path.to_str().unwrap()), (at_name, &name)] {
            let manager = ServiceManager(Some(connect(name.as_bytes()).unwrap()));
            manager.tell(NotifyState::Ready);
            let mut words = [0; 64];
            let length = socket.recv(&mut words).unwrap();
            assert_eq!(words[..length].trim_ascii(), b"READY=1");
        }
        assert!(connect(b"/no/such/socket").is_err());
    }
}
