//! Who was late: what the generator did and what it waited for, told apart by the times at which it
//! had nothing to do. Pure: times come in.

/// A moment in nanoseconds from the start of the run.
pub(crate) type Ns = u64;

/// Follows the loop of a generator: it handles what has come, and waits when nothing has.
///
/// While the loop waits, it has read every answer that came and sent every request that a free
/// connection could take, so whatever is late then is late because of the service. From the moment
/// at which it could go on, lateness is its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pacer {
    /// Since when the loop has not had to wait.
    busy_since: Ns,
    /// When it last asked what had come: what it handles now came after that.
    asked_before: Ns,
    asked: Ns,
    waited_ns: u64,
}

impl Pacer {
    /// The loop asked at `now` what had come, and did not wait.
    pub(crate) fn asked(&mut self, now: Ns) {
        self.asked_before = self.asked;
        self.asked = now;
    }

    /// The loop waited from `from` to `now`. It should not have slept past `until`, and for the
    /// last `queued_ns` it could have gone on, and had no CPU.
    pub(crate) fn waited(&mut self, from: Ns, until: Ns, now: Ns, queued_ns: u64) {
        let woken = now.saturating_sub(queued_ns).min(until).max(from);
        self.busy_since = woken;
        self.asked_before = woken;
        self.asked = now;
        self.waited_ns += woken - from;
    }

    /// How much of the wait of a request that was due at `due` and is sent at `now` is the
    /// generator's own.
    pub(crate) fn own_wait_ns(&self, due: Ns, now: Ns) -> u64 {
        now.saturating_sub(due.max(self.busy_since))
    }

    /// How long at most an answer that is read at `now` has been there.
    pub(crate) fn own_read_ns(&self, now: Ns) -> u64 {
        now.saturating_sub(self.asked_before)
    }

    /// How long the loop waited in all.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_begins_when_the_loop_could_go_on() {
        let mut pacer = Pacer::default();
        // It waited for answers until 100; a request that was due at 20 waited for the service
        // until then.
        pacer.waited(10, u64::MAX, 100, 0);
        assert_eq!(pacer.own_wait_ns(20, 103), 3);
        assert_eq!(pacer.own_read_ns(104), 4);
        assert_eq!(pacer.waited_ns(), 90);
        // Never idle since: all of it is the generator's, though each turn is short.
        pacer.asked(110);
        pacer.asked(120);
        assert_eq!(pacer.own_wait_ns(20, 125), 25);
        // What is read after the second question came after the first.
        assert_eq!(pacer.own_read_ns(125), 15);
        // It was to wake at 200 for a request, and woke at 250.
        pacer.waited(130, 200, 250, 0);
        assert_eq!(pacer.own_wait_ns(200, 251), 51);
        assert_eq!(pacer.waited_ns(), 160);
        // An answer came at 270, and the loop had no CPU until 300.
        pacer.waited(260, u64::MAX, 300, 30);
        assert_eq!(pacer.own_read_ns(301), 31);
    }
}
