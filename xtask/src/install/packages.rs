//! The Debian packages that are needed, and which task needs which.

/// A package, what shows that it is there, and what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// What shows that it is there.
    pub(super) present: Present,
    pub(super) package: &'static str,
    pub(super) purpose: &'static str,
}

/// What shows that a package is there.
#[derive(Clone, Copy, Debug)]
pub(super) enum Present {
    Program(&'static str),
    /// `/usr/lib/postgresql/VERSION/bin/postgres`, of any version.
    PostgresServer,
    File(&'static str),
}

const NGINX: Need = Need {
    present: Present::Program("nginx"),
    package: "nginx-light",
    purpose: "the service that is tuned",
};
const WRK: Need = Need {
    present: Present::Program("wrk"),
    package: "wrk",
    purpose: "load for it",
};
const HAPROXY: Need = Need {
    present: Present::Program("haproxy"),
    package: "haproxy",
    purpose: "a proxy with several threads, which is tuned",
};
const AB: Need = Need {
    present: Present::Program("ab"),
    package: "apache2-utils",
    purpose: "a second load generator, whose output is parsed",
};
const POSTGRES: Need = Need {
    present: Present::PostgresServer,
    package: "postgresql",
    purpose: "the PostgreSQL example: server and pgbench",
};
const SQLITE: Need = Need {
    present: Present::File("/usr/lib/x86_64-linux-gnu/libsqlite3.so.0"),
    package: "libsqlite3-0",
    purpose: "a stock library whose code is laid out again",
};
const JDK: Need = Need {
    present: Present::Program("javac"),
    package: "openjdk-17-jdk-headless",
    purpose: "the Graal example, and JVM metrics of a real JVM",
};
const MAVEN: Need = Need {
    present: Present::Program("mvn"),
    package: "maven",
    purpose: "builds the Graal example's service",
};

const QEMU: Need = Need {
    present: Present::Program("qemu-system-x86_64"),
    package: "qemu-system-x86",
    purpose: "emulates the guest with control groups v2",
};
const BUSYBOX: Need = Need {
    present: Present::Program("busybox"),
    package: "busybox-static",
    purpose: "the guest's programs",
};
const PROMETHEUS: Need = Need {
    present: Present::Program("promtool"),
    package: "prometheus",
    purpose: "the metrics of a fleet",
};
const CHROMEDRIVER: Need = Need {
    present: Present::Program("chromedriver"),
    package: "chromium-driver",
    purpose: "a browser that clicks through the pages",
};
const NPM: Need = Need {
    present: Present::Program("npm"),
    package: "npm",
    purpose: "fetches the rules for pages that everybody can use",
};
const NATS: Need = Need {
    present: Present::Program("nats-server"),
    package: "nats-server",
    purpose: "brings evaluations to workers on other hosts",
};
const OPENSSL: Need = Need {
    present: Present::Program("openssl"),
    package: "openssl",
    purpose: "certificates for it",
};
const IPROUTE: Need = Need {
    present: Present::Program("ip"),
    package: "iproute2",
    purpose: "network namespaces in which workers are cut off",
};
const FAKETIME: Need = Need {
    present: Present::File("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"),
    package: "libfaketime",
    purpose: "a clock that jumps",
};

const EXIM: Need = Need {
    present: Present::Program("exim4"),
    package: "exim4-daemon-light",
    purpose: "a mail server that notifications are sent through",
};
const STRACE: Need = Need {
    present: Present::Program("strace"),
    package: "strace",
    purpose: "slows a load generator down",
};
const DEBOOTSTRAP: Need = Need {
    present: Present::Program("debootstrap"),
    package: "debootstrap",
    purpose: "makes the minimal Debian that the package is tried in",
};
const SWIG: Need = Need {
    present: Present::Program("swig"),
    package: "swig",
    purpose: "SMAC3's random forest is built from source",
};
const CXX: Need = Need {
    present: Present::Program("g++"),
    package: "g++",
    purpose: "compiles that, libFuzzer, and the programs that tests lay out again",
};
const MARIADB: Need = Need {
    present: Present::Program("mariadbd"),
    package: "mariadb-server",
    purpose: "the server that is re-laid out",
};
const GDB: Need = Need {
    present: Present::Program("gdb"),
    package: "gdb",
    purpose: "a debugger that goes through moved code",
};
const BINUTILS: Need = Need {
    present: Present::Program("objcopy"),
    package: "binutils",
    purpose: "takes the unwind information out of a program",
};
const SYSBENCH: Need = Need {
    present: Present::Program("sysbench"),
    package: "sysbench",
    purpose: "load for it",
};
const BOLT: Need = Need {
    present: Present::Program("llvm-bolt-22"),
    package: "bolt-22",
    purpose: "lays the same server out offline",
};
const SQLITE_HEADERS: Need = Need {
    present: Present::File("/usr/include/sqlite3.h"),
    package: "libsqlite3-dev",
    purpose: "a program with SQLite inside",
};
const MEMCACHED: Need = Need {
    present: Present::Program("memcached"),
    package: "memcached",
    purpose: "a server that is re-laid out",
};
const MEMCACHED_LOAD: Need = Need {
    present: Present::Program("memcslap"),
    package: "libmemcached-tools",
    purpose: "load for it",
};
const H2LOAD: Need = Need {
    present: Present::Program("h2load"),
    package: "nghttp2-client",
    purpose: "load by HTTP/2, whose latency is read off the wire",
};
const REDIS_TOOLS: Need = Need {
    present: Present::Program("redis-benchmark"),
    package: "redis-tools",
    purpose: "load for Redis",
};
const REDIS: Need = Need {
    present: Present::Program("redis-server"),
    package: "redis-server",
    purpose: "a server that is re-laid out, and load for it",
};
const PYTHON_3_11: Need = Need {
    present: Present::Program("/usr/bin/python3.11"),
    package: "python3.11",
    purpose: "Debian's CPython, which is re-laid out",
};
const MARIADB_TEST: Need = Need {
    present: Present::File("/usr/share/mysql/mysql-test/mysql-test-run.pl"),
    package: "mariadb-test",
    purpose: "MariaDB's own test suite",
};
const PYTHON_TEST: Need = Need {
    present: Present::File("/usr/lib/python3.11/test/test_grammar.py"),
    package: "libpython3.11-testsuite",
    purpose: "CPython's own test suite",
};
const STRESS_NG: Need = Need {
    present: Present::Program("stress-ng"),
    package: "stress-ng",
    purpose: "batch work beside a service",
};
const FFMPEG: Need = Need {
    present: Present::Program("ffmpeg"),
    package: "ffmpeg",
    purpose: "batch work beside a service",
};
const ZSTD: Need = Need {
    present: Present::Program("zstd"),
    package: "zstd",
    purpose: "batch work beside a service",
};
const CURL: Need = Need {
    present: Present::Program("curl"),
    package: "curl",
    purpose: "waits until the service answers",
};
const PYTHON: Need = Need {
    present: Present::Program("python3"),
    package: "python3-venv",
    purpose: "the peers and the fuzzer are Python packages",
};

const LIBNBD: Need = Need {
    present: Present::Program("nbdcopy"),
    package: "libnbd-bin",
    purpose: "clients of NBD",
};
const NBDSH: Need = Need {
    present: Present::Program("nbdsh"),
    package: "python3-libnbd",
    purpose: "each call of libnbd, by its interface for Python",
};
const QEMU_UTILS: Need = Need {
    present: Present::Program("qemu-io"),
    package: "qemu-utils",
    purpose: "clients of NBD",
};
const FIO: Need = Need {
    present: Present::Program("fio"),
    package: "fio",
    purpose: "a client of NBD that verifies what it wrote",
};
const NVME: Need = Need {
    present: Present::Program("nvme"),
    package: "nvme-cli",
    purpose: "drives Linux' host of NVMe/TCP in a guest",
};
const NBD_CLIENT: Need = Need {
    present: Present::Program("nbd-client"),
    package: "nbd-client",
    purpose: "connects Linux' client of NBD in a guest",
};

const NBDKIT: Need = Need {
    present: Present::Program("nbdkit"),
    package: "nbdkit",
    purpose: "a peer of `serve-block`",
};
const QEMU_STORAGE: Need = Need {
    present: Present::Program("qemu-storage-daemon"),
    package: "qemu-system-common",
    purpose: "a peer of `serve-block`",
};
const E2FSPROGS: Need = Need {
    present: Present::Program("mkfs.ext4"),
    package: "e2fsprogs",
    purpose: "a file system on a remote disk",
};
const SQLITE_SHELL: Need = Need {
    present: Present::Program("sqlite3"),
    package: "sqlite3",
    purpose: "a database on a remote disk",
};

const NODE: Need = Need {
    present: Present::Program("node"),
    package: "nodejs",
    purpose: "a service that works by processes",
};
const GO: Need = Need {
    present: Present::Program("go"),
    package: "golang-go",
    purpose: "builds a service in Go",
};
const GUNICORN: Need = Need {
    present: Present::Program("/usr/bin/gunicorn"),
    package: "gunicorn",
    purpose: "a service that works by processes",
};
const UVICORN: Need = Need {
    present: Present::Program("/usr/bin/uvicorn"),
    package: "uvicorn",
    purpose: "a service that works by processes",
};
const PUMA: Need = Need {
    present: Present::Program("puma"),
    package: "puma",
    purpose: "a service that works by processes",
};
const PHP_FPM: Need = Need {
    present: Present::Program("php-fpm8.2"),
    package: "php8.2-fpm",
    purpose: "a service that works by processes",
};

/// What `cargo xtask bench block` and `examples/serve-block` need.
pub(crate) const BLOCK: &[Need] = &[
    LIBNBD,
    QEMU_UTILS,
    QEMU_STORAGE,
    NBDKIT,
    FIO,
    OPENSSL,
    IPROUTE,
    E2FSPROGS,
    SQLITE_SHELL,
];

const CROSS_CC: Need = Need {
    present: Present::Program("aarch64-linux-gnu-gcc"),
    package: "gcc-aarch64-linux-gnu",
    purpose: "builds the C parts of dependencies for aarch64",
};

const CROSS_HEADERS: Need = Need {
    present: Present::File("/usr/aarch64-linux-gnu/include/string.h"),
    package: "libc6-dev-arm64-cross",
    purpose: "the C library's headers for aarch64",
};

/// What `cargo xtask aarch64` needs.
pub(crate) const AARCH64: &[Need] = &[CROSS_CC, CROSS_HEADERS];

/// What `cargo xtask dist` needs.
pub(crate) const DIST: &[Need] = &[DEBOOTSTRAP, BINUTILS];

/// What `cargo xtask demo` needs.
pub(crate) const DEMO: &[Need] = &[NGINX, WRK];
/// What `cargo xtask test` needs.
pub(crate) const TEST: &[Need] = &[
    NGINX,
    WRK,
    AB,
    POSTGRES,
    JDK,
    QEMU,
    BUSYBOX,
    PROMETHEUS,
    CHROMEDRIVER,
    NPM,
    CXX,
    SQLITE,
    NATS,
    OPENSSL,
    IPROUTE,
    FAKETIME,
    EXIM,
    GDB,
    BINUTILS,
    LIBNBD,
    NBDSH,
    QEMU_UTILS,
    FIO,
    NVME,
    NBD_CLIENT,
    E2FSPROGS,
];
/// What `cargo xtask bench tuners` needs.
pub(crate) const BENCH_TUNERS: &[Need] = &[PYTHON, SWIG, CXX];
/// What `cargo xtask bench fleet` needs.
pub(crate) const BENCH_FLEET: &[Need] = &[PROMETHEUS];
/// What `cargo xtask bench throttle` needs.
pub(crate) const BENCH_THROTTLE: &[Need] = &[JDK, CURL, PYTHON];
/// What `cargo xtask bench published` needs; Go comes from Debian where there is no other.
pub(crate) const BENCH_PUBLISHED: &[Need] = &[NGINX, WRK, IPROUTE, JDK, MAVEN, GO, CURL, PYTHON];
/// What `cargo xtask bench newcomer` needs.
pub(crate) const BENCH_NEWCOMER: &[Need] = &[HAPROXY, NGINX, WRK, REDIS, REDIS_TOOLS, PYTHON];
/// What `cargo xtask bench pools` needs.
pub(crate) const BENCH_POOLS: &[Need] = &[
    NODE, GUNICORN, UVICORN, PUMA, PHP_FPM, POSTGRES, NGINX, PYTHON,
];
/// What `cargo xtask bench agent` needs.
pub(crate) const BENCH_AGENT: &[Need] = &[PYTHON];
/// What `cargo xtask bench dataplane` and `examples/serve-cache` need.
pub(crate) const BENCH_DATAPLANE: &[Need] = &[NGINX, MEMCACHED, REDIS, IPROUTE, PYTHON];
/// What `cargo xtask bench load` needs.
pub(crate) const BENCH_LOAD: &[Need] = &[NGINX, WRK, MARIADB, SYSBENCH, PYTHON, STRACE];
/// What the latency on the wire is held against.
pub(crate) const BENCH_WIRE: &[Need] = &[
    NGINX,
    WRK,
    OPENSSL,
    H2LOAD,
    MEMCACHED,
    REDIS,
    REDIS_TOOLS,
    MARIADB,
    SYSBENCH,
    POSTGRES,
];
/// What `cargo xtask bench isolate` and the isolate examples need.
pub(crate) const ISOLATE: &[Need] = &[
    MEMCACHED, NGINX, MARIADB, STRESS_NG, ZSTD, FFMPEG, JDK, CURL, PYTHON,
];
/// What `cargo xtask fuzz api` needs.
pub(crate) const FUZZ_API: &[Need] = &[PYTHON];
/// What the other targets of `cargo xtask fuzz` need.
pub(crate) const FUZZ: &[Need] = &[CXX];
/// What `cargo xtask bench relayout` and `examples/relayout-mariadb` need.
pub(crate) const RELAYOUT: &[Need] = &[MARIADB, SYSBENCH, PYTHON, GDB];
/// What `cargo xtask bench relayout` needs besides.
pub(crate) const BENCH_RELAYOUT: &[Need] = &[
    BOLT,
    CXX,
    POSTGRES,
    NGINX,
    WRK,
    SQLITE_HEADERS,
    MEMCACHED,
    MEMCACHED_LOAD,
    REDIS,
    PYTHON_3_11,
];
/// What `cargo xtask stress relayout` needs besides.
pub(crate) const STRESS_RELAYOUT: &[Need] = &[PYTHON_3_11, MARIADB_TEST, PYTHON_TEST];
/// What `cargo xtask examples` needs.
pub(crate) const EXAMPLES: &[Need] = &[
    NGINX,
    WRK,
    HAPROXY,
    POSTGRES,
    JDK,
    MAVEN,
    REDIS,
    REDIS_TOOLS,
];
