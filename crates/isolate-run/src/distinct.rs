//! Nothing of the host is named twice: not by two services, not by two best-effort groups, and not
//! by one of each.

use experiment_spec::{Source, SpecError};
use host::cgroup::plain_path;

/// The keys that name something of the host, and what they name.
const KEYS: [(&str, &str); 4] = [
    ("unit", "unit"),
    ("cgroup", "control group"),
    ("container", "container"),
    ("pid", "process"),
];

/// What a table of the configuration names.
pub(crate) struct Named {
    /// The key: `service.cgroup`.
    key: String,
    what: &'static str,
    value: String,
}

impl Named {
    /// `by` are the table's values of `unit`, `cgroup`, `container` and `pid`, in this order.
    /// `None` where it has none of these.
    pub(crate) fn of(at: &str, by: &[Option<String>]) -> Option<Self> {
        let mut given = KEYS.into_iter().zip(by);
        given.find_map(|((key, what), value)| {
            let value = value.as_deref()?;
            Some(Self {
                key: format!("{at}.{key}"),
                what,
                value: match key {
                    "cgroup" => plain_path(value),
                    _ => value.to_owned(),
                },
            })
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        // A container's id may be cut short.
        let is_start = |a: &str, b: &str| a == b || (self.what == "container" && a.starts_with(b));
        self.what == other.what
            && !self.value.is_empty()
            && (is_start(&self.value, &other.value) || is_start(&other.value, &self.value))
    }
}

/// The first that is named again.
///
/// # Errors
///
/// It, with both keys.
pub(crate) fn check(source: &Source, all: &[Named]) -> Result<(), SpecError> {
    for (index, named) in all.iter().enumerate() {
        let mut before = all[..index].iter();
        if let Some(other) = before.find(|other| named.is_same(other)) {
            let Named { key, what, .. } = other;
            let why = format!(
                "{key} already names this {what}: one of the two has to name another {what}, or go"
            );
            return Err(source.error(&named.key, why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(at: &str, key: &str, value: &str) -> Named {
        let by = KEYS.map(|(known, _)| (known == key).then(|| value.to_owned()));
        Named::of(at, &by).unwrap()
    }

    #[test]
    fn what_is_named_twice_is_found_however_it_is_written() {
        let id = "0123456789abcdef";
        for (key, a, b, is_same) in [
            ("cgroup", "brk_be", "/brk_be/", true),
            ("cgroup", "a/b", "a//b/.", true),
            ("cgroup", "a/b", "a", false),
            ("cgroup", "", "", false),
            ("unit", "web.service", "web.service", true),
            ("unit", "web.service", "web.slice", false),
            ("container", id, &id[..12], true),
            ("container", &id[..12], id, true),
            ("container", &id[..12], &id[2..], false),
            ("pid", "pid 7", "pid 7", true),
            ("pid", "pid 7", "pid 77", false),
        ] {
            let (one, other) = (named("service", key, a), named("best_effort[0]", key, b));
            assert_eq!(one.is_same(&other), is_same, "{key} {a} {b}");
        }
        let unit = named("service", "unit", "a");
        assert!(!unit.is_same(&named("best_effort[0]", "cgroup", "a")));
        assert!(
            Named::of(
                "best_effort[0]",
                &[None, None, None, None, Some("sh".to_owned())]
            )
            .is_none()
        );
    }
}
