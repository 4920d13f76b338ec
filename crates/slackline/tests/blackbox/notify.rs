//! Notifications of `slackline serve`: a webhook whose signature another program checks, and the
//! local mail program.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::eventually::eventually;
use crate::serve::{FakeClock, Server, toy};
use crate::toy::{Toy, kill};

/// A receiver in Python that checks signatures as `docs/notifications.md` says, and answers its
/// first request with 503.
const RECEIVER: &str = r#"
import hashlib, hmac, http.server, sys, time

def is_genuine(secret, header, body):
    fields = dict(part.split("=", 1) for part in header.split(","))
    signed = fields["t"].encode() + b"." + body
    expected = hmac.new(secret, signed, hashlib.sha256).hexdigest()
    is_fresh = abs(time.time() - int(fields["t"])) < 300
    return is_fresh and hmac.compare_digest(expected, fields["v1"])

class Receiver(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        genuine = is_genuine(b"s3cr3t", self.headers["slackline-signature"], body)
        Receiver.asked += 1
        if Receiver.asked == 1:
            self.send_response(503)
        else:
            with open(sys.argv[2], "ab") as told:
                told.write(str(genuine).encode() + b" " + body + b"\n")
            self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"#;

fn receiver(toy: &Toy, port: u16) -> Child {
    let script = toy.path("receiver.py");
    std::fs::write(&script, RECEIVER).unwrap();
    let mut python = Command::new("python3");
    python
        .arg(script)
        .arg(port.to_string())
        .arg(toy.path("told"));
    python
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    eventually(40, is_so, || what);
}

#[test]
fn receivers_are_told_also_after_they_and_the_server_were_away() {
    let toy = toy();
    // Below the ports that a kernel gives out by itself: nobody else is there while the receiver is
    // away.
    let port = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    std::fs::write(toy.path("secret"), "s3cr3t\n").unwrap();
    let mail = toy.path("mail");
    let config = format!(
        "base_url = \"https://tuner.example/\"\n\
         [[webhook]]\nurl = \"http://me:pa55word@127.0.0.1:{port}/hook\"\nsecret_file = \"secret\"\n\
         [[email]]\nto = [\"ops@example.org\"]\nevents = [\"promoted\", \"rolled-back\"]\n\
         command = [\"sh\", \"-c\", \"cat >> {}\"]\n",
        mail.display()
    );
    let file = toy.path("notify.toml");
    std::fs::write(&file, config).unwrap();
    let environment = [("SLACKLINE_NOTIFY", file.to_str().unwrap())];
    let server = Server::start_in(&toy, &environment);
    let id = server.create();
    server.wait_for(id, &["done"]);
    server.does(&["promote", &id.to_string()]).with_code(0);
    let mailed = || std::fs::read_to_string(&mail).unwrap_or_default();
    wait("a mail", || {
        mailed().contains("Subject: Slackline: experiment 1 was promoted\r\n")
    });
    server.does(&["rollback", &id.to_string()]).with_code(0);
    wait("another mail", || {
        mailed().contains("Subject: Slackline: experiment 1 was rolled back\r\n")
    });
    assert!(
        mailed().contains("https://tuner.example/experiments/1\r\n"),
        "{}",
        mailed()
    );
    assert_eq!(mailed().matches("Subject:").count(), 2, "{}", mailed());

    // A larger budget shows nothing anew.
    let more = ["budget", &id.to_string(), "--evaluations", "99"];
    server.does(&more).with_code(0);
    // Nobody listened at the webhook. The server is killed, and tells when it and the receiver are
    // back.
    server.kill();
    let Some(clock) = FakeClock::of(&toy) else {
        return;
    };
    let mut receiver = receiver(&toy, port);
    let jumping = [&environment[..], &clock.environment()].concat();
    let server = Server::start_in(&toy, &jumping);
    let log = || std::fs::read_to_string(toy.path("serve.stderr")).unwrap();
    wait("a refusal", || log().contains("answers 503"));
    // The next try comes in 5 s whatever the clock says.
    clock.set("-200");
    let told = || std::fs::read_to_string(toy.path("told")).unwrap_or_default();
    wait("four events", || told().lines().count() >= 4);
    let lines = told();
    let mut events: Vec<String> = Vec::new();
    for line in lines.lines() {
        let (is_genuine, body) = line.split_once(' ').unwrap();
        assert_eq!(is_genuine, "True", "{line}");
        let event: Value = serde_json::from_str(body).unwrap();
        assert_eq!(event["experiment"], json!(id), "{line}");
        events.push(event["event"].as_str().unwrap().to_owned());
    }
    events.sort();
    assert_eq!(events, ["ended", "promoted", "rolled-back", "shown"]);
    let state = std::fs::read_to_string(toy.path("state/notifications.json")).unwrap();
    wait("nothing more to deliver", || {
        let kept = std::fs::read(toy.path("state/notifications.json")).unwrap();
        let kept: Value = serde_json::from_slice(&kept).unwrap();
        kept["waiting"] == json!([])
    });
    assert_eq!(told().lines().count(), 4, "{}", told());
    let log = log();
    assert!(log.contains("failed; next try in"), "{log}");
    for text in [&log, &state, &mailed()] {
        assert!(
            !text.contains("pa55word") && !text.contains("s3cr3t"),
            "{text}"
        );
    }
    assert_eq!(server.end(), 128 + 15);
    kill([&mut receiver]);
}

/// A mail server of the test's own on loopback, and what hands messages to it: Exim, each with a
/// configuration and a spool in the toy's directory.
struct Mail<'a> {
    toy: &'a Toy,
    daemon: Child,
}

