//! The section `[policy]` of the configuration, and its check against itself.

use experiment_spec::{Source, SpecError};
use isolation::{FixedSettings, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::form::{is_device_name, is_disk_name};

/// A weight of the kernel, of CPU or I/O (include/linux/cgroup.h, `CGROUP_WEIGHT_MAX`).
const WEIGHT_MAX: u64 = 10_000;
/// The kernel's least quota, 1 ms in 100 ms (kernel/sched/core.c, `min_bw_quota_period_ns`).
const QUOTA_LEAST_CORES: f64 = 0.01;
/// No kernel has more CPUs (arch/x86/Kconfig, `NR_CPUS_RANGE_END`).
const CORES_MAX: u64 = 8192;
/// The most memory that a control group can be given, 2^63 bytes (include/linux/page_counter.h,
/// `PAGE_COUNTER_MAX`).
const MEMORY_MAX_MIB: u64 = (1 << 43) - 1;
/// A terabyte per second: no disk and no link has more, and memory only of many sockets.
const DISK_MAX_MB_PER_S: f64 = 1e6;
const LINK_MAX_MBIT_PER_S: f64 = 1e7;
const DRAM_MAX_GB_PER_S: f64 = 1e5;

/// The policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// The name of the policy.
    pub name: Policy,
    /// Decide, but change nothing, and start no `command`. `slackline isolate status` shows the
    /// decisions.
    pub observe: bool,
    /// The settings that the policy `static` writes, or those that are written beside another
    /// policy.
    #[serde(rename = "static")]
    pub fixed: FixedSettings,
    /// Only for `cpu-suppress`: the CPU use of the machine, in percent, above which best-effort
    /// work gets less.
    pub suppress_percent: f64,
    /// Time between two steps of the controller, in milliseconds. Steps become longer if the
    /// controller uses more than half a percent of a core.
    pub step_ms: f64,
    /// Only for `slackline` and `heracles`: the network device on which best-effort traffic is
    /// limited, such as `eth0`. The queue discipline of the device must be the kernel's default.
    /// Needs `link_mbit_per_s`.
    pub link_device: Option<String>,
    /// The rate of `link_device`, in Mbit/s. Needs `link_device`.
    pub link_mbit_per_s: Option<f64>,
    /// The disk of `static.io_max_read_mb_per_s`, `static.io_max_write_mb_per_s` and
    /// `static.io_cost`, such as `vda`: its name in `/sys/block`. No partition.
    pub io_device: Option<String>,
    /// Only for `heracles`: the peak bandwidth of the machine's memory, in GB/s. `heracles` uses it
    /// if resctrl counts the memory traffic. Without this key, `heracles` does not look at the
    /// memory traffic.
    pub dram_peak_gb_per_s: Option<f64>,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            name: Policy::Slackline,
            observe: false,
            fixed: FixedSettings::default(),
            suppress_percent: 65.0,
            step_ms: 250.0,
            link_device: None,
            link_mbit_per_s: None,
            io_device: None,
            dram_peak_gb_per_s: None,
        }
    }
}

