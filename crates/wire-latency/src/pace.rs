//! How often a source is asked that costs somebody CPU time.

use std::time::{Duration, Instant};

/// No source is asked more often: a page that is rendered, a query or a command costs CPU time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Keeps looks apart from each other.
#[derive(Debug)]
pub(crate) struct Pace {
    every: Duration,
    last: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, last: None }
    }

    /// Waits until the next look is due: at `until`, or later where the last look was too short a
    /// time ago. The first look is due at once.
    pub(crate) fn wait(&mut self, until: Instant) {
        if let Some(last) = self.last {
            let due = until.max(last + self.every);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        self.last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_keep_their_distance() {
        let mut pace = Pace::new(Duration::from_millis(30));
        let began = Instant::now();
        pace.wait(began + Duration::from_secs(60));
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the first is due at once"
        );
        pace.wait(began);
        pace.wait(began);
        assert!(began.elapsed() >= Duration::from_millis(60));
    }
}
