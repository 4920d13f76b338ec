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
