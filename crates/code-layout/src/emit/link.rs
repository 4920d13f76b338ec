//! Gives items their addresses, writes the bytes, and makes the map, the tables and the unwind
//! information.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use crate::analysis::image::Image;
use crate::elf::lsda::Lsda;
use crate::elf::unwind::{Cfa, Row, STACK_POINTER, Unwind};
use crate::emit::assemble::{Assembled, EmittedInstruction, Field, Target};
use crate::emit::emitted::{Emitted, Placement};
use crate::emit::frames::{self, NewFrame};
use crate::emit::lookup::{self, Lookup};
use crate::emit::map::{AddressMap, InstructionMapping};
use crate::emit::patches::{self, Links};
use crate::error::{Error, Skip, Skipped};
use crate::plan::{LayoutPlan, PlannedFunction};

/// Functions begin at multiples of this, as compilers align them.
const FUNCTION_ALIGN_BYTES: usize = 16;

/// A function with its place.
struct Placed<'a> {
    planned: &'a PlannedFunction,
    assembled: Assembled,
    /// Offset of each item in the code, and of its end.
    offsets: Vec<usize>,
    /// New tables: offset in the emitted bytes by index.
    tables: HashMap<usize, usize>,
    unwind: Unwind,
    lsda: Option<Lsda>,
}

pub(crate) struct Linker<'a> {
    image: &'a Image,
    plan: &'a LayoutPlan,
    placement: &'a Placement,
    functions: Vec<Placed<'a>>,
    /// Emitted code that is entered from elsewhere: old address to offset.
    entries: HashMap<u64, usize>,
    bytes: Vec<u8>,
    /// Old addresses that new code goes on at.
    exits: BTreeSet<u64>,
    skipped: Skipped,
}

impl<'a> Linker<'a> {
    pub(crate) fn new(image: &'a Image, plan: &'a LayoutPlan, placement: &'a Placement) -> Self {
        Self {
            image,
            plan,
            placement,
            functions: Vec::new(),
            entries: HashMap::new(),
            bytes: Vec::new(),
            exits: BTreeSet::new(),
            skipped: plan.skipped.clone(),
        }
    }

    /// Gives a function its place behind the ones before.
    pub(crate) fn place(
        &mut self,
        planned: &'a PlannedFunction,
        mut assembled: Assembled,
    ) -> Result<(), Error> {
        let id = planned.function.id;
        let (Ok(unwind), Ok(lsda)) = (self.image.unwind(id), self.image.lsda(self.image.range(id)))
        else {
            // `analyse` has read both.
            *self.skipped.entry(Skip::UnwindInfo).or_default() += 1;
            return Ok(());
        };
        let start = self.bytes.len().next_multiple_of(FUNCTION_ALIGN_BYTES);
        let offsets = relax(&mut assembled, start);
        let end = offsets.last().copied().unwrap_or(start);
        // Nothing runs between functions; a trap says so.
        self.bytes.resize(end, 0xcc);
        self.check_room()?;
        for &(old, piece) in &assembled.entries {
            self.entries.insert(old, offsets[assembled.starts[piece]]);
        }
        self.functions.push(Placed {
            planned,
            assembled,
            offsets,
            tables: HashMap::new(),
            unwind,
            lsda,
        });
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<Emitted, Error> {
        let code = 0..self.bytes.len();
        self.reserve_tables();
        self.check_room()?;
        let mut functions = std::mem::take(&mut self.functions);
        let mut map = AddressMap::default();
        let mut tables = Vec::new();
        for (index, placed) in functions.iter_mut().enumerate() {
            self.write_code(placed)?;
            self.write_tables(index, placed, &mut tables)?;
            self.add_to_map(placed, &mut map);
        }
        map.by_old.sort_unstable();
        map.by_old.dedup_by_key(|&mut (old, _)| old);
        let (eh_frame, lookup) = self.write_unwind(&functions)?;
        self.check_room()?;
        let address = |offset: usize| self.placement.cache_address + offset as u64;
        let ranges = functions
            .iter()
            .filter_map(|placed| {
                let range = address(*placed.offsets.first()?)..address(*placed.offsets.last()?);
                Some((placed.planned.function.start, range))
            })
            .collect();
        let links = Links {
            image: self.image,
            plan: self.plan,
            placement: self.placement,
            entries: self
                .entries
                .iter()
                .map(|(&old, &at)| (old, address(at)))
                .collect(),
            exits: self.exits,
            tables,
        };
        let patches = patches::make(&links, &mut self.skipped);
        Ok(Emitted {
            address: self.placement.cache_address,
            bytes: self.bytes,
            code,
            eh_frame,
            lookup,
            functions: ranges,
            patches,
            map,
            skipped: self.skipped,
        })
    }

    fn check_room(&self) -> Result<(), Error> {
        let needed = self.bytes.len() as u64;
        let room = self.placement.cache_bytes;
        if needed > room {
            return Err(Error::TooLarge { needed, room });
        }
        Ok(())
    }

    fn align(&mut self, bytes: usize) {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(bytes), 0);
    }

