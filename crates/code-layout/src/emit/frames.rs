//! `.eh_frame` for new code: each instruction is unwound as the old one that it stands for.

use gimli::constants::{DW_EH_PE_absptr, DW_EH_PE_indirect};
use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, LittleEndian, Register};

use crate::elf::unwind::{Cfa, RETURN_ADDRESS, Row, Rule, STACK_POINTER, Unwind};

/// One function's new code: where, how it is unwound, and its exception table's runtime address.
pub(crate) struct NewFrame<'a> {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) unwind: &'a Unwind,
    pub(crate) lsda: Option<u64>,
    /// (offset, row) where the row changes, in order.
    pub(crate) rows: Vec<(u32, Row)>,
}

/// The section's bytes, with the terminator; `None` if something cannot be expressed.
pub(crate) fn write(frames: &[NewFrame<'_>], load_bias: u64) -> Option<Vec<u8>> {
    let mut table = FrameTable::default();
    for frame in frames {
        // Offsets are written as multiples of this.
        let factor = if frame.rows.iter().all(|(_, row)| is_aligned(row)) {
            -8
        } else {
            -1
        };
        let encoding = Encoding {
            format: Format::Dwarf32,
            version: 1,
            address_size: 8,
        };
        let mut cie = CommonInformationEntry::new(encoding, 1, factor, Register(RETURN_ADDRESS));
        cie.personality = frame.unwind.personality.map(|(indirect, vaddr)| {
            let encoding = if indirect {
                DW_EH_PE_indirect
            } else {
                DW_EH_PE_absptr
            };
            (encoding, Address::Constant(load_bias.wrapping_add(vaddr)))
        });
        cie.lsda_encoding = frame.lsda.map(|_| DW_EH_PE_absptr);
        let mut before = Row {
            cfa: Cfa::Register(STACK_POINTER, 8),
            rules: vec![(RETURN_ADDRESS, Rule::Offset(-8))],
            args_size: 0,
        };
        for instruction in difference(None, &before)? {
            cie.add_instruction(instruction);
        }
        let cie = table.add_cie(cie);
        let mut fde = FrameDescriptionEntry::new(Address::Constant(frame.address), frame.len);
        fde.lsda = frame.lsda.map(Address::Constant);
        for (offset, row) in &frame.rows {
            for instruction in difference(Some(&before), row)? {
                fde.add_instruction(*offset, instruction);
            }
            before = row.clone();
        }
        table.add_fde(cie, fde);
    }
    let mut section = EhFrame(EndianVec::new(LittleEndian));
    table.write_eh_frame(&mut section).ok()?;
    let mut bytes = section.0.into_vec();
    bytes.extend_from_slice(&[0; 4]);
    Some(bytes)
}

fn is_aligned(row: &Row) -> bool {
    let cfa = !matches!(row.cfa, Cfa::Register(_, offset) if offset < 0 && offset % 8 != 0);
    cfa && row.rules.iter().all(|(_, rule)| match rule {
        Rule::Offset(offset) | Rule::ValOffset(offset) => offset % 8 == 0,
        _ => true,
    })
}

/// The instructions that turn one row into another.
fn difference(before: Option<&Row>, row: &Row) -> Option<Vec<CallFrameInstruction>> {
    let mut instructions = Vec::new();
    if before.is_none_or(|before| before.cfa != row.cfa) {
        instructions.push(match &row.cfa {
            Cfa::Register(register, offset) => {
                CallFrameInstruction::Cfa(Register(*register), i32::try_from(*offset).ok()?)
            }
            Cfa::Expression(bytes) => {
                CallFrameInstruction::CfaExpression(Expression::raw(bytes.clone()))
            }
        });
    }
    let rule_in = |row: &Row, register: u16| {
        row.rules
            .binary_search_by_key(&register, |&(each, _)| each)
            .ok()
            .map(|index| row.rules[index].1.clone())
    };
    for (register, rule) in &row.rules {
        if before
            .and_then(|before| rule_in(before, *register))
            .as_ref()
            == Some(rule)
        {
            continue;
        }
        let register = Register(*register);
        let raw = |bytes: &Vec<u8>| Expression::raw(bytes.clone());
        instructions.push(match rule {
            Rule::SameValue => CallFrameInstruction::SameValue(register),
            Rule::Offset(offset) => {
                CallFrameInstruction::Offset(register, i32::try_from(*offset).ok()?)
            }
            Rule::ValOffset(offset) => {
                CallFrameInstruction::ValOffset(register, i32::try_from(*offset).ok()?)
            }
            Rule::Register(other) => CallFrameInstruction::Register(register, Register(*other)),
            Rule::Expression(bytes) => CallFrameInstruction::Expression(register, raw(bytes)),
            Rule::ValExpression(bytes) => CallFrameInstruction::ValExpression(register, raw(bytes)),
        });
    }
    for (register, _) in before.iter().flat_map(|before| &before.rules) {
        if rule_in(row, *register).is_none() {
            instructions.push(CallFrameInstruction::SameValue(Register(*register)));
        }
    }
    if before.map_or(0, |before| before.args_size) != row.args_size {
        instructions.push(CallFrameInstruction::ArgsSize(
            u32::try_from(row.args_size).ok()?,
        ));
    }
    Some(instructions)
}
