//! Installs the Debian packages that the tests and examples need, where they are missing, and says
//! so.
//!
//! Services that come with a package are neither started nor restarted by its installation: the
//! tests and examples start their own, on loopback.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// A package, what shows that it is there, and what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// What shows that it is there.
    present: Present,
    package: &'static str,
    purpose: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Present {
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
    purpose: "makes the bare Debian that the package is tried in",
};
const SWIG: Need = Need {
    present: Present::Program("swig"),
    package: "swig",
    purpose: "SMAC3's random forest is built from source",
};
const CXX: Need = Need {
    present: Present::Program("g++"),
    package: "g++",
    purpose: "compiles that, and the programs that tests lay out again",
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

/// What `cargo xtask aarch64` needs.
pub(crate) const AARCH64: &[Need] = &[CROSS_CC];

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
pub(crate) const FUZZ: &[Need] = &[PYTHON];
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
pub(crate) const EXAMPLES: &[Need] = &[NGINX, WRK, HAPROXY, POSTGRES, JDK, MAVEN];

/// Installs what is missing of `needs`.
///
/// # Errors
/// Something is missing and this is no Debian, the user may not install, or apt-get failed.
pub(crate) fn install(needs: &[Need]) -> anyhow::Result<()> {
    let missing: Vec<&Need> = needs
        .iter()
        .filter(|need| !is_present(need.present))
        .collect();
    if missing.is_empty() {
        let packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
        println!("==> install: nothing ({} are present)", packages.join(", "));
        return Ok(());
    }
    println!("==> install: these Debian packages are missing and will be installed");
    for need in &missing {
        println!("      {:<24} {}", need.package, need.purpose);
    }
    println!("    Services in them are not started now; systemd may start them at the next boot.");
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    apt_install(&packages).with_context(|| {
        format!(
            "cannot install; do it by hand: apt-get install {}",
            packages.join(" ")
        )
    })?;
    if let Some(need) = missing.iter().find(|need| !is_present(need.present)) {
        bail!(
            "{} is installed, but its program is not found",
            need.package
        );
    }
    Ok(())
}

/// The release of axe-core whose rules the pages are held against.
const AXE: &str = "axe-core@4.10.3";

/// Whether this runs in CI, as CI systems say it.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false"))
}

/// Fetches axe-core from npm into `target/axe`, where the browser tests look for it. Without it
/// they say that they did not check the pages with it; in CI it must be there.
///
/// # Errors
/// It cannot be fetched, and this is CI.
pub(crate) fn axe(root: &Path, is_ci: bool) -> anyhow::Result<()> {
    let directory = root.join("target/axe");
    if directory.join("node_modules/axe-core/axe.min.js").exists() {
        return Ok(());
    }
    println!(
        "==> install: {AXE} is fetched from npm into {}",
        directory.display()
    );
    let mut npm = Command::new("npm");
    npm.args([
        "install",
        "--no-save",
        "--no-audit",
        "--no-fund",
        "--prefix",
    ]);
    match output_of(npm.arg(&directory).arg(AXE)) {
        Ok(_) => Ok(()),
        Err(error) => without_axe(error, is_ci),
    }
}

fn without_axe(error: anyhow::Error, is_ci: bool) -> anyhow::Result<()> {
    if is_ci {
        return Err(error.context(format!("{AXE} cannot be fetched from npm")));
    }
    println!(
        "warning: {AXE} cannot be fetched, so nothing checks the pages' accessibility: {error:#}"
    );
    Ok(())
}

/// The package on which the kernel of Debian's cloud images depends.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Unpacks the guest's kernel and its modules into `target/guest`, where the tests look for them.
/// They are not installed: this machine's own boot stays as it is.
///
/// # Errors
/// The package cannot be found, fetched or unpacked.
pub(crate) fn guest_kernel(root: &Path) -> anyhow::Result<()> {
    let directory = root.join("target/guest");
    let has = |folder: &str, is_wanted: fn(&str) -> bool| {
        std::fs::read_dir(directory.join(folder)).is_ok_and(|files| {
            let mut names = files.flatten().map(|file| file.file_name());
            names.any(|name| is_wanted(&name.to_string_lossy()))
        })
    };
    if has("boot", |name| name.starts_with("vmlinuz-")) && has("lib/modules", |_| true) {
        return Ok(());
    }
    println!(
        "==> install: the kernel of {KERNEL} is unpacked into {}, not installed",
        directory.display()
    );
    std::fs::create_dir_all(&directory)?;
    let package = match kernel_package()? {
        Some(package) => package,
        // Lists of packages that were never fetched.
        None => {
            output_of(as_root("apt-get")?.args(["--quiet", "update"]))?;
            kernel_package()?.with_context(|| format!("{KERNEL} is in no package list"))?
        }
    };
    output_of(
        Command::new("apt-get")
            .args(["--quiet", "download", &package])
            .current_dir(&directory),
    )?;
    for entry in std::fs::read_dir(&directory)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar --extract ./boot ./lib/modules";
            output_of(
                Command::new("sh")
                    .args(["-c", unpack, "sh"])
                    .arg(&file)
                    .current_dir(&directory),
            )?;
            std::fs::remove_file(&file)?;
        }
    }
    Ok(())
}

