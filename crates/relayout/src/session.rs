//! One process from its first sample to a verified layout: the steps that [`Driver`](crate::Driver)
//! asks for, done.
//!
//! `counting` and `earlier` find out what runs. [`loaded`] is an object with its profile,
//! [`layout`] what is made of it, [`cover`] how well that fits. [`phases`] has the layouts in
//! force, [`kept`] the profiles on disk.

mod counting;
pub(crate) mod cover;
mod earlier;
mod kept;
pub(crate) mod layout;
mod loaded;
mod phases;

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use code_layout::{
    CallSites, Emitted, LayoutOrder, LayoutPlan, PatchSelection, Placement, Profile, Skipped,
};

use crate::driver::ProcessLoad;
use crate::patch::manifest::{AppliedPatch, Bytes, Region};
use crate::patch::moved::{self, Moved};
use crate::patch::patched_process::PatchedProcess;
use crate::process::maps::PAGE;
use crate::process::sampling::{Samples, sample};
use crate::process::sharing;
use crate::process::{Object, Process};
use crate::session::cover::{Cover, Ran};
use crate::session::kept::{Counting, KeptFile};
use crate::session::layout::{KeptProfile, LayoutSummary, ProfilingOptions, TOP};
use crate::session::loaded::Loaded;
use crate::session::phases::{Phase, Phases};
use crate::{Declined, ManifestStore, RelayoutError};

/// One process being worked on.
#[derive(Debug)]
pub struct Session {
    /// Its code cache.
    pub cache: PatchedProcess,
    method: ProfilingOptions,
    objects: Vec<Loaded>,
    phases: Phases,
    /// What ran when it was looked at last.
    ran: Ran,
    /// The profiles on disk that were considered last.
    kept: Vec<KeptFile>,
    /// How its blocks were counted last.
    counted_by: Option<Counting>,
    opened: Instant,
    /// When its CPU time was last read, and what it was, in seconds.
    last_cpu: Option<(Instant, f64)>,
    /// How long each step took, in seconds.
    pub seconds: BTreeMap<&'static str, f64>,
}

/// How long a process is looked at, at least, to tell whether it does anything.
const FIRST_LOOK: Duration = Duration::from_millis(300);

/// Below this a process is not even sampled, in cores; a fifth of what `DriverSettings::idle_cores`
/// declines.
const ASLEEP_CORES: f64 = 0.01;

impl Session {
    /// Opens a process, after preflight.
    ///
    /// # Errors
    /// [`RelayoutError::Declined`] and those of opening.
    pub fn open(
        store: &ManifestStore,
        pid: u32,
        method: ProfilingOptions,
    ) -> Result<Self, RelayoutError> {
        let process = Process::open(pid)?;
        process.preflight()?;
        sharing::check(&process)?;
        process.check_program()?;
        Ok(Self {
            cache: PatchedProcess::open(store, process)?,
            method,
            objects: Vec::new(),
            phases: Phases::default(),
            ran: Ran::default(),
            kept: Vec::new(),
            counted_by: None,
            opened: Instant::now(),
            last_cpu: None,
            seconds: BTreeMap::new(),
        })
    }

    /// Samples it: what it does, and which objects and functions are worth counting.
    ///
    /// # Errors
    /// Those of sampling; [`RelayoutError::Declined`] where its executable cannot be laid out.
    pub fn look(&mut self) -> Result<ProcessLoad, RelayoutError> {
        let start = Instant::now();
        self.check_phases()?;
        if self.objects.is_empty() && self.cache.manifest.generation != 0 {
            // Where the code of an earlier Slackline's layout comes from is not known here.
            self.cache.switch(0)?;
        }
        let idle = self.idle()?;
        // Not before the first look, which gives a program that has just started the time to load
        // its libraries.
        if self.method.random.is_some() && self.objects.is_empty() {
            let (share, exe) = (self.method.object_share, self.cache.process.exe.clone());
            self.load(|object| share <= 1.0 || object.path == exe)?;
        }
        if let Some(idle) = idle {
            return Ok(idle);
        }
        let cache = &mut self.cache;
        let samples = sample(
            || cache.pids(),
            self.method.samples_per_s,
            self.method.sampling,
        )?;
        if self.objects.is_empty() && samples.user_total() > 0 {
            let total = samples.user_total() as f64;
            let (share, exe) = (self.method.object_share, self.cache.process.exe.clone());
            self.load(|object| {
                let (start, end) = object.range();
                let own: u64 = samples.user.range(start..end).map(|(_, count)| count).sum();
                own as f64 / total >= share || object.path == exe
            })?;
        }
        let samples = self.in_old_code(samples);
        let (mut user_samples, mut footprint_bytes) = (0, 0);
        self.ran = Ran::default();
        for (index, loaded) in self.objects.iter_mut().enumerate() {
            let profile = loaded.profile_of(&samples);
            user_samples += profile.samples.values().sum::<u64>();
            let hot = profile.hottest(&loaded.image, 0.9, usize::MAX);
            footprint_bytes += hot
                .iter()
                .map(|id| loaded.image.range(*id))
                .map(|range| range.end - range.start)
                .sum::<u64>();
            loaded.add_ran(index, &profile, &mut self.ran);
            loaded.profile.samples = profile.samples;
        }
        let in_force = self.cache.manifest.generation;
        let (fit, held) = self.phases.fit(&self.ran, in_force);
        self.time("sampling", start);
        Ok(ProcessLoad {
            at: self.opened.elapsed(),
            cores: samples.cores(),
            kernel_share: samples.kernel_share(),
            user_samples,
            footprint_bytes,
            fit,
            held,
        })
    }

