//! Where secrets stand in the words of a command, or in a text: settings (`--password=x`,
//! `DB_PASSWORD=x`), headers, fields of JSON, options of known programs (`mysql -px`), and logins
//! (`user:password@host`).
//!
//! A script of a shell is read word by word, with its quotes. What cannot be told apart is masked
//! too far rather than too little: a masked text is read by people, and never run.

use std::ops::Range;
use std::sync::LazyLock;

use http_client::is_secret_name;
use regex::Regex;

/// `scheme://user:password@host`.
static ADDRESS: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"://[^\s:/@]*:([^\s@]+)@").ok());

/// Programs with a short option that holds a password: the option, and whether its value is a word
/// of its own (else it is written together with the option; some programs take both).
const PROGRAMS: &[(&str, &str, bool)] = &[
    ("mysql", "-p", false),
    ("mysqladmin", "-p", false),
    ("mysqldump", "-p", false),
    ("mysqlslap", "-p", false),
    ("mariadb", "-p", false),
    ("mariadb-admin", "-p", false),
    ("mariadb-dump", "-p", false),
    ("mariadb-slap", "-p", false),
    ("sshpass", "-p", true),
    ("mongo", "-p", true),
    ("mongosh", "-p", true),
    ("redis-cli", "-a", true),
    ("redis-benchmark", "-a", true),
    ("valkey-cli", "-a", true),
    ("valkey-benchmark", "-a", true),
    ("memtier_benchmark", "-a", true),
    ("ldapsearch", "-w", true),
    ("curl", "-u", true),
    ("curl", "--user", true),
    ("curl", "-U", true),
    ("curl", "--proxy-user", true),
    ("curl", "--oauth2-bearer", true),
    ("curl", "-b", true),
    ("curl", "--cookie", true),
    ("ab", "-A", true),
    ("ab", "-P", true),
    ("ab", "-C", true),
    ("hey", "-a", true),
    ("oha", "-a", true),
    ("http", "-a", true),
    ("https", "-a", true),
    ("memtier_benchmark", "--authenticate", true),
    ("redis-cli", "AUTH", true),
    ("redis-cli", "auth", true),
    ("valkey-cli", "AUTH", true),
    ("valkey-cli", "auth", true),
];

/// Short options without a value, which may stand in one word before the one that holds a secret.
const FLAGS: &[(&str, &str)] = &[
    ("curl", "#012346BGIJLNOQRSVafgijklnqsv"),
    ("ldapsearch", "ALMPRTWZnuvx"),
    ("mariadb", "ABCEGHLNVbfinqrstvw"),
    ("mariadb-dump", "ABEFGNVflnqtv"),
    ("mysql", "ABCEGHLNVbfinqrstvw"),
    ("mysqldump", "ABEFGNVflnqtv"),
];

/// A name, the quote that closes it, and what stands between it and its value.
static SETTING: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"([A-Za-z0-9_.-]+)(\\*["'])?([ \t]*)([=:])([ \t]*)"#).ok());

/// `user:password@host` without a scheme.
static LOGIN: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r#"(?:^|[\s"'=(,])([^\s:/@"'=(,]+):([^\s@/"'][^\s@"']*)@[\w\[]"#).ok()
});

/// Texts in quotes within texts in quotes: nobody writes more.
const DEPTH_MAX: usize = 4;

/// Reads the words of one command, in their order.
#[derive(Default)]
pub(crate) struct Words {
    /// The program whose options these are, as far as it is in the list.
    program: Option<&'static str>,
    /// The next word is a secret.
    is_secret_next: bool,
}

impl Words {
    /// The secrets in the next word of a list, which may be a whole script.
    pub(crate) fn next(&mut self, word: &str) -> Vec<Range<usize>> {
        let is_script = word.contains(char::is_whitespace);
        if is_script && !self.is_secret_next {
            // Its commands are not this one.
            return in_text(word);
        }
        tidy(self.word(word, 0, DEPTH_MAX))
    }

    /// The options of the present program that hold a secret.
    fn options(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let program = self.program;
        PROGRAMS
            .iter()
            .filter(move |(known, ..)| Some(*known) == program)
            .map(|(_, option, is_apart)| (*option, *is_apart))
    }

