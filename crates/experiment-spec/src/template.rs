//! `{name}` in command lines, environments and files.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bayes_opt::{Configuration, Value};
use regex::Regex;

/// The values that templates may name.
pub type Variables = BTreeMap<String, String>;

/// A template names something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: {{{name}}} is neither a parameter nor a variable; write {{{{{name}}}}} for the text itself (known: {known})"
)]
pub struct UnknownName {
    /// Line of the template, from 1.
    pub line: usize,
    /// The name.
    pub name: String,
    /// What there is.
    pub known: String,
}

/// Variables of a specification, and a configuration's parameters, by name.
pub fn variables<'a>(
    variables: impl IntoIterator<Item = (&'a String, &'a Value)>,
    configuration: &'a Configuration,
) -> Variables {
    variables
        .into_iter()
        .chain(&configuration.0)
        .map(|(name, value)| (name.clone(), value.to_string()))
        .collect()
}

/// `{{name}}`, or `{name}`.
static SHAPE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}").ok());

/// Every `{name}` that [`fill`] replaces.
pub fn names(template: &str) -> impl Iterator<Item = String> {
    let found = SHAPE.iter().flat_map(|shape| shape.captures_iter(template));
    found.filter_map(|groups| Some(groups.get(2)?.as_str().to_owned()))
}

/// Replaces every `{name}` by its value. `{{name}}` stands for the text `{name}`; a brace that does
/// not enclose a plain word is left alone, so that most configuration files are templates as they
/// are.
///
/// ```
/// let values = [("port".to_string(), "80".to_string())].into();
/// let text = experiment_spec::template::fill("http { listen {port}; } # {{port}}", &values).unwrap();
/// assert_eq!(text, "http { listen 80; } # {port}");
/// ```
///
/// # Errors
/// The first name that is not among the values.
pub fn fill(template: &str, values: &Variables) -> Result<String, UnknownName> {
    let Some(shape) = SHAPE.as_ref() else {
        return Ok(template.to_owned());
    };
    let mut filled = String::with_capacity(template.len());
    let mut end = 0;
    for groups in shape.captures_iter(template) {
        let Some(whole) = groups.get(0) else { continue };
        filled.push_str(&template[end..whole.start()]);
        end = whole.end();
        if let Some(name) = groups.get(1) {
            filled.push_str(&format!("{{{}}}", name.as_str()));
        } else if let Some(name) = groups.get(2) {
            let value = values.get(name.as_str()).ok_or_else(|| UnknownName {
                line: 1 + template[..whole.start()].matches('\n').count(),
                name: name.as_str().to_owned(),
                known: values.keys().cloned().collect::<Vec<_>>().join(", "),
            })?;
            filled.push_str(value);
        }
    }
    filled.push_str(&template[end..]);
    Ok(filled)
}

/// The template that [`fill`] makes `text` of, whatever is in it.
///
/// ```
/// let template = experiment_spec::template::literal("/users/{id}");
/// assert_eq!(template, "/users/{{id}}");
/// assert_eq!(experiment_spec::template::fill(&template, &Default::default()).unwrap(), "/users/{id}");
/// ```
#[must_use]
pub fn literal(text: &str) -> String {
    SHAPE.as_ref().map_or_else(
        || text.to_owned(),
        |shape| shape.replace_all(text, "{$0}").into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_told_with_its_line() {
        let error = fill("a\nb {nope}", &Variables::new()).unwrap_err();
        assert_eq!((error.line, error.name.as_str()), (2, "nope"));
        assert!(error.to_string().contains("{{nope}}"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn a_literal_is_filled_to_itself(text in "[{}a1 ]{0,12}") {
            assert_eq!(fill(&literal(&text), &Variables::new()), Ok(text));
        }
    }
}
