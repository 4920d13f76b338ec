//! The server over NVMe/TCP: what a host sends and reads, and what bad hosts cannot do.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod admin;
mod bad_hosts;
mod death;
mod host;
mod io;
mod numbers;
mod objectives;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::path::Path;

use support::{Server, start};

/// Namespace 1 is memory, 2 a file, 3 a part of the file that may only be read.
pub(crate) fn config(directory: &Path) -> String {
    let path = directory.join("disk");
    let path = path.display();
    format!(
        "nvme = {{ listen = [\"127.0.0.1:4420\"], subsystem = \"{}\" }}\n\
         [[device]]\nname = \"ram\"\nmemory = \"64MiB\"\n\
         [[device]]\npath = \"{path}\"\ncreate = \"64MiB\"\n\
         [[tenant]]\nexport = \"ram\"\ndevice = \"ram\"\n\
         [[tenant]]\nexport = \"file\"\ndevice = \"{path}\"\n\
         [[tenant]]\nexport = \"part\"\ndevice = \"{path}\"\nread_only = true\n\
         range = {{ offset = \"4KiB\", length = \"8193\" }}\n",
        host::NQN
    )
}

/// Runs `test` with a server.
pub(crate) fn with_server(test: impl FnOnce(&Server, SocketAddr)) {
    let directory = tempfile::tempdir().unwrap();
    let Some(server) = start(1, 64 << 20, &config(directory.path())) else {
        return;
    };
    let address = server.nvme.unwrap();
    test(&server, address);
    server.stop();
}

/// The server itself, when another test started it.
#[test]
fn server_process() {
    support::be_server();
}
