//! What admin commands see of the server.

use std::net::IpAddr;
use std::sync::Arc;

use super::controller::Subsystem;
use super::numbers::Namespaces;
use crate::allow::ClientIdentity;
use crate::export::Export;

/// What admin commands see of the server.
pub struct AdminView<'a> {
    /// The subsystem.
    pub subsystem: &'a Subsystem,
    /// Its namespaces.
    pub namespaces: &'a Namespaces,
    /// Where the host is.
    pub peer: Option<IpAddr>,
    /// Data of one command at most.
    pub transfer_bytes: usize,
}

impl AdminView<'_> {
    /// The namespaces that the host may use.
    pub fn visible(&self) -> impl Iterator<Item = (u32, &Arc<Export>)> {
        let all = self.namespaces.iter();
        all.filter(|(_, export)| export.allow.admits(ClientIdentity::at(self.peer)))
            .map(|(&number, export)| (number, export))
    }

    /// The namespace with a number, if the host may use it.
    pub fn find(&self, number: u32) -> Option<&Arc<Export>> {
        let export = self.namespaces.get(&number);
        export.filter(|export| export.allow.admits(ClientIdentity::at(self.peer)))
    }
}
