//! What is behind a device's lock: the book of tenants, the feedback, and the learners of its
//! curve.

use std::collections::HashMap;
use std::sync::Arc;

use crate::account::Account;
use crate::admission::Admission;
use crate::feedback::Feedback;
use crate::learning::{Finding, Learner};
use crate::notice::{DeviceNotice, Notices};
use crate::{CalibrationDrift, DeviceModel, TenantSpec};

/// Reads of a second that its 95th percentile needs to teach something.
const LESSON_READS_MIN: u64 = 200;

#[derive(Debug)]
pub(super) struct Control {
    /// Accounts that several threads may share, by their tenants' names.
    pub(super) accounts: HashMap<Box<str>, Arc<Account>>,
    /// The model that was given, before anything was learnt.
    pub(super) calibration: Option<DeviceModel>,
    pub(super) admission: Admission,
    pub(super) feedback: Feedback,
    mixed: Option<Learner>,
    read_only: Option<Learner>,
    pub(super) notices: Notices,
    pub(super) steps: u32,
    lesson_at_ns: u64,
    lesson_spent: u64,
    pub(super) drift: Option<CalibrationDrift>,
}

impl Control {
    /// That of a device without tenants.
    pub(super) fn new(model: Option<DeviceModel>) -> Self {
        let mut control = Self {
            accounts: HashMap::new(),
            calibration: None,
            admission: Admission::new(None),
            feedback: Feedback::new(),
            mixed: None,
            read_only: None,
            notices: Notices::new(),
            steps: 0,
            lesson_at_ns: 0,
            lesson_spent: 0,
            drift: None,
        };
        control.calibrate(model);
        control
    }

    pub(super) fn calibrate(&mut self, model: Option<DeviceModel>) {
        let curve = model.as_ref().map(|model| model.curve.clone());
        let mixed = curve.as_ref().and_then(|curve| curve.mixed.clone());
        self.mixed = mixed.map(Learner::new);
        self.read_only = curve.map(|curve| Learner::new(curve.read_only));
        self.feedback = Feedback::new();
        self.drift = None;
        self.calibration.clone_from(&model);
        self.admission.set_model(model);
    }

    pub(super) fn needed(&self, spec: &TenantSpec) -> u64 {
        spec.objective
            .map_or(0, |objective| self.admission.needed(&objective))
    }

    pub(super) fn learn(&mut self, now_ns: u64, lesson: u64, spent: u64, is_quiet: bool) {
        let (time_ns, tokens) = (
            now_ns.saturating_sub(self.lesson_at_ns),
            spent - self.lesson_spent,
        );
        (self.lesson_at_ns, self.lesson_spent) = (now_ns, spent);
        let (reads, p95_us) = (lesson >> 32, (lesson & u64::from(u32::MAX)) as f64);
        if reads < LESSON_READS_MIN || time_ns == 0 {
            return;
        }
        let is_read_only = self.admission.shares(1.0, is_quiet).is_read_only;
        let learner = match is_read_only {
            true => &mut self.read_only,
            false => &mut self.mixed,
        };
        let Some(learner) = learner else { return };
        let tokens_per_s = tokens as f64 * 1e9 / time_ns as f64;
        match learner.observe(tokens_per_s, p95_us) {
            Finding::Nothing => {}
            Finding::Drifted(drift) => {
                self.drift = Some(drift);
                self.notices
                    .push(DeviceNotice::CalibrationNoLongerHolds(drift));
            }
            Finding::Holds => {
                self.drift = None;
                self.notices.push(DeviceNotice::CalibrationHolds);
            }
        }
        let learnt = learner.learnt();
        if let Some(mut model) = self.admission.model().cloned() {
            match is_read_only {
                true => model.curve.read_only = learnt,
                false => model.curve.mixed = Some(learnt),
            }
            self.admission.set_model(Some(model));
        }
    }
}
