//! What runs in the functions that the samples chose: recorded by the processor, or counted by
//! emitted code.

use std::thread::sleep;
use std::time::Instant;

use code_layout::{CounterArea, LayoutPlan, Placement, Profile};

use super::{Session, patches};
use crate::RelayoutError;
use crate::patch::region::HEADER_BYTES;
use crate::process::maps::PAGE;
use crate::process::sampling::branches;
use crate::session::kept::Counting;

impl Session {
    /// Counts what runs in the functions that the samples chose: from the branches that the
    /// processor records, or else exactly, some functions at a time. The process is back in its
    /// original layout afterwards.
    ///
    /// # Errors
    /// Those of mapping, writing and switching.
    pub fn count(&mut self) -> Result<(), RelayoutError> {
        let start = Instant::now();
        for loaded in &mut self.objects {
            loaded.choose(&self.method);
        }
        if self.method.random.is_some() {
            return Ok(());
        }
        // Of the original code: a layout in force may have turned branches around.
        self.cache.switch(0)?;
        let cache = &mut self.cache;
        let recorded = branches(
            || cache.pids(),
            self.method.samples_per_s,
            self.method.sampling,
        )?;
        match recorded {
            Some(recorded) => {
                for loaded in &mut self.objects {
                    loaded.count_recorded(&recorded);
                }
                self.counted_by = Some(Counting::BranchRecords);
                self.time("recording branches", start);
            }
            None => {
                for index in 0..self.objects.len() {
                    self.count_object(index)?;
                }
                self.counted_by = Some(Counting::Counters);
                self.time("counting", start);
            }
        }
        Ok(())
    }

    fn count_object(&mut self, index: usize) -> Result<(), RelayoutError> {
        let loaded = &self.objects[index];
        let groups = loaded.groups(self.method.counted_share);
        let plans: Vec<LayoutPlan> = groups
            .into_iter()
            .map(|group| LayoutPlan::counting(group, &loaded.profile))
            .collect();
        if plans.is_empty() {
            return Ok(());
        }
        let counters: usize = plans.iter().map(|plan| plan.counters() * 8 + 64).sum();
        let near = loaded.object.range();
        let area = self
            .cache
            .map(near, HEADER_BYTES + counters as u64, false)?;
        let placement = |cache: u64, cache_bytes: u64, counters: u64, bias: u64| Placement {
            load_bias: bias,
            cache_address: cache,
            cache_bytes,
            counters: Some(CounterArea { address: counters }),
            ..Placement::default()
        };
        let loaded = &self.objects[index];
        // How long each one gets does not depend on where it lies.
        let mut sizes = Vec::new();
        for plan in &plans {
            let at = placement(
                area.end(),
                u64::from(u32::MAX),
                area.address + HEADER_BYTES,
                loaded.bias,
            );
            let emitted = loaded.emit(plan, &at)?;
            sizes.push((emitted.bytes.len() as u64).next_multiple_of(PAGE as u64) + PAGE as u64);
        }
        let all: u64 = sizes.iter().sum();
        // It reaches the old code and the counters.
        let near = (near.0.min(area.address), near.1.max(area.end()));
        let mut region = self.cache.map(near, PAGE as u64 + all, true)?;
        let mut at = region.address + PAGE as u64;
        let mut counters_at = area.address + HEADER_BYTES;
        let bias = self.objects[index].bias;
        let mut counted = Vec::new();
        // All code is there before the first of it is put in force.
        for (plan, size) in plans.into_iter().zip(&sizes) {
            let placement = placement(at, *size, counters_at, bias);
            let emitted = self.objects[index].emit(&plan, &placement)?;
            self.put(&mut region, &emitted)?;
            let counters = counters_at;
            at += size;
            counters_at += (plan.counters() as u64 * 8).next_multiple_of(64);
            counted.push((plan, patches(&emitted, bias), counters));
        }
        // Announced together: while one group counts, nobody waits for the disk.
        let layouts = counted.iter_mut();
        let layouts = layouts.map(|(_, patches, _)| std::mem::take(patches));
        let layouts = layouts.collect();
        let numbers = self.cache.announce_all(layouts, &[region, area])?;
        for number in &numbers {
            self.cache.switch(*number)?;
            sleep(self.method.counting);
            self.cache.switch(0)?;
            sleep(self.method.resting);
        }
        let mut profile = Profile::default();
        for (plan, _, counters) in counted {
            let counts = self.counts(counters, plan.counters())?;
            profile.merge(&plan.profile(&self.objects[index].image, &counts));
        }
        self.cache.forget(&numbers)?;
        // What a thread is still in stays until the next time.
        self.cache.reclaim()?;
        self.objects[index].profile.merge(&profile);
        Ok(())
    }

    /// The counters at an address, summed over the family. (Who was forked meanwhile began with its
    /// parent's counts: so it weighs a little more.)
    fn counts(&mut self, address: u64, count: usize) -> Result<Vec<u64>, RelayoutError> {
        let mut sums = vec![0_u64; count];
        self.cache.gather();
        for process in self.cache.family() {
            // A member that was left out has no counters, and one that has ended has none any more.
            let Ok(bytes) = process.memory.read(address, count * 8) else {
                continue;
            };
            for (sum, word) in sums.iter_mut().zip(bytes.chunks_exact(8)) {
                let count = word.try_into().map_or(0, u64::from_le_bytes);
                *sum = sum.wrapping_add(count);
            }
        }
        Ok(sums)
    }
}
