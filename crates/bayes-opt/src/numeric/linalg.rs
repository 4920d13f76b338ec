//! Dense Cholesky factors of covariance matrices, by faer; products and distances row by row, by
//! pulp.
//!
//! A plain row-major `Vec<f64>` of n² numbers is the matrix everywhere.

use std::iter::StepBy;
use std::ops::Range;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{
    LltRegularization, cholesky_in_place, cholesky_in_place_scratch,
};
use faer::linalg::matmul::triangular::{BlockStructure, matmul};
use faer::linalg::triangular_inverse::invert_lower_triangular;
use faer::{Accum, MatMut, MatRef, Par, Spec};

/// The lower triangular factor of a positive definite matrix.
#[derive(Clone, Debug)]
pub(crate) struct Cholesky {
    n: usize,
    /// Its rows up to the diagonal, and beyond it its columns.
    factor: Vec<f64>,
}

/// Added to the diagonal, relative to its mean, when rounding makes a covariance matrix indefinite;
/// tenfold each time.
const JITTER_FIRST: f64 = 1e-10;
const JITTER_TRIES: i32 = 9;

impl Cholesky {
    /// Factors a symmetric `matrix`, in its place; `None` where it is not positive definite, or not
    /// finite.
    pub(crate) fn new(mut matrix: Vec<f64>, n: usize) -> Option<Self> {
        let (one_core, as_usual) = (Par::Seq, Spec::default());
        let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(n, one_core, as_usual));
        let columns = MatMut::from_column_major_slice_mut(&mut matrix, n, n);
        let (unchanged, stack) = (LltRegularization::default(), MemStack::new(&mut memory));
        cholesky_in_place(columns, unchanged, one_core, stack, as_usual).ok()?;
        transpose_lower(&mut matrix, n);
        let mut diagonal = matrix.iter().step_by(n + 1);
        let is_sound = diagonal.all(|value| *value > 0.0 && value.is_finite());
        is_sound.then_some(Cholesky { n, factor: matrix })
    }

    /// Factors `matrix`, adding to its diagonal what rounding needs. `None` for a matrix with NaN
    /// or infinity only.
    pub(crate) fn with_jitter(mut matrix: Vec<f64>, n: usize) -> Option<Self> {
        if let Some(factor) = Self::new(matrix.clone(), n) {
            return Some(factor);
        }
        let mean = (0..n).map(|i| matrix[i * n + i]).sum::<f64>() / n.max(1) as f64;
        let mut added = 0.0;
        for attempt in 0..JITTER_TRIES {
            let jitter = mean.abs().max(f64::MIN_POSITIVE) * JITTER_FIRST * 10_f64.powi(attempt);
            (0..n).for_each(|i| matrix[i * n + i] += jitter - added);
            added = jitter;
            if let Some(factor) = Self::new(matrix.clone(), n) {
                return Some(factor);
            }
        }
        None
    }

    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// The `i`-th row of the factor, up to the diagonal.
    pub(crate) fn row(&self, i: usize) -> &[f64] {
        &self.factor[i * self.n..i * self.n + i + 1]
    }

    pub(crate) fn log_determinant(&self) -> f64 {
        2.0 * (0..self.n)
            .map(|i| self.factor[i * self.n + i].ln())
            .sum::<f64>()
    }

    /// Solves `L x = b` in place.
    pub(crate) fn solve_lower(&self, b: &mut [f64]) {
        for i in 0..self.n {
            let row = self.row(i);
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
    }

    /// Solves `Lᵀ x = b` in place.
    pub(crate) fn solve_upper(&self, b: &mut [f64]) {
        for i in (0..self.n).rev() {
            let row = self.row(i);
            b[i] /= row[i];
            let x = b[i];
            b[..i].iter_mut().zip(row).for_each(|(b, l)| *b -= l * x);
        }
    }

    /// Solves `L Lᵀ x = b` in place.
    pub(crate) fn solve(&self, b: &mut [f64]) {
        self.solve_lower(b);
        self.solve_upper(b);
    }

    /// The inverse of the factored matrix, in its place.
    pub(crate) fn into_inverse(self) -> Vec<f64> {
        let (n, mut result) = (self.n, self.factor);
        let mut of_factor = vec![0.0; n * n];
        let columns = MatMut::from_column_major_slice_mut(&mut of_factor, n, n);
        let factor = MatRef::from_column_major_slice(&result, n, n);
        invert_lower_triangular(columns, factor, Par::Seq);
        let of_factor = MatRef::from_column_major_slice(&of_factor, n, n);
        matmul(
            MatMut::from_column_major_slice_mut(&mut result, n, n),
            BlockStructure::TriangularLower,
            Accum::Replace,
            of_factor.transpose(),
            BlockStructure::TriangularUpper,
            of_factor,
            BlockStructure::TriangularLower,
            1.0,
            Par::Seq,
        );
        transpose_lower(&mut result, n);
        result
    }
}

