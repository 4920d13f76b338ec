//! Profiles on disk, by the build-id of the executable: what was measured in one process lays out
//! the next one of the same program, where it covers what that one does. Whether the layout is
//! better there is verified as always.
//!
//! `STATE_DIR/relayout/profiles/BUILD-ID-N.json`, one for each workload, [`KEPT`] at most. A file's
//! time of modification is when its profile was last used: the one that was used longest ago goes
//! first. `BUILD-ID.json` is the only one of format 1.
//!
//! A wrong profile costs speed, never correctness: what is emitted by it is checked as ever.
//! Nevertheless only files of our own user or root that nobody else may write are read. A damaged
//! file is set aside, and named.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use code_layout::{BuildId, Profile};
use serde::{Deserialize, Serialize};

use crate::comparison::Gain;
use crate::{ManifestStore, RelayoutError};

/// The version of the format, and the oldest one that is read: there one file held one profile, and
/// nothing of how it was measured.
const VERSION: u32 = 2;
const VERSION_MIN: u32 = 1;

/// So many are kept of a program. As many layouts are held in a process, for the same reason:
/// workloads of one service that are worth a layout each are few.
pub(crate) const KEPT: usize = 4;

/// A profile of a server with 4,000 counted functions is about 2 MB.
const BYTES_MAX: u64 = 64 << 20;

/// What a process left for the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CachedProfile {
    version: u32,
    /// Of the executable.
    build_id: BuildId,
    #[serde(default)]
    pub(crate) summary: Summary,
    /// Of the executable and its libraries, each with its own build-id.
    pub(crate) profiles: Vec<Profile>,
}

/// What is to be known of a kept profile without reading its counts. All of it is unknown of a
/// profile of format 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summary {
    /// When it was measured, in RFC 3339.
    pub(crate) made: Option<String>,
    /// By which Slackline.
    pub(crate) slackline: Option<String>,
    /// How its blocks were counted.
    pub(crate) counted_by: Option<Counting>,
    /// Samples in user code, which chose its functions.
    pub(crate) samples: u64,
    /// Functions with counts, in all its objects.
    pub(crate) functions: usize,
    /// The blocks that a layout by it moves, in bytes.
    pub(crate) hot_bytes: u64,
    /// What its layout was shown to gain, and in which unit of work; none where nobody compared.
    pub(crate) gain: Option<Gain>,
}

/// How blocks are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Counting {
    /// By the processor's branch records.
    BranchRecords,
    /// By counters in the code.
    Counters,
}

/// A file with its profile.
#[derive(Debug)]
pub(crate) struct KeptFile {
    pub(crate) path: PathBuf,
    pub(crate) kept: CachedProfile,
    used: SystemTime,
}

/// All there are of a program.
#[derive(Debug, Default)]
pub(crate) struct AllKept {
    /// Last used first.
    pub(crate) files: Vec<KeptFile>,
    /// What is to be said of files that are not used.
    pub(crate) notes: Vec<String>,
}

/// Why a file is not used.
enum Refusal {
    /// It stays where it is.
    Left(String),
    /// It is nothing that any Slackline has written: it is set aside.
    Damaged(String),
}

impl CachedProfile {
    pub(crate) fn new(build_id: BuildId, summary: Summary, profiles: Vec<Profile>) -> Self {
        Self {
            version: VERSION,
            build_id,
            summary,
            profiles,
        }
    }

    /// Keeps it for the next process of the program in place of those at `replaced`, and of those
    /// that were used longest ago where there are more than [`KEPT`].
    ///
    /// # Errors
    /// [`HostError::Locked`](host::HostError::Locked),
    /// [`HostError::Journal`](host::HostError::Journal).
    pub(crate) fn save(
        &self,
        store: &ManifestStore,
        replaced: &[PathBuf],
    ) -> Result<(), RelayoutError> {
        let _lock = store.lock()?;
        let directory = directory(store);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| host::HostError::journal_io(&directory, &error))?;
        let text = serde_json::to_vec(self)
            .map_err(|error| host::HostError::journal_io(&directory, &error.into()))?;
        // The new one first: whoever is killed in between leaves one too many, not one too few.
        let numbered = |number: u32| directory.join(format!("{}-{number}.json", self.build_id));
        let free = (1..).map(numbered).find(|path| !path.exists());
        let path = free.unwrap_or_else(|| numbered(0));
        host::replace_synced(&path, &text)?;
        for path in replaced {
            let _ = fs::remove_file(path);
        }
        let all = all(store, &self.build_id);
        let others = all.files.iter().filter(|file| file.path != path);
        for file in others.skip(KEPT - 1) {
            let _ = fs::remove_file(&file.path);
        }
        Ok(())
    }
}

