//! A thread of its own for a source, so that nobody waits for a service that does not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::reading::{Look, Slice};
use crate::source::{LatencySource, SourceSpec, Surroundings};
use crate::stopper::Stopper;
use crate::window::{Window, WindowRules};
use crate::{Distribution, Error, open};

/// How long the end of the thread is waited for: a few polls of a source that does not hang.
const END_WAIT: Duration = Duration::from_millis(500);
const END_POLL: Duration = Duration::from_millis(2);

/// A source that is polled all the time. Dropping it ends the thread, and a command that runs.
#[derive(Debug)]
pub struct Monitor {
    seen: Arc<Mutex<Seen>>,
    ends: Arc<AtomicBool>,
    description: String,
    stopper: Option<Stopper>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has polled.
#[derive(Debug)]
struct Seen {
    window: Window,
    /// What nobody has taken yet.
    fresh: Distribution,
    /// When a slice with a window of its own last counted as fresh.
    counted: Option<Instant>,
}

impl Seen {
    fn new(rules: WindowRules) -> Self {
        Self {
            window: Window::new(rules),
            fresh: Distribution::Empty,
            counted: None,
        }
    }

    /// Adds what has not been counted yet. Of a source with a window of its own, such as a query of
    /// Prometheus, one answer a window counts: the answers between hold the same requests.
    fn add_fresh(&mut self, slice: &Slice, now: Instant) {
        if let Some(window) = slice.own_window {
            if self.counted.is_some_and(|last| now < last + window) {
                return;
            }
            self.counted = Some(now);
        }
        self.fresh.merge(&slice.distribution);
    }
}

impl Monitor {
    /// Opens the source and polls it every `every` from now on.
    ///
    /// # Errors
    /// The source cannot be opened. [`Error::is_missing_privilege`] says whether a privilege is
    /// missing.
    pub fn start(
        spec: &SourceSpec,
        surroundings: &Surroundings,
        rules: WindowRules,
        every: Duration,
    ) -> Result<Self, Error> {
        Self::of_source(open(spec, surroundings)?, rules, every)
    }

    /// As [`Monitor::start`], of a source that is open.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn of_source(
        mut source: Box<dyn LatencySource>,
        rules: WindowRules,
        every: Duration,
    ) -> Result<Self, Error> {
        let seen = Arc::new(Mutex::new(Seen::new(rules)));
        let ends = Arc::new(AtomicBool::new(false));
        let (description, stopper) = (source.describe(), source.stopper());
        let (shared, is_over) = (Arc::clone(&seen), Arc::clone(&ends));
        let body = move || {
            let mut begin = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                let polled = source.poll(begin + every);
                let end = Instant::now();
                let mut seen = lock(&shared);
                if let Ok(slice) = &polled {
                    seen.add_fresh(slice, end);
                }
                seen.window.push(begin, end, polled);
                drop(seen);
                // A source that fails at once is not to be asked in a tight loop.
                std::thread::sleep((begin + every).saturating_duration_since(end));
                begin = end;
            }
        };
        let thread = std::thread::Builder::new()
            .name("latency".to_owned())
            .spawn(body)
            .map_err(Error::Thread)?;
        Ok(Self {
            seen,
            ends,
            description,
            stopper,
            thread: Some(thread),
        })
    }

    /// The source in a few words, without credentials.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The latencies of the window that ends now. Never waits for the source.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look(&self) -> Look {
        lock(&self.seen).window.look(Instant::now())
    }

    /// The latencies of the last `length`, at most the window of the rules.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look_over(&self, length: Duration) -> Look {
        lock(&self.seen).window.look_over(Instant::now(), length)
    }

    /// Everything since the last restart, however long ago.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn look_since_restart(&self) -> Look {
        lock(&self.seen).window.look_since_restart(Instant::now())
    }

    /// The latencies since the last time this was asked. Never waits for the source.
    pub fn take_fresh(&self) -> Distribution {
        std::mem::take(&mut lock(&self.seen).fresh)
    }

    /// Begins a new window: what was seen before now no longer counts.
    pub fn restart(&self) {
        lock(&self.seen).window.restart(Instant::now());
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(stopper) = &self.stopper {
            stopper.stop();
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        // Its socket goes with it. A source that hangs is left to its time limit: nobody waits for
        // it.
        let give_up = Instant::now() + END_WAIT;
        while !thread.is_finished() && Instant::now() < give_up {
            std::thread::sleep(END_POLL);
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fine;
    use crate::reading::NoData;

    /// Gives a request a poll, until it hangs.
    struct Hanging(u32);

    impl LatencySource for Hanging {
        fn describe(&self) -> String {
            "a test".to_owned()
        }

        fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
            self.0 -= 1;
            if self.0 == 0 {
                std::thread::sleep(Duration::from_secs(3600));
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            let mut fine = Fine::default();
            fine.record_ns(1000);
            Ok(Slice {
                distribution: Distribution::Fine(fine),
                sampled_share: 1.0,
                ..Slice::default()
            })
        }
    }

    #[test]
    fn a_source_that_hangs_becomes_stale_and_nobody_waits() {
        let rules = WindowRules {
            length: Duration::from_secs(60),
            minimum_requests: 1,
            stale_after: Duration::from_millis(300),
        };
        let every = Duration::from_millis(20);
        let monitor = Monitor::of_source(Box::new(Hanging(10)), rules, every).unwrap();
        let mut seen = 0;
        let began = Instant::now();
        let last = loop {
            match monitor.look() {
                Ok(reading) => seen = reading.requests,
                Err(NoData::Starting) => {}
                Err(other) => break other,
            }
            assert!(began.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(matches!(last, NoData::Stale { .. }), "{last}");
        assert_eq!(seen, 9);
        drop(monitor);
    }

    #[test]
    fn answers_with_a_window_of_their_own_count_once_a_window() {
        let mut seen = Seen::new(WindowRules::default());
        let began = Instant::now();
        let slice = |own_window| {
            let mut fine = Fine::default();
            fine.record_times_ns(1000, 100);
            Slice {
                distribution: Distribution::Fine(fine),
                own_window,
                ..Slice::default()
            }
        };
        for second in 0..20 {
            let window = Some(Duration::from_secs(10));
            seen.add_fresh(&slice(window), began + Duration::from_secs(second));
        }
        assert_eq!(seen.fresh.requests(), 200);
        for second in 0..20 {
            seen.add_fresh(&slice(None), began + Duration::from_secs(second));
        }
        assert_eq!(seen.fresh.requests(), 2200);
    }
}
