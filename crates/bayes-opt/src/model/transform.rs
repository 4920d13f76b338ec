//! From what was measured to what the process models: logarithm, a soft cap on bad outliers, a
//! power that bends a long good end, mean 0 and deviation 1.

use crate::observation::MeasuredValue;

/// Where the cap begins, in interquartile ranges above the upper quartile: Tukey's outer-fence
/// idea, with his 1.5 made 2 because costs are skewed.
const FENCE: f64 = 2.0;
/// Fewer values have no shape to speak of.
const POWER_FROM: usize = 8;
/// How far below the least value the ratios of [`Transform::of_ratios`] begin, in distances of the
/// median from it.
const RATIOS_BELOW: f64 = 0.03;
/// Prior deviation of the power around 1, which changes nothing: a few values must not bend the
/// scale much.
const POWER_SD: f64 = 0.5;

/// Deviations below it are found in this unit.
const TINY: f64 = 1e-150;

/// A strictly increasing map of the objective, and back.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    /// The logarithm of what is above this is modelled.
    log_above: Option<f64>,
    /// Above `cap` the excess e becomes `width · ln(1 + e/width)`: a crash-like value must not
    /// flatten all the others.
    cap: f64,
    width: f64,
    /// Before and after the power.
    inner: Standard,
    power: f64,
    outer: Standard,
}

/// Takes a mean away and divides by a deviation.
#[derive(Clone, Copy, Debug)]
struct Standard {
    center: f64,
    scale: f64,
}

impl Standard {
    const IDENTITY: Self = Standard {
        center: 0.0,
        scale: 1.0,
    };

    fn of(values: &[f64]) -> Self {
        let n = values.len().max(1) as f64;
        let center = values.iter().sum::<f64>() / n;
        let squares = |unit: f64| {
            let values = values.iter().map(|value| ((value - center) / unit).powi(2));
            values.sum::<f64>() / (n - 1.0).max(1.0)
        };
        let mut deviation = squares(1.0).sqrt();
        if deviation < TINY {
            // Their squares are no numbers.
            deviation = squares(TINY).sqrt() * TINY;
        }
        // A constant objective has rounding for its deviation.
        let scale = if deviation > 1e-12 * center.abs() {
            deviation
        } else {
            1.0
        };
        Standard { center, scale }
    }

    fn forward(&self, value: f64) -> f64 {
        (value - self.center) / self.scale
    }

    fn inverse(&self, value: f64) -> f64 {
        value * self.scale + self.center
    }
}

impl Transform {
    pub(crate) fn new(values: &[f64]) -> Self {
        Transform::shaped(values, None)
    }

