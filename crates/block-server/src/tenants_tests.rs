//! Tests of calibrations, deficits and reloads.

use std::path::Path;

use super::*;
use crate::config::BlockConfig;
use crate::export;

/// A calibrated device in memory with these tenants.
fn config(directory: &Path, tenants: &str) -> BlockConfig {
    let calibration = directory.join("ram.json");
    let points = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";
    let text = format!(
        "{{\"write_cost\": 1000, \"curve\": {{\"mixed\": {points}, \"read_only\": {points}}}}}"
    );
    std::fs::write(&calibration, text).unwrap();
    let text = format!(
        "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\ncalibration = \"{}\"\n{tenants}",
        calibration.display()
    );
    BlockConfig::parse(Path::new("b.toml"), &text).unwrap()
}

fn reader(name: &str, iops: u32) -> String {
    format!(
        "[[tenant]]\nexport = \"{name}\"\ndevice = \"ram\"\nread_only = true\n\
         objective = {{ p95_us = 5000, iops = {iops}, read_share = 1.0 }}\n"
    )
}

/// What is said while the first tenant's reads take so long, for thirty seconds: one each
/// millisecond, if it is among those that count, on one shard after the other.
fn said_while_reads_take(
    took_ns: u64,
    exports: &Arc<Exports>,
    shards: usize,
    counts: fn(u64) -> bool,
) -> Vec<String> {
    let mut all: Vec<(Tenants, u32)> = (0..shards)
        .map(|_| {
            let mut tenants = Tenants::new();
            tenants.sync(exports);
            let tenant = tenants.open(&exports[0]).unwrap();
            (tenants, tenant)
        })
        .collect();
    let request = NbdRequest {
        kind: RequestKind::Read,
        flags: 0,
        cookie: 0,
        offset: 0,
        len_bytes: 4096,
        payload_bytes: 0,
    };
    let (mut ready, mut resumable) = (VecDeque::new(), Vec::new());
    let mut said = Vec::new();
    for millisecond in 1..30_000 {
        let now = Time(millisecond * 1_000_000);
        for (number, (tenants, tenant)) in (0..).zip(&mut all) {
            if counts(millisecond) && millisecond % shards as u64 == number {
                assert!(tenants.enqueue(*tenant, &request, 0, now));
            }
            tenants.round(now, &mut ready, &mut resumable);
            for _ in ready.drain(..) {
                tenants.completed(*tenant, &request, took_ns, took_ns);
            }
            while let Some((name, notice)) = tenants.take_notice(now) {
                said.push(crate::launch::text(&name, notice));
            }
        }
    }
    said
}

/// A device that is much slower than its calibration says: somebody is told, once.
#[test]
fn a_calibration_that_no_longer_holds_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), &reader("db", 2000));
    let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
    let said = said_while_reads_take(900_000, &exports, 1, |_| true);
    assert_eq!(said.len(), 1, "{said:?}");
    let expected = "ram no longer behaves as calibrated: it is slower, with a 95th percentile of ";
    assert!(said[0].starts_with(expected), "{said:?}");
    let drift = exports[0].device.qos.status().drift.unwrap();
    assert_eq!(drift.calibrated_p95_us, 100.0);
}

/// A tenant that is in and out of its deficit every four seconds asks for too much once.
#[test]
fn a_deficit_is_said_once_until_it_is_over_for_ten_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let greedy = "[[tenant]]\nexport = \"scan\"\ndevice = \"ram\"\nread_only = true\n";
    let config = config(directory.path(), &(reader("db", 450) + greedy));
    for shards in [1, 2] {
        let exports = Arc::new(export::open(&config, &Vec::new(), shards).unwrap());
        let said = said_while_reads_take(80_000, &exports, shards, |millisecond| {
            millisecond < 15_000 && millisecond % 4000 < 2000
        });
        assert_eq!(said.len(), 2, "{shards} shards: {said:?}");
        let expected =
            "db asks for more than its objective reserved, 45,000 tokens/s. Requests that wait: ";
        assert!(said[0].starts_with(expected), "{said:?}");
        assert!(
            said[0].contains("Give the tenant a larger `iops`"),
            "{said:?}"
        );
        assert_eq!(said[1], "db has stayed within its reservation for 10 s");
    }
}

