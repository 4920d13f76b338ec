//! A knob: something of the host that is read and written as text, named so that it means the same
//! after a restart. Reading normalises what the kernel prints, so that a value read can be
//! compared, stored, and written back.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::cpus::parse_cpu_list;
use crate::debugfs;
use crate::egress;
use crate::error::HostError;
use crate::files::replace_or_write;
use crate::roots::{Roots, check_relative, read_text, write_text};
use crate::sched::{SchedAttribute, SchedThreads};

/// Something that can be read and written as text.
///
/// ```
/// use host::{Knob, Roots};
/// let knob = Knob::Sysctl("vm.swappiness".into());
/// assert_eq!(knob.path(&Roots::default()).to_str(), Some("/proc/sys/vm/swappiness"));
/// assert_eq!(knob.to_string(), "vm.swappiness");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knob {
    /// A kernel setting by its dotted name. As with sysctl(8), a `/` in a dotted name stands for a
    /// dot in a file name (`net.ipv4.conf.eth0/100.rp_filter`).
    Sysctl(String),
    /// A file below `/sys/block/DEVICE/queue/`.
    BlockQueue {
        /// The device, e.g. `vda`.
        device: String,
        /// The file, e.g. `read_ahead_kb`, `iosched/fifo_batch`, `scheduler`.
        file: String,
    },
    /// A file of a control group, in whichever hierarchy has its controller.
    Cgroup {
        /// The group's path below the hierarchy's root, e.g. `slackline/experiment`.
        group: String,
        /// The file, e.g. `cpu.cfs_quota_us` (v1) or `cpu.max` (v2).
        file: String,
    },
    /// Any other kernel file, by absolute path.
    File(PathBuf),
    /// An attribute of a service's threads.
    Sched {
        /// Whose.
        threads: SchedThreads,
        /// The attribute.
        attribute: SchedAttribute,
    },
    /// What a control group may send on a network device, in bytes a second, or `max`.
    Egress {
        /// The device, e.g. `eth0`.
        device: String,
        /// The group.
        group: String,
    },
}

impl Knob {
    /// The file behind the knob.
    #[must_use]
    pub fn path(&self, roots: &Roots) -> PathBuf {
        match self {
            Self::Sysctl(name) => roots.proc("sys").join(sysctl_path(name)),
            Self::BlockQueue { device, file } => {
                roots.sys("block").join(device).join("queue").join(file)
            }
            Self::Cgroup { group, file } => cgroup::file_path(roots, group, file),
            Self::File(path) => roots.absolute(path),
            Self::Sched { threads, attribute } => match threads {
                SchedThreads::Group(group) => cgroup::file_path(roots, group, "cgroup.procs"),
                SchedThreads::Process { pid, .. } => roots.proc(format!("{pid}/task")),
                SchedThreads::PidFile(path) => path.clone(),
                SchedThreads::Instance => PathBuf::from(format!("sched {attribute}")),
            },
            Self::Egress { device, .. } => roots.sys("class/net").join(device),
        }
    }

    /// Whether it belongs to an instance that is yet to be started, and not to the host.
    #[must_use]
    pub fn is_of_instance(&self) -> bool {
        let threads = &SchedThreads::Instance;
        matches!(self, Self::Sched { threads: of, .. } if of == threads)
    }

    /// The same knob of an instance that has been started.
    #[must_use]
    pub fn of_instance(&self, pid: u32, start_time: u64) -> Self {
        match self {
            Self::Sched { attribute, threads } if *threads == SchedThreads::Instance => {
                Self::Sched {
                    threads: SchedThreads::Process { pid, start_time },
                    attribute: *attribute,
                }
            }
            knob => knob.clone(),
        }
    }

    /// Whether everything that the knob stands for has the value that it reads as. Threads may
    /// differ.
    ///
    /// # Errors
    ///
    /// As [`Knob::read`].
    pub fn is_uniform(&self, roots: &Roots) -> Result<bool, HostError> {
        match self {
            Self::Sched { threads, attribute } => threads.is_uniform(roots, *attribute),
            _ => Ok(true),
        }
    }

    /// Writes it without a record of what it was: for the threads of a process that is ours and
    /// ends with the experiment.
    ///
    /// # Errors
    ///
    /// [`HostError::Write`].
    pub fn put_for_good(&self, roots: &Roots, value: &str) -> Result<(), HostError> {
        self.put(roots, value)
            .map_err(|error| HostError::write(&self.path(roots), value, &error))
    }

    /// Writes it, without a record.
    pub(crate) fn put(&self, roots: &Roots, value: &str) -> std::io::Result<()> {
        match self {
            Self::Sched { threads, attribute } => {
                let written = threads.write(roots, *attribute, value);
                written.map_err(|error| {
                    std::io::Error::from_raw_os_error(error.errno().unwrap_or(libc::EIO))
                })
            }
            Self::Egress { device, group } => egress::put(roots, device, group, value),
            knob if knob.is_ordinary(roots) => {
                replace_or_write(&knob.path(roots), format!("{value}\n").as_bytes())
            }
            knob => write_text(&knob.reach(roots), value),
        }
    }

