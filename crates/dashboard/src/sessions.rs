//! The sessions of browsers: opaque, rotating, and ended by sign-out, by age or with their token.
//!
//! The cookie holds a random secret and no token. Every hour of use the secret is replaced. The
//! former one admits until the browser has shown the new one and two minutes have passed, so that
//! requests under way still succeed. The file in the state directory holds digests only; sessions
//! outlive a restart by it. Times are those of [`crate::clock::Clock`], which never jumps.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lock::lock;
use crate::secret::{digest, random_hex};

/// A session ends that long after signing in.
pub(crate) const AGE_MAX: SignedDuration = SignedDuration::from_hours(30 * 24);
/// A session that nobody uses for that long ends.
const IDLE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);
/// A secret is replaced after that long.
const ROTATE_AFTER: SignedDuration = SignedDuration::from_hours(1);
/// The former secret admits for that long after the new one was made.
const OVERLAP: SignedDuration = SignedDuration::from_mins(2);
/// Sessions at once; the oldest one ends for another.
const SESSIONS_MAX: usize = 1000;

/// A session as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Session {
    /// Digest of the secret in the cookie.
    secret: String,
    /// Digest of the former secret.
    former: Option<String>,
    /// The browser has shown the present secret.
    is_confirmed: bool,
    /// Digest of the token that it was signed in with.
    token: String,
    /// The second secret of a change, which only our pages know.
    csrf: String,
    created: Timestamp,
    rotated: Timestamp,
}

/// A session, for the request that it admits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    /// Digest of the token that it was signed in with.
    pub(crate) token: String,
    pub(crate) csrf: String,
    /// The browser is to use this secret from now on.
    pub(crate) renewed: Option<String>,
}

/// All sessions of a server.
pub(crate) struct Sessions {
    path: PathBuf,
    all: Mutex<Vec<Session>>,
}

impl Sessions {
    /// Those that a former server left in the state directory. One from the future, because the
    /// clock was set back since, counts as begun now: it lasts no longer than a new one.
    pub(crate) fn of(state_dir: &Path, now: Timestamp, report: fn(&str)) -> Self {
        let path = state_dir.join("sessions.json");
        let mut all = read(&path).unwrap_or_else(|why| {
            report(&format!("{}: {why}", path.display()));
            Vec::new()
        });
        for session in &mut all {
            session.created = session.created.min(now);
            session.rotated = session.rotated.min(now);
        }
        Self {
            path,
            all: Mutex::new(all),
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Session>> {
        lock(&self.all)
    }

    /// A full disk costs a sign-in after the next restart, and nothing else.
    fn keep(&self, all: &[Session]) {
        let text = serde_json::to_vec(all).map_err(std::io::Error::from);
        let _ = text.and_then(|text| host::replace_private(&self.path, &text));
    }

    /// Begins a session and returns its secret.
    pub(crate) fn begin(&self, token_digest: &str, now: Timestamp) -> String {
        let secret = random_hex();
        let mut all = self.all();
        all.retain(|session| session.is_alive(now));
        while all.len() >= SESSIONS_MAX {
            all.remove(0);
        }
        all.push(Session {
            secret: digest(&secret),
            former: None,
            is_confirmed: false,
            token: token_digest.to_owned(),
            csrf: random_hex(),
            created: now,
            rotated: now,
        });
        self.keep(&all);
        secret
    }

    /// The session of a secret. Where `may_renew`, the answer may carry another secret.
    pub(crate) fn admit(&self, secret: &str, may_renew: bool, now: Timestamp) -> Option<Admitted> {
        let given = digest(secret);
        let mut all = self.all();
        let session = all.iter_mut().find(|session| session.has(&given, now))?;
        let is_present = session.secret == given;
        session.is_confirmed |= is_present;
        let mut admitted = Admitted {
            token: session.token.clone(),
            csrf: session.csrf.clone(),
            renewed: None,
        };
        if may_renew && is_present && now.duration_since(session.rotated) >= ROTATE_AFTER {
            let renewed = random_hex();
            session.former = Some(std::mem::replace(&mut session.secret, digest(&renewed)));
            session.is_confirmed = false;
            session.rotated = now;
            admitted.renewed = Some(renewed);
            self.keep(&all);
        }
        Some(admitted)
    }

    /// Whether the session with that second secret has not ended.
    pub(crate) fn is_open(&self, csrf: &str, now: Timestamp) -> bool {
        let all = self.all();
        all.iter().any(|it| it.csrf == csrf && it.is_alive(now))
    }

    /// Ends the session of a secret.
    pub(crate) fn end(&self, secret: &str, now: Timestamp) {
        let given = digest(secret);
        let mut all = self.all();
        all.retain(|session| !session.has(&given, now));
        self.keep(&all);
    }
}

fn read(path: &Path) -> Result<Vec<Session>, String> {
    let text = match crate::private::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| error.to_string())?,
    };
    let go_on = "no session goes on, and everybody has to sign in again";
    serde_json::from_str(&text).map_err(|error| crate::private::damage(&error, go_on))
}

