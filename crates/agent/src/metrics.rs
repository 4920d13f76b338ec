//! The agent's metrics, as a page for Prometheus.

use prometheus_text::{Exposition, Labels, MetricKind};
use throttle::SHARE_BOUNDS;

use crate::services::{Counted, Service, Services};

/// Series of one service at most: the histogram has a class without bound, a sum and a count.
pub(crate) const SERIES_PER_SERVICE: usize = COUNTED.len() + TRACED.len() + SHARE_BOUNDS.len() + 3;

/// Series of the agent itself.
pub(crate) const SERIES_OF_AGENT: usize = 7;

/// The agent itself.
pub(crate) struct Agent {
    /// Whether the tracepoints can be used.
    pub(crate) traces: bool,
    /// How long they were followed.
    pub(crate) traced_s: f64,
    pub(crate) lost_events: u64,
}

/// A service with what its counters say now.
struct Row<'a> {
    labels: Labels,
    /// Of its limit: where that is another group's, they say whose.
    limit_labels: Labels,
    service: &'a Service,
    counted: Counted,
}

/// The value of a metric for one service; `None` where it has none.
type Value = fn(&Row) -> Option<f64>;

/// Name, kind, meaning.
type Family = (&'static str, MetricKind, &'static str, Value);

/// The metric that says whose limit it is.
const LIMIT: &str = "slackline_cpu_limit_cores";

/// What the counters of a service say, and its limit.
const COUNTED: [Family; 8] = [
    (
        "slackline_cpu_usage_seconds_total",
        MetricKind::Counter,
        "CPU time of the service. Missing for a group of cgroup v1 that is in the hierarchy cpu, but not in cpuacct.",
        |row| Some(row.counted.usage.cpu?.total_s()),
    ),
    (
        LIMIT,
        MetricKind::Gauge,
        "The smallest CPU limit of the group and its ancestors. Missing if there is no limit. The label limit_group names the ancestor with the limit.",
        |row| Some(row.service.limit.as_ref()?.quota.cores()),
    ),
    (
        "slackline_cpu_limit_period_seconds",
        MetricKind::Gauge,
        "The period of the smallest CPU limit.",
        |row| Some(row.service.limit.as_ref()?.quota.period_us as f64 / 1e6),
    ),
    (
        "slackline_cpu_limit_burst_seconds",
        MetricKind::Gauge,
        "The burst of the smallest CPU limit: unused quota that may be saved for later periods.",
        |row| Some(row.service.limit.as_ref()?.quota.burst_us? as f64 / 1e6),
    ),
    (
        "slackline_cpu_periods_total",
        MetricKind::Counter,
        "Periods in which the group with the limit wanted CPU time.",
        |row| Some(row.counted.limited?.periods as f64),
    ),
    (
        "slackline_cpu_throttled_periods_total",
        MetricKind::Counter,
        "Periods in which the group with the limit was throttled.",
        |row| Some(row.counted.limited?.throttled_periods as f64),
    ),
    (
        "slackline_cpu_throttled_seconds_total",
        MetricKind::Counter,
        "Time for which the group with the limit was throttled, summed over CPUs.",
        |row| Some(row.counted.limited?.throttled_s),
    ),
    (
        "slackline_cpu_burst_seconds_total",
        MetricKind::Counter,
        "CPU time that the group with the limit used beyond the quota of a period.",
        |row| Some(row.counted.limited?.burst_s),
    ),
];

/// What the tracepoints saw of it, but for the histogram.
const TRACED: [Family; 6] = [
    (
        "slackline_traced_seconds_total",
        MetricKind::Counter,
        "Time for which the service's threads were traced. The other metrics of tracing, from slackline_runnable_thread_seconds_total to slackline_cpu_use_of_limit, count only in this time.",
        |row| Some(row.service.traced.seconds),
    ),
    (
        "slackline_runnable_thread_seconds_total",
        MetricKind::Counter,
        "Time that threads ran or wanted to run, summed over threads.",
        |row| Some(row.service.traced.runnable_s),
    ),
    (
        "slackline_run_queue_wait_seconds_total",
        MetricKind::Counter,
        "Time that threads waited for a CPU, summed over threads.",
        |row| Some(row.service.traced.waited_s),
    ),
    (
        "slackline_run_queue_waits_total",
        MetricKind::Counter,
        "Times that a thread got a CPU after waiting for one.",
        |row| Some(row.service.traced.waits as f64),
    ),
    (
        "slackline_runnable_threads_per_core",
        MetricKind::Gauge,
        "Threads that ran or wanted to run, for each core that the service may use, at the last trace.",
        |row| Some(row.service.traced.runnable_per_core),
    ),
    (
        "slackline_threads",
        MetricKind::Gauge,
        "Threads of the service, at the last trace.",
        |row| Some(row.service.traced.threads as f64),
    ),
];

