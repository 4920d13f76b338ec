//! Ask and tell: who is asked next, what has been told, what is recommended.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::acquisition::replication::{most_worth_repeating, worth_repeating};
use crate::acquisition::{AcquisitionFunction, Evaluated};
use crate::error::{Error, SpaceError};
use crate::explain::{self, Importance};
use crate::model::warm_start::Earlier;
use crate::model::{Memory, Model, survival};
use crate::observation::{EncodedObservation, Observation, ObservedOutcome, Recommendation};
use crate::optim::search::{AcquisitionOptimizer, Belief};
use crate::sampling::design::{Design, fold};
use crate::sampling::feasible_start::inside;
use crate::settings::{Acquisition, Settings, Strategy};
use crate::space::Space;
use crate::space::encode::{Column, is_among, same_point};
use crate::space::parameter::Parameter;
use crate::space::value::{Configuration, Value};

/// Proposes configurations and learns from what is told about them.
#[derive(Clone, Debug)]
pub struct Optimizer {
    space: Space,
    settings: Settings,
    rng: ChaCha8Rng,
    start: Design,
    strategy: Design,
    initial_asked: usize,
    earlier: Vec<Earlier>,
    /// What the first of them holds best: asked first, unless it is told or pending already.
    earlier_best: Option<Vec<f64>>,
    told: Vec<EncodedObservation>,
    /// What a model chose.
    chosen: Vec<Vec<f64>>,
    pending: Vec<Vec<f64>>,
    model: Option<Arc<Model>>,
    /// Hyper-parameters of the last model that was asked, where the next fit starts.
    memory: Memory,
}

/// What is asked next.
enum Next {
    /// A point of the start.
    New(Vec<f64>),
    /// One that a model chose.
    Chosen(Vec<f64>),
    /// What this observation is of.
    Again(usize),
}

impl Optimizer {
    /// An optimiser that has been told nothing yet.
    ///
    /// # Errors
    /// [`Error::Initial`] when an initial configuration is not inside the space, [`Error::Beta`]
    /// for a `beta` that makes no sense.
    pub fn new(space: Space, settings: Settings) -> Result<Self, Error> {
        for (position, configuration) in settings.initial.iter().enumerate() {
            space
                .check(configuration)
                .map_err(|source| Error::Initial {
                    position: position + 1,
                    source,
                })?;
        }
        if let Strategy::Bayesian {
            acquisition: Acquisition::Ucb { beta },
        } = settings.strategy
            && !(beta.is_finite() && beta >= 0.0)
        {
            return Err(Error::Beta { beta });
        }
        for observation in settings.earlier.iter().flatten() {
            observation.validate()?;
        }
        let earlier = settings.earlier.iter().take(Settings::EARLIER_MAX);
        let of_all = earlier.len();
        let earlier = earlier.filter_map(|observations| Earlier::new(observations, of_all, &space));
        let earlier: Vec<Earlier> = earlier.collect();
        let earlier_best = earlier.first().and_then(|earlier| earlier.best(&space));
        let start = Design::sobol(settings.seed);
        let strategy = match settings.strategy {
            Strategy::LatinHypercube => Design::LatinHypercube { rows: Vec::new() },
            Strategy::Random => Design::Random,
            Strategy::Bayesian { .. } | Strategy::Sobol => start.clone(),
        };
        Ok(Optimizer {
            rng: ChaCha8Rng::seed_from_u64(settings.seed),
            start,
            strategy,
            initial_asked: 0,
            earlier,
            earlier_best,
            told: Vec::new(),
            chosen: Vec::new(),
            pending: Vec::new(),
            model: None,
            memory: Memory::new(),
            space,
            settings,
        })
    }

