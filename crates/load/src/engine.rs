//! The loop of one thread: sends what is due where a connection is free, reads what has come, and
//! keeps the times of both. All that it knows of the world comes through [`World`], so that it runs
//! in a simulated one as it does on sockets.

use std::ops::Range;

use crate::arrivals::{Due, Schedule};
use crate::counts::{Counts, NEVER_SENT, NO_ANSWER, RequestTimes, Times};
use crate::machine::{Sample, Traffic};
use crate::pacer::{Ns, Pacer};
use crate::second::Facts;

const SECOND_NS: u64 = 1_000_000_000;
/// The loop looks at least this often whether the run was stopped, and for answers that did not
/// come.
const LOOK_NS: u64 = 100_000_000;

/// A wake-up takes 50 to 150 µs in a virtual machine: a loop that polls begins to so long before a
/// request is due.
const POLL_BEFORE_NS: u64 = 200_000;

/// Then the loop looks at what came in: where every connection is refused at once, sending alone
/// would never end.
const SENT_AT_ONCE_MAX: usize = 1024;

/// The outcome of a request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) ticket: u32,
    /// The status, or what went wrong in a few words.
    pub(crate) result: Result<u16, String>,
}

/// Connections, a clock, and counters of the machine.
pub(crate) trait World {
    /// Nanoseconds since the start of the run.
    fn now_ns(&mut self) -> Ns;

    /// Whether a connection can take a request now.
    fn has_room(&self) -> bool;

    /// Sends the request of that place in the list. What becomes of it is an answer of its ticket,
    /// sooner or later.
    fn begin(&mut self, ticket: u32, request: usize, answers: &mut Vec<Answered>);

    /// Gives up a request: no answer of its ticket comes any more.
    fn abandon(&mut self, ticket: u32);

    /// How many connections have something to be handled; waits for the first of them until
    /// `until_ns`, if that is given.
    fn poll(&mut self, until_ns: Option<Ns>) -> usize;

    /// How long this thread could have run in all, and had no CPU.
    fn run_queue_ns(&mut self) -> u64;

    /// Handles what came on one of them.
    fn handle(&mut self, index: usize, answers: &mut Vec<Answered>);

    /// Counters of this thread and the machine.
    fn sample(&mut self) -> Sample;

    /// What went over the connections.
    fn traffic(&self) -> Traffic;
}

/// What a loop is to do.
pub(crate) struct Task<'a> {
    /// When requests are due; without, each connection sends its next one as soon as it has an
    /// answer.
    pub(crate) schedule: Option<Schedule<'a>>,
    /// When the last is due at the latest.
    pub(crate) end_ns: Ns,
    /// Requests that can be on their way at once.
    pub(crate) tickets: u32,
    /// Length of the list of requests.
    pub(crate) requests: usize,
    pub(crate) timeout_ns: u64,
    /// At most so much time is added for what was disturbed.
    pub(crate) repeat_max_ns: u64,
    /// Whether the loop polls, instead of sleeping, while an answer is awaited or a request is due
    /// soon.
    pub(crate) busy_poll: bool,
    pub(crate) stop: &'a (dyn Fn() -> bool + Sync),
}

#[derive(Clone, Copy, Debug, Default)]
struct Underway {
    due_ns: Ns,
    sent_ns: Ns,
    own_wait_ns: u64,
    is_sent: bool,
}

/// The second that is being measured.
struct Current {
    times: Times,
    begin_ns: Ns,
    end_ns: Ns,
    sample: Sample,
    waited_ns: u64,
}

pub(crate) struct Engine<'a, W> {
    world: W,
    task: Task<'a>,
    pacer: Pacer,
    counts: Counts,
    underway: Vec<Underway>,
    free_tickets: Vec<u32>,
    current: Current,
    /// Requests that were due in this time were hurt by a disturbance. Whatever was due before, and
    /// is answered after, waited for the service.
    disturbed: Range<Ns>,
    repeated_ns: u64,
    looked_ns: Ns,
    run_queue_ns: u64,
    /// How long the loop polled in vain.
    polled_ns: u64,
    /// Requests sent so far in a closed loop.
    sent: u64,
}

impl<'a, W: World> Engine<'a, W> {
    pub(crate) fn new(mut world: W, task: Task<'a>) -> Self {
        let sample = world.sample();
        Self {
            pacer: Pacer::default(),
            counts: Counts::new(),
            underway: vec![Underway::default(); task.tickets as usize],
            free_tickets: (0..task.tickets).rev().collect(),
            current: Current {
                times: Times::new(),
                begin_ns: 0,
                end_ns: SECOND_NS.min(task.end_ns.max(1)),
                sample,
                waited_ns: 0,
            },
            disturbed: 0..0,
            repeated_ns: 0,
            looked_ns: 0,
            run_queue_ns: sample.run_queue_ns,
            polled_ns: 0,
            sent: 0,
            world,
            task,
        }
    }

