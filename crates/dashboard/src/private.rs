//! Files that only their owner may read.

use std::fs::File;
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// Opens a file for appending; makes it where there is none. One that others could read becomes private.
pub(crate) fn open_append(path: &Path) -> io::Result<File> {
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
    Ok(file)
}
