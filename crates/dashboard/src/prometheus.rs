//! `/metrics` for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use coordinator::ClaimCounts;
use coordinator::store::{ContinuousStanding, ExperimentSummary, State as ExperimentState};
use jiff::Timestamp;
use prometheus_text::{Exposition, Labels, MetricKind};
use tuner::continuous::ContinuousPhase;

use crate::app::App;
use crate::reply::{Refusal, blocking};

pub(crate) async fn serve(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let text = blocking(move || {
        let experiments = app.coordinator.store().experiments()?;
        let is_in_trouble = app.coordinator.trouble().is_some();
        let workers = app.coordinator.workers();
        let mut page = Exposition::new();
        of_experiments(&mut page, &experiments, is_in_trouble, host::own_cpu_s());
        let outcomes = app.coordinator.store().outcomes()?;
        let is_paused = app.coordinator.store().is_queue_paused()?;
        of_server(&mut page, &outcomes, is_paused, app.answers.by_class());
        of_workers(&mut page, workers.list().len(), workers.counts());
        let always_on = app.coordinator.store().all_continuous()?;
        of_continuous(&mut page, &always_on, Timestamp::now());
        Ok(page.into_text())
    })
    .await?;
    Ok((
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response())
}

fn of_experiments(
    page: &mut Exposition,
    experiments: &[ExperimentSummary],
    is_in_trouble: bool,
    cpu_s: f64,
) {
    let counted = ExperimentState::ALL.map(|state| {
        let of_state = |experiment: &&ExperimentSummary| experiment.state == state;
        let count = experiments.iter().filter(of_state).count();
        (Labels::new().and("state", state), count)
    });
    page.family(
        "slackline_experiments",
        MetricKind::Gauge,
        "Experiments by state.",
    )
    .samples(counted);
    let mut each = |name: &str, help: &str, value: fn(&ExperimentSummary) -> Option<f64>| {
        let samples = experiments
            .iter()
            .filter_map(|it| Some((labels(it.id, &it.name), value(it)?)));
        page.family(name, MetricKind::Gauge, help).samples(samples);
    };
    each(
        "slackline_evaluations",
        "Evaluations that ended and count against the budget, by experiment.",
        |experiment| Some(experiment.evaluations as f64),
    );
    each(
        "slackline_best_score",
        "Lowest score of a completed evaluation (logarithm of the ratio to the control, unless the objective is absolute).",
        |experiment| experiment.best_score,
    );
    each(
        "slackline_promoted",
        "1 if the experiment's winner is in force on the host, otherwise 0.",
        |experiment| Some(f64::from(u8::from(experiment.promoted))),
    );
    page.single(
        "slackline_in_trouble",
        MetricKind::Gauge,
        "1 while the server cannot work because of the store or the host.",
        u8::from(is_in_trouble),
    );
    page.single(
        "slackline_own_cpu_seconds_total",
        MetricKind::Counter,
        "CPU time of the server itself.",
        cpu_s,
    );
}

/// Evaluations by outcome, the queue, the build, and the answers of this server.
fn of_server(
    page: &mut Exposition,
    outcomes: &[(i64, String, String, usize)],
    is_paused: bool,
    answers: impl Iterator<Item = (String, u64)>,
) {
    let by_outcome = outcomes
        .iter()
        .map(|(id, name, outcome, count)| (labels(*id, name).and("outcome", outcome), count));
    page.family(
        "slackline_evaluations_by_outcome",
        MetricKind::Gauge,
        "Evaluations by experiment and outcome. Lost evaluations count as failed. Running evaluations are included.",
    )
    .samples(by_outcome);
    page.single(
        "slackline_queue_paused",
        MetricKind::Gauge,
        "1 if the queue is paused: no search or verification begins until it is resumed.",
        u8::from(is_paused),
    );
    page.family(
        "slackline_build_info",
        MetricKind::Gauge,
        "Always 1. The label has the version.",
    )
    .sample(&Labels::new().and("version", env!("CARGO_PKG_VERSION")), 1);
    page.family(
        "slackline_http_answers_total",
        MetricKind::Counter,
        "Answers of this server by class of status.",
    )
    .samples(answers.map(|(class, count)| (Labels::new().and("class", class), count)));
}

/// The labels of an experiment.
fn labels(id: i64, name: &str) -> Labels {
    Labels::new().and("experiment", id).and("name", name)
}

/// What `mode = "continuous"` is at. Times are absolute, as `time() - …` is Prometheus' way to say
/// how long ago.
fn of_continuous(page: &mut Exposition, all: &[ContinuousStanding], now: Timestamp) {
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
            let value = u8::from(state == present);
            (labels.clone().and("state", state), value)
        })
    });
    page.family(
        "slackline_continuous_state",
        MetricKind::Gauge,
        "1 for the state that applies now, 0 for all others: what a running experiment does, or the state of an experiment that does not run.",
    )
    .samples(states);
    let mut each =
        |name: &str, kind, help: &str, value: &dyn Fn(&ContinuousStanding) -> Option<f64>| {
            let samples = all
                .iter()
                .filter_map(|it| Some((labels(it.id, &it.name), value(it)?)));
            let name = format!("slackline_continuous_{name}");
            page.family(&name, kind, help).samples(samples);
        };
    each(
        "changes_today",
        MetricKind::Gauge,
        "Promotions since midnight in the experiment's time zone.",
        &|it| {
            let zone = it.rules.zone().ok()?;
            Some(it.state.changes_today(now, &zone) as f64)
        },
    );
    each(
        "changes_per_day",
        MetricKind::Gauge,
        "Promotions allowed each day.",
        &|it| Some(it.rules.changes_per_day as f64),
    );
    each(
        "last_alarm_timestamp_seconds",
        MetricKind::Gauge,
        "When a drift test last raised an alarm, in seconds since 1970.",
        &|it| Some(it.state.last_alarm?.as_millisecond() as f64 / 1000.0),
    );
    each(
        "rounds_total",
        MetricKind::Counter,
        "Rounds, including rounds that could not be measured.",
        &|it| Some(it.state.rounds as f64),
    );
    each(
        "alarms_total",
        MetricKind::Counter,
        "Alarms of drift tests.",
        &|it| Some(it.state.alarms as f64),
    );
    each(
        "promotions_total",
        MetricKind::Counter,
        "Promotions.",
        &|it| Some(it.state.promotions as f64),
    );
    each(
        "rollbacks_total",
        MetricKind::Counter,
        "Rollbacks.",
        &|it| Some(it.state.rollbacks as f64),
    );
}

