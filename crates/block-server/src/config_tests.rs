//! Tests of the configuration file.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::allow::ClientIdentity;

const GOOD: &str = r#"
listen = ["127.0.0.1:10809", "[::1]:10809"]

[[device]]
name = "ram"
memory = "64MiB"

[[tenant]]
export = "a"
device = "ram"
range = { offset = "4KiB", length = "1MiB" }
read_only = true
allow = { addresses = ["10.0.0.0/8", "::1"] }
"#;

fn parse(text: &str) -> Result<BlockConfig, String> {
    BlockConfig::parse(Path::new("b.toml"), text).map_err(|error| error.to_string())
}

#[test]
fn a_whole_configuration_is_read() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.listen.len(), 2);
    let tenant = &config.tenants[0];
    assert_eq!(
        (tenant.offset_bytes, tenant.length_bytes),
        (4096, Some(1 << 20))
    );
    assert!(tenant.is_read_only);
    let inside = |text: &str| {
        let address: IpAddr = text.parse().unwrap();
        tenant
            .allow
            .addresses
            .iter()
            .any(|net| net.contains(address))
    };
    assert!(inside("10.200.3.4") && inside("::1") && inside("::ffff:10.1.1.1"));
    assert!(!inside("11.0.0.1") && !inside("::2"));
}

/// What people copy is right.
#[test]
fn the_samples_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sample =
        BlockConfig::read(&root.join("contrib/systemd/slackline-serve-block.toml")).unwrap();
    assert_eq!(sample.tenants.len(), 2);
    let manual = std::fs::read_to_string(root.join("docs/serve-block.md")).unwrap();
    let blocks = manual.split("```toml\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() >= 6);
    for block in &blocks {
        // Some show a part: what they refer to stands elsewhere.
        let mut whole = block.replace("sha256:3F:8A:…", &format!("sha256:{}", "3f".repeat(32)));
        for (table, rest) in [
            ("[[device]]", "path = \"/dev/nvme1n1\""),
            ("[[tenant]]", "export = \"a\"\ndevice = \"/dev/nvme1n1\""),
            (
                "[tls]",
                "certificate = \"a\"\nkey = \"b\"\nclient_ca = \"c\"",
            ),
        ] {
            if !whole.contains(table) {
                whole += &format!("\n{table}\n{rest}\n");
            }
        }
        parse(&whole).unwrap_or_else(|error| panic!("{error}\n{whole}"));
    }
    let sample = parse(blocks[0]).unwrap();
    // The manual's commands for clients connect from this host.
    let near = ClientIdentity::at(Some(sample.listen[0].ip()));
    assert!(sample.tenants[0].allow.admits(near));
}