    /// The length of a secret at the end of a word that begins with its option (`-px`). A quoted
    /// one may have spaces.
    fn attached_secret(&self, word: &str) -> Option<usize> {
        self.options().find_map(|(option, _)| {
            let value = word.strip_prefix(option)?;
            let is_long = option.starts_with("--");
            let is_value = value.starts_with('=') || !(value.is_empty() || is_long);
            is_value.then(|| value.trim_start_matches('=').len())
        })
    }

    /// The length of a secret at the end of a word in which other options stand before its own
    /// (`-vpx`).
    fn clustered_secret(&self, word: &str) -> Option<usize> {
        let (_, flags) = FLAGS
            .iter()
            .find(|(known, _)| Some(*known) == self.program)?;
        let letters = word.strip_prefix('-').filter(|it| !it.starts_with('-'))?;
        let at = letters.find(|it| !flags.contains(it))?;
        let mut options = self.options();
        let is_secret = options.any(|(option, _)| option.strip_prefix('-') == letters.get(at..=at));
        let length = letters.len() - at - 1;
        (is_secret && length > 0).then_some(length)
    }

    /// The secrets in a word, which stands that far behind the beginning of its text. Texts in
    /// quotes are read so deep.
    fn word(&mut self, raw: &str, offset: usize, depth: usize) -> Vec<Range<usize>> {
        let (start, word) = inside_quotes(raw);
        let whole = offset + start..offset + start + word.len();
        if std::mem::take(&mut self.is_secret_next) {
            return std::iter::once(whole).collect();
        }
        let secret = self.attached_secret(word);
        if let Some(length) = secret.or_else(|| self.clustered_secret(word)) {
            return std::iter::once(whole.end - length..whole.end).collect();
        }
        if word.contains(char::is_whitespace) {
            // A text in quotes; of `--run="a b"`, what is behind the first quote.
            let behind = if start > 0 {
                Some(0)
            } else {
                word.find(['"', '\'']).map(|at| at + 1)
            };
            let Some(behind) = behind.filter(|_| depth > 0) else {
                return Vec::new();
            };
            let found = in_text_of(&word[behind..], depth - 1).into_iter();
            let from = whole.start + behind;
            return found.map(|it| it.start + from..it.end + from).collect();
        }
        // `my""sql` is `mysql`, too.
        let plain: String = word.chars().filter(|it| !"\"'\\".contains(*it)).collect();
        let name = plain.rsplit('/').next().unwrap_or(word);
        if let Some((program, ..)) = PROGRAMS.iter().find(|(known, ..)| *known == name) {
            self.program = Some(program);
            return Vec::new();
        }
        let mut apart = self.options().filter(|(_, is_apart)| *is_apart);
        self.is_secret_next |= apart.any(|(option, _)| {
            let letter = option.strip_prefix('-').filter(|it| it.len() == 1);
            // `-su` is `-s -u`.
            let flags = word.strip_prefix('-').unwrap_or_default();
            let is_cluster = flags.len() > 1 && flags.bytes().all(|it| it.is_ascii_alphanumeric());
            word == option || is_cluster && letter.is_some_and(|it| flags.ends_with(it))
        });
        let is_option = word.starts_with('-') && !word.contains(['=', ':']);
        self.is_secret_next |= is_option && is_secret_name(word);
        let found = settings(word).into_iter().chain(logins(word));
        found
            .map(|it| it.start + whole.start..it.end + whole.start)
            .collect()
    }
}

/// The secrets in a text: a script, a header, JSON.
pub(crate) fn in_text(text: &str) -> Vec<Range<usize>> {
    in_text_of(text, DEPTH_MAX)
}

fn in_text_of(text: &str, depth: usize) -> Vec<Range<usize>> {
    let mut found = settings(text);
    found.extend(logins(text));
    let mut words = Words::default();
    for (start, raw, begins_command) in shell_words(text) {
        if begins_command {
            words = Words::default();
        }
        found.extend(words.word(raw, start, depth));
    }
    tidy(found)
}

