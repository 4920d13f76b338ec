//! One function's instructions in their new order, before their addresses are known.

use std::collections::HashMap;

use iced_x86::{Decoder, DecoderOptions, Encoder, Instruction, OpKind};

use crate::analysis::flags::LiveFlags;
use crate::analysis::flow::{BasicBlock, Terminator};
use crate::analysis::image::Image;
use crate::analysis::instruction::Kind;
use crate::analysis::operands::got_slot;
use crate::plan::counters::FlowEdge;
use crate::plan::{Piece, PlannedFunction};

/// What an instruction refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// A piece of the same function, by its place in the order.
    Piece(usize),
    /// An address of the file: its new copy if there is one, else the old code.
    Code(u64),
    /// An address of the file, wherever that code moves.
    Old(u64),
    /// A runtime address.
    Runtime(u64),
    /// The counter of this number.
    Counter(usize),
    /// The new copy of the function's jump table of this index.
    Table(usize),
}

/// How the reference stands in the instruction's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// 32 bits relative to the instruction's end, at this offset.
    Relative(usize),
    /// A jump or conditional jump (its condition), short if it reaches.
    Jump(Option<u8>),
    /// 32 bits at this offset: how far the new table is from the old, added to what stood there.
    TableShift(usize),
}

/// One new instruction.
#[derive(Debug, Clone)]
pub(crate) struct EmittedInstruction {
    pub(crate) bytes: [u8; 15],
    pub(crate) len: u8,
    pub(crate) reference: Option<(Field, Target)>,
    /// The old instruction that it stands for, or before which the same holds.
    pub(crate) origin: u64,
    /// A copy of `origin`, perhaps with its condition inverted.
    pub(crate) copied: bool,
    /// Registers, flags and stack are as before `origin`.
    pub(crate) same_state: bool,
    /// Bytes that a counter has put on the stack.
    pub(crate) pushed_bytes: u8,
}

/// A function's items; `starts` has the index of the first item of each piece.
#[derive(Debug, Clone)]
pub(crate) struct Assembled {
    pub(crate) items: Vec<EmittedInstruction>,
    pub(crate) starts: Vec<usize>,
    /// Where code that is entered from outside begins: (old address, piece).
    pub(crate) entries: Vec<(u64, usize)>,
    /// Tables that are emitted: (index, each entry's target).
    pub(crate) tables: Vec<(usize, Vec<Target>)>,
}

/// What assembling needs to know of the place.
pub(crate) struct Context<'a> {
    pub(crate) image: &'a Image,
    pub(crate) counts: bool,
    /// What a slot leads to, if it is known and within reach.
    pub(crate) resolve: &'a dyn Fn(u64) -> Option<Target>,
}

struct Assembler<'a> {
    context: &'a Context<'a>,
    planned: &'a PlannedFunction,
    flags: Option<LiveFlags>,
    block_piece: Vec<Option<usize>>,
    edge_piece: Vec<Option<usize>>,
    /// Indices of the edges that leave a block.
    edges_from: HashMap<usize, Vec<usize>>,
    items: Vec<EmittedInstruction>,
    tables: Vec<(usize, Vec<Target>)>,
}

/// Bytes of stack below the pointer that leaf functions use without reserving them (psABI 3.2.2).
const RED_ZONE_BYTES: u8 = 128;

