//! The secrets of a command: what a message that quotes the command, or its output, must not show.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http_client::MASK;

use crate::spec::credentials::{self, Words};
use experiment_spec::environment::secret_in;

/// Nothing shorter is masked in an output: a value such as `false` would take words out of
/// messages.
const SECRET_CHARS_MIN: usize = 6;

/// A command's words as those see them who may only look.
pub(crate) fn masked(argv: &[String]) -> Vec<String> {
    let mut words = Words::default();
    let each = argv
        .iter()
        .map(|word| credentials::masked(word, &words.next(word)));
    each.map(|word| http_client::redact(&word)).collect()
}

/// The secrets among a command's words, whole and word by word: `Authorization: Bearer x` has two,
/// and each may be printed alone.
fn hidden(argv: &[String]) -> Vec<String> {
    let mut words = Words::default();
    let mut secrets = Vec::new();
    for word in argv {
        secrets.extend(credentials::of_addresses(word).map(str::to_owned));
        for span in words.next(word) {
            let secret = &word[span];
            secrets.push(secret.to_owned());
            secrets.extend(secret.split_whitespace().map(str::to_owned));
        }
    }
    secrets
}

/// A text that a command has printed, or that speaks of it, with each of the command's secrets
/// masked: values under names that look secret, options, headers, and what comes from files.
pub(crate) fn without_secrets(
    argv: &[String],
    env: &BTreeMap<String, String>,
    env_files: &BTreeMap<String, PathBuf>,
    text: &str,
) -> String {
    let mut secrets = hidden(argv);
    for (name, value) in env {
        if http_client::is_secret_name(name) {
            secrets.push(value.clone());
        }
    }
    let files = env_files.values();
    secrets.extend(files.filter_map(|file| secret_in(file).ok()));
    secrets.retain(|secret| secret.chars().count() >= SECRET_CHARS_MIN);
    // A secret may be a part of another one.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
        .iter()
        .fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
}

#[cfg(test)]
mod tests {
    use crate::process::Launch;

    #[test]
    fn what_a_command_prints_shows_none_of_its_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "f1le-t0ken\n").unwrap();
        let text = |it: &str| it.to_owned();
        let words = [
            "db",
            "--password=0ption-pw",
            "--token",
            "w0rd-token",
            "-H",
            "Authorization: Bearer h3ader-token",
            "--auth=none",
            "plain-word",
        ];
        let launch = Launch {
            argv: words.into_iter().map(str::to_owned).collect(),
            env: [
                (text("DB_PASSWORD"), text("env-s3cret")),
                (text("LEVEL"), text("harmless")),
            ]
            .into(),
            env_files: [(text("API_TOKEN"), file)].into(),
            ..Launch::default()
        };
        let said =
            "0ption-pw w0rd-token h3ader-token env-s3cret f1le-t0ken; plain-word harmless none";
        assert_eq!(
            launch.without_secrets(said),
            "… … … … …; plain-word harmless none"
        );
        let line = launch.command_line();
        for secret in ["0ption-pw", "w0rd-token", "h3ader-token"] {
            assert!(!line.contains(secret), "{line}");
        }
        assert!(line.contains("plain-word"), "{line}");
    }
}
