//! Notifications: people and programs elsewhere are told what became of experiments.
//!
//! A thread looks at the store after every change and compares it with what it saw last. What is
//! new becomes events, and each event a delivery for every receiver that wants it. What was seen
//! and what is not yet delivered are one file, written before anything is sent: after a crash an
//! event may come twice, with the same number, and none is lost.

mod events;
mod send;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coordinator::Coordinator;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use events::{Event, Seen};
pub(crate) use send::Receiver;

/// How often the thread looks whether something changed or is due.
const LOOK: Duration = Duration::from_millis(500);
/// Deliveries that wait, at most: beyond them the oldest is given up.
const WAITING_MAX: usize = 1000;
/// The first pause after a failure; each further one is twice as long, up to an hour.
const AGAIN_S: i64 = 5;
const AGAIN_MAX_S: i64 = 3600;
/// A delivery that failed for that long is given up.
const GIVE_UP_S: i64 = 86_400;

/// Something is wrong with the file of receivers.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct NotifyError {
    path: PathBuf,
    message: String,
}

/// The file, as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// The address of these pages as receivers reach it, for links.
    #[serde(default)]
    base_url: Option<String>,
    #[serde(default)]
    webhook: Vec<send::Webhook>,
    #[serde(default)]
    email: Vec<send::Email>,
}

/// Who is told what.
#[derive(Debug)]
pub struct Notifications {
    base_url: String,
    receivers: BTreeMap<String, Receiver>,
}

impl Notifications {
    /// The receivers of a TOML file; see `docs/notifications.md`.
    ///
    /// # Errors
    /// The file, or a file of a secret that it names, cannot be read; what is wrong in it.
    pub fn read(path: &Path) -> Result<Self, NotifyError> {
        let failed = |message: String| NotifyError {
            path: path.to_owned(),
            message: http_client::redact(&message),
        };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let config: Config = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut receivers = BTreeMap::new();
        for (index, webhook) in config.webhook.iter().enumerate() {
            let key = format!("webhook[{index}]");
            let receiver = webhook
                .receiver(dir)
                .map_err(|why| failed(format!("{key}.{why}")))?;
            receivers.insert(key, receiver);
        }
        for (index, email) in config.email.iter().enumerate() {
            let key = format!("email[{index}]");
            let receiver = email
                .receiver()
                .map_err(|why| failed(format!("{key}.{why}")))?;
            receivers.insert(key, receiver);
        }
        if receivers.is_empty() {
            return Err(failed(
                "there is neither a [[webhook]] nor an [[email]]: add one".into(),
            ));
        }
        Ok(Self {
            base_url: config
                .base_url
                .unwrap_or_default()
                .trim_end_matches('/')
                .to_owned(),
            receivers,
        })
    }

