//! The `slackline` command.
fn main() {}