fn directory(store: &ManifestStore) -> PathBuf {
    store.directory().join("profiles")
}

/// Reads those of an executable. What is damaged is set aside.
pub(crate) fn all(store: &ManifestStore, build_id: &BuildId) -> AllKept {
    let mut all = AllKept::default();
    if build_id.0.is_empty() {
        return all;
    }
    let directory = directory(store);
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return all,
        Err(error) => {
            let path = directory.display();
            all.notes = vec![format!("{path}: {error}: no kept profile is used")];
            return all;
        }
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| is_of(path, build_id));
    paths.sort();
    for path in paths {
        match load(&path, build_id) {
            Ok(Some((kept, used))) => all.files.push(KeptFile { path, kept, used }),
            Ok(None) => {}
            Err(Refusal::Left(why)) => {
                let path = path.display();
                all.notes.push(format!("{path}: {why}: it is not used"));
            }
            Err(Refusal::Damaged(why)) => all.notes.push(set_aside(&path, &why)),
        }
    }
    all.files.sort_by_key(|file| std::cmp::Reverse(file.used));
    all
}

/// Whether a file's name is that of a kept profile of an executable.
fn is_of(path: &Path, build_id: &BuildId) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let stem = name.and_then(|name| name.strip_suffix(".json"));
    let build_id = build_id.to_string();
    let rest = stem.and_then(|stem| stem.strip_prefix(build_id.as_str()));
    rest.is_some_and(|rest| {
        let number = rest.strip_prefix('-').unwrap_or_default();
        rest.is_empty() || number.parse::<u32>().is_ok()
    })
}

/// Renames a file, so that it is looked at once only; what is to be said of it.
fn set_aside(path: &Path, why: &str) -> String {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    let aside = PathBuf::from(aside);
    match fs::rename(path, &aside) {
        Ok(()) => format!(
            "{}: damaged: {why}: it is set aside as {}",
            path.display(),
            aside.display()
        ),
        Err(error) => format!(
            "{}: damaged: {why}: it is not used, and could not be set aside: {error}",
            path.display()
        ),
    }
}

