//! How long an experiment will take, as far as its specification says.

use super::{CheckedSpec, Pairing};
use crate::guard::Guard;

/// Seconds of load, warm-up and settling. Starting services, `apply` steps and commands come on
/// top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedTime {
    /// Of the search, if no evaluation ends early.
    pub search_s: f64,
    /// Of the verification of what was found, and of further arms, if its first runs decide.
    pub verification_s: f64,
    /// The same with the most runs.
    pub verification_max_s: f64,
}

impl CheckedSpec {
    /// Whether the capacity of a winner is compared with the control's: the load has a rate of its
    /// own, there is a load without one, and neither the objective nor a constraint is about it.
    #[must_use]
    pub fn compares_capacity(&self) -> bool {
        let is_own = self.target().start.is_some() && self.spec.continuous.is_none();
        let wanted = self.spec.verification.capacity.unwrap_or(is_own);
        let constraints = self.constraints.iter().map(|it| it.metric.as_str());
        let mut specified = constraints.chain([self.objective().metric.as_str()]);
        let is_about_it = |metric| Guard::Throughput.metrics().contains(&metric);
        wanted && self.saturated.is_some() && !specified.any(is_about_it)
    }

    /// How long the experiment will take at the most, without the starts of services.
    #[must_use]
    pub fn planned_time(&self) -> PlannedTime {
        let (spec, evaluation) = (&self.spec, &self.spec.evaluation);
        // One side after the other, with a switch before each.
        let (sides, settle_s) = match self.target().pairing {
            Pairing::Parallel => (1.0, 0.0),
            Pairing::Alternating => (2.0, evaluation.settle_s),
        };
        let run_s = |blocks: usize| {
            let block_s = evaluation.block_s + settle_s;
            sides * (evaluation.longest_warm_up_s() + blocks as f64 * block_s)
        };
        let search_s = spec.budget.evaluations as f64 * run_s(evaluation.blocks);
        let limit_s = spec.budget.wall_time_min.map(|minutes| minutes * 60.0);
        let verification = &spec.verification;
        let arms = verification.top + verification.arms.len();
        let capacities = usize::from(self.compares_capacity());
        let verification_s =
            |runs: usize, blocks| (runs * (arms + capacities)) as f64 * run_s(blocks);
        let blocks = verification.blocks.unwrap_or(evaluation.blocks);
        PlannedTime {
            search_s: limit_s.map_or(search_s, |limit_s| search_s.min(limit_s)),
            verification_s: verification_s(verification.runs, blocks),
            verification_max_s: verification_s(verification.runs_max(), blocks),
        }
    }
}

impl std::fmt::Display for PlannedTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            search_s,
            verification_s,
            verification_max_s,
        } = *self;
        write!(
            f,
            "takes about {} ({} of search, {} of verification), plus the time to start services",
            range_in_words(search_s + verification_s, search_s + verification_max_s),
            in_words(search_s),
            range_in_words(verification_s, verification_max_s)
        )
    }
}

/// `22 to 66 s`, `50 s to 3 min`.
fn range_in_words(from_s: f64, to_s: f64) -> String {
    let (from, to) = (in_words(from_s), in_words(to_s));
    match (from.split_once(' '), to.split_once(' ')) {
        _ if from == to => to,
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} to {to}"),
        _ => format!("{from} to {to}"),
    }
}

/// `50 s`, `12 min`, `3.5 h`, `2.1 days`.
fn in_words(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 90.0 * 60.0 => format!("{:.0} min", s / 60.0),
        s if s < 48.0 * 3600.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_the_unit_of_their_size() {
        assert_eq!(in_words(45.4), "45 s");
        assert_eq!(in_words(600.0), "10 min");
        assert_eq!(in_words(7.5 * 3600.0), "7.5 h");
        assert_eq!(in_words(3.0 * 86_400.0), "3.0 days");
        assert_eq!(range_in_words(22.0, 66.0), "22 to 66 s");
        assert_eq!(range_in_words(50.0, 150.0), "50 s to 2 min");
        assert_eq!(range_in_words(22.0, 22.0), "22 s");
    }
}
