//! A sound specification, and what becomes of it with other lines. The tests of `tuner` use it too.

use host::Roots;

use super::load;

/// A sound specification; `line 1` is its name.
pub(crate) const SOUND: &str = r#"name = "sound"
[[parameters]]
name = "threads"
type = "int"
low = 1
high = 32
default = 16
[target]
start = ["sleep", "9"]
[workload]
command = ["true"]
json = { requests = "requests", latency_p99_us = "p99" }
[objective]
metric = "cpu_s_per_request"
"#;

/// The error of `text` in a file of that name, without its directory.
pub(crate) fn error_in(file: &str, text: &str, roots: &Roots) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    std::fs::write(&path, text).unwrap();
    match load(&path, roots) {
        Ok(_) => "no error".to_owned(),
        Err(error) => error
            .to_string()
            .replace(&format!("{}/", dir.path().display()), ""),
    }
}

/// The error once `from` has become `to`.
pub(crate) fn error_with(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    error_in("spec.toml", &SOUND.replacen(from, to, 1), &Roots::default())
}

/// Where the words are another crate's: where it stands, and what they must name.
#[track_caller]
pub(crate) fn expect_named(from: &str, to: &str, place: &str, words: &[&str]) {
    let error = error_with(from, to);
    assert!(error.starts_with(place), "{error}");
    for word in words {
        assert!(error.contains(word), "{word} in {error}");
    }
}

/// A tree with one sysctl.
pub(crate) fn fake() -> (tempfile::TempDir, Roots) {
    let tree = tempfile::tempdir().unwrap();
    let vm = tree.path().join("proc/sys/vm");
    std::fs::create_dir_all(&vm).unwrap();
    std::fs::write(vm.join("swappiness"), "60\n").unwrap();
    let roots = Roots::at(tree.path());
    (tree, roots)
}

pub(crate) fn with_knob(lines: &str) -> String {
    format!(
        "{SOUND}[[parameters]]\nname = \"knob\"\ntype = \"int\"\nlow = 0\nhigh = 100\n{lines}\n"
    )
}
