//! `.eh_frame`: where functions are, and how a frame is unwound at each of their instructions.

use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, Pointer,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
};

use crate::elf::Elf;
use crate::error::{Error, Skip};

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Fde<'a> = gimli::FrameDescriptionEntry<Slice<'a>>;

/// The return address's column in x86-64 unwind information (psABI, DWARF register numbers).
pub(crate) const RETURN_ADDRESS: u16 = 16;
/// The stack pointer's.
pub(crate) const STACK_POINTER: u16 = 7;

/// What one frame description entry of `.eh_frame` covers: a function, or its cold part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionRange {
    /// First byte (vaddr).
    pub start: u64,
    /// Behind the last byte (vaddr).
    pub end: u64,
    /// Its exception table (language-specific data area), if it has one (vaddr).
    pub lsda: Option<u64>,
}

/// Where `.eh_frame` lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Section {
    vaddr: u64,
    len: u64,
}

/// A function as its frame description entry has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) range: FunctionRange,
    /// Offset of the entry in the section.
    offset: usize,
    pub(crate) skip: Option<Skip>,
}

/// How the canonical frame address is computed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Cfa {
    Register(u16, i64),
    Expression(Vec<u8>),
}

/// Where a register's value of the calling frame is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    SameValue,
    Offset(i64),
    ValOffset(i64),
    Register(u16),
    Expression(Vec<u8>),
    ValExpression(Vec<u8>),
}

/// How to unwind at some instructions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) cfa: Cfa,
    pub(crate) rules: Vec<(u16, Rule)>,
    pub(crate) args_size: u64,
}

/// A function's unwind information.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unwind {
    /// Personality routine: (behind a pointer, vaddr).
    pub(crate) personality: Option<(bool, u64)>,
    /// (from, to, row) in order, without holes.
    pub(crate) rows: Vec<(u64, u64, Row)>,
}

impl Unwind {
    pub(crate) fn row(&self, vaddr: u64) -> Option<&Row> {
        let after = self.rows.partition_point(|&(from, _, _)| from <= vaddr);
        let (_, to, row) = &self.rows[after.checked_sub(1)?];
        (vaddr < *to).then_some(row)
    }
}

impl Section {
    /// Finds it through `PT_GNU_EH_FRAME`, or by its name.
    pub(crate) fn find(elf: &Elf) -> Result<Self, Error> {
        let by_header = elf.eh_frame_hdr.and_then(|(at, len)| {
            let header = EhFrameHdr::new(elf.read(at, len)?, LittleEndian);
            let bases = BaseAddresses::default().set_eh_frame_hdr(at);
            let parsed = header.parse(&bases, 8).ok()?;
            parsed.eh_frame_ptr().direct().ok()
        });
        let by_name = elf.sections.get(".eh_frame").copied();
        let vaddr = by_header
            .or(by_name.map(|(at, _)| at))
            .ok_or(Error::NoEhFrame)?;
        let rest = elf.from(vaddr).ok_or(Error::NoEhFrame)?.len() as u64;
        let len = match by_name {
            Some((at, len)) if at == vaddr => len.min(rest),
            _ => rest,
        };
        Ok(Self { vaddr, len })
    }

