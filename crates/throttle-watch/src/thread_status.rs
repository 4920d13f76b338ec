//! Which process a thread belongs to, and who started it (proc_pid_status(5)).

use host::Roots;

/// The part of a thread's status file that says where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadStatus {
    /// `Tgid`: its process.
    pub(crate) process: u32,
    /// `PPid`: the process that started this one.
    pub(crate) parent: u32,
}

impl ThreadStatus {
    /// Of a thread or a process; `None` where it is gone.
    pub(crate) fn read(roots: &Roots, id: u32) -> Option<Self> {
        let text = std::fs::read_to_string(roots.proc(format!("{id}/status"))).ok()?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line?.trim().parse().ok()
        };
        Some(Self {
            process: field("Tgid:")?,
            parent: field("PPid:")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_says_whose_it_is_and_one_that_is_gone_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        let text = "Name:\tnode\nTgid:\t5\nNgid:\t0\nPid:\t7\nPPid:\t3\n";
        std::fs::write(dir.path().join("proc/7/status"), text).unwrap();
        let roots = Roots::at(dir.path());
        let found = ThreadStatus {
            process: 5,
            parent: 3,
        };
        assert_eq!(ThreadStatus::read(&roots, 7), Some(found));
        assert_eq!(ThreadStatus::read(&roots, 8), None);
    }
}
