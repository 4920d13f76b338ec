//! When has a series stopped warming up? Change points of what a service's requests cost, slice by
//! slice.

use crate::summary::quantile;

/// Fewer slices than this say nothing.
const SLICES_MIN: usize = 8;
/// The last level must have lasted for this share of the whole series (Barrett et al. ask it of the
/// last 500 of 2,000 iterations).
const LAST_SHARE: usize = 4;
/// Two levels that are this close in their logarithms are one: 1 %. (Barrett et al., §4.2, take
/// levels together whose difference is of no consequence.)
const EQUAL: f64 = 0.01;
/// A change point costs so many times ln n, in units of the noise's variance: two for its place and
/// its level (Schwarz 1978; Yao 1988 shows that such a penalty finds the number of change points),
/// and half as much again, as the noise is estimated and neighbours resemble each other.
const PENALTY: f64 = 3.0;
/// The last level may rise or fall by so much, with its standard error: 3 %, or the noise of one
/// slice where that is more. Whoever measures in many slices sees little of the one and the other.
const FLAT: f64 = 0.03;
/// Values this many standard deviations from the median of their neighbourhood count as if they
/// were there: one slice with a long collection is no level of its own.
const OUTLIER_DEVIATIONS: f64 = 3.0;
/// Neighbours to each side of a value.
const NEIGHBOURS: usize = 4;
/// The standard deviation of a normal distribution, in median absolute deviations.
const MAD: f64 = 1.482_6;
/// No clock and no counter is more exact than this share of a value.
const NOISE_MIN: f64 = 1e-3;

/// What a series of slices says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmth {
    /// It has reached its last level, and stayed there.
    Steady {
        /// The first slice of that level, from 0.
        since: usize,
    },
    /// There are too few slices, or the last level is too young or too noisy for telling.
    Young {
        /// The first slice of the last level, from 0.
        since: usize,
        /// The last level against the one before it: 0.9 is 10 % less. `None` where there is one
        /// level only.
        change: Option<f64>,
    },
    /// The last level rises or falls all the time.
    Trend {
        /// Its end against its beginning: 0.9 is 10 % less.
        change: f64,
    },
}

impl Warmth {
    /// Whether it has stopped warming up.
    #[must_use]
    pub fn is_steady(self) -> bool {
        matches!(self, Self::Steady { .. })
    }
}

/// Whether the slices of a warm-up, oldest first, have reached a steady state. Values that are not
/// above 0 are left out.
///
/// The method is that of Barrett, Bolz-Tereick, Killick, Mount and Tratt ("Virtual Machine Warmup
/// Blows Hot and Cold", OOPSLA 2017), as Traini, Cortellessa, Di Pompeo and Tucci used it on 586
/// benchmarks ("Towards effective assessment of steady state performance in Java software",
/// Empirical Software Engineering 28:13, 2022): outliers are tamed, the series is cut into levels
/// at its change points, levels that hardly differ are one, and it is steady if the last level is
/// long enough. There it looks back at a series that has ended; here it is asked after each slice,
/// so that what comes later is not known. Two things differ for that: the change points minimise
/// squared errors of logarithms exactly (series are short), and the last level has to be shown to
/// be flat, which takes the longer the noisier it is.
///
/// ```
/// use paired_stats::warmth;
///
/// let mut slices = vec![9.0, 5.0, 3.0, 2.2];
/// assert!(!warmth(&slices).is_steady());
/// slices.extend([2.0, 2.02, 1.99, 2.01, 2.0, 1.98, 2.01, 2.0]);
/// assert!(warmth(&slices).is_steady());
/// ```
#[must_use]
pub fn warmth(slices: &[f64]) -> Warmth {
    let usable = slices.iter().filter(|it| it.is_finite() && **it > 0.0);
    let logs: Vec<f64> = usable.map(|it| it.ln()).collect();
    let logs = tamed(&logs);
    let levels = levels(&logs);
    let last = last_level(&levels);
    let change = last.before.map(|before| (last.mean - before).exp());
    let (count, length) = (logs.len(), logs.len() - last.start);
    let needed = SLICES_MIN.max(count.div_ceil(LAST_SHARE));
    if length < needed {
        return Warmth::Young {
            since: last.start,
            change,
        };
    }
    let line = Line::through(&logs[last.start..]);
    if line.is_flat() {
        Warmth::Steady { since: last.start }
    } else if line.change.abs() > line.error {
        Warmth::Trend {
            change: line.change.exp(),
        }
    } else {
        Warmth::Young {
            since: last.start,
            change,
        }
    }
}

/// A stretch of one level.
#[derive(Clone, Copy, Debug)]
struct Level {
    end: usize,
    mean: f64,
}

/// The last level, together with those before it that hardly differ.
struct Last {
    start: usize,
    mean: f64,
    /// The mean of the level before it.
    before: Option<f64>,
}

fn last_level(levels: &[Level]) -> Last {
    let Some((last, earlier)) = levels.split_last() else {
        return Last {
            start: 0,
            mean: 0.0,
            before: None,
        };
    };
    let differs = |level: &&Level| (level.mean - last.mean).abs() > EQUAL;
    let before = earlier.iter().rev().find(differs);
    Last {
        start: before.map_or(0, |before| before.end),
        mean: last.mean,
        before: before.map(|before| before.mean),
    }
}

