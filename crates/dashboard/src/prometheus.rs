//! `/metrics` in Prometheus' text format 0.0.4.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use coordinator::ClaimCounts;
use coordinator::store::{ContinuousStanding, ExperimentSummary, State as ExperimentState};
use jiff::Timestamp;
use tuner::continuous::ContinuousPhase;

use crate::app::App;
use crate::reply::{Refusal, blocking};

pub(crate) async fn serve(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let text = blocking(move || {
        let experiments = app.coordinator.store().experiments()?;
        let is_in_trouble = app.coordinator.trouble().is_some();
        let workers = app.coordinator.workers();
        let mut out = text(&experiments, is_in_trouble, host::own_cpu_s());
        let outcomes = app.coordinator.store().outcomes()?;
        let is_paused = app.coordinator.store().is_queue_paused()?;
        out.push_str(&text_of_server(
            &outcomes,
            is_paused,
            app.answers.by_class(),
        ));
        out.push_str(&text_of_workers(workers.list().len(), workers.counts()));
        let always_on = app.coordinator.store().all_continuous()?;
        out.push_str(&text_of_continuous(&always_on, Timestamp::now()));
        Ok(out)
    })
    .await?;
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response())
}

fn text(experiments: &[ExperimentSummary], is_in_trouble: bool, cpu_s: f64) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        family(&mut out, name, kind, help, samples);
    };
    let counted = ExperimentState::ALL.map(|state| {
        let count = experiments
            .iter()
            .filter(|experiment| experiment.state == state)
            .count();
        (format!("{{state=\"{state}\"}}"), count as f64)
    });
    family(
        "slackline_experiments",
        "gauge",
        "Experiments by state.",
        &counted,
    );
    let each = |value: fn(&ExperimentSummary) -> Option<f64>| -> Vec<(String, f64)> {
        let labelled = experiments.iter().filter_map(|experiment| {
            let labels = labels(experiment.id, &experiment.name);
            Some((format!("{{{labels}}}"), value(experiment)?))
        });
        labelled.collect()
    };
    family(
        "slackline_evaluations",
        "gauge",
        "Evaluations that ended, by experiment.",
        &each(|experiment| Some(experiment.evaluations as f64)),
    );
    family(
        "slackline_best_score",
        "gauge",
        "Lowest score of a completed evaluation (logarithm of the ratio to the control, unless the objective is absolute).",
        &each(|experiment| experiment.best_score),
    );
    family(
        "slackline_promoted",
        "gauge",
        "1 if the experiment's winner is in force on the host, otherwise 0.",
        &each(|experiment| Some(f64::from(u8::from(experiment.promoted)))),
    );
    family(
        "slackline_in_trouble",
        "gauge",
        "1 while the server cannot work because of the store or the host.",
        &[(String::new(), f64::from(u8::from(is_in_trouble)))],
    );
    family(
        "slackline_own_cpu_seconds_total",
        "counter",
        "CPU time of the server itself.",
        &[(String::new(), cpu_s)],
    );
    out
}

/// Evaluations by outcome, the queue, the build, and the answers of this server.
fn text_of_server(
    outcomes: &[(i64, String, String, usize)],
    is_paused: bool,
    answers: impl Iterator<Item = (String, u64)>,
) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        family(&mut out, name, kind, help, samples);
    };
    let by_outcome: Vec<_> = outcomes
        .iter()
        .map(|(id, name, outcome, count)| {
            let labels = labels(*id, name);
            (format!("{{{labels},outcome=\"{outcome}\"}}"), *count as f64)
        })
        .collect();
    family(
        "slackline_evaluations_by_outcome",
        "gauge",
        "Evaluations by experiment and outcome. Lost evaluations count as failed. Running evaluations are included.",
        &by_outcome,
    );
    family(
        "slackline_queue_paused",
        "gauge",
        "1 if the queue is paused: no search or verification begins until it is resumed.",
        &[(String::new(), f64::from(u8::from(is_paused)))],
    );
    let version = env!("CARGO_PKG_VERSION");
    family(
        "slackline_build_info",
        "gauge",
        "Always 1. The label has the version.",
        &[(format!("{{version=\"{version}\"}}"), 1.0)],
    );
    let answers: Vec<_> = answers
        .map(|(class, count)| (format!("{{class=\"{class}\"}}"), count as f64))
        .collect();
    family(
        "slackline_http_answers_total",
        "counter",
        "Answers of this server by class of status.",
        &answers,
    );
    out
}

