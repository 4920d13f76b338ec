//! The kernel interfaces of a Linux host: what can be read and written (knobs), what is counted
//! (processes, control groups, JVMs), what this machine is and can do, and the undo journal through
//! which everything is changed.
//!
//! Every reader takes [`Roots`], so that a fake tree can stand in for the host. Expected absence (a
//! knob that this kernel lacks, a group or process that has just gone) is `None` or its own error,
//! never a panic.
//!
//! Architecture invariant: nothing here decides. Which value a knob gets, and when, is for the
//! callers to say.

mod actuator;
mod boot;
mod cgroup_sample;
mod cgroup_tree;
mod clock;
mod cpu_quota;
mod cpu_time;
mod cpus;
mod debugfs;
mod egress;
mod error;
mod files;
mod group_members;
mod hardware_sample;
mod knob;
mod lock;
mod machine;
mod pressure;
mod probe;
mod process;
mod process_tree;
mod real_time;
mod roots;
mod sched;
mod trust;

pub mod cgroup;
pub mod hex;
pub mod hsperf;
mod journal;

pub use actuator::{
    Actuator, CpuIdle, CpuQuotaLimit, CpuWeight, Cpuset, Egress, EnergyPreference, Freezer,
    Frequency, IoCost, IoDirection, IoMax, IoWeight, MemoryHigh, MemoryLow, PowerCap, Resctrl,
    Uclamp, UclampBound, Wanted, cpu_list,
};
pub use boot::{BootSetting, boot_setting};
pub use cgroup::{CgroupLayout, CgroupVersion, Hierarchies};
pub use cgroup_sample::{CgroupReader, CgroupSample, CpuUse};
pub use cgroup_tree::{
    ServiceGroup, group_of, group_of_path, groups_of, has_process, processes_below, processes_in,
    service_groups, threads_below,
};
pub use clock::own_cpu_s;
pub use cpu_quota::{CpuQuota, TightestQuota, tightest_quota, tightest_quota_in};
pub use cpu_time::CpuTimes;
pub use cpus::{online_cpus, parse_cpu_list, pin, pin_process, spawn_pinned};
pub use egress::egress_bytes;
pub use error::HostError;
pub use files::{
    check_replaceable, fingerprint, is_same_file, replace_private, replace_synced, target,
};
pub use group_members::GroupMembers;
pub use hardware_sample::{PackageEnergy, frequency_mhz, memory_traffic_bytes};
pub use hsperf::{HsPerf, JvmSample};
pub use journal::{Change, Former, Journal, RestoreOutcome, RestoreReport, RestoredItem};
pub use knob::{Knob, is_no_limit};
pub use lock::{GivesWay, Lock, lock_holder};
pub use machine::{Machine, MachineCpu};
pub use pressure::Pressure;
pub use probe::{Probe, ProbeState, probe};
pub use process::{
    END_GRACE, End, Kinship, all_pids, ancestors, boot_id, end_process, family, is_io_worker,
    is_kernel_thread, is_running, kinship, parent, start_time, thread_ids,
};
pub use process_tree::{ProcessSample, ProcessTree};
pub use real_time::RealTime;
pub use roots::Roots;
pub use sched::{SchedAttribute, SchedThreads};
pub use trust::Distrust;
