//! Counts what a target's processes did between two moments.

use host::{CgroupReader, HsPerf, ProcessTree, Roots};
use http_client::Data;

use crate::client::client;
use crate::error::Fault;
use crate::metrics::{JIT_TIME, SideMetrics};
use crate::spec::{MetricSpec, ObserveSpec};

/// What is counted of one side of the target.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    processes: Option<ProcessTree>,
    jvm: Option<HsPerf>,
    group: Option<CgroupReader>,
}

impl Sampler {
    /// A process and its descendants; and the group of their own, if they have one.
    pub(crate) fn of_process(pid: u32, group: Option<&str>, roots: &Roots) -> Result<Self, Fault> {
        Ok(Self {
            processes: Some(group.map_or_else(|| ProcessTree::of(pid), ProcessTree::of_group)),
            // Not a JVM, or one without -XX:+UsePerfData: it has no such counters.
            jvm: HsPerf::open(pid, roots).ok(),
            group: group.map(|group| open_group(roots, group)).transpose()?,
        })
    }

    /// The sampler of a service that was running before.
    pub(crate) fn of_observed(observe: Option<&ObserveSpec>, roots: &Roots) -> Result<Self, Fault> {
        let Some(observe) = observe else {
            return Ok(Self::default());
        };
        if let Some(group) = &observe.cgroup {
            return Ok(Self {
                processes: Some(ProcessTree::of_group(group)),
                jvm: None,
                group: Some(open_group(roots, group)?),
            });
        }
        let pid = match (&observe.pid, &observe.pid_file) {
            (Some(pid), _) => *pid,
            (None, Some(path)) => pid_in(path).map_err(Fault::Harness)?,
            (None, None) => return Ok(Self::default()),
        };
        Self::of_process(pid, None, roots)
    }

    /// Keeps up with a JVM, whose allocation is only visible between two collections: to be called
    /// a few times a second (see [`host::hsperf`]).
    pub(crate) fn keep_up(&mut self) {
        if let Some(jvm) = &mut self.jvm {
            // A JVM that has just died is found by the next reading.
            let _ = jvm.sample();
        }
    }

    /// Memory of the processes at the last reading, in bytes.
    pub(crate) fn memory_bytes(&self, roots: &Roots) -> Option<u64> {
        self.processes.as_ref()?.memory_bytes(roots)
    }

    /// The counters as they are now.
    pub(crate) fn read(&mut self, roots: &Roots) -> Result<SideMetrics, Fault> {
        let harness = |error: host::HostError| Fault::Harness(error.to_string());
        let mut counters = SideMetrics::new();
        let mut put = |name: &str, value: f64| {
            counters.insert(name.to_owned(), value);
        };
        let mut cpu = None;
        if let Some(processes) = &mut self.processes {
            let sample = processes.read(roots).map_err(harness)?;
            cpu = Some(sample.cpu);
            let switches = sample.voluntary_switches + sample.involuntary_switches;
            put("context_switches", switches as f64);
            put("involuntary_switches", sample.involuntary_switches as f64);
        }
        if let Some(jvm) = &mut self.jvm {
            let sample = jvm.sample().map_err(harness)?;
            put("jvm_gc_cycles", sample.gc_cycles as f64);
            put("jvm_gc_time_s", sample.gc_time_s);
            put(JIT_TIME, sample.jit_time_s);
            put("jvm_allocated_bytes", sample.allocated_bytes as f64);
        }
        if let Some(group) = &mut self.group {
            let sample = group.sample().map_err(harness)?;
            // In place of the processes': it knows those that came and went between two readings.
            cpu = sample.cpu.or(cpu);
            put("periods", sample.periods as f64);
            put("throttled_periods", sample.throttled_periods as f64);
            put("throttled_s", sample.throttled_s);
        }
        if let Some(cpu) = cpu {
            put("cpu_s", cpu.total_s());
            put("cpu_user_s", cpu.user_s);
            put("cpu_system_s", cpu.system_s);
        }
        Ok(counters)
    }
}

fn pid_in(path: &std::path::Path) -> Result<u32, String> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    let pid = text.trim().parse();
    pid.map_err(|_| format!("{} holds no pid", path.display()))
}

/// A process of a service that was running before.
pub(crate) fn observed_pid(observe: &ObserveSpec, roots: &Roots) -> Option<u32> {
    let of_file = || pid_in(observe.pid_file.as_ref()?).ok();
    let of_group = || {
        let group = observe.cgroup.as_ref()?;
        host::processes_below(roots, group).ok()?.into_iter().min()
    };
    observe.pid.or_else(of_file).or_else(of_group)
}

