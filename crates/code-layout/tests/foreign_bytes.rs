//! Bytes that nobody meant: never a panic, never a branch to nowhere.
#![allow(
    clippy::expect_used,
    reason = "a test that cannot go on ends there and says why"
)]

mod foreign;

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use code_layout::{
    Error, FunctionId, Image, LayoutOrder, LayoutPlan, Placement, Profile, check, emit,
};
use foreign::{exercise, object, section};
use proptest::prelude::*;

/// A small shared object with tables, exceptions and vtables.
static OBJECT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    object(&programs.join("exceptions.cc"), &["-O2", "-std=c++17"])
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
        seed in any::<u64>(),
        counting in any::<bool>(),
    ) {
        let mut bytes = OBJECT.clone();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(bytes, LayoutOrder::Random(seed), counting);
    }

    /// Damage where it hurts: headers, unwind information, exception tables, code.
    #[test]
    fn damaged_sections(
        section in 0usize..6,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..60),
        seed in any::<u64>(),
    ) {
        let mut bytes = OBJECT.clone();
        let ranges = sections(&bytes);
        let (start, len) = ranges[section % ranges.len()];
        for (at, value) in damage {
            bytes[start + at.index(len)] = value;
        }
        exercise(bytes, LayoutOrder::Random(seed), seed % 2 == 0);
    }

    #[test]
    fn truncated_files(len in any::<prop::sample::Index>()) {
        let len = len.index(OBJECT.len());
        exercise(OBJECT[..len].to_vec(), LayoutOrder::Original, false);
    }

    /// The code is anything at all; unwind information says it is functions.
    #[test]
    fn arbitrary_code(code in prop::collection::vec(any::<u8>(), 64..4000), seed in any::<u64>(), counting in any::<bool>()) {
        let mut bytes = OBJECT.clone();
        let (start, len) = sections(&bytes)[0];
        for (index, byte) in code.into_iter().enumerate().take(len) {
            bytes[start + index] = byte;
        }
        exercise(bytes, LayoutOrder::Random(seed), counting);
    }

    #[test]
    fn arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        exercise(bytes, LayoutOrder::Original, false);
    }
}

/// Where .text, .eh_frame, .eh_frame_hdr, .gcc_except_table, .rela.dyn and the headers lie in the
/// file.
fn sections(bytes: &[u8]) -> Vec<(usize, usize)> {
    let names = [
        ".text",
        ".eh_frame",
        ".eh_frame_hdr",
        ".gcc_except_table",
        ".rela.dyn",
    ];
    let mut found: Vec<_> = names
        .iter()
        .filter_map(|name| section(bytes, name))
        .collect();
    found.push((0, 1000));
    assert_eq!(found.len(), 6);
    found
}

fn error_of(change: impl FnOnce(&mut Vec<u8>)) -> Error {
    let mut bytes = OBJECT.clone();
    change(&mut bytes);
    let quick = code_layout::preflight(bytes.clone());
    let error = Image::parse(bytes).expect_err("declined");
    // A runtime of its own kind with unwind information is found by its code only.
    if !matches!(error, Error::Runtime { .. }) {
        assert_eq!(quick, Err(error.clone()));
    }
    error
}

#[test]
fn each_kind_of_file_is_declined_by_name() {
    assert_eq!(
        Image::parse(b"#!/bin/sh\n".to_vec()).expect_err("a script"),
        Error::NotElf
    );
    assert_eq!(error_of(|bytes| bytes[4] = 1), Error::Not64Bit);
    assert_eq!(
        error_of(|bytes| bytes[18] = 183).to_string(),
        "an ELF file for aarch64 (machine 183): only x86-64 is understood"
    );
    assert_eq!(
        error_of(|bytes| bytes[16] = 1),
        Error::NotLoadable { kind: 1 }
    );
    // No section headers, UPX's mark.
    let packed = error_of(|bytes| {
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        bytes[0x300..0x304].copy_from_slice(b"UPX!");
    });
    assert_eq!(packed, Error::Packed { packer: "UPX" });
    let go = error_of(|bytes| bytes.extend_from_slice(b"\xff Go buildinf:"));
    assert!(matches!(go, Error::Runtime { name: "Go", .. }), "{go}");
    let ocaml = error_of(|bytes| bytes.extend_from_slice(b"OCAMLRUNPARAM\0"));
    assert!(
        ocaml
            .to_string()
            .starts_with("built by OCaml: its garbage collector"),
        "{ocaml}"
    );
    // Cut off before anything but the headers.
    assert!(matches!(
        error_of(|bytes| bytes.truncate(600)),
        Error::Malformed { .. }
    ));
}

