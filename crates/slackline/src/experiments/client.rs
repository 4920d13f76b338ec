//! A server, and what it answers.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use dashboard::Access;
use serde_json::Value;
use tuner::sentence::sentence;

use super::verbs::Arguments;
use crate::output::error_chain;

/// What is said where the server's answer cannot be read.
pub(super) const NOT_JSON: &str = "the server's answer is not JSON";

/// A server and the token for it.
pub(super) struct Client {
    agent: ureq::Agent,
    base: String,
    token: String,
    /// Where the token is from.
    source: &'static str,
    /// What to do where nobody answers.
    if_down: String,
}

impl Client {
    pub(super) fn new(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<Self> {
        let (url, token) = match &arguments.url {
            Some(url) => {
                let token = std::env::var("SLACKLINE_TOKEN")
                    .ok()
                    .filter(|token| !token.is_empty())
                    .context("--url needs a token: set the environment variable SLACKLINE_TOKEN")?;
                let is_address = http_client::Url::parse(url).is_ok();
                anyhow::ensure!(
                    is_address,
                    "--url {} is not an address: give for example http://127.0.0.1:8431",
                    http_client::redact(url)
                );
                (url.trim_end_matches('/').to_owned(), token)
            }
            None => return Self::of(state_dir),
        };
        let if_down = "start `slackline serve` there, or check the address of --url".to_owned();
        Ok(Self::to(&url, token, "SLACKLINE_TOKEN", if_down))
    }

    /// The server of the state directory.
    pub(super) fn of(state_dir: &Path) -> anyhow::Result<Self> {
        let start = start_it(state_dir);
        let access = Access::read(state_dir).map_err(|error| {
            match state_dir.join("serve.json").try_exists() {
                Ok(false) => anyhow!(
                    "no server has run with the state directory {}: {start}",
                    state_dir.display()
                ),
                _ => anyhow!("{error}"),
            }
        })?;
        let url = format!("http://{}", access.address);
        let if_down = format!(
            "the server with the state directory {} has ended: {start}",
            state_dir.display()
        );
        Ok(Self::to(&url, access.write_token, "serve.json", if_down))
    }

    fn to(url: &str, token: String, source: &'static str, if_down: String) -> Self {
        let agent = http_client::config(std::time::Duration::from_secs(120))
            .http_status_as_error(false)
            .build();
        Self {
            agent: agent.into(),
            base: format!("{url}/api/v1"),
            token,
            source,
            if_down,
        }
    }

    pub(super) fn text(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<String> {
        let bytes = self.bytes(
            method,
            path,
            body.map_or_else(String::new, Value::to_string),
        )?;
        String::from_utf8(bytes).context("the server's answer is not text")
    }

    pub(super) fn bytes(&self, method: &str, path: &str, body: String) -> anyhow::Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(body)?;
        let mut response = self.agent.run(request).map_err(|error| {
            let is_down = is_refused(&error);
            let error = anyhow::Error::from(error).context(format!("{url} does not answer"));
            match is_down {
                true => anyhow!("{}. {}", error_chain(&error), sentence(&self.if_down)),
                false => error,
            }
        })?;
        let status = response.status();
        let bytes = response
            .body_mut()
            .with_config()
            .limit(1 << 30)
            .read_to_vec()
            .with_context(|| url.clone())?;
        if status.is_success() {
            return Ok(bytes);
        }
        if status == ureq::http::StatusCode::UNAUTHORIZED {
            bail!(
                "the token in {} is not valid (wrong, revoked or expired). On the server's host, `slackline serve tokens ls` lists \
                 the named tokens and when each expires, and `slackline serve tokens new` makes one",
                self.source
            );
        }
        let text = String::from_utf8_lossy(&bytes);
        let refusal: Value = serde_json::from_str(&text).unwrap_or_default();
        let why = refusal["detail"].as_str().unwrap_or(&text);
        // What was sent is a file, or made of arguments.
        let why = why.strip_prefix(dashboard::OF_BODY).unwrap_or(why);
        match (refusal["line"].as_u64(), refusal["key"].as_str()) {
            (Some(line), Some("") | None) => bail!("line {line}: {why}"),
            (Some(line), Some(key)) => bail!("line {line}: {key}: {why}"),
            (None, Some(key)) if !key.is_empty() => bail!("{key}: {why}"),
            _ => bail!("{why}"),
        }
    }

    pub(super) fn json(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let text = self.text(method, path, body)?;
        serde_json::from_str(&text).context(NOT_JSON)
    }
}

/// How to start a server, or reach another one.
fn start_it(state_dir: &Path) -> String {
    format!(
        "start it with `{} serve`, or name the state directory of another server with --state-dir",
        crate::state_dir::shell_command(state_dir)
    )
}

/// Whether nobody listens at the address.
fn is_refused(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}