    /// Tells until the coordinator ends. `address` stands in links where the file has no
    /// `base_url`.
    pub fn run(&self, coordinator: &Coordinator, address: &str, report: &dyn Fn(&str)) {
        let path = coordinator.state_dir().join("notifications.json");
        let base_url = match self.base_url.is_empty() {
            true => format!("http://{address}"),
            false => self.base_url.clone(),
        };
        let clock = Clock::start(Timestamp::now(), Instant::now());
        let mut kept = Kept::read(&path, report);
        for delivery in &mut kept.waiting {
            delivery.go_on(clock.now());
        }
        let mut revision = None;
        while !coordinator.is_ending() {
            let now = coordinator.store().revision();
            if coordinator.is_active() && revision != Some(now) {
                match self.look(&mut kept, coordinator, &base_url, clock.now()) {
                    Ok(is_new) => {
                        revision = Some(now);
                        if is_new && let Err(error) = kept.write(&path) {
                            report(&format!("{}: {error}", path.display()));
                        }
                    }
                    // The store is in trouble, and the next look comes soon.
                    Err(_) => revision = None,
                }
            }
            if self.deliver(&mut kept, clock.now(), report)
                && let Err(error) = kept.write(&path)
            {
                report(&format!("{}: {error}", path.display()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Compares the store with what was seen; whether there is something to keep.
    fn look(
        &self,
        kept: &mut Kept,
        coordinator: &Coordinator,
        base_url: &str,
        now: Timestamp,
    ) -> Result<bool, coordinator::Error> {
        let seen = Seen::of(coordinator, kept.seen.as_ref())?;
        // At the very first start nobody is told of what is long past.
        let events = match &kept.seen {
            Some(before) => seen.since(before),
            None => Vec::new(),
        };
        let is_new = kept.seen.as_ref() != Some(&seen);
        kept.seen = Some(seen);
        for mut event in events {
            kept.last += 1;
            event.number = kept.last;
            event.url = event.experiment.map_or_else(
                || format!("{base_url}/host"),
                |id| format!("{base_url}/experiments/{id}"),
            );
            for (receiver, it) in &self.receivers {
                if it.wants(event.event) {
                    kept.waiting.push(Delivery {
                        receiver: receiver.clone(),
                        event: event.clone(),
                        failures: 0,
                        since: now,
                        due: now,
                    });
                }
            }
        }
        let too_many = kept.waiting.len().saturating_sub(WAITING_MAX);
        kept.waiting.drain(..too_many);
        Ok(is_new)
    }

    /// Sends what is due, one after the other; whether something changed.
    fn deliver(&self, kept: &mut Kept, now: Timestamp, report: &dyn Fn(&str)) -> bool {
        let mut changed = false;
        let mut left = Vec::new();
        // Who failed a moment ago is not waited for again at once: the others are not to be held
        // up.
        let mut away: BTreeMap<String, Timestamp> = BTreeMap::new();
        for mut delivery in std::mem::take(&mut kept.waiting) {
            // Who is not in the file any more is not told any more.
            let Some(receiver) = self.receivers.get(&delivery.receiver) else {
                changed = true;
                continue;
            };
            if let Some(due) = away.get(&delivery.receiver) {
                delivery.due = delivery.due.max(*due);
            }
            if delivery.due > now {
                left.push(delivery);
                continue;
            }
            changed = true;
            let event = &delivery.event;
            let what = format!("notification {} to {}", event.number, delivery.receiver);
            match receiver.send(event) {
                Ok(()) => report(&format!("{what}: {} is delivered", event.event.name())),
                Err(why)
                    if now.duration_since(delivery.since)
                        > SignedDuration::from_secs(GIVE_UP_S) =>
                {
                    report(&format!("{what} is given up after a day: {why}"));
                }
                Err(why) => {
                    let doubled = AGAIN_S << delivery.failures.min(16);
                    let pause_s = doubled.min(AGAIN_MAX_S);
                    delivery.failures += 1;
                    delivery.due = now + SignedDuration::from_secs(pause_s);
                    away.insert(delivery.receiver.clone(), delivery.due);
                    report(&format!("{what} failed; next try in {pause_s} s: {why}"));
                    left.push(delivery);
                }
            }
        }
        kept.waiting = left;
        changed
    }
}

/// An event on its way to one receiver. Its times are those of a [`Clock`], so that no change of
/// the wall clock makes a receiver wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Delivery {
    receiver: String,
    event: Event,
    failures: u32,
    /// When it began to wait.
    since: Timestamp,
    due: Timestamp,
}

impl Delivery {
    /// Goes on after a restart: at once, because whoever starts the server again has perhaps mended
    /// what failed. A time to come is of a clock that was set back since.
    fn go_on(&mut self, now: Timestamp) {
        self.since = self.since.min(now);
        self.due = self.due.min(now);
    }
}

/// What outlives the process.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The number of the last event.
    last: u64,
    seen: Option<Seen>,
    waiting: Vec<Delivery>,
}

impl Kept {
    fn read(path: &Path, report: &dyn Fn(&str)) -> Self {
        let read = match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Self::default(),
            read => read,
        };
        let go_on = "starting with an empty file; undelivered notifications are lost";
        let kept = read.map_err(|error| format!("{error}: {go_on}"));
        let kept = kept.and_then(|text| {
            serde_json::from_slice(&text).map_err(|error| crate::private::damage(&error, go_on))
        });
        kept.unwrap_or_else(|why| {
            report(&format!("{}: {why}", path.display()));
            Self::default()
        })
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        host::replace_private(path, &serde_json::to_vec(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::events::Kind;
    use super::*;

    fn of(text: &str) -> Result<Notifications, NotifyError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "s3cr3t\n").unwrap();
        let path = dir.path().join("notify.toml");
        std::fs::write(&path, text).unwrap();
        Notifications::read(&path)
    }

    #[test]
    fn a_file_of_receivers_is_checked() {
        let right = "[[webhook]]\nurl = \"http://127.0.0.1:1/\"\nsecret_file = \"secret\"\nevents = [\"shown\"]\n\
             [[email]]\nto = [\"ops@example.org\"]\n";
        let read = of(right).unwrap();
        assert_eq!(read.receivers.len(), 2);
        assert!(read.receivers["webhook[0]"].wants(Kind::Shown));
        assert!(!read.receivers["webhook[0]"].wants(Kind::Ended));
        assert!(read.receivers["email[0]"].wants(Kind::Ended));
        for (wrong, says) in [
            ("", "neither"),
            ("[[webhook]]\nurl = \"ftp://x\"", "url"),
            (
                "[[webhook]]\nurl = \"http://x\"\nevents = [\"all\"]",
                "unknown variant",
            ),
            (
                "[[webhook]]\nurl = \"http://x\"\nsecret_file = \"none\"",
                "secret_file",
            ),
            ("[[email]]\nto = []", "to"),
            ("[[email]]\nto = [\"a@b\\nBcc: c@d\"]", "to"),
        ] {
            let said = of(wrong).unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
    }

    #[test]
    fn what_fails_is_tried_again_later_and_given_up_after_a_day() {
        let notifications = of("[[email]]\nto = [\"a@b\"]\ncommand = [\"false\"]").unwrap();
        let at = Timestamp::UNIX_EPOCH;
        let event = Event::new(Kind::Ended, at, Some(1), "x", "done");
        let mut kept = Kept::default();
        kept.waiting.push(Delivery {
            receiver: "email[0]".into(),
            event,
            failures: 0,
            since: at,
            due: at,
        });
        let after = |s: i64| at + SignedDuration::from_secs(s);
        assert!(notifications.deliver(&mut kept, at, &|_| ()));
        assert_eq!(kept.waiting[0].due, after(5));
        assert!(
            !notifications.deliver(&mut kept, after(4), &|_| ()),
            "not yet"
        );
        assert!(notifications.deliver(&mut kept, after(5), &|_| ()));
        assert_eq!(kept.waiting[0].due, after(15));
        let mut restarted = kept.waiting[0].clone();
        let earlier = after(-10_800);
        restarted.go_on(earlier);
        let times = (restarted.since, restarted.due);
        assert_eq!(times, (earlier, earlier), "the clock was set back");
        kept.waiting[0].failures = 40;
        assert!(notifications.deliver(&mut kept, after(80_000), &|_| ()));
        assert_eq!(kept.waiting[0].due, after(83_600), "an hour at the most");
        assert!(notifications.deliver(&mut kept, after(90_000), &|_| ()));
        assert!(kept.waiting.is_empty());
    }

    #[test]
    fn a_receiver_that_is_away_is_asked_once_at_a_time() {
        let notifications = of("[[email]]\nto = [\"a@b\"]\ncommand = [\"false\"]").unwrap();
        let at = Timestamp::UNIX_EPOCH;
        let delivery = Delivery {
            receiver: "email[0]".into(),
            event: Event::new(Kind::Ended, at, Some(1), "x", "done"),
            failures: 0,
            since: at,
            due: at,
        };
        let mut kept = Kept {
            waiting: vec![delivery.clone(), delivery],
            ..Kept::default()
        };
        notifications.deliver(&mut kept, at, &|_| ());
        let failures: Vec<u32> = kept.waiting.iter().map(|it| it.failures).collect();
        assert_eq!(failures, [1, 0]);
        assert_eq!(kept.waiting[1].due, kept.waiting[0].due);
    }

    #[test]
    fn what_is_kept_is_private_and_comes_back() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notifications.json");
        let kept = Kept {
            last: 7,
            ..Kept::default()
        };
        kept.write(&path).unwrap();
        assert_eq!(Kept::read(&path, &|_| ()), kept);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
