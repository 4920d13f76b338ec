//! Tests of exports: ranges, reloads, who sees what.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::*;

fn config(tenants: &str) -> BlockConfig {
    let text = format!(
        "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n[[device]]\nname = \"other\"\n\
         memory = \"1MiB\"\n{tenants}"
    );
    BlockConfig::parse(Path::new("b.toml"), &text).unwrap()
}

fn tenant(name: &str, device: &str, rest: &str) -> String {
    format!("[[tenant]]\nexport = \"{name}\"\ndevice = \"{device}\"\n{rest}\n")
}

fn open_text(tenants: &str) -> Result<Exports, String> {
    open(&config(tenants), &Vec::new(), 1).map_err(|error| error.to_string())
}

#[test]
fn ranges_are_checked() {
    let first = tenant("a", "ram", "range = { length = \"512KiB\" }");
    let fits = tenant("b", "ram", "range = { offset = \"512KiB\" }");
    assert!(open_text(&format!("{first}{fits}")).is_ok());
    let overlaps = tenant("b", "ram", "range = { offset = \"511KiB\" }");
    let error = open_text(&format!("{first}{overlaps}")).err().unwrap();
    assert!(
        error.starts_with("b.toml:14: tenant.range.offset: the range of \"b\", from byte 523,264"),
        "{error}"
    );
    // In whichever order, and whichever of them is the larger one.
    for (from_kib, len_kib, clashes) in [
        (100, 100, false),
        (250, 50, false),
        (100, 101, true),
        (99, 1000, true),
        (210, 10, true),
        (249, 1, true),
        (249, 100, true),
        (0, 200, false),
    ] {
        let range = |from: u32, len: u32| {
            format!("range = {{ offset = \"{from}KiB\", length = \"{len}KiB\" }}")
        };
        let middle = tenant("a", "ram", &range(200, 50));
        let far = tenant("c", "other", &range(from_kib, len_kib.min(900)));
        let other = tenant("b", "ram", &range(from_kib, len_kib.min(900)));
        for text in [format!("{middle}{far}{other}"), format!("{other}{middle}")] {
            let clash = open_text(&text).err();
            assert_eq!(clash.is_some(), clashes, "{text} {clash:?}");
        }
    }
    // One that only reads may see what the other writes.
    let reads = tenant("b", "ram", "read_only = true");
    assert!(open_text(&format!("{first}{reads}")).is_ok());
    for rest in [
        "range = { offset = \"1MiB\" }",
        "range = { offset = \"2MiB\" }",
        "range = { offset = \"1KiB\", length = \"1MiB\" }",
    ] {
        let error = open_text(&tenant("a", "ram", rest)).err().unwrap();
        assert!(
            error.contains("tenant.range.") && error.contains("bytes"),
            "{error}"
        );
    }
}

/// Each range is compared with few others.
#[test]
fn as_many_ranges_as_there_may_be_are_checked_quickly() {
    let tables: String = (0..qos::TENANTS_MAX)
        .map(|number| {
            let range = format!(
                "range = {{ offset = \"{}\", length = \"64\" }}",
                64 * number
            );
            tenant(&format!("t{number}"), "ram", &range)
        })
        .collect();
    let config = config(&tables);
    let began = std::time::Instant::now();
    let exports = open(&config, &Vec::new(), 1).unwrap();
    let took = began.elapsed();
    assert!(took.as_secs() < 2, "{took:?}");
    assert_eq!(exports.len(), qos::TENANTS_MAX as usize);
}

