//! The lines of a page of metrics (prometheus.io/docs/instrumenting/exposition_formats, text
//! format, and OpenMetrics).

/// One series and its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    pub(crate) name: &'a str,
    labels: Vec<(&'a str, String)>,
    pub(crate) value: f64,
}

impl Sample<'_> {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(known, _)| *known == name);
        label.map(|(_, value)| value.as_str())
    }
}

/// The samples of a page; lines that are none are left out.
pub(crate) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(behind) = rest.strip_prefix('}') {
                rest = behind;
                break;
            }
            let (label, behind) = rest.split_once('=')?;
            let (value, behind) = quoted(behind.trim_start())?;
            labels.push((label.trim(), value));
            rest = behind;
        }
    }
    let value = match rest.split_whitespace().next()? {
        "+Inf" => f64::INFINITY,
        value => value.parse().ok()?,
    };
    Some(Sample {
        name,
        labels,
        value,
    })
}

/// A text in quotes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, character) in inside.char_indices() {
        match (is_escaped, character) {
            (false, '"') => return Some((value, &inside[at + 1..])),
            (false, '\\') => is_escaped = true,
            (true, 'n') => {
                value.push('\n');
                is_escaped = false;
            }
            (_, character) => {
                value.push(character);
                is_escaped = false;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_their_labels() {
        let page = "# HELP a b\n\na 1\nb_bucket{le=\"+Inf\",path=\"/x\\\"y\\\\z, }\"} 2.5 1700 # {trace=\"1\"} 0.3\nc{} +Inf\nbroken{a=\"\nalone\n";
        let found: Vec<_> = samples(page).collect();
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].name, found[0].value), ("a", 1.0));
        assert_eq!(found[1].label("path"), Some("/x\"y\\z, }"));
        assert_eq!((found[1].label("le"), found[1].value), (Some("+Inf"), 2.5));
        assert_eq!(
            (found[2].label("le"), found[2].value),
            (None, f64::INFINITY)
        );
    }

    proptest::proptest! {
        #[test]
        fn no_page_makes_it_panic(page: String) {
            let _ = samples(&page).count();
        }
    }
}
