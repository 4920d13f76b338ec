//! `slackline serve` from outside: every verb of the command line, and `kill -9` at any moment.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::continuous::{attached_once, read};
use crate::described;
use crate::eventually::{eventually, found_within};
use crate::promises::slow_toy;
use crate::toy::{Ended, FIRST, Toy, kill, through};

/// A running server, which is killed with the test.
pub(crate) struct Server<'a> {
    toy: &'a Toy,
    child: Child,
}

impl<'a> Server<'a> {
    pub(crate) fn start(toy: &'a Toy) -> Self {
        Self::start_in(toy, &[])
    }

    /// At an address that an earlier server had.
    pub(crate) fn start_at(toy: &'a Toy, listen: &str) -> Self {
        Self::start_with(toy, &[], listen)
    }

    /// With further variables in its environment.
    pub(crate) fn start_in(toy: &'a Toy, environment: &[(&str, &str)]) -> Self {
        Self::start_with(toy, environment, "127.0.0.1:0")
    }

    /// That lets each client send so many requests a second.
    pub(crate) fn start_with_rate(toy: &'a Toy, rate: &str) -> Self {
        Self::start_as(toy, &[], &["--listen", "127.0.0.1:0", "--rate", rate])
    }

    fn start_with(toy: &'a Toy, environment: &[(&str, &str)], listen: &str) -> Self {
        Self::start_as(toy, environment, &["--listen", listen, "--rate", "10000"])
    }

    /// After `ulimit` with these arguments, such as `-n 96`.
    pub(crate) fn start_limited(toy: &'a Toy, limit: &str) -> Self {
        let script = format!("ulimit {limit} && exec \"$@\"");
        let by = ["sh", "-c", script.as_str(), "sh"];
        let serve = toy.slackline(&["serve", "--listen", "127.0.0.1:0", "--rate", "10000"]);
        Self::start_command(toy, through(&by, &serve))
    }

    /// With these options.
    pub(crate) fn start_as(toy: &'a Toy, environment: &[(&str, &str)], options: &[&str]) -> Self {
        let mut command = toy.slackline(&[&["serve"], options].concat());
        command.envs(environment.iter().copied());
        Self::start_command(toy, command)
    }