#[test]
fn an_empty_file_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[[device]]\nname = \"d\"\npath = {:?}\n[[tenant]]\nexport = \"a\"\ndevice = \"d\"\n",
        file.path()
    );
    let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
    let error = look(&config).err().unwrap().to_string();
    let expected = "b.toml:5: tenant.export: \"d\" has 0 bytes, so nothing can be exported. ";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn nothing_is_made_of_a_wrong_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    let text = |length: &str| {
        format!(
            "[[device]]\npath = {file:?}\ncreate = \"1MiB\"\n[[tenant]]\nexport = \"a\"\n\
             device = {file:?}\nrange = {{ length = \"{length}\" }}\n"
        )
    };
    let parse = |text: &str| BlockConfig::parse(Path::new("b.toml"), text).unwrap();
    assert!(open(&parse(&text("2MiB")), &Vec::new(), 1).is_err());
    assert!(look(&parse(&text("1MiB"))).is_ok());
    assert!(!file.exists());
    let served = open(&parse(&text("1MiB")), &Vec::new(), 1).unwrap();
    assert!(file.exists());
    // Beside a server the file can be checked, and whatever is wrong is found.
    let held = |text: &str| look(&parse(text)).map(|(_, devices)| devices[0].held_by.is_some());
    assert!(held(&text("1MiB")).unwrap());
    assert!(held(&text("2MiB")).is_err());
    drop(served);
    assert!(!held(&text("1MiB")).unwrap());
}

#[test]
fn a_reload_keeps_devices_and_counts() {
    let first = open_text(&tenant("a", "ram", "")).unwrap();
    let both = config(&format!(
        "{}{}",
        tenant("a", "ram", ""),
        tenant("b", "other", "")
    ));
    let second = open(&both, &first, 1).unwrap();
    assert!(Arc::ptr_eq(&first[0], &second[0]));
    let changed = config(&tenant("a", "ram", "read_only = true"));
    let third = open(&changed, &second, 1).unwrap();
    assert!(Arc::ptr_eq(&third[0].device, &first[0].device));
    assert!(third[0].info.is_read_only);
    // Clients of the first configuration are counted where the third one is looked at.
    add(&first[0].stats[0].reads, 1);
    assert_eq!(third[0].stats[0].reads.load(Ordering::Relaxed), 1);
}

#[test]
fn a_reload_ends_clients_of_what_is_gone_moved_or_read_only_now() {
    let half = "range = { length = \"512KiB\" }\n";
    let first = open_text(&tenant("a", "ram", half)).unwrap();
    for (name, device, rest, why) in [
        ("a", "ram", half.to_owned(), ""),
        ("a", "ram", format!("{half}description = \"x\""), ""),
        (
            "a",
            "ram",
            format!("{half}allow = {{ addresses = [\"::1\"] }}"),
            "",
        ),
        ("a", "ram", format!("{half}read_only = true"), "read-only"),
        ("a", "ram", String::new(), "longer"),
        ("a", "ram", half.replace("512", "256"), "shorter"),
        (
            "a",
            "ram",
            half.replace("{ l", "{ offset = \"1KiB\", l"),
            "at another offset",
        ),
        ("a", "other", half.to_owned(), "on another device"),
        ("b", "ram", half.to_owned(), "gone"),
    ] {
        let second = open(&config(&tenant(name, device, &rest)), &first, 1).unwrap();
        let expected = match why {
            "" => vec![],
            why => vec![format!("a ({why})")],
        };
        assert_eq!(ended(&first, &second), expected, "{name} {device} {rest}");
    }
    let reads = open(&config(&tenant("a", "ram", "read_only = true")), &first, 1).unwrap();
    let writes = open(&config(&tenant("a", "ram", "")), &reads, 1).unwrap();
    assert!(ended(&reads, &writes).is_empty());
    assert_eq!(
        changed(&reads, &writes),
        ["a (read_only from true to false)"]
    );
    assert_eq!(changed(&writes, &writes), Vec::<String>::new());
    assert_eq!(changed(&Vec::new(), &writes), ["a (new)"]);
    let moved = tenant("a", "ram", &format!("{half}description = \"x\""));
    let moved = open(&config(&moved), &writes, 1).unwrap();
    let how = &changed(&writes, &moved)[0];
    assert!(
        how.starts_with("a (range from ") && how.ends_with(", description)"),
        "{how}"
    );
}

