//! Tests of coordinates and of the values on their grids.

use super::*;

#[test]
fn grid_points_are_written_as_a_person_would() {
    assert_eq!(decimal(0.1 + 0.05 * 7.0, 0.05), 0.45);
    assert_eq!(decimal(-1e-7 * 3.0, 1e-7), -3e-7);
    assert_eq!(decimal(0.0, 0.1), 0.0);
    assert_eq!(decimal(1e9 + 0.003, 0.001), 1e9 + 0.003);
}

#[test]
fn grid_points_stay_in_a_range_of_odd_ends() {
    let third = Kind::Float {
        low: 1.0 / 3.0,
        high: 10.0,
        step: Some(0.1),
        log: false,
    };
    let space = crate::Space::new(vec![Parameter::new("x", third)], vec![]).unwrap();
    for point in space.encoding().all_points() {
        space.check(&space.encoding().decode(&point)).unwrap();
    }
}
use proptest::prelude::*;

fn parameters() -> Vec<Parameter> {
    let mut list = vec![
        Parameter::new(
            "z",
            Kind::Int {
                low: -7,
                high: 30,
                step: 3,
                log: false,
            },
        ),
        Parameter::new(
            "a",
            Kind::Int {
                low: 1,
                high: 4096,
                step: 1,
                log: true,
            },
        ),
        Parameter::new(
            "f",
            Kind::Float {
                low: 0.1,
                high: 10.0,
                step: None,
                log: true,
            },
        ),
        Parameter::new(
            "g",
            Kind::Float {
                low: 0.0,
                high: 1.0,
                step: Some(0.1),
                log: false,
            },
        ),
        Parameter::new(
            "o",
            Kind::Ordinal {
                values: vec![16.into(), 64.into(), 256.into()],
            },
        ),
        Parameter::new(
            "c",
            Kind::Categorical {
                values: vec!["x".into(), "y".into(), "z".into()],
            },
        ),
        Parameter::new("b", Kind::Bool),
    ];
    list[0].special = vec![100.into(), "auto".into()];
    list
}

#[test]
fn finite_spaces_are_listed_once_each() {
    let finite: Vec<Parameter> = parameters()
        .into_iter()
        .filter(|parameter| !["a", "f"].contains(&parameter.name.as_str()))
        .collect();
    let encoding = Encoding::new(&finite);
    let points = encoding.all_points();
    assert_eq!(Some(points.len() as u64), encoding.cardinality());
    assert_eq!(points.len(), (13 + 2) * 11 * 3 * 3 * 2);
    let mut texts: Vec<String> = points
        .iter()
        .map(|point| encoding.decode(point).to_string())
        .collect();
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), points.len());
}

#[test]
fn coordinates_are_what_is_expected_along_parameters() {
    use Coordinate::{Binary, Categorical, Continuous, Integer, Ordered};
    let list = |count: i64| (0..count).map(Value::Int).collect::<Vec<Value>>();
    let int = |high, log| Kind::Int {
        low: 1,
        high,
        step: 1,
        log,
    };
    let float = |log| Kind::Float {
        low: 1.0,
        high: 2.0,
        step: None,
        log,
    };
    let of = |kind: Kind, special: usize| {
        let mut parameter = Parameter::new("p", kind);
        parameter.special = vec![Value::Int(0); special];
        Encoding::new(&[parameter]).coordinates().to_vec()
    };
    for (kind, coordinate) in [
        (Kind::Bool, Binary),
        (Kind::Categorical { values: list(2) }, Binary),
        (Kind::Categorical { values: list(3) }, Categorical),
        (Kind::Ordinal { values: list(2) }, Binary),
        (Kind::Ordinal { values: list(3) }, Ordered),
        (int(2, false), Binary),
        (int(2, true), Binary),
        (int(9, false), Integer),
        (int(9, true), Ordered),
        (float(false), Continuous),
        (float(true), Ordered),
    ] {
        assert_eq!(of(kind.clone(), 0), [coordinate], "{kind:?}");
        let beside = if coordinate == Binary {
            Categorical
        } else {
            coordinate
        };
        assert_eq!(of(kind.clone(), 1), [beside, Categorical], "{kind:?}");
    }
}

#[test]
fn steps_stay_on_the_grid() {
    let encoding = Encoding::new(&parameters());
    let column = encoding.column("z").unwrap();
    let mut point = vec![0.0; encoding.dimension()];
    column.write(&Value::Int(-7), &mut point);
    assert!(!column.step_by(-1, &mut point));
    assert!(column.step_by(2, &mut point));
    assert_eq!(column.read(&point), Value::Int(-1));
    column.write(&Value::from("auto"), &mut point);
    assert!(!column.step_by(1, &mut point));
    assert_eq!(column.read(&point), Value::from("auto"));
}

proptest! {
    #[test]
    fn draws_are_grid_points_and_survive_the_round_trip(units in prop::collection::vec(0.0..1.0_f64, 7)) {
        let encoding = Encoding::new(&parameters());
        let point = encoding.place(&units);
        let configuration = encoding.decode(&point);
        let space = crate::Space::new(parameters(), vec![]).unwrap();
        prop_assert!(space.check(&configuration).is_ok());
        prop_assert_eq!(&space.snap(&configuration), &configuration);
        let again = encoding.encode(&configuration);
        for (a, b) in point.iter().zip(&again) {
            prop_assert!((a - b).abs() < 1e-9);
        }
    }
}
