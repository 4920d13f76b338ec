//! Options of known programs that hold a secret although their names do not say so.

/// A program, or several that take the same options.
pub(super) struct Program {
    names: &'static [&'static str],
    /// The options and commands that hold a secret.
    secrets: &'static [&'static str],
    /// The commands whose first argument is a secret, behind any options.
    commands: &'static [&'static str],
    /// An option behind one dash is a whole word: `-kfile` is not `-k file`.
    is_option_whole: bool,
    /// A short option takes its value in the same word only: `-px`, while `-p x` asks for it.
    is_value_attached: bool,
    /// Short options without a value, which may stand in one word before the one with a secret.
    flags: &'static str,
}

/// A program that takes the value of a short option in the same word or the next one.
const fn program(
    names: &'static [&'static str],
    secrets: &'static [&'static str],
    flags: &'static str,
) -> Program {
    Program {
        names,
        secrets,
        commands: &[],
        is_option_whole: false,
        is_value_attached: false,
        flags,
    }
}

const PROGRAMS: &[Program] = &[
    Program {
        is_value_attached: true,
        ..program(
            &[
                "mysql",
                "mysqladmin",
                "mysqlslap",
                "mariadb",
                "mariadb-admin",
                "mariadb-slap",
            ],
            &["-p"],
            "ABCEGHLNVbfinqrstvw",
        )
    },
    Program {
        is_value_attached: true,
        ..program(&["mysqldump", "mariadb-dump"], &["-p"], "ABEFGNVflnqtv")
    },
    program(&["sshpass"], &["-p"], "vhVe"),
    program(&["mongo", "mongosh"], &["-p"], ""),
    program(
        &[
            "redis-cli",
            "redis-benchmark",
            "valkey-cli",
            "valkey-benchmark",
        ],
        &["-a", "AUTH", "auth"],
        "",
    ),
    program(&["memtier_benchmark"], &["-a", "--authenticate"], ""),
    program(&["ldapsearch"], &["-w"], "ALMPRTWZnuvx"),
    program(
        &["curl"],
        &[
            "-u",
            "--user",
            "-U",
            "--proxy-user",
            "--oauth2-bearer",
            "-b",
            "--cookie",
        ],
        "#012346BGIJLNOQRSVafgijklnqsv",
    ),
    program(&["ab"], &["-A", "-P", "-C"], "DIVSWdhiklqrw"),
    program(&["hey"], &["-a", "--a"], ""),
    program(&["oha"], &["-a"], "VhjN"),
    program(&["http", "https"], &["-a"], "FISbdfhjv"),
    program(&["mosquitto_pub", "mosquitto_sub", "sqlcmd"], &["-P"], ""),
    program(&["cqlsh", "cqlsh.py"], &["-p"], ""),
    Program {
        is_option_whole: true,
        ..program(
            &["openssl"],
            &[
                "-k", "-K", "-hmac", "-macopt", "-pass", "-passin", "-passout",
            ],
            "",
        )
    },
    Program {
        commands: &["login", "lookup", "unseal", "unwrap"],
        ..program(&["vault", "bao"], &[], "")
    },
];

/// Where the secret of an option is.
pub(super) enum Secret {
    /// So many last bytes of the option's own word.
    Attached(usize),
    /// The next word.
    Next,
    /// The next word that is no option.
    Argument,
}

/// The program of that name.
pub(super) fn named(name: &str) -> Option<&'static Program> {
    PROGRAMS.iter().find(|it| it.names.contains(&name))
}

impl Program {
    /// The secret that a word of the program's command line stands for: an option alone (`-p x`),
    /// with its value (`-px`, `--user=x`), or behind options without one (`-vpx`).
    pub(super) fn secret_of(&self, word: &str) -> Option<Secret> {
        if self.commands.contains(&word) {
            return Some(Secret::Argument);
        }
        if self.is_option_whole {
            return self.secrets.contains(&word).then_some(Secret::Next);
        }
        let short = word.strip_prefix('-').filter(|it| !it.starts_with('-'));
        let Some(letters) = short else {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let secret = value.map_or(Secret::Next, |value| Secret::Attached(value.len()));
            return self.secrets.contains(&name).then_some(secret);
        };
        for (at, letter) in letters.char_indices() {
            let behind = &letters[at + letter.len_utf8()..];
            let is_it = |option: &&str| {
                option
                    .strip_prefix('-')
                    .is_some_and(|it| it.chars().eq([letter]))
            };
            if self.secrets.iter().any(is_it) {
                let value = behind.trim_start_matches('=');
                return match behind.is_empty() {
                    true => (!self.is_value_attached).then_some(Secret::Next),
                    false => Some(Secret::Attached(value.len())),
                };
            }
            if !self.flags.contains(letter) {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_stands_alone_with_its_value_or_behind_others() {
        let of = |program: &str, word: &str| {
            let secret = named(program).and_then(|it| it.secret_of(word));
            secret.map(|it| match it {
                Secret::Attached(length) => word[word.len() - length..].to_owned(),
                Secret::Next => "next".to_owned(),
                Secret::Argument => "argument".to_owned(),
            })
        };
        for (program, word, secret) in [
            ("curl", "-u", Some("next")),
            ("curl", "-su", Some("next")),
            ("curl", "-sux", Some("x")),
            ("curl", "--user", Some("next")),
            ("curl", "--user=x", Some("x")),
            ("curl", "--user-agent=x", None),
            // The value of -d, and of -o.
            ("curl", "-dau", None),
            ("curl", "-ou", None),
            ("mysql", "-p", None),
            ("mysql", "-p=x", Some("x")),
            ("mysql", "-vpx", Some("x")),
            ("mysql", "-uapp", None),
            ("redis-cli", "AUTH", Some("next")),
            ("redis-cli", "-ax", Some("x")),
            ("ab", "-kA", Some("next")),
            ("ssh", "-p", None),
            ("openssl", "-k", Some("next")),
            ("openssl", "-kfile", None),
            ("vault", "login", Some("argument")),
            ("vault", "kv", None),
        ] {
            assert_eq!(of(program, word).as_deref(), secret, "{program} {word}");
        }
    }
}
