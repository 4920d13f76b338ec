//! Where the entries of a configuration stand, so that messages about them name file, line and key.

use std::fmt;
use std::sync::Arc;

use experiment_spec::{Source, SpecError};
use host::HostError;

use crate::error::IsolateError;

/// The text that a configuration was read from. Two configurations that say the same are equal,
/// wherever they stand.
#[derive(Clone)]
pub(crate) struct Origin {
    source: Arc<Source>,
    /// The services are a list, so their keys have a number.
    is_list: bool,
}

impl Origin {
    pub(crate) fn new(source: Source, is_list: bool) -> Self {
        Self {
            source: Arc::new(source),
            is_list,
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The key of a service: `service`, or `service[1]`.
    pub(crate) fn service(&self, index: usize) -> String {
        match self.is_list {
            true => format!("service[{index}]"),
            false => "service".to_owned(),
        }
    }

    /// An error about a key.
    pub(crate) fn error(&self, key: &str, why: impl Into<String>) -> SpecError {
        self.source.error(key, why)
    }

    /// An error of this host that a key is the cause of. No key is the cause of a record that
    /// cannot be written.
    pub(crate) fn because_of(&self, key: &str, error: IsolateError) -> IsolateError {
        match error {
            IsolateError::Entry { .. } | IsolateError::Host(HostError::Journal { .. }) => error,
            error => IsolateError::Entry {
                said: self.error(key, error.to_string()),
                source: Box::new(error),
            },
        }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").finish_non_exhaustive()
    }
}

impl PartialEq for Origin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use host::Roots;

    use crate::check::check;

    /// Services with an absent group, with a socket's path that is taken, and with a program that
    /// is missing; batch work with an absent group, and within a service.
    #[test]
    fn what_this_host_refuses_of_an_entry_names_its_line_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = dir.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("sys/fs/cgroup/cpu/web/below/cpu.shares", "1024\n");
        write("proc/7/cgroup", "4:cpu,cpuacct:/\n");
        write("proc/8/cgroup", "4:cpu,cpuacct:/\n");
        write("taken", "");
        let taken = dir.path().join("taken").display().to_string();
        let service = |name: &str, by: &str, source: &str| {
            format!(
                "[[service]]\nname = \"{name}\"\n{by}\nobjective = {{ p99_ms = 5 }}\nlatency = {{ {source} }}\n"
            )
        };
        let works = "command = [\"true\"]";
        let text = service("gone", "cgroup = \"gone\"", works)
            + &service(
                "pushes",
                "pid = 7",
                &format!("push = {{ unix = \"{taken}\" }}"),
            )
            + &service("asks", "pid = 8", "command = [\"/no/such/p99\"]")
            + &service("web", "cgroup = \"web\"", works)
            + "[[best_effort]]\ncgroup = \"nope\"\n[[best_effort]]\ncgroup = \"web/below\"\n";
        write("i.toml", &text);
        let found = check(&dir.path().join("i.toml"), &Roots::at(dir.path())).unwrap();
        let directory = format!("{}/", dir.path().display());
        let problems = found.problems.iter();
        let problems: Vec<String> = problems.map(|it| it.replace(&directory, "")).collect();
        let wanted = [
            "i.toml:3: service[0].cgroup: service gone is not there:",
            "i.toml:10: service[1].latency.push.unix: service pushes: timers cannot be received at taken: \
             a file with this path is there and is no socket",
            "i.toml:22: best_effort[0].cgroup: best-effort group nope is not there:",
            "i.toml:24: best_effort[1].cgroup: this is the control group web/below, and service web uses web:",
            "i.toml:15: service[2].latency.command: service asks: /no/such/p99 does not exist",
        ];
        assert_eq!(problems.len(), wanted.len(), "{problems:#?}");
        for (problem, said) in problems.iter().zip(wanted) {
            assert!(problem.starts_with(said), "{problem}\n{said}");
        }
    }
}