/// A family of series: its lines of help and type, and a line for each sample.
fn family(out: &mut String, name: &str, kind: &str, help: &str, samples: &[(String, f64)]) {
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in samples {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

/// The labels of an experiment.
fn labels(id: i64, name: &str) -> String {
    let name = name
        .replace('\\', r"\\")
        .replace('"', "\\\"")
        .replace('\n', " ");
    format!("experiment=\"{id}\",name=\"{name}\"")
}

/// What `mode = "continuous"` is at. Times are absolute, as `time() - …` is Prometheus' way to say
/// how long ago.
fn text_of_continuous(all: &[ContinuousStanding], now: Timestamp) -> String {
    let mut out = String::new();
    let states = all.iter().flat_map(|standing| {
        let labels = labels(standing.id, &standing.name);
        let present = standing.doing();
        let resting = ExperimentState::ALL
            .into_iter()
            .filter(|state| *state != ExperimentState::Running)
            .map(|state| state.to_string());
        let each = ContinuousPhase::ALL
            .map(|doing| doing.to_string())
            .into_iter();
        each.chain(resting).map(move |state| {
            let value = f64::from(u8::from(state == present));
            (format!("{{{labels},state=\"{state}\"}}"), value)
        })
    });
    family(
        &mut out,
        "slackline_continuous_state",
        "gauge",
        "1 for the state that applies now, 0 for all others: what a running experiment does, or the state of an experiment that does not run.",
        &states.collect::<Vec<_>>(),
    );
    let mut each =
        |name: &str, kind: &str, help: &str, value: &dyn Fn(&ContinuousStanding) -> Option<f64>| {
            let samples: Vec<_> = all
                .iter()
                .filter_map(|standing| {
                    let labels = labels(standing.id, &standing.name);
                    Some((format!("{{{labels}}}"), value(standing)?))
                })
                .collect();
            let name = format!("slackline_continuous_{name}");
            family(&mut out, &name, kind, help, &samples);
        };
    each(
        "changes_today",
        "gauge",
        "Promotions since midnight in the experiment's time zone.",
        &|it| {
            let zone = it.rules.zone().ok()?;
            Some(it.state.changes_today(now, &zone) as f64)
        },
    );
    each(
        "changes_per_day",
        "gauge",
        "Promotions allowed each day.",
        &|it| Some(it.rules.changes_per_day as f64),
    );
    each(
        "last_alarm_timestamp_seconds",
        "gauge",
        "When a drift test last raised an alarm, in seconds since 1970.",
        &|it| Some(it.state.last_alarm?.as_millisecond() as f64 / 1000.0),
    );
    each(
        "rounds_total",
        "counter",
        "Rounds, including rounds that could not be measured.",
        &|it| Some(it.state.rounds as f64),
    );
    each("alarms_total", "counter", "Alarms of drift tests.", &|it| {
        Some(it.state.alarms as f64)
    });
    each("promotions_total", "counter", "Promotions.", &|it| {
        Some(it.state.promotions as f64)
    });
    each("rollbacks_total", "counter", "Rollbacks.", &|it| {
        Some(it.state.rollbacks as f64)
    });
    out
}

fn text_of_workers(workers: usize, counts: ClaimCounts) -> String {
    let claims = "slackline_claims_total";
    let results = "slackline_results_total";
    format!(
        "# HELP slackline_workers Workers on other hosts that have reported in the last hour.\n\
         # TYPE slackline_workers gauge\nslackline_workers {workers}\n\
         # HELP {claims} Orders that workers claimed, by the server's answer.\n# TYPE {claims} counter\n\
         {claims}{{answer=\"granted\"}} {}\n{claims}{{answer=\"declined\"}} {}\n\
         # HELP {results} Results that workers sent, by the server's answer.\n# TYPE {results} counter\n\
         {results}{{answer=\"accepted\"}} {}\n{results}{{answer=\"refused\"}} {}\n",
        counts.granted, counts.declined, counts.accepted, counts.refused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continuous_experiment_says_what_it_is_at() {
        let now: Timestamp = "2026-03-02T00:30:00Z".parse().unwrap();
        let before = |text: &str| -> Timestamp { text.parse().unwrap() };
        let mut standing = ContinuousStanding {
            id: 7,
            name: "web".into(),
            rules: tuner::spec::ContinuousSpec {
                time_zone: Some("Europe/Berlin".into()),
                ..Default::default()
            },
            experiment: ExperimentState::Running,
            state: tuner::continuous::ContinuousState::new(now),
        };
        let said =
            |standing: &ContinuousStanding| text_of_continuous(std::slice::from_ref(standing), now);
        let first = said(&standing);
        let of = |state: &str, value: u8| {
            format!(
                "slackline_continuous_state{{experiment=\"7\",name=\"web\",state=\"{state}\"}} {value}\n"
            )
        };
        assert!(first.contains(&of("searching", 1)), "{first}");
        assert!(first.contains(&of("watching", 0)), "{first}");
        assert!(!first.contains("last_alarm_timestamp_seconds{"), "{first}");
        let state = &mut standing.state;
        state.blocked_by = Some("an alert fires".into());
        // Half past midnight in Berlin, and an hour before it.
        state.changes = vec![
            before("2026-03-01T22:30:00Z"),
            before("2026-03-01T23:30:00Z"),
        ];
        state.last_alarm = Some(before("2026-03-01T00:00:00.5Z"));
        state.rollbacks = 3;
        let then = said(&standing);
        assert!(then.contains(&of("held", 1)), "{then}");
        standing.experiment = ExperimentState::Failed;
        let at_last = said(&standing);
        assert!(at_last.contains(&of("held", 0)), "{at_last}");
        assert!(at_last.contains(&of("failed", 1)), "{at_last}");
        for line in [
            "slackline_continuous_changes_today{experiment=\"7\",name=\"web\"} 1\n",
            "slackline_continuous_last_alarm_timestamp_seconds{experiment=\"7\",name=\"web\"} 1772323200.5\n",
            "slackline_continuous_rollbacks_total{experiment=\"7\",name=\"web\"} 3\n",
        ] {
            assert!(then.contains(line), "{line}: {then}");
        }
    }

    #[test]
    fn evaluations_are_counted_by_outcome_and_answers_by_class() {
        let outcomes = [(3, "a".to_owned(), "crashed".to_owned(), 2)];
        let text = text_of_server(&outcomes, true, [("2xx".to_owned(), 7)].into_iter());
        for line in [
            "slackline_evaluations_by_outcome{experiment=\"3\",name=\"a\",outcome=\"crashed\"} 2\n",
            "slackline_queue_paused 1\n",
            "slackline_build_info{version=",
            "slackline_http_answers_total{class=\"2xx\"} 7\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn names_are_escaped() {
        let experiment = ExperimentSummary {
            id: 1,
            name: "a \"b\" \\".into(),
            state: ExperimentState::Done,
            wish: None,
            message: None,
            created_ms: 0,
            evaluations: 3,
            budget: 5,
            best_score: None,
            sentence: String::new(),
            parent: None,
            promoted: false,
            not_restored: Vec::new(),
            imported: false,
            always_on: false,
            waits: None,
            on_workers: false,
        };
        let text = text(&[experiment], false, 0.5);
        assert!(
            text.contains("slackline_experiments{state=\"done\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("slackline_evaluations{experiment=\"1\",name=\"a \\\"b\\\" \\\\\"} 3\n"),
            "{text}"
        );
    }
}
