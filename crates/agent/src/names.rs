//! Which control groups are services, and what they are called.

use globset::{GlobBuilder, GlobMatcher};
use throttle_watch::container_id;

use crate::error::AgentError;

/// A group that the user calls a service.
struct Pattern {
    /// Without one, the last part of the group's path.
    name: Option<String>,
    glob: GlobMatcher,
}

/// The user's patterns, and what systemd and container runtimes make.
pub(crate) struct Names {
    patterns: Vec<Pattern>,
}

impl Names {
    /// From texts such as `web=kubepods.slice/**/cri-containerd-*.scope` or `batch/*`.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, AgentError> {
        let parse = |text: &String| {
            let (name, glob) = match text.split_once('=') {
                Some((name, glob)) => (Some(name.to_owned()), glob),
                None => (None, text.as_str()),
            };
            let text = text.clone();
            if name.as_deref() == Some("") {
                return Err(AgentError::NameIsEmpty { text });
            }
            // As a variable that is not set leaves it.
            if glob.trim_matches('/').is_empty() {
                return Err(AgentError::GlobIsEmpty { text });
            }
            if glob.starts_with("/sys/fs/cgroup") {
                return Err(AgentError::GlobOfAPath { text });
            }
            let glob = GlobBuilder::new(glob.trim_matches('/'))
                .literal_separator(true)
                .build()
                .map_err(|source| AgentError::Glob { text, source })?
                .compile_matcher();
            Ok(Pattern { name, glob })
        };
        let patterns = texts.iter().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { patterns })
    }

    /// The name of a service whose group is this one.
    pub(crate) fn of(&self, group: &str) -> Option<String> {
        let last = group.rsplit('/').next()?;
        let pattern = self
            .patterns
            .iter()
            .find(|pattern| pattern.glob.is_match(group));
        if let Some(pattern) = pattern {
            return Some(pattern.name.clone().unwrap_or_else(|| last.to_owned()));
        }
        if last.ends_with(".service") {
            return Some(last.to_owned());
        }
        container_id(last).map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_containers_and_given_groups_are_services() {
        let texts = ["web=kubepods.slice/*/cri-containerd-*.scope", "/batch/*"].map(str::to_owned);
        let names = Names::parse(&texts).unwrap();
        let id = "0123456789abcdef".repeat(4);
        for (group, name) in [
            (
                "system.slice/nginx.service".to_owned(),
                Some("nginx.service"),
            ),
            ("system.slice".to_owned(), None),
            ("user.slice/user-0.slice/session-1.scope".to_owned(), None),
            (format!("docker/{id}"), Some("0123456789ab")),
            (
                format!("system.slice/docker-{id}.scope"),
                Some("0123456789ab"),
            ),
            (
                format!("machine.slice/libpod-{id}.scope"),
                Some("0123456789ab"),
            ),
            (format!("machine.slice/libpod-conmon-{id}.scope"), None),
            (
                format!("kubepods.slice/a/b/cri-containerd-{id}.scope"),
                Some("0123456789ab"),
            ),
            (
                format!("kubepods.slice/a/cri-containerd-{id}.scope"),
                Some("web"),
            ),
            ("batch/night".to_owned(), Some("night")),
            ("batch/night/part".to_owned(), None),
        ] {
            assert_eq!(names.of(&group).as_deref(), name, "{group}");
        }
    }

    #[test]
    fn a_bad_pattern_is_named() {
        for text in ["=a", "x=[", "{", "x=", "x=/", "/sys/fs/cgroup/cpu/batch/*"] {
            let error = Names::parse(&[text.to_owned()]).err().unwrap();
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