    fn reserve_tables(&mut self) {
        let mut functions = std::mem::take(&mut self.functions);
        for placed in &mut functions {
            for (table, targets) in &placed.assembled.tables {
                self.align(8);
                placed.tables.insert(*table, self.bytes.len());
                let entry = usize::from(placed.planned.function.tables[*table].entry_bytes);
                self.bytes
                    .resize(self.bytes.len() + targets.len() * entry, 0);
            }
        }
        self.functions = functions;
    }

    fn runtime(&self, offset: usize) -> u64 {
        self.placement.cache_address + offset as u64
    }

    fn old(&self, vaddr: u64) -> u64 {
        self.placement.load_bias.wrapping_add(vaddr)
    }

    /// The runtime address of what an item refers to.
    fn resolve(&mut self, placed: &Placed<'_>, target: Target) -> u64 {
        match target {
            Target::Piece(piece) => self.runtime(placed.offsets[placed.assembled.starts[piece]]),
            Target::Code(vaddr) => match self.entries.get(&vaddr) {
                Some(&offset) => self.runtime(offset),
                None => {
                    self.exits.insert(vaddr);
                    self.old(vaddr)
                }
            },
            Target::Old(vaddr) => self.old(vaddr),
            Target::Runtime(address) => address,
            Target::Counter(counter) => {
                let base = self.placement.counters.map_or(0, |area| area.address);
                base + 8 * counter as u64
            }
            Target::Table(table) => placed
                .tables
                .get(&table)
                .map_or(0, |&offset| self.runtime(offset)),
        }
    }

    fn write_code(&mut self, placed: &Placed<'_>) -> Result<(), Error> {
        for (index, item) in placed.assembled.items.iter().enumerate() {
            let (at, end) = (placed.offsets[index], placed.offsets[index + 1]);
            let Some((field, target)) = item.reference else {
                self.bytes[at..end].copy_from_slice(&item.bytes[..end - at]);
                continue;
            };
            let to = self.resolve(placed, target);
            let out_of_reach = Error::OutOfReach {
                cache: self.placement.cache_address,
                target: to,
            };
            let distance = to.wrapping_sub(self.runtime(end)).cast_signed();
            let near = i32::try_from(distance);
            match field {
                Field::Jump(condition) => {
                    let bytes = jump_bytes(condition, distance, end - at).ok_or(out_of_reach)?;
                    self.bytes[at..end].copy_from_slice(&bytes);
                }
                Field::Relative(field) => {
                    self.bytes[at..end].copy_from_slice(&item.bytes[..end - at]);
                    let displacement = near.map_err(|_| out_of_reach)?;
                    self.bytes[at + field..at + field + 4]
                        .copy_from_slice(&displacement.to_le_bytes());
                }
                Field::TableShift(field) => {
                    self.bytes[at..end].copy_from_slice(&item.bytes[..end - at]);
                    let Target::Table(table) = target else {
                        continue;
                    };
                    let old = self.old(placed.planned.function.tables[table].address);
                    let place = at + field..at + field + 4;
                    let before = crate::elf::little_endian(&self.bytes[place.clone()]);
                    // Sign-extended, as the instruction does.
                    let before = i64::from(u32::try_from(before).unwrap_or(0).cast_signed());
                    let shift = to.wrapping_sub(old).cast_signed();
                    let displacement = before
                        .checked_add(shift)
                        .and_then(|sum| i32::try_from(sum).ok())
                        .ok_or(out_of_reach)?;
                    self.bytes[place].copy_from_slice(&displacement.to_le_bytes());
                }
            }
        }
        Ok(())
    }

