//! Ask and tell: who is asked next, what has been told, what is recommended.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::design::Design;
use crate::encode::same_point;
use crate::error::Error;
use crate::observation::{Observation, Outcome, Recommendation};
use crate::settings::{Acquisition, Settings, Strategy};
use crate::space::Space;
use crate::value::Configuration;

/// Proposes configurations and learns from what is told about them.
#[derive(Clone, Debug)]
pub struct Optimizer {
    space: Space,
    settings: Settings,
    rng: ChaCha8Rng,
    start: Design,
    strategy: Design,
    initial_asked: usize,
    told: Vec<Told>,
    pending: Vec<Vec<f64>>,
}

/// An observation with its place in the cube.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) observation: Observation,
    pub(crate) point: Vec<f64>,
}

impl Optimizer {
    /// An optimiser that has been told nothing yet.
    ///
    /// # Errors
    /// [`Error::Initial`] when an initial configuration is not inside the space, [`Error::Beta`] for a `beta` that
    /// makes no sense.
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
            told: Vec::new(),
            pending: Vec::new(),
            space,
            settings,
        })
    }

    /// The space that is searched.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The next `count` configurations to evaluate. They count as pending until they are told.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when every configuration crashed or is pending.
    pub fn ask(&mut self, count: usize) -> Result<Vec<Configuration>, Error> {
        (0..count).map(|_| self.ask_one()).collect()
    }

    fn ask_one(&mut self) -> Result<Configuration, Error> {
        let configuration = match self.settings.initial.get(self.initial_asked) {
            Some(initial) => {
                self.initial_asked += 1;
                initial.clone()
            }
            None => {
                let point = self.choose()?;
                self.space.encoding().decode(&point)
            }
        };
        self.pending
            .push(self.space.encoding().encode(&configuration));
        Ok(configuration)
    }

    fn choose(&mut self) -> Result<Vec<f64>, Error> {
        let bayesian = matches!(self.settings.strategy, Strategy::Bayesian { .. });
        let design = if bayesian {
            &mut self.start
        } else {
            &mut self.strategy
        };
        let (told, pending) = (&self.told, &self.pending);
        let taken = |point: &[f64]| {
            told.iter()
                .map(|told| &told.point)
                .chain(pending)
                .any(|other| same_point(other, point))
        };
        design
            .next(&self.space, &mut self.rng, true, taken)
            .ok_or(Error::Exhausted)
    }

    /// Takes in what came of a configuration; one that was never asked is welcome too.
    ///
    /// # Errors
    /// [`Error::Space`] for a configuration outside the space, [`Error::NotFinite`], [`Error::Variance`],
    /// [`Error::NotPositive`], [`Error::Weight`] for numbers that cannot be. Nothing is taken in then.
    pub fn tell(&mut self, observation: Observation) -> Result<(), Error> {
        self.space.check(&observation.configuration)?;
        observation.validate(self.settings.log_objective)?;
        let point = self.space.encoding().encode(&observation.configuration);
        if let Some(position) = self
            .pending
            .iter()
            .position(|pending| same_point(pending, &point))
        {
            self.pending.remove(position);
        }
        self.told.push(Told { observation, point });
        Ok(())
    }

    /// Forgets a pending configuration whose evaluation failed for reasons of its own; `false` if it was not pending.
    pub fn forget(&mut self, configuration: &Configuration) -> bool {
        let point = self.space.encoding().encode(configuration);
        let position = self
            .pending
            .iter()
            .position(|pending| same_point(pending, &point));
        position
            .map(|position| self.pending.remove(position))
            .is_some()
    }

    /// The best evaluated configuration by the model's mean, among those that are probably feasible; where none is, the
    /// one that is most probably feasible. `None` until an evaluation completed.
    pub fn best(&mut self) -> Option<Recommendation> {
        let completed = self
            .told
            .iter()
            .filter_map(|told| match &told.observation.outcome {
                Outcome::Completed { objective, .. } => Some((told, *objective)),
                Outcome::Crashed => None,
            });
        let (told, objective) = completed.min_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
        Some(Recommendation {
            configuration: told.observation.configuration.clone(),
            mean: objective.value,
            sd: objective.variance.unwrap_or(0.0).sqrt(),
            probability_feasible: 1.0,
        })
    }
}
