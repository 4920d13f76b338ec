//! What the surrogate model says of an experiment, kept until there is more to know.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bayes_opt::{Optimizer, Value};
use coordinator::{Coordinator, Error};
use schemars::JsonSchema;
use serde::Serialize;
use tuner::report::EvaluationRecord;

use crate::lock::lock;

/// A model is fitted to so many evaluations at the most: fitting grows with the third power of
/// their number, and these are fitted in seconds.
const EVALUATIONS_MAX: usize = 200;

/// Values of a parameter at which a curve is drawn.
const CURVE_POINTS: usize = 33;

/// Values of each of two parameters.
const MAP_POINTS: usize = 17;

/// Experiments whose model is kept.
const KEPT_MAX: usize = 8;

/// The importance and the trend of every parameter, from the model.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Explanation {
    /// Number of evaluations that the model knows.
    used: usize,
    /// Number of evaluations that have a measurement or crashed.
    of: usize,
    /// The importance of each parameter. Empty until something has been measured.
    importance: Vec<Share>,
    /// The trend over each parameter. Empty until something has been measured.
    dependence: Vec<Curve>,
}

/// The importance of a parameter: its share of the model's variance, with a 95 % interval.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Importance")]
struct Share {
    /// Name of the parameter.
    parameter: String,
    /// The share, from 0 to 1.
    share: f64,
    /// The lower end of the interval.
    low: f64,
    /// The upper end of the interval.
    high: f64,
}

/// The score over one parameter. The model averages over the other parameters.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Dependence")]
struct Curve {
    /// Name of the parameter.
    parameter: String,
    /// Values of the parameter.
    value: Vec<Value>,
    /// The posterior mean of the score at each value.
    mean: Vec<f64>,
    /// The posterior standard deviation of the score at each value.
    sd: Vec<f64>,
}

/// The score over two parameters. The lists are empty until something has been measured.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PairDependence")]
pub(crate) struct Pair {
    /// Values of the first parameter.
    pub(crate) x: Vec<Value>,
    /// Values of the second parameter.
    pub(crate) y: Vec<Value>,
    /// The posterior mean of the score: a row for each value of `x`, in it a number for each value
    /// of `y`.
    mean: Vec<Vec<f64>>,
    /// The posterior standard deviation of the score, in the same order.
    sd: Vec<Vec<f64>>,
    /// The probability that the service survives and that every constraint is held, in the same
    /// order.
    feasible: Vec<Vec<f64>>,
}

/// An experiment's model and how much it knows.
struct Fitted {
    evaluations: usize,
    /// Nothing was measured yet: the model knows the control at the most, and says nothing.
    is_empty: bool,
    optimizer: Optimizer,
    explanation: Option<Arc<Explanation>>,
    of: usize,
}

/// The models of the experiments looked at last.
#[derive(Default)]
pub(crate) struct Models(Mutex<BTreeMap<i64, Fitted>>);

/// The evaluations that a model is fitted to: all, or an even choice over their scores, so that the
/// best are among them.
fn choice(mut known: Vec<EvaluationRecord>) -> Vec<EvaluationRecord> {
    if known.len() <= EVALUATIONS_MAX {
        return known;
    }
    let score = |record: &EvaluationRecord| {
        let measurement = record.measurement.as_ref();
        measurement.map_or(f64::INFINITY, |measurement| measurement.score)
    };
    known.sort_by(|a, b| score(a).total_cmp(&score(b)));
    let last = known.len() - 1;
    (0..EVALUATIONS_MAX)
        .map(|index| known[index * last / (EVALUATIONS_MAX - 1)].clone())
        .collect()
}

