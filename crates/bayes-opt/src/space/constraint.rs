//! Linear constraints between parameters, as text: `min_pool <= max_pool`, `2*a + b < 100`.
//!
//! The grammar: `side op side`, `op` one of `<= >= < >`; a side is a sum of products of numbers and
//! parameter names with at most one name in a product. A name that is not a plain word (letters,
//! digits, `_` and `.`) stands in double quotes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::SpaceError;
use crate::space::value::{Configuration, Value};

/// How deep parentheses may nest: a bound on the parser's recursion.
const DEPTH_MAX: usize = 32;
/// How far [`LinearConstraint::pull`] goes, in distances of the border. A choice of this crate.
const BEYOND: f64 = 1.2;
/// And how much further where the border is outside, in spans. A choice of this crate.
const OFF_BORDER: f64 = 0.01;

/// `Σ coefficient·parameter + constant ≤ 0`, or `< 0`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinearConstraint {
    text: String,
    terms: BTreeMap<String, f64>,
    constant: f64,
    strict: bool,
}

impl LinearConstraint {
    /// Reads a constraint.
    ///
    /// ```
    /// use bayes_opt::LinearConstraint;
    /// assert!(LinearConstraint::parse("min_pool <= max_pool").is_ok());
    /// assert!(LinearConstraint::parse("a * b <= 3").is_err());
    /// ```
    ///
    /// # Errors
    /// [`SpaceError::Constraint`] names the text and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, SpaceError> {
        let failed = |reason: String| SpaceError::Constraint {
            text: text.trim().to_owned(),
            reason,
        };
        let tokens = tokens(text).map_err(failed)?;
        let mut parser = Parser {
            tokens: &tokens,
            next: 0,
        };
        let left = parser.sum(0).map_err(failed)?;
        let operator = match parser.take() {
            Some(Token::Operator(operator)) => *operator,
            Some(other) => return Err(failed(format!("expected <=, >=, < or >, found {other}"))),
            None => return Err(failed("it has no <=, >=, < or >".to_owned())),
        };
        let right = parser.sum(0).map_err(failed)?;
        if let Some(extra) = parser.take() {
            return Err(failed(format!("{extra} is left over")));
        }
        let less = operator.starts_with('<');
        let Linear {
            mut terms,
            constant,
        } = if less {
            left.plus(&right, -1.0)
        } else {
            right.plus(&left, -1.0)
        };
        terms.retain(|_, coefficient| *coefficient != 0.0);
        if terms.is_empty() {
            return Err(failed("it names no parameter".to_owned()));
        }
        if !constant.is_finite() || terms.values().any(|coefficient| !coefficient.is_finite()) {
            return Err(failed("a number in it is not finite".to_owned()));
        }
        Ok(Self {
            text: text.trim().to_owned(),
            terms,
            constant,
            strict: operator.len() == 1,
        })
    }

    /// The names of the parameters in it.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.terms.keys().map(String::as_str)
    }

    /// Whether `configuration` meets it; `None` when a parameter is missing or not a number.
    pub fn holds(&self, configuration: &Configuration) -> Option<bool> {
        let (sum, magnitude) = self.sum(configuration)?;
        Some(self.is_met(sum, magnitude))
    }

    fn is_met(&self, sum: f64, magnitude: f64) -> bool {
        // Rounding of the sum must not break an equality such as 0.1 + 0.2 <= 0.3.
        let tolerance = 1e-12 * magnitude;
        if self.strict {
            sum < -tolerance
        } else {
            sum <= tolerance
        }
    }

    /// `Σ coefficient·parameter + constant`, and the largest of its terms.
    fn sum(&self, configuration: &Configuration) -> Option<(f64, f64)> {
        let mut sum = self.constant;
        let mut magnitude = self.constant.abs();
        for (name, coefficient) in &self.terms {
            let term = coefficient * configuration.get(name).and_then(Value::as_f64)?;
            sum += term;
            magnitude = magnitude.max(term.abs());
        }
        Some((sum, magnitude))
    }

    /// Where it does not hold, moves `configuration` to where it does and a little further, the
    /// shortest way if each parameter's `span` is its unit; what has a span of 0 stays.
    pub(crate) fn pull(&self, configuration: &mut Configuration, span: impl Fn(&str) -> f64) {
        let Some((excess, _)) = self
            .sum(configuration)
            .filter(|(sum, magnitude)| !self.is_met(*sum, *magnitude))
        else {
            return;
        };
        let terms = self.terms.iter();
        let squares = terms.map(|(name, coefficient)| (coefficient * span(name)).powi(2));
        let squares: f64 = squares.sum();
        // On the border itself a strict one does not hold yet.
        let off_border = if self.strict {
            OFF_BORDER * squares.sqrt()
        } else {
            0.0
        };
        let share = (BEYOND * excess + off_border) / squares;
        for (name, coefficient) in &self.terms {
            let step = share * coefficient * span(name).powi(2);
            if let Some(value) = configuration.0.get_mut(name)
                && let Some(before) = value.as_f64()
                && step.is_normal()
            {
                *value = Value::Float(before - step);
            }
        }
    }
}