    fn data<'a>(&self, elf: &'a Elf) -> EhFrame<Slice<'a>> {
        EhFrame::new(
            elf.read(self.vaddr, self.len).unwrap_or_default(),
            LittleEndian,
        )
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.vaddr)
    }

    /// All functions, in order of their start.
    pub(crate) fn frames(&self, elf: &Elf) -> Result<Vec<Frame>, Error> {
        let data = self.data(elf);
        let bases = self.bases();
        let malformed = |error: gimli::Error| Error::Malformed {
            what: format!(".eh_frame: {error}"),
        };
        let mut cies = HashMap::new();
        let mut frames = Vec::new();
        let mut entries = data.entries(&bases);
        while let Some(entry) = entries.next().map_err(malformed)? {
            let CieOrFde::Fde(partial) = entry else {
                continue;
            };
            let fde = partial
                .parse(|section, bases, offset| {
                    if let Some(cie) = cies.get(&offset.0) {
                        return Ok(Clone::clone(cie));
                    }
                    let cie = section.cie_from_offset(bases, offset)?;
                    cies.insert(offset.0, cie.clone());
                    Ok(cie)
                })
                .map_err(malformed)?;
            let (start, len) = (fde.initial_address(), fde.len());
            let in_file = len > 0
                && elf.is_executable(start)
                && elf
                    .from(start)
                    .is_some_and(|bytes| bytes.len() as u64 >= len);
            if !in_file {
                continue;
            }
            let lsda = fde.lsda();
            let strange = fde.cie().return_address_register().0 != RETURN_ADDRESS
                || matches!(lsda, Some(Pointer::Indirect(_)));
            frames.push(Frame {
                range: FunctionRange {
                    start,
                    end: start + len,
                    lsda: lsda.map(Pointer::pointer).filter(|at| *at != 0),
                },
                offset: fde.offset(),
                skip: if fde.is_signal_trampoline() {
                    Some(Skip::SignalFrame)
                } else {
                    strange.then_some(Skip::UnwindInfo)
                },
            });
        }
        frames.sort_by_key(|frame| (frame.range.start, frame.range.end));
        mark_overlaps(&mut frames);
        frames.dedup_by_key(|frame| frame.range.start);
        Ok(frames)
    }

    /// How one function is unwound.
    pub(crate) fn unwind(&self, elf: &Elf, frame: &Frame) -> Result<Unwind, Skip> {
        let data = self.data(elf);
        let bases = self.bases();
        let fde = data
            .fde_from_offset(&bases, frame.offset.into(), EhFrame::cie_from_offset)
            .map_err(|_| Skip::UnwindInfo)?;
        let personality = match fde.personality() {
            None => None,
            Some(Pointer::Direct(at)) => Some((false, at)),
            Some(Pointer::Indirect(at)) => Some((true, at)),
        };
        Ok(Unwind {
            personality,
            rows: rows(&data, &bases, &fde)?,
        })
    }
}

/// Functions that share bytes are not moved: whose the bytes are is not known.
fn mark_overlaps(frames: &mut [Frame]) {
    let mut furthest = 0;
    let mut holder = 0;
    for index in 0..frames.len() {
        if frames[index].range.start < furthest {
            frames[index].skip = Some(Skip::UnwindInfo);
            frames[holder].skip = Some(Skip::UnwindInfo);
        }
        if frames[index].range.end > furthest {
            furthest = frames[index].range.end;
            holder = index;
        }
    }
}

fn rows<'a>(
    data: &EhFrame<Slice<'a>>,
    bases: &BaseAddresses,
    fde: &Fde<'a>,
) -> Result<Vec<(u64, u64, Row)>, Skip> {
    let bytes = |expression: &UnwindExpression<usize>| {
        let expression = expression.get(data).map_err(|_| Skip::UnwindInfo)?;
        let mut operations = expression.operations(fde.cie().encoding());
        while let Some(operation) = operations.next().map_err(|_| Skip::UnwindInfo)? {
            // An address would need the load bias; no compiler writes one here.
            if matches!(operation, gimli::Operation::Address { .. }) {
                return Err(Skip::UnwindInfo);
            }
        }
        Ok(expression.0.slice().to_vec())
    };
    let mut context = UnwindContext::new();
    let mut table = fde
        .rows(data, bases, &mut context)
        .map_err(|_| Skip::UnwindInfo)?;
    let mut rows = Vec::new();
    while let Some(row) = table.next_row().map_err(|_| Skip::UnwindInfo)? {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(register.0, *offset),
            CfaRule::Expression(expression) => Cfa::Expression(bytes(expression)?),
        };
        let mut rules = Vec::new();
        for (register, rule) in row.registers() {
            let rule = match rule {
                // A register without a rule is taken to be the same; the return address never is.
                RegisterRule::Undefined if register.0 != RETURN_ADDRESS => continue,
                RegisterRule::SameValue => Rule::SameValue,
                RegisterRule::Offset(offset) => Rule::Offset(*offset),
                RegisterRule::ValOffset(offset) => Rule::ValOffset(*offset),
                RegisterRule::Register(other) => Rule::Register(other.0),
                RegisterRule::Expression(expression) => Rule::Expression(bytes(expression)?),
                RegisterRule::ValExpression(expression) => Rule::ValExpression(bytes(expression)?),
                _ => return Err(Skip::UnwindInfo),
            };
            rules.push((register.0, rule));
        }
        rules.sort_by_key(|&(register, _)| register);
        // The outermost frame (`_start`, a thread's first function) has no return address.
        if !rules
            .iter()
            .any(|&(register, _)| register == RETURN_ADDRESS)
        {
            return Err(Skip::UnwindInfo);
        }
        if row.start_address() < row.end_address() {
            rows.push((
                row.start_address(),
                row.end_address(),
                Row {
                    cfa,
                    rules,
                    args_size: row.saved_args_size(),
                },
            ));
        }
    }
    Ok(rows)
}
