//! Exception tables (language-specific data areas) as GCC, Clang and rustc write them: read, and
//! written again for moved code whose landing pads stay where they are.
//!
//! Format: the Itanium C++ ABI's exception handling tables, as
//! `libstdc++-v3/libsupc++/eh_personality.cc` and LLVM's "Exception Handling Tables" read them.

use crate::elf::{Elf, little_endian};

const OMIT: u8 = 0xff;
const ABSPTR: u8 = 0x00;
const UDATA4: u8 = 0x03;
const INDIRECT: u8 = 0x80;
const PCREL: u8 = 0x10;

/// More actions or types than any real function has; bounds the work on a malformed table.
const RECORDS_MAX: usize = 1 << 16;

/// What happens when a call in a range throws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// First byte of the range (vaddr).
    pub(crate) start: u64,
    /// Behind its last byte (vaddr).
    pub(crate) end: u64,
    /// Offset of the landing pad from [`Lsda::pads_from`]; 0: none.
    pub(crate) pad: u64,
    /// Offset of its action record plus 1; 0: cleanup only.
    pub(crate) action: u64,
}

/// One function's exception table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lsda {
    /// What landing pads count from (vaddr; 0 where they are given as such).
    pub(crate) pads_from: u64,
    pub(crate) call_sites: Vec<CallSite>,
    /// The action records' bytes.
    actions: Vec<u8>,
    /// Types caught: (behind a pointer, vaddr), 0 for "anything"; the first has filter 1.
    types: Option<Vec<(bool, u64)>>,
    /// Exception specifications' bytes, which follow the types.
    specifications: Vec<u8>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    vaddr: u64,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn sleb(&mut self) -> Option<i64> {
        let mut value = 0i64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= i64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = 64 - (shift + 7).min(64);
                return Some(value << unused >> unused);
            }
        }
        None
    }

    fn fixed(&mut self, len: usize) -> Option<u64> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(little_endian(bytes))
    }

    /// A value in one of the encodings of `.eh_frame`, without what it is relative to.
    fn value(&mut self, encoding: u8) -> Option<u64> {
        let signed = |value: u64, bits: u32| (value << (64 - bits)).cast_signed() >> (64 - bits);
        Some(match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.fixed(8)?,
            0x01 => self.uleb()?,
            0x02 => self.fixed(2)?,
            0x03 => self.fixed(4)?,
            0x09 => self.sleb()?.cast_unsigned(),
            0x0a => signed(self.fixed(2)?, 16).cast_unsigned(),
            0x0b => signed(self.fixed(4)?, 32).cast_unsigned(),
            _ => return None,
        })
    }
}

/// Bytes of a type table's entry.
fn type_bytes(encoding: u8) -> Option<usize> {
    Some(match encoding & 0x0f {
        0x00 | 0x04 | 0x0c => 8,
        0x02 | 0x0a => 2,
        0x03 | 0x0b => 4,
        _ => return None,
    })
}

impl Lsda {
    /// Reads the table at `vaddr` of the function that starts at `function`; `None` if it is not
    /// understood.
    pub(crate) fn parse(elf: &Elf, vaddr: u64, function: u64) -> Option<Self> {
        let mut reader = Reader {
            bytes: elf.from(vaddr)?,
            at: 0,
            vaddr,
        };
        let pads_from = match reader.byte()? {
            OMIT => function,
            encoding => {
                let at = reader.vaddr + reader.at as u64;
                let value = reader.value(encoding)?;
                match encoding & (0x70 | INDIRECT) {
                    // An absolute address is only right as it stands without a load bias.
                    ABSPTR if !elf.position_independent => value,
                    PCREL => at.wrapping_add(value),
                    _ => return None,
                }
            }
        };
        let type_encoding = reader.byte()?;
        let types_end = if type_encoding == OMIT {
            None
        } else {
            let offset = reader.uleb()?;
            Some(reader.at.checked_add(usize::try_from(offset).ok()?)?)
        };
        let site_encoding = reader.byte()?;
        let sites_bytes = usize::try_from(reader.uleb()?).ok()?;
        let sites_end = reader.at.checked_add(sites_bytes)?;
        let mut call_sites = Vec::new();
        while reader.at < sites_end {
            let start = function.checked_add(reader.value(site_encoding)?)?;
            let end = start.checked_add(reader.value(site_encoding)?)?;
            let pad = reader.value(site_encoding)?;
            let action = reader.uleb()?;
            call_sites.push(CallSite {
                start,
                end,
                pad,
                action,
            });
        }
        if reader.at != sites_end || call_sites.len() > RECORDS_MAX {
            return None;
        }
        let (actions_end, types, spec_bytes) =
            Self::follow(&mut reader, sites_end, &call_sites, types_end)?;
        let actions = reader.bytes.get(sites_end..actions_end)?.to_vec();
        let (types, specifications) = match types_end {
            None => (None, Vec::new()),
            Some(end) => {
                let types = Self::read_types(elf, &mut reader, end, types, type_encoding)?;
                (
                    Some(types),
                    reader
                        .bytes
                        .get(end..end.checked_add(spec_bytes)?)?
                        .to_vec(),
                )
            }
        };
        Some(Self {
            pads_from,
            call_sites,
            actions,
            types,
            specifications,
        })
    }