    /// Somebody else may have rolled back what is held here: then nothing is.
    fn check_phases(&mut self) -> Result<(), RelayoutError> {
        self.cache.refresh()?;
        let manifest = &self.cache.manifest;
        let gone = |number: &u32| manifest.generation(*number).is_err();
        let gone = self.phases.generations().find(gone);
        gone.map_or(Ok(()), |number| {
            self.phases = Phases::default();
            self.cache.manifest.generation(number).map(drop)
        })
    }

    /// Whether it has done next to nothing since it was last asked, or for a moment where it never
    /// was.
    ///
    /// # Errors
    /// The process has ended.
    pub fn is_idle(&mut self) -> Result<bool, RelayoutError> {
        self.idle().map(|load| load.is_some())
    }

    /// A process that has used next to no CPU time since the last look is not sampled: so watching
    /// an idle host costs next to nothing.
    fn idle(&mut self) -> Result<Option<ProcessLoad>, RelayoutError> {
        let mut tree = host::ProcessTree::of(self.cache.process.pid);
        let mut read = || -> Result<_, RelayoutError> {
            let cpu = tree.read(&host::Roots::default())?.cpu;
            Ok((Instant::now(), cpu.total_s()))
        };
        let (before, before_s) = match self.last_cpu {
            Some(last) => last,
            None => read()?,
        };
        sleep(FIRST_LOOK.saturating_sub(before.elapsed()));
        let (now, cpu_s) = read()?;
        self.last_cpu = Some((now, cpu_s));
        let cores = (cpu_s - before_s).max(0.0) / (now - before).as_secs_f64();
        Ok((cores < ASLEEP_CORES).then_some(ProcessLoad {
            at: self.opened.elapsed(),
            cores,
            ..ProcessLoad::default()
        }))
    }

    /// How well the layout in force, if it is not the original, fits what ran at the last look.
    #[must_use]
    pub fn cover(&self) -> Option<Cover> {
        let generation = self.cache.manifest.generation;
        let (fit, _) = self.phases.fit(&self.ran, generation);
        fit.filter(|_| generation != 0).map(|fit| fit.cover)
    }

    /// Reads the objects that are `wanted`, and finds the unwinder.
    fn load(&mut self, wanted: impl Fn(&Object) -> bool) -> Result<(), RelayoutError> {
        let process = &self.cache.process;
        process.check_dispatch()?;
        let objects = process.objects()?;
        let is_patched = self.cache.manifest.generation != 0;
        if is_patched {
            // Its code is compared with its file.
            self.cache.switch(0)?;
        }
        let process = &self.cache.process;
        for object in &objects {
            let is_executable = object.path == process.exe;
            if !wanted(object) {
                continue;
            }
            let same = objects.iter().filter(|other| other.path == object.path);
            let image = match process.image(object) {
                // Loaded twice: which of them is meant is not told by the path.
                Ok(_) if same.count() > 1 => continue,
                Ok(image) => image,
                // A library that cannot be laid out stays as it is; an executable decides.
                Err(RelayoutError::Declined { .. }) if !is_executable => continue,
                Err(error) => return Err(error),
            };
            let Some(bias) = object.load_bias(&image) else {
                continue;
            };
            let mut loaded = Loaded {
                object: object.clone(),
                image,
                bias,
                profile: Profile::default(),
                functions: Vec::new(),
                skipped: Skipped::new(),
                analysed: BTreeMap::new(),
            };
            loaded.profile.build_id = loaded.image.build_id().cloned().unwrap_or_default();
            self.objects.push(loaded);
        }
        self.cache.find_unwinder(&objects)?;
        let has_unwinder = self.cache.has_unwinder;
        let process = &self.cache.process;
        let is_program = |loaded: &&Loaded| loaded.object.path == process.exe;
        let program = self.objects.iter().find(is_program);
        // Another object may unwind the program's frames: a plugin that throws where it was called
        // back from.
        let by_itself = |object: &&Object| {
            code_layout::unwinds_by_itself(process.file(object).unwrap_or_default())
        };
        let own = program.filter(|program| program.image.has_own_unwinder(true));
        let own = own.map(|program| &program.object);
        if let Some(own) = own.or_else(|| objects.iter().find(by_itself)) {
            let why =
                "it has an unwinder of its own (-static-libgcc), which cannot be led to moved code";
            return Err(process.unfit(&own.path, why));
        }
        if let Some(program) = program.filter(|program| !has_unwinder && program.has_tables()) {
            let why = "it handles exceptions, and its unwinder is not libgcc_s.so.1";
            return Err(process.unfit(&program.object.path, why));
        }
        // A library that handles them without libgcc, as libc does when a thread is cancelled,
        // stays as it is.
        let stays = |loaded: &Loaded| {
            loaded.image.has_own_unwinder(false) || (!has_unwinder && loaded.has_tables())
        };
        self.objects.retain(|loaded| !stays(loaded));
        Ok(())
    }

