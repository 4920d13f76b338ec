//! The worker against a loopback server that speaks a little NATS.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use tuner::evaluation::Outcome;

use super::*;

/// A server that knows so much of NATS's protocol (docs.nats.io, "Client Protocol") as a worker
/// needs to ask, and answers in the coordinator's place. What was published, in order.
#[derive(Clone, Default)]
struct Server {
    published: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Its URL.
    fn start(&self, reply: fn(&WorkerMessage) -> Reply) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream.unwrap(), reply));
            }
        });
        format!("nats://127.0.0.1:{port}")
    }

    /// Until the worker goes.
    fn serve(&self, mut stream: TcpStream, reply: fn(&WorkerMessage) -> Reply) -> Option<()> {
        let info = r#"INFO {"server_id":"a","version":"2.10.0","proto":1,"headers":true,"max_payload":1048576}"#;
        stream.write_all(format!("{info}\r\n").as_bytes()).ok()?;
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut sid = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["PING"] => stream.write_all(b"PONG\r\n").ok()?,
                ["SUB", _, id] => sid = (*id).to_owned(),
                ["PUB", subject, to @ .., size] => {
                    let mut body = vec![0; size.parse::<usize>().ok()? + 2];
                    reader.read_exact(&mut body).ok()?;
                    let body = String::from_utf8(body).ok()?.trim().to_owned();
                    let answer = match serde_json::from_str(&body) {
                        Ok(request) => serde_json::to_string(&reply(&request)).ok()?,
                        Err(_) => String::new(),
                    };
                    self.published
                        .lock()
                        .unwrap()
                        .push(format!("{subject} {body}"));
                    if let [to] = to {
                        let head = format!("MSG {to} {sid} {}\r\n", answer.len());
                        stream
                            .write_all(format!("{head}{answer}\r\n").as_bytes())
                            .ok()?;
                    }
                }
                _ => {}
            }
        }
    }

    /// All that was published, so many at least: the last may still be on its way.
    fn published(&self, count: usize) -> Vec<String> {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let published = self.published.lock().unwrap().clone();
            if published.len() >= count || std::time::Instant::now() > end {
                return published;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Has a worker of a server do something, once it is connected or after a second.
fn with_worker<T>(url: &str, act: impl AsyncFnOnce(&mut Worker<'_>) -> T) -> T {
    let nats = serde_json::from_value(serde_json::json!({ "url": url })).unwrap();
    let config = WorkerConfig {
        name: Some("w".into()),
        nats,
        coordinator_keys: Vec::new(),
        labels: BTreeMap::new(),
        allow: crate::Allow::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = connect(&config.nats, "w", |_| ()).await.unwrap();
        let _ = tokio::time::timeout(Duration::from_secs(1), client.flush()).await;
        let mut worker = Worker {
            config: &config,
            state_dir: PathBuf::new(),
            interrupt: Interrupt::default(),
            report: |_| (),
            client,
            hello: hello(&config),
            lease: Duration::from_secs(30),
            sick: 0,
            told: BTreeMap::new(),
            rests_until: tokio::time::Instant::now(),
        };
        let done = act(&mut worker).await;
        let _ = tokio::time::timeout(Duration::from_secs(1), worker.client.flush()).await;
        done
    })
}

fn ticket(experiment: i64) -> Ticket {
    Ticket {
        experiment,
        verification: 0,
        arm: 0,
        number: 7,
    }
}

/// An order as it comes from the queue.
fn message(worker: &Worker<'_>, payload: &str) -> Message {
    let subject = "slackline.work.0123456789abcdef.3.0.0.7".into();
    Message {
        message: async_nats::Message {
            subject,
            reply: Some("order".into()),
            payload: payload.to_owned().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        },
        context: jetstream::new(worker.client.clone()),
    }
}

#[test]
fn why_it_cannot_measure_is_said_once_of_each_experiment() {
    // A `fn` holds nothing.
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    with_worker("nats://127.0.0.1:9", async |worker| {
        worker.report = |text| SAID.lock().unwrap().push(text.to_owned());
        for (experiment, why) in [(1, "a"), (2, "b"), (1, "a"), (2, "b"), (1, "c")] {
            worker.tell(ticket(experiment), "can", why);
        }
    });
    let said = SAID.lock().unwrap();
    assert_eq!(
        *said,
        [
            "1.0.0.7 cannot be measured here: a",
            "2.0.0.7 cannot be measured here: b",
            "1.0.0.7 cannot be measured here: c"
        ]
    );
}

#[test]
fn a_run_of_a_verification_that_fails_is_left_to_others() {
    let failed = |failure| EvaluationResult {
        failure: Some(failure),
        ..EvaluationResult::failed("no load".into())
    };
    let is_brought = |failure, purpose| or_why_not(failed(failure), purpose).is_ok();
    assert!(is_brought(Failure::Unmeasured, Purpose::Search));
    assert!(!is_brought(Failure::Harness, Purpose::Search));
    for failure in [Failure::Unmeasured, Failure::Harness] {
        let why = or_why_not(failed(failure), Purpose::Verification);
        assert_eq!(why, Err("no load".into()));
    }
    let crashed = EvaluationResult {
        outcome: Outcome::Crashed,
        failure: None,
        ..failed(Failure::Harness)
    };
    assert!(
        or_why_not(crashed, Purpose::Verification).is_ok(),
        "which is the configuration's fault"
    );
}

#[test]
fn a_result_is_brought_once_more_after_a_signal_or_else_left_to_others() {
    let published = |reply: fn(&WorkerMessage) -> Reply, count: usize| {
        let server = Server::default();
        with_worker(&server.start(reply), async |worker| {
            worker.interrupt.raise(15);
            let message = message(worker, "");
            let measured = EvaluationResult::failed("no load".into());
            worker.bring(&message, ticket(3), 1, measured).await;
        });
        server.published(count)
    };
    let has = |published: &[String], expected: &[&str]| {
        assert_eq!(published.len(), expected.len(), "{published:?}");
        for (published, expected) in published.iter().zip(expected) {
            assert!(published.contains(expected), "{published:?}");
        }
    };
    let taken = published(|_| Reply::Accepted, 2);
    has(&taken, &["result", "+ACK"]);
    let trouble: fn(&WorkerMessage) -> Reply = |request| match request {
        WorkerMessage::Result { .. } => Reply::Trouble("no store".into()),
        _ => Reply::Accepted,
    };
    let in_trouble = published(trouble, 3);
    has(&in_trouble, &["result", "release", "-NAK"]);
}

#[test]
fn a_result_of_a_verification_that_is_too_long_is_no_finding() {
    let server = Server::default();
    with_worker(&server.start(|_| Reply::Accepted), async |worker| {
        let message = message(worker, "");
        let run = Ticket {
            verification: 1,
            ..ticket(3)
        };
        let measured = EvaluationResult::failed("x".repeat(2 << 20));
        worker.bring(&message, run, 1, measured).await;
    });
    let published = server.published(1);
    assert!(published[0].contains("max_payload"), "{published:?}");
    assert!(published[0].contains("release"), "{published:?}");
}

#[test]
fn without_nats_nothing_is_asked_and_nothing_waits_to_be_sent() {
    with_worker("nats://127.0.0.1:9", async |worker| {
        let began = std::time::Instant::now();
        let hello = WorkerMessage::Hello(worker.hello.clone());
        for _ in 0..10 {
            assert_eq!(worker.ask(&hello).await, Err("NATS is not reached".into()));
        }
        // Less than two of the ten would wait for an answer.
        assert!(began.elapsed() < Duration::from_secs(10));
        let waits = worker.client.statistics();
        assert_eq!(waits.out_messages.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn an_order_that_is_not_understood_is_given_back_with_the_version() {
    let server = Server::default();
    let reply: fn(&WorkerMessage) -> Reply = |request| match request {
        WorkerMessage::Claim { .. } => Reply::Granted { attempt: 4 },
        _ => Reply::Accepted,
    };
    let rests = with_worker(&server.start(reply), async |worker| {
        let message = message(worker, r#"{ "ticket": "of another version" }"#);
        worker.attend(message).await.unwrap();
        worker.rests_until > tokio::time::Instant::now()
    });
    assert!(rests);
    let published = server.published(3);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(published.len(), 3, "{published:?}");
    assert!(published[0].contains("claim"), "{published:?}");
    let why = format!("version {version} of Slackline does not understand the order");
    for part in [r#""experiment":3"#, r#""number":7"#, r#""attempt":4"#, &why] {
        assert!(published[1].contains(part), "{published:?}");
    }
    assert_eq!(published[2], "order -NAK");
}
