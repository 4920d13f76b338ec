//! Where the kernel describes its tracepoints.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::{Error, TracepointFormat};

/// Where tracefs usually is mounted (Documentation/trace/ftrace.rst).
const MOUNTED_AT: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// An open tracefs.
#[derive(Debug)]
pub struct Tracefs {
    root: OwnedFd,
}

impl Tracefs {
    /// Opens the mounted one, or mounts one that no other process sees and that goes with this
    /// handle.
    ///
    /// # Errors
    /// [`Error::Tracefs`].
    pub fn open() -> Result<Self, Error> {
        for path in MOUNTED_AT {
            if Path::new(path).join("events").is_dir()
                && let Ok(root) = File::open(path)
            {
                return Ok(Self { root: root.into() });
            }
        }
        let mount = || {
            let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            fsmount(
                &context,
                FsMountFlags::FSMOUNT_CLOEXEC,
                MountAttrFlags::empty(),
            )
        };
        mount()
            .map(|root| Self { root })
            .map_err(|errno: rustix::io::Errno| Error::Tracefs {
                source: errno.into(),
            })
    }

    /// The format of a tracepoint.
    ///
    /// # Errors
    /// [`Error::NoTracepoint`], [`Error::Format`].
    pub fn format(&self, system: &str, name: &str) -> Result<TracepointFormat, Error> {
        let read = || -> io::Result<String> {
            let path = format!("events/{system}/{name}/format");
            let file = openat(
                &self.root,
                path,
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            let mut text = String::new();
            File::from(file).read_to_string(&mut text)?;
            Ok(text)
        };
        let text = read().map_err(|source| Error::NoTracepoint {
            system: system.to_owned(),
            name: name.to_owned(),
            source,
        })?;
        TracepointFormat::parse(&text)
    }
}
