//! Memory: what a group may use before the kernel reclaims from it, and what is left to a service.

use super::{Actuator, VersionedFile, Wanted, cgroup_knob, probed, required, wrong_kind};
use crate::cgroup::{CgroupVersion, Hierarchies};
use crate::cgroup_tree::below;
use crate::error::HostError;
use crate::knob::{Knob, is_no_limit};
use crate::roots::Roots;

/// The file of the protection. Only v2 has it.
const LOW: &str = "memory.low";

/// The limit above which the kernel reclaims.
const SOFT_LIMIT: VersionedFile = VersionedFile {
    v1: "memory.soft_limit_in_bytes",
    v1_form: "v1 soft limit",
    v2: "memory.high",
    missing: "the group is not in the memory controller's hierarchy",
};

/// A page, below which the kernel rounds a limit down to nothing. Kernels of some processors have
/// larger ones than 4 KiB.
fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / page_bytes() * page_bytes()
}

fn version(roots: &Roots) -> Result<CgroupVersion, HostError> {
    Ok(Hierarchies::of(roots).require("memory")?.0)
}

fn writes(
    actuator: &'static str,
    group: &str,
    (v1, v2): (Option<&str>, &str),
    roots: &Roots,
    wanted: &Wanted,
) -> Result<Vec<(Knob, String)>, HostError> {
    let Wanted::Bytes(bytes) = wanted else {
        return Err(wrong_kind(actuator, wanted));
    };
    let whole = bytes.map(whole_pages);
    match (version(roots)?, v1) {
        (CgroupVersion::V2, _) => {
            let none = if v2 == LOW { "0" } else { "max" };
            let value = whole.map_or(none.to_owned(), |bytes| bytes.to_string());
            Ok(vec![(cgroup_knob(group, v2), value)])
        }
        (CgroupVersion::V1, Some(v1)) => {
            let value = whole.map_or("-1".to_owned(), |bytes| bytes.to_string());
            Ok(vec![(cgroup_knob(group, v1), value)])
        }
        (CgroupVersion::V1, None) => Err(super::unfit(actuator, wanted, "v1 has no such limit")),
    }
}

/// Beyond it the kernel slows the group down and reclaims from it: `memory.high`; on v1
/// `memory.soft_limit_in_bytes`, which counts only when memory is short.
#[derive(Clone, Debug)]
pub struct MemoryHigh {
    /// The group.
    pub group: String,
}

impl MemoryHigh {
    fn knob(&self, roots: &Roots) -> Result<Knob, HostError> {
        Ok(SOFT_LIMIT.knob(&self.group, version(roots)?))
    }
}

impl Actuator for MemoryHigh {
    fn name(&self) -> &'static str {
        "memory.high"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        SOFT_LIMIT.probed(roots, &self.group, version(roots))
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.knob(roots)?)
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let files = (Some(SOFT_LIMIT.v1), SOFT_LIMIT.v2);
        writes(self.name(), &self.group, files, roots, wanted)
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let found = self.read(roots)?;
        let found = match is_no_limit(&found) {
            true => None,
            false => found.parse::<u64>().ok(),
        };
        match wanted {
            Wanted::Bytes(bytes) => Ok(found == bytes.map(whole_pages)),
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        self.knob(roots).into_iter().collect()
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        // 1 TiB: nothing is reclaimed.
        Ok(Wanted::Bytes(Some(1 << 40)))
    }
}

/// Memory that is reclaimed from the group only when nobody else has any: `memory.low`. v1 has
/// none.
///
/// A group is protected no further than the groups above it (mm/page_counter.c,
/// `effective_protection`). So these get as much as all groups directly below them together.
#[derive(Clone, Debug)]
pub struct MemoryLow {
    /// The group.
    pub group: String,
}

impl MemoryLow {
    fn knob(group: &str) -> Knob {
        cgroup_knob(group, LOW)
    }

    /// What a group has; nothing where it is not given the controller.
    fn bytes(roots: &Roots, group: &str) -> Result<Option<u64>, HostError> {
        let text = Self::knob(group).read(roots)?;
        // `max` is more than any number.
        Ok(text.map(|text| text.parse().unwrap_or(u64::MAX)))
    }

    /// The groups above, from the nearest on, without the root group, which has no protection.
    fn above(&self) -> impl Iterator<Item = (&str, &str)> {
        let first = self.group.trim_matches('/');
        std::iter::successors(Some(first), |group| Some(group.rsplit_once('/')?.0))
            .filter_map(|child| Some((child.rsplit_once('/')?.0, child)))
    }

    /// What the groups directly below `parent` have together, without `child`.
    fn beside(roots: &Roots, parent: &str, child: &str) -> Result<u64, HostError> {
        let hierarchies = Hierarchies::of(roots);
        let (_, top) = hierarchies.require("memory")?;
        let mut sum = 0_u64;
        for directory in below(&top.join(parent)) {
            let group = directory.strip_prefix(top).unwrap_or(&directory);
            let group = group.to_string_lossy();
            if group != child {
                sum = sum.saturating_add(Self::bytes(roots, &group)?.unwrap_or(0));
            }
        }
        Ok(sum)
    }
}

impl Actuator for MemoryLow {
    fn name(&self) -> &'static str {
        "memory.low"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        match version(roots).map_err(|error| error.to_string())? {
            CgroupVersion::V1 => Err("cgroup v1 has no memory.low".to_owned()),
            CgroupVersion::V2 => {
                let why = "the group above does not pass the memory controller on";
                probed(roots, &Self::knob(&self.group), "v2", why)
            }
        }
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &Self::knob(&self.group))
    }

    /// From above: the kernel takes any order, and only this one protects from the first write on.
    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let own = writes(self.name(), &self.group, (None, LOW), roots, wanted)?;
        let mut needed = match wanted {
            Wanted::Bytes(Some(bytes)) => whole_pages(*bytes),
            _ => return Ok(own),
        };
        let mut all = Vec::new();
        for (parent, child) in self.above() {
            let Some(now) = Self::bytes(roots, parent)? else {
                break;
            };
            needed = needed.saturating_add(Self::beside(roots, parent, child)?);
            if now < needed {
                let value = match needed {
                    u64::MAX => "max".to_owned(),
                    bytes => bytes.to_string(),
                };
                all.push((Self::knob(parent), value));
            }
            needed = needed.max(now);
        }
        all.reverse();
        all.extend(own);
        Ok(all)
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        let above = self.above().map(|(parent, _)| Self::knob(parent));
        above.chain([Self::knob(&self.group)]).collect()
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::Bytes(Some(page_bytes())))
    }
}
