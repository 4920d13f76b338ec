//! Which tenants a device can keep its word to, and how its tokens are shared.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::tenant::{IOPS_MAX, P95_US_MAX};
use crate::{Column, DeviceModel, Grouped, Objective, TenantSpec, rounded};

/// Tenants of a device at most.
pub const TENANTS_MAX: u32 = 16_384;

/// Why a tenant was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The device has all tenants that it may have.
    #[error("the device already has {TENANTS_MAX} tenants, which is the most: remove one")]
    TooMany,
    /// A number of the objective makes no sense.
    #[error("the objective's {key} is {value}: {hint}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        hint: String,
    },
    /// Nobody knows what the device can do.
    #[error(
        "the device has no calibration, so no tail latency can be promised: calibrate it, or make the tenant best effort"
    )]
    NotCalibrated,
    /// The device was calibrated without writes.
    #[error(
        "the calibration has no writes, so only tenants that never write can be admitted beside an objective: \
         calibrate with a write area, or {advice}"
    )]
    WritesNotCalibrated {
        /// Which tenant could be read-only, and how.
        advice: &'static str,
    },
    /// The device is never that fast.
    #[error(
        "a 95th percentile of {p95_us} µs is below what the device does at its lowest calibrated rate, {best_us:.0} µs: \
         ask for {best_us:.0} µs or more"
    )]
    TooStrict {
        /// The objective of the tenant, or of one that is there already.
        p95_us: u32,
        /// The lowest percentile of the calibration.
        best_us: f64,
    },
    /// The reservations would exceed what the device does at the strictest objective.
    #[error(
        "the tenant needs {} tokens/s, and {} are left. At {} µs, the strictest objective, the device takes {}, and \
         other tenants reserved {}. {fits}",
        Grouped(*needed),
        Grouped(*left),
        Grouped((*strictest_us).into()),
        Grouped(*rate),
        Grouped(*reserved)
    )]
    TooMuch {
        /// Tokens a second that the tenant needs.
        needed: u64,
        /// Tokens a second that are left at the strictest objective.
        left: u64,
        /// The strictest objective with the tenant, in microseconds.
        strictest_us: u32,
        /// What the device takes at that objective.
        rate: u64,
        /// Tokens a second that others reserved.
        reserved: u64,
        /// What would fit.
        fits: String,
    },
    /// The tenant may write, and the device could not keep its promises to others then.
    #[error(
        "beside writes the device takes only {} tokens/s, and other tenants reserved {}: set `read_only = true` for the tenant",
        Grouped(*rate),
        Grouped(*reserved)
    )]
    EndsReadOnly {
        /// Tokens a second of the device while somebody may write.
        rate: u64,
        /// Tokens a second that others reserved.
        reserved: u64,
    },
    /// There is no memory for the tenant's queue.
    #[error("there is no memory for the queue of one more tenant")]
    NoMemory,
}

/// How a device's tokens are shared now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShares {
    /// Tokens a second of the device. `None`: nothing is limited, because there is no objective.
    pub rate: Option<u64>,
    /// Tokens a second that latency-critical tenants reserved.
    pub reserved: u64,
    /// Tokens a second of each best-effort tenant.
    pub best_effort_each: u64,
    /// Tokens a second that each latency-critical tenant has beside its own, while there is no
    /// best-effort tenant.
    pub spare_each: u64,
    /// The strictest objective, in microseconds.
    pub strictest_us: Option<u32>,
    /// Whether the read-only column counts.
    pub is_read_only: bool,
}

/// What a device has for one more tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// At this 95th percentile, in microseconds: the strictest objective of the device's tenants.
    /// Without one the asked percentile, or the best that the device does.
    pub p95_us: u32,
    /// Tokens a second that the device takes. 0: the tenant would write, and writes were not
    /// calibrated.
    pub rate: u64,
    /// Tokens a second that nobody reserved.
    pub left: u64,
}

/// An objective, in an order that begins with the strictest.
#[derive(Clone, Copy, Debug)]
struct Ordered(Objective);

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        let whole = |it: &Self| (it.0.p95_us, it.0.iops);
        let shares = self.0.read_share.total_cmp(&other.0.read_share);
        whole(self).cmp(&whole(other)).then(shares)
    }
}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

/// The book of a device's tenants: pure arithmetic.
#[derive(Clone, Debug)]
pub struct Admission {
    model: Option<DeviceModel>,
    /// Number of latency-critical tenants by objective, the strictest first.
    objectives: BTreeMap<Ordered, u32>,
    reserved: u64,
    latency_critical: u32,
    best_effort: u32,
    writers: u32,
}

