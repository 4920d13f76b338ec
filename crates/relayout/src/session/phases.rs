//! The layouts that a process's code cache holds, each with the workload that it was made for: a
//! workload that comes back gets its layout back.

use code_layout::Profile;

use crate::patch::moved::Moved;
use crate::session::cover::{Hot, LayoutCandidate, Ran};
use crate::session::layout::LayoutSummary;

/// So many are held; the one that was in force longest ago goes first. Each takes 0.1 to 0.2 MiB of
/// the process.
const HELD: usize = 4;

/// A workload, and the layout for it.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    /// Its generation is 0 where no other layout was shown to be better than the original.
    pub(crate) layout: LayoutSummary,
    /// Where its code comes from.
    pub(crate) moved: Vec<Moved>,
    /// What ran, by object.
    pub(crate) profiles: Vec<Profile>,
    /// The blocks that its layout moves; those that ran, where it is the original.
    pub(crate) hot: Hot,
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
    /// have been left in the original: the one that fits what runs best.)
    pub(crate) fn resume(&mut self, ran: &Ran, generation: u32) -> Option<&Phase> {
        let phases = self.0.iter().enumerate();
        let of_it = phases.filter(|(_, phase)| phase.layout.generation == generation);
        let fits = of_it.map(|(index, phase)| (share(phase.hot.candidate(ran)), index));
        let (_, index) = fits.max_by(|one, other| one.0.total_cmp(&other.0))?;
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

    /// How well the layout in force fits what runs, and how well each of the others would.
    pub(crate) fn fit(&self, ran: &Ran, in_force: u32) -> (Option<LayoutCandidate>, Vec<Held>) {
        let (mut own, mut others): (Option<LayoutCandidate>, Vec<Held>) = (None, Vec::new());
        for phase in &self.0 {
            let fit = phase.hot.candidate(ran);
            let generation = phase.layout.generation;
            if generation != in_force {
                others.extend(fit.map(|fit| (generation, fit)));
            } else if share(fit) > share(own) {
                own = fit;
            }
        }
        (own, others)
    }
}

/// A layout at hand, by its generation.
pub(crate) type Held = (u32, LayoutCandidate);

/// The share that is covered, for comparing; without a sample none.
fn share(fit: Option<LayoutCandidate>) -> f64 {
    fit.map_or(-1.0, |fit| fit.cover.share().estimate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(generation: u32) -> Phase {
        let layout = LayoutSummary {
            generation,
            ..LayoutSummary::default()
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
            phases.resume(&Ran::default(), 1).unwrap().layout.generation,
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
        assert!(phases.resume(&Ran::default(), 3).is_none());
        phases.resume(&Ran::default(), 1).unwrap();
        // It was not, and another was made.
        phases.add(phase(3));
        phases.settle();
        assert!(!phases.holds(1) && phases.holds(2) && phases.holds(3));
    }
}