/// In order, without those that lie in another one.
fn tidy(mut found: Vec<Range<usize>>) -> Vec<Range<usize>> {
    found.retain(|it| !it.is_empty());
    found.sort_by_key(|it| (it.start, std::cmp::Reverse(it.end)));
    let mut tidy: Vec<Range<usize>> = Vec::new();
    for it in found {
        match tidy.last_mut() {
            Some(last) if it.start < last.end => last.end = last.end.max(it.end),
            _ => tidy.push(it),
        }
    }
    tidy
}

/// A text with these parts replaced.
pub(crate) fn masked(text: &str, spans: &[Range<usize>]) -> String {
    let mut shown = text.to_owned();
    for span in spans.iter().rev() {
        shown.replace_range(span.clone(), http_client::MASK);
    }
    shown
}

/// A word without the quotes around it, and where that begins.
fn inside_quotes(raw: &str) -> (usize, &str) {
    match raw.chars().next().filter(|it| matches!(it, '"' | '\'')) {
        Some(quote) => (1, raw[1..].strip_suffix(quote).unwrap_or(&raw[1..])),
        None => (0, raw),
    }
}

/// The words of a script: where each begins, as it is written, and whether it begins a command.
fn shell_words(text: &str) -> Vec<(usize, &str, bool)> {
    let mut words = Vec::new();
    let (mut begun, mut quote, mut is_escaped): (Option<usize>, Option<char>, bool) =
        (None, None, false);
    let mut begins_command = true;
    let ends_command = |it: char| matches!(it, ';' | '|' | '&' | '\n' | '(' | ')' | '`');
    let is_redirection = |it: char| matches!(it, '<' | '>');
    for (at, it) in text.char_indices() {
        let ends_word = it.is_whitespace() || ends_command(it) || is_redirection(it);
        let is_end = quote.is_none() && !is_escaped && ends_word;
        if is_end {
            if let Some(start) = begun.take() {
                words.push((start, &text[start..at], begins_command));
                begins_command = false;
            }
            begins_command |= ends_command(it);
            continue;
        }
        begun.get_or_insert(at);
        match (quote, it) {
            _ if is_escaped => is_escaped = false,
            (None | Some('"'), '\\') => is_escaped = true,
            (None, '"' | '\'') => quote = Some(it),
            (Some(open), it) if open == it => quote = None,
            _ => {}
        }
    }
    if let Some(start) = begun {
        words.push((start, &text[start..], begins_command));
    }
    words
}

/// The values of settings, headers and fields whose name looks secret.
fn settings(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut from = 0;
    let mut quotes = Quotes::default();
    let Some(shape) = SETTING.as_ref() else {
        return found;
    };
    while let Some(groups) = shape.captures_at(text, from) {
        let (Some(whole), Some(name)) = (groups.get(0), groups.get(1)) else {
            break;
        };
        from = whole.end().max(from + 1);
        let rest = &text[whole.end()..];
        let is_colon = groups.get(4).is_some_and(|it| it.as_str() == ":");
        let is_spaced = groups.get(5).is_some_and(|it| !it.is_empty());
        let is_field = groups.get(2).is_some();
        // A host and its port are no setting, nor is a scheme.
        let is_port =
            name.as_str().contains('.') && rest.starts_with(|it: char| it.is_ascii_digit());
        let is_address = is_colon && !is_spaced && (rest.starts_with("//") || is_port);
        if !is_secret_name(name.as_str()) || is_address || rest.is_empty() {
            continue;
        }
        let open = quotes.open_at(text, name.start());
        let value = if is_colon && is_spaced && !is_field && !starts_quoted(rest) {
            header_value(text, open, whole.end())
        } else {
            value(text, open, whole.end(), is_field)
        };
        from = value.end.max(from);
        found.push(value);
    }
    found
}

fn starts_quoted(rest: &str) -> bool {
    rest.trim_start_matches('\\').starts_with(['"', '\''])
}

/// A header's value goes to the end of its quote, or of its line.
fn header_value(text: &str, open: Option<char>, start: usize) -> Range<usize> {
    let line = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let end = open.and_then(|quote| text[start..line].find(quote));
    start..end.map_or(line, |at| start + at)
}

