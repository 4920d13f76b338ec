//! What a report says of capacity: why the capacity of its winner was not compared with the
//! control's, and which side could not keep up with a load that has a rate of its own.

use crate::conclusion::{Guard, GuardVerdict};
use crate::evaluation::Block;
use crate::figures::significant;
use crate::metrics::{SideMetrics, lookup};
use crate::report::{ArmResult, Finding, Report};
use crate::spec::LoadLoop;
use crate::spec::{ExperimentMode, WorkloadSpec};

/// A side of which more requests than this share found every connection busy is overloaded: its
/// queue does not empty. (Short bursts make far fewer wait.)
const WAITED_SHARE: f64 = 0.5;
/// Both sides are sent the same requests. A side that answers less than this share of the other's
/// answers has not kept up with the load. Counts of a block differ by chance by less: by 1 % where
/// there are 10,000 requests at random times.
const ANSWERED_SHARE: f64 = 0.95;

/// What is said of the capacity of a winner that is better: nothing, where it was compared.
pub(crate) fn not_measured(report: &Report, winner: &ArmResult) -> Option<String> {
    let workload = report.spec.workload.as_ref()?;
    let is_measured = winner.guards.iter().any(|it| it.at_saturation);
    if is_measured || workload.load_loop() == LoadLoop::Closed {
        return None;
    }
    Some(match why_not_measured(report, winner, workload) {
        Some(why) => format!("Capacity was not measured: {why}."),
        None => "Capacity was not measured.".to_owned(),
    })
}

