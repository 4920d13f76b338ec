//! How much an experiment may measure.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use coordinator::{EVALUATIONS_MAX, TimeLimit};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use tuner::sentence::counted;
use tuner::spec::check_wall_time;

use super::body::body;
use super::shown::{Shown, act};
use crate::app::Here;
use crate::audit::Detail;
use crate::reply::Refusal;

/// A budget.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenBudget {
    /// Total number of evaluations, including failed ones.
    #[schemars(with = "usize", range(min = 1, max = 100_000))]
    evaluations: Value,
    /// Time limit for measuring, in minutes, from 0.01 to 10,000,000. If the key is left out or
    /// `null`, the present limit stays.
    #[serde(default)]
    #[schemars(with = "Option<f64>")]
    wall_time_min: Value,
    /// `true`: remove the time limit.
    #[serde(default)]
    no_wall_time: bool,
}

impl GivenBudget {
    /// The evaluations, and what becomes of the limit in minutes.
    fn checked(&self) -> Result<(usize, TimeLimit), Refusal> {
        let refused = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
        let count = self.evaluations.as_u64();
        let count = count.and_then(|it| usize::try_from(it).ok());
        let count = count.filter(|it| (1..=EVALUATIONS_MAX).contains(it));
        let count = count.ok_or_else(|| {
            let given = &self.evaluations;
            refused(format!(
                "evaluations must be a whole number from 1 to {EVALUATIONS_MAX}, not {given}"
            ))
        })?;
        if self.wall_time_min.is_null() {
            let time = match self.no_wall_time {
                true => TimeLimit::Remove,
                false => TimeLimit::Keep,
            };
            return Ok((count, time));
        }
        if self.no_wall_time {
            return Err(Refusal::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "wall_time_min sets a time limit and no_wall_time removes it: send one of them",
            ));
        }
        let minutes = self.wall_time_min.as_f64().ok_or_else(|| {
            let given = &self.wall_time_min;
            refused(format!(
                "wall_time_min must be a number of minutes, not {given}"
            ))
        })?;
        check_wall_time(minutes).map_err(|why| refused(format!("wall_time_min {why}")))?;
        Ok((count, TimeLimit::Minutes(minutes)))
    }
}

pub(crate) async fn set_budget(
    State(app): Here,
    Path(id): Path<String>,
    bytes: Bytes,
) -> Result<(Extension<Detail>, Json<Shown>), Refusal> {
    let given: GivenBudget = body(&bytes)?;
    let (evaluations, time) = given.checked()?;
    let said = match time {
        TimeLimit::Keep => String::new(),
        TimeLimit::Remove => ", no time limit".into(),
        TimeLimit::Minutes(minutes) => format!(", {minutes} min"),
    };
    let detail = Detail(format!("{}{said}", counted(evaluations, "evaluation")));
    let changed = act(app, &id, move |coordinator, id| {
        coordinator.set_budget(id, evaluations, time)
    });
    Ok((Extension(detail), changed.await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_no_experiment_can_use_up_is_refused_with_its_field() {
        let of = |text: &str| {
            let given: GivenBudget = body(&Bytes::copy_from_slice(text.as_bytes()))?;
            given.checked()
        };
        for (text, field) in [
            (r#"{"evaluations": 1e308}"#, "evaluations"),
            (r#"{"evaluations": 0}"#, "evaluations"),
            (r#"{"evaluations": -1}"#, "evaluations"),
            (r#"{"evaluations": 1.5}"#, "evaluations"),
            (r#"{"evaluations": "1e309"}"#, "evaluations"),
            (r#"{"evaluations": 100001}"#, "evaluations"),
            (
                r#"{"evaluations": 8, "wall_time_min": 1e308}"#,
                "wall_time_min",
            ),
            (r#"{"evaluations": 8, "wall_time_min": 0}"#, "wall_time_min"),
            (
                r#"{"evaluations": 8, "wall_time_min": 1e-320}"#,
                "wall_time_min must be a number of minutes from 0.01 (0.6 seconds)",
            ),
            (r#"{"evaluations": 8, "wall_time_min": 0.001}"#, "from 0.01"),
            (
                r#"{"evaluations": 8, "wall_time_min": "inf"}"#,
                "wall_time_min",
            ),
            (
                r#"{"evaluations": 8, "wall_time_min": 1e309}"#,
                "number out of range",
            ),
            (r#"{"evaluations": NaN}"#, "expected"),
        ] {
            let refused = of(text).unwrap_err();
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{text}");
            assert!(refused.text().contains(field), "{text}: {}", refused.text());
        }
        let year = r#"{"evaluations": 8, "wall_time_min": 525600}"#;
        assert_eq!(of(year).unwrap(), (8, TimeLimit::Minutes(525_600.0)));
        let kept = r#"{"evaluations": 8, "wall_time_min": null}"#;
        assert_eq!(of(kept).unwrap(), (8, TimeLimit::Keep));
    }
}
