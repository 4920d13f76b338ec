//! The section `[policy]` of the configuration, and its check against itself.

use experiment_spec::{Source, SpecError};
use isolation::{FixedSettings, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A weight of the kernel, of CPU or I/O (include/linux/cgroup.h, `CGROUP_WEIGHT_MAX`).
const WEIGHT_MAX: u64 = 10_000;
/// The kernel's least quota, 1 ms in 100 ms (kernel/sched/core.c, `min_bw_quota_period_ns`).
const QUOTA_LEAST_CORES: f64 = 0.01;

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
    /// The rate of `link_device`, in Mbit/s. Without this key, nothing is limited.
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
        if self
            .dram_peak_gb_per_s
            .is_some_and(|peak| !(peak > 0.0 && peak.is_finite()))
        {
            return Err(wrong("dram_peak_gb_per_s", "must be above 0"));
        }
        if self.io_device.as_deref().is_some_and(is_no_name) {
            return Err(wrong("io_device", "give the name alone, such as vda"));
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
    for (key, is_wrong) in [
        ("cores", fixed.cores == Some(0)),
        ("memory_high_mib", fixed.memory_high_mib == Some(0)),
        (
            "io_max_read_mb_per_s",
            fixed.io_max_read_mb_per_s.is_some_and(|rate| rate <= 0.0),
        ),
        (
            "io_max_write_mb_per_s",
            fixed.io_max_write_mb_per_s.is_some_and(|rate| rate <= 0.0),
        ),
    ] {
        if is_wrong {
            return Err((key, "must be above 0".to_owned()));
        }
    }
    Ok(())
}

/// A path, or a name that leads out of `/sys/block`.
fn is_no_name(name: &str) -> bool {
    name.is_empty() || name.contains('/') || name.starts_with('.')
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

    #[test]
    fn errors_of_the_policy_name_file_line_and_key() {
        let fixed = |settings: &str| format!("name = \"static\"\nstatic = {{ {settings} }}\n");
        for (policy, said) in [
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
        ] {
            let error = read(&policy).unwrap_err();
            assert!(error.starts_with(said), "{error}\n{said}");
        }
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
