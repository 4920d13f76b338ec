//! Whom the server lets in, and to do what.
//!
//! A program sends a token as `Authorization: Bearer …`. A browser signs in on a form, or opens a
//! page once with `?token=…`; from then on a cookie holds a session (see [`crate::sessions`]),
//! which scripts cannot read (`HttpOnly`). Every change by a session needs a second secret that
//! only our own pages know, in a header (OWASP Cross-Site Request Forgery Prevention, "custom
//! request headers"). A reverse proxy that the server trusts may name the user instead. The `Host`
//! must be one of ours, so that no other name can be pointed at this address (DNS rebinding).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, HOST, LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{Credential, Visitor};
use crate::app::App;
use crate::audit::{Detail, Entry};
use crate::connections::{Broken, Peer};
use crate::limits::{self, Client};
use crate::readers;
use crate::reply::{Refusal, wants_page};
use crate::role::Role;
use crate::secret::digest;
use crate::sessions::AGE_MAX;
use crate::web::{cookie_name, header, local_path, without_token};

/// The header that carries the second secret of a change made from a page.
const CSRF_HEADER: &str = "x-slackline-csrf";

/// Where a request comes from and how its sender reaches us.
struct Origin {
    client: IpAddr,
    is_https: bool,
    host: String,
}

impl Origin {
    fn of(app: &App, request: &Request) -> Self {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.ip());
        let peer = peer.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        let headers = request.headers();
        Self {
            client: app.proxy.client(peer, headers),
            is_https: app.proxy.is_https(peer, headers),
            host: header(headers, HOST.as_str())
                .unwrap_or_default()
                .to_owned(),
        }
    }

    fn cookie_name(&self) -> String {
        cookie_name(&self.host, self.is_https)
    }

    /// The session's cookie; an empty secret takes it away.
    fn cookie(&self, secret: &str) -> Option<HeaderValue> {
        let age_s = if secret.is_empty() {
            0
        } else {
            AGE_MAX.as_secs()
        };
        let secure = if self.is_https { "; Secure" } else { "" };
        let name = self.cookie_name();
        let cookie =
            format!("{name}={secret}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age_s}{secure}");
        HeaderValue::from_str(&cookie).ok()
    }
}

/// How a request is admitted.
struct Identity {
    visitor: Visitor,
    /// A browser sends the credentials by itself, so a change needs the second secret.
    is_ambient: bool,
    /// The session's next secret.
    renewed: Option<String>,
}

/// Lets a request through if its sender may make it.
pub(crate) async fn admit(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let origin = Origin::of(&app, &request);
    let now = Instant::now();
    if matches!(path.as_str(), "/healthz" | "/readyz") {
        return match app.buckets.take(Client::at(origin.client), now) {
            Ok(()) => next.run(request).await,
            Err(wait) => limits::too_many(wait),
        };
    }
    if let Some(refusal) = misdirected(&app, &origin, &request) {
        return refusal.into_response();
    }
    if path.starts_with("/assets/") {
        return next.run(request).await;
    }
    let is_for_people = !path.starts_with("/api/") && path != "/metrics";
    if is_for_people && matches!(*request.method(), Method::GET | Method::HEAD) {
        // The first visit: the token moves from the address to a session.
        let (token, rest) = without_token(request.uri().query().unwrap_or_default());
        if let Some(token) = token {
            let to = local_path(&match rest.is_empty() {
                true => path,
                false => format!("{path}?{rest}"),
            });
            return sign_in_with(&app, &origin, &token, &to)
                .unwrap_or_else(|| see_login(&to, true));
        }
    }
    let identity = identify(&app, &origin, &request);
    let bucket = match &identity {
        Some(identity) => Client::Named(identity.visitor.name.clone()),
        None => Client::at(origin.client),
    };
    if let Err(wait) = app.buckets.take(bucket, now) {
        return limits::too_many(wait);
    }
    if path == "/login" {
        if let Some(identity) = identity {
            request.extensions_mut().insert(identity.visitor);
        }
        return next.run(request).await;
    }
    let is_change = !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if is_change && let Some(refusal) = forged(&request, &origin, identity.as_ref()) {
        return refuse(&app, &origin, identity.as_ref(), refusal);
    }
    let Some(identity) = identity else {
        if is_for_people && (wants_page(request.headers()) || !is_change) {
            return see_login(
                request.uri().path_and_query().map_or("/", |it| it.as_str()),
                false,
            );
        }
        let has_token = request.headers().contains_key(AUTHORIZATION);
        return refuse(&app, &origin, None, unauthorised(has_token));
    };
    let is_for_readers = path == "/logout" || path == CHECK;
    if is_change && identity.visitor.role < Role::Write && !is_for_readers {
        let why = "this token has the role read, so it cannot change anything";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, why);
        return refuse(&app, &origin, Some(&identity), refusal);
    }
    let (renewed, visitor) = (identity.renewed, identity.visitor);
    let role = visitor.role;
    let entry = is_change.then(|| entry_of(&request, &visitor, &origin));
    let broken = request.extensions().get::<Broken>().cloned();
    request.extensions_mut().insert(visitor.clone());
    let mut response = next.run(request).await;
    // The description has no texts of anybody.
    if role == Role::Read && path != DESCRIPTION {
        response = readers::masked(response).await;
    }
    if let Some(cookie) = renewed.and_then(|secret| origin.cookie(&secret)) {
        response.headers_mut().append(SET_COOKIE, cookie);
    }
    if let Some(Some(entry)) = entry {
        note(&app, entry, &response, broken.and_then(|it| it.why()));
    }
    // For a page that says why there is no other one.
    response.extensions_mut().insert(visitor);
    response
}

