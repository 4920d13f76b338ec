//! The file that says what a device can do: the key `calibration` of a device.

use std::path::Path;

use crate::config::{Backing, ConfigError, DeviceSpec};
use crate::device::DeviceError;
use crate::number::Whole;

/// What a scheduler needs of a calibration: the price of a write, and the curve. The file may say
/// more.
#[derive(serde::Deserialize)]
struct Calibration {
    /// Missing where no write was measured.
    write_cost: Option<Whole<1, { qos::WRITE_COST_MAX as u64 }>>,
    curve: qos::Curve,
}

/// What a device of the configuration can do, without opening the device. `None`: the device has no
/// calibration.
///
/// # Errors
/// The calibration cannot be read: the line that names it, and the line and the key in it.
pub(crate) fn model_of(spec: &DeviceSpec) -> Result<Option<qos::DeviceModel>, ConfigError> {
    match (&spec.backing, &spec.calibration) {
        (Backing::Simulated { model }, _) => Ok(qos::simulated::model(model)),
        (_, None) => Ok(None),
        (_, Some(file)) => read(&file.path)
            .map(Some)
            .map_err(|error| file.place.error(error.to_string())),
    }
}

fn read(path: &Path) -> Result<qos::DeviceModel, DeviceError> {
    let wrong = |text: String| DeviceError(format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let calibration: Calibration = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| DeviceError(at(path, &error)))?;
    json.end().map_err(|error| wrong(error.to_string()))?;
    let write_cost = match (calibration.write_cost, &calibration.curve.mixed) {
        (Some(write_cost), _) => write_cost.small(),
        // Nobody may write beside an objective then.
        (None, None) => qos::ASSUMED_WRITE_COST,
        (None, Some(_)) => {
            return Err(wrong("`write_cost` is missing beside `curve.mixed`".into()));
        }
    };
    Ok(qos::DeviceModel {
        costs: qos::Costs::new(write_cost),
        curve: calibration.curve,
    })
}

/// What is wrong in a file, with its line and key.
fn at(path: &Path, error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let (key, inner) = (error.path().to_string(), error.inner());
    let message = config_errors::plain(&inner.to_string());
    // The line comes first, as for every file.
    let end = format!(" at line {} column {}", inner.line(), inner.column());
    let message = message.strip_suffix(&end).unwrap_or(&message);
    let key = if key == "." {
        String::new()
    } else {
        format!("{key}: ")
    };
    format!("{}:{}: {key}{message}", path.display(), inner.line())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: &str = "[{\"p95_us\": 100.0, \"tokens_per_s\": 1000000.0}]";

    fn read_text(text: &str) -> Result<qos::DeviceModel, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ram.json");
        std::fs::write(&file, text).unwrap();
        let before = format!("{}:", directory.path().display());
        read(&file).map_err(|error| {
            let text = error.to_string();
            text.replace(&before, "")
                .replace(&directory.path().display().to_string(), "")
        })
    }

    #[test]
    fn without_writes_there_is_no_price_of_a_write() {
        let with = |mixed: &str| {
            let text = format!(
                "{{\"write_cost\": null, \"curve\": {{\"mixed\": {mixed}, \"read_only\": {POINTS}}}}}"
            );
            read_text(&text)
        };
        assert_eq!(with("null").unwrap().curve.mixed, None);
        let error = with(POINTS).unwrap_err();
        assert!(error.contains("`write_cost` is missing"), "{error}");
    }

    #[test]
    fn wrong_numbers_are_named_with_line_key_and_range() {
        let text = format!(
            "{{\n\"write_cost\": 1000,\n\"curve\": {{\n\"mixed\": {POINTS},\n\"read_only\": {POINTS}\n}}\n}}\n"
        );
        assert!(read_text(&text).is_ok());
        for (from, to, expected) in [
            (
                "1000,",
                "0,",
                ":2: write_cost: 0 is out of range: it must be from 1 to 500,000",
            ),
            (
                "1000,",
                "500001,",
                ":2: write_cost: 500001 is out of range: it must be from 1 to 500,000",
            ),
            (
                "1000,",
                "-1,",
                ":2: write_cost: -1 is out of range: it must be from 1 to 500,000",
            ),
            (
                "1000,",
                "1.5,",
                ":2: write_cost: invalid type: floating point `1.5`, expected a whole number from 1 to 500,000",
            ),
            (
                "100.0",
                "0.0",
                ":4: curve.mixed: point 0 of the calibration curve: p95_us must be above 0 and at most 3,600,000,000",
            ),
            (
                "1000000.0",
                "\"x\"",
                ":4: curve.mixed[0].tokens_per_s: invalid type: a text, expected a number",
            ),
            ("\"curve\"", "\"curv\"", ": there is no key `curve`"),
            ("}\n}\n", "}\n}\nx", ": trailing characters"),
        ] {
            let error = read_text(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }
}