    /// The space that is searched.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The next `count` configurations to evaluate, or as many as there are. They count as pending
    /// until they are told.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when every configuration that was found crashed or is pending,
    /// [`SpaceError::Unsatisfiable`] when none was found at all.
    pub fn ask(&mut self, count: usize) -> Result<Vec<Configuration>, Error> {
        let mut asked = Vec::new();
        while asked.len() < count {
            match self.ask_one() {
                Ok(configuration) => asked.push(configuration),
                Err(_) if !asked.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(asked)
    }

    fn ask_one(&mut self) -> Result<Configuration, Error> {
        let configuration = match self.next_initial() {
            Some(initial) => initial,
            None => self.choose()?,
        };
        self.pending
            .push(self.space.encoding().encode(&configuration));
        Ok(configuration)
    }

    /// The next of `initial` that was not told as often as it is listed.
    fn next_initial(&mut self) -> Option<Configuration> {
        let initial = &self.settings.initial;
        while let Some(next) = initial.get(self.initial_asked) {
            self.initial_asked += 1;
            let listed = initial[..self.initial_asked].iter();
            let listed = listed.filter(|other| *other == next).count();
            let point = self.space.encoding().encode(next);
            let told = self.told.iter();
            if told.filter(|told| same_point(&told.point, &point)).count() < listed {
                return Some(next.clone());
            }
        }
        None
    }

    /// Why nothing could be asked.
    fn nothing_left(&self) -> Error {
        if !self.told.is_empty() || !self.pending.is_empty() {
            return Error::Exhausted;
        }
        let texts = self.space.constraints().iter().map(ToString::to_string);
        let text = texts.collect::<Vec<_>>().join(", ");
        SpaceError::Unsatisfiable { text }.into()
    }

    fn choose(&mut self) -> Result<Configuration, Error> {
        let point = match self.settings.strategy {
            Strategy::Bayesian { acquisition } => match self.next_point(acquisition)? {
                Next::New(point) => point,
                Next::Chosen(point) => {
                    self.chosen.push(point.clone());
                    point
                }
                // As it was told, which may be between steps.
                Next::Again(told) => return Ok(self.told[told].observation.configuration.clone()),
            },
            _ => self.draw(false).ok_or_else(|| self.nothing_left())?,
        };
        Ok(self.space.encoding().decode(&point))
    }

    fn next_point(&mut self, acquisition: Acquisition) -> Result<Next, Error> {
        if let Some(best) = &self.earlier_best
            && !is_taken(&self.told, &self.pending, best)
        {
            return Ok(Next::New(best.clone()));
        }
        let asked = self.told.len() + self.pending.len();
        if asked < start_length(&self.space, &self.settings)
            && let Some(point) = self.start_point()
        {
            return Ok(Next::New(point));
        }
        let Some(model) = self.model() else {
            return self.without_model().map(Next::New);
        };
        self.memory.extend(
            model
                .hypers
                .iter()
                .map(|(name, hyper)| (name.clone(), hyper.clone())),
        );
        let mut order: Vec<usize> = (0..model.points.len())
            .filter(|i| model.feasible[*i] >= 0.5)
            .collect();
        order.sort_by(|a, b| model.posteriors[*a].0.total_cmp(&model.posteriors[*b].0));
        let objective = model.any_feasible().then_some(&model.objective);
        let best = model.lowest().ok_or(Error::Exhausted)?;
        let observations = self.told.len().max(model.objective.n());
        let evaluated = model.evaluated(&self.pending);
        let seed = fold(self.rng.random::<u64>());
        let surface = AcquisitionFunction::new(
            acquisition,
            objective,
            &model.feasibilities,
            &evaluated,
            seed,
        );
        let new = self.search(&surface, &model.points[best], observations);
        let rivals: Vec<&[f64]> = order.iter().map(|i| model.points[*i].as_slice()).collect();
        let Some(new) = new else {
            // Everything has been tried.
            let again = most_worth_repeating(&model.objective, &rivals, &self.pending);
            let waits = |i: &usize| is_among(&self.pending, rivals[*i]);
            let first = || (0..rivals.len()).find(|i| !waits(i));
            let again = again.or_else(first).ok_or(Error::Exhausted)?;
            return Ok(Next::Again(model.first[order[again]]));
        };
        if acquisition == Acquisition::LogNoisyEi
            && let Some(again) =
                worth_repeating(&model.objective, &rivals, Some(&new), &self.pending)
        {
            return Ok(Next::Again(model.first[order[again]]));
        }
        Ok(Next::Chosen(new))
    }

    /// The point where `surface` is highest, among those neither told nor pending.
    fn search(
        &mut self,
        surface: &AcquisitionFunction,
        best: &[f64],
        observations: usize,
    ) -> Option<Vec<f64>> {
        let (told, pending) = (&self.told, &self.pending);
        let mut survivors: Vec<&[f64]> = told
            .iter()
            .filter(|told| !matches!(told.observation.outcome, ObservedOutcome::Crashed))
            .map(|told| told.point.as_slice())
            .collect();
        if survivors.len() * SURVIVORS_FEW > told.len() {
            survivors.clear();
        }
        let search = AcquisitionOptimizer {
            space: &self.space,
            surface,
            belief: Belief::after(told.len(), self.space.encoding()),
            best,
            observations: observations + pending.len(),
            taken: &|point| is_taken(told, pending, point),
            survivors,
        };
        search.run(&mut self.rng)
    }

    /// Nothing completed yet: away from the crashes.
    fn without_model(&mut self) -> Result<Vec<f64>, Error> {
        let Some(last) = self.told.last() else {
            return self.draw(true).ok_or_else(|| self.nothing_left());
        };
        let last = last.point.clone();
        let viability = survival(&self.told, self.space.encoding());
        let evaluated = Evaluated {
            points: &[],
            posteriors: &[],
            feasible: &[],
            pending: &self.pending,
        };
        let surface = AcquisitionFunction::new(
            Acquisition::LogEi,
            None,
            viability.as_slice(),
            &evaluated,
            0,
        );
        self.search(&surface, &last, self.told.len())
            .ok_or(Error::Exhausted)
    }

    /// A point of the start: the guesses of the priors, then the middle of the space, then the
    /// Sobol sequence.
    fn start_point(&mut self) -> Option<Vec<f64>> {
        if self
            .space
            .parameters()
            .iter()
            .any(|parameter| parameter.prior.is_some())
        {
            let mut guess = self.space.default_configuration();
            for parameter in self.space.parameters() {
                if let Some(prior) = &parameter.prior {
                    guess
                        .0
                        .insert(parameter.name.clone(), prior.best_guess.clone());
                }
            }
            let point = self.space.encoding().encode(&self.space.snap(&guess));
            if self.space.allows(&point) && !is_taken(&self.told, &self.pending, &point) {
                return Some(point);
            }
        }
        self.middle()
            .filter(|point| self.space.allows(point))
            .or_else(|| self.draw(true))
    }

    /// Every range at its middle, as ranges are drawn around what is thought likely, and lists as
    /// the sequence draws them, as are ranges of two values: once. `None` where most parameters are
    /// lists: a point of the sequence says more of those.
    fn middle(&mut self) -> Option<Vec<f64>> {
        let parameters = self.space.parameters();
        let (ranges, lists): (Vec<&Parameter>, Vec<&Parameter>) = parameters
            .iter()
            .partition(|parameter| parameter.kind.is_range() && !parameter.kind.is_pair());
        if lists.len() > ranges.len() {
            return None;
        }
        let lists: Vec<String> = lists.iter().map(|list| list.name.clone()).collect();
        let mut middle = self.space.default_configuration();
        for range in &ranges {
            middle.0.insert(range.name.clone(), range.middle());
        }
        let encoding = self.space.encoding();
        let point = encoding.encode(&self.space.snap(&middle));
        let columns = encoding.columns().iter();
        let columns = columns.filter(|column| !lists.contains(&column.name));
        let axes: Vec<usize> = columns.flat_map(Column::axes).collect();
        let of_ranges = |point: &[f64]| axes.iter().map(|axis| point[*axis]).collect();
        let in_the_middle: Vec<f64> = of_ranges(&point);
        let is_in_the_middle = |point: &Vec<f64>| -> bool {
            let point: Vec<f64> = of_ranges(point);
            same_point(&point, &in_the_middle)
        };
        let told = self.told.iter().map(|told| &told.point);
        if told.chain(&self.pending).any(is_in_the_middle) {
            return None;
        }
        let mut middle = encoding.decode(&point);
        if !lists.is_empty() {
            let drawn = self.draw(true)?;
            let mut drawn = self.space.encoding().decode(&drawn);
            for list in lists {
                middle.0.extend(drawn.0.remove_entry(&list));
            }
        }
        Some(self.space.encoding().encode(&middle))
    }

    /// The next point of the start's or the strategy's design. A strategy without a model repeats
    /// points that completed when there is no other left.
    fn draw(&mut self, start: bool) -> Option<Vec<f64>> {
        let design = if start {
            &mut self.start
        } else {
            &mut self.strategy
        };
        let (told, pending) = (&self.told, &self.pending);
        let space = &self.space;
        let starts = || {
            let known = told.iter().map(|told| &told.point).chain(pending).cloned();
            let starts = known.chain(inside(space));
            starts.filter(|point| space.allows(point)).collect()
        };
        let new = design.next(space, &mut self.rng, starts, |point| {
            is_taken(told, pending, point)
        });
        if new.is_some() || start {
            return new;
        }
        let crashed = told
            .iter()
            .filter(|told| matches!(told.observation.outcome, ObservedOutcome::Crashed));
        let lost: Vec<&Vec<f64>> = crashed.map(|told| &told.point).chain(pending).collect();
        design.next(space, &mut self.rng, starts, |point| {
            lost.iter().any(|other| same_point(other, point))
        })
    }

    /// The model of what has been told; fitted once for every state of knowledge.
    fn model(&mut self) -> Option<Arc<Model>> {
        if self.model.is_none() {
            let (encoding, seed) = (self.space.encoding(), self.settings.seed);
            let model = Model::fit(&self.told, &self.earlier, encoding, &self.memory, seed);
            self.model = model.map(Arc::new);
        }
        self.model.clone()
    }

    /// Takes in what came of a configuration; one that was never asked is welcome too.
    ///
    /// # Errors
    /// [`Error::Space`] for a configuration outside the space, [`Error::Unusable`],
    /// [`Error::Variance`], [`Error::Weight`] for numbers that cannot be.
    /// Nothing is taken in then.
    pub fn tell(&mut self, observation: Observation) -> Result<(), Error> {
        self.space.check(&observation.configuration)?;
        observation.validate()?;
        let point = self.space.encoding().encode(&observation.configuration);
        if let Some(position) = self
            .pending
            .iter()
            .position(|pending| same_point(pending, &point))
        {
            self.pending.remove(position);
        }
        self.told.push(EncodedObservation { observation, point });
        self.model = None;
        Ok(())
    }

    /// Counts a configuration as pending, as if it had just been asked: it is not proposed again
    /// until it is told. Beyond the start it counts as chosen by a model, as what was asked then.
    ///
    /// # Errors
    /// [`Error::Space`] for a configuration outside the space.
    pub fn hold(&mut self, configuration: &Configuration) -> Result<(), Error> {
        self.space.check(configuration)?;
        let point = self.space.encoding().encode(configuration);
        if is_among(&self.pending, &point) {
            return Ok(());
        }
        let start = start_length(&self.space, &self.settings).max(self.settings.initial.len());
        let has_model = matches!(self.settings.strategy, Strategy::Bayesian { .. });
        if has_model && self.told.len() + self.pending.len() >= start {
            self.chosen.push(point.clone());
        }
        self.pending.push(point);
        Ok(())
    }

    /// The best evaluated configuration by the model's mean, among those that are probably
    /// feasible; where none is, the one that is most probably feasible. One that a model chose
    /// takes the place of the best of all others where it is lower with three to one odds: it was
    /// chosen for being expected low. `None` until an evaluation completed.
    pub fn best(&mut self) -> Option<Recommendation> {
        let model = self.model()?;
        let index = model.recommended(|point| is_among(&self.chosen, point))?;
        let (mean, variance) = model.posteriors[index];
        Some(Recommendation {
            configuration: self.told[model.first[index]]
                .observation
                .configuration
                .clone(),
            mean: model.transform.inverse(mean),
            sd: model.transform.inverse_slope(mean) * variance.sqrt(),
            probability_feasible: model.feasible[index],
        })
    }

    /// How much each parameter matters, most important first; empty until an evaluation completed.
    pub fn importance(&mut self) -> Vec<Importance> {
        self.model()
            .map_or_else(Vec::new, |model| explain::importance(&model, &self.space))
    }

    /// The objective as it follows one parameter, the others averaged: value, mean, standard
    /// deviation, at about `points` values over the range (all, of a categorical parameter). Empty
    /// for an unknown name or before an evaluation completed. The mean is taken on the model's
    /// scale, so where ratios are modelled it is a geometric one.
    pub fn partial_dependence(&mut self, name: &str, points: usize) -> Vec<(Value, f64, f64)> {
        let Some(model) = self.model() else {
            return Vec::new();
        };
        let rows = explain::dependence(&model, &self.space, &[name], points).into_iter();
        rows.filter_map(|(values, mean, sd)| Some((values.into_iter().next()?, mean, sd)))
            .collect()
    }

    /// The same for two parameters: every combination of about `points` values of each.
    pub fn partial_dependence_pair(
        &mut self,
        names: [&str; 2],
        points: usize,
    ) -> Vec<([Value; 2], f64, f64)> {
        let Some(model) = self.model() else {
            return Vec::new();
        };
        let rows = explain::dependence(&model, &self.space, &names, points).into_iter();
        rows.filter_map(|(values, mean, sd)| Some((values.try_into().ok()?, mean, sd)))
            .collect()
    }

    /// The probability that a configuration survives and holds every constraint, for each
    /// combination that [`partial_dependence_pair`](Self::partial_dependence_pair) has, in its
    /// order.
    pub fn feasibility_pair(&mut self, names: [&str; 2], points: usize) -> Vec<f64> {
        let Some(model) = self.model() else {
            return Vec::new();
        };
        explain::feasibility(&model, &self.space, &names, points)
    }
}

/// Evaluations of a start by default. A choice of this crate: enough to see every parameter move,
/// never so many that a budget of 20 is spent on it.
const START: (usize, usize) = (4, 6);

/// Where no more than one in so many survives, the search stays beside those that did. A choice of
/// this crate (`docs/results/tuners-tried.md`).
const SURVIVORS_FEW: usize = 4;

/// The length of a start.
fn start_length(space: &Space, settings: &Settings) -> usize {
    let length = (space.parameters().len() + 1).clamp(START.0, START.1);
    settings.initial_random.unwrap_or(length)
}

fn is_taken(told: &[EncodedObservation], pending: &[Vec<f64>], point: &[f64]) -> bool {
    let is_told = told.iter().any(|told| same_point(&told.point, point));
    is_told || is_among(pending, point)
}
