//! How an evaluation began: with which control, and after which warm-up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an evaluation began, before its first block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Begun {
    /// The control, if it keeps running from evaluation to evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlRun>,
    /// The warm-up, if its end was detected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_up: Option<WarmUp>,
}

/// A control that keeps running from evaluation to evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ControlRun {
    /// When the control was started, in seconds from the start of the experiment.
    pub started_s: f64,
    /// Number of earlier evaluations with this control.
    pub evaluations: usize,
    /// Why the control was started again for this evaluation, if another control ran before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarted: Option<String>,
}

/// A warm-up whose end was detected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WarmUp {
    /// How long the warm-up took, in seconds.
    pub took_s: f64,
    /// What still changed on each side when the time limit was reached. Empty if both sides were
    /// steady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsteady: Vec<String>,
}

impl WarmUp {
    /// Both warm-ups, one after the other.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.took_s += other.took_s;
        self.unsteady.extend(other.unsteady);
        self
    }

    /// "never steady within 300 s (…)", where that is so.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let what = self.unsteady.join("; ");
        (!what.is_empty()).then(|| format!("never steady within {:.0} s ({what})", self.took_s))
    }
}

impl Begun {
    /// How the evaluation began, a sentence each: with which control, and after which warm-up.
    #[must_use]
    pub fn told(&self) -> Vec<String> {
        let control = self.control.as_ref().map(|run| match &run.restarted {
            Some(why) => format!("The control was started again for this evaluation: {why}."),
            None if run.evaluations == 0 => "The control was started for this evaluation.".into(),
            None => format!(
                "The control ran since {:.0} s into the search, and had served {} before.",
                run.started_s,
                match run.evaluations {
                    1 => "1 evaluation".to_owned(),
                    evaluations => format!("{evaluations} evaluations"),
                }
            ),
        });
        let warm_up = self.warm_up.as_ref().map(|it| {
            let took = format!("The warm-up took {:.0} s", it.took_s);
            it.complaint().map_or_else(
                || format!("{took}, until both sides were steady."),
                |complaint| format!("{took}: {complaint}."),
            )
        });
        control.into_iter().chain(warm_up).collect()
    }
}

/// How the control went through a search, in one line each: since when it ran, and why it was
/// started again. `begun` has what is known of each evaluation, by its number.
#[must_use]
pub fn control_runs<'a>(begun: impl IntoIterator<Item = (usize, &'a Begun)>) -> Vec<String> {
    let known = begun.into_iter();
    let known = known.filter_map(|(number, begun)| Some((number, begun.control.as_ref()?)));
    let known: Vec<(usize, &ControlRun)> = known.collect();
    let of_one = known.chunk_by(|(_, one), (_, next)| one.started_s == next.started_s);
    of_one
        .filter_map(|of_one| Some((of_one.first()?, of_one.last()?.0)))
        .map(|((number, run), end)| {
            let until = match end > *number {
                true => format!("evaluations {number} to {end}"),
                false => format!("evaluation {number}"),
            };
            let why = run.restarted.as_ref();
            let why = why.map_or_else(String::new, |why| format!(", started again: {why}"));
            format!("{until}: one control, from {:.0} s on{why}", run.started_s)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_is_told_with_its_evaluations_and_the_reason_for_its_start() {
        let of = |started_s: f64, evaluations: usize, restarted: Option<&str>| Begun {
            control: Some(ControlRun {
                started_s,
                evaluations,
                restarted: restarted.map(str::to_owned),
            }),
            warm_up: None,
        };
        let begun = [
            of(0.0, 0, None),
            of(0.0, 1, None),
            Begun::default(),
            of(99.6, 0, Some("it had ended")),
        ];
        let told = control_runs((1..).zip(&begun));
        assert_eq!(
            told,
            [
                "evaluations 1 to 2: one control, from 0 s on",
                "evaluation 4: one control, from 100 s on, started again: it had ended",
            ]
        );
    }

    #[test]
    fn an_evaluation_tells_how_it_began() {
        let begun = |evaluations: usize, restarted: Option<&str>, unsteady: &[&str]| Begun {
            control: Some(ControlRun {
                started_s: 99.6,
                evaluations,
                restarted: restarted.map(str::to_owned),
            }),
            warm_up: Some(WarmUp {
                took_s: 34.2,
                unsteady: unsteady.iter().map(|it| (*it).to_owned()).collect(),
            }),
        };
        let steady = "The warm-up took 34 s, until both sides were steady.";
        assert_eq!(
            begun(2, None, &[]).told(),
            [
                "The control ran since 100 s into the search, and had served 2 evaluations before.",
                steady,
            ]
        );
        assert_eq!(
            begun(0, None, &[]).told(),
            ["The control was started for this evaluation.", steady]
        );
        assert_eq!(
            begun(0, Some("it had ended"), &["control: errors rise"]).told(),
            [
                "The control was started again for this evaluation: it had ended.",
                "The warm-up took 34 s: never steady within 34 s (control: errors rise).",
            ]
        );
        assert!(Begun::default().told().is_empty());
    }

    #[test]
    fn what_was_never_steady_is_said() {
        let steady = WarmUp {
            took_s: 12.0,
            unsteady: Vec::new(),
        };
        assert_eq!(steady.complaint(), None);
        let both = steady.and(WarmUp {
            took_s: 288.0,
            unsteady: vec!["experiment: errors rise".into()],
        });
        assert_eq!(
            both.complaint().unwrap(),
            "never steady within 300 s (experiment: errors rise)"
        );
    }
}