#[test]
fn a_static_executable_is_declined() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, output) = (directory.path().join("a.c"), directory.path().join("a"));
    std::fs::write(&source, "int main(void) { return 0; }").expect("written");
    for flags in [["-static", "-no-pie"], ["-static-pie", "-fPIE"]] {
        let status = Command::new("gcc")
            .args(flags)
            .arg("-o")
            .arg(&output)
            .arg(&source)
            .status()
            .expect("gcc runs");
        assert!(status.success());
        let bytes = std::fs::read(&output).expect("the program");
        assert_eq!(
            Image::parse(bytes).expect_err("declined"),
            Error::Static,
            "{flags:?}"
        );
    }
}

#[test]
fn a_file_without_unwind_information_is_declined() {
    let directory = tempfile::tempdir().expect("a directory");
    let (source, output) = (directory.path().join("a.c"), directory.path().join("a.so"));
    std::fs::write(&source, "int f(int x) { return x + 1; }").expect("written");
    let status = Command::new("gcc")
        .args([
            "-shared",
            "-nostdlib",
            "-fPIC",
            "-fno-asynchronous-unwind-tables",
            "-o",
        ])
        .arg(&output)
        .arg(&source)
        .status()
        .expect("gcc runs");
    assert!(status.success());
    let bytes = std::fs::read(&output).expect("the object");
    assert_eq!(Image::parse(bytes).expect_err("declined"), Error::NoEhFrame);
}

#[test]
fn what_does_not_fit_or_reach_is_an_error() {
    let image = Image::parse(OBJECT.clone()).expect("an image");
    let functions: Vec<_> = (0..image.functions().len())
        .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
        .collect();
    let plan = LayoutPlan::new(
        functions.clone(),
        &Profile::default(),
        LayoutOrder::Original,
    );
    let small = Placement {
        cache_address: 1 << 20,
        cache_bytes: 64,
        ..Placement::default()
    };
    assert!(matches!(
        emit(&image, &plan, &small),
        Err(Error::TooLarge { room: 64, .. })
    ));
    let far = Placement {
        cache_address: 1 << 40,
        cache_bytes: 1 << 24,
        ..Placement::default()
    };
    assert!(matches!(
        emit(&image, &plan, &far),
        Err(Error::OutOfReach { .. })
    ));
    let counting = LayoutPlan::counting(functions, &Profile::default());
    let near = Placement {
        cache_address: 1 << 20,
        cache_bytes: 1 << 24,
        ..Placement::default()
    };
    assert!(matches!(
        emit(&image, &counting, &near),
        Err(Error::Counters)
    ));
}

/// A checker that finds nothing proves nothing: any bit of the code that changes what it does is
/// found.
#[test]
fn a_flipped_bit_in_emitted_code_is_found() {
    let image = Image::parse(OBJECT.clone()).expect("an image");
    let functions: Vec<_> = (0..image.functions().len())
        .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
        .collect();
    let plan = LayoutPlan::new(functions, &Profile::default(), LayoutOrder::Random(7));
    let placement = Placement {
        cache_address: 1 << 20,
        cache_bytes: 1 << 24,
        ..Placement::default()
    };
    let emitted = emit(&image, &plan, &placement).expect("emitted");
    check(&image, &plan, &placement, &emitted).expect("right");
    let (mut found, mut tried) = (0, 0);
    for instruction in emitted.map.instructions().iter().step_by(3) {
        let at = usize::try_from(instruction.new - emitted.address).expect("small");
        for bit in 0..u32::from(instruction.len) * 8 {
            let mut changed = emitted.clone();
            let byte = &mut changed.bytes[at + usize::try_from(bit / 8).expect("small")];
            *byte ^= 1 << (bit % 8);
            let before = decode(&emitted.bytes[at..], instruction.new);
            let after = decode(&changed.bytes[at..], instruction.new);
            // Another encoding of the same instruction is no difference.
            if before != after || before.len() != after.len() {
                tried += 1;
                found += usize::from(check(&image, &plan, &placement, &changed).is_err());
            }
        }
        if tried > 2000 {
            break;
        }
    }
    assert!(tried > 2000);
    assert_eq!(found, tried);
}

fn decode(bytes: &[u8], ip: u64) -> iced_x86::Instruction {
    iced_x86::Decoder::with_ip(64, &bytes[..bytes.len().min(15)], ip, 0).decode()
}
