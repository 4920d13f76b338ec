//! Whether a layout is better, measured on the live process: original and new layout in turns (A B
//! B A …), units of work per CPU second in each, the ratio with its interval.

use std::thread::sleep;
use std::time::Duration;

use paired_stats::{Interval, Pair, abba, ratio_interval};
use serde::{Deserialize, Serialize};

use crate::RelayoutError;
use crate::patch::patched_process::PatchedProcess;
use crate::process::stop::Pause;
use crate::process::units::{UnitMeter, WorkUnit};

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonOptions {
    /// Pairs of blocks.
    pub pairs: usize,
    /// Length of a block, at least; longer where the process does little.
    pub block: Duration,
    /// After a switch, before a block: threads come back from old frames, caches fill.
    pub settle: Duration,
}

impl Default for ComparisonOptions {
    /// About 23 s. Short blocks, because what else disturbs a machine lasts longer than a block: of
    /// MariaDB under sysbench on two cores of a shared machine the interval is then about ±4 %, and
    /// ±8 % with 16 pairs of 0.6 s, which take as long.
    fn default() -> Self {
        Self {
            pairs: 64,
            block: Duration::from_millis(150),
            settle: Duration::from_millis(30),
        }
    }
}

/// Blocks are lengthened until they have so much work, where a block without any is unlikely among
/// all of them.
const UNITS_MIN: f64 = 20.0;
/// But not beyond this.
const BLOCK_MAX: Duration = Duration::from_secs(2);
/// How long the process is looked at to see how much it does.
const FIRST_LOOK: Duration = Duration::from_millis(500);

/// Two-sided, as everywhere in Slackline.
const CONFIDENCE: f64 = 0.95;

/// What a comparison showed. Ratios are new layout over original; above 1 is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Units of work per second of CPU time.
    pub per_cpu_s: Interval,
    /// Units of work per second of CPU time in user code; the kernel divides it by ticks, so it is
    /// coarser.
    pub per_user_s: Option<Interval>,
    /// Units of work per second.
    pub per_s: Interval,
    /// What a unit is.
    pub metric: String,
    /// How long the comparison took, in seconds.
    pub seconds: f64,
    /// Pauses of the switches: median and worst.
    pub pause_us_median: u64,
    /// See above.
    pub pause_us_worst: u64,
    /// Threads that were stopped, at most.
    pub threads: usize,
    /// The blocks in order of time.
    pub blocks: Vec<BlockRecord>,
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The layout in force.
    pub generation: u32,
    /// Length, in seconds.
    pub seconds: f64,
    /// Units of work.
    pub units: f64,
    /// All CPU time, in seconds.
    pub cpu_s: f64,
    /// That in user code.
    pub user_s: f64,
}

/// Compares generation `number` with the original layout; the process is left in `number`.
///
/// # Errors
/// Those of switching; [`RelayoutError::LittleWork`] where nothing can be compared;
/// [`RelayoutError::Stats`] where a block had no work or CPU time.
pub fn compare(
    cache: &mut PatchedProcess,
    number: u32,
    unit: &WorkUnit,
    effort: &ComparisonOptions,
    mut is_interrupted: impl FnMut() -> bool,
) -> Result<Option<Compared>, RelayoutError> {
    let start = std::time::Instant::now();
    let mut meter = UnitMeter::open(cache.process.pid, unit)?;
    let length = length(&mut meter, unit, effort)?;
    let mut blocks = Vec::new();
    let mut pauses: Vec<Pause> = Vec::new();
    for pair in 0..effort.pairs {
        // A switch every other block.
        for generation in abba(pair, [0, number]) {
            if is_interrupted() {
                return Ok(None);
            }
            let switched = cache.switch(generation)?;
            if switched.pause.threads > 0 {
                pauses.push(switched.pause);
            }
            sleep(effort.settle);
            blocks.push(block(&mut meter, generation, length)?);
        }
    }
    cache.switch(number)?;
    let interval = |value: fn(&BlockRecord) -> f64| {
        let pairs: Vec<Pair> = blocks.chunks_exact(2).map(|two| pair(two, value)).collect();
        ratio_interval(&pairs, CONFIDENCE)
    };
    pauses.sort_by_key(|pause| pause.us);
    Ok(Some(Compared {
        per_cpu_s: interval(|block| block.units / block.cpu_s)?,
        per_user_s: interval(|block| block.units / block.user_s).ok(),
        per_s: interval(|block| block.units / block.seconds)?,
        metric: unit.metric(),
        seconds: start.elapsed().as_secs_f64(),
        pause_us_median: pauses.get(pauses.len() / 2).map_or(0, |pause| pause.us),
        pause_us_worst: pauses.last().map_or(0, |pause| pause.us),
        threads: pauses.iter().map(|pause| pause.threads).max().unwrap_or(0),
        blocks,
    }))
}