/// A line through a level, by least squares.
struct Line {
    /// Its end against its beginning.
    change: f64,
    /// The standard error of that.
    error: f64,
    /// The standard deviation of values around the line.
    noise: f64,
}

impl Line {
    fn through(level: &[f64]) -> Self {
        let count = level.len() as f64;
        let (middle, centre) = ((count - 1.0) / 2.0, mean(level));
        let placed = || {
            let places = level.iter().enumerate();
            places.map(|(index, value)| (index as f64 - middle, value - centre))
        };
        let spread: f64 = placed().map(|(place, _)| place * place).sum();
        let slope = placed().map(|(place, value)| place * value).sum::<f64>() / spread;
        let left = placed().map(|(place, value)| (value - slope * place).powi(2));
        let variance = left.sum::<f64>() / (count - 2.0);
        let noise = variance.sqrt().max(NOISE_MIN);
        Self {
            change: slope * count,
            error: noise * count / spread.sqrt(),
            noise,
        }
    }

    fn is_flat(&self) -> bool {
        self.change.abs() + self.error <= FLAT.max(self.noise)
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The values, with those far from their neighbourhood moved to its edge (Hampel 1974). The last
/// ones stay: they may be the beginning of a new level.
fn tamed(values: &[f64]) -> Vec<f64> {
    let (noise, count) = (noise(values), values.len());
    let centre_of = |index: usize| {
        let from = index.saturating_sub(NEIGHBOURS);
        let to = (index + NEIGHBOURS + 1).min(count);
        median(&values[from..to])
    };
    let values = values.iter().enumerate();
    values
        .map(|(index, value)| {
            if index + NEIGHBOURS >= count {
                return *value;
            }
            let (centre, room) = (centre_of(index), OUTLIER_DEVIATIONS * noise);
            value.clamp(centre - room, centre + room)
        })
        .collect()
}

/// The standard deviation of the noise, by the differences of neighbours: levels and trends hardly
/// show in them.
fn noise(values: &[f64]) -> f64 {
    let differences: Vec<f64> = values.windows(2).map(|it| (it[1] - it[0]).abs()).collect();
    let deviation = MAD * median(&differences) / std::f64::consts::SQRT_2;
    deviation.max(NOISE_MIN)
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5).unwrap_or(0.0)
}

/// The cut into levels that costs least: squared errors in units of the noise, and a penalty for
/// each change point (optimal partitioning: Jackson et al. 2005, which PELT prunes).
fn levels(values: &[f64]) -> Vec<Level> {
    let count = values.len();
    let variance = noise(values).powi(2);
    let penalty = PENALTY * (count.max(2) as f64).ln();
    let mut sums = vec![(0.0, 0.0)];
    for value in values {
        let (sum, squares) = sums.last().copied().unwrap_or_default();
        sums.push((sum + value, squares + value * value));
    }
    let cost = |from: usize, to: usize| {
        let (sum, squares) = (sums[to].0 - sums[from].0, sums[to].1 - sums[from].1);
        (squares - sum * sum / (to - from) as f64).max(0.0) / variance
    };
    // The best cut of the first `to` values, and where its last level begins.
    let mut best = vec![(-penalty, 0_usize)];
    for to in 1..=count {
        let ways = (0..to).map(|from| (best[from].0 + cost(from, to) + penalty, from));
        best.extend(ways.min_by(|a, b| a.0.total_cmp(&b.0)));
    }
    let mut levels = Vec::new();
    let mut end = count;
    while end > 0 {
        let start = best[end].1;
        levels.push(Level {
            end,
            mean: mean(&values[start..end]),
        });
        end = start;
    }
    levels.reverse();
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_found_and_outliers_are_none() {
        let mut slices = vec![10.0; 12];
        slices.extend(vec![5.0; 20]);
        slices[25] = 40.0;
        assert_eq!(warmth(&slices), Warmth::Steady { since: 12 });
        let Warmth::Young { since, change } = warmth(&slices[..15]) else {
            panic!("three slices are no level");
        };
        assert_eq!(since, 12);
        assert!((change.unwrap() - 0.5).abs() < 1e-9);
    }

    #[test]
    fn what_rises_all_the_time_is_never_steady() {
        for slope in [0.01, 0.03] {
            let slices: Vec<f64> = (0..200)
                .map(|index| (slope * f64::from(index)).exp() * (1.0 + 0.01 * wobble(index)))
                .collect();
            for end in 12..200 {
                assert!(!warmth(&slices[..end]).is_steady(), "{slope} {end}");
            }
        }
    }

    #[test]
    fn few_slices_and_none_say_nothing() {
        for count in 0..SLICES_MIN {
            assert!(!warmth(&vec![1.0; count]).is_steady());
        }
        assert!(warmth(&[1.0; SLICES_MIN]).is_steady());
        assert!(!warmth(&[0.0, -1.0, f64::NAN]).is_steady());
    }

    /// Between −1 and 1, and no pattern of a few values.
    fn wobble(index: i32) -> f64 {
        (f64::from(index) * 12.9898).sin()
    }
}