    /// New tables. Relative entries count from the old table, whose address stays in the register.
    fn write_tables(
        &mut self,
        index: usize,
        placed: &Placed<'_>,
        out: &mut Vec<(usize, usize, Vec<u64>)>,
    ) -> Result<(), Error> {
        for (table, targets) in &placed.assembled.tables {
            let Some(&start) = placed.tables.get(table) else {
                continue;
            };
            let old = &placed.planned.function.tables[*table];
            let base = self.old(old.address);
            let mut addresses = Vec::new();
            for (entry, target) in targets.iter().enumerate() {
                let to = self.resolve(placed, *target);
                addresses.push(to);
                if old.entry_bytes == 4 {
                    let distance = to.wrapping_sub(base).cast_signed();
                    let distance = i32::try_from(distance).map_err(|_| Error::OutOfReach {
                        cache: self.placement.cache_address,
                        target: base,
                    })?;
                    let at = start + 4 * entry;
                    self.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
                } else {
                    let at = start + 8 * entry;
                    self.bytes[at..at + 8].copy_from_slice(&to.to_le_bytes());
                }
            }
            out.push((index, *table, addresses));
        }
        Ok(())
    }

    fn add_to_map(&self, placed: &Placed<'_>, map: &mut AddressMap) {
        for (index, item) in placed.assembled.items.iter().enumerate() {
            let (at, end) = (placed.offsets[index], placed.offsets[index + 1]);
            let new = self.runtime(at);
            map.by_new.push(InstructionMapping {
                new,
                len: u8::try_from(end - at).unwrap_or(u8::MAX),
                old: item.same_state.then_some(item.origin),
                copied: item.copied,
                origin: item.origin,
            });
            if item.copied {
                map.by_old.push((item.origin, new));
            }
        }
    }

