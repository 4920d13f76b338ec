//! Points chosen without a model: uniform, scrambled Sobol, Latin hypercubes.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::sampling::feasible_start::towards;
use crate::space::Space;

/// How many draws are made for one point that meets the constraints and is new.
const TRIES_MAX: u32 = 4096;
/// Points in one Latin hypercube; a longer search takes one cube after the other.
const CUBE_POINTS: usize = 16;

/// The draws of one kind.
#[derive(Clone, Debug)]
pub(crate) enum Design {
    Random,
    Sobol { seed: u32, next: u32 },
    LatinHypercube { rows: Vec<Vec<f64>> },
}

impl Design {
    pub(crate) fn sobol(seed: u64) -> Self {
        // The first point of the unscrambled sequence is the corner; scrambling moves it, so none
        // is skipped.
        Design::Sobol {
            seed: fold(seed),
            next: 0,
        }
    }

    fn unit(&mut self, columns: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
        match self {
            Design::Random => (0..columns).map(|_| rng.random()).collect(),
            Design::Sobol { seed, next } => {
                let point = sobol(*next, columns, *seed);
                *next = next.wrapping_add(1);
                point
            }
            Design::LatinHypercube { rows } => {
                if rows.is_empty() {
                    *rows = latin_hypercube(CUBE_POINTS, columns, rng);
                }
                rows.pop().unwrap_or_default()
            }
        }
    }

    /// The next point that the space allows and `taken` does not refuse; `None` when there seems to
    /// be none. Where constraints leave next to nothing, it is between one that is drawn and one of
    /// those `inside` them, or one of these.
    pub(crate) fn next(
        &mut self,
        space: &Space,
        rng: &mut ChaCha8Rng,
        inside: impl Fn() -> Vec<Vec<f64>>,
        taken: impl Fn(&[f64]) -> bool,
    ) -> Option<Vec<f64>> {
        let encoding = space.encoding();
        let possible = |point: &[f64]| space.allows(point) && !taken(point);
        let mut draw = || encoding.place(&self.unit(encoding.columns().len(), rng));
        let drawn = (0..TRIES_MAX).find_map(|_| Some(draw()).filter(|point| possible(point)));
        if drawn.is_some() || space.constraints().is_empty() {
            return drawn;
        }
        let inside = inside();
        let mut starts = inside.iter().cycle().take(TRIES_MAX as usize);
        let between = starts.find_map(|start| towards(space, start, &draw(), possible));
        between.or_else(|| inside.into_iter().find(|point| possible(point)))
    }
}

/// The `index`-th point of a Sobol sequence with Owen scrambling (Burley 2020), which has 2¹⁶
/// points: then comes that of another scramble.
pub(crate) fn sobol(index: u32, dimensions: usize, seed: u32) -> Vec<f64> {
    let seed = seed.wrapping_add((index >> 16).wrapping_mul(0x85eb_ca6b));
    let index = index & 0xffff;
    (0..dimensions)
        .map(|dimension| {
            // Above 256 dimensions the sequence starts again under another scramble.
            let (turn, dimension) = (dimension / 256, dimension % 256);
            let seed = seed.wrapping_add(fold(turn as u64).wrapping_mul(0x9e37_79b9));
            f64::from(sobol_burley::sample(
                index,
                u32::try_from(dimension).unwrap_or(0),
                seed,
            ))
        })
        .collect()
}

/// Both halves of a seed in one.
pub(crate) fn fold(seed: u64) -> u32 {
    u32::try_from((seed ^ (seed >> 32)) & u64::from(u32::MAX)).unwrap_or(0)
}

fn latin_hypercube(points: usize, dimensions: usize, rng: &mut ChaCha8Rng) -> Vec<Vec<f64>> {
    let mut rows = vec![vec![0.0; dimensions]; points];
    for dimension in 0..dimensions {
        let mut order: Vec<usize> = (0..points).collect();
        order.shuffle(rng);
        for (row, cell) in rows.iter_mut().zip(order) {
            row[dimension] = (cell as f64 + rng.random::<f64>()) / points as f64;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn a_latin_hypercube_has_one_point_in_each_slice() {
        let rows = latin_hypercube(8, 3, &mut ChaCha8Rng::seed_from_u64(1));
        for dimension in 0..3 {
            let mut cells: Vec<usize> = rows
                .iter()
                .map(|row| crate::space::value::cell(row[dimension], 8))
                .collect();
            cells.sort_unstable();
            assert_eq!(cells, (0..8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sobol_points_spread_and_differ_by_seed() {
        let points: Vec<Vec<f64>> = (0..16).map(|index| sobol(index, 300, 7)).collect();
        for dimension in [0, 5, 299] {
            let below = points.iter().filter(|point| point[dimension] < 0.5).count();
            assert_eq!(below, 8);
        }
        assert_ne!(sobol(0, 2, 7), sobol(0, 2, 8));
        assert_ne!(sobol(0, 2, 7), sobol(1 << 16, 2, 7));
        assert!(sobol(u32::MAX, 2, 7).iter().all(|x| (0.0..1.0).contains(x)));
    }
}