    /// Whether it is an ordinary file, on a disk or in memory, and none of the kernel's.
    pub(crate) fn is_ordinary(&self, roots: &Roots) -> bool {
        let Self::File(path) = self else {
            return false;
        };
        let at = roots.absolute(path);
        !is_named_as_kernel_s(path)
            && fs::metadata(&at).is_ok_and(|metadata| metadata.is_file())
            && rustix::fs::statfs(&at)
                .is_ok_and(|found| !KERNEL_FILE_SYSTEMS.contains(&found.f_type))
    }

    /// The present value, normalised: trimmed, blanks and tabs as single spaces, and of a choice
    /// such as `none [mq-deadline] bfq` the bracketed word. `None` where the knob does not exist on
    /// this host.
    ///
    /// # Errors
    ///
    /// [`HostError::Read`] where it exists and cannot be read; [`HostError::InvalidName`] for a
    /// name that would lead out of its tree.
    pub fn read(&self, roots: &Roots) -> Result<Option<String>, HostError> {
        self.check()?;
        if let Self::File(path) = self
            && let Ok(metadata) = fs::metadata(roots.absolute(path))
            && !(metadata.is_file() || metadata.is_dir())
        {
            // Whoever opens a pipe waits for its other end.
            return Err(HostError::InvalidName {
                name: path.display().to_string(),
                why: "it is a pipe, a socket or a device, not a file with a value",
            });
        }
        if let Self::Sched { threads, attribute } = self {
            return threads.read(roots, *attribute);
        }
        if let Self::Egress { device, group } = self {
            return egress::read(roots, device, group);
        }
        let (path, at) = (self.path(roots), self.reach(roots));
        match read_text(&at) {
            Ok(text) => Ok(text.map(|text| normalise(&text))),
            // Root, too, is refused what has no read bit below /proc/sys and /sys.
            Err(HostError::Read { .. }) if lacks_mode(&at, 0o444) => {
                Err(HostError::WriteOnly { path })
            }
            Err(HostError::Read { .. }) if debugfs::is_locked_down(roots, &path) => {
                Err(HostError::LockedDown { path })
            }
            Err(HostError::Read { errno, .. }) => Err(HostError::Read { path, errno }),
            Err(error) => Err(error),
        }
    }

    /// Where this process finds the file: debugfs may be mounted for it alone.
    pub(crate) fn reach(&self, roots: &Roots) -> PathBuf {
        let path = self.path(roots);
        debugfs::reach(roots, &path).unwrap_or(path)
    }

    /// Whether the kernel takes values for this knob at all, as far as its file's mode and mount
    /// say so. Nothing is written.
    ///
    /// # Errors
    ///
    /// [`HostError::ReadOnly`].
    pub fn check_writable(&self, roots: &Roots) -> Result<(), HostError> {
        if matches!(self, Self::Sched { .. } | Self::Egress { .. }) {
            return Ok(());
        }
        let (path, at) = (self.path(roots), self.reach(roots));
        let is_mount = rustix::fs::statvfs(&at)
            .is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        // The owner of an ordinary file can write it whatever its mode.
        let is_kernel = !matches!(self, Self::File(path) if !is_named_as_kernel_s(path));
        match is_mount || is_kernel && lacks_mode(&at, 0o222) {
            true => Err(HostError::ReadOnly { path, is_mount }),
            false => Ok(()),
        }
    }

    /// The knob that the kernel sets to 0 when this one is written: of each pair, bytes and share
    /// of memory, one is in force (mm/page-writeback.c, `dirty_ratio_handler` and its three
    /// neighbours).
    pub(crate) fn excludes(&self) -> Option<Self> {
        let Self::Sysctl(name) = self else {
            return None;
        };
        let other = match sysctl_path(name).to_str()? {
            "vm/dirty_ratio" => "vm.dirty_bytes",
            "vm/dirty_bytes" => "vm.dirty_ratio",
            "vm/dirty_background_ratio" => "vm.dirty_background_bytes",
            "vm/dirty_background_bytes" => "vm.dirty_background_ratio",
            _ => return None,
        };
        Some(Self::Sysctl(other.to_owned()))
    }

    /// Rejects names that would lead out of their tree.
    pub(crate) fn check(&self) -> Result<(), HostError> {
        match self {
            Self::Sysctl(name) => check_relative(name, &sysctl_path(name)),
            Self::BlockQueue { device, file } => {
                check_relative(device, Path::new(device))?;
                check_relative(file, Path::new(file))
            }
            Self::Cgroup { group, file } => {
                cgroup::check_group(group)?;
                check_relative(file, Path::new(file))
            }
            Self::File(path) if !path.is_absolute() => Err(HostError::InvalidName {
                name: path.display().to_string(),
                why: "the path of a file has to be absolute",
            }),
            Self::File(_) => Ok(()),
            Self::Sched { threads, .. } => match threads {
                SchedThreads::Group(group) => cgroup::check_group(group),
                _ => Ok(()),
            },
            Self::Egress { device, group } => {
                check_relative(device, Path::new(device))?;
                cgroup::check_group(group)
            }
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(name) => f.write_str(name),
            Self::BlockQueue { device, file } => write!(f, "/sys/block/{device}/queue/{file}"),
            Self::Cgroup { group, file } => write!(f, "cgroup {group} {file}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Sched { threads, attribute } => write!(f, "{attribute} of {threads}"),
            Self::Egress { device, group } => write!(f, "egress of cgroup {group} on {device}"),
        }
    }
}

/// The file systems whose files are the kernel's, wherever they are mounted: proc, sysfs, cgroup v1
/// and v2, debugfs, tracefs, configfs, securityfs, bpf, resctrl, selinuxfs
/// (include/uapi/linux/magic.h).
const KERNEL_FILE_SYSTEMS: [i64; 11] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x6265_6570,
    0x7363_6673,
    0xcafe_4a11,
    0x0765_5821,
    0xf97c_ff8c,
];

