//! `/metrics` in Prometheus' text format 0.0.4.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use coordinator::Counts;
use coordinator::store::{State as ExperimentState, Summary};

use crate::reply::{Refusal, blocking};
use crate::server::App;

pub(crate) async fn serve(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let text = blocking(move || {
        let experiments = app.coordinator.store().experiments()?;
        let is_in_trouble = app.coordinator.trouble().is_some();
        let workers = app.coordinator.workers();
        let mut out = text(&experiments, is_in_trouble, host::own_cpu_s());
        out.push_str(&text_of_workers(workers.list().len(), workers.counts()));
        Ok(out)
    })
    .await?;
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response())
}

fn text(experiments: &[Summary], is_in_trouble: bool, cpu_s: f64) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in samples {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let states = [
        ExperimentState::Queued,
        ExperimentState::Running,
        ExperimentState::Paused,
        ExperimentState::Done,
        ExperimentState::Stopped,
        ExperimentState::Failed,
    ];
    let counted = states.map(|state| {
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
    let each = |value: fn(&Summary) -> Option<f64>| -> Vec<(String, f64)> {
        let labelled = experiments.iter().filter_map(|experiment| {
            let name = experiment
                .name
                .replace('\\', r"\\")
                .replace('"', "\\\"")
                .replace('\n', " ");
            Some((
                format!("{{experiment=\"{}\",name=\"{name}\"}}", experiment.id),
                value(experiment)?,
            ))
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
        "Whether an experiment's winner is in force on the host.",
        &each(|experiment| Some(f64::from(u8::from(experiment.promoted)))),
    );
    family(
        "slackline_in_trouble",
        "gauge",
        "Whether the store or the host keeps the coordinator from its work.",
        &[(String::new(), f64::from(u8::from(is_in_trouble)))],
    );
    family(
        "slackline_own_cpu_seconds_total",
        "counter",
        "CPU time of the coordinator itself.",
        &[(String::new(), cpu_s)],
    );
    out
}

fn text_of_workers(workers: usize, counts: Counts) -> String {
    let claims = "slackline_claims_total";
    let results = "slackline_results_total";
    format!(
        "# HELP slackline_workers Workers on other hosts that were heard of in the last hour.\n\
         # TYPE slackline_workers gauge\nslackline_workers {workers}\n\
         # HELP {claims} Orders that workers claimed, by answer.\n# TYPE {claims} counter\n\
         {claims}{{answer=\"granted\"}} {}\n{claims}{{answer=\"declined\"}} {}\n\
         # HELP {results} Results that workers brought, by answer.\n# TYPE {results} counter\n\
         {results}{{answer=\"accepted\"}} {}\n{results}{{answer=\"refused\"}} {}\n",
        counts.granted, counts.declined, counts.accepted, counts.refused
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        let experiment = Summary {
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
