//! When requests are due.

use std::collections::VecDeque;
use std::path::Path;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::{Error, read};

/// No rate is higher: a hundred times what one core of a generator sends.
const PER_S_MAX: f64 = 10_000_000.0;

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
    /// Reads recorded arrivals: a number of seconds in each line, in order; the first is the start.
    /// Empty lines and those that start with `#` do not count.
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

    /// Checks rate and length of a run.
    ///
    /// # Errors
    ///
    /// [`Error::Number`] for a rate or a length that cannot be.
    ///
    /// ```
    /// assert!(load::Arrivals::Constant { per_s: 4.0 }.check(1.0).is_ok());
    /// assert!(load::Arrivals::Constant { per_s: 0.0 }.check(1.0).is_err());
    /// ```
    pub fn check(&self, duration_s: f64) -> Result<(), Error> {
        let number = |what, reason: &str| Error::Number {
            what,
            reason: reason.to_owned(),
        };
        if !(duration_s > 0.0 && duration_s.is_finite()) {
            return Err(number("duration", "must be above 0 s"));
        }
        match self {
            Self::Constant { per_s } | Self::Random { per_s, .. } => {
                if !(*per_s > 0.0 && per_s.is_finite()) {
                    return Err(number("rate", "must be above 0 a second"));
                }
                if *per_s > PER_S_MAX {
                    return Err(number("rate", "must be at most ten million a second"));
                }
                Ok(())
            }
            Self::Recorded { .. } => Ok(()),
        }
    }

    /// When the last request of a run of `duration_s` is due at the latest.
    pub(crate) fn end_s(&self, duration_s: f64) -> f64 {
        match self {
            Self::Recorded { at_s } => {
                let last = at_s.iter().rfind(|time| **time < duration_s);
                last.map_or(0.0, |last| last + 1e-9)
            }
            _ => duration_s,
        }
    }
}

/// A request that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Nanoseconds from the start of the run.
    pub(crate) at_ns: u64,
    /// Its place among all arrivals, from 0.
    pub(crate) number: u64,
}

/// A part of a recording, which is replayed later.
#[derive(Clone, Copy, Debug)]
struct Repeat {
    from: usize,
    to: usize,
    later_s: f64,
}

/// The arrivals of a run, one after the other. Each of several threads takes every n-th.
#[derive(Debug)]
pub(crate) struct Schedule<'a> {
    arrivals: &'a Arrivals,
    rng: ChaCha8Rng,
    number: u64,
    time_s: f64,
    end_s: f64,
    repeats: VecDeque<Repeat>,
    next: Option<Due>,
    thread: u64,
    threads: u64,
}

impl<'a> Schedule<'a> {
    /// The arrivals of thread `thread` of `threads`, before `end_s`.
    pub(crate) fn new(arrivals: &'a Arrivals, end_s: f64, thread: u64, threads: u64) -> Self {
        let seed = match arrivals {
            Arrivals::Random { seed, .. } => *seed,
            _ => 0,
        };
        let mut repeats = VecDeque::new();
        if let Arrivals::Recorded { at_s } = arrivals {
            repeats.push_back(Repeat {
                from: 0,
                to: at_s.partition_point(|time| *time < end_s),
                later_s: 0.0,
            });
        }
        let mut schedule = Self {
            arrivals,
            rng: ChaCha8Rng::seed_from_u64(seed),
            number: 0,
            time_s: 0.0,
            end_s,
            repeats,
            next: None,
            thread,
            threads,
        };
        if matches!(arrivals, Arrivals::Random { .. }) {
            schedule.draw();
        }
        schedule.advance();
        schedule
    }

    /// The next request that is due, if there is another one.
    pub(crate) fn peek(&self) -> Option<Due> {
        self.next
    }

    /// Goes on to the one after it.
    pub(crate) fn advance(&mut self) {
        self.next = loop {
            let Some(due) = self.following() else {
                break None;
            };
            if due.number % self.threads == self.thread {
                break Some(due);
            }
        };
    }

    /// Adds arrivals at the end: as many seconds more of a rate, or that part of a recording once
    /// more.
    pub(crate) fn repeat(&mut self, from_s: f64, to_s: f64) {
        if let Arrivals::Recorded { at_s } = self.arrivals {
            self.repeats.push_back(Repeat {
                from: at_s.partition_point(|time| *time < from_s),
                to: at_s.partition_point(|time| *time < to_s),
                later_s: self.end_s - from_s,
            });
        }
        self.end_s += to_s - from_s;
        if self.next.is_none() {
            self.advance();
        }
    }

