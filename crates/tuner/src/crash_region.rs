//! Which configurations are sure to crash, by what crashed and what survived.
//!
//! The optimiser's own model of crashes is a probability: where much is to be gained beyond a
//! border, the model asks there again. Here is what needs no probability. Most crashes have a
//! simple border: *too many connections*, *this value of a switch*. Such a rule names one parameter
//! and is consistent when it covers every crash of one reason and no survivor. Once two
//! configurations have crashed for one reason, a configuration that every consistent rule covers is
//! sure to crash, whichever of the rules is true (a version space: Mitchell, "Generalization as
//! search", 1982). Such a configuration is asked for no more.

use bayes_opt::{Configuration, Kind, Parameter, Space, Value};

use crate::error::Crash;

/// So many configurations must have crashed for one reason before anything follows.
const CRASHES_MIN: usize = 2;

/// What crashed, and what survived.
#[derive(Clone, Debug, Default)]
pub(crate) struct CrashRegion {
    crashes: Vec<(Crash, Configuration)>,
    survivors: Vec<Configuration>,
}

/// What makes a configuration crash, of one parameter.
#[derive(Clone, Debug, PartialEq)]
enum Rule<'a> {
    AtLeast(&'a str, f64),
    AtMost(&'a str, f64),
    Is(&'a str, Value),
}

impl CrashRegion {
    pub(crate) fn crashed(&mut self, crash: &Crash, configuration: &Configuration) {
        let is_known = self.crashes.iter().any(|(_, known)| known == configuration);
        if !is_known {
            self.crashes.push((crash.clone(), configuration.clone()));
        }
    }

    pub(crate) fn survived(&mut self, configuration: &Configuration) {
        if !self.survivors.contains(configuration) {
            self.survivors.push(configuration.clone());
        }
    }

    /// The crash that this configuration would repeat.
    pub(crate) fn repeats(&self, space: &Space, configuration: &Configuration) -> Option<&Crash> {
        let reasons = self
            .crashes
            .iter()
            .enumerate()
            .filter(|(index, (crash, _))| {
                let earlier = &self.crashes[..*index];
                !earlier.iter().any(|(other, _)| other.is_like(crash))
            });
        for (_, (reason, _)) in reasons {
            let crashed: Vec<&Configuration> = self
                .crashes
                .iter()
                .filter(|(crash, _)| crash.is_like(reason))
                .map(|(_, configuration)| configuration)
                .collect();
            if crashed.len() < CRASHES_MIN {
                continue;
            }
            let rules = self.rules(space, &crashed);
            if !rules.is_empty() && rules.iter().all(|rule| rule.covers(configuration, space)) {
                return Some(reason);
            }
        }
        None
    }

    /// The rules that cover every one of these crashes and no survivor.
    fn rules<'a>(&self, space: &'a Space, crashed: &[&Configuration]) -> Vec<Rule<'a>> {
        let mut rules = Vec::new();
        for parameter in space.parameters() {
            let name = parameter.name.as_str();
            let places: Option<Vec<f64>> = crashed
                .iter()
                .map(|it| place(parameter, it.get(name)?))
                .collect();
            if let Some(places) = places {
                let least = places.iter().copied().fold(f64::INFINITY, f64::min);
                let most = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                rules.push(Rule::AtLeast(name, least));
                rules.push(Rule::AtMost(name, most));
            }
            let mut values = crashed.iter().map(|it| it.get(name));
            if let Some(Some(first)) = values.next()
                && values.all(|value| value == Some(first))
            {
                rules.push(Rule::Is(name, first.clone()));
            }
        }
        rules.retain(|rule| !self.survivors.iter().any(|it| rule.covers(it, space)));
        rules
    }
}

impl Rule<'_> {
    fn covers(&self, configuration: &Configuration, space: &Space) -> bool {
        let place_of = |name: &str| {
            let mut parameters = space.parameters().iter();
            let parameter = parameters.find(|it| it.name == name)?;
            place(parameter, configuration.get(name)?)
        };
        match self {
            Self::AtLeast(name, least) => place_of(name).is_some_and(|place| place >= *least),
            Self::AtMost(name, most) => place_of(name).is_some_and(|place| place <= *most),
            Self::Is(name, value) => configuration.get(name) == Some(value),
        }
    }
}

