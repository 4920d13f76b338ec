//! Tests of the files behind devices.

use super::*;

fn backing(path: &Path, create_bytes: Option<u64>) -> Backing {
    Backing::Path {
        path: path.to_path_buf(),
        create_bytes,
        is_preallocated: false,
        is_direct: true,
    }
}

#[test]
fn a_file_is_made_once_and_locked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let backing = backing(&path, Some(1 << 20));
    let device = Device::open("d", &backing, qos::SharedDevice::new(None), true).unwrap();
    assert_eq!(device.size_bytes, 1 << 20);
    let hole = Extent {
        len_bytes: 1 << 20,
        state: STATE_HOLE | STATE_ZERO,
    };
    assert_eq!(device.extents(0, 1 << 20, 10), [hole]);
    let Err(refused) = Device::open("d", &backing, qos::SharedDevice::new(None), true) else {
        panic!("opened twice");
    };
    assert!(
        refused
            .to_string()
            .contains("removed tenant of this server")
    );
    drop(device);
    std::fs::write(&path, [7; 8192]).unwrap();
    let device = Device::open("d", &backing, qos::SharedDevice::new(None), false).unwrap();
    assert_eq!(device.size_bytes, 8192);
    assert_eq!(device.extents(0, 8192, 10)[0].state, 0);
}

#[test]
fn a_new_server_waits_for_writes_of_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let backing = backing(&path, Some(1 << 20));
    for is_direct in [true, false] {
        let device = Device::open("d", &backing, qos::SharedDevice::new(None), true).unwrap();
        let Storage::File(file) = &device.storage else {
            panic!("no file");
        };
        // A write under way keeps its descriptor, whatever becomes of its process.
        let under_way = match is_direct {
            true => Arc::clone(file.direct().unwrap()),
            false => Arc::clone(file.buffered()),
        };
        drop(device);
        let ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&ended);
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            ends.store(true, Ordering::SeqCst);
            drop(under_way);
        });
        // One that only reads must not see old data either.
        let device = Device::open("d", &backing, qos::SharedDevice::new(None), is_direct).unwrap();
        assert!(ended.load(Ordering::SeqCst), "direct: {is_direct}");
        writer.join().unwrap();
        drop(device);
    }
}

#[test]
fn a_file_that_is_gone_replaced_or_shorter_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    let device = Device::open(
        "d",
        &backing(&path, Some(1 << 20)),
        qos::SharedDevice::new(None),
        true,
    )
    .unwrap();
    assert_eq!(device.trouble(), None);
    let said = || device.trouble().unwrap_or_default();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    assert!(
        said().contains("has 4,096 bytes, and had 1,048,576"),
        "{}",
        said()
    );
    std::fs::remove_file(&path).unwrap();
    assert!(said().contains("was deleted"), "{}", said());
    std::fs::write(&path, "").unwrap();
    assert!(said().contains("was replaced"), "{}", said());
}

#[test]
fn what_is_no_device_is_refused() {
    for (path, expected) in [
        ("/dev/null", "neither a block device nor a regular file"),
        ("/no/such", "No such file"),
        ("/tmp", "neither"),
    ] {
        let opened = Device::open(
            "d",
            &backing(Path::new(path), None),
            qos::SharedDevice::new(None),
            false,
        );
        let Err(error) = opened else {
            panic!("{path} was opened");
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
}
