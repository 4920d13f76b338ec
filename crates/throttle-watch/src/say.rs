//! Messages for the user.

/// Takes a message for the user: progress, or what is missing.
pub type Say<'a> = &'a (dyn Fn(&str) + Sync);
