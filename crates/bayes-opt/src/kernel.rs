//! The Matérn-5/2 kernel with one length scale per coordinate, where categorical coordinates differ or do not, and beside
//! it, where wanted, a linear trend over those that are counted or ordered, and a bowl over real numbers.

use crate::bowl::Bowl;
use crate::linalg::{add_scaled, distances, multiply, weighted_squares};

const SQRT5: f64 = 2.236_067_977_499_79;

/// What a coordinate stands for: it decides what is expected of the objective along it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coordinate {
    /// Levels, which are the same or not.
    Level,
    /// Places in an order: of a list's values, or of a range whose ratios matter.
    Place,
    /// Whole numbers of a range.
    Whole,
    /// Any numbers of a range.
    Real,
}

impl Coordinate {
    pub(crate) fn is_categorical(self) -> bool {
        self == Self::Level
    }

    /// Whether a trend may go along it. Knobs that are counted or ordered mostly help more the further they are turned; a
    /// function of real numbers has its best inside as often.
    pub(crate) fn has_trend(self) -> bool {
        matches!(self, Self::Place | Self::Whole)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// 1/ℓ² of each coordinate, 0 of those that are categorical.
    ordered: Vec<f64>,
    /// The categorical ones and their 1/ℓ².
    lists: Vec<(usize, f64)>,
    /// The prior variance of the Matérn part.
    pub(crate) scale: f64,
    /// What a trend along each coordinate adds to the prior variance, by squared distance from the middle; empty without one.
    trend: Vec<f64>,
    pub(crate) bowl: Bowl,
}

/// Trends are 0 there.
pub(crate) const MIDDLE: f64 = 0.5;
/// One over the variance of a coordinate over the cube.
pub(crate) const UNIFORM_PRECISION: f64 = 12.0;

impl Kernel {
    /// `trend` is the prior variance of the linear part, over the cube, of a space where one may go along every coordinate.
    pub(crate) fn new(
        coordinates: &[Coordinate],
        ln_lengths: &[f64],
        scale: f64,
        trend: f64,
    ) -> Self {
        let mut ordered: Vec<f64> = ln_lengths.iter().map(|ln| (-2.0 * ln).exp()).collect();
        let lists = (0..coordinates.len()).filter(|k| coordinates[*k].is_categorical());
        let lists = lists
            .map(|k| (k, std::mem::take(&mut ordered[k])))
            .collect();
        Kernel {
            ordered,
            lists,
            scale,
            trend: trends(coordinates, trend),
            bowl: Bowl::default(),
        }
    }

    pub(crate) fn dimension(&self) -> usize {
        self.ordered.len()
    }

    /// The covariance of the values at `a` and `b`.
    pub(crate) fn between(&self, a: &[f64], b: &[f64]) -> f64 {
        let bowl = Bowl::covariance(self.bowl.height(a), self.bowl.height(b));
        self.scale * matern(self.distance_square(a, b)).0 + linear(&self.trend, a, b) + bowl
    }

    /// The prior variance at `x`.
    pub(crate) fn variance(&self, x: &[f64]) -> f64 {
        let height = self.bowl.height(x);
        self.scale + linear(&self.trend, x, x) + Bowl::covariance(height, height)
    }

    /// Adds `factor` times the gradient of [`Kernel::variance`].
    pub(crate) fn variance_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        for ((gradient, trend), x) in gradient.iter_mut().zip(&self.trend).zip(x) {
            *gradient += factor * 2.0 * trend * (x - MIDDLE);
        }
        let by_height = Bowl::covariance(2.0 * self.bowl.height(x), factor);
        self.bowl.height_gradient(x, by_height, gradient);
    }

    /// The heights of points (rows) in the bowl; empty where that is flat.
    pub(crate) fn heights(&self, points: &[f64]) -> Vec<f64> {
        if self.bowl.is_flat() {
            return Vec::new();
        }
        let points = points.chunks_exact(self.dimension());
        points.map(|point| self.bowl.height(point)).collect()
    }

    /// The covariance of `x` with each of `points` (rows) of these [`Kernel::heights`], and what [`Kernel::gradient`] needs to go on.
    pub(crate) fn row(&self, x: &[f64], points: &[f64], heights: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut covariances = distances(x, points, &self.ordered);
        let mut slopes = Vec::with_capacity(covariances.len());
        let each = points.chunks_exact(self.dimension());
        for (covariance, point) in covariances.iter_mut().zip(each) {
            let (value, slope) = matern(*covariance + self.list_distance_square(x, point));
            *covariance = self.scale * value;
            slopes.push(self.scale * slope);
        }
        if !self.trend.is_empty() {
            // As `linear` has it, with what belongs to `x` taken out of the sums.
            let trends = self.trend.iter().zip(x);
            let line: Vec<f64> = trends.map(|(trend, x)| trend * (x - MIDDLE)).collect();
            let shift = MIDDLE * line.iter().sum::<f64>();
            for (covariance, along) in covariances.iter_mut().zip(multiply(points, &line)) {
                *covariance = *covariance + along - shift;
            }
        }
        let height = self.bowl.height(x);
        for (covariance, other) in covariances.iter_mut().zip(heights) {
            *covariance += Bowl::covariance(height, *other);
        }
        (covariances, slopes)
    }

