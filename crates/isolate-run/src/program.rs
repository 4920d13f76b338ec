//! The programs of commands, before they are started: whether there is one to be run.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::Access;

/// The directories that a program is looked for in where there is no `PATH` (execvp(3)).
const PATH_BY_DEFAULT: &str = "/bin:/usr/bin";

/// Looks for the program of a command as `execvp` does.
///
/// # Errors
///
/// Why it cannot be run, and what to do.
pub(crate) fn look_for(program: &str) -> Result<(), String> {
    match std::env::var_os("PATH") {
        Some(path) => look_in(program, &path),
        None => look_in(program, OsStr::new(PATH_BY_DEFAULT)),
    }
}

fn look_in(program: &str, path: &OsStr) -> Result<(), String> {
    if program.contains('/') {
        return runnable(Path::new(program)).map_err(|why| format!("{program} {why}"));
    }
    let mut found = None;
    for directory in std::env::split_paths(path) {
        // An empty one is the current directory.
        let file = match directory.as_os_str().is_empty() {
            true => Path::new(".").join(program),
            false => directory.join(program),
        };
        match runnable(&file) {
            Ok(()) => return Ok(()),
            Err(why) if file.exists() => {
                found.get_or_insert_with(|| format!("{} {why}", file.display()));
            }
            Err(_) => {}
        }
    }
    Err(found.unwrap_or_else(|| {
        format!("there is no program {program} in PATH: install it, or give its whole path")
    }))
}

/// Why a file is no program.
fn runnable(file: &Path) -> Result<(), String> {
    let metadata = std::fs::metadata(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        _ => format!("cannot be run: {error}"),
    })?;
    if !metadata.is_file() {
        return Err("is no program, as it is no file".to_owned());
    }
    rustix::fs::access(file, Access::EXEC_OK)
        .map_err(|_| "is not executable: chmod +x, or name another program".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_and_the_rest_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, mode: u32| {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            file.display().to_string()
        };
        let job = make("a/job", 0o755);
        let plain = make("a/plain", 0o644);
        make("b/plain", 0o755);
        make("a/only", 0o644);
        let path = std::env::join_paths([dir.path().join("a"), dir.path().join("b")]).unwrap();
        let look = |program: &str| look_in(program, &path);
        assert_eq!(look("job"), Ok(()));
        assert_eq!(look(&job), Ok(()));
        // Not the first one, but one that can be run.
        assert_eq!(look("plain"), Ok(()));
        let why = |program: &str| look(program).unwrap_err();
        assert!(why(&plain).contains("plain is not executable"));
        assert!(why("only").contains("a/only is not executable"));
        assert!(why("nope").starts_with("there is no program nope in PATH"));
        assert_eq!(why("/no/such/job"), "/no/such/job does not exist");
        assert!(why(&dir.path().display().to_string()).ends_with("it is no file"));
    }

    #[test]
    fn the_shell_is_there() {
        assert_eq!(look_for("sh"), Ok(()));
        assert_eq!(look_for("/bin/sh"), Ok(()));
    }
}