    fn following(&mut self) -> Option<Due> {
        let due = match self.arrivals {
            Arrivals::Constant { per_s } => {
                let at_s = self.number as f64 / per_s;
                (at_s < self.end_s).then(|| Due {
                    at_ns: nanoseconds(at_s),
                    number: self.number,
                })?
            }
            Arrivals::Random { .. } => {
                let at_s = self.time_s;
                (at_s < self.end_s).then(|| self.draw())?;
                Due {
                    at_ns: nanoseconds(at_s),
                    number: self.number,
                }
            }
            Arrivals::Recorded { at_s } => {
                let part = loop {
                    let part = self.repeats.front_mut()?;
                    if part.from < part.to {
                        break part;
                    }
                    self.repeats.pop_front();
                };
                let index = part.from;
                part.from += 1;
                return Some(Due {
                    at_ns: nanoseconds(at_s[index] + part.later_s),
                    number: index as u64,
                });
            }
        };
        self.number += 1;
        Some(due)
    }

    /// Exponential distances between arrivals: a Poisson process.
    fn draw(&mut self) {
        if let Arrivals::Random { per_s, .. } = self.arrivals {
            self.time_s -= (1.0 - self.rng.random::<f64>()).ln() / per_s;
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and below a run's length"
)]
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due_ns(arrivals: &Arrivals, duration_s: f64) -> Vec<u64> {
        all(&mut Schedule::new(arrivals, duration_s, 0, 1))
    }

    fn all(schedule: &mut Schedule<'_>) -> Vec<u64> {
        std::iter::from_fn(|| {
            let due = schedule.peek()?;
            schedule.advance();
            Some(due.at_ns)
        })
        .collect()
    }

    #[test]
    fn random_arrivals_have_their_rate_and_repeat() {
        let arrivals = |seed| Arrivals::Random {
            per_s: 1000.0,
            seed,
        };
        let due = due_ns(&arrivals(7), 10.0);
        // Poisson: 10,000 with a deviation of 100.
        assert!((9_500..10_500).contains(&due.len()), "{}", due.len());
        assert!(due.is_sorted() && due[due.len() - 1] < 10_000_000_000);
        assert_eq!(due, due_ns(&arrivals(7), 10.0));
        assert_ne!(due, due_ns(&arrivals(8), 10.0));
    }

    #[test]
    fn recorded_arrivals_start_at_zero() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# a day\n100.5\n\n100.75\n103\n").unwrap();
        let arrivals = Arrivals::read(file.path()).unwrap();
        assert_eq!(due_ns(&arrivals, 2.0), [0, 250_000_000]);
        assert!((arrivals.end_s(2.0) - 0.25).abs() < 1e-6);
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
    fn a_second_can_be_repeated_at_the_end() {
        let second = 1_000_000_000;
        let constant = Arrivals::Constant { per_s: 2.0 };
        let mut schedule = Schedule::new(&constant, 1.0, 0, 1);
        assert_eq!(all(&mut schedule), [0, second / 2]);
        schedule.repeat(0.0, 1.0);
        assert_eq!(all(&mut schedule), [second, second * 3 / 2]);
        let recorded = Arrivals::Recorded {
            at_s: vec![0.0, 0.5, 1.25, 2.0],
        };
        let mut schedule = Schedule::new(&recorded, 2.0, 0, 1);
        schedule.repeat(1.0, 2.0);
        let fourth = second / 4;
        assert_eq!(all(&mut schedule), [0, second / 2, 5 * fourth, 9 * fourth]);
        // A rate goes on as if it had not stopped.
        let random = Arrivals::Random {
            per_s: 50.0,
            seed: 3,
        };
        let mut schedule = Schedule::new(&random, 1.0, 0, 1);
        let mut due = all(&mut schedule);
        schedule.repeat(0.0, 1.0);
        due.extend(all(&mut schedule));
        assert_eq!(due, due_ns(&random, 2.0));
    }

    #[test]
    fn threads_share_the_arrivals() {
        let arrivals = Arrivals::Random {
            per_s: 100.0,
            seed: 1,
        };
        let mut of_both = Vec::new();
        for thread in 0..2 {
            of_both.extend(all(&mut Schedule::new(&arrivals, 1.0, thread, 2)));
        }
        of_both.sort_unstable();
        assert_eq!(of_both, due_ns(&arrivals, 1.0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (per_s, duration_s) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0), (1e9, 60.0)] {
            assert!(Arrivals::Constant { per_s }.check(duration_s).is_err());
        }
    }
}
