//! The network loop of Heracles (Lo et al., ISCA 2015, section 4.3), which does not need the
//! latency: what best-effort work may send is what the services leave of the link, less a reserve
//! for their bursts.

use crate::numbers::number;
use crate::observation::MachineObservation;

/// The reserve, as a share of the link and of what the services send.
const RESERVE_OF_LINK: f64 = 0.05;
const RESERVE_OF_SERVICES: f64 = 0.10;
/// Best-effort work always gets this share of the link: its connections stay up.
const LEAST_OF_LINK: f64 = 0.01;

/// What each best-effort group may send; `None` where the link or the services' traffic is not
/// known.
pub(crate) fn batch_egress_mbit(seen: &MachineObservation) -> Option<f64> {
    let link = seen.machine.link_mbit_per_s?;
    let used: Option<f64> = seen
        .services
        .iter()
        .map(|service| service.egress_mbit_per_s)
        .sum();
    let used = used?;
    let reserve = (RESERVE_OF_LINK * link).max(RESERVE_OF_SERVICES * used);
    let groups = number(seen.running_groups().count().max(1) as u64);
    Some((link - used - reserve).max(LEAST_OF_LINK * link) / groups)
}
