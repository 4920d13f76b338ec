//! `slackline throttle advise` and `apply` from outside.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use host::{CgroupVersion, CpuQuota, Hierarchies, Roots};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::throttle::Group;
use crate::toy::{Ended, Toy, kill};

/// Requests of 5 ms beside a table that eight threads rebuild at once, in one core.
fn described() -> Value {
    json!({
        "host": { "cpus": 2 },
        "limit": { "quota_us": 100_000, "period_us": 100_000, "burst_us": 0 },
        "service": {
            "pools": [
                { "name": "worker", "threads": 8, "work": { "random": { "per_s": 60.0, "demand": { "fixed": { "cpu_us": 5000.0 } } } } },
                { "name": "table", "threads": 8, "work": { "batches": { "every_us": 500_000.0, "jobs": 8, "demand": { "fixed": { "cpu_us": 15_000.0 } } } } },
            ],
        },
    })
}

fn advise(toy: &Toy, service: &Value, more: &[&str]) -> Ended {
    let path = toy.path("service.json");
    fs::write(&path, service.to_string()).unwrap();
    let mut arguments = vec!["throttle", "advise", "--service", path.to_str().unwrap()];
    arguments.extend(more);
    Ended::of(toy.slackline(&arguments))
}

#[test]
fn a_described_service_is_advised() {
    let toy = Toy::new();
    let ended = advise(&toy, &described(), &["--slo-p99-ms", "40", "--json", "-"]).with_code(0);
    let advice: Value = serde_json::from_str(&ended.stdout).unwrap();
    let best = &advice["recommended"];
    assert!(best["ratio"]["high"].as_f64() < Some(1.0), "{best}");
    assert_eq!(best["setting"]["threads"]["table"], 1, "{best}");
    let today = advice["today"]["throttled_share"].as_f64().unwrap();
    assert!(best["throttled_share"].as_f64().unwrap() < today);
    let page = toy.path("advice.html");
    let more = [
        "--slo-p99-ms",
        "40",
        "--shards",
        "10",
        "--html",
        page.to_str().unwrap(),
    ];
    let text = advise(&toy, &described(), &more).with_code(0).stdout;
    assert!(
        text.starts_with("Recommended: 1 table threads (now 8)"),
        "{text}"
    );
    for said in [
        "There is no recording to compare the model with.",
        "The whole load in shards",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 3, "{page}");
    // Each setting has one row, and the first ones say what they are.
    let (_, tried) = page.split_once("What was tried").unwrap();
    let (tried, _) = tried.split_once("</table>").unwrap();
    let rows = tried.split("<tr><td>").skip(1);
    let named: Vec<&str> = rows.map(|row| row.split_once("</td>").unwrap().0).collect();
    assert_eq!(named[0], "today: as it is");
    assert!(
        named[1].starts_with("recommended: 1 table threads (now 8)"),
        "{named:?}"
    );
    assert!(named[2].starts_with("could be given back: "), "{named:?}");
    let settings = named.iter().map(|row| row.rsplit(": ").next().unwrap());
    let settings: std::collections::HashSet<&str> = settings.collect();
    assert_eq!(settings.len(), named.len(), "{named:?}");
}

/// Eight workers of a Node.js cluster with 4 ms a request, who use all of one core.
#[test]
fn nothing_is_recommended_for_a_saturated_service() {
    let toy = Toy::new();
    let mut service = described();
    let saturated = |share: f64| {
        let jobs = (0..2500)
            .map(|job| json!({ "at_us": 4000.0 * f64::from(job), "cpu_us": 4000.0 * share }));
        json!([{
            "name": "node",
            "threads": 8,
            "processes": 8,
            "setting": "the number of cluster workers",
            "work": { "recorded": jobs.collect::<Vec<Value>>() },
        }])
    };
    service["duration_us"] = json!(1e7);
    service["service"]["pools"] = saturated(0.97);
    let told = advise(&toy, &service, &[]).with_code(1).stdout;
    assert!(told.contains("almost all the CPU time"), "{told}");
    assert!(told.contains("So nothing is recommended"), "{told}");
    assert!(!told.contains("given back"), "{told}");
    assert!(!told.contains("p99 of a job"), "no table: {told}");
    let all = advise(&toy, &service, &["--all"]).with_code(1).stdout;
    assert!(all.contains("p99 of a job"), "{all}");
    assert!(all.contains("4 node processes by the"), "{all}");
    service["service"]["pools"] = saturated(0.5);
    let told = advise(&toy, &service, &[]).stdout;
    assert!(!told.contains("Nothing is recommended"), "{told}");
}

