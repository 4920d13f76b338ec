//! The sources of latency that are open.

use wire_latency::{Meter, SourceSpec, Surroundings};

use crate::error::Fault;
use crate::side::Side;

/// The sources that are open.
#[derive(Debug, Default)]
pub(super) struct Meters(Vec<Open>);

#[derive(Debug)]
struct Open {
    of: Wanted,
    meter: Meter,
}

/// What is to be read, and in whose network namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    pub(super) source: SourceSpec,
    pub(super) pid: Option<u32>,
}

impl Meters {
    /// The index of the open source.
    pub(super) fn open(&mut self, name: &str, wanted: Wanted, side: Side) -> Result<usize, Fault> {
        if let Some(found) = self.0.iter().position(|open| open.of == wanted) {
            return Ok(found);
        }
        let surroundings = Surroundings {
            pid: wanted.pid,
            ..Surroundings::default()
        };
        // How many requests a figure has to stand on differs from metric to metric.
        let meter = Meter::start(&wanted.source, &surroundings, 1)
            .map_err(|error| side.unmeasured(format!("metrics.{name}: {error}")))?;
        self.0.push(Open { of: wanted, meter });
        Ok(self.0.len() - 1)
    }

    /// The open source at this index.
    pub(super) fn at(&mut self, index: usize) -> &mut Meter {
        &mut self.0[index].meter
    }

    /// Closes those of these sources that are open for another process.
    pub(super) fn close_others(&mut self, wanted: &[(String, Wanted)]) {
        self.0.retain(|open| {
            let mut same = wanted.iter().filter(|(_, it)| it.source == open.of.source);
            same.all(|(_, it)| it.pid == open.of.pid)
        });
    }

    /// Closes all.
    pub(super) fn close(&mut self) {
        self.0.clear();
    }
}