    /// Exception tables, `.eh_frame`, whose place is the first result, and the function that finds
    /// its entries.
    fn write_unwind(&mut self, functions: &[Placed<'_>]) -> Result<(Range<usize>, Lookup), Error> {
        let leaf = Unwind::default();
        let mut frames = Vec::new();
        for placed in functions {
            let (Some(&start), Some(&end)) = (placed.offsets.first(), placed.offsets.last()) else {
                continue;
            };
            let lsda = placed.lsda.as_ref().map(|lsda| {
                self.align(4);
                let at = self.runtime(self.bytes.len());
                let sites = call_sites(placed, lsda, start);
                self.bytes
                    .extend(lsda.emit(self.placement.load_bias, &sites));
                at
            });
            frames.push(NewFrame {
                address: self.runtime(start),
                len: u32::try_from(end - start).unwrap_or(u32::MAX),
                unwind: &placed.unwind,
                lsda,
                rows: rows(placed, start),
            });
        }
        // The function is code of ours as well: a signal may arrive in it, and its handler walk the
        // stack.
        let place = lookup::reserve(&mut self.bytes, frames.len() + 1);
        let code = place.code();
        frames.push(NewFrame {
            address: self.runtime(code.start),
            len: u32::try_from(code.len()).unwrap_or(u32::MAX),
            unwind: &leaf,
            lsda: None,
            rows: Vec::new(),
        });
        self.align(8);
        let start = self.bytes.len();
        let wrong = |what: &str| Error::Wrong {
            address: self.placement.cache_address + start as u64,
            what: what.into(),
        };
        let section = frames::write(&frames, self.placement.load_bias)
            .ok_or_else(|| wrong("unwind information that cannot be written"))?;
        self.bytes.extend(section);
        let eh_frame = start..self.bytes.len();
        let address = self.placement.cache_address;
        let lookup = place
            .fill(&mut self.bytes, address, eh_frame.clone())
            .ok_or_else(|| wrong("unwind information that cannot be found"))?;
        Ok((eh_frame, lookup))
    }
}

/// Each item's offset, the last item's end behind them: jumps are short where that reaches.
fn relax(assembled: &mut Assembled, start: usize) -> Vec<usize> {
    let items = &mut assembled.items;
    for item in items.iter_mut() {
        if let Some((Field::Jump(condition), target)) = item.reference {
            let short = matches!(target, Target::Piece(_));
            item.len = jump_len(condition, short);
        }
    }
    loop {
        let mut offsets = Vec::with_capacity(items.len() + 1);
        let mut at = start;
        for item in items.iter() {
            offsets.push(at);
            at += usize::from(item.len);
        }
        offsets.push(at);
        let mut grown = false;
        for (index, item) in items.iter_mut().enumerate() {
            if let Some((Field::Jump(condition), Target::Piece(piece))) = item.reference
                && item.len == 2
            {
                let to = offsets[assembled.starts[piece]];
                let distance = to.cast_signed() - offsets[index + 1].cast_signed();
                if i8::try_from(distance).is_err() {
                    item.len = jump_len(condition, false);
                    grown = true;
                }
            }
        }
        // Jumps only grow, so this ends.
        if !grown {
            return offsets;
        }
    }
}

fn jump_len(condition: Option<u8>, short: bool) -> u8 {
    match (condition, short) {
        (_, true) => 2,
        (None, false) => 5,
        (Some(_), false) => 6,
    }
}

fn jump_bytes(condition: Option<u8>, distance: i64, len: usize) -> Option<Vec<u8>> {
    if len == 2 {
        let near = i8::try_from(distance).ok()?;
        let opcode = condition.map_or(0xeb, |condition| 0x70 | condition);
        return Some(vec![opcode, near.cast_unsigned()]);
    }
    let near = i32::try_from(distance).ok()?;
    let mut bytes = match condition {
        None => vec![0xe9],
        Some(condition) => vec![0x0f, 0x80 | condition],
    };
    bytes.extend_from_slice(&near.to_le_bytes());
    Some(bytes)
}

/// Runs of instructions that the same record of the old table covered.
fn call_sites(placed: &Placed<'_>, lsda: &Lsda, start: usize) -> Vec<(u32, u32, u64, u64)> {
    let mut sites: Vec<(u32, u32, u64, u64)> = Vec::new();
    for (index, item) in placed.assembled.items.iter().enumerate() {
        let Some(site) = lsda.site(item.origin) else {
            continue;
        };
        let offset = |at: usize| u32::try_from(at - start).unwrap_or(u32::MAX);
        let (from, to) = (
            offset(placed.offsets[index]),
            offset(placed.offsets[index + 1]),
        );
        match sites.last_mut() {
            Some((begun, len, pad, action))
                if *begun + *len == from && (*pad, *action) == (site.pad, site.action) =>
            {
                *len = to - *begun;
            }
            _ => sites.push((from, to - from, site.pad, site.action)),
        }
    }
    sites
}

fn rows(placed: &Placed<'_>, start: usize) -> Vec<(u32, Row)> {
    let mut rows: Vec<(u32, Row)> = Vec::new();
    for (index, item) in placed.assembled.items.iter().enumerate() {
        let Some(row) = item_row(placed, item) else {
            continue;
        };
        if rows.last().is_none_or(|(_, last)| *last != row) {
            let offset = u32::try_from(placed.offsets[index] - start).unwrap_or(u32::MAX);
            rows.push((offset, row));
        }
    }
    rows
}

fn item_row(placed: &Placed<'_>, item: &EmittedInstruction) -> Option<Row> {
    let mut row = placed.unwind.row(item.origin)?.clone();
    // What a counter pushes lies between the stack pointer and the frame.
    if let Cfa::Register(STACK_POINTER, offset) = &mut row.cfa {
        *offset += i64::from(item.pushed_bytes);
    }
    Some(row)
}
