//! The layouts that a process's code cache holds, each with the workload that it was made for: a
//! workload that comes back gets its layout back.

use std::collections::BTreeMap;

use code_layout::{FunctionId, Profile};

use crate::loaded::Loaded;
use crate::moved::Moved;
use crate::session::Layout;

/// So many are held; the one that was in force longest ago goes first. Each takes 0.1 to 0.2 MiB of
/// the process.
const HELD: usize = 4;

/// A workload, and the layout for it.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// Its generation is 0 where no other layout was shown to be better than the original.
    pub(crate) layout: Layout,
    /// Where its code comes from.
    pub(crate) moved: Vec<Moved>,
    /// What ran, by object.
    pub(crate) profiles: Vec<Profile>,
    /// Whose time it was.
    pub(crate) shares: Shares,
    /// Whether it was compared, and is the best known for its workload.
    pub(crate) is_shown: bool,
}

/// Phases, in the order in which they were last in force.
#[derive(Debug, Default)]
pub(crate) struct Phases(Vec<Phase>);

impl Phases {
    /// The last one of this generation.
    pub(crate) fn of(&self, generation: u32) -> Option<&Phase> {
        let mut last_first = self.0.iter().rev();
        last_first.find(|phase| phase.layout.generation == generation)
    }

    pub(crate) fn add(&mut self, phase: Phase) {
        self.0.push(phase);
    }

    /// The phase of a generation that is in force again, which has to be shown again. (Several may
    /// have been left in the original: the one most like what runs now.)
    pub(crate) fn resume(&mut self, now: &Shares, generation: u32) -> Option<&Phase> {
        let phases = self.0.iter().enumerate();
        let of_it = phases.filter(|(_, phase)| phase.layout.generation == generation);
        let alike = of_it.map(|(index, phase)| (phase.shares.overlap(now), index));
        let (_, index) = alike.max_by(|one, other| one.0.total_cmp(&other.0))?;
        let mut phase = self.0.remove(index);
        phase.is_shown = generation == 0;
        self.0.push(phase);
        self.0.last()
    }

    /// Where all code comes from that a thread may be in.
    pub(crate) fn moved(&self) -> impl Iterator<Item = &Moved> {
        self.0.iter().flat_map(|phase| &phase.moved)
    }

    /// The generations that the code cache has to have.
    pub(crate) fn generations(&self) -> impl Iterator<Item = u32> {
        let numbers = self.0.iter().map(|phase| phase.layout.generation);
        numbers.filter(|number| *number != 0)
    }

    /// The last one is shown: those that are not go, and those beyond what is held.
    pub(crate) fn settle(&mut self) {
        if let Some(last) = self.0.last_mut() {
            last.is_shown = true;
        }
        self.0.retain(|phase| phase.is_shown);
        self.0.drain(..self.0.len().saturating_sub(HELD));
    }

    pub(crate) fn holds(&self, generation: u32) -> bool {
        self.of(generation).is_some()
    }

    /// How alike a workload is to the one that the generation in force was made for, and which of
    /// the others is most alike.
    pub(crate) fn alike(&self, now: &Shares, in_force: u32) -> (Option<f64>, Option<(u32, f64)>) {
        let (mut own, mut other): (Option<f64>, Option<(u32, f64)>) = (None, None);
        for phase in &self.0 {
            let alike = phase.shares.overlap(now);
            let generation = phase.layout.generation;
            if generation == in_force {
                own = Some(own.map_or(alike, |known| known.max(alike)));
            } else if other.is_none_or(|(_, known)| alike > known) {
                other = Some((generation, alike));
            }
        }
        (own, other)
    }
}

/// Each function's share of the samples in all objects, by the object's index and its own.
#[derive(Debug, Default)]
pub(crate) struct Shares(BTreeMap<(usize, FunctionId), f64>);

impl Shares {
    /// By the samples that were seen last.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share needs no more than 53 bits"
    )]
    pub(crate) fn of(objects: &[Loaded]) -> Self {
        let objects = objects.iter().enumerate();
        let counts: BTreeMap<_, _> = objects
            .flat_map(|(index, loaded)| {
                let counts = loaded.profile.by_function(&loaded.image).into_iter();
                counts.map(move |(id, count)| ((index, id), count))
            })
            .collect();
        let all = counts.values().sum::<u64>().max(1) as f64;
        let shares = counts.into_iter();
        Self(
            shares
                .map(|(function, count)| (function, count as f64 / all))
                .collect(),
        )
    }

    /// How alike two are: 1 the same, 0 nothing in common (the sum over functions of the smaller of
    /// both shares).
    fn overlap(&self, other: &Self) -> f64 {
        let smaller = |(function, share): (&(usize, FunctionId), &f64)| {
            other.0.get(function).copied().unwrap_or(0.0).min(*share)
        };
        self.0.iter().map(smaller).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(generation: u32) -> Phase {
        let layout = Layout {
            generation,
            ..Layout::default()
        };
        Phase {
            layout,
            ..Phase::default()
        }
    }

    #[test]
    fn what_is_shown_is_held_and_the_one_used_longest_ago_goes_first() {
        let mut phases = Phases::default();
        for generation in 1..=4 {
            phases.add(phase(generation));
            phases.settle();
        }
        assert!((1..=4).all(|generation| phases.holds(generation)));
        assert_eq!(
            phases
                .resume(&Shares::default(), 1)
                .unwrap()
                .layout
                .generation,
            1
        );
        phases.settle();
        phases.add(phase(5));
        // Not shown yet: nothing goes.
        assert!((1..=5).all(|generation| phases.holds(generation)));
        phases.add(phase(6));
        phases.settle();
        let held: Vec<u32> = (0..9).filter(|number| phases.holds(*number)).collect();
        assert_eq!(held, [1, 3, 4, 6]);
    }

    #[test]
    fn what_is_in_force_again_has_to_be_shown_again() {
        let mut phases = Phases::default();
        for generation in [1, 2] {
            phases.add(phase(generation));
            phases.settle();
        }
        assert!(phases.resume(&Shares::default(), 3).is_none());
        phases.resume(&Shares::default(), 1).unwrap();
        // It was not, and another was made.
        phases.add(phase(3));
        phases.settle();
        assert!(!phases.holds(1) && phases.holds(2) && phases.holds(3));
    }
}