impl Admission {
    /// A device without tenants. Without a model it admits best-effort tenants only, and limits
    /// nothing.
    pub fn new(model: Option<DeviceModel>) -> Self {
        Self {
            model,
            objectives: BTreeMap::new(),
            reserved: 0,
            latency_critical: 0,
            best_effort: 0,
            writers: 0,
        }
    }

    /// The model.
    pub fn model(&self) -> Option<&DeviceModel> {
        self.model.as_ref()
    }

    /// Replaces the model. Admitted tenants stay, also where the new model has too little for them.
    pub fn set_model(&mut self, model: Option<DeviceModel>) {
        let costs = |model: &Option<DeviceModel>| model.as_ref().map(|model| model.costs);
        let is_priced_anew = costs(&self.model) != costs(&model);
        self.model = model;
        if is_priced_anew {
            let objectives = self.objectives.iter();
            let tokens = objectives.map(|(objective, &number)| {
                self.needed(&objective.0).saturating_mul(number.into())
            });
            self.reserved = tokens.fold(0, u64::saturating_add);
        }
    }

    /// The strictest objective, in microseconds.
    fn strictest_us(&self) -> Option<u32> {
        let (strictest, _) = self.objectives.first_key_value()?;
        Some(strictest.0.p95_us)
    }

    /// Number of tenants.
    pub fn tenants(&self) -> u32 {
        self.latency_critical + self.best_effort
    }

    /// Number of latency-critical tenants.
    pub fn latency_critical(&self) -> u32 {
        self.latency_critical
    }

    /// Number of best-effort tenants.
    pub fn best_effort(&self) -> u32 {
        self.best_effort
    }

    /// Admits a tenant.
    ///
    /// # Errors
    /// See [`Refused`]; nothing has changed then.
    pub fn admit(&mut self, spec: &TenantSpec) -> Result<(), Refused> {
        self.check(spec)?;
        self.keep(spec);
        Ok(())
    }

    /// Counts a tenant that was admitted before, also where the model has too little for it now.
    pub fn keep(&mut self, spec: &TenantSpec) {
        self.count(spec, true);
    }

    /// Removes a tenant that was admitted with this specification.
    pub fn release(&mut self, spec: &TenantSpec) {
        self.count(spec, false);
    }

    fn count(&mut self, spec: &TenantSpec, is_new: bool) {
        let step = |value: &mut u32| {
            *value = match is_new {
                true => *value + 1,
                false => value.saturating_sub(1),
            };
        };
        if spec.is_writer() {
            step(&mut self.writers);
        }
        let Some(objective) = spec.objective else {
            step(&mut self.best_effort);
            return;
        };
        step(&mut self.latency_critical);
        let number = self.objectives.entry(Ordered(objective)).or_default();
        step(number);
        if *number == 0 {
            self.objectives.remove(&Ordered(objective));
        }
        let tokens = self.needed(&objective);
        self.reserved = match is_new {
            true => self.reserved.saturating_add(tokens),
            false => self.reserved.saturating_sub(tokens),
        };
    }

    /// Tokens a second that an objective reserves; 0 without a model.
    pub fn needed(&self, objective: &Objective) -> u64 {
        self.model
            .as_ref()
            .map_or(0, |model| objective.tokens_per_s(model.costs))
    }

    /// The column that counts.
    fn column(&self, is_read_only: bool) -> Option<&Column> {
        let curve = &self.model.as_ref()?.curve;
        match (is_read_only, &curve.mixed) {
            (false, Some(mixed)) => Some(mixed),
            // Where writes were not calibrated, nobody with an objective shares with a writer.
            _ => Some(&curve.read_only),
        }
    }

