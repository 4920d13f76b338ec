//! Loading the sides of a block, and what the load says of them.

use std::time::{Duration, Instant};

use super::{Live, fault_of};
use crate::error::{Crash, CrashKind, Fault};
use crate::http;
use crate::metrics::SideMetrics;
use crate::parse;
use crate::process::{Launch, RunError, Running};
use crate::sampler::{difference, observed_pid};
use crate::side::Side;
use crate::spec::HttpSpec;
use crate::spec::{Pairing, WorkloadSpec};
use crate::target::Instance;
use crate::template;

/// How often a JVM's counters are read: more often than it collects.
const KEEP_UP: Duration = Duration::from_millis(250);
/// How often a block is loaded at which the load generator was not on time, and the objective or a
/// constraint is a latency.
const ATTEMPTS: usize = 3;
/// A load that takes so many times as long as the control's, and this much longer, is ended.
const TOO_SLOW_TIMES: u32 = 3;
const TOO_SLOW_LEAST: Duration = Duration::from_secs(5);

impl Live<'_> {
    /// The workload of this evaluation: the specification's, or the same without a rate.
    pub(super) fn loaded_by(&self) -> &WorkloadSpec {
        let saturated = self.spec.saturated.as_ref();
        saturated
            .filter(|_| self.saturates)
            .unwrap_or(self.spec.workload())
    }

    /// The workload's command for one side.
    fn workload(&self, side: Side, duration_s: f64) -> Result<Launch, Fault> {
        let Some(sides) = &self.sides else {
            return Err(Fault::Harness("the target is not started".into()));
        };
        let instance = &sides[side.index()].instance;
        let mut variables = instance.variables.clone();
        // Load generators take whole seconds; a fraction is passed on only where there is one.
        variables.insert("duration_s".into(), format!("{duration_s}"));
        let fill = |text: &String| {
            template::fill(text, &variables)
                .map_err(|error| Fault::Harness(format!("workload: {error}")))
        };
        let workload = self.loaded_by();
        let command = workload.command.iter().map(fill);
        let mut argv = command.collect::<Result<Vec<_>, _>>()?;
        if let Some(http) = &workload.http {
            argv.extend(self.service_arguments(http, instance));
            if self.has_own_cpus(http) {
                argv.push("--busy-poll".to_owned());
            }
        }
        Ok(Launch {
            argv,
            dir: self.spec.dir.clone(),
            cpus: self.workload_cpus(),
            log: instance.dir.join("workload"),
            ..instance.with_env(&workload.env, &self.spec.dir, &variables)?
        })
    }

    /// Where the workload runs: as the specification says; the built-in one else on CPUs that the
    /// sides do not have.
    fn workload_cpus(&self) -> Option<Vec<usize>> {
        let pins = &self.spec.pins;
        if pins.workload.is_some() || self.loaded_by().http.is_none() {
            return pins.workload.clone();
        }
        let of_sides = pins.sides.as_ref()?;
        let mut left = host::online_cpus(&self.roots).unwrap_or_default();
        left.retain(|cpu| !of_sides.iter().any(|side| side.contains(cpu)));
        Some(left).filter(|left| !left.is_empty())
    }

    /// Whether each thread of the built-in load generator has a CPU that no side has: it then polls
    /// instead of sleeping.
    fn has_own_cpus(&self, http: &HttpSpec) -> bool {
        let (Some(sides), Some(own)) = (&self.spec.pins.sides, self.workload_cpus()) else {
            return false;
        };
        let generators = match self.spec.target().pairing {
            Pairing::Parallel => 2,
            Pairing::Alternating => 1,
        };
        let is_apart = sides.iter().flatten().all(|cpu| !own.contains(cpu));
        is_apart && http.threads * generators <= own.len()
    }

    /// What the built-in load generator is told of the service, so that it takes real-time priority
    /// and knows who else used the CPUs.
    fn service_arguments(&self, http: &HttpSpec, instance: &Instance) -> Vec<String> {
        let observe = self.spec.target().observe.as_ref();
        let group = instance
            .group()
            .map(str::to_owned)
            .or_else(|| observe?.cgroup.clone());
        let pid = instance.pid();
        let pid = pid.or_else(|| observed_pid(observe?, &self.roots));
        let is_parallel = self.spec.target().pairing == Pairing::Parallel;
        match (group, pid) {
            // Each of two generators would take the other's service for somebody in the way.
            _ if is_parallel => vec!["--real-time".to_owned()],
            (Some(group), _) => vec!["--cgroup".to_owned(), group],
            (None, Some(pid)) => vec!["--service-pid".to_owned(), pid.to_string()],
            (None, None) if http.is_local() => vec!["--real-time".to_owned()],
            (None, None) => Vec::new(),
        }
    }

    /// Loads `order` (one side, or both at once) and returns their metrics. Where the load
    /// generator was not on time, and latency is what the experiment is about, the load is
    /// repeated; else it is left out, and what else was measured counts.
    pub(super) fn load(
        &mut self,
        order: &[Side],
        duration_s: f64,
    ) -> Result<Vec<SideMetrics>, Fault> {
        self.load_on_time(order, duration_s, true)
    }

    fn load_on_time(
        &mut self,
        order: &[Side],
        duration_s: f64,
        is_measured: bool,
    ) -> Result<Vec<SideMetrics>, Fault> {
        let mut attempt = 1;
        loop {
            let loaded = self.load_once(order, duration_s, is_measured)?;
            let late = order.iter().zip(&loaded);
            let mut late =
                late.filter_map(|(side, (_, complaint))| Some((side, complaint.as_ref()?)));
            let Some((side, complaint)) = late.next_back().filter(|_| self.needs_times()) else {
                return Ok(loaded.into_iter().map(|(metrics, _)| metrics).collect());
            };
            if attempt == ATTEMPTS {
                return Err(never_on_time(*side, complaint));
            }
            attempt += 1;
        }
    }

    /// Whether the objective, a constraint or what is reported needs what a late load generator
    /// makes wrong.
    fn needs_times(&self) -> bool {
        let Some(http) = &self.loaded_by().http else {
            return false;
        };
        let constraints = self.spec.constraints.iter();
        let constraints = constraints.map(|constraint| constraint.metric.as_str());
        let reported = self.spec.written().verification.report.iter();
        if self.saturates {
            return true;
        }
        std::iter::once(self.spec.objective().metric.as_str())
            .chain(constraints)
            .chain(reported.map(String::as_str))
            .any(|metric| http.is_hurt(metric))
    }

    /// Loads `order` before anything is measured.
    pub(super) fn warm_up(&mut self, order: &[Side], duration_s: f64) -> Result<(), Fault> {
        if self.loaded_by().is_of_users() {
            // What cannot be opened is said before the time is spent.
            self.begin_latency(order)?;
            return self.stay(Duration::from_secs_f64(duration_s));
        }
        self.load_on_time(order, duration_s, false).map(drop)
    }

    fn launches(&self, order: &[Side], duration_s: f64) -> Result<Vec<Launch>, Fault> {
        let launches = order.iter().map(|side| self.workload(*side, duration_s));
        launches.collect()
    }

    /// The metrics of each side, and why the load generator's are not all there.
    pub(super) fn load_once(
        &mut self,
        order: &[Side],
        duration_s: f64,
        is_measured: bool,
    ) -> Result<Vec<(SideMetrics, Option<String>)>, Fault> {
        let is_of_users = self.loaded_by().is_of_users();
        let launches = match is_of_users {
            true => Vec::new(),
            false => self.launches(order, duration_s)?,
        };
        self.begin_latency(order)?;
        let mut before = Vec::new();
        for side in order {
            before.push(self.counters(*side)?);
        }
        let started = Instant::now();
        let outputs = match is_of_users {
            true => {
                self.stay(Duration::from_secs_f64(duration_s))?;
                Vec::new()
            }
            false => self.run_workloads(order, &launches, duration_s)?,
        };
        let duration_s = started.elapsed().as_secs_f64();
        self.check_alive()?;
        let mut metrics = Vec::new();
        for (index, (side, before)) in order.iter().zip(&before).enumerate() {
            let counted = difference(&self.counters(*side)?, before);
            let mut counted = counted.map_err(|message| side.unmeasured(message))?;
            counted.insert("duration_s".into(), duration_s);
            let mut complaint = None;
            if let (Some(output), Some(launch)) = (outputs.get(index), launches.get(index)) {
                let (parsed, why) = self.read_output(output).map_err(|error| {
                    let said = launch.without_secrets(&error);
                    side.gave_nothing("workload", &format!("{said}. {}", launch.account()))
                })?;
                counted.extend(parsed);
                complaint = why;
            }
            counted.extend(self.gauges(*side)?);
            counted.extend(self.memory(*side));
            metrics.push((counted, complaint));
        }
        // A warm-up may be too short for a figure.
        if is_measured {
            self.end_latency(order, &mut metrics)?;
        }
        Ok(metrics)
    }

    /// Waits while the service's own users load it.
    fn stay(&mut self, duration: Duration) -> Result<(), Fault> {
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let slept = self.interrupt.sleep(left.min(KEEP_UP));
            slept.map_err(Fault::Interrupted)?;
            self.check_alive()?;
            for side in self.sides.iter_mut().flatten() {
                side.sampler.keep_up();
            }
        }
    }

    /// Runs the load generators of `order` side by side; what each printed.
    fn run_workloads(
        &mut self,
        order: &[Side],
        launches: &[Launch],
        duration_s: f64,
    ) -> Result<Vec<String>, Fault> {
        let started = Instant::now();
        let mut running = Vec::new();
        for (launch, side) in launches.iter().zip(order) {
            let started = Running::start(launch);
            running.push(started.map_err(|error| fault_of("workload", &error, *side))?);
        }
        let http = self.loaded_by().http.as_ref();
        let longest_s = http.map_or(duration_s, |http| http.longest_s(duration_s));
        let timeout = Duration::from_secs_f64(longest_s + self.spec.workload().grace_s);
        let mut outputs = Vec::new();
        for (running, of) in running.into_iter().zip(order) {
            let slow = self.slow_limit(*of, longest_s);
            let timeout = slow.map_or(timeout, |slow| slow.min(timeout));
            let sides = &mut self.sides;
            let mut died = None;
            let mut kept_up = Instant::now();
            let output = running.wait(timeout, &self.interrupt, || {
                for side in sides.iter_mut().flatten() {
                    if let Err(crash) = side.instance.alive() {
                        let message = crash.to_string();
                        died = Some((side.instance.side, crash));
                        return Err(message);
                    }
                    if kept_up.elapsed() > KEEP_UP {
                        side.sampler.keep_up();
                    }
                }
                if kept_up.elapsed() > KEEP_UP {
                    kept_up = Instant::now();
                }
                Ok(())
            });
            match (output, died) {
                (Err(RunError::TargetDied(_)), Some((side, crash))) => {
                    return Err(side.fault(crash));
                }
                (Err(RunError::Timeout(_)), _) if slow.is_some_and(|slow| slow == timeout) => {
                    return Err(of.fault(self.too_slow(timeout)));
                }
                (Err(error), _) => {
                    // A load generator that fails because its server has just died is not to blame.
                    self.check_alive()?;
                    return Err(fault_of("workload", &error, *of));
                }
                (Ok(output), _) => {
                    if *of == Side::Control {
                        self.control_took = Some(started.elapsed());
                    }
                    outputs.push(output);
                }
            }
        }
        Ok(outputs)
    }

    /// After how long the experiment's load is ended because it takes several times as long as the
    /// control's did: a load of so many requests takes as long as a bad configuration makes it.
    fn slow_limit(&self, side: Side, duration_s: f64) -> Option<Duration> {
        let took = self.control_took.filter(|_| side == Side::Experiment)?;
        let planned = Duration::from_secs_f64(duration_s);
        Some(took.max(planned) * TOO_SLOW_TIMES + TOO_SLOW_LEAST)
    }

    /// The crash of a configuration whose load was ended after that long.
    fn too_slow(&self, after: Duration) -> Crash {
        let took_s = self.control_took.unwrap_or_default().as_secs_f64();
        Crash {
            kind: CrashKind::TooSlow,
            status: None,
            message: format!(
                "its load was ended after {:.1} s, where the control's took {took_s:.1} s",
                after.as_secs_f64()
            ),
            output: None,
        }
    }

    /// What the workload's output says; of the built-in one also why times are missing.
    fn read_output(&self, output: &str) -> Result<(SideMetrics, Option<String>), String> {
        let workload = self.loaded_by();
        if let Some(http) = &workload.http {
            return http::read_report(http, output);
        }
        let parsed = if let Some(format) = &workload.parse {
            parse::parse(format, output)
        } else if workload.regex.is_empty() {
            parse::parse_json(&workload.json, output)
        } else {
            parse::parse_regex(&workload.regex, output)
        };
        Ok((parsed.map_err(|error| error.to_string())?, None))
    }
}

