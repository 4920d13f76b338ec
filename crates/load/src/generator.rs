//! A run: threads, each with a loop of its own.

use std::num::NonZeroU64;
use std::time::Instant;

use host::RealTime;

use crate::arrivals::{Schedule, nanoseconds};
use crate::counts::Counts;
use crate::engine::{Engine, Task};
use crate::machine::{Sampler, Watch};
use crate::network::Network;
use crate::plan::{LoadPlan, Pace};
use crate::report::{Circumstances, LoadReport};
use crate::service::Service;
use crate::{Error, ServiceOnHost};

/// For disturbed seconds, at most so much of the plan is added, and at least this.
const REPEATED: (f64, f64) = (0.5, 2.0);

/// Runs the plan to its end, or until `stop` says so.
///
/// # Errors
///
/// [`Error::Number`] for a plan that cannot be, [`Error::Lookup`] for a host that nobody knows.
pub fn run(plan: &LoadPlan, stop: &(dyn Fn() -> bool + Sync)) -> Result<LoadReport, Error> {
    plan.check()?;
    let service = Service::of(plan)?;
    let watch = Watch::start(&plan.service)?;
    let started = Instant::now();
    let mut counts = Counts::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let service = &service;
                scope.spawn(move || work(plan, service, thread, started, stop))
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(of) => counts.merge(&of?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok::<(), Error>(())
    })?;
    let duration_s = started.elapsed().as_secs_f64();
    let (neighbours, stolen_share) = watch.end();
    let circumstances = Circumstances {
        is_closed_loop: plan.pace == Pace::Closed,
        threads: plan.threads,
        planned_s: plan.end_s(),
        duration_s,
        neighbours,
        stolen_share,
    };
    Ok(LoadReport::of(counts, &circumstances))
}

/// One thread.
fn work(
    plan: &LoadPlan,
    service: &Service,
    thread: usize,
    started: Instant,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Counts, Error> {
    // A thread of normal priority is otherwise woken up to 50 µs late on purpose (prctl(2),
    // PR_SET_TIMERSLACK).
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let is_known = plan.service != ServiceOnHost::Unknown;
    // A thread of real-time priority that never sleeps would keep the kernel's own threads from its
    // CPU.
    let _real_time = (is_known && !plan.busy_poll).then(RealTime::take);
    // The first threads have one more, where they cannot all have as many.
    let connections =
        plan.connections / plan.threads + usize::from(thread < plan.connections % plan.threads);
    let sampler = Sampler::of(&plan.service)?;
    let network = Network::new(service, connections, started, sampler).map_err(Error::Network)?;
    let end_s = plan.end_s();
    let schedule = match &plan.pace {
        Pace::Open(arrivals) => Some(Schedule::new(
            arrivals,
            end_s,
            thread as u64,
            plan.threads as u64,
        )),
        Pace::Closed => None,
    };
    let (share, least_s) = REPEATED;
    let repeat_s = (share * end_s).max(least_s);
    let repeat_s = plan.repeat_max.map_or(repeat_s, |max| max.as_secs_f64());
    let task = Task {
        schedule,
        end_ns: nanoseconds(end_s),
        tickets: u32::try_from(connections * service.streams()).unwrap_or(u32::MAX),
        requests: plan.requests.len(),
        timeout_ns: u64::try_from(plan.timeout.as_nanos()).unwrap_or(u64::MAX / 4),
        repeat_max_ns: nanoseconds(repeat_s),
        busy_poll: plan.busy_poll,
        stop,
    };
    Ok(Engine::new(network, task).run())
}