    /// Whether a tenant would be admitted.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, spec: &TenantSpec) -> Result<(), Refused> {
        if let Some(objective) = &spec.objective {
            check_objective(objective)?;
        }
        if self.tenants() >= TENANTS_MAX {
            return Err(Refused::TooMany);
        }
        let has_objectives = spec.objective.is_some() || self.latency_critical > 0;
        if !has_objectives {
            return Ok(());
        }
        let Some(model) = &self.model else {
            return Err(Refused::NotCalibrated);
        };
        let is_read_only = self.writers == 0 && !spec.is_writer();
        let column = match (is_read_only, &model.curve.mixed) {
            (true, _) => &model.curve.read_only,
            (false, Some(mixed)) => mixed,
            (false, None) => {
                let advice = match spec.objective {
                    _ if !spec.is_writer() => {
                        "set `read_only = true` for the device's other tenants"
                    }
                    Some(objective) if objective.writes() => {
                        "make the tenant read-only: `read_only = true`, and `read_share = 1.0` in its objective"
                    }
                    _ => "set `read_only = true` for the tenant",
                };
                return Err(Refused::WritesNotCalibrated { advice });
            }
        };
        let there = self.strictest_us();
        let new = spec.objective.map(|objective| objective.p95_us);
        let Some(strictest_us) = there.into_iter().chain(new).min() else {
            return Ok(());
        };
        let Some(rate) = column.tokens_per_s_at(f64::from(strictest_us)) else {
            return Err(Refused::TooStrict {
                p95_us: strictest_us,
                best_us: column.min_p95_us().ceil(),
            });
        };
        let rate = rounded(rate.floor());
        let Some(objective) = spec.objective else {
            return match self.reserved > rate {
                true => Err(Refused::EndsReadOnly {
                    rate,
                    reserved: self.reserved,
                }),
                false => Ok(()),
            };
        };
        let needed = self.needed(&objective);
        let left = rate.saturating_sub(self.reserved);
        if needed <= left && self.reserved <= rate {
            return Ok(());
        }
        let each = needed as f64 / f64::from(objective.iops);
        let iops = rounded((left as f64 / each).floor());
        Err(Refused::TooMuch {
            needed,
            left,
            strictest_us,
            rate,
            reserved: self.reserved,
            fits: match iops {
                0 => "Nothing fits at this latency and share of reads".into(),
                _ => format!(
                    "Up to {} IOPS fit at this latency and share of reads",
                    Grouped(iops)
                ),
            },
        })
    }

    /// What is left for a tenant with this objective. `None`: the device has no calibration.
    pub fn left(&self, objective: &Objective) -> Option<Headroom> {
        let curve = &self.model.as_ref()?.curve;
        let is_read_only = self.writers == 0 && !objective.writes();
        let column = match is_read_only {
            true => Some(&curve.read_only),
            false => curve.mixed.as_ref(),
        };
        let wanted_us = self.strictest_us();
        let wanted_us = wanted_us.unwrap_or(objective.p95_us);
        let best_us = column.map_or(0, |column| rounded(column.min_p95_us().ceil()));
        let p95_us = wanted_us.max(u32::try_from(best_us).unwrap_or(u32::MAX));
        let rate = column.map_or(0.0, |column| rate_or_less(column, f64::from(p95_us)));
        let rate = rounded(rate.floor());
        Some(Headroom {
            p95_us,
            rate,
            left: rate.saturating_sub(self.reserved),
        })
    }

    /// How tokens are shared. `factor` scales the calibrated rate by what was measured; `is_quiet`:
    /// nobody has written for a while, so that reads are as cheap as in read-only mode.
    pub fn shares(&self, factor: f64, is_quiet: bool) -> TokenShares {
        let strictest_us = self.strictest_us();
        let is_read_only = self.writers == 0 || is_quiet;
        let rate = strictest_us.map(|p95_us| {
            let at = |is_read_only| {
                let column = self.column(is_read_only);
                column.map_or(0.0, |column| rate_or_less(column, f64::from(p95_us)))
            };
            // A time without writes never gives less than what was promised.
            let rate = at(is_read_only).max(at(self.writers == 0));
            let most = self.column(is_read_only);
            let most = most.map_or(0.0, Column::max_tokens_per_s);
            rounded((rate * factor).min(most.max(rate)).floor())
        });
        let spare = rate.map_or(0, |rate| rate.saturating_sub(self.reserved));
        let each = |number: u32| spare.checked_div(u64::from(number)).unwrap_or(0);
        TokenShares {
            rate,
            reserved: self.reserved,
            best_effort_each: each(self.best_effort),
            spare_each: match self.best_effort {
                0 => each(self.latency_critical),
                _ => 0,
            },
            strictest_us,
            is_read_only,
        }
    }
}

/// The rate at a percentile. Below the first point, where a learnt curve may have moved after a
/// tenant was admitted, less than the first point's rate.
fn rate_or_less(column: &Column, p95_us: f64) -> f64 {
    let first = column.points()[0];
    column
        .tokens_per_s_at(p95_us)
        .unwrap_or(first.tokens_per_s * p95_us / first.p95_us)
}

fn check_objective(objective: &Objective) -> Result<(), Refused> {
    let numbers = [
        ("p95_us", objective.p95_us, P95_US_MAX),
        ("iops", objective.iops, IOPS_MAX),
    ];
    for (key, value, max) in numbers {
        if !(1..=max).contains(&value) {
            return Err(Refused::Invalid {
                key,
                value: value.to_string(),
                hint: format!("it must be from 1 to {}", Grouped(max.into())),
            });
        }
    }
    if !(0.0..=1.0).contains(&objective.read_share) {
        return Err(Refused::Invalid {
            key: "read_share",
            value: objective.read_share.to_string(),
            hint: "it must be from 0 (writes only) to 1 (reads only)".into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
