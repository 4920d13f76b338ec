//! Where the kernel's file trees are. Every reader and writer of this crate takes a [`Roots`], so
//! that a fake tree in a temporary directory can stand in for the host.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use crate::error::{HostError, is_absence};

/// No kernel text file that Slackline reads is longer (`/proc/self/mountinfo` of a host with
/// thousands of containers is about 1 MiB); a longer one is cut there.
const TEXT_LIMIT_BYTES: u64 = 4 << 20;

/// The directory below which `proc` and `sys` are found.
///
/// ```
/// use host::Roots;
/// assert_eq!(Roots::default().proc("stat").to_str(), Some("/proc/stat"));
/// assert_eq!(Roots::at("/tmp/fake").sys("block").to_str(), Some("/tmp/fake/sys/block"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/` on a real host.
    pub root: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
        }
    }
}

impl Roots {
    /// A fake tree: `root/proc`, `root/sys`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether this is the running host, not a fake tree.
    #[must_use]
    pub fn is_real(&self) -> bool {
        self.root == Path::new("/")
    }

    /// A path below `/proc`.
    #[must_use]
    pub fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("proc").join(path)
    }

    /// A path below `/sys`.
    #[must_use]
    pub fn sys(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join("sys").join(path)
    }

    /// An absolute path of the host, as seen below this root.
    #[must_use]
    pub fn absolute(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The text of a kernel file; `None` where the file (or its device, group, process) does not exist.
pub(crate) fn read_text(path: &Path) -> Result<Option<String>, HostError> {
    match try_read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(HostError::read(path, &error)),
    }
}

/// The one number of a kernel file; `None` where the file does not exist.
pub(crate) fn read_number(path: &Path, key: &str) -> Result<Option<u64>, HostError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    let error = || HostError::parse(path, key, format!("\"{}\" is no number", text.trim()));
    text.trim().parse().map(Some).map_err(|_| error())
}

/// Most kernel files are shorter. An empty buffer would be filled by reads of 32, 64, 128 bytes and
/// so on.
const TEXT_USUAL_BYTES: usize = 4096;

fn try_read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(TEXT_USUAL_BYTES);
    File::open(path)?
        .take(TEXT_LIMIT_BYTES)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes `value` and a newline in one `write` call, as kernel files want it. Never creates the
/// file. The newline makes an empty value a write at all.
pub(crate) fn write_text(path: &Path, value: &str) -> io::Result<()> {
    write_bytes(path, format!("{value}\n").as_bytes())
}

/// Writes `contents` in one `write` call. Never creates the file.
pub(crate) fn write_bytes(path: &Path, contents: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    let contents = &*fake_kernel::answer(path, contents)?;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(path)?;
    file.write_all(contents)
}

/// In tests, what a kernel would make of a write to a fake tree: a refusal, or another text.
#[cfg(test)]
pub(crate) mod fake_kernel {
    use std::cell::Cell;
    use std::io;
    use std::path::Path;

    /// `Ok(None)` takes the text as it is.
    type Rule = fn(&Path, &str) -> io::Result<Option<String>>;

    thread_local! {
        static RULE: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// The rule holds until this is dropped, on this thread.
    pub(crate) struct Guard;

    impl Drop for Guard {
        fn drop(&mut self) {
            RULE.set(None);
        }
    }

    pub(crate) fn set(rule: Rule) -> Guard {
        RULE.set(Some(rule));
        Guard
    }

    pub(crate) fn answer(path: &Path, contents: &[u8]) -> io::Result<Vec<u8>> {
        let text = String::from_utf8_lossy(contents);
        let answer = RULE
            .get()
            .map_or(Ok(None), |rule| rule(path, text.trim()))?;
        Ok(answer.map_or_else(
            || contents.to_vec(),
            |text| format!("{text}\n").into_bytes(),
        ))
    }
}

/// Rejects names that would lead out of their tree.
pub(crate) fn check_relative(name: &str, path: &Path) -> Result<(), HostError> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.contains(['\0', '\n']) {
        "it has a control character"
    } else if path
        .components()
        .any(|part| !matches!(part, Component::Normal(_)))
    {
        "it has to stay below its directory (no leading /, no .. )"
    } else {
        return Ok(());
    };
    Err(HostError::InvalidName {
        name: name.to_owned(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_is_none_and_a_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_text(&dir.path().join("nothing")).unwrap().is_none());
        assert!(matches!(
            read_text(dir.path()),
            Err(HostError::Read {
                errno: libc::EISDIR,
                ..
            })
        ));
    }

    #[test]
    fn writing_never_creates() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("knob");
        assert_eq!(
            write_text(&path, "1").unwrap_err().raw_os_error(),
            Some(libc::ENOENT)
        );
        fs::write(&path, "12345\n").unwrap();
        write_text(&path, "1").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
    }
}
