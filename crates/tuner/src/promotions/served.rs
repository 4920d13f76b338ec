//! What experiments of `slackline serve` have in force, listed beside the promotions of commands.
//! The server's database says the same. The list is for the day on which the database is gone.

use std::path::{Path, PathBuf};

use host::{Journal, Knob, Roots};

use super::record::{
    PromotedFile, PromotedKnob, PromotionRecord, Served, directory, failed, keep_copy, list,
    write_list,
};
use crate::error::TunerError;

impl PromotionRecord {
    fn is_of(&self, experiment: i64) -> bool {
        let served = self.served.as_ref();
        served.is_some_and(|it| it.experiment == experiment)
    }

    fn has_any(&self) -> bool {
        !(self.knobs.is_empty() && self.files.is_empty())
    }
}

/// What experiments have promoted on this host and is in force, by what the host has now.
///
/// # Errors
/// [`TunerError::File`].
pub fn in_force_by_experiments(
    state_dir: &Path,
    roots: &Roots,
) -> Result<Vec<PromotionRecord>, TunerError> {
    let mut records = list(state_dir)?;
    records.retain(|it| it.served.is_some());
    if records.is_empty() {
        return Ok(records);
    }
    // What is measured just now changes a knob for a while.
    let originals = Journal::originals(state_dir)?;
    let comes_back = |it: &PromotedKnob| originals.get(&it.knob) == Some(&it.new);
    records.retain(|it| it.is_in_force(roots) || it.knobs.iter().any(comes_back));
    Ok(records)
}

/// A promotion over one of the same experiment has that one's former values: a rollback leads to
/// what was there before both. Any other experiment's promotion of the same is over.
pub(super) fn take_over(
    state_dir: &Path,
    records: &mut Vec<PromotionRecord>,
    made: &mut PromotionRecord,
    by: &Served,
) -> Result<(), TunerError> {
    made.knobs.retain(|it| it.old != it.new);
    for earlier in records.iter().filter(|it| it.served.as_ref() == Some(by)) {
        for knob in &earlier.knobs {
            match made.knobs.iter_mut().find(|it| it.knob == knob.knob) {
                Some(now) if now.old == knob.new => now.old.clone_from(&knob.old),
                _ => {}
            }
        }
        for file in &earlier.files {
            let Some(place) = made.files.iter().position(|it| it.path == file.path) else {
                continue;
            };
            let now = &made.files[place];
            if now.former()? != file.new {
                continue;
            }
            let kept = match &file.kept {
                None => None,
                Some(kept) => {
                    let former = std::fs::read(kept).map_err(failed(kept))?;
                    Some(keep_copy(state_dir, made.number, place, &former)?)
                }
            };
            made.files[place].kept = kept;
        }
    }
    forget(state_dir, records, |knob, file| {
        made.knobs.iter().any(|it| Some(&it.knob) == knob)
            || made.files.iter().any(|it| Some(it.path.as_path()) == file)
    });
    Ok(())
}

/// Forgets of what experiments have promoted what was rolled back. Best effort: what is forgotten
/// late is not in force.
pub(crate) fn rolled_back(state_dir: &Path, knobs: &[Knob], files: &[&Path]) {
    let files: Vec<PathBuf> = files.iter().map(|it| host::target(it)).collect();
    let is_back = |knob: Option<&Knob>, file: Option<&Path>| {
        knob.is_some_and(|it| knobs.contains(it))
            || file.is_some_and(|it| files.iter().any(|back| back == it))
    };
    let _ = change(state_dir, |records| forget(state_dir, records, is_back));
}

/// Forgets what an experiment has promoted, which stays as it is.
///
/// # Errors
/// [`TunerError::File`].
pub fn forget_experiment(state_dir: &Path, experiment: i64) -> Result<(), TunerError> {
    change(state_dir, |records| {
        for record in records.iter_mut().filter(|it| it.is_of(experiment)) {
            (record.knobs, record.files) = (Vec::new(), Vec::new());
        }
        forget(state_dir, records, |_, _| false);
    })
}

