//! Numbers that are far out of any range.

use host::Roots;

use crate::{SOUND, error_in, expect};

#[test]
fn an_end_of_a_range_is_a_finite_number() {
    for (number, shown) in [("inf", "inf"), ("-inf", "-inf"), ("nan", "NaN")] {
        for (key, line, from) in [("low", 5, "low = 1\n"), ("high", 6, "high = 32\n")] {
            let to = format!("{key} = {number}\n");
            let place = format!("spec.toml:{line}: parameters[0].{key}");
            let says = format!("{place}: must be a finite number, not {shown}");
            expect(from, &to, &says);
            let float = SOUND.replacen("int", "float", 1).replacen(from, &to, 1);
            assert_eq!(error_in("spec.toml", &float, &Roots::default()), says);
        }
    }
    expect(
        "default = 16\n",
        "default = nan\n",
        "spec.toml:7: parameters[0].default: must be a finite number, not NaN",
    );
    expect(
        "default = 16\n",
        "default = 16\nspecial = [inf]\n",
        "spec.toml:8: parameters[0].special: must be a finite number, not inf",
    );
    expect(
        "type = \"int\"\nlow = 1\nhigh = 32\ndefault = 16\n",
        "type = \"ordinal\"\nvalues = [1.0, nan]\ndefault = 1.0\n",
        "spec.toml:5: parameters[0].values: must be a finite number, not NaN",
    );
    expect(
        "default = 16\n",
        "default = 16\nprior = { best_guess = inf, confidence = 0.5 }\n",
        "spec.toml:8: parameters[0].prior.best_guess: must be a finite number, not inf",
    );
}

/// JSON, in which the specification is kept, has no such numbers: a constant would be read as none.
#[test]
fn a_constant_is_a_finite_number() {
    for (constant, key, shown) in [
        ("variables = { pages = inf }", "variables.pages", "inf"),
        (
            "initial = [{ threads = -nan }]",
            "initial[0].threads",
            "NaN",
        ),
    ] {
        expect(
            "name = \"sound\"\n",
            &format!("name = \"sound\"\n{constant}\n"),
            &format!("spec.toml:2: {key}: must be a finite number, not {shown}"),
        );
    }
}

#[test]
fn numbers_of_evaluations_have_an_end() {
    for (section, error) in [
        (
            "[budget]\nevaluations = 100001",
            "spec.toml:16: budget.evaluations: 100001 must be at most 100000",
        ),
        (
            "[verification]\ntop = 21",
            "spec.toml:16: verification.top: 21 must be at most 20, the number of evaluations (budget.evaluations)",
        ),
        (
            "[search]\ninitial_random = 1000000000000",
            "spec.toml:16: search.initial_random: 1000000000000 must be at most 100000",
        ),
    ] {
        let text = format!("{SOUND}{section}\n");
        assert_eq!(error_in("spec.toml", &text, &Roots::default()), error);
    }
    let text = format!("{SOUND}std_weight = 1e300\n");
    assert_eq!(
        error_in("spec.toml", &text, &Roots::default()),
        "spec.toml:15: objective.std_weight: must be at most 1000000"
    );
}
