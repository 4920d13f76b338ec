//! The scheduling attributes of a service's threads (sched_setattr(2)): policy, nice value, and,
//! since Linux 6.12, a slice of its own for each.
//!
//! A thread hands its attributes on to the threads and processes that it makes, so that new ones
//! have them as well.

use std::fmt;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::cgroup_tree::threads_below;
use crate::error::{HostError, is_absence};
use crate::process::{family, is_running, thread_ids};
use crate::roots::Roots;

/// Threads that are made while others are changed are found by the next pass.
const PASSES: usize = 8;
/// What a slice may be (kernel/sched/syscalls.c, `__setparam_fair`: it is cut to a tenth of a
/// millisecond, and to 100).
const SLICE_US: std::ops::RangeInclusive<f64> = 100.0..=100_000.0;
/// Keeps `SCHED_RESET_ON_FORK` as it is (sched_setattr(2)).
const RESET_ON_FORK: u64 = 0x01;
/// The policies of ordinary threads: those with a priority need one, and can lock up a host.
const POLICIES: [(&str, u32); 3] = [("other", 0), ("batch", 3), ("idle", 5)];

/// Which threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedThreads {
    /// Those of an instance that is yet to be started: they have no value until then.
    Instance,
    /// All in a control group and in those below it.
    Group(String),
    /// Those of a process and its descendants.
    Process {
        /// The process.
        pid: u32,
        /// When it started, field 22 of `/proc/PID/stat`.
        start_time: u64,
    },
    /// Those of the process whose pid this file holds, and its descendants.
    PidFile(PathBuf),
}

/// Which attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedAttribute {
    /// How long a thread runs before another one's turn, in microseconds: 100 to 100,000
    /// (`sched_runtime` of an ordinary thread, since Linux 6.12).
    SliceUs,
    /// The nice value, −20 to 19.
    Nice,
    /// `other`, `batch` or `idle`.
    Policy,
}

impl fmt::Display for SchedAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SliceUs => "slice_us",
            Self::Nice => "nice",
            Self::Policy => "policy",
        })
    }
}

impl fmt::Display for SchedThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance => f.write_str("each instance's threads"),
            Self::Group(group) => write!(f, "the threads of cgroup {group}"),
            Self::Process { pid, .. } => write!(f, "the threads of process {pid}"),
            Self::PidFile(path) => write!(f, "the threads of the process in {}", path.display()),
        }
    }
}

/// `struct sched_attr` (include/uapi/linux/sched/types.h), SCHED_ATTR_SIZE_VER1.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
    util_min: u32,
    util_max: u32,
}

const SIZE_BYTES: u32 = 56;

impl Attributes {
    /// `None` of a thread that has just ended.
    fn of(tid: u32) -> Result<Option<Self>, i32> {
        let mut attributes = Self::default();
        // SAFETY: the pointer is valid for writing as many bytes as are named, which are those of
        // the structure.
        let result = unsafe {
            libc::syscall(
                libc::SYS_sched_getattr,
                tid,
                &raw mut attributes,
                SIZE_BYTES,
                0,
            )
        };
        match result {
            0 => Ok(Some(attributes)),
            _ => ended(),
        }
    }

    /// `false` of a thread that has just ended.
    fn set(&self, tid: u32) -> Result<bool, i32> {
        let attributes = Self {
            size: SIZE_BYTES,
            flags: self.flags & RESET_ON_FORK,
            ..*self
        };
        // SAFETY: the pointer is valid for reading the structure, whose size it begins with.
        let result =
            unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) };
        match result {
            0 => Ok(true),
            _ => Ok(ended::<()>()?.is_some()),
        }
    }
}

/// The error of the last call, unless it is that the thread is gone.
fn ended<T>() -> Result<Option<T>, i32> {
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Ok(None),
        errno => Err(errno.unwrap_or(libc::EIO)),
    }
}

