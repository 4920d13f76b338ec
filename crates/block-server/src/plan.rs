//! Would a tenant fit? The book of a configuration's tenants, without opening a device.

use qos::{Admission, Objective, Refused, TenantSpec};
use serde::Serialize;

use crate::config::{Config, ConfigError};
use crate::device::model_of;

/// The book of one device.
pub struct Book {
    /// The device's name in the configuration.
    pub device: String,
    /// Its tenants.
    pub admission: Admission,
}

/// What a device has for one more tenant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// The device.
    pub device: String,
    /// Whether the tenant would be admitted.
    pub fits: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Tokens a second that the tenant would reserve; a read of 4 KiB costs 100.
    pub needed_tokens_per_s: u64,
    /// The strictest objective of all tenants, in microseconds, with the tenant if the tenant fits.
    /// `None`: no tenant has one.
    pub strictest_p95_us: Option<u32>,
    /// Tokens a second of the device at the strictest objective.
    pub rate_tokens_per_s: Option<u64>,
    /// Tokens a second that are reserved, with the tenant if the tenant fits.
    pub reserved_tokens_per_s: u64,
    /// Tokens a second that are left then: what best-effort tenants share.
    pub left_tokens_per_s: Option<u64>,
    /// Requests of 4 KiB a second that are left, at the tenant's share of reads.
    pub left_iops: Option<u64>,
}

/// Reads the calibrations of a configuration's devices, and admits its tenants.
///
/// # Errors
/// A calibration cannot be read, or a tenant is refused already: the line is named.
pub fn books(config: &Config) -> Result<Vec<Book>, ConfigError> {
    let mut books = Vec::new();
    for spec in &config.devices {
        let model = model_of(spec).map_err(|error| spec.place.error(error.to_string()))?;
        let mut admission = Admission::new(model);
        for tenant in &config.tenants {
            if tenant.device == spec.name {
                let admitted = admission.admit(&TenantSpec {
                    objective: tenant.objective,
                    read_only: tenant.is_read_only,
                });
                admitted.map_err(|refused| {
                    let text = format!("{:?} is refused already: {refused}", tenant.export);
                    tenant.place.error(text)
                })?;
            }
        }
        books.push(Book {
            device: spec.name.clone(),
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
    pub fn plan(&self, objective: Objective) -> Result<Plan, Refused> {
        let mut with = self.admission.clone();
        let refused = match with.admit(&TenantSpec::latency_critical(objective)) {
            Err(refused @ Refused::Invalid { .. }) => return Err(refused),
            other => other.err(),
        };
        let shares = with.shares(1.0, false);
        let needed = self.admission.needed(&objective);
        let each = needed as f64 / f64::from(objective.iops.max(1));
        let left = shares.rate.map(|rate| rate.saturating_sub(shares.reserved));
        Ok(Plan {
            device: self.device.clone(),
            fits: refused.is_none(),
            reason: refused.map(|refused| refused.to_string()),
            needed_tokens_per_s: needed,
            strictest_p95_us: shares.strictest_us,
            rate_tokens_per_s: shares.rate,
            reserved_tokens_per_s: shares.reserved,
            left_tokens_per_s: left,
            left_iops: left
                .filter(|_| each > 0.0)
                .map(|left| left.saturating_mul(objective.iops.into()) / needed.max(1)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONFIG: &str = "[[device]]\nname = \"flash\"\nsimulated = \"p3600\"\n[[tenant]]\nexport = \"a\"\n\
                          device = \"flash\"\nobjective = { p95_us = 500, iops = 100000, read_share = 0.9 }\n";

    fn book(text: &str) -> Result<Vec<Book>, ConfigError> {
        books(&Config::parse(Path::new("b.toml"), text).unwrap())
    }

    #[test]
    fn what_is_left_on_the_paper_s_device() {
        // 36 million tokens a second at 500 µs; a tenant of 100,000 IOPS with 90 % reads takes 19.
        let book = book(CONFIG).unwrap().remove(0);
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
        assert_eq!(fits.needed_tokens_per_s, 3_800_000);
        assert_eq!(fits.left_tokens_per_s, Some(36_000_000 - 22_800_000));
        assert_eq!(fits.left_iops, Some(69_473));
        let refused = ask(500, 90_000);
        assert!(!refused.fits && refused.reason.unwrap().contains("Up to 89,473 IOPS fit"));
        assert_eq!(refused.strictest_p95_us, Some(500));
        assert_eq!(refused.reserved_tokens_per_s, 19_000_000);
        assert!(!ask(50, 1).fits);
        let wrong = Objective {
            p95_us: 500,
            iops: 0,
            read_share: 1.0,
        };
        assert!(matches!(book.plan(wrong), Err(Refused::Invalid { .. })));
    }

    #[test]
    fn a_tenant_that_does_not_fit_is_named() {
        let Err(error) = book(&CONFIG.replace("100000", "1000000")) else {
            panic!("admitted");
        };
        let text = error.to_string();
        assert!(
            text.starts_with("b.toml:5: tenant.export: \"a\" is refused already"),
            "{text}"
        );
    }
}