/// The kernel's own package, which `KERNEL` depends on.
fn kernel_package() -> anyhow::Result<Option<String>> {
    let output = Command::new("apt-cache")
        .args(["depends", KERNEL])
        .output()
        .context("apt-cache cannot be run; is this a Debian machine?")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(names
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned))
}

fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("{command:?} cannot be run"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn apt_install(packages: &[&str]) -> anyhow::Result<()> {
    let _policy = NoServiceStarts::new()?;
    for arguments in [
        vec!["--quiet", "update"],
        [
            &["--quiet", "--yes", "--no-install-recommends", "install"],
            packages,
        ]
        .concat(),
    ] {
        let status = as_root("apt-get")?
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(&arguments)
            .status()
            .context("apt-get cannot be run; is this a Debian machine?")?;
        if !status.success() {
            bail!("apt-get {} ended with {status}", arguments.join(" "));
        }
    }
    Ok(())
}

/// A command as root: itself, or through sudo where that asks for no password.
fn as_root(program: &str) -> anyhow::Result<Command> {
    if is_root()? {
        return Ok(Command::new(program));
    }
    if find_program("sudo").is_none() {
        bail!("installing needs root, and there is no sudo");
    }
    let mut command = Command::new("sudo");
    command.args([
        "--non-interactive",
        "--preserve-env=DEBIAN_FRONTEND",
        program,
    ]);
    Ok(command)
}

fn is_root() -> anyhow::Result<bool> {
    let output = Command::new("id")
        .arg("-u")
        .output()
        .context("id cannot be run")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

/// While it lives, Debian's `invoke-rc.d` starts no service (see policy-rc.d(8) of
/// init-system-helpers).
struct NoServiceStarts {
    /// The policy file, if this is the one who made it.
    made: Option<PathBuf>,
}

impl NoServiceStarts {
    fn new() -> anyhow::Result<Self> {
        let path = Path::new("/usr/sbin/policy-rc.d");
        if !is_root()? {
            println!("    (not root: the packages' services will be started as Debian does it)");
            return Ok(Self { made: None });
        }
        // An existing policy is the machine's own (containers have one): leave it.
        match std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
        {
            Ok(file) => {
                use std::io::Write as _;
                use std::os::unix::fs::PermissionsExt as _;
                let made = Self {
                    made: Some(path.to_path_buf()),
                };
                // 101: the action is forbidden by policy.
                (&file).write_all(b"#!/bin/sh\nexit 101\n")?;
                file.set_permissions(std::fs::Permissions::from_mode(0o755))?;
                Ok(made)
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Self { made: None }),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        }
    }
}

impl Drop for NoServiceStarts {
    fn drop(&mut self) {
        if let Some(path) = &self.made
            && let Err(error) = std::fs::remove_file(path)
        {
            println!("xtask: {} is left behind: {error}", path.display());
        }
    }
}

fn is_present(what: Present) -> bool {
    match what {
        Present::Program(name) => find_program(name).is_some(),
        Present::File(path) => Path::new(path).is_file(),
        Present::PostgresServer => std::fs::read_dir("/usr/lib/postgresql").is_ok_and(|versions| {
            versions
                .flatten()
                .any(|version| version.path().join("bin/postgres").exists())
        }),
    }
}

/// The program in the search path; `sbin`, which a user's path may lack, counts too.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
}

/// A program from crates.io, which is built into the target directory where this machine has none.
///
/// # Errors
/// It cannot be built.
pub(crate) fn from_crates_io(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    if let Some(program) = find_program(name) {
        return Ok(program);
    }
    let tools = root.join("target/tools");
    let program = tools.join("bin").join(name);
    if !program.exists() {
        let mut build = crate::cargo::cargo();
        build
            .args(["install", "--quiet", "--locked", name, "--root"])
            .arg(&tools);
        if !crate::step::run(&format!("install {name}, from crates.io"), &mut build)? {
            bail!("{name} could not be installed");
        }
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_and_a_missing_one_is_not() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program-here").is_none());
        assert!(is_present(Present::Program("sh")));
    }

    #[test]
    fn without_axe_only_ci_fails() {
        assert!(without_axe(anyhow::anyhow!("no network"), true).is_err());
        assert!(without_axe(anyhow::anyhow!("no network"), false).is_ok());
    }

    #[test]
    fn what_the_demo_needs_the_tests_and_examples_install_too() {
        for need in DEMO {
            for set in [TEST, EXAMPLES] {
                assert!(
                    set.iter().any(|other| other.package == need.package),
                    "{need:?}"
                );
            }
        }
    }
}
