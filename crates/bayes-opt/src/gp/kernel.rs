//! The Matérn-5/2 kernel with one length scale per coordinate, where categorical coordinates differ
//! or do not, and beside it, where wanted, half a wave along those that are counted or ordered, and
//! what coordinates have in common.

use std::f64::consts::PI;

use crate::gp::trend::Trend;
use crate::numeric::linalg::{
    Columns, LANES, add_scaled, by_pair, distances, dot, in_place, multiply, over_pairs,
    weighted_squares,
};
use crate::space::coordinate::Coordinate;

const SQRT5: f64 = 2.236_067_977_499_79;

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// 1/ℓ² of each coordinate, 0 of every [`Coordinate::Categorical`].
    ordered: Vec<f64>,
    /// Every [`Coordinate::Categorical`] and its 1/ℓ².
    lists: Vec<(usize, f64)>,
    /// The prior variance of the Matérn part.
    pub(crate) scale: f64,
    /// The coordinates that half a wave goes along, and its deviation.
    half_cosines: Vec<(usize, f64)>,
    pub(crate) trends: Vec<Trend>,
}

impl Kernel {
    /// `wave` is the prior variance of all half waves together, in a space where one goes along
    /// every coordinate.
    pub(crate) fn new(
        coordinates: &[Coordinate],
        ln_lengths: &[f64],
        scale: f64,
        half_cosine: f64,
    ) -> Self {
        let mut ordered: Vec<f64> = ln_lengths.iter().map(|ln| (-2.0 * ln).exp()).collect();
        let lists = (0..coordinates.len()).filter(|k| coordinates[*k] == Coordinate::Categorical);
        let lists = lists
            .map(|k| (k, std::mem::take(&mut ordered[k])))
            .collect();
        Kernel {
            ordered,
            lists,
            scale,
            half_cosines: half_cosines(coordinates, half_cosine),
            trends: Vec::new(),
        }
    }

    pub(crate) fn dimension(&self) -> usize {
        self.ordered.len()
    }

    /// The covariance of the values at `a` and `b`.
    pub(crate) fn between(&self, a: &[f64], b: &[f64]) -> f64 {
        let beside = dot(&self.features_of(a), &self.features_of(b));
        self.scale * matern(self.distance_square(a, b)).0 + beside
    }

    /// The prior variance at `x`.
    pub(crate) fn variance(&self, x: &[f64]) -> f64 {
        let half_cosines: f64 = self
            .half_cosines
            .iter()
            .map(|(_, deviation)| deviation.powi(2))
            .sum();
        let trends = self.trends.iter().map(|trend| trend.feature(x).powi(2));
        self.scale + half_cosines + trends.sum::<f64>()
    }

