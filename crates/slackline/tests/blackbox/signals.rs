//! SIGINT, SIGTERM and SIGHUP in the middle of a block.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::serve::{self, Server};
use crate::toy::{DEFAULT_SIGNALS, Ended, FIRST, Toy, through};

/// The load of the experiment's side says that it runs, and then does not end for long.
pub(crate) const HANG_ON_EXPERIMENT: &str =
    r#"[ "$v" = 50 ] || { touch "$SLACKLINE_TEST_TOY/measuring"; sleep 30; }"#;

#[test]
fn each_signal_restores_everything_and_says_so() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        for mut toy in [Toy::new(), Toy::attached()] {
            toy.load_after(HANG_ON_EXPERIMENT);
            let tune = toy.tune_in_background();
            toy.wait_for("measuring");
            assert_ne!(toy.knob(), FIRST);
            kill_process(Pid::from_child(&tune), signal).unwrap();
            Ended::from(tune.wait_with_output().unwrap())
                .with_code(128 + number)
                .saying(&[&format!(
                    "Stopped by signal {number}. Everything is restored."
                )]);
            toy.assert_as_before(&format!("after signal {number}"));
        }
    }
}

/// Whoever logs out after `nohup slackline tune … &` finds its report in the morning.
#[test]
fn under_nohup_a_hang_up_ends_nothing() {
    let mut toy = Toy::new();
    toy.load_after(HANG_ON_EXPERIMENT);
    let by = [DEFAULT_SIGNALS, &["nohup"]].concat();
    let mut under_nohup = through(&by, &toy.tune(&[]));
    under_nohup.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut tune = under_nohup.spawn().unwrap();
    toy.wait_for("measuring");
    kill_process(Pid::from_child(&tune), Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(tune.try_wait().unwrap().is_none());
    kill_process(Pid::from_child(&tune), Signal::INT).unwrap();
    Ended::from(tune.wait_with_output().unwrap()).with_code(130);
    toy.assert_as_before("after a hang-up");
}

/// What a running service was last told is its own configuration, however the tune ended.
#[test]
fn an_attached_service_is_told_that_its_configuration_is_back() {
    let told = |toy: &Toy| std::fs::read_to_string(toy.path("told")).unwrap_or_default();
    let attached = || {
        let mut toy = Toy::attached();
        let copy = format!(
            "cp {} {}",
            toy.path("service.conf").display(),
            toy.path("told").display()
        );
        toy.spec["target"]["apply"] = serde_json::json!([{ "command": ["sh", "-c", copy] }]);
        toy.load_after(HANG_ON_EXPERIMENT);
        toy
    };
    let toy = attached();
    let tune = toy.tune_in_background();
    toy.wait_for("measuring");
    assert_ne!(told(&toy), "x = first\n");
    kill_process(Pid::from_child(&tune), Signal::INT).unwrap();
    Ended::from(tune.wait_with_output().unwrap())
        .with_code(130)
        .saying(&["the service gets its own configuration back"]);
    assert_eq!(told(&toy), "x = first\n");
    toy.assert_as_before("after a signal");
    // And after a kill.
    let toy = attached();
    let mut tune = toy.tune_in_background();
    toy.wait_for("measuring");
    tune.kill().unwrap();
    tune.wait().unwrap();
    Ended::of(toy.tune(&[]))
        .with_code(2)
        .saying(&["apply: sh -c 'cp"]);
    let dry = Ended::of(toy.slackline(&["restore", "--dry-run"])).with_code(0);
    assert!(dry.stdout.contains("would be run"), "{}", dry.stdout);
    assert_ne!(told(&toy), "x = first\n");
    let restored = toy.restore().with_code(0);
    assert!(
        restored.stdout.contains("service.conf"),
        "{}",
        restored.stdout
    );
    assert_eq!(told(&toy), "x = first\n");
    toy.restore()
        .with_code(0)
        .saying(&["no run has left anything to undo"]);
}

#[test]
fn a_second_tune_is_kept_out_by_a_lock_that_names_the_first() {
    let mut toy = Toy::new();
    toy.load_after(HANG_ON_EXPERIMENT);
    let tune = toy.tune_in_background();
    toy.wait_for("measuring");
    let between = toy.knob();
    let pid = format!("pid {}", tune.id());
    Ended::of(toy.tune(&[])).with_code(2).saying(&[
        "another slackline is at work",
        &pid,
        "kill -INT",
    ]);
    toy.restore().with_code(2).saying(&[&pid]);
    assert_eq!(toy.knob(), between, "the second one must change nothing");
    kill_process(Pid::from_child(&tune), Signal::INT).unwrap();
    Ended::from(tune.wait_with_output().unwrap()).with_code(130);
    toy.assert_as_before("after the lock");
}

/// Whatever is measured gives way to a rollback by hand. What has the host for another reason does
/// not.
#[test]
fn a_rollback_by_hand_ends_a_tune() {
    let mut toy = serve::toy();
    let [long, measuring] = ["long", "measuring"].map(|name| toy.path(name).display().to_string());
    toy.load_after(&format!(
        "[ ! -e {long} ] || touch {measuring}; while [ -e {long} ]; do sleep 0.1; done"
    ));
    let server = Server::start(&toy);
    let id = server.improved().to_string();
    let promoted = |file: &str| {
        server.does(&["promote", &id]).with_code(0);
        assert_ne!(toy.knob(), FIRST);
        crate::rollback::html(&server, file)
    };
    let page = promoted("/experiments/1");
    assert!(!page.contains("is measuring on this host"), "{page}");
    std::fs::write(&long, "").unwrap();
    let tune = toy.tune_in_background();
    toy.wait_for("measuring");
    let its = format!("experiment.json` (pid {})", tune.id());
    for path in ["/experiments/1", "/promotions"] {
        let page = crate::rollback::html(&server, path);
        assert!(
            page.contains(&format!("{its} is measuring on this host")),
            "{page}"
        );
    }
    let rolled_back = server.does(&["rollback", &id]).with_code(0);
    rolled_back.saying(&[" = 50", &format!("{its}, which was measuring on this host")]);
    assert_eq!(toy.knob(), FIRST);
    Ended::from(tune.wait_with_output().unwrap())
        .with_code(128 + 15)
        .saying(&["Stopped by signal 15. Everything is restored."]);
    assert_eq!(toy.knob(), FIRST);

    // This process has the host, and would not survive the signal.
    promoted("/");
    let journal = loop {
        // The server lets go of it a moment after what it did is seen.
        match host::Journal::open(&toy.path("state")) {
            Ok(journal) => break journal,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let pid = format!("pid {}", std::process::id());
    server
        .does(&["rollback", &id])
        .with_code(2)
        .saying(&["another Slackline command has the host", &pid]);
    assert_ne!(toy.knob(), FIRST);
    // What is over soon is waited for.
    let soon = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        drop(journal);
    });
    server.does(&["rollback", &id]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    soon.join().unwrap();
}
