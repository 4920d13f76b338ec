//! Does what the [`Driver`] asks for, with a process, and tells of each step.

use crate::comparison::{ComparisonOptions, Gain, compare};
use crate::driver::{Driver, DriverAction, DriverEvent, DriverSettings, ProcessState};
use crate::process::units::WorkUnit;
use crate::session::Session;
use crate::session::layout::ProfilingOptions;
use crate::status::{Fit, PauseUs, RelayoutStatus};
use crate::{ManifestStore, RelayoutError};

/// What a process is driven with.
#[derive(Clone, Debug, Default)]
pub struct Drive {
    /// How it is profiled and laid out.
    pub method: ProfilingOptions,
    /// What a gain is measured in.
    pub unit: WorkUnit,
    /// How long it is compared.
    pub effort: ComparisonOptions,
    /// When another layout is worth it.
    pub settings: DriverSettings,
}

/// Drives one process until there is nothing to do for now, and tells `show` of every change of
/// state.
///
/// # Errors
/// [`RelayoutError::Gone`], missing privileges, a manifest that cannot be written: what is in force
/// then is for the caller to roll back, unless it was verified. What speaks against the process
/// itself is a state, not an error.
pub fn drive(
    store: &ManifestStore,
    session: &mut Session,
    driver: &mut Driver,
    with: &Drive,
    is_interrupted: &mut dyn FnMut() -> bool,
    show: &mut dyn FnMut(&RelayoutStatus),
) -> Result<RelayoutStatus, RelayoutError> {
    let (pid, start_time) = (session.cache.process.pid, session.cache.process.start_time);
    let mut status = RelayoutStatus::load(store, pid, start_time)
        .unwrap_or_else(|| RelayoutStatus::new(pid, start_time, &session.cache.process.exe));
    let mut action = driver.wake();
    loop {
        status.state = driver.state();
        status.reason = driver.reason().map(str::to_owned);
        status.read(Some(&session.cache.manifest));
        let least = with.settings.cover_min;
        status.cover = session.cover().map(|cover| Fit::new(cover, least));
        let seconds = session.seconds.iter();
        status.seconds = seconds
            .map(|(step, seconds)| ((*step).to_owned(), *seconds))
            .collect();
        status.save(store)?;
        show(&status);
        if is_interrupted() && action != DriverAction::Rest {
            action = match action {
                DriverAction::Look | DriverAction::ConsiderKept => DriverAction::Rest,
                _ => {
                    driver.step(DriverEvent::Failed("interrupted".into()));
                    DriverAction::RollBack
                }
            };
        }
        let observed = match action {
            DriverAction::Rest => return Ok(status),
            DriverAction::Look => session.look().map(DriverEvent::Load),
            DriverAction::ConsiderKept => {
                let (candidates, notes) = session.consider_kept(store);
                status.notes = notes;
                Ok(DriverEvent::Kept(candidates))
            }
            DriverAction::InstallKept { index } => session.install_kept(index).map(|layout| {
                // What was measured was another workload's.
                (status.gain, status.comparison) = (None, None);
                status.lay_out(Some(layout));
                DriverEvent::Done
            }),
            DriverAction::Count => {
                // What was measured was another layout's.
                (status.gain, status.comparison) = (None, None);
                session.count().map(|()| DriverEvent::Done)
            }
            DriverAction::Install { .. } => session.install().map(|layout| {
                status.lay_out(Some(layout));
                DriverEvent::Done
            }),
            DriverAction::Resume { generation } => session.resume(generation).map(|layout| {
                // What was measured was another workload's.
                (status.gain, status.comparison) = (None, None);
                status.lay_out(layout);
                DriverEvent::Done
            }),
            DriverAction::LeaveOriginal => session.leave_original().map(|()| {
                status.lay_out(None);
                DriverEvent::Done
            }),
            DriverAction::Compare => compared(session, with, &mut status, &mut *is_interrupted),
            DriverAction::RollBack => {
                session.roll_back()?;
                action = match driver.state() {
                    ProcessState::Monitoring => driver.wake(),
                    _ => DriverAction::Rest,
                };
                continue;
            }
        };
        let observation = told(observed, session)?;
        let is_compared = matches!(observation, DriverEvent::Compared(_));
        action = driver.step(observation);
        if is_compared && driver.state() == ProcessState::Optimized {
            session.settle()?;
            match session.keep_profile(store, status.gain.clone()) {
                Ok(notes) => status.notes.extend(notes),
                Err(error) => status.notes.push(error.to_string()),
            }
        }
    }
}

/// Compares the layout in force with the original code.
fn compared(
    session: &mut Session,
    with: &Drive,
    status: &mut RelayoutStatus,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<DriverEvent, RelayoutError> {
    let number = session.cache.manifest.generation;
    let compared = compare(
        &mut session.cache,
        number,
        &with.unit,
        &with.effort,
        is_interrupted,
    )?;
    let Some(compared) = compared else {
        return Ok(DriverEvent::Failed("interrupted".into()));
    };
    status.gain = Some(Gain::of(&compared));
    status.pause_us = PauseUs {
        median: compared.pause_us_median,
        worst: compared.pause_us_worst,
        threads: compared.threads,
    };
    let gain = compared.per_cpu_s;
    status.comparison = Some(compared);
    Ok(DriverEvent::Compared(gain))
}

/// What the driver is told of a step that failed, unless it is an error of the whole.
fn told(
    observed: Result<DriverEvent, RelayoutError>,
    session: &Session,
) -> Result<DriverEvent, RelayoutError> {
    match observed {
        Ok(observation) => Ok(observation),
        Err(error @ RelayoutError::Gone { .. }) => Err(error),
        // Whatever it was that failed just then.
        Err(_) if !session.cache.process.is_current() => Err(RelayoutError::Gone {
            pid: session.cache.process.pid,
        }),
        Err(error) if error.is_missing_privilege() => Err(error),
        Err(RelayoutError::Declined { reason, .. }) => Ok(DriverEvent::Failed(reason.to_string())),
        // Another Slackline rolled it back meanwhile.
        Err(RelayoutError::NoGeneration { .. }) => Ok(DriverEvent::RolledBack),
        Err(error) => Ok(DriverEvent::Failed(error.to_string())),
    }
}
