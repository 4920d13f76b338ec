use tuner::evaluation::Outcome;

use super::*;

#[test]
fn a_run_of_a_verification_that_fails_is_left_to_others() {
    let failed = |failure| Measured {
        failure: Some(failure),
        ..Measured::failed("no load".into())
    };
    let is_brought = |failure, purpose| or_why_not(failed(failure), purpose).is_ok();
    assert!(is_brought(Failure::Unmeasured, Purpose::Search));
    assert!(!is_brought(Failure::Harness, Purpose::Search));
    for failure in [Failure::Unmeasured, Failure::Harness] {
        let why = or_why_not(failed(failure), Purpose::Verification);
        assert_eq!(why, Err("no load".into()));
    }
    let crashed = Measured {
        outcome: Outcome::Crashed,
        failure: None,
        ..failed(Failure::Harness)
    };
    assert!(
        or_why_not(crashed, Purpose::Verification).is_ok(),
        "which is the configuration's fault"
    );
}
