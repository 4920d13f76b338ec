//! Connections have their turn to send.

use super::buffer::index;
use super::connection::{Flags, State};
use super::control;
use super::frames::FrameSink;
use super::output::Turn;
use super::stack::Stack;
use crate::api::DeadReason;

impl Stack {
    /// Sends whatever connections may send now. Connections that a full sink leaves out go on with
    /// the next call.
    pub fn flush<S: FrameSink>(&mut self, sink: &mut S) {
        let mut listed = std::mem::take(&mut self.context.listed);
        let mut done = 0;
        for &slot in &listed {
            let Some(connection) = self.connections.get_mut(index(slot)) else {
                done += 1;
                continue;
            };
            if connection.state == State::Free || !connection.flags.has(Flags::LISTED) {
                done += 1;
                continue;
            }
            match connection.transmit(&mut self.context, sink) {
                Turn::Full => break,
                Turn::Done => connection.flags.clear(Flags::LISTED),
                Turn::Waiting { ask } => {
                    connection.flags.clear(Flags::LISTED);
                    let (neighbour, local) = (connection.neighbour, connection.ends.local);
                    self.context.neighbours.wait(neighbour, slot);
                    if let Some(target) = self.context.neighbours.ip(neighbour)
                        && ask
                    {
                        control::ask(&mut self.context, sink, &local, &target, None);
                    }
                    let connection = &mut self.connections[index(slot)];
                    if !connection.flags.has(Flags::RESEND_ARMED) {
                        connection.arm_resend(&mut self.context);
                    }
                }
                Turn::Gone => {
                    connection.tell_dead(&mut self.context, DeadReason::Aborted);
                    self.remove(slot);
                }
            }
            done += 1;
        }
        listed.drain(..done);
        // What was listed meanwhile comes after what is left.
        listed.append(&mut self.context.listed);
        self.context.listed = listed;
    }

    /// Whether [`Stack::flush`] has something to do.
    pub fn has_output(&self) -> bool {
        !self.context.listed.is_empty()
    }
}
