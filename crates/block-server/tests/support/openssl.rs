//! Certificates of tests, made by openssl. What gives `None` found no openssl. The tests of the
//! binary use it too.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const NEW_KEY: [&str; 5] = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
];

/// Runs openssl, which has to succeed.
pub(crate) fn openssl(arguments: &[&str]) -> Option<Output> {
    match Command::new("openssl").args(arguments).output() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(output)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("openssl: {error}"),
    }
}

/// A certificate that signs itself, with these extensions, and its key.
fn sign_itself(subject: &str, extensions: &[&str], certificate: &Path, key: &Path) -> Option<()> {
    let subject = format!("/CN={subject}");
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let request = ["req", "-x509", "-days", "2", "-subj", &subject];
    let files = ["-keyout", key, "-out", certificate];
    let extensions: Vec<&str> = extensions.iter().flat_map(|it| ["-addext", *it]).collect();
    openssl(&[&request[..], &NEW_KEY, &extensions, &files].concat())?;
    Some(())
}

/// A server on 127.0.0.1 that is its own authority.
pub(crate) fn make_server(subject: &str, certificate: &Path, key: &Path) -> Option<()> {
    let extensions = [
        "subjectAltName=IP:127.0.0.1",
        "basicConstraints=critical,CA:FALSE",
    ];
    sign_itself(subject, &extensions, certificate, key)
}

/// A root, as `ca-cert.pem` and `ca-key.pem` in `directory`.
pub(crate) fn make_root(directory: &Path) -> Option<()> {
    let at = |name: &str| directory.join(name);
    sign_itself("root", &[], &at("ca-cert.pem"), &at("ca-key.pem"))
}

/// Has the root of `directory` sign a certificate for `subject`, as `role`-cert.pem in `into`, with
/// `role`-key.pem beside it.
pub(crate) fn sign(
    directory: &Path,
    into: &Path,
    role: &str,
    subject: &str,
    extension: &str,
) -> Option<()> {
    let at = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let of = |name: &str| into.join(format!("{role}-{name}.pem"));
    let (key, request) = (of("key"), at("request"));
    let subject = format!("/CN={subject}");
    let asks = ["req", "-new", "-subj", &subject];
    let files = ["-keyout", key.to_str().unwrap(), "-out", &request];
    openssl(&[&asks[..], &NEW_KEY, &files].concat())?;
    let file = at("extension");
    fs::write(
        &file,
        format!("basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n{extension}"),
    )
    .unwrap();
    openssl(&[
        "x509",
        "-req",
        "-days",
        "2",
        "-in",
        &request,
        "-CA",
        &at("ca-cert.pem"),
        "-CAkey",
        &at("ca-key.pem"),
        "-CAcreateserial",
        "-extfile",
        &file,
        "-out",
        of("cert").to_str().unwrap(),
    ])?;
    Some(())
}