/// The slice of a thread that has none of its own: this thread's. 0 where it is not known.
fn usual_slice_ns() -> u64 {
    let own = Attributes::of(0).ok().flatten();
    own.filter(|own| own.policy == 0)
        .map_or(0, |own| own.runtime_ns)
}

impl SchedAttribute {
    /// What is wrong with a value of this attribute.
    ///
    /// # Errors
    ///
    /// In words.
    pub fn check(self, text: &str) -> Result<(), String> {
        self.change(Attributes::default(), text)
            .map(drop)
            .ok_or_else(|| {
                let wanted = match self {
                    Self::SliceUs => "a slice is 100 to 100000 microseconds",
                    Self::Nice => "a nice value is a whole number from -20 to 19",
                    Self::Policy => "a policy is other, batch or idle",
                };
                format!("{text:?} is none: {wanted}")
            })
    }

    fn text(self, attributes: &Attributes) -> String {
        match self {
            Self::SliceUs => format!("{}", attributes.runtime_ns as f64 / 1e3),
            Self::Nice => attributes.nice.to_string(),
            Self::Policy => POLICIES
                .iter()
                .find(|(_, number)| *number == attributes.policy)
                .map_or_else(
                    || attributes.policy.to_string(),
                    |(name, _)| (*name).to_owned(),
                ),
        }
    }

