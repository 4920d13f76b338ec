//! A watch of one group for a time.

use std::time::Duration;

use host::Roots;
use tuner::process::Interrupt;

use crate::collect::{self, Collected, Jobs};
use crate::error::ThrottleError;
use crate::report::{GroupWatch, WatchReport};
use crate::requests::{PortLatency, RequestMonitor};
use crate::say::Say;
use crate::target::{ServiceTarget, group_of};

/// Watches for so many seconds, or until a signal comes; where a port is given, with the latency of
/// its requests.
///
/// # Errors
/// There is no such group, or tracepoints or packets cannot be read.
pub fn observe(
    target: &ServiceTarget,
    of_port: Option<&PortLatency>,
    duration_s: f64,
    interrupt: &Interrupt,
    say: Say<'_>,
) -> Result<WatchReport, ThrottleError> {
    let roots = Roots::default();
    let group = group_of(&roots, target)?;
    let requests = of_port.map(|of| RequestMonitor::start(of, &group));
    let mut requests = requests.transpose()?;
    let started = |pid| host::start_time(&roots, pid).ok();
    let process = match target {
        ServiceTarget::Process(pid) => Some((*pid, started(*pid))),
        _ => None,
    };
    let mut goes_on = |seen: &Collected| {
        if let Some(requests) = &mut requests {
            requests.note(seen);
        }
        interrupt.signal().is_none()
    };
    let (mut report, collected) =
        observe_group(group, duration_s, Jobs::Summed, &mut goes_on, say)?;
    report.latency = requests.map(|mut requests| {
        requests.note(&collected);
        requests.report()
    });
    if let Some((pid, began)) = process
        && started(pid) != began
    {
        say(&format!(
            "Process {pid} ended meanwhile, and its number may be another's by now; what follows is of its control group."
        ));
    }
    Ok(report)
}

/// Watches a group, and hands over what was collected beside what is said of it.
pub(crate) fn observe_group(
    group: String,
    duration_s: f64,
    jobs: Jobs,
    goes_on: &mut dyn FnMut(&Collected) -> bool,
    say: Say<'_>,
) -> Result<(WatchReport, Collected), ThrottleError> {
    let mut watch = GroupWatch::begin(group)?;
    let duration = Duration::from_secs_f64(duration_s);
    let limited_by = watch.limited_by().to_owned();
    let collected = collect::collect(&watch.group, &limited_by, duration, jobs, goes_on, say)?;
    Ok((watch.report(&collected), collected))
}
