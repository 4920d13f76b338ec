//! From a plan to bytes: code, tables, unwind information, and the patches that lead into them.
//!
//! `assemble` makes the instructions of one function, `link` gives them addresses, with `patches`
//! and the unwind information (`frames`, [`lookup`]). [`emitted`] and [`map`] are the result,
//! [`symbols`] is the result for debuggers.

mod assemble;
pub(crate) mod emitted;
mod frames;
mod link;
pub(crate) mod lookup;
pub(crate) mod map;
mod patches;
pub(crate) mod symbols;

use std::ops::Range;

use crate::analysis::image::Image;
use crate::emit::assemble::{Context, Target, assemble};
use crate::emit::emitted::{Emitted, Placement};
use crate::emit::link::Linker;
use crate::error::Error;
use crate::plan::LayoutPlan;

/// Emits a plan.
///
/// # Errors
/// The cache is too small, the cache or the counters are out of reach, or the placement names no
/// counters.
pub fn emit(image: &Image, plan: &LayoutPlan, placement: &Placement) -> Result<Emitted, Error> {
    let counts = plan.counters() > 0;
    if counts && placement.counters.is_none() {
        return Err(Error::Counters);
    }
    let cache = placement.cache_address
        ..placement
            .cache_address
            .saturating_add(placement.cache_bytes);
    let resolve = |slot: u64| {
        let to = *placement.got.get(&slot)?;
        let own = to.wrapping_sub(placement.load_bias);
        if image.function_from(own).is_some() && !image.is_own_stub(own) {
            // The file's own, exported function: perhaps there is a new copy.
            return Some(Target::Code(own));
        }
        // Not resolved yet: it still holds its own stub's second half.
        let resolved = !image.is_own_stub(own) && reaches(&cache, to);
        resolved.then_some(Target::Runtime(to))
    };
    let context = Context {
        image,
        counts,
        resolve: &resolve,
    };
    let mut linker = Linker::new(image, plan, placement);
    for planned in &plan.functions {
        linker.place(planned, assemble(&context, planned))?;
    }
    linker.finish()
}

/// Whether 32 bits of displacement lead from anywhere in a range to an address.
fn reaches(from: &Range<u64>, to: u64) -> bool {
    let near = |from: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).is_ok();
    near(from.start) && near(from.end)
}
