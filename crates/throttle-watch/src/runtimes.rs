//! Runtimes in a group that run more threads at once than their quota has cores.

use std::fs::File;

use host::Roots;
use object::read::{Object as _, ObjectSection as _, ReadCache};
use throttle::{Observed, Sizing, ignores_quota};

use crate::thread_status::ThreadStatus;

/// Where Go's linker writes the version (debug/buildinfo), and where in it the version's length is.
const GO_SECTION: &str = ".go.buildinfo";
const GO_VERSION_AT: usize = 32;
/// The first version that goes by the quota.
const GO_WITH_QUOTA: u32 = 25;
/// The variable that says how many threads it runs at once.
const GO_SIZE: &str = "GOMAXPROCS";
/// The setting by which Go ignores the quota, as before that version: in GODEBUG, or built in, as
/// for a module that asks for an older Go (go.dev/doc/godebug).
const GO_IGNORES_QUOTA: &str = "containermaxprocs=0";
/// The module that sets GOMAXPROCS to the quota, rounded down, and at least 1.
const GO_SETS_ITSELF: &str = "go.uber.org/automaxprocs";
/// Variables that hold options of a JVM (java(1), "Using the JDK_JAVA_OPTIONS"; JVM TI, "The
/// JAVA_TOOL_OPTIONS").
const JVM_VARIABLES: [&str; 3] = ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"];
/// An argument file is read up to here.
const ARGUMENT_FILE_MAX_BYTES: u64 = 1 << 20;
/// Flags by which a JVM's view of the CPUs, or its collector's threads, are set by hand.
const JVM_FLAGS: [&str; 4] = [
    "-XX:ParallelGCThreads=",
    "-XX:ConcGCThreads=",
    "-XX:ActiveProcessorCount=",
    "-XX:-UseContainerSupport",
];

/// A sentence for each runtime in the group that goes by something else than a quota of so many
/// cores.
pub(crate) fn ignoring(
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
    let collector = |(name, by): (&String, &throttle::ThreadNameStats)| {
        (name.starts_with("GC Thread") || name.starts_with("ParGC")).then_some(by.threads)
    };
    let threads = observed.names.iter().filter_map(collector).max()?;
    let told = |word: &String| JVM_FLAGS.iter().any(|flag| word.starts_with(flag));
    let flags: Vec<String> = jvm_options(roots, pid, command)
        .into_iter()
        .filter(told)
        .collect();
    ignores_quota(Sizing::Jvm, threads, cores, &flags)
}

/// What a JVM was given: by the environment, on its command line, and in the argument files
/// (`@file`) that these name.
fn jvm_options(roots: &Roots, pid: u32, command: Vec<String>) -> Vec<String> {
    let environment = words(&read(roots, pid, "environ").unwrap_or_default());
    let of_environment = environment.iter().filter_map(|word| {
        let (name, options) = word.split_once('=')?;
        JVM_VARIABLES
            .contains(&name)
            .then(|| unquoted_words(options))
    });
    let mut options = Vec::new();
    for word in of_environment.flatten().chain(command) {
        match word.strip_prefix('@').filter(|path| !path.starts_with('@')) {
            Some(path) => options.extend(argument_file(roots, pid, path)),
            None => options.push(word),
        }
    }
    options
}

/// The words of an argument file, as the process sees it.
fn argument_file(roots: &Roots, pid: u32, path: &str) -> Vec<String> {
    use std::io::Read as _;
    let below = match path.strip_prefix('/') {
        Some(path) => roots.proc(format!("{pid}/root")).join(path),
        None => roots.proc(format!("{pid}/cwd")).join(path),
    };
    let mut text = String::new();
    let file = File::open(below).map(|file| file.take(ARGUMENT_FILE_MAX_BYTES));
    match file.and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => {
            let lines = text
                .lines()
                .map(|line| line.split('#').next().unwrap_or(""));
            lines.flat_map(unquoted_words).collect()
        }
        Err(_) => Vec::new(),
    }
}

/// Words between blanks; quotes around a word, or a part of it, are left out.
fn unquoted_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for c in text.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (c, None) if c.is_whitespace() => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (c, _) => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

fn go(roots: &Roots, pid: u32, cores: f64, cpus: usize) -> Option<String> {
    let (threads, told) = go_threads(roots, pid, cores, cpus)?;
    let flags: Vec<String> = told.into_iter().collect();
    ignores_quota(Sizing::Go, threads, cores, &flags)
}