/// What stands in the sound file, what stands there instead, and how the message begins.
const WRONG: [(&str, &str, &str); 38] = [
    (
        "device = \"ram\"\n",
        "device = \"rom\"\n",
        "b.toml:10: tenant.device: there is no device \"rom\"; there are: ram",
    ),
    (
        "\"64MiB\"",
        "\"64MB\"",
        "b.toml:6: device.memory: \"64MB\" is not a size; write a whole number and KiB",
    ),
    (
        "\"64MiB\"",
        "67108864",
        "b.toml:6: device.memory: invalid type: integer `67108864`, expected a text: write the size in quotes: \"67108864\"",
    ),
    (
        "[[device]]",
        "[device]",
        "b.toml:4: device: invalid type: map, expected a list: write [[device]]: there may be several",
    ),
    (
        "127.0.0.1:10809",
        "0.0.0.0:10809",
        "b.toml:2: listen: is beyond loopback",
    ),
    (
        "[[device]]",
        "metrics = \"10.0.0.1:9152\"\n[[device]]",
        "b.toml:4: metrics: is beyond loopback, and without TLS everybody on the network could \
         read the names and figures of all tenants: set `plaintext_beyond_loopback = true`",
    ),
    (
        "127.0.0.1:10809",
        "localhost",
        "b.toml:2: listen: \"localhost\" is not an address",
    ),
    (
        "read_only",
        "readonly",
        "b.toml:12: unknown key `readonly`, expected one of `export`, ",
    ),
    (
        "10.0.0.0/8",
        "10.0.0.0/80",
        "b.toml:13: tenant.allow.addresses: \"10.0.0.0/80\"",
    ),
    (
        "name = \"ram\"\n",
        "",
        "b.toml:5: device.memory: a device in memory needs a `name`",
    ),
    (
        "1MiB",
        "0",
        "b.toml:11: tenant.range.length: must be above 0",
    ),
    (
        "memory = \"64MiB\"",
        "memory = \"64MiB\"\npath = \"/dev/x\"",
        "b.toml:4: device: a device has either `path` or `memory`",
    ),
    (
        "export = \"a\"",
        "export = \"\"",
        "b.toml:9: tenant.export: has 0 bytes: it must have 1 to 4,096",
    ),
    (
        "export = \"a\"",
        "export = \"a\\u0000\"",
        "b.toml:9: tenant.export: has a control character, such as a line break",
    ),
    (
        "read_only = true",
        "description = \"a\\nb\"",
        "b.toml:12: tenant.description: has a control character",
    ),
    (
        "name = \"ram\"",
        "name = \"\"",
        "b.toml:5: device.name: has 0 bytes",
    ),
    (
        "name = \"ram\"",
        "name = \"r\\u001bm\"",
        "b.toml:5: device.name: has a control character",
    ),
    (
        "[::1]:10809",
        "0.0.0.0:10809",
        "b.toml:2: listen: 127.0.0.1:10809 is named, and 0.0.0.0:10809 includes it: leave one out",
    ),
    (
        "listen",
        "memory = \"1MiB\"\nlisten",
        "b.toml:2: memory: 1MiB is out of range: it must be from 64MiB to 1TiB",
    ),
    (
        "addresses = [\"10.0.0.0/8\", \"::1\"]",
        "tls_psk = \"x\"",
        "b.toml:13: tenant.allow.tls_psk: pre-shared keys are not supported. Give each client a certificate instead: \
         set `tls.client_ca`, and name the client here, as in client_certificates = [",
    ),
    (
        "addresses = [\"10.0.0.0/8\", \"::1\"]",
        "client_certificates = [\"db.example\"]",
        "b.toml:13: tenant.allow.client_certificates: needs `client_ca` in the table `tls`",
    ),
    (
        "addresses = [\"10.0.0.0/8\", \"::1\"]",
        "client_certificates = []",
        "b.toml:13: tenant.allow.client_certificates: is empty",
    ),
    (
        "memory = \"64MiB\"",
        "path = \"/tmp/d\"\ncreate = \"0\"",
        "b.toml:7: device.create: 0 is out of range: it must be from 1 to 8388607TiB",
    ),
    (
        "listen",
        "connections_max = 0\nlisten",
        "b.toml:2: connections_max: 0 is out of range: it must be from 1 to 1,000,000",
    ),
    (
        "\"[::1]:10809\"",
        "\"127.0.0.1:10809\"",
        "b.toml:2: listen: 127.0.0.1:10809 is named twice: leave one out",
    ),
    (
        "listen",
        "metrics = \"[::1]:10809\"\nlisten",
        "b.toml:2: metrics: [::1]:10809 is named twice",
    ),
    (
        "memory = \"64MiB\"\n",
        "",
        "b.toml:4: device: a device needs `path`, for a block device or a file, or `memory`",
    ),
    (
        "[[device]]\nname = \"ram\"\nmemory = \"64MiB\"\n",
        "",
        "b.toml:7: tenant.device: there is no device \"ram\"; add a [[device]]",
    ),
    (
        "[\"127.0.0.1:10809\", \"[::1]:10809\"]",
        "[]",
        "b.toml:2: listen: is empty, and there is no `nvme`",
    ),
    (
        "addresses = [\"10.0.0.0/8\", \"::1\"]",
        "addresses = []",
        "b.toml:13: tenant.allow.addresses: is empty",
    ),
    (
        "[\"10.0.0.0/8\", \"::1\"]",
        "\"::1\"",
        "b.toml:13: tenant.allow.addresses: invalid type: a text, expected a list",
    ),
    (
        "read_only = true",
        "read_only = 1",
        "b.toml:12: tenant.read_only: invalid type: integer `1`, expected true or false",
    ),
    (
        "{ offset = \"4KiB\", length = \"1MiB\" }",
        "\"4KiB\"",
        "b.toml:11: tenant.range: invalid type: a text, expected a table",
    ),
    (
        "\"4KiB\"",
        "4096",
        "b.toml:11: tenant.range.offset: invalid type: integer `4096`, expected a text",
    ),
    (
        "read_only = true",
        "objective = { p95_us = 500, iops = \"9\", read_share = 1.0 }",
        "b.toml:12: tenant.objective.iops: invalid type: a text, expected a whole number from 1 to 100,000,000",
    ),
    (
        "listen",
        "drain_s = -1\nlisten",
        "b.toml:2: drain_s: -1 is out of range: it must be from 0 to 3,600",
    ),
    (
        "memory = \"64MiB\"",
        "simulated = \"p4800\"",
        "b.toml:6: device.simulated: there is no simulated device \"p4800\"",
    ),
    (
        "memory = \"64MiB\"",
        "memory = \"64MiB\"\nsimulated = \"p3600\"",
        "b.toml:7: device.simulated: a simulated device has a `name`",
    ),
];

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (from, to, expected) in WRONG {
        assert!(GOOD.contains(from), "{from}");
        let message = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
    let long = format!("description = \"{}\"", "x".repeat(4097));
    assert!(
        parse(&GOOD.replacen("read_only = true", &long, 1))
            .unwrap_err()
            .starts_with("b.toml:12: tenant.description: has 4,097 bytes: it must have 0 to 4,096")
    );
    assert!(parse("").unwrap_err().contains("exports nothing"));
    let late = parse(&GOOD.replacen("memory = ", "audit_log = \"a\"\nmemory = ", 1)).unwrap_err();
    assert!(
        late.starts_with("b.toml:6: unknown key `audit_log`")
            && late.ends_with("write it above the first [[device]], [[tenant]] and [tls]"),
        "{late}"
    );
}

