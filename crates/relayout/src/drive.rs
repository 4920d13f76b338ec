//! Does what the [`Driver`] asks for, with a process, and tells of each step.

use crate::comparison::{Effort, Gain, compare};
use crate::driver::{Action, Driver, Observation, Settings, State};
use crate::layout::Method;
use crate::session::Session;
use crate::status::{Fit, PauseUs, Status};
use crate::units::Unit;
use crate::{RelayoutError, Store};

/// What a process is driven with.
#[derive(Clone, Debug, Default)]
pub struct Drive {
    /// How it is profiled and laid out.
    pub method: Method,
    /// What a gain is measured in.
    pub unit: Unit,
    /// How long it is compared.
    pub effort: Effort,
    /// When another layout is worth it.
    pub settings: Settings,
}

/// Drives one process until there is nothing to do for now, and tells `show` of every change of
/// state.
///
/// # Errors
/// [`RelayoutError::Gone`], missing privileges, a manifest that cannot be written: what is in force
/// then is for the caller to roll back, unless it was verified. What speaks against the process
/// itself is a state, not an error.
pub fn drive(
    store: &Store,
    session: &mut Session,
    driver: &mut Driver,
    with: &Drive,
    is_interrupted: &mut dyn FnMut() -> bool,
    show: &mut dyn FnMut(&Status),
) -> Result<Status, RelayoutError> {
    let (pid, start_time) = (session.cache.process.pid, session.cache.process.start_time);
    let mut status = Status::load(store, pid, start_time)
        .unwrap_or_else(|| Status::new(pid, start_time, &session.cache.process.exe));
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
        if is_interrupted() && action != Action::Rest {
            action = match action {
                Action::Look | Action::ConsiderKept => Action::Rest,
                _ => {
                    driver.step(Observation::Failed("interrupted".into()));
                    Action::RollBack
                }
            };
        }
        let observed = match action {
            Action::Rest => return Ok(status),
            Action::Look => session.look().map(Observation::Load),
            Action::ConsiderKept => {
                let (candidates, notes) = session.consider_kept(store);
                status.notes = notes;
                Ok(Observation::Kept(candidates))
            }
            Action::InstallKept { index } => session.install_kept(index).map(|layout| {
                // What was measured was another workload's.
                (status.gain, status.comparison) = (None, None);
                status.lay_out(Some(layout));
                Observation::Done
            }),
            Action::Count => {
                // What was measured was another layout's.
                (status.gain, status.comparison) = (None, None);
                session.count().map(|()| Observation::Done)
            }
            Action::Install { .. } => session.install().map(|layout| {
                status.lay_out(Some(layout));
                Observation::Done
            }),
            Action::Resume { generation } => session.resume(generation).map(|layout| {
                // What was measured was another workload's.
                (status.gain, status.comparison) = (None, None);
                status.lay_out(layout);
                Observation::Done
            }),
            Action::LeaveOriginal => session.leave_original().map(|()| {
                status.lay_out(None);
                Observation::Done
            }),
            Action::Compare => compared(session, with, &mut status, &mut *is_interrupted),
            Action::RollBack => {
                session.roll_back()?;
                action = match driver.state() {
                    State::Monitoring => driver.wake(),
                    _ => Action::Rest,
                };
                continue;
            }
        };
        let observation = told(observed, session)?;
        let is_compared = matches!(observation, Observation::Compared(_));
        action = driver.step(observation);
        if is_compared && driver.state() == State::Optimized {
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
    status: &mut Status,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<Observation, RelayoutError> {
    let number = session.cache.manifest.generation;
    let compared = compare(
        &mut session.cache,
        number,
        &with.unit,
        &with.effort,
        is_interrupted,
    )?;
    let Some(compared) = compared else {
        return Ok(Observation::Failed("interrupted".into()));
    };
    status.gain = Some(Gain::of(&compared));
    status.pause_us = PauseUs {
        median: compared.pause_us_median,
        worst: compared.pause_us_worst,
        threads: compared.threads,
    };
    let gain = compared.per_cpu_s;
    status.comparison = Some(compared);
    Ok(Observation::Compared(gain))
}

/// What the driver is told of a step that failed, unless it is an error of the whole.
fn told(
    observed: Result<Observation, RelayoutError>,
    session: &Session,
) -> Result<Observation, RelayoutError> {
    match observed {
        Ok(observation) => Ok(observation),
        Err(error @ RelayoutError::Gone { .. }) => Err(error),
        // Whatever it was that failed just then.
        Err(_) if !session.cache.process.is_current() => Err(RelayoutError::Gone {
            pid: session.cache.process.pid,
        }),
        Err(error) if error.is_missing_privilege() => Err(error),
        Err(RelayoutError::Declined { reason, .. }) => Ok(Observation::Failed(reason.to_string())),
        // Another Slackline rolled it back meanwhile.
        Err(RelayoutError::NoGeneration { .. }) => Ok(Observation::RolledBack),
        Err(error) => Ok(Observation::Failed(error.to_string())),
    }
}
