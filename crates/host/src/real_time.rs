//! A thread of ours at real-time priority.

/// The calling thread is at the lowest real-time priority until this is dropped: it runs when it is
/// due, however busy the CPUs are (sched(7), SCHED_FIFO; the kernel leaves other threads 5 % of the
/// time, `kernel.sched_rt_runtime_us`).
#[derive(Debug)]
pub struct RealTime {
    before: Option<(i32, libc::sched_param)>,
}

impl RealTime {
    /// Takes the priority; where that is not allowed (CAP_SYS_NICE, a control group without
    /// real-time quota), goes on without.
    #[must_use]
    pub fn take() -> Self {
        let mut before = libc::sched_param { sched_priority: 0 };
        // SAFETY: sched_getscheduler(2) takes no pointer; 0 is the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        // SAFETY: the pointer is valid for writing one sched_param.
        let known = unsafe { libc::sched_getparam(0, &raw mut before) };
        let wanted = libc::sched_param { sched_priority: 1 };
        // SAFETY: the pointer is valid for reading one sched_param.
        let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wanted) };
        Self {
            before: (policy >= 0 && known == 0 && set == 0).then_some((policy, before)),
        }
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        if let Some((policy, parameter)) = self.before {
            // SAFETY: the pointer is valid for reading one sched_param.
            unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
        }
    }
}