    /// Runs to the end of the schedule and of the last answer.
    pub(crate) fn run(mut self) -> Counts {
        let first = self.current.sample;
        let mut answers = Vec::new();
        let mut now = self.world.now_ns();
        self.pacer.asked(now);
        loop {
            now = self.send_due(now, &mut answers);
            if now >= self.current.end_ns {
                self.end_second(now);
                now = self.world.now_ns();
            }
            if now >= self.looked_ns + LOOK_NS.min(self.task.timeout_ns / 10 + 1) {
                self.looked_ns = now;
                self.give_up(now);
                if (self.task.stop)() {
                    break;
                }
            }
            let Some(until) = self.until(now) else { break };
            let mut events = self.world.poll(None);
            let after = self.world.now_ns();
            self.pacer.asked(after);
            now = after;
            if events == 0 && until > after {
                (events, now) = if self.task.busy_poll {
                    self.poll_until(after, until)
                } else {
                    self.sleep_until(after, until)
                };
            }
            for index in 0..events {
                self.world.handle(index, &mut answers);
                now = self.take(&mut answers, now);
                now = self.send_due(now, &mut answers);
            }
        }
        self.finish(now, &first)
    }

    /// Sleeps until something comes, or until `until`: how many connections have something to be
    /// handled, and when.
    fn sleep_until(&mut self, from: Ns, until: Ns) -> (usize, Ns) {
        let events = self.world.poll(Some(until));
        let now = self.world.now_ns();
        let run_queue_ns = self.world.run_queue_ns();
        let queued_ns = run_queue_ns.saturating_sub(self.run_queue_ns);
        self.run_queue_ns = run_queue_ns;
        self.pacer.waited(from, until, now, queued_ns);
        (events, now)
    }

    /// The same without sleeping, as far as an answer is awaited or a request is due soon.
    fn poll_until(&mut self, from: Ns, until: Ns) -> (usize, Ns) {
        let is_idle = self.free_tickets.len() == self.underway.len();
        if is_idle && until > from + POLL_BEFORE_NS {
            // What was waited for a CPU while it polled is no part of this sleep.
            self.run_queue_ns = self.world.run_queue_ns();
            return self.sleep_until(from, until - POLL_BEFORE_NS);
        }
        let mut idle = from;
        loop {
            let events = self.world.poll(None);
            let now = self.world.now_ns();
            if events > 0 || now >= until {
                // Nothing was there at the last poll before: from then on the loop could go on.
                self.pacer.waited(from, until, idle, 0);
                self.pacer.asked(now);
                self.polled_ns += idle - from;
                return (events, now);
            }
            idle = now;
        }
    }

    /// Counts what was answered, and the time at which it was.
    fn take(&mut self, answers: &mut Vec<Answered>, before: Ns) -> Ns {
        if answers.is_empty() {
            return before;
        }
        let now = self.world.now_ns();
        // More may be added while failures lead to further requests.
        while let Some(answered) = answers.pop() {
            self.settle(&answered, now);
        }
        now
    }

    fn settle(&mut self, answered: &Answered, now: Ns) {
        let underway = &mut self.underway[answered.ticket as usize];
        if !std::mem::take(&mut underway.is_sent) {
            return;
        }
        let times = RequestTimes {
            due_ns: underway.due_ns,
            sent_ns: underway.sent_ns,
            answered_ns: now,
            own_wait_ns: underway.own_wait_ns,
            own_read_ns: self.pacer.own_read_ns(now).min(now - underway.sent_ns),
        };
        self.free_tickets.push(answered.ticket);
        let is_good = match &answered.result {
            Ok(status) => self.counts.answer(*status),
            Err(kind) => {
                self.counts.fail(kind);
                false
            }
        };
        self.record(&times, is_good);
    }

    fn record(&mut self, times: &RequestTimes, is_good: bool) {
        if self.disturbed.contains(&times.due_ns) {
            self.counts.aside.record(times, is_good);
        } else {
            self.current.times.record(times, is_good);
        }
    }

    /// Sends what is due, where there is room.
    fn send_due(&mut self, mut now: Ns, answers: &mut Vec<Answered>) -> Ns {
        for _ in 0..SENT_AT_ONCE_MAX {
            let due = self.next_due(now).filter(|due| due.at_ns <= now);
            let Some(due) = due.filter(|_| self.world.has_room()) else {
                break;
            };
            let Some(ticket) = self.free_tickets.pop() else {
                break;
            };
            let is_open_loop = self.task.schedule.is_some();
            let due_ns = if is_open_loop { due.at_ns } else { now };
            let own_wait_ns = self.pacer.own_wait_ns(due_ns, now);
            // Whoever waited for a connection waited longer than the generator explains.
            self.counts.waited += u64::from(now - due_ns > own_wait_ns);
            self.underway[ticket as usize] = Underway {
                due_ns,
                sent_ns: now,
                own_wait_ns,
                is_sent: true,
            };
            self.sent += 1;
            if let Some(schedule) = &mut self.task.schedule {
                schedule.advance();
            }
            let request = due.number % self.task.requests.max(1) as u64;
            let request = usize::try_from(request).unwrap_or(0);
            self.world.begin(ticket, request, answers);
            now = self.take(answers, now).max(self.world.now_ns());
        }
        now
    }

