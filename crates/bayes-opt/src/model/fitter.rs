//! How hyper-parameters are found for each process, and kept while few observations are new.

use std::collections::BTreeMap;

use crate::gp::data::Data;
use crate::gp::hyper::{Basis, Hyper, Priors};
use crate::gp::hyper_sampling::{Length, draw, drawn_priors};
use crate::gp::trend::Shared;
use crate::gp::{Gp, likeliest, log_posterior};
use crate::model::transform::Transform;
use crate::space::coordinate::Coordinate;
use crate::space::value::cell;

/// Hyper-parameters by process, and how many observations they were fitted to: where the next fit
/// starts.
pub(crate) type Memory = BTreeMap<String, (Hyper, usize)>;

/// Floating-point work that one fit may do, in multiplications: about 5 ms on one core of an EPYC
/// server.
const FIT_WORK: f64 = 6.0e6;
/// How many evaluations a start is followed for at the least, and how many lead most of the way.
/// Where these are not affordable from two starts, a fit starts where the last one ended, or, where
/// that was of far fewer observations, where one to a part of them ends
/// (`docs/results/tuners-tried.md`). Choices of this crate.
const FIT_EVALUATIONS: (usize, usize) = (3, 20);

/// Hyper-parameters are fitted again when the observations have grown by one part in so many: every
/// time up to 25, every thirteenth time at 300, where they no longer move much.
const REFIT_SHARE: usize = 25;

/// What the objective's process is called, as it is or of ratios; and by how much more probable
/// what was measured has to be of ratios, in logarithms: a thousand times, as over ordinary ranges
/// nothing is gained, and so much for each coordinate of many, as fits of many length scales end
/// where luck has it (`docs/results/tuners-tried.md`). Choices of this crate.
const PLAIN: &str = "objective";
const RATIOS: &str = "objective, ratios";
const RATIOS_EVIDENCE: (f64, f64) = (7.0, 0.5);

fn draw_name(name: &str, index: usize) -> String {
    format!("{name}, draw {index}")
}

/// Draws of the hyper-parameters, at least and at most, and how many observations all of them may
/// have together: each costs as much time as the process alone. Choices of this crate.
const DRAWS: (usize, usize) = (2, 8);
const DRAWN_OBSERVATIONS: usize = 400;
/// Steps from one draw to the next at the most; and what all steps may cost in multiplications if
/// each took one evaluation of a fit. It takes five to ten, of a third of the work.
const DRAW_STEPS: usize = 8;
const DRAW_WORK: f64 = 2.0e6;

/// The work of one evaluation of a posterior, in multiplications.
fn evaluation_work(n: usize, dimension: usize) -> f64 {
    let n = n.max(1) as f64;
    n * n * n / 2.0 + n * n * dimension as f64
}

pub(super) struct Fitter<'a> {
    pub(super) coordinates: &'a [Coordinate],
    /// Whether the objective may have a quadratic mean.
    pub(super) quadratic: bool,
    pub(super) memory: &'a Memory,
    pub(super) seed: u64,
    pub(super) hypers: Memory,
}

