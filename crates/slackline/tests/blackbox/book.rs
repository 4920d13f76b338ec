//! The commands of the manual run, page by page, each page in a network, a process space and
//! mounts of its own. Marks on the pages name what is not run, and why (CONTRIBUTING.md).

mod metrics;
mod pages;

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use pages::{Block, Mark};

use crate::toy::skip;

/// The commands of a page have to be done after this time.
const PAGE_S: &str = "150";
/// Programs beside the usual ones that the pages use.
const PROGRAMS: [&str; 6] = ["curl", "ip", "jq", "nginx", "openssl", "wrk"];
/// Commands that run until they are stopped. The page's other commands run beside them.
const SERVERS: [&str; 6] = [
    "slackline serve",
    "slackline serve-cache",
    "slackline serve-block run",
    "slackline agent",
    "slackline isolate run",
    "slackline worker",
];

fn is_server(command: &str) -> bool {
    let rest = |server: &&str| command.strip_prefix(*server);
    let mut rests = SERVERS.iter().filter_map(rest);
    rests.any(|it| it.is_empty() || it.starts_with(' ') && !it.starts_with(" tokens"))
        && !command.contains("--check")
}

/// The script of a page, and the commands that it runs.
fn script(blocks: &[Block]) -> (String, Vec<pages::Command>) {
    let mut script = String::new();
    for block in blocks {
        for mark in &block.marks {
            if let Mark::File(text) = mark
                && let Some((_, name)) = text.split_once(": ")
            {
                let _ = writeln!(script, "cat >{name} <<'END'\n{}END", block.text);
            }
        }
    }
    let commands = blocks.iter().flat_map(|it| it.commands().unwrap());
    let mut run = Vec::new();
    for command in commands.filter(|it| it.is_run) {
        let (number, text) = (run.len(), &command.text);
        let _ = match is_server(text) {
            true => writeln!(
                script,
                "relieve\n{{\n{text}\n}} </dev/null >\"$out/{number}\" 2>&1 &\n\
                 server=$!\nawait {number}"
            ),
            false => writeln!(script, "{{\n{text}\n}} </dev/null >\"$out/{number}\" 2>&1"),
        };
        let _ = writeln!(script, "echo \"{number} $?\" >>\"$out/codes\"");
        run.push(command);
    }
    (script, run)
}

/// Runs a script in a place of its own. The directory has its files; `work` in it is where the
/// script begins.
fn run_in_scene(directory: &Path, script: &str) -> Output {
    std::fs::write(directory.join("scene.sh"), include_str!("book/scene.sh")).unwrap();
    let whole = format!(
        "out='{}'\ncd \"$out\" && . ./scene.sh '{}'\n{script}",
        directory.display(),
        pages::root().display()
    );
    std::fs::write(directory.join("page.sh"), whole).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_slackline"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}:/usr/sbin", binary.parent().unwrap().display());
    // The shell is the first process of its space, and so the one that reaps orphans.
    let mut bash = Command::new("timeout");
    bash.args([PAGE_S, "unshare", "--net", "--mount", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc", "bash"])
        .arg(directory.join("page.sh"))
        .env("PATH", path)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null());
    bash.output().unwrap()
}

/// Whether two outputs differ at the ends of lines alone, which a page does not show.
fn is_same(one: &str, other: &str) -> bool {
    let one = one.trim_end().lines().map(str::trim_end);
    one.eq(other.trim_end().lines().map(str::trim_end))
}

/// What went wrong on a page.
fn run(text: &str) -> Vec<String> {
    let blocks = pages::blocks(text).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (script, commands) = script(&blocks);
    if commands.is_empty() {
        return Vec::new();
    }
    let ended = run_in_scene(directory, &script);
    let codes = std::fs::read_to_string(directory.join("codes")).unwrap_or_default();
    let code_of = |number: usize| {
        let mut pairs = codes.lines().filter_map(|line| line.split_once(' '));
        let code = pairs.find(|(it, _)| *it == number.to_string());
        code.map(|(_, code)| code.to_owned())
    };
    let mut faults = Vec::new();
    for (number, command) in commands.iter().enumerate() {
        let said = std::fs::read_to_string(directory.join(number.to_string()));
        let said = said.unwrap_or_default();
        let text = &command.text;
        let how = match (code_of(number).as_deref(), &command.output) {
            (Some("0"), Some(output)) if !is_same(output, &said) => "printed something else",
            (Some("0"), _) => continue,
            (Some("3"), _) => {
                skip(&format!("{text}: {said}"));
                continue;
            }
            (Some(_), _) => "failed",
            (None, _) => "had not ended when the time of the page was over",
        };
        faults.push(format!("line {}: {text}\n{how}: {said}", command.line));
    }
    if let Some(last) = faults.last_mut() {
        last.push_str(&String::from_utf8_lossy(&ended.stderr));
    }
    faults
}

/// Why no page can be run here.
fn lacks() -> Option<String> {
    let mut probe = Command::new("unshare");
    probe.args(["--net", "--mount", "--pid", "--fork", "true"]);
    let is_there = probe.stderr(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        return Some("no network, mounts and processes of its own can be made here".into());
    }
    let is_missing = |program: &&&str| {
        let mut find = Command::new("sh");
        find.args(["-c", "PATH=$PATH:/usr/sbin command -v \"$0\"", program]);
        !find.output().is_ok_and(|output| output.status.success())
    };
    let missing = PROGRAMS.iter().find(is_missing)?;
    Some(format!("{missing} is not there"))
}

#[test]
fn every_command_of_the_manual_runs() {
    if let Some(why) = lacks() {
        return skip(&why);
    }
    let pages = pages::pages();
    let faults: Vec<String> = std::thread::scope(|scope| {
        let pages = pages.iter().map(|(page, text)| {
            scope.spawn(move || {
                let faults = run(text).into_iter();
                faults
                    .map(|it| format!("{}: {it}", page.display()))
                    .collect::<Vec<_>>()
            })
        });
        let pages: Vec<_> = pages.collect();
        let faults = pages.into_iter().flat_map(|page| page.join().unwrap());
        faults.collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn a_command_that_fails_a_server_that_ends_and_another_output_are_named() {
    if let Some(why) = lacks() {
        return skip(&why);
    }
    let page = "<!-- experiment: given.toml -->\n```toml\na = 1\n```\n\n\
        <!-- not run, exit: it would end the page -->\n\
        ```sh\ngrep 'a = 1' given.toml\nslackline chck given.toml\nexit\n```\n\n\
        <!-- first: slackline serve -->\n\
        ```sh\nslackline experiments ls\nslackline agent --listen nowhere\n```\n\n\
        ```console\n$ printf 'a\\nb'\na\nb\n$ echo a\nb\n```\n";
    let faults = run(page);
    let found: Vec<&str> = faults.iter().filter_map(|it| it.lines().next()).collect();
    assert_eq!(
        found,
        [
            "line 7: slackline chck given.toml",
            "line 14: slackline agent --listen nowhere",
            "line 19: echo a"
        ],
        "{}",
        faults.join("\n")
    );
}
