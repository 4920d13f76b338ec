//! All processes that are fitted to what has been told: the objective, each constraint, and
//! viability.

use std::collections::BTreeMap;

use crate::acquisition::Evaluated;
use crate::coordinate::Coordinate;
use crate::crash_classifier;
use crate::data::Data;
use crate::encode::{Encoding, same_point};
use crate::feasibility::{Demand, Feasibility};
use crate::gp::{Gp, likeliest, log_posterior};
use crate::hyper::{Basis, Hyper, Priors};
use crate::hyper_sampling::{Length, draw, drawn_priors};
use crate::mixture::Mixture;
use crate::observation::{EncodedObservation, MeasuredValue, ObservedOutcome};
use crate::transform::Transform;
use crate::trend::Shared;
use crate::value::cell;
use crate::warm_start::Earlier;

/// Hyper-parameters by process, and how many observations they were fitted to: where the next fit
/// starts.
pub(crate) type Memory = BTreeMap<String, (Hyper, usize)>;

/// Prior mean and deviation of the labels of viability, where 1 survives and −1 crashes, for the
/// regression that finds which parameters matter to it. A choice of this crate.
const VIABILITY_PRIOR: (f64, f64) = (0.6, 0.5);
/// How far below 0 a constraint value of exactly 0 counts, in typical sizes: counts such as
/// "throttled periods" are never negative, and 0 is plainly feasible, not a toss-up.
const ZERO_MARGIN: f64 = 0.5;
/// The smallest typical size, of which ratios are still numbers. A choice of this crate.
const SIZE_MIN: f64 = 1e-100;
/// Floating-point work that one fit may do, in multiplications: about 5 ms on one core of an EPYC
/// server.
const FIT_WORK: f64 = 6.0e6;
/// How many evaluations a start is followed for at the least, and how many lead most of the way.
/// Where these are not affordable from two starts, a fit starts where the last one ended, or, where
/// that was of far fewer observations, where one to a part of them ends
/// (`docs/results/tuners-tried.md`). Choices of this crate.
const FIT_EVALUATIONS: (usize, usize) = (3, 20);

/// How probable it is at least that a configuration which completed, and never crashed, survives
/// again, and that one which violated a constraint does so again.
const SEEN: f64 = 0.9;

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

/// What a process chose was chosen for being expected low, so that of what is measured low by luck
/// most was chosen; what the search began with was not. A choice of this crate, measured:
/// `docs/results/tuners-tried.md`.
const CHOSEN_IS_LOWER: f64 = 0.75;

/// The fitted processes.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) objective: Mixture,
    pub(crate) transform: Transform,
    pub(crate) feasibilities: Vec<Feasibility>,
    /// Completed points, each once.
    pub(crate) points: Vec<Vec<f64>>,
    /// For each, the first observation of it.
    pub(crate) first: Vec<usize>,
    /// For each, the objective's posterior.
    pub(crate) posteriors: Vec<(f64, f64)>,
    /// For each, the probability of being feasible.
    pub(crate) feasible: Vec<f64>,
    pub(crate) hypers: Memory,
}

