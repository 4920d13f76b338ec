//! The CPU-time clock of another process: the run time of all its threads, ended ones included, to
//! the nanosecond.

use std::mem::MaybeUninit;

/// The clock's reading in nanoseconds; `None` where there is no such process (or a zombie's clock
/// cannot be read).
pub(crate) fn process_cpu_ns(pid: u32) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let mut clock = MaybeUninit::<libc::clockid_t>::uninit();
    // SAFETY: clock_getcpuclockid(3) asks only for a pointer that is valid for writing one
    // clockid_t; `clock` is one.
    let error = unsafe { libc::clock_getcpuclockid(pid, clock.as_mut_ptr()) };
    if error != 0 {
        return None;
    }
    // SAFETY: it returned 0, and then it has written the clock's id.
    let clock = unsafe { clock.assume_init() };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) accepts any clock id (a dead process's gives EINVAL) and asks for a
    // pointer that is valid for writing one timespec; `time` is one.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if status != 0 {
        return None;
    }
    Some(u64::try_from(time.tv_sec).ok()? * 1_000_000_000 + u64::try_from(time.tv_nsec).ok()?)
}

/// CPU time of the calling process, all its threads, without its children.
#[must_use]
pub fn own_cpu_s() -> f64 {
    process_cpu_ns(std::process::id()).unwrap_or(0) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_clock_runs_and_there_is_none_of_nobody() {
        let before = process_cpu_ns(std::process::id()).unwrap();
        let work =
            (0..20_000_000u64).fold(0, |sum: u64, n| sum.wrapping_add(std::hint::black_box(n)));
        std::hint::black_box(work);
        assert!(process_cpu_ns(std::process::id()).unwrap() > before);
        assert_eq!(process_cpu_ns(0), None);
        assert_eq!(process_cpu_ns(u32::MAX), None);
    }
}
