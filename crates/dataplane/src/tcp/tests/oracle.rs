//! smoltcp as an oracle: another stack, written by others, exchanges data with this one.

use std::collections::VecDeque;

use smoltcp::iface::{Config as InterfaceConfig, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use super::pair::Random;
use super::{Frames, LOCAL, LOCAL_MAC, config};
use crate::tcp::{Data, Event, Stack};

/// A wire's end for smoltcp.
#[derive(Default)]
struct Wire {
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

struct Incoming(Vec<u8>);
struct Outgoing<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Incoming {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, act: F) -> R {
        act(&self.0)
    }
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, act: F) -> R {
        let mut frame = vec![0; length];
        let result = act(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl Device for Wire {
    type RxToken<'a> = Incoming;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming, Outgoing<'_>)> {
        let frame = self.incoming.pop_front()?;
        Some((Incoming(frame), Outgoing(&mut self.outgoing)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        Some(Outgoing(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

fn byte(offset: usize) -> u8 {
    u8::try_from(offset * 7 % 253).unwrap()
}

/// smoltcp connects, sends `total` bytes and expects them back.
fn echo_through_smoltcp(total: usize, loss: u32) {
    let mut random = Random(99);
    let mut device = Wire::default();
    let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let mut interface = Interface::new(
        InterfaceConfig::new(HardwareAddress::Ethernet(mac)),
        &mut device,
        Instant::from_millis(0),
    );
    interface.update_ip_addrs(|addresses| {
        addresses
            .push(IpCidr::new(IpAddress::v4(10, 7, 0, 1), 24))
            .unwrap();
    });
    let buffer = || SocketBuffer::new(vec![0; 65_536]);
    let mut sockets = SocketSet::new(Vec::new());
    let handle = sockets.add(Socket::new(buffer(), buffer()));
    sockets
        .get_mut::<Socket>(handle)
        .connect(
            interface.context(),
            (IpAddress::v4(10, 7, 0, 2), 11_211),
            4000,
        )
        .unwrap();
    let mut stack = Stack::new(config(LOCAL_MAC, &[(LOCAL, 24)]), 0);
    stack.listen(None, 11_211);
    let mut frames = Frames::default();
    let (mut sent, mut received, mut unsent) = (0, 0, VecDeque::new());
    let mut flow = None;
    let mut is_dead = false;
    for millisecond in 0..600_000u64 {
        interface.poll(
            Instant::from_millis(i64::try_from(millisecond).unwrap()),
            &mut device,
            &mut sockets,
        );
        let socket = sockets.get_mut::<Socket>(handle);
        while socket.can_send() && sent < total {
            let bytes: Vec<u8> = (sent..(sent + 1000).min(total)).map(byte).collect();
            sent += socket.send_slice(&bytes).unwrap();
        }
        while socket.can_recv() {
            let bytes = socket.recv(|bytes| (bytes.len(), bytes.to_vec())).unwrap();
            for found in bytes {
                assert_eq!(found, byte(received));
                received += 1;
            }
        }
        if received == total {
            socket.close();
        }
        stack.expire(millisecond * 1000);
        while let Some(frame) = device.outgoing.pop_front() {
            if random.below(10_000) < loss {
                continue;
            }
            stack.receive(0, &frame, &mut frames);
            let mut events = Vec::new();
            stack.take_events(&mut events);
            for event in events {
                match event {
                    Event::Knock { flow: new, .. } => flow = Some(new),
                    Event::Received { flow, data } => {
                        let bytes = match &data {
                            Data::Frame { start, length, .. } => &frame[*start..start + length],
                            Data::Owned(bytes) => bytes,
                        };
                        unsent.extend(bytes.iter().copied());
                        stack.receive_done(flow, bytes.len());
                    }
                    Event::Finished { flow } => stack.close(flow),
                    Event::Dead { reason, .. } => {
                        assert_eq!(reason, crate::api::DeadReason::Closed);
                        is_dead = true;
                    }
                    Event::Connected { .. } | Event::Sent { .. } => {}
                }
            }
        }
        if let Some(flow) = flow {
            let bytes = unsent.make_contiguous();
            let taken = stack.send(flow, bytes);
            unsent.drain(..taken);
        }
        stack.flush(&mut frames);
        while let Some(frame) = frames.sent.pop_front() {
            if random.below(10_000) >= loss {
                device.incoming.push_back(frame);
            }
        }
        if is_dead {
            assert_eq!(received, total);
            return;
        }
    }
    panic!("stuck after {received} bytes");
}

#[test]
fn smoltcp_and_this_stack_understand_each_other() {
    echo_through_smoltcp(300_000, 0);
}

#[test]
fn smoltcp_and_this_stack_recover_from_losses() {
    echo_through_smoltcp(100_000, 300);
}