pub(crate) fn assemble(context: &Context<'_>, planned: &PlannedFunction) -> Assembled {
    let function = &planned.function;
    let mut block_piece = vec![None; function.blocks.len()];
    let mut edge_piece = vec![None; planned.edges.len()];
    for (place, piece) in planned.order.iter().enumerate() {
        match *piece {
            Piece::Block(block) => block_piece[block] = Some(place),
            Piece::Counter(edge) => edge_piece[edge] = Some(place),
        }
    }
    let mut edges_from: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut entry_edges: HashMap<usize, usize> = HashMap::new();
    for (index, edge) in planned.edges.iter().enumerate() {
        match (edge.from, edge.to) {
            (Some(from), _) => edges_from.entry(from).or_default().push(index),
            (None, Some(to)) => {
                entry_edges.insert(to, index);
            }
            (None, None) => {}
        }
    }
    let mut assembler = Assembler {
        context,
        planned,
        flags: context
            .counts
            .then(|| LiveFlags::new(context.image, function)),
        block_piece,
        edge_piece,
        edges_from,
        items: Vec::new(),
        tables: Vec::new(),
    };
    let mut starts = Vec::new();
    for (place, piece) in planned.order.iter().enumerate() {
        starts.push(assembler.items.len());
        match *piece {
            Piece::Block(block) => assembler.block(block, place),
            Piece::Counter(edge) => {
                let edge = &planned.edges[edge];
                let target = edge.target.unwrap_or(function.start);
                let keep_flags = assembler
                    .flags
                    .as_ref()
                    .is_none_or(|flags| flags.at(target));
                assembler.count(edge, target, keep_flags);
                let to = assembler.block_target(target);
                assembler.go_on(to, target, place);
            }
        }
    }
    let mut entries = Vec::new();
    for (block, piece) in assembler.block_piece.iter().enumerate() {
        if let Some(piece) = piece {
            let piece = entry_edges
                .get(&block)
                .and_then(|&edge| assembler.edge_piece[edge])
                .unwrap_or(*piece);
            entries.push((function.blocks[block].start, piece));
        }
    }
    Assembled {
        items: assembler.items,
        starts,
        entries,
        tables: assembler.tables,
    }
}

