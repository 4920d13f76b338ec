//! Characters and numbers in texts that people read.

/// Whether a text with this character looks like another text, or cannot be kept: NUL, and the
/// characters that turn the direction of writing (Unicode annex 9, explicit formatting).
#[must_use]
pub fn is_deceptive(it: char) -> bool {
    matches!(it, '\0' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A measured number to four significant digits, with the zeros at its end: so numbers beside each
/// other have as many. The scripts of the pages have the same rule, as `digits`.
///
/// ```
/// assert_eq!(experiment_spec::significant(1.02), "1.020");
/// assert_eq!(experiment_spec::significant(-64.4), "−64.40");
/// assert_eq!(experiment_spec::significant(0.012_341), "0.01234");
/// assert_eq!(experiment_spec::significant(98_765.4), "98770");
/// assert_eq!(experiment_spec::significant(1.5e9), "1.500e9");
/// assert_eq!(experiment_spec::significant(0.0), "0");
/// ```
#[must_use]
pub fn significant(value: f64) -> String {
    let size = value.abs();
    // Of two that are equally near, scripts take the larger one. Sixty digits tell what is exact.
    let exact = format!("{size:.60e}");
    let rest = exact.split('e').next().and_then(|digits| digits.get(5..));
    let is_between = rest.is_some_and(|rest| rest.trim_end_matches('0') == "5");
    let text = format!("{:.3e}", if is_between { size.next_up() } else { size });
    let exponent = text.split('e').nth(1).and_then(|it| it.parse::<i32>().ok());
    let text = match (text.parse::<f64>(), exponent) {
        _ if size == 0.0 || !size.is_finite() => size.to_string(),
        (Ok(rounded), Some(exponent)) if (1e-4..1e6).contains(&size) => {
            let places = usize::try_from(3 - exponent).unwrap_or(0);
            format!("{rounded:.places$}")
        }
        _ => text,
    };
    match value < 0.0 {
        true => format!("−{text}"),
        false => text,
    }
}
