//! Finding the point of a mixed space where an acquisition function is highest.
//!
//! Small finite spaces are listed whole. Else quasi-random points are screened, and from the most
//! promising gradient steps over the ordered coordinates alternate with moves to neighbours on the
//! grid, to other levels and to special values. Small changes of good points are no starts: they
//! lead to maxima close by (`docs/results/tuners-tried.md`). But where nearly all that was asked
//! crashed, what differs from a survivor in one parameter is all that is looked at: of the rest a
//! model that has seen next to no survivor knows nothing.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::acquisition::{AcquisitionFunction, Scratch};
use crate::optim::lbfgs::minimise;
use crate::sampling::design::sobol;
use crate::sampling::feasible_start::towards;
use crate::space::Space;
use crate::space::encode::{CONTINUUM_LEVELS, Encoding, same_point};
use crate::space::value::round_to_i64;

/// Finite spaces up to this size are listed whole.
pub(crate) const LISTED_MAX: u64 = 10_000;
/// How many points are screened: as often as the surface can be evaluated for this work, in
/// multiplications, within limits.
const SCREEN_WORK: f64 = 1.0e7;
const SCREENED: (f64, f64) = (100.0, 1000.0);
/// Where constraints are tight, points are drawn until so many hold to them, or so many have been
/// drawn.
const SCREENED_MIN: u32 = 20;
/// Where fewer were found, those on the way from the best point to what is drawn are looked at too.
/// A choice of this crate.
const TIGHT: usize = 3;
const DRAWN_MAX: u32 = 5_000;
/// How many of them the local search starts from, likewise: 3 at 100 observations of 16 parameters,
/// 8 at 40 of 6, with one process of the objective.
const START_WORK: f64 = 7.0e4;
const STARTS: (f64, f64) = (3.0, 8.0);
/// Gradient evaluations per start and round.
const GRADIENT_STEPS: usize = 30;
/// Rounds of gradient steps and neighbours; the last is the one in which no neighbour is better.
const ROUNDS: usize = 2;
/// Parameters with at most so many values are moved by neighbours alone.
const COARSE_LEVELS: u64 = 5;

/// The prior's part of the acquisition: `weight · log π(x)` (Hvarfner et al. 2022, "πBO").
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    weight: f64,
    /// A point with the guesses in their places.
    guess: Vec<f64>,
}

/// β of πBO, its authors' default.
const BELIEF_BETA: f64 = 10.0;

impl Belief {
    /// The belief after `n` evaluations: β/n.
    pub(crate) fn after(n: usize, encoding: &Encoding) -> Self {
        let mut guess = vec![0.0; encoding.dimension()];
        encoding.write_guesses(&mut guess);
        Belief {
            weight: BELIEF_BETA / n.max(1) as f64,
            guess,
        }
    }

    fn evaluate(&self, encoding: &Encoding, x: &[f64], mut gradient: Option<&mut [f64]>) -> f64 {
        let mut total = 0.0;
        let guess = &self.guess;
        for column in encoding.columns() {
            let Some(prior) = &column.prior else { continue };
            let doubt = (1.0 - prior.confidence).ln() * self.weight;
            if column
                .special_axis
                .is_some_and(|axis| x[axis] != guess[axis])
            {
                total += doubt;
            } else if !encoding.coordinates()[column.axis].is_categorical() {
                // Confidence ½ is a normal density with a quarter of the range for its deviation,
                // 0.9 one of 7 %.
                let sd = 0.02 + 0.5 * (1.0 - prior.confidence);
                let z = (x[column.axis] - guess[column.axis]) / sd;
                // Heavy tails (Student's t, 4 degrees of freedom): a wrong guess must be possible
                // to leave.
                total -= self.weight * 2.5 * (z * z / 4.0).ln_1p();
                if let Some(gradient) = gradient.as_deref_mut() {
                    gradient[column.axis] -=
                        self.weight * 2.5 * (z / 2.0) / (1.0 + z * z / 4.0) / sd;
                }
            } else if x[column.axis] != guess[column.axis] {
                total += doubt;
            }
        }
        total
    }
}

