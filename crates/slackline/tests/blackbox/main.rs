//! The binary from outside: what it prints, how it ends, and what it leaves behind. The service
//! under test is a `sleep`, its knob a plain file, its load generator a shell line with a known
//! optimum: so every promise of `slackline tune` can be tried in seconds, without a privilege.

#![expect(
    clippy::unwrap_used,
    reason = "test code: a panic is a failure, and helpers outside #[test] functions may have it too"
)]

mod access;
mod advise;
mod agent;
mod api;
mod ask_tell;
mod book;
mod browser;
mod browser_charts;
mod browser_map;
mod browser_pages;
mod cluster;
mod command_line;
mod continuous;
mod database;
mod described;
#[path = "../../../host/tests/support/eventually.rs"]
mod eventually;
mod faults;
mod fleet;
mod guest;
mod guest_block;
mod guest_isolate;
mod guest_power;
mod imports;
mod isolate;
mod kill;
mod load;
mod machine;
mod many;
mod notify;
#[path = "../../../block-server/tests/support/openssl.rs"]
mod openssl;
mod page_words;
mod pictures;
mod promises;
mod promotions;
mod quota;
mod relayout;
mod reports;
mod rollback;
mod serve;
mod serve_block;
mod serve_block_manual;
mod serve_block_plan;
mod serve_block_scale;
mod serve_cache;
mod serve_cache_isolated;
mod signals;
mod throttle;
mod toy;
mod tune;
mod users;
mod warm_control;
mod webdriver;
mod workers;
