//! One pass over all code and pointers of a file, for what leads into the middle of functions from
//! outside.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::analysis::caller_sensitive::{is_caller_sensitive, is_caller_sensitive_slot};
use crate::analysis::operands::got_slot;
use crate::elf::binary::{Binary, ENTRY_BYTES, FunctionId};
use crate::elf::little_endian;

/// An address inside a function, not its start, that somebody holds as a number: to go there, or to
/// compare it with where a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Taken {
    pub(crate) target: u64,
    pub(crate) holder: AddressHolder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressHolder {
    /// An instruction of this function, or of none; perhaps by a slot that it reads.
    Code(Option<FunctionId>),
    /// The 8 bytes at this address.
    Data(u64),
}

/// What the pass finds.
pub(crate) struct Sweep {
    pub(crate) inner_targets: Vec<u64>,
    /// Those of them that somebody holds, in order.
    pub(crate) taken: Vec<Taken>,
    pub(crate) caller_sensitive: BTreeSet<u64>,
    /// What cannot be written and something refers to, in order: objects begin there, and no table
    /// goes on there.
    read_only: Vec<u64>,
}

impl Sweep {
    pub(crate) fn of(binary: &Binary) -> Self {
        sweep(binary)
    }

    /// Where what begins at `vaddr` surely has ended: something refers to the bytes there for
    /// themselves.
    pub(crate) fn next_referred(&self, vaddr: u64) -> u64 {
        let after = self.read_only.partition_point(|at| *at <= vaddr);
        self.read_only.get(after).copied().unwrap_or(u64::MAX)
    }
}

/// Addresses inside functions (not their start) that code outside the function branches to, or
/// whose address is taken anywhere: as a branch target, by `lea`, as an immediate, in relocated or
/// constant data, as a symbol's, in a jump table of offsets (a function's tables lead into its cold
/// part, which is a function of its own). In order.
///
/// Too many do no harm (a block more); the code is decoded one instruction after the other, which
/// may see some in data that lies among code. And functions that end by a jump to a
/// caller-sensitive one.
fn sweep(binary: &Binary) -> Sweep {
    let mut found = Vec::new();
    let mut taken = Vec::new();
    let mut jumped_through = Vec::new();
    let mut caller_sensitive = BTreeSet::new();
    let mut constants: BTreeMap<u64, Option<FunctionId>> = BTreeMap::new();
    let mut data = Vec::new();
    let inner = |target: u64| {
        binary
            .function_at(target)
            .filter(|id| binary.range(*id).start != target)
    };
    let mut held = HashMap::new();
    for (slot, target) in pointers(binary) {
        data.extend(read_only(binary, target));
        if inner(target).is_some() {
            held.insert(slot, target);
            let holder = AddressHolder::Data(slot);
            taken.push(Taken { target, holder });
        }
    }
    each_instruction(binary, |owner, instruction| {
        if let Some(owner) = owner
            && jumps_on_to_caller_sensitive(binary, owner, instruction)
        {
            caller_sensitive.insert(binary.range(owner).start);
        }
        data.extend(data_references(binary, instruction));
        jumped_through.extend(absolute_table(binary, instruction));
        if let Some(&target) = loaded(binary, instruction).and_then(|slot| held.get(&slot)) {
            let holder = AddressHolder::Code(owner);
            taken.push(Taken { target, holder });
        }
        let Some(target) = instruction_target(binary, instruction) else {
            return;
        };
        if binary.elf.is_read_only(target, target) && !binary.elf.is_executable(target) {
            // Whose it is, if one function's alone.
            constants
                .entry(target)
                .and_modify(|first| *first = first.filter(|_| *first == owner))
                .or_insert(owner);
        }
        if let Some(id) = inner(target) {
            let takes = matches!(
                instruction.mnemonic(),
                Mnemonic::Lea | Mnemonic::Mov | Mnemonic::Push
            );
            // Its own address is where large code models count from.
            if takes && target != instruction.ip() {
                let holder = AddressHolder::Code(owner);
                taken.push(Taken { target, holder });
            }
            // Into what a patched entry overwrites, from anywhere: not all code may be reached by
            // following it.
            let start = binary.range(id).start;
            if takes || owner != Some(id) || target < start + ENTRY_BYTES {
                found.push(target);
            }
        }
    });
    for (owner, target) in offset_tables(binary, &constants) {
        if let Some(id) = inner(target)
            && (owner != Some(id) || target < binary.range(id).start + ENTRY_BYTES)
        {
            found.push(target);
        }
    }
    found.extend(taken.iter().map(|taken| taken.target));
    // Another object may call what has a name, in the middle of a function too.
    found.extend(binary.elf.named_code().filter(|at| inner(*at).is_some()));
    found.sort_unstable();
    found.dedup();
    let named = binary.elf.named_data();
    data.extend(named.filter_map(|at| read_only(binary, at)));
    data.extend(binary.elf.sections.values().map(|&(at, _)| at));
    data.sort_unstable();
    data.dedup();
    jumped_through.sort_unstable();
    // What a function's table leads to in its cold part is jumped to and no more.
    let is_entry = |slot: u64| {
        let after = jumped_through.partition_point(|base| *base <= slot);
        let base = after.checked_sub(1).map(|index| jumped_through[index]);
        base.is_some_and(|base| {
            data[data.partition_point(|at| *at <= base)..].first() > Some(&slot)
        })
    };
    taken.retain(
        |taken: &Taken| !matches!(taken.holder, AddressHolder::Data(slot) if is_entry(slot)),
    );
    taken.sort_unstable();
    taken.dedup();
    Sweep {
        inner_targets: found,
        taken,
        caller_sensitive,
        read_only: data,
    }
}

