//! `mode = "continuous"` in `slackline serve`: killed at any moment with a real target, and held by
//! the alert of a real Prometheus.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::eventually::{eventually, found_within};
use crate::fleet::Prometheus;
use crate::serve::{FakeClock, Server};
use crate::toy::{FIRST, Toy};

/// Rounds without a pause; whatever is not the control is better, until the file `slow` is there.
pub(crate) fn toy() -> Toy {
    let mut toy = Toy::new();
    toy.spec["mode"] = json!("continuous");
    toy.spec["parameters"][0]["low"] = json!(20);
    toy.spec["parameters"][0]["high"] = json!(50);
    toy.spec["search"] = json!({ "strategy": "random" });
    toy.spec["budget"]["evaluations"] = json!(3);
    toy.spec["verification"]["runs"] = json!(2);
    toy.spec["constraints"] = json!(["latency_p99_us <= 1.2 * control"]);
    toy.spec["continuous"] = json!({
        "control_share": 0.5,
        "seasons": 1,
        "gain_seasons": 1,
        "slo_rounds": 2,
        "changes_per_day": 10,
        // The kills and the slowness are not to raise alarms as well.
        "false_alarms_per_day": 0.001,
    });
    let slow = toy.path("slow").display().to_string();
    toy.load_after(&format!(
        r#"[ ! -e {slow} ] || [ "$v" = {FIRST} ] || us=$((us + 9000))"#
    ));
    toy
}

/// The same of a service that runs by itself: `reload` comes before it takes its file, as `$v`,
/// over into `live`.
pub(crate) fn attached(reload: &str) -> Toy {
    let mut toy = toy();
    let [conf, live, script] = ["service.conf", "live", "reload"].map(|name| toy.path(name));
    let [conf, live] = [conf, live].map(|path| path.display().to_string());
    std::fs::write(&conf, format!("{FIRST}\n")).unwrap();
    std::fs::write(&live, format!("{FIRST}\n")).unwrap();
    std::fs::write(toy.path("service.conf.in"), "{x}\n").unwrap();
    let reload = format!("cd {}; v=$(cat {conf}); {reload}\n", toy.path("").display());
    std::fs::write(&script, format!("{reload}cp {conf} {live}\n")).unwrap();
    toy.spec["parameters"] =
        json!([{ "name": "x", "type": "int", "low": 20, "high": 50, "default": 50 }]);
    toy.spec["target"] = json!({
        "files": [{ "template": "service.conf.in", "path": conf }],
        "apply": [{ "command": ["sh", script] }],
    });
    let [slow, measured] = ["slow", "measured"].map(|name| toy.path(name).display().to_string());
    toy.load_with(&format!(
        r#"v=$(cat {live}); echo "{{side}} $v" >> {measured}; us=$(( (v-20)*(v-20) + 1000 )); [ ! -e {slow} ] || [ "$v" = {FIRST} ] || us=$((us + 9000)); echo "{{\"requests\": 1000, \"latency_p99_us\": $us}}""#
    ));
    toy
}

/// The same, searched once.
pub(crate) fn attached_once(reload: &str) -> Toy {
    let mut toy = attached(reload);
    toy.spec["mode"] = json!("once");
    toy.spec.as_object_mut().unwrap().remove("continuous");
    toy.spec["budget"]["evaluations"] = json!(4);
    toy
}

pub(crate) fn read(toy: &Toy, name: &str) -> String {
    let text = std::fs::read_to_string(toy.path(name)).unwrap_or_default();
    text.trim().to_owned()
}

/// Waits until the experiment is as it should be.
pub(crate) fn wait_until(server: &Server<'_>, id: i64, is_so: impl Fn(&Value) -> bool) -> Value {
    found_within(60, || {
        let shown = server.get(&format!("/experiments/{id}"));
        match is_so(&shown) {
            true => Ok(shown),
            false => Err(format!("{shown:#}")),
        }
    })
}

fn number(shown: &Value, key: &str) -> u64 {
    shown["continuous"][key].as_u64().unwrap_or(0)
}

/// The knob's value under what is promoted.
fn promoted(shown: &Value) -> String {
    let x = &shown["continuous"]["promoted"]["configuration"]["x"];
    x.as_i64().map_or(FIRST.to_owned(), |x| x.to_string())
}

/// Whether a promotion or rollback has begun.
fn is_acting(shown: &Value) -> bool {
    !shown["continuous"]["acting"].is_null()
}

