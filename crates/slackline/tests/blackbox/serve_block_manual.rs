//! The manual of `serve-block` (docs/serve-block.md): its commands run as they stand, its outputs
//! are what is printed, and its tables have every key.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use http_client::{Client, Url};
use serde_json::Value;

use crate::toy::{free_port, on_uring, skip};

const MANUAL: &str = include_str!("../../../../docs/serve-block.md");

/// The text below a heading, up to the next one.
fn section(heading: &str) -> &'static str {
    let (_, rest) = MANUAL.split_once(&format!("\n{heading}\n")).unwrap();
    // Comments in blocks of code have one `#`.
    let end = rest.find("\n##").unwrap_or(rest.len());
    &rest[..end]
}

/// The block of code in a text that begins so.
fn block_with(text: &'static str, beginning: &str) -> &'static str {
    let mut blocks = text.split("\n```").skip(1).step_by(2);
    let found = blocks.find_map(|block| {
        let (_language, code) = block.split_once('\n')?;
        code.starts_with(beginning).then_some(code)
    });
    found.unwrap_or_else(|| panic!("no block begins with {beginning}"))
}

/// The code spans of a text.
fn spans(text: &'static str) -> Vec<&'static str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The commands in the row of a table.
fn commands_of(client: &str) -> Vec<&'static str> {
    let row = MANUAL.lines().find_map(|line| {
        let cells = line.strip_prefix("| ")?;
        cells.strip_prefix(client)?.strip_prefix(" | ")
    });
    spans(row.unwrap())
}

/// Runs a script in a network namespace of its own, with the addresses of the manual, for a minute
/// at most. `None`: something is missing, which says SKIP.
fn in_namespace(directory: &Path, script: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        skip(&"network namespaces need root");
        return None;
    }
    let before = "set -eu\n\
        for program in openssl nbdinfo nbdcopy fio qemu-img qemu-io qemu-system-x86_64; do\n\
            command -v $program > /dev/null || { echo \"SKIP: $program is missing\"; exit 0; }\n\
        done\n\
        ip link set lo up\n\
        ip address add 10.0.0.1/32 dev lo\n\
        server=\n\
        end() { [ -z \"$server\" ] || kill $server; wait; }\n\
        trap end EXIT\n\
        start() {\n\
            : > log\n\
            \"$SLACKLINE\" serve-block run \"$1\" 2> log & server=$!\n\
            while ! grep -q serving log && kill -0 $server; do sleep 0.1; done\n\
            ! grep -q 'io_uring cannot be used' log || { echo \"SKIP: $(cat log)\"; server=; exit 0; }\n\
            grep serving log || { cat log >&2; server=; exit 1; }\n\
        }\n\
        set -x\n";
    let output = Command::new("timeout")
        .args(["60", "unshare", "--net", "bash", "-c"])
        .arg(format!("{before}{script}"))
        .env("SLACKLINE", env!("CARGO_BIN_EXE_slackline"))
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    if said.contains("SKIP: ") {
        skip(&said);
        return None;
    }
    Some(said)
}

