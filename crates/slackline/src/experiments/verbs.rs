//! The arguments of `slackline experiments`.

use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Server address; by default, the server of the state directory. With this option, set the
    /// token in SLACKLINE_TOKEN.
    #[arg(long, global = true, env = "SLACKLINE_URL")]
    pub(super) url: Option<String>,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

#[derive(clap::Subcommand)]
pub(super) enum Verb {
    /// List the experiments, newest first.
    Ls {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Print the list again every two seconds, until Ctrl-C.
        #[arg(long)]
        watch: bool,
        /// List only experiments in this state.
        #[arg(long, value_name = "STATE", value_parser = ["queued", "running", "paused", "done", "stopped", "failed"])]
        state: Option<String>,
        /// Largest number of experiments to list. By default all.
        #[arg(long, value_name = "N")]
        limit: Option<std::num::NonZeroUsize>,
    },
    /// Show one experiment.
    Show {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create an experiment from a specification and put it in the queue; prints the experiment's
    /// number.
    Create {
        /// The specification (TOML, or JSON with the ending .json).
        spec: PathBuf,
    },
    /// Pause an experiment after its current evaluation.
    Pause {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Resume a paused, stopped, done or failed experiment. It waits in the queue, and then
    /// continues where it ended.
    Resume {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Stop an experiment now, without confirmation. The evaluation that is being measured is
    /// killed.
    Stop {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Stop searching, and verify the best configurations so far on fresh runs.
    Verify {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Put an experiment's verified winner in force on the host, without confirmation.
    Promote {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Pause the queue: no search or verification begins. The evaluation that is being measured
    /// runs to its end. A continuous experiment still watches what it has promoted.
    PauseQueue,
    /// Resume the queue.
    ResumeQueue,
    /// Undo the promotion: each file becomes as it was before the promotion, and each knob gets the
    /// control's value. This interrupts the evaluation that is being measured, and ends a
    /// `slackline tune` or `throttle apply` on the server's host. Exit code 4: not everything could
    /// be restored.
    Rollback {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Forget the files and knobs that a rollback could not restore. They stay as they are, and the
    /// experiment can be deleted. Without --yes, only list them (exit code 1).
    ForgetRest {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// Forget them. Without this option they are only listed.
        #[arg(long)]
        yes: bool,
    },
    /// Delete an experiment with all its evaluations, without confirmation.
    Delete {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
    },
    /// Kill one evaluation that is being measured; the experiment goes on.
    Kill {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// The evaluation's number.
        evaluation: usize,
    },
    /// Enqueue a configuration: it is measured before the search's next proposal. A paused or ended
    /// experiment stays as it is: run `resume` afterwards.
    Enqueue {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// Values of the parameters that differ from the control, such as `threads=8 cache=on`.
        #[arg(required = true, value_name = "PARAMETER=VALUE")]
        values: Vec<String>,
    },
    /// Set the total number of evaluations, and optionally the time limit.
    Budget {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// Total number of evaluations, failed ones included.
        #[arg(long, value_name = "N")]
        evaluations: usize,
        /// Time limit for measuring, in minutes. Without this option, the present limit stays.
        #[arg(long, value_name = "MINUTES")]
        wall_time_min: Option<f64>,
        /// Remove the time limit.
        #[arg(long, conflicts_with = "wall_time_min")]
        no_wall_time: bool,
    },
    /// Write a note on an experiment, or on one of its evaluations.
    Note {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// The evaluation's number.
        #[arg(long, value_name = "N")]
        evaluation: Option<usize>,
        /// The note. An empty text removes the note.
        text: String,
    },
    /// Create an experiment that starts from the evaluations of this one; prints the new
    /// experiment's number.
    Fork {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// Another specification with the same objective. By default the specification of this
        /// experiment.
        spec: Option<PathBuf>,
    },
    /// Print the whole report, or the evaluations as a table. Redirect Parquet to a file.
    Export {
        /// The experiment's number.
        #[arg(value_parser = experiment_number)]
        id: i64,
        /// `json` is the whole report. `csv` and `parquet` are the evaluations as a table.
        #[arg(long, default_value = "json", value_parser = ["json", "csv", "parquet"])]
        format: String,
    },
    /// Import a report written by `tune --json` or `experiments export`; prints the new
    /// experiment's number.
    Import {
        /// The report (JSON).
        report: PathBuf,
    },
}

/// People write here the file that `create` takes.
fn experiment_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| {
        "give the number of an experiment, as `slackline experiments ls` shows it. \
         `slackline experiments create FILE` creates an experiment from a specification"
            .to_owned()
    })
}