/// The value that begins there, in a text of which that quote is open.
fn value(text: &str, open: Option<char>, start: usize, is_field: bool) -> Range<usize> {
    let rest = &text[start..];
    let escapes = rest.len() - rest.trim_start_matches('\\').len();
    if starts_quoted(rest) {
        let quote = &rest[..=escapes];
        let inner = start + quote.len();
        return inner..closing(text, inner, quote);
    }
    if is_field && rest.starts_with(['{', '[']) {
        return start..start + nested(rest);
    }
    let mut is_escaped = false;
    let end = rest.char_indices().find(|(_, it)| {
        let ends = match it {
            ',' | '}' | ']' => is_field,
            '"' | '\'' => open == Some(*it),
            it => it.is_whitespace(),
        };
        let is_end = ends && !is_escaped;
        is_escaped = *it == '\\' && !is_escaped;
        is_end
    });
    start..end.map_or(text.len(), |(at, _)| start + at)
}

/// Where a quoted text ends that begins there: a backslash before the quote makes it a part of the
/// text.
fn closing(text: &str, start: usize, quote: &str) -> usize {
    let mut from = start;
    while let Some(at) = text[from..].find(quote) {
        let at = from + at;
        let escapes = text[start..at]
            .bytes()
            .rev()
            .take_while(|it| *it == b'\\')
            .count();
        if escapes % 2 == 0 {
            return at;
        }
        from = at + quote.len();
    }
    text.len()
}

/// The length of the braces at the beginning of a text, with all that is in them.
fn nested(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, it) in text.char_indices() {
        match it {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + it.len_utf8();
        }
    }
    text.len()
}

/// Follows the quotes of a text.
#[derive(Default)]
struct Quotes {
    at: usize,
    open: Option<char>,
    is_escaped: bool,
}

impl Quotes {
    /// The quote that is open at a place, which is behind the last one asked of.
    fn open_at(&mut self, text: &str, place: usize) -> Option<char> {
        for it in text.get(self.at..place).unwrap_or_default().chars() {
            match (self.open, it) {
                _ if self.is_escaped => self.is_escaped = false,
                (_, '\\') => self.is_escaped = true,
                (None, '"' | '\'') => self.open = Some(it),
                (Some(quote), it) if quote == it => self.open = None,
                _ => {}
            }
        }
        self.at = self.at.max(place);
        self.open
    }
}

/// The passwords of addresses, for whoever looks for them in another text.
pub(crate) fn of_addresses(text: &str) -> impl Iterator<Item = &str> {
    let found = ADDRESS
        .iter()
        .flat_map(move |shape| shape.captures_iter(text));
    found.filter_map(|groups| groups.get(1).map(|it| it.as_str()))
}

