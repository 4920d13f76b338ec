//! Has a series changed since it began? A test that may be looked at after every value, for ever,
//! without assuming any distribution.

/// Exponents of the power bets κ·p^(κ − 1), κ in (0, 1): small ones win on single extreme values,
/// large ones on many mild ones (Vovk, Nouretdinov, Gammerman, "Testing exchangeability on-line",
/// 2003).
const EXPONENTS: [f64; 4] = [0.15, 0.35, 0.55, 0.8];

/// The values remembered of one season; when one is full, the test begins anew, which keeps its
/// guarantee exact.
const SEASON_MAX: usize = 4096;

/// A p-value of 0 would be infinite evidence; ranks cannot give a smaller one than this before
/// [`SEASON_MAX`] anyway.
const P_MIN: f64 = 1e-9;

/// Detects that a series has changed, with a stated rate of false alarms.
///
/// Each value is ranked among all earlier ones of its *season* (a part of the day, or a level of
/// load: values are only compared with their like). Where the values of a season are exchangeable
/// (nothing has changed), the rank's smoothed p-value is uniform and independent of those before
/// it, whatever the distribution (a Mondrian conformal p-value: Vovk, Gammerman, Shafer,
/// *Algorithmic Learning in a Random World*, 2005, §4.5). Bets κ·p^(κ−1) against that, on low and
/// on high values, have mean 1; the Shiryaev–Roberts sum over all moments at which the change may
/// have happened,
///
/// Mₙ = (Mₙ₋₁ + 1) · betₙ, averaged over the bets,
///
/// is then a submartingale of mean n (Vovk, "Testing randomness online", 2021; Shin, Ramdas,
/// Rinaldo, "E-detectors", 2024). So an alarm at Mₙ ≥ c comes after c values on average or later,
/// and with a chance of at most n / c within any n values (Doob's inequality). `tests/drift.rs`
/// measures that, and how long a change goes unnoticed.
///
/// What breaks the promise is values that resemble the one before them; the season takes out the
/// time of day, and a pair of blocks takes out what both sides feel. A change that is already there
/// when the series begins is what the series is compared with: it cannot be seen.
///
/// ```
/// use paired_stats::DriftTest;
///
/// let mut test = DriftTest::new(1000.0, 7); // a false alarm in 1000 values at the most
/// assert!(!(0..60).any(|i| test.push(0, f64::from(i * 37 % 60))));
/// assert!((0..20).any(|i| test.push(0, 100.0 + f64::from(i))));
/// ```
#[derive(Clone, Debug)]
pub struct DriftTest {
    threshold: f64,
    seed: u64,
    /// Values counted since the (re)start, for the tie-breaking draws.
    drawn: u64,
    seasons: Vec<Vec<f64>>,
    sums: [[f64; EXPONENTS.len()]; 2],
}

impl DriftTest {
    /// A test with at most one false alarm in `run_length` values on average. `seed` breaks ties
    /// between equal values.
    #[must_use]
    pub fn new(run_length: f64, seed: u64) -> Self {
        Self {
            threshold: run_length.max(1.0),
            seed,
            drawn: 0,
            seasons: Vec::new(),
            sums: [[0.0; EXPONENTS.len()]; 2],
        }
    }

    /// Takes a value of that season and says whether there is an alarm. Values that are not finite
    /// are not counted.
    pub fn push(&mut self, season: usize, value: f64) -> bool {
        if !value.is_finite() {
            return self.is_alarm();
        }
        if self.seasons.len() <= season {
            self.seasons.resize_with(season + 1, Vec::new);
        }
        if self.seasons[season].len() >= SEASON_MAX {
            self.restart();
            self.seasons.resize_with(season + 1, Vec::new);
        }
        let draw = self.draw();
        let earlier = &mut self.seasons[season];
        let below = earlier.partition_point(|other| *other < value);
        let equal = earlier[below..].partition_point(|other| *other <= value);
        earlier.insert(below, value);
        // The value itself is among its equals.
        let p = (below as f64 + draw * (equal as f64 + 1.0)) / earlier.len() as f64;
        for (sums, p) in self.sums.iter_mut().zip([p, 1.0 - p]) {
            for (sum, exponent) in sums.iter_mut().zip(EXPONENTS) {
                *sum = (*sum + 1.0) * exponent * p.max(P_MIN).powf(exponent - 1.0);
            }
        }
        self.is_alarm()
    }

    /// Forgets everything: what comes next is what later values are compared with.
    pub fn restart(&mut self) {
        self.drawn = 0;
        self.seasons.clear();
        self.sums = [[0.0; EXPONENTS.len()]; 2];
    }

    /// The evidence for a change so far; an alarm at [`threshold`](Self::threshold).
    #[must_use]
    pub fn evidence(&self) -> f64 {
        let all = self.sums.iter().flatten();
        all.sum::<f64>() / (2 * EXPONENTS.len()) as f64
    }

    /// Values counted since it began.
    #[must_use]
    pub fn len(&self) -> usize {
        self.seasons.iter().map(Vec::len).sum()
    }

    /// No value was counted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.drawn == 0
    }

    /// Values until a false alarm, on average, at the least.
    #[must_use]
    pub fn threshold(&self) -> f64 {
        self.threshold
    }

    fn is_alarm(&self) -> bool {
        self.evidence() >= self.threshold
    }

    /// A number in (0, 1) that depends on the seed and the count alone (SplitMix64: Steele, Lea,
    /// Flood 2014).
    fn draw(&mut self) -> f64 {
        self.drawn += 1;
        let mut z = self
            .seed
            .wrapping_add(self.drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bets_are_fair() {
        // ∫ κ p^(κ−1) dp = 1, by the midpoint rule where the integrand is tame.
        for exponent in EXPONENTS {
            let n = 2_000_000;
            let mean = (0..n)
                .map(|i| exponent * ((f64::from(i) + 0.5) / f64::from(n)).powf(exponent - 1.0))
                .sum::<f64>()
                / f64::from(n);
            assert!((mean - 1.0).abs() < 0.12, "{exponent}: {mean}");
        }
    }

    #[test]
    fn equal_values_are_no_evidence_on_average() {
        let mut total = 0.0;
        for seed in 0..2000 {
            let mut test = DriftTest::new(1e6, seed);
            for _ in 0..10 {
                test.push(0, 1.0);
            }
            total += test.evidence();
        }
        // The mean after n values is n, with heavy tails.
        assert!((4.0..20.0).contains(&(total / 2000.0)), "{total}");
    }

    #[test]
    fn a_season_is_compared_with_itself() {
        let mut test = DriftTest::new(1000.0, 1);
        let alarm = (0..600).any(|i: i32| {
            let season = usize::from(i % 2 == 1);
            test.push(season, f64::from(i * 37 % 101) + 1000.0 * season as f64)
        });
        assert!(!alarm, "{}", test.evidence());
    }

    #[test]
    fn what_is_not_finite_is_not_counted_and_a_restart_forgets() {
        let mut test = DriftTest::new(100.0, 1);
        assert!(!test.push(0, f64::NAN));
        assert_eq!(test.evidence(), 0.0);
        for i in 0..50 {
            test.push(0, f64::from(i * 37 % 50));
        }
        while !test.push(0, 1000.0) {}
        test.restart();
        assert_eq!(test.evidence(), 0.0);
        assert!(!test.push(0, 0.0));
    }
}
