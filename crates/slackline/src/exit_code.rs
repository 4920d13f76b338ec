//! The exit code of an error.

use std::error::Error;

/// An error of a library, asked for its class.
trait ClassifiedError: Error + 'static {
    /// Whether a privilege or a kernel feature is missing.
    fn is_missing_privilege(&self) -> bool;
}

/// Answers by the method of the same name that the error of a library has.
macro_rules! by_its_own_method {
    ($($error:ty),+ $(,)?) => {
        $(impl ClassifiedError for $error {
            fn is_missing_privilege(&self) -> bool {
                <$error>::is_missing_privilege(self)
            }
        })+
    };
}

by_its_own_method!(
    agent::AgentError,
    block_load::LoadError,
    block_server::launch::BlockLaunchError,
    cache_server::launch::CacheLaunchError,
    host::HostError,
    isolate_run::IsolateError,
    load::Error,
    relayout::RelayoutError,
    throttle_watch::ThrottleError,
    wire_latency::Error,
);

/// Each of them is about what the kernel gives.
impl ClassifiedError for perf_events::Error {
    fn is_missing_privilege(&self) -> bool {
        true
    }
}

impl ClassifiedError for dispatch::Error {
    fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::Host(error) if error.is_missing_privilege())
    }
}

impl ClassifiedError for tuner::TunerError {
    fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::Host(error) if error.is_missing_privilege())
    }
}

impl ClassifiedError for block_load::calibrate::CalibrateError {
    fn is_missing_privilege(&self) -> bool {
        matches!(self, Self::Load(error) if error.is_missing_privilege())
    }
}

/// Asks a cause, if the cause is an `E`.
fn ask<E: ClassifiedError>(cause: &(dyn Error + 'static)) -> bool {
    let error = cause.downcast_ref::<E>();
    error.is_some_and(ClassifiedError::is_missing_privilege)
}

/// The types that are asked. A cause in a chain of errors does not tell its traits, so its type has
/// to be one of these.
const ASKED: [fn(&(dyn Error + 'static)) -> bool; 14] = [
    ask::<agent::AgentError>,
    ask::<block_load::LoadError>,
    ask::<block_load::calibrate::CalibrateError>,
    ask::<block_server::launch::BlockLaunchError>,
    ask::<cache_server::launch::CacheLaunchError>,
    ask::<dispatch::Error>,
    ask::<host::HostError>,
    ask::<isolate_run::IsolateError>,
    ask::<load::Error>,
    ask::<perf_events::Error>,
    ask::<relayout::RelayoutError>,
    ask::<throttle_watch::ThrottleError>,
    ask::<tuner::TunerError>,
    ask::<wire_latency::Error>,
];

/// The exit code of an error: 3 where a privilege or a kernel feature is missing, else 2.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let mut causes = error.chain();
    if causes.any(|cause| ASKED.iter().any(|ask| ask(cause))) {
        3
    } else {
        2
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::exit_code;

    fn no_tracepoints() -> perf_events::Error {
        perf_events::Error::Tracefs {
            source: std::io::Error::other("no permission"),
        }
    }

    #[test]
    fn a_missing_privilege_is_found_below_other_errors() {
        let error = anyhow::Error::from(no_tracepoints()).context("the service");
        assert_eq!(exit_code(&error), 3);
        let no_cpu_times = || {
            load::Error::from(host::HostError::Read {
                path: "/proc/stat".into(),
                errno: rustix::io::Errno::ACCESS.raw_os_error(),
            })
        };
        for error in [
            throttle_watch::ThrottleError::from(no_tracepoints()).into(),
            throttle_watch::ThrottleError::from(no_cpu_times()).into(),
            agent::AgentError::from(no_tracepoints()).into(),
            no_cpu_times().into(),
        ] {
            assert_eq!(exit_code(&error), 3, "{error}");
        }
    }

    #[test]
    fn any_other_error_is_of_usage_or_configuration() {
        assert_eq!(exit_code(&anyhow::anyhow!("no such option")), 2);
        let error: anyhow::Error = throttle_watch::ThrottleError::NothingRan.into();
        assert_eq!(exit_code(&error), 2);
        let read = std::fs::read("/nowhere/at/all").context("a file");
        assert_eq!(exit_code(&read.unwrap_err()), 2);
    }
}
