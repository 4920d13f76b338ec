//! When a shard is added or given back: IX's elastic control plane, as a pure function of load.

/// Above this share of busy time in any shard, another shard is added: queueing delay doubles there
/// beyond it (M/M/1 at 0.8 waits five service times).
const ADD_ABOVE: f64 = 0.8;
/// A shard is given back when the others would stay below this share.
const GIVE_BACK_BELOW: f64 = 0.55;
/// Decisions in a row that must agree before a shard is given back. Adding does not wait.
const AGREE: u32 = 3;

/// How many shards should own flows.
#[derive(Debug, Clone)]
pub struct Elastic {
    shards_max: u8,
    active: u8,
    calm: u32,
}

impl Elastic {
    /// Begins with one shard of at most `shards_max`.
    pub fn new(shards_max: u8) -> Self {
        Self {
            shards_max: shards_max.max(1),
            active: 1,
            calm: 0,
        }
    }

    /// Shards that own flows now.
    pub fn active(&self) -> u8 {
        self.active
    }

    /// Takes each active shard's share of busy time since the last step (0 to 1), and gives the
    /// number of shards that should own flows.
    pub fn step(&mut self, busy: &[f64]) -> u8 {
        let busy = &busy[..busy.len().min(usize::from(self.active))];
        let total: f64 = busy.iter().sum();
        let most = busy.iter().copied().fold(0.0, f64::max);
        if most > ADD_ABOVE && self.active < self.shards_max {
            self.active += 1;
            self.calm = 0;
        } else if self.active > 1 && total / f64::from(self.active - 1) < GIVE_BACK_BELOW {
            self.calm += 1;
            if self.calm >= AGREE {
                self.active -= 1;
                self.calm = 0;
            }
        } else {
            self.calm = 0;
        }
        self.active
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Load in units of one shard, spread evenly.
    fn follow(elastic: &mut Elastic, load: f64, steps: usize) -> u8 {
        for _ in 0..steps {
            let each = (load / f64::from(elastic.active())).min(1.0);
            elastic.step(&vec![each; usize::from(elastic.active())]);
        }
        elastic.active()
    }

    #[test]
    fn shards_follow_a_load_that_doubles_and_halves() {
        let mut elastic = Elastic::new(4);
        assert_eq!(follow(&mut elastic, 0.4, 20), 1);
        assert_eq!(follow(&mut elastic, 0.9, 20), 2);
        assert_eq!(follow(&mut elastic, 1.8, 20), 3);
        assert_eq!(follow(&mut elastic, 3.9, 20), 4);
        assert_eq!(follow(&mut elastic, 0.9, 40), 2);
        assert_eq!(follow(&mut elastic, 0.2, 40), 1);
    }

    #[test]
    fn no_constant_load_makes_shards_come_and_go() {
        for hundredths in 1..390 {
            let mut elastic = Elastic::new(4);
            let load = f64::from(hundredths) / 100.0;
            let settled = follow(&mut elastic, load, 50);
            for _ in 0..50 {
                assert_eq!(follow(&mut elastic, load, 1), settled, "{load}");
            }
        }
    }
}
