//! A kept profile in the form that BOLT reads, so that both lay out the same file by the same
//! counts.
//!
//! `cargo run --release -p code-layout --example fdata -- FILE KEPT.json > FILE.fdata`
//!
//! A line is `1 FUNCTION OFFSET 1 FUNCTION OFFSET MISPREDICTED COUNT`: a branch from one place to
//! another, offsets in hexadecimal (`bolt/include/bolt/Profile/DataReader.h` in LLVM). Functions of
//! a stripped file are called after their address there.
#![allow(clippy::print_stdout, reason = "it prints a profile")]

use code_layout::{Function, Image, Profile, Terminator};

/// How BOLT calls a function that has no symbol (`--allow-stripped`).
fn name(start: u64) -> String {
    format!("__BOLT_FDE_FUNCat{start:x}")
}

/// Where the block at `from` branches to `to`; `None` where it just goes on.
fn branch(function: &Function, from: u64, to: u64) -> Option<u64> {
    let block = &function.blocks[function.block_at(from)?];
    let goes_on = match block.exit {
        Terminator::FallThrough => true,
        // A jump to what follows anyway counts as one.
        Terminator::Branch(target) => to == block.end && target != to,
        _ => false,
    };
    (!goes_on).then_some(block.last)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, kept] = arguments.as_slice() else {
        return Err("usage: fdata FILE KEPT.json".into());
    };
    let image = Image::parse(std::fs::read(file)?)?;
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(kept)?)?;
    let profiles: Vec<Profile> = serde_json::from_value(kept["profiles"].clone())?;
    let profile = profiles
        .iter()
        .find(|profile| image.build_id() == Some(&profile.build_id))
        .ok_or("no profile of this file among them")?;
    for (start, counts) in &profile.functions {
        let Some(function) = image.function_at(*start).map(|id| image.analyse(id)) else {
            continue;
        };
        let Ok(function) = function else { continue };
        let name = name(*start);
        println!("0 [unknown] 0 1 {name} 0 0 {}", counts.entries);
        for edge in counts.edges.iter().filter(|edge| edge.count > 0) {
            let (from, to) = (start + u64::from(edge.from), start + u64::from(edge.to));
            if let Some(at) = branch(&function, from, to) {
                println!(
                    "1 {name} {:x} 1 {name} {:x} 0 {}",
                    at - start,
                    edge.to,
                    edge.count
                );
            }
        }
    }
    Ok(())
}