#[test]
fn keys_and_tables_fit_each_other() {
    let cores = GOOD
        .replacen("listen", "cores = [0, 1]\nlisten", 1)
        .replacen(
            "read_only = true",
            "objective = { p95_us = 500, iops = 9, read_share = 1.0 }",
            1,
        );
    let cores = parse(&cores).unwrap();
    assert_eq!(cores.cores.len(), 2);
    assert!(cores.tenants.iter().any(|it| it.objective.is_some()));
    let writes = GOOD.replacen(
        "read_only = true",
        "read_only = true\nobjective = { p95_us = 500, iops = 9, read_share = 0.5 }",
        1,
    );
    assert!(
        parse(&writes)
            .unwrap_err()
            .contains("b.toml:13: tenant.objective: a read-only tenant")
    );
    let twice = format!("{GOOD}\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n");
    assert!(
        parse(&twice)
            .unwrap_err()
            .contains("a second export \"a\"; the first is in line 9")
    );
    let numbered = format!(
        "{}\n[[tenant]]\nexport = \"b\"\ndevice = \"ram\"\nnamespace = 7\n",
        GOOD.replacen("read_only = true", "namespace = 7", 1)
    );
    let line = 1 + numbered[..numbered.rfind("namespace").unwrap()]
        .matches('\n')
        .count();
    assert_eq!(
        parse(&numbered).unwrap_err(),
        format!("b.toml:{line}: tenant.namespace: a second namespace 7; the first is in line 12")
    );
    let distinct = parse(&numbered.replacen("namespace = 7", "namespace = 8", 1)).unwrap();
    let numbers = distinct.tenants.iter().map(|tenant| &tenant.namespace);
    let numbers: Vec<u32> = numbers.flatten().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [8, 7]);
    let told = GOOD.replacen(
        "listen = [\"127.0.0.1",
        "plaintext_beyond_loopback = true\nlisten = [\"0.0.0.0",
        1,
    );
    assert!(parse(&told).is_ok());
}

#[test]
fn tls_opens_the_way_beyond_loopback_where_it_is_required() {
    let beyond = GOOD.replacen("127.0.0.1:10809", "0.0.0.0:10809", 1);
    let table = "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n";
    let config = parse(&format!("{beyond}{table}")).unwrap();
    let tls = config.tls.unwrap();
    assert!(tls.is_required && tls.client_ca.is_none());
    let missing = crate::tls::ServerTls::load(&tls).err().unwrap().to_string();
    assert!(
        missing.starts_with("b.toml:15: tls.certificate: server.pem: "),
        "{missing}"
    );
    // The key's own line.
    let pem = tempfile::NamedTempFile::new().unwrap();
    let text = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    std::fs::write(pem.path(), text).unwrap();
    let certificate = pem.path().display().to_string();
    let no_key = parse(&format!(
        "{beyond}{}",
        table.replace("server.pem", &certificate)
    ));
    let no_key = no_key.unwrap().tls.unwrap();
    let missing = crate::tls::ServerTls::load(&no_key)
        .err()
        .unwrap()
        .to_string();
    let expected = "b.toml:16: tls.key: server.key: ";
    assert!(missing.starts_with(expected), "{missing}");
    let offered = format!("{beyond}{table}required = false\n");
    assert!(
        parse(&offered)
            .unwrap_err()
            .starts_with("b.toml:2: listen: is beyond loopback")
    );
    let both = offered.replacen("listen", "plaintext_beyond_loopback = true\nlisten", 1);
    assert!(parse(&both).is_ok());
}

