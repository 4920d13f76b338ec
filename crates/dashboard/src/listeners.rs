//! The open event streams, counted by client.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock::lock;

/// Streams at once.
const STREAMS_MAX: usize = 256;
/// Of one token or user: a browser has one for all its tabs, so these are many browsers.
const STREAMS_OF_ONE_MAX: usize = 32;

/// The open streams.
#[derive(Default)]
pub(crate) struct Listeners {
    by_name: Mutex<HashMap<String, usize>>,
    is_closed: AtomicBool,
}

impl Listeners {
    /// Ends every stream.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Whether every stream is to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Counts one more stream of a client, if it may have one.
    pub(crate) fn open(&self, name: &str) -> Result<(), String> {
        let mut by_name = lock(&self.by_name);
        let own = by_name.get(name).copied().unwrap_or(0);
        if own >= STREAMS_OF_ONE_MAX {
            return Err(format!(
                "{name} has {STREAMS_OF_ONE_MAX} event streams open already: close some, or give each program a token of its own"
            ));
        }
        if by_name.values().sum::<usize>() >= STREAMS_MAX {
            return Err(format!(
                "{STREAMS_MAX} event streams are open already: try again later"
            ));
        }
        by_name.insert(name.to_owned(), own + 1);
        Ok(())
    }

    /// Counts one stream less.
    pub(crate) fn end(&self, name: &str) {
        let mut by_name = lock(&self.by_name);
        if let Some(own) = by_name.get_mut(name) {
            *own = own.saturating_sub(1);
        }
        by_name.retain(|_, own| *own > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_takes_no_stream_of_another() {
        let listeners = Listeners::default();
        for _ in 0..STREAMS_OF_ONE_MAX {
            listeners.open("reader").unwrap();
        }
        let why = listeners.open("reader").unwrap_err();
        assert!(why.starts_with("reader has 32 event streams open"), "{why}");
        listeners.open("owner").unwrap();
        listeners.end("reader");
        listeners.open("reader").unwrap();
        for index in 0.. {
            if let Err(why) = listeners.open(&format!("client {index}")) {
                assert!(why.contains("256 event streams"), "{why}");
                assert_eq!(index, STREAMS_MAX - STREAMS_OF_ONE_MAX - 1);
                break;
            }
        }
    }
}