/// Why a request is not for this server, or could be taken for another one.
fn misdirected(app: &App, origin: &Origin, request: &Request) -> Option<Refusal> {
    // A proxy may heed one of two, and we the other.
    for name in [HOST, AUTHORIZATION] {
        if request.headers().get_all(&name).iter().count() > 1 {
            let why = format!("the request has more than one header `{name}`");
            return Some(Refusal::new(StatusCode::BAD_REQUEST, why));
        }
    }
    if origin.host.is_empty() {
        let why = "the request has no header `host`";
        return Some(Refusal::new(StatusCode::BAD_REQUEST, why));
    }
    if !app.access.is_ours(&origin.host) {
        let name = crate::web::without_port(&origin.host);
        let why = format!(
            "this server is not called {name}: if it should be, restart it with `--name {name}`"
        );
        return Some(Refusal::new(StatusCode::MISDIRECTED_REQUEST, why));
    }
    None
}

/// A check has a body and changes nothing, so that a token for looking is enough.
const CHECK: &str = "/api/v1/specs/check";

/// The description of the interface.
const DESCRIPTION: &str = "/api/v1/openapi.json";

/// Who sends a request: by a token, a session, or the word of a proxy.
fn identify(app: &App, origin: &Origin, request: &Request) -> Option<Identity> {
    let headers = request.headers();
    if let Some(token) = bearer(headers) {
        let token = digest(token);
        let (name, role) = app.token(&token)?;
        let visitor = Visitor {
            role,
            csrf: String::new(),
            name,
            may_sign_out: false,
            credential: Credential::Token(token),
        };
        return Some(Identity {
            visitor,
            is_ambient: false,
            renewed: None,
        });
    }
    if let Some(secret) = cookie(headers, &origin.cookie_name()) {
        let may_renew = *request.method() == Method::GET && wants_page(headers);
        if let Some(admitted) = app.sessions.admit(&secret, may_renew, app.clock.now()) {
            let (name, role) = app.token(&admitted.token)?;
            let visitor = Visitor {
                role,
                csrf: admitted.csrf.clone(),
                name,
                may_sign_out: true,
                credential: Credential::Session {
                    csrf: admitted.csrf,
                    token: admitted.token,
                },
            };
            return Some(Identity {
                visitor,
                is_ambient: true,
                renewed: admitted.renewed,
            });
        }
    }
    let peer = request.extensions().get::<Peer>()?.0.ip();
    let (name, role) = app.proxy.user(peer, headers)?;
    let csrf = digest(&format!("csrf {} {name}", app.access.write_token));
    let visitor = Visitor {
        role,
        csrf,
        name,
        may_sign_out: false,
        credential: Credential::Proxy,
    };
    Some(Identity {
        visitor,
        is_ambient: true,
        renewed: None,
    })
}