    /// Adds `factor` times the gradient of [`Kernel::variance`]: of the trends', as that of waves
    /// is the same everywhere.
    pub(crate) fn variance_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        for trend in &self.trends {
            trend.variance_gradient(x, factor, gradient);
        }
    }

    /// What is expected at `x` of the trends.
    pub(crate) fn expected(&self, x: &[f64]) -> f64 {
        self.trends.iter().map(|trend| trend.mean(x)).sum()
    }

    /// Adds `factor` times the gradient of [`Kernel::expected`].
    pub(crate) fn expected_gradient(&self, x: &[f64], factor: f64, gradient: &mut [f64]) {
        for trend in &self.trends {
            trend.mean_gradient(x, factor, gradient);
        }
    }

    /// What half waves and trends are at `x`: the products of two points' features, summed, are the
    /// covariance that they add. `cos(π(a − b)) = sin πa sin πb + cos πa cos πb`.
    fn features_of(&self, x: &[f64]) -> Vec<f64> {
        let mut features = Vec::with_capacity(2 * self.half_cosines.len() + self.trends.len());
        for (k, deviation) in &self.half_cosines {
            let (sine, cosine) = (PI * x[*k]).sin_cos();
            features.extend([deviation * sine, deviation * cosine]);
        }
        features.extend(self.trends.iter().map(|trend| trend.feature(x)));
        features
    }

    /// Those of points (rows), row by row.
    pub(crate) fn features(&self, points: &[f64]) -> Vec<f64> {
        let points = points.chunks_exact(self.dimension().max(1));
        points.flat_map(|point| self.features_of(point)).collect()
    }

    /// The covariance of `x` with each of `points` (rows) of these [`Kernel::features`], and what
    /// [`Kernel::gradient`] needs to go on.
    pub(crate) fn row(&self, x: &[f64], points: &[f64], features: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut covariances, slopes) = self.matern_row(x, points);
        if !features.is_empty() {
            let beside = multiply(features, &self.features_of(x));
            add_scaled(&mut covariances, 1.0, &beside);
        }
        (covariances, slopes)
    }

    /// The Matérn part of that.
    fn matern_row(&self, x: &[f64], points: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut covariances = distances(x, points, &self.ordered);
        if !self.lists.is_empty() {
            let each = points.chunks_exact(self.dimension());
            for (distance, point) in covariances.iter_mut().zip(each) {
                *distance += self.list_distance_square(x, point);
            }
        }
        self.matern(covariances)
    }

    /// The Matérn part at these squared distances, and its slopes.
    fn matern(&self, mut distances: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
        let scale = self.scale;
        let slopes = in_place(&mut distances, |distance_square| {
            let (value, slope) = matern(distance_square);
            (scale * value, scale * slope)
        });
        (distances, slopes)
    }

    /// The squared distances of `x` and a block of points.
    #[inline(always)]
    fn distances_to(&self, x: &[f64], points: &Columns, block: usize) -> [f64; LANES] {
        let mut sums = points.weighted_squares(block, x, &self.ordered);
        let mut differing = [0.0; LANES];
        for (k, weight) in &self.lists {
            let others = points.block(*k, block);
            for lane in 0..LANES {
                differing[lane] += list_difference(x[*k], others[lane]) * weight;
            }
        }
        for lane in 0..LANES {
            sums[lane] += differing[lane];
        }
        sums
    }

    /// The covariance matrix of `points` (rows), between which half waves are as
    /// [`half_cosines_between`] has them. For each pair up to the diagonal, row by row,
    /// `all_slopes` gets the slope that [`Kernel::by_lengths`] needs.
    pub(crate) fn matrix(
        &self,
        points: &[f64],
        half_cosines: &[f64],
        mut all_slopes: Option<&mut Vec<f64>>,
    ) -> Vec<f64> {
        let d = self.dimension().max(1);
        let n = points.len() / d;
        let of_points = |trend: &Trend| points.chunks_exact(d).map(|x| trend.feature(x)).collect();
        let trends: Vec<Vec<f64>> = self.trends.iter().map(of_points).collect();
        let columns = Columns::of(points, d);
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            let x = &points[i * d..(i + 1) * d];
            let (mut row, slopes) = self.matern(pulp::Arch::new().dispatch(Distances {
                kernel: self,
                points: &columns,
                x,
                count: i + 1,
            }));
            for features in &trends {
                add_scaled(&mut row, features[i], &features[..=i]);
            }
            if !half_cosines.is_empty() {
                add_scaled(&mut row, 1.0, &half_cosines[i * (i + 1) / 2..][..=i]);
            }
            for (j, covariance) in row.iter().enumerate() {
                matrix[i * n + j] = *covariance;
                matrix[j * n + i] = *covariance;
            }
            if let Some(all) = all_slopes.as_deref_mut() {
                all.extend_from_slice(&slopes);
            }
        }
        matrix
    }

    /// `Σ factor · slope · Δ²/ℓ²` along each coordinate, over the pairs of `points` in the order of
    /// [`Kernel::matrix`], with `factors` that have the slopes in them.
    pub(crate) fn by_lengths(&self, points: &[f64], factors: &[f64]) -> Vec<f64> {
        let ordered = self.ordered.iter().copied().enumerate();
        let ordered: Vec<(usize, f64)> = ordered.filter(|(_, weight)| *weight > 0.0).collect();
        let squares = |factor: f64, a: f64, b: f64| factor * (a - b) * (a - b);
        let differing = |factor: f64, a: f64, b: f64| factor * list_difference(a, b);
        let mut sums = vec![0.0; self.dimension()];
        over_pairs(points, &ordered, factors, squares, &mut sums);
        over_pairs(points, &self.lists, factors, differing, &mut sums);
        sums
    }

    /// Adds `Σ factorⱼ · ∂k(x, pointⱼ)/∂x` to `gradient`, over all coordinates but those with
    /// levels; `slopes` as [`Kernel::row`] left them.
    pub(crate) fn gradient(
        &self,
        x: &[f64],
        points: &[f64],
        features: &[f64],
        slopes: &[f64],
        factors: &[f64],
        gradient: &mut [f64],
    ) {
        // Σ weight · (x − point), with x taken out of the sum.
        let (mut weights, mut points_sum) = (0.0, vec![0.0; x.len()]);
        let each = points.chunks_exact(self.dimension());
        for ((point, slope), factor) in each.zip(slopes).zip(factors) {
            let weight = 2.0 * slope * factor;
            weights += weight;
            add_scaled(&mut points_sum, weight, point);
        }
        for k in 0..x.len() {
            gradient[k] += (weights * x[k] - points_sum[k]) * self.ordered[k];
        }
        if features.is_empty() {
            return;
        }
        let width = features.len() / factors.len();
        let mut by_features = vec![0.0; width];
        for (features, factor) in features.chunks_exact(width).zip(factors) {
            add_scaled(&mut by_features, *factor, features);
        }
        for ((k, deviation), by) in self.half_cosines.iter().zip(by_features.chunks_exact(2)) {
            let (sine, cosine) = (PI * x[*k]).sin_cos();
            gradient[*k] += deviation * PI * (by[0] * cosine - by[1] * sine);
        }
        for (trend, by) in self
            .trends
            .iter()
            .zip(&by_features[2 * self.half_cosines.len()..])
        {
            trend.feature_gradient(x, *by, gradient);
        }
    }

    /// For the covariances of many points with `points` (rows) of these [`Kernel::features`], as
    /// [`Kernel::row`] has them.
    pub(crate) fn rows<'a>(&'a self, points: &[f64], features: &[f64]) -> Rows<'a> {
        let n = points.len() / self.dimension().max(1);
        let mut coordinates: Vec<(bool, f64)> =
            self.ordered.iter().map(|weight| (false, *weight)).collect();
        for (k, weight) in &self.lists {
            coordinates[*k] = (true, *weight);
        }
        Rows {
            kernel: self,
            n,
            points: transposed(points, n),
            features: transposed(features, n),
            distances: vec![0.0; (coordinates.len() + 1) * n],
            half_cosines: vec![0.0; (self.half_cosines.len() + 1) * n],
            coordinates,
            last: Vec::new(),
        }
    }

    fn distance_square(&self, a: &[f64], b: &[f64]) -> f64 {
        weighted_squares(a, b, &self.ordered) + self.list_distance_square(a, b)
    }

    /// The part of coordinates with levels.
    fn list_distance_square(&self, a: &[f64], b: &[f64]) -> f64 {
        let of_list =
            |(k, inverse_square): &(usize, f64)| list_difference(a[*k], b[*k]) * inverse_square;
        self.lists.iter().map(of_list).sum()
    }
}

