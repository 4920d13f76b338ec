//! What a tenant does in a second.

use dataplane::Time;

/// A tenant's rates over the last second or so.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rates {
    /// Requests completed.
    pub(crate) iops: f64,
    /// Tokens of its requests that were submitted.
    pub(crate) spent_tokens_per_s: f64,
    /// Tokens of its requests that arrived.
    pub(crate) asked_tokens_per_s: f64,
    /// Tokens that it left to others.
    pub(crate) given_tokens_per_s: f64,
    /// Tokens of others that it used.
    pub(crate) received_tokens_per_s: f64,
}

impl Rates {
    /// The sum of both: one tenant on two shards.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            iops: self.iops + other.iops,
            spent_tokens_per_s: self.spent_tokens_per_s + other.spent_tokens_per_s,
            asked_tokens_per_s: self.asked_tokens_per_s + other.asked_tokens_per_s,
            given_tokens_per_s: self.given_tokens_per_s + other.given_tokens_per_s,
            received_tokens_per_s: self.received_tokens_per_s + other.received_tokens_per_s,
        }
    }
}

/// How a tenant fares on one shard.
#[derive(Debug, Clone)]
pub(crate) struct Fare {
    /// The export's name.
    pub(crate) export: String,
    /// What the scheduler says.
    pub(crate) tenant: qos::TenantFigures,
    /// What the tenant does.
    pub(crate) rates: Rates,
}

/// Makes rates of counters.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    before: Option<(Time, [u64; 5])>,
}

impl Meter {
    /// The rates since the last call; none at the first.
    pub(crate) fn rates(&mut self, now: Time, tenant: &qos::TenantFigures) -> Rates {
        let counts = [
            tenant.reads + tenant.writes + tenant.others,
            tenant.spent_tokens,
            tenant.asked_tokens(),
            tenant.given_tokens,
            tenant.received_tokens,
        ];
        let Some((then, before)) = self.before.replace((now, counts)) else {
            return Rates::default();
        };
        let seconds = (now.since_ns(then) as f64 / 1e9).max(1e-3);
        let [iops, spent, asked, given, received] = [0, 1, 2, 3, 4]
            .map(|index: usize| counts[index].saturating_sub(before[index]) as f64 / seconds);
        Rates {
            iops,
            spent_tokens_per_s: spent,
            asked_tokens_per_s: asked,
            given_tokens_per_s: given,
            received_tokens_per_s: received,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(reads: u64, given_tokens: u64) -> qos::TenantFigures {
        qos::TenantFigures {
            objective: None,
            p95_us: None,
            queued: 0,
            queued_tokens: 0,
            credit_tokens: 0,
            reads,
            writes: 0,
            others: 0,
            spent_tokens: 100 * reads,
            given_tokens,
            received_tokens: 0,
            refused: 0,
            in_deficit: false,
            deficits: 0,
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let mut meter = Meter::default();
        assert_eq!(meter.rates(Time(5), &status(100, 7)), Rates::default());
        let rates = meter.rates(Time(5 + 500_000_000), &status(150, 17));
        assert_eq!((rates.iops, rates.spent_tokens_per_s), (100.0, 10_000.0));
        assert_eq!(rates.asked_tokens_per_s, rates.spent_tokens_per_s);
        assert_eq!(rates.given_tokens_per_s, 20.0);
        assert_eq!(rates.and(rates).iops, 200.0);
        let rates = meter.rates(Time(5 + 1_500_000_000), &status(150, 17));
        assert_eq!(rates, Rates::default());
        // What arrived and waits was asked for, and is not spent.
        let mut waits = status(150, 17);
        waits.queued_tokens = 700;
        let rates = meter.rates(Time(5 + 2_500_000_000), &waits);
        assert_eq!(
            (rates.asked_tokens_per_s, rates.spent_tokens_per_s),
            (700.0, 0.0)
        );
        // Its turn comes: it was asked for once.
        let rates = meter.rates(Time(5 + 3_500_000_000), &status(157, 17));
        assert_eq!(
            (rates.asked_tokens_per_s, rates.spent_tokens_per_s),
            (0.0, 700.0)
        );
    }
}
