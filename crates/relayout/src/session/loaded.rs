//! An object of a process that is laid out: its file, its profile, and which of its functions are
//! chosen.

use std::collections::{BTreeMap, BTreeSet};

use code_layout::{
    BasicBlock, Branches, Emitted, Function, FunctionId, Image, LayoutPlan, Placement, Profile,
    Skip, Skipped,
};

use crate::RelayoutError;
use crate::patch::moved;
use crate::patch::unwinder::FIND;
use crate::process::maps::{self, Mapping};
use crate::process::sampling::Samples;
use crate::process::{Object, Process};
use crate::session::cover::{Hot, Ran};
use crate::session::layout::{ProfilingOptions, TOP, TopFunction};

/// An object that is laid out.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) object: Object,
    pub(crate) image: Image,
    pub(crate) bias: u64,
    pub(crate) profile: Profile,
    pub(crate) functions: Vec<Function>,
    pub(crate) skipped: Skipped,
    /// Functions that were looked into, or why they cannot be moved.
    pub(crate) analysed: BTreeMap<FunctionId, Result<Function, Skip>>,
}

impl Loaded {
    /// The functions that are worth moving, by the samples.
    pub(crate) fn choose(&mut self, method: &ProfilingOptions) {
        let ids = self.worth_moving(&self.profile, method);
        self.functions.clear();
        self.skipped.clear();
        for id in ids {
            match self.function(id).clone() {
                Ok(function) => self.functions.push(function),
                Err(skip) => *self.skipped.entry(skip).or_default() += 1,
            }
        }
    }

    fn worth_moving(&self, profile: &Profile, method: &ProfilingOptions) -> Vec<FunctionId> {
        match method.random {
            None => profile.hottest(&self.image, method.share, method.functions_max),
            Some(_) => self.image.function_ids().collect(),
        }
    }

    fn function(&mut self, id: FunctionId) -> &Result<Function, Skip> {
        let analyse = || self.image.analyse(id);
        self.analysed.entry(id).or_insert_with(analyse)
    }

    /// Adds the samples that a profile of the object has in code that could be moved; `index` is
    /// the object's.
    pub(crate) fn add_ran(&mut self, index: usize, profile: &Profile, ran: &mut Ran) {
        for (vaddr, samples) in &profile.samples {
            let Some(id) = self.image.function_at(*vaddr) else {
                continue;
            };
            let Ok(function) = self.function(id) else {
                continue;
            };
            let block = function.block_of(*vaddr).map(|id| &function.blocks[id]);
            if let Some(block) = block.filter(|block| can_move(block)) {
                ran.add(((index, function.start), block.start), *samples);
            }
        }
    }

    /// Adds the blocks that a layout by a profile of the object moves: those that were counted, of
    /// the functions that are worth it.
    pub(crate) fn add_hot(
        &mut self,
        index: usize,
        profile: &Profile,
        method: &ProfilingOptions,
        hot: &mut Hot,
    ) {
        for id in self.worth_moving(profile, method) {
            let Ok(function) = self.function(id) else {
                continue;
            };
            let counts = profile.functions.get(&function.start);
            let is_entered = counts.is_none_or(|counts| !counts.blocks.is_empty());
            for block in function.blocks.iter().filter(|block| can_move(block)) {
                let place = ((index, function.start), block.start);
                let is_sampled = profile
                    .samples
                    .range(block.start..block.end)
                    .next()
                    .is_some();
                let is_counted = match counts {
                    Some(counts) => {
                        let count = counts.blocks.get(&function.offset(block.start));
                        count.is_some_and(|count| *count > 0)
                    }
                    None => is_sampled,
                };
                if is_counted || method.random.is_some() {
                    hot.add(place, block.end - block.start);
                } else if is_sampled || !is_entered {
                    hot.add_stuck(place);
                }
            }
        }
    }

    /// What the layout was made by: the counts of the functions that it moves, without those of
    /// earlier workloads.
    pub(crate) fn profile_of_layout(&self) -> Profile {
        let mut profile = self.profile.clone();
        let moved: BTreeSet<u64> = self.functions.iter().map(|one| one.start).collect();
        profile.functions.retain(|start, _| moved.contains(start));
        profile
    }

    /// Whether a function of it has something to do when an exception passes.
    pub(crate) fn has_tables(&self) -> bool {
        self.image
            .functions()
            .iter()
            .any(|range| range.lsda.is_some())
    }