    /// Samples in the code cache, at the instructions of the files that they stand for.
    fn in_old_code(&self, samples: Samples) -> Samples {
        let mut user: BTreeMap<u64, u64> = BTreeMap::new();
        for (address, count) in &samples.user {
            // Whoever never returns may still be in a layout that is not in force.
            let old = self.phases.moved().find_map(|moved| moved.to_old(*address));
            *user.entry(old.unwrap_or(*address)).or_default() += count;
        }
        Samples { user, ..samples }
    }

    /// Lets `perf`, in all processes of the family, and debuggers know what was moved. Nothing
    /// depends on it.
    fn name_moved(&self) {
        let _ = moved::write_symbols(&self.cache.manifest, self.moved());
        for process in self.cache.family() {
            let _ = moved::write_perf_map(process, self.moved());
        }
    }

    /// The workload that the generation in force was made for.
    fn phase(&self) -> Option<&Phase> {
        self.phases.of(self.cache.manifest.generation)
    }

    /// Where the code of the layout in force comes from.
    fn moved(&self) -> &[Moved] {
        self.phase().map_or(&[], |phase| &phase.moved)
    }

    /// What runs now, and the layout for it.
    fn new_phase(&mut self, layout: LayoutSummary, moved: Vec<Moved>) -> Phase {
        let objects = self.objects.iter();
        let profiles: Vec<Profile> = objects.map(Loaded::profile_of_layout).collect();
        Phase {
            layout,
            moved,
            hot: self.hot(&profiles),
            profiles,
            is_shown: false,
        }
    }

    /// Writes emitted code into a region.
    fn put(&self, region: &mut Region, emitted: &Emitted) -> Result<(), RelayoutError> {
        let memory = &self.cache.process.memory;
        memory.write(emitted.address, &emitted.bytes)?;
        region.lookups.push(emitted.lookup);
        Ok(())
    }

    /// Lays everything out by the counts and puts it in force.
    ///
    /// # Errors
    /// Those of mapping, writing and switching; [`RelayoutError::Declined`] where nothing could be
    /// moved.
    pub fn install(&mut self) -> Result<LayoutSummary, RelayoutError> {
        self.install_by(None)
    }

