//! The source that reads packets: ring, parser and connections together, within a budget of CPU
//! time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::distribution::Distribution;
use crate::namespace::{is_listened, open_ring};
use crate::reading::{NoData, Slice};
use crate::ring::{BLOCKS, Ring};
use crate::sampling::{Share, Traffic};
use crate::segment::parse;
use crate::source::{LatencySource, Surroundings, WireSpec};
use crate::tracker::Tracker;
use crate::{Error, filter};

/// How often the share of what is looked at is thought over; also the period in which time is
/// sampled.
const PERIOD: Duration = Duration::from_secs(1);
/// After a poll with at most so many blocks, half of the ring, the next poll sleeps until its end.
/// To wait for packets would wake this thread for every block that ages, 25 times a second.
const QUIET_BLOCKS: u32 = BLOCKS / 2;
/// A sleep is not longer: a load that begins meanwhile has to fit into the ring.
const SLEEP_MAX: Duration = Duration::from_millis(250);
/// How often an idle service's port is looked for: for the table of sockets the kernel goes through
/// all of its hash buckets, which takes it several milliseconds.
const LISTENER_EVERY: Duration = Duration::from_secs(10);

/// A service's packets.
#[derive(Debug)]
pub(crate) struct Wire {
    spec: WireSpec,
    budget_cores: f64,
    ring: Ring,
    tracker: Tracker,
    share: Share,
    /// Packets pass at present; else the rest of the period is left out.
    is_open: bool,
    /// When packets began to pass the last time, on the packets' clock.
    opened_ns: u64,
    period_began: Instant,
    /// CPU time of this thread when the period began.
    period_cpu: Option<Duration>,
    /// The most connections within a poll of this period.
    connections: u64,
    packets_in_period: u64,
    /// Whether somebody listened when this was last looked at.
    listener: Result<(), NoData>,
    listener_checked: Option<Instant>,
    /// CPU time of this thread at the last poll.
    polled_cpu: Option<Duration>,
    /// Blocks of the ring that the last poll has read.
    polled_blocks: u32,
}

impl Wire {
    pub(crate) fn open(spec: &WireSpec, surroundings: &Surroundings) -> Result<Self, Error> {
        let spec = WireSpec {
            pid: spec.pid.or(surroundings.pid),
            ..spec.clone()
        };
        spec.check()?;
        let given = spec.cpu_budget_cores;
        let share = Share::EVERYTHING;
        let program = filter::program(spec.port, share.connections);
        Ok(Self {
            ring: open_ring(spec.pid, program)?,
            tracker: Tracker::new(spec.port, spec.protocol),
            share,
            is_open: true,
            opened_ns: 0,
            period_began: Instant::now(),
            period_cpu: None,
            connections: 0,
            packets_in_period: 0,
            listener: Ok(()),
            listener_checked: None,
            polled_cpu: None,
            polled_blocks: 0,
            budget_cores: given.unwrap_or(surroundings.cpu_budget_cores),
            spec,
        })
    }

    /// Reads what has come; so many blocks.
    fn drain(&mut self) -> u32 {
        let (tracker, packets) = (&mut self.tracker, &mut self.packets_in_period);
        let opened_ns = self.opened_ns;
        self.ring.drain(|packet| {
            *packets += 1;
            // The kernel hands over a block of the ring when it is full or some time has passed:
            // packets from before the pause come after it. A request among them would get the
            // answer of a later one.
            if packet.time_ns < opened_ns {
                return;
            }
            let segment = parse(packet.bytes, packet.ethernet_type, packet.wire_length);
            if let Some(segment) = segment {
                tracker.take(packet.time_ns, &segment);
            }
        })
    }

    /// Waits for packets, or for the time where so few come that the ring holds them all.
    fn wait(&self, at_most: Duration) -> Result<(), NoData> {
        if self.polled_blocks <= QUIET_BLOCKS {
            std::thread::sleep(at_most.min(SLEEP_MAX));
            return Ok(());
        }
        self.ring.wait(at_most).map_err(|error| NoData::Failed {
            why: format!("the packet socket: {error}"),
        })
    }

    /// How long packets still pass, or do not, in this period.
    fn phase_end(&self) -> Instant {
        let open_s = PERIOD.mul_f64(self.share.time);
        self.period_began + if self.is_open { open_s } else { PERIOD }
    }

