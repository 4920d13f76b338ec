//! `slackline serve tokens`: the named tokens of a state directory.

use std::path::Path;

use anyhow::{Context as _, bail};
use dashboard::{NamedToken, Role, TokenFile};
use jiff::{Span, Timestamp, Zoned};
use serde_json::json;

use crate::done::CommandOutcome;
use crate::output::{message, print};
use crate::table;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the named tokens, without their secrets.
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a token and print it once. Slackline keeps only a digest.
    New {
        /// The person or program that uses the token. The audit log shows this name.
        #[arg(long)]
        name: String,
        /// What the holder may do. `read`: view only. `write`: everything, including commands that
        /// run as the server's user.
        #[arg(long, default_value = "read", value_parser = role)]
        role: Role,
        /// When the token expires: a date, a time (RFC 3339), or a duration from now, such as 90d.
        /// By default never.
        #[arg(long, value_name = "WHEN", value_parser = moment)]
        expires: Option<Timestamp>,
    },
    /// Revoke a token. Its sessions and event streams end within a second.
    Revoke {
        /// The token's name.
        name: String,
    },
}

fn role(text: &str) -> Result<Role, String> {
    match text {
        "read" => Ok(Role::Read),
        "write" => Ok(Role::Write),
        _ => Err("a role is read or write".into()),
    }
}

/// A moment to come: absolute, or from now on.
fn moment(text: &str) -> Result<Timestamp, String> {
    // Seconds are enough, now and then: a period below a second is none.
    let now = Zoned::now();
    let now = now.with().subsec_nanosecond(0).build().unwrap_or(now);
    let date = || {
        let date = text.parse::<jiff::civil::Date>().ok()?;
        Some(date.to_zoned(now.time_zone().clone()).ok()?.timestamp())
    };
    let span = || now.checked_add(text.parse::<Span>().ok()?).ok();
    let moment = text.parse::<Timestamp>().ok().or_else(date);
    let moment = moment.or_else(|| span().map(|then| then.timestamp()));
    let moment = moment.and_then(|it| Timestamp::from_second(it.as_second()).ok());
    match moment {
        Some(moment) if moment > now.timestamp() => Ok(moment),
        Some(_) => Err("that is in the past".into()),
        None if is_period(text) => {
            let days = Timestamp::MAX.duration_since(now.timestamp()).as_hours() / 24;
            Err(format!(
                "that is too long: the largest period is {days}d. For a token that never expires, leave this option out"
            ))
        }
        None => {
            Err("give a date (2027-01-31), a time (RFC 3339), or how long from now (90d)".into())
        }
    }
}

/// Whether a text is how long from now, however large its numbers are.
fn is_period(text: &str) -> bool {
    let mut short = String::new();
    for it in text.chars() {
        match it.is_ascii_digit() {
            true if short.ends_with('1') => {}
            true => short.push('1'),
            false => short.push(it),
        }
    }
    short.parse::<Span>().is_ok()
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let file = TokenFile::of(state_dir);
    match &arguments.verb {
        Verb::Ls { json: true } => {
            let tokens = file.list()?;
            let tokens: Vec<_> = tokens.iter().map(as_json).collect();
            print(&(serde_json::to_string_pretty(&tokens)? + "\n"))?;
        }
        Verb::Ls { json: false } => print(&list(&file.list()?))?,
        Verb::New {
            name,
            role,
            expires,
        } => {
            if !state_dir.is_dir() {
                bail!(
                    "{}: there is no such state directory; start `slackline serve` with it first",
                    state_dir.display()
                );
            }
            let token = file.create(name, *role, *expires)?;
            let until = expires.map_or_else(String::new, |at| format!(", expires {}", time(at)));
            let what = format!("{name}, role {role}{until}");
            dashboard::note_command(state_dir, "make-token", &what, message);
            message(&format!(
                "token {name} has the role {role}. It is shown only now:"
            ));
            print(&format!("{token}\n"))?;
        }
        Verb::Revoke { name } => {
            file.revoke(name)
                .with_context(|| format!("the token {name} is not revoked"))?;
            dashboard::note_command(state_dir, "revoke-token", name, message);
            message(&format!("token {name} is revoked"));
        }
    }
    Ok(CommandOutcome::Positive)
}

fn as_json(token: &NamedToken) -> serde_json::Value {
    json!({
        "name": token.name,
        "role": token.role,
        "created": format!("{:.0}", token.created),
        "expires": token.expires.map(|at| format!("{at:.0}")),
        "is_valid": token.is_valid(Timestamp::now()),
    })
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

fn list(tokens: &[NamedToken]) -> String {
    let mut rows = table::table(&["name", "role", "made", "expires"]);
    for token in tokens {
        let expires = match token.expires {
            None => "never".to_owned(),
            Some(at) if !token.is_valid(Timestamp::now()) => format!("{} (expired)", time(at)),
            Some(at) => time(at),
        };
        rows.add_row([
            token.name.clone(),
            token.role.to_string(),
            time(token.created),
            expires,
        ]);
    }
    format!("{rows}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_at_a_moment_to_come() {
        for text in ["90d", "2y", "3 hours", "2999-01-31", "2999-01-31T12:00:00Z"] {
            let moment = moment(text).unwrap();
            assert_eq!(moment.subsec_nanosecond(), 0, "{text}");
        }
        for text in [
            "",
            "soon",
            "2001-01-31",
            "-3d",
            "1ms",
            "2001-01-31T12:00:00Z",
        ] {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_period_that_is_too_long_is_refused_with_the_largest() {
        for text in ["9999999999d", "99999 years", "1y 99999999999999999999h"] {
            let why = moment(text).unwrap_err();
            assert!(why.starts_with("that is too long: "), "{text}: {why}");
            let mut words = why.split(' ');
            let largest = words.find(|it| it.ends_with("d.")).unwrap();
            let largest = largest.trim_end_matches('.');
            moment(largest).unwrap_or_else(|why| panic!("{largest}: {why}"));
        }
        assert!(
            moment("99999-01-01")
                .unwrap_err()
                .starts_with("give a date")
        );
    }
}