    fn install_by(&mut self, kept: Option<KeptProfile>) -> Result<LayoutSummary, RelayoutError> {
        let start = Instant::now();
        let mut layout = LayoutSummary {
            is_unwinder_led: self.cache.has_unwinder,
            kept,
            ..LayoutSummary::default()
        };
        let mut all_patches = Vec::new();
        let mut regions = Vec::new();
        let mut moved = Vec::new();
        let of_object =
            |loaded: &Loaded| -> u64 { loaded.profile.by_function(&loaded.image).values().sum() };
        let samples = self.objects.iter().map(of_object).sum();
        for index in 0..self.objects.len() {
            let loaded = &self.objects[index];
            if loaded.functions.is_empty() {
                continue;
            }
            let order = self
                .method
                .random
                .map_or(LayoutOrder::Profiled, LayoutOrder::Random);
            let plan = LayoutPlan::new(loaded.functions.clone(), &loaded.profile, order);
            let near = loaded.object.range();
            let mut placement = Placement {
                load_bias: loaded.bias,
                cache_address: near.0.saturating_sub(256 << 20).max(1 << 20) & !(PAGE as u64 - 1),
                cache_bytes: u64::from(u32::MAX),
                got: loaded.resolved(&self.cache.process)?,
                counters: None,
                patches: PatchSelection {
                    entries: true,
                    call_sites: CallSites::Moved,
                    vtables: true,
                    jump_tables: true,
                },
            };
            let size = loaded.emit(&plan, &placement)?.bytes.len() as u64;
            let bytes = (PAGE as u64 + size + PAGE as u64).next_multiple_of(PAGE as u64);
            let mut region = self.cache.map(near, bytes, true)?;
            let loaded = &self.objects[index];
            placement.cache_address = region.address + PAGE as u64;
            placement.cache_bytes = bytes - PAGE as u64;
            let emitted = loaded.emit(&plan, &placement)?;
            code_layout::check(&loaded.image, &plan, &placement, &emitted)
                .map_err(|source| loaded.error(source))?;
            if self.method.random.is_none() {
                let (before, after) = code_layout::footprints(&plan, &emitted, &loaded.profile);
                layout.before.add(&before);
                layout.after.add(&after);
                layout.top.extend(loaded.top(samples));
            }
            layout.functions += emitted.functions.len();
            layout.code_bytes += emitted.code.len() as u64;
            layout.mapped_bytes += region.bytes;
            for (skip, count) in loaded.skipped.iter().chain(&emitted.skipped) {
                *layout.skipped.entry(*skip).or_default() += count;
            }
            moved.push(Moved::new(
                &loaded.image,
                &loaded.object.path,
                loaded.bias,
                &emitted,
            ));
            all_patches.extend(patches(&emitted, loaded.bias));
            self.put(&mut region, &emitted)?;
            regions.push(region);
        }
        layout
            .top
            .sort_by(|one, other| other.share.total_cmp(&one.share));
        layout.top.truncate(TOP);
        if all_patches.is_empty() {
            return Err(RelayoutError::Declined {
                pid: self.cache.process.pid,
                reason: Declined::NothingToWin("no function of it can be moved".into()),
            });
        }
        let wanted = all_patches.len();
        let (number, left_out) = self.cache.announce(all_patches, &regions)?;
        layout.generation = number;
        layout.patches = wanted - left_out;
        layout.patches_left_out = left_out;
        let switched = self.cache.switch(number)?;
        layout.processes = switched.processes;
        layout.left_out = switched.left_out;
        let phase = self.new_phase(layout.clone(), moved);
        self.phases.add(phase);
        self.name_moved();
        self.time("laying out", start);
        Ok(layout)
    }

    /// Puts a layout in force again that was made for an earlier workload; 0 is the original one.
    ///
    /// # Errors
    /// Those of switching.
    pub fn resume(&mut self, generation: u32) -> Result<Option<LayoutSummary>, RelayoutError> {
        let switched = self.cache.switch(generation)?;
        let phase = self.phases.resume(&self.ran, generation);
        let layout = phase
            .filter(|_| generation != 0)
            .map(|phase| LayoutSummary {
                processes: switched.processes,
                left_out: switched.left_out,
                ..phase.layout.clone()
            });
        self.name_moved();
        Ok(layout)
    }

    /// The original layout is the best that is known for the workload that was looked at last.
    ///
    /// # Errors
    /// Those of switching.
    pub fn leave_original(&mut self) -> Result<(), RelayoutError> {
        self.cache.switch(0)?;
        let phase = self.new_phase(LayoutSummary::default(), Vec::new());
        self.phases.add(phase);
        self.settle()?;
        self.name_moved();
        Ok(())
    }

    /// The layout in force was shown to be better: holds it for when its workload comes back,
    /// forgets those that were tried before it, and gives back their memory.
    ///
    /// # Errors
    /// Those of stopping.
    pub fn settle(&mut self) -> Result<(), RelayoutError> {
        self.phases.settle();
        let known = self.cache.manifest.generations.iter();
        let numbers = known.map(|known| known.number);
        let others: Vec<u32> = numbers
            .filter(|number| !self.phases.holds(*number))
            .collect();
        self.cache.forget(&others)?;
        self.cache.reclaim().map(drop)
    }

    /// Back to the original bytes, and nothing is held any more.
    ///
    /// # Errors
    /// Those of switching.
    pub fn roll_back(&mut self) -> Result<(), RelayoutError> {
        self.phases = Phases::default();
        self.cache.rollback().map(drop)
    }

    fn time(&mut self, step: &'static str, start: Instant) {
        *self.seconds.entry(step).or_default() += start.elapsed().as_secs_f64();
    }
}

/// Patches at runtime addresses.
fn patches(emitted: &Emitted, bias: u64) -> Vec<AppliedPatch> {
    let patches = emitted.patches.iter();
    patches
        .map(|patch| AppliedPatch {
            address: patch.vaddr.wrapping_add(bias),
            old: Bytes(patch.old.clone()),
            new: Bytes(patch.new.clone()),
        })
        .collect()
}
