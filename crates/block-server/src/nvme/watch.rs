//! Controllers and their queues over time: hosts that fall silent, a new configuration, connections
//! that end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dataplane::{Calls, Time};

use super::numbers::Namespaces;
use super::queue::{Queue, Role};
use crate::connection::Phase;
use crate::server::BlockService;

impl BlockService {
    /// Looks after controllers once a second: hosts that are gone, and a new configuration.
    pub(crate) fn nvme_look<C: Calls>(&mut self, calls: &mut C, now: Time) {
        let Some(subsystem) = self.shared.nvme().map(Arc::clone) else {
            return;
        };
        if self.is_draining() {
            // What is under way has until the end of the drain.
            return;
        }
        let namespaces = subsystem.namespaces();
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index];
            let Some(mut connection) = slot.take_if(|connection| !connection.is_closed) else {
                continue;
            };
            if let Some(mut queue) = connection.take_queue() {
                if is_over(&queue, now) {
                    connection.is_closed = true;
                    calls.abort(connection.flow);
                } else if !Arc::ptr_eq(&queue.seen, &namespaces) {
                    self.refresh(&mut queue, &namespaces);
                    self.tell(&mut queue, &mut connection, calls);
                }
                connection.phase = Phase::Nvme(queue);
            }
            self.connections[index] = Some(connection);
        }
    }

    /// The configuration was read again.
    fn refresh(&mut self, queue: &mut Queue, namespaces: &Arc<Namespaces>) {
        let old = std::mem::replace(&mut queue.seen, Arc::clone(namespaces));
        let numbers = old.keys().chain(namespaces.keys());
        let changed = numbers.filter(|number| match (old.get(number), namespaces.get(number)) {
            (Some(old), Some(new)) => !Arc::ptr_eq(old, new),
            _ => true,
        });
        let changed: Vec<u32> = changed.copied().collect();
        for number in &changed {
            if let Some((_, tenant)) = queue.opened.remove(number) {
                self.tenants.close(tenant);
            }
        }
        if let Role::Admin(admin) = &mut queue.role {
            admin.changed(changed);
        }
    }

    /// A connection is gone.
    pub(crate) fn nvme_gone(&mut self, queue: &Queue) {
        for (_, tenant) in queue.opened.values() {
            self.tenants.close(*tenant);
        }
        match &queue.role {
            Role::New => {}
            Role::Admin(admin) => {
                if let Some(subsystem) = self.shared.nvme() {
                    subsystem.remove(&admin.controller);
                }
            }
            Role::Io { controller, number } => controller.give_queue(*number),
        }
    }
}

/// Whether a connection's association has ended, or ends now.
fn is_over(queue: &Queue, now: Time) -> bool {
    match &queue.role {
        Role::New => false,
        Role::Admin(admin) => {
            let controller = &admin.controller;
            if controller.is_silent(now.0) {
                controller.kill();
            }
            controller.is_dead()
        }
        Role::Io { controller, .. } => {
            // A host that disables its controller deletes its I/O queues.
            controller.is_dead() || !controller.is_enabled.load(Ordering::Acquire)
        }
    }
}
