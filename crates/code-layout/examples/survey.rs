//! What is understood of ELF files: functions, blocks, jump tables, and what is skipped and why.
//!
//! `cargo run --release -p code-layout --example survey -- /usr/sbin/nginx …`
#![allow(clippy::print_stdout, reason = "it prints a table")]

use std::time::Instant;

use code_layout::{FunctionId, Image, Skipped};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for path in std::env::args().skip(1) {
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
        for index in 0..image.functions().len() {
            match image.analyse(FunctionId(u32::try_from(index)?)) {
                Ok(function) => {
                    moved += 1;
                    blocks += function.blocks.len();
                    tables += function.tables.len();
                    indirect += function
                        .blocks
                        .iter()
                        .filter(|block| block.exit == code_layout::Exit::Indirect)
                        .count();
                    match function.entry {
                        Ok(()) => entries += 1,
                        Err(skip) => *skipped.entry(skip).or_default() += 1,
                    }
                    for (skip, count) in function.skipped {
                        if std::env::var_os("SURVEY_JUMPS").is_some()
                            && skip == code_layout::Skip::IndirectJump
                        {
                            println!("  unknown jump in {:#x}", function.start);
                        }
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
    }
    Ok(())
}
