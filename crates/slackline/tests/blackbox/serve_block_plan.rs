//! `slackline serve-block calibrate` and `admit`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::toy::skip;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("serve-block").args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Calibrates into a file. On a host that is busy elsewhere a load may have to be repeated.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn calibrate(device: &str, json: &Path, more: &[&str]) -> Option<Value> {
    let json = json.to_str().unwrap();
    let mut last = String::new();
    for _ in 0..3 {
        let mut arguments = vec!["calibrate", device, "--seconds", "0.3", "--loads", "4"];
        arguments.extend(["--json", json]);
        arguments.extend(more);
        let output = run(&arguments);
        last = said(&output);
        if output.status.code() == Some(3) || last.contains("has no O_DIRECT") {
            println!("SKIP: {last}");
            return None;
        }
        if output.status.code() == Some(0) {
            let text = std::fs::read_to_string(json).unwrap();
            return Some(serde_json::from_str(&text).unwrap());
        }
    }
    panic!("{last}");
}

#[test]
fn memory_is_calibrated_and_a_tenant_planned_on_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let picture = at("curve.svg");
    let more = ["--reads", "50,100", "--picture", picture.to_str().unwrap()];
    let Some(made) = calibrate("memory:1MiB", &at("memory.json"), &more) else {
        return;
    };
    let loads = made["loads"].as_array().unwrap();
    // A load that a higher rate contradicts runs again.
    assert!(loads.len() >= 8, "{made}");
    assert_eq!(loads[0]["read_percent"], 100);
    assert!(
        std::fs::read_to_string(&picture)
            .unwrap()
            .contains("100 % reads")
    );
    let most = made["curve"]["read_only"]
        .as_array()
        .unwrap()
        .last()
        .unwrap();
    assert!(most["tokens_per_s"].as_f64().unwrap() > 1e6, "{made}");

    let config = at("blocks.toml");
    let text = format!(
        "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\ncalibration = {:?}\n[[tenant]]\nexport = \"a\"\n\
         device = \"ram\"\nread_only = true\n",
        at("memory.json")
    );
    std::fs::write(&config, text).unwrap();
    let admit = |iops: &str| {
        let config = config.to_str().unwrap();
        let objective = ["--p95-us", "1000000", "--read", "1", "--iops", iops];
        run(&[&["admit", config, "--json"], &objective[..]].concat())
    };
    let fits = admit("100");
    assert_eq!(fits.status.code(), Some(0), "{}", said(&fits));
    let plan: Value = serde_json::from_slice(&fits.stdout).unwrap();
    assert_eq!(plan["needed_tokens_per_s"], 10_000);
    let refused = admit("100000000");
    assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    let checked = run(&["run", config.to_str().unwrap(), "--check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
}

#[test]
fn a_busy_machine_is_noticed() {
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..cpus {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        let few = ["--reads", "100", "--loads", "2", "--seconds", "0.3"];
        let output = run(&[&["calibrate", "memory:1MiB", "--json", "-"], &few[..]].concat());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        output
    });
    let text = said(&output);
    assert!(text.contains("(disturbed: other processes used "), "{text}");
    // Whether loads on such a machine make a calibration is chance.
    if output.status.success() {
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        let why = made["loads"][0]["disturbed_by"].as_str().unwrap();
        assert!(why.starts_with("other processes used "), "{made}");
    }
}

/// A loop device, which is detached in the end. `None` without the privilege.
struct Loop(String);

