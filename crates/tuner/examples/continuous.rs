//! scratch
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]
use tuner::continuous::simulation::{SPEC, Scenario, Simulated};
fn main() {
    let spec = tuner::spec::check(
        SPEC.into(),
        "simulated.toml".as_ref(),
        &host::Roots::default(),
    )
    .unwrap();
    let scenario = Scenario::ninety_days();
    let mut world = Simulated::new(&spec, &scenario, 1);
    world.go_on().unwrap();
    for e in &world.entries {
        println!("{} {} {}", e.at, e.kind, e.text);
    }
    println!("{:?}", world.kept);
    let mut day = 0.0;
    for s in &world.samples {
        if s.day >= day {
            println!(
                "{:.1} {:.3} never {:.3} oracle {:.3} {}",
                s.day,
                s.gain,
                s.never,
                scenario.oracle(&spec, s.day * 86400.0),
                s.is_broken
            );
            day += 1.0;
        }
    }
}