impl Model {
    /// Fits all processes; `None` while nothing completed.
    pub(crate) fn fit(
        told: &[EncodedObservation],
        earlier: &[Earlier],
        encoding: &Encoding,
        log: bool,
        memory: &Memory,
        seed: u64,
    ) -> Option<Model> {
        let mut completed: Vec<(usize, &EncodedObservation, MeasuredValue)> = Vec::new();
        let mut crashed: Vec<&[f64]> = Vec::new();
        let mut constraints: BTreeMap<&str, Vec<(&EncodedObservation, MeasuredValue)>> =
            BTreeMap::new();
        for (index, told) in told.iter().enumerate() {
            let ObservedOutcome::Completed {
                objective,
                constraints: measured,
            } = &told.observation.outcome
            else {
                crashed.push(&told.point);
                continue;
            };
            completed.push((index, told, *objective));
            for (name, measured) in measured {
                constraints.entry(name).or_default().push((told, *measured));
            }
        }
        if completed.is_empty() {
            return None;
        }
        let mut fitter = Fitter {
            coordinates: encoding.coordinates(),
            quadratic: encoding.quadratic,
            memory,
            seed,
            hypers: Memory::new(),
        };

        let values: Vec<f64> = completed
            .iter()
            .map(|(_, _, objective)| objective.value)
            .collect();
        let objectives: Vec<MeasuredValue> = completed.iter().map(|(_, _, y)| *y).collect();
        let data = |transform: &Transform| {
            let (modelled, variances) = transform.measured(&objectives);
            let weights = completed.iter().map(|(_, told, _)| told.observation.weight);
            Data {
                points: completed
                    .iter()
                    .flat_map(|(_, told, _)| told.point.iter().copied())
                    .collect(),
                values: modelled,
                variances,
                weights: weights.collect(),
                mean_prior: (0.0, 1.0),
                earlier: Vec::new(),
            }
        };
        let plain = Transform::new(&values, log);
        let ratios = Transform::of_ratios(&values).filter(|_| !log);
        let (name, transform, data) = fitter.scale(values.len(), plain, ratios, data);
        let scale = transform.scale();
        let earlier: Vec<Data> = earlier
            .iter()
            .map(|earlier| earlier.in_units(scale))
            .collect();
        let objective = Mixture::new(fitter.draws(name, &data, &earlier)?)?;

        let mut feasibilities = Vec::new();
        for (name, measured) in &constraints {
            let data = constraint_data(measured);
            let gp = fitter.fit(&format!("constraint {name}"), Basis::Variable, &data)?;
            feasibilities.push(Feasibility {
                gp,
                demand: Demand::Holds,
            });
        }
        if !crashed.is_empty() {
            feasibilities.push(fitter.viability(told)?);
        }

        let mut model = Model {
            objective,
            transform,
            feasibilities,
            points: Vec::new(),
            first: Vec::new(),
            posteriors: Vec::new(),
            feasible: Vec::new(),
            hypers: fitter.hypers,
        };
        model.look_back(&completed, &crashed, &constraints);
        Some(model)
    }

    /// Takes up what the processes say of the points that were measured.
    fn look_back(
        &mut self,
        completed: &[(usize, &EncodedObservation, MeasuredValue)],
        crashed: &[&[f64]],
        constraints: &BTreeMap<&str, Vec<(&EncodedObservation, MeasuredValue)>>,
    ) {
        for (row, (index, told, _)) in completed.iter().enumerate() {
            if self
                .points
                .iter()
                .any(|point| same_point(point, &told.point))
            {
                continue;
            }
            self.points.push(told.point.clone());
            self.first.push(*index);
            self.posteriors.push(self.objective.posterior_at(row));
            let measured = constraints.values().map(Some).chain([None]);
            let has_crashed = crashed.iter().any(|crash| same_point(crash, &told.point));
            let feasible = self
                .feasibilities
                .iter()
                .zip(measured)
                .map(|(f, measured)| {
                    let probability = f.probability(f.gp.posterior_of(&told.point));
                    // What was seen of it counts, whatever the model says of its neighbourhood.
                    match measured {
                        None if !has_crashed => probability.max(SEEN),
                        Some(measured) if has_violated(measured, &told.point) => {
                            probability.min(1.0 - SEEN)
                        }
                        _ => probability,
                    }
                })
                .product();
            self.feasible.push(feasible);
        }
    }

    pub(crate) fn evaluated<'a>(&'a self, pending: &'a [Vec<f64>]) -> Evaluated<'a> {
        Evaluated {
            points: &self.points,
            posteriors: &self.posteriors,
            feasible: &self.feasible,
            pending,
        }
    }

    /// The point (by index) of the best mean among those that are probably feasible, else the most
    /// probably feasible one.
    pub(crate) fn lowest(&self) -> Option<usize> {
        self.lowest_of(|_| true).or_else(|| {
            (0..self.points.len()).max_by(|a, b| self.feasible[*a].total_cmp(&self.feasible[*b]))
        })
    }

    /// The point (by index) to recommend: the lowest, but none that a model chose (`is_chosen`)
    /// unless it is lower than all others with a probability of [`CHOSEN_IS_LOWER`].
    pub(crate) fn recommended(&self, is_chosen: impl Fn(&[f64]) -> bool) -> Option<usize> {
        let other = self.lowest_of(|i| !is_chosen(&self.points[i]));
        let chosen = self.lowest_of(|i| is_chosen(&self.points[i]));
        let (Some(other), Some(chosen)) = (other, chosen) else {
            return self.lowest();
        };
        let (lower, than) = (&self.points[chosen], &self.points[other]);
        Some(
            match self.objective.is_lower(lower, than) >= CHOSEN_IS_LOWER {
                true => chosen,
                false => other,
            },
        )
    }

    /// The best mean among those of `which` that are probably feasible.
    fn lowest_of(&self, which: impl Fn(usize) -> bool) -> Option<usize> {
        let likely = (0..self.points.len()).filter(|i| self.feasible[*i] >= 0.5);
        likely
            .filter(|i| which(*i))
            .min_by(|a, b| self.posteriors[*a].0.total_cmp(&self.posteriors[*b].0))
    }

