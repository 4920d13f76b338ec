//! Who is let in by `slackline serve`, for how long, and what is said where a file that decides
//! about it is not as it should be.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::api::{answer, csrf_of, session, status};
use crate::eventually::eventually;
use crate::serve::{Server, toy};
use crate::toy::{Ended, Toy};

/// An open stream of events. `credential` is a header.
struct Events(TcpStream);

impl Events {
    /// The stream, and the head of the answer.
    fn open(server: &Server<'_>, credential: &str) -> (Self, String) {
        let address = server.page("");
        let address = address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let request =
            format!("GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n{credential}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut events = Self(stream);
        let head = events.read_until("\r\n\r\n");
        (events, head)
    }

    fn read_until(&mut self, end: &str) -> String {
        let mut text = String::new();
        let mut byte = [0];
        while !text.ends_with(end) && self.0.read(&mut byte).unwrap() > 0 {
            text.push(char::from(byte[0]));
        }
        text
    }

    /// Reads to the end of the stream, which has to come, and to say that it is one.
    fn ends(&mut self) {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("event: ended\n"), "{rest}");
    }
}

fn tokens(toy: &Toy, arguments: &[&str]) -> Ended {
    Ended::of(toy.slackline(&[&["serve", "tokens"], arguments].concat()))
}

#[test]
fn a_stream_of_events_ends_with_the_token_or_session_that_opened_it() {
    let toy = toy();
    let server = Server::start(&toy);
    let made = tokens(&toy, &["new", "--name", "anna"]).with_code(0);
    let (mut of_token, head) = Events::open(
        &server,
        &format!("Authorization: Bearer {}", made.stdout.trim()),
    );
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    // A browser that was signed in with the token.
    let first = answer(
        "GET",
        &server.page(&format!("/?token={}", made.stdout.trim())),
        &[],
        "",
    );
    let cookie = crate::api::cookie_of(&first);
    let (mut of_session, _) = Events::open(&server, &format!("Cookie: {cookie}"));
    let owner = session(&server, "write_token");
    let (mut of_owner, _) = Events::open(&server, &format!("Cookie: {owner}"));
    let write = format!("Authorization: Bearer {}", server.token("write_token"));
    let (mut other, _) = Events::open(&server, &write);
    tokens(&toy, &["revoke", "anna"]).with_code(0);
    of_token.ends();
    of_session.ends();
    let list = server.url("/experiments");
    assert_eq!(status("GET", &list, &[("cookie", &cookie)], ""), 401);
    // A sign-out ends the streams of its session, and no other.
    let page = answer("GET", &server.page("/"), &[("cookie", &owner)], "");
    let page = page.into_body().read_to_string().unwrap();
    let headers = [
        ("cookie", owner.as_str()),
        ("x-slackline-csrf", csrf_of(&page)),
    ];
    assert_eq!(status("POST", &server.page("/logout"), &headers, ""), 303);
    of_owner.ends();
    other.read_until("event: changed");
    server.does(&["pause-queue"]).with_code(0);
    assert!(
        other
            .read_until("event: changed")
            .ends_with("event: changed")
    );
}

