//! Follows a function's code from its roots, and keeps what was decoded.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::analysis::image::Image;
use crate::analysis::instruction::Kind;
use crate::elf::unwind::FunctionRange;
use crate::error::Skip;

/// Who leads to a leader: how many branches, and the last of them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct References {
    pub(crate) branches: u32,
    pub(crate) last: u64,
    /// A root: entered from who knows where.
    pub(crate) root: bool,
}

pub(crate) struct Disassembly<'a> {
    pub(crate) image: &'a Image,
    pub(crate) range: FunctionRange,
    bytes: &'a [u8],
    /// Decoded instructions by address.
    instructions: BTreeMap<u64, Instruction>,
    leaders: BTreeMap<u64, References>,
    indirect_jumps: Vec<u64>,
}

impl<'a> Disassembly<'a> {
    pub(crate) fn new(image: &'a Image, range: FunctionRange) -> Self {
        Self {
            image,
            range,
            bytes: image
                .read(range.start, range.end - range.start)
                .unwrap_or_default(),
            instructions: BTreeMap::new(),
            leaders: BTreeMap::new(),
            indirect_jumps: Vec::new(),
        }
    }

    /// Follows the code from an address that something outside may lead to.
    pub(crate) fn root(&mut self, at: u64) {
        if self.contains(at) {
            self.leaders.entry(at).or_default().root = true;
            self.follow(at);
        }
    }

    /// Follows the code from an address that may be a mere number: one inside an instruction is.
    pub(crate) fn root_if_code(&mut self, at: u64) {
        let before = self.instructions.range(..at).next_back();
        if before.is_none_or(|(_, instruction)| instruction.next_ip() <= at) {
            self.root(at);
        }
    }

    /// Follows the code from a branch's target.
    pub(crate) fn target(&mut self, at: u64, from: u64) {
        if self.contains(at) {
            self.refer(at, from);
            self.follow(at);
        }
    }

    fn contains(&self, at: u64) -> bool {
        (self.range.start..self.range.end).contains(&at)
    }

    fn refer(&mut self, at: u64, from: u64) {
        let references = self.leaders.entry(at).or_default();
        references.branches += 1;
        references.last = from;
    }

    fn follow(&mut self, start: u64) {
        let mut decoder = Decoder::with_ip(64, self.bytes, self.range.start, DecoderOptions::NONE);
        let mut work = vec![start];
        while let Some(mut at) = work.pop() {
            while self.contains(at) && !self.instructions.contains_key(&at) {
                let Ok(offset) = usize::try_from(at - self.range.start) else {
                    break;
                };
                if decoder.set_position(offset).is_err() {
                    break;
                }
                decoder.set_ip(at);
                let instruction = decoder.decode();
                if instruction.is_invalid() {
                    break;
                }
                self.instructions.insert(at, instruction);
                let next = instruction.next_ip();
                let kind = self.stays(&instruction, Kind::of(self.image, &instruction));
                match kind {
                    Kind::Next | Kind::Call(_) => {}
                    Kind::Jump(target) => self.branch(target, at, &mut work),
                    Kind::Branch(target) => {
                        self.branch(target, at, &mut work);
                        self.leaders.entry(next).or_default();
                        work.push(next);
                    }
                    Kind::IndirectJump => self.indirect_jumps.push(at),
                    Kind::Return | Kind::Trap => {}
                    // A block of its own.
                    Kind::Stays(_, target) => {
                        self.leaders.entry(at).or_default();
                        self.leaders.entry(next).or_default();
                        if let Some(target) = target {
                            self.branch(target, at, &mut work);
                        }
                        work.push(next);
                    }
                }
                if kind.ends_block() {
                    break;
                }
                at = next;
            }
        }
    }

    fn branch(&mut self, target: u64, from: u64, work: &mut Vec<u64>) {
        if self.contains(target) {
            self.refer(target, from);
            work.push(target);
        }
    }

    /// A call into the function's own middle stays, and so may what it calls: it asks for its own
    /// address.
    pub(crate) fn stays(&self, instruction: &Instruction, kind: Kind) -> Kind {
        match kind {
            Kind::Call(target) if self.contains(target) && target != self.range.start => {
                debug_assert!(instruction.is_call_near());
                Kind::Stays(Skip::CallsItself, Some(target))
            }
            kind => kind,
        }
    }

    pub(crate) fn check_overlaps(&self) -> Result<(), Skip> {
        let overlap = self
            .sorted()
            .zip(self.sorted().skip(1))
            .any(|(first, second)| first.next_ip() > second.ip());
        if overlap {
            Err(Skip::OverlappingCode)
        } else {
            Ok(())
        }
    }

    pub(crate) fn sorted(&self) -> impl Iterator<Item = &Instruction> {
        self.instructions.values()
    }

    pub(crate) fn at(&self, vaddr: u64) -> Option<&Instruction> {
        self.instructions.get(&vaddr)
    }

    /// The instruction that ends where the one at `vaddr` begins.
    pub(crate) fn before(&self, vaddr: u64) -> Option<&Instruction> {
        let (_, instruction) = self.instructions.range(..vaddr).next_back()?;
        (instruction.next_ip() == vaddr).then_some(instruction)
    }

    pub(crate) fn is_leader(&self, vaddr: u64) -> bool {
        self.leaders.contains_key(&vaddr)
    }

    pub(crate) fn leaders(&self) -> impl Iterator<Item = u64> {
        self.leaders.keys().copied()
    }

    pub(crate) fn references(&self, vaddr: u64) -> References {
        self.leaders.get(&vaddr).copied().unwrap_or_default()
    }

    pub(crate) fn indirect_jumps(&self) -> impl Iterator<Item = u64> {
        self.indirect_jumps.iter().copied()
    }

    /// The instructions that run before the one at `vaddr` in its block, nearest first.
    pub(crate) fn backwards(&self, vaddr: u64) -> impl Iterator<Item = &Instruction> {
        let mut at = vaddr;
        std::iter::from_fn(move || {
            if self.is_leader(at) {
                return None;
            }
            let instruction = self.before(at)?;
            if Kind::of(self.image, instruction).ends_block() {
                return None;
            }
            at = instruction.ip();
            Some(instruction)
        })
    }

    /// The only instruction that can run before the first of a block, and whether it branched
    /// there.
    pub(crate) fn only_predecessor(&self, leader: u64) -> Option<(&Instruction, bool)> {
        let references = self.references(leader);
        let falls = self.before(leader).filter(|above| {
            !matches!(
                Kind::of(self.image, above),
                Kind::Jump(_) | Kind::IndirectJump | Kind::Return | Kind::Trap
            )
        });
        match (references.root, references.branches, falls) {
            (false, 0, Some(above)) => Some((above, false)),
            (false, 1, None) => Some((self.at(references.last)?, true)),
            _ => None,
        }
    }
}