    fn start_command(toy: &'a Toy, mut command: Command) -> Self {
        let said = toy.path("state/serve.json");
        let stderr = toy.path("serve.stderr");
        let messages = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&stderr)
            .unwrap();
        let mut server = Self {
            toy,
            child: command
                .stdout(Stdio::null())
                .stderr(messages)
                .spawn()
                .unwrap(),
        };
        let messages = || std::fs::read_to_string(&stderr).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            // The address may still be the last server's: nobody answers there, or a stranger, who
            // does not know the token.
            if said.exists() && server.try_get("/experiments").is_some() {
                return server;
            }
            assert!(
                server.child.try_wait().unwrap().is_none(),
                "the server ended: {}",
                messages()
            );
            assert!(
                Instant::now() < end,
                "the server does not answer: {}",
                messages()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn access(&self) -> Value {
        let text = std::fs::read_to_string(self.toy.path("state/serve.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn token(&self, role: &str) -> String {
        self.access()[role].as_str().unwrap().to_owned()
    }

    pub(crate) fn page(&self, path: &str) -> String {
        format!(
            "http://{}{path}",
            self.access()["address"].as_str().unwrap()
        )
    }

    /// The address that signs a browser in.
    pub(crate) fn sign_in(&self, role: &str) -> String {
        self.page(&format!("/?token={}", self.token(role)))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.page(&format!("/api/v1{path}"))
    }

    fn try_get(&self, path: &str) -> Option<Value> {
        let token = self.token("read_token");
        let answer = ureq::get(self.url(path)).header("authorization", format!("Bearer {token}"));
        let answer = answer.call().ok()?.body_mut().read_json().ok()?;
        described::check("GET", path, 200, &answer);
        Some(answer)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.try_get(path)
            .unwrap_or_else(|| panic!("{path} cannot be read"))
    }

    /// `slackline experiments …`.
    pub(crate) fn does(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.toy.slackline(&[&["experiments"], arguments].concat()))
    }

    pub(crate) fn create(&self) -> i64 {
        self.create_of(&self.toy.spec)
    }

    /// An experiment of the toy that has come to its end with an improvement.
    pub(crate) fn improved(&self) -> i64 {
        let id = self.create();
        let shown = self.wait_for(id, &["done", "failed"]);
        assert_eq!(shown["finding"], "improvement", "{shown}");
        id
    }

    /// An experiment of this specification.
    pub(crate) fn create_of(&self, spec: &Value) -> i64 {
        let file = self.toy.path("experiment.json");
        std::fs::write(&file, spec.to_string()).unwrap();
        let made = self.does(&["create", file.to_str().unwrap()]).with_code(0);
        made.stdout.trim().parse().unwrap()
    }

    /// Waits until an experiment is in one of these states.
    pub(crate) fn wait_for(&self, id: i64, states: &[&str]) -> Value {
        found_within(60, || {
            let shown = self.get(&format!("/experiments/{id}"));
            match states.contains(&shown["state"].as_str().unwrap()) {
                true => Ok(shown),
                false => Err(format!("waited for {states:?}: {shown}")),
            }
        })
    }

    /// Waits until an evaluation is measured, and returns its number.
    pub(crate) fn wait_for_evaluation(&self, id: i64) -> u64 {
        found_within(20, || {
            let shown = self.get(&format!("/experiments/{id}"));
            let number = shown["progress"]["evaluation"].as_u64();
            number.ok_or_else(|| format!("nothing is measured: {shown}"))
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn end(mut self) -> i32 {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        kill([&mut self.child]);
    }
}

/// The wall clock of a server, which a test sets; the monotonic one never jumps
/// (clock_gettime(2)).
pub(crate) struct FakeClock(String);

impl FakeClock {
    const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

    pub(crate) fn of(toy: &Toy) -> Option<Self> {
        if !std::path::Path::new(Self::LIBRARY).exists() {
            crate::toy::skip(&"libfaketime is missing here");
            return None;
        }
        let clock = Self(toy.path("clock").to_str().unwrap().to_owned());
        clock.set("+0");
        Some(clock)
    }

    pub(crate) fn environment(&self) -> [(&str, &str); 4] {
        [
            ("LD_PRELOAD", Self::LIBRARY),
            ("FAKETIME_TIMESTAMP_FILE", &self.0),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
    }

    /// Sets it so far from the right time, such as `-400d`.
    pub(crate) fn set(&self, offset: &str) {
        std::fs::write(&self.0, format!("{offset}\n")).unwrap();
    }
}

/// Random configurations, so that nothing waits for a model.
pub(crate) fn toy() -> Toy {
    let mut toy = Toy::new();
    toy.spec["search"] = json!({ "strategy": "random" });
    toy
}

#[test]
fn killed_at_any_moment_it_goes_on() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(8);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let mut server = Server::start(&toy);
    let id = server.create();
    let mut kills = 0;
    // Until it is done all the same: the kills grow rarer.
    for limit_ms in (0..).map(|step| 50 + 80 * step) {
        std::thread::sleep(Duration::from_millis(rng.random_range(5..limit_ms)));
        let state = server.get(&format!("/experiments/{id}"))["state"].clone();
        if state == "done" {
            break;
        }
        assert!(state == "queued" || state == "running", "{state}");
        server.kill();
        kills += 1;
        server = Server::start(&toy);
    }
    assert!(kills >= 5, "{kills}");
    let evaluations = server.get(&format!("/experiments/{id}/evaluations"));
    let evaluations = evaluations.as_array().unwrap();
    let numbers: Vec<usize> = evaluations
        .iter()
        .map(|it| usize::try_from(it["number"].as_u64().unwrap()).unwrap())
        .collect();
    assert_eq!(
        numbers,
        (1..=evaluations.len()).collect::<Vec<_>>(),
        "each once"
    );
    let (lost, measured): (Vec<&Value>, Vec<&Value>) =
        evaluations.iter().partition(|it| it["failure"] == "lost");
    assert_eq!(measured.len(), 8, "the whole budget");
    assert!(!lost.is_empty(), "{kills} kills hit nothing");
    println!(
        "{kills} kills, {} evaluations lost and repeated",
        lost.len()
    );
    for it in &measured {
        assert_eq!(it["outcome"], "completed", "{it}");
        let whole = server.get(&format!("/experiments/{id}/evaluations/{}", it["number"]));
        assert_eq!(whole["blocks"].as_array().unwrap().len(), 3, "{whole}");
    }
    let verification = server.get(&format!("/experiments/{id}/verification"));
    assert_eq!(verification["runs"].as_array().unwrap().len(), 3);
    assert_eq!(verification["arms"][0]["blocks"], 9);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before(&format!("after {kills} kills"));
}

#[test]
fn a_service_that_runs_by_itself_is_measured_as_what_it_was_told() {
    // The fourth reload fails: it is open then what the service has.
    let toy = attached_once("echo >> reloads; [ $(wc -l < reloads) != 4 ] || exit 1");
    std::fs::write(toy.path("live"), "44\n").unwrap();
    let server = Server::start(&toy);
    let id = server.improved();
    let text = id.to_string();
    let measured = read(&toy, "measured");
    let mut of_control = measured.lines().filter(|line| line.starts_with("control"));
    assert!(of_control.all(|line| line == "control 50"), "{measured}");
    assert_eq!(read(&toy, "live"), FIRST);

    server.does(&["promote", &text]).with_code(0);
    let promoted = read(&toy, "live");
    assert_ne!(promoted, FIRST);
    for verb in ["verify", "resume"] {
        server
            .does(&[verb, &text])
            .with_code(2)
            .saying(&["cannot be measured while its winner is in force"]);
    }
    assert_eq!(read(&toy, "live"), promoted);
    server.does(&["rollback", &text]).with_code(0);
    assert_eq!(read(&toy, "live"), FIRST);
    server.does(&["verify", &text]).with_code(0);
    let shown = server.wait_for(id, &["done", "failed"]);
    assert_eq!(shown["finding"], "improvement", "{shown}");
    assert_eq!(server.end(), 128 + 15);
}

#[test]
fn an_earlier_report_that_is_gone_keeps_nobody_from_the_rollback() {
    let mut toy = toy();
    let earlier = toy.path("earlier.jsonl");
    std::fs::write(&earlier, "{\"config\":{\"x\":40},\"value\":1400}\n").unwrap();
    toy.spec["search"]["warm_start"] = json!(["earlier.jsonl"]);
    toy.spec["budget"]["evaluations"] = json!(4);
    let server = Server::start(&toy);
    let id = server.improved();
    let text = id.to_string();
    server.does(&["promote", &text]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
    std::fs::remove_file(&earlier).unwrap();
    server.does(&["rollback", &text]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    // It goes on by what it has measured itself; another one could not begin.
    server
        .does(&["budget", &text, "--evaluations", "6"])
        .with_code(0);
    server.does(&["resume", &text]).with_code(0);
    let shown = server.wait_for(id, &["done", "failed"]);
    assert_eq!(
        (&shown["state"], &shown["evaluations"]),
        (&json!("done"), &json!(6))
    );
    let file = toy.path("experiment.json");
    server
        .does(&["create", file.to_str().unwrap()])
        .with_code(2)
        .saying(&["search.warm_start[0]"]);
    assert_eq!(server.end(), 128 + 15);
}

#[test]
fn an_experiment_is_paused_changed_resumed_and_promoted() {
    let toy = slow_toy(4);
    let server = Server::start(&toy);
    let id = server.create();
    let text = id.to_string();
    let does = |arguments: &[&str]| server.does(arguments);

    let first = server.wait_for_evaluation(id);
    does(&["kill", &text, &first.to_string()]).with_code(0);
    does(&["pause", &text]).with_code(0);
    let paused = server.wait_for(id, &["paused"]);
    let ended = server.get(&format!("/experiments/{id}/evaluations/{first}"));
    assert_eq!(
        (&ended["outcome"], &ended["reason"]),
        (&json!("killed"), &json!("a user killed it"))
    );
    crate::rollback::pages_tell_who_did_what(&server, id, first);
    assert_eq!(toy.knob(), FIRST, "nothing is changed while it waits");
    let done = paused["evaluations"].as_u64().unwrap();

    does(&["enqueue", &text, "x=20.0"]).with_code(0);
    does(&["enqueue", &text, "x=1000"])
        .with_code(2)
        .saying(&["x"]);
    does(&["enqueue", &text, "y=1"]).with_code(2).saying(&["y"]);
    does(&["enqueue", &text, "x=1", "x=2"])
        .with_code(2)
        .saying(&["x is given twice"]);
    does(&[
        "budget",
        &text,
        "--evaluations",
        "9",
        "--wall-time-min",
        "nan",
    ])
    .with_code(2)
    .saying(&["must be a finite number"]);
    does(&["budget", &text, "--evaluations", &(done + 2).to_string()]).with_code(0);
    does(&["promote", &text])
        .with_code(2)
        .saying(&["only a verified improvement"]);
    does(&["resume", &text]).with_code(0);
    let shown = server.wait_for(id, &["done", "failed"]);
    assert_eq!(shown["state"], "done", "{shown}");
    assert_eq!(shown["evaluations"], done + 2);
    let next = server.get(&format!("/experiments/{id}/evaluations/{}", done + 1));
    assert_eq!(next["configuration"]["x"], 20, "the one by hand is first");
    assert_eq!(shown["finding"], "improvement", "{shown}");

    does(&["verify", &text]).with_code(0);
    let again = server.wait_for(id, &["done", "failed"]);
    assert_eq!(again["evaluations"], done + 2, "nothing is searched");
    assert_eq!(
        server.get(&format!("/experiments/{id}/verification"))["number"],
        2
    );
    assert_eq!(again["finding"], "improvement", "{again}");

    assert_eq!(toy.knob(), FIRST);
    does(&["promote", &text])
        .with_code(0)
        .saying(&["is done. In force: "]);
    assert_ne!(toy.knob(), FIRST);
    does(&["delete", &text])
        .with_code(2)
        .saying(&["is in force on this host: roll back experiment"]);
    does(&["rollback", &text])
        .with_code(0)
        .saying(&["rolled back: ", " = 50"]);
    assert_eq!(toy.knob(), FIRST);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before("after a promotion and a rollback");
}

/// An experiment with a verified improvement, which was stopped when it searched again.
fn stopped(server: &Server<'_>) -> String {
    let id = server.improved();
    let text = id.to_string();
    let does = |arguments: &[&str]| server.does(arguments);
    let verified = server.get(&format!("/experiments/{id}"));
    does(&["budget", &text, "--evaluations", "13"])
        .with_code(0)
        .saying(&["is done: `slackline experiments resume"]);
    does(&["resume", &text]).with_code(0);
    server.wait_for_evaluation(id);
    does(&["promote", &text])
        .with_code(2)
        .saying(&["is running"]);
    does(&["stop", &text]).with_code(0);
    let stopped = server.wait_for(id, &["stopped"]);
    // What was verified stands until something else has been.
    assert_eq!(
        (&stopped["finding"], &stopped["sentence"]),
        (&json!("improvement"), &verified["sentence"])
    );
    text
}

#[test]
fn what_was_verified_is_promoted_after_a_stop_and_rolled_back_once() {
    let toy = slow_toy(4);
    let server = Server::start(&toy);
    let text = stopped(&server);
    let does = |arguments: &[&str]| server.does(arguments);
    does(&["promote", &text]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
    does(&["rollback", &text]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    does(&["rollback", &text]).with_code(2).saying(&[
        "nothing of experiment ",
        " is in force: there is nothing to roll back",
    ]);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before("after a stop");
}

#[test]
fn an_experiment_is_forked_exported_imported_and_deleted() {
    let toy = slow_toy(4);
    let server = Server::start(&toy);
    let text = stopped(&server);
    let does = |arguments: &[&str]| server.does(arguments);
    let fork = does(&["fork", &text]).with_code(0).stdout.trim().to_owned();
    let forked = server.wait_for(fork.parse().unwrap(), &["done", "failed"]);
    assert_eq!(
        (&forked["state"], &forked["parent"]),
        (&json!("done"), &json!(text.parse::<i64>().unwrap())),
        "{forked}"
    );

    let exported = toy.path("exported.json");
    std::fs::write(&exported, does(&["export", &text]).with_code(0).stdout).unwrap();
    let imported = does(&["import", exported.to_str().unwrap()])
        .with_code(0)
        .stdout
        .trim()
        .to_owned();
    let of = |id: &str| server.get(&format!("/experiments/{id}/evaluations"));
    let measurements = |all: Value| -> Vec<Value> {
        all.as_array()
            .unwrap()
            .iter()
            .map(|it| it["measurement"].clone())
            .collect()
    };
    assert_eq!(measurements(of(&text)), measurements(of(&imported)));
    let dir = |id: &str| server.get(&format!("/experiments/{id}"))["dir"].clone();
    assert_eq!(dir(&text), dir(&imported));
    let shown = server.get(&format!("/experiments/{imported}"));
    assert_eq!(
        (&shown["state"], &shown["imported"]),
        (&json!("stopped"), &json!(true)),
        "the one that was exported has been stopped"
    );
    let listed = does(&["ls"]).with_code(0).stdout;
    assert!(listed.contains("stopped, imported"), "{listed}");
    does(&["promote", &imported])
        .with_code(2)
        .saying(&["it was imported", "verify it here first"]);
    let csv = does(&["export", &text, "--format", "csv"])
        .with_code(0)
        .stdout;
    assert_eq!(csv.lines().count(), of(&text).as_array().unwrap().len() + 1);
    let parquet = toy
        .slackline(&["experiments", "export", &text, "--format", "parquet"])
        .output()
        .unwrap()
        .stdout;
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    does(&["export", &text, "--format", "xls"])
        .with_code(2)
        .saying(&["possible values: json, csv, parquet"]);
    does(&["delete", &imported]).with_code(0);
    does(&["show", &imported])
        .with_code(2)
        .saying(&["there is no experiment"]);
    let listed = does(&["ls"]).with_code(0).stdout;
    assert!(listed.contains("toy (from 1)"), "{listed}");
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before("after all verbs");
}

#[test]
fn one_experiment_at_a_time_and_a_stop_is_at_once() {
    let mut toy = toy();
    toy.load_after(r#"[ "$v" = 50 ] || sleep 30"#);
    let server = Server::start(&toy);
    let (first, second) = (server.create(), server.create());
    server.wait_for_evaluation(first);
    assert_eq!(
        server.get(&format!("/experiments/{second}"))["state"],
        "queued"
    );
    // The control's value is what the host has while nothing is measured.
    while toy.knob() == FIRST {
        std::thread::sleep(Duration::from_millis(5));
    }
    let meanwhile = server.create();
    let made = server.get(&format!("/experiments/{meanwhile}"));
    assert_eq!(made["control"]["x"].to_string(), FIRST, "{made}");
    server.does(&["stop", &meanwhile.to_string()]).with_code(0);
    let asked = Instant::now();
    server.does(&["stop", &first.to_string()]).with_code(0);
    let stopped = server.wait_for(first, &["stopped"]);
    assert!(
        asked.elapsed() < Duration::from_secs(10),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(
        stopped["sentence"],
        "A user stopped the experiment. There is no result."
    );
    server.wait_for_evaluation(second);
    server.does(&["stop", &second.to_string()]).with_code(0);
    server.wait_for(second, &["stopped"]);
    server.end();
    toy.assert_as_before("after two stops");
}

#[test]
fn a_service_that_never_comes_up_ends_its_experiment() {
    let mut toy = toy();
    toy.spec["target"]["start"] = json!(["false"]);
    let server = Server::start(&toy);
    let id = server.create();
    let failed = server.wait_for(id, &["failed"]);
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("(3 attempts)"), "{message}");
    // It stands where its user is told what to do, and nowhere else.
    let page = crate::rollback::html(&server, &format!("/experiments/{id}"));
    assert_eq!(page.matches("(3 attempts)").count(), 1, "{page}");
    let text = id.to_string();
    server
        .does(&["verify", &text])
        .with_code(2)
        .saying(&["no evaluations to verify"]);
    server
        .does(&["enqueue", &text, "x=20"])
        .with_code(0)
        .saying(&["has failed: resume it"]);
    let page = crate::rollback::html(&server, &format!("/experiments/{id}/verification"));
    assert!(page.contains("No verification has begun."), "{page}");
    assert!(
        !page.contains("This is verification") && !page.contains("plot-integrals"),
        "{page}"
    );
    let model = server.get(&format!("/experiments/{id}/model"));
    assert_eq!(
        (&model["importance"], &model["dependence"]),
        (&json!([]), &json!([])),
        "nothing is said of what was not measured"
    );
    server.end();
    toy.assert_as_before("after three failures");
}

/// What `check` says of it, `create` says as well.
#[test]
fn making_an_experiment_says_which_programs_are_missing() {
    let mut toy = toy();
    toy.spec["target"]["start"] = json!(["no-such-program"]);
    let server = Server::start(&toy);
    let file = toy.path("experiment.json");
    std::fs::write(&file, toy.spec.to_string()).unwrap();
    server
        .does(&["create", file.to_str().unwrap()])
        .with_code(0)
        .saying(&["missing here: target.start is \"no-such-program\""]);
    server.end();
}

#[test]
fn a_clock_that_jumps_changes_nothing_but_dates() {
    let mut toy = toy();
    toy.load_after("sleep 0.05");
    let Some(clock) = FakeClock::of(&toy) else {
        return;
    };
    let server = Server::start_in(&toy, &clock.environment());
    let id = server.create();
    server.wait_for_evaluation(id);
    clock.set("-400d");
    let next = server.wait_for_evaluation(id) + 1;
    while server.wait_for_evaluation(id) <= next {
        std::thread::sleep(Duration::from_millis(5));
    }
    clock.set("+400d");
    let done = server.wait_for(id, &["done", "failed"]);
    assert_eq!(done["state"], "done", "{done}");
    let evaluations = server.get(&format!("/experiments/{id}/evaluations"));
    let evaluations = evaluations.as_array().unwrap();
    assert_eq!(evaluations.len(), 6);
    let started: Vec<i64> = evaluations
        .iter()
        .map(|it| it["started_ms"].as_i64().unwrap())
        .collect();
    let day_ms = 86_400_000;
    let (first, last) = (started.iter().min().unwrap(), started.iter().max().unwrap());
    assert!(
        last - first > 300 * day_ms,
        "the clock did jump: {started:?}"
    );
    for it in evaluations {
        assert_eq!(it["outcome"], "completed", "{it}");
        let took_s = it["duration_s"].as_f64().unwrap();
        assert!((0.0..60.0).contains(&took_s), "{it}");
    }
    server.end();
    toy.assert_as_before("after two jumps of the clock");
}

#[test]
fn what_a_killed_run_left_is_undone_before_a_promotion() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    let text = id.to_string();
    let roots = host::Roots::default();
    let other = toy.path("other");
    let leave_behind = |contents: &str| {
        std::fs::write(&other, contents).unwrap();
        // The server lets go of the journal a moment after what it did is seen.
        let mut journal = found_within(20, || host::Journal::open(&toy.path("state")));
        let knob = host::Knob::File(other.clone());
        journal.write(&roots, &knob, "7").unwrap();
    };
    let value = || std::fs::read_to_string(&other).unwrap().trim().to_owned();
    leave_behind("3\n");
    server.does(&["promote", &text]).with_code(0);
    assert_ne!(toy.knob(), FIRST);
    assert_eq!(value(), "3");
    leave_behind("4\n");
    server.does(&["rollback", &text]).with_code(0);
    assert_eq!((toy.knob().as_str(), value().as_str()), (FIRST, "4"));
    // What cannot be undone keeps a promotion from forgetting it.
    leave_behind("5\n");
    let copies = toy.path("state/files");
    let hidden = toy.path("hidden");
    std::fs::rename(&copies, &hidden).unwrap();
    server
        .does(&["promote", &text])
        .with_code(2)
        .saying(&["not everything that an earlier run changed could be restored"]);
    assert_eq!(toy.knob(), FIRST);
    std::fs::rename(&hidden, &copies).unwrap();
    toy.restore().with_code(0);
    assert_eq!(value(), "5");
}

/// What sd_notify(3) says systemd is told, with a socket of our own in systemd's place.
#[test]
fn systemd_is_told_of_its_start_its_life_and_its_end() {
    let toy = toy();
    let path = toy.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let told = || {
        let mut words = [0; 256];
        let length = socket.recv(&mut words).unwrap();
        String::from_utf8_lossy(&words[..length]).trim().to_owned()
    };
    let path = path.to_str().unwrap();
    let server = Server::start_in(
        &toy,
        &[("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", "900000")],
    );
    assert_eq!(told(), "READY=1");
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1");
    }
    assert_eq!(server.end(), 143);
    let mut last = told();
    while last == "WATCHDOG=1" {
        last = told();
    }
    assert_eq!(last, "STOPPING=1");
}

#[test]
fn a_full_disk_is_waited_out() {
    let mut toy = toy();
    toy.spec["budget"]["evaluations"] = json!(400);
    toy.spec["verification"]["runs"] = json!(2);
    let state = toy.path("state");
    std::fs::create_dir(&state).unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program)
            .args(arguments)
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    let at = state.to_str().unwrap().to_owned();
    if !run(
        "mount",
        &["-t", "tmpfs", "-o", "size=8m", "slackline-test", &at],
    ) {
        return crate::toy::skip(&"a file system cannot be mounted here");
    }
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for_evaluation(id);
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    let is_in_trouble = || {
        let failed = server.get(&format!("/experiments/{id}"))["state"] == "failed";
        failed || !server.get("/host")["trouble"].is_null()
    };
    eventually(30, is_in_trouble, || "nobody noticed that the disk is full");
    assert_eq!(toy.knob(), FIRST, "everything is restored");
    if let Some(trouble) = server.get("/status")["trouble"].as_str() {
        let begin = trouble.split(['"', '\'']).next().unwrap();
        crate::promises::says_trouble(
            id,
            begin,
            |arguments| server.does(arguments).stdout,
            |path| crate::rollback::html(&server, path),
        );
    }
    drop(file);
    std::fs::remove_file(&filler).unwrap();
    // Where only the undo journal found no room, the experiment has failed and says so.
    let number = id.to_string();
    let is_back = || server.does(&["budget", &number, "--evaluations", "5"]).code == 0;
    eventually(30, is_back, || "the store does not come back");
    let _ = server.does(&["resume", &id.to_string()]);
    let shown = server.wait_for(id, &["done"]);
    assert!(shown["evaluations"].as_u64().unwrap() >= 5, "{shown}");
    server.end();
    toy.assert_as_before("after a full disk");
    assert!(run("umount", &[&at]));
}