/// Where a value lies in the order of its parameter; `None` where there is no order, or it is a
/// special value.
fn place(parameter: &Parameter, value: &Value) -> Option<f64> {
    if parameter.special.contains(value) {
        return None;
    }
    match &parameter.kind {
        Kind::Int { .. } | Kind::Float { .. } => value.as_f64(),
        Kind::Ordinal { values } => {
            let index = values.iter().position(|it| it == value)?;
            Some(index as f64)
        }
        Kind::Categorical { .. } | Kind::Bool => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CrashKind;

    fn space() -> Space {
        let spec = crate::spec::context(&host::Roots::default()).check(
            r#"
parameters = [
  { name = "connections", type = "int", low = 100, high = 100000, default = 1000, scale = "log" },
  { name = "threads", type = "int", low = 1, high = 8, default = 2 },
  { name = "mode", type = "categorical", values = ["a", "b", "c"], default = "a" },
]
target = { start = ["sleep", "9"] }
workload = { command = ["true"], json = { requests = "requests" } }
objective = { metric = "cpu_s_per_request" }
"#
            .into(),
            "space.toml".as_ref(),
        );
        spec.unwrap().space
    }

    fn at(connections: i64, threads: i64, mode: &str) -> Configuration {
        let values = [
            ("connections".to_owned(), Value::Int(connections)),
            ("threads".to_owned(), Value::Int(threads)),
            ("mode".to_owned(), Value::Text(mode.to_owned())),
        ];
        Configuration(values.into_iter().collect())
    }

    fn crash(status: i32) -> Crash {
        Crash {
            kind: CrashKind::EndedAtStart,
            status: Some(status),
            message: "no".into(),
            output: None,
        }
    }

    #[test]
    fn two_crashes_beyond_a_border_are_enough() {
        let space = space();
        let mut region = CrashRegion::default();
        for survivor in [
            at(1000, 2, "a"),
            at(300, 8, "b"),
            at(5000, 1, "c"),
            at(700, 5, "a"),
        ] {
            region.survived(&survivor);
        }
        region.crashed(&crash(1), &at(50_000, 3, "a"));
        assert!(
            region.repeats(&space, &at(60_000, 3, "a")).is_none(),
            "one is not enough"
        );
        region.crashed(&crash(1), &at(9000, 7, "b"));
        for (connections, is_sure) in [(9000, true), (70_000, true), (8000, false), (2000, false)] {
            let repeats = region.repeats(&space, &at(connections, 4, "c"));
            assert_eq!(repeats.is_some(), is_sure, "{connections}");
        }
        // A survivor beyond the border shows that there is none.
        region.survived(&at(20_000, 4, "c"));
        assert!(region.repeats(&space, &at(70_000, 4, "c")).is_none());
    }

    #[test]
    fn crashes_of_different_reasons_are_not_put_together() {
        let space = space();
        let mut region = CrashRegion::default();
        region.survived(&at(1000, 2, "a"));
        region.crashed(&crash(1), &at(50_000, 3, "a"));
        region.crashed(&crash(-9), &at(60_000, 3, "a"));
        assert!(region.repeats(&space, &at(70_000, 3, "a")).is_none());
    }

    #[test]
    fn a_value_of_a_switch_is_a_rule_too() {
        let space = space();
        let mut region = CrashRegion::default();
        for survivor in [at(1000, 2, "a"), at(90_000, 8, "a"), at(150, 1, "c")] {
            region.survived(&survivor);
        }
        region.crashed(&crash(1), &at(500, 3, "b"));
        region.crashed(&crash(1), &at(20_000, 6, "b"));
        assert!(region.repeats(&space, &at(3000, 4, "b")).is_some());
        assert!(region.repeats(&space, &at(3000, 4, "c")).is_none());
    }
}
