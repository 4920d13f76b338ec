//! Jump tables: found by the instructions that read them, accepted only where it is certain which
//! table is read, and how long it is at most.
//!
//! Two shapes, as GCC and Clang write them. Relative: `movslq (B,I,4),X; add B,X; jmp *X`, entries
//! of 4 bytes relative to B. Absolute: `jmp *T(,I,8)` or `jmp *(B,I,8)`, or the same through a
//! register, entries of 8 bytes. That B holds the table's address follows from the instructions
//! before, or from all paths to them. How long the table is follows from the comparison that guards
//! it.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::analysis::bounds;
use crate::analysis::constants::Constants;
use crate::analysis::jump_table::JumpTable;
use crate::analysis::walk::Disassembly;
use crate::elf::Value;

/// How many blocks back what a register holds is looked for.
const BLOCKS_BACK_MAX: usize = 4;

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
pub(crate) fn resolve(walk: &mut Disassembly<'_>) -> Vec<JumpTable> {
    let mut tables: Vec<JumpTable> = Vec::new();
    let mut shapes: Vec<Shape> = Vec::new();
    // Each round decodes what the tables of the one before led to; a function has finitely many
    // jumps.
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
fn tables_by_paths(walk: &Disassembly<'_>, tables: &mut Vec<JumpTable>, shapes: &mut Vec<Shape>) {
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

/// With all code decoded: whether each table is still the one that is read on every path. One
/// wrong, and so one more unknown jump, and none that rests on paths is certain.
fn verify(walk: &Disassembly<'_>, shapes: &[Shape], tables: Vec<JumpTable>) -> Vec<JumpTable> {
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

/// Whether a jump goes to a pointer as it stands in memory or came in a register: a tail call, or a
/// label whose address is taken somewhere, which the file's sweep has seen. Not computed from an
/// offset.
pub(crate) fn is_pointer_jump(walk: &Disassembly<'_>, jump: u64) -> bool {
    let Some(instruction) = walk.at(jump) else {
        return false;
    };
    if instruction.op_kind(0) == OpKind::Memory {
        return true;
    }
    let register = instruction.op0_register();
    let mut at = jump;
    for _ in 0..BLOCKS_BACK_MAX {
        for each in walk.backwards(at) {
            at = each.ip();
            if walk.writes_register(each, register) {
                return matches!(each.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
                    || each.mnemonic() == Mnemonic::Lea && each.is_ip_rel_memory_operand();
            }
        }
        match walk.only_predecessor(at) {
            Some((above, _)) if walk.writes_register(above, register) => return false,
            Some((above, _)) => at = above.ip(),
            // What the caller passed is a pointer.
            None => return at == walk.range.start && walk.references(at).branches == 0,
        }
    }
    false
}

fn shape(walk: &Disassembly<'_>, jump: u64) -> Option<Shape> {
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
fn definition<'w>(
    walk: &'w Disassembly<'_>,
    at: u64,
    register: Register,
) -> Option<&'w Instruction> {
    walk.backwards(at)
        .find(|each| walk.writes_register(each, register))
}

/// The table's base if it is set in the block that reads it.
fn near_constant(walk: &Disassembly<'_>, shape: &Shape) -> Option<u64> {
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
fn read(walk: &Disassembly<'_>, shape: &Shape, base: u64) -> Option<JumpTable> {
    let elf = &walk.image.binary.elf;
    let address = base.wrapping_add(shape.displacement);
    let entries = bounds::entries(walk, shape.load, shape.index)?;
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
