//! Compares emitted code with the file, by decoding both again.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::analysis::flow::Function;
use crate::analysis::image::Image;
use crate::analysis::jump_table::JumpTable;
use crate::analysis::operands::got_slot;
use crate::elf::little_endian;
use crate::emit::emitted::{Emitted, Patch, PatchKind, Placement};
use crate::emit::map::InstructionMapping;
use crate::error::Error;
use crate::plan::LayoutPlan;

/// Jumps to jumps that are followed when two places are compared.
const JUMPS_MAX: usize = 16;

/// Compares what was emitted, instruction by instruction, with the file: same operation and
/// operands, same addresses, every branch to the instruction that stands for its old target or to
/// that target itself, nothing after which the code does not go on where the old one does; then all
/// patches: each leads where the old bytes did, no two overlap, and none of a jump table lies where
/// something else begins. Decodes both anew, so it does not rest on how it was emitted; that a
/// counter may change flags is not checked here.
///
/// # Errors
/// [`Error::Wrong`] with the first difference.
pub fn check(
    image: &Image,
    plan: &LayoutPlan,
    placement: &Placement,
    emitted: &Emitted,
) -> Result<(), Error> {
    let mut tables: Vec<&JumpTable> = plan.functions().flat_map(|each| &each.tables).collect();
    tables.sort_unstable_by_key(|table| table.address);
    let checker = Checker {
        image,
        placement,
        emitted,
        tables,
    };
    if emitted.functions.len() != plan.functions.len() {
        return checker.wrong(emitted.address, "another number of functions than planned");
    }
    for ((_, range), planned) in emitted.functions.iter().zip(&plan.functions) {
        checker.function(&planned.function, range.start, range.end)?;
    }
    for pair in emitted.patches.windows(2) {
        if pair[0].vaddr + pair[0].new.len() as u64 > pair[1].vaddr {
            return checker.wrong(checker.runtime(pair[1].vaddr), "two patches of one place");
        }
    }
    emitted
        .patches
        .iter()
        .try_for_each(|patch| checker.patch(patch))
}

struct Checker<'a> {
    image: &'a Image,
    placement: &'a Placement,
    emitted: &'a Emitted,
    /// Of all functions, in order of address.
    tables: Vec<&'a JumpTable>,
}

