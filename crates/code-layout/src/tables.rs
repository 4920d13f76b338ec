//! Jump tables: found by the instructions that read them, accepted only where it is certain which table is
//! read, and how long it is at most.
//!
//! Two shapes, as GCC and Clang write them. Relative: `movslq (B,I,4),X; add B,X; jmp *X`, entries of 4 bytes
//! relative to B. Absolute: `jmp *T(,I,8)` or `jmp *(B,I,8)`, or the same through a register, entries of 8 bytes.
//! That B holds the table's address follows from the instructions before, or from all paths to them. How
//! long the table is follows from the comparison that guards it.

use iced_x86::{Code, Instruction, Mnemonic, OpAccess, OpKind, Register};

use crate::constants::Constants;
use crate::elf::Value;
use crate::flow::JumpTable;
use crate::walk::Walk;

/// More entries than any compiler's switch has; bounds the work on a malformed file.
const ENTRIES_MAX: u64 = 1 << 16;
/// How many blocks back the guarding comparison may lie.
const GUARD_BLOCKS_MAX: usize = 4;

/// A jump that reads a table, before its address is known.
#[derive(Debug, Clone, Copy)]
struct Shape {
    jump: u64,
    load: u64,
    base: Option<Register>,
    index: Register,
    displacement: u64,
    relative: bool,
}

/// Finds all tables, following the code behind them. Jumps that are left lead to unknown places.
pub(crate) fn resolve(walk: &mut Walk<'_>) -> Vec<JumpTable> {
    let mut tables: Vec<JumpTable> = Vec::new();
    let mut shapes: Vec<Shape> = Vec::new();
    // Each round decodes what the tables of the one before led to; a function has finitely many jumps.
    loop {
        let before = tables.len();
        let jumps: Vec<u64> = walk.indirect_jumps().collect();
        for jump in jumps {
            if tables.iter().any(|table| table.jump == jump) {
                continue;
            }
            let Some(shape) = shape(walk, jump) else {
                continue;
            };
            if let Some(base) = near_constant(walk, &shape)
                && let Some(table) = read(walk, &shape, base)
            {
                shapes.push(shape);
                tables.push(table);
            }
        }
        if tables.len() == before {
            tables_by_paths(walk, &mut tables, &mut shapes);
        }
        for table in &tables[before..] {
            for target in &table.targets {
                walk.target(*target, table.jump);
            }
        }
        if tables.len() == before {
            break;
        }
    }
    verify(walk, &shapes, tables)
}

/// Tables whose base was loaded further away, perhaps outside a loop.
fn tables_by_paths(walk: &Walk<'_>, tables: &mut Vec<JumpTable>, shapes: &mut Vec<Shape>) {
    let open: Vec<Shape> = walk
        .indirect_jumps()
        .filter(|jump| !tables.iter().any(|table| table.jump == *jump))
        .filter_map(|jump| shape(walk, jump))
        .collect();
    if open.is_empty() {
        return;
    }
    let constants = Constants::new(walk, tables);
    for shape in open {
        if let Some(base) = shape
            .base
            .and_then(|base| constants.at(walk, shape.load, base))
            && let Some(table) = read(walk, &shape, base)
        {
            shapes.push(shape);
            tables.push(table);
        }
    }
}

/// With all code decoded: whether each table is still the one that is read on every path. One wrong, and
/// so one more unknown jump, and none that rests on paths is certain.
fn verify(walk: &Walk<'_>, shapes: &[Shape], tables: Vec<JumpTable>) -> Vec<JumpTable> {
    let near: Vec<bool> = shapes
        .iter()
        .zip(&tables)
        .map(|(shape, table)| {
            near_constant(walk, shape)
                .and_then(|base| read(walk, shape, base))
                .as_ref()
                == Some(table)
        })
        .collect();
    let unknown = walk
        .indirect_jumps()
        .any(|jump| !tables.iter().any(|table| table.jump == jump) && !is_pointer_jump(walk, jump));
    if near.iter().all(|near| *near) && !unknown {
        return tables;
    }
    let constants = Constants::new(walk, &tables);
    let by_paths = |shape: &Shape, table: &JumpTable| {
        let base = shape
            .base
            .and_then(|base| constants.at(walk, shape.load, base))?;
        (read(walk, shape, base).as_ref() == Some(table)).then_some(())
    };
    let all = !unknown
        && near
            .iter()
            .zip(shapes.iter().zip(&tables))
            .all(|(near, (shape, table))| *near || by_paths(shape, table).is_some());
    if all {
        return tables;
    }
    // Without its label, no branch leads between a constant and its use in the same block.
    tables
        .into_iter()
        .zip(near)
        .filter(|(_, near)| *near)
        .map(|(table, _)| table)
        .collect()
}

