//! The form of single texts and numbers of an entry: what the text of the file alone shows.

use experiment_spec::{NAME_CHARS_MAX, is_line};
use wire_latency::SourceSpec;

/// A shorter piece of a container's id could name two.
const CONTAINER_ID_LEAST: usize = 12;
/// The highest id that a process can have (include/linux/threads.h, `PID_MAX_LIMIT`).
const PID_MAX: u32 = 4 * 1024 * 1024;
/// The longest name of a network device (include/uapi/linux/if.h, `IFNAMSIZ` with its NUL).
const DEVICE_NAME_BYTES_MAX: usize = 15;

/// What is said of a text that would look like another one.
const ONE_LINE: &str = "must be one line of text, without control characters";

/// A name that stands in tables and messages.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if !is_line(name) {
        return Err(ONE_LINE.to_owned());
    }
    match name.chars().count() {
        length if length > NAME_CHARS_MAX => Err(format!(
            "the name has {length} characters, and may have {NAME_CHARS_MAX}: give a shorter one"
        )),
        _ => Ok(()),
    }
}

/// A systemd unit.
pub(crate) fn check_unit(unit: &str) -> Result<(), String> {
    match is_line(unit) && !unit.contains('/') {
        true => Ok(()),
        false => Err("must be the name of a systemd unit, such as batch.slice".to_owned()),
    }
}

/// The path of a control group.
pub(crate) fn check_cgroup(path: &str) -> Result<(), String> {
    if path.is_empty() || !is_line(path) {
        return Err("must be the path of a control group, such as jobs/batch".to_owned());
    }
    match path.trim_matches('/').is_empty() {
        true => Err("the root group is everybody's: name a group below it".to_owned()),
        false => Ok(()),
    }
}

/// A container's id.
pub(crate) fn check_container(id: &str) -> Result<(), String> {
    match is_line(id) && !id.contains('/') && id.len() >= CONTAINER_ID_LEAST {
        true => Ok(()),
        false => Err(format!(
            "must be the id of a container: at least its first {CONTAINER_ID_LEAST} digits"
        )),
    }
}

/// A process id.
pub(crate) fn check_pid(pid: u32) -> Result<(), String> {
    match (1..=PID_MAX).contains(&pid) {
        true => Ok(()),
        false => Err(format!("must be the id of a process: 1 to {PID_MAX}")),
    }
}

/// A command with its arguments. Arguments may have several lines.
pub(crate) fn check_command(words: &[String]) -> Result<(), String> {
    let Some(program) = words.first().filter(|program| !program.is_empty()) else {
        return Err("name a program".to_owned());
    };
    if words.iter().any(|word| word.contains('\0')) {
        return Err("a word of a command has no NUL in it".to_owned());
    }
    match is_line(program) {
        true => Ok(()),
        false => Err(format!("the program {ONE_LINE}")),
    }
}

/// The command of a shell.
pub(crate) fn check_shell_command(command: &str) -> Result<(), String> {
    if command.trim().is_empty() {
        return Err("write a command".to_owned());
    }
    match command.contains('\0') {
        true => Err("a command has no NUL in it".to_owned()),
        false => Ok(()),
    }
}

/// The texts of a source that stand in messages: the key of the first that would look like another
/// one, and what it must be.
pub(crate) fn check_source(source: &SourceSpec) -> Result<(), (&'static str, String)> {
    let texts = match source {
        SourceSpec::Wire(_) | SourceSpec::Prometheus(_) => Vec::new(),
        SourceSpec::Scrape(scrape) => vec![("scrape.histogram", scrape.histogram.clone())],
        SourceSpec::Command(words) => {
            return check_command(words).map_err(|why| ("command", why));
        }
        SourceSpec::Push(push) => {
            let path = push.unix.as_ref().map(|path| path.display().to_string());
            let path = path.map(|path| ("push.unix", path));
            let timer = push.timer.clone().map(|timer| ("push.timer", timer));
            path.into_iter().chain(timer).collect()
        }
    };
    match texts.into_iter().find(|(_, text)| !is_line(text)) {
        Some((key, _)) => Err((key, ONE_LINE.to_owned())),
        None => Ok(()),
    }
}

