//! Would a tenant fit? The book of a configuration's tenants, without opening a device.

use qos::{Admission, Objective, Refused, TenantSpec};
use serde::Serialize;

use crate::calibration::model_of;
use crate::config::{Backing, BlockConfig, ConfigError};

/// The book of one device.
pub struct Book {
    /// The device's name in the configuration.
    pub device: String,
    /// The device as `slackline serve-block calibrate` takes it.
    pub medium: String,
    /// Its tenants.
    pub admission: Admission,
}

/// What a device has for one more tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdmissionPlan {
    /// The device.
    pub device: String,
    /// Whether the tenant would be admitted.
    pub fits: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Whether the device has a calibration. Without one it has no tokens to reserve.
    pub is_calibrated: bool,
    /// Tokens a second that the tenant would reserve; a read of 4 KiB costs 100. `None`: the device
    /// has no calibration, or none of writes and the tenant would write.
    pub needed_tokens_per_s: Option<u64>,
    /// The strictest objective of all tenants, in microseconds, with the tenant if the tenant fits.
    /// `None`: no tenant has one.
    pub strictest_p95_us: Option<u32>,
    /// The 95th percentile at which the device takes `rate_tokens_per_s`, in microseconds: the
    /// strictest objective. Without one the asked percentile, or the best that the device does.
    pub rate_p95_us: Option<u32>,
    /// Tokens a second of the device at `rate_p95_us`. `None`: the device has no calibration.
    pub rate_tokens_per_s: Option<u64>,
    /// Tokens a second that are reserved, with the tenant if the tenant fits.
    pub reserved_tokens_per_s: u64,
    /// Tokens a second that are left then: what best-effort tenants share. `None`: the device has
    /// no calibration.
    pub left_tokens_per_s: Option<u64>,
    /// Requests of 4 KiB a second that are left, at the tenant's share of reads.
    pub left_iops: Option<u64>,
}

/// Reads the calibrations of a configuration's devices, and admits its tenants.
///
/// # Errors
/// A calibration cannot be read, or a tenant is refused already: the line is named.
pub fn books(config: &BlockConfig) -> Result<Vec<Book>, ConfigError> {
    let mut books = Vec::new();
    for spec in &config.devices {
        let model = model_of(spec)?;
        let mut admission = Admission::new(model);
        for tenant in &config.tenants {
            if tenant.device == spec.name {
                let admitted = admission.admit(&TenantSpec {
                    objective: tenant.objective,
                    read_only: tenant.is_read_only,
                });
                admitted.map_err(|refused| {
                    let text = format!(
                        "{:?} does not fit the calibration: {refused}",
                        tenant.export
                    );
                    tenant.objective_place.error(text)
                })?;
            }
        }
        books.push(Book {
            device: spec.name.clone(),
            medium: match &spec.backing {
                Backing::Memory { size_bytes } => format!("memory:{}MiB", size_bytes >> 20),
                Backing::Path { path, .. } => path.display().to_string(),
                Backing::Simulated { model } => format!("simulated:{model}"),
            },
            admission,
        });
    }
    Ok(books)
}

