//! `slackline serve-block calibrate`: a device's latency against its rate.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use block_load::calibrate::{self, Calibration, CalibrationPlan, CalibrationRun};
use block_load::disk::Disk;
use block_load::medium::MemoryMedium;
use block_server::config::{Backing, SIZE_HINT, parse_size};
use block_server::device::{Device, Storage};
use block_server::memory::host_bytes;
use qos::Grouped;

use super::surroundings::Surroundings;

use crate::done::CommandOutcome;
use crate::output::message;

/// The shares of reads of ReFlex' figure 3.
const READ_PERCENTS: &str = "100,99,95,90,75,50";
/// The share of a load's time that it runs before it is counted.
const WARM_UP: f64 = 0.2;
/// How long a device may take to come to rest after its highest rate. A disk of a virtual machine
/// took more than 10 s after some gigabytes of writes.
const REST_MAX: Duration = Duration::from_secs(30);
/// Requests begin at multiples of this.
const BLOCK_BYTES: u64 = 4096;
/// Any number: the same arrivals and places each time.
const SEED: u64 = 48;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The device to measure: a block device, a file or `memory:SIZE`. `simulated:p3600` prints the
    /// curve of a simulated device without a load.
    device: String,
    /// The part of the device that may be overwritten, as OFFSET:LENGTH in bytes or with a unit.
    /// Without this option nothing is written to a file or a block device, and only reads are
    /// measured.
    #[arg(long, value_name = "OFFSET:LENGTH")]
    write_area: Option<String>,
    /// Shares of reads, in percent. 100 must be among them.
    #[arg(long, value_delimiter = ',', default_value = READ_PERCENTS)]
    reads: Vec<u8>,
    /// Number of rates to measure for each share of reads.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    loads: u32,
    /// How long to measure each rate, in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Write the calibration to this file, for the key `calibration` in the configuration. `-`
    /// prints it instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture (SVG) of the latency against the rate to this file.
    #[arg(long, value_name = "FILE", value_parser = crate::output::file_to_write)]
    picture: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<CommandOutcome> {
    ensure!(
        (0.1..=3600.0).contains(&arguments.seconds),
        "--seconds is {}: it must be from 0.1 to 3600",
        arguments.seconds
    );
    if let Some(wrong) = arguments
        .reads
        .iter()
        .find(|share| !(1..=100).contains(*share))
    {
        bail!("--reads has {wrong}: a share of reads is from 1 to 100 percent");
    }
    ensure!(
        arguments.reads.contains(&100),
        "--reads needs 100: the curve of reads alone is part of every calibration"
    );
    keep_the_device(arguments)?;
    crate::output::ensure_writable(&[arguments.json.as_deref(), arguments.picture.as_deref()])?;
    for file in [&arguments.json, &arguments.picture].into_iter().flatten() {
        if file.is_file() {
            message(&format!("{} will be replaced.", file.display()));
        }
    }
    let calibration = measure(arguments)?;
    let json = arguments.json.as_deref();
    crate::output::publish(json, &calibration, &text(&calibration), "the calibration")?;
    if let Some(file) = &arguments.picture {
        std::fs::write(file, calibration.chart().svg())
            .with_context(|| file.display().to_string())?;
        message(&format!("The picture is in {}.", file.display()));
    }
    Ok(CommandOutcome::Positive)
}

/// Refuses to write a result over the device.
fn keep_the_device(arguments: &Arguments) -> anyhow::Result<()> {
    let Ok(device) = std::fs::canonicalize(&arguments.device) else {
        return Ok(());
    };
    for (option, file) in [
        ("--json", &arguments.json),
        ("--picture", &arguments.picture),
    ] {
        let place = file
            .as_ref()
            .and_then(|file| std::fs::canonicalize(file).ok());
        ensure!(
            place.as_ref() != Some(&device),
            "{option} names the device {}, whose contents would be lost: choose another file",
            arguments.device
        );
    }
    Ok(())
}

