//! The CPU time of processes, where no control group counts it: of a group of cgroup v1 that is in
//! the hierarchy of cpu and not in that of cpuacct, and of work that is only observed.

use host::{ProcessTree, Roots};

/// To look at every process takes long, so it is done this often, as the processes themselves are
/// looked for.
const LOOK_EVERY_S: f64 = 2.0;

/// Processes, and what they had used at the last look. A process that nobody waited for, and that
/// lived between two looks, is not seen.
#[derive(Debug)]
pub(crate) struct Processes {
    tree: ProcessTree,
    last_s: Option<f64>,
    /// Time since the last look.
    since_s: f64,
    cpu_cores: Option<f64>,
}

impl Processes {
    /// A process and its descendants.
    pub(crate) fn of(pid: u32) -> Self {
        Self::new(ProcessTree::of(pid))
    }

    /// The processes of a control group and of those below it.
    pub(crate) fn in_group(group: &str) -> Self {
        Self::new(ProcessTree::of_group(group))
    }

    fn new(tree: ProcessTree) -> Self {
        Self {
            tree,
            last_s: None,
            since_s: 0.0,
            cpu_cores: None,
        }
    }

    /// Looks, `elapsed_s` after the last call: the cores in use, and the CPU time that was not told
    /// before. Between two looks the last figure holds.
    pub(crate) fn look(&mut self, roots: &Roots, elapsed_s: f64) -> (Option<f64>, f64) {
        self.since_s += elapsed_s;
        if self.last_s.is_some() && self.since_s < LOOK_EVERY_S {
            return (self.cpu_cores, 0.0);
        }
        let elapsed_s = std::mem::take(&mut self.since_s);
        let Ok(sample) = self.tree.read(roots) else {
            (self.last_s, self.cpu_cores) = (None, None);
            return (None, 0.0);
        };
        let now_s = sample.cpu.total_s();
        let used_s = self.last_s.replace(now_s).map(|last_s| now_s - last_s);
        // A process that enters brings along what it used elsewhere.
        let most_s = host::online_cpus(roots).map_or(f64::INFINITY, |cpus| {
            #[expect(clippy::cast_precision_loss, reason = "a number of CPUs")]
            let cpus = cpus.len() as f64;
            cpus * elapsed_s
        });
        let used_s = used_s.map(|used_s| used_s.clamp(0.0, most_s));
        self.cpu_cores = used_s.map(|used_s| used_s / elapsed_s);
        (self.cpu_cores, used_s.unwrap_or(0.0))
    }
}
