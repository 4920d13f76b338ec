//! A small guest that QEMU emulates in software, so that no privilege or hardware is needed. Its
//! programs are a static busybox and what a test puts beside it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::toy::skip;

/// What each step ended with and printed.
pub(crate) struct Steps {
    of: HashMap<String, (i32, String)>,
    pub(crate) console: String,
}

impl Steps {
    /// A step's output; it must have ended with this code.
    pub(crate) fn with_code(&self, name: &str, code: i32) -> &str {
        let Some((ended, output)) = self.of.get(name) else {
            panic!("the guest did not come to {name}:\n{}", self.console);
        };
        assert_eq!(*ended, code, "{name}: {output}\n{}", self.console);
        output
    }
}

/// What a guest needs of the machine.
pub(crate) struct Machine {
    pub(crate) scratch: tempfile::TempDir,
    qemu: PathBuf,
    kernel: PathBuf,
    busybox: PathBuf,
}

fn guest_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guest")
}

/// The kernel that `cargo xtask install` unpacks, or says why there is none.
fn kernel() -> Result<PathBuf, String> {
    let directory = guest_directory().join("boot");
    let mut kernels: Vec<PathBuf> = std::fs::read_dir(&directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains("/vmlinuz-"))
        .collect();
    kernels.sort();
    kernels.pop().ok_or(format!(
        "no guest kernel in {}: cargo xtask install",
        directory.display()
    ))
}

/// A program in the search path or among those for the administrator.
pub(crate) fn found(program: &str) -> Result<PathBuf, String> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
        .ok_or(format!("{program} is not installed: cargo xtask install"))
}

pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// The beginning of each guest's first process.
const BEGIN: &str = include_str!("guest/begin.sh");

impl Machine {
    /// A guest whose first process is a script, after what all of them begin with. Says SKIP and
    /// gives `None` where something is missing.
    pub(crate) fn new(init: &str) -> Option<Self> {
        let needs =
            found("qemu-system-x86_64").and_then(|qemu| Ok((qemu, kernel()?, found("busybox")?)));
        let (qemu, kernel, busybox) = needs.inspect_err(|why| skip(why)).ok()?;
        let machine = Self {
            scratch: tempfile::tempdir().unwrap(),
            qemu,
            kernel,
            busybox,
        };
        for directory in ["bin", "proc", "sys", "dev", "tmp", "var/lib"] {
            std::fs::create_dir_all(machine.root().join(directory)).unwrap();
        }
        std::fs::copy(&machine.busybox, machine.root().join("bin/busybox")).unwrap();
        machine.write("init", &format!("{BEGIN}{init}"));
        run(Command::new("chmod")
            .arg("755")
            .arg(machine.root().join("init")));
        Some(machine)
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    /// A file of the guest.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let file = self.root().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// A program without its debugging information, and the libraries that it loads.
    pub(crate) fn install(&self, program: &Path) {
        let ldd = Command::new("ldd").arg(program).output().unwrap();
        for word in String::from_utf8(ldd.stdout).unwrap().split_whitespace() {
            if let Some(below) = word.strip_prefix('/') {
                let to = self.root().join(below);
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::copy(word, to).unwrap();
            }
        }
        run(Command::new("strip")
            .arg("-o")
            .arg(self.root().join("bin").join(program.file_name().unwrap()))
            .arg(program));
    }

    /// A module of the guest's kernel, as `/modules/NAME.ko`. False: there is none, which says
    /// SKIP.
    pub(crate) fn module(&self, path: &str) -> bool {
        let version = self.kernel.file_name().unwrap().to_string_lossy();
        let version = version.trim_start_matches("vmlinuz-");
        let file = guest_directory()
            .join("lib/modules")
            .join(version)
            .join("kernel")
            .join(path);
        let to = self.root().join("modules");
        std::fs::create_dir_all(&to).unwrap();
        let copied = std::fs::copy(&file, to.join(file.file_name().unwrap()));
        copied
            .inspect_err(|_| skip(&format!("no {}: cargo xtask install", file.display())))
            .is_ok()
    }

    /// Starts the guest.
    pub(crate) fn boot(self, append: &str, arguments: &[&str]) -> Running {
        let scratch = self.scratch.path();
        let archive = scratch.join("initramfs");
        let pack = format!(
            "find . | {} cpio -o -H newc > {}",
            self.busybox.display(),
            archive.display()
        );
        run(Command::new("sh")
            .args(["-c", &pack])
            .current_dir(self.root()));
        let (console, results) = (scratch.join("console"), scratch.join("results"));
        let serial = |path: &Path| format!("file:{}", path.display());
        // One thread for both processors: with a thread each QEMU 7.2 now and then loses the
        // interrupt by which a kernel that switches a tracepoint on waits for the other processor,
        // and the guest stands still (1 of 14 runs; no slower this way).
        let guest = Command::new(&self.qemu)
            .args(["-accel", "tcg,thread=single", "-cpu", "max"])
            .args(["-smp", "2", "-m", "512", "-display", "none"])
            .args(["-monitor", "none", "-nodefaults", "-no-reboot"])
            .args(["-serial", &serial(&console), "-serial", &serial(&results)])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(archive)
            .args(["-append", &format!("console=ttyS0 {append} quiet panic=-1")])
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Running {
            guest,
            console,
            results,
            _machine: self,
        }
    }
}

/// A guest that runs.
pub(crate) struct Running {
    guest: Child,
    console: PathBuf,
    results: PathBuf,
    _machine: Machine,
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).replace('\r', "")
}

impl Running {
    /// Waits until the guest has done a step. False: the guest ended, or time is up.
    pub(crate) fn wait_for(&mut self, step: &str, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        while !read(&self.results).contains(&format!("=== {step} ")) {
            if Instant::now() > end || self.guest.try_wait().unwrap().is_some() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Waits until the guest switches itself off, or ends it when time is up.
    pub(crate) fn finish(mut self, timeout: Duration) -> Steps {
        let end = Instant::now() + timeout;
        while self.guest.try_wait().unwrap().is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.stop();
        let mut of = HashMap::new();
        for part in read(&self.results).split("=== ").skip(1) {
            let (head, output) = part.split_once('\n').unwrap();
            let (name, code) = head.split_once(' ').unwrap();
            of.insert(name.to_owned(), (code.parse().unwrap(), output.to_owned()));
        }
        Steps {
            of,
            console: read(&self.console),
        }
    }

    fn stop(&mut self) {
        if self.guest.try_wait().unwrap().is_none() {
            self.guest.kill().unwrap();
            self.guest.wait().unwrap();
        }
    }
}

impl Drop for Running {
    /// A test that fails leaves no guest behind.
    fn drop(&mut self) {
        self.stop();
    }
}
