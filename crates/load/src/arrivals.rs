//! When requests are due.

use std::path::Path;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::{Error, read};

/// No run has more arrivals than this: 80 MB of schedule.
const ARRIVALS_MAX: f64 = 10_000_000.0;

/// A schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Equal distances.
    Constant {
        /// Requests a second.
        per_s: f64,
    },
    /// Independent of each other, as those of many users are (Poisson).
    Random {
        /// Requests a second, on average.
        per_s: f64,
        /// The same seed, the same arrivals.
        seed: u64,
    },
    /// As recorded: seconds from the start, in order; the run ends with the last.
    Recorded {
        /// The times.
        at_s: Vec<f64>,
    },
}

impl Arrivals {
    /// Reads recorded arrivals: a number of seconds in each line, in order; the first is the start. Empty lines and those
    /// that start with `#` do not count.
    ///
    /// # Errors
    ///
    /// [`Error::File`], [`Error::Line`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut at_s: Vec<f64> = Vec::new();
        for (index, line) in read(path)?.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let error = |reason: String| Error::in_line(path, index + 1, reason);
            let time: f64 = line
                .parse()
                .ok()
                .filter(|time: &f64| time.is_finite())
                .ok_or_else(|| error(format!("{line:?} is not a number of seconds")))?;
            if at_s.last().is_some_and(|last| time < *last) {
                return Err(error("times must not decrease".to_owned()));
            }
            at_s.push(time);
        }
        let Some(first) = at_s.first().copied() else {
            let reason = "there are no arrivals".to_owned();
            return Err(Error::in_line(path, 1, reason));
        };
        at_s.iter_mut().for_each(|time| *time -= first);
        Ok(Self::Recorded { at_s })
    }

    /// The arrivals of a run of `duration_s`, in nanoseconds from its start.
    ///
    /// # Errors
    ///
    /// [`Error::Number`] for a rate or a length that cannot be.
    ///
    /// ```
    /// let due = load::Arrivals::Constant { per_s: 4.0 }.due_ns(1.0)?;
    /// assert_eq!(due, [0, 250_000_000, 500_000_000, 750_000_000]);
    /// # Ok::<(), load::Error>(())
    /// ```
    pub fn due_ns(&self, duration_s: f64) -> Result<Vec<u64>, Error> {
        let number = |what, reason: &str| Error::Number {
            what,
            reason: reason.to_owned(),
        };
        if !(duration_s > 0.0 && duration_s.is_finite()) {
            return Err(number("duration", "must be above 0 s"));
        }
        let check = |per_s: f64| {
            if !(per_s > 0.0 && per_s.is_finite()) {
                return Err(number("rate", "must be above 0 a second"));
            }
            if per_s * duration_s > ARRIVALS_MAX {
                return Err(number("rate", "more than ten million requests in one run"));
            }
            Ok(())
        };
        let mut due = Vec::new();
        match self {
            Self::Constant { per_s } => {
                check(*per_s)?;
                let mut index = 0.0;
                while index / per_s < duration_s {
                    due.push(nanoseconds(index / per_s));
                    index += 1.0;
                }
            }
            Self::Random { per_s, seed } => {
                check(*per_s)?;
                let mut rng = ChaCha8Rng::seed_from_u64(*seed);
                let mut time_s = 0.0;
                loop {
                    time_s -= (1.0 - rng.random::<f64>()).ln() / per_s;
                    if time_s >= duration_s {
                        break;
                    }
                    due.push(nanoseconds(time_s));
                }
            }
            Self::Recorded { at_s } => {
                let within = at_s.iter().take_while(|time| **time < duration_s);
                due.extend(within.map(|time| nanoseconds(*time)));
            }
        }
        Ok(due)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and below a run's length"
)]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_arrivals_have_their_rate_and_repeat() {
        let arrivals = |seed| {
            Arrivals::Random {
                per_s: 1000.0,
                seed,
            }
            .due_ns(10.0)
            .unwrap()
        };
        let due = arrivals(7);
        // Poisson: 10,000 with a deviation of 100.
        assert!((9_500..10_500).contains(&due.len()), "{}", due.len());
        assert!(due.is_sorted() && due[due.len() - 1] < 10_000_000_000);
        assert_eq!(due, arrivals(7));
        assert_ne!(due, arrivals(8));
    }

    #[test]
    fn recorded_arrivals_start_at_zero() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# a day\n100.5\n\n100.75\n103\n").unwrap();
        let arrivals = Arrivals::read(file.path()).unwrap();
        assert_eq!(arrivals.due_ns(2.0).unwrap(), [0, 250_000_000]);
        for (text, words) in [
            ("1\nx\n", ":2: \"x\" is not a number of seconds"),
            ("2\n1\n", ":2: times must not decrease"),
            ("# none\n", "there are no arrivals"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let error = Arrivals::read(file.path()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (per_s, duration_s) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0), (1e9, 60.0)] {
            assert!(Arrivals::Constant { per_s }.due_ns(duration_s).is_err());
        }
    }
}
