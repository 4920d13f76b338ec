//! The report of Slackline's own load generator, `slackline load`.

use experiment_spec::{HttpSpec, http_metrics};
use load::LoadReport;

use crate::metrics::SideMetrics;
use crate::parse;

/// The metrics in the generator's report, and why those that are missing are not the service's.
pub(crate) fn read_report(
    http: &HttpSpec,
    output: &str,
) -> Result<(SideMetrics, Option<String>), String> {
    let report: LoadReport = serde_json::from_str(output).map_err(|error| {
        let begin: String = output.chars().take(200).collect();
        format!("the load generator's report cannot be read: {error}: {begin:?}")
    })?;
    let mut read = parse::parse_json(&http_metrics(), output).map_err(|error| error.to_string())?;
    let complaint = report.complaint();
    if complaint.is_some() {
        read.retain(|name, _| !http.is_hurt(name));
    }
    Ok((read, complaint))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use load::{Bottleneck, Latency, Parts};

    use super::*;

    fn report(bottleneck: Option<Bottleneck>) -> String {
        let latency = Latency {
            latency_mean_us: 400.0,
            latency_p50_us: 300.0,
            latency_p90_us: 900.0,
            latency_p99_us: 5000.0,
            latency_p999_us: 6000.0,
            latency_max_us: 7000.0,
        };
        let report = LoadReport {
            due: 1000,
            requests: 990,
            errors: 10,
            error_kinds: BTreeMap::new(),
            duration_s: 1.0,
            requests_per_s: 990.0,
            bytes_per_s: 1e5,
            latency,
            latency_requests: 1000,
            parts: Parts::default(),
            waited_share: 0.0,
            lateness_p99_us: 4000.0,
            own_cpu_s: 0.1,
            own_polled_s: 0.0,
            own_cpu_per_request_us: 100.0,
            own_busy_share: 0.95,
            run_queue_s: 0.0,
            stolen_share: 0.0,
            disturbed: Vec::new(),
            disturbed_s: 0.0,
            connections_opened: 8,
            resent: 0,
            neighbours: None,
            bottleneck,
        };
        serde_json::to_string_pretty(&report).unwrap()
    }

    /// The names of what is read, and the complaint.
    fn read(pace: &str, bottleneck: Option<Bottleneck>) -> (Vec<String>, Option<String>) {
        let text = format!(r#"{{ "url": "http://127.0.0.1:1/", {pace} }}"#);
        let http: HttpSpec = serde_json::from_str(&text).unwrap();
        let (metrics, complaint) = read_report(&http, &report(bottleneck)).unwrap();
        (metrics.into_keys().collect(), complaint)
    }

    #[test]
    fn a_late_generator_takes_the_times_away_and_leaves_the_counts() {
        let open = r#""rate": 1000"#;
        let (all, complaint) = read(open, None);
        assert_eq!((all.len(), complaint), (http_metrics().len(), None));
        assert_eq!(read(open, Some(Bottleneck::Service)).0, all);
        for bottleneck in [
            Bottleneck::Generator,
            Bottleneck::GeneratorAndService,
            Bottleneck::Neighbour,
        ] {
            let (left, complaint) = read(open, Some(bottleneck));
            assert_eq!(
                left,
                ["bytes_per_s", "errors", "requests", "requests_per_s"]
            );
            let complaint = complaint.unwrap();
            for key in ["workload.cpus", "target.cpus"] {
                assert!(complaint.contains(key), "{bottleneck:?}: {complaint}");
            }
        }
        // What a closed loop reaches is the generator's rate then.
        let (left, _) = read(r#""closed": true"#, Some(Bottleneck::Generator));
        assert_eq!(left, ["bytes_per_s", "errors", "requests"]);
    }
}
