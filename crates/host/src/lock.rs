//! The host-wide lock: `flock` on `STATE_DIR/lock`. The kernel releases it when its holder ends, however it ends. The
//! file's content only tells a second Slackline who holds it.

use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::HostError;

#[derive(Serialize, Deserialize)]
struct Holder {
    pid: u32,
    command: String,
    started: String,
}

/// The held lock; dropping it releases it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    pub(crate) fn take(state_dir: &Path) -> Result<Self, HostError> {
        let path = state_dir.join("lock");
        let failed = |error: &std::io::Error| HostError::journal(&path, error);
        // std opens with O_CLOEXEC, so a service that Slackline starts does not hold the lock after its end.
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let holder = file
                    .read_to_string(&mut text)
                    .ok()
                    .and_then(|_| serde_json::from_str(&text).ok());
                let holder = holder.unwrap_or_else(|| Holder {
                    pid: 0,
                    command: "starting".to_owned(),
                    started: "just now".to_owned(),
                });
                return Err(HostError::Locked {
                    path,
                    pid: holder.pid,
                    command: holder.command,
                    started: holder.started,
                });
            }
            Err(errno) => return Err(failed(&errno.into())),
        }
        let holder = Holder {
            pid: std::process::id(),
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" "),
            started: jiff::Timestamp::now().to_string(),
        };
        // Best effort: with a full disk the lock still holds, only its holder is not named.
        let text = serde_json::to_string(&holder).unwrap_or_default();
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(text.as_bytes()));
        Ok(Self { _file: file })
    }
}
