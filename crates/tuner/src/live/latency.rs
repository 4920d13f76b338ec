//! Metrics that are percentiles of the latency of a side's requests.
//!
//! A source is opened once and measures one block after the other. Several percentiles of one
//! source share it.

use wire_latency::{NoData, SourceSpec};

use super::Live;
use super::active_side::ActiveSide;
use super::meters::Wanted;
use crate::error::Fault;
use crate::metrics::SideMetrics;
use crate::sampler::observed_pid;
use crate::side::Side;
use crate::spec::{LatencyMetric, requests_of};

impl Live<'_> {
    /// The sources of a side, each with the metric that reads it.
    fn wanted(&self, active: &ActiveSide) -> Result<Vec<(String, Wanted)>, Fault> {
        let mut found = Vec::new();
        for (name, metric) in &self.spec.written().metrics {
            let Some(latency) = metric.latency() else {
                continue;
            };
            let variables = &active.instance.variables;
            let source = latency
                .filled(variables)
                .map_err(|(key, why)| Fault::Harness(format!("metrics.{name}.{key}: {why}")))?;
            // Others than packets are not looked for in a namespace.
            let pid = match latency {
                LatencyMetric::Wire(_) => {
                    let observe = self.spec.target().observe.as_ref();
                    let own = active.instance.pid();
                    own.or_else(|| observed_pid(observe?, &self.roots))
                }
                LatencyMetric::Scrape(_) | LatencyMetric::Push(_) => None,
            };
            found.push((name.clone(), Wanted { source, pid }));
        }
        Ok(found)
    }

    /// Makes the sockets that a service sends its timers to, before it is started.
    pub(super) fn open_sockets(&mut self, side: Side, sides: &[ActiveSide]) -> Result<(), Fault> {
        let Some(active) = sides.last() else {
            return Ok(());
        };
        let wanted = self.wanted(active)?;
        let is_pushed = |wanted: &Wanted| matches!(wanted.source, SourceSpec::Push(_));
        for (name, wanted) in wanted.into_iter().filter(|(_, wanted)| is_pushed(wanted)) {
            self.meters.open(&name, wanted, side)?;
        }
        Ok(())
    }

    /// Closes the sources of started instances. A running service sends its timers to the same
    /// sockets in the next evaluation.
    pub(super) fn close_meters(&mut self) {
        if self.spec.target().start.is_some() {
            self.meters.close();
        }
    }

    /// The open sources of a side, each with the metric that reads it.
    fn meters_of(&mut self, side: Side) -> Result<Vec<(String, usize)>, Fault> {
        let Some(sides) = &self.sides else {
            return Ok(Vec::new());
        };
        let wanted = self.wanted(&sides[side.index()])?;
        // A service that was restarted is another process, perhaps in another namespace.
        if self.spec.target().start.is_none() {
            self.meters.close_others(&wanted);
        }
        let opened = wanted.into_iter().map(|(name, wanted)| {
            let index = self.meters.open(&name, wanted, side)?;
            Ok((name, index))
        });
        opened.collect()
    }

    /// Begins a block: what the sources saw before no longer counts.
    pub(super) fn begin_latency(&mut self, order: &[Side]) -> Result<(), Fault> {
        let mut begun = Vec::new();
        for side in order {
            for (name, index) in self.meters_of(*side)? {
                if begun.contains(&index) {
                    continue;
                }
                begun.push(index);
                let began = self.meters.at(index).begin();
                began.map_err(|no_data| fault(*side, &name, &no_data))?;
            }
        }
        Ok(())
    }

    /// Ends a block: each side's percentiles, and the requests that they stand on.
    pub(super) fn end_latency(
        &mut self,
        order: &[Side],
        metrics: &mut [(SideMetrics, Option<String>)],
    ) -> Result<(), Fault> {
        let is_of_users = self.loaded_by().is_of_users();
        for (side, (metrics, _)) in order.iter().zip(metrics) {
            let meters = self.meters_of(*side)?;
            let mut looks = Vec::new();
            for (name, index) in meters {
                if !looks.iter().any(|(known, _)| *known == index) {
                    looks.push((index, self.meters.at(index).end()));
                }
                let look = looks.iter().find(|(known, _)| *known == index);
                let latency = self
                    .spec
                    .written()
                    .metrics
                    .get(&name)
                    .and_then(|it| it.latency());
                let (Some((_, look)), Some(latency)) = (look, latency) else {
                    continue;
                };
                let reading = look
                    .as_ref()
                    .map_err(|no_data| fault(*side, &name, no_data))?;
                let minimum = latency.minimum_requests();
                let figure = reading.percentile(latency.percentile());
                let Some(figure) = figure.filter(|it| it.requests >= minimum) else {
                    let thin = NoData::Thin {
                        requests: reading.requests,
                        minimum,
                        window_s: reading.window_s,
                    };
                    return Err(fault(*side, &name, &thin));
                };
                if is_of_users {
                    let requests = (reading.requests_per_s() * reading.window_s).round();
                    metrics.entry("requests".to_owned()).or_insert(requests);
                }
                metrics.insert(requests_of(&name), figure.requests as f64);
                metrics.insert(name, figure.value_us);
            }
        }
        Ok(())
    }
}

/// A block without a figure was not measured.
fn fault(side: Side, name: &str, no_data: &NoData) -> Fault {
    side.unmeasured(format!("metrics.{name}: no data: {no_data}"))
}