impl Loop {
    fn attach(image: &Path) -> Option<Self> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output();
        match output {
            Ok(output) if output.status.success() => Some(Self(
                String::from_utf8(output.stdout).unwrap().trim().to_owned(),
            )),
            other => {
                skip(&format!("no loop device: {other:?}"));
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_file_is_written_only_where_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    is_written_only_where_that_is_allowed(&file, file.to_str().unwrap());
}

#[test]
fn a_block_device_is_written_only_where_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("disk");
    std::fs::write(&file, vec![0; 4 << 20]).unwrap();
    if let Some(device) = Loop::attach(&file) {
        is_written_only_where_that_is_allowed(&file, &device.0);
    }
}

/// `file` has the bytes of `device`.
fn is_written_only_where_that_is_allowed(file: &Path, device: &str) {
    let directory = tempfile::tempdir().unwrap();
    let before: Vec<u8> = (0..4 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    std::fs::write(file, &before).unwrap();
    std::fs::File::open(file).unwrap().sync_all().unwrap();
    let json = directory.path().join("disk.json");
    let Some(reads) = calibrate(device, &json, &[]) else {
        return;
    };
    assert!(reads["curve"]["mixed"].is_null() && reads["write_cost"].is_null());
    assert!(reads["loads"][0]["p95_us"].as_f64().unwrap() > 0.0);
    assert!(std::fs::read(file).unwrap() == before, "reads alone wrote");

    let area = [
        "--write-area",
        "1MiB:1MiB",
        "--reads",
        "100,50",
        "--loads",
        "1",
    ];
    let output = run(&[&["calibrate", device, "--seconds", "0.3"], &area[..]].concat());
    // Whether so few loads make a fit is chance; what was written is not.
    let after = std::fs::read(file).unwrap();
    let (from, to) = (1 << 20, 2 << 20);
    assert!(after[from..to] != before[from..to], "{}", said(&output));
    assert!(after[..from] == before[..from] && after[to..] == before[to..]);
}

#[test]
fn what_cannot_be_calibrated_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::File::create(at("sparse"))
        .unwrap()
        .set_len(4 << 20)
        .unwrap();
    std::fs::write(at("small"), [1; 4096]).unwrap();
    std::fs::write(at("full"), vec![1; 2 << 20]).unwrap();
    let (sparse, small, full) = (at("sparse"), at("small"), at("full"));
    let cases: &[(&[&str], &str)] = &[
        (&["/no/such"], "/no/such cannot be opened: No such file"),
        (
            &["/dev/null"],
            "/dev/null is neither a block device nor a regular file",
        ),
        (&[&sparse], "has holes"),
        (&[&sparse], "count=4194304 iflag=fullblock,count_bytes"),
        (&[&small], "at least 1 MiB is needed"),
        (&["memory:7"], "memory:7: a size from 1MiB"),
        (
            &["memory:64MB"],
            "memory:64MB: \"64MB\" is not a size; write a whole number and KiB, MiB",
        ),
        (
            &["memory:1TiB"],
            "memory:1TiB: 1,099,511,627,776 bytes are needed",
        ),
        (
            &["simulated:p9"],
            "no simulated device \"p9\"; there is: p3600",
        ),
        (&[&full, "--write-area", "0"], "--write-area is \"0\""),
        (&[&full, "--write-area", "1:4096"], "multiples of 4 KiB"),
        (
            &[&full, "--write-area", "1MiB:2MiB"],
            "--write-area ends at 3145728",
        ),
        (
            &["memory:1MiB", "--write-area", "foo"],
            "--write-area is \"foo\"",
        ),
        (
            &["memory:1MiB", "--write-area", "0:2MiB"],
            "--write-area ends at 2097152 and memory:1MiB has 1048576 bytes",
        ),
        (
            &["simulated:p3600", "--write-area", "0:1MiB"],
            "--write-area: simulated:p3600 is simulated",
        ),
        (&[&full, "--reads", "0"], "--reads has 0"),
        (&[&full, "--reads", "50"], "--reads needs 100"),
        (&[&full, "--json", &full], "--json names the device"),
        (&[&full, "--picture", &full], "--picture names the device"),
        (&[&full, "--seconds", "0"], "--seconds is 0"),
        (&[&full, "--json", "/no/such/file"], "/no/such/file"),
        (
            &[&full, "--picture", "-"],
            "this result is not printed: name a file",
        ),
    ];
    let before = std::fs::read(&full).unwrap();
    for (arguments, expected) in cases {
        let output = run(&[&["calibrate"], *arguments].concat());
        let text = said(&output);
        // A file system without O_DIRECT says so first.
        assert!(
            text.contains(expected) || text.contains("has no O_DIRECT"),
            "{text}"
        );
        assert_eq!(output.status.code(), Some(2), "{text}");
    }
    assert!(std::fs::read(&full).unwrap() == before);
}

#[test]
fn a_tenant_is_planned_on_simulated_flash() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("blocks.toml");
    let text = "[[device]]\nname = \"flash\"\nsimulated = \"p3600\"\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                [[tenant]]\nexport = \"a\"\ndevice = \"flash\"\n";
    std::fs::write(&config, text).unwrap();
    let file = config.to_str().unwrap();
    let ask = |more: &[&str]| {
        let objective = ["--p95-us", "500", "--iops", "20000", "--read", "0.9"];
        run(&[&["admit", file], &objective[..], more].concat())
    };
    let fits = ask(&["--device", "flash"]);
    let text = String::from_utf8_lossy(&fits.stdout);
    assert_eq!(fits.status.code(), Some(0), "{}", said(&fits));
    assert!(
        text.contains("The tenant fits.") && text.contains("32,200,000"),
        "{text}"
    );
    let refused = ask(&["--device", "ram"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stdout);
    for expected in [
        "has no calibration",
        "Run `slackline serve-block calibrate memory:1MiB --json FILE`",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let refused = ask(&["--device", "ram", "--json"]);
    let plan: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(plan["needed_tokens_per_s"].is_null() && plan["is_calibrated"] == false);
    let many = [
        "admit", file, "--device", "flash", "--p95-us", "500", "--iops", "2000000",
    ];
    let refused = run(&[&many[..], &["--read", "0.9"]].concat());
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stdout);
    for expected in [
        "needs 380,000,000 tokens/s, and 36,000,000 are left.",
        "Up to 189,473 IOPS fit at this latency and share of reads.",
        "Without the tenant, flash has 36,000,000 tokens/s left at 500 µs: 189,473 IOPS of 4 KiB at 90 % reads.",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let wrong = run(&[&many[..], &["--read", "90"]].concat());
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("--read is 90: give a share from 0 to 1, such as 0.9"));
    for (more, expected) in [
        (&[][..], "--device: choose one of flash, ram"),
        (
            &["--device", "x"],
            "--device: there is no device \"x\"; there are: flash, ram",
        ),
    ] {
        let output = ask(more);
        assert_eq!(output.status.code(), Some(2));
        assert!(said(&output).contains(expected), "{}", said(&output));
    }
    let served = run(&["run", file]);
    assert_eq!(served.status.code(), Some(2));
    assert!(said(&served).contains("blocks.toml:3: device.simulated: p3600 is simulated"));
    let known = run(&["calibrate", "simulated:p3600", "--json", "-"]);
    let known: Value = serde_json::from_slice(&known.stdout).unwrap();
    assert_eq!(known["write_cost"], 1000);
}