#[test]
fn what_is_wrong_with_a_described_service_is_named() {
    let toy = Toy::new();
    let mut service = described();
    service["limit"]["burst_us"] = json!(100_001);
    advise(&toy, &service, &[]).with_code(2).saying(&[
        "service.json",
        "burst_us",
        "limit.quota_us",
    ]);
    let mut service = described();
    service["service"]["pools"][0]["threads"] = json!(0);
    advise(&toy, &service, &[])
        .with_code(2)
        .saying(&["service.pools[0] (worker)", "above 0"]);
    let mut service = described();
    service["limit"]["quota_us"] = Value::Null;
    advise(&toy, &service, &[])
        .with_code(2)
        .saying(&["no CPU quota"]);
    // What the kernel would not take, or nobody could wait for.
    for quota_us in [0_u64, 999, 1_000_000_000_000_000] {
        let mut service = described();
        service["limit"] = json!({ "quota_us": quota_us, "period_us": 100_000, "burst_us": 0 });
        advise(&toy, &service, &[])
            .with_code(2)
            .saying(&["limit.quota_us must be between 1000 and"]);
    }
    let mut service = described();
    service["service"]["pools"][1]["threads"] = json!(1_000_000_000);
    advise(&toy, &service, &[])
        .with_code(2)
        .saying(&["service.pools[1] (table): threads must be"]);
    let mut service = described();
    service["service"]["pools"][0]["work"]["random"]["per_s"] = json!(1e9);
    advise(&toy, &service, &[])
        .with_code(2)
        .saying(&["service.pools[0] (worker): there may be 0 to 1000000 jobs a second"]);
    for cpu_us in [1e300, -1.0] {
        let mut service = described();
        service["service"]["pools"][0]["work"]["random"]["demand"]["fixed"]["cpu_us"] =
            json!(cpu_us);
        advise(&toy, &service, &[])
            .with_code(2)
            .saying(&["service.pools[0] (worker): the CPU time of a job must be between 0 and"]);
    }
    let mut service = described();
    service["duration_us"] = json!(1e6);
    for (job, wrong) in [
        (json!({ "at_us": 1, "cpu_us": -1 }), "the CPU time of a job"),
        (json!({ "at_us": -1, "cpu_us": 1 }), "at_us"),
    ] {
        service["service"]["pools"][0]["work"] = json!({ "recorded": [job] });
        advise(&toy, &service, &[])
            .with_code(2)
            .saying(&["service.pools[0] (worker): ", wrong]);
    }
    // Keys that mean nothing, wherever they are, and where what is wrong is.
    for path in [
        "",
        "/host",
        "/limit",
        "/service",
        "/service/pools/0/work/random",
    ] {
        let mut service = described();
        service.pointer_mut(path).unwrap()["wrong"] = json!(1);
        advise(&toy, &service, &[])
            .with_code(2)
            .saying(&["service.json: ", "unknown field `wrong`"]);
    }
    let mut service = described();
    service["service"]["pools"][1]["work"]["batches"]["jobs"] = json!("many");
    advise(&toy, &service, &[])
        .with_code(2)
        .saying(&["service.json: service.pools[1].work.batches.jobs: invalid type"]);
    advise(&toy, &described(), &["--pool", "wroker"])
        .with_code(2)
        .saying(&["\"wroker\"", "the pools are worker"]);
    advise(&toy, &json!({ "host": 1 }), &[])
        .with_code(2)
        .saying(&["service.json"]);
}

/// The quota of a throttled group is raised and kept, where it is shown to help; then a worse one
/// is rolled back.
#[test]
fn a_limit_is_kept_only_where_it_is_shown_to_be_better() {
    let Some(mut group) = Group::new() else {
        return;
    };
    // Works for 5 ms or so, ten times a second, in two places at once.
    group.run("while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05; done");
    group.run("while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.05; done");
    let toy = Toy::new();
    let roots = Roots::default();
    let apply = |more: &[&str]| {
        let mut arguments = vec![
            "throttle",
            "apply",
            "--cgroup",
            &group.name,
            "--pairs",
            "3",
            "--block-s",
            "1",
        ];
        arguments.extend(more);
        Ended::of(toy.slackline(&arguments))
    };
    apply(&[])
        .with_code(2)
        .saying(&["that is the present limit"]);
    apply(&["--burst-ms", "21"])
        .with_code(2)
        .saying(&["at most the quota, 20 ms"]);
    apply(&["--period-ms", "2000"])
        .with_code(2)
        .saying(&["between 1 and 1000"]);
    let before = CpuQuota::read(&roots, &group.name).unwrap();
    let ended = apply(&["--quota", "0.1"]).with_code(1);
    assert!(
        ended.stdout.starts_with("Rolled back: "),
        "{}",
        ended.stdout
    );
    assert_eq!(CpuQuota::read(&roots, &group.name).unwrap(), before);
    // A metric that knows nothing but the limit: what is kept does not hang on the machine's other
    // work.
    let (knob, _) = before.writes(&roots, &group.name).unwrap().pop().unwrap();
    let file = knob.path(&roots);
    let metric = format!("awk '{{ print 1e6 / $1 }}' {}", file.display());
    let ended = apply(&["--quota", "2", "--metric", &metric, "--json", "-"]).with_code(0);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(report["ratio"]["high"].as_f64() < Some(1.0), "{report}");
    assert_eq!(
        CpuQuota::read(&roots, &group.name).unwrap().quota_us,
        Some(200_000)
    );
    // Nothing is left to undo.
    toy.restore().with_code(0);
    assert_eq!(
        CpuQuota::read(&roots, &group.name).unwrap().quota_us,
        Some(200_000)
    );
}