impl Assembler<'_> {
    fn block(&mut self, id: usize, place: usize) {
        let function = &self.planned.function;
        let block = function.blocks[id].clone();
        let table = match block.exit {
            Terminator::Table(table) => Some(table),
            _ => None,
        };
        let bytes = self
            .context
            .image
            .read(block.start, block.end - block.start)
            .unwrap_or_default();
        let mut mid_table = false;
        for instruction in Decoder::with_ip(64, bytes, block.start, DecoderOptions::NONE) {
            let at = instruction.ip();
            let is_last = at == block.last;
            if is_last {
                if let Some(edge) = self.leaving(id) {
                    self.count(&edge, at, true);
                }
                if matches!(block.exit, Terminator::Jump(_) | Terminator::Branch(_)) {
                    break;
                }
            }
            let loads = table.is_some_and(|table| function.tables[table].load == at);
            self.copy(&instruction, bytes, block.start, table.filter(|_| loads));
            if mid_table && let Some(item) = self.items.last_mut() {
                item.same_state = false;
            }
            mid_table |= loads;
        }
        if let Some(table) = table {
            let targets = function.tables[table]
                .targets
                .iter()
                .map(|target| self.edge_target(id, *target, true))
                .collect();
            self.tables.push((table, targets));
        }
        self.end(id, &block, place);
    }

    /// What stands behind a block's last copied instruction.
    fn end(&mut self, id: usize, block: &BasicBlock, place: usize) {
        match block.exit {
            Terminator::FallThrough | Terminator::Trap => {
                let to = self.edge_target(id, block.end, false);
                self.go_on(to, block.end, place);
            }
            Terminator::Jump(target) => {
                let to = self.edge_target(id, target, false);
                let slot = match to {
                    Target::Code(stub) => self.context.image.plt_slot(stub),
                    _ => None,
                };
                if let Some(slot) = slot {
                    let mut item = self.through_slot(false, slot);
                    item.origin = block.last;
                    self.items.push(item);
                } else if to != Target::Piece(place + 1) {
                    self.jump(None, to, block.last, true);
                }
            }
            Terminator::Branch(target) => {
                let taken = self.edge_target(id, target, true);
                let falls = self.edge_target(id, block.end, false);
                let condition = self.condition(block.last);
                if taken == Target::Piece(place + 1) {
                    self.jump(Some(condition ^ 1), falls, block.last, true);
                } else {
                    self.jump(Some(condition), taken, block.last, true);
                    self.go_on(falls, block.end, place);
                }
            }
            Terminator::Table(_) | Terminator::Indirect | Terminator::End => {}
        }
    }

    /// A conditional jump's condition code, as its opcode has it.
    fn condition(&self, at: u64) -> u8 {
        let bytes = self.context.image.binary.elf.from(at).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        // iced numbers conditions from 1 in the machine's order.
        (decoder.decode().condition_code() as u8).wrapping_sub(1) & 15
    }

    /// The counted edge that leaves the function from a block, to nobody knows where.
    fn leaving(&self, id: usize) -> Option<FlowEdge> {
        self.edges_from
            .get(&id)?
            .iter()
            .map(|&edge| self.planned.edges[edge])
            .find(|edge| edge.target.is_none() && edge.counter.is_some())
    }

    /// Where an edge leads: to its counter, to the block, to old code.
    fn edge_target(&self, from: usize, target: u64, taken: bool) -> Target {
        let counter = self.edges_from.get(&from).and_then(|edges| {
            edges.iter().copied().find(|&index| {
                let edge = &self.planned.edges[index];
                edge.taken == taken && edge.target == Some(target)
            })
        });
        match counter.and_then(|edge| self.edge_piece[edge]) {
            Some(piece) => Target::Piece(piece),
            None => self.block_target(target),
        }
    }

    fn block_target(&self, target: u64) -> Target {
        self.planned
            .function
            .block_at(target)
            .and_then(|block| self.block_piece[block])
            .map_or(Target::Code(target), Target::Piece)
    }

    fn go_on(&mut self, to: Target, origin: u64, place: usize) {
        if to != Target::Piece(place + 1) {
            self.jump(None, to, origin, false);
        }
    }

    fn jump(&mut self, condition: Option<u8>, to: Target, origin: u64, copied: bool) {
        self.items.push(EmittedInstruction {
            bytes: [0; 15],
            len: 0,
            reference: Some((Field::Jump(condition), to)),
            origin,
            copied,
            same_state: true,
            pushed_bytes: 0,
        });
    }

    /// Copies an instruction, with what it refers to.
    fn copy(&mut self, instruction: &Instruction, block: &[u8], start: u64, table: Option<usize>) {
        let at = instruction.ip();
        let offset = usize::try_from(at - start).unwrap_or(0);
        let bytes = block
            .get(offset..offset + instruction.len())
            .unwrap_or_default();
        if let Some(table) = table
            && let Some(item) = self.table_load(instruction, table)
        {
            self.items.push(item);
            return;
        }
        let call = match Kind::of(self.context.image, instruction) {
            Kind::Call(target) => Some(match self.context.image.plt_slot(target) {
                Some(slot) => self.through_slot(true, slot),
                None => referring(&[0xe8, 0, 0, 0, 0], 1, Target::Code(target)),
            }),
            Kind::Next if instruction.is_call_near_indirect() => {
                got_slot(instruction).map(|slot| self.through_slot(true, slot))
            }
            Kind::IndirectJump => got_slot(instruction).map(|slot| self.through_slot(false, slot)),
            _ => None,
        };
        let copied = call.is_none();
        let mut item = call.unwrap_or_else(|| raw(bytes));
        if copied && instruction.is_ip_rel_memory_operand() {
            let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
            let decoded = decoder.decode();
            let field = decoder.get_constant_offsets(&decoded).displacement_offset();
            item.reference = Some((
                Field::Relative(field),
                Target::Old(instruction.ip_rel_memory_address()),
            ));
        }
        item.origin = at;
        self.items.push(item);
    }

    /// A call or jump to what a slot holds: at once if that is known and within reach, else through
    /// the slot.
    fn through_slot(&self, is_call: bool, slot: u64) -> EmittedInstruction {
        match (self.context.resolve)(slot) {
            Some(to) => {
                let opcode = if is_call { 0xe8 } else { 0xe9 };
                referring(&[opcode, 0, 0, 0, 0], 1, to)
            }
            None => {
                let operand = if is_call { 0x15 } else { 0x25 };
                referring(&[0xff, operand, 0, 0, 0, 0], 2, Target::Old(slot))
            }
        }
    }

    /// The load from a table, with room for the new table's address.
    fn table_load(&self, instruction: &Instruction, table: usize) -> Option<EmittedInstruction> {
        let mut wide = *instruction;
        wide.set_memory_displ_size(8);
        // Any value that needs 32 bits: the real one is written when it is known.
        wide.set_memory_displacement64(0x1234_5678);
        let mut encoder = Encoder::new(64);
        encoder.encode(&wide, instruction.ip()).ok()?;
        let field = encoder.get_constant_offsets().displacement_offset();
        let bytes = encoder.take_buffer();
        let mut item = raw(&bytes);
        item.origin = instruction.ip();
        item.bytes[field..field + 4]
            .copy_from_slice(&instruction.memory_displacement64().to_le_bytes()[..4]);
        item.reference = Some((Field::TableShift(field), Target::Table(table)));
        (instruction.op_kind(0) == OpKind::Memory || instruction.op_kind(1) == OpKind::Memory)
            .then_some(item)
    }

    /// Adds 1 to an edge's counter.
    fn count(&mut self, edge: &FlowEdge, origin: u64, keep_flags: bool) {
        let Some(counter) = edge.counter.filter(|_| self.context.counts) else {
            return;
        };
        let counter = Target::Counter(self.planned.first_counter + counter);
        let mut add = |bytes: &[u8], refers: bool, pushed_bytes: u8, same_state: bool| {
            let mut item = raw(bytes);
            if refers {
                item.reference = Some((Field::Relative(bytes.len() - 4), counter));
            }
            item.origin = origin;
            item.copied = false;
            item.pushed_bytes = pushed_bytes;
            item.same_state = same_state;
            self.items.push(item);
        };
        // ModRM of a bare displacement: relative to the next instruction.
        let operand = |opcode: &[u8], register: u8| {
            let mut bytes = opcode.to_vec();
            bytes.push(register << 3 | 5);
            bytes.extend_from_slice(&[0; 4]);
            bytes
        };
        if !keep_flags {
            // inc qword
            add(&operand(&[0x48, 0xff], 0), true, 0, true);
            return;
        }
        let below = RED_ZONE_BYTES;
        // lea -128(%rsp),%rsp; push %rax
        add(&[0x48, 0x8d, 0x64, 0x24, 0x80], false, 0, true);
        add(&[0x50], false, below, false);
        // mov counter,%rax; lea 1(%rax),%rax; mov %rax,counter
        add(&operand(&[0x48, 0x8b], 0), true, below + 8, false);
        add(&[0x48, 0x8d, 0x40, 0x01], false, below + 8, false);
        add(&operand(&[0x48, 0x89], 0), true, below + 8, false);
        // pop %rax; lea 128(%rsp),%rsp
        add(&[0x58], false, below + 8, false);
        add(
            &[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0],
            false,
            below,
            false,
        );
    }
}

fn referring(bytes: &[u8], field: usize, target: Target) -> EmittedInstruction {
    let mut item = raw(bytes);
    item.reference = Some((Field::Relative(field), target));
    item
}

fn raw(bytes: &[u8]) -> EmittedInstruction {
    let mut item = EmittedInstruction {
        bytes: [0; 15],
        len: 0,
        reference: None,
        origin: 0,
        copied: true,
        same_state: true,
        pushed_bytes: 0,
    };
    let len = bytes.len().min(15);
    item.bytes[..len].copy_from_slice(&bytes[..len]);
    item.len = u8::try_from(len).unwrap_or(15);
    item
}