/// Kills the server after at most so long, looks whether the knob is as it may be, and starts the
/// next.
fn kill_and_start<'a>(
    toy: &'a Toy,
    server: Server<'a>,
    id: i64,
    after: Duration,
    is_restored_first: bool,
) -> Server<'a> {
    std::thread::sleep(after);
    let before = server.get(&format!("/experiments/{id}"));
    server.kill();
    let knob = is_restored_first.then(|| {
        toy.restore().with_code(0);
        toy.knob()
    });
    let server = Server::start(toy);
    let after = server.get(&format!("/experiments/{id}"));
    assert!(number(&after, "rounds") >= number(&before, "rounds"));
    if let Some(knob) = knob {
        let candidate = |shown: &Value| {
            let x = &shown["continuous"]["acting"]["promote"]["configuration"]["x"];
            x.to_string()
        };
        let may_be = [
            FIRST.to_owned(),
            promoted(&before),
            promoted(&after),
            candidate(&before),
            candidate(&after),
        ];
        assert!(may_be.contains(&knob), "{knob}: {may_be:?}");
        if !is_acting(&before) && !is_acting(&after) && promoted(&before) == promoted(&after) {
            assert_eq!(knob, promoted(&after), "what is in force stays in force");
        }
    }
    server
}

#[test]
fn killed_at_any_moment_it_measures_promotes_and_rolls_back_once() {
    let toy = toy();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let mut server = Server::start(&toy);
    let id = server.create();
    wait_until(&server, id, |shown| shown["continuous"].is_object());
    let path = format!("/experiments/{id}");
    let mut kills = 0;
    let is_promoted = |shown: &Value| number(shown, "promotions") > 0 && !is_acting(shown);
    let is_rolled_back = |shown: &Value| number(shown, "rollbacks") > 0 && !is_acting(shown);
    let phases: [&dyn Fn(&Value) -> bool; 2] = [&is_promoted, &is_rolled_back];
    for is_over in phases {
        for step in 0..6 {
            if step % 2 == 1 {
                // In the midst of an evaluation, if there is another one.
                wait_until(&server, id, |shown| {
                    is_over(shown) || shown["progress"]["evaluation"].is_u64()
                });
            }
            let after = Duration::from_millis(match step % 2 {
                0 => rng.random_range(0..200 + 200 * step),
                _ => rng.random_range(0..150),
            });
            server = kill_and_start(&toy, server, id, after, step % 2 == 0);
            kills += 1;
            if is_over(&server.get(&path)) {
                break;
            }
        }
        let shown = wait_until(&server, id, is_over);
        assert_eq!(number(&shown, "promotions"), 1, "{shown:#}");
        // Once more while it is in force, or no more.
        server = kill_and_start(&toy, server, id, Duration::ZERO, true);
        kills += 1;
        std::fs::write(toy.path("slow"), "").unwrap();
    }
    let shown = wait_until(&server, id, |shown| number(shown, "rollbacks") == 1);
    assert_eq!(number(&shown, "alarms"), 0, "{shown:#}");
    let entries = shown["entries"].as_array().unwrap();
    let count = |kind: &str, text: &str| {
        let is_it = |entry: &&Value| {
            entry["kind"] == kind && entry["text"].as_str().unwrap().starts_with(text)
        };
        entries.iter().filter(is_it).count()
    };
    assert_eq!(
        (
            count("promoted", ""),
            count("rollback", "The control's configuration is in force again")
        ),
        (1, 1),
        "{shown:#}"
    );

    let evaluations = server.get(&format!("{path}/evaluations"));
    let evaluations = evaluations.as_array().unwrap();
    let numbers = evaluations.iter().map(|it| it["number"].as_u64().unwrap());
    assert!(numbers.eq(1..=evaluations.len() as u64), "each once");
    let measured: Vec<&Value> = evaluations
        .iter()
        .filter(|it| it["failure"] != "lost" && it["outcome"] != "running")
        .collect();
    // The search before the promotion, and at most one after the rollback.
    assert!((3..=6).contains(&measured.len()), "{}", measured.len());
    for it in measured {
        let whole = server.get(&format!("{path}/evaluations/{}", it["number"]));
        assert_eq!(whole["blocks"].as_array().unwrap().len(), 3, "{whole}");
    }
    let lost = evaluations.iter().filter(|it| it["failure"] == "lost");
    let lost = lost.count();
    assert!(lost > 0, "{kills} kills hit no evaluation");
    println!("{kills} kills, {lost} evaluations lost and repeated");
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before(&format!("after {kills} kills"));
}