/// What the device does by now is too little for what was promised: a reload of the same file
/// is no new promise.
#[test]
fn a_reload_keeps_what_was_promised_on_a_device_that_has_aged() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path(), &reader("db", 2000).replace("5000", "150"));
    let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
    said_while_reads_take(4_000_000, &exports, 1, |_| true);
    let model = exports[0].device.qos.model();
    let refused = qos::Admission::new(model).admit(&exports[0].tenant_spec());
    assert!(refused.is_err(), "the device has not aged");
    let again = export::open(&config, &exports, 1).unwrap();
    assert!(Arc::ptr_eq(&again[0], &exports[0]));
}

/// A start goes by the calibration, and a reload by what the device does by now.
#[test]
fn a_restart_refuses_what_a_reload_takes_on_a_device_that_is_faster() {
    let directory = tempfile::tempdir().unwrap();
    let config = |p95_us: &str| {
        let tenant = reader("db", 2000).replace("5000", p95_us);
        config(directory.path(), &tenant)
    };
    let exports = Arc::new(export::open(&config("150"), &Vec::new(), 1).unwrap());
    assert!(crate::plan::books(&config("150")).is_ok());
    assert!(export::open(&config("60"), &exports, 1).is_err());
    said_while_reads_take(20_000, &exports, 1, |_| true);
    assert!(export::open(&config("60"), &exports, 1).is_ok());
    let refused = crate::plan::books(&config("60")).err().unwrap().to_string();
    assert!(
        refused.contains("\"db\" does not fit the calibration: "),
        "{refused}"
    );
}

/// The device has 10,000 reads a second. Either tenant gets what the other one gives up, in
/// whichever order they stand, and a new one what a removed one had. Two shards follow, one
/// after the other.
#[test]
fn a_reload_moves_reservations_between_tenants() {
    let directory = tempfile::tempdir().unwrap();
    let mut shards = [Tenants::new(), Tenants::new()];
    let mut exports = Arc::new(Vec::new());
    for (text, expected) in [
        ([reader("a", 1000), reader("b", 9000)], [1000, 9000]),
        ([reader("a", 9000), reader("b", 1000)], [9000, 1000]),
        ([reader("a", 500), reader("b", 9500)], [500, 9500]),
        ([reader("a", 500), reader("c", 9500)], [500, 9500]),
    ] {
        let config = config(directory.path(), &text.concat());
        exports = Arc::new(export::open(&config, &exports, 2).unwrap());
        for tenants in &mut shards {
            tenants.sync(&exports);
            let fares = tenants.status(Time(0)).into_iter();
            let promised: Vec<u32> = fares.map(|it| it.tenant.objective.unwrap().iops).collect();
            assert_eq!(promised, expected, "{text:?}");
            let of_device = exports[0].device.qos.status();
            assert_eq!(of_device.reserved_tokens_per_s, 1_000_000);
            assert_eq!(of_device.latency_critical, 2);
        }
        let of_device = exports[0].device.qos.status();
        assert_eq!(of_device.best_effort, 0, "{text:?}");
    }
}

/// A new calibration has other prices: what is reserved follows.
#[test]
fn a_reload_takes_a_new_calibration() {
    let directory = tempfile::tempdir().unwrap();
    let tenant = "[[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n\
                  objective = { p95_us = 5000, iops = 1000, read_share = 0.5 }\n";
    let config = config(directory.path(), tenant);
    let mut tenants = Tenants::new();
    let mut exports = Arc::new(Vec::new());
    let calibration = directory.path().join("ram.json");
    let first = std::fs::read_to_string(&calibration).unwrap();
    for (write_cost, reserved) in [(1000, 550_000), (500, 300_000), (1500, 800_000)] {
        let text = first.replace("1000,", &format!("{write_cost},"));
        std::fs::write(&calibration, text).unwrap();
        exports = Arc::new(export::open(&config, &exports, 1).unwrap());
        tenants.sync(&exports);
        let status = exports[0].device.qos.status();
        assert_eq!(status.reserved_tokens_per_s, reserved);
        assert_eq!(status.latency_critical, 1);
    }
    tenants.sync(&Arc::new(Vec::new()));
    assert_eq!(exports[0].device.qos.status().reserved_tokens_per_s, 0);
}