fn measure(arguments: &Arguments) -> anyhow::Result<Calibration> {
    let name = arguments.device.as_str();
    if let Some(model) = name.strip_prefix("simulated:") {
        let Some(model) = qos::simulated::model(model) else {
            bail!("no simulated device {model:?}; there is: p3600");
        };
        ensure!(
            arguments.write_area.is_none(),
            "--write-area: {name} is simulated, and nothing is written to it"
        );
        return Ok(calibrate::of_model(name, &model));
    }
    let is_path = !name.starts_with("memory:");
    let mut surroundings = Surroundings::of(is_path.then(|| Path::new(name)));
    let mut progress = |load: &mut CalibrationRun| {
        let reasons = [load.disturbed_by.take(), surroundings.look()];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        load.disturbed_by = (!reasons.is_empty()).then(|| reasons.join("; "));
        message(&format!(
            "{} % reads, {} IOPS offered: 95th percentile {}{}{}",
            load.read_percent,
            Grouped::rounded(load.offered_iops),
            load.p95_us
                .map_or_else(|| "–".into(), |us| format!("{us:.0} µs")),
            match &load.left_out {
                Some(reason) => format!(" (left out: {reason})"),
                None => String::new(),
            },
            match &load.disturbed_by {
                Some(others) => format!(" (disturbed: {others})"),
                None => String::new(),
            }
        ));
    };
    if let Some(size) = name.strip_prefix("memory:") {
        let size_bytes = parse_size(size)
            .with_context(|| format!("{name}: {size:?} is not a size; {SIZE_HINT}"))?;
        ensure!(
            (1 << 20..=1 << 40).contains(&size_bytes),
            "{name}: a size from 1MiB to 1TiB is needed"
        );
        if let Some(free_bytes) = host_bytes("MemAvailable").filter(|&free| free < size_bytes) {
            bail!(
                "{name}: {} bytes are needed, and this host has {} bytes of memory available",
                Grouped(size_bytes),
                Grouped(free_bytes)
            );
        }
        let area = area(arguments, size_bytes)?.unwrap_or(0..size_bytes);
        let mut memory = MemoryMedium::new(usize::try_from(size_bytes)?);
        let plan = plan(arguments, size_bytes, Some(area));
        return Ok(calibrate::calibrate(
            &mut memory,
            name,
            &plan,
            &mut progress,
        )?);
    }
    let (device, area) = open(arguments)?;
    let Storage::File(file) = &device.storage else {
        bail!("{name}: is neither a file nor a block device");
    };
    let Some(direct) = file.direct() else {
        bail!("{name}: its file system has no O_DIRECT, so calibrate would measure the page cache");
    };
    let mut disk = Disk::new(Arc::clone(direct))?;
    if area.is_none() && arguments.reads.iter().any(|share| *share < 100) {
        message("Without --write-area only reads are measured.");
    }
    let plan = plan(arguments, device.size_bytes, area);
    Ok(calibrate::calibrate(&mut disk, name, &plan, &mut progress)?)
}

fn plan(arguments: &Arguments, size_bytes: u64, write_area: Option<Range<u64>>) -> CalibrationPlan {
    // Reads alone come first: writes before them would be in their way.
    let mut read_percents = arguments.reads.clone();
    read_percents.sort_by(|a, b| b.cmp(a));
    read_percents.dedup();
    if write_area.is_none() {
        read_percents = vec![100];
    }
    CalibrationPlan {
        read_percents,
        loads_each: arguments.loads,
        duration: Duration::from_secs_f64(arguments.seconds),
        warm_up: Duration::from_secs_f64(arguments.seconds * WARM_UP),
        rest_max: REST_MAX,
        size_bytes,
        write_area,
        seed: SEED,
    }
}

/// Opens the device as the server does: exclusively, and for writing only where that is allowed.
fn open(arguments: &Arguments) -> anyhow::Result<(Device, Option<Range<u64>>)> {
    let name = arguments.device.as_str();
    // A wrong option is named before the device is opened.
    area(arguments, u64::MAX)?;
    let backing = Backing::Path {
        path: Path::new(name).to_path_buf(),
        create_bytes: None,
        is_preallocated: false,
        is_direct: true,
    };
    let device = Device::open(
        name,
        &backing,
        qos::SharedDevice::new(None),
        arguments.write_area.is_some(),
    )?;
    let size_bytes = device.size_bytes;
    ensure!(
        size_bytes >= 1 << 20,
        "{name}: has {size_bytes} bytes: at least 1 MiB is needed"
    );
    let area = area(arguments, size_bytes)?;
    let first = device.extents(0, size_bytes, 2);
    let is_hole = |extent: &block_server::nbd::reply::Extent| extent.state != 0;
    ensure!(
        !first.iter().any(is_hole),
        "{name}: has holes, and reads of holes never reach the disk. Fill the file first, with `dd if=/dev/urandom \
         of={name} bs=1M count={size_bytes} iflag=fullblock,count_bytes conv=notrunc`. `fallocate` is not enough: it \
         reserves space and writes nothing"
    );
    Ok((device, area))
}

