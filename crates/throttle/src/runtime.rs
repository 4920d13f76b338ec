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

/// Programs that work by processes, by a word of their command line, and where their owners set how
/// many. From the manuals of each.
const WORKERS: [(&str, &str); 14] = [
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
];

/// Where the owner of a program sets how many processes it works by; `command` is its name and
/// command line.
///
/// ```
/// use throttle::worker_setting;
/// assert_eq!(worker_setting("php-fpm: pool www"), Some("pm.max_children of PHP-FPM"));
/// assert_eq!(worker_setting("python3 /usr/bin/gunicorn app:app"), Some("--workers (-w) of gunicorn"));
/// assert_eq!(worker_setting("sh -c true"), None);
/// ```
#[must_use]
pub fn worker_setting(command: &str) -> Option<&'static str> {
    let known = WORKERS.iter().find(|(word, _)| command.contains(word));
    known.map(|(_, setting)| *setting)
}

/// A program that sizes a pool by the CPUs that it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizing {
    /// A JVM: the quota, rounded up, since 8u191 and 10 (JDK-8146115), unless a flag says otherwise.
    Jvm,
    /// Go: from 1.25 on the quota, rounded up, and 2 at least (go.dev/doc/go1.25, runtime); before that, the host's CPUs.
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
