//! An echo server: `cargo run --release -p dataplane --example echo -- 127.0.0.1:7777 [CPU] [spin]`

use std::sync::Arc;

use dataplane::idle::IdlePolicy;
use dataplane::shard::Plane;
use dataplane::uring::{Uring, UringConfig, listen};
use dataplane::{Application, Calls, Context, Event, FlowId, Shard, ShardConfig};

/// Sends back what arrives. A peer that reads nothing is cut off when its queue is full.
struct Echo;

impl Application for Echo {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        match event {
            Event::Knock { flow, .. } => context.calls.accept(flow),
            Event::Recv { flow, data } => {
                context.calls.recv_done(flow, data.len());
                if context.calls.send(flow, data) < data.len() {
                    context.calls.abort(flow);
                }
            }
            Event::PeerFinished { flow } => context.calls.close(flow),
            _ => {}
        }
    }

    fn detach(&mut self, _: FlowId) {}

    fn attach<C: Calls>(&mut self, _: FlowId, (): (), _: &mut Context<'_, C>) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = arguments.first().map_or("127.0.0.1:7777", String::as_str);
    let is_spinning = arguments.get(2).is_some_and(|word| word == "spin");
    let backend = Uring::new(UringConfig {
        listeners: vec![listen(address.parse()?)?],
        ..UringConfig::default()
    })?;
    let config = ShardConfig {
        cpu: arguments.get(1).map(|cpu| cpu.parse()).transpose()?,
        idle: [IdlePolicy::Learn, IdlePolicy::Spin][usize::from(is_spinning)],
        ..ShardConfig::default()
    };
    Shard::new(config, backend, Echo, Arc::new(Plane::new(1, 1)?))?.run()?;
    Ok(())
}
