//! Parameters that are knobs of the kernel: which knob, and what its live value means.

use std::collections::BTreeMap;

use bayes_opt::Value;
use host::{HostError, Knob, Roots, SchedThreads, is_same_file};

use super::sched::SchedKind;
use super::{ParameterSpec, ParameterType, Scale, TargetSpec};

/// A key of a parameter, and what is wrong with it.
pub(super) type FieldError = (&'static str, String);

/// The values of knobs that are changed just now, by which an experiment must not go.
pub type Originals = BTreeMap<Knob, String>;

/// A parameter that is a kernel knob.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobBinding {
    /// The knob.
    pub knob: Knob,
    /// The template of what is written; the plain value if `None`.
    pub write: Option<String>,
    /// The parameter is one value of a list.
    pub element: Option<Element>,
}

impl SchedKind {
    /// The knob, of the threads of this target.
    fn knob(self, target: Option<&TargetSpec>, roots: &Roots) -> Result<Knob, FieldError> {
        let refused = |message: String| ("sched", message);
        let observed = match target {
            Some(target) if target.start.is_none() => {
                Some(target.observe.as_ref().ok_or_else(|| {
                    refused(
                        "sched needs the threads of a service: give target.start or target.observe"
                            .to_owned(),
                    )
                })?)
            }
            _ => None,
        };
        let threads = match observed.map(|it| (&it.cgroup, &it.pid_file, it.pid)) {
            None => SchedThreads::Instance,
            Some((Some(group), ..)) => {
                let group = host::group_of_path(roots, group);
                SchedThreads::Group(group.map_err(|error| refused(error.to_string()))?)
            }
            Some((_, Some(path), _)) => SchedThreads::PidFile(path.clone()),
            Some((.., pid)) => {
                let pid = pid.unwrap_or(0);
                let start_time = host::start_time(roots, pid);
                SchedThreads::Process {
                    pid,
                    start_time: start_time.map_err(|error| refused(error.to_string()))?,
                }
            }
        };
        Ok(Knob::Sched {
            threads,
            attribute: self.attribute(),
        })
    }

    /// Every value that the parameter names is one of this attribute.
    fn check_values(self, parameter: &ParameterSpec) -> Result<(), FieldError> {
        if parameter.write.is_some() {
            return Ok(());
        }
        let values = parameter.values.iter().flatten();
        let values = values.chain(&parameter.special).chain(&parameter.default);
        let texts = values.map(|value| ("values", value.to_string()));
        let ends = [("low", parameter.low), ("high", parameter.high)];
        let ends = ends
            .into_iter()
            .filter_map(|(key, end)| Some((key, end?.to_string())));
        for (key, text) in texts.chain(ends) {
            self.attribute()
                .check(&text)
                .map_err(|message| (key, message))?;
        }
        Ok(())
    }
}

/// One value of a knob that is a list, such as the third of `net.ipv4.tcp_rmem`.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// Which one, counted from 0.
    pub index: usize,
    /// The whole list as it is without Slackline: what is not tuned keeps its value.
    pub list: Vec<String>,
}

impl KnobBinding {
    /// Whether both are written to one place: the same file, or the same value of a list.
    pub(super) fn is_same(&self, other: &Self, roots: &Roots) -> bool {
        // All attributes of the same threads have one path.
        if matches!(self.knob, Knob::Sched { .. }) {
            return self.knob == other.knob;
        }
        let is_another_value = match (&self.element, &other.element) {
            (Some(one), Some(other)) => one.index != other.index,
            _ => false,
        };
        !is_another_value && is_same_file(&self.knob.path(roots), &other.knob.path(roots))
    }
}