impl Book {
    /// What becomes of a tenant with this objective. The book stays as it was.
    ///
    /// # Errors
    /// The objective makes no sense.
    pub fn plan(&self, objective: Objective) -> Result<AdmissionPlan, Refused> {
        let mut with = self.admission.clone();
        let refused = match with.admit(&TenantSpec::latency_critical(objective)) {
            Err(refused @ Refused::Invalid { .. }) => return Err(refused),
            other => other.err(),
        };
        let shares = with.shares(1.0, false);
        let left = with.left(&objective);
        let model = self.admission.model();
        let has_price =
            model.is_some_and(|model| model.curve.mixed.is_some() || !objective.writes());
        let needed = has_price.then(|| self.admission.needed(&objective));
        let left_iops = |left: u64| {
            let needed = needed.filter(|&needed| needed > 0)?;
            Some(left.saturating_mul(objective.iops.into()) / needed)
        };
        Ok(AdmissionPlan {
            is_calibrated: model.is_some(),
            device: self.device.clone(),
            fits: refused.is_none(),
            reason: refused.map(|refused| refused.to_string()),
            needed_tokens_per_s: needed,
            strictest_p95_us: shares.strictest_us,
            rate_p95_us: left.map(|left| left.p95_us),
            rate_tokens_per_s: left.map(|left| left.rate),
            reserved_tokens_per_s: shares.reserved,
            left_tokens_per_s: left.map(|left| left.left),
            left_iops: left.and_then(|left| left_iops(left.left)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONFIG: &str = "[[device]]\nname = \"flash\"\nsimulated = \"p3600\"\n[[tenant]]\nexport = \"a\"\n\
                          device = \"flash\"\nobjective = { p95_us = 500, iops = 100000, read_share = 0.9 }\n";

    fn book_of(text: &str) -> Result<Vec<Book>, ConfigError> {
        books(&BlockConfig::parse(Path::new("b.toml"), text).unwrap())
    }

    #[test]
    fn what_is_left_on_the_paper_s_device() {
        // 36 million tokens a second at 500 µs; a tenant of 100,000 IOPS with 90 % reads takes 19.
        let book = book_of(CONFIG).unwrap().remove(0);
        let ask = |p95_us, iops| {
            let read_share = 0.9;
            let plan = book.plan(Objective {
                p95_us,
                iops,
                read_share,
            });
            plan.unwrap()
        };
        let fits = ask(500, 20_000);
        assert!(fits.fits);
        assert_eq!(fits.needed_tokens_per_s, Some(3_800_000));
        assert_eq!(fits.left_tokens_per_s, Some(36_000_000 - 22_800_000));
        assert_eq!(fits.left_iops, Some(69_473));
        let refused = ask(500, 90_000);
        assert!(!refused.fits && refused.reason.unwrap().contains("Up to 89,473 IOPS fit"));
        assert_eq!(refused.strictest_p95_us, Some(500));
        assert_eq!(refused.reserved_tokens_per_s, 19_000_000);
        assert!(!ask(50, 1).fits);
        // Without other objectives what is left counts at the asked latency, or the best there is.
        let alone = &CONFIG[..CONFIG.find("objective").unwrap()];
        let alone = format!("{alone}read_only = true\n");
        let empty = book_of(&alone).unwrap().remove(0);
        let left = |p95_us, iops| {
            let read_share = 0.9;
            let asked = Objective {
                p95_us,
                iops,
                read_share,
            };
            let plan = empty.plan(asked).unwrap();
            (plan.fits, plan.left_tokens_per_s.unwrap(), plan.rate_p95_us)
        };
        assert_eq!(left(500, 1_000_000), (false, 36_000_000, Some(500)));
        let (fits, tokens_per_s, at_us) = left(50, 1000);
        assert!(
            !fits && tokens_per_s > 0 && at_us > Some(50),
            "{tokens_per_s} {at_us:?}"
        );
        let bare = alone.replace("simulated = \"p3600\"", "memory = \"1MiB\"");
        let bare = book_of(&bare).unwrap().remove(0).plan(Objective {
            p95_us: 500,
            iops: 1,
            read_share: 1.0,
        });
        let bare = bare.unwrap();
        assert!(!bare.fits && !bare.is_calibrated);
        assert_eq!(
            (bare.needed_tokens_per_s, bare.left_tokens_per_s),
            (None, None)
        );
        let wrong = Objective {
            p95_us: 500,
            iops: 0,
            read_share: 1.0,
        };
        assert!(matches!(book.plan(wrong), Err(Refused::Invalid { .. })));
    }

    #[test]
    fn a_tenant_that_does_not_fit_is_named() {
        let Err(error) = book_of(&CONFIG.replace("100000", "1000000")) else {
            panic!("admitted");
        };
        let text = error.to_string();
        assert!(
            text.starts_with("b.toml:7: tenant.objective: \"a\" does not fit the calibration"),
            "{text}"
        );
    }
}
