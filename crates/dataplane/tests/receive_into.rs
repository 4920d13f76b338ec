//! Bytes that arrive in memory of the application, mixed with those that arrive in the backend's.
//! And the other way: large sends, which the kernel takes at once, mixed with small ones.

#![expect(clippy::unwrap_used, reason = "test code: a panic is a failure")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use dataplane::file::FileBuffer;
use dataplane::shard::{Command, Plane};
use dataplane::uring::{Uring, UringConfig, listen};
use dataplane::{Application, Calls, Context, Event, FlowId, Shard, ShardConfig};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// The byte at a position of every stream.
fn byte_at(position: usize) -> u8 {
    u8::try_from(position * 31 % 251).unwrap()
}

fn assert_follows(position: usize, data: &[u8]) {
    for (at, &byte) in data.iter().enumerate() {
        assert_eq!(byte, byte_at(position + at), "at {}", position + at);
    }
}

/// Bytes of an answer, behind the length of what was received.
const ANSWER_BYTES: usize = 8 << 20;

/// Checks one stream at a time, and answers its end.
struct Reader {
    random: StdRng,
    position: usize,
    lent_at: usize,
    lent_bytes: usize,
    by_lent: usize,
    by_recv: usize,
    sent: usize,
}

impl Reader {
    /// Sends the rest of the answer, as far as there is room.
    fn answer<C: Calls>(&mut self, flow: FlowId, calls: &mut C) {
        while self.sent < ANSWER_BYTES {
            let most = [10, 3000, 300_000][self.random.random_range(0..3)];
            let len = self
                .random
                .random_range(1..most)
                .min(ANSWER_BYTES - self.sent);
            let piece: Vec<u8> = (self.sent..self.sent + len).map(byte_at).collect();
            let taken = calls.send(flow, &piece);
            self.sent += taken;
            if taken < len {
                return;
            }
        }
        calls.close(flow);
    }

    /// Lends memory more often than not.
    fn lend<C: Calls>(&mut self, flow: FlowId, calls: &mut C) {
        if self.random.random_bool(0.3) {
            return;
        }
        self.lent_at = self.random.random_range(0..5000);
        self.lent_bytes = self.random.random_range(1..200_000);
        let buffer = FileBuffer::zeroed(self.lent_at + self.lent_bytes);
        calls
            .receive_into(flow, buffer, self.lent_at, self.lent_bytes)
            .unwrap();
        let again = calls.receive_into(flow, FileBuffer::zeroed(1), 0, 1);
        assert!(again.is_err(), "memory was lent twice");
    }
}

impl Application for Reader {
    type FlowState = ();

    fn on_event<C: Calls>(&mut self, event: Event<'_>, context: &mut Context<'_, C>) {
        let calls = &mut *context.calls;
        match event {
            Event::Knock { flow, .. } => {
                self.position = 0;
                self.lent_bytes = 0;
                calls.accept(flow);
            }
            Event::Recv { flow, data } => {
                assert_eq!(self.lent_bytes, 0, "bytes went past lent memory");
                assert_follows(self.position, data);
                self.position += data.len();
                self.by_recv += data.len();
                calls.recv_done(flow, data.len());
                self.lend(flow, calls);
            }
            Event::Filled {
                flow,
                buffer,
                len_bytes,
            } => {
                assert!((1..=self.lent_bytes).contains(&len_bytes));
                let bytes = buffer.bytes();
                assert_follows(self.position, &bytes[self.lent_at..][..len_bytes]);
                let around = bytes[..self.lent_at]
                    .iter()
                    .chain(&bytes[self.lent_at + len_bytes..]);
                assert!(around.copied().all(|byte| byte == 0));
                self.position += len_bytes;
                self.by_lent += len_bytes;
                self.lent_bytes = 0;
                self.lend(flow, calls);
            }
            Event::PeerFinished { flow } => {
                calls.send(flow, &self.position.to_be_bytes());
                self.sent = 0;
                self.answer(flow, calls);
            }
            Event::Sent { flow } => self.answer(flow, calls),
            Event::Dead { .. }
            | Event::Connected { .. }
            | Event::Timer { .. }
            | Event::File { .. } => {}
        }
    }

    fn detach(&mut self, _: FlowId) {}

    fn attach<C: Calls>(&mut self, _: FlowId, (): (), _: &mut Context<'_, C>) {}
}

#[test]
fn every_byte_comes_and_goes_in_order() {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = probe.local_addr().unwrap();
    drop(probe);
    let listener = listen(address).unwrap();
    let plane: Arc<Plane<Uring, Reader>> = Arc::new(Plane::new(1, 1).unwrap());
    let theirs = Arc::clone(&plane);
    let shard = std::thread::spawn(move || {
        let backend = Uring::new(UringConfig {
            listeners: vec![listener],
            ..UringConfig::default()
        });
        let Ok(backend) = backend else {
            println!("SKIP: io_uring cannot be used");
            return None;
        };
        let reader = Reader {
            random: StdRng::seed_from_u64(1),
            position: 0,
            lent_at: 0,
            lent_bytes: 0,
            by_lent: 0,
            by_recv: 0,
            sent: 0,
        };
        let shard = Shard::new(ShardConfig::default(), backend, reader, theirs).unwrap();
        Some(shard.run().unwrap())
    });
    let mut random = StdRng::seed_from_u64(2);
    let bytes: Vec<u8> = (0..8 << 20).map(byte_at).collect();
    for stream in 0..6 {
        if shard.is_finished() {
            break;
        }
        let mut socket = TcpStream::connect(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut at = 0;
        while at < bytes.len() {
            // Small pieces with pauses, large ones in one go.
            let most = if stream % 2 == 0 { 3000 } else { 1 << 20 };
            let end = bytes.len().min(at + random.random_range(1..most));
            socket.write_all(&bytes[at..end]).unwrap();
            at = end;
            if random.random_bool(0.02) {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        if stream == 5 {
            // It goes while memory is lent.
            break;
        }
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = [0; 8];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(usize::from_be_bytes(answer), bytes.len());
        let mut at = 0;
        while at < ANSWER_BYTES {
            let mut piece = vec![0; random.random_range(1..100_000)];
            let len = socket.read(&mut piece).unwrap();
            assert!(len > 0, "the answer ends after {at} bytes");
            assert_follows(at, &piece[..len]);
            at += len;
            if random.random_bool(0.02) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(socket.read(&mut answer).unwrap(), 0);
    }
    let _ = plane.mailboxes[0].send(Command::Drain(Duration::ZERO));
    if let Some(reader) = shard.join().unwrap() {
        // Both ways were taken.
        assert!(reader.by_lent > 1 << 20 && reader.by_recv > 1 << 17);
    }
}