    pub(crate) fn emit(
        &self,
        plan: &LayoutPlan,
        placement: &Placement,
    ) -> Result<Emitted, RelayoutError> {
        code_layout::emit(&self.image, plan, placement).map_err(|source| self.error(source))
    }

    pub(crate) fn error(&self, source: code_layout::Error) -> RelayoutError {
        RelayoutError::Layout {
            path: self.object.path.clone(),
            source,
        }
    }

    /// Takes over what recorded branches, at runtime addresses, say of the chosen functions.
    pub(crate) fn count_recorded(&mut self, recorded: &Branches) {
        let (start, end) = self.object.range();
        let own = recorded.within(&(start..end), self.bias);
        for function in &self.functions {
            self.profile.functions.remove(&function.start);
        }
        self.profile.functions.extend(own.counts(&self.functions));
    }

    /// The samples of one object, by the file's own addresses.
    pub(crate) fn profile_of(&self, samples: &Samples) -> Profile {
        let (start, end) = self.object.range();
        let mut profile = Profile {
            build_id: self.profile.build_id.clone(),
            ..Profile::default()
        };
        for (address, count) in samples.user.range(start..end) {
            profile.add_sample(address.wrapping_sub(self.bias), *count);
        }
        profile
    }

    /// Functions in groups whose share of the samples is at most `share`; one that has more is a
    /// group of its own.
    pub(crate) fn groups(&self, share: f64) -> Vec<Vec<Function>> {
        let by_function = self.profile.by_function(&self.image);
        let total = by_function.values().sum::<u64>().max(1) as f64;
        let mut groups: Vec<(f64, Vec<Function>)> = Vec::new();
        for function in &self.functions {
            let own = by_function.get(&function.id).copied().unwrap_or(0) as f64 / total;
            match groups.iter_mut().find(|(used, _)| used + own <= share) {
                Some((used, group)) => {
                    *used += own;
                    group.push(function.clone());
                }
                None => groups.push((own, vec![function.clone()])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// What the object's slots hold, where the dynamic linker has filled them: an address in the
    /// code of another object.
    pub(crate) fn resolved(&self, process: &Process) -> Result<BTreeMap<u64, u64>, RelayoutError> {
        let maps = process.maps()?;
        let own = self.object.range();
        let mut got = BTreeMap::new();
        // What the unwinder calls is led to moved code; see `unwinder`.
        let slots = self.image.got_slots().iter();
        for slot in slots.filter(|slot| slot.symbol != FIND) {
            let Ok(value) = process.memory.word(slot.vaddr.wrapping_add(self.bias)) else {
                continue;
            };
            let is_code = maps::at(&maps, value).is_some_and(Mapping::is_file_code);
            if is_code && !(own.0..own.1).contains(&value) {
                got.insert(slot.vaddr, value);
            }
        }
        Ok(got)
    }

    /// The functions of an object with the most samples, of so many in all objects.
    pub(crate) fn top(&self, samples: u64) -> Vec<TopFunction> {
        let by_function = self.profile.by_function(&self.image);
        let all = samples.max(1) as f64;
        let hottest = self.profile.hottest(&self.image, 1.0, TOP);
        let one = |id: FunctionId| {
            let range = self.image.range(id);
            let known = self.functions.iter().find(|function| function.id == id);
            let counts = self.profile.functions.get(&range.start);
            let is_hot = |offset: u64| {
                let offset = u32::try_from(offset).unwrap_or(u32::MAX);
                counts.is_some_and(|counts| counts.blocks.contains_key(&offset))
            };
            let blocks = known.iter().flat_map(|function| &function.blocks);
            let hot = blocks.filter(|block| is_hot(block.start - range.start));
            TopFunction {
                name: moved::name(&self.image, &self.object.path, range.start),
                share: by_function.get(&id).copied().unwrap_or(0) as f64 / all,
                bytes: range.end - range.start,
                hot_bytes: hot.map(|block| block.end - block.start).sum(),
                is_moved: known.is_some(),
            }
        };
        hottest.into_iter().map(one).collect()
    }
}

/// Whether a layout may move a block at all.
fn can_move(block: &BasicBlock) -> bool {
    block.stays.is_none() && !block.landing_pad
}
