//! TLS with clients that people have, and what is no TLS.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

#[path = "support/openssl.rs"]
mod openssl;
mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use openssl::{make_root, openssl, sign};
use support::{Server, start};

const SIZE_BYTES: usize = 24 << 20;

/// Runs a program. `None`: it is not installed.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("SKIP: {program} is missing");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

/// A root, a server's certificate for 127.0.0.1, and a client's, under the names that libnbd and
/// QEMU look for. The directories `second` and `third` have certificates of other clients.
fn certificates(directory: &Path) -> Option<()> {
    make_root(directory)?;
    let for_server = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n";
    let for_client = "extendedKeyUsage=clientAuth\n";
    sign(directory, directory, "server", "server", for_server)?;
    sign(directory, directory, "client", "client", for_client)?;
    for (name, extension) in [
        (
            "second",
            "subjectAltName=DNS:second.example,URI:spiffe://example/second\n",
        ),
        ("third", ""),
    ] {
        let own = directory.join(name);
        fs::create_dir(&own).unwrap();
        fs::copy(directory.join("ca-cert.pem"), own.join("ca-cert.pem")).unwrap();
        let extension = format!("{for_client}{extension}");
        sign(directory, &own, "client", name, &extension)?;
    }
    Some(())
}

fn with_server(tls: &str, test: impl Fn(&Server, &Path)) {
    with_tenants(tls, |_| String::new(), test);
}

/// As [`with_server`], with more tenants of the device in memory.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn with_tenants(tls: &str, tenants: impl Fn(&Path) -> String, test: impl Fn(&Server, &Path)) {
    let directory = tempfile::tempdir().unwrap();
    if certificates(directory.path()).is_none() {
        println!("SKIP: openssl is missing");
        return;
    }
    let path = directory.path().display();
    let config = format!(
        "[tls]\ncertificate = \"{path}/server-cert.pem\"\nkey = \"{path}/server-key.pem\"\n{}\n[[device]]\nname = \"ram\"\n\
         memory = \"{SIZE_BYTES}\"\n[[device]]\npath = \"{path}/disk\"\ncreate = \"{SIZE_BYTES}\"\n[[tenant]]\n\
         export = \"ram\"\ndevice = \"ram\"\n[[tenant]]\nexport = \"file\"\ndevice = \"{path}/disk\"\n{}",
        tls.replace("DIR", &path.to_string()),
        tenants(directory.path())
    );
    if let Some(server) = start(1, 128 << 20, &config) {
        test(&server, directory.path());
        server.stop();
    }
}

fn uri(server: &Server, export: &str, certificates: &Path) -> String {
    let certificates = certificates.display();
    format!(
        "nbds://{}/{export}?tls-certificates={certificates}",
        server.address
    )
}

#[test]
fn clients_copy_over_tls_with_certificates_of_both_sides() {
    with_server("client_ca = \"DIR/ca-cert.pem\"", |server, directory| {
        let image = directory.join("image");
        let bytes: Vec<u8> = (0..SIZE_BYTES)
            .map(|at| u8::try_from((at % 251) ^ ((at >> 12) & 0xff)).unwrap())
            .collect();
        fs::write(&image, &bytes).unwrap();
        for export in ["ram", "file"] {
            let uri = uri(server, export, directory);
            let back = directory.join("back");
            for arguments in [
                ["--connections=2", "--flush", image.to_str().unwrap(), &uri],
                ["--connections=2", "--flush", &uri, back.to_str().unwrap()],
            ] {
                let Some(output) = run("nbdcopy", &arguments) else {
                    return;
                };
                assert!(output.status.success(), "{output:?}");
            }
            assert!(
                fs::read(&back).unwrap() == bytes,
                "{export} came back otherwise"
            );
            let credentials = format!(
                "tls-creds-x509,id=t,dir={},endpoint=client",
                directory.display()
            );
            let port = server.address.port();
            let target =
                format!("driver=nbd,host=127.0.0.1,port={port},export={export},tls-creds=t");
            let compared = run(
                "qemu-img",
                &[
                    "compare",
                    "--object",
                    &credentials,
                    "--image-opts",
                    &target,
                    &format!("driver=raw,file.filename={}", image.display()),
                ],
            );
            let Some(output) = compared else { return };
            assert!(output.status.success(), "{output:?}");
        }
    });
}

#[test]
fn a_client_without_tls_or_without_a_certificate_gets_nothing() {
    with_server("client_ca = \"DIR/ca-cert.pem\"", |server, directory| {
        let Some(plain) = run("nbdinfo", &[&server.uri("ram")]) else {
            return;
        };
        assert!(!plain.status.success());
        let stranger = directory.join("stranger");
        fs::create_dir_all(&stranger).unwrap();
        fs::copy(directory.join("ca-cert.pem"), stranger.join("ca-cert.pem")).unwrap();
        let refused = run("nbdinfo", &[&uri(server, "ram", &stranger)]).unwrap();
        assert!(!refused.status.success(), "{refused:?}");
        let failures = server.shared.status().tls_failures.unwrap();
        assert_eq!(failures.connections, 1);
        assert_eq!(failures.last_address, "127.0.0.1".parse().ok());
        assert!(
            failures.last_reason.contains("no certificates"),
            "{failures:?}"
        );
        let page = server.shared.metrics_page();
        assert!(
            page.contains("\nslackline_block_tls_failures_total 1\n"),
            "{page}"
        );
        let known = run("nbdinfo", &[&uri(server, "ram", directory)]).unwrap();
        assert!(known.status.success(), "{known:?}");
        assert!(
            String::from_utf8_lossy(&known.stdout).contains("protocol: newstyle-fixed with TLS")
        );
    });
}

