//! How many entries of a jump table a program may use: by the comparison on the only path to the
//! load.
//!
//! The index is followed back through copies and widenings, in registers and in memory that nothing
//! between changes, to an unsigned comparison with a constant, or to a mask.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::analysis::operands::writes;
use crate::analysis::walk::Disassembly;

/// More entries than any compiler's switch has; bounds the work on a malformed file.
const ENTRIES_MAX: u64 = 1 << 16;
/// How many blocks back the comparison may lie.
const GUARD_BLOCKS_MAX: usize = 4;

/// How many entries the load at `load` with this index register may read.
pub(crate) fn entries(walk: &Disassembly<'_>, load: u64, index: Register) -> Option<u64> {
    let mut index = Index {
        place: Place::Register(index.full_register()),
        bits: 64,
    };
    let found = compared(walk, load, &mut index);
    // A widened byte or word has a bound of its own.
    let by_width = (index.bits <= 16).then(|| 1 << index.bits);
    let count = match (found, by_width) {
        (Some(one), Some(two)) => one.min(two),
        (one, two) => one.or(two)?,
    };
    (count <= ENTRIES_MAX).then_some(count)
}

/// By a comparison or a mask before `at`; leaves behind how far back the index was followed.
fn compared(walk: &Disassembly<'_>, mut at: u64, index: &mut Index) -> Option<u64> {
    for _ in 0..GUARD_BLOCKS_MAX {
        for instruction in walk.backwards(at) {
            at = instruction.ip();
            if let Some(count) = index.step_back(walk, instruction)? {
                return Some(count);
            }
        }
        let (above, branched) = walk.only_predecessor(at)?;
        at = above.ip();
        if above.is_jcc_short_or_near() {
            if let Some(count) = guard(walk, above, branched, *index) {
                return Some(count);
            }
        } else if branched && !above.is_jmp_short_or_near() {
            return None;
        } else if !branched && let Some(count) = index.step_back(walk, above)? {
            // A block that only ends because another begins.
            return Some(count);
        }
    }
    None
}

/// Whether the index, followed back from `at`, turns out to have at most so many bits.
fn is_narrow(walk: &Disassembly<'_>, mut at: u64, mut index: Index, bits: u32) -> bool {
    for _ in 0..GUARD_BLOCKS_MAX {
        for instruction in walk.backwards(at) {
            at = instruction.ip();
            match index.step_back(walk, instruction) {
                Some(None) if index.bits <= bits => return true,
                Some(None) => {}
                _ => return false,
            }
        }
        let Some((above, branched)) = walk.only_predecessor(at) else {
            return false;
        };
        at = above.ip();
        let branches = above.is_jcc_short_or_near() || above.is_jmp_short_or_near();
        if !branches && (branched || !matches!(index.step_back(walk, above), Some(None))) {
            return false;
        }
    }
    false
}

/// Where the index was, and how many of its bits count.
#[derive(Debug, Clone, Copy)]
struct Index {
    place: Place,
    bits: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Register(Register),
    Memory(Memory),
}

/// An operand in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
    segment: Register,
    bytes: u64,
}

impl Memory {
    fn of(instruction: &Instruction) -> Self {
        Self {
            base: instruction.memory_base(),
            index: instruction.memory_index(),
            scale: instruction.memory_index_scale(),
            displacement: instruction.memory_displacement64(),
            segment: instruction.memory_segment(),
            bytes: instruction.memory_size().size() as u64,
        }
    }

    /// Whether writing `other` surely leaves it as it is: the same base, and bytes beside each
    /// other.
    fn is_apart(&self, other: &Self) -> bool {
        let (mine, theirs) = (
            self.displacement.cast_signed(),
            other.displacement.cast_signed(),
        );
        let behind = |at: i64, bytes: u64| at.saturating_add_unsigned(bytes);
        other.bytes > 0
            && self.base == other.base
            && self.segment == other.segment
            && self.index == Register::None
            && other.index == Register::None
            && (behind(mine, self.bytes) <= theirs || behind(theirs, other.bytes) <= mine)
    }
}