/// Puts the lower triangle of a matrix of columns into its upper one.
fn transpose_lower(columns: &mut [f64], n: usize) {
    for i in 1..n {
        for j in 0..i {
            columns[i * n + j] = columns[j * n + i];
        }
    }
}

/// What a function makes of each row of a matrix, with the widest vector registers that the
/// processor has.
struct ByRow<'a, F> {
    matrix: &'a [f64],
    columns: usize,
    function: F,
}

impl<F: Fn(&[f64]) -> f64> pulp::WithSimd for ByRow<'_, F> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> Vec<f64> {
        let mut results = vec![0.0; self.matrix.len() / self.columns];
        for (result, row) in results
            .iter_mut()
            .zip(self.matrix.chunks_exact(self.columns))
        {
            *result = (self.function)(row);
        }
        results
    }
}

fn by_row(matrix: &[f64], columns: usize, function: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let columns = columns.max(1);
    pulp::Arch::new().dispatch(ByRow {
        matrix,
        columns,
        function,
    })
}

/// What a function leaves of each number, and what else it makes of it.
struct InPlace<'a, F> {
    values: &'a mut [f64],
    others: &'a mut [f64],
    function: F,
}

impl<F: Fn(f64) -> (f64, f64)> pulp::WithSimd for InPlace<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) {
        for (value, other) in self.values.iter_mut().zip(self.others) {
            (*value, *other) = (self.function)(*value);
        }
    }
}

/// Puts the first of what `function` makes of each number in its place, and returns the second.
pub(crate) fn in_place(values: &mut [f64], function: impl Fn(f64) -> (f64, f64)) -> Vec<f64> {
    let mut others = vec![0.0; values.len()];
    pulp::Arch::new().dispatch(InPlace {
        values,
        others: &mut others,
        function,
    });
    others
}

/// A matrix times a vector.
pub(crate) fn multiply(matrix: &[f64], vector: &[f64]) -> Vec<f64> {
    by_row(matrix, vector.len(), |row| dot(row, vector))
}

/// [`weighted_squares`] of `x` and each of `points` (rows).
pub(crate) fn distances(x: &[f64], points: &[f64], weights: &[f64]) -> Vec<f64> {
    by_row(points, x.len(), |point| weighted_squares(x, point, weights))
}

/// What a function makes of each row of a matrix and of every row up to it: pair by pair up to the
/// diagonal.
pub(crate) fn by_pair(
    matrix: &[f64],
    columns: usize,
    function: impl Fn(&[f64], &[f64]) -> f64,
) -> Vec<f64> {
    let columns = columns.max(1);
    let n = matrix.len() / columns;
    let mut results = Vec::with_capacity(n * (n + 1) / 2);
    for (i, row) in matrix.chunks_exact(columns).enumerate() {
        let until = &matrix[..(i + 1) * columns];
        results.extend(by_row(until, columns, |other| function(other, row)));
    }
    results
}

/// The dot product, in eight running sums so that the compiler can use vector registers.
#[inline(always)]
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a_chunks
        .remainder()
        .iter()
        .zip(b_chunks.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for k in 0..8 {
            sums[k] += a[k] * b[k];
        }
    }
    tail + ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]))
}

