//! From what was measured to what the process models: logarithm, a soft cap on bad outliers, mean 0 and deviation 1.

/// Where the cap begins, in interquartile ranges above the upper quartile: Tukey's outer-fence idea, with his 1.5 made 2
/// because costs are skewed.
const FENCE: f64 = 2.0;

/// A strictly increasing map of the objective, and back.
#[derive(Clone, Debug)]
pub(crate) struct Transform {
    log: bool,
    /// Above `cap` the excess e becomes `width · ln(1 + e/width)`: a crash-like value must not flatten all the others.
    cap: f64,
    width: f64,
    center: f64,
    scale: f64,
}

impl Transform {
    pub(crate) fn new(values: &[f64], log: bool) -> Self {
        let mut sorted: Vec<f64> = values
            .iter()
            .map(|value| if log { value.ln() } else { *value })
            .collect();
        sorted.sort_by(f64::total_cmp);
        let mut transform = Transform {
            log,
            cap: f64::INFINITY,
            width: 1.0,
            center: 0.0,
            scale: 1.0,
        };
        if sorted.len() >= 4 {
            let quartile = |share: f64| sorted[crate::value::cell(share, sorted.len())];
            let range = quartile(0.75) - quartile(0.25);
            if range > 0.0 {
                transform.cap = quartile(0.75) + FENCE * range;
                transform.width = range;
            }
        }
        let n = values.len().max(1) as f64;
        let capped: Vec<f64> = sorted
            .iter()
            .map(|value| transform.compress(*value))
            .collect();
        transform.center = capped.iter().sum::<f64>() / n;
        let variance = capped
            .iter()
            .map(|value| (value - transform.center).powi(2))
            .sum::<f64>()
            / (n - 1.0).max(1.0);
        // A constant objective has rounding for its deviation.
        if variance.sqrt() > 1e-12 * transform.center.abs() {
            transform.scale = variance.sqrt();
        }
        transform
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
        let value = if self.log { value.ln() } else { value };
        (self.compress(value) - self.center) / self.scale
    }

    /// The variance of the modelled value, to first order.
    pub(crate) fn variance(&self, value: f64, variance: f64) -> f64 {
        variance * (self.inverse_slope(self.forward(value))).powi(-2)
    }

    pub(crate) fn inverse(&self, modelled: f64) -> f64 {
        let value = modelled * self.scale + self.center;
        let excess = value - self.cap;
        let value = if excess > 0.0 {
            self.cap + self.width * (excess / self.width).exp_m1()
        } else {
            value
        };
        if self.log { value.exp() } else { value }
    }

    /// The derivative of [`Transform::inverse`].
    pub(crate) fn inverse_slope(&self, modelled: f64) -> f64 {
        let value = modelled * self.scale + self.center;
        let excess = value - self.cap;
        let stretch = if excess > 0.0 {
            (excess / self.width).exp()
        } else {
            1.0
        };
        let outer = if self.log {
            self.inverse(modelled)
        } else {
            1.0
        };
        self.scale * stretch * outer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let values = [1.0, 1.1, 1.2, 1.3, 1.25, 9000.0];
        for log in [false, true] {
            let transform = Transform::new(&values, log);
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
    fn few_and_constant_values() {
        assert_eq!(Transform::new(&[], false).forward(3.0), 3.0);
        assert_eq!(Transform::new(&[3.0], false).forward(3.0), 0.0);
        assert_eq!(Transform::new(&[3.0; 9], true).forward(3.0), 0.0);
    }
}
