//! Runtimes in a group that run more threads at once than their quota has cores.

use std::fs::File;

use host::Roots;
use object::read::{Object as _, ObjectSection as _, ReadCache};
use throttle::{Observed, Sizing, ignores_quota};

/// Where Go's linker writes the version (debug/buildinfo), and where in it the version's length is.
const GO_SECTION: &str = ".go.buildinfo";
const GO_VERSION_AT: usize = 32;
/// The first version that goes by the quota.
const GO_WITH_QUOTA: u32 = 25;
/// The variable that says how many threads it runs at once.
const GO_SIZE: &str = "GOMAXPROCS";
/// Flags by which a JVM's view of the CPUs, or its collector's threads, are set by hand.
const JVM_FLAGS: [&str; 4] = [
    "-XX:ParallelGCThreads=",
    "-XX:ConcGCThreads=",
    "-XX:ActiveProcessorCount=",
    "-XX:-UseContainerSupport",
];

/// A sentence for each runtime in the group that goes by something else than a quota of so many cores.
pub(super) fn ignoring(
    roots: &Roots,
    group: &str,
    observed: &Observed,
    cores: f64,
    cpus: usize,
) -> Vec<String> {
    let pids = host::processes_below(roots, group).unwrap_or_default();
    let is_nginx = |pid: &&u32| read(roots, **pid, "comm").is_some_and(|comm| comm == b"nginx\n");
    // One of them is the master, which serves nobody.
    let workers = pids.iter().filter(is_nginx).count().saturating_sub(1);
    let mut sentences = Vec::new();
    sentences.extend(ignores_quota(Sizing::Nginx, workers, cores, &[]));
    for pid in pids {
        let found = jvm(roots, pid, observed, cores).or_else(|| go(roots, pid, cores, cpus));
        sentences.extend(found.filter(|sentence| !sentences.contains(sentence)));
    }
    sentences
}

fn jvm(roots: &Roots, pid: u32, observed: &Observed, cores: f64) -> Option<String> {
    let command = words(&read(roots, pid, "cmdline")?);
    if !command.first()?.ends_with("java") {
        return None;
    }
    let collector = |(name, by): (&String, &throttle::ByName)| {
        (name.starts_with("GC Thread") || name.starts_with("ParGC")).then_some(by.threads)
    };
    let threads = observed.names.iter().filter_map(collector).max()?;
    let told = |word: &String| JVM_FLAGS.iter().any(|flag| word.starts_with(flag));
    let flags: Vec<String> = command.into_iter().filter(told).collect();
    ignores_quota(Sizing::Jvm, threads, cores, &flags)
}

fn go(roots: &Roots, pid: u32, cores: f64, cpus: usize) -> Option<String> {
    let (threads, told) = go_threads(roots, pid, cores, cpus)?;
    let flags: Vec<String> = told.into_iter().collect();
    ignores_quota(Sizing::Go, threads, cores, &flags)
}

/// Says of pools that are Go programs what sets their size, and takes that for it: a Go program has more threads than it runs
/// at once.
pub(super) fn size_go_pools(
    roots: &Roots,
    group: &str,
    pools: &mut [throttle::Pool],
    cores: f64,
    cpus: usize,
) {
    let pids = host::processes_below(roots, group).unwrap_or_default();
    let programs: Vec<(String, usize)> = pids
        .into_iter()
        .filter_map(|pid| {
            let (threads, _) = go_threads(roots, pid, cores, cpus)?;
            let comm = read(roots, pid, "comm")?;
            let comm = String::from_utf8_lossy(&comm);
            Some((throttle::pool_name(comm.trim_end()).into_owned(), threads))
        })
        .collect();
    for pool in pools {
        let mut of_pool = programs.iter().filter(|(name, _)| *name == pool.name);
        // Of several processes each has a size of its own.
        if let (Some((_, threads)), None) = (of_pool.next(), of_pool.next()) {
            pool.threads = *threads;
            pool.set_by = Some(GO_SIZE.to_owned());
        }
    }
}

/// How many threads a Go program runs at once, and the variable that says so, where one does.
fn go_threads(roots: &Roots, pid: u32, cores: f64, cpus: usize) -> Option<(usize, Option<String>)> {
    let minor = go_minor_version(roots, pid)?;
    let environment = words(&read(roots, pid, "environ").unwrap_or_default());
    let told = environment
        .into_iter()
        .find_map(|word| Some((told(&word)?, word)));
    let threads = told.as_ref().map(|(threads, _)| *threads);
    let threads = threads.unwrap_or_else(|| {
        if minor < GO_WITH_QUOTA {
            return cpus;
        }
        // As the runtime does it: never below 2, never above the CPUs.
        let whole = (1..cpus)
            .find(|whole| *whole as f64 >= cores)
            .unwrap_or(cpus);
        whole.max(2).min(cpus)
    });
    Some((threads, told.map(|(_, word)| word)))
}

/// How many threads a variable tells Go to run at once; 0 tells it nothing (runtime/proc.go, schedinit).
fn told(variable: &str) -> Option<usize> {
    let (name, number) = variable.split_once('=')?;
    let number = number.parse().ok().filter(|number| *number > 0);
    number.filter(|_| name == GO_SIZE)
}

/// The 26 of `go1.26.8`, from the program's own build information. Of a program only its headers and that are read.
fn go_minor_version(roots: &Roots, pid: u32) -> Option<u32> {
    let file = ReadCache::new(File::open(roots.proc(format!("{pid}/exe"))).ok()?);
    let program = object::File::parse(&file).ok()?;
    let information = program.section_by_name(GO_SECTION)?.data().ok()?;
    let version = information.get(GO_VERSION_AT..)?;
    let length = usize::from(*version.first()?);
    let version = std::str::from_utf8(version.get(1..=length)?).ok()?;
    version
        .strip_prefix("go1.")?
        .split('.')
        .next()?
        .parse()
        .ok()
}

fn read(roots: &Roots, pid: u32, file: &str) -> Option<Vec<u8>> {
    std::fs::read(roots.proc(format!("{pid}/{file}"))).ok()
}

/// The words of `/proc/PID/cmdline` or `environ`.
pub(super) fn words(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_is_told_a_number_above_0_or_nothing() {
        assert_eq!(told("GOMAXPROCS=8"), Some(8));
        for word in ["GOMAXPROCS=0", "GOMAXPROCS=-1", "GOMAXPROCS=", "GOGC=8"] {
            assert_eq!(told(word), None, "{word}");
        }
    }
}