    /// The covariance matrix of `points` (rows) of these [`Kernel::heights`], and for each pair up to the diagonal, row by
    /// row, the slope that [`Kernel::by_lengths`] needs.
    pub(crate) fn matrix(&self, points: &[f64], heights: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let d = self.dimension();
        let n = points.len() / d.max(1);
        let mut matrix = vec![0.0; n * n];
        let mut all_slopes = Vec::with_capacity(n * (n + 1) / 2);
        for i in 0..n {
            let after = (i + 1) * d;
            let x = &points[i * d..after];
            let (row, slopes) = self.row(x, &points[..after], heights);
            for (j, covariance) in row.iter().enumerate() {
                matrix[i * n + j] = *covariance;
                matrix[j * n + i] = *covariance;
            }
            all_slopes.extend_from_slice(&slopes);
        }
        (matrix, all_slopes)
    }

    /// `Σ factor · slope · Δ²/ℓ²` along each coordinate, over the pairs of `points` in the order of [`Kernel::matrix`], with
    /// `factors` that have the slopes in them.
    pub(crate) fn by_lengths(&self, points: &[f64], factors: &[f64]) -> Vec<f64> {
        let d = self.dimension();
        let (mut squares, mut differing) = (vec![0.0; d], vec![0.0; self.lists.len()]);
        let mut factors = factors.iter();
        for (i, a) in points.chunks_exact(d).enumerate() {
            for (b, factor) in points[..(i + 1) * d].chunks_exact(d).zip(&mut factors) {
                for k in 0..d {
                    squares[k] += factor * (a[k] - b[k]) * (a[k] - b[k]);
                }
                for (differing, (k, _)) in differing.iter_mut().zip(&self.lists) {
                    *differing += factor * list_difference(a[*k], b[*k]);
                }
            }
        }
        let mut sums: Vec<f64> = squares
            .iter()
            .zip(&self.ordered)
            .map(|(a, b)| a * b)
            .collect();
        for (differing, (k, inverse_square)) in differing.iter().zip(&self.lists) {
            sums[*k] = differing * inverse_square;
        }
        sums
    }

    /// Adds `Σ factorⱼ · ∂k(x, pointⱼ)/∂x` to `gradient`, over the ordered coordinates; `slopes` as [`Kernel::row`] left
    /// them.
    pub(crate) fn gradient(
        &self,
        x: &[f64],
        points: &[f64],
        heights: &[f64],
        slopes: &[f64],
        factors: &[f64],
        gradient: &mut [f64],
    ) {
        // Σ weight · (x − point), with x taken out of the sum; so for trends.
        let (mut weights, mut points_sum) = (0.0, vec![0.0; x.len()]);
        let (mut factors_sum, mut places_sum) = (0.0, vec![0.0; self.trend.len()]);
        let points = points.chunks_exact(self.dimension());
        for ((point, slope), factor) in points.zip(slopes).zip(factors) {
            let weight = 2.0 * slope * factor;
            weights += weight;
            add_scaled(&mut points_sum, weight, point);
            factors_sum += factor;
            add_scaled(&mut places_sum, *factor, point);
        }
        for k in 0..x.len() {
            gradient[k] += (weights * x[k] - points_sum[k]) * self.ordered[k];
        }
        for (k, trend) in self.trend.iter().enumerate() {
            gradient[k] += trend * (places_sum[k] - MIDDLE * factors_sum);
        }
        let by_height: f64 = heights.iter().zip(factors).map(|(h, f)| h * f).sum();
        self.bowl
            .height_gradient(x, Bowl::covariance(by_height, 1.0), gradient);
    }

    fn distance_square(&self, a: &[f64], b: &[f64]) -> f64 {
        weighted_squares(a, b, &self.ordered) + self.list_distance_square(a, b)
    }

    /// The part of coordinates that are categorical.
    fn list_distance_square(&self, a: &[f64], b: &[f64]) -> f64 {
        let of_list =
            |(k, inverse_square): &(usize, f64)| list_difference(a[*k], b[*k]) * inverse_square;
        self.lists.iter().map(of_list).sum()
    }
}

/// The prior variance of a trend along each coordinate, as [`linear`] takes it; empty where there is none.
fn trends(coordinates: &[Coordinate], variance: f64) -> Vec<f64> {
    if variance == 0.0 || !coordinates.iter().any(|k| k.has_trend()) {
        return Vec::new();
    }
    let each = variance * UNIFORM_PRECISION / coordinates.len().max(1) as f64;
    let along = |coordinate: &Coordinate| if coordinate.has_trend() { each } else { 0.0 };
    coordinates.iter().map(along).collect()
}

/// The covariance of what trends make of the values at `a` and `b`.
fn linear(trends: &[f64], a: &[f64], b: &[f64]) -> f64 {
    let places = a.iter().zip(b);
    trends
        .iter()
        .zip(places)
        .map(|(trend, (a, b))| trend * (a - MIDDLE) * (b - MIDDLE))
        .sum()
}

/// The squared difference of two levels: whether they differ.
fn list_difference(a: f64, b: f64) -> f64 {
    f64::from(u8::from(a != b))
}

/// Matérn-5/2 of a squared scaled distance, and its derivative by that (Rasmussen & Williams 2006, equation 4.17).
fn matern(distance_square: f64) -> (f64, f64) {
    let t = SQRT5 * distance_square.sqrt();
    let decay = (-t).exp();
    (
        (1.0 + t + t * t / 3.0) * decay,
        -5.0 / 6.0 * (1.0 + t) * decay,
    )
}
