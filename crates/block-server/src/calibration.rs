//! The file that says what a device can do: the key `calibration` of a device.

use std::path::Path;

use crate::config::{Backing, BlockConfig, ConfigError, DeviceSpec};
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

/// What was measured, as `calibrate` was given it.
#[derive(serde::Deserialize)]
struct Measured {
    device: Option<String>,
}

/// How a calibration is made, where a file is none.
const HOW: &str = "`slackline serve-block calibrate DEVICE --json FILE` writes such a file";

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

/// What is odd about the devices of a configuration, and lets a server start all the same.
pub(crate) fn warnings(config: &BlockConfig) -> Vec<String> {
    let of_device = |spec| [of_another_device(spec), of_another_size(spec)];
    let all = config.devices.iter().flat_map(of_device).flatten();
    all.map(|error| error.to_string()).collect()
}

fn of_another_device(spec: &DeviceSpec) -> Option<ConfigError> {
    let file = spec.calibration.as_ref()?;
    let text = std::fs::read_to_string(&file.path).ok()?;
    let measured = serde_json::from_str::<Measured>(&text).ok()?.device?;
    let (is_same, own) = match &spec.backing {
        Backing::Path { path, .. } => {
            let place = |path: &Path| std::fs::canonicalize(path).ok();
            let is_same = Path::new(&measured) == path
                || place(path).is_some_and(|own| place(Path::new(&measured)) == Some(own));
            (is_same, path.display().to_string())
        }
        _ => (measured.starts_with("memory:"), "memory".to_owned()),
    };
    (!is_same).then(|| {
        file.error(format!(
            "warning: the calibration is of {measured}, and the device is {own}. If these are different devices, \
             calibrate this one"
        ))
    })
}

fn of_another_size(spec: &DeviceSpec) -> Option<ConfigError> {
    let Backing::Path {
        path,
        create_bytes: Some(wanted),
        ..
    } = &spec.backing
    else {
        return None;
    };
    let found = std::fs::metadata(path)
        .ok()
        .filter(|found| found.is_file())?;
    let has_other = found.len() != *wanted;
    has_other.then(|| {
        spec.place_of("device.create").error(format!(
            "warning: {} exists with {} bytes and keeps them. `create` says {}, and is for a new file only",
            path.display(),
            qos::Grouped(found.len()),
            qos::Grouped(*wanted)
        ))
    })
}

fn read(path: &Path) -> Result<qos::DeviceModel, DeviceError> {
    let wrong = |text: String| DeviceError(format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => wrong(format!("is no calibration: {HOW}")),
        std::io::ErrorKind::NotFound => wrong(format!("{error}: {HOW}")),
        _ => wrong(error.to_string()),
    })?;
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
    // A file that is no JSON, or has other keys, is no calibration at all.
    let how = match key.is_empty() {
        true => format!(": {HOW}"),
        false => String::new(),
    };
    format!("{}:{}: {key}{message}{how}", path.display(), inner.line())
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
            (
                "\"curve\"",
                "\"curv\"",
                ": `curve` is missing: `slackline serve-block calibrate",
            ),
            (
                "{\n\"write",
                "x\"write",
                "expected value: `slackline serve-block calibrate",
            ),
            ("}\n}\n", "}\n}\nx", ": trailing characters"),
        ] {
            let error = read_text(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
    }

    #[test]
    fn another_device_and_another_size_are_said() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(at("disk"), [0; 4096]).unwrap();
        std::os::unix::fs::symlink(at("disk"), at("link")).unwrap();
        let said = |device: &str, create: &str| {
            std::fs::write(at("c.json"), format!("{{\"device\": {device:?}}}")).unwrap();
            let text = format!(
                "[[device]]\npath = {:?}\ncreate = \"{create}\"\ncalibration = {:?}\n\
                 [[tenant]]\nexport = \"a\"\ndevice = {0:?}\n",
                at("disk"),
                at("c.json")
            );
            warnings(&BlockConfig::parse(Path::new("b.toml"), &text).unwrap())
        };
        assert!(said(&at("disk"), "4KiB").is_empty());
        assert!(said(&at("link"), "4KiB").is_empty());
        let other = said("/dev/other", "8KiB");
        assert_eq!(other.len(), 2, "{other:?}");
        assert!(
            other[0].starts_with("b.toml:4: device.calibration: "),
            "{other:?}"
        );
        assert!(
            other[0].contains("the calibration is of /dev/other"),
            "{other:?}"
        );
        assert!(
            other[1].starts_with("b.toml:3: device.create: "),
            "{other:?}"
        );
        assert!(other[1].contains("exists with 4,096 bytes"), "{other:?}");
    }
}