/// A search over one acquisition function.
pub(crate) struct AcquisitionOptimizer<'a> {
    pub(crate) space: &'a Space,
    pub(crate) surface: &'a AcquisitionFunction,
    pub(crate) belief: Belief,
    /// The best evaluated point; while none completed, any.
    pub(crate) best: &'a [f64],
    /// Observations behind the surface: decides how much screening is affordable.
    pub(crate) observations: usize,
    /// Points that must not be proposed.
    pub(crate) taken: &'a dyn Fn(&[f64]) -> bool,
    /// Those that completed, where nearly all crashed; else none.
    pub(crate) survivors: Vec<&'a [f64]>,
}

impl AcquisitionOptimizer<'_> {
    /// The best point found; `None` when every allowed point is taken (or none could be found).
    pub(crate) fn run(&self, rng: &mut ChaCha8Rng) -> Option<Vec<f64>> {
        let mut scratch = Scratch::default();
        let encoding = self.space.encoding();
        if let Some(point) = self.best_of(self.beside_survivors(rng), &mut scratch) {
            return Some(point);
        }
        if encoding
            .cardinality()
            .is_some_and(|size| size <= LISTED_MAX)
        {
            let mut all = encoding.all_points();
            all.retain(|point| self.possible(point));
            return self.best_of(all, &mut scratch);
        }
        let mut screened = self.screen(rng);
        if screened.len() < TIGHT {
            screened.extend(self.on_the_way(rng));
        }
        let screened = self.by_bound(screened).into_iter();
        let mut starts: Vec<Vec<f64>> = screened.map(|(_, point)| point).collect();
        if starts.len() < SCREENED_MIN as usize {
            // Not to be proposed itself, but its surroundings hold to the constraints sooner than
            // the rest of the space.
            starts.push(self.best.to_vec());
        }
        starts.dedup_by(|a, b| same_point(a, b));
        starts.truncate(self.affordable(START_WORK, STARTS) as usize);
        let climbed = starts
            .into_iter()
            .map(|point| self.climb(point, &mut scratch));
        climbed
            .filter(|(_, point)| self.possible(point))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, point)| point)
    }

    fn possible(&self, point: &[f64]) -> bool {
        !(self.taken)(point) && self.space.allows(point)
    }

    fn score(&self, x: &[f64], scratch: &mut Scratch, mut gradient: Option<&mut [f64]>) -> f64 {
        let value = self.surface.evaluate(x, scratch, gradient.as_deref_mut());
        self.with_belief(value, x, gradient)
    }

    /// How often the surface can be evaluated for `work` multiplications of the objective's
    /// processes, within limits, once at least. The lower one is work too: it is shared by all
    /// processes.
    fn affordable(&self, work: f64, (least, most): (f64, f64)) -> u32 {
        let n = self.observations as f64;
        let dimension = self.space.encoding().dimension() as f64;
        let once = n * n + n * (64.0 + 2.0 * dimension) + 3000.0;
        let parts = self.surface.parts();
        let least = least / self.surface.processes();
        let affordable = (work / once / parts).clamp(least, most).max(1.0);
        u32::try_from(round_to_i64(affordable)).unwrap_or_default()
    }

    /// Points and what their scores are at the most, highest first.
    fn by_bound(&self, points: Vec<Vec<f64>>) -> Vec<(f64, Vec<f64>)> {
        let bounds = self.surface.at_most(&points).into_iter().zip(points);
        let mut bounds: Vec<(f64, Vec<f64>)> = bounds
            .map(|(bound, point)| (self.with_belief(bound, &point, None), point))
            .collect();
        bounds.sort_by(|a, b| b.0.total_cmp(&a.0));
        bounds
    }

    /// The point of the highest score: those whose score cannot be higher than one that was found
    /// are not looked at.
    fn best_of(&self, points: Vec<Vec<f64>>, scratch: &mut Scratch) -> Option<Vec<f64>> {
        let mut best: Option<(f64, Vec<f64>)> = None;
        for (bound, point) in self.by_bound(points) {
            let highest = best.as_ref().map(|(score, _)| *score);
            if highest.is_some_and(|highest| bound <= highest) {
                break;
            }
            let score = self.score(&point, scratch, None);
            if highest.is_none_or(|highest| score > highest) {
                best = Some((score, point));
            }
        }
        best.map(|(_, point)| point)
    }

    fn with_belief(&self, value: f64, x: &[f64], gradient: Option<&mut [f64]>) -> f64 {
        let value = if value.is_nan() {
            f64::NEG_INFINITY
        } else {
            value
        };
        value + self.belief.evaluate(self.space.encoding(), x, gradient)
    }

    fn screen(&self, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
        let encoding = self.space.encoding();
        let columns = encoding.columns();
        let count = self.affordable(SCREEN_WORK, SCREENED);
        let seed = rng.random();
        let mut points = Vec::new();
        // Guesses are worth a look even where they are far from everything evaluated.
        let mut guess = self.best.to_vec();
        if encoding.write_guesses(&mut guess) {
            encoding.snap(&mut guess);
            points.extend(Some(guess).filter(|guess| self.possible(guess)));
        }
        // Tight constraints leave few; rejection then goes on until there are some.
        for index in 0..DRAWN_MAX {
            if index >= count && points.len() >= SCREENED_MIN as usize {
                break;
            }
            let point = encoding.place(&sobol(index, columns.len(), seed));
            points.extend(Some(point).filter(|point| self.possible(point)));
        }
        points
    }

    /// Points that differ from a survivor in one parameter.
    fn beside_survivors(&self, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
        let encoding = self.space.encoding();
        let columns = encoding.columns();
        if self.survivors.is_empty() {
            return Vec::new();
        }
        let seed = rng.random();
        let mut beside = |index: u32| {
            let drawn = encoding.place(&sobol(index, columns.len(), seed));
            let survivor = self.survivors[rng.random_range(0..self.survivors.len())];
            let column = &columns[rng.random_range(0..columns.len())];
            let mut point = survivor.to_vec();
            for axis in column.axes() {
                point[axis] = drawn[axis];
            }
            encoding.snap(&mut point);
            Some(point).filter(|point| self.possible(point))
        };
        let count = self.affordable(SCREEN_WORK, SCREENED);
        (0..count).filter_map(&mut beside).collect()
    }

    /// Points between the best one and some that are drawn, which tight constraints leave more of.
    fn on_the_way(&self, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
        let encoding = self.space.encoding();
        let seed = rng.random();
        let drawn = (0..SCREENED_MIN)
            .map(|index| encoding.place(&sobol(index, encoding.columns().len(), seed)));
        let possible = |point: &[f64]| self.possible(point);
        drawn
            .filter_map(|drawn| towards(self.space, self.best, &drawn, possible))
            .collect()
    }

    fn climb(&self, mut point: Vec<f64>, scratch: &mut Scratch) -> (f64, Vec<f64>) {
        // What must not be proposed gives way to whatever may be.
        let mut score = if self.possible(&point) {
            self.score(&point, scratch, None)
        } else {
            f64::NEG_INFINITY
        };
        for _ in 0..ROUNDS {
            self.gradient_steps(&mut score, &mut point, scratch);
            let before = score;
            self.neighbours(&mut score, &mut point, scratch);
            if score <= before + 1e-6 {
                break;
            }
        }
        (score, point)
    }

    fn accept(
        &self,
        candidate: Vec<f64>,
        score: &mut f64,
        point: &mut Vec<f64>,
        scratch: &mut Scratch,
    ) -> bool {
        if !self.possible(&candidate) {
            return false;
        }
        let value = self.score(&candidate, scratch, None);
        let better = value > *score;
        if better {
            *score = value;
            *point = candidate;
        }
        better
    }

    fn gradient_steps(&self, score: &mut f64, point: &mut Vec<f64>, scratch: &mut Scratch) {
        let encoding = self.space.encoding();
        let mut bounds: Vec<(f64, f64)> = point.iter().map(|x| (*x, *x)).collect();
        let mut any = false;
        for column in encoding.columns() {
            let ordinary = column.special_axis.is_none_or(|axis| point[axis] == 0.0);
            let fine = column.levels().is_none_or(|levels| levels > COARSE_LEVELS);
            if ordinary && fine && column.is_ordered() {
                bounds[column.axis] = (0.0, 1.0);
                any = true;
            }
        }
        if !any {
            return;
        }
        // What lies between steps is rounded; what does not makes up for it, with the rest held.
        let mut rounded = self.descend(point, &bounds, scratch);
        encoding.snap(&mut rounded);
        let mut is_mixed = false;
        for column in encoding.columns() {
            if column.levels().is_some() && bounds[column.axis] == (0.0, 1.0) {
                bounds[column.axis] = (rounded[column.axis], rounded[column.axis]);
                is_mixed = true;
            }
        }
        let has_continuous = bounds.contains(&(0.0, 1.0));
        if is_mixed && has_continuous {
            rounded = self.descend(&rounded, &bounds, scratch);
            encoding.snap(&mut rounded);
        }
        if self.accept(rounded.clone(), score, point, scratch) {
            return;
        }
        if is_mixed && has_continuous {
            // The steps as they were, the rest at its best for them.
            for column in encoding.columns() {
                if column.levels().is_some() {
                    bounds[column.axis] = (point[column.axis], point[column.axis]);
                }
            }
            let mut held = self.descend(point, &bounds, scratch);
            encoding.snap(&mut held);
            self.accept(held, score, point, scratch);
        }
        // Where a linear constraint is in the way, go part of it.
        if self.space.constraints().is_empty() {
            return;
        }
        for share in [0.5, 0.25] {
            let mut candidate: Vec<f64> = point
                .iter()
                .zip(&rounded)
                .map(|(a, b)| a + share * (b - a))
                .collect();
            encoding.snap(&mut candidate);
            if self.accept(candidate, score, point, scratch) {
                break;
            }
        }
    }

    /// Gradient steps from `point`, within `bounds`.
    fn descend(&self, point: &[f64], bounds: &[(f64, f64)], scratch: &mut Scratch) -> Vec<f64> {
        minimise(point, bounds, 0.05, GRADIENT_STEPS, |x, gradient| {
            gradient.fill(0.0);
            let value = self.score(x, scratch, Some(gradient));
            gradient.iter_mut().for_each(|g| *g = -*g);
            -value
        })
        .point
    }

    fn neighbours(&self, score: &mut f64, point: &mut Vec<f64>, scratch: &mut Scratch) {
        let is_constrained = !self.space.constraints().is_empty();
        for column in self.space.encoding().columns() {
            // Along a continuum gradient steps do better, but these know nothing of constraints.
            let levels = column
                .levels()
                .or(is_constrained.then_some(CONTINUUM_LEVELS));
            if let Some(levels) = levels.filter(|_| column.is_ordered()) {
                let far = i64::try_from(levels / 20).unwrap_or(i64::MAX).max(2);
                // Gradient steps went far, and what they found was rounded.
                let is_fine = levels > COARSE_LEVELS && !is_constrained;
                let reach: &[i64] = if is_fine { &[1] } else { &[1, far] };
                for steps in reach.iter().flat_map(|steps| [*steps, -steps]) {
                    let mut candidate = point.clone();
                    if column.step_by(steps, &mut candidate) {
                        self.accept(candidate, score, point, scratch);
                    }
                }
            }
            let specials = column.specials() as u64;
            let others = if column.is_ordered() {
                specials
            } else {
                column.states().unwrap_or(specials)
            };
            for state in 0..others {
                let mut candidate = point.clone();
                column.write_state(state, &mut candidate);
                if candidate != *point {
                    self.accept(candidate, score, point, scratch);
                }
            }
        }
    }
}
