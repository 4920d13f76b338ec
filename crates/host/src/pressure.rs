//! Pressure stall information of a control group (Documentation/accounting/psi.rst): for how long
//! at least one of its threads stood still because memory or a disk was short.

use std::path::Path;

use crate::cgroup::{Hierarchies, check_group};
use crate::roots::read_text;

/// Time since the group was made. Only differences mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Memory: reclaim, swapping in, a page cache that was dropped too early.
    pub memory_us: u64,
    /// Disks and other block devices.
    pub io_us: u64,
}

impl Pressure {
    /// Reads it. `None` where the group is not in the hierarchy of v2, or where the kernel does not
    /// count (`CONFIG_PSI`, `psi=1`, `cgroup.pressure`).
    #[must_use]
    pub fn read(hierarchies: &Hierarchies, group: &str) -> Option<Self> {
        check_group(group).ok()?;
        let directory = hierarchies.v2()?.join(group.trim_matches('/'));
        Some(Self {
            memory_us: some_us(&directory.join("memory.pressure"))?,
            io_us: some_us(&directory.join("io.pressure"))?,
        })
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`.
fn some_us(path: &Path) -> Option<u64> {
    let text = read_text(path).ok()??;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|word| word.strip_prefix("total="));
    total?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::fake;

    #[test]
    fn the_totals_of_both_are_read() {
        let text = |total: u32| {
            format!(
                "some avg10=1.50 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
            )
        };
        let (memory, io) = (text(1200), text(34));
        let (_dir, roots) = fake(&[
            ("sys/fs/cgroup/cpu/web/cpu.stat", ""),
            ("sys/fs/cgroup/unified/cgroup.controllers", ""),
            ("sys/fs/cgroup/unified/web/memory.pressure", &memory),
            ("sys/fs/cgroup/unified/web/io.pressure", &io),
            ("sys/fs/cgroup/unified/half/memory.pressure", &memory),
            ("sys/fs/cgroup/unified/odd/memory.pressure", "some\n"),
        ]);
        let hierarchies = Hierarchies::of(&roots);
        let found = Pressure {
            memory_us: 1200,
            io_us: 34,
        };
        assert_eq!(Pressure::read(&hierarchies, "/web"), Some(found));
        for group in ["half", "odd", "gone", "../web"] {
            assert_eq!(Pressure::read(&hierarchies, group), None, "{group}");
        }
        let (_dir, roots) = fake(&[("sys/fs/cgroup/cpu/web/cpu.stat", "")]);
        assert_eq!(Pressure::read(&Hierarchies::of(&roots), "web"), None);
    }
}
