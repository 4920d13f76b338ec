//! Metrics from any text by regular expression.

use std::collections::BTreeMap;

use experiment_spec::compile_regex;

use super::error::ParseError;
use super::report::{first_lines, number};

/// Reads one number per metric: the first capture group of the first match, `^` and `$` matching at
/// lines.
///
/// # Errors
/// [`ParseError::Pattern`] for a pattern that [`check_regex`](super::check_regex) refuses,
/// [`ParseError::NoMatch`], [`ParseError::NotANumber`] for a group that is not a number or took no
/// part in the match.
///
/// ```
/// let patterns = [("qps".to_string(), r"^rate: ([0-9.]+)/s$".to_string())].into();
/// let metrics = tuner::parse::parse_regex(&patterns, "done\nrate: 120.5/s\n")?;
/// assert_eq!(metrics["qps"], 120.5);
/// # Ok::<(), tuner::parse::ParseError>(())
/// ```
pub fn parse_regex(
    patterns: &BTreeMap<String, String>,
    text: &str,
) -> Result<BTreeMap<String, f64>, ParseError> {
    patterns
        .iter()
        .map(|(metric, pattern)| {
            let regex = compile_regex(pattern).map_err(|message| ParseError::Pattern {
                metric: metric.clone(),
                pattern: pattern.clone(),
                message,
            })?;
            let captures = regex.captures(text).ok_or_else(|| ParseError::NoMatch {
                metric: metric.clone(),
                pattern: pattern.clone(),
                got: first_lines(text),
            })?;
            let found = captures.get(1).map_or("", |group| group.as_str());
            match number(found) {
                Some(value) => Ok((metric.clone(), value)),
                None => Err(ParseError::NotANumber {
                    metric: metric.clone(),
                    found: found.chars().take(80).collect(),
                }),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use experiment_spec::check_regex;

    fn read(pattern: &str, text: &str) -> Result<f64, ParseError> {
        let patterns = [("m".to_owned(), pattern.to_owned())].into();
        parse_regex(&patterns, text).map(|metrics| metrics["m"])
    }

    #[test]
    fn the_first_group_of_the_first_match() {
        assert_eq!(read("a=(\\d+) b=(\\d+)", "a=1 b=2\na=3 b=4"), Ok(1.0));
        assert_eq!(read("^b (.*)$", "a 1\nb  -2e3 \nc"), Ok(-2000.0));
    }

    #[test]
    fn errors_name_metric_and_pattern() {
        assert_eq!(
            read("x(\\d)", "").unwrap_err().to_string(),
            "metric `m`: pattern `x(\\d)` matches nothing in the output:\n  (nothing was printed)"
        );
        assert_eq!(
            read("x(.*)", "x1,234").unwrap_err().to_string(),
            "metric `m`: `1,234` is not a finite number"
        );
        assert!(matches!(
            read("x(1)?", "x"),
            Err(ParseError::NotANumber { .. })
        ));
        assert!(matches!(
            read("x(inf)", "xinf"),
            Err(ParseError::NotANumber { .. })
        ));
        assert!(matches!(read("(", "x"), Err(ParseError::Pattern { .. })));
        assert!(check_regex("x{99999999}(a)").is_err());
    }
}