/// All pointers in data: slot and target.
fn pointers(binary: &Binary) -> impl Iterator<Item = (u64, u64)> {
    let relocated = binary.elf.relocations.iter();
    let relocated = relocated.filter_map(|&(slot, value)| Some((slot, binary.elf.target(value)?)));
    // Without relocations any aligned word may be a code address.
    let fixed = (!binary.elf.position_independent).then_some(&binary.elf.segments);
    let words = fixed.into_iter().flatten().flat_map(|segment| {
        let aligned = segment.vaddr.next_multiple_of(8);
        let bytes = binary.elf.from(aligned).unwrap_or_default();
        let slots = (aligned..).step_by(8);
        slots.zip(bytes.chunks_exact(8).map(little_endian))
    });
    relocated.chain(words)
}

fn read_only(binary: &Binary, target: u64) -> Option<u64> {
    binary.elf.is_read_only(target, target).then_some(target)
}

/// What an instruction refers to but by branching there, where it cannot be written: operands in
/// memory and, without relocations, any number.
fn data_references(binary: &Binary, instruction: &Instruction) -> impl Iterator<Item = u64> {
    let fixed = !binary.elf.position_independent;
    (0..instruction.op_count()).filter_map(move |operand| {
        let target = match instruction.op_kind(operand) {
            OpKind::Memory if fixed || instruction.is_ip_rel_memory_operand() => {
                instruction.memory_displacement64()
            }
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 if fixed => {
                instruction.try_immediate(operand).ok()?
            }
            _ => return None,
        };
        read_only(binary, target)
    })
}

/// The table of addresses that an instruction jumps through: `jmp *T(,I,8)`, as compilers write a
/// switch without relocations.
fn absolute_table(binary: &Binary, instruction: &Instruction) -> Option<u64> {
    let base = instruction.memory_displacement64();
    let fits = instruction.is_jmp_near_indirect()
        && instruction.op_kind(0) == OpKind::Memory
        && instruction.memory_base() == Register::None
        && instruction.memory_index_scale() == 8;
    fits.then(|| read_only(binary, base)).flatten()
}