fn of_workers(page: &mut Exposition, workers: usize, counts: ClaimCounts) {
    page.single(
        "slackline_workers",
        MetricKind::Gauge,
        "Workers on other hosts that have reported in the last hour.",
        workers,
    );
    let mut by_answer = |name: &str, help: &str, answers: [(&str, u64); 2]| {
        let samples = answers.map(|(answer, count)| (Labels::new().and("answer", answer), count));
        page.family(name, MetricKind::Counter, help)
            .samples(samples);
    };
    by_answer(
        "slackline_claims_total",
        "Orders that workers claimed, by the server's answer.",
        [("granted", counts.granted), ("declined", counts.declined)],
    );
    by_answer(
        "slackline_results_total",
        "Results that workers sent, by the server's answer.",
        [("accepted", counts.accepted), ("refused", counts.refused)],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(write: impl FnOnce(&mut Exposition)) -> String {
        let mut page = Exposition::new();
        write(&mut page);
        page.into_text()
    }

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
        let said = |standing: &ContinuousStanding| {
            page(|page| of_continuous(page, std::slice::from_ref(standing), now))
        };
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
        let answers = [("2xx".to_owned(), 7)].into_iter();
        let text = page(|page| of_server(page, &outcomes, true, answers));
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
        let text = page(|page| of_experiments(page, &[experiment], false, 0.5));
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