impl PolicyConfig {
    /// The settings of a policy are in their ranges, and fit each other.
    pub(crate) fn check(&self, source: &Source) -> Result<(), SpecError> {
        let wrong = |key: &str, why: &str| source.error(&format!("policy.{key}"), why);
        if !(50.0..=10_000.0).contains(&self.step_ms) {
            return Err(wrong("step_ms", "must be between 50 and 10000"));
        }
        if !(1.0..=100.0).contains(&self.suppress_percent) {
            return Err(wrong("suppress_percent", "must be between 1 and 100"));
        }
        for (key, rate, most) in [
            (
                "dram_peak_gb_per_s",
                self.dram_peak_gb_per_s,
                DRAM_MAX_GB_PER_S,
            ),
            ("link_mbit_per_s", self.link_mbit_per_s, LINK_MAX_MBIT_PER_S),
        ] {
            check_rate(rate, most).map_err(|why| wrong(key, &why))?;
        }
        if !self.io_device.as_deref().is_none_or(is_disk_name) {
            return Err(wrong("io_device", "give the name alone, such as vda"));
        }
        if !self.link_device.as_deref().is_none_or(is_device_name) {
            let why = "give the name of a network device, such as eth0: at most 15 characters, without / and :";
            return Err(wrong("link_device", why));
        }
        match (&self.link_device, self.link_mbit_per_s) {
            (Some(_), None) => {
                let why = "needs the rate of the device: policy.link_mbit_per_s = 1000";
                return Err(wrong("link_device", why));
            }
            (None, Some(_)) => {
                let why = "needs the name of the device: policy.link_device = \"eth0\"";
                return Err(wrong("link_mbit_per_s", why));
            }
            _ => {}
        }
        self.check_which()
            .and_then(|()| check_ranges(&self.fixed))
            .map_err(|(key, why)| match key {
                "" => wrong("static", &why),
                key => wrong(&format!("static.{key}"), &why),
            })
    }

    /// Which settings may be there beside which.
    fn check_which(&self) -> Result<(), (&'static str, String)> {
        let fixed = &self.fixed;
        let is_empty = *fixed == FixedSettings::default();
        match self.name {
            Policy::Static if is_empty => {
                let why = "the policy static needs settings: static = { cpu_idle = true }";
                return Err(("", why.to_owned()));
            }
            Policy::None if !is_empty => {
                let why = "the policy none changes nothing: use the policy static";
                return Err(("", why.to_owned()));
            }
            Policy::Static => {}
            other => {
                if let Some(key) = fixed.key_of_static() {
                    let why = format!(
                        "only the policy static sets this: {} decides about CPU time and cores itself",
                        other.name()
                    );
                    return Err((key, why));
                }
            }
        }
        if fixed.epp.is_some() && fixed.cores.is_none() {
            let why = "EPP is a setting of cores: set policy.static.cores, too";
            return Err(("epp", why.to_owned()));
        }
        let of_device = [
            ("io_max_read_mb_per_s", fixed.io_max_read_mb_per_s.is_some()),
            (
                "io_max_write_mb_per_s",
                fixed.io_max_write_mb_per_s.is_some(),
            ),
            ("io_cost", fixed.io_cost.is_some()),
        ];
        for (key, is_given) in of_device {
            if is_given && self.io_device.is_none() {
                return Err((key, "name the disk: policy.io_device = \"vda\"".to_owned()));
            }
        }
        Ok(())
    }
}

/// The key that is out of its range, and the range.
fn check_ranges(fixed: &FixedSettings) -> Result<(), (&'static str, String)> {
    for (key, cores) in [
        ("quota_cores", fixed.quota_cores),
        ("service_quota_cores", fixed.service_quota_cores),
    ] {
        if !cores.is_none_or(|cores| cores >= QUOTA_LEAST_CORES) {
            let why = "the kernel's least quota is 1 ms in 100 ms: 0.01 cores";
            return Err((key, why.to_owned()));
        }
        if !cores.is_none_or(|cores| cores <= CORES_MAX as f64) {
            return Err((key, format!("must be at most {CORES_MAX} cores")));
        }
    }
    for (key, weight) in [
        ("weight", fixed.weight),
        ("service_weight", fixed.service_weight),
        ("io_weight", fixed.io_weight),
        ("service_io_weight", fixed.service_io_weight),
    ] {
        if !weight.is_none_or(|weight| (1..=WEIGHT_MAX).contains(&weight)) {
            return Err((key, format!("must be between 1 and {WEIGHT_MAX}")));
        }
    }
    for (key, percent) in [
        ("uclamp_max_percent", fixed.uclamp_max_percent),
        (
            "service_uclamp_min_percent",
            fixed.service_uclamp_min_percent,
        ),
    ] {
        if !percent.is_none_or(|percent| (0.0..=100.0).contains(&percent)) {
            return Err((key, "must be between 0 and 100".to_owned()));
        }
    }
    for (key, number, most) in [
        ("cores", fixed.cores, CORES_MAX),
        ("memory_high_mib", fixed.memory_high_mib, MEMORY_MAX_MIB),
    ] {
        if !number.is_none_or(|number| (1..=most).contains(&number)) {
            return Err((key, format!("must be above 0 and at most {most}")));
        }
    }
    // 0 takes a protection away.
    if fixed
        .service_memory_low_mib
        .is_some_and(|mib| mib > MEMORY_MAX_MIB)
    {
        let why = format!("must be at most {MEMORY_MAX_MIB}");
        return Err(("service_memory_low_mib", why));
    }
    for (key, rate) in [
        ("io_max_read_mb_per_s", fixed.io_max_read_mb_per_s),
        ("io_max_write_mb_per_s", fixed.io_max_write_mb_per_s),
    ] {
        check_rate(rate, DISK_MAX_MB_PER_S).map_err(|why| (key, why))?;
    }
    Ok(())
}

