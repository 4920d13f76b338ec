//! Notifications of `slackline serve`: a webhook whose signature another program checks, and the
//! local mail program.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serve::{Server, toy};
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
    let end = Instant::now() + Duration::from_secs(40);
    while !is_so() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
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
        mailed().contains("Subject: Slackline: experiment 1: promoted\r\n")
    });
    server.does(&["rollback", &id.to_string()]).with_code(0);
    wait("another mail", || {
        mailed().contains("Subject: Slackline: experiment 1: rolled-back\r\n")
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
    let mut receiver = receiver(&toy, port);
    let server = Server::start_in(&toy, &environment);
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
    let log = std::fs::read_to_string(toy.path("serve.stderr")).unwrap();
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
