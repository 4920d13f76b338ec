//! Whether a load saturates the service: a load generator in a closed loop sends the next request
//! once it has an answer, so its rate is the service's capacity. One in an open loop sends at a
//! rate of its own.

use crate::format::Format;
use crate::workload::WorkloadSpec;

/// How a load generator decides when to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadLoop {
    /// After an answer: its rate is what the service can do.
    Closed,
    /// At a rate of its own.
    Open,
    /// Not known.
    Unknown,
}

/// Load generators that wait for answers, each with the options that give them a rate instead. From
/// their manuals: wrk, wrk2, ab, hey, oha, redis-benchmark, memtier_benchmark, pgbench, sysbench,
/// fio and h2load.
const CLOSED: [(&str, &[&str]); 10] = [
    ("wrk", &["-R", "--rate"]),
    ("ab", &[]),
    ("hey", &["-q"]),
    ("oha", &["-q", "--query-per-second"]),
    ("redis-benchmark", &[]),
    ("memtier_benchmark", &["--rate-limiting"]),
    ("pgbench", &["-R", "--rate"]),
    ("sysbench", &["--rate"]),
    ("fio", &["--rate", "--rate_iops"]),
    ("h2load", &["--rps", "-r", "--rate"]),
];

/// Load generators that send at a rate.
const OPEN: [&str; 3] = ["wrk2", "vegeta", "ghz"];

impl WorkloadSpec {
    /// How the load is generated: by `closed_loop` where it is given, else by the load generator's
    /// name and options.
    #[must_use]
    pub fn load_loop(&self) -> LoadLoop {
        match self.closed_loop {
            Some(true) => return LoadLoop::Closed,
            Some(false) => return LoadLoop::Open,
            None => {}
        }
        match &self.http {
            Some(http) if http.closed => return LoadLoop::Closed,
            Some(_) => return LoadLoop::Open,
            None => {}
        }
        let names = self.command.iter().map(|word| program(word));
        let by_format = self.parse.as_ref().and_then(|format| match format {
            Format::Wrk => Some("wrk"),
            Format::Ab => Some("ab"),
            Format::Hey => Some("hey"),
            Format::Oha => Some("oha"),
            _ => None,
        });
        let mut names = names.chain(by_format);
        let found = names.find_map(|name| {
            let closed = CLOSED.iter().find(|(known, _)| *known == name);
            let options = closed.map(|(_, options)| *options);
            let is_open = OPEN.contains(&name);
            (options.is_some() || is_open).then(|| options.filter(|_| !is_open))
        });
        match found {
            None => LoadLoop::Unknown,
            Some(Some(options)) if !self.has_any(options) => LoadLoop::Closed,
            Some(_) => LoadLoop::Open,
        }
    }

    /// The load that waits for answers in place of keeping to its rate; `None` where there is none.
    #[must_use]
    pub fn saturated(&self) -> Option<Self> {
        if self.load_loop() == LoadLoop::Closed {
            return None;
        }
        if let Some(http) = &self.http {
            let http = http.saturated();
            return Some(Self {
                command: http.command().ok()?,
                http: Some(http),
                ..self.clone()
            });
        }
        (!self.capacity_command.is_empty()).then(|| Self {
            command: self.capacity_command.clone(),
            closed_loop: Some(true),
            ..self.clone()
        })
    }

    /// Whether the command has one of these options, as `-R 5`, `-R5`, `--rate 5` or `--rate=5`.
    fn has_any(&self, options: &[&str]) -> bool {
        let is = |word: &str, option: &str| match option.strip_prefix("--") {
            Some(_) => word.split('=').next() == Some(option),
            None => word.starts_with(option) && !word.starts_with("--"),
        };
        let mut words = self.command.iter().skip(1);
        words.any(|word| options.iter().any(|option| is(word, option)))
    }
}

/// The program that a word names.
fn program(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(command: &str) -> LoadLoop {
        let words: Vec<&str> = command.split(' ').collect();
        let json = serde_json::json!({ "command": words });
        let workload: WorkloadSpec = serde_json::from_value(json).unwrap();
        workload.load_loop()
    }

    #[test]
    fn loops_are_known_by_tool_and_option() {
        for (command, expected) in [
            ("wrk -t1 -c32 -d5s http://h", LoadLoop::Closed),
            ("taskset -c 1 /usr/bin/wrk -t1 http://h", LoadLoop::Closed),
            ("wrk -t1 -R2000 http://h", LoadLoop::Open),
            ("wrk2 -t1 http://h", LoadLoop::Open),
            ("pgbench -c 4", LoadLoop::Closed),
            ("pgbench --rate=200", LoadLoop::Open),
            ("sysbench oltp_read_only --rate 20 run", LoadLoop::Open),
            ("hey -z 5s http://h", LoadLoop::Closed),
            ("my-load http://h", LoadLoop::Unknown),
        ] {
            assert_eq!(of(command), expected, "{command}");
        }
    }
}
