//! A latency-critical tenant beside a greedy writer on a simulated flash device, with the scheduler
//! and without: prints JSON. `cargo run --release -p qos --example tenants -- [SECONDS]`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an example, which prints what it found"
)]

#[path = "../tests/machine/mod.rs"]
mod machine;

use machine::{Load, Machine};
use qos::Objective;

fn main() {
    let seconds = std::env::args()
        .nth(1)
        .map_or(120, |text| text.parse().unwrap());
    let objective = Objective {
        p95_us: 500,
        iops: 20_000,
        read_share: 0.9,
    };
    let critical = Load::Open {
        iops: 19_000.0,
        read_share: 0.9,
    };
    println!("[");
    for is_scheduled in [true, false] {
        for (seed, depth) in [(1, 32), (2, 256), (3, 1024)] {
            let greedy = Load::Closed {
                depth,
                len_bytes: 4096,
                read_share: 0.0,
            };
            let mut machine = Machine::new(is_scheduled, seed);
            let first = machine.add(Some(objective), critical);
            let writer = machine.add(None, greedy);
            machine.run(seconds);
            let all = machine.seconds(first);
            let held = all.iter().filter(|second| second.p95_us <= 500.0).count();
            let mut tails: Vec<f64> = all.iter().map(|second| second.p95_us).collect();
            tails.sort_by(f64::total_cmp);
            let tokens: u64 = machine
                .seconds(writer)
                .iter()
                .map(|second| second.tokens)
                .sum();
            let left = 36e6 - 20_000.0 * 190.0;
            println!(
                "  {{\"simulated\": \"p3600\", \"scheduler\": {is_scheduled}, \"writer_depth\": {depth}, \"seconds\": {}, \"held\": {held}, \
                 \"p95_us_median\": {:.0}, \"p95_us_worst\": {:.0}, \"writer_of_what_is_left\": {:.3}}},",
                all.len(),
                tails[tails.len() / 2],
                tails[tails.len() - 1],
                tokens as f64 / seconds as f64 / left,
            );
        }
    }
    let mut machine = Machine::new(true, 4);
    machine.add(Some(objective), critical);
    let index = machine.jain_of_greedy(1000, seconds / 4 + 2);
    println!(
        "  {{\"simulated\": \"p3600\", \"best_effort_tenants\": 1000, \"jain\": {:.5}}}\n]",
        index
    );
}
