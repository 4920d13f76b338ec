//! The key `cores` of the configuration: the CPUs that shards run on.

use dataplane::shard::bind;
use toml::Spanned;

use crate::number::Whole;
use crate::place::{ConfigError, Place};
use crate::reader::Reader;

/// As many shards as a device may have schedulers.
pub(crate) const CORES_MAX: usize = qos::THREADS_MAX as usize;

/// A CPU, and where the configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// The CPU's number.
    pub cpu: usize,
    place: Place,
}

/// The number of a CPU, as far as sched_setaffinity(2) of the C library knows numbers.
pub(crate) type Cpu = Whole<0, 1023>;

/// Reads the key.
pub(crate) fn read(reader: &Reader<'_>, raw: &[Spanned<Cpu>]) -> Result<Vec<Core>, ConfigError> {
    let mut cores: Vec<Core> = Vec::new();
    for core in raw {
        let cpu = core.as_ref().size();
        let place = reader.place(core, "cores");
        if cores.iter().any(|other| other.cpu == cpu) {
            return Err(place.error(format!("CPU {cpu} is named twice")));
        }
        if cores.len() == CORES_MAX {
            return Err(place.error(format!("at most {CORES_MAX} CPUs can be named")));
        }
        cores.push(Core { cpu, place });
    }
    Ok(cores)
}

/// Tries whether a thread may run on each core.
///
/// # Errors
/// A CPU does not exist, or this process may not use it: the line is named.
pub fn check(cores: &[Core]) -> Result<(), ConfigError> {
    let try_all = || {
        cores.iter().find_map(|core| {
            let error = bind(core.cpu).err()?;
            Some(core.place.error(format!(
                "{error}: is there such a CPU, and may this process use it?"
            )))
        })
    };
    // In a thread of its own: this one stays where it is.
    let wrong = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, try_all);
        thread.ok().and_then(|thread| thread.join().ok()).flatten()
    });
    wrong.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::BlockConfig;

    fn parse(cores: &str) -> Result<Vec<Core>, String> {
        let text = format!(
            "cores = {cores}\n[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
             [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n"
        );
        BlockConfig::parse(Path::new("b.toml"), &text)
            .map(|config| config.cores)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse("[]"), Ok(Vec::new()));
        let twice = parse("[1,\n0,\n1]").unwrap_err();
        assert_eq!(twice, "b.toml:3: cores: CPU 1 is named twice");
        let all: Vec<usize> = (0..=CORES_MAX).collect();
        let many = parse(&format!("{all:?}")).unwrap_err();
        assert_eq!(many, "b.toml:1: cores: at most 64 CPUs can be named");
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_named() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let first = (0..1024).find(|cpu| before.is_set(*cpu)).unwrap();
        let cores = parse(&format!("[{first}]")).unwrap();
        assert_eq!(check(&cores), Ok(()));
        let cores = parse(&format!("[{first},\n1023]")).unwrap();
        let text = check(&cores).unwrap_err().to_string();
        let expected = "b.toml:2: cores: cannot run on CPU 1023: ";
        assert!(text.starts_with(expected), "{text}");
        let after = rustix::thread::sched_getaffinity(None).unwrap();
        assert_eq!(before, after);
    }
}
