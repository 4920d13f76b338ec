//! `slackline serve` as seen from outside: a JSON interface with the verbs of the command line,
//! pages for people, and numbers for Prometheus.
//!
//! What may be done, and what it means, is decided in [`coordinator`]; here it is only translated.
//! Handlers that touch the store run on threads that may block; the runtime itself has one thread,
//! so that serving costs next to nothing beside a measurement.

#![forbid(unsafe_code)]

mod access;
mod actions;
mod admission;
mod api;
mod app;
mod assets;
mod audit;
mod bound;
mod clock;
mod connections;
mod explain;
mod format;
mod limits;
mod listeners;
mod lock;
mod names;
mod notify;
mod openapi;
mod pages;
mod private;
mod prometheus;
mod proxy;
mod readers;
mod reply;
mod role;
mod secret;
mod server;
mod sessions;
mod stream;
mod tokens;
mod units;
mod web;

pub use access::{Access, AccessError};
pub use api::OF_BODY;
pub use audit::note_command;
pub use connections::Bounds;
pub use notify::{Notifications, NotifyError};
pub use openapi::document;
pub use proxy::Proxy;
pub use role::Role;
pub use server::{DashboardOptions, serve};
pub use tokens::{NamedToken, TokenFile};