impl fmt::Display for LinearConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for LinearConstraint {
    type Err = SpaceError;
    fn from_str(text: &str) -> Result<Self, SpaceError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for LinearConstraint {
    type Error = SpaceError;
    fn try_from(text: String) -> Result<Self, SpaceError> {
        Self::parse(&text)
    }
}

impl From<LinearConstraint> for String {
    fn from(constraint: LinearConstraint) -> String {
        constraint.text
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Operator(&'static str),
    Sign(char),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Number(number) => write!(f, "`{number}`"),
            Token::Name(name) => write!(f, "`{name}`"),
            Token::Operator(operator) => write!(f, "`{operator}`"),
            Token::Sign(sign) => write!(f, "`{sign}`"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let taken = if first.is_ascii_digit() || first == '.' {
            let length = number_length(rest);
            let number = rest[..length]
                .parse()
                .map_err(|_| format!("`{}` is no number", &rest[..length]))?;
            tokens.push(Token::Number(number));
            length
        } else if first.is_alphabetic() || first == '_' {
            let length = rest
                .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.'))
                .unwrap_or(rest.len());
            tokens.push(Token::Name(rest[..length].to_owned()));
            length
        } else if first == '"' {
            let length = rest[1..].find('"').ok_or("a quote is not closed")?;
            tokens.push(Token::Name(rest[1..=length].to_owned()));
            length + 2
        } else if let Some(operator) = ["<=", ">=", "<", ">"]
            .into_iter()
            .find(|operator| rest.starts_with(operator))
        {
            tokens.push(Token::Operator(operator));
            operator.len()
        } else if "+-*/()".contains(first) {
            tokens.push(Token::Sign(first));
            1
        } else {
            return Err(format!("`{first}` cannot stand here"));
        };
        rest = rest[taken..].trim_start();
    }
    Ok(tokens)
}

fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        let exponent_sign =
            matches!(byte, b'+' | b'-') && length > 0 && matches!(bytes[length - 1], b'e' | b'E');
        if byte.is_ascii_digit() || *byte == b'.' || matches!(byte, b'e' | b'E') || exponent_sign {
            length += 1;
        } else {
            break;
        }
    }
    length
}

#[derive(Default)]
struct Linear {
    terms: BTreeMap<String, f64>,
    constant: f64,
}

impl Linear {
    fn plus(mut self, other: &Linear, factor: f64) -> Linear {
        for (name, coefficient) in &other.terms {
            *self.terms.entry(name.clone()).or_insert(0.0) += factor * coefficient;
        }
        self.constant += factor * other.constant;
        self
    }

    fn times(mut self, factor: f64) -> Linear {
        self.terms
            .values_mut()
            .for_each(|coefficient| *coefficient *= factor);
        self.constant *= factor;
        self
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    next: usize,
}

impl Parser<'_> {
    fn take(&mut self) -> Option<&Token> {
        let token = self.tokens.get(self.next);
        self.next += 1;
        token
    }

    fn take_sign(&mut self, signs: &str) -> Option<char> {
        match self.tokens.get(self.next) {
            Some(Token::Sign(sign)) if signs.contains(*sign) => {
                self.next += 1;
                Some(*sign)
            }
            _ => None,
        }
    }