/// A knob with the key that names it and, of a list, the element's place.
type NamedKnob = (&'static str, Knob, Option<usize>);

pub(super) fn knob_of(
    parameter: &ParameterSpec,
    target: Option<&TargetSpec>,
    roots: &Roots,
) -> Result<Option<NamedKnob>, FieldError> {
    let mut found = Vec::new();
    if let Some(kind) = parameter.sched {
        kind.check_values(parameter)?;
        found.push(("sched", kind.knob(target, roots)?, None));
    }
    if let Some(text) = &parameter.sysctl {
        let (name, index) = without_index(text);
        found.push(("sysctl", Knob::Sysctl(name.to_owned()), index));
    }
    if let Some(text) = &parameter.block_queue {
        let (text, index) = without_index(text);
        let (device, file) = text.split_once('/').ok_or_else(|| {
            (
                "block_queue",
                format!("{text:?} must be DEVICE/FILE, such as \"vda/read_ahead_kb\""),
            )
        })?;
        let device = match device {
            "*" => root_device(roots).unwrap_or_else(|| "(no device holds /)".to_owned()),
            device => device.to_owned(),
        };
        found.push((
            "block_queue",
            Knob::BlockQueue {
                device,
                file: file.to_owned(),
            },
            index,
        ));
    }
    if let Some(text) = &parameter.cgroup {
        let (text, index) = without_index(text);
        let (group, file) = text.rsplit_once('/').ok_or_else(|| {
            (
                "cgroup",
                format!("{text:?} must be GROUP/FILE, such as \"my.slice/cpu.max\""),
            )
        })?;
        found.push((
            "cgroup",
            Knob::Cgroup {
                group: group.to_owned(),
                file: file.to_owned(),
            },
            index,
        ));
    }
    if let Some(path) = &parameter.file {
        if !path.is_absolute() {
            return Err(("file", format!("{} must be absolute", path.display())));
        }
        // Below /proc and /sys no file's name ends in brackets; elsewhere one may.
        let is_kernel = path.starts_with("/proc") || path.starts_with("/sys");
        let (knob, index) = match path.to_str().filter(|_| is_kernel).map(without_index) {
            Some((path, index)) => (Knob::File(path.into()), index),
            None => (Knob::File(path.clone()), None),
        };
        found.push(("file", knob, index));
    }
    if let [_, (second, ..), ..] = found.as_slice() {
        return Err((second, "a parameter is one knob at the most".into()));
    }
    Ok(found.pop())
}

/// `net.ipv4.tcp_rmem[2]` is the third value of the list `net.ipv4.tcp_rmem`.
fn without_index(text: &str) -> (&str, Option<usize>) {
    let split = || {
        let (name, index) = text.strip_suffix(']')?.rsplit_once('[')?;
        Some((name, Some(index.parse().ok()?)))
    };
    split().unwrap_or((text, None))
}

fn element_of(knob: &Knob, index: usize, live: &str) -> Result<Element, String> {
    let list: Vec<String> = live.split_whitespace().map(str::to_owned).collect();
    match list.len() {
        0 => Err(format!("{knob} is empty on this host, and no list")),
        values if index >= values => Err(format!(
            "{knob} has {values} values here, counted from 0: there is no [{index}]"
        )),
        _ => Ok(Element { index, list }),
    }
}

/// What a knob has on this host.
pub(super) enum Live {
    /// It is optional, and absent or of no use, for this reason.
    Absent(String),
    /// It belongs to instances that are yet to be started.
    OfInstance,
    /// The value, of a list the one that is tuned.
    Value {
        /// As the kernel prints it.
        text: String,
        /// Which one of the list it is.
        element: Option<Element>,
    },
}

/// An error about a knob, with what the author of an experiment can do.
///
/// ```
/// let error = host::HostError::NoSlice { tid: 7 };
/// let text = experiment_spec::refused_knob(&error);
/// assert!(text.ends_with("; remove it from the experiment, or set optional = true"));
/// let error = host::HostError::Write { path: "/k".into(), value: "9".into(), errno: 22 };
/// assert!(experiment_spec::refused_knob(&error).ends_with(", or narrow the parameter's range"));
/// ```
#[must_use]
pub fn refused_knob(error: &HostError) -> String {
    let advice = match error {
        HostError::WriteOnly { .. }
        | HostError::ReadOnly { .. }
        | HostError::NoSlice { .. }
        | HostError::LockedDown { .. }
        | HostError::Absent { .. } => "; remove it from the experiment, or set optional = true",
        HostError::Write { errno, .. } if [EINVAL, ERANGE].contains(errno) => {
            ", or narrow the parameter's range"
        }
        _ => "",
    };
    format!("{error}{advice}")
}

/// errno(3).
const EINVAL: i32 = 22;
const ERANGE: i32 = 34;

/// Reads a knob without Slackline's own changes.
///
/// # Errors
/// In words: why it cannot be a parameter.
pub(super) fn live_of(
    parameter: &ParameterSpec,
    knob: &Knob,
    index: Option<usize>,
    roots: &Roots,
    originals: &Originals,
) -> Result<Live, String> {
    if knob.is_of_instance() {
        return Ok(Live::OfInstance);
    }
    let read = knob.read(roots).and_then(|live| {
        knob.check_writable(roots)?;
        Ok((live, knob.is_uniform(roots)?))
    });
    let live = match read {
        Ok((_, false)) => {
            return Err(format!(
                "{knob} differ, so the control is no single value: give them one first, or tune something else"
            ));
        }
        Ok((live, true)) => originals.get(knob).cloned().or(live),
        Err(error) if parameter.optional => return Ok(Live::Absent(error.to_string())),
        Err(error) => return Err(refused_knob(&error)),
    };
    let path = knob.path(roots);
    let Some(whole) = live else {
        return match parameter.optional {
            true => Ok(Live::Absent(format!(
                "{} does not exist here",
                path.display()
            ))),
            false => Err(format!(
                "{} does not exist on this host; set optional = true to leave the parameter out where it is absent",
                path.display()
            )),
        };
    };
    let element = index
        .map(|index| element_of(knob, index, &whole))
        .transpose()?;
    let text = match &element {
        Some(element) => element.list[element.index].clone(),
        None => whole,
    };
    Ok(Live::Value { text, element })
}

/// What the live value makes of the control.
#[derive(Default)]
pub(super) struct Control {
    /// The control's value, where the specification gives none.
    pub(super) default: Option<Value>,
    /// It stands beside the range.
    pub(super) special: Option<Value>,
    /// That the specification's default is another one, a sentence.
    pub(super) other_default: Option<String>,
}

/// Goes by the live value, or holds the specification's default against it.
///
/// # Errors
/// It is not of the parameter's type, or does not say what the control's value is.
pub(super) fn control_of(
    parameter: &ParameterSpec,
    knob: &Knob,
    live: &str,
) -> Result<Control, FieldError> {
    let found = live_default(parameter, live);
    let is_it = |default| {
        let found = found.as_ref();
        found.is_some_and(|found| found.means(default))
    };
    match (&parameter.default, &parameter.write) {
        (None, Some(_)) => Err((
            "write",
            format!(
                "needs default, the control's value: {} does not say it",
                found_in(knob, live)
            ),
        )),
        (None, None) => {
            let found = found
                .clone()
                .ok_or_else(|| ("type", not_of_type(knob, live)))?;
            let special = is_apart(parameter, &found, live).then(|| found.clone());
            Ok(Control {
                default: Some(found),
                special,
                other_default: None,
            })
        }
        (Some(default), None) if !is_it(default) => {
            let name = &parameter.name;
            Ok(Control {
                other_default: Some(format!(
                    "another default: {name} has {default}, and {knob} is {} on this host now; the control is the default, not what runs here",
                    shown(knob, live).unwrap_or("another text")
                )),
                ..Control::default()
            })
        }
        (Some(_), _) => Ok(Control::default()),
    }
}

/// Live values of the kernel are shorter. More would be a file of somebody's own.
const SHOWN_CHARS_MAX: usize = 60;

/// A live value for a message. `None` where it may be anybody's secret: the text of a file that is
/// not the kernel's and holds no number.
fn shown<'a>(knob: &Knob, live: &'a str) -> Option<&'a str> {
    let is_kernel_s = match knob {
        Knob::File(path) => path.starts_with("/proc") || path.starts_with("/sys"),
        _ => true,
    };
    let is_short = live.chars().count() <= SHOWN_CHARS_MAX && !live.contains('\n');
    let mut words = live.split_whitespace();
    let is_number = words.all(|word| word.parse::<f64>().is_ok());
    (is_short && (is_kernel_s || is_number)).then_some(live)
}

