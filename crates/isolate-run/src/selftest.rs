//! Each actuator of this host: probed, moved one small step in a group of its own, read back, and
//! undone.

use std::path::Path;

use host::{Actuator, Journal, Roots};
use serde::Serialize;

use crate::actuators::{first_disk, of_group, of_machine};
use crate::best_effort::present_controllers;
use crate::error::IsolateError;

/// One actuator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SelftestRow {
    /// The actuator.
    pub actuator: String,
    /// How it can be used; `None` where the host has none.
    pub form: Option<String>,
    /// What was in force before.
    pub before: Option<String>,
    /// What was written, in words; `None` where nothing was tried.
    pub wanted: Option<String>,
    /// What was read back.
    pub after: Option<String>,
    /// What is in force after undoing.
    pub restored: Option<String>,
    /// What went wrong, or why the host has none.
    pub trouble: Option<String>,
}

impl SelftestRow {
    /// The actuator is there and did not do what it should.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.form.is_some() && self.trouble.is_some()
    }
}

/// Tries every actuator. `with_machine` also moves those of the whole machine: frequency, power,
/// the first disk's cost model.
///
/// # Errors
///
/// The journal or the group cannot be made.
pub fn selftest(state_dir: &Path, with_machine: bool) -> Result<Vec<SelftestRow>, IsolateError> {
    let roots = Roots::default();
    let mut journal = Journal::open(state_dir)?;
    if !journal.is_empty() {
        journal.restore(&roots, false)?;
    }
    // Another state directory may have a test of its own at the same time.
    let group = format!("slackline-selftest-{}", std::process::id());
    journal.make_cgroup_with(&roots, &group, &present_controllers(&roots))?;
    let mut rows = Vec::new();
    let disk = first_disk(&roots);
    for actuator in of_group(&group, disk.as_deref()) {
        rows.push(try_one(actuator.as_ref(), &mut journal, &roots));
    }
    for actuator in of_machine(&roots, disk.as_deref()) {
        rows.push(match (with_machine, actuator.probe(&roots)) {
            (false, Ok(form)) => SelftestRow {
                form: Some(form),
                before: actuator.read(&roots).ok(),
                ..empty(actuator.name())
            },
            _ => try_one(actuator.as_ref(), &mut journal, &roots),
        });
    }
    journal.restore(&roots, false)?;
    Ok(rows)
}

fn empty(actuator: &str) -> SelftestRow {
    SelftestRow {
        actuator: actuator.to_owned(),
        form: None,
        before: None,
        wanted: None,
        after: None,
        restored: None,
        trouble: None,
    }
}

fn try_one(actuator: &dyn Actuator, journal: &mut Journal, roots: &Roots) -> SelftestRow {
    let mut row = empty(actuator.name());
    match actuator.probe(roots) {
        Ok(form) => row.form = Some(form),
        Err(why) => {
            row.trouble = Some(why);
            return row;
        }
    }
    row.before = actuator.read(roots).ok();
    if let Err(error) = step(actuator, journal, roots, &mut row) {
        row.trouble = Some(error.to_string());
    }
    if let Err(error) = actuator.restore(journal, roots) {
        row.trouble = Some(error.to_string());
    }
    row.restored = actuator.read(roots).ok();
    if row.trouble.is_none() && row.restored != row.before {
        row.trouble = Some("the first value could not be restored".to_owned());
    }
    row
}

fn step(
    actuator: &dyn Actuator,
    journal: &mut Journal,
    roots: &Roots,
    row: &mut SelftestRow,
) -> Result<(), host::HostError> {
    let wanted = actuator.neighbour(roots)?;
    row.wanted = Some(wanted.to_string());
    actuator.apply(journal, roots, &wanted)?;
    row.after = Some(actuator.read(roots)?);
    if !actuator.verify(roots, &wanted)? {
        row.trouble = Some("what was read back is not what was written".to_owned());
    }
    Ok(())
}