/// The covariances of one point after another with the same points. What a point has in common with
/// the one before it, from the first coordinate on, is not summed again: where a space is listed,
/// that is most of it.
pub(crate) struct Rows<'a> {
    kernel: &'a Kernel,
    n: usize,
    /// Coordinate by coordinate.
    points: Vec<f64>,
    /// Feature by feature.
    features: Vec<f64>,
    /// Whether it has levels, and its 1/ℓ².
    coordinates: Vec<(bool, f64)>,
    /// The point before; empty before the first.
    last: Vec<f64>,
    /// Squared distances over no coordinate, over the first one, the first two, …
    distances: Vec<f64>,
    /// What half waves add, likewise.
    half_cosines: Vec<f64>,
}

impl Rows<'_> {
    /// Adds the covariances of `x` with each of the points to `to`.
    pub(crate) fn append(&mut self, x: &[f64], to: &mut Vec<f64>) {
        pulp::Arch::new().dispatch(Append { rows: self, x, to });
    }

    #[inline(always)]
    fn append_with_simd(&mut self, x: &[f64], to: &mut Vec<f64>) {
        let (n, scale) = (self.n, self.kernel.scale);
        let same = self.last.iter().zip(x).take_while(|(a, b)| a == b).count();
        self.last.clear();
        self.last.extend_from_slice(x);
        for k in same..x.len() {
            let (before, after) = self.distances.split_at_mut((k + 1) * n);
            let sums = after.iter_mut().zip(&before[k * n..]);
            let sums = sums.zip(&self.points[k * n..][..n]);
            let (x, weight) = (x[k], self.coordinates[k].1);
            if self.coordinates[k].0 {
                for ((sum, before), point) in sums {
                    *sum = before + weight * list_difference(x, *point);
                }
            } else {
                for ((sum, before), point) in sums {
                    *sum = before + weight * (x - point) * (x - point);
                }
            }
        }
        for (half_cosine, (k, deviation)) in self.kernel.half_cosines.iter().enumerate() {
            if *k < same {
                continue;
            }
            let (sine, cosine) = (PI * x[*k]).sin_cos();
            let (sine, cosine) = (deviation * sine, deviation * cosine);
            let (before, after) = self.half_cosines.split_at_mut((half_cosine + 1) * n);
            let sums = after.iter_mut().zip(&before[half_cosine * n..]);
            let (sines, cosines) = self.features[2 * half_cosine * n..][..2 * n].split_at(n);
            for ((sum, before), (a, b)) in sums.zip(sines.iter().zip(cosines)) {
                *sum = before + sine * a + cosine * b;
            }
        }
        let first = to.len();
        let half_cosines = self.kernel.half_cosines.len();
        to.extend_from_slice(&self.half_cosines[half_cosines * n..]);
        let covariances = &mut to[first..];
        for (trend, features) in self
            .kernel
            .trends
            .iter()
            .zip(self.features[2 * half_cosines * n..].chunks_exact(n.max(1)))
        {
            add_scaled(covariances, trend.feature(x), features);
        }
        let distances = &self.distances[x.len() * n..];
        for (covariance, distance_square) in covariances.iter_mut().zip(distances) {
            *covariance += scale * matern(*distance_square).0;
        }
    }
}

