//! Pools whose size a runtime chooses by itself, and what it goes by.

/// Threads of a runtime, known by their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimePool {
    /// What they are.
    pub what: &'static str,
    /// The flag that sets their number, without `=`.
    pub flag: &'static str,
}

/// HotSpot's names (src/hotspot/share/gc and compiler), of which the kernel keeps 15 bytes.
const KNOWN: [(&str, RuntimePool); 8] = [
    (
        "GC Thread",
        jvm("the JVM's garbage collector", "-XX:ParallelGCThreads"),
    ),
    (
        "ParGC",
        jvm("the JVM's garbage collector", "-XX:ParallelGCThreads"),
    ),
    ("G1 ", jvm("the JVM's G1 collector", "-XX:ConcGCThreads")),
    ("ZWorker", jvm("the JVM's ZGC", "-XX:ConcGCThreads")),
    (
        "Shenandoah",
        jvm("the JVM's Shenandoah collector", "-XX:ConcGCThreads"),
    ),
    (
        "C2 Compiler",
        jvm("the JVM's compiler", "-XX:CICompilerCount"),
    ),
    (
        "C1 Compiler",
        jvm("the JVM's compiler", "-XX:CICompilerCount"),
    ),
    ("JVMCI", jvm("the JVM's Graal compiler", "-XX:JVMCIThreads")),
];

const fn jvm(what: &'static str, flag: &'static str) -> RuntimePool {
    RuntimePool { what, flag }
}

impl RuntimePool {
    /// The pool that threads of this name belong to; `None` for a program's own.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        KNOWN
            .iter()
            .find(|(prefix, _)| name.starts_with(prefix))
            .map(|(_, pool)| *pool)
    }
}

/// Programs that work by processes, by their names, and where their owners set how many. From the
/// manuals of each.
const WORKERS: [(&str, &str); 15] = [
    ("gunicorn", "--workers (-w) of gunicorn"),
    ("uvicorn", "--workers of uvicorn"),
    ("hypercorn", "--workers of hypercorn"),
    ("uwsgi", "processes of uWSGI"),
    ("celery", "--concurrency of Celery"),
    ("puma", "workers (-w) of Puma"),
    ("unicorn", "worker_processes of Unicorn"),
    ("php-fpm", "pm.max_children of PHP-FPM"),
    (
        "postgres",
        "max_connections of PostgreSQL, or the pool of connections before it",
    ),
    ("nginx", "worker_processes of nginx"),
    ("apache2", "MaxRequestWorkers of Apache"),
    ("httpd", "MaxRequestWorkers of Apache"),
    ("pm2", "instances (-i) of PM2"),
    ("node", "the number of cluster workers"),
    ("nodejs", "the number of cluster workers"),
];
/// Programs that run a script: the script's name says more than theirs.
const INTERPRETERS: [&str; 7] = ["python", "pypy", "ruby", "node", "nodejs", "perl", "bundle"];

/// Where the owner of a program sets how many processes it works by; `command` is its name
/// (`/proc/PID/comm`) and its command line.
///
/// ```
/// use throttle::worker_setting;
/// let fpm = Some("pm.max_children of PHP-FPM");
/// assert_eq!(worker_setting("php-fpm8.2 php-fpm: pool www"), fpm);
/// let gunicorn = Some("--workers (-w) of gunicorn");
/// assert_eq!(worker_setting("gunicorn /usr/bin/python3 /usr/bin/gunicorn app:app"), gunicorn);
/// assert_eq!(worker_setting("node_exporter /usr/bin/node_exporter"), None);
/// ```
#[must_use]
pub fn worker_setting(command: &str) -> Option<&'static str> {
    let mut words = command.split_whitespace();
    let name = program_name(words.next()?);
    let program = program_name(words.next().unwrap_or_default());
    let script = if INTERPRETERS.contains(&program) {
        // `python -u -m uvicorn`: the module; else the first that is no option.
        let mut rest = words.skip_while(|word| word.starts_with('-') && *word != "-m");
        let first = rest.next().unwrap_or_default();
        let path = if first == "-m" {
            rest.next().unwrap_or_default()
        } else {
            first
        };
        let is_pm2 = path.split('/').any(|part| part == "pm2");
        if is_pm2 { "pm2" } else { program_name(path) }
    } else {
        ""
    };
    let setting_of = |program: &str| {
        let known = WORKERS.iter().find(|(known, _)| *known == program);
        known.map(|(_, setting)| *setting)
    };
    [script, program, name].into_iter().find_map(setting_of)
}

