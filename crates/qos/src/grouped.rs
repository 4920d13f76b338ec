//! Numbers for people.

use std::fmt;

/// A number with a comma between each three digits: `1,234,567`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grouped(pub u64);

impl Grouped {
    /// The nearest whole number; negative and NaN are 0.
    pub fn rounded(value: f64) -> Self {
        Self(crate::rounded(value))
    }
}

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_a_group() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(Grouped(number).to_string(), text);
        }
        assert_eq!(format!("{:>6}", Grouped(1000)), " 1,000");
    }
}