/// What could be jump tables of offsets: from each constant whose address code takes to the next
/// one, as long as every 4 bytes lead from there to code. With the function that takes the address.
fn offset_tables<'a>(
    binary: &'a Binary,
    constants: &'a BTreeMap<u64, Option<FunctionId>>,
) -> impl Iterator<Item = (Option<FunctionId>, u64)> + 'a {
    let ends = constants.keys().copied().skip(1).chain([u64::MAX]);
    let ranges = constants.iter().zip(ends);
    ranges.flat_map(move |((&base, &owner), end)| {
        (base..end)
            .step_by(4)
            .map_while(move |slot| {
                let target = base.wrapping_add_signed(binary.elf.i32_at(slot)?.into());
                binary.elf.is_executable(target).then_some(target)
            })
            .map(move |target| (owner, target))
    })
}

fn jumps_on_to_caller_sensitive(
    binary: &Binary,
    owner: FunctionId,
    instruction: &Instruction,
) -> bool {
    if instruction.is_jmp_short_or_near() {
        let range = binary.range(owner);
        let target = instruction.near_branch_target();
        !(range.start..range.end).contains(&target) && is_caller_sensitive(binary, target)
    } else {
        instruction.is_jmp_near_indirect()
            && got_slot(instruction).is_some_and(|slot| is_caller_sensitive_slot(binary, slot))
    }
}

/// Decodes all code, function by function and the gaps between them. The owner is the function, if
/// any.
fn each_instruction(binary: &Binary, mut visit: impl FnMut(Option<FunctionId>, &Instruction)) {
    let mut instruction = Instruction::default();
    let mut run = |owner, start: u64, end: u64| {
        let Some(bytes) = binary.elf.read(start, end.saturating_sub(start)) else {
            return;
        };
        let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if !instruction.is_invalid() {
                visit(owner, &instruction);
            }
        }
    };
    for segment in binary
        .elf
        .segments
        .iter()
        .filter(|segment| segment.executable)
    {
        let end = segment.vaddr + segment.file_bytes;
        let mut at = segment.vaddr;
        let first = binary
            .functions
            .partition_point(|range| range.end <= segment.vaddr);
        for (index, range) in (first..).zip(&binary.functions[first..]) {
            if range.start >= end {
                break;
            }
            if range.start > at {
                run(None, at, range.start);
            }
            let owner = u32::try_from(index).ok().map(FunctionId);
            run(owner, range.start, range.end);
            at = at.max(range.end);
        }
        run(None, at, end);
    }
}

/// The one slot that an instruction reads or compares with, as it does to have an address from the
/// global offset table.
fn loaded(binary: &Binary, instruction: &Instruction) -> Option<u64> {
    let is_operand = matches!(instruction.flow_control(), FlowControl::Next)
        && instruction.mnemonic() != Mnemonic::Lea;
    let is_one = instruction.is_ip_rel_memory_operand()
        || !binary.elf.position_independent
            && instruction.memory_base() == Register::None
            && instruction.memory_index() == Register::None;
    (is_operand && is_one).then(|| instruction.memory_displacement64())
}

/// The address that an instruction branches to or takes.
fn instruction_target(binary: &Binary, instruction: &Instruction) -> Option<u64> {
    let operands = instruction.op_count();
    if operands == 0 {
        return None;
    }
    match instruction.op_kind(0) {
        OpKind::NearBranch64 => return Some(instruction.near_branch_target()),
        _ if instruction.mnemonic() == Mnemonic::Lea => {
            return instruction
                .is_ip_rel_memory_operand()
                .then(|| instruction.ip_rel_memory_address());
        }
        _ => {}
    }
    if binary.elf.position_independent {
        return None;
    }
    match instruction.code() {
        Code::Mov_r32_imm32 => Some(u64::from(instruction.immediate32())),
        Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 | Code::Pushq_imm32 => {
            instruction.try_immediate(operands - 1).ok()
        }
        _ => None,
    }
}
