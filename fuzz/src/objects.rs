//! Objects that are compiled from the tests' programs, to be damaged.

use std::sync::LazyLock;

use code_layout::LayoutOrder;

use crate::seeds::repository;

#[path = "../../crates/code-layout/tests/foreign/mod.rs"]
mod foreign;

pub(crate) use foreign::section;

/// Programs, with the compiler's flags: each has something that the others have not.
const PROGRAMS: &[(&str, &str)] = &[
    ("exceptions.cc", "-Os"),
    ("exceptions.cc", "-O0"),
    ("mixed.c", "-O2"),
    ("odd.s", "-Wl,-z,relro"),
    ("parts.s", "-Wl,-z,pack-relative-relocs"),
    ("taken.c", "-O1"),
];

/// What makes an object small: no symbols, no padding between segments, no start files.
const SMALL: [&str; 5] = [
    "-s",
    "-nostartfiles",
    "-std=c++17",
    "-Wl,-z,noseparate-code",
    "-Wl,-z,max-page-size=4096",
];

/// The compiled programs.
pub(crate) static OBJECTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = repository().join("crates/code-layout/tests/programs");
    let compile = |(name, flag): &(&str, &'static str)| {
        let flags = [&[*flag][..], &SMALL].concat();
        foreign::object(&folder.join(name), &flags)
    };
    PROGRAMS.iter().map(compile).collect()
});

/// Lays a file out in an order, or with counters, as its bytes say. Says whether code was emitted.
pub(crate) fn lay_out(bytes: Vec<u8>) -> bool {
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    foreign::exercise(bytes, LayoutOrder::Random(sum), sum.is_multiple_of(4))
}

/// Lays out an object in which the input has replaced a section, as far as there is room. The
/// input's first byte says in which object.
pub(crate) fn lay_out_with(section_name: &str, data: &[u8]) -> bool {
    let Some((which, content)) = data.split_first() else {
        return false;
    };
    let mut bytes = OBJECTS[usize::from(*which) % OBJECTS.len()].clone();
    let Some((start, len)) = section(&bytes, section_name) else {
        return false;
    };
    let content = &content[..content.len().min(len)];
    let (replaced, rest) = bytes[start..start + len].split_at_mut(content.len());
    replaced.copy_from_slice(content);
    rest.fill(0);
    lay_out(bytes)
}

/// The sections of that name, behind the number of the object.
pub(crate) fn sections(name: &str) -> Vec<Vec<u8>> {
    let objects = (0..).zip(OBJECTS.iter());
    let seed = |(which, bytes): (u8, &Vec<u8>)| {
        let (start, len) = section(bytes, name)?;
        Some([&[which][..], &bytes[start..start + len]].concat())
    };
    objects.filter_map(seed).collect()
}
