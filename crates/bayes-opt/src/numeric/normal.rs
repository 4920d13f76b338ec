//! The normal distribution far into its tails: log Φ and the logarithm of expected improvement,
//! with derivatives.

use rand_chacha::rand_core::RngCore;
use statrs::function::erf::{erfc, erfc_inv};

const LN_SQRT_2PI: f64 = 0.918_938_533_204_672_8;

pub(crate) fn pdf(z: f64) -> f64 {
    (-0.5 * z * z - LN_SQRT_2PI).exp()
}

pub(crate) fn cdf(z: f64) -> f64 {
    0.5 * erfc(-z * std::f64::consts::FRAC_1_SQRT_2)
}

pub(crate) fn quantile(p: f64) -> f64 {
    -std::f64::consts::SQRT_2 * erfc_inv(2.0 * p.clamp(1e-12, 1.0 - 1e-12))
}

/// A standard normal draw.
pub(crate) fn draw(rng: &mut impl RngCore) -> f64 {
    quantile((f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0)
}

/// Below this the continued fraction of Mills' ratio takes over: 24 terms give ten digits there.
const TAIL: f64 = -4.0;

/// Beyond this the first term of the fraction is all of it, and powers of `t` are too large.
const FAR: f64 = 1e9;

/// The rest `c` of Mills' ratio `Φ(−t)/φ(t) = 1/(t + c)`, by its continued fraction (Abramowitz &
/// Stegun 26.2.14), which is carried on as numerator and denominator: one division takes as long as
/// the other steps together.
fn mills_rest(t: f64) -> f64 {
    if t > FAR {
        return 1.0 / t;
    }
    let (numerator, denominator) = (1..=24)
        .rev()
        .fold((0.0, 1.0), |(numerator, denominator), k| {
            (f64::from(k) * denominator, t * denominator + numerator)
        });
    numerator / denominator
}

/// log Φ(z) and its derivative.
pub(crate) fn log_cdf(z: f64) -> (f64, f64) {
    if z > TAIL {
        let p = cdf(z);
        (p.ln(), pdf(z) / p)
    } else {
        let whole = -z + mills_rest(-z);
        (-0.5 * z * z - LN_SQRT_2PI - whole.ln(), whole)
    }
}

/// `log h(z)` with `h(z) = φ(z) + z Φ(z)`, expected improvement in units of the standard deviation,
/// and the ratios `Φ/h` and `φ/h` (Ament et al. 2023, "Unexpected improvements to expected
/// improvement", section 4.1).
pub(crate) fn log_improvement(z: f64) -> (f64, f64, f64) {
    if z > TAIL {
        let (density, probability) = (pdf(z), cdf(z));
        let h = (density + z * probability).max(f64::MIN_POSITIVE);
        (h.ln(), probability / h, density / h)
    } else {
        // h/φ = 1 − tR with R = 1/(t + c), so c/(t + c): nothing cancels.
        let (t, c) = (-z, mills_rest(-z));
        (
            -0.5 * z * z - LN_SQRT_2PI + (c / (t + c)).ln(),
            c.recip(),
            (t + c) / c,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_branches_meet() {
        for function in [|z| log_cdf(z).0, |z| log_improvement(z).0] {
            let (a, b): (f64, f64) = (function(TAIL + 1e-9), function(TAIL - 1e-9));
            assert!((a - b).abs() < 1e-7, "{a} {b}");
        }
    }

    #[test]
    fn the_rest_of_mills_ratio_is_right_near_and_far() {
        // Φ(−4)/φ(4) = 0.236 652 382 9, by Φ(−4) = 3.167 124 183 · 10⁻⁵ and φ(4) = 1.338 302 258 ·
        // 10⁻⁴ (A & S, table 26.2).
        assert!((4.0 + mills_rest(4.0) - 1.0 / 0.236_652_382_9).abs() < 1e-8);
        // 1/t − 2/t³ + …, on either side of where the fraction ends.
        for t in [1e4, 1e8, 0.999 * FAR, 1.001 * FAR, 1e150, 1e300] {
            assert!((t * mills_rest(t) - 1.0).abs() < 3.0 / t / t + 1e-15, "{t}");
        }
    }

    #[test]
    fn derivatives_are_difference_quotients() {
        for z in [-60.0, -9.0, -4.5, -2.0, 0.0, 1.5, 6.0] {
            let step = 1e-5;
            let quotient =
                (log_improvement(z + step).0 - log_improvement(z - step).0) / (2.0 * step);
            assert!(
                (quotient - log_improvement(z).1).abs() < 1e-4 * (1.0 + quotient),
                "{z}"
            );
            let quotient = (log_cdf(z + step).0 - log_cdf(z - step).0) / (2.0 * step);
            assert!(
                (quotient - log_cdf(z).1).abs() < 1e-4 * (1.0 + quotient),
                "{z}"
            );
        }
        // log h(−1000) = −500000 − ln √(2π) − 2 ln 1000 + O(10⁻⁶).
        assert!(
            (log_improvement(-1000.0).0 - (-500_000.0 - LN_SQRT_2PI - 2.0 * 1000_f64.ln())).abs()
                < 1e-4
        );
        assert!((quantile(0.975) - 1.959_964).abs() < 1e-5);
    }
}
