//! Objects to damage, and what must hold for any file. The fuzz targets use it too.

use std::path::Path;
use std::process::Command;

use code_layout::{
    CounterArea, FunctionId, Image, LayoutOrder, LayoutPlan, PatchSelection, Placement, Profile,
    check, emit,
};

/// A small shared object of a program in `tests/programs`, without symbols.
pub(crate) fn object(program: &Path, flags: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("program.so");
    let status = Command::new("g++")
        .args(["-shared", "-fPIC", "-fpermissive", "-w", "-o"])
        .arg(&output)
        .args(flags)
        .arg(program)
        .status()
        .expect("g++ runs");
    assert!(status.success(), "{}", program.display());
    std::fs::read(output).expect("the object")
}

/// Everything that can be done with a file: what is read lies in the file, and what is emitted
/// passes the check. Says whether code was emitted.
pub(crate) fn exercise(bytes: Vec<u8>, order: LayoutOrder, counting: bool) -> bool {
    let Ok(image) = Image::parse(bytes.clone()) else {
        // The quick looks at a file that is declined.
        let _ = code_layout::unwinds_by_itself(bytes);
        return false;
    };
    check_image(&image, &bytes);
    let functions: Vec<_> = (0..image.functions().len().min(2000))
        .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
        .collect();
    let end = image
        .segments()
        .last()
        .map_or(0, |last| last.vaddr + last.memory_bytes);
    let plan = if counting {
        LayoutPlan::counting(functions, &Profile::default())
    } else {
        LayoutPlan::new(functions, &Profile::default(), order)
    };
    let load_bias = if image.is_position_independent() {
        0x5555_5555_0000
    } else {
        0
    };
    let cache_address = load_bias + end.next_multiple_of(4096) + (1 << 20);
    let cache_bytes = 1 << 26;
    let placement = Placement {
        load_bias,
        cache_address,
        cache_bytes,
        counters: Some(CounterArea {
            address: cache_address + cache_bytes,
        }),
        patches: PatchSelection::ALL,
        ..Placement::default()
    };
    let emitted = emit(&image, &plan, &placement);
    if let Ok(emitted) = &emitted {
        check(&image, &plan, &placement, emitted).expect("emitted code is right");
        assert!(emitted.bytes.len() as u64 <= cache_bytes);
        for patch in &emitted.patches {
            assert_eq!(patch.old.len(), patch.new.len());
        }
        for pair in emitted.patches.windows(2) {
            let end = pair[0].vaddr + pair[0].new.len() as u64;
            assert!(end <= pair[1].vaddr, "patches overlap: {pair:?}");
        }
        let name = |(vaddr, range): &(u64, std::ops::Range<u64>)| {
            let id = image.function_from(*vaddr)?;
            Some((range.clone(), image.name(id)?.to_owned()))
        };
        let names: Vec<_> = emitted.functions.iter().filter_map(name).collect();
        code_layout::symbol_file(emitted, &names).expect("a file for debuggers");
    }
    let _ = plan.profile(&image, &vec![3; plan.counters()]);
    emitted.is_ok_and(|emitted| !emitted.functions.is_empty())
}

/// What a file that was accepted says of itself lies in it.
fn check_image(image: &Image, bytes: &[u8]) {
    assert_eq!(code_layout::preflight(bytes.to_vec()), Ok(()));
    let build_id = code_layout::build_id(bytes.to_vec());
    assert_eq!(build_id.as_ref(), image.build_id());
    for segment in image.segments() {
        assert!(segment.file_offset + segment.file_bytes <= bytes.len() as u64);
        assert!(segment.file_bytes <= segment.memory_bytes);
    }
    assert!(!image.functions().is_empty());
    for (id, range) in image.function_ids().zip(image.functions()) {
        assert_eq!(image.range(id), *range);
        let code = image.read(range.start, range.end - range.start);
        assert!(code.is_some_and(|code| !code.is_empty()), "{range:?}");
    }
    assert_eq!(image.function_ids().count(), image.functions().len());
    let starts = image.functions().windows(2);
    assert!(starts.into_iter().all(|pair| pair[0].start < pair[1].start));
    let slots = image.got_slots().windows(2);
    assert!(slots.into_iter().all(|pair| pair[0].vaddr < pair[1].vaddr));
}

/// Where a section lies in a file that is not damaged: its first byte, and its length.
pub(crate) fn section(bytes: &[u8], wanted: &str) -> Option<(usize, usize)> {
    let number = |at: usize, len: usize| {
        bytes[at..at + len]
            .iter()
            .rev()
            .fold(0usize, |all, byte| all << 8 | usize::from(*byte))
    };
    let (table, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let names = number(table + names * 64 + 24, 8);
    (0..count)
        .map(|section| table + section * 64)
        .find_map(|at| {
            let name = &bytes[names + number(at, 4)..];
            let is_it = name.starts_with(wanted.as_bytes()) && name[wanted.len()] == 0;
            is_it.then(|| (number(at + 24, 8), number(at + 32, 8)))
        })
}