/// `Σ weight · (a − b)²`, summed as [`dot`] does.
#[inline(always)]
pub(crate) fn weighted_squares(a: &[f64], b: &[f64], weights: &[f64]) -> f64 {
    let mut sums = [0.0; 4];
    let (mut a, mut b, mut weights) = (
        a.chunks_exact(4),
        b.chunks_exact(4),
        weights.chunks_exact(4),
    );
    for ((a, b), weights) in a.by_ref().zip(b.by_ref()).zip(weights.by_ref()) {
        for k in 0..4 {
            let difference = a[k] - b[k];
            sums[k] += weights[k] * difference * difference;
        }
    }
    let rest = a.remainder().iter().zip(b.remainder());
    let tail: f64 = rest
        .zip(weights.remainder())
        .map(|((a, b), weight)| weight * (a - b) * (a - b))
        .sum();
    tail + (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// How many points are summed over at once.
pub(crate) const LANES: usize = 16;

/// Points coordinate by coordinate, so that many are summed over at once.
pub(crate) struct Columns {
    /// Those of the first coordinate, those of the second, …; the last one of each is filled up.
    blocks: Vec<[f64; LANES]>,
    of_each: usize,
}

impl Columns {
    /// Of points (rows) of so many coordinates.
    pub(crate) fn of(points: &[f64], dimension: usize) -> Self {
        let of_each = (points.len() / dimension).div_ceil(LANES);
        let mut blocks = vec![[0.0; LANES]; dimension * of_each];
        for (i, point) in points.chunks_exact(dimension).enumerate() {
            for (k, value) in point.iter().enumerate() {
                blocks[k * of_each + i / LANES][i % LANES] = *value;
            }
        }
        Columns { blocks, of_each }
    }

    /// The `k`-th coordinate of a block of points.
    #[inline(always)]
    pub(crate) fn block(&self, k: usize, block: usize) -> &[f64; LANES] {
        &self.blocks[k * self.of_each + block]
    }

    /// [`weighted_squares`] of `x` and each point of a block, to the last digit.
    #[inline(always)]
    pub(crate) fn weighted_squares(
        &self,
        block: usize,
        x: &[f64],
        weights: &[f64],
    ) -> [f64; LANES] {
        let whole = x.len() - x.len() % 4;
        let a = self.running_squares(block, x, weights, (0..whole).step_by(4));
        let b = self.running_squares(block, x, weights, (1..whole).step_by(4));
        let c = self.running_squares(block, x, weights, (2..whole).step_by(4));
        let d = self.running_squares(block, x, weights, (3..whole).step_by(4));
        let mut sums = self.running_squares(block, x, weights, (whole..x.len()).step_by(1));
        for lane in 0..LANES {
            sums[lane] = sums[lane] + (a[lane] + c[lane]) + (b[lane] + d[lane]);
        }
        sums
    }

    #[inline(always)]
    fn running_squares(
        &self,
        block: usize,
        x: &[f64],
        weights: &[f64],
        coordinates: StepBy<Range<usize>>,
    ) -> [f64; LANES] {
        let mut sums = [0.0; LANES];
        for k in coordinates {
            let (x, weight, others) = (x[k], weights[k], self.block(k, block));
            for lane in 0..LANES {
                let difference = x - others[lane];
                sums[lane] += weight * difference * difference;
            }
        }
        sums
    }
}

/// How many coordinates are summed along at once.
const ALONG: usize = 8;

/// What a function makes of a factor and two numbers, summed over the pairs of `points` (rows) up
/// to the diagonal, row by row, along each of some coordinates, and times its weight: in its place
/// of `sums`, which has all coordinates.
pub(crate) fn over_pairs(
    points: &[f64],
    along: &[(usize, f64)],
    factors: &[f64],
    function: impl Fn(f64, f64, f64) -> f64,
    sums: &mut [f64],
) {
    for along in along.chunks(ALONG) {
        let few = |point: &[f64]| {
            let mut few = [0.0; ALONG];
            few.iter_mut()
                .zip(along)
                .for_each(|(few, (k, _))| *few = point[*k]);
            few
        };
        let points: Vec<[f64; ALONG]> = points.chunks_exact(sums.len()).map(few).collect();
        let summed = pulp::Arch::new().dispatch(OverPairs {
            points: &points,
            factors,
            function: &function,
        });
        for ((k, weight), sum) in along.iter().zip(summed) {
            sums[*k] = sum * weight;
        }
    }
}

struct OverPairs<'a, F> {
    points: &'a [[f64; ALONG]],
    factors: &'a [f64],
    function: F,
}

impl<F: Fn(f64, f64, f64) -> f64> pulp::WithSimd for OverPairs<'_, F> {
    type Output = [f64; ALONG];

    #[inline(always)]
    fn with_simd<S: pulp::Simd>(self, _: S) -> [f64; ALONG] {
        let mut sums = [0.0; ALONG];
        let mut factors = self.factors.iter();
        for (i, a) in self.points.iter().enumerate() {
            for (b, factor) in self.points[..=i].iter().zip(&mut factors) {
                for k in 0..ALONG {
                    sums[k] += (self.function)(*factor, a[k], b[k]);
                }
            }
        }
        sums
    }
}

