//! What was answered is there after the server was killed; a drain lets requests end.

use std::cmp::Ordering;
use std::time::Duration;

use crate::host::{FLUSH, Host, NQN, Place, READ, WRITE, entry, on_blocks};
use crate::support::{free_port, signal, start_process, start_ready};

const FUA: u32 = 1 << 30;

fn configuration(directory: &std::path::Path, port: u16) -> std::path::PathBuf {
    let path = directory.join("blocks.toml");
    let disk = directory.join("disk");
    let text = format!(
        "listen = []\ndrain_s = 2\n\
         nvme = {{ listen = [\"127.0.0.1:{port}\"], subsystem = \"{NQN}\" }}\n\
         [[device]]\npath = \"{0}\"\ncreate = \"8MiB\"\n\
         [[tenant]]\nexport = \"disk\"\ndevice = \"{0}\"\n",
        disk.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn nothing_answered_is_lost_when_the_server_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = ([127, 0, 0, 1], port).into();
    let config = configuration(directory.path(), port);
    for round in 1..=5_u8 {
        let Some((mut child, _messages)) = start_ready(&config) else {
            return;
        };
        let (_admin, id) = Host::admin(address, NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        // Half of the blocks with FUA, half by a flush at the end; by capsule and by R2T.
        for block in 0..32_u64 {
            let control = if block % 2 == 0 { FUA } else { 0 };
            let place = if block % 4 < 2 {
                Place::Capsule
            } else {
                Place::Asked
            };
            let command = on_blocks(WRITE, 1, block * 8, 8, control);
            assert_eq!(host.write(command, &[round; 4096], place).status, 0);
        }
        assert_eq!(host.execute(entry(FLUSH, 1, &[]), 0).status, 0);
        // One more write is under way.
        host.send(on_blocks(WRITE, 1, 800, 8, 0), 4096);
        signal(&child, "-KILL");
        child.wait().unwrap();
        let bytes = std::fs::read(directory.path().join("disk")).unwrap();
        assert!(bytes[..32 * 4096].iter().all(|&byte| byte == round));
        assert!(bytes[800 * 512..].iter().all(|&byte| byte == 0));
    }
}

/// At random moments of a load of writes, each with FUA. `SLACKLINE_KILLS` says how many.
#[test]
fn nothing_answered_is_lost_at_a_random_moment() {
    const BLOCKS: usize = 1024;
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = ([127, 0, 0, 1], port).into();
    let config = configuration(directory.path(), port);
    let kills: u64 = std::env::var("SLACKLINE_KILLS").map_or(6, |text| text.parse().unwrap());
    let (mut before, mut in_all) = (vec![0; BLOCKS * 4096], 0);
    for kill in 0..kills {
        let Some((mut child, _messages)) = start_ready(&config) else {
            return;
        };
        let (_admin, id) = Host::admin(address, NQN, 0);
        let mut host = Host::io(address, id, 1, 0);
        let version = u8::try_from(kill % 255).unwrap() + 1;
        let after = Duration::from_micros(rand::random_range(0..40_000));
        let answered = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                std::thread::sleep(after);
                child.kill().unwrap();
            });
            let is_written = |&block: &usize| {
                let command = on_blocks(WRITE, 1, block as u64 * 8, 8, FUA);
                let status = host.write_or_end(command, &[version; 4096]);
                status.is_ok_and(|status| status == 0)
            };
            let answered = (0..BLOCKS).take_while(is_written).count();
            killer.join().unwrap();
            answered
        });
        child.wait().unwrap();
        let found = std::fs::read(directory.path().join("disk")).unwrap();
        for (number, (found, before)) in found.chunks(512).zip(before.chunks(512)).enumerate() {
            let is_new = found.iter().all(|&byte| byte == version);
            // One more write was under way: each of its sectors is the old or the new one.
            let is_right = match (number / 8).cmp(&answered) {
                Ordering::Less => is_new,
                Ordering::Equal => is_new || found == before,
                Ordering::Greater => found == before,
            };
            assert!(
                is_right,
                "sector {number}, {answered} blocks answered, kill {kill}"
            );
        }
        before = found[..BLOCKS * 4096].to_vec();
        in_all += answered;
    }
    println!("{kills} kills, {in_all} answered writes found");
}

#[test]
fn a_drain_ends_connections_that_have_nothing_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = ([127, 0, 0, 1], port).into();
    let config = configuration(directory.path(), port);
    let Some((mut child, line, _messages)) = start_process(&config) else {
        return;
    };
    assert!(
        line.contains(&format!("nvme: [127.0.0.1:{port}]")),
        "{line}"
    );
    let (mut admin, id) = Host::admin(address, NQN, 0);
    let mut idle = Host::io(address, id, 1, 0);
    let mut busy = Host::io(address, id, 2, 0);
    let read = on_blocks(READ, 1, 0, 1, 0);
    assert_eq!(idle.execute(read, 512).status, 0);
    // The write that has begun ends with its data.
    busy.send(on_blocks(WRITE, 1, 0, 8, 0), 4096);
    let r2t = busy.next();
    signal(&child, "-TERM");
    assert!(idle.is_closed() && admin.is_closed());
    busy.send_data(&r2t, &[5; 4096], 4096);
    assert_eq!(busy.done().status, 0);
    assert!(busy.is_closed());
    assert!(child.wait().unwrap().success());
    let bytes = std::fs::read(directory.path().join("disk")).unwrap();
    assert_eq!(bytes[..4096], [5; 4096]);
}