/// The part of the device that may be written.
fn area(arguments: &Arguments, size_bytes: u64) -> anyhow::Result<Option<Range<u64>>> {
    let text = arguments.write_area.as_deref();
    let area = text.map(write_area).transpose()?;
    if let Some(area) = area.as_ref().filter(|area| area.end > size_bytes) {
        bail!(
            "--write-area ends at {} and {} has {size_bytes} bytes",
            area.end,
            arguments.device
        );
    }
    Ok(area)
}

fn write_area(text: &str) -> anyhow::Result<Range<u64>> {
    let wrong = || {
        format!(
            "--write-area is {text:?}: it must be OFFSET:LENGTH, multiples of 4 KiB, as in 0:10GiB"
        )
    };
    let (offset, length) = text.split_once(':').with_context(wrong)?;
    let offset = parse_size(offset).with_context(wrong)?;
    let length = parse_size(length).with_context(wrong)?;
    let end = offset.checked_add(length).with_context(wrong)?;
    let is_aligned = offset.is_multiple_of(BLOCK_BYTES) && length.is_multiple_of(BLOCK_BYTES);
    ensure!(length > 0 && is_aligned, wrong());
    Ok(offset..end)
}

fn text(calibration: &Calibration) -> String {
    let mut rows = crate::table::narrow(&[
        "reads",
        "offered IOPS",
        "IOPS",
        "p50 µs",
        "p95 µs",
        "p99 µs",
        "left out",
    ]);
    let us = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |us| format!("{us:.1}"));
    for load in &calibration.loads {
        rows.add_row([
            format!("{} %", load.read_percent),
            Grouped::rounded(load.offered_iops).to_string(),
            Grouped::rounded(load.iops).to_string(),
            us(load.p50_us),
            us(load.p95_us),
            us(load.p99_us),
            load.left_out.clone().unwrap_or_default(),
        ]);
    }
    let mut columns =
        crate::table::narrow(&["p95 µs", "tokens/s, reads alone", "tokens/s, with writes"]);
    let mixed = calibration.curve.mixed.as_ref();
    let both = [Some(&calibration.curve.read_only), mixed];
    let mut at: Vec<f64> = both
        .iter()
        .flatten()
        .flat_map(|column| column.points())
        .map(|point| point.p95_us)
        .collect();
    at.sort_by(f64::total_cmp);
    at.dedup();
    for p95_us in at {
        let tokens = |column: Option<&qos::Column>| {
            let rate = column.and_then(|column| column.tokens_per_s_at(p95_us));
            rate.map_or_else(|| "–".to_owned(), |rate| Grouped::rounded(rate).to_string())
        };
        columns.add_row([
            format!("{p95_us:.1}"),
            tokens(Some(&calibration.curve.read_only)),
            tokens(mixed),
        ]);
    }
    let price = match calibration.write_cost {
        Some(write_cost) => format!(
            "A read of 4 KiB costs 100 tokens, a write {}.\n",
            Grouped(write_cost.into())
        ),
        None => "Only reads were measured, so tenants that write cannot be admitted beside an objective.\n".to_owned(),
    };
    match calibration.loads.is_empty() {
        true => format!("{columns}\n{price}"),
        false => format!("{rows}\n{columns}\n{price}{}", warning(calibration)),
    }
}

/// That the calibration may be of a busy machine.
fn warning(calibration: &Calibration) -> String {
    let loads = &calibration.loads;
    let disturbed: Vec<&str> = loads
        .iter()
        .filter_map(|load| load.disturbed_by.as_deref())
        .collect();
    let Some(first) = disturbed.first() else {
        return String::new();
    };
    format!(
        "Warning: {} of {} loads were disturbed, the first one because {first}. The device may be faster than this \
         calibration says: calibrate again when the machine is quiet.\n",
        disturbed.len(),
        loads.len()
    )
}
