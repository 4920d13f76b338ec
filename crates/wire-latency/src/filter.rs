//! The filter that the kernel runs on each packet, in classic BPF
//! (Documentation/networking/filter.rst): segments of one TCP port that hold data or begin or end a
//! connection, of the sampled connections.
//!
//! It sees a packet from the network header on, as a packet socket of type `SOCK_DGRAM` does.

use libc::sock_filter;

use crate::sampling::{FIRST, SECOND, Threshold};

/// Bytes that are kept of a packet, from the network header on.
pub(crate) const SNAP_BYTES: u32 = 96;
/// Bytes that are kept of a packet that begins with a record of TLS' handshake, which says whether
/// HTTP/2 is offered.
pub(crate) const SNAP_HANDSHAKE_BYTES: u32 = 1600;

/// Operations: include/uapi/linux/bpf_common.h and filter.h. LD of 4, 2 and 1 bytes, absolute and
/// from X on.
const LD_ABS: u16 = 0x20;
const LDH_ABS: u16 = 0x28;
const LDB_ABS: u16 = 0x30;
const LD_IND: u16 = 0x40;
const LDH_IND: u16 = 0x48;
const LDB_IND: u16 = 0x50;
const LD_IMM: u16 = 0x00;
const LD_MEM: u16 = 0x60;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const ADD_K: u16 = 0x04;
const ADD_X: u16 = 0x0c;
const SUB_X: u16 = 0x1c;
const MUL_K: u16 = 0x24;
const AND_K: u16 = 0x54;
const LSH_K: u16 = 0x64;
const RSH_K: u16 = 0x74;
const XOR_X: u16 = 0xac;
const JA: u16 = 0x05;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JSET: u16 = 0x45;
const JGT_X: u16 = 0x2d;
const RET: u16 = 0x06;
const TAX: u16 = 0x07;

/// What a packet is besides its bytes (SKF_AD_OFF and what is added to it).
const PROTOCOL: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = 0xffff_f004;
const INTERFACE: u32 = 0xffff_f008;
/// The loopback interface's number in every network namespace (include/net/net_namespace.h).
const LOOPBACK: u32 = 1;
const OUTGOING: u32 = 4;

/// Words of memory.
const BASE: u32 = 0;
const SOURCE: u32 = 1;
const DESTINATION: u32 = 2;
const TCP_LENGTH: u32 = 3;
const SIZE: u32 = 4;
const NEXT: u32 = 5;
const TCP_AT: u32 = 6;
const TCP_HEADER: u32 = 7;
const CLIENT: u32 = 8;
const MIXED: u32 = 9;

/// Extension headers of IPv6 that are looked behind.
const EXTENSIONS: u8 = 2;

/// A place in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Label {
    #[default]
    Here,
    Drop,
    NotLoopback,
    Tag,
    Bare,
    V4,
    V4Tagged,
    V4Begin,
    V4Long,
    V4Known,
    V6,
    V6Tagged,
    V6Begin,
    V6Known,
    Chain(u8),
    Extension(u8),
    Fragment(u8),
    Skip(u8),
    Tcp,
    FromServer,
    Ports,
    Mix,
    Payload,
    Handshake,
}

use Label::Here;

#[derive(Default)]
struct Assembler {
    code: Vec<(sock_filter, [Label; 2])>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn op(&mut self, code: u16, k: u32) {
        self.jump(code, k, Here, Here);
    }

    fn jump(&mut self, code: u16, k: u32, then: Label, or: Label) {
        let instruction = sock_filter {
            code,
            jt: 0,
            jf: 0,
            k,
        };
        self.code.push((instruction, [then, or]));
    }