/// Whose fault it is that the built-in load was late in each attempt on this side.
fn never_on_time(side: Side, complaint: &str) -> Fault {
    side.unmeasured(format!(
        "the load on the side of the {} could not be measured ({ATTEMPTS} attempts): {complaint}",
        side.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Arm;
    use crate::process::Interrupt;

    /// What the built-in load is told of a target with these keys.
    fn told(target: &str, url: &str) -> Vec<String> {
        let text = format!(
            r#"
parameters = [{{ name = "x", type = "int", low = 0, high = 1, default = 0 }}]
target = {{ {target} }}
workload = {{ http = {{ url = "{url}", rate = 100 }} }}
objective = {{ metric = "latency_p99_us" }}
"#
        );
        let roots = host::Roots::default();
        let spec = crate::spec::context(&roots).check(text, "told.toml".as_ref());
        let spec = spec.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let live = Live::new(&spec, &dir.path().join("state"), Interrupt::default()).unwrap();
        let arm = Arm::control(&spec);
        let instance = Instance::prepare(&spec, &arm, Side::Control, dir.path()).unwrap();
        live.service_arguments(spec.workload().http.as_ref().unwrap(), &instance)
    }

    #[test]
    fn a_late_load_names_the_control() {
        let said =
            "the load on the side of the control could not be measured (3 attempts): 9 ms late";
        let fault = never_on_time(Side::Control, "9 ms late");
        assert_eq!(fault, Fault::Harness(said.into()));
    }

    #[test]
    fn a_late_load_names_the_candidate() {
        let said =
            "the load on the side of the experiment could not be measured (3 attempts): 9 ms late";
        let fault = never_on_time(Side::Experiment, "9 ms late");
        assert_eq!(fault, Fault::Unmeasured(said.into()));
    }

    /// What is said of a load that ended with an error, as the built-in one does without answers.
    fn without_answers(side: Side) -> Fault {
        let error = RunError::Status("exit status 1 and printed: no request was answered".into());
        fault_of("workload", &error, side)
    }

    #[test]
    fn a_control_that_does_not_answer_is_named() {
        let said = "workload: failed on the side of the control: exit status 1 and printed: no request was answered";
        assert_eq!(without_answers(Side::Control), Fault::Harness(said.into()));
    }

    #[test]
    fn a_candidate_that_does_not_answer_is_named() {
        let said = "workload: failed on the side of the experiment: exit status 1 and printed: no request was answered";
        assert_eq!(
            without_answers(Side::Experiment),
            Fault::Unmeasured(said.into())
        );
    }

    #[test]
    fn the_load_is_told_which_service_it_loads() {
        let here = "http://127.0.0.1:1/";
        let running = |observe: &str| {
            told(
                &format!("apply = [{{ command = [\"true\"] }}], observe = {{ {observe} }}"),
                here,
            )
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let by_file = format!("pid_file = {file:?}");
        // Not there yet: the service is on this machine all the same.
        assert_eq!(running(&by_file), ["--real-time"]);
        // A service that was started again has another process.
        for pid in ["4711\n", "4712\n"] {
            std::fs::write(&file, pid).unwrap();
            assert_eq!(running(&by_file), ["--service-pid", pid.trim()]);
        }
        assert_eq!(running("pid = 4713"), ["--service-pid", "4713"]);
        let group = running("cgroup = \"a.slice/b.service\"");
        assert_eq!(group, ["--cgroup", "a.slice/b.service"]);
        // Each of two generators would take the other's service for a neighbour.
        let two = "start = [\"sleep\", \"9\"], pairing = \"parallel\"";
        assert_eq!(told(two, here), ["--real-time"]);
        let elsewhere = "apply = [{ command = [\"true\"] }]";
        assert_eq!(told(elsewhere, "http://service.example/"), [""; 0]);
    }
}