/// Why a change was not made from one of our pages, where a browser may have been made to send it.
fn forged(request: &Request, origin: &Origin, identity: Option<&Identity>) -> Option<Refusal> {
    let headers = request.headers();
    let is_of_browser = match identity {
        Some(identity) => identity.is_ambient,
        None => bearer(headers).is_none() && headers.contains_key(COOKIE),
    };
    let has_secret = identity.is_some_and(|identity| {
        let given = header(headers, CSRF_HEADER).unwrap_or_default();
        digest(given) == digest(&identity.visitor.csrf)
    });
    let is_forged = is_of_browser && !(has_secret && is_same_origin(headers, &origin.host));
    is_forged.then(|| {
        let why = "the change was not made from one of our pages: load the page again";
        Refusal::new(StatusCode::FORBIDDEN, why)
    })
}

fn is_same_origin(headers: &HeaderMap, host: &str) -> bool {
    let origin = header(headers, ORIGIN.as_str());
    origin.is_none_or(|origin| {
        let name = origin.split_once("://").map_or(origin, |(_, name)| name);
        name.eq_ignore_ascii_case(host)
    })
}

/// Writes a refusal down, as far as the client's rate allows.
fn note_refusal(
    app: &App,
    origin: &Origin,
    action: &str,
    who: Option<&str>,
    (status, why): (StatusCode, &str),
) {
    let from = origin.client;
    if app.noted.take(Client::at(from), Instant::now()).is_ok() {
        app.audit.note(Entry {
            // The advice is for whoever asked.
            refusal: why.split(". ").next().map(str::to_owned),
            ..Entry::new(action, who, Some(from), status.as_u16())
        });
    }
}

/// Refuses a request and writes it down.
fn refuse(app: &App, origin: &Origin, identity: Option<&Identity>, refusal: Refusal) -> Response {
    let who = identity.map(|identity| identity.visitor.name.as_str());
    let why = (refusal.status(), refusal.text());
    note_refusal(app, origin, "refused", who, why);
    let is_unknown = refusal.status() == StatusCode::UNAUTHORIZED;
    let mut response = refusal.into_response();
    if is_unknown {
        let headers = response.headers_mut();
        headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
    }
    response
}

/// The audit log's entry of a change; none of a check, which changes nothing.
fn entry_of(request: &Request, visitor: &Visitor, origin: &Origin) -> Option<Entry> {
    let matched = request.extensions().get::<MatchedPath>()?.as_str();
    let action = crate::openapi::operation(request.method(), matched)?;
    if action == "check" {
        return None;
    }
    let mut parts = request
        .uri()
        .path()
        .split('/')
        .skip_while(|part| *part != "experiments");
    let mut entry = Entry::new(action, Some(&visitor.name), Some(origin.client), 0);
    entry.experiment = parts.nth(1).and_then(|id| id.parse().ok());
    entry.evaluation = parts.nth(1).and_then(|number| number.parse().ok());
    Some(entry)
}

/// `broken` says why the body did not arrive, which the response does not.
fn note(
    app: &App,
    mut entry: Entry,
    response: &Response,
    broken: Option<(StatusCode, &'static str)>,
) {
    entry.status = broken
        .map_or(response.status(), |(status, _)| status)
        .as_u16();
    entry.refusal = match broken {
        Some((_, why)) => Some(why.to_owned()),
        None => Refusal::of(response).map(|refusal| refusal.with_place()),
    };
    let detail = response.extensions().get::<Detail>();
    entry.detail = detail.map(|detail| detail.0.clone());
    app.audit.note(entry);
}

/// The token of an `Authorization` header, whose scheme may be written in any case (RFC 9110,
/// 11.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = header(headers, AUTHORIZATION.as_str())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let all = headers.get_all(COOKIE).iter();
    let mut pairs = all
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    pairs.find_map(|pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then(|| value.to_owned())
    })
}