/// The data of a device that is served are there after every reload, and what needs a restart
/// is refused as such.
#[test]
fn a_served_device_is_kept_whatever_its_table_says() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let calibrate = |tokens_per_s: u32| {
        let points = format!("[{{\"p95_us\": 100.0, \"tokens_per_s\": {tokens_per_s}}}]");
        let curve = format!("{{\"mixed\": {points}, \"read_only\": {points}}}");
        let text = format!("{{\"write_cost\": 1000, \"curve\": {curve}}}");
        std::fs::write(at("curve"), text).unwrap();
    };
    let parse = |ram: &str, disk: &str| {
        let text = format!(
            "[[device]]\nname = \"ram\"\n{ram}\n[[device]]\nname = \"disk\"\npath = {:?}\n\
             {disk}\n[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n[[tenant]]\n\
             export = \"b\"\ndevice = \"disk\"\n",
            at("disk")
        );
        BlockConfig::parse(Path::new("b.toml"), &text).unwrap()
    };
    let (ram, disk) = ("memory = \"1MiB\"", "create = \"1MiB\"");
    let first = open(&parse(ram, disk), &Vec::new(), 1).unwrap();
    let rate = |exports: &Exports, number: usize| {
        let model = exports[number].device.qos.model();
        model.map(|model| model.curve.read_only.max_tokens_per_s())
    };
    calibrate(5_000);
    let curve = format!("\ncalibration = {:?}", at("curve"));
    let with_curve = parse(&format!("{ram}{curve}"), &format!("{disk}{curve}"));
    for tokens_per_s in [5_000, 7_000] {
        calibrate(tokens_per_s);
        let next = open(&with_curve, &first, 1).unwrap();
        for number in [0, 1] {
            assert!(Arc::ptr_eq(&next[number].device, &first[number].device));
            assert_eq!(rate(&next, number), Some(tokens_per_s.into()));
        }
    }
    for (ram, disk, expected) in [
        (
            "memory = \"2MiB\"",
            disk,
            "b.toml:3: device.memory: differs",
        ),
        (ram, "create = \"2MiB\"", "b.toml:7: device.create: differs"),
        (
            ram,
            "create = \"1MiB\"\ndirect = false",
            "b.toml:8: device.direct: differs",
        ),
        (ram, "", "b.toml:6: device.create: differs"),
    ] {
        let error = open(&parse(ram, disk), &first, 1)
            .err()
            .unwrap()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("needs a restart"), "{error}");
        assert_eq!(rate(&first, 0), Some(7_000.0), "nothing has changed");
    }
    open(&parse(ram, disk), &first, 1).unwrap();
    assert_eq!(rate(&first, 0), None);
    let missing = parse(&format!("{ram}\ncalibration = \"/no/curve\""), disk);
    let error = open(&missing, &first, 1).err().unwrap().to_string();
    let expected = "b.toml:4: device.calibration: /no/curve: No such file";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn addresses_outside_the_list_see_nothing() {
    let text = tenant("a", "ram", "allow = { addresses = [\"10.0.0.0/8\"] }");
    let exports = open_text(&text).unwrap();
    let at = |peer: &str| Visible {
        exports: &exports,
        client: ClientIdentity::at(peer.parse().ok()),
        shard: 0,
    };
    assert_eq!(at("10.1.1.1").list().len(), 1);
    assert!(at("127.0.0.1").list().is_empty());
    assert!(at("10.1.1.1").find("").is_some());
    assert!(at("").find("b").is_none());
    let refused = &exports[0].stats[0].refused_clients;
    assert_eq!(refused.load(Ordering::Relaxed), 0);
    assert!(at("127.0.0.1").find("a").is_none());
    assert_eq!(refused.load(Ordering::Relaxed), 1);
}
