//! Settings that are written once: by `static`, and beside another policy.

use super::{Bench, Group, signal};
use crate::toy::{Ended, kill};

#[test]
fn a_memory_limit_stands_beside_the_policy_and_is_undone() {
    let Some(bench) = Bench::new("beside") else {
        return;
    };
    bench.config("static = { memory_high_mib = 64 }", "");
    let mut child = bench.start();
    let is_limited = |status: &serde_json::Value| {
        let settings = &status["groups"][0]["settings"];
        settings["memory_high"] == "memory.high 64 MiB"
    };
    bench.until("a limit", is_limited);
    let groups = bench.groups();
    let limits = groups.iter().filter_map(|group| {
        let files = ["memory.high", "memory.soft_limit_in_bytes"];
        let mut texts = files.map(|file| std::fs::read_to_string(group.join(file)).ok());
        texts.iter_mut().find_map(Option::take)
    });
    let limits: Vec<String> = limits.collect();
    assert_eq!(limits, ["67108864\n"], "{groups:?}");
    // The policy goes on beside it.
    bench.until("batch work", Bench::is_on);
    signal(child.id().into(), rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    bench.assert_restored();
}

#[test]
fn what_the_host_lacks_is_named_by_its_line_and_the_rest_is_in_force() {
    let Some(bench) = Bench::new("lacking") else {
        return;
    };
    let (Some(service), Some(work)) = (Group::new("fixed"), Group::new("fixed-work")) else {
        return;
    };
    let (mut first, mut busy) = (service.sleeper(), work.sleeper());
    bench.config_of(
        &format!("cgroup = \"{}\"", service.name),
        &format!("cgroup = \"{}\"", work.name),
        "name = \"static\"\nio_device = \"no-such-disk\"\n\
         static = { service_weight = 500, io_cost = true }",
    );
    let said = "isolate.toml:12: policy.static.io_cost: the machine: there is no disk no-such-disk";
    let file = bench.toy.path("isolate.toml").display().to_string();
    let checked = Ended::of(bench.toy.slackline(&["isolate", "check", &file])).with_code(1);
    assert!(checked.stdout.contains(said), "{}", checked.stdout);
    let child = bench.start();
    let status = bench.until("a trouble", |status| status["troubles"]["lacking"] == 1);
    assert_eq!(status["services"][0]["settings"]["weight"], "weight 500");
    let shown = Ended::of(bench.toy.slackline(&["isolate", "status"])).with_code(0);
    assert!(shown.stdout.contains("weight 500"), "{}", shown.stdout);
    let weight = || {
        let files = ["cpu.weight", "cpu.shares"];
        let mut texts = files.map(|file| std::fs::read_to_string(service.path.join(file)).ok());
        let text = texts.iter_mut().find_map(Option::take).unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    let before = [100, 1024];
    assert!([500, 5120].contains(&weight()), "{}", weight());
    signal(child.id().into(), rustix::process::Signal::TERM);
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(before.contains(&weight()), "{}", weight());
    kill([&mut first, &mut busy]);
}