impl Checker<'_> {
    fn wrong<T>(&self, address: u64, what: impl Into<String>) -> Result<T, Error> {
        Err(Error::Wrong {
            address,
            what: what.into(),
        })
    }

    fn new_bytes(&self, address: u64) -> &[u8] {
        usize::try_from(address.wrapping_sub(self.emitted.address))
            .ok()
            .and_then(|offset| self.emitted.bytes.get(offset..))
            .unwrap_or_default()
    }

    fn new_at(&self, address: u64) -> Instruction {
        decode(self.new_bytes(address), address)
    }

    fn old_at(&self, vaddr: u64) -> Instruction {
        decode(self.image.binary.elf.from(vaddr).unwrap_or_default(), vaddr)
    }

    fn runtime(&self, vaddr: u64) -> u64 {
        self.placement.load_bias.wrapping_add(vaddr)
    }

    fn mapping(&self, at: u64) -> Result<InstructionMapping, Error> {
        match self.emitted.map.at(at) {
            Some(mapping) => Ok(*mapping),
            None => self.wrong(at, "no instruction is known to begin here"),
        }
    }

    /// Whether going on at one old address is going on at the other, jumps followed.
    fn same_place(&self, from: u64, to: u64) -> bool {
        let mut at = from;
        for _ in 0..JUMPS_MAX {
            if at == to {
                return true;
            }
            let instruction = self.old_at(at);
            if !instruction.is_jmp_short_or_near() {
                return false;
            }
            at = instruction.near_branch_target();
        }
        false
    }

    /// Whether a new branch to `new` does what an old one to `old` did.
    fn leads(&self, new: u64, old: u64) -> bool {
        if let Some(slot) = self.image.plt_slot(old)
            && self.leads_by_slot(new, slot)
        {
            return true;
        }
        match self.emitted.map.at(new) {
            Some(mapping) => mapping.old.is_some() && self.same_place(old, mapping.origin),
            None => new == self.runtime(old),
        }
    }

    /// Whether a new branch to `new` does what one through a slot did: to what it holds, or to that
    /// one's copy.
    fn leads_by_slot(&self, new: u64, slot: u64) -> bool {
        let Some(&held) = self.placement.got.get(&slot) else {
            return false;
        };
        let own = held.wrapping_sub(self.placement.load_bias);
        held == new
            || self.emitted.map.at(new).is_some_and(|mapping| {
                mapping.old.is_some() && self.same_place(own, mapping.origin)
            })
    }

    fn function(&self, function: &Function, start: u64, end: u64) -> Result<(), Error> {
        let mut at = start;
        // Where the old code is when the new one is at `at`; unknown behind a jump.
        let mut expected: Option<u64> = None;
        while at < end {
            let mapping = self.mapping(at)?;
            let new = self.new_at(at);
            if new.is_invalid() || new.len() != usize::from(mapping.len) {
                return self.wrong(at, "not the instruction that was meant");
            }
            if expected.is_some_and(|expected| !self.same_place(expected, mapping.origin)) {
                return self.wrong(
                    at,
                    format!(
                        "stands for {:#x}, but comes behind {expected:#x?}",
                        mapping.origin
                    ),
                );
            }
            if mapping.copied {
                expected = self.copied(function, &mapping, &new)?;
                at = new.next_ip();
            } else if new.is_jmp_short_or_near() {
                if !self.leads(new.near_branch_target(), mapping.origin) {
                    return self.wrong(at, format!("does not lead to {:#x}", mapping.origin));
                }
                expected = None;
                at = new.next_ip();
            } else {
                at = self.counter(at)?;
                expected = Some(mapping.origin);
            }
        }
        match expected {
            None => Ok(()),
            Some(next) => self.wrong(end, format!("runs off its end instead of to {next:#x}")),
        }
    }

    /// Compares a copy with its origin; returns where the old code is behind it.
    fn copied(
        &self,
        function: &Function,
        mapping: &InstructionMapping,
        new: &Instruction,
    ) -> Result<Option<u64>, Error> {
        let old = self.old_at(mapping.origin);
        let at = mapping.new;
        let differs = |what: &str| self.wrong(at, format!("{what} {:#x}", mapping.origin));
        if old.is_jcc_short_or_near() && new.is_jcc_short_or_near() {
            let (taken, falls) = (old.near_branch_target(), old.next_ip());
            let target = new.near_branch_target();
            let same = old.condition_code() == new.condition_code();
            let mut negated = old;
            negated.negate_condition_code();
            if same && self.leads(target, taken) {
                return Ok(Some(falls));
            }
            if negated.condition_code() == new.condition_code() && self.leads(target, falls) {
                return Ok(Some(taken));
            }
            return differs("a conditional jump unlike");
        }
        let old_is_jump = old.is_jmp_short_or_near() || old.is_jmp_near_indirect();
        let new_is_jump = new.is_jmp_short_or_near() || new.is_jmp_near_indirect();
        let old_is_call = old.is_call_near() || old.is_call_near_indirect();
        let new_is_call = new.is_call_near() || new.is_call_near_indirect();
        let behind = if old_is_call {
            Some(old.next_ip())
        } else {
            None
        };
        let old_direct = old.op_count() > 0 && old.op_kind(0) == OpKind::NearBranch64;
        let new_direct = new.op_count() > 0 && new.op_kind(0) == OpKind::NearBranch64;
        if old_direct || new_direct {
            if old_is_jump != new_is_jump
                || old_is_call != new_is_call
                || !(old_is_jump || old_is_call)
            {
                return differs("another kind of branch than");
            }
            let slot = if old_direct {
                self.image.plt_slot(old.near_branch_target())
            } else {
                got_slot(&old)
            };
            let fits = if new_direct && old_direct {
                self.leads(new.near_branch_target(), old.near_branch_target())
            } else if new_direct {
                slot.is_some_and(|slot| self.leads_by_slot(new.near_branch_target(), slot))
            } else {
                slot.is_some() && got_slot(new) == slot.map(|slot| self.runtime(slot))
            };
            return if fits {
                Ok(behind)
            } else {
                differs("a branch elsewhere than")
            };
        }
        self.same_operation(function, &old, new, at)?;
        match old.flow_control() {
            FlowControl::Return | FlowControl::IndirectBranch => Ok(None),
            FlowControl::Next
            | FlowControl::Call
            | FlowControl::IndirectCall
            | FlowControl::Interrupt
            | FlowControl::Exception
            | FlowControl::XbeginXabortXend => Ok(Some(old.next_ip())),
            _ => differs("an instruction that must not be copied:"),
        }
    }

    fn same_operation(
        &self,
        function: &Function,
        old: &Instruction,
        new: &Instruction,
        at: u64,
    ) -> Result<(), Error> {
        let mut like_old = *new;
        let has_memory = (0..old.op_count()).any(|operand| old.op_kind(operand) == OpKind::Memory);
        if has_memory {
            like_old.set_memory_displacement64(old.memory_displacement64());
            like_old.set_memory_displ_size(old.memory_displ_size());
        }
        if like_old != *old {
            return self.wrong(at, format!("another operation than at {:#x}", old.ip()));
        }
        if !has_memory {
            return Ok(());
        }
        let (before, after) = (old.memory_displacement64(), new.memory_displacement64());
        if old.is_ip_rel_memory_operand() {
            return if self.runtime(before) == after {
                Ok(())
            } else {
                self.wrong(at, format!("another address than at {:#x}", old.ip()))
            };
        }
        if before == after {
            return Ok(());
        }
        match function.tables.iter().find(|table| table.load == old.ip()) {
            Some(table) => self.table(table, after.wrapping_sub(before), at),
            None => self.wrong(at, format!("another displacement than at {:#x}", old.ip())),
        }
    }

    /// A table's copy, `shift` bytes from the old.
    fn table(&self, table: &JumpTable, shift: u64, at: u64) -> Result<(), Error> {
        let base = self.runtime(table.address);
        let copy = self.new_bytes(base.wrapping_add(shift));
        let width = usize::from(table.entry_bytes);
        for (index, old) in table.targets.iter().enumerate() {
            let Some(entry) = copy.get(index * width..(index + 1) * width) else {
                return self.wrong(at, "its jump table lies elsewhere");
            };
            let value = little_endian(entry);
            let target = if width == 4 {
                let relative = u32::try_from(value).unwrap_or(0).cast_signed();
                base.wrapping_add_signed(relative.into())
            } else {
                value
            };
            if !self.leads(target, *old) {
                return self.wrong(
                    at,
                    format!("entry {index} of its jump table does not lead to {old:#x}"),
                );
            }
        }
        Ok(())
    }

    /// A counter's instructions; returns the address behind them.
    fn counter(&self, at: u64) -> Result<u64, Error> {
        let first = self.new_at(at);
        if first.mnemonic() == Mnemonic::Inc && self.is_counter(&first) {
            return Ok(first.next_ip());
        }
        let fixed: [&[u8]; 7] = [
            &[0x48, 0x8d, 0x64, 0x24, 0x80],
            &[0x50],
            &[],
            &[0x48, 0x8d, 0x40, 0x01],
            &[],
            &[0x58],
            &[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0],
        ];
        let mut address = at;
        let mut counters = Vec::new();
        for (index, bytes) in fixed.iter().enumerate() {
            let new = self.new_at(address);
            let fits = if bytes.is_empty() {
                let register = usize::from(index != 2);
                counters.push(new.memory_displacement64());
                new.mnemonic() == Mnemonic::Mov
                    && self.is_counter(&new)
                    && new.op_register(u32::from(register == 1)) == Register::RAX
            } else {
                self.new_bytes(address).starts_with(bytes)
            };
            if !fits {
                return self.wrong(address, "neither a copy nor a counter");
            }
            address = new.next_ip();
        }
        if counters[0] != counters[1] {
            return self.wrong(at, "two counters in one");
        }
        Ok(address)
    }

    fn is_counter(&self, instruction: &Instruction) -> bool {
        let Some(area) = self.placement.counters else {
            return false;
        };
        let address = instruction.memory_displacement64();
        instruction.is_ip_rel_memory_operand()
            && address >= area.address
            && (address - area.address).is_multiple_of(8)
    }

    fn patch(&self, patch: &Patch) -> Result<(), Error> {
        let at = self.runtime(patch.vaddr);
        let fits = match patch.kind {
            PatchKind::Entry | PatchKind::CallSite => {
                let new = decode(&patch.new, at);
                let to = new.near_branch_target();
                let old = self.old_at(patch.vaddr);
                let target = match patch.kind {
                    PatchKind::Entry => patch.vaddr,
                    _ => old.near_branch_target(),
                };
                let kind = match patch.kind {
                    PatchKind::Entry => new.is_jmp_short_or_near(),
                    _ => new.mnemonic() == old.mnemonic() && old.len() == 5,
                };
                kind && new.len() == 5
                    && self.emitted.map.at(to).is_some()
                    && self.leads(to, target)
            }
            PatchKind::VtableSlot => {
                let old = little_endian(&patch.old).wrapping_sub(self.placement.load_bias);
                self.leads(little_endian(&patch.new), old)
            }
            PatchKind::JumpTable => self.slot(patch),
        };
        if fits && patch.old.len() == patch.new.len() {
            Ok(())
        } else {
            self.wrong(at, format!("a wrong patch ({:?})", patch.kind))
        }
    }

    /// Whether a patch is of a table's slot, and leads to the copy of what it led to for all who
    /// read that one.
    fn slot(&self, patch: &Patch) -> bool {
        let behind = self
            .tables
            .partition_point(|table| table.address <= patch.vaddr);
        let Some(base) = self.tables[..behind].last().map(|last| last.address) else {
            return false;
        };
        let (width, offset) = (patch.new.len() as u64, patch.vaddr - base);
        if patch.vaddr + width > self.image.next_referred(base) {
            return false;
        }
        let target = |stored: &[u8]| match u32::try_from(little_endian(stored)) {
            Ok(relative) if width == 4 => self
                .runtime(base)
                .wrapping_add_signed(relative.cast_signed().into()),
            _ => little_endian(stored),
        };
        let (old, new) = (target(&patch.old), target(&patch.new));
        let read: Vec<(u8, u64)> = self.tables[..behind]
            .iter()
            .rev()
            .take_while(|table| table.address == base)
            .filter_map(|table| {
                let index = offset / u64::from(table.entry_bytes);
                let target = table.targets.get(usize::try_from(index).ok()?)?;
                Some((table.entry_bytes, *target))
            })
            .collect();
        !read.is_empty()
            && read.into_iter().all(|(entry_bytes, target)| {
                u64::from(entry_bytes) == width
                    && offset.is_multiple_of(width)
                    && self.runtime(target) == old
                    && self.leads(new, target)
            })
    }
}

fn decode(bytes: &[u8], ip: u64) -> Instruction {
    let bytes = &bytes[..bytes.len().min(15)];
    Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode()
}
