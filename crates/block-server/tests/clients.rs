//! Clients that people have: libnbd, QEMU's tools, fio.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

mod support;

use std::path::Path;
use std::process::Command;

use support::{Server, start};

/// Runs a program of `package` to its end, and gives what it printed. `None`: it is not installed.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn run(program: &str, package: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP: {program} is missing; it is in the package {package}");
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{errors}"
    );
    Some(text)
}

fn config(directory: &Path) -> String {
    let path = directory.join("disk");
    let path = path.display();
    format!(
        "[[device]]\nname = \"ram\"\nmemory = \"64MiB\"\n\
         [[device]]\npath = \"{path}\"\ncreate = \"64MiB\"\n\
         [[tenant]]\nexport = \"ram\"\ndevice = \"ram\"\ndescription = \"in memory\"\n\
         [[tenant]]\nexport = \"file\"\ndevice = \"{path}\"\n\
         [[tenant]]\nexport = \"fixed\"\ndevice = \"ram\"\nread_only = true\n"
    )
}

fn with_server(test: impl Fn(&Server, &Path)) {
    let directory = tempfile::tempdir().unwrap();
    if let Some(server) = start(1, 128 << 20, &config(directory.path())) {
        test(&server, directory.path());
        server.stop();
    }
}

#[test]
fn libnbd_lists_describes_and_copies() {
    with_server(|server, directory| {
        let root = format!("nbd://{}/", server.address);
        let Some(list) = run("nbdinfo", "libnbd-bin", &["--list", &root]) else {
            return;
        };
        assert!(list.contains("export=\"ram\"") && list.contains("export=\"file\""));
        for export in ["ram", "file"] {
            let uri = server.uri(export);
            let info = run("nbdinfo", "libnbd-bin", &[&uri]).unwrap();
            for expected in [
                "export-size: 67108864",
                "can_multi_conn: true",
                "can_fua: true",
                "can_zero: true",
                "can_fast_zero: true",
                "can_trim: true",
                "can_cache: true",
                "base:allocation",
                "using structured packets",
            ] {
                assert!(info.contains(expected), "{expected}: {info}");
            }
            let image = directory.join("image");
            let mut bytes = vec![0; 64 << 20];
            for (number, block) in bytes.chunks_mut(1 << 20).enumerate().step_by(3) {
                block.fill(u8::try_from(number).unwrap() + 1);
            }
            std::fs::write(&image, &bytes).unwrap();
            let image = image.to_str().unwrap();
            run(
                "nbdcopy",
                "libnbd-bin",
                &["--connections=4", "--flush", image, &uri],
            );
            let map = run("nbdinfo", "libnbd-bin", &["--map", &uri]).unwrap();
            assert!(map.contains("hole"), "{map}");
            let back = directory.join("back");
            run("nbdcopy", "libnbd-bin", &[&uri, back.to_str().unwrap()]);
            assert!(std::fs::read(&back).unwrap() == bytes, "{export}");
        }
    });
}

#[test]
fn qemus_tools_read_write_and_compare() {
    with_server(|server, directory| {
        for export in ["ram", "file"] {
            let uri = server.uri(export);
            let script = [
                "write -P 0x5a 0 1M",
                "write -z 256k 128k",
                "write -f -P 0x11 512k 4k",
                "discard 768k 64k",
                "read -P 0x5a 0 256k",
                "read -P 0 256k 128k",
                "read -P 0x11 512k 4k",
                "aio_write -P 0x22 2M 1M",
                "aio_flush",
                "flush",
                "read -P 0x22 2M 1M",
                "write -P 0x33 4097 513",
                "read -P 0x33 4097 513",
            ];
            let mut arguments = vec!["-f", "raw"];
            for line in script {
                arguments.extend(["-c", line]);
            }
            arguments.push(&uri);
            let Some(text) = run("qemu-io", "qemu-utils", &arguments) else {
                return;
            };
            assert!(!text.contains("failed"), "{text}");
            let copy = directory.join("copy.qcow2");
            let copy = copy.to_str().unwrap();
            run(
                "qemu-img",
                "qemu-utils",
                &["convert", "-O", "qcow2", &uri, copy],
            );
            let same = run(
                "qemu-img",
                "qemu-utils",
                &["compare", "-F", "raw", copy, &uri],
            );
            assert!(same.unwrap().contains("Images are identical"));
        }
    });
}

#[test]
fn fio_verifies_what_it_wrote() {
    with_server(|server, _| {
        for export in ["ram", "file"] {
            let uri = format!("--uri={}", server.uri(export));
            let common = [
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randwrite",
                "--bsrange=512-128k",
                "--blockalign=512",
                "--iodepth=16",
                "--size=32M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--fsync=64",
                "--output-format=json",
            ];
            let Some(text) = run("fio", "fio", &common) else {
                return;
            };
            assert!(text.contains("\"error\" : 0"), "{text}");
        }
    });
}

/// Every command, option, flag and error, by libnbd's interface for Python.
#[test]
fn libnbd_gets_what_it_asks_for() {
    with_server(|server, _| {
        let root = format!("nbd://{}/", server.address);
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libnbd.py");
        // Debian's interpreter: another one in the search path lacks the package.
        let line = format!(
            "import importlib.util, os; os.environ['SERVER_URI'] = {root:?}; has = importlib.util.find_spec('nbd'); \
             exec(open({script:?}).read() if has else \"print('SKIP: python3-libnbd is missing')\")"
        );
        let Some(text) = run("/usr/bin/python3", "python3-libnbd", &["-c", &line]) else {
            return;
        };
        if text.starts_with("SKIP") {
            println!("{text}");
            return;
        }
        assert!(text.contains("got what it asked for"), "{text}");
    });
}

/// A file system is made, checked, filled and checked again through the server.
#[test]
fn a_file_system_on_an_export_is_whole() {
    with_server(|server, directory| {
        let image = directory.join("fs");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        let image = image.to_str().unwrap();
        let Some(_) = run(
            "mkfs.ext4",
            "e2fsprogs",
            &["-q", "-F", "-d", "/etc/apt", image],
        ) else {
            return;
        };
        let uri = server.uri("file");
        let Some(_) = run("nbdcopy", "libnbd-bin", &[image, &uri]) else {
            return;
        };
        let back = directory.join("back");
        let back = back.to_str().unwrap();
        run("nbdcopy", "libnbd-bin", &[&uri, back]);
        run("e2fsck", "e2fsprogs", &["-f", "-n", back]);
    });
}