pub(crate) fn is_promoted(shown: &Value) -> bool {
    number(shown, "promotions") > 0
        && !is_acting(shown)
        && shown["promotion"]["is_complete"] == true
}

fn said(shown: &Value, kind: &str, text: &str) -> usize {
    let entries = shown["entries"].as_array().unwrap().iter();
    let is_it = |it: &&Value| it["kind"] == kind && it["text"].as_str().unwrap().contains(text);
    entries.filter(is_it).count()
}

/// A service that is down after a reload of what it does not accept, as after `systemctl restart`.
const REFUSES: &str = r#"if [ -e refuses ] && [ "$v" != 50 ] || [ -e refuses-all ]; then rm -f live; echo refused >&2; exit 1; fi"#;

#[test]
fn what_the_service_no_longer_accepts_is_rolled_back() {
    let toy = attached(REFUSES);
    let server = Server::start(&toy);
    let id = server.create();
    wait_until(&server, id, is_promoted);
    std::fs::write(toy.path("refuses"), "").unwrap();
    let shown = wait_until(&server, id, |shown| number(shown, "rollbacks") == 1);
    assert_eq!(shown["promotion"], Value::Null, "{shown:#}");
    assert_eq!(said(&shown, "rollback", "refused"), 1, "{shown:#}");
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(
        (read(&toy, "service.conf"), read(&toy, "live")),
        (FIRST.into(), FIRST.into())
    );
    assert_eq!(server.end(), 128 + 15);
}

/// Nothing at all is accepted: it goes on trying, and says so; once the control's is accepted, that
/// is in force.
#[test]
fn what_the_service_no_longer_accepts_is_rolled_back_after_a_kill() {
    let toy = attached(REFUSES);
    let server = Server::start(&toy);
    let id = server.create();
    wait_until(&server, id, is_promoted);
    std::fs::write(toy.path("refuses-all"), "").unwrap();
    wait_until(&server, id, |shown| {
        read(&toy, "live").is_empty() && shown["state"] == "running"
    });
    server.kill();
    assert!(toy.path("state/apply.json").exists());
    let server = Server::start(&toy);
    wait_until(&server, id, |shown| {
        let message = shown["message"].as_str().unwrap_or_default();
        message.contains("the rollback failed too")
    });
    std::fs::write(toy.path("refuses"), "").unwrap();
    std::fs::remove_file(toy.path("refuses-all")).unwrap();
    let shown = wait_until(&server, id, |shown| number(shown, "rollbacks") == 1);
    assert_eq!(said(&shown, "rollback", "in force again"), 1, "{shown:#}");
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(read(&toy, "live"), FIRST);
    assert_eq!(server.end(), 128 + 15);
}

/// The rollback's reload hangs, and is refused at last; those of rounds are not.
const STUCK: &str = r#"case "$(readlink /proc/$$/fd/1)" in */experiment/apply*)
  if [ -e stuck ] && [ "$v" = 50 ]; then touch hanging; sleep 1; rm -f hanging; exit 1; fi;; esac"#;

