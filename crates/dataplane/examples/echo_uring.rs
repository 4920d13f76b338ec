//! The echo server with settings of the io_uring backend, to measure them:
//! `echo_uring ADDRESS CPU learn|spin [SETTING…]`.
//!
//! The settings: `registered` (sockets), `buffers=64` (for receiving), `sqpoll` (a submission
//! thread on any CPU) or `sqpoll=2` (on CPU 2).

use std::sync::Arc;
use std::time::Duration;

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

type Failure = Box<dyn std::error::Error>;

fn set(config: &mut UringConfig, setting: &str) -> Result<(), Failure> {
    let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
    match (name, value) {
        ("registered", "") => config.registers_sockets = true,
        ("buffers", count) => config.receive_buffers = count.parse()?,
        ("sqpoll", cpu) => {
            config.submission_thread_idle = Some(Duration::from_secs(1));
            if !cpu.is_empty() {
                config.submission_thread_cpu = Some(cpu.parse()?);
            }
        }
        _ => return Err(format!("no setting {setting:?}").into()),
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, cpu, idle, settings @ ..] = &arguments[..] else {
        return Err("echo_uring ADDRESS CPU learn|spin [SETTING…]".into());
    };
    let mut uring = UringConfig {
        listeners: vec![listen(address.parse()?)?],
        ..UringConfig::default()
    };
    for setting in settings {
        set(&mut uring, setting)?;
    }
    let config = ShardConfig {
        cpu: Some(cpu.parse()?),
        idle: [IdlePolicy::Learn, IdlePolicy::Spin][usize::from(idle == "spin")],
        ..ShardConfig::default()
    };
    let backend = Uring::new(uring)?;
    Shard::new(config, backend, Echo, Arc::new(Plane::new(1, 1)?))?.run()?;
    Ok(())
}
