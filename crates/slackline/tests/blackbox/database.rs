//! The database of `slackline serve` is gone, moved away, or another user's.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::api::status;
use crate::continuous::{attached_once, read};
use crate::eventually::eventually;
use crate::rollback::html;
use crate::serve::{Server, toy};
use crate::toy::{Ended, FIRST, Toy};

const FILES: [&str; 3] = ["slackline.db", "slackline.db-wal", "slackline.db-shm"];

fn move_database(from: &Path, to: &Path) {
    for name in FILES {
        if from.join(name).exists() {
            std::fs::rename(from.join(name), to.join(name)).unwrap();
        }
    }
}

fn readiness(server: &Server<'_>) -> u16 {
    status("GET", &server.page("/readyz"), &[], "")
}

fn is_said(toy: &Toy, text: &str) -> bool {
    let log = std::fs::read_to_string(toy.path("serve.stderr")).unwrap();
    log.contains(text)
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    eventually(30, is_so, || what);
}

#[test]
fn what_is_in_force_is_said_and_rolled_back_when_the_database_is_gone() {
    for toy in [toy(), attached_once("")] {
        let has_file = toy.path("service.conf.in").exists();
        if has_file {
            std::fs::write(toy.path("service.conf"), "50 # mine\n").unwrap();
        }
        let server = Server::start(&toy);
        let id = server.improved();
        server.does(&["promote", &id.to_string()]).with_code(0);
        assert_eq!(readiness(&server), 200);
        assert_eq!(server.end(), 128 + 15);
        let away = toy.path("away");
        std::fs::create_dir(&away).unwrap();
        move_database(&toy.path("state"), &away);
        let server = Server::start(&toy);
        let said = [
            "promotion 1 is in force on this host: ",
            "The database was probably removed or replaced",
            "slackline promotions undo 1",
        ];
        wait_until("the server says so", || is_said(&toy, said[0]));
        let listed = toy.slackline(&["promotions", "ls"]);
        let listed = Ended::of(listed).with_code(0).stdout;
        assert!(listed.contains("1  toy  promoted "), "{listed}");
        for page in ["/", "/promotions"] {
            let page = html(&server, page);
            for part in said {
                assert!(page.contains(part), "{part}: {page}");
            }
        }
        assert_eq!(readiness(&server), 503);
        let lost = server.get("/promotions")["commands"][0]["lost"].clone();
        assert_eq!(lost, id, "{lost}");
        Ended::of(toy.slackline(&["promotions", "undo", "1"])).with_code(0);
        match has_file {
            true => assert_eq!(read(&toy, "service.conf"), "50 # mine"),
            false => assert_eq!(toy.knob(), FIRST),
        }
        assert_eq!(readiness(&server), 200);
        assert_eq!(server.end(), 128 + 15);
    }
}

#[test]
fn a_promotion_that_the_database_has_is_rolled_back_by_its_experiment() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.improved().to_string();
    server.does(&["promote", &id]).with_code(0);
    let refused = format!("slackline experiments rollback {id}");
    Ended::of(toy.slackline(&["promotions", "undo", "1"]))
        .with_code(2)
        .saying(&[&refused]);
    server.does(&["rollback", &id]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    // Nothing is left of it in the list of what commands undo.
    let list = std::fs::read_to_string(toy.path("state/promotions.json")).unwrap();
    assert_eq!(list, "[]");
}