/// The fingerprint of a certificate, as openssl prints it.
fn fingerprint(certificate: &Path) -> String {
    let file = certificate.to_str().unwrap();
    let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", file];
    let output = openssl(&arguments).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().split_once('=').unwrap().1.to_owned()
}

#[test]
fn a_tenant_is_for_the_clients_that_it_names() {
    let tenants = |directory: &Path| {
        let pin = fingerprint(&directory.join("third/client-cert.pem"));
        let tenant = |export: &str, list: &str| {
            format!(
                "[[tenant]]\nexport = \"{export}\"\ndevice = \"ram\"\nread_only = true\n\
                 allow = {{ client_certificates = [{list}] }}\n"
            )
        };
        [
            tenant("first", "\"client\""),
            tenant("dns", "\"second.example\", \"nobody\""),
            tenant("uri", "\"spiffe://example/second\""),
            tenant("pinned", &format!("\"sha256:{pin}\"")),
        ]
        .concat()
    };
    let tls = "client_ca = \"DIR/ca-cert.pem\"\nrequired = false";
    with_tenants(tls, tenants, |server, directory| {
        for (client, may) in [
            ("", &["ram", "file", "first"][..]),
            ("second", &["ram", "file", "dns", "uri"]),
            ("third", &["ram", "file", "pinned"]),
        ] {
            let own = directory.join(client);
            for export in ["ram", "file", "first", "dns", "uri", "pinned"] {
                let Some(output) = run("nbdinfo", &[&uri(server, export, &own)]) else {
                    return;
                };
                let is_admitted = output.status.success();
                assert_eq!(is_admitted, may.contains(&export), "{client:?} {output:?}");
                if !is_admitted {
                    let text = String::from_utf8_lossy(&output.stderr);
                    assert!(text.contains("server replied with error"), "{text}");
                }
            }
            // A list has what the client may use, and nothing else.
            let listed = run("nbdinfo", &["--list", &uri(server, "", &own)]).unwrap();
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            for export in ["first", "dns", "uri", "pinned"] {
                let is_listed = listed.contains(&format!("export=\"{export}\""));
                assert_eq!(is_listed, may.contains(&export), "{client:?} {listed}");
            }
        }
        // Without TLS there is no certificate.
        let plain = run("nbdinfo", &[&server.uri("first")]).unwrap();
        assert!(!plain.status.success(), "{plain:?}");
        let status = server.shared.status();
        let first = status
            .tenants
            .iter()
            .find(|tenant| tenant.export == "first");
        assert!(first.unwrap().refused_clients >= 3, "{first:?}");
        assert_eq!(status.tenants[0].refused_clients, 0);
    });
}

#[test]
fn tls_that_is_offered_leaves_plaintext_alone() {
    with_server("required = false", |server, directory| {
        for uri in [server.uri("ram"), uri(server, "ram", directory)] {
            let Some(output) = run("nbdinfo", &[&uri]) else {
                return;
            };
            assert!(output.status.success(), "{output:?}");
        }
    });
}

#[test]
fn bytes_before_the_first_record_end_the_connection_and_so_does_garbage() {
    with_server("", |server, _| {
        let start_tls = |more: &[u8]| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
            let mut greeting = [0; 18];
            stream.read_exact(&mut greeting).unwrap();
            let mut bytes = 3_u32.to_be_bytes().to_vec();
            bytes.extend_from_slice(b"IHAVEOPT");
            bytes.extend_from_slice(&5_u32.to_be_bytes());
            bytes.extend_from_slice(&0_u32.to_be_bytes());
            bytes.extend_from_slice(more);
            stream.write_all(&bytes).unwrap();
            let mut reply = [0; 20];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(&reply[12..16], &1_u32.to_be_bytes());
            stream
        };
        let ends = |mut stream: TcpStream| {
            let mut rest = Vec::new();
            // A reset is an end as well.
            let _ = stream.read_to_end(&mut rest);
            rest
        };
        // An option that somebody else put before the client's first record is not obeyed.
        let injected = [&b"IHAVEOPT"[..], &[0, 0, 0, 3, 0, 0, 0, 0]].concat();
        assert!(ends(start_tls(&injected)).is_empty());
        let mut stream = start_tls(&[]);
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let alert = ends(stream);
        assert!(alert.first().is_none_or(|kind| *kind == 21), "{alert:?}");
        // The server is as it was.
        start_tls(&[]);
    });
}
