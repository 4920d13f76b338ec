//! What a process is fitted to: what was measured now, and in earlier experiments that are
//! believed.

use crate::gp::hyper::Hyper;
use crate::gp::kernel::Kernel;

/// The prior variance of the constant in which an earlier experiment differs: much. A choice of
/// this crate.
pub(crate) const OFFSET: f64 = 4.0;
/// Where the prior variance is about 1, a measurement of more noise says nothing any more. A choice
/// of this crate.
pub(crate) const NOISE_MAX: f64 = 1e9;

/// What a process is fitted to.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    /// Points, row by row.
    pub(crate) points: Vec<f64>,
    pub(crate) values: Vec<f64>,
    /// The known part of the noise.
    pub(crate) variances: Vec<f64>,
    pub(crate) weights: Vec<f64>,
    /// Mean and standard deviation of the prior of the constant mean.
    pub(crate) mean_prior: (f64, f64),
    /// How many of them are of each earlier experiment that [`Hyper::earlier`] has: the last ones,
    /// in that order.
    pub(crate) earlier: Vec<usize>,
}

impl Data {
    pub(crate) fn n(&self) -> usize {
        self.values.len()
    }

    /// None, of the same process.
    pub(crate) fn empty_like(&self) -> Data {
        Data {
            points: Vec::new(),
            values: Vec::new(),
            variances: Vec::new(),
            weights: Vec::new(),
            earlier: Vec::new(),
            ..*self
        }
    }

    /// So many of them, evenly spread.
    pub(crate) fn subsample(&self, count: usize) -> Data {
        let rows: Vec<usize> = (0..count).map(|i| i * self.n() / count).collect();
        let of = |all: &[f64]| rows.iter().map(|row| all[*row]).collect();
        let points: Vec<&[f64]> = self.points().collect();
        Data {
            points: rows.iter().flat_map(|row| points[*row]).copied().collect(),
            values: of(&self.values),
            variances: of(&self.variances),
            weights: of(&self.weights),
            earlier: Vec::new(),
            ..*self
        }
    }

    /// How many are of the present experiment: the first ones.
    pub(crate) fn current_len(&self) -> usize {
        self.n() - self.earlier.iter().sum::<usize>()
    }

    /// Of each value, how much the objective is like its experiment.
    pub(crate) fn task_correlation(&self, hyper: &Hyper) -> Vec<f64> {
        let mut task_correlation = vec![1.0; self.current_len()];
        for (count, (_, like)) in self.earlier.iter().zip(&hyper.earlier) {
            task_correlation.resize(task_correlation.len() + count, *like);
        }
        task_correlation
    }

    /// Makes covariances within the objective such as they are between experiments: less, by how
    /// much the objective is like each, and each earlier one has a constant of its own.
    pub(crate) fn apply_task_covariance(&self, hyper: &Hyper, matrix: &mut [f64]) {
        let (n, own) = (self.n(), self.current_len());
        if own == n {
            return;
        }
        let task_correlation = self.task_correlation(hyper);
        let mut first = own;
        for count in &self.earlier {
            for i in first..first + count {
                for j in 0..i {
                    if j < first {
                        matrix[i * n + j] *= task_correlation[i] * task_correlation[j];
                    } else {
                        matrix[i * n + j] += OFFSET;
                    }
                    matrix[j * n + i] = matrix[i * n + j];
                }
                matrix[i * n + i] += OFFSET;
            }
            first += count;
        }
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = &[f64]> {
        self.points
            .chunks_exact((self.points.len() / self.n().max(1)).max(1))
    }

    /// The values without the trends that are expected, and the mean of the prior of what is then
    /// constant: over the observations it is these and the constant that have the mean of
    /// [`Data::mean_prior`].
    pub(crate) fn residuals(&self, kernel: &Kernel) -> (Vec<f64>, f64) {
        let expected: Vec<f64> = self.points().map(|x| kernel.expected(x)).collect();
        let values = self.values.iter().zip(&expected);
        let values = values.map(|(value, expected)| value - expected).collect();
        let own = &expected[..self.current_len()];
        let average = own.iter().sum::<f64>() / own.len().max(1) as f64;
        (values, self.mean_prior.0 - average)
    }

    pub(crate) fn noise(&self, hyper: &Hyper) -> Vec<f64> {
        let fitted = hyper.ln_noise.exp();
        self.variances
            .iter()
            .zip(&self.weights)
            .map(|(variance, weight)| ((variance + fitted) / weight).min(NOISE_MAX))
            .collect()
    }

    /// With those of the earlier experiments that `hyper` believes.
    pub(crate) fn joined(&self, earlier: &[Data], hyper: &Hyper) -> Data {
        let mut joined = self.clone();
        for other in hyper.earlier.iter().map(|(index, _)| &earlier[*index]) {
            joined.points.extend(&other.points);
            joined.values.extend(&other.values);
            joined.variances.extend(&other.variances);
            joined.weights.extend(&other.weights);
            joined.earlier.push(other.values.len());
        }
        joined
    }
}
