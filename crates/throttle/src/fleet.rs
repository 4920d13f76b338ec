//! Which services of a fleet could give CPU back, and in which threads stand still because of their
//! quota.
//!
//! The figure over all services is Twitter's: threads that want to run for each reserved core. Of
//! almost every service there were tens (“The container throttling problem”,
//! danluu.com/cgroup-throttling, 2021).

use serde::{Deserialize, Serialize};

/// From this share of throttled periods on a service counts as throttled.
const THROTTLED: f64 = 0.01;
/// Up to this share it may give back: its limit is not what it feels.
const UNTHROTTLED: f64 = 0.001;
/// Mean use from this share of the limit on is too small a quota, as for a single group.
const QUOTA_IS_SMALL: f64 = 0.9;
/// The share of windows of 10 ms that must stay within a smaller limit. A period of 100 ms is
/// throttled only if its ten windows together exceed ten times the limit, so that at most about one
/// period in a hundred would be.
const PEAK: f64 = 0.999;
/// Fewer windows than these say nothing about that share.
const WINDOWS_MIN: f64 = 1000.0;

/// What a service did, over all its shards.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetService {
    /// Its name.
    pub name: String,
    /// On how many hosts, or in how many groups, it runs.
    pub shards: f64,
    /// How many of them have a limit.
    pub limited_shards: f64,
    /// Their limits, summed.
    pub limit_cores: f64,
    /// That part of it which is limits of groups above them, which other services may have, too.
    #[serde(default)]
    pub shared_limit_cores: f64,
    /// Mean use, summed.
    pub used_cores: f64,
    /// Quota periods in which it wanted to run, each second; `None` where not counted.
    pub periods_per_s: Option<f64>,
    /// Those in which it was throttled.
    pub throttled_periods_per_s: Option<f64>,
    /// Threads that ran or wanted to, on average, summed.
    pub runnable: Option<f64>,
    /// Threads that waited for a CPU, on average, summed.
    pub waiting: Option<f64>,
    /// How long a thread waits for a CPU, on average.
    pub mean_wait_s: Option<f64>,
    /// Windows of 10 ms by cores in use as a share of the limit: upper bound, and how many are at
    /// most that.
    pub shares: Vec<(f64, f64)>,
}

/// What is to be won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SavingState {
    /// Throttled though it uses less than its quota: threads wake at once. Latency can be won.
    Throttled,
    /// Throttled, and mean use is about the quota: only more of it helps.
    QuotaTooSmall,
    /// Its limit is higher than its peaks: CPU can be given back.
    Roomy,
    /// Its limit is higher than its peaks, but it is that of a group above it: what it leaves may
    /// be others'.
    Shares,
    /// Neither.
    Fits,
    /// Not all shards have a limit.
    NoLimit,
    /// What would be needed to judge it was not counted.
    Unknown,
}

/// A service, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetFinding {
    /// What it did.
    #[serde(flatten)]
    pub service: FleetService,
    /// What is to be won.
    pub state: SavingState,
    /// The share of its periods that were throttled.
    pub throttled_share: Option<f64>,
    /// Threads that want to run for each core of the limit.
    pub runnable_per_core: Option<f64>,
    /// In 999 of 1,000 windows of 10 ms it stays within this share of its limit.
    pub peak_share: Option<f64>,
    /// What the limit has above that.
    pub give_back_cores: f64,
}

/// All services, judged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fleet {
    /// Those with the most threads that stand still because of a quota come first, then those with
    /// the most cores to give back.
    pub services: Vec<FleetFinding>,
    /// All shards.
    pub shards: f64,
    /// Limits of services that have one, summed; one that several have counts once.
    pub limit_cores: f64,
    /// What those use.
    pub used_cores: f64,
    /// What all could give back.
    pub give_back_cores: f64,
    /// Threads that want to run per reserved core, a service each, in ascending order.
    pub runnable_per_core: Vec<f64>,
}

