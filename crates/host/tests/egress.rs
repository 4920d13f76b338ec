//! What a group sends on a device, limited for real: in a network namespace of the test's own.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "test code: a panic is a failure, and a skip is said"
)]

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::{Actuator as _, Egress, Hierarchies, HostError, Journal, Roots, Wanted, egress_bytes};

/// Set where the test runs in its namespace.
const INSIDE: &str = "SLACKLINE_EGRESS_INSIDE";
const DEVICE: &str = "lo";
/// Bytes a second.
const LIMIT: u64 = 2_000_000;

fn skip(why: &str) {
    assert!(
        std::env::var_os("SLACKLINE_CI").is_none(),
        "SKIP in CI: {why}"
    );
    eprintln!("SKIP: {why}");
}

/// A group of v2 without a controller.
struct Group {
    name: String,
    path: PathBuf,
}

impl Group {
    fn new() -> Option<Self> {
        let mounted = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let v2 = mounted.lines().find(|line| line.contains(" - cgroup2 "))?;
        let name = format!("slackline-egress-{}", std::process::id());
        let path = PathBuf::from(v2.split(' ').nth(4)?).join(&name);
        std::fs::create_dir(&path).ok()?;
        Some(Self { name, path })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn tc(what: &str) -> String {
    let output = Command::new("tc")
        .args([what, "show", "dev", DEVICE])
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// Sends as fast as it can for a while, from this group or from none; bytes a second that came.
fn rate(group: Option<&Group>) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let enter = group.map_or_else(String::new, |group| {
        format!("echo $$ > {}/cgroup.procs; ", group.path.display())
    });
    let send = format!("{enter}exec 3<>/dev/tcp/127.0.0.1/{port}; exec cat /dev/zero >&3");
    let mut sender: Child = Command::new("bash")
        .args(["-c", &send])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let began = Instant::now();
    let mut bytes = 0;
    let mut buffer = vec![0; 1 << 20];
    // From the beginning to the last byte: a reader that was held up has read no more by then.
    while began.elapsed() < Duration::from_millis(1500) {
        bytes += stream.read(&mut buffer).unwrap();
    }
    let rate = bytes as f64 / began.elapsed().as_secs_f64();
    sender.kill().unwrap();
    sender.wait().unwrap();
    rate
}

fn inside() {
    let Some(group) = Group::new() else {
        skip("no group can be made in a hierarchy of cgroup v2");
        return;
    };
    let roots = Roots::default();
    let scratch = tempfile::tempdir().unwrap();
    let egress = Egress {
        group: group.name.clone(),
        device: DEVICE.to_owned(),
    };
    let limit = Wanted::Bytes(Some(LIMIT));
    let before = tc("qdisc");
    {
        let mut journal = Journal::open(scratch.path()).unwrap();
        match egress.probe(&roots) {
            Ok(form) => assert_eq!(form, "HTB"),
            Err(why) => panic!("{why}"),
        }
        assert_eq!(egress.read(&roots).unwrap(), "max");
        match egress.apply(&mut journal, &roots, &limit) {
            Err(HostError::Write { errno, .. })
                if [libc::ENOENT, libc::EOPNOTSUPP].contains(&errno) =>
            {
                skip(
                    "the kernel has no HTB (CONFIG_NET_SCH_HTB) or no BPF filter (CONFIG_NET_CLS_BPF)",
                );
                journal.restore(&roots, false).unwrap();
                return;
            }
            other => other.unwrap(),
        }
        assert!(egress.verify(&roots, &limit).unwrap());
        assert!(tc("qdisc").contains("htb 51ac:"), "{}", tc("qdisc"));
        let (limited, free) = (rate(Some(&group)), rate(None));
        assert!(limited < 1.3 * LIMIT as f64, "{limited} bytes/s");
        assert!(limited > 0.5 * LIMIT as f64, "{limited} bytes/s");
        // On a busy host, too, others are not held up.
        assert!(free > 10.0 * LIMIT as f64, "{free} bytes/s");
        let sent = egress_bytes(&roots, DEVICE, &group.name).unwrap().unwrap();
        assert!(sent > LIMIT / 2, "{sent}");
        eprintln!("limited to {LIMIT}: {limited:.0} bytes/s; others: {free:.0}");
        // Another rate, and a rate above 4 GB/s.
        for rate in [3_000_000, 6_000_000_000] {
            let wanted = Wanted::Bytes(Some(rate));
            egress.apply(&mut journal, &roots, &wanted).unwrap();
            assert_eq!(egress.read(&roots).unwrap(), rate.to_string());
        }
        // As after a kill -9: nothing is restored when the journal is dropped.
    }
    let mut journal = Journal::open(scratch.path()).unwrap();
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(tc("qdisc"), before);
    // A group that vanishes leaves no class behind.
    egress.apply(&mut journal, &roots, &limit).unwrap();
    drop(group);
    assert_eq!(egress.read(&roots).unwrap(), LIMIT.to_string());
    assert!(journal.restore(&roots, false).unwrap().is_complete());
    assert_eq!(tc("qdisc"), before);
    // What somebody chose is left alone.
    let group = Group::new().unwrap();
    let theirs = ["qdisc", "add", "dev", DEVICE, "root", "handle", "7:", "tbf"];
    let rest = ["rate", "1gbit", "burst", "1mb", "latency", "50ms"];
    let status = Command::new("tc").args(theirs).args(rest).status().unwrap();
    assert!(status.success());
    let why = egress.probe(&roots).unwrap_err();
    assert!(why.contains("tbf"), "{why}");
    assert!(egress.apply(&mut journal, &roots, &limit).is_err());
    assert!(tc("qdisc").contains("tbf 7:"), "{}", tc("qdisc"));
    drop(group);
}

#[test]
fn what_a_group_sends_is_limited_and_the_device_is_as_it_was() {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return;
    }
    if Hierarchies::of(&Roots::default()).layout() == host::CgroupLayout::V1 {
        skip("no hierarchy of cgroup v2");
        return;
    }
    let own = std::env::current_exe().unwrap();
    let run = Command::new("unshare")
        .args([
            "--net",
            "sh",
            "-c",
            "ip link set lo up && exec \"$@\"",
            "sh",
        ])
        .arg(own)
        .args([
            "--exact",
            "--nocapture",
            "what_a_group_sends_is_limited_and_the_device_is_as_it_was",
        ])
        .env(INSIDE, "1")
        .output();
    let Ok(output) = run else {
        skip("unshare is missing");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") || said.contains("Operation not permitted") {
        skip(&said);
        return;
    }
    std::io::stderr().write_all(&output.stderr).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
