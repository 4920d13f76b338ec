//! Runs commands of one connection: from received bytes to queued answers.

use std::sync::atomic::Ordering;

use dataplane::Calls;

use crate::answer::{ANSWER_MAX_BYTES, Answers, BAD_CHUNK, Line, answer_error};
use crate::connection::{Commit, Connection, Phase, Step, WHOLE_MAX_BYTES};
use crate::counters::count;
use crate::meta_command;
use crate::protocol::{
    self, GET_LINE_MAX_BYTES, LINE_MAX_BYTES, Malformed, Request, StorageCommand, StoreKind, Words,
};
use crate::shared::SharedCache;
use crate::store::{Counted, Expiry, Mode, Stored};

/// Room for `stats`.
const STATS_MAX_BYTES: usize = 64 * 1024;

/// Runs all whole commands in `input`, and gives the bytes that are done.
pub(crate) fn run<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    input: &[u8],
) -> usize {
    let mut done = 0;
    connection.is_blocked = false;
    while done < input.len() && !connection.is_closing {
        let rest = &input[done..];
        let step = match &mut connection.phase {
            Phase::Skip { left_bytes } => {
                let skipped = rest.len().min(*left_bytes);
                *left_bytes -= skipped;
                if *left_bytes == 0 {
                    connection.phase = Phase::Command;
                }
                Step::Done(skipped)
            }
            Phase::Value { .. } => receive_value(shared, connection, answers, rest),
            Phase::Command => command(shared, connection, answers, rest),
        };
        match step {
            Step::Done(bytes) => done += bytes,
            Step::Incomplete => break,
            Step::Blocked => {
                connection.is_blocked = true;
                break;
            }
        }
    }
    done
}

/// Copies what has arrived of a large value, and stores it when it is whole.
fn receive_value<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    input: &[u8],
) -> Step {
    if !answers.has_room(ANSWER_MAX_BYTES) {
        return Step::Blocked;
    }
    let Phase::Value {
        partition,
        reserved,
        filled_bytes,
        len_bytes,
        ..
    } = &mut connection.phase
    else {
        return Step::Incomplete;
    };
    let whole = *len_bytes + 2;
    let taken = input.len().min(whole - *filled_bytes);
    let mut store = shared.lock(*partition);
    let memory = store.reserved_mut(reserved);
    memory[*filled_bytes..*filled_bytes + taken].copy_from_slice(&input[..taken]);
    *filled_bytes += taken;
    if *filled_bytes < whole {
        return Step::Done(taken);
    }
    let phase = std::mem::replace(&mut connection.phase, Phase::Command);
    let Phase::Value {
        reserved, commit, ..
    } = phase
    else {
        return Step::Incomplete;
    };
    if !store.reserved_mut(&reserved).ends_with(b"\r\n") {
        store.abandon(reserved);
        answers.send(BAD_CHUNK);
        return Step::Done(taken);
    }
    if let Some(line) = &commit.meta_line {
        if let Request::Meta(meta) = protocol::parse(line) {
            meta_command::commit(shared, &mut store, reserved, &meta, answers);
        } else {
            store.abandon(reserved);
        }
        return Step::Done(taken);
    }
    let stored = store.commit(reserved, commit.mode, commit.compare, None);
    drop(store);
    answer_stored(answers, stored, commit.compare.is_some(), commit.is_quiet);
    Step::Done(taken)
}