fn open_group(roots: &Roots, group: &str) -> Result<CgroupReader, Fault> {
    CgroupReader::open(roots, group).map_err(|error| Fault::Harness(error.to_string()))
}

/// How far a counter may seem to fall by rounding, as where it is a sum of many.
const ROUNDING: f64 = 1e-9;

/// `after − before`, for every counter that both have.
///
/// # Errors
/// In words: a counter that fell counts something else now, as after a restart of the service.
pub(crate) fn difference(after: &SideMetrics, before: &SideMetrics) -> Result<SideMetrics, String> {
    let common = after
        .iter()
        .filter_map(|(name, after)| Some((name, *after, *before.get(name)?)));
    common
        .map(|(name, after, before)| {
            if after < before - ROUNDING * before.abs() {
                return Err(format!(
                    "the counter {name} went from {before} to {after}: was the service restarted meanwhile?"
                ));
            }
            Ok((name.clone(), after - before))
        })
        .collect()
}

/// The value of a Prometheus query or of a command's output.
pub(crate) fn external(
    name: &str,
    metric: &MetricSpec,
    run: impl FnOnce(&[String]) -> Result<String, Fault>,
) -> Result<f64, Fault> {
    let harness = |message: String| Fault::Harness(format!("metrics.{name}: {message}"));
    if let Some(command) = &metric.command {
        let output = run(command)?;
        let number = output.trim().parse().ok();
        return number.filter(|it: &f64| it.is_finite()).ok_or_else(|| {
            let begin: String = output.trim().chars().take(80).collect();
            harness(format!("the command printed {begin:?}, not one number"))
        });
    }
    let (Some(base), Some(query)) = (&metric.prometheus, &metric.query) else {
        return Err(harness("has no source".into()));
    };
    let url = http_client::Url::parse(base).map_err(harness)?;
    let answer = client().prometheus(&url, query, None);
    let answer = answer.map_err(|error| harness(error.to_string()))?;
    answer.number().ok_or_else(|| {
        let yielded = match answer.data {
            Data::Vector(series) => format!("{} series", series.len()),
            Data::Scalar(value) => value.to_string(),
            _ => "a range or a text".to_owned(),
        };
        harness(format!("{query:?} yields no single number but {yielded}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_fell_measures_nothing() {
        let at = |errors: f64| SideMetrics::from([("errors".to_owned(), errors)]);
        assert_eq!(difference(&at(1e6), &at(999_999.0)), Ok(at(1.0)));
        let rounded = difference(&at(0.3), &at(0.1 + 0.2)).unwrap();
        assert!(rounded["errors"].abs() < 1e-15);
        let error = difference(&at(400.0), &at(1000.0)).unwrap_err();
        assert!(error.contains("errors went from 1000 to 400"), "{error}");
    }

    #[test]
    fn a_metric_is_a_finite_number_and_little_of_anything_else_is_said() {
        let metric = MetricSpec {
            command: Some(Vec::new()),
            ..MetricSpec::default()
        };
        let read = |output: &str| external("x", &metric, |_| Ok(output.to_owned()));
        assert_eq!(read(" 2.5\n"), Ok(2.5));
        for garbage in ["nan", "inf", "1e400", "", "two"] {
            let fault = read(garbage).unwrap_err().to_string();
            assert_eq!(
                fault,
                format!("metrics.x: the command printed {garbage:?}, not one number")
            );
        }
        let fault = read(&"z".repeat(5_000_000)).unwrap_err().to_string();
        assert!(fault.len() < 200, "{}", fault.len());
    }

    #[test]
    fn a_group_without_cpu_time_of_its_own_has_that_of_its_processes() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::at(dir.path());
        for (file, text) in [
            (
                "cpu/g/cpu.stat",
                "nr_periods 10\nnr_throttled 3\nthrottled_time 1500000000\n",
            ),
            ("cpu/g/cgroup.procs", ""),
            ("cpuacct/cpuacct.usage", "1\n"),
        ] {
            let path = roots.sys("fs/cgroup").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut sampler = Sampler {
            processes: Some(ProcessTree::of_group("g")),
            jvm: None,
            group: Some(open_group(&roots, "g").unwrap()),
        };
        let counters = sampler.read(&roots).unwrap();
        assert_eq!(counters["throttled_periods"], 3.0);
        assert_eq!(counters["cpu_s"], 0.0);
    }
}
