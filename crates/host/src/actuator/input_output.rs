//! Block devices: rates (`io.max`, v1 `blkio.throttle`), weights, and the cost model.

use super::{Actuator, VersionedFile, Wanted, cgroup_knob, probed, required, unfit, wrong_kind};
use crate::cgroup::{CgroupVersion, Hierarchies};
use crate::error::HostError;
use crate::knob::Knob;
use crate::roots::Roots;

/// Why a group has no limit for a device.
const NO_THROTTLING: &str = "the kernel has no CONFIG_BLK_DEV_THROTTLING, or the group above does not pass the I/O controller on";

/// Which way data go, as seen by the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// From the device.
    Read,
    /// To the device. On v1 what the kernel writes later, from its page cache, is not counted.
    Write,
}

impl IoDirection {
    fn file(self) -> VersionedFile {
        VersionedFile {
            v1: match self {
                Self::Read => "blkio.throttle.read_bps_device",
                Self::Write => "blkio.throttle.write_bps_device",
            },
            v1_form: "v1",
            v2: "io.max",
            missing: NO_THROTTLING,
        }
    }

    /// The word of `io.max`.
    fn word(self) -> &'static str {
        match self {
            Self::Read => "rbps",
            Self::Write => "wbps",
        }
    }
}

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

/// Bytes a second that the group may read from a device, or write to it.
#[derive(Clone, Debug)]
pub struct IoMax {
    /// The group.
    pub group: String,
    /// The device as the kernel numbers it, `254:0`. The kernel takes whole disks only.
    pub device: String,
    /// Which way.
    pub direction: IoDirection,
}

impl IoMax {
    fn knob(&self, roots: &Roots) -> Result<Knob, HostError> {
        Ok(self.direction.file().knob(&self.group, version(roots)?))
    }
}

impl Actuator for IoMax {
    fn name(&self) -> &'static str {
        match self.direction {
            IoDirection::Read => "io.max rbps",
            IoDirection::Write => "io.max wbps",
        }
    }

    fn probe(&self, roots: &Roots) -> Result<String, String> {
        self.direction
            .file()
            .probed(roots, &self.group, version(roots))
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
                format!("{device} {}={rate}", self.direction.word())
            }
        };
        Ok(vec![(self.knob(roots)?, value)])
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        let found = self.read(roots)?;
        let has = |text: &str| found.split_whitespace().any(|word| word == text);
        let limit = self.direction.word();
        match wanted {
            Wanted::Bytes(Some(rate)) => {
                Ok(has(&rate.to_string()) || has(&format!("{limit}={rate}")))
            }
            Wanted::Bytes(None) => Ok(found == "no limit" || has(&format!("{limit}=max"))),
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

/// The cost model of a device (`io.cost.qos` of the root group). `io.weight` shares a device only
/// where this is on; `io.bfq.weight` belongs to the BFQ scheduler instead.
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

    /// A model that is off decides nothing, whatever else its line says.
    fn read(&self, roots: &Roots) -> Result<String, HostError> {
        let text = required(roots, &Self::knob())?;
        let line = of_device(&text, &self.device);
        Ok(line
            .filter(|line| line.split(' ').any(|word| word == "enable=1"))
            .unwrap_or("enable=0")
            .to_owned())
    }

    /// The switch alone: parameters that an administrator has written stay
    /// (block/blk-iocost.c, `ioc_qos_write`). Without any, the kernel finds them itself.
    fn writes(&self, _roots: &Roots, wanted: &Wanted) -> Result<Vec<(Knob, String)>, HostError> {
        match wanted {
            Wanted::On(on) => {
                let value = format!("{} enable={}", self.device, u8::from(*on));
                Ok(vec![(Self::knob(), value)])
            }
            _ => Err(wrong_kind(self.name(), wanted)),
        }
    }

    fn verify(&self, roots: &Roots, wanted: &Wanted) -> Result<bool, HostError> {
        Ok(*wanted == Wanted::On(self.read(roots)? != "enable=0"))
    }

    fn knobs(&self, _roots: &Roots) -> Vec<Knob> {
        vec![Self::knob()]
    }

    fn neighbour(&self, roots: &Roots) -> Result<Wanted, HostError> {
        Ok(Wanted::On(self.read(roots)? == "enable=0"))
    }
}