/// Adds `factor · a` to `to`.
pub(crate) fn add_scaled(to: &mut [f64], factor: f64, a: &[f64]) {
    to.iter_mut().zip(a).for_each(|(to, a)| *to += factor * a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_squares_are_their_sums() {
        for n in 0..20_u16 {
            let a: Vec<f64> = (0..n).map(|k| f64::from(k) * 0.5).collect();
            let b: Vec<f64> = (0..n).map(|k| f64::from(k * k) - 3.0).collect();
            let weights: Vec<f64> = (0..n).map(|k| f64::from(k % 3)).collect();
            let product: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            let both = a.iter().zip(&b).zip(&weights);
            let squares: f64 = both.map(|((a, b), w)| w * (a - b).powi(2)).sum();
            assert_eq!(dot(&a, &b), product);
            assert_eq!(weighted_squares(&a, &b, &weights), squares);
        }
    }

    #[test]
    fn columns_and_pairs_are_summed_as_rows_are() {
        let number = |k: usize| ((k * k) % 17) as f64 / 7.0;
        for dimension in 1..12 {
            let points: Vec<f64> = (0..35 * dimension).map(number).collect();
            let weights: Vec<f64> = (0..dimension).map(|k| number(k + 3)).collect();
            let columns = Columns::of(&points, dimension);
            let x = &points[..dimension];
            let mut factors = Vec::new();
            let mut sums = vec![0.0; dimension];
            for (i, point) in points.chunks_exact(dimension).enumerate() {
                let block = columns.weighted_squares(i / LANES, x, &weights);
                assert_eq!(block[i % LANES], weighted_squares(x, point, &weights));
                for other in points.chunks_exact(dimension).take(i + 1) {
                    factors.push(number(factors.len()));
                    for k in 0..dimension {
                        sums[k] += factors[factors.len() - 1] * (point[k] - other[k]).abs();
                    }
                }
            }
            let along: Vec<(usize, f64)> = weights.iter().copied().enumerate().rev().collect();
            let function = |factor: f64, a: f64, b: f64| factor * (a - b).abs();
            let mut summed = vec![0.0; dimension];
            over_pairs(&points, &along, &factors, function, &mut summed);
            let weighted = sums.iter().zip(&weights).map(|(sum, weight)| sum * weight);
            assert_eq!(summed, weighted.collect::<Vec<f64>>());
        }
    }

    #[test]
    fn factors_solve_and_invert() {
        let n = 11;
        let matrix: Vec<f64> = (0..n * n)
            .map(|k| {
                (-((k / n) as f64 - (k % n) as f64).powi(2) / 4.0).exp()
                    + f64::from(u8::from(k / n == k % n))
            })
            .collect();
        let factor = Cholesky::new(matrix.clone(), n).unwrap();
        let inverse = factor.clone().into_inverse();
        for i in 0..n {
            let mut unit = vec![0.0; n];
            unit[i] = 1.0;
            factor.solve(&mut unit);
            for j in 0..n {
                let product = dot(&matrix[i * n..(i + 1) * n], &inverse[j * n..(j + 1) * n]);
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-12);
                assert!((unit[j] - inverse[i * n + j]).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn singular_matrices_get_jitter_and_nan_gets_none() {
        let ones = vec![1.0; 16];
        assert!(Cholesky::new(ones.clone(), 4).is_none());
        assert!(Cholesky::with_jitter(ones, 4).is_some());
        assert!(Cholesky::with_jitter(vec![f64::NAN], 1).is_none());
        assert_eq!(Cholesky::new(Vec::new(), 0).unwrap().log_determinant(), 0.0);
    }
}