fn is_named_as_kernel_s(path: &Path) -> bool {
    path.starts_with("/proc") || path.starts_with("/sys")
}

/// Whether a file exists and has none of these mode bits.
fn lacks_mode(path: &Path, bits: u32) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & bits == 0)
}

/// Numbers from here on stand for "no limit": 2^63 − 4096 is an unlimited `memory.limit_in_bytes`
/// (mm/page_counter.c,
/// `PAGE_COUNTER_MAX`), 2^64 − 2^24 an untouched `kernel.shmmax` (include/uapi/linux/shm.h). 2^62
/// bytes or pages are beyond any machine.
const NO_LIMIT_FROM: u64 = 1 << 62;

/// Whether what a knob reads as is no quantity but stands for "none" or "no limit": `max`,
/// `unlimited`, −1, and numbers near 2^31, 2^32, 2^63 and 2^64. A caller for whom such a number
/// lies in range knows better.
///
/// ```
/// assert!(host::is_no_limit("max") && host::is_no_limit("-1"));
/// assert!(host::is_no_limit("9223372036854771712") && host::is_no_limit("18446744073692774399"));
/// assert!(!host::is_no_limit("1073741824") && !host::is_no_limit("0"));
/// ```
#[must_use]
pub fn is_no_limit(text: &str) -> bool {
    match text {
        "max" | "unlimited" | "infinity" | "-1" => true,
        // INT_MAX and UINT_MAX.
        "2147483647" | "4294967295" => true,
        number => number
            .parse()
            .is_ok_and(|number: u64| number >= NO_LIMIT_FROM),
    }
}

/// sysctl(8): the first separator decides; in the dotted form `/` and `.` change places.
fn sysctl_path(name: &str) -> PathBuf {
    if name
        .find(['.', '/'])
        .is_some_and(|at| name.as_bytes()[at] == b'/')
    {
        return PathBuf::from(name);
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    PathBuf::from(name.chars().map(swap).collect::<String>())
}

/// One line: the selected word of a choice, or the words with single spaces between. Several lines:
/// only the end is trimmed.
pub(crate) fn normalise(text: &str) -> String {
    let text = text.trim_matches(['\0', '\n', ' ', '\t', '\r']);
    if text.contains('\n') {
        return text.to_owned();
    }
    match selected_word(text) {
        Some(word) => word.to_owned(),
        None => text.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// The bracketed word, where exactly one word of a single line is bracketed.
fn selected_word(text: &str) -> Option<&str> {
    if text.trim().contains('\n') {
        return None;
    }
    let mut bracketed = text
        .split_whitespace()
        .filter_map(|word| word.strip_prefix('[')?.strip_suffix(']'))
        .filter(|w| !w.is_empty());
    let first = bracketed.next()?;
    bracketed.next().is_none().then_some(first)
}

/// Whether the kernel printing `found` means that it took `wanted`: the same words, or one of the
/// known ways in which it prints a value differently.
pub(crate) fn is_taken_as(wanted: &str, found: &str) -> bool {
    let (wanted, found) = (normalise(wanted), normalise(found));
    // `50000` written to a v2 cpu.max reads as `50000 100000`.
    let is_prefix = || {
        !wanted.is_empty()
            && found
                .strip_prefix(&wanted)
                .is_some_and(|rest| rest.starts_with(' '))
    };
    // Module parameters of type bool (kernel/params.c) print Y and N.
    let is_bool = || {
        matches!(
            (wanted.as_str(), found.as_str()),
            ("1" | "y", "Y") | ("0" | "n", "N")
        )
    };
    // memparse (lib/cmdline.c): 1G reads as 1073741824.
    let is_size = || size_bytes(&wanted).is_some_and(|size| Some(size) == size_bytes(&found));
    // 0,1 reads as 0-1.
    let is_cpu_list = || match (parse_cpu_list(&wanted), parse_cpu_list(&found)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    };
    wanted == found || is_prefix() || is_bool() || is_size() || is_cpu_list()
}

/// Whether two readings of a knob are the same state: a v1 group is FREEZING until its last thread
/// has stopped.
pub(crate) fn is_same_state(left: &str, found: &str) -> bool {
    let settled = |text: &str| if text == "FREEZING" { "FROZEN" } else { text }.to_owned();
    settled(left) == settled(found)
}

fn size_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
    let shift = match text.get(digits.len()..)? {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests;