    fn sum(&mut self, depth: usize) -> Result<Linear, String> {
        if depth > DEPTH_MAX {
            return Err(format!("parentheses nest deeper than {DEPTH_MAX}"));
        }
        let mut sum = self.product(depth)?;
        while let Some(sign) = self.take_sign("+-") {
            let next = self.product(depth)?;
            sum = sum.plus(&next, if sign == '+' { 1.0 } else { -1.0 });
        }
        Ok(sum)
    }

    fn product(&mut self, depth: usize) -> Result<Linear, String> {
        let mut product = self.factor(depth)?;
        while let Some(sign) = self.take_sign("*/") {
            let next = self.factor(depth)?;
            product = match (product.terms.is_empty(), next.terms.is_empty(), sign) {
                (_, true, '/') => product.times(1.0 / next.constant),
                (_, true, _) => product.times(next.constant),
                (true, false, '*') => next.times(product.constant),
                (_, _, '/') => {
                    return Err(
                        "it divides by a parameter: only linear constraints are possible"
                            .to_owned(),
                    );
                }
                _ => {
                    return Err(
                        "it multiplies two parameters: only linear constraints are possible"
                            .to_owned(),
                    );
                }
            };
        }
        Ok(product)
    }

    fn factor(&mut self, depth: usize) -> Result<Linear, String> {
        let mut sign = 1.0;
        while let Some(taken) = self.take_sign("+-") {
            sign = if taken == '-' { -sign } else { sign };
        }
        if self.take_sign("(").is_some() {
            let inner = self.sum(depth + 1)?;
            return match self.take_sign(")") {
                Some(_) => Ok(inner.times(sign)),
                None => Err("a parenthesis is not closed".to_owned()),
            };
        }
        match self.take() {
            Some(Token::Number(number)) => Ok(Linear {
                constant: sign * number,
                ..Linear::default()
            }),
            Some(Token::Name(name)) => Ok(Linear {
                terms: BTreeMap::from([(name.clone(), sign)]),
                constant: 0.0,
            }),
            Some(other) => Err(format!("expected a number or a parameter, found {other}")),
            None => Err("it ends too early".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, a: f64, b: f64) -> bool {
        let configuration = Configuration(BTreeMap::from([
            ("a".to_owned(), Value::Float(a)),
            ("b".to_owned(), Value::Float(b)),
        ]));
        LinearConstraint::parse(text)
            .unwrap()
            .holds(&configuration)
            .unwrap()
    }

    #[test]
    fn constraints_mean_what_they_say() {
        assert!(
            holds("a <= b", 1.0, 1.0) && !holds("a < b", 1.0, 1.0) && holds("a >= b", 2.0, 1.0)
        );
        assert!(holds("2*a + b <= 100", 40.0, 20.0) && !holds("2*a + b <= 100", 40.0, 21.0));
        assert!(holds("-(a - 3) / 2 > b * -1", 1.0, 0.0) && !holds("1e2 < a", 100.0, 0.0));
        assert!(holds("\"a\" + 0.2 <= 0.3", 0.1, 0.0));
        assert!(holds("a * (2 + 1) <= b", 1.0, 3.0));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        for (text, reason) in [
            ("a b", "expected <=, >=, < or >, found `b`"),
            ("a", "it has no <=, >=, < or >"),
            ("a * b <= 3", "multiplies two parameters"),
            ("1 / a <= 3", "divides by a parameter"),
            ("a - a <= 3", "names no parameter"),
            ("a <= 3 4", "`4` is left over"),
            ("a = 3", "`=` cannot stand here"),
            ("(a <= 3", "not closed"),
            ("a <= ", "ends too early"),
            ("a <= 1/0", "not finite"),
            ("a <= 1.2.3", "is no number"),
            ("\"a <= 3", "quote is not closed"),
        ] {
            let error = LinearConstraint::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let deep = format!("{}a{} <= 1", "(".repeat(500), ")".repeat(500));
        assert!(
            LinearConstraint::parse(&deep)
                .unwrap_err()
                .to_string()
                .contains("deeper")
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-c0-9 .+*/()<>=\"-]{0,24}|\\PC{0,16}") {
            let _ = LinearConstraint::parse(&text);
        }
    }
}
