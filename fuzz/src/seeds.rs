//! Where seeds come from: files of the repository, and programs that are compiled from its tests.

use std::path::{Path, PathBuf};

/// The repository's root.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// All files of a folder of the repository, in order of their names, with these.
pub(crate) fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = repository().join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder of seeds");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.is_file())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| (name_of(&path), bytes_of(&path)))
        .collect()
}

/// The contents of the files in `fuzz/seeds/NAME`.
pub(crate) fn kept(name: &str) -> Vec<Vec<u8>> {
    let files = files(&format!("fuzz/seeds/{name}"));
    files.into_iter().map(|(_, bytes)| bytes).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
