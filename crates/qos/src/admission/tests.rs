//! Tests of which tenants a device admits.

use super::*;
use crate::simulated::p3600_model;

fn critical(p95_us: u32, iops: u32, read_share: f64) -> TenantSpec {
    TenantSpec::latency_critical(Objective {
        p95_us,
        iops,
        read_share,
    })
}

const READER: TenantSpec = TenantSpec {
    objective: None,
    read_only: true,
};

#[test]
fn the_reservation_is_that_of_the_paper() {
    let admission = Admission::new(Some(p3600_model()));
    // ReFlex, section 3.2.2: 100K IOPS at 80 % reads and a write cost of 10 reads: 280K reads.
    let objective = Objective {
        p95_us: 1000,
        iops: 100_000,
        read_share: 0.8,
    };
    assert_eq!(admission.needed(&objective), 280_000 * 100);
}

#[test]
fn the_strictest_objective_decides_and_the_sum_is_refused() {
    let mut admission = Admission::new(Some(p3600_model()));
    admission.admit(&critical(1000, 200_000, 0.9)).unwrap();
    assert_eq!(admission.shares(1.0, false).rate, Some(50_000_000));
    // 38M are reserved; at 500 µs the device takes 36M.
    let refused = admission.admit(&critical(500, 1000, 0.9)).unwrap_err();
    assert!(
        matches!(
            refused,
            Refused::TooMuch {
                left: 0,
                rate: 36_000_000,
                reserved: 38_000_000,
                strictest_us: 500,
                ..
            }
        ),
        "{refused}"
    );
    admission.admit(&critical(2000, 60_000, 0.9)).unwrap();
    let refused = admission.admit(&critical(2000, 60_000, 0.9)).unwrap_err();
    assert!(
        refused.to_string().contains("Up to 3,157 IOPS fit"),
        "{refused}"
    );
    admission.admit(&critical(2000, 3157, 0.9)).unwrap();
}

#[test]
fn a_writer_ends_read_only_mode_unless_promises_stand_in_its_way() {
    let mut admission = Admission::new(Some(p3600_model()));
    admission.admit(&critical(500, 100_000, 1.0)).unwrap();
    assert!(admission.shares(1.0, false).is_read_only);
    assert_eq!(admission.shares(1.0, false).rate, Some(85_000_000));
    admission.admit(&READER).unwrap();
    assert!(admission.shares(1.0, false).is_read_only);
    admission.admit(&TenantSpec::best_effort()).unwrap();
    let shares = admission.shares(1.0, false);
    assert_eq!(
        (shares.is_read_only, shares.rate),
        (false, Some(36_000_000))
    );
    assert_eq!(shares.best_effort_each, 13_000_000);
    admission.release(&TenantSpec::best_effort());
    assert!(admission.shares(1.0, false).is_read_only);
    admission.admit(&critical(500, 300_000, 1.0)).unwrap();
    assert_eq!(
        admission.admit(&TenantSpec::best_effort()),
        Err(Refused::EndsReadOnly {
            rate: 36_000_000,
            reserved: 40_000_000
        })
    );
    assert!(admission.shares(1.0, false).is_read_only);
}

#[test]
fn without_a_best_effort_tenant_the_spare_is_split() {
    let mut admission = Admission::new(Some(p3600_model()));
    admission.admit(&critical(500, 50_000, 1.0)).unwrap();
    admission.admit(&critical(600, 50_000, 1.0)).unwrap();
    let shares = admission.shares(1.0, false);
    assert_eq!(
        (shares.spare_each, shares.best_effort_each),
        (37_500_000, 0)
    );
    admission.admit(&READER).unwrap();
    let shares = admission.shares(1.0, false);
    assert_eq!(
        (shares.spare_each, shares.best_effort_each),
        (0, 75_000_000)
    );
}

#[test]
fn when_all_have_gone_the_device_is_as_new() {
    let mut admission = Admission::new(Some(p3600_model()));
    let fresh = admission.shares(1.0, false);
    let specs = [
        critical(500, 1000, 0.5),
        critical(700, 10, 1.0),
        TenantSpec::best_effort(),
    ];
    for spec in &specs {
        admission.admit(spec).unwrap();
    }
    for spec in &specs {
        admission.release(spec);
    }
    assert_eq!(admission.shares(1.0, false), fresh);
    assert_eq!(fresh.rate, None);
}

#[test]
fn objectives_that_cannot_be_are_refused_with_a_reason() {
    let mut admission = Admission::new(Some(p3600_model()));
    for (spec, word) in [
        (critical(0, 1, 1.0), "p95_us"),
        (critical(1, 0, 1.0), "iops"),
        (critical(500, 1, 1.5), "read_share"),
        (critical(500, 1, f64::NAN), "read_share"),
        (critical(10, 1, 1.0), "ask for"),
    ] {
        let refused = admission.admit(&spec).unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    assert_eq!(admission.tenants(), 0);
    let mut unknown = Admission::new(None);
    assert_eq!(
        unknown.admit(&critical(500, 1, 1.0)),
        Err(Refused::NotCalibrated)
    );
    unknown.admit(&TenantSpec::best_effort()).unwrap();
    assert_eq!(unknown.shares(1.0, false).rate, None);
}

#[test]
fn a_calibration_without_writes_admits_readers_only() {
    let mut model = p3600_model();
    model.curve.mixed = None;
    let mut admission = Admission::new(Some(model));
    let advice = |admission: &mut Admission, spec: &TenantSpec| match admission.admit(spec) {
        Err(Refused::WritesNotCalibrated { advice }) => advice,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        advice(&mut admission, &critical(500, 1, 0.9)),
        "make the tenant read-only: `read_only = true`, and `read_share = 1.0` in its objective"
    );
    // Without objectives anything goes, and nothing is limited.
    admission.admit(&TenantSpec::best_effort()).unwrap();
    assert_eq!(admission.shares(1.0, false).rate, None);
    assert_eq!(
        advice(&mut admission, &critical(500, 1, 1.0)),
        "set `read_only = true` for the device's other tenants"
    );
    admission.release(&TenantSpec::best_effort());
    admission.admit(&critical(500, 1, 1.0)).unwrap();
    assert_eq!(
        advice(&mut admission, &TenantSpec::best_effort()),
        "set `read_only = true` for the tenant"
    );
    admission.admit(&READER).unwrap();
}

#[test]
fn the_read_only_rate_holds_while_nobody_writes() {
    let mut admission = Admission::new(Some(p3600_model()));
    admission.admit(&critical(500, 10_000, 0.9)).unwrap();
    admission.admit(&TenantSpec::best_effort()).unwrap();
    assert_eq!(admission.shares(1.0, false).rate, Some(36_000_000));
    assert_eq!(admission.shares(1.0, true).rate, Some(85_000_000));
    assert_eq!(admission.shares(2.0, false).rate, Some(72_000_000));
    // Never beyond what the device was seen to do.
    assert_eq!(admission.shares(9.0, false).rate, Some(80_000_000));
}