/// Why the capacity of a winner was not compared, as far as the report says it.
fn why_not_measured(
    report: &Report,
    winner: &ArmResult,
    workload: &WorkloadSpec,
) -> Option<String> {
    let mut arms = report.verification.iter();
    if let Some(arm) = arms.find(|arm| arm.capacity_of.as_ref() == Some(&winner.name)) {
        let why = arm.faults.first();
        return why
            .or_else(|| arm.without_interval.values().next())
            .cloned();
    }
    let spec = &report.spec;
    let asked = spec.verification.capacity;
    let starts = spec.target.as_ref().is_some_and(|it| it.start.is_some());
    let is_specified = |guard: Guard| {
        let mut guards = winner.guards.iter().filter(|it| it.guard == guard);
        guards.any(|it| it.verdict == GuardVerdict::Specified)
    };
    let why = if workload.http.is_none() && workload.is_of_users() {
        "the service's own users are the load"
    } else if asked == Some(false) {
        "`verification.capacity` is false"
    } else if asked.is_none() && spec.mode == ExperimentMode::Continuous {
        "continuous mode does not saturate a service unless `verification.capacity` is true"
    } else if asked.is_none() && !starts {
        "Slackline saturates a service that it does not start only if `verification.capacity` is true"
    } else if workload.saturated().is_none() {
        match workload.load_loop() {
            LoadLoop::Unknown => {
                "Slackline does not know whether this load waits for answers. If it does, set `workload.closed_loop`. If it does \
                 not, give the same load without a rate as `workload.capacity_command`"
            }
            _ => {
                "the load has a rate of its own. Give the same load without a rate as `workload.capacity_command`"
            }
        }
    } else if is_specified(Guard::Throughput) {
        "the objective or a constraint is about the throughput at the load's own rate"
    } else if report.interrupted.is_some() || report.paused {
        "the verification was ended before"
    } else if report.finding == Finding::Undecided {
        "a constraint is not decided, and Slackline compares the capacity only of a winner that holds every constraint"
    } else if report.finding == Finding::Paid {
        "a guard is worse, and Slackline compares the capacity only if no guard is worse"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Which sides could not keep up with a load that has a rate of its own, by what is known of it,
/// and what to do.
pub(crate) fn overload(report: &Report, winner: &ArmResult) -> Option<String> {
    let workload = report.spec.workload.as_ref()?;
    if workload.load_loop() != LoadLoop::Open {
        return None;
    }
    let blocks: Vec<&Block> = winner.runs_blocks.iter().flatten().collect();
    let sides: [Vec<&SideMetrics>; 2] = [
        blocks.iter().map(|it| &it.control).collect(),
        blocks.iter().map(|it| &it.experiment).collect(),
    ];
    let [control, candidate] = sides.each_ref().map(|side| Answered::of(side));
    let said = [
        control.overload("The control", &candidate, "the winner"),
        candidate.overload("The winner", &control, "the control"),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    let rate = match &workload.http {
        Some(_) => "set a lower `workload.http.rate`, or allow more `workload.http.connections`",
        None => "give the load a lower rate",
    };
    (!said.is_empty()).then(|| {
        format!(
            "{} To compare two sides that keep up with the load, {rate}.",
            said.join(" ")
        )
    })
}

/// What one side did with the load, on average over the blocks.
struct Answered {
    /// Requests a second, where they are counted.
    rate: Option<f64>,
    /// The share of the requests that found every connection busy.
    waited: Option<f64>,
}

impl Answered {
    fn of(side: &[&SideMetrics]) -> Self {
        let mean = |name: &str| {
            let values = side.iter().map(|it| lookup(it, name));
            let values: Option<Vec<f64>> = values.collect();
            let values = values.filter(|it| !it.is_empty())?;
            Some(values.iter().sum::<f64>() / values.len() as f64)
        };
        let mut rates = Guard::Throughput.metrics().iter();
        Self {
            rate: rates.find_map(|name| mean(name)),
            waited: mean("waited_share"),
        }
    }

    fn overload(&self, name: &str, other: &Self, other_name: &str) -> Option<String> {
        if let Some(waited) = self.waited.filter(|waited| *waited > WAITED_SHARE) {
            return Some(format!(
                "{name} was overloaded: {:.0} % of its requests waited for a free connection.",
                100.0 * waited
            ));
        }
        let (own, theirs) = self.rate.zip(other.rate)?;
        (own < ANSWERED_SHARE * theirs).then(|| {
            format!(
                "{name} did not keep up with the load: it answered {} requests a second, and {other_name} {}.",
                significant(own),
                significant(theirs)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use host::Roots;

    use super::*;
    use crate::evaluation::SideOrder;
    use crate::ledger::PlannedArm;

    /// A report and its winner, whose specification has these lines, and whose sides answered so
    /// many requests a second with so large a share of them waiting.
    fn report(lines: &str, control: [f64; 2], winner: [f64; 2]) -> (Report, ArmResult) {
        let text = format!(
            r#"parameters = [{{ name = "x", type = "int", low = 0, high = 1, default = 0 }}]
{lines}"#
        );
        let spec = crate::spec::context(&Roots::default())
            .check(text, "x.toml".as_ref())
            .unwrap();
        let mut report = crate::experiment::begin(&spec);
        report.finding = Finding::Improvement;
        let side = |[rate, waited]: [f64; 2]| -> SideMetrics {
            [("requests_per_s", rate), ("waited_share", waited)]
                .map(|(name, value)| (name.to_owned(), value))
                .into()
        };
        let block = Block {
            start_s: 0.0,
            order: SideOrder::Parallel,
            control: side(control),
            experiment: side(winner),
        };
        let planned = PlannedArm::candidate(1, report.control.clone());
        let mut arm = ArmResult::of(&planned);
        arm.runs_blocks = vec![vec![block.clone(), block]];
        report.verification = vec![arm.clone()];
        (report, arm)
    }

    const STARTED: &str = r#"target = { start = ["sleep", "9"] }
objective = { metric = "cpu_s_per_request" }"#;
    const HTTP: &str = r#"workload = { http = { url = "http://127.0.0.1:1/", rate = 4000 } }"#;

    #[test]
    fn the_side_that_was_overloaded_is_named_with_what_to_do() {
        let lines = format!("{STARTED}\n{HTTP}");
        let of = |control, winner| {
            let (report, arm) = report(&lines, control, winner);
            overload(&report, &arm)
        };
        assert_eq!(of([4000.0, 0.02], [4000.0, 0.01]), None);
        assert_eq!(
            of([3100.0, 0.93], [4000.0, 0.01]).unwrap(),
            "The control was overloaded: 93 % of its requests waited for a free connection. To compare two sides that keep up with \
             the load, set a lower `workload.http.rate`, or allow more `workload.http.connections`."
        );
        let both = of([3100.0, 0.93], [3900.0, 0.7]).unwrap();
        assert!(both.contains("The control was overloaded"), "{both}");
        assert!(both.contains("The winner was overloaded"), "{both}");
        // Another load generator says nothing of connections.
        let lines = format!(
            r#"{STARTED}
workload = {{ command = ["wrk2", "-R4000"], parse = "wrk" }}"#
        );
        let (report, arm) = report(&lines, [4000.0, 0.0], [3100.0, 0.0]);
        let said = overload(&report, &arm).unwrap();
        assert!(
            said.starts_with(
                "The winner did not keep up with the load: it answered 3100 requests a second, and the control 4000."
            ),
            "{said}"
        );
    }

    #[test]
    fn a_capacity_that_was_not_measured_has_the_reason_that_is_known() {
        let of = |lines: &str, finding: Finding| {
            let (mut report, mut arm) = report(lines, [4000.0, 0.0], [4000.0, 0.0]);
            report.finding = finding;
            let verdict = match lines.contains("constraints") {
                true => GuardVerdict::Specified,
                false => GuardVerdict::NotWorse,
            };
            arm.guards.push(crate::conclusion::GuardResult {
                guard: Guard::Throughput,
                metric: None,
                verdict,
                change: None,
                is_allowed: false,
                at_saturation: false,
            });
            not_measured(&report, &arm).unwrap_or_default()
        };
        let better = Finding::Improvement;
        let http = format!("{STARTED}\n{HTTP}");
        let with = |more: &str| format!("{more}\n{http}");
        for (lines, finding, said) in [
            (
                with("verification = { capacity = false }"),
                better,
                "`verification.capacity` is false",
            ),
            (
                with(r#"constraints = ["requests_per_s >= 0.9 * control"]"#),
                better,
                "about the throughput at the load's own rate",
            ),
            (
                http.clone(),
                Finding::Undecided,
                "a constraint is not decided",
            ),
            (http.clone(), Finding::Paid, "a guard is worse"),
            (
                format!("{STARTED}\nworkload = {{ command = [\"wrk2\"], parse = \"wrk\" }}"),
                better,
                "`workload.capacity_command`",
            ),
            (
                format!(
                    "{STARTED}\nworkload = {{ command = [\"mine\"], json = {{ requests = \"r\" }} }}"
                ),
                better,
                "does not know whether this load waits",
            ),
        ] {
            let text = of(&lines, finding);
            assert!(text.starts_with("Capacity was not measured: "), "{text}");
            assert!(text.contains(said), "{said}: {text}");
        }
        // Nobody knows: nothing is guessed.
        assert_eq!(of(&http, better), "Capacity was not measured.");
        // A fault of its own runs comes first.
        let (mut report, arm) = report(&http, [1.0, 0.0], [1.0, 0.0]);
        let mut capacity = arm.clone();
        capacity.capacity_of = Some(arm.name.clone());
        capacity.faults = vec!["the load generator was the bottleneck".to_owned()];
        report.verification.push(capacity);
        assert_eq!(
            not_measured(&report, &arm).unwrap(),
            "Capacity was not measured: the load generator was the bottleneck."
        );
    }
}
