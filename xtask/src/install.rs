//! Installs the Debian packages that the tests and examples need, where they are missing, and says
//! so.
//!
//! Services that come with a package are neither started nor restarted by its installation: the
//! tests and examples start their own, on loopback.

mod packages;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

pub(crate) use packages::Need;
use packages::Present;
pub(crate) use packages::{
    AARCH64, BENCH_AGENT, BENCH_DATAPLANE, BENCH_FLEET, BENCH_LOAD, BENCH_NEWCOMER, BENCH_POOLS,
    BENCH_PUBLISHED, BENCH_RELAYOUT, BENCH_THROTTLE, BENCH_TUNERS, BENCH_WIRE, BLOCK, DEMO, DIST,
    EXAMPLES, FUZZ, FUZZ_API, ISOLATE, RELAYOUT, STRESS_RELAYOUT, TEST,
};

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