    /// Whether some evaluated point is probably feasible.
    pub(crate) fn any_feasible(&self) -> bool {
        self.feasible.iter().any(|probability| *probability >= 0.5)
    }
}

/// Whether the measurements of a constraint at a point say that it is violated there.
fn has_violated(measured: &[(&EncodedObservation, MeasuredValue)], point: &[f64]) -> bool {
    let here = measured
        .iter()
        .filter(|(told, _)| same_point(&told.point, point));
    let (mut sum, mut variance) = (0.0, 0.0);
    for (told, measured) in here {
        let weight = told.observation.weight;
        sum += weight * measured.value;
        // A weight divides the variance.
        variance += weight * measured.variance.unwrap_or(0.0);
    }
    // Of the sum as of the mean: both are divided by the weights' sum.
    let sum = MeasuredValue {
        value: sum,
        variance: Some(variance),
    };
    sum.is_violated()
}

/// The work of one evaluation of a posterior, in multiplications.
fn evaluation_work(n: usize, dimension: usize) -> f64 {
    let n = n.max(1) as f64;
    n * n * n / 2.0 + n * n * dimension as f64
}

struct Fitter<'a> {
    coordinates: &'a [Coordinate],
    /// Whether the objective may have a bowl.
    quadratic: bool,
    memory: &'a Memory,
    seed: u64,
    hypers: Memory,
}