    /// As if ratios mattered, whatever the values' zero: the logarithm of how far they are above a
    /// floor somewhat below the least. `None` where half of them are no better than that.
    pub(crate) fn of_ratios(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, middle) = (*sorted.first()?, sorted[sorted.len() / 2]);
        let floor = least - RATIOS_BELOW * (middle - least);
        (floor < least).then(|| Transform::shaped(values, Some(floor)))
    }

    fn shaped(values: &[f64], log_above: Option<f64>) -> Self {
        let mut transform = Transform {
            log_above,
            cap: f64::INFINITY,
            width: 1.0,
            inner: Standard::IDENTITY,
            power: 1.0,
            outer: Standard::IDENTITY,
        };
        let mut sorted: Vec<f64> = values
            .iter()
            .map(|value| transform.logarithm(*value))
            .collect();
        sorted.sort_by(f64::total_cmp);
        if sorted.len() >= 4 {
            let quartile = |share: f64| sorted[crate::space::value::cell(share, sorted.len())];
            let range = quartile(0.75) - quartile(0.25);
            if range > 0.0 {
                transform.cap = quartile(0.75) + FENCE * range;
                let excess = sorted.last().map_or(0.0, |most| most - transform.cap);
                transform.width = range.max(TINY * excess);
            }
        }
        let capped: Vec<f64> = sorted
            .iter()
            .map(|value| transform.compress(*value))
            .collect();
        transform.inner = Standard::of(&capped);
        let standard: Vec<f64> = capped
            .iter()
            .map(|value| transform.inner.forward(*value))
            .collect();
        if standard.len() >= POWER_FROM {
            transform.power = likely_power(&standard);
            let bent: Vec<f64> = standard
                .iter()
                .map(|value| bend(*value, transform.power))
                .collect();
            transform.outer = Standard::of(&bent);
        }
        transform
    }

    /// One unit of what is modelled, near the middle, in the objective's unit or its logarithm.
    pub(crate) fn scale(&self) -> f64 {
        self.inner.scale * self.outer.scale
    }

    fn logarithm(&self, value: f64) -> f64 {
        self.log_above.map_or(value, |floor| (value - floor).ln())
    }

    fn compress(&self, value: f64) -> f64 {
        let excess = value - self.cap;
        if excess > 0.0 {
            self.cap + self.width * (excess / self.width).ln_1p()
        } else {
            value
        }
    }

    pub(crate) fn forward(&self, value: f64) -> f64 {
        let standard = self.inner.forward(self.compress(self.logarithm(value)));
        self.outer.forward(bend(standard, self.power))
    }

    /// The variance of the modelled value, to first order.
    pub(crate) fn variance(&self, value: f64, variance: f64) -> f64 {
        let slope = self.inverse_slope(self.forward(value));
        variance / slope / slope
    }

    /// What is modelled of measurements, and its variances; one that is not known counts as 0
    /// beside the fitted noise.
    pub(crate) fn measured(&self, measured: &[MeasuredValue]) -> (Vec<f64>, Vec<f64>) {
        let both = |y: &MeasuredValue| {
            (
                self.forward(y.value),
                self.variance(y.value, y.variance.unwrap_or(0.0)),
            )
        };
        measured.iter().map(both).unzip()
    }

    pub(crate) fn inverse(&self, modelled: f64) -> f64 {
        let standard = unbend(self.outer.inverse(modelled), self.power);
        let value = self.inner.inverse(standard);
        let excess = value - self.cap;
        let value = if excess > 0.0 {
            self.cap + self.width * (excess / self.width).exp_m1()
        } else {
            value
        };
        self.log_above.map_or(value, |floor| floor + value.exp())
    }

    /// The derivative of [`Transform::inverse`].
    pub(crate) fn inverse_slope(&self, modelled: f64) -> f64 {
        let standard = unbend(self.outer.inverse(modelled), self.power);
        let excess = self.inner.inverse(standard) - self.cap;
        let stretch = if excess > 0.0 {
            (excess / self.width).exp()
        } else {
            1.0
        };
        let outermost = self
            .log_above
            .map_or(1.0, |floor| self.inverse(modelled) - floor);
        self.outer.scale / bend_slope(standard, self.power) * self.inner.scale * stretch * outermost
    }
}

/// The power of Yeo and Johnson (2000, "A new family of power transformations to improve normality
/// or symmetry") under which the values are most like a normal sample, with a prior around 1. Up to
/// 2, where every number has an image and an original; not below 1, which would draw the good end
/// apart, where a search has most of its values and they differ by noise: the cap sees to a long
/// bad end.
fn likely_power(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let stretch: f64 = values
        .iter()
        .map(|value| value.signum() * value.abs().ln_1p())
        .sum();
    let likelihood = |power: f64| {
        let bent: Vec<f64> = values.iter().map(|value| bend(*value, power)).collect();
        -n * Standard::of(&bent).scale.ln() + (power - 1.0) * stretch
            - 0.5 * ((power - 1.0) / POWER_SD).powi(2)
    };
    (20..=40)
        .map(|step| f64::from(step) / 20.0)
        .map(|power| (likelihood(power), power))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(1.0, |(_, power)| power)
}

fn bend(value: f64, power: f64) -> f64 {
    let of = |size: f64, power: f64| {
        if power == 0.0 {
            size.ln_1p()
        } else {
            ((1.0 + size).powf(power) - 1.0) / power
        }
    };
    if value >= 0.0 {
        of(value, power)
    } else {
        -of(-value, 2.0 - power)
    }
}

