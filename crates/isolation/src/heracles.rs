//! Heracles (Lo et al., ISCA 2015, section 4): a top level on latency and load, and three
//! controllers below it for cores and memory, power, and network.
//!
//! One departure: read literally, the paper's branches on slack run only for a load between 0.80
//! and 0.85. Here the slack is judged independently of the load.

use crate::alarm::Signals;
use crate::controller::{BestEffortWork, ControllerMode, Every, IsolationController, Outbox};
use crate::decision::{ActuatorSetting, Decision, Reason};
use crate::evidence::Evidence;
use crate::harm::load_step;
use crate::network::batch_egress_mbit;
use crate::numbers::{number, whole};
use crate::observation::MachineObservation;

const TOP_S: f64 = 15.0;
const CORES_S: f64 = 2.0;
const POWER_S: f64 = 2.0;
const NETWORK_S: f64 = 1.0;
/// After a violation best-effort work stays off for 5 minutes.
const COOLDOWN_S: f64 = 300.0;
const LOAD_OFF: f64 = 0.85;
const LOAD_ON: f64 = 0.80;
const SLACK_NO_GROWTH: f64 = 0.10;
const SLACK_SHRINK: f64 = 0.05;
/// Cores that stay when the slack is below [`SLACK_SHRINK`].
const CORES_KEPT: u64 = 2;
/// Share of the peak DRAM bandwidth that may be used.
const DRAM_LIMIT: f64 = 0.90;
/// Share of the cache that best-effort work starts with.
const LLC_START: f64 = 0.10;
const POWER_LIMIT: f64 = 0.90;
/// One step of the frequency of best-effort cores: 100 MHz of about 2.5 GHz.
const FREQUENCY_STEP: f64 = 0.04;
const FREQUENCY_LEAST: f64 = 0.4;
/// Where somebody else writes one of these, best-effort work gets nothing more.
const COUNTED_ON: [&str; 2] = ["off", "cpuset"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grow {
    Cache,
    Cores,
}

/// A growth of the cache whose effect is looked at in the next step.
#[derive(Clone, Copy, Debug)]
struct CacheTrial {
    dram_before: f64,
    progress_before: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct Heracles {
    mode: ControllerMode,
    work: BestEffortWork,
    is_on: bool,
    may_grow: bool,
    cooldown_until_s: f64,
    cores: u64,
    ways: u64,
    frequency: f64,
    egress_mbit: Option<f64>,
    grow: Grow,
    trial: Option<CacheTrial>,
    last_dram: Option<f64>,
    /// Latency since the last step of the cores.
    recent: Vec<Evidence>,
    /// DRAM bandwidth of the services by load step: the paper's model, learnt while best-effort
    /// work is off.
    service_dram: std::collections::BTreeMap<i64, f64>,
    why: Reason,
    cores_why: Reason,
    top: Every,
    cores_every: Every,
    power_every: Every,
    network_every: Every,
    outbox: Outbox,
}

impl Default for Heracles {
    fn default() -> Self {
        Self {
            mode: ControllerMode::default(),
            work: BestEffortWork::default(),
            is_on: false,
            may_grow: false,
            cooldown_until_s: f64::NEG_INFINITY,
            cores: 1,
            ways: 0,
            frequency: 1.0,
            egress_mbit: None,
            grow: Grow::Cache,
            trial: None,
            last_dram: None,
            recent: Vec::new(),
            service_dram: std::collections::BTreeMap::new(),
            why: Reason::Start,
            cores_why: Reason::Start,
            top: Every::s(TOP_S),
            cores_every: Every::s(CORES_S),
            power_every: Every::s(POWER_S),
            network_every: Every::s(NETWORK_S),
            outbox: Outbox::default(),
        }
    }
}

impl Heracles {
    pub(crate) fn new(mode: ControllerMode) -> Self {
        Self {
            mode,
            ..Self::default()
        }
    }

    fn switch(&mut self, is_on: bool, why: Reason, seen: &MachineObservation) {
        if self.is_on != is_on {
            self.is_on = is_on;
            self.why = why;
            if is_on {
                // One core and a tenth of the cache.
                self.cores = 1;
                let ways = seen.machine.llc_ways.unwrap_or(0);
                self.ways = whole(number(ways) * LLC_START).max(1).min(ways);
                self.grow = Grow::Cache;
                self.trial = None;
                self.cores_why = Reason::Start;
            }
        }
    }

    fn top_level(&mut self, seen: &MachineObservation, slack: f64, now_s: f64) {
        let load = seen.load();
        if slack < 0.0 {
            self.switch(false, Reason::Violation, seen);
            self.cooldown_until_s = now_s + COOLDOWN_S;
        } else if load > LOAD_OFF {
            self.switch(false, Reason::HighLoad, seen);
        } else if load < LOAD_ON && now_s >= self.cooldown_until_s && !seen.is_foreign(&COUNTED_ON)
        {
            self.switch(true, Reason::LoadFell, seen);
        }
        self.may_grow = slack >= SLACK_NO_GROWTH;
        if slack < SLACK_SHRINK && self.cores > CORES_KEPT {
            self.cores = CORES_KEPT;
            self.cores_why = Reason::LittleSlack;
        }
    }

    fn collect(&mut self, seen: &MachineObservation) {
        self.recent.resize(seen.services.len(), Evidence::default());
        for (evidence, service) in self.recent.iter_mut().zip(&seen.services) {
            if let Some(fresh) = &service.fresh {
                evidence.add(fresh, Signals::default());
            }
        }
    }

    /// The least slack since the last step: cores go over one at a time, "each time checking for"
    /// violations (section 4.3). The top level's 15 s would let seven go before the first one
    /// shows.
    fn recent_slack(&mut self, seen: &MachineObservation) -> f64 {
        let with_requests = self.recent.iter().zip(&seen.services);
        let slacks = with_requests
            .filter(|(evidence, _)| !evidence.is_empty())
            .map(|(evidence, service)| evidence.tail(0.99).slack(service.objective_ms));
        let least = slacks.fold(f64::INFINITY, f64::min);
        self.recent.clear();
        least
    }

    fn cores_and_memory(&mut self, seen: &MachineObservation, slack: f64) {
        let most = whole(seen.machine.cores).saturating_sub(1).max(1);
        let Some((dram, peak)) = seen.machine.dram_gb_per_s else {
            // Without a measure of the bandwidth there are only cores.
            if self.may_grow && slack > SLACK_NO_GROWTH {
                self.cores = (self.cores + 1).min(most);
                self.cores_why = Reason::Slack;
            }
            return;
        };
        let limit = DRAM_LIMIT * peak;
        let derivative = self.last_dram.map_or(0.0, |last| dram - last);
        self.last_dram = Some(dram);
        let service = self.service_bandwidth(seen, dram);
        let groups = (dram - service).max(0.0);
        let per_core = (groups / number(self.cores.max(1))).max(0.01);
        if dram > limit {
            let removed = ((dram - limit) / per_core).ceil();
            self.cores = self.cores.saturating_sub(whole(removed)).max(1);
            self.cores_why = Reason::MemoryBandwidth;
            return;
        }
        if let Some(trial) = self.trial.take() {
            let gained = match (trial.progress_before, seen.groups.first()) {
                (Some(before), Some(group)) => {
                    group.progress_per_s.is_none_or(|now| now > before * 1.01)
                }
                _ => true,
            };
            if dram >= trial.dram_before {
                self.ways = self.ways.saturating_sub(1).max(1);
                self.grow = Grow::Cores;
            } else if !gained {
                self.grow = Grow::Cores;
            }
        }
        if !self.may_grow {
            return;
        }
        match self.grow {
            Grow::Cache => {
                let ways = seen.machine.llc_ways.unwrap_or(0);
                if service + groups + derivative > limit || self.ways + 1 >= ways {
                    self.grow = Grow::Cores;
                } else {
                    self.ways += 1;
                    self.trial = Some(CacheTrial {
                        dram_before: dram,
                        progress_before: seen.groups.first().and_then(|group| group.progress_per_s),
                    });
                }
            }
            Grow::Cores => {
                if service + groups + per_core > limit {
                    self.grow = Grow::Cache;
                } else if slack > SLACK_NO_GROWTH {
                    self.cores = (self.cores + 1).min(most);
                    self.cores_why = Reason::Slack;
                }
            }
        }
    }

    /// The services' bandwidth: measured, or learnt by load while best-effort work is off, or their
    /// share of the cores.
    fn service_bandwidth(&mut self, seen: &MachineObservation, dram: f64) -> f64 {
        let measured: Option<f64> = seen
            .services
            .iter()
            .map(|service| service.dram_gb_per_s)
            .sum();
        if let Some(measured) = measured {
            return measured;
        }
        let step = load_step(seen.load());
        // While only observing, best-effort work runs although it would be off.
        if !self.is_on && self.mode.is_acting() {
            let known = self.service_dram.entry(step).or_insert(dram);
            *known += 0.2 * (dram - *known);
        }
        let nearest = self
            .service_dram
            .iter()
            .min_by_key(|(known, _)| (*known - step).abs());
        match nearest {
            Some((_, known)) => known.min(dram),
            None => {
                let used = seen.service_cores();
                dram * used / (used + seen.group_cores()).max(0.01)
            }
        }
    }

    fn power(&mut self, seen: &MachineObservation) {
        let (Some((power, limit)), Some((frequency, guaranteed))) =
            (seen.machine.power_w, seen.machine.frequency_mhz)
        else {
            return;
        };
        if power > POWER_LIMIT * limit && frequency < guaranteed {
            self.frequency = (self.frequency - FREQUENCY_STEP).max(FREQUENCY_LEAST);
        } else if power <= POWER_LIMIT * limit && frequency >= guaranteed {
            self.frequency = (self.frequency + FREQUENCY_STEP).min(1.0);
        }
    }
}

impl IsolationController for Heracles {
    fn step(&mut self, seen: &MachineObservation, now_s: f64) -> Vec<Decision> {
        self.work = BestEffortWork::of(seen);
        let Some(slack) = seen.least_slack() else {
            return Vec::new();
        };
        if self.top.is_due(now_s) {
            self.top_level(seen, slack, now_s);
        }
        self.may_grow &= !seen.is_foreign(&COUNTED_ON);
        self.collect(seen);
        if self.cores_every.is_due(now_s) {
            if self.is_on {
                let slack = slack.min(self.recent_slack(seen));
                self.cores_and_memory(seen, slack);
            } else if let Some((dram, _)) = seen.machine.dram_gb_per_s {
                self.service_bandwidth(seen, dram);
            }
        }
        if self.power_every.is_due(now_s) {
            self.power(seen);
        }
        if self.network_every.is_due(now_s) {
            self.egress_mbit = batch_egress_mbit(seen).or(self.egress_mbit);
        }
        let outbox = &mut self.outbox;
        outbox.put_groups(seen, ActuatorSetting::Off(!self.is_on), self.why);
        if self.is_on {
            outbox.put_groups(seen, ActuatorSetting::Cores(self.cores), self.cores_why);
            if self.ways > 0 {
                outbox.put_groups(seen, ActuatorSetting::LlcWays(self.ways), Reason::Cache);
            }
            if seen.machine.power_w.is_some() {
                outbox.put_groups(
                    seen,
                    ActuatorSetting::Frequency(self.frequency),
                    Reason::PowerLimit,
                );
            }
            if let Some(rate) = self.egress_mbit {
                outbox.put_groups(seen, ActuatorSetting::EgressMbit(rate), Reason::Network);
            }
        }
        outbox.take()
    }

    fn explain(&self) -> String {
        self.work.absence().unwrap_or_else(|| match self.is_on {
            true => format!("best-effort work {} {} cores", self.mode.has(), self.cores),
            false => format!(
                "best-effort work {} off ({})",
                self.mode.is(),
                self.why.name()
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::{GroupSeen, ServiceSeen};
    use crate::tail::Tail;

    fn seen(latency_ms: f64, load: f64) -> MachineObservation {
        let tail = Some(Tail {
            quantile: 0.99,
            latency_ms,
            requests: 10_000,
            above: None,
        });
        MachineObservation {
            services: vec![ServiceSeen {
                fresh: tail,
                window: tail,
                load: Some(load),
                ..ServiceSeen::without_data("web", 10.0)
            }],
            groups: vec![GroupSeen::running("batch", 1.0)],
            ..MachineObservation::of_cores(36.0)
        }
    }

    fn run(
        heracles: &mut Heracles,
        seen: &MachineObservation,
        from_s: f64,
        to_s: f64,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let mut now_s = from_s;
        while now_s < to_s {
            lines.extend(heracles.step(seen, now_s).iter().map(ToString::to_string));
            now_s += 1.0;
        }
        lines
    }

    #[test]
    fn it_starts_with_one_core_grows_by_one_and_stops_without_slack() {
        let mut heracles = Heracles::default();
        let lines = run(&mut heracles, &seen(5.0, 0.5), 0.0, 10.0);
        assert_eq!(lines[0], "group batch: on (load_fell)");
        assert_eq!(heracles.cores, 6);
        // Less than a tenth of slack: no growth; less than a twentieth: two cores.
        run(&mut heracles, &seen(9.2, 0.5), 15.0, 45.0);
        let cores = heracles.cores;
        run(&mut heracles, &seen(9.2, 0.5), 45.0, 75.0);
        assert_eq!(heracles.cores, cores);
        run(&mut heracles, &seen(9.7, 0.5), 75.0, 91.0);
        assert_eq!(heracles.cores, CORES_KEPT);
    }

    #[test]
    fn a_violation_is_followed_by_five_minutes_without_best_effort_work() {
        let mut heracles = Heracles::default();
        run(&mut heracles, &seen(5.0, 0.5), 0.0, 15.0);
        let lines = run(&mut heracles, &seen(11.0, 0.5), 15.0, 16.0);
        assert_eq!(lines, ["group batch: off (violation)"]);
        assert_eq!(run(&mut heracles, &seen(5.0, 0.5), 16.0, 314.0), [""; 0]);
        assert!(!run(&mut heracles, &seen(5.0, 0.5), 315.0, 340.0).is_empty());
    }

    #[test]
    fn with_cores_that_somebody_else_writes_it_gets_no_more() {
        let mut heracles = Heracles::default();
        run(&mut heracles, &seen(5.0, 0.5), 0.0, 10.0);
        let before = heracles.cores;
        let mut foreign = seen(5.0, 0.5);
        foreign.groups[0].foreign = vec!["cpuset"];
        run(&mut heracles, &foreign, 10.0, 40.0);
        assert_eq!(heracles.cores, before);
        let mut slow = seen(11.0, 0.5);
        slow.groups[0].foreign = vec!["cpuset"];
        run(&mut heracles, &slow, 40.0, 60.0);
        assert!(!heracles.is_on);
        run(&mut heracles, &foreign, 60.0, 400.0);
        assert!(!heracles.is_on);
        run(&mut heracles, &seen(5.0, 0.5), 400.0, 420.0);
        assert!(heracles.is_on);
    }

    #[test]
    fn load_switches_it_off_above_085_and_on_below_080() {
        let mut heracles = Heracles::default();
        run(&mut heracles, &seen(5.0, 0.5), 0.0, 15.0);
        run(&mut heracles, &seen(5.0, 0.9), 15.0, 30.0);
        assert!(!heracles.is_on);
        run(&mut heracles, &seen(5.0, 0.82), 30.0, 45.0);
        assert!(!heracles.is_on);
        run(&mut heracles, &seen(5.0, 0.79), 45.0, 60.0);
        assert!(heracles.is_on);
    }

    #[test]
    fn cores_go_by_the_overage_of_bandwidth() {
        let mut heracles = Heracles::default();
        let mut busy = seen(5.0, 0.5);
        busy.machine.llc_ways = Some(20);
        busy.services[0].dram_gb_per_s = Some(20.0);
        busy.machine.dram_gb_per_s = Some((40.0, 100.0));
        run(&mut heracles, &busy, 0.0, 30.0);
        let before = heracles.cores;
        assert!(before > 4, "{before}");
        // 20 of the services and 80 of the groups are 10 too many.
        busy.machine.dram_gb_per_s = Some((100.0, 100.0));
        run(&mut heracles, &busy, 30.0, 31.0);
        let per_core = 80.0 / number(before);
        assert_eq!(heracles.cores, before - whole((10.0 / per_core).ceil()));
    }

    #[test]
    fn the_network_ceiling_leaves_a_reserve() {
        let mut heracles = Heracles::default();
        let mut busy = seen(5.0, 0.5);
        busy.machine.link_mbit_per_s = Some(1000.0);
        busy.services[0].egress_mbit_per_s = Some(600.0);
        let lines = run(&mut heracles, &busy, 0.0, 1.0);
        assert!(
            lines.contains(&"group batch: egress 340 Mbit/s (network)".to_owned()),
            "{lines:?}"
        );
    }

    #[test]
    fn power_lowers_the_frequency_of_best_effort_cores_only_where_the_service_suffers() {
        let mut heracles = Heracles::default();
        let mut hot = seen(5.0, 0.5);
        hot.machine.power_w = Some((95.0, 100.0));
        hot.machine.frequency_mhz = Some((2400.0, 2300.0));
        run(&mut heracles, &hot, 0.0, 10.0);
        assert!((heracles.frequency - 1.0).abs() < 1e-12);
        hot.machine.frequency_mhz = Some((2200.0, 2300.0));
        run(&mut heracles, &hot, 10.0, 20.0);
        assert!(heracles.frequency < 0.9);
    }
}