struct Append<'r, 'k, 'a> {
    rows: &'r mut Rows<'k>,
    x: &'a [f64],
    to: &'a mut Vec<f64>,
}

impl pulp::WithSimd for Append<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        self.rows.append_with_simd(self.x, self.to);
    }
}

/// The squared distances of `x` and the first `count` of these points.
struct Distances<'a> {
    kernel: &'a Kernel,
    points: &'a Columns,
    x: &'a [f64],
    count: usize,
}

impl pulp::WithSimd for Distances<'_> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Vec<f64> {
        let mut distances = Vec::with_capacity(self.count.next_multiple_of(LANES));
        for block in 0..self.count.div_ceil(LANES) {
            distances.extend_from_slice(&self.kernel.distances_to(self.x, self.points, block));
        }
        distances.truncate(self.count);
        distances
    }
}

/// The columns of a matrix of `n` rows, one after the other.
fn transposed(rows: &[f64], n: usize) -> Vec<f64> {
    let width = rows.len() / n.max(1);
    let column = |k: usize| rows.iter().skip(k).step_by(width).copied();
    (0..width).flat_map(column).collect()
}

/// The coordinates that half a wave goes along, and its deviation.
fn half_cosines(coordinates: &[Coordinate], variance: f64) -> Vec<(usize, f64)> {
    if variance == 0.0 {
        return Vec::new();
    }
    let deviation = (variance / coordinates.len().max(1) as f64).sqrt();
    let along = (0..coordinates.len()).filter(|k| coordinates[*k].has_half_cosine());
    along.map(|k| (k, deviation)).collect()
}

/// What half waves of this variance add to the covariance of each pair of `points` (rows) up to the
/// diagonal, row by row: it is the same for any length scales. Empty without waves.
pub(crate) fn half_cosines_between(
    coordinates: &[Coordinate],
    variance: f64,
    points: &[f64],
) -> Vec<f64> {
    let half_cosines = Kernel::new(coordinates, &vec![0.0; coordinates.len()], 0.0, variance);
    let features = half_cosines.features(points);
    let width = 2 * half_cosines.half_cosines.len();
    if width == 0 {
        return Vec::new();
    }
    by_pair(&features, width, dot)
}

/// The squared difference of two levels: whether they differ.
#[inline(always)]
fn list_difference(a: f64, b: f64) -> f64 {
    f64::from(u8::from(a != b))
}

/// Matérn-5/2 of a squared scaled distance, and its derivative by that (Rasmussen & Williams 2006,
/// equation 4.17).
#[inline(always)]
fn matern(distance_square: f64) -> (f64, f64) {
    let t = SQRT5 * distance_square.sqrt();
    let decay = decay(t);
    (
        (1.0 + t + t * t / 3.0) * decay,
        -5.0 / 6.0 * (1.0 + t) * decay,
    )
}

/// Beyond this `exp(−t)` counts as if it were no further.
const DECAYED: f64 = 700.0;
/// Of the exponential: one over the factorials up to 13.
const TAYLOR: [f64; 14] = {
    let mut inverses = [1.0; 14];
    let mut k = 1;
    while k < 14 {
        inverses[k] = inverses[k - 1] / k as f64;
        k += 1;
    }
    inverses
};

