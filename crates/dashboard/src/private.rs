//! Files of the state directory that only their owner may read, and that nobody else can have
//! written.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Opens a file for appending; makes it where there is none. One that others could read becomes
/// private.
pub(crate) fn open_append(path: &Path) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Makes a file with these contents, whole or not at all. One that is there already stays as it is.
pub(crate) fn create(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    host::replace_private(&temporary, contents)?;
    let made = std::fs::hard_link(&temporary, path);
    let _ = std::fs::remove_file(&temporary);
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Reads a file that decides who is let in, or where a token is sent.
///
/// # Errors
/// The file cannot be read, or somebody else may have written it.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let own = rustix::process::geteuid().as_raw();
    if let Some(why) = host::Distrust::of(&file.metadata()?, own) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// What is wrong with a damaged file of JSON: the line, the reason, and how to go on.
pub(crate) fn damage(error: &serde_json::Error, go_on: &str) -> String {
    let text = error.to_string();
    let why = text.split(" at line ").next().unwrap_or(&text);
    format!("line {}: {why}: the file is damaged: {go_on}", error.line())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_who_make_a_file_one_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        create(&path, b"first").unwrap();
        create(&path, b"second").unwrap();
        assert_eq!(read(&path).unwrap(), "first");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
