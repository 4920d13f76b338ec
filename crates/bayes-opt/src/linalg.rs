//! Dense Cholesky factors of covariance matrices, row by row, written so that the inner loops are contiguous.
//!
//! A plain row-major `Vec<f64>` of n² numbers is the matrix everywhere.

/// The lower triangular factor of a positive definite matrix.
#[derive(Clone, Debug)]
pub(crate) struct Cholesky {
    n: usize,
    lower: Vec<f64>,
}

/// Added to the diagonal, relative to its mean, when rounding makes a covariance matrix indefinite; tenfold each time.
const JITTER_FIRST: f64 = 1e-10;
const JITTER_TRIES: i32 = 9;

impl Cholesky {
    /// Factors `matrix`; `None` where it is not positive definite, or not finite.
    pub(crate) fn new(matrix: &[f64], n: usize) -> Option<Self> {
        let mut lower = vec![0.0; n * n];
        for i in 0..n {
            let (done, rest) = lower.split_at_mut(i * n);
            let row = &mut rest[..n];
            for j in 0..i {
                let other = &done[j * n..j * n + j + 1];
                row[j] = (matrix[i * n + j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let pivot = matrix[i * n + i] - dot(&row[..i], &row[..i]);
            // `partial_cmp` in a negated form would hide that NaN fails too.
            if !(pivot > 0.0 && pivot.is_finite()) {
                return None;
            }
            row[i] = pivot.sqrt();
        }
        Some(Cholesky { n, lower })
    }

    /// Factors `matrix`, adding to its diagonal what rounding needs. `None` for a matrix with NaN or infinity only.
    pub(crate) fn with_jitter(matrix: &mut [f64], n: usize) -> Option<Self> {
        if let Some(factor) = Self::new(matrix, n) {
            return Some(factor);
        }
        let mean = (0..n).map(|i| matrix[i * n + i]).sum::<f64>() / n.max(1) as f64;
        let mut added = 0.0;
        for attempt in 0..JITTER_TRIES {
            let jitter = mean.abs().max(f64::MIN_POSITIVE) * JITTER_FIRST * 10_f64.powi(attempt);
            (0..n).for_each(|i| matrix[i * n + i] += jitter - added);
            added = jitter;
            if let Some(factor) = Self::new(matrix, n) {
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
        &self.lower[i * self.n..i * self.n + i + 1]
    }

    pub(crate) fn log_determinant(&self) -> f64 {
        2.0 * (0..self.n)
            .map(|i| self.lower[i * self.n + i].ln())
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

    /// The inverse of the factored matrix.
    pub(crate) fn inverse(&self) -> Vec<f64> {
        let n = self.n;
        // Row j holds the j-th column of L⁻¹, zero above the diagonal.
        let mut columns = vec![0.0; n * n];
        for j in 0..n {
            let column = &mut columns[j * n..(j + 1) * n];
            column[j] = 1.0 / self.lower[j * n + j];
            for i in j + 1..n {
                let row = self.row(i);
                column[i] = -dot(&row[j..i], &column[j..i]) / row[i];
            }
        }
        let mut inverse = vec![0.0; n * n];
        for a in 0..n {
            for b in a..n {
                let value = dot(
                    &columns[a * n + b..(a + 1) * n],
                    &columns[b * n + b..(b + 1) * n],
                );
                inverse[a * n + b] = value;
                inverse[b * n + a] = value;
            }
        }
        inverse
    }
}

/// The dot product, in eight running sums so that the compiler can use vector registers.
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

/// Adds `factor · a` to `to`.
pub(crate) fn add_scaled(to: &mut [f64], factor: f64, a: &[f64]) {
    to.iter_mut().zip(a).for_each(|(to, a)| *to += factor * a);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_solve_and_invert() {
        let n = 11;
        let matrix: Vec<f64> = (0..n * n)
            .map(|k| {
                (-((k / n) as f64 - (k % n) as f64).powi(2) / 4.0).exp()
                    + f64::from(u8::from(k / n == k % n))
            })
            .collect();
        let factor = Cholesky::new(&matrix, n).unwrap();
        let inverse = factor.inverse();
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
        let mut ones = vec![1.0; 16];
        assert!(Cholesky::new(&ones, 4).is_none());
        assert!(Cholesky::with_jitter(&mut ones, 4).is_some());
        assert!(Cholesky::with_jitter(&mut [f64::NAN], 1).is_none());
        assert_eq!(Cholesky::new(&[], 0).unwrap().log_determinant(), 0.0);
    }
}
