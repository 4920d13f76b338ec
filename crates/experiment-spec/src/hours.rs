//! The part of every day in which something may be changed.

use jiff::civil::Time;

/// Part of every day, from `start` until before `end`; over midnight where `end` is not later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    start: Time,
    end: Time,
}

impl Hours {
    /// Parses `09:00-17:00`; `22:00-04:00` goes over midnight.
    ///
    /// # Errors
    /// What was expected, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is not HH:MM-HH:MM, such as 09:00-17:00");
        let (start, end) = text.split_once('-').ok_or_else(expected)?;
        let time = |text: &str| Time::strptime("%H:%M", text.trim()).map_err(|_| expected());
        let hours = Self {
            start: time(start)?,
            end: time(end)?,
        };
        if hours.start == hours.end {
            return Err(format!("{text:?} is empty; leave hours out for any time"));
        }
        Ok(hours)
    }

    /// Whether this time of the day is within.
    #[must_use]
    pub fn holds(self, time: Time) -> bool {
        if self.start < self.end {
            (self.start..self.end).contains(&time)
        } else {
            time >= self.start || time < self.end
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_nonsense() {
        for text in ["", "9-17", "09:00", "09:00-25:00", "09:00-09:00"] {
            assert!(Hours::parse(text).is_err(), "{text}");
        }
    }
}