/// Threads whose names say which setting their owner has. Tokio has had two names for its workers
/// (tokio/src/runtime/builder.rs, `thread_name`), of which the kernel keeps 15 bytes.
const THREADS: [(&str, &str); 3] = [
    ("tokio-runtime-w", TOKIO),
    ("tokio-rt-worker", TOKIO),
    ("puma srv tp ", "threads (-t) of Puma"),
];
const TOKIO: &str = "worker_threads of Tokio, or TOKIO_WORKER_THREADS";

/// Where the owner of a pool of threads in one process sets how many there are, by their name.
///
/// ```
/// use throttle::thread_setting;
/// assert_eq!(thread_setting("puma srv tp *"), Some("threads (-t) of Puma"));
/// assert_eq!(thread_setting("http-worker-*"), None);
/// ```
#[must_use]
pub fn thread_setting(name: &str) -> Option<&'static str> {
    let known = THREADS.iter().find(|(prefix, _)| name.starts_with(prefix));
    known.map(|(_, setting)| *setting)
}

/// Kinds of PostgreSQL's processes that serve no client, as `ps` shows them
/// (src/backend/utils/init/miscinit.c, GetBackendTypeDesc).
const POSTGRES_HELPERS: [&str; 13] = [
    "archiver",
    "autovacuum",
    "background",
    "checkpointer",
    "io worker",
    "logger",
    "logical replication",
    "startup",
    "stats collector",
    "walreceiver",
    "walsender",
    "walsummarizer",
    "walwriter",
];

/// Whether a process beside a program's workers serves no request itself, by its command line.
///
/// ```
/// use throttle::is_helper;
/// assert!(is_helper("postgres: checkpointer"));
/// assert!(is_helper("postgres: 15/main: walwriter"));
/// assert!(!is_helper("postgres: app shop [local] SELECT"));
/// ```
#[must_use]
pub fn is_helper(command: &str) -> bool {
    if let Some(title) = command.strip_prefix("postgres: ") {
        // The name of a cluster comes first, where it has one (`cluster_name`).
        let kind = title.split_once(": ").map_or(title, |(_, kind)| kind);
        return POSTGRES_HELPERS
            .iter()
            .any(|helper| kind.starts_with(helper));
    }
    // nginx: src/os/unix/ngx_process_cycle.c. The other one watches the files of Python's
    // multiprocessing (Lib/multiprocessing/resource_tracker.py).
    command.starts_with("nginx: cache ") || command.contains("multiprocessing.resource_tracker")
}

/// A program's name without its directory, its version, and the colon of a process title.
fn program_name(word: &str) -> &str {
    let file = word.rsplit('/').next().unwrap_or_default();
    let name = file.split(':').next().unwrap_or_default();
    if WORKERS.iter().any(|(known, _)| *known == name) {
        return name;
    }
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// A program that sizes a pool by the CPUs that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// A JVM: the quota, rounded up, since 8u191 and 10 (JDK-8146115), unless a flag says
    /// otherwise.
    Jvm,
    /// Go: from 1.25 on the quota, rounded up, and 2 at least (go.dev/doc/go1.25, runtime); before
    /// that, the host's CPUs.
    Go,
    /// nginx: `worker_processes auto` is the number of CPUs on line.
    Nginx,
}