#[test]
fn what_cannot_be_applied_is_known_before_the_second_block() {
    let Some(group) = Group::new() else {
        return;
    };
    let toy = Toy::new();
    let apply = |group: &str, more: &[&str]| {
        let mut command = toy.slackline(&["throttle", "apply", "--cgroup", group]);
        command
            .args(["--quota", "0.1", "--block-s", "1"])
            .args(more);
        command
    };
    Ended::of(apply("/", &[]))
        .with_code(2)
        .saying(&["the root group has no limit"]);
    for number in ["0", "-1", "nan"] {
        let metric = format!("echo {number}");
        let ended = Ended::of(apply(&group.name, &["--metric", &metric])).with_code(2);
        let ended = ended.saying(&["only numbers above 0 have a ratio"]);
        assert!(!ended.stderr.contains("pair"), "{}", ended.stderr);
    }
    // Ended by hand, it says where the limit is.
    let begun = toy.path("begun");
    let metric = format!("touch {}; echo 1", begun.display());
    let mut command = apply(&group.name, &["--metric", &metric]);
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    toy.wait_for("begun");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    Ended::from(child.wait_with_output().unwrap())
        .with_code(130)
        .saying(&["Stopped; the present limit is restored: 0.20 cores"]);
    // Only v1 has the kernel compare a group with those below it.
    let Some(_below) = group.below() else {
        return;
    };
    let roots = Roots::default();
    if Hierarchies::of(&roots).require("cpu").unwrap().0 == CgroupVersion::V2 {
        return;
    }
    let before = CpuQuota::read(&roots, &group.name).unwrap();
    let ended = Ended::of(apply(&group.name, &[])).with_code(2);
    let ended = ended.saying(&["the limit of a group above or below contradicts it"]);
    assert!(!ended.stderr.contains("pair"), "{}", ended.stderr);
    assert_eq!(CpuQuota::read(&roots, &group.name).unwrap(), before);
}

#[test]
fn after_a_kill_under_the_new_limit_another_apply_asks_for_a_restore() {
    let Some(group) = Group::new() else {
        return;
    };
    let toy = Toy::new();
    let before = CpuQuota::read(&Roots::default(), &group.name).unwrap();
    let is_new = || CpuQuota::read(&Roots::default(), &group.name).unwrap() != before;
    // The second block begins under the new limit.
    let seen = toy.path("seen");
    let metric = format!("echo >> {}; echo 1", seen.display());
    let apply = || {
        let mut command = toy.slackline(&["throttle", "apply", "--cgroup", &group.name]);
        command.args(["--quota", "0.1", "--block-s", "1", "--metric", &metric]);
        command
    };
    let mut child = apply().stderr(Stdio::null()).spawn().unwrap();
    let asked = || fs::read_to_string(&seen).map_or(0, |text| text.lines().count());
    while asked() < 3 {
        std::thread::sleep(Duration::from_millis(20));
    }
    kill([&mut child]);
    assert!(is_new());
    Ended::of(apply())
        .with_code(2)
        .saying(&["run `slackline --state-dir ", " restore` first"]);
    toy.restore().with_code(0);
    assert!(!is_new());
}

/// The specification that is written for a pool whose size only its service's command knows is one
/// that `check` takes.
#[test]
fn the_experiment_of_a_recorded_pool_is_whole() {
    let Some(mut group) = Group::new() else {
        return;
    };
    let toy = Toy::new();
    let program = toy.path("pool.py");
    let text = "import sys, threading, time\n\
                def work():\n    \
                    while True:\n        \
                        sum(range(20000))\n        \
                        time.sleep(0.02)\n\
                for _ in range(int(sys.argv[1]) - 1):\n    \
                    threading.Thread(target=work).start()\n\
                work()\n";
    fs::write(&program, text).unwrap();
    group.run(&format!(
        "exec python3 {} 5 '{{url}}' --port=18099",
        program.display()
    ));
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spec = toy.path("pools.toml");
    let ended = Ended::of(toy.slackline(&[
        "throttle",
        "advise",
        "--cgroup",
        &group.name,
        "--duration-s",
        "2",
        "--experiment",
        spec.to_str().unwrap(),
        "--url",
        "http://127.0.0.1:18099/{x}",
        "--rate",
        "50",
    ]));
    assert!(ended.code < 2, "{}", ended.stderr);
    assert!(!ended.stderr.contains("does not say"), "{}", ended.stderr);
    let text = fs::read_to_string(&spec).unwrap();
    for part in [
        "_threads\"\ntype = \"int\"\nlow = 1\nhigh = 10",
        "_threads}\",",
        "\"--port={port}\"",
        "\"{{url}}\"",
        "http://127.0.0.1:{port}/{{x}}",
        "cores = 0.2",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    Ended::of(toy.slackline(&["check", spec.to_str().unwrap()])).with_code(0);
}