/// Whether a jump goes to a pointer as it stands in memory or came in a register: a tail call, or a label
/// whose address is taken somewhere, which the file's sweep has seen. Not computed from an offset.
pub(crate) fn is_pointer_jump(walk: &Walk<'_>, jump: u64) -> bool {
    let Some(instruction) = walk.at(jump) else {
        return false;
    };
    if instruction.op_kind(0) == OpKind::Memory {
        return true;
    }
    let register = instruction.op0_register();
    let defined = walk
        .backwards(jump)
        .find(|each| walk.constants_written(each, register));
    match defined {
        Some(each) => matches!(
            each.mnemonic(),
            Mnemonic::Mov | Mnemonic::Pop | Mnemonic::Cmove | Mnemonic::Cmovne
        ),
        None => false,
    }
}

fn shape(walk: &Walk<'_>, jump: u64) -> Option<Shape> {
    let instruction = walk.at(jump)?;
    if instruction.op_kind(0) == OpKind::Memory {
        return absolute(instruction, jump);
    }
    let register = instruction.op0_register();
    let defined = definition(walk, jump, register)?;
    if defined.mnemonic() == Mnemonic::Mov && defined.op_kind(1) == OpKind::Memory {
        return absolute(defined, jump);
    }
    let add = defined;
    if !matches!(add.code(), Code::Add_r64_rm64 | Code::Add_rm64_r64)
        || add.op_kind(1) != OpKind::Register
        || add.op_kind(0) != OpKind::Register
    {
        return None;
    }
    [
        (register, add.op1_register()),
        (add.op1_register(), register),
    ]
    .into_iter()
    .find_map(|(loaded, base)| {
        let load = definition(walk, add.ip(), loaded)?;
        let fits = load.code() == Code::Movsxd_r64_rm32
            && load.op_kind(1) == OpKind::Memory
            && load.memory_base() == base
            && load.memory_index_scale() == 4
            && load.memory_displacement64() == 0
            && plain_memory(load)
            && loaded != base;
        // The base may not change between its two uses.
        let base_set = definition(walk, add.ip(), base).map(Instruction::ip);
        let unchanged = base_set.is_none_or(|at| at < load.ip());
        (fits && unchanged).then(|| Shape {
            jump,
            load: load.ip(),
            base: Some(base),
            index: load.memory_index(),
            displacement: 0,
            relative: true,
        })
    })
}

fn absolute(load: &Instruction, jump: u64) -> Option<Shape> {
    let base = load.memory_base();
    let fits = load.memory_index_scale() == 8
        && load.memory_index().is_gpr64()
        && plain_memory(load)
        && (base == Register::None || base.is_gpr64())
        && (load.code() == Code::Jmp_rm64 || load.code() == Code::Mov_r64_rm64);
    fits.then(|| Shape {
        jump,
        load: load.ip(),
        base: (base != Register::None).then_some(base),
        index: load.memory_index(),
        displacement: load.memory_displacement64(),
        relative: false,
    })
}

fn plain_memory(instruction: &Instruction) -> bool {
    instruction.segment_prefix() != Register::FS
        && instruction.segment_prefix() != Register::GS
        && instruction.memory_index().is_gpr64()
}

/// The last instruction before `at` in its block that writes a register.
fn definition<'w>(walk: &'w Walk<'_>, at: u64, register: Register) -> Option<&'w Instruction> {
    walk.backwards(at)
        .find(|each| walk.constants_written(each, register))
}

/// The table's base if it is set in the block that reads it.
fn near_constant(walk: &Walk<'_>, shape: &Shape) -> Option<u64> {
    let Some(mut register) = shape.base else {
        return Some(0);
    };
    let mut at = shape.load;
    loop {
        let defined = definition(walk, at, register)?;
        if let Some(value) = Constants::loaded(walk, defined) {
            return Some(value);
        }
        if defined.code() != Code::Mov_r64_rm64 && defined.code() != Code::Mov_rm64_r64
            || defined.op_kind(1) != OpKind::Register
            || defined.op_kind(0) != OpKind::Register
        {
            return None;
        }
        register = defined.op1_register();
        at = defined.ip();
    }
}

/// The table's entries, if all of them are code.
fn read(walk: &Walk<'_>, shape: &Shape, base: u64) -> Option<JumpTable> {
    let elf = &walk.image.elf;
    let address = base.wrapping_add(shape.displacement);
    let entries = entries(walk, shape)?;
    let entry_bytes = if shape.relative { 4u8 } else { 8 };
    let end = address.checked_add(entries.checked_mul(entry_bytes.into())?)?;
    if !elf.is_read_only(address, end) {
        return None;
    }
    let mut targets = Vec::new();
    for slot in (address..end).step_by(entry_bytes.into()) {
        let target = if shape.relative {
            base.wrapping_add_signed(elf.i32_at(slot)?.into())
        } else {
            match elf.relocation_at(slot) {
                Some(Value::Relative(target)) => target,
                Some(Value::Symbol(..)) => return None,
                None if elf.position_independent => return None,
                None => elf.u64_at(slot)?,
            }
        };
        if !elf.is_executable(target) {
            return None;
        }
        targets.push(target);
    }
    Some(JumpTable {
        address,
        entry_bytes,
        targets,
        load: shape.load,
        jump: shape.jump,
    })
}