/// The name of a network device, as the kernel takes it (net/core/dev.c, `dev_valid_name`).
pub(crate) fn is_device_name(name: &str) -> bool {
    is_line(name)
        && name.len() <= DEVICE_NAME_BYTES_MAX
        && !matches!(name, "." | "..")
        && !name.contains(|it: char| it.is_whitespace() || matches!(it, '/' | ':'))
}

/// The name of a disk: no path, and none that leads out of `/sys/block`.
pub(crate) fn is_disk_name(name: &str) -> bool {
    is_line(name) && !name.contains('/') && !name.starts_with('.')
}

/// To six digits, which are more than any measurement has: so many are printed.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// A text of others on one line: what controls a terminal, or turns the direction of writing, is
/// written as an escape.
pub(crate) fn on_one_line(text: &str) -> String {
    let shown = text.chars().map(|it| match is_plain(it) {
        true => it.to_string(),
        false => it.escape_default().to_string(),
    });
    shown.collect()
}

fn is_plain(it: char) -> bool {
    !it.is_control() && !experiment_spec::is_deceptive(it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_form_of_what_they_name() {
        let is_right = |checked: Result<(), String>| checked.is_ok();
        assert!(is_right(check_name("web of Zürich")));
        assert!(is_right(check_unit("user@1000.service")));
        assert!(is_right(check_cgroup("/a/b/")));
        assert!(is_right(check_container("0123456789ab")));
        assert!(is_right(check_pid(1)));
        assert!(is_right(check_shell_command("wc -l\ncat x")));
        for wrong in ["", " ", "a\nb", "a\u{1b}[31m", "a\u{202e}b"] {
            assert!(!is_right(check_name(wrong)), "{wrong:?}");
            assert!(!is_right(check_unit(wrong)), "{wrong:?}");
            assert!(!is_right(check_cgroup(wrong)), "{wrong:?}");
        }
        assert!(!is_right(check_name(&"a".repeat(101))));
        assert!(!is_right(check_unit("system.slice/web.service")));
        assert!(!is_right(check_cgroup("//")));
        assert!(!is_right(check_container("0123")));
        assert!(!is_right(check_pid(0)));
        assert!(!is_right(check_pid(4_194_305)));
        assert!(!is_right(check_shell_command(" ")));
        let command = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            is_right(check_command(&words))
        };
        assert!(command(&["sh", "-c", "a\nb"]));
        assert!(!command(&[]));
        assert!(!command(&[""]));
        assert!(!command(&["a\nb"]));
        assert!(!command(&["a", "\0"]));
    }

    #[test]
    fn devices_have_the_names_that_the_kernel_gives() {
        for name in ["eth0", "enp0s31f6", "a.b", "veth-0123456789"] {
            assert!(is_device_name(name), "{name}");
        }
        for name in ["", "..", "../x", "a b", "eth0:1", "0123456789abcdef"] {
            assert!(!is_device_name(name), "{name}");
        }
        assert!(is_disk_name("nvme0n1"));
        for name in ["", "/dev/vda", "..", ".", "v\nda"] {
            assert!(!is_disk_name(name), "{name}");
        }
    }

    #[test]
    fn numbers_and_texts_stay_short_and_on_their_line() {
        assert_eq!(rounded(5.0), 5.0);
        assert_eq!(rounded(99.9999), 99.9999);
        assert_eq!(rounded(1.0 / 3.0).to_string(), "0.333333");
        assert_eq!(rounded(0.001_234_567_89).to_string(), "0.00123457");
        assert_eq!(on_one_line("a\nb\u{202e}c"), "a\\nb\\u{202e}c");
        assert_eq!(on_one_line("Zürich"), "Zürich");
    }
}