#[test]
fn a_database_that_is_moved_away_under_a_running_server_is_noticed() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.improved().to_string();
    server.does(&["promote", &id]).with_code(0);
    let (state, away) = (toy.path("state"), toy.path("away"));
    std::fs::create_dir(&away).unwrap();
    move_database(&state, &away);
    let said = "slackline.db was moved away or removed. The server stops writing";
    assert_eq!(readiness(&server), 503);
    wait_until("the server says so", || is_said(&toy, said));
    assert!(html(&server, "/").contains(said));
    let file = toy.path("experiment.json").display().to_string();
    server.does(&["create", &file]).with_code(2).saying(&[said]);
    // The host comes first, and the database is told when it is back.
    server.does(&["rollback", &id]).with_code(0);
    assert_eq!(toy.knob(), FIRST);
    move_database(&away, &state);
    wait_until("the server is ready", || readiness(&server) == 200);
    wait_until("the database is told", || {
        server.get("/experiments")[0]["promoted"] == false
    });
    let other = server.create();
    server.wait_for(other, &["done"]);
    assert_eq!(server.end(), 128 + 15);
}

#[test]
fn a_database_of_another_user_is_refused_and_one_that_others_read_is_mended() {
    let toy = toy();
    let database = toy.path("state/slackline.db");
    Server::start(&toy).end();
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&database, mode).unwrap();
    };
    set_mode(0o644);
    Server::start(&toy).end();
    let path = database.display();
    assert!(is_said(&toy, &format!("{path} had mode 644")));
    let mode = std::fs::metadata(&database).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    if std::os::unix::fs::chown(&database, Some(65534), None).is_err() {
        return crate::toy::skip(&"only root gives a file to another user");
    }
    Ended::of(toy.slackline(&["serve", "--listen", "127.0.0.1:0"]))
        .with_code(2)
        .saying(&[&format!("{path} is owned by user 65534")]);
}

/// Set where the test runs in a mount namespace of its own.
const INSIDE: &str = "SLACKLINE_TEST_OWN_MOUNTS";

/// Runs this test again in a mount namespace of its own, whose mounts nobody else sees. `false`
/// there.
fn is_run_with_own_mounts(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return false;
    }
    let run = std::process::Command::new("unshare")
        .arg("--mount")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", name])
        .env(INSIDE, "1")
        .output();
    let output = match run {
        Ok(output) => output,
        Err(error) => {
            crate::toy::skip(&error);
            return true;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("unshare failed") {
        crate::toy::skip(&said);
        return true;
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{said}");
    assert!(printed.contains("1 passed"), "{printed}");
    true
}

#[test]
fn a_server_that_was_killed_while_its_disk_is_full_restores_the_host() {
    let name = "database::a_server_that_was_killed_while_its_disk_is_full_restores_the_host";
    if is_run_with_own_mounts(name) {
        return;
    }
    let mut toy = toy();
    toy.load_after(crate::signals::HANG_ON_EXPERIMENT);
    let state = toy.path("state");
    std::fs::create_dir(&state).unwrap();
    let does = |program: &str, arguments: &[&str]| {
        let status = std::process::Command::new(program).args(arguments).status();
        status.is_ok_and(|status| status.success())
    };
    let at = state.to_str().unwrap();
    let options = ["-t", "tmpfs", "-o", "size=16m", "slackline-test", at];
    if !does("mount", &options) {
        return crate::toy::skip(&"a file system cannot be mounted here");
    }
    let server = Server::start(&toy);
    let id = server.create();
    toy.wait_for("measuring");
    assert_ne!(toy.knob(), FIRST);
    server.kill();
    let filler = state.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
    drop(file);
    let server = Server::start(&toy);
    wait_until("the host is restored", || toy.knob() == FIRST);
    let undone = "an earlier run was killed; undone: ";
    wait_until("the server says so", || is_said(&toy, undone));
    // What it cannot keep, it does not begin.
    wait_until("the server says so", || readiness(&server) == 503);
    assert_eq!(toy.knob(), FIRST);
    std::fs::remove_file(&filler).unwrap();
    wait_until("the server is ready", || readiness(&server) == 200);
    server.does(&["stop", &id.to_string()]).with_code(0);
    server.wait_for(id, &["stopped"]);
    assert_eq!(server.end(), 128 + 15);
    assert_eq!(toy.knob(), FIRST);
    assert!(does("umount", &[at]));
}