impl Models {
    /// One at a time: fitting takes a core, which a measurement may need.
    fn with<T>(
        &self,
        coordinator: &Coordinator,
        id: i64,
        work: impl FnOnce(&mut Fitted) -> T,
    ) -> Result<T, Error> {
        let store = coordinator.store();
        let row = store.experiment(id)?;
        let mut models = lock(&self.0);
        // Counting them costs little beside reading them.
        let ended = store.tally(id)?.ended;
        let is_fresh = models
            .get(&id)
            .is_some_and(|fitted| fitted.evaluations == ended);
        if !is_fresh {
            let rows = store.evaluations(id, 1)?.into_iter();
            let records = rows.filter(|row| !row.is_running).map(|row| row.record);
            let taught = records.filter(|record| {
                record.measurement.is_some()
                    || record.outcome == tuner::evaluation::Outcome::Crashed
            });
            let known: Vec<EvaluationRecord> = taught.collect();
            let of = known.len();
            let is_empty = known.iter().all(|record| record.measurement.is_none());
            let optimizer = coordinator.surrogate(&row, &choice(known))?;
            while models.len() >= KEPT_MAX {
                models.pop_first();
            }
            models.insert(
                id,
                Fitted {
                    evaluations: ended,
                    is_empty,
                    optimizer,
                    explanation: None,
                    of,
                },
            );
        }
        let fitted = models.get_mut(&id);
        let fitted = fitted.ok_or_else(|| Error::NotFound(format!("model of experiment {id}")))?;
        Ok(work(fitted))
    }

    pub(crate) fn explain(
        &self,
        coordinator: &Coordinator,
        id: i64,
    ) -> Result<Arc<Explanation>, Error> {
        self.with(coordinator, id, |fitted| {
            if let Some(explanation) = &fitted.explanation {
                return Arc::clone(explanation);
            }
            let optimizer = &mut fitted.optimizer;
            let of_space = optimizer
                .space()
                .parameters()
                .iter()
                .map(|parameter| parameter.name.clone());
            let names: Vec<String> = of_space.filter(|_| !fitted.is_empty).collect();
            let importance = optimizer.importance().into_iter();
            let explanation = Arc::new(Explanation {
                used: fitted.of.min(EVALUATIONS_MAX),
                of: fitted.of,
                importance: importance
                    .filter(|importance| names.contains(&importance.parameter))
                    .map(|importance| Share {
                        parameter: importance.parameter,
                        share: importance.share,
                        low: importance.low,
                        high: importance.high,
                    })
                    .collect(),
                dependence: names
                    .iter()
                    .map(|name| {
                        let mut curve = Curve {
                            parameter: name.clone(),
                            value: Vec::new(),
                            mean: Vec::new(),
                            sd: Vec::new(),
                        };
                        for (value, mean, sd) in optimizer.partial_dependence(name, CURVE_POINTS) {
                            curve.value.push(value);
                            curve.mean.push(mean);
                            curve.sd.push(sd);
                        }
                        curve
                    })
                    .collect(),
            });
            fitted.explanation = Some(Arc::clone(&explanation));
            explanation
        })
    }

    /// The model over two different parameters of the experiment.
    pub(crate) fn pair(
        &self,
        coordinator: &Coordinator,
        id: i64,
        x: &str,
        y: &str,
    ) -> Result<Pair, Error> {
        self.with(coordinator, id, |fitted| {
            let mut pair = Pair {
                x: Vec::new(),
                y: Vec::new(),
                mean: Vec::new(),
                sd: Vec::new(),
                feasible: Vec::new(),
            };
            if fitted.is_empty {
                return pair;
            }
            let optimizer = &mut fitted.optimizer;
            let feasible = optimizer.feasibility_pair([x, y], MAP_POINTS);
            let rows = optimizer.partial_dependence_pair([x, y], MAP_POINTS);
            for (([x, y], mean, sd), feasible) in rows.into_iter().zip(feasible) {
                if pair.x.last() != Some(&x) {
                    pair.x.push(x);
                    pair.mean.push(Vec::new());
                    pair.sd.push(Vec::new());
                    pair.feasible.push(Vec::new());
                }
                if pair.x.len() == 1 {
                    pair.y.push(y);
                }
                if let (Some(means), Some(sds)) = (pair.mean.last_mut(), pair.sd.last_mut()) {
                    means.push(mean);
                    sds.push(sd);
                }
                if let Some(row) = pair.feasible.last_mut() {
                    row.push(feasible);
                }
            }
            pair
        })
    }
}