fn found_in(knob: &Knob, live: &str) -> String {
    match shown(knob, live) {
        Some(live) => format!("the live value {live:?} of {knob}"),
        None => format!("the text in {knob} ({} characters)", live.chars().count()),
    }
}

/// What to do about a live value that is no number.
fn not_of_type(knob: &Knob, live: &str) -> String {
    let numbers = live.split_whitespace().count();
    let is_list = numbers > 1
        && live
            .split_whitespace()
            .all(|word| word.parse::<f64>().is_ok());
    match is_list {
        true => format!(
            "the live value {live:?} of {knob} is a list of {numbers} numbers: name one of them, counted from 0, by {:?}, or write the whole list by write = and default =",
            format!("{knob}[{}]", numbers - 1)
        ),
        false => format!("{} is not of this type", found_in(knob, live)),
    }
}

/// Whether a live value stands beside the range and not at its end: it says "no limit", or 0 and
/// less on a logarithmic scale. What lies within the range is an ordinary value.
pub(super) fn is_apart(parameter: &ParameterSpec, value: &Value, text: &str) -> bool {
    if !matches!(parameter.kind, ParameterType::Int | ParameterType::Float) {
        return false;
    }
    let is_within = |number: f64| {
        parameter.low.is_some_and(|low| number >= low)
            && parameter.high.is_some_and(|high| number <= high)
    };
    match value.as_f64() {
        None => true,
        Some(number) if is_within(number) => false,
        Some(number) => host::is_no_limit(text) || parameter.scale == Scale::Log && number <= 0.0,
    }
}