#[test]
fn clients_are_named_by_their_certificates() {
    let table = "[tls]\ncertificate = \"s.pem\"\nkey = \"s.key\"\nclient_ca = \"c.pem\"\n";
    let with = |list: &str| {
        let allow = format!("addresses = [\"::1\"], client_certificates = {list}");
        let text = GOOD.replacen("addresses = [\"10.0.0.0/8\", \"::1\"]", &allow, 1);
        parse(&format!("{text}{table}"))
    };
    let config = with("[\"db.example\"]").unwrap();
    assert_eq!(config.tenants[0].allow.certificates.len(), 1);
    // Both lists count: the right address does not make up for the certificate.
    let near = ClientIdentity::at("::1".parse().ok());
    assert!(!config.tenants[0].allow.admits(near));
    let wrong = with("[\"db.example\",\n\"sha256:0011\"]").unwrap_err();
    assert!(
        wrong.starts_with(
            "b.toml:14: tenant.allow.client_certificates: \"sha256:0011\" is not a fingerprint"
        ),
        "{wrong}"
    );
}

#[test]
fn keys_that_need_a_restart_are_named() {
    let old = parse(GOOD).unwrap();
    let new = GOOD
        .replacen(
            "listen",
            "drain_s = 3\ncores = [0]\naudit_log = \"a\"\nmemory = \"64MiB\"\nlisten",
            1,
        )
        .replacen(", \"[::1]:10809\"", "", 1)
        .replacen("read_only = true\n", "", 1);
    let changed = old.changed_at_restart_only(&parse(&new).unwrap());
    assert_eq!(
        changed,
        ["listen", "cores", "memory", "drain_s", "audit_log"]
    );
    // A line further down is no change.
    let moved = new.replacen("drain_s", "\ndrain_s", 1);
    let (new, moved) = (parse(&new).unwrap(), parse(&moved).unwrap());
    assert!(new.changed_at_restart_only(&moved).is_empty());
}