fn command<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    input: &[u8],
) -> Step {
    let Some((line_len, end)) = protocol::line(input) else {
        let is_long = protocol::may_be_long(input);
        let limit = if is_long {
            GET_LINE_MAX_BYTES
        } else {
            LINE_MAX_BYTES
        };
        if input.len() > limit {
            answers.send(b"CLIENT_ERROR line too long\r\n");
            connection.is_closing = true;
        }
        return Step::Incomplete;
    };
    if !answers.has_room(ANSWER_MAX_BYTES) {
        return Step::Blocked;
    }
    let line = &input[..line_len];
    if line_len > LINE_MAX_BYTES && !protocol::may_be_long(line) {
        answers.send(b"CLIENT_ERROR line too long\r\n");
        connection.is_closing = true;
        return Step::Done(end);
    }
    connection.active_at = shared.now();
    let request = protocol::parse(line);
    match request {
        Request::Get {
            keys,
            with_cas,
            touch,
        } => {
            let keys_at = line_len - keys.len();
            let from = connection.resume_at.max(keys_at);
            let resume = get(shared, answers, &line[from..], with_cas, touch);
            match resume {
                Some(at) => {
                    connection.resume_at = from + at;
                    return Step::Blocked;
                }
                None => connection.resume_at = 0,
            }
        }
        Request::Storage(storage) => {
            return store(shared, connection, answers, &storage, &input[end..], end);
        }
        Request::Meta(meta) => {
            return meta_command::run(shared, connection, answers, &meta, line, &input[end..], end);
        }
        Request::Stats(argument) => {
            if !answers.has_room(STATS_MAX_BYTES) {
                return Step::Blocked;
            }
            let text = shared.stats_text(argument);
            answers.send(&text.as_bytes()[..text.len().min(STATS_MAX_BYTES)]);
        }
        Request::Quit => connection.is_closing = true,
        Request::Malformed(malformed, skip) => {
            count(&answers.counters.malformed, 1);
            if line.starts_with(&[0x80]) {
                // The binary protocol, which memcached itself gives up: say so once.
                answers.send(b"CLIENT_ERROR the binary protocol is not served\r\n");
                connection.is_closing = true;
            }
            answers.send_unless(malformed == Malformed::BadDeleteQuiet, malformed.answer());
            if malformed == Malformed::BadLength {
                connection.is_closing = line.starts_with(b"ms");
            }
            if let Some(len_bytes) = skip {
                connection.phase = Phase::Skip {
                    left_bytes: len_bytes + 2,
                };
            }
        }
        other => simple(shared, answers, other),
    }
    Step::Done(end)
}

/// Commands that are a line and an answer.
fn simple<C: Calls>(shared: &SharedCache, answers: &mut Answers<'_, C>, request: Request<'_>) {
    let counters = answers.counters;
    match request {
        Request::Delete { key, is_quiet } => {
            let mut store = shared.lock(shared.partition(key));
            let found = store.peek(key);
            if let Some(item) = found {
                store.delete(item);
            }
            drop(store);
            let (counter, answer) = match found {
                Some(_) => (&counters.delete_hits, &b"DELETED\r\n"[..]),
                None => (&counters.delete_misses, &b"NOT_FOUND\r\n"[..]),
            };
            count(counter, 1);
            answers.send_unless(is_quiet, answer);
        }
        Request::Count {
            key,
            delta,
            is_increment,
            is_quiet,
        } => {
            let mut store = shared.lock(shared.partition(key));
            let counted = store.count(key, delta, is_increment, None, None);
            drop(store);
            counters.count_arithmetic(counted != Counted::NotFound, is_increment);
            let mut line = Line::new();
            let answer = match counted {
                Counted::Number(number) => line.number(number).text(b"\r\n").as_bytes(),
                Counted::NotANumber => {
                    b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
                }
                Counted::NotFound | Counted::Exists => b"NOT_FOUND\r\n",
                Counted::Failed(_) => b"SERVER_ERROR out of memory in incr\r\n",
            };
            answers.send_unless(is_quiet, answer);
        }
        Request::Touch {
            key,
            expiry,
            is_quiet,
        } => {
            let mut store = shared.lock(shared.partition(key));
            let found = store.peek(key);
            if let Some(item) = found {
                store.touch(item, shared.expiry(expiry));
            }
            drop(store);
            count(&counters.cmd_touch, 1);
            let (counter, answer) = match found {
                Some(_) => (&counters.touch_hits, &b"TOUCHED\r\n"[..]),
                None => (&counters.touch_misses, &b"NOT_FOUND\r\n"[..]),
            };
            count(counter, 1);
            answers.send_unless(is_quiet, answer);
        }
        Request::FlushAll { delay, is_quiet } => {
            count(&counters.cmd_flush, 1);
            let at = match shared.expiry(delay) {
                Expiry::At(at) => Some(at),
                Expiry::Never | Expiry::Now => None,
            };
            for partition in 0..shared.partitions() {
                shared.lock(partition).flush(at);
            }
            answers.send_unless(is_quiet, b"OK\r\n");
        }
        Request::Verbosity { level, is_quiet } => {
            if let Some(level) = level {
                shared.verbosity.store(level, Ordering::Relaxed);
            }
            answers.send_unless(is_quiet, b"OK\r\n");
        }
        Request::Version => answers.send(shared.version_line().as_bytes()),
        Request::MetaNoop => answers.send(b"MN\r\n"),
        _ => {}
    }
}

