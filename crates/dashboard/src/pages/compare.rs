//! Two to five experiments side by side.

use std::collections::BTreeSet;

use askama::Template;
use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use coordinator::Error;
use coordinator::store::ExperimentSummary;

use super::frame::{Reader, answer, page};
use super::summary::{best, objective};
use super::verdict::Verdict;
use crate::access::Visitor;
use crate::api;
use crate::app::{App, Here, Who};
use crate::format::{self, When};
use crate::readers;
use crate::reply::{Refusal, blocking};
use crate::units::Unit;
use crate::web::pairs;

/// More lines than these nobody tells apart.
const EXPERIMENTS_MAX: usize = 5;

/// An experiment as a column.
struct Side {
    summary: ExperimentSummary,
    made: When,
    objective: String,
    best: String,
    verdict: Option<Verdict>,
}

/// An experiment that can be chosen.
struct Choice {
    summary: ExperimentSummary,
    made: String,
    is_chosen: bool,
}

/// A parameter: its name, and the best configuration's value in each experiment.
struct Parameter {
    name: String,
    values: Vec<String>,
    differs: bool,
}

#[derive(Template)]
#[template(path = "compare.html")]
struct ComparePage {
    reader: Reader,
    sides: Vec<Side>,
    all: Vec<Choice>,
    parameters: Vec<Parameter>,
    /// Their objectives are not the same, so their numbers cannot be compared.
    differ: bool,
    ids: String,
    /// What is wrong with the choice; the choice stays.
    complaint: Option<String>,
}

/// What keeps these experiments from being compared. Of one alone nothing is wrong yet.
fn complaint(ids: &[i64]) -> Option<String> {
    let chosen = ids.len();
    (chosen > EXPERIMENTS_MAX).then(|| {
        format!(
            "You chose {chosen} experiments. More than {EXPERIMENTS_MAX} lines in one chart cannot be told apart: take {} away.",
            chosen - EXPERIMENTS_MAX
        )
    })
}

fn asked(query: &str) -> Result<Vec<i64>, Refusal> {
    let wrong = |why: String| Refusal::new(StatusCode::BAD_REQUEST, why);
    let mut ids = Vec::new();
    for (name, value) in pairs(query) {
        if name != "id" {
            return Err(wrong(format!(
                "unknown query parameter {name:?}; known: id"
            )));
        }
        let id: i64 = value
            .parse()
            .map_err(|_| wrong(format!("id={value}: give a number")))?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    Ok(ids)
}

fn compare_page(app: &App, ids: &[i64], visitor: &Visitor) -> Result<Response, Error> {
    let coordinator = &app.coordinator;
    let mut sides = Vec::new();
    let mut found = Vec::new();
    let role = visitor.role;
    let complaint = complaint(ids);
    for id in ids.iter().take(EXPERIMENTS_MAX) {
        let row = readers::experiment(coordinator, *id, role)?;
        let summary = readers::summary(role, api::summary(coordinator, *id)?);
        let goal = objective(&row);
        sides.push(Side {
            made: When::ms(summary.created_ms),
            objective: Unit::in_spec(&row.spec, &goal.metric).name(),
            best: best(&row.spec, &summary),
            verdict: Verdict::of(&row),
            summary,
        });
        let winner = row.report.winner().map(|arm| arm.configuration.clone());
        let (ranked, _) = coordinator.store().ranked(*id, 0, 1)?;
        let best = ranked.into_iter().find(|row| !row.is_running);
        let best = best.map(|it| readers::evaluation(role, it)).transpose()?;
        let configuration = winner.or_else(|| best.map(|row| row.record.configuration));
        found.push((goal.name(), configuration.unwrap_or_default()));
    }
    let names: BTreeSet<&String> = found.iter().flat_map(|(_, it)| it.0.keys()).collect();
    let parameters = names.into_iter().map(|name| {
        let value = |(_, it): &(String, bayes_opt::Configuration)| {
            it.get(name).map_or_else(|| "–".into(), ToString::to_string)
        };
        let values: Vec<String> = found.iter().map(value).collect();
        Parameter {
            name: name.clone(),
            differs: values.windows(2).any(|two| two[0] != two[1]),
            values,
        }
    });
    let all = coordinator.store().experiments()?.into_iter();
    let ids_text: Vec<String> = ids.iter().map(ToString::to_string).collect();
    Ok(page(&ComparePage {
        reader: visitor.into(),
        parameters: parameters.collect(),
        differ: found.windows(2).any(|two| two[0].0 != two[1].0),
        all: all
            .map(|it| Choice {
                is_chosen: ids.contains(&it.id),
                made: format::time(it.created_ms),
                summary: readers::summary(role, it),
            })
            .collect(),
        sides: if complaint.is_some() {
            Vec::new()
        } else {
            sides
        },
        complaint,
        ids: ids_text.join(","),
    }))
}

pub(crate) async fn compare(
    State(app): Here,
    Extension(visitor): Who,
    RawQuery(query): RawQuery,
) -> Response {
    let made = async {
        let ids = asked(&query.unwrap_or_default())?;
        blocking(move || compare_page(&app, &ids, &visitor)).await
    };
    answer(made.await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_of_too_many_is_kept_and_explained() {
        let six = asked("id=1&id=2&id=3&id=4&id=5&id=6&id=6").ok().unwrap();
        assert_eq!(six, [1, 2, 3, 4, 5, 6]);
        assert!(complaint(&six).unwrap().contains("take 1 away"));
        assert_eq!(complaint(&six[..5]), None);
        assert!(asked("id=x").is_err() && asked("ids=1").is_err());
    }
}
