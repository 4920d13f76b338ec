//! Who may do what: two tokens, one for reading and one for everything, in a file that only its owner can read.
//!
//! A program sends its token as `Authorization: Bearer …`. A browser opens a page once with `?token=…` or signs in on a
//! form; from then on a cookie holds it, which scripts cannot read and other sites cannot send (`HttpOnly`,
//! `SameSite=Strict`), and every change needs a second secret that only our own pages know, in a header
//! (OWASP Cross-Site Request Forgery Prevention, "custom request headers"). The `Host` must be one of ours, so that no
//! other name can be pointed at this address (DNS rebinding).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::reply::Refusal;
use crate::server::App;

/// The header that carries the second secret of a change made from a page.
const CSRF_HEADER: &str = "x-slackline-csrf";

/// What a token admits to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Looking.
    Read,
    /// Looking and changing; a specification's commands run as the coordinator's user, so this is as good as being it.
    Write,
}

/// The tokens, and the names under which the server may be called.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Access {
    /// Admits to everything.
    pub write_token: String,
    /// Admits to looking.
    pub read_token: String,
    /// Where the server listens, for the command line: `127.0.0.1:8431`.
    pub address: String,
    /// Host names beside the address, `localhost` and loopback addresses.
    #[serde(default)]
    pub names: Vec<String>,
}

/// The file of the tokens cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {message}")]
pub struct AccessError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub message: String,
}

impl Access {
    fn file(state_dir: &Path) -> PathBuf {
        state_dir.join("serve.json")
    }

    /// What a running or past server left for the command line.
    ///
    /// # Errors
    /// The file is not there, or somebody else's.
    pub fn read(state_dir: &Path) -> Result<Self, AccessError> {
        let path = Self::file(state_dir);
        let failed = |message: String| AccessError {
            path: path.clone(),
            message,
        };
        let text = std::fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// The tokens of the state directory, made where there are none, and written down with the address.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn at(state_dir: &Path, address: &str, names: &[String]) -> Result<Self, AccessError> {
        let path = Self::file(state_dir);
        let failed = |message: String| AccessError {
            path: path.clone(),
            message,
        };
        let earlier = if path.exists() {
            Some(Self::read(state_dir)?)
        } else {
            None
        };
        let token = || {
            rand::random::<[u8; 32]>()
                .map(|byte| format!("{byte:02x}"))
                .concat()
        };
        let access = Self {
            write_token: earlier
                .as_ref()
                .map_or_else(token, |access| access.write_token.clone()),
            read_token: earlier
                .as_ref()
                .map_or_else(token, |access| access.read_token.clone()),
            address: address.to_owned(),
            names: names.to_vec(),
        };
        serde_json::to_vec_pretty(&access)
            .map_err(std::io::Error::from)
            .and_then(|text| host::replace_private(&path, &text))
            .map_err(|error| failed(error.to_string()))?;
        Ok(access)
    }

    /// What a token admits to. Digests are compared, whose bytes tell a guesser nothing about the token's.
    fn role(&self, token: &str) -> Option<Role> {
        let given = Sha256::digest(token.as_bytes());
        let is = |ours: &str| Sha256::digest(ours.as_bytes()) == given;
        if is(&self.write_token) {
            Some(Role::Write)
        } else if is(&self.read_token) {
            Some(Role::Read)
        } else {
            None
        }
    }

    /// Whether the server may be called so; a port does not matter.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let own = self.address.rsplit_once(':').map_or("", |(name, _)| name);
        matches!(name, "localhost" | "127.0.0.1" | "[::1]")
            || name == own
            || self.names.iter().any(|ours| ours == name)
    }
}

/// The second secret of a change made from a page.
fn csrf_of(token: &str) -> String {
    let digest = Sha256::digest(format!("slackline csrf {token}").as_bytes());
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Who asks, for the pages.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) role: Role,
    pub(crate) csrf: String,
}

