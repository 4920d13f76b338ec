//! Conversions between counts and shares.

/// The nearest whole number that is not negative; 0 for a number that is none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "`as` saturates, and counts of cores, ways and requests are far below the limit"
)]
pub(crate) fn whole(number: f64) -> u64 {
    number.max(0.0).round() as u64
}

/// A count as a number; counts here are far below 2^52.
pub(crate) fn number(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let number = count as f64;
    number
}