impl Fleet {
    /// Judges services and puts them in order. Limits that are other groups' sum to
    /// `shared_limit_cores`, each counted once.
    #[must_use]
    pub fn of(services: Vec<FleetService>, shared_limit_cores: f64) -> Self {
        let mut fleet = Self {
            limit_cores: shared_limit_cores,
            ..Self::default()
        };
        for service in services {
            let finding = judge(service);
            fleet.shards += finding.service.shards;
            if finding.state != SavingState::NoLimit {
                fleet.limit_cores +=
                    finding.service.limit_cores - finding.service.shared_limit_cores;
                fleet.used_cores += finding.service.used_cores;
                fleet.runnable_per_core.extend(finding.runnable_per_core);
            }
            fleet.give_back_cores += finding.give_back_cores;
            fleet.services.push(finding);
        }
        fleet.runnable_per_core.sort_by(f64::total_cmp);
        fleet.services.sort_by(|a, b| {
            let key = |finding: &FleetFinding| (standing(finding), finding.give_back_cores);
            let (a_key, b_key) = (key(a), key(b));
            b_key
                .0
                .total_cmp(&a_key.0)
                .then(b_key.1.total_cmp(&a_key.1))
                .then(a.service.name.cmp(&b.service.name))
        });
        fleet
    }

    /// The services of a state, in order.
    pub fn in_state(&self, state: SavingState) -> impl Iterator<Item = &FleetFinding> {
        self.services
            .iter()
            .filter(move |finding| finding.state == state)
    }

    /// Threads per reserved core of which this share of the services has at most so many (nearest
    /// rank).
    #[must_use]
    pub fn runnable_quantile(&self, share: f64) -> Option<f64> {
        let last = self.runnable_per_core.len().checked_sub(1)?;
        let rank = crate::rounded((share * self.runnable_per_core.len() as f64).ceil() - 1.0);
        let index = usize::try_from(rank).unwrap_or(last).min(last);
        self.runnable_per_core.get(index).copied()
    }
}

/// Threads that stand still because of a quota, on average.
fn standing(finding: &FleetFinding) -> f64 {
    match finding.state {
        SavingState::Throttled | SavingState::QuotaTooSmall => {
            finding.service.waiting.unwrap_or(0.0)
        }
        _ => 0.0,
    }
}

fn judge(service: FleetService) -> FleetFinding {
    let throttled_share = service
        .throttled_periods_per_s
        .zip(service.periods_per_s)
        .map(|(throttled, periods)| {
            if periods > 0.0 {
                throttled / periods
            } else {
                0.0
            }
        });
    let has_limit = service.limited_shards >= service.shards && service.limit_cores > 0.0;
    let runnable_per_core = service
        .runnable
        .filter(|_| has_limit)
        .map(|runnable| runnable / service.limit_cores);
    let peak_share = peak(&service.shares).filter(|_| has_limit);
    let (state, give_back_cores) = match (has_limit, throttled_share) {
        (false, _) => (SavingState::NoLimit, 0.0),
        (true, None) => (SavingState::Unknown, 0.0),
        (true, Some(throttled)) if throttled >= THROTTLED => {
            if service.used_cores >= QUOTA_IS_SMALL * service.limit_cores {
                (SavingState::QuotaTooSmall, 0.0)
            } else {
                (SavingState::Throttled, 0.0)
            }
        }
        (true, Some(throttled)) => match peak_share {
            None => (SavingState::Unknown, 0.0),
            Some(peak) if throttled <= UNTHROTTLED && peak < 1.0 => {
                if service.shared_limit_cores > 0.0 {
                    (SavingState::Shares, 0.0)
                } else {
                    (SavingState::Roomy, service.limit_cores * (1.0 - peak))
                }
            }
            Some(_) => (SavingState::Fits, 0.0),
        },
    };
    FleetFinding {
        service,
        state,
        throttled_share,
        runnable_per_core,
        peak_share,
        give_back_cores,
    }
}