/// Answers keys until there is no room; gives the place of the key with which to go on.
fn get<C: Calls>(
    shared: &SharedCache,
    answers: &mut Answers<'_, C>,
    keys: &[u8],
    with_cas: bool,
    touch: Option<i64>,
) -> Option<usize> {
    let counters = answers.counters;
    let mut words = Words(keys);
    loop {
        let at = keys.len() - words.0.len();
        let Some(key) = words.next() else { break };
        let mut store = shared.lock(shared.partition(key));
        let Some(item) = store.peek(key) else {
            drop(store);
            count(&counters.cmd_get, 1);
            count(&counters.get_misses, 1);
            if touch.is_some() {
                count(&counters.cmd_touch, 1);
                count(&counters.touch_misses, 1);
            }
            continue;
        };
        let value = store.value_and_line_end(item);
        if !answers.has_room(value.len() + ANSWER_MAX_BYTES) {
            return Some(at);
        }
        let mut line = Line::new();
        line.text(b"VALUE ")
            .text(key)
            .text(b" ")
            .number(u64::from(store.flags(item)));
        line.text(b" ").number(value.len() as u64 - 2);
        if with_cas {
            line.text(b" ").number(store.cas(item));
        }
        answers.send(line.text(b"\r\n").as_bytes());
        answers.send(value);
        store.mark_fetched(item);
        if let Some(expiry) = touch {
            store.touch(item, shared.expiry(expiry));
            count(&counters.cmd_touch, 1);
            count(&counters.touch_hits, 1);
        }
        drop(store);
        count(&counters.cmd_get, 1);
        count(&counters.get_hits, 1);
    }
    answers.send(b"END\r\n");
    None
}

fn store<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    storage: &StorageCommand<'_>,
    data: &[u8],
    line_bytes: usize,
) -> Step {
    let block_bytes = storage.len_bytes + 2;
    let is_whole = data.len() >= block_bytes;
    if !is_whole && block_bytes <= WHOLE_MAX_BYTES {
        return Step::Incomplete;
    }
    count(&answers.counters.cmd_set, 1);
    let (mode, compare) = match storage.kind {
        StoreKind::Set => (Mode::Set, None),
        StoreKind::Add => (Mode::Add, None),
        StoreKind::Replace => (Mode::Replace, None),
        StoreKind::Append => (Mode::Append, None),
        StoreKind::Prepend => (Mode::Prepend, None),
        StoreKind::Cas(cas) => (Mode::Set, Some(cas)),
    };
    let partition = shared.partition(storage.key);
    let mut store = shared.lock(partition);
    let expiry = shared.expiry(storage.expiry);
    let reserved = store.reserve(storage.key, storage.flags, expiry, storage.len_bytes);
    let reserved = match reserved {
        Ok(reserved) => reserved,
        Err(error) => {
            meta_command::refuse_value(store, storage.key, error, answers);
            connection.phase = Phase::Skip {
                left_bytes: block_bytes,
            };
            return Step::Done(line_bytes);
        }
    };
    let commit = Commit {
        mode,
        compare,
        is_quiet: storage.is_quiet,
        meta_line: None,
    };
    if !is_whole {
        connection.phase = Phase::Value {
            partition,
            reserved,
            filled_bytes: 0,
            len_bytes: storage.len_bytes,
            commit,
        };
        return Step::Done(line_bytes);
    }
    let block = &data[..block_bytes];
    if !block.ends_with(b"\r\n") {
        store.abandon(reserved);
        drop(store);
        answers.send(BAD_CHUNK);
        // What follows the bytes that were promised is skipped to the end of its line.
        return Step::Done(line_bytes + block_bytes);
    }
    store.reserved_mut(&reserved).copy_from_slice(block);
    let stored = store.commit(reserved, mode, compare, None);
    drop(store);
    answer_stored(answers, stored, compare.is_some(), storage.is_quiet);
    Step::Done(line_bytes + block_bytes)
}

fn answer_stored<C: Calls>(
    answers: &mut Answers<'_, C>,
    stored: Stored,
    is_cas: bool,
    is_quiet: bool,
) {
    let counters = answers.counters;
    let answer = match stored {
        Stored::Yes(_) => &b"STORED\r\n"[..],
        Stored::NotStored => b"NOT_STORED\r\n",
        Stored::Exists => b"EXISTS\r\n",
        Stored::NotFound => b"NOT_FOUND\r\n",
        Stored::Failed(error) => return answer_error(answers, error),
    };
    if is_cas {
        let counter = match stored {
            Stored::Yes(_) => &counters.cas_hits,
            Stored::Exists => &counters.cas_badval,
            _ => &counters.cas_misses,
        };
        count(counter, 1);
    }
    answers.send_unless(is_quiet, answer);
}