/// Begins a session for a token and sends the browser on; nothing where the token is none of ours.
fn sign_in_with(app: &App, origin: &Origin, token: &str, to: &str) -> Option<Response> {
    let attempt = Client::signing_in(origin.client);
    if let Err(wait) = app.buckets.take(attempt, Instant::now()) {
        let why = (StatusCode::TOO_MANY_REQUESTS, "too many attempts");
        note_refusal(app, origin, "sign-in", None, why);
        return Some(limits::too_many(wait));
    }
    let token = digest(token);
    let Some((name, _)) = app.token(&token) else {
        app.audit.note(Entry {
            refusal: Some("not a valid token".into()),
            ..Entry::new("sign-in", None, Some(origin.client), 401)
        });
        return None;
    };
    let secret = app.sessions.begin(&token, app.clock.now());
    app.audit
        .note(Entry::new("sign-in", Some(&name), Some(origin.client), 303));
    Some(redirect(to, origin.cookie(&secret)))
}

/// Sends the browser to the form, which leads back to where it wanted to go.
fn see_login(to: &str, is_wrong: bool) -> Response {
    let wrong = is_wrong.then(|| crate::web::WRONG_TOKEN.to_owned());
    let next = match local_path(to).as_str() {
        "/" => None,
        to => Some(format!("next={}", crate::web::encoded(to))),
    };
    let query: Vec<String> = [wrong, next].into_iter().flatten().collect();
    match query.is_empty() {
        true => redirect("/login", None),
        false => redirect(&format!("/login?{}", query.join("&")), None),
    }
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

/// What to do. Whether a token is wrong, expired or revoked is for those who can ask on the
/// server's host.
fn unauthorised(has_token: bool) -> Refusal {
    let what = match has_token {
        true => "the token is not valid",
        false => "this needs a token",
    };
    Refusal::new(
        StatusCode::UNAUTHORIZED,
        format!(
            "{what}. In a browser, sign in at /login. A program sends the header Authorization: Bearer TOKEN. On the \
             server's host, `slackline serve tokens ls` lists the named tokens and when each expires, and \
             `slackline serve tokens new --name NAME` makes one"
        ),
    )
}

/// How long the sign-in form may take to arrive.
const SIGN_IN_TIME: std::time::Duration = std::time::Duration::from_secs(10);

/// The form's answer.
struct SignIn {
    token: String,
    next: String,
}

/// Takes the token of the sign-in form.
pub(crate) async fn sign_in(State(app): State<Arc<App>>, request: Request) -> Response {
    let origin = Origin::of(&app, &request);
    if !is_same_origin(request.headers(), &origin.host) {
        let why = "the form was not sent from this server's own page: load the page again";
        note_refusal(&app, &origin, "sign-in", None, (StatusCode::FORBIDDEN, why));
        return Refusal::new(StatusCode::FORBIDDEN, why).into_response();
    }
    let body = axum::body::to_bytes(request.into_body(), 64 << 10);
    let body = tokio::time::timeout(SIGN_IN_TIME, body).await;
    let given = body.ok().and_then(Result::ok);
    let given = given.map(|body| SignIn::read(&body));
    let Some(given) = given else {
        let why = "the form did not arrive complete in time, or is too long: sign in again";
        return Refusal::new(StatusCode::BAD_REQUEST, why).into_response();
    };
    let to = local_path(&given.next);
    sign_in_with(&app, &origin, given.token.trim(), &to)
        .unwrap_or_else(|| crate::pages::login(true, &to))
}

impl SignIn {
    fn read(body: &[u8]) -> Self {
        let mut given = Self {
            token: String::new(),
            next: String::new(),
        };
        for (name, value) in crate::web::pairs(&String::from_utf8_lossy(body)) {
            match name.as_str() {
                "token" => given.token = value,
                "next" => given.next = value,
                _ => {}
            }
        }
        given
    }
}

/// Ends the session.
pub(crate) async fn sign_out(State(app): State<Arc<App>>, request: Request) -> Response {
    let origin = Origin::of(&app, &request);
    if let Some(secret) = cookie(request.headers(), &origin.cookie_name()) {
        app.sessions.end(&secret, app.clock.now());
    }
    let visitor = request.extensions().get::<Visitor>();
    let who = visitor.map(|visitor| visitor.name.as_str());
    app.audit
        .note(Entry::new("sign-out", who, Some(origin.client), 303));
    redirect("/login", origin.cookie(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_token_may_be_written_in_any_case() {
        for (value, token) in [
            ("Bearer x", Some("x")),
            ("bearer x", Some("x")),
            ("BEARER  x", Some("x")),
            ("Basic x", None),
            ("Bearer", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(bearer(&headers), token, "{value}");
        }
    }
}