#[test]
fn one_token_takes_no_event_stream_of_another() {
    let toy = toy();
    let server = Server::start(&toy);
    let credential = |role: &str| format!("Authorization: Bearer {}", server.token(role));
    let open: Vec<_> = (0..32)
        .map(|_| Events::open(&server, &credential("read_token")))
        .collect();
    assert!(
        open.iter()
            .all(|(_, head)| head.starts_with("HTTP/1.1 200"))
    );
    let read = format!("Bearer {}", server.token("read_token"));
    let refused = answer(
        "GET",
        &server.url("/events"),
        &[("authorization", &read)],
        "",
    );
    assert_eq!(refused.status(), 429);
    let refused: Value = refused.into_body().read_json().unwrap();
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("reader has 32 event streams open already"),
        "{detail}"
    );
    let (_, head) = Events::open(&server, &credential("write_token"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
}

#[test]
fn whoever_has_no_valid_token_is_told_what_to_do() {
    let toy = toy();
    let server = Server::start(&toy);
    let made = tokens(&toy, &["new", "--name", "anna"]).with_code(0);
    tokens(&toy, &["revoke", "anna"]).with_code(0);
    let detail = |token: &str| {
        let header = format!("Bearer {token}");
        let refused = answer(
            "GET",
            &server.url("/experiments"),
            &[("authorization", &header)],
            "",
        );
        assert_eq!(refused.status(), 401);
        let refused: Value = refused.into_body().read_json().unwrap();
        refused["detail"].as_str().unwrap().to_owned()
    };
    let of_wrong = detail("x");
    for part in [
        "the token is not valid",
        "/login",
        "`slackline serve tokens ls`",
    ] {
        assert!(of_wrong.contains(part), "{of_wrong}");
    }
    assert_eq!(
        of_wrong,
        detail(made.stdout.trim()),
        "a stranger learns nothing of tokens"
    );
    for name in ["owner", "Reader", "proxy:anna", "unknown user"] {
        tokens(&toy, &["new", "--name", name])
            .with_code(2)
            .saying(&["is reserved"]);
    }
    tokens(&toy, &["revoke", "owner"])
        .with_code(2)
        .saying(&["serve.json: to replace them, delete that file"]);
    let mut elsewhere = toy.slackline(&["experiments", "--url", "foo", "ls"]);
    elsewhere.env("SLACKLINE_TOKEN", "x");
    Ended::of(elsewhere)
        .with_code(2)
        .saying(&["--url foo is not an address: give for example http://127.0.0.1:8431"]);
}

/// What the audit log says, oldest entry first: who, from where, what, the status, why not.
fn audit(server: &Server<'_>) -> Vec<[String; 5]> {
    let write = format!("Bearer {}", server.token("write_token"));
    let headers = [("authorization", write.as_str())];
    let audit = answer("GET", &server.url("/audit"), &headers, "");
    let audit: Value = audit.into_body().read_json().unwrap();
    let entries = audit.as_array().unwrap().iter().rev();
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let keys = ["who", "from", "action", "status", "refusal"];
    entries
        .map(|entry| keys.map(|key| text(&entry[key])))
        .collect()
}

#[test]
fn who_signs_in_and_out_and_who_may_not_is_in_the_audit_log() {
    let toy = toy();
    let proxy = ["--listen", "127.0.0.1:0", "--trusted-proxy", "127.0.0.1"];
    let server = Server::start_as(&toy, &[], &proxy);
    let made = tokens(&toy, &["new", "--name", "anna"]).with_code(0);
    let anna = made.stdout.trim();
    let page = |path: &str| server.page(path);
    // Each from an address of its own, as a refusal a second is written down for each.
    let from = |number: u8| format!("10.0.0.{number}");
    let get = |number: u8, token: &str| {
        let from = from(number);
        let headers = [("x-forwarded-for", from.as_str())];
        answer("GET", &page(&format!("/?token={token}")), &headers, "")
    };
    let form = |number: u8, token: &str, origin: Option<&str>| {
        let from = from(number);
        let mut headers = vec![("x-forwarded-for", from.as_str())];
        headers.extend(origin.map(|origin| ("origin", origin)));
        status("POST", &page("/login"), &headers, &format!("token={token}"))
    };
    let cookie = crate::api::cookie_of(&get(1, anna));
    assert_eq!(get(2, "wrong").status(), 303, "to the form");
    assert_eq!(form(3, &server.token("write_token"), None), 303);
    assert_eq!(form(4, "wrong", None), 200, "the form again");
    assert_eq!(form(5, anna, Some("http://evil.example")), 403);
    for _ in 0..10 {
        form(6, "wrong", None);
    }
    assert_eq!(form(6, anna, None), 429);
    let home = answer("GET", &page("/"), &[("cookie", &cookie)], "");
    let home = home.into_body().read_to_string().unwrap();
    let from_seven = from(7);
    let sign_out = |csrf: &str| {
        let headers = [
            ("cookie", cookie.as_str()),
            ("x-forwarded-for", &from_seven),
            ("x-slackline-csrf", csrf),
        ];
        status("POST", &page("/logout"), &headers, "")
    };
    assert_eq!(sign_out("of another page"), 403);
    assert_eq!(sign_out(csrf_of(&home)), 303);
    let (nobody, wrong) = ("null", "not a valid token");
    let elsewhere = "the form was not sent from this server's own page: load the page again";
    let forged = "the change was not made from one of our pages: load the page again";
    let mut expected = vec![
        ["anna", "10.0.0.1", "sign-in", "303", "null"],
        [nobody, "10.0.0.2", "sign-in", "401", wrong],
        ["owner", "10.0.0.3", "sign-in", "303", "null"],
        [nobody, "10.0.0.4", "sign-in", "401", wrong],
        [nobody, "10.0.0.5", "sign-in", "403", elsewhere],
    ];
    expected.extend([[nobody, "10.0.0.6", "sign-in", "401", wrong]; 10]);
    expected.extend([
        [nobody, "10.0.0.6", "sign-in", "429", "too many attempts"],
        ["anna", "10.0.0.7", "refused", "403", forged],
        ["anna", "10.0.0.7", "sign-out", "303", "null"],
    ]);
    let log = audit(&server);
    // The first entry is the token's own.
    assert_eq!(log[1..], expected, "{log:?}");
}

#[test]
fn a_file_that_is_damaged_or_not_ours_alone_is_named() {
    let toy = toy();
    let server = Server::start(&toy);
    let made = tokens(&toy, &["new", "--name", "anna"]).with_code(0);
    let path = toy.path("state/tokens.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    let bearer = format!("Bearer {}", made.stdout.trim());
    let list = server.url("/experiments");
    let got = || status("GET", &list, &[("authorization", &bearer)], "");
    assert_eq!(got(), 200);
    std::fs::write(&path, whole.replace("\"tokens\":", "\"tokens\" ")).unwrap();
    let said = [
        "tokens.json: line 2: ",
        "the file is damaged",
        "slackline serve tokens new",
    ];
    tokens(&toy, &["ls"]).with_code(2).saying(&said);
    assert_eq!(got(), 401);
    let log = std::fs::read_to_string(toy.path("serve.stderr")).unwrap();
    assert!(log.contains("tokens.json: line 2: "), "{log}");
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(got(), 200, "it is read again");
    // Whoever may write a file of tokens could let himself in, or have a token sent to himself.
    let chmod = |name: &str, mode| {
        let path = toy.path(&format!("state/{name}"));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod("tokens.json", 0o622);
    tokens(&toy, &["ls"])
        .with_code(2)
        .saying(&["others may write it (mode 622)", "chmod 600"]);
    chmod("tokens.json", 0o600);
    chmod("serve.json", 0o666);
    server
        .does(&["ls"])
        .with_code(2)
        .saying(&["serve.json", "others may write it (mode 666)"]);
    chmod("serve.json", 0o600);
    server.does(&["ls"]).with_code(0);
    server.end();
    std::fs::write(toy.path("state/serve.json"), "{\n\"write_token\": 1}").unwrap();
    let said = [
        "serve.json: line 2: ",
        "the file is damaged",
        "move it away",
    ];
    let start = toy.slackline(&["serve", "--listen", "127.0.0.1:0"]);
    Ended::of(start).with_code(2).saying(&said);
}

#[test]
fn a_damaged_line_does_not_take_the_audit_log_away() {
    let toy = toy();
    let server = Server::start(&toy);
    server.does(&["pause-queue"]).with_code(0);
    let mut log = std::fs::File::options()
        .append(true)
        .open(toy.path("state/audit.jsonl"))
        .unwrap();
    log.write_all(b"\xff\xfe {\n{\"at\": ").unwrap();
    server.does(&["resume-queue"]).with_code(0);
    let write = format!("Bearer {}", server.token("write_token"));
    let audit = answer(
        "GET",
        &server.url("/audit"),
        &[("authorization", &write)],
        "",
    );
    assert_eq!(crate::api::header(&audit, "slackline-damaged-lines"), "2");
    let audit: Value = audit.into_body().read_json().unwrap();
    let actions: Vec<_> = audit
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions[..2], ["resume-queue", "pause-queue"], "{audit}");
    let cookie = session(&server, "write_token");
    let page = answer("GET", &server.page("/audit"), &[("cookie", &cookie)], "");
    let page = page.into_body().read_to_string().unwrap();
    assert!(page.contains("2 lines of the log cannot be read"), "{page}");
}

#[test]
fn files_that_an_earlier_version_left_to_everybody_are_their_owners_alone() {
    let toy = toy();
    let server = Server::start(&toy);
    let id = server.create();
    server.wait_for(id, &["done"]);
    // The two beside the database stay only after a kill.
    server.kill();
    let files = [
        "slackline.db",
        "slackline.db-wal",
        "slackline.db-shm",
        "lock",
    ];
    let files = files.map(|name| toy.path("state").join(name));
    let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for path in &files {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let server = Server::start(&toy);
    let modes = || files.each_ref().map(mode);
    eventually(20, || modes() == [0o600; 4], || format!("{:?}", modes()));
    assert_eq!(server.get(&format!("/experiments/{id}"))["state"], "done");
}

#[test]
fn two_servers_that_start_at_one_moment_on_a_new_directory_share_it() {
    let toy = toy();
    for round in 0..3 {
        let dir = toy.path(&format!("state-{round}"));
        let start = |_: usize| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slackline"));
            command
                .arg("--state-dir")
                .arg(&dir)
                .args(["serve", "--listen", "127.0.0.1:0"]);
            command
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped());
            command.spawn().unwrap()
        };
        let mut servers = [0, 1].map(start);
        let addresses = [0, 1].map(|index: usize| {
            let log = std::io::BufReader::new(servers[index].stderr.take().unwrap());
            let lines = std::io::BufRead::lines(log).map_while(Result::ok);
            let mut lines = lines.inspect(|line| println!("{line}"));
            let line = lines.find(|line| line.contains("http://"));
            let line = line.expect("a server ended");
            // The rest is read, so that the server does not wait for somebody to read it.
            std::thread::spawn(move || lines.for_each(drop));
            let from = line.find("http://").unwrap();
            line[from..].split(' ').next().unwrap().to_owned()
        });
        let access = std::fs::read_to_string(dir.join("serve.json")).unwrap();
        let access: Value = serde_json::from_str(&access).unwrap();
        let write = format!("Bearer {}", access["write_token"].as_str().unwrap());
        for address in &addresses {
            let url = format!("{address}api/v1/experiments");
            assert_eq!(
                status("GET", &url, &[("authorization", &write)], ""),
                200,
                "{address}"
            );
        }
        crate::toy::kill(&mut servers);
    }
}
