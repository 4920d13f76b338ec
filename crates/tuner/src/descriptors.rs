//! File descriptors of this process. A measurement opens some; one that fails for want of them says
//! nothing of the service.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::Fault;

/// One evaluation opens no more at once by itself: two logs and a pipe for each process that it
/// starts, a socket, and files of the kernel.
const NEEDED: u64 = 16;

/// Why nothing can be measured now, where too few descriptors are left.
pub(crate) fn shortage() -> Option<String> {
    let limit = getrlimit(Resource::Nofile).current?;
    match std::fs::read_dir("/proc/self/fd") {
        Ok(open) => too_few(open.count() as u64, limit),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::MFILE) => too_few(limit, limit),
            Some(Errno::NFILE) => {
                Some("this host has no file descriptor left: raise sysctl fs.file-max".to_owned())
            }
            _ => None,
        },
    }
}

fn too_few(open: u64, limit: u64) -> Option<String> {
    let left = limit.saturating_sub(open);
    (left < NEEDED).then(|| {
        format!(
            "{left} of {limit} file descriptors are left, too few to measure: raise the limit on open files (`ulimit -n`, or \
             `LimitNOFILE=` in the systemd unit) and start Slackline again"
        )
    })
}

/// Whose fault it is where something failed for want of descriptors: nobody's but this process's.
pub(crate) fn blamed(fault: Fault) -> Fault {
    match (fault, shortage()) {
        (Fault::Interrupted(stop), _) => Fault::Interrupted(stop),
        (fault, Some(why)) => Fault::Harness(format!("{why} (it failed with: {fault})")),
        (fault, None) => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_named_with_their_limit_and_a_remedy() {
        assert_eq!(too_few(48, 64), None);
        let why = too_few(250, 256).unwrap();
        for part in ["6 of 256 file descriptors", "`ulimit -n`", "`LimitNOFILE=`"] {
            assert!(why.contains(part), "{why}");
        }
        assert!(too_few(300, 256).unwrap().starts_with("0 of 256"));
    }
}
