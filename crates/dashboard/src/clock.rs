//! The time by which sessions age and notifications wait: the wall clock at the server's start, and
//! the monotonic clock since then.
//!
//! Somebody who sets the clock of a running server neither ends sessions nor makes them last
//! longer, and holds up no notification.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// A clock that never jumps.
pub(crate) struct Clock {
    wall: Timestamp,
    began: Instant,
}

impl Clock {
    pub(crate) fn start(wall: Timestamp, began: Instant) -> Self {
        Self { wall, began }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Timestamp {
        let gone = now.saturating_duration_since(self.began);
        let gone = SignedDuration::try_from(gone).ok();
        gone.and_then(|gone| self.wall.checked_add(gone).ok())
            .unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_goes_on_from_the_start_whatever_the_wall_clock_says() {
        let (wall, began) = (Timestamp::UNIX_EPOCH, Instant::now());
        let clock = Clock::start(wall, began);
        assert_eq!(clock.at(began), wall);
        let hour = clock.at(began + Duration::from_secs(3600));
        assert_eq!(hour.duration_since(wall), SignedDuration::from_hours(1));
    }
}