/// Says of pools that are Go programs what sets their size, and takes that for it: a Go program has
/// more threads than it runs at once.
pub(crate) fn size_go_pools(
    roots: &Roots,
    group: &str,
    pools: &mut [throttle::ThreadPool],
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

/// Environment variables by which programs are told how many workers to start.
const WORKER_VARIABLES: [&str; 3] = ["WEB_CONCURRENCY", "WORKERS", "NUM_WORKERS"];

/// Says of each pool where its owner sets how many workers there are.
pub(crate) fn name_worker_settings(roots: &Roots, group: &str, pools: &mut [throttle::ThreadPool]) {
    let pids = host::processes_below(roots, group).unwrap_or_default();
    for pool in pools {
        if pool.processes > 1 {
            (pool.setting, pool.set_by) = worker_settings(roots, &pids, &pool.name);
        } else {
            pool.setting = throttle::thread_setting(&pool.name).map(str::to_owned);
        }
    }
}

/// What the processes of a pool say of where their number is set: in words, and the variable that
/// says so to the program.
fn worker_settings(roots: &Roots, pids: &[u32], pool: &str) -> (Option<String>, Option<String>) {
    let of_pool = pids.iter().filter(|pid| has_threads(roots, **pid, pool));
    let of_pool: Vec<u32> = of_pool.copied().collect();
    let setting_of = |pid: u32| throttle::worker_setting(&command_of(roots, pid));
    let setting = of_pool.iter().find_map(|pid| {
        // Workers that Python's multiprocessing starts have a command line of its own.
        let parent = ThreadStatus::read(roots, *pid).map(|status| status.parent);
        let parent = parent.filter(|parent| pids.contains(parent));
        setting_of(*pid).or_else(|| parent.and_then(setting_of))
    });
    let variable = of_pool.iter().find_map(|pid| worker_variable(roots, *pid));
    (setting.map(str::to_owned), variable)
}

/// Whether a process has threads of a pool. Their names may be other ones than the process's: a
/// worker of Puma has threads named `puma srv tp 001`.
pub(crate) fn has_threads(roots: &Roots, pid: u32, pool: &str) -> bool {
    let threads = std::fs::read_dir(roots.proc(format!("{pid}/task")));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.any(|thread| {
        let comm = std::fs::read(thread.path().join("comm")).unwrap_or_default();
        throttle::pool_name(String::from_utf8_lossy(&comm).trim_end()) == pool
    })
}

/// The variable by which a process was told how many workers there are.
fn worker_variable(roots: &Roots, pid: u32) -> Option<String> {
    let environment = words(&read(roots, pid, "environ").unwrap_or_default());
    environment.iter().find_map(|word| {
        let (name, value) = word.split_once('=')?;
        let is_number = value.parse::<usize>().is_ok();
        (is_number && WORKER_VARIABLES.contains(&name)).then(|| name.to_owned())
    })
}

/// The name of a process and its command line, as [`throttle::worker_setting`] takes them.
fn command_of(roots: &Roots, pid: u32) -> String {
    let text = |file: &str| read(roots, pid, file).unwrap_or_default();
    let comm = text("comm");
    let comm = String::from_utf8_lossy(&comm);
    format!("{} {}", comm.trim_end(), words(&text("cmdline")).join(" "))
}

/// How many threads a Go program runs at once, and what says so, where anything does.
fn go_threads(roots: &Roots, pid: u32, cores: f64, cpus: usize) -> Option<(usize, Option<String>)> {
    let build = go_build(roots, pid)?;
    let environment = words(&read(roots, pid, "environ").unwrap_or_default());
    Some(go_size(&build, &environment, cores, cpus))
}

fn go_size(
    build: &GoBuild,
    environment: &[String],
    cores: f64,
    cpus: usize,
) -> (usize, Option<String>) {
    let told = environment
        .iter()
        .find_map(|word| Some((told(word)?, word)));
    if let Some((threads, word)) = told {
        return (threads, Some(word.clone()));
    }
    let below = |share: f64| (1..cpus).rfind(|whole| *whole as f64 <= share).unwrap_or(1);
    if build.has_module(GO_SETS_ITSELF) {
        return (below(cores), Some(GO_SETS_ITSELF.to_owned()));
    }
    if build.minor < GO_WITH_QUOTA {
        return (cpus, None);
    }
    // GODEBUG goes before what was built in.
    let mut words = environment.iter();
    let set =
        words.rfind(|word| word.starts_with("GODEBUG=") && word.contains("containermaxprocs="));
    let ignores = set.map_or_else(
        || {
            build
                .debug()
                .is_some_and(|debug| debug.contains(GO_IGNORES_QUOTA))
        },
        |word| word.contains(GO_IGNORES_QUOTA),
    );
    if ignores {
        let by = if set.is_some() {
            "in GODEBUG"
        } else {
            "in its build information"
        };
        return (cpus, Some(format!("{GO_IGNORES_QUOTA} {by}")));
    }
    // As the runtime does it: never below 2, never above the CPUs.
    let whole = (1..cpus)
        .find(|whole| *whole as f64 >= cores)
        .unwrap_or(cpus);
    (whole.max(2).min(cpus), None)
}

/// How many threads a variable tells Go to run at once; 0 tells it nothing (runtime/proc.go,
/// schedinit).
fn told(variable: &str) -> Option<usize> {
    let (name, number) = variable.split_once('=')?;
    let number = number.parse().ok().filter(|number| *number > 0);
    number.filter(|_| name == GO_SIZE)
}

/// What a Go program says of how it was built (debug/buildinfo).
#[derive(Default)]
struct GoBuild {
    /// The 26 of `go1.26.8`.
    minor: u32,
    /// Modules and settings, a line each; empty before Go 1.18.
    information: String,
}

impl GoBuild {
    /// Two strings, each behind its length, a number of 7 bits a byte.
    fn parse(section: &[u8]) -> Option<Self> {
        let (version, rest) = go_string(section.get(GO_VERSION_AT..)?)?;
        let version = std::str::from_utf8(version).ok()?;
        let minor = version.strip_prefix("go1.")?;
        let minor = minor.split(|c: char| !c.is_ascii_digit()).next()?;
        let information = go_string(rest).map_or(&[][..], |(information, _)| information);
        Some(Self {
            minor: minor.parse().ok()?,
            information: String::from_utf8_lossy(information).into_owned(),
        })
    }

    fn has_module(&self, module: &str) -> bool {
        let mut lines = self.information.lines();
        lines.any(|line| {
            let mut cells = line.split('\t');
            cells.next() == Some("dep") && cells.next() == Some(module)
        })
    }

    /// The settings of GODEBUG that are built in.
    fn debug(&self) -> Option<&str> {
        let mut lines = self.information.lines();
        lines.find_map(|line| line.strip_prefix("build\tDefaultGODEBUG="))
    }
}

/// A string behind its length, and what follows.
fn go_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0_usize;
    for (index, byte) in bytes.iter().take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return bytes.get(index + 1..)?.split_at_checked(length);
        }
    }
    None
}

