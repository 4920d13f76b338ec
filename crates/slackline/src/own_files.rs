//! Who may read and write the files of a server's state: what stands in them is done with the
//! server's rights, and some hold secrets.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use host::Distrust;

/// The files that the server, and commands with its state directory, make in that directory.
const OWN: [&str; 15] = [
    "apply.json",
    "audit.1.jsonl",
    "audit.jsonl",
    "control.json",
    "journal.jsonl",
    "lock",
    "notifications.json",
    "promotions.json",
    "serve.json",
    "serve.lock",
    "sessions.json",
    "signing.key",
    "slackline.db",
    "slackline.db.lock",
    "tokens.json",
];

/// The bits of a mode that let others than the owner do anything.
const OTHERS: u32 = 0o077;

/// Refuses to start with a file that another user owns. Removes the rights of others from files,
/// and says so, a sentence each.
pub(crate) fn check(state_dir: &Path, database: Option<&Path>) -> anyhow::Result<Vec<String>> {
    let own = OWN.iter().map(|name| state_dir.join(name));
    let beside = ["", "-wal", "-shm", ".lock"];
    let database = database.into_iter().flat_map(|path| {
        beside.map(|suffix| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        })
    });
    let mut files: Vec<PathBuf> = own.chain(database).collect();
    files.sort();
    files.dedup();
    let user = rustix::process::geteuid().as_raw();
    let mut mended = Vec::new();
    for file in files {
        mended.extend(check_file(&file, user)?);
    }
    Ok(mended)
}

fn check_file(file: &Path, user: u32) -> anyhow::Result<Option<String>> {
    let named = || file.display().to_string();
    let metadata = match std::fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(named),
    };
    if let Some(Distrust::Owner { owner, own }) = Distrust::of(&metadata, user) {
        bail!(
            "{0} is owned by user {owner}, and this server runs as user {own}: whoever owns the file decides what the server does. Run \
             the server as its owner, or run `chown {own} {0}` if you trust what is in the file",
            file.display()
        );
    }
    let mode = metadata.mode() & 0o7777;
    if !metadata.is_file() || mode & OTHERS == 0 {
        return Ok(None);
    }
    let private = mode & !OTHERS;
    std::fs::set_permissions(file, Permissions::from_mode(private)).with_context(|| {
        format!(
            "{} has mode {mode:o}, so other users can read or write it",
            named()
        )
    })?;
    Ok(Some(format!(
        "warning: {} had mode {mode:o}, so other users could read or write it. Its mode is {private:o} now: check what is in the \
         file, and who read it",
        file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_do_is_taken_from_them_and_what_they_own_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("my.db");
        let wal = dir.path().join("my.db-wal");
        let lock = dir.path().join("lock");
        let own = dir.path().join("notify.toml");
        for (file, mode) in [
            (&database, 0o600),
            (&wal, 0o640),
            (&lock, 0o602),
            (&own, 0o644),
        ] {
            std::fs::write(file, "").unwrap();
            std::fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
        }
        let said = check(dir.path(), Some(&database)).unwrap();
        assert_eq!(said.len(), 2, "{said:?}");
        for (said, file, had) in [(&said[0], &lock, "602"), (&said[1], &wal, "640")] {
            let named = format!("{} had mode {had}", file.display());
            assert!(said.contains(&named), "{said}");
            assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o777, 0o600);
        }
        // A file that is not Slackline's own is its author's.
        assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o644);
        assert!(check(dir.path(), Some(&database)).unwrap().is_empty());
        let user = rustix::process::geteuid().as_raw();
        // A file of root is trusted by every user's server. The file's owner is root only if the
        // test runs as root.
        if user == 0 {
            assert_eq!(check_file(&wal, user + 1).unwrap(), None);
            std::os::unix::fs::chown(&wal, Some(1), None).unwrap();
        }
        let error = check_file(&wal, user + 2).unwrap_err().to_string();
        let path = wal.display().to_string();
        assert!(
            error.starts_with(&path) && error.contains("chown"),
            "{error}"
        );
    }
}