const EXIM: &str = "/usr/sbin/exim4";

impl<'a> Mail<'a> {
    fn start(toy: &'a Toy, port: u16) -> Self {
        // Exim drops the superuser's privileges where it is given a configuration.
        let user = match rustix::process::getuid().is_root() {
            true => "Debian-exim".to_owned(),
            false => rustix::process::getuid().as_raw().to_string(),
        };
        let dir = |name: &str| {
            use std::os::unix::fs::PermissionsExt as _;
            let path = toy.path(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
            path.display().to_string()
        };
        let inbox = dir("inbox");
        let common = |name: &str| {
            let spool = dir(name);
            format!(
                "primary_hostname = {name}.example.org\nspool_directory = {spool}\nlog_file_path = {spool}/%slog\n\
                 host_lookup =\nkeep_environment =\nrfc1413_query_timeout = 0s\nnever_users =\n"
            )
        };
        let daemon = format!(
            "{}daemon_smtp_ports = {port}\nlocal_interfaces = 127.0.0.1\nacl_smtp_rcpt = rcpt\n\
             begin acl\nrcpt:\n  accept hosts = 127.0.0.1\n         domains = example.org\n\
             begin routers\nall:\n  driver = accept\n  transport = inbox\n\
             begin transports\ninbox:\n  driver = appendfile\n  file = {inbox}/mbox\n  user = {user}\n",
            common("mx")
        );
        let sender = format!(
            "{}begin routers\nall:\n  driver = manualroute\n  route_list = * 127.0.0.1::{port}\n  self = send\n  \
             transport = smtp\nbegin transports\nsmtp:\n  driver = smtp\n",
            common("sender")
        );
        for (name, text) in [("daemon.conf", daemon), ("sender.conf", sender)] {
            std::fs::write(toy.path(name), text).unwrap();
        }
        let mut daemon = Command::new(EXIM);
        daemon.arg("-C").arg(toy.path("daemon.conf"));
        daemon.args(["-bdf", "-oP"]).arg(toy.path("exim.pid"));
        let daemon = daemon.stdin(Stdio::null()).spawn().unwrap();
        let mail = Self { toy, daemon };
        wait("a mail server", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        mail
    }

    /// The mailbox, as the server has written it.
    fn mbox(&self) -> String {
        std::fs::read_to_string(self.toy.path("inbox/mbox")).unwrap_or_default()
    }
}

impl Drop for Mail<'_> {
    fn drop(&mut self) {
        kill([&mut self.daemon]);
    }
}

#[test]
fn mail_arrives_in_a_mailbox_by_a_real_mail_server() {
    if !std::path::Path::new(EXIM).exists() {
        return crate::toy::skip(&"exim4 is missing here");
    }
    let toy = toy();
    let mail = Mail::start(&toy, crate::toy::free_port());
    let config = format!(
        "base_url = \"https://tuner.example\"\n[[email]]\nto = [\"ops@example.org\"]\nfrom = \"slackline@example.org\"\n\
         command = [\"{EXIM}\", \"-C\", \"{}\", \"-t\", \"-i\"]\n",
        toy.path("sender.conf").display()
    );
    let file = toy.path("notify.toml");
    std::fs::write(&file, config).unwrap();
    // A drift takes days: what an earlier run of the server did not deliver.
    let drifted = json!({
        "number": 1, "event": "drifted", "at": "2026-03-02T12:00:00Z", "experiment": 7, "name": "web",
        "text": "A drift test has raised an alarm: a new search begins.",
        "url": "https://tuner.example/experiments/7",
    });
    let due = json!({
        "receiver": "email[0]", "event": drifted, "failures": 0,
        "since": jiff::Timestamp::now().to_string(), "due": "2026-03-02T12:00:00Z",
    });
    let kept =
        json!({ "last": 1, "seen": { "experiments": {}, "trouble": null }, "waiting": [due] });
    std::fs::create_dir(toy.path("state")).unwrap();
    std::fs::write(toy.path("state/notifications.json"), kept.to_string()).unwrap();
    let server = Server::start_in(&toy, &[("SLACKLINE_NOTIFY", file.to_str().unwrap())]);
    let id = server.improved().to_string();
    server.does(&["promote", &id]).with_code(0);
    let arrived = |subject: &str| {
        let subject = format!("\nSubject: Slackline: experiment {subject}\n");
        wait(&subject, || mail.mbox().contains(&subject));
    };
    arrived("1 was promoted");
    server.does(&["rollback", &id]).with_code(0);
    let mut broken = toy.spec.clone();
    broken["target"]["start"] = json!(["false"]);
    server.create_of(&broken);
    for subject in [
        "7 has drifted",
        "1 has shown an improvement",
        "1 has ended",
        "1 was rolled back",
        "2 needs attention",
    ] {
        arrived(subject);
    }
    let mbox = mail.mbox();
    let messages: Vec<&str> = mbox.split("\nFrom ").collect();
    let of = |subject: &str| {
        let mut found = messages.iter().filter(|message| message.contains(subject));
        let message = found.next().unwrap();
        assert_eq!(found.next(), None, "{subject} twice");
        message.split_once("\n\n").unwrap()
    };
    let (head, body) = of("experiment 1 has shown");
    for line in [
        "To: ops@example.org",
        "From: slackline@example.org",
        "Content-Type: text/plain; charset=utf-8",
    ] {
        assert!(head.contains(&format!("\n{line}")), "{line}: {head}");
    }
    assert!(head.contains("by mx.example.org with esmtp"), "{head}");
    // Signs beyond ASCII arrive as they are.
    let sentence = server.get("/experiments/1")["sentence"]
        .as_str()
        .unwrap()
        .to_owned();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words(body).contains(&words(&sentence)),
        "{sentence}: {body}"
    );
    assert!(
        body.contains("https://tuner.example/experiments/1\n"),
        "{body}"
    );
    let (_, body) = of("experiment 7 has drifted");
    assert!(body.contains("A drift test has raised an alarm"), "{body}");
    assert_eq!(server.end(), 128 + 15);
}
