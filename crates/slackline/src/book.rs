//! The manual names commands, options and keys that exist. `tests/blackbox/book.rs` runs the
//! commands that can be run.

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::pages::{self, Block, Mark};

/// What a fragment of an experiment is completed with: a service that Slackline starts, or one that
/// runs by itself.
const EXPERIMENTS: &[&str] = &[
    r#"
        parameters = [{ name = "threads", type = "int", low = 1, high = 64 }]
        target = { start = ["app", "--threads={threads}"] }
        workload = { command = ["load"], json = { latency_p99_us = "p99" } }
        objective = { metric = "latency_p99_us" }
    "#,
    r#"
        parameters = [{ name = "threads", type = "int", low = 1, high = 64, default = 8 }]
        target = { apply = [{ command = ["app", "reload", "{threads}"] }] }
        workload = { command = ["load"], json = { latency_p99_us = "p99" } }
        objective = { metric = "latency_p99_us" }
    "#,
];
const BLOCKS: &[&str] = &[r#"
    device = [{ path = "/dev/nvme1n1" }]
    tenant = [{ export = "db", device = "/dev/nvme1n1" }]
"#];
const ISOLATE: &[&str] = &[r#"
    service = { unit = "app.service", objective = { p99_ms = 5 }, latency = { wire = { port = 80 } } }
"#];
const RELAYOUT: &[&str] = &[r#"watch = [{ exe = "mariadbd" }]"#];
const WORKERS: &[&str] = &[r#"nats = { url = "tls://nats.example:4222" }"#];

/// The users of the manual's examples.
const PASSWD: &str = "mysql:x:107:115::/nonexistent:/bin/false\n";

/// What is wrong on a page.
fn faults(text: &str) -> Vec<String> {
    let blocks = match pages::blocks(text) {
        Ok(blocks) => blocks,
        Err(fault) => return vec![fault],
    };
    let mut faults = Vec::new();
    for block in &blocks {
        let found = match block.language.as_str() {
            "" => Err("a block has no language: write sh, console, text, …".to_owned()),
            "sh" | "console" => check_commands(block),
            "toml" | "json" | "yaml" => check_file(block),
            _ => Ok(()),
        };
        faults.extend(found.err().map(|why| format!("line {}: {why}", block.line)));
    }
    faults.extend(spans(text).filter_map(|(line, span)| {
        let why = span_fault(span)?;
        Some(format!("line {line}: `{span}`: {why}"))
    }));
    faults
}

fn check_commands(block: &Block) -> Result<(), String> {
    for command in block.commands()? {
        let words = words(&command.text);
        if words.first().is_some_and(|it| it == "slackline")
            && let Err(error) = crate::Arguments::try_parse_from(words)
        {
            return Err(format!("{}: {}", command.text, error.render()));
        }
    }
    Ok(())
}

/// What is wrong with a command in a sentence or a table. It may lack what the reader is to add.
fn span_fault(span: &str) -> Option<String> {
    let is_placeholder = |word: &str| word.chars().all(|it| it.is_ascii_uppercase() || it == '_');
    let words = words(span).into_iter().filter(|it| !it.contains('…'));
    let words = words.map(|it| if is_placeholder(&it) { "1".into() } else { it });
    let error = crate::Arguments::try_parse_from(words).err()?;
    let is_wrong = matches!(
        error.kind(),
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand
    );
    is_wrong.then(|| error.render().to_string())
}

/// Commands of this binary within the text, with their lines.
fn spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    let lines = (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        !in_block && !is_fence
    });
    let spans = lines.flat_map(|(number, line)| {
        let spans = line.split('`').skip(1).step_by(2);
        spans.map(move |span| (number, span))
    });
    spans.filter(|(_, span)| span.starts_with("slackline "))
}

/// The words of the first command of a line, as a shell splits them. A value that the shell would
/// compute is 1.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(next) = chars.next() {
        match next {
            '\\' if chars.peek() == Some(&'\n') => {}
            '\'' | '"' => {
                let quoted: String = chars.by_ref().take_while(|it| *it != next).collect();
                let is_computed = next == '"' && quoted.starts_with("$(");
                word.get_or_insert_default()
                    .push_str(if is_computed { "1" } else { &quoted });
            }
            '#' if word.is_none() => break,
            '|' | ';' | '&' | '>' | '<' => break,
            space if space.is_whitespace() => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// Reads a file of a page as the product does.
fn check_file(block: &Block) -> Result<(), String> {
    let mut kind = None;
    for mark in &block.marks {
        match mark {
            Mark::NotChecked => return Ok(()),
            Mark::File(text) => kind = Some(text.as_str()),
            Mark::NotRun(_) | Mark::First(_) => {}
        }
    }
    let kind = kind.ok_or("a mark has to say what this file is, such as <!-- experiment -->")?;
    let Some(kind) = kind.strip_suffix(", in part") else {
        let kind = kind.split(": ").next().unwrap_or(kind);
        return check_as(kind, &block.text);
    };
    let bases = match kind {
        "experiment" => EXPERIMENTS,
        "blocks" => BLOCKS,
        "isolate" => ISOLATE,
        "relayout" => RELAYOUT,
        "worker" => WORKERS,
        _ => &[],
    };
    let found = bases
        .iter()
        .map(|base| check_as(kind, &completed(base, &block.text)?));
    let none = Err(format!("nothing completes {kind:?} here"));
    found.reduce(Result::or).unwrap_or(none)
}

/// The keys of the part, and those of the base that it does not have.
fn completed(base: &str, part: &str) -> Result<String, String> {
    let parsed = |text: &str| -> Result<toml::Table, String> {
        text.parse()
            .map_err(|error: toml::de::Error| error.to_string())
    };
    let mut whole = parsed(base)?;
    whole.extend(parsed(part)?);
    Ok(whole.to_string())
}

fn check_as(kind: &str, text: &str) -> Result<(), String> {
    fn read<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<(), String> {
        result.map(drop).map_err(|error| error.to_string())
    }
    // Some readers take a file only, and open the files that it names.
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = &directory.path().join("file.toml");
    for (path, text) in [
        (file, text),
        (&directory.path().join("webhook-secret"), "secret"),
    ] {
        read(std::fs::write(path, text))?;
    }
    crate::schemas::check(kind, text).map_err(|error| format!("its JSON Schema: {error}"))?;
    match kind {
        "experiment" => read(tuner::spec::check_text(text.to_owned(), file)),
        "ask-tell" => read(tuner::spec::context(&host::Roots::default()).load_space(file)),
        "isolate" => read(isolate_run::IsolationConfig::read(file)),
        "blocks" => read(block_server::config::BlockConfig::read(file)),
        "relayout" => read(crate::relayout::check_config(file, PASSWD)),
        "notify" => read(dashboard::Notifications::read(file)),
        "workers" => read(dispatch::ServerConfig::read(file)),
        "worker" => read(dispatch::WorkerConfig::read(file)),
        other => Err(format!("no reader of a file {other:?} is known here")),
    }
}

#[test]
fn every_command_and_file_of_the_manual_is_one_that_slackline_takes() {
    let mut found = Vec::new();
    for (page, text) in pages::pages() {
        // What clap itself has written.
        if page.ends_with("command-line.md") {
            continue;
        }
        let faults = faults(&text);
        found.extend(faults.iter().map(|it| format!("{}: {it}", page.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn what_is_wrong_on_a_page_is_found() {
    for (page, expected) in [
        ("```sh\nslackline tune a.toml --jsn b\n```", "--jsn"),
        ("```console\n$ slackline tune a.toml --jsn b\n```", "--jsn"),
        ("```sh\nslackline load --url x \\\n  --rat 5\n```", "--rat"),
        ("```sh\nslackline load\n```", "required"),
        (
            "```sh\nslackline promotions undo first\n```",
            "invalid value",
        ),
        ("<!-- first: slackline srve -->\n```sh\ntrue\n```", "srve"),
        ("```\nslackline doctor\n```", "no language"),
        (
            "<!-- not run: slow -->\n```sh\ntrue\n```",
            "without a reason",
        ),
        (
            "<!-- not run, flase: it would fail here -->\n```sh\ntrue\n```",
            "no command begins",
        ),
        (
            "<!-- not run: it takes long -->\n\n```sh\n```",
            "above no block",
        ),
        ("Run `slackline chck FILE`.", "chck"),
        ("Run `slackline check FILE --jsn`.", "--jsn"),
        ("```toml\nname = 1\n```", "has to say"),
        (
            "<!-- experiment, in part -->\n```toml\nsead = 1\n```",
            "sead",
        ),
        (
            "<!-- experiment, in part -->\n```toml\n[evaluation]\nblock_s = -1\n```",
            "block_s",
        ),
        ("<!-- worker -->\n```toml\nname = \"a\"\n```", "nats"),
        ("<!-- poem -->\n```toml\n```", "poem"),
    ] {
        let found = faults(page).join("\n");
        assert!(found.contains(expected), "{page}\n{found}");
    }
    for page in [
        "```sh\nslackline doctor   # or not\n\n# a comment\nslackline ask-tell a.toml > b\n```",
        "```sh\nslackline relayout start --pid \"$(pidof app)\" --once\n```",
        "Run `slackline check FILE`, `slackline experiments`, `slackline load --url URL …`.",
        "<!-- not checked: the key is cut -->\n```toml\nkey = 1\n```",
        "<!-- experiment, in part -->\n```toml\nseed = 1\n```",
        "```text\nslackline srve\n```",
    ] {
        assert_eq!(faults(page), Vec::<String>::new(), "{page}");
    }
    let marked = "<!-- not run, tr: it does nothing -->\n```sh\ntrue\nfalse\n```";
    let blocks = pages::blocks(marked).unwrap();
    let is_run = |it: &pages::Command| it.is_run;
    let commands = blocks[0].commands().unwrap();
    assert_eq!(
        commands.iter().map(is_run).collect::<Vec<_>>(),
        [false, true]
    );
    assert_eq!(commands[0].line, 2);
    let run = pages::blocks("```console\n$ echo a\na\n```").unwrap();
    let output = run[0].commands().unwrap().remove(0).output;
    assert_eq!(output.as_deref(), Some("a"));
    assert!(pages::root().join("docs").is_dir());
}