fn change(
    state_dir: &Path,
    change: impl FnOnce(&mut Vec<PromotionRecord>),
) -> Result<(), TunerError> {
    let mut records = list(state_dir)?;
    if records.iter().all(|it| it.served.is_none()) {
        return Ok(());
    }
    change(&mut records);
    write_list(state_dir, &records)
}

/// Takes knobs and files from the records of experiments, and the records that have none left.
fn forget(
    state_dir: &Path,
    records: &mut Vec<PromotionRecord>,
    is_forgotten: impl Fn(Option<&Knob>, Option<&Path>) -> bool,
) {
    for record in records.iter_mut().filter(|it| it.served.is_some()) {
        let stays = |it: &PromotedKnob| !is_forgotten(Some(&it.knob), None);
        record.knobs.retain(stays);
        let stays = |it: &PromotedFile| !is_forgotten(None, Some(&it.path));
        record.files.retain(stays);
    }
    records.retain(|record| {
        let is_over = record.served.is_some() && !record.has_any();
        if is_over {
            let _ = std::fs::remove_dir_all(directory(state_dir, record.number));
        }
        !is_over
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{HostTree, swappiness};
    use super::*;

    fn by(experiment: i64) -> Option<Served> {
        Some(Served {
            experiment,
            made_ms: 1000 + experiment,
        })
    }

    #[test]
    fn the_promotions_of_one_experiment_are_undone_at_once() {
        let tree = HostTree::new();
        tree.promote_by("10", by(1));
        tree.promote_by("20", by(1));
        // Also while something else is measured.
        let mut journal = Journal::open(&tree.state).unwrap();
        journal.write(&tree.roots, &swappiness(), "30").unwrap();
        std::fs::write(tree.file(), "another").unwrap();
        let listed = in_force_by_experiments(&tree.state, &tree.roots).unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert!(journal.restore(&tree.roots, false).unwrap().is_complete());
        drop(journal);
        std::fs::write(tree.file(), "20").unwrap();
        let listed = in_force_by_experiments(&tree.state, &tree.roots).unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(
            (listed[0].knobs[0].old.as_str(), listed[0].served.clone()),
            ("60", by(1))
        );
        let changes = super::super::undo(&tree.state, &tree.roots, listed[0].number).unwrap();
        assert!(
            changes.iter().all(|it| it.outcome.is_undone()),
            "{changes:?}"
        );
        assert_eq!(tree.value(), "60");
        assert_eq!(std::fs::read_to_string(tree.file()).unwrap(), "before");
        let listed = in_force_by_experiments(&tree.state, &tree.roots).unwrap();
        assert!(listed.is_empty(), "{listed:?}");
    }

    #[test]
    fn what_is_rolled_back_or_promoted_by_another_one_is_forgotten() {
        let tree = HostTree::new();
        let in_force = || {
            let listed = in_force_by_experiments(&tree.state, &tree.roots).unwrap();
            let listed = listed.iter().map(PromotionRecord::changed);
            listed.collect::<Vec<_>>()
        };
        tree.promote_by("10", by(1));
        rolled_back(&tree.state, &[swappiness()], &[]);
        let file = format!("file {}", tree.file().display());
        assert_eq!(in_force(), [std::slice::from_ref(&file)]);
        rolled_back(&tree.state, &[], &[&tree.file()]);
        assert!(list(&tree.state).unwrap().is_empty());
        // One that was undone without a word, and then another one of the same values.
        tree.promote_by("10", by(1));
        swappiness().put_for_good(&tree.roots, "60").unwrap();
        std::fs::write(tree.file(), "before").unwrap();
        tree.promote_by("10", by(2));
        let listed = list(&tree.state).unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].served, by(2));
        // Those of commands stay as they are.
        tree.promote("30");
        tree.promote_by("40", by(2));
        forget_experiment(&tree.state, 2).unwrap();
        let listed = list(&tree.state).unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0].served, None);
    }
}
