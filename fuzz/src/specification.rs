//! Any text as the specification of an experiment: JSON if it begins with a brace, otherwise TOML.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use experiment_spec::{Spec, SpecContext, SpecError, check_text};
use host::Roots;

use crate::seeds::{files, repository};
use crate::target::Target;

/// The target.
pub const TARGET: Target = Target {
    name: "specification",
    run,
    seeds,
    memory_max_bytes: 64 << 20,
};

/// An error is some lines of text. It may repeat a name or a command of the specification.
const MESSAGE_MAX_BYTES: usize = 8 << 10;

/// Folders of examples that have specifications.
const EXAMPLES: [&str; 6] = [
    "graal-inlining",
    "haproxy",
    "nginx-continuous",
    "nginx-sysctl",
    "nginx-workers",
    "postgres",
];

/// What a specification has at least, a line for each key.
const SOUND: [(&str, &str); 4] = [
    (
        "parameters",
        r#"parameters = [{ name = "pool", type = "int", low = 1, high = 64, default = 8 }]"#,
    ),
    ("target", r#"target = { start = ["sleep", "9"] }"#),
    (
        "workload",
        r#"workload = { command = ["load", "{pool}"], json = { requests = "requests" } }"#,
    ),
    (
        "objective",
        r#"objective = { metric = "cpu_s_per_request" }"#,
    ),
];

/// A host with one knob.
static HOST: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = repository().join("target/fuzz/host");
    std::fs::create_dir_all(root.join("proc/sys/vm")).expect("a directory");
    std::fs::write(root.join("proc/sys/vm/swappiness"), "60\n").expect("a file");
    root
});

/// The examples' specifications and those of the manual, and all of them as JSON.
fn seeds() -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    for folder in EXAMPLES {
        let files = files(&format!("examples/{folder}")).into_iter();
        let files = files.filter(|(name, _)| name.ends_with(".toml"));
        texts.extend(files.map(|(_, bytes)| String::from_utf8(bytes).expect("text")));
    }
    let manual = repository().join("docs/specification.md");
    let manual = std::fs::read_to_string(manual).expect("the manual");
    let parts = manual.split("```toml\n").skip(1);
    texts.extend(parts.map(|part| whole(part.split("```").next().unwrap_or_default())));
    let parsed = texts.iter().filter_map(|text| check(text).ok());
    let as_json: Vec<String> = parsed.map(|spec| json(&spec)).collect();
    texts.extend(as_json);
    texts.into_iter().map(String::into_bytes).collect()
}

/// A part of a specification, with the keys before it that it lacks.
fn whole(part: &str) -> String {
    let is_missing = |name: &str| {
        let heads = [format!("[{name}"), format!("\n{name} =")];
        !part.starts_with(&format!("{name} =")) && !heads.iter().any(|head| part.contains(head))
    };
    let missing = SOUND.iter().filter(|(name, _)| is_missing(name));
    let missing: String = missing.map(|(_, line)| format!("{line}\n")).collect();
    missing + part
}

fn run(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else {
        return false;
    };
    let is_accepted = match check(text) {
        Ok(spec) => {
            // What is written of it is read as the same.
            let written = json(&spec);
            let again = check(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
            assert_eq!(json(&again), written);
            true
        }
        Err(error) => {
            check_error(&error, text);
            false
        }
    };
    check_on_host(text);
    is_accepted
}

fn check(text: &str) -> Result<Spec, SpecError> {
    check_text(text.to_owned(), file_of(text))
}

fn json(spec: &Spec) -> String {
    serde_json::to_string_pretty(spec).expect("a specification can be written")
}

fn file_of(text: &str) -> &'static Path {
    Path::new(match text.trim_start().starts_with('{') {
        true => "spec.json",
        false => "spec.toml",
    })
}

/// The whole check, on a host of one knob. What is kept for a later session stands for the same.
fn check_on_host(text: &str) {
    let roots = Roots::at(&*HOST);
    let context = SpecContext {
        has_begun: true,
        ..SpecContext::new(&roots)
    };
    match context.check(text.to_owned(), file_of(text)) {
        Ok(checked) => {
            let pinned = json(&checked.pinned());
            let again = context.check(pinned.clone(), file_of(&pinned));
            let again = again.unwrap_or_else(|error| panic!("{error}\n{pinned}"));
            assert_eq!(json(&again.pinned()), pinned);
        }
        Err(error) => check_error(&error, text),
    }
}

/// An error names a line of the text, and is not as long as the text.
fn check_error(error: &SpecError, text: &str) {
    let lines = 1 + text.matches('\n').count();
    assert!(
        error.line.is_none_or(|line| (1..=lines).contains(&line)),
        "{error}"
    );
    assert!(!error.message.is_empty());
    assert!(
        error.message.len() <= MESSAGE_MAX_BYTES + 8 * text.len(),
        "{error}"
    );
}
