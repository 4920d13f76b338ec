//! Which registers hold a known address on every path to an instruction.

use std::collections::BTreeMap;

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

use crate::analysis::instruction::Kind;
use crate::analysis::jump_table::JumpTable;
use crate::analysis::operands::writes;
use crate::analysis::walk::Disassembly;

/// A register's value on all paths seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Nothing,
    Address(u64),
    Anything,
}

impl Held {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, held) | (held, Self::Nothing) => held,
            (one, two) if one == two => one,
            _ => Self::Anything,
        }
    }
}

type Registers = [Held; 16];

/// What is held at each block's start.
pub(crate) struct Constants {
    starts: BTreeMap<u64, Registers>,
}

impl Constants {
    /// Follows all paths; a jump through an unknown table leads nowhere here, so the result only
    /// holds where there is none left.
    pub(crate) fn new(walk: &Disassembly<'_>, tables: &[JumpTable]) -> Self {
        let mut starts: BTreeMap<u64, Registers> = BTreeMap::new();
        let mut work: Vec<u64> = walk
            .leaders()
            .filter(|at| walk.references(*at).root)
            .collect();
        for root in &work {
            starts.insert(*root, [Held::Anything; 16]);
        }
        while let Some(start) = work.pop() {
            let mut held = starts[&start];
            let mut go = |to: u64, held: &Registers| {
                let known = starts.entry(to).or_insert([Held::Nothing; 16]);
                let joined: Registers = std::array::from_fn(|index| known[index].join(held[index]));
                if joined != *known {
                    *known = joined;
                    work.push(to);
                }
            };
            let mut at = start;
            while let Some(instruction) = walk.at(at) {
                step(walk, instruction, &mut held);
                let next = instruction.next_ip();
                match walk.stays(instruction, Kind::of(walk.image, instruction)) {
                    Kind::Next | Kind::Call(_) => {}
                    Kind::Jump(target) => go(target, &held),
                    Kind::Branch(target) => {
                        go(target, &held);
                        go(next, &held);
                    }
                    Kind::Stays(_, target) => {
                        // What the unusual ones leave in registers is not followed.
                        held = [Held::Anything; 16];
                        if let Some(target) = target {
                            go(target, &held);
                        }
                        go(next, &held);
                    }
                    Kind::IndirectJump => {
                        if let Some(table) = tables.iter().find(|table| table.jump == at) {
                            for target in &table.targets {
                                go(*target, &held);
                            }
                        }
                    }
                    Kind::Return | Kind::Trap => {}
                }
                if Kind::of(walk.image, instruction).ends_block()
                    || walk
                        .stays(instruction, Kind::of(walk.image, instruction))
                        .ends_block()
                {
                    break;
                }
                if walk.is_leader(next) {
                    go(next, &held);
                    break;
                }
                at = next;
            }
        }
        Self { starts }
    }

    /// What a register holds before the instruction at `vaddr`.
    pub(crate) fn at(&self, walk: &Disassembly<'_>, vaddr: u64, register: Register) -> Option<u64> {
        let (&start, held) = self.starts.range(..=vaddr).next_back()?;
        let mut held = *held;
        let mut at = start;
        while at < vaddr {
            let instruction = walk.at(at)?;
            step(walk, instruction, &mut held);
            at = instruction.next_ip();
        }
        match held[number(register)?] {
            Held::Address(address) if at == vaddr => Some(address),
            _ => None,
        }
    }

    /// The address that an instruction puts into a register by itself.
    pub(crate) fn loaded(walk: &Disassembly<'_>, instruction: &Instruction) -> Option<u64> {
        match instruction.mnemonic() {
            Mnemonic::Lea if instruction.is_ip_rel_memory_operand() => {
                (instruction.code() == Code::Lea_r64_m).then(|| instruction.ip_rel_memory_address())
            }
            Mnemonic::Mov if !walk.image.binary.elf.position_independent => {
                match instruction.code() {
                    Code::Mov_r32_imm32 | Code::Mov_r64_imm64 | Code::Mov_rm64_imm32
                        if instruction.op_kind(0) == OpKind::Register =>
                    {
                        instruction.try_immediate(1).ok()
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

fn step(walk: &Disassembly<'_>, instruction: &Instruction, held: &mut Registers) {
    let set = Constants::loaded(walk, instruction)
        .map(Held::Address)
        .or_else(|| {
            let copies = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
                && instruction.op_kind(0) == OpKind::Register
                && instruction.op_kind(1) == OpKind::Register;
            copies.then(|| number(instruction.op1_register()).map(|from| held[from]))?
        });
    if instruction.is_call_near() || instruction.is_call_near_indirect() {
        // What the calling convention does not preserve (psABI 3.2.1): rbx, rbp, r12 to r15 stay.
        for number in [0, 1, 2, 6, 7, 8, 9, 10, 11] {
            held[number] = Held::Anything;
        }
        return;
    }
    let mut factory = InstructionInfoFactory::new();
    for used in factory.info(instruction).used_registers() {
        if writes(used.access())
            && let Some(number) = number(used.register())
        {
            held[number] = Held::Anything;
        }
    }
    if let Some(set) = set
        && let Some(number) = number(instruction.op0_register())
    {
        held[number] = set;
    }
}

/// A general register's number, of any width; its order in iced is the machine's.
fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

impl Disassembly<'_> {
    /// Whether an instruction may change a register (any part of it), a call what it need not
    /// preserve.
    pub(crate) fn writes_register(&self, instruction: &Instruction, register: Register) -> bool {
        let register = register.full_register();
        if instruction.is_call_near() || instruction.is_call_near_indirect() {
            return !matches!(
                register,
                Register::RBX
                    | Register::RBP
                    | Register::R12
                    | Register::R13
                    | Register::R14
                    | Register::R15
            );
        }
        InstructionInfoFactory::new()
            .info(instruction)
            .used_registers()
            .iter()
            .any(|used| used.register().full_register() == register && writes(used.access()))
    }
}
