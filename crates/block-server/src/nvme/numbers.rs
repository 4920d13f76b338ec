//! The numbers of namespaces. While the server runs, a number never means another disk: a host that
//! is connected would go on writing under the number that it knows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::{BLOCK_BYTES, NAMESPACES};
use crate::config::{Backing, BlockConfig, ConfigError};
use crate::export::{Export, Exports};

/// The namespaces of one configuration, by their numbers.
pub type Namespaces = BTreeMap<u32, Arc<Export>>;

/// What makes a disk the same one for hosts, also after a restart.
struct Disk<'a> {
    export: &'a str,
    device: &'a str,
    backing: &'a Backing,
    offset_bytes: u64,
}

impl Disk<'_> {
    /// Version 8 of RFC 9562.
    fn uuid(&self, subsystem: &str) -> [u8; 16] {
        let (kind, device) = match self.backing {
            Backing::Path { path, .. } => (1, path.as_os_str().as_bytes()),
            Backing::Memory { .. } | Backing::Simulated { .. } => (2, self.device.as_bytes()),
        };
        let digest = Sha256::new()
            .chain_update(subsystem.as_bytes())
            .chain_update([0])
            .chain_update(self.export.as_bytes())
            .chain_update([0, kind])
            .chain_update(device)
            .chain_update([0])
            .chain_update(self.offset_bytes.to_le_bytes())
            .finalize();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&digest[..16]);
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// The UUID of a namespace: from the names of subsystem and export, the device, and where on the
/// device the export begins. Another disk has another UUID, also after a restart: a host that
/// connects again compares the UUID.
pub(super) fn uuid(subsystem: &str, export: &Export) -> [u8; 16] {
    let disk = Disk {
        export: &export.name,
        device: &export.device.name,
        backing: &export.device.backing,
        offset_bytes: export.offset_bytes,
    };
    disk.uuid(subsystem)
}

/// Which namespace has which number, and had it before.
#[derive(Default)]
pub(super) struct Numbers {
    /// The UUID of each number that was given since the start.
    given: BTreeMap<u32, [u8; 16]>,
    now: Arc<Namespaces>,
}

impl Numbers {
    /// The namespaces now.
    pub(super) fn now(&self) -> Arc<Namespaces> {
        Arc::clone(&self.now)
    }

    fn may_mean(&self, number: u32, uuid: &[u8; 16]) -> bool {
        self.given.get(&number).is_none_or(|given| given == uuid)
    }

    /// Whether each tenant of a configuration may have the number that the file gives the tenant.
    ///
    /// # Errors
    /// The number has meant another disk: the line of the file is named.
    pub(super) fn check(&self, subsystem: &str, config: &BlockConfig) -> Result<(), ConfigError> {
        for tenant in &config.tenants {
            let mut devices = config.devices.iter();
            let Some((number, place)) = &tenant.namespace else {
                continue;
            };
            let Some(device) = devices.find(|device| device.name == tenant.device) else {
                continue;
            };
            let disk = Disk {
                export: &tenant.export,
                device: &device.name,
                backing: &device.backing,
                offset_bytes: tenant.offset_bytes,
            };
            if !self.may_mean(*number, &disk.uuid(subsystem)) {
                return Err(place.error(format!(
                    "{number} has meant another disk since the server started, and a connected \
                     host could write to {:?} by mistake: choose another number, or run `nvme \
                     disconnect` on the hosts and restart the server",
                    tenant.export
                )));
            }
        }
        Ok(())
    }