    /// The attributes with another value of this one; `None` if it cannot be one.
    fn change(self, attributes: Attributes, text: &str) -> Option<Attributes> {
        let mut changed = attributes;
        match self {
            Self::SliceUs => {
                let slice_us: f64 = text.parse().ok().filter(|us| SLICE_US.contains(us))?;
                changed.runtime_ns = nanoseconds(slice_us);
            }
            Self::Nice => {
                changed.nice = text.parse().ok().filter(|nice| (-20..=19).contains(nice))?;
            }
            Self::Policy => {
                let mut known = POLICIES.iter();
                changed.policy = known.find(|(name, _)| *name == text)?.1;
            }
        }
        Some(changed)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 100 µs and 100 ms, just tested"
)]
fn nanoseconds(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

impl SchedThreads {
    /// Their ids, those of the first process first; none of what is not there.
    fn ids(&self, roots: &Roots) -> Result<Vec<u32>, HostError> {
        let of_family = |pid: u32| {
            let family = family(roots, pid).into_iter();
            let threads = family.flat_map(|(pid, _)| thread_ids(roots, pid).unwrap_or_default());
            threads.collect()
        };
        Ok(match self {
            Self::Instance => Vec::new(),
            Self::Group(group) => threads_below(roots, group)?,
            Self::Process { pid, start_time } if is_running(roots, *pid, *start_time) => {
                of_family(*pid)
            }
            Self::Process { .. } => Vec::new(),
            Self::PidFile(path) => match fs::read_to_string(path) {
                Ok(text) => text.trim().parse().map(of_family).unwrap_or_default(),
                Err(error) if is_absence(&error) => Vec::new(),
                Err(error) => return Err(HostError::read(path, &error)),
            },
        })
    }

    /// The attribute's value of each thread.
    fn values(
        &self,
        roots: &Roots,
        attribute: SchedAttribute,
    ) -> Result<Vec<(u32, Attributes, String)>, HostError> {
        let mut values = Vec::new();
        for tid in self.ids(roots)? {
            let path = roots.proc(format!("{tid}"));
            let attributes =
                Attributes::of(tid).map_err(|errno| HostError::Read { path, errno })?;
            if let Some(attributes) = attributes {
                values.push((tid, attributes, attribute.text(&attributes)));
            }
        }
        Ok(values)
    }

    /// The value of the first thread; `None` where there is none.
    pub(crate) fn read(
        &self,
        roots: &Roots,
        attribute: SchedAttribute,
    ) -> Result<Option<String>, HostError> {
        let first = self.values(roots, attribute)?.into_iter().next();
        let Some((tid, attributes, value)) = first else {
            return Ok(None);
        };
        // Before 6.12 an ordinary thread has no slice of its own, and this reads as 0.
        if attribute == SchedAttribute::SliceUs && attributes.runtime_ns == 0 {
            return Err(HostError::NoSlice { tid });
        }
        Ok(Some(value))
    }

    /// Whether all of them have the same value.
    pub(crate) fn is_uniform(
        &self,
        roots: &Roots,
        attribute: SchedAttribute,
    ) -> Result<bool, HostError> {
        let values = self.values(roots, attribute)?;
        let first = values.first().map(|(.., value)| value.clone());
        Ok(values
            .iter()
            .all(|(.., value)| Some(value) == first.as_ref()))
    }

    /// Gives it to all of them, and to those that come meanwhile.
    pub(crate) fn write(
        &self,
        roots: &Roots,
        attribute: SchedAttribute,
        value: &str,
    ) -> Result<(), HostError> {
        let refused = |tid: u32, errno| HostError::Write {
            path: roots.proc(format!("{tid}")),
            value: format!("{attribute} {value}"),
            errno,
        };
        let usual_ns = usual_slice_ns();
        for _ in 0..PASSES {
            let mut changed = false;
            for (tid, attributes, found) in self.values(roots, attribute)? {
                if found == value {
                    continue;
                }
                let wanted = attribute.change(attributes, value);
                let mut wanted = wanted.ok_or_else(|| refused(tid, libc::EINVAL))?;
                // A thread without a slice of its own reads as the usual one, and 0 gives that
                // back.
                if wanted.runtime_ns == usual_ns {
                    wanted.runtime_ns = 0;
                }
                changed |= wanted.set(tid).map_err(|errno| refused(tid, errno))?;
            }
            if !changed {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Ends(Child);

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn values_are_checked_before_anything_is_written() {
        for (attribute, good, bad) in [
            (SchedAttribute::SliceUs, ["100", "3000.5"], ["99", "x"]),
            (SchedAttribute::Nice, ["-20", "19"], ["20", "0.5"]),
            (SchedAttribute::Policy, ["other", "idle"], ["fifo", "0"]),
        ] {
            for text in good {
                assert_eq!(attribute.check(text), Ok(()), "{attribute} {text}");
            }
            for text in bad {
                let error = attribute.check(text).unwrap_err();
                assert!(error.contains("is none"), "{error}");
            }
        }
    }

    #[test]
    fn threads_get_a_value_hand_it_on_and_get_the_first_one_back() {
        let roots = Roots::default();
        // The shell forks a new child again and again.
        let shell = Command::new("sh")
            .args(["-c", "while :; do sleep 0.01; done"])
            .spawn();
        let shell = Ends(shell.unwrap());
        let pid = shell.0.id();
        let threads = SchedThreads::Process {
            pid,
            start_time: crate::start_time(&roots, pid).unwrap(),
        };
        for (attribute, value) in [
            (SchedAttribute::Nice, "7"),
            (SchedAttribute::Policy, "batch"),
            (SchedAttribute::SliceUs, "10000"),
        ] {
            let first = match threads.read(&roots, attribute) {
                Ok(first) => first.unwrap(),
                Err(HostError::NoSlice { .. }) => continue,
                Err(error) => panic!("{error}"),
            };
            threads.write(&roots, attribute, value).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(
                threads.read(&roots, attribute).unwrap().as_deref(),
                Some(value)
            );
            assert!(
                threads.is_uniform(&roots, attribute).unwrap(),
                "children have it too"
            );
            // As root; others may not lower a nice value.
            if threads.write(&roots, attribute, &first).is_ok() {
                assert_eq!(threads.read(&roots, attribute).unwrap(), Some(first));
            }
        }
        drop(shell);
        assert_eq!(threads.read(&roots, SchedAttribute::Nice).unwrap(), None);
    }
}
