//! Numbers that the configuration gives to namespaces, over a restart and over reloads.

use std::io::BufRead as _;
use std::path::{Path, PathBuf};

use crate::admin::{active, uuid};
use crate::host::{Host, NQN, Place, READ, WRITE, on_blocks};
use crate::support::{free_port, page, signal, start_ready};

/// Writes a configuration. Each tenant has a file of its own, which has the tenant's name.
fn configure(
    directory: &Path,
    (port, metrics): (u16, u16),
    tenants: &[(&str, Option<u32>)],
) -> PathBuf {
    let tables = tenants.iter().map(|(name, number)| {
        let number = number.map(|number| format!("namespace = {number}"));
        format!(
            "[[device]]\npath = {0:?}\ncreate = \"1MiB\"\n\
             [[tenant]]\nexport = \"{name}\"\ndevice = {0:?}\n{1}\n",
            directory.join(name),
            number.unwrap_or_default()
        )
    });
    let tables: String = tables.collect();
    let text = format!(
        "listen = []\nmetrics = \"127.0.0.1:{metrics}\"\n\
         nvme = {{ listen = [\"127.0.0.1:{port}\"], subsystem = \"{NQN}\" }}\n{tables}"
    );
    let path = directory.join("blocks.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_pinned_number_means_the_same_disk_over_a_restart_and_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let (port, metrics) = (free_port(), free_port());
    let address = ([127, 0, 0, 1], port).into();
    let configure = |tenants: &[_]| configure(directory.path(), (port, metrics), tenants);
    let in_status = || {
        let page = page(metrics, "/status");
        let json = page.split_once("\r\n\r\n").unwrap().1;
        let status: serde_json::Value = serde_json::from_str(json).unwrap();
        let tenants = status["tenants"].as_array().unwrap().iter();
        let numbers = tenants.map(|tenant| tenant["namespace"].as_u64());
        numbers.collect::<Vec<_>>()
    };
    let on_disk = |name: &str| std::fs::read(directory.path().join(name)).unwrap()[..512].to_vec();
    let write = |io: &mut Host, number: u32, byte: u8| {
        let command = on_blocks(WRITE, number, 0, 1, 0);
        io.write(command, &[byte; 512], Place::Capsule).status
    };

    let config = configure(&[("a", Some(1)), ("b", Some(2))]);
    let Some((mut child, _messages)) = start_ready(&config) else {
        return;
    };
    let (mut admin, id) = Host::admin(address, NQN, 0);
    let mut io = Host::io(address, id, 1, 0);
    assert_eq!((write(&mut io, 1, 1), write(&mut io, 2, 2)), (0, 0));
    let before = [uuid(&mut admin, 1), uuid(&mut admin, 2)];
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());

    // The order is another one, and a tenant without a number stands first.
    configure(&[("new", None), ("b", Some(2)), ("a", Some(1))]);
    let Some((mut child, mut messages)) = start_ready(&config) else {
        return;
    };
    let (mut admin, id) = Host::admin(address, NQN, 0);
    let mut io = Host::io(address, id, 1, 0);
    assert_eq!(active(&mut admin), [1, 2, 3]);
    assert_eq!(in_status(), [Some(3), Some(2), Some(1)]);
    assert_eq!([uuid(&mut admin, 1), uuid(&mut admin, 2)], before);
    let read = io.execute(on_blocks(READ, 1, 0, 1, 0), 512);
    assert_eq!((read.status, read.data), (0, vec![1; 512]));
    // What waited in the host for the server goes where it belongs.
    assert_eq!((write(&mut io, 1, 11), write(&mut io, 2, 12)), (0, 0));
    assert_eq!(
        [on_disk("a"), on_disk("b"), on_disk("new")],
        [[11; 512], [12; 512], [0; 512]]
    );

    let mut reload = |tenants: &[_]| {
        configure(tenants);
        signal(&child, "-HUP");
        let mut line = String::new();
        messages.read_line(&mut line).unwrap();
        line
    };
    // A reload that swaps the numbers is refused, and makes no file.
    let line = reload(&[("made", None), ("a", Some(2)), ("b", Some(1))]);
    assert!(
        line.contains("NotReloaded")
            && line.contains("blocks.toml:17: tenant.namespace: 2 has meant another disk"),
        "{line}"
    );
    assert!(!directory.path().join("made").exists());
    assert_eq!(write(&mut io, 1, 21), 0);
    assert_eq!(on_disk("a"), [21; 512]);

    // Another number is another namespace. The old one is gone.
    let line = reload(&[("a", Some(7)), ("b", Some(2)), ("new", None)]);
    assert!(line.contains("Reloaded {"), "{line}");
    assert_eq!((write(&mut io, 1, 31), write(&mut io, 7, 32)), (0x0b, 0));
    assert_eq!((on_disk("a"), on_disk("b")), (vec![32; 512], vec![12; 512]));
    assert_eq!(active(&mut admin), [2, 3, 7]);
    assert_eq!(in_status(), [Some(7), Some(2), Some(3)]);
    assert_eq!(uuid(&mut admin, 7), before[0]);
    signal(&child, "-TERM");
    assert!(child.wait().unwrap().success());
}