impl Session {
    fn is_alive(&self, now: Timestamp) -> bool {
        now.duration_since(self.created) < AGE_MAX && now.duration_since(self.rotated) < IDLE_MAX
    }

    fn has(&self, digest: &str, now: Timestamp) -> bool {
        let may_use_former = !self.is_confirmed || now.duration_since(self.rotated) < OVERLAP;
        let is_former = self.former.as_deref() == Some(digest) && may_use_former;
        self.is_alive(now) && (self.secret == digest || is_former)
    }
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan as _;

    use super::*;

    #[test]
    fn a_secret_rotates_and_the_former_one_ends_once_the_new_one_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let start = Timestamp::now();
        let sessions = Sessions::of(dir.path(), start, |_| ());
        let after = |minutes: i64| start.checked_add(minutes.minutes()).unwrap();
        let first = sessions.begin("t", start);
        let admitted = sessions.admit(&first, true, after(59)).unwrap();
        assert_eq!(admitted.renewed, None);
        // What is no page renews nothing.
        let admitted = sessions.admit(&first, false, after(60)).unwrap();
        assert_eq!(admitted.renewed, None);
        let admitted = sessions.admit(&first, true, after(60)).unwrap();
        let second = admitted.renewed.unwrap();
        // The answer with the new one may have been lost.
        assert!(sessions.admit(&first, true, after(100)).is_some());
        let again = sessions.admit(&second, true, after(101)).unwrap();
        assert_eq!(again.csrf, admitted.csrf);
        assert!(sessions.admit(&first, true, after(101)).is_none());
        // A restart keeps it, and a sign-out ends it.
        let sessions = Sessions::of(dir.path(), after(102), |_| ());
        assert!(sessions.admit(&second, false, after(102)).is_some());
        assert!(sessions.is_open(&admitted.csrf, after(102)));
        let text = std::fs::read_to_string(dir.path().join("sessions.json")).unwrap();
        assert!(!text.contains(&second), "{text}");
        sessions.end(&second, after(103));
        assert!(sessions.admit(&second, false, after(103)).is_none());
        assert!(!sessions.is_open(&admitted.csrf, after(103)));
    }

    #[test]
    fn a_session_from_the_future_lasts_no_longer_than_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let start = Timestamp::now();
        let after = |hours: i64| start.checked_add(hours.hours()).unwrap();
        let far = after(100 * 24);
        let secret = Sessions::of(dir.path(), far, |_| ()).begin("t", far);
        // The clock was wrong then, and is set right before the next start.
        let sessions = Sessions::of(dir.path(), start, |_| ());
        assert!(sessions.admit(&secret, false, after(7 * 24 - 1)).is_some());
        assert!(sessions.admit(&secret, false, after(7 * 24)).is_none());
    }

    #[test]
    fn a_damaged_file_is_named_and_everybody_signs_in_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sessions.json");
        std::fs::write(&path, "[\n{\"secret\": 1").unwrap();
        let why = read(&path).unwrap_err();
        assert!(
            why.starts_with("line 2: ") && why.contains("sign in again"),
            "{why}"
        );
        let sessions = Sessions::of(dir.path(), Timestamp::now(), |_| ());
        assert!(sessions.all().is_empty());
    }

    #[test]
    fn a_session_that_is_not_used_or_too_old_ends() {
        let dir = tempfile::tempdir().unwrap();
        let start = Timestamp::now();
        let sessions = Sessions::of(dir.path(), start, |_| ());
        let after = |hours: i64| start.checked_add(hours.hours()).unwrap();
        let mut secret = sessions.begin("t", start);
        assert!(sessions.admit(&secret, false, after(7 * 24)).is_none());
        for day in 1..30 {
            let admitted = sessions.admit(&secret, true, after(day * 24)).unwrap();
            secret = admitted.renewed.unwrap();
        }
        assert!(sessions.admit(&secret, true, after(30 * 24)).is_none());
    }
}
