//! What a specification says of `mode = "continuous"`, once it has been checked.

use jiff::tz::TimeZone;

use crate::continuous::AlertSpec;
use crate::hours::Hours;
use crate::objective::ObjectiveSpec;

/// What a specification says of `mode = "continuous"`.
#[derive(Clone, Debug)]
pub struct ContinuousRules {
    /// What a gain is a change of.
    pub objective: ObjectiveSpec,
    /// Seconds between the beginnings of two rounds.
    pub round_every_s: f64,
    /// Metrics of the control that tell the workload.
    pub metrics: Vec<String>,
    /// Parts of the day within which the workload is compared.
    pub seasons: usize,
    /// Parts of the day within which the gain is compared.
    pub gain_seasons: usize,
    /// Those of Saturdays and Sundays are seasons of their own.
    pub weekends: bool,
    /// Rounds until a false alarm of one series, on average, at the least.
    pub run_length: f64,
    /// Rounds in a row that break a constraint before a rollback.
    pub slo_rounds: usize,
    /// Promotions in a day.
    pub changes_per_day: usize,
    /// When a search or a promotion may begin; at any time where empty.
    pub hours: Vec<Hours>,
    /// Whose days and hours these are.
    pub time_zone: TimeZone,
    /// No search or promotion begins while this fires.
    pub alert: Option<AlertSpec>,
}