/// From the program's own build information. Of a program only its headers and that are read.
fn go_build(roots: &Roots, pid: u32) -> Option<GoBuild> {
    let file = ReadCache::new(File::open(roots.proc(format!("{pid}/exe"))).ok()?);
    let program = object::File::parse(&file).ok()?;
    let information = program.section_by_name(GO_SECTION)?.data().ok()?;
    GoBuild::parse(information)
}

fn read(roots: &Roots, pid: u32, file: &str) -> Option<Vec<u8>> {
    std::fs::read(roots.proc(format!("{pid}/{file}"))).ok()
}

/// The words of `/proc/PID/cmdline` or `environ`.
pub(crate) fn words(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn go_section(version: &str, information: &str) -> Vec<u8> {
        let mut bytes = vec![0; GO_VERSION_AT];
        for text in [version, information] {
            let length = u8::try_from(text.len() & 0x7f).unwrap();
            let more = u8::try_from(text.len() >> 7).unwrap();
            bytes.extend([length | 0x80, more]);
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    fn size(version: &str, information: &str, environment: &[&str]) -> (usize, Option<String>) {
        let build = GoBuild::parse(&go_section(version, information)).unwrap();
        let environment: Vec<String> = environment.iter().map(|word| (*word).to_owned()).collect();
        go_size(&build, &environment, 1.0, 8)
    }

    #[test]
    fn go_is_sized_by_what_it_was_built_with() {
        assert_eq!(size("go1.24.1", "", &[]), (8, None));
        assert_eq!(size("go1.26.8", "path\tx\n", &[]), (2, None));
        let built = "path\tx\nbuild\tDefaultGODEBUG=asynctimerchan=1,containermaxprocs=0\n";
        let (threads, why) = size("go1.26.8", built, &[]);
        assert_eq!(
            (threads, why.as_deref()),
            (8, Some("containermaxprocs=0 in its build information"))
        );
        // What the environment says goes first.
        assert_eq!(
            size("go1.26.8", built, &["GODEBUG=containermaxprocs=1"]).0,
            2
        );
        assert_eq!(size("go1.26.8", "", &["GODEBUG=containermaxprocs=0"]).0, 8);
        assert_eq!(size("go1.26.8", built, &["GOMAXPROCS=3"]).0, 3);
        let module = "dep\tgo.uber.org/automaxprocs\tv1.6.0\th1:x\n";
        assert_eq!(size("go1.24.1", module, &[]).0, 1);
    }

    #[test]
    fn a_jvm_is_told_by_its_environment_and_by_files() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("proc/7");
        std::fs::create_dir_all(process.join("cwd")).unwrap();
        std::fs::create_dir_all(process.join("root/etc")).unwrap();
        std::fs::write(
            process.join("cwd/args"),
            "-Xmx1g # heap\n\"-XX:ConcGCThreads=3\"\n",
        )
        .unwrap();
        std::fs::write(
            process.join("root/etc/java.args"),
            "-XX:ActiveProcessorCount=6",
        )
        .unwrap();
        std::fs::write(
            process.join("environ"),
            "A=b\0JAVA_TOOL_OPTIONS=-Dx='a b' -XX:ParallelGCThreads=4\0JDK_JAVA_OPTIONS=@/etc/java.args\0",
        )
        .unwrap();
        let command = ["java", "@args", "-version"].map(str::to_owned).to_vec();
        let options = jvm_options(&Roots::at(dir.path()), 7, command);
        for option in [
            "-Dx=a b",
            "-XX:ParallelGCThreads=4",
            "-XX:ActiveProcessorCount=6",
            "-XX:ConcGCThreads=3",
            "-version",
        ] {
            assert!(
                options.iter().any(|word| word == option),
                "{option}: {options:?}"
            );
        }
        assert!(!options.iter().any(|word| word == "heap"), "{options:?}");
    }

    /// A process of the fake tree, with the names of its other threads.
    fn process(root: &std::path::Path, id: u32, parent: u32, words: [&str; 3], threads: &[&str]) {
        let [name, command, environment] = words;
        let process = root.join(format!("proc/{id}"));
        for (at, name) in std::iter::once(&name).chain(threads).enumerate() {
            let thread = process.join(format!("task/{id}{at}"));
            std::fs::create_dir_all(&thread).unwrap();
            std::fs::write(thread.join("comm"), format!("{name}\n")).unwrap();
        }
        std::fs::write(process.join("comm"), format!("{name}\n")).unwrap();
        std::fs::write(process.join("cmdline"), command.replace(' ', "\0")).unwrap();
        std::fs::write(process.join("environ"), environment).unwrap();
        let status = format!("Tgid:\t{id}\nPPid:\t{parent}\n");
        std::fs::write(process.join("status"), status).unwrap();
    }

    #[test]
    fn workers_are_set_where_their_command_or_its_parents_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let uvicorn = "/usr/bin/python3 /usr/bin/uvicorn --workers 8 asgi:app";
        let spawned = "/usr/bin/python3 -c spawn_main()";
        process(root, 10, 1, ["uvicorn", uvicorn, ""], &[]);
        process(root, 11, 10, ["python3", spawned, ""], &[]);
        process(root, 12, 10, ["python3", spawned, ""], &[]);
        let puma = [
            "ruby",
            "puma: cluster worker 0: 20 [app]",
            "WEB_CONCURRENCY=8\0",
        ];
        process(root, 21, 20, puma, &["puma srv tp 001"]);
        process(root, 31, 30, ["app", "/srv/app", "WORKERS=many\0"], &[]);
        let roots = Roots::at(root);
        let settings = |pool: &str| worker_settings(&roots, &[10, 11, 12, 21, 31], pool);
        let said = |setting: &str| Some(setting.to_owned());
        assert_eq!(settings("python*"), (said("--workers of uvicorn"), None));
        assert_eq!(
            settings("puma srv tp *"),
            (said("workers (-w) of Puma"), said("WEB_CONCURRENCY"))
        );
        assert_eq!(settings("app"), (None, None));
        // What starts the workers may be out of sight.
        assert_eq!(worker_settings(&roots, &[11, 12], "python*"), (None, None));
    }

    #[test]
    fn go_is_told_a_number_above_0_or_nothing() {
        assert_eq!(told("GOMAXPROCS=8"), Some(8));
        for word in ["GOMAXPROCS=0", "GOMAXPROCS=-1", "GOMAXPROCS=", "GOGC=8"] {
            assert_eq!(told(word), None, "{word}");
        }
    }
}