/// A device that no tenant names any more is let go of with its last connection, and can be
/// opened again with its data.
#[test]
fn a_device_without_tenants_is_released() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let parse = |names: &[&str]| {
        let tables = names.iter().map(|name| {
            let path = at(name);
            format!(
                "[[device]]\npath = {path:?}\ncreate = \"1MiB\"\n\
                 [[tenant]]\nexport = \"{name}\"\ndevice = {path:?}\n"
            )
        });
        BlockConfig::parse(Path::new("b.toml"), &tables.collect::<String>()).unwrap()
    };
    let mut tenants = Tenants::new();
    let open = |names: &[&str], old: &Exports| export::open(&parse(names), old, 1).map(Arc::new);
    let mut exports = open(&["a", "b", "c"], &Vec::new()).unwrap();
    tenants.sync(&exports);
    let session = tenants.open(&exports[0]).unwrap();
    let connected = Arc::clone(&exports[0]);
    exports = open(&["b"], &exports).unwrap();
    tenants.sync(&exports);
    let error = open(&["a", "b"], &exports).err().unwrap().to_string();
    assert!(error.contains("connections of a removed tenant"), "{error}");
    tenants.close(session);
    drop(connected);
    tenants.sync(&exports);
    for names in [&["a", "b", "c"][..], &["b"], &["c", "b"]] {
        exports = open(names, &exports).unwrap();
        tenants.sync(&exports);
        assert_eq!(tenants.served.len(), 3);
        let here: Vec<String> = tenants
            .status(Time(0))
            .into_iter()
            .map(|it| it.export)
            .collect();
        assert_eq!(here.len(), names.len(), "{here:?}");
    }
}

/// An export that is gone while a client uses it, and comes again.
#[test]
fn an_export_that_comes_again_is_a_tenant_again() {
    let directory = tempfile::tempdir().unwrap();
    let both = [reader("a", 1000), reader("b", 1000)];
    let mut tenants = Tenants::new();
    let mut exports = Arc::new(Vec::new());
    for (text, expected) in [
        (both.concat(), vec!["a", "b"]),
        (both[1].clone(), vec!["b"]),
        (both.concat(), vec!["a", "b"]),
    ] {
        let config = config(directory.path(), &text);
        exports = Arc::new(export::open(&config, &exports, 1).unwrap());
        tenants.sync(&exports);
        if exports.len() == 2 {
            tenants.open(&exports[0]).unwrap();
        }
        let fares = tenants.status(Time(0));
        let names: Vec<&str> = fares.iter().map(|fare| fare.export.as_str()).collect();
        assert_eq!(names, expected);
    }
}

/// The shard answers nobody meanwhile.
#[test]
fn a_reload_of_as_many_tenants_as_there_may_be_is_quick() {
    let directory = tempfile::tempdir().unwrap();
    let text: String = (0..qos::TENANTS_MAX)
        .map(|number| {
            format!("[[tenant]]\nexport = \"t{number}\"\ndevice = \"ram\"\nread_only = true\n")
        })
        .collect();
    let config = config(directory.path(), &text);
    let exports = Arc::new(export::open(&config, &Vec::new(), 1).unwrap());
    let mut tenants = Tenants::new();
    tenants.sync(&exports);
    let again = Arc::new(export::open(&config, &exports, 1).unwrap());
    let began = std::time::Instant::now();
    tenants.sync(&again);
    let took = began.elapsed();
    assert!(took.as_secs() < 1, "{took:?}");
    assert_eq!(tenants.status(Time(0)).len(), exports.len());
}
