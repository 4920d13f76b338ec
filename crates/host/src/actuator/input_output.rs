//! Block devices: rates (`io.max`, v1 `blkio.throttle`), weights, and the cost model.

use super::{Actuator, VersionedFile, Wanted, cgroup_knob, probed, required, unfit, wrong_kind};
use crate::cgroup::{CgroupVersion, Hierarchies};
use crate::error::HostError;
use crate::knob::Knob;
use crate::roots::Roots;

/// The limit of what a group writes to a device.
const WRITE_LIMIT: VersionedFile = VersionedFile {
    v1: "blkio.throttle.write_bps_device",
    v1_form: "v1",
    v2: "io.max",
    missing: "the kernel has no CONFIG_BLK_DEV_THROTTLING, or the group is not given it",
};

/// v1 calls the controller blkio, v2 io.
fn version(roots: &Roots) -> Result<CgroupVersion, HostError> {
    let hierarchies = Hierarchies::of(roots);
    if hierarchies.v1("blkio").is_some() {
        return Ok(CgroupVersion::V1);
    }
    Ok(hierarchies.require("io")?.0)
}

/// The line of a device in a file with a line for each device, without the device.
fn of_device<'a>(text: &'a str, device: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(device)?.strip_prefix(' '))
}

/// Bytes a second that the group may write to a device.
#[derive(Clone, Debug)]
pub struct IoMax {
    /// The group.
    pub group: String,
    /// The device as the kernel numbers it, `254:0`.
    pub device: String,
}

impl IoMax {
    fn knob(&self, roots: &Roots) -> Result<Knob, HostError> {
        Ok(WRITE_LIMIT.knob(&self.group, version(roots)?))
    }
}

impl Actuator for IoMax {
    fn name(&self) -> &'static str {
        "io.max"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        WRITE_LIMIT.probed(roots, &self.group, version(roots))
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let text = required(roots, &self.knob(roots)?)?;
        Ok(of_device(&text, &self.device)
            .unwrap_or("no limit")
            .to_owned())
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Bytes(rate) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        if *rate == Some(0) {
            return Err(unfit(
                self.name(),
                wanted,
                "0 means no limit to the kernel: freeze the group instead",
            ));
        }
        let device = &self.device;
        let value = match version(roots)? {
            CgroupVersion::V1 => format!("{device} {}", rate.unwrap_or(0)),
            CgroupVersion::V2 => {
                let rate = rate.map_or("max".to_owned(), |rate| rate.to_string());
                format!("{device} wbps={rate}")
            }
        };
        Ok(vec![(self.knob(roots)?, value)])
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let found = self.read(roots)?;
        let word = |word: &str| found.split_whitespace().any(|found| found == word);
        match wanted {
            Wanted::Bytes(Some(rate)) => {
                Ok(word(&rate.to_string()) || word(&format!("wbps={rate}")))
            }
            Wanted::Bytes(None) => Ok(found == "no limit" || word("wbps=max")),
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        self.knob(roots).into_iter().collect()
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        // 1 TiB/s: nothing is slowed down.
        Ok(Wanted::Bytes(Some(1 << 40)))
    }
}

/// The group's share of a device where others want it too.
#[derive(Clone, Debug)]
pub struct IoWeight {
    /// The group.
    pub group: String,
}

impl IoWeight {
    /// The first file that is there: BFQ's names on both versions, and those of the cost model and
    /// of old CFQ.
    fn knob(&self, roots: &Roots) -> Option<Knob> {
        let files: &[&str] = match version(roots).ok()? {
            CgroupVersion::V1 => &["blkio.bfq.weight", "blkio.weight"],
            CgroupVersion::V2 => &["io.weight", "io.bfq.weight"],
        };
        let knobs = files.iter().map(|file| cgroup_knob(&self.group, file));
        knobs.into_iter().find(|knob| knob.path(roots).exists())
    }

    fn present(&self, roots: &Roots) -> Result<Knob, HostError> {
        let absent = cgroup_knob(&self.group, "io.weight");
        self.knob(roots).ok_or_else(|| HostError::Absent {
            path: absent.path(roots),
            knob: absent.to_string(),
        })
    }
}

impl Actuator for IoWeight {
    fn name(&self) -> &'static str {
        "io.weight"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        version(roots).map_err(|error| error.to_string())?;
        let Some(knob) = self.knob(roots) else {
            return Err(
                "the group has no I/O weight: the device needs the BFQ scheduler or a cost model"
                    .to_owned(),
            );
        };
        let form = if knob.to_string().contains("blkio") {
            "v1"
        } else {
            "v2"
        };
        probed(roots, &knob, form, "the group has no I/O weight")
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        required(roots, &self.present(roots)?)
    }

    fn writes(&self, roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        let Wanted::Weight(weight) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let knob = self.present(roots)?;
        let text = knob.to_string();
        // block/bfq-cgroup.c takes 1 to 1,000, block/blk-iocost.c 1 to 10,000.
        let most = if text.contains("bfq") || text.contains("blkio") {
            1000
        } else {
            10_000
        };
        if !(1..=most).contains(weight) {
            return Err(unfit(
                self.name(),
                wanted,
                format!("a weight here is between 1 and {most}"),
            ));
        }
        // v1 takes a number alone (block/bfq-cgroup.c, `bfq_io_set_weight_legacy`).
        let value = match version(roots)? {
            CgroupVersion::V1 => weight.to_string(),
            CgroupVersion::V2 => format!("default {weight}"),
        };
        Ok(vec![(knob, value)])
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let Wanted::Weight(weight) = wanted else {
            return Err(wrong_kind(self.name(), wanted));
        };
        let found = self.read(roots)?;
        let first = found.lines().next().unwrap_or_default();
        Ok(first.trim_start_matches("default ").trim() == weight.to_string())
    }

    fn knobs(&self, roots: &Roots) -> Vec<Knob> {
        self.knob(roots).into_iter().collect()
    }

    fn neighbour(&self, _roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::Weight(99))
    }
}

/// The cost model of a device (`io.cost.qos` of the root group), without which `io.weight` does
/// nothing.
#[derive(Clone, Debug)]
pub struct IoCost {
    /// The device as the kernel numbers it, `254:0`.
    pub device: String,
}

impl IoCost {
    fn knob() -> Knob {
        cgroup_knob("", "io.cost.qos")
    }
}

impl Actuator for IoCost {
    fn name(&self) -> &'static str {
        "io.cost"
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        probed(
            roots,
            &Self::knob(),
            "v2",
            "no io.cost.qos: it needs cgroup v2 and CONFIG_BLK_CGROUP_IOCOST",
        )
    }

    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let text = required(roots, &Self::knob())?;
        Ok(of_device(&text, &self.device)
            .unwrap_or("enable=0")
            .to_owned())
    }

    fn writes(&self, _roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        match wanted {
            Wanted::On(on) => {
                let value = format!("{} enable={} ctrl=auto", self.device, u8::from(*on));
                Ok(vec![(Self::knob(), value)])
            }
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let is_on = self
            .read(roots)?
            .split_whitespace()
            .any(|word| word == "enable=1");
        Ok(*wanted == Wanted::On(is_on))
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![Self::knob()]
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        let is_on = self.read(roots)?.contains("enable=1");
        Ok(Wanted::On(!is_on))
    }
}
