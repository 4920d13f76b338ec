//! Points inside linear constraints that leave so little that drawing alone finds none.

use crate::space::Space;
use crate::space::parameter::Kind;
use crate::space::value::Value;

/// How often the default configuration is pulled into every constraint. A choice of this crate.
const PULLS: usize = 200;
/// How many shares of the way to a point that breaks a constraint are looked at: all, a half, …,
/// 1/512. A choice of this crate.
const SHARES: i32 = 10;

/// The default configuration, pulled into the constraints where it breaks them; `None` where that
/// does not succeed.
pub(crate) fn inside(space: &Space) -> Option<Vec<f64>> {
    let range = |name: &str| {
        let mut parameters = space.parameters().iter();
        match &parameters.find(|parameter| parameter.name == name)?.kind {
            Kind::Int { low, high, .. } => Some((*low as f64, *high as f64)),
            Kind::Float { low, high, .. } => Some((*low, *high)),
            _ => None,
        }
    };
    let span = |name: &str| range(name).map_or(0.0, |(low, high)| high - low);
    let mut configuration = space.default_configuration();
    for _ in 0..PULLS {
        let point = space.encoding().encode(&space.snap(&configuration));
        // Where they hold between steps, they may not on the nearest one, but on the next.
        let columns = space.encoding().columns().iter();
        let beside = columns.flat_map(|column| {
            [-1, 1].map(|steps| {
                let mut beside = point.clone();
                column.step_by(steps, &mut beside);
                beside
            })
        });
        let mut candidates = [point.clone()].into_iter().chain(beside);
        if let Some(inside) = candidates.find(|point| space.allows(point)) {
            return Some(inside);
        }
        for constraint in space.constraints() {
            constraint.pull(&mut configuration, span);
            for (name, value) in &mut configuration.0 {
                if let (Some((low, high)), Value::Float(value)) = (range(name), value) {
                    *value = value.clamp(low, high);
                }
            }
        }
    }
    None
}

/// A point that is `possible` between one that is `inside` and one that is `drawn`: all of the way,
/// half of it, and so on.
pub(crate) fn towards(
    space: &Space,
    inside: &[f64],
    drawn: &[f64],
    possible: impl Fn(&[f64]) -> bool,
) -> Option<Vec<f64>> {
    let columns = space.encoding().columns();
    (0..SHARES).find_map(|halvings| {
        let mut point = drawn.to_vec();
        for column in columns.iter().filter(|column| column.is_ordered()) {
            let (from, to) = (inside[column.axis], drawn[column.axis]);
            point[column.axis] = from + (to - from) * 0.5_f64.powi(halvings);
        }
        space.encoding().snap(&mut point);
        possible(&point).then_some(point)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LinearConstraint, Parameter};

    fn space(kind: impl Fn() -> Kind, constraints: &[&str]) -> Space {
        let parameters = (0..8).map(|k| Parameter::new(format!("p{k}"), kind()));
        let constraints = constraints.iter().map(|text| text.parse().unwrap());
        let constraints: Vec<LinearConstraint> = constraints.collect();
        Space::new(parameters.collect(), constraints).unwrap()
    }

    #[test]
    fn the_default_is_pulled_into_tight_constraints() {
        let real = || Kind::Float {
            low: 0.0,
            high: 1.0,
            step: None,
            log: false,
        };
        let whole = || Kind::Int {
            low: 0,
            high: 1000,
            step: 10,
            log: false,
        };
        let all = "p0 + p1 + p2 + p3 + p4 + p5 + p6 + p7";
        let real = space(real, &[&format!("{all} <= 0.5"), "p3 >= p4 + 0.1"]);
        let whole = space(whole, &[&format!("{all} < 500"), "p0 >= 100"]);
        for space in [&real, &whole] {
            let start = inside(space).unwrap();
            assert!(space.allows(&start));
            let mut drawn = vec![0.0; 8];
            (drawn[0], drawn[3]) = (0.2, 0.4);
            let between = towards(space, &start, &drawn, |point| space.allows(point)).unwrap();
            assert!(space.allows(&between) && between != start);
        }
    }

    #[test]
    fn equal_defaults_are_pulled_apart_where_they_have_to_differ() {
        let real = || Kind::Float {
            low: 0.0,
            high: 1.0,
            step: None,
            log: false,
        };
        let chain: Vec<String> = (0..7).map(|k| format!("p{k} < p{}", k + 1)).collect();
        let chain: Vec<&str> = chain.iter().map(String::as_str).collect();
        let space = space(real, &chain);
        assert!(space.allows(&inside(&space).unwrap()));
    }

    #[test]
    fn nothing_is_inside_what_cannot_be_met() {
        let kind = || Kind::Bool;
        assert!(inside(&space(kind, &["p0 + p1 >= 3"])).is_none());
    }
}