impl Index {
    /// Goes back over an instruction. `Some(Some(n))`: the index is below n. `None`: its origin is
    /// lost.
    fn step_back(
        &mut self,
        walk: &Disassembly<'_>,
        instruction: &Instruction,
    ) -> Option<Option<u64>> {
        let register = match self.place {
            Place::Register(register) => register,
            Place::Memory(memory) => return keeps(walk, instruction, &memory).then_some(None),
        };
        if !walk.writes_register(instruction, register) {
            return Some(None);
        }
        let wide =
            instruction.op_kind(0) == OpKind::Register && instruction.op0_register().size() >= 4;
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd if wide => {
                let (place, bytes) = match instruction.op_kind(1) {
                    OpKind::Register => {
                        let source = instruction.op1_register();
                        if !source.is_gpr() || is_high_byte(source) {
                            return None;
                        }
                        (Place::Register(source.full_register()), source.size())
                    }
                    OpKind::Memory => {
                        let memory = Memory::of(instruction);
                        // Its own address, overwritten: what was compared lies elsewhere.
                        if memory.base == register || memory.index == register {
                            self.bits = self.bits.min(u32::try_from(memory.bytes).ok()? * 8);
                        }
                        (Place::Memory(memory), instruction.memory_size().size())
                    }
                    _ => return None,
                };
                self.place = place;
                self.bits = self.bits.min(u32::try_from(bytes).ok()? * 8);
                Some(None)
            }
            Mnemonic::Cdqe => {
                self.bits = self.bits.min(32);
                Some(None)
            }
            Mnemonic::And if wide => {
                let mask = instruction.try_immediate(1).ok()?;
                (mask < ENTRIES_MAX).then_some(Some(mask + 1))
            }
            _ => None,
        }
    }
}

/// Whether an instruction leaves a place in memory and its address as they are.
fn keeps(walk: &Disassembly<'_>, instruction: &Instruction, memory: &Memory) -> bool {
    if instruction.is_call_near() || instruction.is_call_near_indirect() {
        return false;
    }
    let address = [memory.base, memory.index]
        .into_iter()
        .filter(|register| register.is_gpr());
    if address
        .into_iter()
        .any(|register| walk.writes_register(instruction, register))
    {
        return false;
    }
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    info.used_memory()
        .iter()
        .filter(|used| writes(used.access()))
        .all(|used| {
            memory.is_apart(&Memory {
                base: used.base(),
                index: used.index(),
                scale: used.scale(),
                displacement: used.displacement(),
                segment: used.segment(),
                bytes: used.memory_size().size() as u64,
            })
        })
}

fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// What an unsigned comparison before a conditional jump says of the index where the jump went this
/// way.
fn guard(
    walk: &Disassembly<'_>,
    branch: &Instruction,
    taken: bool,
    mut index: Index,
) -> Option<u64> {
    let inclusive = match (branch.mnemonic(), taken) {
        (Mnemonic::Ja, false) | (Mnemonic::Jbe, true) => true,
        (Mnemonic::Jae, false) | (Mnemonic::Jb, true) => false,
        _ => return None,
    };
    for instruction in walk.backwards(branch.ip()) {
        if instruction.rflags_modified() == 0 {
            index.step_back(walk, instruction)?;
            continue;
        }
        if instruction.mnemonic() != Mnemonic::Cmp {
            return None;
        }
        let (same, bits) = match (index.place, instruction.op_kind(0)) {
            (Place::Register(register), OpKind::Register) => {
                let compared = instruction.op0_register();
                let same = compared.full_register() == register && !is_high_byte(compared);
                (same, u32::try_from(compared.size()).ok()? * 8)
            }
            (Place::Memory(memory), OpKind::Memory) => {
                let compared = Memory::of(instruction);
                (compared == memory, u32::try_from(compared.bytes).ok()? * 8)
            }
            _ => return None,
        };
        // What was compared must be all that is used; a 32-bit comparison of a register used whole
        // rests on the program's own word that the upper half is 0, else it would jump astray
        // itself.
        let covers = bits >= index.bits.min(32) || is_narrow(walk, instruction.ip(), index, bits);
        if !same || !covers {
            return None;
        }
        let mask = if bits == 64 {
            u64::MAX
        } else {
            (1 << bits) - 1
        };
        let limit = instruction.try_immediate(1).ok()? & mask;
        return limit.checked_add(u64::from(inclusive));
    }
    None
}