/// Lets a request through if its sender may make it.
pub(crate) async fn admit(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &app.access;
    let headers = request.headers();
    let host = header(headers, HOST.as_str()).unwrap_or_default();
    if !access.is_ours(host) {
        return Refusal::new(
            StatusCode::MISDIRECTED_REQUEST,
            "this is not the name of this server",
        )
        .into_response();
    }
    let path = request.uri().path().to_owned();
    if path == "/login" || path.starts_with("/assets/") {
        return next.run(request).await;
    }
    let is_for_people = !path.starts_with("/api/") && path != "/metrics";
    // The first visit: the token moves from the address to a cookie.
    let query = request.uri().query().unwrap_or_default();
    let in_query = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="));
    if let Some(token) = in_query
        && is_for_people
        && request.method() == Method::GET
    {
        return match access.role(token) {
            Some(_) => signed_in(token, &path),
            None => see_login(),
        };
    }
    let bearer =
        header(headers, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "));
    let (token, is_cookie) = match (bearer, cookie(headers)) {
        (Some(token), _) => (token.to_owned(), false),
        (None, Some(token)) => (token, true),
        (None, None) => (String::new(), false),
    };
    let Some(role) = access.role(&token) else {
        return if is_for_people {
            see_login()
        } else {
            unauthorised()
        };
    };
    let is_change = !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if is_change && role < Role::Write {
        return Refusal::new(StatusCode::FORBIDDEN, "this token only admits to looking")
            .into_response();
    }
    let csrf = csrf_of(&token);
    if is_change && is_cookie {
        let origin = header(headers, ORIGIN.as_str())
            .map(|origin| origin.split("//").last().unwrap_or(origin));
        let is_same_origin = origin.is_none_or(|origin| origin == host);
        if header(headers, CSRF_HEADER) != Some(csrf.as_str()) || !is_same_origin {
            return Refusal::new(
                StatusCode::FORBIDDEN,
                "the change was not made from one of our pages",
            )
            .into_response();
        }
    }
    request.extensions_mut().insert(Visitor { role, csrf });
    next.run(request).await
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(COOKIE).iter();
    let pairs = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    pairs
        .filter_map(|pair| pair.trim().strip_prefix("slackline="))
        .map(str::to_owned)
        .next()
}

/// Sends the browser on, with the token in a cookie.
fn signed_in(token: &str, path: &str) -> Response {
    let cookie = format!("slackline={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age=31536000");
    redirect(path, HeaderValue::from_str(&cookie).ok())
}

fn see_login() -> Response {
    redirect("/login", None)
}

fn redirect(path: &str, cookie: Option<HeaderValue>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    if let Ok(path) = HeaderValue::from_str(path) {
        headers.insert(LOCATION, path);
    }
    if let Some(cookie) = cookie {
        headers.insert(SET_COOKIE, cookie);
    }
    response
}

fn unauthorised() -> Response {
    let refusal = Refusal::new(
        StatusCode::UNAUTHORIZED,
        "send the token of serve.json in the state directory: Authorization: Bearer …",
    );
    let mut response = refusal.into_response();
    response
        .headers_mut()
        .insert("www-authenticate", HeaderValue::from_static("Bearer"));
    response
}

/// The form's answer.
#[derive(Deserialize)]
pub(crate) struct SignIn {
    #[serde(default)]
    token: String,
}

/// Takes the token of the sign-in form.
pub(crate) async fn sign_in(
    State(app): State<Arc<App>>,
    axum::Form(given): axum::Form<SignIn>,
) -> Response {
    match app.access.role(given.token.trim()) {
        Some(_) => signed_in(given.token.trim(), "/"),
        None => crate::pages::login(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access {
            write_token: "w".repeat(64),
            read_token: "r".repeat(64),
            address: "10.0.0.1:8431".into(),
            names: vec!["tuner.example".into()],
        }
    }

    #[test]
    fn tokens_admit_to_their_role_and_nothing_else() {
        let access = access();
        assert_eq!(access.role(&"w".repeat(64)), Some(Role::Write));
        assert_eq!(access.role(&"r".repeat(64)), Some(Role::Read));
        for wrong in ["", "w", &"w".repeat(65)] {
            assert_eq!(access.role(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_our_names_are_ours() {
        let access = access();
        for ours in [
            "localhost:1",
            "127.0.0.1",
            "[::1]:8431",
            "10.0.0.1:8431",
            "tuner.example",
        ] {
            assert!(access.is_ours(ours), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example:8431",
            "127.0.0.1.evil.example",
        ] {
            assert!(!access.is_ours(other), "{other}");
        }
    }

    #[test]
    fn the_tokens_stay_and_are_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let first = Access::at(dir.path(), "127.0.0.1:1", &[]).unwrap();
        let second = Access::at(dir.path(), "127.0.0.1:2", &[]).unwrap();
        assert_eq!(first.write_token, second.write_token);
        assert_ne!(first.write_token, first.read_token);
        assert_eq!(Access::read(dir.path()).unwrap().address, "127.0.0.1:2");
        let mode = std::fs::metadata(Access::file(dir.path()))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
