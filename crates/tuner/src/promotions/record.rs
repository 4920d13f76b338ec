//! The list of promotions on disk, and what stands in it.

use std::path::{Path, PathBuf};

use host::{BootSetting, HostError, Knob, Roots, boot_setting, fingerprint};
use serde::{Deserialize, Serialize};

use crate::error::TunerError;
use crate::reapply::Reapply;

/// One promotion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PromotionRecord {
    /// From 1.
    pub number: usize,
    /// The experiment, by its name.
    pub experiment: String,
    /// The experiment of a server. None, where a command has promoted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// The time of the promotion.
    pub at: jiff::Timestamp,
    /// The knobs.
    pub knobs: Vec<PromotedKnob>,
    /// The files.
    pub files: Vec<PromotedFile>,
    /// How the service is told of what was in force before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reapply: Option<Reapply>,
    /// When it was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone: Option<jiff::Timestamp>,
    /// What the last undo could not restore, with the reasons. Of one that is undone, what was
    /// forgotten: it is as it was then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
}

/// The experiment of `slackline serve` that has promoted something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Its number in the server's database.
    pub experiment: i64,
    /// When it was made, in milliseconds since 1970: an experiment of another database has the same
    /// number, but was made at another time.
    pub made_ms: i64,
}

/// A knob that was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedKnob {
    /// Which one.
    pub knob: Knob,
    /// Its value before.
    pub old: String,
    /// Its value since.
    pub new: String,
}

/// A file that was promoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromotedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Where its former contents are kept; `None` where there was no file.
    pub kept: Option<PathBuf>,
    /// The fingerprint of what it holds since.
    pub new: Option<String>,
}

/// What has become of one promoted value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It has the promoted value.
    InForce,
    /// It has the value from before the promotion, as after a boot or a rollback.
    Former,
    /// It has another value.
    Other(String),
    /// It is not there.
    Absent,
}

impl PromotedKnob {
    /// What has become of it.
    #[must_use]
    pub fn standing(&self, roots: &Roots) -> Standing {
        match self.knob.read(roots) {
            Ok(Some(value)) if value == self.new => Standing::InForce,
            Ok(Some(value)) if value == self.old => Standing::Former,
            Ok(Some(value)) => Standing::Other(value),
            Ok(None) => Standing::Absent,
            Err(error) => Standing::Other(error.to_string()),
        }
    }
}

impl std::fmt::Display for PromotedKnob {
    /// Its name with both values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}, was {}", self.knob, self.new, self.old)
    }
}

impl std::fmt::Display for PromotedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file {}", self.path.display())
    }
}

impl PromotedFile {
    /// The fingerprint of its former contents.
    pub(super) fn former(&self) -> Result<Option<String>, HostError> {
        self.kept
            .as_ref()
            .map_or(Ok(None), |kept| fingerprint(kept))
    }

    /// What has become of it.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let former = self.former().ok().flatten();
        match fingerprint(&self.path) {
            Ok(Some(now)) if Some(&now) == self.new.as_ref() => Standing::InForce,
            Ok(Some(now)) if Some(&now) == former.as_ref() => Standing::Former,
            Ok(None) if self.kept.is_none() => Standing::Former,
            Ok(Some(_)) => Standing::Other("other contents".to_owned()),
            Ok(None) => Standing::Absent,
            Err(error) => Standing::Other(error.to_string()),
        }
    }
}

impl PromotionRecord {
    /// Something of it is in force.
    #[must_use]
    pub fn is_in_force(&self, roots: &Roots) -> bool {
        let knobs = self.knobs.iter().map(|knob| knob.standing(roots));
        let files = self.files.iter().map(PromotedFile::standing);
        self.undone.is_none() && knobs.chain(files).any(|it| it == Standing::InForce)
    }

    /// What it has changed, a line each: a knob with both values, a file with its path.
    #[must_use]
    pub fn changed(&self) -> Vec<String> {
        let knobs = self.knobs.iter().map(ToString::to_string);
        knobs
            .chain(self.files.iter().map(ToString::to_string))
            .collect()
    }

    /// The lines that keep it in force beyond a boot, by file.
    #[must_use]
    pub fn boot_settings(&self, roots: &Roots) -> Vec<BootSetting> {
        let knobs = self.knobs.iter();
        let mut settings: Vec<BootSetting> = knobs
            .filter_map(|it| boot_setting(roots, &it.knob, &it.new))
            .collect();
        settings.sort();
        settings
    }
}

/// Where the former contents of files of a promotion are kept.
pub(super) fn directory(state_dir: &Path, number: usize) -> PathBuf {
    state_dir.join("promotions").join(number.to_string())
}

/// Keeps the former contents of a file of a promotion.
pub(super) fn keep_copy(
    state_dir: &Path,
    number: usize,
    place: usize,
    contents: &[u8],
) -> Result<PathBuf, TunerError> {
    let directory = directory(state_dir, number);
    std::fs::create_dir_all(&directory).map_err(failed(&directory))?;
    let kept = directory.join(place.to_string());
    host::replace_private(&kept, contents).map_err(failed(&kept))?;
    Ok(kept)
}

fn list_file(state_dir: &Path) -> PathBuf {
    state_dir.join("promotions.json")
}

pub(super) fn failed(path: &Path) -> impl Fn(std::io::Error) -> TunerError {
    let path = path.to_owned();
    move |source| TunerError::File {
        path: path.clone(),
        source,
    }
}

/// All promotions, oldest first.
///
/// # Errors
/// [`TunerError::File`] where they cannot be read.
pub fn list(state_dir: &Path) -> Result<Vec<PromotionRecord>, TunerError> {
    let path = list_file(state_dir);
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            failed(&path)(std::io::Error::other(format!(
                "{error}: the file is damaged; mend it, or move it away: its promotions stay in force, and have to be undone by hand"
            )))
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(&path)(error)),
    }
}

pub(super) fn write_list(state_dir: &Path, records: &[PromotionRecord]) -> Result<(), TunerError> {
    let path = list_file(state_dir);
    let json = serde_json::to_vec_pretty(records);
    let json = json.map_err(|error| failed(&path)(std::io::Error::other(error)))?;
    host::replace_private(&path, &json).map_err(failed(&path))
}
