//! Which control groups are containers'.

/// Digits of a container's id that name it, as in `docker ps`.
const ID_DIGITS: usize = 12;

/// The short id of the container whose group has this name: `RUNTIME-ID.scope` (systemd) or `ID`
/// (cgroupfs), with an id of 64 hexadecimal digits. Podman's `conmon` is no container.
#[must_use]
pub fn container_id(last: &str) -> Option<&str> {
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
    use super::container_id;

    #[test]
    fn only_groups_of_containers_have_an_id() {
        let id = "0123456789abcdef".repeat(4);
        for name in [
            id.clone(),
            format!("docker-{id}.scope"),
            format!("cri-containerd-{id}.scope"),
        ] {
            assert_eq!(container_id(&name), Some("0123456789ab"), "{name}");
        }
        for name in [
            format!("libpod-conmon-{id}.scope"),
            "session-1.scope".to_owned(),
        ] {
            assert_eq!(container_id(&name), None, "{name}");
        }
    }
}
