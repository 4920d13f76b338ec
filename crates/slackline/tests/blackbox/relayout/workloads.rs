//! A program with two workloads: a layout that was made for one of them is not in force for the
//! other.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::faults::{Program, is_root};
use crate::eventually::found_within;
use crate::toy::{Ended, Toy};

/// Counts CPU time of the process as units of work, twice in every layout but the original: so
/// each layout is shown to be better, whatever else the machine does.
const METRIC: &str = r#"
now=$(cat /proc/$1/task/*/schedstat | awk '{ sum += $1 } END { printf "%d", sum }')
last=0 units=0
[ ! -e "$2/units-$1" ] || read -r last units <"$2/units-$1"
each=1
for file in "$2"/state/relayout/"$1"-*.generation; do [ ! -e "$file" ] || each=2; done
units=$((units + each * (now - last)))
echo "$now $units" >"$2/units-$1"
echo "$units"
"#;

/// A `start` on a program after these arguments.
fn start(toy: &Toy, program: &Program, arguments: &[&str]) -> Command {
    fs::write(toy.path("metric"), METRIC).unwrap();
    let pid = program.pid.to_string();
    let directory = toy.path("").display().to_string();
    let metric = format!("sh {directory}/metric {pid} {directory}");
    let mut start = toy.slackline(&["relayout", "start", "--pid", &pid]);
    start.args(["--metric-command", &metric, "--pairs", "8"]);
    start.args(["--block-s", "0.1"]).args(arguments);
    start
}

/// Lays it out and shows that it is better; what is said meanwhile, and what is known of it then.
fn optimized(toy: &Toy, program: &Program) -> (String, Value) {
    let ended = Ended::of(start(toy, program, &["--once", "--json"])).with_code(0);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let process = printed["processes"][0].clone();
    assert_eq!(process["state"], "optimized", "{process}");
    assert!(process["cover"]["low"].as_f64().unwrap() > 0.9, "{process}");
    (ended.stderr, process)
}

fn program_in(workload: &str) -> Program {
    let mut program = Program::start(&["plain"]);
    program.say(workload);
    program
}

fn kept(toy: &Toy) -> Vec<PathBuf> {
    let entries = fs::read_dir(toy.path("state/relayout/profiles")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn a_second_start_takes_a_kept_layout_only_for_the_workload_that_it_covers() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let first = program_in("a");
    let (said, process) = optimized(&toy, &first);
    assert!(!said.contains("kept"), "{said}");
    assert_eq!(process["layout"]["kept"], Value::Null, "{process}");
    first.quit();

    let other = program_in("b");
    let (said, process) = optimized(&toy, &other);
    let why = "no kept profile is shown to cover 90 % of what runs: the best of 1 covers ";
    assert!(said.contains(why), "{said}");
    assert_eq!(process["layout"]["kept"], Value::Null, "{process}");
    other.quit();
    let files = kept(&toy);
    assert_eq!(files.len(), 2, "{files:?}");

    // A damaged one is named, and takes nothing from the others.
    fs::write(&files[1], "{").unwrap();
    let again = program_in("a");
    let (said, process) = optimized(&toy, &again);
    let file = files[0].display().to_string();
    for text in [
        "optimizing: by a kept profile, which covers ",
        "by the profile kept on 20",
        &file,
        &format!("{}: damaged: ", files[1].display()),
    ] {
        assert!(said.contains(text), "{text:?} is not in: {said}");
    }
    assert_eq!(process["layout"]["kept"]["file"], file, "{process}");
    let shown = &process["layout"]["kept"]["gain"]["metric"];
    assert_eq!(shown, "units per CPU second", "{process}");
    let status = Ended::of(toy.slackline(&["relayout", "status"])).stdout;
    assert!(status.contains(" kept "), "{status}");
    again.roll_back(&toy);
    again.quit();
    let aside = format!("{}.damaged", files[1].display());
    assert_eq!(kept(&toy), [files[0].clone(), PathBuf::from(aside)]);
}

/// A watch that is ended with the test.
struct WatchProcess(Child);

impl Drop for WatchProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until this holds of the only process.
fn wait_until(toy: &Toy, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    found_within(300, || {
        let status = Ended::of(toy.slackline(&["relayout", "status", "--json"])).stdout;
        let printed: Value = serde_json::from_str(&status).unwrap_or_default();
        let process = &printed["processes"][0];
        match holds(process) {
            true => Ok(process.clone()),
            false => Err(format!("{what}: {process}")),
        }
    })
}

#[test]
fn a_watch_lays_out_again_what_no_longer_fits_and_says_so() {
    if !is_root() {
        return;
    }
    let toy = Toy::new();
    let mut program = program_in("a");
    let log = toy.path("log");
    let mut watch = start(&toy, &program, &["--every-s", "1", "--hold-off-s", "0"]);
    let file = fs::File::create(&log).unwrap();
    watch.stdout(Stdio::null()).stderr(file);
    let watch = WatchProcess(watch.spawn().unwrap());
    let is_better = |process: &Value| {
        let covers = process["cover"]["low"]
            .as_f64()
            .is_some_and(|low| low > 0.9);
        process["state"] == "optimized" && covers
    };
    let of_a = wait_until(&toy, "the first layout", is_better);

    program.say("b");
    wait_until(&toy, "a cover that has fallen", |process| {
        let cover = &process["cover"];
        let high = cover["high"].as_f64();
        high.is_some_and(|high| high < cover["least"].as_f64().unwrap())
    });
    let is_another =
        |process: &Value| is_better(process) && process["generation"] != of_a["generation"];
    wait_until(&toy, "a layout for the other workload", is_another);

    program.say("a");
    wait_until(&toy, "the first layout again", |process| {
        is_better(process) && process["generation"] == of_a["generation"]
    });
    Ended::of(toy.slackline(&["relayout", "stop"])).with_code(0);
    drop(watch);
    let said = fs::read_to_string(log).unwrap();
    for text in [
        ", no longer fits what runs",
        "reoptimizing: the layout in force covers ",
        "is in force again, which covers ",
    ] {
        assert!(said.contains(text), "{text:?} is not in: {said}");
    }
    program.roll_back(&toy);
    program.assert_as_before();
    program.quit();
}