/// The commands for clients, at the addresses that are the defaults.
#[test]
fn the_commands_for_clients_work() {
    let directory = tempfile::tempdir().unwrap();
    let write =
        |name: &str, text: &[u8]| std::fs::write(directory.path().join(name), text).unwrap();
    write(
        "blocks.toml",
        b"[[device]]\nname = \"ram\"\nmemory = \"8MiB\"\n[[tenant]]\nexport = \"db\"\ndevice = \"ram\"\n",
    );
    write("image", &[7; 1 << 20]);
    let of_libnbd = commands_of("libnbd").join("\n");
    let of_qemu = commands_of("QEMU");
    let [drive, tools @ ..] = &of_qemu[..] else {
        panic!("{of_qemu:?}");
    };
    let tools = tools.join("\n");
    let of_fio = commands_of("fio").join(" ");
    let script = format!(
        "start blocks.toml\n{of_libnbd}\n{tools}\n\
         echo quit | qemu-system-x86_64 -machine none -nodefaults -display none -monitor stdio {drive}\n\
         fio --name=manual --rw=randwrite --bs=4k --size=1M {of_fio}\n"
    );
    let Some(said) = in_namespace(directory.path(), &script) else {
        return;
    };
    for expected in [
        "export=\"db\"",
        "file format: raw",
        "read 4096/4096 bytes",
        "err= 0",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The certificates, the configuration with TLS and the clients' commands, in the manual's order.
#[test]
fn the_commands_for_tls_work() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display().to_string();
    let tls = section("## TLS");
    let named = section("### A tenant for named clients");
    // The files that the manual has in /etc are in the directory here.
    let here = |text: &str| {
        text.replace("/etc/slackline/", &format!("{at}/"))
            .replace("/etc/pki/nbd", &format!("{at}/pki"))
            .replace("/dev/nvme1n1", &format!("{at}/disk"))
    };
    let make = block_with(tls, "openssl req");
    let clients = here(block_with(tls, "nbdinfo"));
    let tenant = block_with(named, "[[tenant]]");
    let config = here(&format!("{}\n{tenant}", block_with(tls, "listen")));
    let (names, _) = config.split_once(", \"sha256:").unwrap();
    let device = format!("[[device]]\npath = \"{at}/disk\"\ncreate = \"8MiB\"\n");
    let by_name = format!("{names}] }}\n{device}");
    let by_pin = by_name.replace("\"db.example.com\"", "\"PIN\"");
    assert_ne!(by_name, by_pin);
    for (name, text) in [("name.toml", by_name), ("pin.toml", by_pin)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let command = |text, beginning: &str| {
        let found = spans(text).into_iter().find(|it| it.starts_with(beginning));
        found.unwrap_or_else(|| panic!("{beginning}"))
    };
    let decrypt = command(tls, "openssl pkey");
    let fingerprint = command(named, "openssl x509");
    let script = format!(
        "{make}\n\
         mkdir pki\n\
         cp ca-cert.pem client-cert.pem client-key.pem pki\n\
         start name.toml\n{clients}\n\
         kill $server; wait; server=\n\
         sed -i \"s/PIN/$({fingerprint})/\" pin.toml\n\
         openssl pkey -in server.key -aes256 -passout pass:x -out KEY\n\
         cp KEY server.key\n\
         ! \"$SLACKLINE\" serve-block run pin.toml --check 2> refused\n\
         grep 'is encrypted' refused\n\
         {decrypt} -passin pass:x\n\
         cp NEW server.key\n\
         start pin.toml\n{clients}\n"
    );
    let Some(said) = in_namespace(directory.path(), &script) else {
        return;
    };
    assert_eq!(said.matches("newstyle-fixed with TLS").count(), 2, "{said}");
    assert_eq!(said.matches("virtual size: 8 MiB").count(), 2, "{said}");
    assert!(said.contains("tls.key: "), "{said}");
}

/// What the manual shows of `admit` is what it prints.
#[test]
fn the_example_of_a_plan_is_true() {
    let directory = tempfile::tempdir().unwrap();
    let text = section("### Plan a tenant");
    let plan = block_with(text, "[[device]]");
    std::fs::write(directory.path().join("plan.toml"), plan).unwrap();
    let shown = block_with(text, "$ slackline");
    let slackline = env!("CARGO_BIN_EXE_slackline");
    let mut commands = 0;
    for part in shown.split("$ slackline").skip(1) {
        let (arguments, expected) = part.split_once('\n').unwrap();
        let output = Command::new(slackline)
            .args(arguments.split_whitespace())
            .current_dir(directory.path())
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().map(|line| line.trim_end().to_owned());
            lines.collect()
        };
        assert_eq!(lines(&printed), lines(expected), "{arguments}");
        commands += 1;
    }
    assert_eq!(commands, 2);
}

/// The keys of a value and of all values in it.
fn keys_of(value: &Value) -> BTreeSet<String> {
    let inner: Vec<&Value> = match value {
        Value::Object(object) => object.values().collect(),
        Value::Array(array) => array.iter().collect(),
        _ => Vec::new(),
    };
    let own = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys());
    let own: BTreeSet<String> = own.cloned().collect();
    inner
        .into_iter()
        .map(keys_of)
        .fold(own, |all, more| &all | &more)
}

/// The tables of `status --json` explain every key, and no other one. The metrics that are named
/// exist.
#[test]
fn every_key_of_a_status_is_explained() {
    // What is `null` in this test has these.
    const HIDDEN: [&str; 8] = [
        "last_unix_s",
        "last_address",
        "last_reason",
        "since_unix_s",
        "left_s",
        "requests",
        "calibrated_p95_us",
        "measured_p95_us",
    ];
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (port, metrics) = (free_port(), free_port());
    let points = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
    let curve = format!("{{\"mixed\": {points}, \"read_only\": {points}}}");
    std::fs::write(
        at("curve.json"),
        format!("{{\"write_cost\": 100, \"curve\": {curve}}}"),
    )
    .unwrap();
    let config = format!(
        "listen = [\"127.0.0.1:{port}\"]\nmetrics = \"127.0.0.1:{metrics}\"\n[[device]]\nname = \"ram\"\n\
         memory = \"1MiB\"\ncalibration = {:?}\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n\
         objective = {{ p95_us = 100000, iops = 10, read_share = 1.0 }}\n",
        at("curve.json")
    );
    std::fs::write(at("blocks.toml"), config).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_slackline"));
    run.args(["serve-block", "run"]).arg(at("blocks.toml"));
    let Some((mut child, line, _messages)) = on_uring(&mut run) else {
        return;
    };
    let client = Client::new(Duration::from_secs(20));
    let page = |path: &str| {
        let url = Url::parse(&format!("http://127.0.0.1:{metrics}/{path}")).unwrap();
        client.text(&url, 1 << 20)
    };
    let (status, figures) = (page("status"), page("metrics"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("serving"), "{line}");

    let (_, text) = MANUAL
        .split_once("prints the answer of `/status`:")
        .unwrap();
    let (of_status, text) = text.split_once("`/metrics` has for each tenant").unwrap();
    let (of_metrics, _) = text.split_once("\nA client of `metrics`").unwrap();
    let status: Value = serde_json::from_str(&status.unwrap()).unwrap();
    let is_key = |span: &&str| {
        span.bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
    };
    let explained: BTreeSet<String> = spans(of_status)
        .into_iter()
        .flat_map(|span| span.split('.'))
        .map(|span| span.trim_end_matches("[]"))
        .filter(is_key)
        .filter(|span| *span != "null" && !HIDDEN.contains(span))
        .map(str::to_owned)
        .collect();
    assert_eq!(explained, keys_of(&status));

    let figures = figures.unwrap();
    let mut named = 0;
    for span in spans(of_metrics) {
        if is_key(&span) && span != "slackline_block_" {
            let kind = format!("\n# TYPE slackline_block_{span} ");
            assert!(figures.contains(&kind), "{span}: {figures}");
            named += 1;
        }
    }
    assert!(named > 15, "{named}");
}