/// How long a block has to be for this process.
fn length(
    meter: &mut UnitMeter,
    unit: &WorkUnit,
    effort: &ComparisonOptions,
) -> Result<Duration, RelayoutError> {
    let seen = block(meter, 0, FIRST_LOOK.max(effort.block))?;
    let per_s = seen.units / seen.seconds;
    block_length(per_s, effort.block).map_err(|least| RelayoutError::LittleWork {
        metric: unit.metric(),
        per_s,
        least,
    })
}

/// Or how many units a second there would have to be.
fn block_length(units_per_s: f64, least: Duration) -> Result<Duration, f64> {
    let longest = BLOCK_MAX.max(least);
    // Half of what is wished for is still next to never nothing.
    let needed = UNITS_MIN / 2.0 / longest.as_secs_f64();
    if units_per_s < needed {
        return Err(needed);
    }
    let wanted = Duration::try_from_secs_f64(UNITS_MIN / units_per_s).unwrap_or(longest);
    Ok(wanted.clamp(least, longest))
}

fn block(
    meter: &mut UnitMeter,
    generation: u32,
    length: Duration,
) -> Result<BlockRecord, RelayoutError> {
    let (start, before) = (std::time::Instant::now(), meter.read()?);
    sleep(length);
    let after = meter.read()?;
    Ok(BlockRecord {
        generation,
        seconds: start.elapsed().as_secs_f64(),
        units: after.units - before.units,
        cpu_s: after.cpu_s - before.cpu_s,
        user_s: after.user_s - before.user_s,
    })
}

fn pair(two: &[BlockRecord], value: impl Fn(&BlockRecord) -> f64) -> Pair {
    let of = |is_original: bool| {
        let block = two
            .iter()
            .find(|block| (block.generation == 0) == is_original);
        block.map_or(f64::NAN, &value)
    };
    Pair {
        control: of(true),
        experiment: of(false),
    }
}

/// A verified change, new layout over original: 1.1 is 10 % more for the same CPU time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// The estimate.
    pub ratio: f64,
    /// Lower end of the 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Of what.
    pub metric: String,
}

impl Gain {
    /// From a comparison.
    #[must_use]
    pub fn of(compared: &Compared) -> Self {
        let Interval {
            estimate,
            low,
            high,
            ..
        } = compared.per_cpu_s;
        Self {
            ratio: estimate,
            low,
            high,
            metric: compared.metric.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_as_long_as_it_takes_to_see_work_in_each() {
        let least = Duration::from_millis(150);
        assert_eq!(block_length(50_000.0, least), Ok(least));
        assert_eq!(block_length(20.0, least), Ok(Duration::from_secs(1)));
        assert_eq!(block_length(6.0, least), Ok(BLOCK_MAX));
        assert_eq!(block_length(4.0, least), Err(5.0));
        assert_eq!(block_length(0.0, least), Err(5.0));
        let asked_for = Duration::from_secs(60);
        assert_eq!(block_length(4.0, asked_for), Ok(asked_for));
    }

    #[test]
    fn a_pair_knows_its_sides_in_either_order() {
        let block = |generation, units| BlockRecord {
            generation,
            seconds: 1.0,
            units,
            cpu_s: 2.0,
            user_s: 1.0,
        };
        let value = |block: &BlockRecord| block.units / block.cpu_s;
        for two in [
            [block(0, 10.0), block(3, 12.0)],
            [block(3, 12.0), block(0, 10.0)],
        ] {
            let pair = pair(&two, value);
            assert_eq!((pair.control, pair.experiment), (5.0, 6.0));
        }
    }
}