/// The lowest bound within which 999 of 1,000 windows stay; `None` where there are too few windows,
/// or none is low enough.
fn peak(shares: &[(f64, f64)]) -> Option<f64> {
    let windows = shares.iter().map(|(_, count)| *count).fold(0.0, f64::max);
    if windows < WINDOWS_MIN {
        return None;
    }
    let enough = shares.iter().filter(|(_, count)| *count >= PEAK * windows);
    enough.map(|(bound, _)| *bound).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, used_cores: f64, throttled: f64, peak: f64) -> FleetService {
        FleetService {
            name: name.into(),
            shards: 10.0,
            limited_shards: 10.0,
            limit_cores: 20.0,
            shared_limit_cores: 0.0,
            used_cores,
            periods_per_s: Some(100.0),
            throttled_periods_per_s: Some(throttled),
            runnable: Some(40.0),
            waiting: Some(used_cores),
            mean_wait_s: Some(0.01),
            shares: vec![
                (peak / 2.0, 5000.0),
                (peak, 9995.0),
                (f64::INFINITY, 10_000.0),
            ],
        }
    }

    fn state(service: FleetService) -> SavingState {
        judge(service).state
    }

    #[test]
    fn each_state_has_its_evidence() {
        assert_eq!(state(service("a", 8.0, 5.0, 4.0)), SavingState::Throttled);
        assert_eq!(
            state(service("a", 19.0, 50.0, 4.0)),
            SavingState::QuotaTooSmall
        );
        assert_eq!(state(service("a", 8.0, 0.0, 1.5)), SavingState::Fits);
        let roomy = judge(service("a", 2.0, 0.0, 0.25));
        assert_eq!(
            (roomy.state, roomy.give_back_cores),
            (SavingState::Roomy, 15.0)
        );
        assert_eq!(roomy.runnable_per_core, Some(2.0));
        // Throttled now and then: it gives nothing back.
        assert_eq!(state(service("a", 2.0, 0.5, 0.25)), SavingState::Fits);
        let free = FleetService {
            limited_shards: 9.0,
            ..service("a", 2.0, 0.0, 0.25)
        };
        assert_eq!(judge(free).give_back_cores, 0.0);
        let uncounted = FleetService {
            periods_per_s: None,
            ..service("a", 2.0, 0.0, 0.25)
        };
        assert_eq!(state(uncounted), SavingState::Unknown);
        let short = FleetService {
            shares: vec![(0.1, 999.0), (f64::INFINITY, 999.0)],
            ..service("a", 2.0, 0.0, 0.25)
        };
        assert_eq!(state(short), SavingState::Unknown);
        let idle = FleetService {
            periods_per_s: Some(0.0),
            ..service("a", 0.0, 0.0, 0.1)
        };
        assert_eq!(state(idle), SavingState::Roomy);
    }

    #[test]
    fn standing_threads_come_before_cores_to_give_back() {
        let fleet = Fleet::of(
            vec![
                service("fits", 8.0, 0.0, 1.5),
                service("roomy", 2.0, 0.0, 0.5),
                service("roomier", 2.0, 0.0, 0.25),
                service("throttled", 8.0, 5.0, 4.0),
                service("worse", 9.0, 5.0, 4.0),
            ],
            0.0,
        );
        let names: Vec<&str> = fleet
            .services
            .iter()
            .map(|one| one.service.name.as_str())
            .collect();
        assert_eq!(names, ["worse", "throttled", "roomier", "roomy", "fits"]);
        assert_eq!((fleet.limit_cores, fleet.give_back_cores), (100.0, 25.0));
        assert_eq!(fleet.in_state(SavingState::Roomy).count(), 2);
        assert_eq!(fleet.runnable_quantile(0.5), Some(2.0));
        assert_eq!(Fleet::default().runnable_quantile(0.5), None);
    }

    #[test]
    fn a_limit_that_services_share_counts_once_and_is_nobodys_to_give_back() {
        let sharing = |name| FleetService {
            shared_limit_cores: 20.0,
            ..service(name, 2.0, 0.0, 0.25)
        };
        let services = vec![sharing("a"), sharing("b"), service("own", 2.0, 0.0, 0.25)];
        let fleet = Fleet::of(services, 20.0);
        assert_eq!((fleet.limit_cores, fleet.give_back_cores), (40.0, 15.0));
        assert_eq!(fleet.in_state(SavingState::Shares).count(), 2);
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let fleet = Fleet {
            runnable_per_core: vec![1.0, 2.0, 3.0, 4.0],
            ..Fleet::default()
        };
        let at = |share| fleet.runnable_quantile(share).unwrap();
        assert_eq!((at(0.0), at(0.5), at(0.51), at(1.0)), (1.0, 2.0, 3.0, 4.0));
    }
}