fn unbend(bent: f64, power: f64) -> f64 {
    let of = |size: f64, power: f64| {
        if power == 0.0 {
            size.exp_m1()
        } else {
            (1.0 + power * size).powf(1.0 / power) - 1.0
        }
    };
    if bent >= 0.0 {
        of(bent, power)
    } else {
        -of(-bent, 2.0 - power)
    }
}

fn bend_slope(value: f64, power: f64) -> f64 {
    if value >= 0.0 {
        (1.0 + value).powf(power - 1.0)
    } else {
        (1.0 - value).powf(1.0 - power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let values = [1.0, 1.1, 1.2, 1.3, 1.25, 9000.0];
        let [plain, log] = [None, Some(0.0)].map(|floor| Transform::shaped(&values, floor));
        for transform in [plain, log, Transform::of_ratios(&values).unwrap()] {
            for value in values {
                let modelled = transform.forward(value);
                assert!((transform.inverse(modelled) / value - 1.0).abs() < 1e-9);
                let quotient = (transform.inverse(modelled + 1e-6)
                    - transform.inverse(modelled - 1e-6))
                    / 2e-6;
                assert!((transform.inverse_slope(modelled) / quotient - 1.0).abs() < 1e-4);
            }
            assert!(transform.forward(9000.0) < 3.0);
        }
    }

    #[test]
    fn ratios_need_no_zero() {
        let values = [1.0, 2.0, 20.0, 300.0, 5000.0];
        let moved = values.map(|value| 7.0 * value - 100.0);
        let [one, other] = [values, moved].map(|values| Transform::of_ratios(&values).unwrap());
        for (value, moved) in values.iter().zip(moved) {
            assert!((one.forward(*value) - other.forward(moved)).abs() < 1e-9);
        }
        // Half of the values are the best: nothing says how far apart good ones are.
        for values in [&[][..], &[3.0], &[1.0, 1.0, 1.0, 5.0]] {
            assert!(Transform::of_ratios(values).is_none());
        }
    }

    #[test]
    fn a_long_good_end_is_bent_and_all_else_kept() {
        let even: Vec<f64> = (0..40)
            .map(|i| crate::numeric::normal::quantile((f64::from(i) + 0.5) / 40.0))
            .collect();
        assert!((Transform::new(&even).power - 1.0).abs() < 0.1);
        let bad_end: Vec<f64> = even.iter().map(|value| (0.8 * value).exp()).collect();
        assert_eq!(Transform::new(&bad_end).power, 1.0);
        let skewed: Vec<f64> = bad_end.iter().map(|value| -value).collect();
        let transform = Transform::new(&skewed);
        assert!(transform.power > 1.5, "{}", transform.power);
        for value in skewed {
            let modelled = transform.forward(value);
            assert!((transform.inverse(modelled) / value - 1.0).abs() < 1e-9);
            let quotient =
                (transform.inverse(modelled + 1e-6) - transform.inverse(modelled - 1e-6)) / 2e-6;
            assert!((transform.inverse_slope(modelled) / quotient - 1.0).abs() < 1e-4);
        }
    }

    #[test]
    fn whatever_the_magnitudes_numbers_stay_numbers() {
        let mut values: Vec<f64> = (0..20).map(|i| f64::from(i) * 1e-250).collect();
        values.push(1e100);
        let transform = Transform::new(&values);
        for value in values {
            let modelled = transform.forward(value);
            assert!(modelled.is_finite() && transform.inverse(modelled).is_finite());
        }
    }

    #[test]
    fn few_and_constant_values() {
        assert_eq!(Transform::new(&[]).forward(3.0), 3.0);
        assert_eq!(Transform::new(&[3.0]).forward(3.0), 0.0);
        assert_eq!(Transform::shaped(&[3.0; 9], Some(0.0)).forward(3.0), 0.0);
    }
}
