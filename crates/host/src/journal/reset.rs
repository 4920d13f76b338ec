//! What the kernel itself changes when another knob is written.

use super::Journal;
use super::record::Action;
use crate::knob::Knob;

impl Journal {
    /// Whether the kernel itself may have written the knob, because another one was written.
    pub(super) fn is_reset_by_kernel(&self, knob: &Knob) -> bool {
        self.is_reset_by_scheduler(knob) || self.is_reset_by_idle(knob)
    }

    /// A group's weight is another one while `cpu.idle` is on, and the default after it
    /// (kernel/sched/fair.c, `sched_group_set_idle`).
    fn is_reset_by_idle(&self, knob: &Knob) -> bool {
        let Knob::Cgroup { group, file } = knob else {
            return false;
        };
        let is_idle = |action: &Action| matches!(action, Action::Write { knob: Knob::Cgroup { group: g, file: f }, .. } if g == group && f == "cpu.idle");
        matches!(file.as_str(), "cpu.shares" | "cpu.weight")
            && self
                .pendings
                .list
                .iter()
                .any(|pending| is_idle(&pending.action))
    }

    /// Changing the I/O scheduler of a device resets the files of its `iosched` directory
    /// (block/elevator.c), so what is found there after such a change is nobody else's doing.
    fn is_reset_by_scheduler(&self, knob: &Knob) -> bool {
        let Knob::BlockQueue { device, file } = knob else {
            return false;
        };
        file.starts_with("iosched/")
            && self.pendings.list.iter().any(|pending| {
                matches!(&pending.action, Action::Write { knob: Knob::BlockQueue { device: d, file: f }, .. }
                    if d == device && f == "scheduler")
            })
    }
}
