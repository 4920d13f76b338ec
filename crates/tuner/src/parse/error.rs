//! What is wrong with the output of a workload.

/// The output of a workload does not say what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The report lacks something every complete report has.
    #[error(
        "this is not a complete report of {tool}: no {looked_for} in it (was it stopped early, or is `parse` another tool's?); it printed:\n{got}"
    )]
    Missing {
        /// The tool whose report was expected.
        tool: &'static str,
        /// What was looked for, as the tool prints it.
        looked_for: &'static str,
        /// The first and last lines of what came instead.
        got: String,
    },
    /// The tool ran, but nothing was completed.
    #[error(
        "{tool} completed no request: does the target answer at the address the workload uses? It printed:\n{got}"
    )]
    NoRequests {
        /// The tool.
        tool: &'static str,
        /// The first and last lines of its report.
        got: String,
    },
    /// The output holds more than one report, and the tool has no rule for which of them counts.
    #[error(
        "the output holds {found}, so it is unclear which report of {tool} counts: let the workload's command print one report (send the others' output to /dev/null)"
    )]
    Several {
        /// The tool.
        tool: &'static str,
        /// What was found more than once.
        found: String,
    },
    /// Two numbers of the report cannot both be true.
    #[error(
        "the report of {tool} contradicts itself: {message}; it is not taken (is `parse` the right tool's, and is the output of one run?)"
    )]
    Contradiction {
        /// The tool.
        tool: &'static str,
        /// The two numbers.
        message: String,
    },
    /// The tool says itself that its run failed.
    #[error("{tool} gave up: {message}")]
    GaveUp {
        /// The tool.
        tool: &'static str,
        /// Its own words.
        message: String,
    },
    /// JSON was expected.
    #[error("the output is not JSON ({message}); it printed:\n{got}")]
    NotJson {
        /// What the JSON reader says.
        message: String,
        /// The first and last lines of what came instead.
        got: String,
    },
    /// The paths lead to numbers in more than one JSON document.
    #[error(
        "the output holds {count} JSON documents in which the paths lead to numbers, so it is unclear which of them counts: let the workload's command print one (send the others' output to /dev/null)"
    )]
    SeveralDocuments {
        /// How many.
        count: usize,
    },
    /// A JSON path is malformed or leads nowhere.
    #[error("metric `{metric}`: JSON path `{path}`: {message}")]
    JsonPath {
        /// The metric it was for.
        metric: String,
        /// The path.
        path: String,
        /// Where it ends, or what is wrong with it.
        message: String,
    },
    /// A pattern is malformed.
    #[error("metric `{metric}`: pattern `{pattern}`: {message}")]
    Pattern {
        /// The metric it was for.
        metric: String,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// A pattern matches nothing.
    #[error("metric `{metric}`: pattern `{pattern}` matches nothing in the output:\n{got}")]
    NoMatch {
        /// The metric it was for.
        metric: String,
        /// The pattern.
        pattern: String,
        /// The first and last lines of the output.
        got: String,
    },
    /// Something was found where a number should be.
    #[error("metric `{metric}`: `{found}` is not a finite number")]
    NotANumber {
        /// The metric it was for.
        metric: String,
        /// What was found.
        found: String,
    },
}