/// A rate, if it is given: positive, and no more than any hardware has.
fn check_rate(rate: Option<f64>, most: f64) -> Result<(), String> {
    match rate.is_none_or(|rate| rate > 0.0 && rate <= most) {
        true => Ok(()),
        false => Err(format!("must be above 0 and at most {most}")),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::IsolationConfig;

    const SERVICE: &str = "[service]\npid = 1\nlatency = { command = [\"x\"] }\n\
        objective = { p99_ms = 5 }\n[policy]\n";

    fn read(policy: &str) -> Result<IsolationConfig, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.toml");
        std::fs::write(&path, format!("{SERVICE}{policy}")).unwrap();
        IsolationConfig::read(&path).map_err(|error| {
            let text = error.to_string();
            text.replace(&format!("{}/", dir.path().display()), "")
        })
    }

    /// The policy `static` with these settings, on line 7.
    fn fixed(settings: &str) -> String {
        format!("name = \"static\"\nstatic = {{ {settings} }}\n")
    }

    #[track_caller]
    fn assert_said<const N: usize>(cases: [(String, &str); N]) {
        for (policy, said) in cases {
            let error = read(&policy).unwrap_err();
            assert!(error.starts_with(said), "{error}\n{said}");
        }
    }

    #[test]
    fn errors_of_the_policy_name_file_line_and_key() {
        assert_said([
            (
                "step_ms = 1\n".to_owned(),
                "i.toml:6: policy.step_ms: must be between",
            ),
            (
                "name = \"heracles\"\ndram_peak_gb_per_s = 0\n".to_owned(),
                "i.toml:7: policy.dram_peak_gb_per_s: must be above 0",
            ),
            (
                "io_device = \"/dev/vda\"\n".to_owned(),
                "i.toml:6: policy.io_device: give the name alone",
            ),
            (
                "name = \"static\"\n".to_owned(),
                "i.toml:5: policy.static: the policy static needs settings",
            ),
            (
                "name = \"none\"\nstatic = { weight = 1 }\n".to_owned(),
                "i.toml:7: policy.static: the policy none changes nothing",
            ),
            (
                "static = { io_weight = 10, quota_cores = 1 }\n".to_owned(),
                "i.toml:6: policy.static.quota_cores: only the policy static sets this: slackline",
            ),
            (
                "name = \"heracles\"\nstatic = { service_epp = \"power\" }\n".to_owned(),
                "i.toml:7: policy.static.service_epp: only the policy static",
            ),
            (
                fixed("quota_cores = 0.001"),
                "i.toml:7: policy.static.quota_cores: the kernel's least",
            ),
            (
                fixed("weight = 0"),
                "i.toml:7: policy.static.weight: must be between 1 and 10000",
            ),
            (
                fixed("service_io_weight = 10001"),
                "i.toml:7: policy.static.service_io_weight: must be between",
            ),
            (
                fixed("cores = 0"),
                "i.toml:7: policy.static.cores: must be above 0",
            ),
            (
                fixed("memory_high_mib = 0"),
                "i.toml:7: policy.static.memory_high_mib: must be above 0",
            ),
            (
                fixed("io_max_read_mb_per_s = 5"),
                "i.toml:7: policy.static.io_max_read_mb_per_s: name the disk",
            ),
            (
                fixed("io_max_write_mb_per_s = 0") + "io_device = \"vda\"\n",
                "i.toml:7: policy.static.io_max_write_mb_per_s: must be above 0",
            ),
            (
                fixed("io_cost = true"),
                "i.toml:7: policy.static.io_cost: name the disk",
            ),
            (
                fixed("service_uclamp_min_percent = 101"),
                "i.toml:7: policy.static.service_uclamp_min_percent: must be between 0 and 100",
            ),
            (
                fixed("epp = \"power\""),
                "i.toml:7: policy.static.epp: EPP is a setting of cores",
            ),
            (
                fixed("epp = \"fast\", cores = 1"),
                "i.toml:7: policy.static.epp:",
            ),
        ]);
    }

    #[test]
    fn each_number_has_its_range_and_each_device_its_name() {
        assert_said([
            (
                "io_device = \"\"\n".to_owned(),
                "i.toml:6: policy.io_device: give the name alone",
            ),
            (
                "link_device = \"lo\"\nlink_mbit_per_s = -1\n".to_owned(),
                "i.toml:7: policy.link_mbit_per_s: must be above 0 and at most 10000000",
            ),
            (
                "link_device = \"lo\"\nlink_mbit_per_s = 0\n".to_owned(),
                "i.toml:7: policy.link_mbit_per_s: must be above 0",
            ),
            (
                "link_device = \"lo\"\nlink_mbit_per_s = 1e300\n".to_owned(),
                "i.toml:7: policy.link_mbit_per_s: must be above 0 and at most",
            ),
            (
                "link_device = \"\"\nlink_mbit_per_s = 1\n".to_owned(),
                "i.toml:6: policy.link_device: give the name of a network device",
            ),
            (
                "link_device = \"../x\"\nlink_mbit_per_s = 1\n".to_owned(),
                "i.toml:6: policy.link_device: give the name of a network device",
            ),
            (
                "link_device = \"lo\"\n".to_owned(),
                "i.toml:6: policy.link_device: needs the rate of the device",
            ),
            (
                "link_mbit_per_s = 1000\n".to_owned(),
                "i.toml:6: policy.link_mbit_per_s: needs the name of the device",
            ),
            (
                fixed("quota_cores = 1e18"),
                "i.toml:7: policy.static.quota_cores: must be at most 8192 cores",
            ),
            (
                fixed("cores = 99999"),
                "i.toml:7: policy.static.cores: must be above 0 and at most 8192",
            ),
            (
                fixed("memory_high_mib = 9223372036854775807"),
                "i.toml:7: policy.static.memory_high_mib: must be above 0 and at most 8796093022207",
            ),
            (
                fixed("service_memory_low_mib = 8796093022208"),
                "i.toml:7: policy.static.service_memory_low_mib: must be at most 8796093022207",
            ),
            (
                fixed("io_max_read_mb_per_s = 1e300") + "io_device = \"vda\"\n",
                "i.toml:7: policy.static.io_max_read_mb_per_s: must be above 0 and at most 1000000",
            ),
        ]);
    }

    #[test]
    fn memory_disks_and_clamps_may_stand_beside_another_policy() {
        let config = read(
            "io_device = \"vda\"\n[policy.static]\nmemory_high_mib = 512\n\
             service_memory_low_mib = 1024\nio_max_read_mb_per_s = 20\nio_weight = 10\n\
             io_cost = true\nuclamp_max_percent = 40\nservice_uclamp_min_percent = 60\n",
        );
        let config = config.unwrap();
        assert_eq!(config.policy.name, isolation::Policy::Slackline);
        assert_eq!(config.policy.fixed.memory_high_mib, Some(512));
    }
}
