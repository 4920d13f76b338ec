//! Whose files a user trusts. What stands in them is done with that user's rights.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

/// Root may do everything anyway.
const ROOT: u32 = 0;

/// The bits of a mode that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// Why a user does not trust a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// It belongs to another user, who is not root.
    #[error(
        "the file is not trusted, because it belongs to user {owner}: run the command as that user, or give the file to user {own}"
    )]
    Owner {
        /// Whose it is.
        owner: u32,
        /// Who does not trust it.
        own: u32,
    },
    /// Others may write it.
    #[error(
        "the file is not trusted, because others may write it (mode {mode:03o}): check its contents, then chmod 600"
    )]
    Writable {
        /// Its mode.
        mode: u32,
    },
}

impl Distrust {
    /// Why the user `own` does not trust a file; `None` where it is trusted.
    #[must_use]
    pub fn of(file: &Metadata, own: u32) -> Option<Self> {
        Self::by(file.uid(), file.mode() & 0o777, own)
    }

    fn by(owner: u32, mode: u32, own: u32) -> Option<Self> {
        if owner != own && owner != ROOT {
            return Some(Self::Owner { owner, own });
        }
        (mode & OTHERS_WRITE != 0).then_some(Self::Writable { mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_somebody_else_may_have_written_is_not_trusted() {
        assert_eq!(Distrust::by(1000, 0o600, 1000), None);
        assert_eq!(Distrust::by(0, 0o644, 1000), None);
        let foreign = Distrust::by(1001, 0o600, 1000).unwrap().to_string();
        assert!(foreign.contains("belongs to user 1001"), "{foreign}");
        assert!(Distrust::by(1001, 0o600, 0).is_some());
        for mode in [0o620, 0o602, 0o666] {
            let open = Distrust::by(1000, mode, 1000).unwrap().to_string();
            assert!(open.contains(&format!("mode {mode:03o}")), "{open}");
        }
    }
}