/// What is said of a runtime that starts more threads at once than its quota has cores.
///
/// `threads` is how many it would run at once, `cores` the quota, and `flags` what it was told.
///
/// ```
/// use throttle::{Sizing, ignores_quota};
/// let said = ignores_quota(Sizing::Nginx, 8, 1.0, &[]).unwrap();
/// assert!(said.starts_with("nginx runs 8 workers on 1.00 cores of quota"));
/// assert_eq!(ignores_quota(Sizing::Nginx, 2, 2.0, &[]), None);
/// ```
#[must_use]
pub fn ignores_quota(
    sizing: Sizing,
    threads: usize,
    cores: f64,
    flags: &[String],
) -> Option<String> {
    if threads as f64 <= cores.ceil() {
        return None;
    }
    let because = |flags: &[String], otherwise: &str| {
        if flags.is_empty() {
            otherwise.to_owned()
        } else {
            format!("{} says so", flags.join(", "))
        }
    };
    Some(match sizing {
        Sizing::Jvm => format!(
            "the JVM runs {threads} collector threads on {cores:.2} cores of quota: {}",
            because(
                flags,
                "no option of it was found that says so; a JVM before 8u191 ignores the quota, and one that started under a larger quota keeps its threads"
            )
        ),
        Sizing::Go => format!(
            "Go runs up to {threads} threads at once on {cores:.2} cores of quota, unless the program sets GOMAXPROCS itself: {}",
            because(
                flags,
                "before 1.25 it ignores the quota, and since then GOMAXPROCS is 2 at least"
            )
        ),
        Sizing::Nginx => format!(
            "nginx runs {threads} workers on {cores:.2} cores of quota: worker_processes auto counts the host's CPUs"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::{Sizing, TOKIO, ignores_quota, is_helper, thread_setting, worker_setting};

    #[test]
    fn workers_are_known_by_the_program_not_by_a_word_somewhere() {
        for (command, setting) in [
            (
                "nginx nginx: worker process",
                Some("worker_processes of nginx"),
            ),
            (
                "apache2 /usr/sbin/apache2 -k start",
                Some("MaxRequestWorkers of Apache"),
            ),
            (
                "uvicorn /usr/bin/python3.11 -u -m uvicorn app:app",
                Some("--workers of uvicorn"),
            ),
            (
                "ruby3.1 puma: cluster worker 0: 12 [app]",
                Some("workers (-w) of Puma"),
            ),
            (
                "node node /srv/node_modules/pm2/lib/ProcessContainer.js",
                Some("instances (-i) of PM2"),
            ),
            (
                "node /usr/bin/node --max-old-space-size=64 /srv/server.js",
                Some("the number of cluster workers"),
            ),
            (
                "MainThread /usr/bin/node20 server.js",
                Some("the number of cluster workers"),
            ),
            ("postgres_export /usr/bin/postgres_exporter", None),
            (
                "node_exporter /usr/bin/node_exporter --web.listen=nginx",
                None,
            ),
            (
                "python3 /usr/bin/python3 /srv/report.py --about nginx",
                None,
            ),
            ("tail tail -f /var/log/nginx/access.log", None),
            ("", None),
        ] {
            assert_eq!(worker_setting(command), setting, "{command}");
        }
    }

    #[test]
    fn no_reason_is_given_that_was_not_seen() {
        let said = |sizing, flags: &[&str]| {
            let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            ignores_quota(sizing, 4, 1.0, &flags).unwrap()
        };
        let told = said(Sizing::Jvm, &["-XX:ParallelGCThreads=4"]);
        assert_eq!(
            told,
            "the JVM runs 4 collector threads on 1.00 cores of quota: -XX:ParallelGCThreads=4 says so"
        );
        // Without an option, its version or its start may be the reason: both are only possible.
        let untold = said(Sizing::Jvm, &[]);
        assert!(untold.contains("no option of it was found"), "{untold}");
        // Whether a program sets the number itself cannot be seen.
        for flags in [&["GOMAXPROCS=4"][..], &[]] {
            let go = said(Sizing::Go, flags);
            let unless = "unless the program sets GOMAXPROCS itself";
            assert!(go.contains("runs up to 4") && go.contains(unless), "{go}");
        }
    }

    #[test]
    fn threads_are_known_by_the_names_that_the_kernel_keeps() {
        for name in ["tokio-runtime-worker", "tokio-rt-worker"] {
            let kept = &name[..15];
            assert_eq!(thread_setting(kept), Some(TOKIO), "{kept}");
        }
        assert_eq!(thread_setting("tokio"), None);
    }

    #[test]
    fn helpers_are_told_from_workers_by_their_titles() {
        let helpers = [
            "postgres: logical replication launcher",
            "postgres: 15/main: autovacuum launcher",
            "nginx: cache manager process",
            "/usr/bin/python3 -c from multiprocessing.resource_tracker import main;main(4)",
        ];
        for command in helpers {
            assert!(is_helper(command), "{command}");
        }
        let workers = [
            "postgres: 15/main: app shop 127.0.0.1(4711) idle",
            "nginx: worker process",
            "/usr/bin/python3 -c from multiprocessing.spawn import spawn_main; spawn_main()",
            "",
        ];
        for command in workers {
            assert!(!is_helper(command), "{command}");
        }
    }
}
