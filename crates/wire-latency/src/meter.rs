//! Latency over one stretch of time, such as a block of an experiment.

use std::time::{Duration, Instant};

use crate::monitor::Monitor;
use crate::reading::{Look, NoData};
use crate::source::{LatencySource, SourceSpec, Surroundings};
use crate::window::{Window, WindowRules};
use crate::{Error, open};

/// How often packets and timers are taken in.
const EVERY: Duration = Duration::from_millis(50);
/// A source that gives nothing for so long has no figure.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// Measures stretches of time, one after the other.
///
/// Packets and timers are taken in all the time, on a thread. A page of metrics, a Prometheus or a
/// command is asked at both ends of a stretch alone.
#[derive(Debug)]
pub struct Meter {
    rules: WindowRules,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Background(Monitor),
    OnDemand(OnDemand),
}

struct OnDemand {
    source: Box<dyn LatencySource>,
    began: Option<Instant>,
}

impl std::fmt::Debug for OnDemand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.source.describe())
    }
}

impl Meter {
    /// Opens a source. A stretch with fewer requests than `minimum_requests` has no figure.
    ///
    /// # Errors
    /// The source cannot be opened.
    pub fn start(
        spec: &SourceSpec,
        surroundings: &Surroundings,
        minimum_requests: u64,
    ) -> Result<Self, Error> {
        let rules = WindowRules {
            length: 2 * STALE_AFTER,
            minimum_requests,
            stale_after: STALE_AFTER,
        };
        let source = open(spec, surroundings)?;
        let kind = match spec {
            SourceSpec::Wire(_) | SourceSpec::Push(_) => {
                Kind::Background(Monitor::of_source(source, rules, EVERY)?)
            }
            SourceSpec::Scrape(_) | SourceSpec::Prometheus(_) | SourceSpec::Command(_) => {
                Kind::OnDemand(OnDemand {
                    source,
                    began: None,
                })
            }
        };
        Ok(Self { rules, kind })
    }

    /// Begins a stretch.
    ///
    /// # Errors
    /// The source gives no answer.
    pub fn begin(&mut self) -> Result<(), NoData> {
        match &mut self.kind {
            Kind::Background(monitor) => monitor.restart(),
            Kind::OnDemand(on_demand) => {
                match on_demand.source.poll(Instant::now()) {
                    Ok(_) | Err(NoData::Starting | NoData::Reset) => {}
                    Err(failure) => return Err(failure),
                }
                on_demand.began = Some(Instant::now());
            }
        }
        Ok(())
    }

    /// Ends the stretch: the latencies since it began.
    ///
    /// # Errors
    /// The reason for no data.
    pub fn end(&mut self) -> Look {
        match &mut self.kind {
            Kind::Background(monitor) => monitor.look_since_restart(),
            Kind::OnDemand(on_demand) => {
                let began = on_demand.began.take().ok_or(NoData::Starting)?;
                let polled = on_demand.source.poll(Instant::now());
                let now = Instant::now();
                let mut window = Window::new(self.rules);
                window.push(began, now, polled);
                window.look(now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::PushSpec;

    const SURROUNDINGS: Surroundings = Surroundings {
        pid: None,
        percentile: 99.0,
        cpu_budget_cores: 0.01,
    };

    #[test]
    fn timers_count_from_the_beginning_of_the_stretch() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("timers");
        let spec = SourceSpec::Push(PushSpec {
            udp: None,
            unix: Some(path.clone()),
            timer: None,
        });
        let mut meter = Meter::start(&spec, &SURROUNDINGS, 2).unwrap();
        let service = std::os::unix::net::UnixDatagram::unbound().unwrap();
        service.connect(&path).unwrap();
        let mut stretch = |timers: &[&str]| {
            meter.begin().unwrap();
            // A poll that began before the stretch did does not count.
            std::thread::sleep(3 * EVERY);
            for timer in timers {
                service.send(timer.as_bytes()).unwrap();
            }
            let began = Instant::now();
            loop {
                let look = meter.end();
                let seen = look.as_ref().map_or(0, |reading| reading.requests);
                if seen == timers.len() as u64 || began.elapsed() > Duration::from_secs(3) {
                    return look;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        assert_eq!(
            stretch(&["a:1|ms", "a:2|ms", "a:3|ms"]).unwrap().requests,
            3
        );
        assert_eq!(stretch(&["a:7|ms", "a:8|ms"]).unwrap().requests, 2);
        let thin = stretch(&["a:1|ms"]).unwrap_err();
        assert!(matches!(thin, NoData::Thin { requests: 1, .. }), "{thin}");
    }

    #[test]
    fn a_command_runs_at_both_ends_and_never_between() {
        let directory = tempfile::tempdir().unwrap();
        let runs = directory.path().join("runs");
        let script = format!("echo run >> {}; echo 2.5 300", runs.display());
        let argv = ["sh", "-c", &script].map(str::to_owned).to_vec();
        let spec = SourceSpec::Command(argv);
        let mut meter = Meter::start(&spec, &SURROUNDINGS, 1).unwrap();
        assert_eq!(meter.end().unwrap_err(), NoData::Starting);
        meter.begin().unwrap();
        let reading = meter.end().unwrap();
        assert_eq!(reading.requests, 300);
        assert_eq!(reading.percentile(99.0).unwrap().value_us, 2500.0);
        let runs = std::fs::read_to_string(&runs).unwrap();
        assert_eq!(runs.lines().count(), 2);
    }

    #[test]
    fn a_source_that_fails_is_said_at_the_beginning() {
        let spec = SourceSpec::Command(vec!["/nonexistent".to_owned()]);
        let mut meter = Meter::start(&spec, &SURROUNDINGS, 1).unwrap();
        let why = meter.begin().unwrap_err().to_string();
        assert!(why.contains("/nonexistent"), "{why}");
    }
}
