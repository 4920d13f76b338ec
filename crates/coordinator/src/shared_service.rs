//! Whether two experiments change the same service.

use tuner::spec::TargetSpec;

/// By what two experiments tell the same running service of its configuration: the same file, or
/// the same command.
pub(crate) fn shared_service(one: &TargetSpec, other: &TargetSpec) -> Option<String> {
    if !one.is_reconfigurable() {
        return None;
    }
    let mut files = one.files.iter();
    let mut steps = one.apply.iter();
    let is_same = |one: &str, other: &str| host::is_same_file(one.as_ref(), other.as_ref());
    let file = files.find(|file| other.files.iter().any(|it| is_same(&it.path, &file.path)));
    let mut is_same_step = || steps.any(|step| other.apply.contains(step));
    match file {
        Some(file) => Some(file.path.clone()),
        None => is_same_step().then(|| "both have the same apply step".to_owned()),
    }
}
