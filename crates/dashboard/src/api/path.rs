//! Numbers in a path.

use axum::http::StatusCode;

use crate::reply::Refusal;

/// The number of an experiment or evaluation in a path, as Slackline writes it: neither a sign nor
/// zeros before it.
pub(crate) fn number<T: std::str::FromStr + ToString>(
    text: &str,
    what: &str,
) -> Result<T, Refusal> {
    let number = text.parse::<T>().ok();
    number
        .filter(|number| number.to_string() == text)
        .ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, format!("there is no {what} {text}")))
}

pub(super) fn id(text: &str) -> Result<i64, Refusal> {
    number(text, "experiment")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_experiment_has_one_address() {
        assert_eq!(id("2").unwrap(), 2);
        for other in ["+2", "02", "-0", "2 ", "", "99999999999999999999"] {
            let refused = id(other).unwrap_err();
            assert_eq!(refused.status(), StatusCode::NOT_FOUND, "{other}");
        }
    }
}