/// Reads every counter and writes everything down.
pub(crate) fn exposition(services: &mut Services, agent: &Agent) -> String {
    let cpus = services.cpus;
    let (count, left_out) = (services.all.len(), services.left_out);
    let rows: Vec<Row> = services
        .all
        .iter_mut()
        .filter_map(|service| {
            let counted = service.count()?;
            let found = &service.found;
            let labels = Labels::new();
            let labels = labels
                .and("service", &found.service)
                .and("group", &found.group);
            let limit = service.limit.as_ref();
            let of = limit.filter(|limit| limit.group != found.group);
            Some(Row {
                limit_labels: match of {
                    Some(limit) => labels.clone().and("limit_group", &limit.group),
                    None => labels.clone(),
                },
                labels,
                counted,
                service,
            })
        })
        .collect();
    let mut page = Exposition::new();
    families(&mut page, &COUNTED, &rows);
    if agent.traces {
        families(&mut page, &TRACED, &rows);
        histogram(&mut page, &rows);
    }
    for (name, kind, help, value) in [
        (
            "slackline_host_cpus",
            MetricKind::Gauge,
            "CPUs of this host.",
            cpus as f64,
        ),
        (
            "slackline_agent_services",
            MetricKind::Gauge,
            "Services that are followed.",
            count as f64,
        ),
        (
            "slackline_agent_services_left_out",
            MetricKind::Gauge,
            "Services beyond --max-services.",
            left_out as f64,
        ),
        (
            "slackline_agent_traces",
            MetricKind::Gauge,
            "1 if the scheduler's tracepoints can be used, otherwise 0.",
            f64::from(u8::from(agent.traces)),
        ),
        (
            "slackline_agent_traced_seconds_total",
            MetricKind::Counter,
            "Time for which the agent traced the scheduler.",
            agent.traced_s,
        ),
        (
            "slackline_agent_lost_events_total",
            MetricKind::Counter,
            "Scheduler events that were lost because the kernel had no room for them.",
            agent.lost_events as f64,
        ),
        (
            "process_cpu_seconds_total",
            MetricKind::Counter,
            "CPU time of the agent itself.",
            host::own_cpu_s(),
        ),
    ] {
        page.single(name, kind, help, value);
    }
    page.into_text()
}

fn families(page: &mut Exposition, families: &[Family], rows: &[Row]) {
    for (name, kind, help, value) in families {
        let samples = rows.iter().filter_map(|row| {
            let labels = match *name {
                LIMIT => &row.limit_labels,
                _ => &row.labels,
            };
            Some((labels, value(row)?))
        });
        page.family(name, *kind, help).samples(samples);
    }
}

