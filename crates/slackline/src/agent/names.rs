//! Which control groups are services, and what they are called.

use anyhow::Context as _;
use globset::{GlobBuilder, GlobMatcher};

/// Digits of a container's id that name it, as in `docker ps`.
const ID_DIGITS: usize = 12;

/// A group that the user calls a service.
struct Pattern {
    /// Without one, the last part of the group's path.
    name: Option<String>,
    glob: GlobMatcher,
}

/// The user's patterns, and what systemd and container runtimes make.
pub(super) struct Names {
    patterns: Vec<Pattern>,
}

impl Names {
    /// From texts such as `web=kubepods.slice/**/cri-containerd-*.scope` or `batch/*`.
    pub(super) fn parse(texts: &[String]) -> anyhow::Result<Self> {
        let parse = |text: &String| {
            let (name, glob) = match text.split_once('=') {
                Some((name, glob)) => (Some(name.to_owned()), glob),
                None => (None, text.as_str()),
            };
            anyhow::ensure!(
                name.as_deref() != Some(""),
                "--service {text}: the name is empty"
            );
            // As a variable that is not set leaves it.
            anyhow::ensure!(
                !glob.trim_matches('/').is_empty(),
                "--service {text:?}: the glob is empty"
            );
            anyhow::ensure!(
                !glob.starts_with("/sys/fs/cgroup"),
                "--service {text}: a glob begins below the hierarchy of the cpu controller, such as system.slice/x*.service"
            );
            let glob = GlobBuilder::new(glob.trim_matches('/'))
                .literal_separator(true)
                .build()
                .with_context(|| format!("--service {text}"))?
                .compile_matcher();
            Ok(Pattern { name, glob })
        };
        let patterns = texts.iter().map(parse).collect::<anyhow::Result<_>>()?;
        Ok(Self { patterns })
    }

    /// The name of a service whose group is this one.
    pub(super) fn of(&self, group: &str) -> Option<String> {
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
        container(last).map(str::to_owned)
    }
}

/// `RUNTIME-ID.scope` (systemd) or `ID` (cgroupfs), with an id of 64 hexadecimal digits. Podman's
/// `conmon` is no container.
pub(crate) fn container(last: &str) -> Option<&str> {
    let id = last.strip_suffix(".scope").map_or(last, |scope| {
        scope.split_once('-').map_or(scope, |(_, rest)| rest)
    });
    // CRI-O and containerd put their own name before it: cri-containerd-ID.
    let id = id.strip_prefix("containerd-").unwrap_or(id);
    let is_id = id.len() == 64 && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then(|| &id[..ID_DIGITS])
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
            assert!(format!("{error:#}").contains(text), "{error:#}");
        }
    }
}
