//! Numbers that all threads of a device change.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

/// A number of tokens, of requests or of nanoseconds.
///
/// Relaxed operations are enough: an operation on one word is whole, so nothing is counted twice or
/// lost, and no thread concludes from a word what other memory holds. Where the order of two words
/// matters, [`Account`](crate::account::Account) has it.
///
/// `is_alone`: no other thread ever writes the word. Then a load and a store do, at a third of the
/// price.
#[derive(Debug, Default)]
pub(crate) struct Word(AtomicI64);

impl Word {
    pub(crate) fn new(value: i64) -> Self {
        Self(AtomicI64::new(value))
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, value: i64) {
        self.0.store(value, Relaxed);
    }

    /// Replaces the value, and gives the one before and the new one.
    pub(crate) fn update(&self, is_alone: bool, change: impl Fn(i64) -> i64) -> (i64, i64) {
        let mut before = self.get();
        loop {
            let after = change(before);
            if after == before {
                return (before, after);
            }
            if is_alone {
                self.set(after);
                return (before, after);
            }
            match self
                .0
                .compare_exchange_weak(before, after, Relaxed, Relaxed)
            {
                Ok(_) => return (before, after),
                Err(now) => before = now,
            }
        }
    }

    /// Gives the new value.
    pub(crate) fn add(&self, is_alone: bool, more: i64) -> i64 {
        self.update(is_alone, |value| value.saturating_add(more)).1
    }

    /// Never lowers the value. Gives the one before: of all threads that raise it, each gets a part
    /// of the way, and no part is anybody else's.
    pub(crate) fn raise(&self, is_alone: bool, to: i64) -> i64 {
        self.update(is_alone, |value| value.max(to)).0
    }

    /// Takes at most `wanted` of what is above `floor`.
    pub(crate) fn take(&self, is_alone: bool, wanted: i64, floor: i64) -> i64 {
        let rest = |value: i64| value - wanted.min(value - floor).max(0);
        let (before, after) = self.update(is_alone, rest);
        before - after
    }

    /// Gives the value before.
    pub(crate) fn replace(&self, is_alone: bool, value: i64) -> i64 {
        self.update(is_alone, |_| value).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_take_and_raise_get_each_part_once() {
        let (tokens, time) = (Word::new(100_000), Word::new(0));
        let sums: Vec<(i64, i64)> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut sums = (0, 0);
                        for now in 0..20_000 {
                            sums.0 += tokens.take(false, 7, -50_000);
                            sums.1 += (now - time.raise(false, now)).max(0);
                        }
                        sums
                    })
                })
                .collect();
            let ended = running.into_iter().map(|thread| thread.join().unwrap());
            ended.collect()
        });
        let taken: i64 = sums.iter().map(|(taken, _)| taken).sum();
        let passed: i64 = sums.iter().map(|(_, passed)| passed).sum();
        assert_eq!((taken, tokens.get()), (150_000, -50_000));
        assert_eq!((passed, time.get()), (19_999, 19_999));
    }

    #[test]
    fn nothing_is_taken_below_the_floor() {
        let word = Word::new(-5);
        assert_eq!(word.take(true, 10, 0), 0);
        assert_eq!(word.take(true, 3, -10), 3);
        assert_eq!(word.take(true, -3, -10), 0);
        assert_eq!((word.add(true, 1), word.replace(true, 9)), (-7, -7));
    }
}
