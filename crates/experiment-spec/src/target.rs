//! The service under test, and how a configuration is applied to it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustix::process::Signal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quota::QuotaSpec;

/// The service under test. With `start`, Slackline runs two instances of the service: one for the
/// control, one for the candidate. Without `start`, there is one running service, and Slackline
/// switches its knobs and files from block to block. Commands run in the specification's directory.
/// Commands, URLs, `env`, `files` and template files can contain names in braces. `{NAME}` is the
/// value of a parameter or variable. `{port}` and `{dir}` are the instance's own port and
/// directory. `{side}` is `control` or `experiment` (the candidate's instance). `{spec_dir}` is the
/// specification's directory. Write `{{NAME}}` for the text `{NAME}`. Other braces stay as they
/// are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetSpec {
    /// `parallel`: both instances are measured at the same time. `alternating`: one side after the
    /// other. `parallel` needs `start`.
    #[serde(default)]
    pub pairing: Pairing,
    /// A command to run before each start of an instance, such as `initdb`. The instance starts
    /// when the command has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare: Option<Vec<String>>,
    /// The command that runs the service. It must stay in the foreground.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    /// Environment variables for all commands except the workload's, in addition to Slackline's own
    /// environment. Read a secret from a file: `DB_PASSWORD = { file = "password.txt" }`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, TextOrFile>,
    /// Files to write from templates, before the start or before the `apply` steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileSpec>,
    /// The steps that make a running service use a new configuration: a reload, a restart, an HTTP
    /// request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apply: Vec<ApplySpec>,
    /// How to find out that the service is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadySpec>,
    /// How to stop a service that Slackline started. By default SIGTERM, and SIGKILL after 10 s.
    #[serde(default)]
    pub stop: StopSpec,
    /// Ports of the control's and the candidate's instance. In templates, `{port}` is the port. By
    /// default free ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<[u16; 2]>,
    /// CPUs of the two instances, such as `["0", "1"]`. With `parallel`, the sides swap their CPUs
    /// after every block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<[String; 2]>,
    /// A CPU quota for each instance, in a control group of its own. Throttling is then counted,
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaSpec>,
    /// Where to count the CPU time of a service that Slackline did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observe: Option<ObserveSpec>,
}

impl TargetSpec {
    /// It runs by itself, and takes a configuration by files and `apply` steps.
    #[must_use]
    pub fn is_reconfigurable(&self) -> bool {
        self.start.is_none() && !(self.files.is_empty() && self.apply.is_empty())
    }
}

/// A value that may be kept elsewhere, as a secret is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a text, or { file = \"…\" }")]
pub enum TextOrFile {
    /// The value itself.
    Text(String),
    /// The file that holds it, without the end of its last line. Its contents are read when a
    /// command starts, and kept nowhere.
    File(InFile),
}

/// A value in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InFile {
    /// The file, relative to the specification.
    pub file: PathBuf,
}

/// How control and candidate alternate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// A B B A: one side at a time.
    #[default]
    Alternating,
    /// Both at once, each on its own CPUs, which are swapped after every block.
    Parallel,
}

/// A file made from a template.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// The template file, relative to the specification's directory.
    pub template: PathBuf,
    /// Where to write the result. `{dir}` is the instance's own directory.
    pub path: String,
}

/// One step that applies a configuration to a running service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplySpec {
    /// A command. If its exit code is not 0, the service has refused the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// An HTTP request to this URL. If the status is 400 or above, the service has refused the
    /// configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The method of the HTTP request. By default `POST`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The body of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Run the step only if one of these parameters or variables changes. So a parameter that needs
    /// only a reload does not restart the service. Empty: the step runs at each change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
}

/// How to find out that a service is ready. Give exactly one of `url`, `port` and `command`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadySpec {
    /// The service is ready when a GET of this URL returns a status 2xx or 3xx.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The service is ready when 127.0.0.1 accepts connections on this port, such as `"{port}"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The service is ready when this command ends with exit code 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Seconds after which a service that is not ready counts as crashed.
    #[serde(default = "ready_timeout_s")]
    pub timeout_s: f64,
}

fn ready_timeout_s() -> f64 {
    30.0
}

/// How to stop a service that Slackline started.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopSpec {
    /// The signal that ends the service: `TERM`, `INT`, `QUIT` or `KILL`.
    #[serde(default = "stop_signal")]
    pub signal: String,
    /// Seconds after which Slackline kills the service.
    #[serde(default = "stop_grace_s")]
    pub grace_s: f64,
}

fn stop_signal() -> String {
    "TERM".into()
}

fn stop_grace_s() -> f64 {
    10.0
}

impl StopSpec {
    /// The signal; `None` of another name.
    #[must_use]
    pub fn signal(&self) -> Option<Signal> {
        match self.signal.as_str() {
            "TERM" => Some(Signal::TERM),
            "INT" => Some(Signal::INT),
            "QUIT" => Some(Signal::QUIT),
            "KILL" => Some(Signal::KILL),
            _ => None,
        }
    }
}

impl Default for StopSpec {
    fn default() -> Self {
        Self {
            signal: stop_signal(),
            grace_s: stop_grace_s(),
        }
    }
}

/// Where to count the CPU time of a service that Slackline did not start. Give exactly one key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObserveSpec {
    /// The id of the service's first process. Its descendants count, too. If an `apply` step
    /// restarts the service, use `pid_file` or `cgroup` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A file that holds the id of the service's first process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_file: Option<PathBuf>,
    /// The service's control group. Throttled periods are counted, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}
