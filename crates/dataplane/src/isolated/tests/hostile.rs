//! Each side with a hostile one at the other end: each fault is named, and none does harm.

use proptest::prelude::*;

use super::super::message::{Command, Report};
use super::super::ring::{Reader, Record, Writer};
use super::*;

/// A hostile application: records of its own choice against the stack's side.
struct Hostile {
    writer: Writer,
    stack: StackSide<Fake>,
    _reader: Reader,
}

impl Hostile {
    fn new() -> Hostile {
        let rings = Rings::new(SMALL_RING).unwrap();
        let ends = rings.try_clone().unwrap().ends(Side::Application).unwrap();
        let mut stack = StackSide::new(fake(), rings, LIMITS).unwrap();
        stack
            .backend_mut()
            .events
            .push_back(Happens::Knock(flow(0)));
        let received = Happens::Recv(flow(0), vec![1; 100]);
        stack.backend_mut().events.push_back(received);
        stack.poll(64).unwrap();
        stack.deliver(&mut |_, _| ());
        Hostile {
            writer: ends.writer,
            stack,
            _reader: ends.reader,
        }
    }

    fn tell(&mut self, record: Record, payload: &[u8]) -> Result<(), Violation> {
        assert!(self.writer.write(record, payload).unwrap());
        self.writer.publish();
        match self.stack.poll(64) {
            Ok(_) => Ok(()),
            Err(Error::Rings {
                side: Side::Application,
                violation,
            }) => Err(violation),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn an_application_that_does_what_it_may_not_is_named() {
    let data = [0; 30_000];
    let done = |length_bytes| Command::RecvDone { length_bytes }.record(flow(0));
    let mut other = Hostile::new();
    assert_eq!(other.tell(done(60), &[]), Ok(()));
    assert_eq!(other.tell(done(41), &[]), Err(Violation::Credit));
    assert_eq!(
        Hostile::new().tell(done(u64::MAX), &[]),
        Err(Violation::Credit)
    );

    let send = Command::Send.record(flow(0));
    let mut other = Hostile::new();
    for _ in 0..3 {
        assert_eq!(other.tell(send, &data), Ok(()));
    }
    assert_eq!(other.tell(send, &data), Err(Violation::Credit));
    assert_eq!(Hostile::new().tell(send, &[]), Err(Violation::Content));
    let mut other = Hostile::new();
    assert_eq!(other.tell(Command::Close.record(flow(0)), &[]), Ok(()));
    assert_eq!(other.tell(send, b"more"), Err(Violation::Content));

    let unknown = Record {
        kind: 200,
        flow: flow(0),
        number: 0,
    };
    assert_eq!(Hostile::new().tell(unknown, &[]), Err(Violation::Kind));
    for command in [Command::Close, Command::Reject, Command::Ask] {
        let far = command.record(flow(8));
        assert_eq!(Hostile::new().tell(far, &[]), Err(Violation::Flow));
        // A flow that is gone, or never was, is no fault.
        assert_eq!(Hostile::new().tell(command.record(flow(7)), &[]), Ok(()));
    }
    let error = broken(Side::Application)(Violation::Credit).to_string();
    assert_eq!(
        error,
        "the process of the application broke the rules of the shared rings: a record has more \
         bytes than the credit of its flow"
    );
}

#[test]
fn an_application_that_asks_and_never_reads_is_named() {
    let mut other = Hostile::new();
    let ask = Command::Ask.record(flow(0));
    for round in 0.. {
        assert!(round < 3_000_000, "the memory has no bound");
        match other.tell(ask, &[]) {
            Ok(()) => {}
            Err(violation) => {
                assert_eq!(violation, Violation::Unread);
                break;
            }
        }
    }
}

/// A hostile stack: records of its own choice against the application's side.
fn tell_application(records: &[(Record, &[u8])]) -> Result<usize, Violation> {
    let rings = Rings::new(SMALL_RING).unwrap();
    let mut ends = rings.try_clone().unwrap().ends(Side::Stack).unwrap();
    let mut application = ApplicationSide::new(rings, LIMITS).unwrap();
    for (record, payload) in records {
        assert!(ends.writer.write(*record, payload).unwrap());
    }
    ends.writer.publish();
    let mut count = 0;
    let polled = application.poll(64);
    application.deliver(&mut |event, calls| {
        count += 1;
        if let Event::Recv { flow, .. } = event {
            calls.send(flow, b"answer");
        }
    });
    match polled.and_then(|_| application.flush()) {
        Ok(()) => Ok(count),
        Err(Error::Rings {
            side: Side::Stack,
            violation,
        }) => Err(violation),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_stack_that_does_what_it_may_not_is_named() {
    let knock = Report::Knock {
        listener: 0,
        peer: None,
    };
    let (knock, far) = (knock.record(flow(0)), knock.record(flow(8)));
    let recv = |freed| Report::Recv { freed }.record(flow(0));
    let sent = |freed| Report::Sent { freed }.record(flow(0));
    let none: &[u8] = &[];
    let tell = tell_application;
    assert_eq!(
        tell(&[(knock, none), (recv(0), b"x"), (recv(6), b"x")]),
        Ok(3)
    );
    assert_eq!(tell(&[(knock, none), (knock, none)]), Err(Violation::Flow));
    assert_eq!(tell(&[(far, none)]), Err(Violation::Flow));
    assert_eq!(
        tell(&[(knock, none), (recv(1), b"x")]),
        Err(Violation::Credit)
    );
    assert_eq!(
        tell(&[(knock, none), (recv(0), b"x"), (sent(7), none)]),
        Err(Violation::Credit)
    );
    assert_eq!(
        tell(&[
            (knock, none),
            (recv(0), b"x"),
            (recv(6), b"x"),
            (sent(5), none)
        ]),
        Err(Violation::Credit)
    );
    // Events of flows that there are not are no fault: the application may have rejected them.
    assert_eq!(tell(&[(recv(9), b"x"), (sent(9), none)]), Ok(0));
    let unknown = Record { kind: 0, ..knock };
    assert_eq!(tell(&[(unknown, none)]), Err(Violation::Kind));
}

/// Any words at places near those that matter, and anywhere.
fn garbage() -> impl Strategy<Value = Vec<(usize, u64)>> {
    let words = (SMALL_RING * 2 + 4096) / 8;
    let place = prop_oneof![
        (0..2_usize, 0..3_usize).prop_map(|(ring, line)| ring * 256 + line * 16),
        (0..2_usize, 0..64_usize).prop_map(|(ring, at)| 512 + ring * SMALL_RING / 8 + at),
        0..words,
    ];
    let word = prop_oneof![
        0..64_u64,
        (0..10_u64, 0..40_000_u64).prop_map(|(kind, length)| length << 32 | kind),
        0..20_000_u64,
        any::<u64>(),
    ];
    proptest::collection::vec((place, word), 1..40)
}

proptest! {
    #[test]
    fn no_memory_harms_either_side(rounds in proptest::collection::vec(garbage(), 1..8)) {
        // What a compromised process can reach: the file of the rings.
        let rings = Rings::new(SMALL_RING).unwrap();
        let memory = Memory::map(&rings.memory, SMALL_RING).unwrap();
        let mut application = ApplicationSide::new(rings.try_clone().unwrap(), LIMITS).unwrap();
        let mut stack = StackSide::new(fake(), rings, LIMITS).unwrap();
        for round in rounds {
            for (place, word) in round {
                memory.words()[place].store(word, std::sync::atomic::Ordering::Relaxed);
            }
            stack.backend_mut().events.extend([
                Happens::Knock(flow(1)),
                Happens::Recv(flow(1), vec![3; 5000]),
                Happens::Sent(flow(1)),
                Happens::Dead(flow(1)),
            ]);
            let obeyed = stack.poll(64);
            stack.deliver(&mut |_, _| ());
            let taken = application.poll(64);
            application.deliver(&mut |event, calls| {
                if let Event::Recv { flow, data } = event {
                    calls.send(flow, data);
                    calls.recv_done(flow, data.len());
                    calls.send_space_bytes(flow);
                }
            });
            let flushed = application.flush();
            for error in [obeyed.err(), taken.err(), flushed.err()].into_iter().flatten() {
                prop_assert!(matches!(error, Error::Rings { .. }), "{}", error);
            }
            prop_assert!(application.flows() <= LIMITS.flows_max);
        }
    }
}
