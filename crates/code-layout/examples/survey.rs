//! What is understood of ELF files: functions, blocks, jump tables, and what is skipped and why.
//!
//! `cargo run --release -p code-layout --example survey -- [--every N] FILE …`: each N-th function
//! only.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::time::Instant;

use code_layout::{
    FunctionId, Image, LayoutOrder, LayoutPlan, PatchSelection, Placement, Profile, Skipped, check,
    emit,
};

/// Emits the movable functions and compares them with the file.
fn emit_all(
    image: &Image,
    order: LayoutOrder,
    every: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let functions = (0..image.functions().len())
        .step_by(every)
        .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
        .collect();
    let begun = Instant::now();
    let plan = LayoutPlan::new(functions, &Profile::default(), order);
    let end = image
        .segments()
        .last()
        .map_or(0, |last| last.vaddr + last.memory_bytes);
    let placement = Placement {
        cache_address: end.next_multiple_of(4096) + (1 << 24),
        cache_bytes: 1 << 30,
        patches: PatchSelection::ALL,
        ..Placement::default()
    };
    let emitted = emit(image, &plan, &placement)?;
    let took = begun.elapsed();
    let begun = Instant::now();
    check(image, &plan, &placement, &emitted)?;
    let mut kinds = std::collections::BTreeMap::new();
    for patch in &emitted.patches {
        *kinds.entry(patch.kind).or_insert(0) += 1;
    }
    println!(
        "  {order:?}: {} bytes, {} of them code, {} unwind information; patches {kinds:?}; emitted in {took:.2?}, checked in {:.2?}; {:?}",
        emitted.bytes.len(),
        emitted.code.len(),
        emitted.eh_frame.len(),
        begun.elapsed(),
        emitted.skipped,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut every = 1;
    if arguments
        .next_if(|argument| argument == "--every")
        .is_some()
    {
        every = arguments.next().ok_or("--every needs a number")?.parse()?;
    }
    for path in arguments {
        let bytes = std::fs::read(&path)?;
        let begun = Instant::now();
        let image = match Image::parse(bytes) {
            Ok(image) => image,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let parsed = begun.elapsed();
        let begun = Instant::now();
        let mut skipped = Skipped::new();
        let (mut moved, mut blocks, mut tables, mut entries, mut indirect) = (0, 0, 0, 0, 0);
        for index in (0..image.functions().len()).step_by(every) {
            match image.analyse(FunctionId(u32::try_from(index)?)) {
                Ok(function) => {
                    moved += 1;
                    blocks += function.blocks.len();
                    tables += function.tables.len();
                    indirect += function
                        .blocks
                        .iter()
                        .filter(|block| block.exit == code_layout::Terminator::Indirect)
                        .count();
                    match function.entry {
                        Ok(()) => entries += 1,
                        Err(skip) => *skipped.entry(skip).or_default() += 1,
                    }
                    for (skip, count) in function.skipped {
                        *skipped.entry(skip).or_default() += count;
                    }
                }
                Err(skip) => *skipped.entry(skip).or_default() += 1,
            }
        }
        println!(
            "{path}: {} functions, {moved} movable, {entries} entries patchable, {blocks} blocks, {tables} jump tables, {indirect} other indirect jumps, {} vtables, parsed in {parsed:.2?}, all analysed in {:.2?}; {skipped:?}",
            image.functions().len(),
            image.vtables().len(),
            begun.elapsed(),
        );
        for order in [LayoutOrder::Original, LayoutOrder::Random(1)] {
            emit_all(&image, order, every)?;
        }
    }
    Ok(())
}