/// The block device that holds the root file system, as `/sys/block` names it: a partition's
/// directory in `/sys/dev/block/MAJOR:MINOR` lies inside its disk's.
fn root_device(roots: &Roots) -> Option<String> {
    let device = rustix::fs::stat("/").ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = roots
        .sys(format!("dev/block/{major}:{minor}"))
        .canonicalize()
        .ok()?;
    let disk = if path.join("partition").exists() {
        path.parent()?
    } else {
        &path
    };
    Some(disk.file_name()?.to_string_lossy().into_owned())
}

fn live_default(parameter: &ParameterSpec, text: &str) -> Option<Value> {
    match parameter.kind {
        // Words, and numbers above 2^63, which stand for "no limit", are kept as they are.
        ParameterType::Int => (text.parse().ok().map(Value::Int))
            .or_else(|| host::is_no_limit(text).then(|| Value::Text(text.to_owned()))),
        ParameterType::Float => (text.parse().ok().map(Value::Float))
            .filter(|value| value.as_f64().is_some_and(f64::is_finite))
            .or_else(|| host::is_no_limit(text).then(|| Value::Text(text.to_owned()))),
        ParameterType::Bool => match text {
            "0" | "N" | "n" => Some(Value::Bool(false)),
            "1" | "Y" | "y" => Some(Value::Bool(true)),
            _ => None,
        },
        ParameterType::Ordinal | ParameterType::Categorical => parameter
            .values
            .iter()
            .flatten()
            .find(|value| value.to_string() == text)
            .cloned(),
    }
}

#[cfg(test)]
mod tests;