    /// These are the exports from now on. An export has the number that the file gives it. Without
    /// one it keeps its number while it is the same disk, and a new disk gets the first number that
    /// is free. An export without a number, or with one of another disk, is no namespace.
    pub(super) fn set(&mut self, subsystem: &str, exports: &Exports) {
        let before = self.now.iter();
        let before: HashMap<_, u32> = before
            .map(|(&number, export)| (export.disk_key(), number))
            .collect();
        let pinned: HashSet<u32> = exports
            .iter()
            .filter_map(|export| export.namespace)
            .collect();
        let mut numbers = 1..=NAMESPACES;
        let mut now = Namespaces::new();
        for export in exports {
            let known = before.get(&export.disk_key()).copied();
            if known.is_none() && export.info.size_bytes < BLOCK_BYTES {
                continue;
            }
            let uuid = uuid(subsystem, export);
            let number = match export.namespace {
                Some(number) => Some(number).filter(|&number| self.may_mean(number, &uuid)),
                None => known.or_else(|| {
                    numbers
                        .find(|number| !pinned.contains(number) && !self.given.contains_key(number))
                }),
            };
            if let Some(number) = number {
                self.given.insert(number, uuid);
                now.insert(number, Arc::clone(export));
            }
        }
        self.now = Arc::new(now);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::export;

    const NQN: &str = "nqn.2026-11.com.example:blocks";

    /// A tenant: its name, where its range begins in KiB, and its number in the file.
    type Tenant = (&'static str, u32, Option<u32>);

    fn config(tenants: &[Tenant]) -> BlockConfig {
        let tables = tenants.iter().map(|(name, offset, number)| {
            let number = number.map(|number| format!("namespace = {number}"));
            format!(
                "[[tenant]]\nexport = \"{name}\"\n{}\ndevice = \"ram\"\n\
                 range = {{ offset = \"{offset}KiB\", length = \"1KiB\" }}\n",
                number.unwrap_or_default()
            )
        });
        let tables: String = tables.collect();
        let text = format!("[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n{tables}");
        BlockConfig::parse(Path::new("b.toml"), &text).unwrap()
    }

    #[derive(Default)]
    struct Server {
        numbers: Numbers,
        exports: Exports,
    }

    impl Server {
        /// What a start and a reload do; gives the namespaces.
        fn load(&mut self, tenants: &[Tenant]) -> Result<Vec<(u32, String)>, String> {
            let checked = self.numbers.check(NQN, &config(tenants));
            checked.map_err(|error| error.to_string())?;
            Ok(self.load_unchecked(tenants))
        }

        fn load_unchecked(&mut self, tenants: &[Tenant]) -> Vec<(u32, String)> {
            self.exports = export::open(&config(tenants), &self.exports, 1).unwrap();
            self.set()
        }

        fn set(&mut self) -> Vec<(u32, String)> {
            self.numbers.set(NQN, &self.exports);
            let now = self.numbers.now();
            let now = now.iter();
            now.map(|(&number, export)| (number, export.name.clone()))
                .collect()
        }
    }

    fn named(expected: &[(u32, &str)]) -> Result<Vec<(u32, String)>, String> {
        let expected = expected.iter();
        Ok(expected.map(|&(n, name)| (n, name.to_owned())).collect())
    }

    #[test]
    fn a_pinned_number_does_not_depend_on_the_order() {
        let tenants = [
            ("a", 0, None),
            ("b", 1, Some(1)),
            ("c", 2, None),
            ("d", 3, Some(3)),
        ];
        let started = Server::default().load(&tenants);
        assert_eq!(started, named(&[(1, "b"), (2, "a"), (3, "d"), (4, "c")]));
        let mut backwards = tenants;
        backwards.reverse();
        let started = Server::default().load(&backwards);
        assert_eq!(started, named(&[(1, "b"), (2, "c"), (3, "d"), (4, "a")]));
        let last = Server::default().load(&[("a", 0, Some(NAMESPACES)), ("b", 1, None)]);
        assert_eq!(last, named(&[(1, "b"), (NAMESPACES, "a")]));
    }

    #[test]
    fn a_reload_moves_a_disk_to_another_number_and_back() {
        let mut server = Server::default();
        let mut load = |a, more: &[Tenant]| server.load(&[&[("a", 0, a)], more].concat());
        let b = ("b", 1, None);
        assert_eq!(load(Some(1), &[b]), named(&[(1, "a"), (2, "b")]));
        assert_eq!(load(Some(5), &[b]), named(&[(2, "b"), (5, "a")]));
        // Without the key the number stays. A new tenant gets none that was another disk's, and
        // none that is pinned.
        let more = [b, ("c", 2, None), ("d", 3, Some(3))];
        let now = named(&[(2, "b"), (3, "d"), (4, "c"), (5, "a")]);
        assert_eq!(load(None, &more), now);
        assert_eq!(load(Some(1), &[b]), named(&[(1, "a"), (2, "b")]));
        assert_eq!(
            load(Some(1), &more[..2]),
            named(&[(1, "a"), (2, "b"), (6, "c")])
        );
    }

    #[test]
    fn a_number_never_means_another_disk_before_a_restart() {
        let start = [("a", 0, Some(1)), ("b", 1, Some(2)), ("c", 2, None)];
        let now = named(&[(1, "a"), (2, "b"), (3, "c")]);
        for (tenants, line, number) in [
            // They swap their numbers; a tenant is moved, or renamed; the number is that of a
            // tenant without a number in the file, or of a tenant that is gone.
            (&[("a", 0, Some(2)), ("b", 1, Some(1))][..], 6, 2),
            (&[("a", 9, Some(1)), ("b", 1, Some(2))], 6, 1),
            (&[("b", 1, Some(2)), ("z", 0, Some(1))], 11, 1),
            (&[("a", 0, Some(3)), ("b", 1, Some(2))], 6, 3),
            (&[("d", 3, Some(1))], 6, 1),
        ] {
            let mut server = Server::default();
            assert_eq!(server.load(&start), now);
            let error = server.load(tenants).unwrap_err();
            let expected =
                format!("b.toml:{line}: tenant.namespace: {number} has meant another disk");
            assert!(error.starts_with(&expected), "{error}");
            assert_eq!(Ok(server.set()), now);
            // Another number is one for a new disk.
            let (name, offset, _) = tenants[0];
            let other = server.load(&[(name, offset, Some(7))]);
            assert_eq!(other, named(&[(7, name)]));
            // A tenant that was not checked gets no number rather than that of another disk.
            let unchecked = server.load_unchecked(tenants);
            assert!(
                unchecked.iter().all(|(given, _)| *given != number),
                "{unchecked:?}"
            );
        }
    }
}