/// The passwords of logins without a scheme. (Those of addresses are masked by
/// `http_client::redact`.)
fn logins(text: &str) -> Vec<Range<usize>> {
    let found = LOGIN.iter().flat_map(|shape| shape.captures_iter(text));
    found
        .filter_map(|groups| groups.get(2).map(|it| it.range()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_scripts_headers_and_json_are_found() {
        for (text, shown) in [
            ("DB_PASSWORD=x cmd --port 80", "DB_PASSWORD=… cmd --port 80"),
            ("DB_PASSWORD='a b' cmd", "DB_PASSWORD='…' cmd"),
            ("DB_PASSWORD=\"a \\\" b\" cmd", "DB_PASSWORD=\"…\" cmd"),
            ("DB_PASSWORD=a\\ b cmd", "DB_PASSWORD=… cmd"),
            (
                "env A=1 API_TOKEN=x cmd; next",
                "env A=1 API_TOKEN=… cmd; next",
            ),
            (
                "exec db --password=x --port {port}",
                "exec db --password=… --port {port}",
            ),
            ("db --password x --port 1", "db --password … --port 1"),
            ("db --token 'x y' z", "db --token '…' z"),
            (
                "mysql -u root -pX -h db test",
                "mysql -u root -p… -h db test",
            ),
            ("mysql -p test", "mysql -p test"),
            (
                "/usr/bin/mysql -pX; redis-cli -p 7 -a X ping",
                "/usr/bin/mysql -p…; redis-cli -p 7 -a … ping",
            ),
            ("ssh -p 22 host", "ssh -p 22 host"),
            (
                "mysql -e 'select 1' && ssh -p22 h",
                "mysql -e 'select 1' && ssh -p22 h",
            ),
            ("sshpass -p X ssh h", "sshpass -p … ssh h"),
            ("curl -u me:X http://h/", "curl -u … http://h/"),
            (
                "curl -H 'Authorization: Bearer x' http://h/a",
                "curl -H 'Authorization: …' http://h/a",
            ),
            (
                "curl -H \"X-Api-Key: x\" -d '{\"password\": \"x\", \"n\": 1}'",
                "curl -H \"X-Api-Key: …\" -d '{\"password\": \"…\", \"n\": 1}'",
            ),
            (
                "curl -d \"{\\\"token\\\": \\\"x\\\"}\" h",
                "curl -d \"{\\\"token\\\": \\\"…\\\"}\" h",
            ),
            (
                "{\"auth\": {\"a\": [1, 2]}, \"b\": 1}",
                "{\"auth\": …, \"b\": 1}",
            ),
            (
                "{\"pin\": 1, \"secret\": 12345, \"b\": 2}",
                "{\"pin\": 1, \"secret\": …, \"b\": 2}",
            ),
            ("sh -c \"mysql -pX -h db\"", "sh -c \"mysql -p… -h db\""),
            ("psql me:X@db:5432/a -c 1", "psql me:…@db:5432/a -c 1"),
            ("password: x\nuser: y", "password: …\nuser: y"),
            (
                "nothing of the kind --rate=5 a:b",
                "nothing of the kind --rate=5 a:b",
            ),
            (
                "auth.example.com:443 http://auth.example.com:443/x",
                "auth.example.com:443 http://auth.example.com:443/x",
            ),
            (
                "sum(rate(tokens_total{job=\"x\"}[1m]))",
                "sum(rate(tokens_total{job=\"x\"}[1m]))",
            ),
            ("bench of --password=x", "bench of --password=…"),
            ("curl -s4u me:X http://h/", "curl -s4u … http://h/"),
            ("curl -sume:X http://h/", "curl -su… http://h/"),
            (
                "curl --oauth2-bearer X -b s=X",
                "curl --oauth2-bearer … -b …",
            ),
            ("mysql -vpX -h db", "mysql -vp… -h db"),
            ("mysql -uapp -hprod", "mysql -uapp -hprod"),
            ("x=`mysql -pX`", "x=`mysql -p…`"),
            ("mysql>out -pX", "mysql>out -p…"),
            ("my\"\"sql -pX", "my\"\"sql -p…"),
            (
                "memtier_benchmark --authenticate X",
                "memtier_benchmark --authenticate …",
            ),
            (
                "memtier_benchmark --authenticate=X",
                "memtier_benchmark --authenticate=…",
            ),
            ("redis-cli AUTH X", "redis-cli AUTH …"),
            ("export DBPASS=X GH_PAT=X", "export DBPASS=… GH_PAT=…"),
            ("bypass=1 compass=2", "bypass=1 compass=2"),
        ] {
            assert_eq!(masked(text, &in_text(text)), shown, "{text}");
        }
    }

    #[test]
    fn the_words_of_a_list_are_read_in_their_order() {
        let words = [
            ("nice", "nice"),
            ("mysql", "mysql"),
            ("-pX", "-p…"),
            ("-h", "-h"),
            ("--password", "--password"),
            ("x y", "…"),
            ("{\"password\":\"x\"}", "{\"password\":\"…\"}"),
            ("--token=a;b", "--token=…"),
            ("Authorization: Bearer x", "Authorization: …"),
            ("a:b@h", "a:…@h"),
        ];
        let mut read = Words::default();
        for (word, shown) in words {
            assert_eq!(masked(word, &read.next(word)), shown, "{word}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-a:= \"'\\\\{}\\[\\],;|&@/é\npasswordtoken]{0,60}") {
            let shown = masked(&text, &in_text(&text));
            let read = Words::default().next(&text);
            proptest::prop_assert!(shown.len() <= text.len() + 3 * text.len() && read.len() <= text.len());
        }
    }
}
