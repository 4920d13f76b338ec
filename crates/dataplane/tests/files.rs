//! Operations on files, on the ring of the network.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]
#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dataplane::file::{FileAction, FileBuffer, FileOperation};
use dataplane::uring::{Uring, UringConfig};
use dataplane::{Backend as _, Calls as _, Event};

fn backend() -> Option<Uring> {
    backend_with(UringConfig::default())
}

fn backend_with(config: UringConfig) -> Option<Uring> {
    match Uring::new(config) {
        Ok(backend) => Some(backend),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

fn scratch(len_bytes: u64) -> Arc<OwnedFd> {
    let path = std::env::temp_dir().join(format!(
        "slackline-files-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true);
    let file = file.open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(len_bytes).unwrap();
    Arc::new(file.into())
}

/// Ends of operations, in any order: token, result, buffer.
type Ends = Vec<(u64, Result<usize, i32>, FileBuffer)>;

fn run(backend: &mut Uring, operations: Vec<FileOperation>) -> Ends {
    let wanted = operations.len();
    for operation in operations {
        backend.calls().file(operation).unwrap();
    }
    let mut ends = Vec::new();
    for _ in 0..1000 {
        backend.flush().unwrap();
        backend.poll(64).unwrap();
        backend.deliver(&mut |event, _| {
            if let Event::File {
                token,
                result,
                buffer,
                ..
            } = event
            {
                ends.push((token, result, buffer));
            }
        });
        if ends.len() == wanted {
            return ends;
        }
        backend.sleep(Some(Duration::from_millis(20))).unwrap();
    }
    panic!("{} of {wanted} operations ended", ends.len());
}

fn operation(
    file: &Arc<OwnedFd>,
    token: u64,
    action: FileAction,
    (offset, len_bytes): (u64, u64),
    buffer: FileBuffer,
) -> FileOperation {
    FileOperation {
        token,
        file: Arc::clone(file),
        action,
        offset,
        len_bytes,
        buffer,
        buffer_at: 0,
    }
}

#[test]
fn what_is_written_is_read_and_a_hole_is_zero() {
    let Some(mut backend) = backend() else { return };
    let file = scratch(1 << 20);
    let writes = (0..100_u8)
        .map(|n| {
            let mut buffer = FileBuffer::zeroed(4096);
            buffer.bytes_mut().fill(n + 1);
            let action = FileAction::Write {
                is_durable: n % 10 == 0,
            };
            let range = (u64::from(n) * 8192, 4096);
            operation(&file, n.into(), action, range, buffer)
        })
        .collect();
    for (token, result, _) in run(&mut backend, writes) {
        assert_eq!(result, Ok(4096), "{token}");
    }
    let sync = operation(&file, 7, FileAction::Sync, (0, 0), FileBuffer::default());
    assert_eq!(run(&mut backend, vec![sync])[0].1, Ok(0));
    let reads = (0..100_u64)
        .map(|n| {
            let buffer = FileBuffer::zeroed(8192);
            operation(&file, n, FileAction::Read, (n * 8192, 8192), buffer)
        })
        .collect();
    for (token, result, buffer) in run(&mut backend, reads) {
        assert_eq!(result, Ok(8192));
        let written = u8::try_from(token).unwrap() + 1;
        assert!(buffer.bytes()[..4096].iter().all(|&byte| byte == written));
        assert!(buffer.bytes()[4096..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn the_end_of_a_file_and_errors_are_told() {
    let Some(mut backend) = backend() else { return };
    let file = scratch(5000);
    let buffer = FileBuffer::zeroed(8192);
    let short = operation(&file, 1, FileAction::Read, (4096, 8192), buffer);
    assert_eq!(run(&mut backend, vec![short])[0].1, Ok(904));
    let full = Arc::new(OwnedFd::from(
        File::options().write(true).open("/dev/full").unwrap(),
    ));
    let action = FileAction::Write { is_durable: false };
    let buffer = FileBuffer::zeroed(4096);
    let refused = operation(&full, 2, action, (0, 4096), buffer);
    let ends = run(&mut backend, vec![refused]);
    assert_eq!(ends[0].1, Err(libc::ENOSPC));
    assert_eq!(ends[0].2.len_bytes(), 4096);
}

/// More completions than the ring has room for. A shard that spins never sleeps, so polling alone
/// has to bring all of them.
#[test]
fn completions_that_found_no_room_come_by_polling_alone() {
    const OPERATIONS: u64 = 10_000;
    for submission_thread_idle in [None, Some(Duration::from_secs(1))] {
        let config = UringConfig {
            submission_thread_idle,
            ..UringConfig::default()
        };
        let Some(mut backend) = backend_with(config) else {
            return;
        };
        let file = scratch(4096);
        for token in 0..OPERATIONS {
            let buffer = FileBuffer::zeroed(512);
            let read = operation(&file, token, FileAction::Read, (0, 512), buffer);
            backend.calls().file(read).unwrap();
        }
        backend.flush().unwrap();
        // All reads have ended before the first completion is taken.
        std::thread::sleep(Duration::from_millis(500));
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut ends = 0;
        while ends < OPERATIONS {
            assert!(Instant::now() < deadline, "{ends} of {OPERATIONS} ended");
            backend.poll(64).unwrap();
            backend.deliver(&mut |event, _| ends += u64::from(matches!(event, Event::File { .. })));
        }
    }
}

#[test]
fn operations_under_way_outlive_the_backend() {
    let Some(mut backend) = backend() else { return };
    let (reader, _writer) = std::io::pipe().unwrap();
    let pipe = Arc::new(OwnedFd::from(reader));
    let read = operation(
        &pipe,
        1,
        FileAction::Read,
        (u64::MAX, 4096),
        FileBuffer::zeroed(4096),
    );
    backend.calls().file(read).unwrap();
    backend.flush().unwrap();
    drop(backend);
}