/// `exp(−t)` of what is not negative, to the last digits. The standard library's takes one number
/// at a time, a fifth of the time of an `ask` in a listed space; the compiler makes vector
/// instructions of this one. `−t = k ln 2 + r` with a whole `k`, ln 2 in two parts (Cody & Waite
/// 1980, "Software manual for the elementary functions"), and a Taylor series of `r`, at most ½ ln
/// 2.
#[inline(always)]
fn decay(t: f64) -> f64 {
    /// Added to a small number, it leaves what is next to it and whole in the last bits.
    const ROUNDING: f64 = 1.5 / f64::EPSILON;
    /// The first 33 bits of ln 2, so that their products with whole numbers are exact, and the
    /// rest.
    const LN_2: (f64, f64) = (0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10);
    const ONE: u64 = 1.0_f64.to_bits();
    let x = -t.min(DECAYED);
    let shifted = x * std::f64::consts::LOG2_E + ROUNDING;
    let k = shifted - ROUNDING;
    let r = (x - k * LN_2.0) - k * LN_2.1;
    let series = TAYLOR.iter().rev().fold(0.0, |sum, c| sum * r + c);
    series * f64::from_bits((shifted.to_bits() << 52).wrapping_add(ONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gp::trend::Shared;
    use crate::sampling::design::sobol;

    #[test]
    fn decay_is_the_exponential() {
        for step in 0..70_000_u32 {
            let t = f64::from(step) / 100.0 + 1e-3 * f64::from(step % 7);
            let exact = (-t).exp();
            assert!((decay(t) / exact - 1.0).abs() < 1e-15, "{t}");
        }
        assert_eq!(decay(0.0), 1.0);
        assert!(decay(1e9) < 1e-300 && matern(1e12).0 < 1e-280);
        assert!(matern(f64::NAN).0.is_nan());
    }

    #[test]
    fn rows_of_points_one_after_another_are_rows() {
        use Coordinate::{Binary, Categorical, Continuous, Integer, Ordered};
        let coordinates = [
            Binary,
            Categorical,
            Integer,
            Binary,
            Ordered,
            Categorical,
            Continuous,
        ];
        let ln_lengths = [0.1, -0.3, 0.8, 0.0, -1.0, 1.2, -0.7];
        let mut kernel = Kernel::new(&coordinates, &ln_lengths, 1.3, 0.5);
        let shared = Shared {
            quadratic: true,
            linear: true,
        };
        kernel.trends = shared.trends(&coordinates, &ln_lengths);
        let points: Vec<f64> = (0..9).flat_map(|i| sobol(i, 7, 3)).collect();
        let features = kernel.features(&points);
        let mut rows = kernel.rows(&points, &features);
        // Each differs from the one before it from another coordinate on, or not at all.
        let mut x = vec![0.0; 7];
        for (step, from) in [0, 6, 3, 3, 5, 1, 7, 0, 2].into_iter().enumerate() {
            x[from..].copy_from_slice(&points[step * 7 + from..][..7 - from]);
            let (expected, _) = kernel.row(&x, &points, &features);
            let mut appended = vec![-1.0];
            rows.append(&x, &mut appended);
            assert_eq!(appended.len(), 10);
            for (a, b) in appended[1..].iter().zip(&expected) {
                assert!((a - b).abs() < 1e-12, "{step} {appended:?} {expected:?}");
            }
        }
    }

    #[test]
    fn a_wave_is_as_uncertain_at_the_ends_as_inside() {
        let kernel = |half_cosine: f64| {
            Kernel::new(
                &[Coordinate::Ordered, Coordinate::Categorical],
                &[0.0; 2],
                1.0,
                half_cosine,
            )
        };
        let (with, without) = (kernel(0.5), kernel(0.0));
        let adds = |a: f64, b: f64| {
            with.between(&[a, 1.0], &[b, 1.0]) - without.between(&[a, 1.0], &[b, 1.0])
        };
        for x in [0.0, 0.3, 0.5, 1.0] {
            assert!((with.variance(&[x, 1.0]) - 1.25).abs() < 1e-12);
            assert!((adds(x, x) - 0.25).abs() < 1e-12);
        }
        // One end says the opposite of the other, and nothing of the middle.
        assert!((adds(0.0, 1.0) + 0.25).abs() < 1e-12);
        assert!(adds(0.0, 0.5).abs() < 1e-12);
    }
}
