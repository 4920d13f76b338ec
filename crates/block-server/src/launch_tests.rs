//! Tests of what can go wrong at the start.

use std::path::Path;

use super::*;
use crate::device::Storage;

/// The default is in no line of the file.
#[test]
fn an_address_that_cannot_be_had_is_named_with_its_place() {
    let tables = "[[device]]\nname = \"ram\"\nmemory = \"1MiB\"\n\
                  [[tenant]]\nexport = \"a\"\ndevice = \"ram\"\n";
    let said = |listen: &str| {
        let text = format!("{listen}{tables}");
        let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
        let in_use = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let error = launch::LaunchError::Metrics(config.listen[0], in_use);
        at_address(&config, Some(config.listen[0]), error).to_string()
    };
    for (listen, expected) in [
        ("", "listen (the default): "),
        ("\nlisten = [\"127.0.0.1:10809\"]\n", "b.toml:2: listen: "),
    ] {
        let error = said(listen);
        assert!(
            error.starts_with(expected) && error.contains("`ss -ltnp`"),
            "{error}"
        );
    }
}

#[test]
fn a_device_that_may_have_lost_writes_is_named_once() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    let tenant =
        |name: &str, rest: &str| format!("[[tenant]]\nexport = \"{name}\"\ndevice = \"d\"\n{rest}");
    let text = format!(
        "[[device]]\nname = \"d\"\npath = {disk:?}\ncreate = \"1MiB\"\n{}{}",
        tenant("a", ""),
        tenant("b", "read_only = true\n")
    );
    let config = BlockConfig::parse(Path::new("b.toml"), &text).unwrap();
    let exports = export::open(&config, &Vec::new(), 1).unwrap();
    let mut said = Vec::new();
    assert!(lost_writes(&exports, &mut said).is_empty());
    let Storage::File(file) = &exports[0].device.storage else {
        panic!("no file");
    };
    file.lose_writes();
    let texts = lost_writes(&exports, &mut said);
    assert_eq!(texts, [format!("d: {LOST_WRITES}")]);
    assert!(lost_writes(&exports, &mut said).is_empty());
}