    fn at(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn finish(self) -> Vec<sock_filter> {
        let labels = self.labels;
        let far = |from: usize, label: Label| {
            let to = labels.iter().find(|(known, _)| *known == label);
            to.map_or(0, |(_, to)| to - from - 1)
        };
        let near = |from, label| u8::try_from(far(from, label)).unwrap_or(u8::MAX);
        let code = self.code.into_iter().enumerate();
        code.map(|(from, (mut instruction, [then, or]))| {
            if instruction.code == JA {
                instruction.k = u32::try_from(far(from, then)).unwrap_or(u32::MAX);
            } else {
                (instruction.jt, instruction.jf) = (near(from, then), near(from, or));
            }
            instruction
        })
        .collect()
    }
}

/// A filter that lets nothing pass.
pub(crate) fn nothing() -> Vec<sock_filter> {
    vec![sock_filter {
        code: RET,
        jt: 0,
        jf: 0,
        k: 0,
    }]
}

/// The filter for a port and the connections that are sampled.
pub(crate) fn program(port: u16, sampled: Threshold) -> Vec<sock_filter> {
    let mut asm = Assembler::default();
    network(&mut asm);
    ipv4(&mut asm);
    ipv6(&mut asm);
    tcp(&mut asm, u32::from(port), sampled);
    asm.finish()
}

/// Which protocol begins where; X is the place.
fn network(asm: &mut Assembler) {
    // On the loopback interface each packet is seen when it is sent and when it is received.
    asm.op(LD_ABS, INTERFACE);
    asm.jump(JEQ, LOOPBACK, Here, Label::NotLoopback);
    asm.op(LD_ABS, PACKET_TYPE);
    asm.jump(JEQ, OUTGOING, Label::Drop, Here);
    asm.at(Label::NotLoopback);
    asm.op(LD_ABS, PROTOCOL);
    asm.jump(JEQ, 0x0800, Label::V4, Here);
    asm.jump(JEQ, 0x86dd, Label::V6, Here);
    asm.jump(JEQ, 0x8100, Label::Tag, Here);
    asm.jump(JEQ, 0x88a8, Label::Tag, Label::Drop);
    asm.at(Label::Tag);
    asm.op(LDH_ABS, 2);
    asm.jump(JEQ, 0x0800, Label::V4Tagged, Here);
    asm.jump(JEQ, 0x86dd, Label::V6Tagged, Here);
    // Sent through a VLAN device: the network header lies behind the tag already.
    asm.at(Label::Bare);
    asm.op(LDB_ABS, 0);
    asm.op(RSH_K, 4);
    asm.jump(JEQ, 4, Label::V4, Here);
    asm.jump(JEQ, 6, Label::V6, Label::Drop);
}

fn ipv4(asm: &mut Assembler) {
    asm.at(Label::V4Tagged);
    asm.op(LDX_IMM, 4);
    asm.jump(JA, 0, Label::V4Begin, Here);
    asm.at(Label::V4);
    asm.op(LDX_IMM, 0);
    asm.at(Label::V4Begin);
    asm.op(STX, BASE);
    asm.op(LDB_IND, 9);
    asm.jump(JEQ, 6, Here, Label::Drop);
    asm.op(LDH_IND, 6);
    asm.jump(JSET, 0x1fff, Label::Drop, Here);
    asm.op(LD_IND, 12);
    asm.op(ST, SOURCE);
    asm.op(LD_IND, 16);
    asm.op(ST, DESTINATION);
    asm.op(LDH_IND, 2);
    asm.jump(JEQ, 0, Label::V4Long, Label::V4Known);
    // More than 64 KiB: surely there is data.
    asm.at(Label::V4Long);
    asm.op(LD_IMM, 0xffff);
    asm.at(Label::V4Known);
    asm.op(ST, TCP_LENGTH);
    asm.op(LDB_IND, 0);
    asm.op(AND_K, 0x0f);
    asm.op(LSH_K, 2);
    asm.op(TAX, 0);
    asm.op(LD_MEM, TCP_LENGTH);
    asm.op(SUB_X, 0);
    asm.op(ST, TCP_LENGTH);
    asm.op(LD_MEM, BASE);
    asm.op(ADD_X, 0);
    asm.op(TAX, 0);
    asm.jump(JA, 0, Label::Tcp, Here);
}

fn ipv6(asm: &mut Assembler) {
    asm.at(Label::V6Tagged);
    asm.op(LDX_IMM, 4);
    asm.jump(JA, 0, Label::V6Begin, Here);
    asm.at(Label::V6);
    asm.op(LDX_IMM, 0);
    asm.at(Label::V6Begin);
    // The last four bytes of either address.
    asm.op(LD_IND, 20);
    asm.op(ST, SOURCE);
    asm.op(LD_IND, 36);
    asm.op(ST, DESTINATION);
    asm.op(LDB_IND, 6);
    asm.op(ST, NEXT);
    asm.op(STX, BASE);
    asm.op(LDH_IND, 4);
    asm.jump(JEQ, 0, Here, Label::V6Known);
    asm.op(LD_IMM, 0xffff);
    asm.at(Label::V6Known);
    asm.op(ST, TCP_LENGTH);
    asm.op(LD_MEM, BASE);
    asm.op(ADD_K, 40);
    asm.op(TAX, 0);
    for nth in 0..EXTENSIONS {
        asm.at(Label::Chain(nth));
        asm.op(LD_MEM, NEXT);
        asm.jump(JEQ, 6, Label::Tcp, Here);
        asm.jump(JEQ, 0, Label::Extension(nth), Here);
        asm.jump(JEQ, 43, Label::Extension(nth), Here);
        asm.jump(JEQ, 60, Label::Extension(nth), Here);
        asm.jump(JEQ, 44, Label::Fragment(nth), Label::Drop);
        asm.at(Label::Fragment(nth));
        asm.op(LDH_IND, 2);
        asm.jump(JSET, 0xfff8, Label::Drop, Here);
        asm.op(LDB_IND, 0);
        asm.op(ST, NEXT);
        asm.op(LD_IMM, 8);
        asm.jump(JA, 0, Label::Skip(nth), Here);
        asm.at(Label::Extension(nth));
        asm.op(LDB_IND, 0);
        asm.op(ST, NEXT);
        asm.op(LDB_IND, 1);
        asm.op(ADD_K, 1);
        asm.op(LSH_K, 3);
        asm.at(Label::Skip(nth));
        asm.op(ST, SIZE);
        asm.op(STX, BASE);
        asm.op(TAX, 0);
        asm.op(LD_MEM, TCP_LENGTH);
        asm.op(SUB_X, 0);
        asm.op(ST, TCP_LENGTH);
        asm.op(LD_MEM, BASE);
        asm.op(ADD_X, 0);
        asm.op(TAX, 0);
    }
    asm.op(LD_MEM, NEXT);
    asm.jump(JEQ, 6, Label::Tcp, Label::Drop);
}

/// X is where the TCP header begins.
fn tcp(asm: &mut Assembler, port: u32, sampled: Threshold) {
    asm.at(Label::Tcp);
    asm.op(LDH_IND, 0);
    asm.jump(JEQ, port, Label::FromServer, Here);
    asm.op(ST, CLIENT);
    asm.op(LDH_IND, 2);
    asm.jump(JEQ, port, Here, Label::Drop);
    asm.op(LD_MEM, SOURCE);
    asm.jump(JA, 0, Label::Ports, Here);
    asm.at(Label::FromServer);
    asm.op(LDH_IND, 2);
    asm.op(ST, CLIENT);
    asm.op(LD_MEM, DESTINATION);
    asm.at(Label::Ports);
    asm.op(ST, SOURCE);
    asm.op(STX, TCP_AT);
    asm.op(LDB_IND, 12);
    asm.op(RSH_K, 2);
    asm.op(AND_K, 0x3c);
    asm.op(ST, TCP_HEADER);
    if let Some(bound) = sampled.bound() {
        asm.at(Label::Mix);
        asm.op(LD_MEM, CLIENT);
        asm.op(MUL_K, FIRST);
        asm.op(LDX_MEM, SOURCE);
        asm.op(ADD_X, 0);
        asm.op(ST, MIXED);
        asm.op(RSH_K, 15);
        asm.op(LDX_MEM, MIXED);
        asm.op(XOR_X, 0);
        asm.op(MUL_K, SECOND);
        asm.op(RSH_K, 16);
        asm.jump(JGE, bound, Label::Drop, Here);
        asm.op(LDX_MEM, TCP_AT);
    }
    asm.op(LDB_IND, 13);
    asm.op(ST, NEXT);
    asm.op(LD_MEM, TCP_LENGTH);
    asm.op(LDX_MEM, TCP_HEADER);
    asm.jump(JGT_X, 0, Label::Payload, Here);
    // Without data, only FIN, SYN and RST tell something.
    asm.op(LD_MEM, NEXT);
    asm.jump(JSET, 0x07, Here, Label::Drop);
    asm.op(RET, SNAP_BYTES);
    asm.at(Label::Payload);
    asm.op(LD_MEM, TCP_AT);
    asm.op(ADD_X, 0);
    asm.op(TAX, 0);
    asm.op(LDB_IND, 0);
    asm.jump(JEQ, 22, Label::Handshake, Here);
    asm.op(RET, SNAP_BYTES);
    asm.at(Label::Handshake);
    asm.op(RET, SNAP_HANDSHAKE_BYTES);
    asm.at(Label::Drop);
    asm.op(RET, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::tests::{ipv4, tcp};
    use crate::segment::{FIN, PSH, parse};

    /// What the kernel would make of a packet, of those operations that the program has.
    fn run(program: &[sock_filter], bytes: &[u8], protocol: u32, interface: u32, kind: u32) -> u32 {
        let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
        let load = |from: u32, size: usize| {
            let from = from as usize;
            let bytes = bytes.get(from..from + size)?;
            Some(
                bytes
                    .iter()
                    .fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte)),
            )
        };
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let loaded = match code {
                LD_ABS if k == PROTOCOL => Some(protocol),
                LD_ABS if k == INTERFACE => Some(interface),
                LD_ABS if k == PACKET_TYPE => Some(kind),
                LDH_ABS => load(k, 2),
                LDB_ABS => load(k, 1),
                LD_IND => load(x.wrapping_add(k), 4),
                LDH_IND => load(x.wrapping_add(k), 2),
                LDB_IND => load(x.wrapping_add(k), 1),
                _ => Some(a),
            };
            // A load beyond the packet ends the program.
            let Some(loaded) = loaded else { return 0 };
            a = loaded;
            let memory_at = (k as usize).min(15);
            let holds = match code {
                JEQ => a == k,
                JGE => a >= k,
                JSET => a & k != 0,
                JGT_X => a > x,
                _ => {
                    match code {
                        RET => return k,
                        JA => at += k as usize,
                        LD_IMM => a = k,
                        LD_MEM => a = memory[memory_at],
                        LDX_IMM => x = k,
                        LDX_MEM => x = memory[memory_at],
                        ST => memory[memory_at] = a,
                        STX => memory[memory_at] = x,
                        ADD_K => a = a.wrapping_add(k),
                        ADD_X => a = a.wrapping_add(x),
                        SUB_X => a = a.wrapping_sub(x),
                        MUL_K => a = a.wrapping_mul(k),
                        AND_K => a &= k,
                        LSH_K => a <<= k,
                        RSH_K => a >>= k,
                        XOR_X => a ^= x,
                        TAX => x = a,
                        LD_ABS | LDH_ABS | LDB_ABS | LD_IND | LDH_IND | LDB_IND => {}
                        other => panic!("unknown operation {other:#x}"),
                    }
                    continue;
                }
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    fn passes(bytes: &[u8]) -> u32 {
        run(&program(80, Threshold::EVERYTHING), bytes, 0x0800, 2, 0)
    }

    #[test]
    fn data_and_ends_of_the_port_pass_and_nothing_else() {
        let packet = |ports, flags, payload: &[u8]| ipv4(&tcp(ports, 1, 1, flags, payload));
        assert_eq!(passes(&packet((4000, 80), PSH, b"GET")), SNAP_BYTES);
        assert_eq!(passes(&packet((80, 4000), PSH, b"HTTP")), SNAP_BYTES);
        assert_eq!(passes(&packet((4000, 80), FIN, b"")), SNAP_BYTES);
        assert_eq!(
            passes(&packet((4000, 80), PSH, b"\x16\x03\x01")),
            SNAP_HANDSHAKE_BYTES
        );
        // An acknowledgement alone, and another port.
        assert_eq!(passes(&packet((4000, 80), 0x10, b"")), 0);
        assert_eq!(passes(&packet((4000, 81), PSH, b"GET")), 0);
        // Padded to the least length of Ethernet.
        let mut padded = packet((4000, 80), 0x10, b"");
        padded.extend([0; 6]);
        assert_eq!(passes(&padded), 0);
        assert_eq!(passes(&[]), 0);
        assert_eq!(
            run(&nothing(), &packet((4000, 80), PSH, b"GET"), 0x0800, 2, 0),
            0
        );
    }

    #[test]
    fn loopback_is_seen_once() {
        let packet = ipv4(&tcp((4000, 80), 1, 1, PSH, b"GET"));
        let everything = program(80, Threshold::EVERYTHING);
        assert_eq!(run(&everything, &packet, 0x0800, LOOPBACK, OUTGOING), 0);
        assert_eq!(run(&everything, &packet, 0x0800, LOOPBACK, 0), SNAP_BYTES);
        assert_eq!(run(&everything, &packet, 0x0800, 2, OUTGOING), SNAP_BYTES);
    }

    #[test]
    fn the_program_is_one_that_the_kernel_takes() {
        for sampled in [Threshold::EVERYTHING, Threshold::of_share(0.3)] {
            let program = program(80, sampled);
            for (at, instruction) in program.iter().enumerate() {
                let furthest = match instruction.code {
                    JA => instruction.k as usize,
                    _ => usize::from(instruction.jt.max(instruction.jf)),
                };
                assert!(at + furthest < program.len(), "{at}");
            }
            assert_eq!(program.last().unwrap().code, RET);
        }
    }

    proptest::proptest! {
        /// The filter and the parser agree on every packet, however damaged, and on which
        /// connections are sampled.
        #[test]
        fn it_agrees_with_the_parser(
            ports: (u16, u16), flags: u8, payload: Vec<u8>, damage: Option<(u8, u8)>, tag: bool, v6: bool,
            extension in 0_u8..3, share in 0.01_f64..1.0,
        ) {
            let inner = tcp(ports, 1, 2, flags, &payload);
            let mut packet = match v6 {
                false => ipv4(&inner),
                true => {
                    let extensions = [&[6, 0, 0, 0, 0, 0, 0, 0][..], &[60, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]];
                    let (first, extensions) = match extension {
                        0 => (6, &[][..]),
                        1 => (43, extensions[0]),
                        _ => (0, extensions[1]),
                    };
                    let mut bytes = vec![0x60, 0, 0, 0];
                    bytes.extend(u16::try_from(extensions.len() + inner.len()).unwrap().to_be_bytes());
                    bytes.extend([first, 64]);
                    bytes.extend([3; 32]);
                    bytes.extend(extensions);
                    bytes.extend(&inner);
                    bytes
                }
            };
            let mut kind: u16 = if v6 { 0x86dd } else { 0x0800 };
            if tag {
                packet.splice(0..0, [&[0, 7][..], &kind.to_be_bytes()].concat());
                kind = 0x8100;
            }
            if let Some((at, to)) = damage {
                // Version and length of the header decide nothing in the filter; the kernel has
                // checked what it receives.
                let at = usize::from(at) % packet.len();
                let first = if tag { 4 } else { 0 };
                if at >= first + 8 {
                    packet[at] = to;
                }
            }
            let sampled = Threshold::of_share(share);
            let port = ports.0.min(ports.1);
            let verdict = run(&program(port, sampled), &packet, kind.into(), 2, 0);
            let segment = parse(&packet, kind, u32::try_from(packet.len()).unwrap());
            let expected = segment.is_some_and(|segment| {
                let is_client = segment.destination.port == port && segment.source.port != port;
                let is_server = segment.source.port == port;
                let client = if is_server { segment.destination } else { segment.source };
                let tells = segment.length > 0 || segment.flags & 0x07 != 0;
                (is_client || is_server) && tells && sampled.admits(client.address, client.port)
            });
            // More extension headers than the filter looks behind, or a TCP header that is none:
            // the parser is stricter, or looks further.
            if damage.is_none() {
                proptest::prop_assert_eq!(verdict > 0, expected);
            }
        }
    }
}
