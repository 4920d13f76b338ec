//! A process at one point or at many: the mean in every draw, the variance, and how both follow the
//! point.

use faer::MatRef;

use crate::gp::kernel::Kernel;
use crate::gp::{Gp, VARIANCE_MIN};
use crate::numeric::linalg::{add_scaled, dot, multiply};

/// Points that are evaluated at once: enough for matrix products, few enough for a processor's
/// cache.
const BATCH: usize = 128;

/// A linear mean and a quadratic variance in `k(x, points)`, for one draw or several.
#[derive(Clone, Debug)]
pub(super) struct Conditional {
    pub(super) kernel: Kernel,
    pub(super) points: Vec<f64>,
    pub(super) features: Vec<f64>,
    pub(super) mean: f64,
    /// Row j: what the covariance with point j adds to the mean of each draw.
    pub(super) weights: Vec<f64>,
    pub(super) draws: usize,
    pub(super) quadratic: Vec<f64>,
}

/// What an evaluation leaves to its gradient, and room for both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    row: Vec<f64>,
    slopes: Vec<f64>,
    /// `quadratic · row`.
    product: Vec<f64>,
    pub(super) means: Vec<f64>,
    pub(super) logs: Vec<(f64, f64, f64)>,
    /// What each part says, then how the result follows it.
    pub(super) of_parts: Vec<f64>,
    /// The gradient of what each part says, one after the other.
    pub(super) gradients: Vec<f64>,
}

impl Conditional {
    pub(super) fn of(gp: &Gp) -> Self {
        Conditional {
            kernel: gp.kernel.clone(),
            points: gp.points.clone(),
            features: gp.features.clone(),
            mean: gp.mean,
            weights: gp.alpha.clone(),
            draws: 1,
            quadratic: gp.inverse.clone(),
        }
    }

    /// Fills `scratch.means` and returns the variance.
    pub(super) fn evaluate(&self, x: &[f64], scratch: &mut Scratch) -> f64 {
        (scratch.row, scratch.slopes) = self.kernel.row(x, &self.points, &self.features);
        scratch.means.clear();
        scratch
            .means
            .resize(self.draws, self.mean + self.kernel.expected(x));
        for (covariance, weights) in scratch
            .row
            .iter()
            .zip(self.weights.chunks_exact(self.draws))
        {
            add_scaled(&mut scratch.means, *covariance, weights);
        }
        scratch.product = multiply(&self.quadratic, &scratch.row);
        let explained = dot(&scratch.row, &scratch.product);
        (self.kernel.variance(x) - explained).max(VARIANCE_MIN)
    }

    /// Calls `take` with the number of each point, its mean in every draw and its variance.
    pub(super) fn evaluate_all(
        &self,
        points: &[Vec<f64>],
        mut take: impl FnMut(usize, &[f64], f64),
    ) {
        let n = self.points.len() / self.kernel.dimension().max(1);
        let mut rows = self.kernel.rows(&self.points, &self.features);
        let quadratic = MatRef::from_row_major_slice(&self.quadratic, n, n);
        let weights = MatRef::from_column_major_slice(&self.weights, self.draws, n);
        let mut covariances = Vec::with_capacity(BATCH * n);
        let mut means = vec![0.0; self.draws];
        for (batch, first) in points.chunks(BATCH).zip((0..).step_by(BATCH)) {
            covariances.clear();
            for point in batch {
                rows.append(point, &mut covariances);
            }
            // A point a column.
            let columns = MatRef::from_column_major_slice(&covariances, n, batch.len());
            let (products, shifts) = (quadratic * columns, weights * columns);
            for (i, point) in batch.iter().enumerate() {
                let row = &covariances[i * n..(i + 1) * n];
                let explained = dot(row, products.col_as_slice(i));
                let prior = self.mean + self.kernel.expected(point);
                for (mean, shift) in means.iter_mut().zip(shifts.col_as_slice(i)) {
                    *mean = prior + shift;
                }
                let variance = (self.kernel.variance(point) - explained).max(VARIANCE_MIN);
                take(first + i, &means, variance);
            }
        }
    }

    /// Adds the gradient of a function of means and deviation, given its derivatives by each.
    pub(super) fn pull_back(
        &self,
        x: &[f64],
        by_means: &[f64],
        by_deviation: f64,
        variance: f64,
        scratch: &Scratch,
        gradient: &mut [f64],
    ) {
        // The variance is cut off at its least value: no slope there.
        let by_variance = if variance > VARIANCE_MIN {
            by_deviation / (2.0 * variance.sqrt())
        } else {
            0.0
        };
        let mut factors = multiply(&self.weights, by_means);
        add_scaled(&mut factors, -2.0 * by_variance, &scratch.product);
        let (points, features, slopes) = (&self.points, &self.features, &scratch.slopes);
        self.kernel
            .gradient(x, points, features, slopes, &factors, gradient);
        self.kernel.variance_gradient(x, by_variance, gradient);
        self.kernel
            .expected_gradient(x, by_means.iter().sum(), gradient);
    }
}
