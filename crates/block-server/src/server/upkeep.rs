//! What a shard looks after now and then: connections that hold up others, reloads, and figures.

use std::time::Duration;

use dataplane::histogram::add;
use dataplane::{Calls, Context, Time};

use super::{BlockService, LOOK_TOKEN};
use crate::export::by_key;
use crate::lock::lock;

/// How often a shard looks for connections that hold up others.
const LOOK: Duration = Duration::from_secs(1);

/// Looks without progress after which a connection ends, if others wait for its memory.
const STALLED_LOOKS_MAX: u8 = 5;
/// Looks after which a connection ends that has not chosen an export.
const HANDSHAKE_LOOKS_MAX: u8 = 30;

impl BlockService {
    /// Ends connections that keep others from going on.
    pub(super) fn look<C: Calls>(&mut self, context: &mut Context<'_, C>) {
        context.set_timer(LOOK_TOKEN, LOOK);
        let now = context.now();
        self.report(now);
        self.nvme_look(context.calls, now);
        let mut all = self.connections.iter().flatten();
        let is_short = all.any(|connection| connection.is_short);
        let mut stalled = 0;
        for connection in self.connections.iter_mut().flatten() {
            let is_new = connection.is_new();
            if !is_new && !connection.holds_memory() {
                connection.stalled_looks = 0;
                continue;
            }
            connection.stalled_looks = connection.stalled_looks.saturating_add(1);
            // The first look may come just after the last progress.
            if connection.stalled_looks > 1 {
                self.pool.distrust(&mut connection.account);
            }
            let ends = if is_new {
                connection.stalled_looks > HANDSHAKE_LOOKS_MAX
            } else {
                connection.stalled_looks > STALLED_LOOKS_MAX && is_short
            };
            if ends && !connection.is_closed {
                connection.is_closed = true;
                stalled += 1;
                context.calls.abort(connection.flow);
            }
        }
        add(&self.counters().stalled, stalled);
    }

    /// Follows a reload: connections end whose export is not what it was. Requests under way are
    /// answered first.
    pub(super) fn follow<C: Calls>(&mut self, calls: &mut C, now: Time) {
        let reloads = self.shared.reloads();
        if reloads == self.followed {
            return;
        }
        self.followed = reloads;
        let exports = self.shared.exports();
        self.tenants.sync(&exports);
        self.nvme_look(calls, now);
        let exports = by_key(&exports);
        for index in 0..self.connections.len() {
            let slot = &mut self.connections[index];
            let ended = slot.take_if(|connection| {
                let session = connection.session.as_ref();
                session.is_some_and(|session| {
                    let new = exports.get(&session.export.key());
                    !new.is_some_and(|new| session.export.goes_on_as(new))
                })
            });
            if let Some(mut connection) = ended {
                if !connection.is_closing {
                    connection.finish_input(&mut self.pool);
                }
                self.settle(connection, calls);
            }
        }
    }

    /// Keeps up with the exports, and tells the other threads how the tenants fare.
    fn report(&mut self, now: Time) {
        self.tenants.sync(&self.shared.exports());
        let status = self.tenants.status(now);
        *lock(&self.shared.tenants[self.shard]) = status;
        while let Some(notice) = self.tenants.take_notice(now) {
            self.shared.push_notice(notice);
        }
    }
}