    /// Changes between the two phases of a period, and begins the next one.
    fn advance(&mut self, now: Instant) -> Result<(), NoData> {
        if now < self.phase_end() {
            return Ok(());
        }
        if self.is_open && self.share.time < 1.0 {
            self.is_open = false;
            self.filter(&filter::nothing())?;
            self.drain();
            // What happens meanwhile is not seen: nothing of what waits can be paired.
            self.tracker.clear();
            return Ok(());
        }
        self.adjust(now)
    }

    fn adjust(&mut self, now: Instant) -> Result<(), NoData> {
        let cpu = thread_cpu();
        let length_s = now.duration_since(self.period_began).as_secs_f64();
        if let Some(before) = self.period_cpu {
            let used_cores = cpu.saturating_sub(before).as_secs_f64() / length_s.max(1e-3);
            let seen = Traffic {
                packets: self.packets_in_period,
                connections: self.connections,
            };
            let next = self.share.next(used_cores, self.budget_cores, seen);
            let is_same = next.connections == self.share.connections && self.is_open;
            if !self.is_open {
                self.opened_ns = realtime_ns();
            }
            if !is_same {
                self.filter(&filter::program(self.spec.port, next.connections))?;
            }
            let sampled = next.connections;
            self.tracker
                .retain(|client, port| sampled.admits(client, port));
            self.share = next;
        }
        self.is_open = true;
        match std::mem::take(&mut self.packets_in_period) {
            0 => self.check_listener(now),
            _ => (self.listener, self.listener_checked) = (Ok(()), None),
        }
        // What the look at the listener costs says nothing of packets.
        (self.period_began, self.period_cpu, self.connections) = (now, Some(thread_cpu()), 0);
        Ok(())
    }

    fn filter(&self, program: &[libc::sock_filter]) -> Result<(), NoData> {
        self.ring
            .set_filter(program)
            .map_err(|error| NoData::Failed {
                why: format!("the packet filter cannot be changed: {error}"),
            })
    }

    fn check_listener(&mut self, now: Instant) {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= LISTENER_EVERY;
        if self.listener_checked.is_none_or(is_due) {
            self.listener_checked = Some(now);
            self.listener = self.find_listener();
        }
    }

    fn find_listener(&self) -> Result<(), NoData> {
        let port = self.spec.port;
        match is_listened(self.spec.pid, port) {
            Ok(true) => Ok(()),
            Ok(false) => Err(NoData::NobodyListens { port }),
            Err(error) => Err(NoData::Failed {
                why: format!(
                    "process {} is gone: {error}",
                    self.spec.pid.unwrap_or_default()
                ),
            }),
        }
    }
}

impl LatencySource for Wire {
    fn describe(&self) -> String {
        format!("the wire, TCP port {}", self.spec.port)
    }

    fn poll(&mut self, until: Instant) -> Result<Slice, NoData> {
        let began_cpu = *self.polled_cpu.get_or_insert_with(thread_cpu);
        let mut trouble = Ok(());
        let mut blocks = 0;
        loop {
            blocks += self.drain();
            let now = Instant::now();
            if let Err(no_data) = self.advance(now) {
                trouble = Err(no_data);
            }
            if now >= until {
                break;
            }
            let next = until.min(self.phase_end());
            self.wait(next.saturating_duration_since(now))?;
        }
        self.polled_blocks = blocks;
        let harvest = self.tracker.harvest(realtime_ns());
        self.connections = self.connections.max(harvest.counts.connections);
        let mut counts = harvest.counts;
        counts.dropped = self.ring.statistics().dropped;
        let cpu = thread_cpu();
        self.polled_cpu = Some(cpu);
        trouble.and_then(|()| self.listener.clone())?;
        Ok(Slice {
            distribution: Distribution::Fine(harvest.latencies),
            sampled_share: self.share.of_all(),
            counts,
            waiting: harvest.waiting,
            oldest_waiting_s: harvest.oldest_waiting_ns as f64 / 1e9,
            own_cpu_s: cpu.saturating_sub(began_cpu).as_secs_f64(),
            own_window: None,
        })
    }
}

/// CPU time of the calling thread.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The packets' clock.
fn realtime_ns() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    let time = Duration::try_from(time).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
