//! `serve-block` beside its peers: server on CPU 0, client on CPU 1, all servers in turns in each
//! round. Writes `block.json` and `block.svg` into a folder, and prints tables.
//!
//! `cargo run --release -p block-load --example bench -- FOLDER SLACKLINE [PART…]`
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an example, which prints what it found"
)]

mod many;
mod objectives;
mod parts;
mod rows;
mod servers;

use std::path::{Path, PathBuf};

use rows::Rows;

/// Any error ends the benchmark with its text.
type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

const PARTS: &[&str] = &[
    "ram",
    "fio",
    "disk",
    "qd1",
    "qd1-fio",
    "sequential",
    "curve",
    "objectives",
    "scale",
    "scheduler",
];

/// The cases in another order in each round, so that none always follows the same one: a disk is
/// slow for a while after much was written to it.
pub(crate) fn in_turn<T: Clone>(round: usize, cases: &[T]) -> Vec<T> {
    let mut cases = cases.to_vec();
    let first = round % cases.len();
    cases.rotate_left(first);
    cases
}

/// What all parts need.
pub(crate) struct Bench {
    pub(crate) work: PathBuf,
    pub(crate) slackline: PathBuf,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) rows: Rows,
}

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, slackline, words @ ..] = arguments.as_slice() else {
        return Err("FOLDER SLACKLINE [PART…]".into());
    };
    let rounds = std::env::var("ROUNDS")
        .ok()
        .map_or(5, |text| text.parse().unwrap());
    let seconds = std::env::var("SECONDS_EACH")
        .ok()
        .map_or(1.0, |text| text.parse().unwrap());
    let parts: Vec<&str> = match words {
        [] => PARTS.to_vec(),
        // Only draws what was measured before.
        [word] if word == "picture" => Vec::new(),
        words => words.iter().map(String::as_str).collect(),
    };
    if let Some(wrong) = parts.iter().find(|part| !PARTS.contains(part)) {
        return Err(format!("no part {wrong:?}; there are: {} picture", PARTS.join(" ")).into());
    }
    let work = std::env::temp_dir().join(format!("bench-block-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let json = PathBuf::from(folder).join("block.json");
    let mut bench = Bench {
        work: work.clone(),
        slackline: slackline.into(),
        rounds,
        seconds,
        rows: Rows::read(&json)?,
    };
    let outcome = bench.run(&parts, &json);
    let _ = std::process::Command::new("umount")
        .arg(work.join("blkio"))
        .stderr(std::process::Stdio::null())
        .status();
    std::fs::remove_dir_all(&work)?;
    outcome?;
    let picture = PathBuf::from(folder).join("block.svg");
    if let Some(chart) = bench.rows.chart() {
        std::fs::write(picture, chart.svg())?;
    }
    print!("{}", bench.rows.tables(&parts));
    Ok(())
}

impl Bench {
    fn run(&mut self, parts: &[&str], json: &Path) -> Fallible<()> {
        bind(1)?;
        for &part in parts {
            println!("==> {part}");
            self.rows.forget(part);
            match part {
                "ram" => self.ram()?,
                "fio" => self.fio()?,
                "disk" => self.disk()?,
                "qd1" => self.qd1()?,
                "qd1-fio" => self.qd1_fio()?,
                "sequential" => self.sequential()?,
                "curve" => self.curve()?,
                "objectives" => self.objectives()?,
                "scale" => self.scale()?,
                _ => self.scheduler()?,
            }
            self.rows.write(json)?;
        }
        Ok(())
    }
}

/// Keeps this thread, and what it starts without `taskset`, on one CPU.
fn bind(cpu: usize) -> Fallible<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