fn histogram(page: &mut Exposition, rows: &[Row]) {
    let name = "slackline_cpu_use_of_limit";
    let help = "Windows of 10 ms by cores in use, as a share of the limit, or of the host's CPUs if there is no limit.";
    let mut family = page.family(name, MetricKind::Histogram, help);
    for Row {
        labels, service, ..
    } in rows
    {
        let shares = &service.traced.shares;
        let counts = shares.counts.into_iter().scan(0, |below, count| {
            *below += count;
            Some(*below)
        });
        let buckets = SHARE_BOUNDS.iter().zip(counts);
        family.histogram(labels, buckets, shares.sum, shares.windows());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Instant;

    use host::Roots;

    use super::*;
    use crate::names::Names;

    const STAT: &str = "usage_usec 4000000\nuser_usec 3000000\nsystem_usec 1000000\nnr_periods 50\nnr_throttled 5\n\
                        throttled_usec 250000\n";

    /// A fake host of v2 with so many services, each limited by its slice.
    fn host_of(root: &Path, services: usize) -> Roots {
        let top = root.join("sys/fs/cgroup");
        let slice = top.join("system.slice");
        fs::create_dir_all(root.join("sys/devices/system/cpu")).unwrap();
        fs::write(root.join("sys/devices/system/cpu/online"), "0-3\n").unwrap();
        for number in 0..services {
            let group = slice.join(format!("s{number:04}.service"));
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cpu.stat"), STAT).unwrap();
            fs::write(group.join("cpu.max"), "max 100000\n").unwrap();
            fs::write(group.join("cgroup.threads"), "1\n").unwrap();
        }
        fs::write(top.join("cgroup.controllers"), "cpu\n").unwrap();
        fs::write(
            slice.join("cpu.stat"),
            STAT.replace("nr_periods 50", "nr_periods 500"),
        )
        .unwrap();
        fs::write(slice.join("cpu.max"), "150000 100000\n").unwrap();
        fs::write(slice.join("cpu.max.burst"), "1000\n").unwrap();
        Roots::at(root)
    }

    const AGENT: Agent = Agent {
        traces: true,
        traced_s: 1.0,
        lost_events: 0,
    };

    fn series(text: &str) -> usize {
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn a_thousand_groups_stay_within_the_stated_bound() {
        let directory = tempfile::tempdir().unwrap();
        let roots = host_of(directory.path(), 1000);
        let names = || Names::parse(&[]).unwrap();
        let mut services = Services::find(roots.clone(), names(), 1000).unwrap();
        let start = Instant::now();
        let text = exposition(&mut services, &AGENT);
        eprintln!(
            "1,000 groups: {} bytes in {:?}",
            text.len(),
            start.elapsed()
        );
        assert_eq!(series(&text), 1000 * SERIES_PER_SERVICE + SERIES_OF_AGENT);
        for line in [
            "slackline_cpu_usage_seconds_total{service=\"s0007.service\",group=\"system.slice/s0007.service\"} 4\n",
            "slackline_cpu_limit_cores{service=\"s0007.service\",group=\"system.slice/s0007.service\",limit_group=\"system.slice\"} 1.5\n",
            "slackline_cpu_periods_total{service=\"s0007.service\",group=\"system.slice/s0007.service\"} 500\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
        let mut few = Services::find(roots, names(), 10).unwrap();
        let text = exposition(&mut few, &AGENT);
        assert_eq!(series(&text), 10 * SERIES_PER_SERVICE + SERIES_OF_AGENT);
        assert!(text.contains("slackline_agent_services_left_out 990\n"));
    }

    #[test]
    fn a_group_that_vanishes_or_starts_anew_harms_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let roots = host_of(directory.path(), 3);
        let group = |name: &str| roots.sys(format!("fs/cgroup/system.slice/{name}"));
        let mut services = Services::find(roots.clone(), Names::parse(&[]).unwrap(), 2).unwrap();
        services.all[1].traced.waits = 7;
        fs::remove_dir_all(group("s0000.service")).unwrap();
        // Counters that went backwards are given as they are: Prometheus takes them for a new
        // start.
        fs::write(
            group("s0001.service/cpu.stat"),
            STAT.replace("4000000", "4"),
        )
        .unwrap();
        let text = exposition(&mut services, &AGENT);
        assert!(!text.contains("s0000"), "{text}");
        assert!(
            text.contains("group=\"system.slice/s0001.service\"} 0.000004\n"),
            "{text}"
        );
        services.look_again().unwrap();
        let groups: Vec<&str> = services
            .all
            .iter()
            .map(|one| one.found.service.as_str())
            .collect();
        assert_eq!(groups, ["s0001.service", "s0002.service"]);
        assert_eq!((services.all[0].traced.waits, services.left_out), (7, 0));
        let mut threads = 0;
        services.threads(|_, _| threads += 1);
        assert_eq!(threads, 2);
    }

    #[test]
    fn a_group_without_its_twin_in_cpuacct_has_all_but_its_cpu_time() {
        let directory = tempfile::tempdir().unwrap();
        let roots = host_of(directory.path(), 1);
        fs::remove_dir_all(roots.sys("fs/cgroup")).unwrap();
        for (file, text) in [
            (
                "cpu/batch/x/cpu.stat",
                "nr_periods 50\nnr_throttled 5\nthrottled_time 250000000\n",
            ),
            ("cpu/batch/x/cpu.cfs_quota_us", "150000\n"),
            ("cpu/batch/x/cpu.cfs_period_us", "100000\n"),
            ("cpu/batch/x/tasks", "1\n2\n"),
            ("cpu/batch/cpu.stat", "nr_periods 0\n"),
            ("cpu/batch/cpu.cfs_quota_us", "-1\n"),
            ("cpu/batch/cpu.cfs_period_us", "100000\n"),
            ("cpuacct/cpuacct.usage", "1\n"),
        ] {
            let path = roots.sys("fs/cgroup").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let names = Names::parse(&["batch/*".to_owned()]).unwrap();
        let mut services = Services::find(roots, names, 10).unwrap();
        let text = exposition(&mut services, &AGENT);
        let mine = "{service=\"x\",group=\"batch/x\"}";
        for line in [
            format!("slackline_cpu_limit_cores{mine} 1.5\n"),
            format!("slackline_cpu_throttled_periods_total{mine} 5\n"),
            format!("slackline_cpu_throttled_seconds_total{mine} 0.25\n"),
            format!("slackline_threads{mine} 0\n"),
            "slackline_agent_services 1\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(
            !text.contains("slackline_cpu_usage_seconds_total{"),
            "{text}"
        );
    }

    #[test]
    fn without_tracepoints_there_are_the_counters_only() {
        let directory = tempfile::tempdir().unwrap();
        let roots = host_of(directory.path(), 1);
        let mut services = Services::find(roots, Names::parse(&[]).unwrap(), 10).unwrap();
        let agent = Agent {
            traces: false,
            ..AGENT
        };
        let text = exposition(&mut services, &agent);
        assert_eq!(series(&text), COUNTED.len() + SERIES_OF_AGENT);
        assert!(text.contains("slackline_agent_traces 0\n"));
    }
}
