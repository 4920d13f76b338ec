//! A memory of what did harm: at which load, beside which groups, and until when it is not tried
//! again.

use std::collections::BTreeMap;

use crate::controller::ControllerMode;

/// The first wait before a level that did harm is tried again.
const WAIT_FIRST_S: f64 = 60.0;
/// The longest wait. Workloads change within hours.
const WAIT_MAX_S: f64 = 3600.0;
/// Loads are told apart in steps of a quarter.
const STEP: f64 = 1.25;
/// Combinations of groups that are remembered. More would be a scheduler that starts new names all
/// day.
const MIXES_MAX: usize = 64;

/// One level that did harm.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Harm {
    level: f64,
    until_s: f64,
    wait_s: f64,
}

/// Levels that did harm, by groups and load.
#[derive(Clone, Debug, Default)]
pub(crate) struct HarmMemory {
    mode: ControllerMode,
    mixes: BTreeMap<String, BTreeMap<i64, Harm>>,
}

/// The step of a load on a scale of quarters.
pub(crate) fn load_step(load: f64) -> i64 {
    let step = (load.max(1e-3).ln() / STEP.ln()).floor();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "between -31 and a few dozen"
    )]
    let step = step as i64;
    step
}

/// A load's step, which changes only when the load leaves the old one clearly.
pub(crate) fn load_step_near(load: f64, last: Option<i64>) -> i64 {
    let step = load_step(load);
    match last {
        // A tenth beyond the border.
        Some(last) if load_step(load * 1.1) >= last && load_step(load / 1.1) <= last => last,
        _ => step,
    }
}

impl HarmMemory {
    /// A memory that stays empty while nothing is in force: then no level can have done harm.
    pub(crate) fn of(mode: ControllerMode) -> Self {
        Self {
            mode,
            mixes: BTreeMap::new(),
        }
    }

    /// The lowest level that is not to be reached at this load: what did harm at a lower load does
    /// at a higher one.
    pub(crate) fn bound(&self, mix: &str, step: i64, now_s: f64) -> Option<f64> {
        let harms = self.mixes.get(mix)?.range(..=step);
        harms
            .map(|(_, harm)| harm)
            .filter(|harm| harm.until_s > now_s)
            .map(|harm| harm.level)
            .reduce(f64::min)
    }

    /// The lowest level that did harm beside these groups, at any load, and however long ago.
    pub(crate) fn lowest(&self, mix: &str) -> Option<f64> {
        let harms = self.mixes.get(mix)?.values();
        harms.map(|harm| harm.level).reduce(f64::min)
    }

    /// This level did harm: it is not tried again for a time that doubles.
    pub(crate) fn record(&mut self, mix: &str, step: i64, level: f64, now_s: f64) {
        if !self.mode.is_acting() {
            return;
        }
        if !self.mixes.contains_key(mix) && self.mixes.len() >= MIXES_MAX {
            self.mixes.pop_first();
        }
        let harms = self.mixes.entry(mix.to_owned()).or_default();
        let harm = harms.entry(step).or_insert(Harm {
            level,
            until_s: now_s,
            wait_s: WAIT_FIRST_S / 2.0,
        });
        // What is still in force and lower says more.
        harm.level = if harm.until_s > now_s {
            harm.level.min(level)
        } else {
            level
        };
        harm.wait_s = (2.0 * harm.wait_s).min(WAIT_MAX_S);
        harm.until_s = now_s + harm.wait_s;
    }

    /// This level was shown to be harmless at this load, so lower levels at lower loads are too.
    /// What did harm is forgotten once it has been harmless for as long as it was not tried: else a
    /// level at the border would be tried all day.
    pub(crate) fn harmless(&mut self, mix: &str, step: i64, level: f64, now_s: f64) {
        if let Some(harms) = self.mixes.get_mut(mix) {
            harms.retain(|at, harm| {
                *at > step || harm.level > level || harm.until_s + harm.wait_s > now_s
            });
        }
    }

    /// Levels that are not tried now.
    pub(crate) fn len(&self, now_s: f64) -> usize {
        let harms = self.mixes.values().flat_map(BTreeMap::values);
        harms.filter(|harm| harm.until_s > now_s).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_harm_is_not_tried_for_a_growing_time() {
        let mut memory = HarmMemory::default();
        memory.record("a", 3, 2.0, 0.0);
        assert_eq!(memory.bound("a", 3, 59.0), Some(2.0));
        assert_eq!(memory.bound("a", 5, 59.0), Some(2.0));
        assert_eq!(memory.bound("a", 2, 59.0), None);
        assert_eq!(memory.bound("b", 3, 59.0), None);
        assert_eq!(memory.bound("a", 3, 61.0), None);
        memory.record("a", 3, 2.5, 61.0);
        assert_eq!(memory.bound("a", 3, 61.0 + 119.0), Some(2.5));
        for _ in 0..20 {
            memory.record("a", 3, 1.0, 200.0);
        }
        assert_eq!(memory.bound("a", 3, 200.0 + WAIT_MAX_S + 1.0), None);
        // Forgotten after it was harmless for as long as it was not tried.
        memory.harmless("a", 3, 1.5, 200.0 + WAIT_MAX_S + 1.0);
        assert_eq!(memory.lowest("a"), Some(1.0));
        memory.harmless("a", 3, 1.5, 200.0 + 2.0 * WAIT_MAX_S + 1.0);
        assert_eq!(memory.lowest("a"), None);
        memory.record("a", 3, 1.0, 10_000.0);
        assert_eq!(memory.bound("a", 3, 10_000.0 + WAIT_FIRST_S + 1.0), None);
    }

    #[test]
    fn loads_near_a_border_stay_where_they_were() {
        let at = load_step(0.5);
        assert_eq!(load_step_near(0.51, Some(at)), at);
        let border = STEP.powi(i32::try_from(at).unwrap() + 1);
        assert_eq!(load_step_near(border * 1.05, Some(at)), at);
        assert_eq!(load_step_near(border * 1.2, Some(at)), at + 1);
        assert_eq!(load_step_near(border * 1.05, None), at + 1);
    }

    #[test]
    fn a_level_that_was_never_in_force_did_no_harm() {
        let mut memory = HarmMemory::of(ControllerMode::Observing);
        memory.record("a", 3, 2.0, 0.0);
        assert_eq!(
            (memory.bound("a", 3, 1.0), memory.lowest("a")),
            (None, None)
        );
        assert_eq!(memory.len(1.0), 0);
    }

    #[test]
    fn the_memory_is_bounded() {
        let mut memory = HarmMemory::default();
        for index in 0..1000 {
            memory.record(&format!("{index}"), 0, 1.0, 0.0);
        }
        assert_eq!(memory.len(1.0), MIXES_MAX);
    }
}