    /// Walks the action records: where they end, how many types they name, how long the
    /// specifications are.
    fn follow(
        reader: &mut Reader<'_>,
        actions: usize,
        call_sites: &[CallSite],
        types_end: Option<usize>,
    ) -> Option<(usize, usize, usize)> {
        let (mut actions_end, mut types, mut spec_bytes) = (actions, 0usize, 0usize);
        let mut seen = std::collections::BTreeSet::new();
        for site in call_sites.iter().filter(|site| site.action != 0) {
            let mut at = actions.checked_add(usize::try_from(site.action - 1).ok()?)?;
            while seen.insert(at) {
                if seen.len() > RECORDS_MAX {
                    return None;
                }
                reader.at = at;
                let filter = reader.sleb()?;
                let link_at = reader.at;
                let link = reader.sleb()?;
                actions_end = actions_end.max(reader.at);
                if filter > 0 {
                    types = types.max(usize::try_from(filter).ok()?);
                } else if filter < 0 {
                    // A list of types, as their filters, ended by 0.
                    let list = usize::try_from(filter.unsigned_abs() - 1).ok()?;
                    reader.at = types_end?.checked_add(list)?;
                    loop {
                        match reader.uleb()? {
                            0 => break,
                            filter => types = types.max(usize::try_from(filter).ok()?),
                        }
                    }
                    spec_bytes = spec_bytes.max(reader.at - types_end?);
                }
                if link == 0 {
                    break;
                }
                at = link_at.checked_add_signed(isize::try_from(link).ok()?)?;
                if at < actions {
                    return None;
                }
            }
        }
        (types <= RECORDS_MAX).then_some((actions_end, types, spec_bytes))
    }

    fn read_types(
        elf: &Elf,
        reader: &mut Reader<'_>,
        end: usize,
        count: usize,
        encoding: u8,
    ) -> Option<Vec<(bool, u64)>> {
        if count == 0 {
            return Some(Vec::new());
        }
        let size = type_bytes(encoding)?;
        let mut types = Vec::new();
        for index in 1..=count {
            reader.at = end.checked_sub(size.checked_mul(index)?)?;
            let at = reader.vaddr + reader.at as u64;
            let value = reader.value(encoding)?;
            let vaddr = match encoding & 0x70 {
                _ if value == 0 => 0,
                PCREL => at.wrapping_add(value),
                0x00 if !elf.position_independent => value,
                _ => return None,
            };
            types.push((encoding & INDIRECT != 0, vaddr));
        }
        // One encoding holds for all of them.
        let indirect = encoding & INDIRECT != 0;
        types
            .iter()
            .all(|&(each, _)| each == indirect)
            .then_some(types)
    }

    /// Landing pads (vaddr).
    pub(crate) fn pads(&self) -> impl Iterator<Item = u64> {
        self.call_sites
            .iter()
            .filter(|site| site.pad != 0)
            .map(|site| self.pads_from.wrapping_add(site.pad))
    }

    /// The call site whose range holds an instruction.
    pub(crate) fn site(&self, vaddr: u64) -> Option<&CallSite> {
        self.call_sites
            .iter()
            .find(|site| site.start <= vaddr && vaddr < site.end)
    }

    /// Writes it again for code whose call sites are `(start, length, pad, action)`, starts counted
    /// from the code's own, in order. Landing pads stay where they are.
    pub(crate) fn emit(&self, load_bias: u64, sites: &[(u32, u32, u64, u64)]) -> Vec<u8> {
        let mut table = Vec::new();
        for &(start, len, pad, action) in sites {
            table.extend_from_slice(&start.to_le_bytes());
            table.extend_from_slice(&len.to_le_bytes());
            // A landing pad lies in the same file as what it counts from, so 32 bits hold it,
            // unless it is given as an address (`pads_from` 0): then it was so small in the file
            // already.
            #[expect(clippy::cast_possible_truncation, reason = "checked by `is_emittable`")]
            table.extend_from_slice(&(pad as u32).to_le_bytes());
            uleb(&mut table, action);
        }
        // The landing pads' base as an absolute address.
        let mut out = vec![ABSPTR];
        out.extend_from_slice(&load_bias.wrapping_add(self.pads_from).to_le_bytes());
        let mut tail = vec![UDATA4];
        uleb(&mut tail, table.len() as u64);
        tail.extend_from_slice(&table);
        tail.extend_from_slice(&self.actions);
        match &self.types {
            None => {
                out.push(OMIT);
                out.extend_from_slice(&tail);
            }
            Some(types) => {
                let indirect = types.first().is_some_and(|&(indirect, _)| indirect);
                out.push(if indirect { INDIRECT | ABSPTR } else { ABSPTR });
                uleb(&mut out, (tail.len() + 8 * types.len()) as u64);
                out.extend_from_slice(&tail);
                for &(_, vaddr) in types.iter().rev() {
                    let address = if vaddr == 0 {
                        0
                    } else {
                        load_bias.wrapping_add(vaddr)
                    };
                    out.extend_from_slice(&address.to_le_bytes());
                }
                out.extend_from_slice(&self.specifications);
            }
        }
        out
    }

    /// Whether [`Self::emit`] can write every landing pad.
    pub(crate) fn is_emittable(&self) -> bool {
        self.call_sites
            .iter()
            .all(|site| u32::try_from(site.pad).is_ok())
    }
}

fn uleb(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}