/// Reads one; `None` where it has gone meanwhile.
fn load(path: &Path, build_id: &BuildId) -> Result<Option<(CachedProfile, SystemTime)>, Refusal> {
    let left = |error: io::Error| Refusal::Left(error.to_string());
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(left(error)),
    };
    let own = rustix::process::geteuid().as_raw();
    if !metadata.is_file() {
        return Err(Refusal::Left("it is no file".into()));
    }
    if let Some(why) = host::Distrust::of(&metadata, own) {
        return Err(Refusal::Left(why.to_string()));
    }
    if metadata.len() > BYTES_MAX {
        let bytes = metadata.len();
        return Err(Refusal::Left(format!(
            "{bytes} bytes, of {BYTES_MAX} at most"
        )));
    }
    let bytes = fs::read(path).map_err(left)?;
    let damaged = |error: serde_json::Error| Refusal::Damaged(error.to_string());
    // A later format may have other fields.
    let Version { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version > VERSION {
        return Err(Refusal::Left(format!(
            "format {version}, and this Slackline knows {VERSION_MIN} to {VERSION}"
        )));
    }
    let kept: CachedProfile = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version < VERSION_MIN {
        return Err(Refusal::Damaged(format!("there was no format {version}")));
    }
    if kept.build_id != *build_id {
        let other = kept.build_id;
        return Err(Refusal::Damaged(format!(
            "it is of the program with build-id {other}"
        )));
    }
    Ok(Some((kept, metadata.modified().map_err(left)?)))
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Puts down that a profile is used now. It may be gone already, and nothing depends on it.
pub(crate) fn mark_used(path: &Path) {
    let file = fs::OpenOptions::new().append(true).open(path);
    let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    fn kept(build_id: &BuildId, vaddr: u64) -> CachedProfile {
        let mut profile = Profile::default();
        profile.add_sample(vaddr, 5);
        let summary = Summary {
            made: Some("2026-11-29T12:00:00Z".into()),
            samples: 5,
            counted_by: Some(Counting::Counters),
            ..Summary::default()
        };
        CachedProfile::new(build_id.clone(), summary, vec![profile])
    }

    /// What is read, by the address of its sample; last used first.
    fn addresses(all: &AllKept) -> Vec<u64> {
        let files = all.files.iter();
        files
            .map(|file| *file.kept.profiles[0].samples.keys().next().unwrap())
            .collect()
    }

    fn use_at(all: &AllKept, address: u64, seconds: u64) {
        let index = addresses(all).iter().position(|known| *known == address);
        let path = &all.files[index.unwrap()].path;
        let file = fs::OpenOptions::new().append(true).open(path).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        file.set_modified(time).unwrap();
    }

    #[test]
    fn several_are_found_again_and_the_one_used_longest_ago_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let build_id = BuildId(vec![0xab, 0xcd]);
        assert!(all(&store, &build_id).files.is_empty());
        for address in 1..=4 {
            kept(&build_id, address).save(&store, &[]).unwrap();
            use_at(&all(&store, &build_id), address, 1000 * address);
        }
        // One of another program, whose build-id begins alike, is not among them.
        let longer = BuildId(vec![0xab, 0xcd, 0xef]);
        kept(&longer, 9).save(&store, &[]).unwrap();
        let known = all(&store, &build_id);
        assert_eq!(addresses(&known), [4, 3, 2, 1]);
        assert_eq!(known.files[3].kept, kept(&build_id, 1));
        mark_used(&known.files[3].path);
        kept(&build_id, 5).save(&store, &[]).unwrap();
        let mut left = addresses(&all(&store, &build_id));
        left.sort_unstable();
        assert_eq!(left, [1, 3, 4, 5]);
        // In place of one of the same workload: nothing else goes.
        let known = all(&store, &build_id);
        let same = addresses(&known).iter().position(|known| *known == 3);
        let same = known.files[same.unwrap()].path.clone();
        kept(&build_id, 6).save(&store, &[same]).unwrap();
        let mut left = addresses(&all(&store, &build_id));
        left.sort_unstable();
        assert_eq!(left, [1, 4, 5, 6]);
        assert_eq!(addresses(&all(&store, &longer)), [9]);
    }

    #[test]
    fn a_file_of_the_first_format_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let build_id = BuildId(vec![0xab, 0xcd]);
        fs::create_dir(directory(&store)).unwrap();
        let path = directory(&store).join("abcd.json");
        let profile = r#"{"build_id":"abcd","samples":{"7":5},"functions":{}}"#;
        let text = format!(r#"{{"version":1,"build_id":"abcd","profiles":[{profile}]}}"#);
        fs::write(&path, text).unwrap();
        let known = all(&store, &build_id);
        assert_eq!((addresses(&known), known.notes), (vec![7], vec![]));
        assert_eq!(known.files[0].kept.summary, Summary::default());
    }

    #[test]
    fn what_is_damaged_is_set_aside_and_what_is_not_ours_to_read_is_left_each_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let store = ManifestStore::open(dir.path()).unwrap();
        let build_id = BuildId(vec![0xab, 0xcd]);
        kept(&build_id, 1).save(&store, &[]).unwrap();
        let path = all(&store, &build_id).files[0].path.clone();
        let good = fs::read_to_string(&path).unwrap();
        let aside = path.with_extension("json.damaged");
        let note = || {
            let known = all(&store, &build_id);
            assert!(known.files.is_empty());
            let note = known.notes.join("\n");
            assert!(note.contains("abcd-1.json: "), "{note}");
            note
        };
        for (text, said, is_set_aside) in [
            (good[..good.len() / 2].to_owned(), "damaged", true),
            (good.replace("\"abcd\"", "\"1234\""), "build-id 1234", true),
            (good.replace("\"profiles\"", "\"other\""), "damaged", true),
            (
                good.replace("\"version\":2", "\"version\":0"),
                "no format 0",
                true,
            ),
            ("\u{0}\u{1}".to_owned(), "damaged", true),
            // Of a later Slackline, which may come back.
            (
                good.replace("\"version\":2", "\"version\":9,\"new\":1"),
                "format 9, and this Slackline knows 1 to 2: it is not used",
                false,
            ),
        ] {
            fs::write(&path, &text).unwrap();
            let note = note();
            assert!(note.contains(said), "{note}");
            assert_eq!(
                (aside.exists(), path.exists()),
                (is_set_aside, !is_set_aside)
            );
            if is_set_aside {
                assert!(note.contains("set aside as"), "{note}");
                assert_eq!(fs::read_to_string(&aside).unwrap(), text);
                // It is said once.
                assert!(all(&store, &build_id).notes.is_empty());
                fs::remove_file(&aside).unwrap();
            }
        }
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let note = note();
        assert!(note.contains("mode 666") && path.exists(), "{note}");
    }
}
