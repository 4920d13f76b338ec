//! Code layout: reading a program, understanding its functions, and emitting them in a new order.
//!
//! The program is the shell of the machine, so figures of two machines cannot be compared.

use std::hint::black_box;

use code_layout::{
    Function, FunctionId, Image, LayoutOrder, LayoutPlan, PatchSelection, Placement, Profile, emit,
};
use criterion::{Criterion, criterion_group, criterion_main};

/// A stripped program of about a megabyte, on every Debian.
const PROGRAM: &str = "/bin/bash";
/// Every tenth function is laid out: about as many as a hot part has.
const EVERY: usize = 10;

fn functions(image: &Image) -> Vec<Function> {
    (0..image.functions().len())
        .step_by(EVERY)
        .filter_map(|index| image.analyse(FunctionId(u32::try_from(index).ok()?)).ok())
        .collect()
}

fn placement(image: &Image) -> Placement {
    let end = image
        .segments()
        .last()
        .map_or(0, |last| last.vaddr + last.memory_bytes);
    Placement {
        cache_address: end.next_multiple_of(4096) + (1 << 24),
        cache_bytes: 1 << 30,
        patches: PatchSelection::ALL,
        ..Placement::default()
    }
}

fn layout(criterion: &mut Criterion) {
    let Ok(bytes) = std::fs::read(PROGRAM) else {
        eprintln!("SKIP: no {PROGRAM}");
        return;
    };
    let image = Image::parse(bytes.clone()).unwrap();
    let placement = placement(&image);
    let mut group = criterion.benchmark_group("emit");
    group.sample_size(10);
    group.bench_function("parse", |bencher| {
        bencher.iter(|| black_box(Image::parse(bytes.clone()).unwrap()));
    });
    group.bench_function("analyse", |bencher| {
        bencher.iter(|| black_box(functions(&image)));
    });
    group.bench_function("emit", |bencher| {
        bencher.iter(|| {
            let plan = LayoutPlan::new(
                functions(&image),
                &Profile::default(),
                LayoutOrder::Original,
            );
            black_box(emit(&image, &plan, &placement).unwrap())
        });
    });
    group.finish();
}

criterion_group!(benches, layout);
criterion_main!(benches);
