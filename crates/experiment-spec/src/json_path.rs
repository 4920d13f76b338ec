//! Paths to numbers in JSON: keys separated by dots, `[0]` for an element of an array, `["a.b"]`
//! for a key that holds a dot, an optional `$.` in front.

/// Whether a JSON path is well-formed, for checking a spec before anything runs.
///
/// # Errors
/// What is wrong with it.
///
/// ```
/// assert!(experiment_spec::check_json_path("jobs[0].read.iops").is_ok());
/// assert!(experiment_spec::check_json_path("jobs[zero]").is_err());
/// ```
pub fn check_json_path(path: &str) -> Result<(), String> {
    json_steps(path).map(|_| ())
}

/// One step of a JSON path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonStep {
    /// To the value of this key of an object.
    Key(String),
    /// To this element of an array, from 0.
    Index(usize),
}

/// The steps of a JSON path: `latency.p99`, `jobs[0].read.iops`, `percentile["99.000000"]`.
///
/// # Errors
/// What is wrong with it.
pub fn json_steps(path: &str) -> Result<Vec<JsonStep>, String> {
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    if rest.is_empty() {
        return Err("it is empty".to_owned());
    }
    while !rest.is_empty() {
        if let Some(inside) = rest.strip_prefix('[') {
            rest = if let Some(quote) = inside.chars().next().filter(|c| matches!(c, '"' | '\'')) {
                let (key, after) = inside[1..]
                    .split_once(quote)
                    .ok_or_else(|| format!("no closing {quote} after `[`"))?;
                steps.push(JsonStep::Key(key.to_owned()));
                after
                    .strip_prefix(']')
                    .ok_or_else(|| format!("no `]` after `{key}`"))?
            } else {
                let (index, after) = inside
                    .split_once(']')
                    .ok_or_else(|| "no `]` after `[`".to_owned())?;
                let index = index
                    .parse()
                    .map_err(|_| format!("`{index}` is neither an index nor a quoted key"))?;
                steps.push(JsonStep::Index(index));
                after
            };
        } else {
            // A dot separates; only the first key may stand without one.
            let key_on = match rest.strip_prefix('.') {
                Some(key_on) => key_on,
                None if steps.is_empty() => rest,
                None => return Err(format!("a dot or `[` is missing before `{rest}`")),
            };
            let end = key_on.find(['.', '[']).unwrap_or(key_on.len());
            let (key, after) = key_on.split_at(end);
            if key.is_empty() {
                return Err("a key between two dots is empty".to_owned());
            }
            steps.push(JsonStep::Key(key.to_owned()));
            rest = after;
        }
    }
    Ok(steps)
}