/// How many entries the program may use: by the comparison on the only path to the load.
fn entries(walk: &Walk<'_>, shape: &Shape) -> Option<u64> {
    let mut index = Tracked {
        register: shape.index,
        bits: 64,
    };
    let mut at = shape.load;
    for _ in 0..GUARD_BLOCKS_MAX {
        for instruction in walk.backwards(at) {
            at = instruction.ip();
            if let Some(count) = index.step_back(walk, instruction)? {
                return Some(count);
            }
        }
        // The block's one predecessor.
        let references = walk.references(at);
        let above = walk.before(at);
        let falls = above.filter(|above| {
            !matches!(
                above.mnemonic(),
                Mnemonic::Jmp | Mnemonic::Ret | Mnemonic::Ud2
            )
        });
        let (branch, taken) = match (references.root, references.branches, falls) {
            (false, 0, Some(above)) => (above, false),
            (false, 1, None) => (walk.at(references.last)?, true),
            _ => return None,
        };
        at = branch.ip();
        if branch.is_jcc_short_or_near() {
            if let Some(count) = guard(walk, branch, taken, index) {
                return (count <= ENTRIES_MAX).then_some(count);
            }
        } else if !taken {
            // A block that only ends because another begins.
            if let Some(count) = index.step_back(walk, branch)? {
                return Some(count);
            }
        } else if !branch.is_jmp_short_or_near() {
            return None;
        }
    }
    None
}

/// The register that the index comes from, and how many of its bits.
#[derive(Debug, Clone, Copy)]
struct Tracked {
    register: Register,
    bits: u32,
}

impl Tracked {
    /// Goes back over an instruction. `Some(Some(n))`: the index is below n. `None`: its origin is lost.
    fn step_back(&mut self, walk: &Walk<'_>, instruction: &Instruction) -> Option<Option<u64>> {
        if !walk.constants_written(instruction, self.register) {
            return Some(None);
        }
        let from_register =
            instruction.op_count() == 2 && instruction.op_kind(1) == OpKind::Register;
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd if from_register => {
                let source = instruction.op1_register();
                let bits = u32::try_from(source.size()).ok()? * 8;
                let wide = instruction.op0_register().size() >= 4;
                if !wide || !source.is_gpr() || is_high_byte(source) {
                    return None;
                }
                self.register = source.full_register();
                self.bits = self.bits.min(bits);
                Some(None)
            }
            Mnemonic::Cdqe => {
                self.bits = self.bits.min(32);
                Some(None)
            }
            // A byte's or a word's own bound.
            Mnemonic::Movzx => match instruction.memory_size().size() {
                1 => Some(Some(1 << 8)),
                2 => Some(Some(1 << 16)),
                _ => None,
            },
            Mnemonic::And if instruction.op_kind(0) == OpKind::Register => {
                let mask = instruction.try_immediate(1).ok()?;
                let whole = instruction.op0_register().size() >= 4;
                (whole && mask < ENTRIES_MAX).then_some(Some(mask + 1))
            }
            _ => None,
        }
    }
}

fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    )
}

/// What an unsigned comparison before a conditional jump says of the index where the jump went this way.
fn guard(walk: &Walk<'_>, branch: &Instruction, taken: bool, mut index: Tracked) -> Option<u64> {
    let inclusive = match (branch.mnemonic(), taken) {
        (Mnemonic::Ja, false) | (Mnemonic::Jbe, true) => true,
        (Mnemonic::Jae, false) | (Mnemonic::Jb, true) => false,
        _ => return None,
    };
    for instruction in walk.backwards(branch.ip()) {
        if instruction.rflags_modified() != 0 {
            if instruction.mnemonic() != Mnemonic::Cmp || instruction.op_kind(0) != OpKind::Register
            {
                return None;
            }
            let compared = instruction.op0_register();
            let bits = u32::try_from(compared.size()).ok()? * 8;
            // What was compared must be all that is used; a 32-bit comparison of a register used whole
            // rests on the program's own word that the upper half is 0, else it would jump astray itself.
            let covers = bits >= index.bits.min(32);
            if compared.full_register() != index.register || is_high_byte(compared) || !covers {
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
        index.step_back(walk, instruction)?;
    }
    None
}

/// Whether an operand's access may change it.
pub(crate) fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}