/// Every number has a range, and the error says which.
#[test]
fn numbers_out_of_range_are_named_with_their_range() {
    let top = |line: &str| GOOD.replacen("listen", &format!("{line}\nlisten"), 1);
    let objective = |numbers: &str| {
        let objective = format!("objective = {{ {numbers} }}");
        GOOD.replacen("read_only = true", &objective, 1)
    };
    let namespace =
        |number: &str| GOOD.replacen("read_only = true", &format!("namespace = {number}"), 1);
    let memory = |size: &str| GOOD.replacen("\"64MiB\"", &format!("\"{size}\""), 1);
    let create = |size: &str| {
        let file = format!("path = \"/tmp/d\"\ncreate = \"{size}\"");
        GOOD.replacen("memory = \"64MiB\"", &file, 1)
    };
    for good in [
        top("connections_max = 1000000"),
        top("drain_s = 0"),
        top("drain_s = 3600"),
        top("memory = \"1TiB\""),
        top("cores = [1023]"),
        objective("p95_us = 60000000, iops = 100000000, read_share = 1"),
        objective("p95_us = 1, iops = 1, read_share = 0"),
        memory("1TiB"),
        create("8388607TiB"),
        namespace("1"),
        namespace("16384"),
    ] {
        parse(&good).unwrap();
    }
    for (text, expected) in [
        (
            top("connections_max = 18446744073709551615"),
            "b.toml:2: connections_max: 18446744073709551615 is out of range: it must be from 1 to 1,000,000",
        ),
        (
            top("connections_max = 1.5"),
            "b.toml:2: connections_max: invalid type: floating point `1.5`, expected a whole number from 1 to 1,000,000",
        ),
        (
            top("drain_s = 3601"),
            "b.toml:2: drain_s: 3601 is out of range: it must be from 0 to 3,600",
        ),
        (
            top("cores = [0, 1024]"),
            "b.toml:2: cores: 1024 is out of range: it must be from 0 to 1,023",
        ),
        (
            top("memory = \"2TiB\""),
            "b.toml:2: memory: 2TiB is out of range: it must be from 64MiB to 1TiB",
        ),
        (
            memory("1025GiB"),
            "b.toml:6: device.memory: 1025GiB is out of range: it must be from 1 to 1TiB",
        ),
        (
            create("8388608TiB"),
            "b.toml:7: device.create: 8388608TiB is out of range: it must be from 1 to 8388607TiB",
        ),
        (
            objective("p95_us = 0, iops = 1, read_share = 1"),
            "b.toml:12: tenant.objective.p95_us: 0 is out of range: it must be from 1 to 60,000,000",
        ),
        (
            objective("p95_us = 1, iops = 5000000000, read_share = 1"),
            "b.toml:12: tenant.objective.iops: 5000000000 is out of range: it must be from 1 to 100,000,000",
        ),
        (
            objective("p95_us = 1, iops = 1, read_share = 1.1"),
            "b.toml:12: tenant.objective.read_share: 1.1 is out of range: it must be from 0 to 1",
        ),
        (
            objective("p95_us = 1, iops = 1, read_share = nan"),
            "b.toml:12: tenant.objective.read_share: NaN is out of range: it must be from 0 to 1",
        ),
        (
            namespace("0"),
            "b.toml:12: tenant.namespace: 0 is out of range: it must be from 1 to 16,384",
        ),
        (
            namespace("16385"),
            "b.toml:12: tenant.namespace: 16385 is out of range: it must be from 1 to 16,384",
        ),
        (
            namespace("\"1\""),
            "b.toml:12: tenant.namespace: invalid type: a text, expected a whole number from 1 to 16,384",
        ),
        (
            GOOD.replacen("127.0.0.1:10809", "127.0.0.1:0", 1),
            "b.toml:2: listen: \"127.0.0.1:0\" is not an address with a port from 1 to 65535",
        ),
    ] {
        let message = parse(&text).unwrap_err();
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
}

#[test]
fn sizes() {
    assert_eq!(parse_size("0"), Some(0));
    assert_eq!(parse_size("4096"), Some(4096));
    assert_eq!(parse_size("2TiB"), Some(2 << 40));
    for wrong in [
        "",
        "GiB",
        "1.5GiB",
        "-1",
        "99999999TiB",
        "1GB",
        "1gib",
        "64M",
        "64 MiB",
        "8B",
    ] {
        assert_eq!(parse_size(wrong), None, "{wrong}");
    }
}

/// Everything that a file may have.
const WHOLE: &str = r#"
listen = ["127.0.0.1:10809", "[::1]:10809"]
nvme = { listen = ["127.0.0.1:4420"], subsystem = "nqn.2026-11.a:b" }
metrics = "127.0.0.1:9152"
cores = [0, 1]
memory = "64MiB"
connections_max = 9
drain_s = 3
audit_log = "/log"

[tls]
certificate = "a"
key = "b"
client_ca = "c"
required = false

[[device]]
name = "disk"
path = "/disk"
create = "1TiB"
preallocate = true
direct = false
calibration = "/curve"

[[device]]
simulated = "p3600"

[[tenant]]
export = "größe"
device = "disk"
range = { offset = "4KiB", length = "18446744073709551615" }
description = "text"
allow = { addresses = ["10.0.0.0/8"], client_certificates = ["db"] }
objective = { p95_us = 500, iops = 20000, read_share = 0.9 }
namespace = 7
"#;

proptest! {
    /// A damaged file is a configuration or an error, whose line is in the file. It is no panic.
    #[test]
    fn damage_is_named(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..4, "[\\PC\n\t]{0,3}"), 1..4)
    ) {
        prop_assert!(parse(WHOLE).is_ok());
        let mut text: Vec<char> = WHOLE.chars().collect();
        for (place, kind, new) in damage {
            let at = place.index(text.len());
            let new: Vec<char> = new.chars().collect();
            match kind {
                0 => drop(text.splice(at..at + 1, new)),
                1 => drop(text.splice(at..at, new)),
                2 => text.truncate(at.max(1)),
                _ => {
                    let line = text[at..].iter().position(|char| *char == '\n');
                    let end = at + line.unwrap_or(0);
                    drop(text.splice(at..end, new));
                }
            }
            prop_assume!(!text.is_empty());
        }
        let text: String = text.into_iter().collect();
        if let Err(error) = BlockConfig::parse(Path::new("b.toml"), &text) {
            let lines = 1 + text.matches('\n').count();
            let line = error.line;
            prop_assert!(line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
            prop_assert!(!error.message.is_empty() && !error.to_string().contains('\n'), "{error:?}");
        }
    }
}
