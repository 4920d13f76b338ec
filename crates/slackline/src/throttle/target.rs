//! Which control group a command is about.

use anyhow::Context as _;
use host::Roots;
use throttle_watch::ServiceTarget;

/// Whom to watch.
#[derive(clap::Args)]
#[group(multiple = false)]
pub(crate) struct Watched {
    /// The service, given by the id of one of its processes. The whole control group of the process
    /// counts.
    #[arg(long, value_parser = process_number)]
    pid: Option<u32>,
    /// The service, given by its control group: the path below the root of the hierarchy, or the
    /// full path. `/` is the whole host.
    #[arg(long, value_name = "PATH", value_parser = not_empty)]
    cgroup: Option<String>,
    /// The service, given by its systemd unit, such as `nginx.service` or `nginx`.
    #[arg(long, value_parser = not_empty)]
    unit: Option<String>,
    /// The service, given by its container's id: the full id, or the first digits as `docker ps`
    /// prints them.
    #[arg(long, value_name = "ID", value_parser = not_empty)]
    container: Option<String>,
}

/// `--pid`. It is often `$(pidof NAME)`, which is empty where nothing runs, and several numbers
/// where several processes do.
pub(crate) fn process_number(text: &str) -> Result<u32, String> {
    let numbers = text.split_whitespace().count();
    match text.trim().parse() {
        Ok(pid) => Ok(pid),
        _ if numbers == 0 => {
            Err("the number of a process is missing: does the program run?".to_owned())
        }
        _ if numbers > 1 => Err(format!("give one process at a time: these are {numbers}")),
        _ => Err("give the number of a process, such as 4711".to_owned()),
    }
}

/// A variable of a script that is not set names nobody: it must not stand for the root group, which
/// is the whole host.
fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("it is empty: is a variable not set?".to_owned())
    } else {
        Ok(text.to_owned())
    }
}

impl Watched {
    /// Whom the options name.
    pub(super) fn target(&self) -> anyhow::Result<ServiceTarget> {
        if let Some(pid) = self.pid {
            return Ok(ServiceTarget::Process(pid));
        }
        if let Some(unit) = &self.unit {
            return Ok(ServiceTarget::Unit(unit.clone()));
        }
        if let Some(id) = &self.container {
            return Ok(ServiceTarget::Container(id.clone()));
        }
        let path = self.cgroup.clone();
        path.map(ServiceTarget::Group)
            .context("give one of --pid, --cgroup, --unit and --container")
    }
}

/// The control group that the options name.
pub(crate) fn group_of(roots: &Roots, watched: &Watched) -> anyhow::Result<String> {
    Ok(throttle_watch::group_of(roots, &watched.target()?)?)
}