    fn next_due(&self, now: Ns) -> Option<Due> {
        match &self.task.schedule {
            Some(schedule) => schedule.peek(),
            None => (now < self.task.end_ns).then_some(Due {
                at_ns: 0,
                number: self.sent,
            }),
        }
    }

    /// Until when the loop may wait; `None` when all is done.
    fn until(&mut self, now: Ns) -> Option<Ns> {
        let look = self.looked_ns + LOOK_NS.min(self.task.timeout_ns / 10 + 1);
        let next = self.next_due(now);
        let is_idle = self.free_tickets.len() == self.underway.len();
        if next.is_none() && is_idle && now >= self.task.end_ns {
            return None;
        }
        let can_send = self.world.has_room() && !self.free_tickets.is_empty();
        let due = next.filter(|_| can_send).map_or(u64::MAX, |due| due.at_ns);
        Some(due.min(look).min(self.current.end_ns))
    }

    /// Answers that did not come in time, and requests that were never sent.
    fn give_up(&mut self, now: Ns) {
        for ticket in 0..self.task.tickets {
            let underway = self.underway[ticket as usize];
            if underway.is_sent && now >= underway.sent_ns + self.task.timeout_ns {
                self.world.abandon(ticket);
                self.settle(
                    &Answered {
                        ticket,
                        result: Err(NO_ANSWER.to_owned()),
                    },
                    now,
                );
            }
        }
        if now < self.task.end_ns + self.task.timeout_ns {
            return;
        }
        while let Some(due) = self.task.schedule.as_ref().and_then(Schedule::peek) {
            if let Some(schedule) = &mut self.task.schedule {
                schedule.advance();
            }
            self.counts.fail(NEVER_SENT);
            self.counts.waited += 1;
            let times = RequestTimes {
                due_ns: due.at_ns,
                sent_ns: now,
                answered_ns: now,
                own_wait_ns: self.pacer.own_wait_ns(due.at_ns, now),
                own_read_ns: 0,
            };
            self.counts.kept.record(&times, false);
        }
    }

    /// A second is over: it counts, or it is set aside and added at the end.
    fn end_second(&mut self, now: Ns) {
        let sample = self.world.sample();
        let current = &mut self.current;
        let length_ns = current.end_ns - current.begin_ns;
        let waited_ns = self.pacer.waited_ns() - current.waited_ns;
        let facts = Facts {
            requests: current.times.own.len(),
            late: current.times.late(&current.times.own),
            busy_ns: now.saturating_sub(current.begin_ns + waited_ns),
            run_queue_ns: sample
                .run_queue_ns
                .saturating_sub(current.sample.run_queue_ns),
            stolen_share: sample.stolen_share(&current.sample),
            stolen_s: sample.machine.since(current.sample.machine).stolen_s,
            neighbours: sample.neighbours(&current.sample),
        };
        let is_of_plan = current.begin_ns < self.task.end_ns;
        current.times.length_ns = if is_of_plan { length_ns } else { 0 };
        match facts.disturbance() {
            Some(cause) => {
                let (from_s, to_s) = (seconds(current.begin_ns), seconds(current.end_ns));
                self.counts.aside.merge(&current.times);
                if current.begin_ns > self.disturbed.end {
                    self.disturbed.start = current.begin_ns;
                }
                self.disturbed.end = now;
                if is_of_plan {
                    self.counts.disturb(from_s, to_s - from_s, cause);
                    self.repeat(from_s, to_s, length_ns);
                }
            }
            None => self.counts.kept.merge(&current.times),
        }
        let current = &mut self.current;
        current.times.clear();
        current.begin_ns = current.end_ns;
        // The last second of the plan may be a short one; what comes after has no end.
        let end_ns = self.task.end_ns;
        let next = current.begin_ns + SECOND_NS;
        current.end_ns = if current.begin_ns < end_ns {
            next.min(end_ns)
        } else {
            next.max(now)
        };
        current.sample = sample;
        current.waited_ns = self.pacer.waited_ns();
    }

    fn repeat(&mut self, from_s: f64, to_s: f64, length_ns: u64) {
        if self.repeated_ns + length_ns > self.task.repeat_max_ns {
            return;
        }
        self.repeated_ns += length_ns;
        self.task.end_ns += length_ns;
        if let Some(schedule) = &mut self.task.schedule {
            schedule.repeat(from_s, to_s);
        }
    }

    fn finish(mut self, now: Ns, first: &Sample) -> Counts {
        // What a stopped run, or the last answers, left.
        let is_of_plan = self.current.begin_ns < self.task.end_ns;
        if is_of_plan {
            self.current.times.length_ns = now.saturating_sub(self.current.begin_ns);
        }
        self.counts.kept.merge(&self.current.times);
        self.counts.account(first, &self.world.sample());
        self.counts.polled_ns = self.polled_ns;
        self.counts.wall_ns = now;
        self.counts.busy_ns = now.saturating_sub(self.pacer.waited_ns());
        self.counts.traffic = self.world.traffic();
        self.counts
    }
}

pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests;
