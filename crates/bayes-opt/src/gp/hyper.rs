//! The hyper-parameters of a Gaussian process: what they are, their bounds and their priors.
//!
//! Priors: ℓ ~ LogNormal(√2 + ½ ln d, √3) (Hvarfner, Hellsten, Nardi 2024, "Vanilla Bayesian
//! optimization performs great in high dimensions", section 5), noise variance ~ LogNormal(−4, 1)
//! (BoTorch's default with it), both as densities of the variable itself. The prior variance is 1,
//! what standardised data have: fitted as well (ln s ~ Normal(0, ½)), it costs regret
//! (`docs/results/tuners-tried.md`). Draws along ranges and between levels have narrower priors,
//! and where draws stay close to the fit that they start from, as of many observations, it has the
//! same. Draws go with half waves: where the data say no more than which way is better, the process
//! says that too.

use crate::gp::kernel::Kernel;
use crate::gp::trend::Shared;
use crate::space::coordinate::Coordinate;

pub(crate) const NOISE_PRIOR: (f64, f64) = (-4.0, 1.0);
/// Bounds in logarithms: length scales of 0.01 to 1000 edges of the cube, noise of a thousandth to
/// three standard deviations.
const LENGTH_BOUNDS: (f64, f64) = (-4.6, 6.9);
const NOISE_BOUNDS: (f64, f64) = (-13.8, 2.2);
/// The prior variance of half a wave along every coordinate: a slope up or down, or an optimum
/// inside, and as uncertain at the ends of a range as in its middle. A linear trend in its place is
/// most uncertain at the ends, and a search then asks there too often
/// (`docs/results/tuners-tried.md`). A choice of this crate.
pub(crate) const HALF_COSINE: f64 = 0.5;

/// Whose density the priors of length scales and noise are: the maximum of a posterior depends on
/// it (MacKay 1998, "Choice of basis for Laplace approximation").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// Of the variables themselves, as elsewhere: short length scales and little noise.
    Variable,
    /// Of their logarithms: long length scales and more noise, and with them half waves.
    Logarithm,
}

impl Basis {
    fn slope(self) -> f64 {
        match self {
            Self::Variable => 1.0,
            Self::Logarithm => 0.0,
        }
    }

    pub(crate) fn half_cosine(self) -> f64 {
        match self {
            Self::Variable => 0.0,
            Self::Logarithm => HALF_COSINE,
        }
    }
}

/// Length scales and noise, which are fitted, and what is given: the prior variances of the Matérn
/// part and of half waves, and what coordinates have in common, or earlier experiments expect. All
/// but the last three in logarithms.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hyper {
    pub(crate) ln_lengths: Vec<f64>,
    pub(crate) ln_noise: f64,
    pub(crate) ln_scale: f64,
    pub(crate) half_cosine: f64,
    pub(crate) shared: Shared,
    /// The earlier experiments that are believed, by their place in a list, and how much the
    /// objective is like theirs.
    pub(crate) earlier: Vec<(usize, f64)>,
}

impl Hyper {
    /// The mode of the priors.
    pub(crate) fn prior_mode(dimension: usize, basis: Basis) -> Self {
        Priors::fitted(dimension, basis).mode()
    }

    pub(crate) fn kernel(&self, coordinates: &[Coordinate]) -> Kernel {
        let scale = self.ln_scale.exp();
        let mut kernel = Kernel::new(coordinates, &self.ln_lengths, scale, self.half_cosine);
        kernel.trends = self.shared.trends(coordinates, &self.ln_lengths);
        kernel
    }

    pub(crate) fn to_vec(&self) -> Vec<f64> {
        let mut vector = self.ln_lengths.clone();
        vector.push(self.ln_noise);
        vector
    }

    pub(crate) fn from_slice(vector: &[f64], basis: Basis) -> Self {
        let dimension = vector.len() - 1;
        Hyper {
            ln_lengths: vector[..dimension].to_vec(),
            ln_noise: vector[dimension],
            ln_scale: 0.0,
            half_cosine: basis.half_cosine(),
            shared: Shared::NOTHING,
            earlier: Vec::new(),
        }
    }
}

/// The bounds of what is fitted or drawn, in the order of [`Hyper::to_vec`].
pub(crate) fn bounds(dimension: usize) -> Vec<(f64, f64)> {
    let mut bounds = vec![LENGTH_BOUNDS; dimension];
    bounds.push(NOISE_BOUNDS);
    bounds
}

/// What is expected of length scales and noise.
pub(crate) struct Priors {
    pub(crate) basis: Basis,
    /// Mean and deviation of each one's logarithm, in the order of [`Hyper::to_vec`].
    pub(crate) each: Vec<(f64, f64)>,
}

impl Priors {
    /// Those at whose maximum a process is.
    pub(crate) fn fitted(dimension: usize, basis: Basis) -> Self {
        let mut each = vec![length_prior(dimension); dimension];
        each.push(NOISE_PRIOR);
        Priors { basis, each }
    }

    pub(crate) fn mode(&self) -> Hyper {
        let slope = self.basis.slope();
        let modes = self.each.iter().map(|(mean, sd)| mean - slope * sd * sd);
        Hyper::from_slice(&modes.collect::<Vec<f64>>(), self.basis)
    }

    /// The negative logarithm of their density, up to a constant; its gradient is added to
    /// `gradient`.
    pub(crate) fn penalty(&self, vector: &[f64], gradient: &mut [f64]) -> f64 {
        let slope = self.basis.slope();
        let all = vector.iter().zip(&self.each).zip(gradient);
        let penalties = all.map(|((ln, (mean, sd)), gradient)| {
            let z = (ln - mean) / sd;
            *gradient += z / sd + slope;
            0.5 * z * z + slope * ln
        });
        penalties.sum()
    }
}

pub(crate) fn length_prior(dimension: usize) -> (f64, f64) {
    (
        std::f64::consts::SQRT_2 + 0.5 * (dimension.max(1) as f64).ln(),
        3.0_f64.sqrt(),
    )
}

/// The negative log density of the logarithms of the length scales under their prior, up to a
/// constant.
pub(crate) fn length_penalty(ln_lengths: &[f64]) -> f64 {
    let (mean, sd) = length_prior(ln_lengths.len());
    ln_lengths
        .iter()
        .map(|ln| 0.5 * ((ln - mean) / sd).powi(2))
        .sum()
}