impl Fitter<'_> {
    /// What the objective's process is called, how it is modelled, and its `data` so: under
    /// `ratios` where what was measured is by far more probable so.
    fn scale(
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
    fn draws(&mut self, name: &str, data: &Data, earlier: &[Data]) -> Option<Vec<Gp>> {
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
    fn hyper(&mut self, name: &str, basis: Basis, data: &Data) -> Hyper {
        self.kept(name, data.values.len())
            .unwrap_or_else(|| self.likeliest(name, basis, data))
    }

    fn fit(&mut self, name: &str, basis: Basis, data: &Data) -> Option<Gp> {
        let hyper = self.hyper(name, basis, data);
        Gp::condition(data, self.coordinates, hyper)
    }

    /// Whether a fit to so many observations would take too long from anywhere.
    fn are_many(&self, n: usize) -> bool {
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

/// Where the classifier's hyper-parameters are kept, beside those of the regression that they start
/// from.
const CLASSIFIER: &str = "viability classifier";

impl Fitter<'_> {
    fn viability(&mut self, told: &[EncodedObservation]) -> Option<Feasibility> {
        let labels = viability_data(told);
        let rough = self.hyper("viability", Basis::Variable, &standard(&labels));
        let fitted_to = self
            .hypers
            .get("viability")
            .map_or(0, |(_, fitted_to)| *fitted_to);
        // A classifier is chosen anew whenever the regression was.
        let gp = match self.memory.get(CLASSIFIER) {
            Some((hyper, chosen_at)) if *chosen_at == fitted_to => {
                crash_classifier::condition(&labels, self.coordinates, hyper.clone())
            }
            _ => {
                let many = self.are_many(told.len());
                crash_classifier::choose(&labels, self.coordinates, &rough, many)
            }
        }?;
        self.hypers
            .insert(CLASSIFIER.to_owned(), (gp.hyper.clone(), fitted_to));
        Some(Feasibility {
            gp,
            demand: Demand::Survives,
        })
    }
}

/// A constraint's values with 0 kept in its place: divided by their typical size, then by the
/// symmetric logarithm (Eriksson & Poloczek 2021, "Scalable constrained Bayesian optimization",
/// section 4), which draws the border apart and far violations together.
fn constraint_data(measured: &[(&EncodedObservation, MeasuredValue)]) -> Data {
    let mut sizes: Vec<f64> = measured
        .iter()
        .map(|(_, measured)| measured.value.abs())
        .filter(|size| *size > 0.0)
        .collect();
    sizes.sort_by(f64::total_cmp);
    let typical = sizes
        .get(sizes.len() / 2)
        .map_or(1.0, |size| size.max(SIZE_MIN));
    let squeeze = |value: f64| {
        if value == 0.0 {
            -ZERO_MARGIN
        } else {
            (value / typical).signum() * (value / typical).abs().ln_1p()
        }
    };
    let values: Vec<f64> = measured
        .iter()
        .map(|(_, measured)| squeeze(measured.value))
        .collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (n - 1.0).max(1.0))
    .sqrt();
    let scale = if deviation > 1e-9 { deviation } else { 1.0 };
    let variance = |measured: &MeasuredValue| {
        let slope = 1.0 / (typical * (1.0 + (measured.value / typical).abs()) * scale);
        measured.variance.unwrap_or(0.0) * slope * slope
    };
    Data {
        points: measured
            .iter()
            .flat_map(|(told, _)| told.point.iter().copied())
            .collect(),
        variances: measured
            .iter()
            .map(|(_, measured)| variance(measured))
            .collect(),
        weights: measured
            .iter()
            .map(|(told, _)| told.observation.weight)
            .collect(),
        values: values.iter().map(|value| value / scale).collect(),
        mean_prior: (mean / scale, 1.0),
        earlier: Vec::new(),
    }
}

fn viability_data(told: &[EncodedObservation]) -> Data {
    let label = |told: &EncodedObservation| {
        if matches!(told.observation.outcome, ObservedOutcome::Crashed) {
            -1.0
        } else {
            1.0
        }
    };
    Data {
        points: told
            .iter()
            .flat_map(|told| told.point.iter().copied())
            .collect(),
        values: told.iter().map(label).collect(),
        variances: vec![0.0; told.len()],
        weights: told.iter().map(|told| told.observation.weight).collect(),
        mean_prior: VIABILITY_PRIOR,
        earlier: Vec::new(),
    }
}

/// Labels with deviation 1, as the priors of a regression expect.
fn standard(labels: &Data) -> Data {
    let n = labels.values.len() as f64;
    let mean = labels.values.iter().sum::<f64>() / n;
    let deviation = (1.0 - mean * mean).max(1.0 / n).sqrt();
    let mut data = labels.clone();
    data.values.iter_mut().for_each(|value| *value /= deviation);
    data.mean_prior = (VIABILITY_PRIOR.0 / deviation, VIABILITY_PRIOR.1 / deviation);
    data
}

/// Viability alone, for when nothing completed yet.
pub(crate) fn survival(told: &[EncodedObservation], encoding: &Encoding) -> Option<Feasibility> {
    let mut fitter = Fitter {
        coordinates: encoding.coordinates(),
        quadratic: encoding.quadratic,
        memory: &Memory::new(),
        seed: 0,
        hypers: Memory::new(),
    };
    fitter.viability(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::design::sobol;

    /// Measurements of which one of five coordinates decides most, and noise the rest.
    fn data(n: u32, seed: u32) -> Data {
        let points: Vec<Vec<f64>> = (0..n).map(|i| sobol(i, 5, seed)).collect();
        let noise = |i: u32| sobol(i, 6, seed + 1)[5] - 0.5;
        // Of mean 0 and deviation 1.
        let value = |(i, x): (u32, &Vec<f64>)| 1.5 * (4.0 * (x[0] - 0.5).abs() - 1.0 + noise(i));
        Data {
            values: (0..n).zip(&points).map(value).collect(),
            variances: vec![0.0; n as usize],
            weights: vec![1.0; n as usize],
            points: points.into_iter().flatten().collect(),
            mean_prior: (0.0, 1.0),
            earlier: Vec::new(),
        }
    }

    fn fitter(memory: &Memory) -> Fitter<'_> {
        Fitter {
            coordinates: &[Coordinate::Ordered; 5],
            quadratic: true,
            memory,
            seed: 1,
            hypers: Memory::new(),
        }
    }

    #[test]
    fn switches_have_a_slope_where_they_act_alike() {
        let sloped = |effects: [f64; 8]| {
            let points: Vec<Vec<f64>> = (0..16)
                .map(|i| sobol(i, 8, 4).iter().map(|x| x.round()).collect())
                .collect();
            let value = |x: &Vec<f64>| x.iter().zip(effects).map(|(x, by)| (x - 0.5) * by).sum();
            let data = Data {
                values: points.iter().map(value).collect(),
                points: points.into_iter().flatten().collect(),
                ..data(16, 1)
            };
            let memory = Memory::new();
            let mut fitter = Fitter {
                coordinates: &[Coordinate::Binary; 8],
                ..fitter(&memory)
            };
            fitter.draws(PLAIN, &data, &[]);
            let slopes: Vec<bool> = fitter
                .hypers
                .iter()
                .filter(|(name, _)| name.as_str() != PLAIN)
                .map(|(_, (hyper, _))| hyper.shared.linear)
                .collect();
            assert!(!slopes.is_empty() && slopes.iter().all(|slope| *slope == slopes[0]));
            slopes[0]
        };
        assert!(sloped([0.6; 8]) && sloped([-0.6; 8]));
        assert!(!sloped([1.0, -1.0, 1.0, -1.0, 0.5, -0.5, 0.1, -0.1]));
    }

    #[test]
    fn ratios_are_modelled_where_values_span_orders_of_magnitude() {
        let measured = data(12, 1);
        // What the process is called, for a function of the data's values, moved and stretched.
        let called = |function: fn(f64) -> f64, scale: f64, offset: f64| {
            let values = measured.values.iter();
            let values: Vec<f64> = values.map(|y| scale * function(*y) + offset).collect();
            let objectives: Vec<MeasuredValue> = values
                .iter()
                .map(|value| MeasuredValue {
                    value: *value,
                    variance: None,
                })
                .collect();
            let (plain, ratios) = (
                Transform::new(&values, false),
                Transform::of_ratios(&values),
            );
            let nothing = Memory::new();
            let scaled = fitter(&nothing).scale(values.len(), plain, ratios, |transform| {
                let (values, variances) = transform.measured(&objectives);
                Data {
                    values,
                    variances,
                    ..measured.clone()
                }
            });
            scaled.0
        };
        for (scale, offset) in [(1.0, 0.0), (30.0, -1e3), (0.01, 5.0)] {
            assert_eq!(called(|y| y, scale, offset), PLAIN);
            assert_eq!(called(|y| (3.0 * y).exp(), scale, offset), RATIOS);
        }
    }

    #[test]
    fn many_told_at_once_are_fitted_as_well() {
        let (nothing, many) = (Memory::new(), data(250, 1));
        let mut fitter = fitter(&nothing);
        let (coordinates, priors) = (fitter.coordinates, fitter.priors(250, Basis::Logarithm));
        let worth = |hyper: &Hyper| log_posterior(&many, coordinates, &priors, hyper);
        let mode = priors.mode();
        let found = worth(&fitter.likeliest(PLAIN, Basis::Logarithm, &many));
        let most = worth(&likeliest(
            &many,
            coordinates,
            &priors,
            std::slice::from_ref(&mode),
            100,
        ));
        assert!(
            found > most - 5.0 && most > worth(&mode) + 50.0,
            "{found} {most}"
        );
    }

    #[test]
    fn along_ranges_shorter_length_scales_are_drawn() {
        let nothing = Memory::new();
        let mean = |coordinate: Coordinate| {
            let coordinates = [coordinate; 5];
            let mut fitter = Fitter {
                coordinates: &coordinates,
                ..fitter(&nothing)
            };
            let draws = fitter.draws(PLAIN, &data(2, 1), &[]).unwrap();
            let lengths = draws.iter().flat_map(|gp| &gp.hyper.ln_lengths);
            lengths.sum::<f64>() / (5 * draws.len()) as f64
        };
        let ordered = mean(Coordinate::Ordered);
        for short in [Coordinate::Integer, Coordinate::Continuous].map(mean) {
            assert!(short < ordered - 1.0, "{short} {ordered}");
        }
    }

    #[test]
    fn hyper_parameters_are_drawn() {
        let nothing = Memory::new();
        let mut first = fitter(&nothing);
        let measured = data(40, 1);
        let drawn: Vec<Hyper> = hypers(first.draws(PLAIN, &measured, &[]));
        assert_eq!(drawn.len(), DRAWS.1);
        let lengths =
            |k: usize| -> Vec<f64> { drawn.iter().map(|hyper| hyper.ln_lengths[k]).collect() };
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let decides = lengths(0);
        assert!((1..5).all(|k| mean(&decides) < mean(&lengths(k))));
        assert!(decides.iter().any(|ln| (ln - decides[0]).abs() > 0.01));
        // As they were, until there are enough new data.
        let memory = first.hypers;
        let draws = |data: &Data| hypers(fitter(&memory).draws(PLAIN, data, &[]));
        assert_eq!(draws(&measured), drawn);
        assert_ne!(draws(&data(42, 1)), drawn);
    }

    fn hypers(draws: Option<Vec<Gp>>) -> Vec<Hyper> {
        draws.unwrap().into_iter().map(|gp| gp.hyper).collect()
    }

    #[test]
    fn many_observations_have_few_draws() {
        let nothing = Memory::new();
        let draws = |n: u32| {
            fitter(&nothing)
                .draws(PLAIN, &data(n, 1), &[])
                .unwrap()
                .len()
        };
        assert_eq!((draws(1), draws(100), draws(300)), (8, 4, 2));
    }
}