impl Fitter<'_> {
    /// What the objective's process is called, how it is modelled, and its `data` so: under
    /// `ratios` where what was measured is by far more probable so.
    pub(super) fn scale(
        &mut self,
        n: usize,
        plain: Transform,
        ratios: Option<Transform>,
        data: impl Fn(&Transform) -> Data,
    ) -> (&'static str, Transform, Data) {
        let of_plain = data(&plain);
        let Some(ratios) = ratios else {
            return (PLAIN, plain, of_plain);
        };
        // As it was, while its draws are.
        if self.kept(&draw_name(PLAIN, 0), n).is_some() {
            return (PLAIN, plain, of_plain);
        }
        let of_ratios = data(&ratios);
        if self.kept(&draw_name(RATIOS, 0), n).is_some() {
            return (RATIOS, ratios, of_ratios);
        }
        let dimension = self.coordinates.len() as f64;
        let mut evidence = |name: &str, transform: &Transform, data: &Data| {
            let hyper = self.hyper(name, Basis::Logarithm, data);
            let slopes = data
                .values
                .iter()
                .map(|value| transform.inverse_slope(*value));
            let priors = self.priors(n, Basis::Logarithm);
            log_posterior(data, self.coordinates, &priors, &hyper)
                - slopes.map(f64::ln).sum::<f64>()
        };
        let least = RATIOS_EVIDENCE.0.max(RATIOS_EVIDENCE.1 * dimension);
        let better = evidence(RATIOS, &ratios, &of_ratios) - evidence(PLAIN, &plain, &of_plain);
        if better > least {
            (RATIOS, ratios, of_ratios)
        } else {
            (PLAIN, plain, of_plain)
        }
    }

    /// What the objective may be, as few observations seldom say which parameters matter: the
    /// process under draws of its hyper-parameters, by a chain from the most probable ones on.
    pub(super) fn draws(&mut self, name: &str, data: &Data, earlier: &[Data]) -> Option<Vec<Gp>> {
        let n = data.values.len();
        let count = (DRAWN_OBSERVATIONS / n.max(1)).clamp(DRAWS.0, DRAWS.1);
        let names: Vec<String> = (0..count).map(|i| draw_name(name, i)).collect();
        let kept: Option<Vec<Hyper>> = names.iter().map(|name| self.kept(name, n)).collect();
        let drawn = kept.unwrap_or_else(|| {
            let likeliest = Hyper {
                shared: Shared {
                    quadratic: self.quadratic,
                    ..Shared::NOTHING
                },
                ..self.hyper(name, Basis::Logarithm, data)
            };
            let work = evaluation_work(n, self.coordinates.len()) * count as f64;
            let steps = cell(DRAW_WORK / work / DRAW_STEPS as f64, DRAW_STEPS + 1).max(1);
            // Luck of its own for every number of observations.
            let seed = self.seed.wrapping_add(n as u64);
            let length = Length {
                draws: count,
                steps,
            };
            let drawn = draw(data, self.coordinates, &likeliest, earlier, seed, length);
            let fitted = drawn.iter().map(|hyper| (hyper.clone(), n));
            self.hypers.extend(names.into_iter().zip(fitted));
            drawn
        });
        // All draws believe the same.
        let joined = data.joined(earlier, drawn.first()?);
        let draws = drawn.into_iter();
        Some(
            draws
                .filter_map(|hyper| Gp::condition(&joined, self.coordinates, hyper))
                .collect(),
        )
    }

    /// The hyper-parameters that a process had, while there are few new data.
    fn kept(&mut self, name: &str, n: usize) -> Option<Hyper> {
        let known = self.hypers.get(name).or_else(|| self.memory.get(name));
        let (hyper, fitted_to) = known?.clone();
        if n > fitted_to + fitted_to / REFIT_SHARE {
            return None;
        }
        self.hypers
            .insert(name.to_owned(), (hyper.clone(), fitted_to));
        Some(hyper)
    }

    /// Those, else the most probable ones.
    pub(super) fn hyper(&mut self, name: &str, basis: Basis, data: &Data) -> Hyper {
        self.kept(name, data.values.len())
            .unwrap_or_else(|| self.likeliest(name, basis, data))
    }

    pub(super) fn fit(&mut self, name: &str, basis: Basis, data: &Data) -> Option<Gp> {
        let hyper = self.hyper(name, basis, data);
        Gp::condition(data, self.coordinates, hyper)
    }

    /// Whether a fit to so many observations would take too long from anywhere.
    pub(super) fn are_many(&self, n: usize) -> bool {
        let needed = 2 * FIT_EVALUATIONS.1;
        FIT_WORK < needed as f64 * evaluation_work(n, self.coordinates.len())
    }

    /// What is expected of hyper-parameters that are fitted to so many observations: where there is
    /// time for a few steps of the draws' chain alone, it has to start where they will be.
    fn priors(&self, n: usize, basis: Basis) -> Priors {
        match basis {
            Basis::Logarithm if self.are_many(n) => drawn_priors(self.coordinates),
            _ => Priors::fitted(self.coordinates.len(), basis),
        }
    }

    /// The most probable hyper-parameters, which are kept.
    fn likeliest(&mut self, name: &str, basis: Basis, data: &Data) -> Hyper {
        let priors = self.priors(data.n(), basis);
        let (starts, evaluations) = self.starts(name, data, &priors);
        let hyper = likeliest(data, self.coordinates, &priors, &starts, evaluations);
        self.hypers
            .insert(name.to_owned(), (hyper.clone(), data.n()));
        hyper
    }

    /// Where a fit starts, and for how many evaluations each start is followed.
    fn starts(&self, name: &str, data: &Data, priors: &Priors) -> (Vec<Hyper>, usize) {
        let (n, d) = (data.n(), self.coordinates.len());
        let all = |starts: Vec<Hyper>| {
            let share = FIT_WORK / evaluation_work(n, d) / starts.len() as f64;
            (starts, cell(share / 60.0, 60).max(FIT_EVALUATIONS.0))
        };
        let (last, mode) = (self.memory.get(name), priors.mode());
        if self.are_many(n) {
            if let Some((last, _)) = last.filter(|(_, fitted_to)| n <= 2 * fitted_to) {
                return all(vec![last.clone()]);
            }
            // Many were told at once, as after a restart.
            let few = (1..n).rev().find(|n| !self.are_many(*n)).unwrap_or(1);
            let (part, evaluations) = (data.subsample(few), FIT_EVALUATIONS.1);
            let to_part = likeliest(&part, self.coordinates, priors, &[mode], evaluations);
            return (vec![to_part], FIT_EVALUATIONS.0);
        }
        // Long length scales and much noise explain any data a little: from there the way to short
        // ones is not found.
        let rough = Hyper {
            ln_lengths: vec![-1.0; d],
            ln_noise: -2.0,
            ..mode.clone()
        };
        all(match last {
            Some((last, _)) if priors.basis == Basis::Variable => vec![last.clone(), mode],
            Some((last, _)) => vec![last.clone(), mode, rough],
            None => vec![mode, rough],
        })
    }
}

#[cfg(test)]
mod tests;
