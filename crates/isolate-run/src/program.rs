//! The programs of commands, before they are started: whether there is one to be run.

use std::ffi::OsStr;
use std::path::Path;

use experiment_spec::SpecError;
use rustix::fs::Access;
use wire_latency::SourceSpec;

use crate::config::IsolationConfig;

/// The directories that a program is looked for in where there is no `PATH` (execvp(3)).
const PATH_BY_DEFAULT: &str = "/bin:/usr/bin";

/// The commands of a configuration that cannot be started, with file, line and key. While only
/// observing, best-effort work is not started.
pub(crate) fn missing_programs(config: &IsolationConfig, observe: bool) -> Vec<SpecError> {
    let sources = config.services.iter().enumerate();
    let sources = sources.filter_map(|(index, (service, _, source))| {
        let why = missing_program(source)?;
        let key = config.key_of_source(index, None);
        Some((key, format!("service {}: {why}", service.name)))
    });
    let work = config.best_effort.iter().enumerate();
    let work = work.filter(|_| !observe).filter_map(|(index, work)| {
        let why = look_for(work.command.as_ref()?.first()?).err()?;
        let key = format!("best_effort[{index}].command");
        Some((key, format!("group {}: {why}", work.name)))
    });
    let all = sources.chain(work);
    all.map(|(key, why)| config.origin.error(&key, why))
        .collect()
}

/// Why the command of a source cannot be started; `None` where it can, or where there is none.
pub(crate) fn missing_program(source: &SourceSpec) -> Option<String> {
    match source {
        SourceSpec::Command(words) => look_for(words.first()?).err(),
        _ => None,
    }
}

/// Looks for the program of a command as `execvp` does.
///
/// # Errors
///
/// Why it cannot be run, and what to do.
fn look_for(program: &str) -> Result<(), String> {
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
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
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
    fn a_command_that_cannot_be_started_is_named_by_its_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.toml");
        let text = "[[service]]\nname = \"web\"\npid = 1\nobjective = { p99_ms = 5 }\n\
             latency = { command = [\"/no/such/p99\"] }\n[[service]]\npid = 2\n\
             objective = { p99_ms = 5 }\nlatency = { command = [\"true\"] }\n\
             [[best_effort]]\ncommand = [\"sh\"]\n[[best_effort]]\ncommand = [\"/etc/passwd\"]\n";
        std::fs::write(&path, text).unwrap();
        let config = IsolationConfig::read(&path).unwrap();
        let missing = |observe| {
            let all = missing_programs(&config, observe).into_iter();
            let all = all.map(|error| {
                let text = error.to_string();
                text.replace(&format!("{}/", dir.path().display()), "")
            });
            all.collect::<Vec<_>>()
        };
        let source =
            "i.toml:5: service[0].latency.command: service web: /no/such/p99 does not exist";
        assert_eq!(missing(true), [source]);
        let work = "i.toml:13: best_effort[1].command: group passwd: /etc/passwd is not executable: \
             chmod +x, or name another program";
        assert_eq!(missing(false), [source, work]);
    }

    #[test]
    fn the_shell_is_there() {
        assert_eq!(look_for("sh"), Ok(()));
        assert_eq!(look_for("/bin/sh"), Ok(()));
    }
}