#[test]
fn a_rollback_that_is_refused_after_a_kill_leaves_what_is_promoted_on_record() {
    let toy = attached(STUCK);
    let server = Server::start(&toy);
    let id = server.create();
    let number_of_it = id.to_string();
    let before = wait_until(&server, id, is_promoted);
    for name in ["stuck", "slow"] {
        std::fs::write(toy.path(name), "").unwrap();
    }
    toy.wait_for("hanging");
    server.kill();
    let server = Server::start(&toy);
    let shown = wait_until(&server, id, |shown| said(shown, "refused", "rollback") > 0);
    assert_eq!(
        shown["promotion"]["changed"], before["promotion"]["changed"],
        "{shown:#}"
    );
    server.does(&["stop", &number_of_it]).with_code(0);
    let shown = server.wait_for(id, &["stopped"]);
    assert_eq!(shown["promotion"]["is_complete"], true, "{shown:#}");
    assert_eq!(promoted(&shown), promoted(&before));
    assert_eq!(read(&toy, "live"), promoted(&before));

    std::fs::remove_file(toy.path("stuck")).unwrap();
    server.does(&["rollback", &number_of_it]).with_code(0);
    let shown = server.get(&format!("/experiments/{id}"));
    assert_eq!(shown["promotion"], Value::Null);
    assert_eq!(
        said(&shown, "rollback", "A user rolled the promotion back"),
        1,
        "{shown:#}"
    );
    assert_eq!(shown["continuous"]["promoted"], Value::Null, "{shown:#}");
    server.does(&["resume", &number_of_it]).with_code(0);
    let rounds = number(&shown, "rounds");
    let shown = wait_until(&server, id, |shown| number(shown, "rounds") > rounds);
    assert_eq!(shown["continuous"]["promoted"], Value::Null, "{shown:#}");
    server.does(&["stop", &number_of_it]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(read(&toy, "live"), FIRST);
    assert_eq!(server.end(), 128 + 15);
}

/// The way back at the end of a round fails, once or for good.
const HICCUPS: &str = r#"case "$(readlink /proc/$$/fd/1)" in */state/apply.out)
  if [ -e once ] || [ -e always ]; then rm -f once; exit 1; fi;; esac"#;

#[test]
fn a_reload_that_fails_once_at_the_end_of_a_round_does_not_end_the_watch() {
    let toy = attached(HICCUPS);
    let server = Server::start(&toy);
    let id = server.create();
    let shown = wait_until(&server, id, is_promoted);
    let rounds = number(&shown, "rounds");
    std::fs::write(toy.path("once"), "").unwrap();
    let shown = wait_until(&server, id, |shown| {
        said(shown, "measured", "again") == 1 && number(shown, "rounds") > rounds + 2
    });
    assert_eq!(shown["state"], "running");
    assert_eq!(
        said(&shown, "unmeasured", "(1 of 3 in a row)."),
        1,
        "{shown:#}"
    );
    // Where it never succeeds, the control's configuration is what is left.
    std::fs::write(toy.path("always"), "").unwrap();
    let shown = wait_until(&server, id, |shown| number(shown, "rollbacks") == 1);
    assert_eq!(
        said(&shown, "unmeasured", "(3 of 3 in a row)."),
        1,
        "{shown:#}"
    );
    std::fs::remove_file(toy.path("always")).unwrap();
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(read(&toy, "live"), FIRST);
    assert_eq!(server.end(), 128 + 15);
}

#[test]
fn a_knob_that_others_write_holds_the_rounds() {
    let mut toy = toy();
    let [disturbed, knob] = ["disturbed", "knob"].map(|name| toy.path(name).display().to_string());
    toy.load_after(&format!("[ ! -e {disturbed} ] || echo 44 > {knob}"));
    let server = Server::start(&toy);
    let id = server.create();
    let before = wait_until(&server, id, is_promoted);
    std::fs::write(&disturbed, "").unwrap();
    let shown = wait_until(&server, id, |shown| {
        said(shown, "changed", "is 44, not") > 0
    });
    assert_eq!(
        said(&shown, "unmeasured", "changed by someone else"),
        1,
        "{shown:#}"
    );
    assert_eq!(shown["state"], "running", "{shown:#}");
    let first = &shown["continuous"]["lines"][0];
    let first = first.as_str().unwrap();
    assert!(
        first.contains("not watched: a promoted setting was changed outside Slackline"),
        "{first}"
    );
    std::fs::remove_file(&disturbed).unwrap();
    std::fs::write(&knob, promoted(&before)).unwrap();
    let shown = wait_until(&server, id, |shown| said(shown, "measured", "again") > 0);
    assert_eq!(promoted(&shown), promoted(&before));
    assert_eq!(server.end(), 128 + 15);
}

#[test]
fn an_edit_of_a_templated_file_between_two_rounds_stays() {
    let mut toy = toy();
    toy.spec["target"] = Toy::attached().spec["target"].clone();
    let file = toy.path("service.conf");
    std::fs::write(toy.path("service.conf.in"), "x = {x}\n").unwrap();
    toy.spec["target"]["files"][0]["path"] = json!(file);
    toy.spec["parameters"] =
        json!([{ "name": "x", "type": "int", "low": 20, "high": 50, "default": 50 }]);
    // Rounds of half a second every three, and no search: there is no such server.
    toy.spec["continuous"]["control_share"] = json!(0.05);
    toy.spec["continuous"]["alert"] = json!({ "prometheus": "http://127.0.0.1:9", "query": "x" });
    std::fs::write(&file, "x = 50 # by hand\n").unwrap();
    let server = Server::start(&toy);
    let id = server.create();
    let read = || std::fs::read_to_string(&file).unwrap();
    for (round, text) in [(1, "x = 50 # by hand\n"), (2, "x = 50 # again\n")] {
        wait_until(&server, id, |shown| {
            assert_eq!(shown["message"], Value::Null, "{shown:#}");
            shown["continuous"].is_object() && number(shown, "rounds") == round
        });
        assert_eq!(read(), text);
        std::fs::write(&file, "x = 50 # again\n").unwrap();
    }
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(read(), "x = 50 # again\n");
}

#[test]
fn what_another_experiment_has_in_force_holds_a_promotion() {
    let toy = toy();
    let server = Server::start(&toy);
    let is_promoted = |shown: &Value| {
        shown["continuous"].is_object() && number(shown, "promotions") > 0 && !is_acting(shown)
    };
    let first = server.create();
    wait_until(&server, first, is_promoted);
    // Nothing but its own verifications are there to be verified.
    server
        .does(&["verify", &first.to_string()])
        .with_code(2)
        .saying(&["verifies before each promotion", "fork it"]);
    server.does(&["pause", &first.to_string()]).with_code(0);
    server.wait_for(first, &["paused"]);
    let in_force = toy.knob();
    // Its session is over, so what it did by itself is in the audit log.
    let path = format!("/audit?experiment={first}");
    let (_, audit) = crate::rollback::ask(&server, "GET", &path, "");
    let is_own = |it: &Value| it["who"] == "slackline" && it["action"] == "promote";
    assert!(audit.as_array().unwrap().iter().any(is_own), "{audit:#}");
    // Each promotion is listed once.
    let shown = server.get(&format!("/experiments/{first}"));
    let promotions = number(&shown, "promotions");
    let past = crate::rollback::html(&server, "/promotions");
    let of_first = format!(
        "<a href=\"/experiments/{first}\">{}</a> was <strong>promoted</strong>",
        shown["name"].as_str().unwrap()
    );
    assert_eq!(past.matches(&of_first).count() as u64, promotions, "{past}");
    let page = crate::rollback::html(&server, &format!("/experiments/{first}"));
    let listed = page.matches("<strong>Promotion</strong>").count() as u64;
    assert_eq!(listed, promotions, "{page}");
    let second: i64 = server
        .does(&["fork", &first.to_string()])
        .with_code(0)
        .stdout
        .trim()
        .parse()
        .unwrap();
    let held = wait_until(&server, second, |shown| {
        shown["continuous"].is_object()
            && shown["continuous"]["held"]
                .as_str()
                .is_some_and(|why| why.contains("the winner of experiment 1 is in force"))
    });
    let rounds = number(&held, "rounds");
    // It goes on with its rounds, and says so once.
    let held = wait_until(&server, second, |shown| {
        number(shown, "rounds") > rounds + 2
    });
    assert_eq!(number(&held, "promotions"), 0);
    assert_eq!(held["promotion"], Value::Null);
    let entries = held["entries"].as_array().unwrap().iter();
    assert_eq!(
        entries.filter(|entry| entry["kind"] == "held").count(),
        1,
        "{held:#}"
    );
    server.does(&["stop", &second.to_string()]).with_code(0);
    server.wait_for(second, &["stopped"]);
    assert_eq!(toy.knob(), in_force);
    let rolled_back = server.does(&["rollback", &first.to_string()]).with_code(0);
    assert!(
        !rolled_back.stderr.contains("warning"),
        "{}",
        rolled_back.stderr
    );
    assert_eq!(toy.knob(), FIRST);
    server.does(&["resume", &second.to_string()]).with_code(0);
    wait_until(&server, second, is_promoted);
    server.does(&["stop", &second.to_string()]).with_code(0);
    server.wait_for(second, &["stopped"]);
    // Another one that waits for its turn may promote next.
    server.does(&["resume", &first.to_string()]).with_code(0);
    let warning = format!("warning: continuous experiment {first} may promote on this host now");
    server
        .does(&["rollback", &second.to_string()])
        .with_code(0)
        .saying(&[&warning]);
}

/// The clock is set while a round is waited for: rounds go on, and a broken constraint is noticed.
#[test]
fn a_clock_that_is_set_stops_neither_rounds_nor_a_rollback() {
    for (offset, hours) in [("-3h", -3.0), ("+3h", 3.0)] {
        let mut toy = toy();
        // A round of half a second every three.
        toy.spec["continuous"]["control_share"] = json!(0.05);
        let Some(clock) = FakeClock::of(&toy) else {
            return;
        };
        let server = Server::start_in(&toy, &clock.environment());
        let id = server.create();
        let shown = wait_until(&server, id, is_promoted);
        let rounds = number(&shown, "rounds");
        let shown = wait_until(&server, id, |shown| number(shown, "rounds") > rounds);
        clock.set(offset);
        let rounds = number(&shown, "rounds");
        wait_until(&server, id, |shown| number(shown, "rounds") > rounds + 1);
        std::fs::write(toy.path("slow"), "").unwrap();
        let shown = wait_until(&server, id, |shown| number(shown, "rollbacks") == 1);
        assert_eq!(toy.knob(), FIRST);
        let mut entries = shown["entries"].as_array().unwrap().iter();
        let rolled_back = entries.rfind(|it| it["kind"] == "rollback").unwrap();
        let at: jiff::Timestamp = rolled_back["at"].as_str().unwrap().parse().unwrap();
        let set_by_s = at.duration_since(jiff::Timestamp::now()).as_secs_f64();
        assert!(
            (set_by_s - hours * 3600.0).abs() < 600.0,
            "the clock is set by {set_by_s} s"
        );
        server.end();
    }
}

/// A rule that fires, or does not.
fn rule(expression: &str) -> String {
    format!("groups: [{{ name: test, rules: [{{ alert: Incident, expr: '{expression}' }}] }}]\n")
}

#[test]
fn an_alert_of_prometheus_forbids_a_change_but_no_rollback_and_reads_the_metrics() {
    let toy = toy();
    let server = Server::start(&toy);
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("rules.yml"), rule("vector(1)")).unwrap();
    let address = server.page("").replace("http://", "");
    let token = server.token("read_token");
    let Some(prometheus) = Prometheus::of(
        data,
        &format!(
            "global: {{ evaluation_interval: 1s, scrape_interval: 1s }}\nrule_files: [rules.yml]\nscrape_configs:\n\
             - job_name: slackline\n  authorization: {{ credentials: '{token}' }}\n  \
             static_configs: [{{ targets: ['{address}'] }}]\n"
        ),
    ) else {
        return;
    };
    let query = r#"ALERTS{alertstate="firing"}"#;
    let wait_for = |query: &str, values: &[f64]| {
        let now = || prometheus.values(query);
        let what = || format!("{query} is {:?}, not {values:?}", now());
        eventually(30, || now() == values, what);
    };
    wait_for(query, &[1.0]);
    let mut spec = toy.spec.clone();
    spec["continuous"]["alert"] = json!({ "prometheus": prometheus.url, "query": query });
    let file = toy.path("with-alert.json");
    std::fs::write(&file, spec.to_string()).unwrap();
    let made = server
        .does(&["create", file.to_str().unwrap()])
        .with_code(0);
    let id = made.stdout.trim().parse().unwrap();
    let held = "an alert fires (1 series)";
    let shown = wait_until(&server, id, |shown| {
        shown["continuous"]["held"] == held && number(shown, "rounds") >= 3
    });
    assert_eq!(
        (&shown["evaluations"], number(&shown, "promotions")),
        (&json!(0), 0)
    );
    wait_for(r#"slackline_continuous_state{state="held"}"#, &[1.0]);

    prometheus.changes("rules.yml", &rule("vector(0) > 1"));
    let shown = wait_until(&server, id, |shown| number(shown, "promotions") == 1);
    let searched = shown["evaluations"].clone();
    assert_eq!(searched, 3);
    wait_for("slackline_continuous_promotions_total", &[1.0]);
    wait_for("slackline_continuous_changes_today", &[1.0]);
    wait_for(r#"slackline_continuous_state{state="watching"}"#, &[1.0]);

    prometheus.changes("rules.yml", &rule("vector(1)"));
    wait_for(query, &[1.0]);
    std::fs::write(toy.path("slow"), "").unwrap();
    let shown = wait_until(&server, id, |shown| {
        number(shown, "rollbacks") == 1 && shown["continuous"]["held"] == held
    });
    assert_eq!(shown["evaluations"], searched, "no search while it fires");
    wait_for("slackline_continuous_rollbacks_total", &[1.0]);
    wait_for(r#"slackline_continuous_state{state="held"}"#, &[1.0]);
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    drop(prometheus);
    assert_eq!(server.end(), 128 + 15);
    toy.assert_as_before("after the alert");
}
