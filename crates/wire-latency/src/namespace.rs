//! Network namespaces: a ring in that of another process, and who listens there.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use libc::sock_filter;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Error;
use crate::ring::Ring;
use crate::tcp_table::{TcpState, tcp_sockets};

/// Opens a ring in the network namespace of `pid`, or in the caller's.
pub(crate) fn open_ring(pid: Option<u32>, program: Vec<sock_filter>) -> Result<Ring, Error> {
    let Some(pid) = pid.filter(|pid| !is_own(*pid)) else {
        return Ring::open(&program).map_err(Error::Packets);
    };
    let path = namespace(pid);
    let failed = move |source: io::Error| Error::Namespace {
        path: path.clone(),
        source,
    };
    let file = File::open(namespace(pid)).map_err(failed.clone())?;
    // A thread enters the namespace and ends; the socket stays there.
    let enters = move || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| failed(errno.into()))?;
        Ring::open(&program).map_err(Error::Packets)
    };
    let thread = std::thread::Builder::new()
        .spawn(enters)
        .map_err(Error::Thread)?;
    thread
        .join()
        .unwrap_or_else(|_| Err(Error::Thread(io::Error::other("it panicked"))))
}

fn namespace(pid: u32) -> PathBuf {
    format!("/proc/{pid}/ns/net").into()
}

fn is_own(pid: u32) -> bool {
    let inode = |path: &Path| std::fs::metadata(path).map(|of| (of.dev(), of.ino())).ok();
    let own = inode(Path::new("/proc/self/ns/net"));
    own.is_some() && own == inode(&namespace(pid))
}

/// Whether somebody listens on the TCP port, in the network namespace of `pid` or the caller's.
///
/// # Errors
/// Neither of the kernel's tables can be read: the process is gone.
pub(crate) fn is_listened(pid: Option<u32>, port: u16) -> io::Result<bool> {
    let of = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let read = |table: &str| std::fs::read_to_string(format!("/proc/{of}/net/{table}"));
    // Without IPv6 there is no second table.
    let tables = [read("tcp")?, read("tcp6").unwrap_or_default()];
    Ok(tables.iter().any(|table| listens(table, port)))
}

fn listens(table: &str, port: u16) -> bool {
    tcp_sockets(table).any(|socket| socket.port == port && socket.state == TcpState::Listening)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_and_a_connection_is_none() {
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:2CAA 00000000:0000 0A 0:0 0:0 0 0 0 17 1\n   1: 0100007F:1F90 0100007F:C001 01 0:0 0:0 0 0 0 18 1\n";
        assert!(listens(table, 11434));
        assert!(!listens(table, 8080));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(is_listened(None, port).unwrap());
        assert!(is_listened(Some(std::process::id()), port).unwrap());
        drop(socket);
        assert!(!is_listened(None, port).unwrap());
        assert!(is_listened(Some(u32::MAX), port).is_err());
    }
}
