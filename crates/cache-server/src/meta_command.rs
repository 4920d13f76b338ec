//! Runs meta commands: `mg`, `ms`, `md`, `ma`, `me`.

use std::ops::DerefMut;

use dataplane::Calls;

use crate::answer::{ANSWER_MAX_BYTES, Answers, BAD_CHUNK, Line, answer_error};
use crate::connection::{Commit, Connection, Phase, Step, WHOLE_MAX_BYTES};
use crate::counters::{count, count_hit};
use crate::protocol::{self, Meta, MetaKind, Words};
use crate::shared::SharedCache;
use crate::store::{Counted, Item, KEY_MAX_BYTES, Mode, Reserved, Store, StoreError, Stored};

pub(crate) fn run<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    meta: &Meta<'_>,
    line: &[u8],
    data: &[u8],
    line_bytes: usize,
) -> Step {
    let mut decoded = [0; KEY_MAX_BYTES];
    let key = match meta.flags.is_base64 {
        true => protocol::decode_key(meta.key, &mut decoded).unwrap_or(meta.key),
        false => meta.key,
    };
    let is_incomplete_set = matches!(meta.kind, MetaKind::Set(len)
        if data.len() < len + 2 && len + 2 <= WHOLE_MAX_BYTES);
    if is_incomplete_set {
        return Step::Incomplete;
    }
    count(&answers.counters.cmd_meta, 1);
    let done = match meta.kind {
        MetaKind::Get => get(shared, answers, meta, key),
        MetaKind::Set(len_bytes) => {
            return set(
                shared,
                connection,
                answers,
                (meta, key, line),
                (data, len_bytes),
                line_bytes,
            );
        }
        MetaKind::Delete => delete(shared, answers, meta, key),
        MetaKind::Arithmetic => arithmetic(shared, answers, meta, key),
        MetaKind::Debug => debug(shared, answers, meta, key),
    };
    if done {
        Step::Done(line_bytes)
    } else {
        Step::Blocked
    }
}

/// The flags of an answer about an item; `old` is what was true before this command.
struct Before {
    was_fetched: bool,
    access_seconds: u32,
}

/// Writes the flags that the client asked back, in the client's order.
fn flags_back(
    line: &mut Line,
    meta: &Meta<'_>,
    store: &Store,
    item: Option<Item>,
    before: &Before,
) {
    for word in Words(meta.words) {
        let Some((&letter, token)) = word.split_first() else {
            continue;
        };
        match (letter, item) {
            (b'O', _) => {
                line.text(b" O").text(token);
            }
            (b'k', _) => {
                line.text(b" k").text(meta.key);
            }
            (b'b', _) => {
                line.text(b" b");
            }
            (b'c', Some(item)) => {
                line.text(b" c").number(store.cas(item));
            }
            (b'c', None) => {
                line.text(b" c0");
            }
            (b'f', Some(item)) => {
                line.text(b" f").number(u64::from(store.flags(item)));
            }
            (b's', Some(item)) => {
                line.text(b" s").number(store.value(item).len() as u64);
            }
            (b't', Some(item)) => {
                match store.seconds_left(item) {
                    Some(seconds) => line.text(b" t").number(u64::from(seconds)),
                    None => line.text(b" t-1"),
                };
            }
            (b'h', Some(_)) => {
                line.text(if before.was_fetched { b" h1" } else { b" h0" });
            }
            (b'l', Some(_)) => {
                line.text(b" l").number(u64::from(before.access_seconds));
            }
            _ => {}
        }
    }
}

fn flagged(status: &[u8], meta: &Meta<'_>, store: &Store, item: Option<Item>) -> Line {
    let mut line = Line::new();
    line.text(status);
    let (access_seconds, was_fetched) = item.map_or((0, false), |item| store.last_access(item));
    flags_back(
        &mut line,
        meta,
        store,
        item,
        &Before {
            was_fetched,
            access_seconds,
        },
    );
    line.text(b"\r\n");
    line
}

fn reserve_empty(
    shared: &SharedCache,
    store: &mut Store,
    key: &[u8],
    value: &[u8],
    expiry: i64,
) -> Result<Option<Item>, StoreError> {
    let reserved = store.reserve(key, 0, shared.expiry(expiry), value.len())?;
    let memory = store.reserved_mut(&reserved);
    memory[..value.len()].copy_from_slice(value);
    memory[value.len()..].copy_from_slice(b"\r\n");
    store.commit(reserved, Mode::Set, None, None);
    Ok(store.peek(key))
}

fn get<C: Calls>(
    shared: &SharedCache,
    answers: &mut Answers<'_, C>,
    meta: &Meta<'_>,
    key: &[u8],
) -> bool {
    let flags = &meta.flags;
    let counters = answers.counters;
    let mut store = shared.lock(shared.partition(key));
    let mut found = store.peek(key);
    let mut is_won = false;
    let is_hit = found.is_some();
    if let Some(item) = found {
        let needed = store.value(item).len() + ANSWER_MAX_BYTES;
        if flags.wants_value && !answers.has_room(needed) {
            return false;
        }
    }
    if found.is_none()
        && let Some(expiry) = flags.vivify
    {
        match reserve_empty(shared, &mut store, key, b"", expiry) {
            Ok(item) => found = item,
            Err(error) => {
                answer_error(answers, error);
                return true;
            }
        }
        if let (Some(item), Some(cas)) = (found, flags.explicit) {
            store.set_cas(item, cas);
        }
        is_won = true;
    }
    count(&counters.cmd_get, 1);
    count_hit(is_hit, &counters.get_hits, &counters.get_misses);
    let Some(item) = found else {
        answers.send_unless(flags.is_quiet, b"EN\r\n");
        return true;
    };
    let (is_stale, was_won) = store.stale_and_won(item);
    if let Some(limit) = flags.recache
        && !was_won
        && store
            .seconds_left(item)
            .is_some_and(|left| i64::from(left) < limit)
    {
        is_won = true;
    }
    is_won |= is_stale && !was_won;
    if let Some(expiry) = flags.expiry {
        store.touch(item, shared.expiry(expiry));
        count(&counters.cmd_touch, 1);
        count(&counters.touch_hits, 1);
    }
    let (access_seconds, was_fetched) = store.last_access(item);
    let before = Before {
        was_fetched: was_fetched && is_hit,
        access_seconds,
    };
    let mut line = Line::new();
    if flags.wants_value {
        line.text(b"VA ").number(store.value(item).len() as u64);
    } else {
        line.text(b"HD");
    }
    flags_back(&mut line, meta, &store, Some(item), &before);
    if is_won {
        line.text(b" W");
        store.mark_won(item);
    }
    if is_stale {
        line.text(b" X");
    }
    // Somebody else fetches it anew already.
    if was_won && !is_won {
        line.text(b" Z");
    }
    answers.send(line.text(b"\r\n").as_bytes());
    if flags.wants_value {
        answers.send(store.value_and_line_end(item));
    }
    if !flags.is_no_access {
        store.mark_fetched(item);
    }
    true
}

type MetaLine<'a> = (&'a Meta<'a>, &'a [u8], &'a [u8]);

fn set<C: Calls>(
    shared: &SharedCache,
    connection: &mut Connection,
    answers: &mut Answers<'_, C>,
    (meta, key, line): MetaLine<'_>,
    (data, len_bytes): (&[u8], usize),
    line_bytes: usize,
) -> Step {
    count(&answers.counters.cmd_set, 1);
    let block_bytes = len_bytes + 2;
    let partition = shared.partition(key);
    let mut store = shared.lock(partition);
    let expiry = shared.expiry(meta.flags.expiry.unwrap_or(0));
    let reserved = match store.reserve(key, meta.flags.client_flags, expiry, len_bytes) {
        Ok(reserved) => reserved,
        Err(error) => {
            refuse_value(store, key, error, answers);
            connection.phase = Phase::Skip {
                left_bytes: block_bytes,
            };
            return Step::Done(line_bytes);
        }
    };
    if data.len() < block_bytes {
        connection.phase = Phase::Value {
            partition,
            reserved,
            filled_bytes: 0,
            len_bytes,
            commit: Commit {
                mode: Mode::Set,
                compare: None,
                is_quiet: false,
                meta_line: Some(line.into()),
            },
        };
        return Step::Done(line_bytes);
    }
    let block = &data[..block_bytes];
    if block.ends_with(b"\r\n") {
        store.reserved_mut(&reserved).copy_from_slice(block);
        commit(shared, &mut store, reserved, meta, answers);
    } else {
        store.abandon(reserved);
        answers.send(BAD_CHUNK);
    }
    Step::Done(line_bytes + block_bytes)
}

/// Answers that there is no memory for a value. The client meant to replace the old value: it must
/// not read that one again.
pub(crate) fn refuse_value<C: Calls>(
    mut store: impl DerefMut<Target = Store>,
    key: &[u8],
    error: StoreError,
    answers: &mut Answers<'_, C>,
) {
    if let Some(item) = store.peek(key) {
        store.delete(item);
    }
    drop(store);
    answer_error(answers, error);
}

/// Stores a value that is whole, and answers.
pub(crate) fn commit<C: Calls>(
    shared: &SharedCache,
    store: &mut Store,
    reserved: Reserved,
    meta: &Meta<'_>,
    answers: &mut Answers<'_, C>,
) {
    let flags = &meta.flags;
    let mut decoded = [0; KEY_MAX_BYTES];
    let key = match flags.is_base64 {
        true => protocol::decode_key(meta.key, &mut decoded).unwrap_or(meta.key),
        false => meta.key,
    };
    let mut mode = match flags.mode {
        Some(b'E') => Mode::Add,
        Some(b'A') => Mode::Append,
        Some(b'P') => Mode::Prepend,
        Some(b'R') => Mode::Replace,
        _ => Mode::Set,
    };
    // An item that is appended to can be made if it is missing.
    if let (Mode::Append | Mode::Prepend, Some(_)) = (mode, flags.vivify)
        && store.peek(key).is_none()
    {
        mode = Mode::Set;
    }
    let mut compare = flags.compare;
    let mut marks_stale = false;
    if flags.invalidate
        && let (Some(cas), Some(item)) = (compare, store.peek(key))
        && store.cas(item) > cas
    {
        // An older value is still better than none: stored, but marked stale.
        (compare, marks_stale) = (None, true);
    }
    let stored = store.commit(reserved, mode, compare, flags.explicit);
    let item = store.peek(key);
    if let (true, Some(item)) = (marks_stale, item) {
        store.mark_stale(item);
    }
    if let (Stored::Yes(_), Mode::Append | Mode::Prepend, Some(item), Some(expiry)) =
        (stored, mode, item, flags.vivify)
    {
        store.touch(item, shared.expiry(expiry));
    }
    let status = match stored {
        Stored::Yes(_) if flags.is_quiet => return,
        Stored::Yes(_) => &b"HD"[..],
        Stored::NotStored => b"NS",
        Stored::Exists => b"EX",
        Stored::NotFound => b"NF",
        Stored::Failed(error) => return answer_error(answers, error),
    };
    let shown = item.filter(|_| matches!(stored, Stored::Yes(_)));
    answers.send(flagged(status, meta, store, shown).as_bytes());
}

fn delete<C: Calls>(
    shared: &SharedCache,
    answers: &mut Answers<'_, C>,
    meta: &Meta<'_>,
    key: &[u8],
) -> bool {
    let flags = &meta.flags;
    let mut store = shared.lock(shared.partition(key));
    let found = store.peek(key);
    let status = match found {
        None => &b"NF"[..],
        Some(item) if flags.compare.is_some_and(|cas| cas != store.cas(item)) => b"EX",
        Some(item) => {
            if flags.empty_value {
                store.empty_value(item);
            }
            if flags.invalidate {
                if let Some(expiry) = flags.expiry {
                    store.touch(item, shared.expiry(expiry));
                }
                store.mark_stale(item);
            } else if flags.empty_value {
                let cas = flags.explicit.unwrap_or(store.cas(item) + 1);
                store.set_cas(item, cas);
            } else {
                store.delete(item);
            }
            b"HD"
        }
    };
    let counters = answers.counters;
    count_hit(
        found.is_some(),
        &counters.delete_hits,
        &counters.delete_misses,
    );
    if flags.is_quiet && status != b"EX" {
        return true;
    }
    answers.send(flagged(status, meta, &store, None).as_bytes());
    true
}

fn arithmetic<C: Calls>(
    shared: &SharedCache,
    answers: &mut Answers<'_, C>,
    meta: &Meta<'_>,
    key: &[u8],
) -> bool {
    let flags = &meta.flags;
    let is_increment = match flags.mode {
        None | Some(b'I' | b'+') => true,
        Some(b'D' | b'-') => false,
        Some(_) => {
            answers.send(b"CLIENT_ERROR invalid mode for ma\r\n");
            return true;
        }
    };
    let mut store = shared.lock(shared.partition(key));
    let mut counted = store.count(
        key,
        flags.delta,
        is_increment,
        flags.compare,
        flags.explicit,
    );
    if counted == Counted::NotFound
        && let Some(expiry) = flags.vivify
    {
        let mut line = Line::new();
        let digits = line.number(flags.initial).as_bytes();
        counted = match reserve_empty(shared, &mut store, key, digits, expiry) {
            Ok(_) => Counted::Number(flags.initial),
            Err(error) => Counted::Failed(error),
        };
    }
    let is_hit = counted != Counted::NotFound;
    answers.counters.count_arithmetic(is_hit, is_increment);
    let item = store.peek(key);
    match counted {
        Counted::Number(number) => {
            if let (Some(item), Some(expiry)) = (item, flags.expiry) {
                store.touch(item, shared.expiry(expiry));
            }
            if flags.is_quiet && !flags.wants_value {
                return true;
            }
            let mut digits = Line::new();
            digits.number(number);
            let mut status = Line::new();
            if flags.wants_value {
                status.text(b"VA ").number(digits.as_bytes().len() as u64);
            } else {
                status.text(b"HD");
            }
            answers.send(flagged(status.as_bytes(), meta, &store, item).as_bytes());
            if flags.wants_value {
                answers.send(digits.text(b"\r\n").as_bytes());
            }
        }
        Counted::NotFound if flags.is_quiet => {}
        Counted::NotFound => answers.send(flagged(b"NF", meta, &store, None).as_bytes()),
        Counted::Exists => answers.send(flagged(b"EX", meta, &store, None).as_bytes()),
        Counted::NotANumber => {
            answers.send(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
        }
        Counted::Failed(error) => answer_error(answers, error),
    }
    true
}

fn debug<C: Calls>(
    shared: &SharedCache,
    answers: &mut Answers<'_, C>,
    meta: &Meta<'_>,
    key: &[u8],
) -> bool {
    let mut store = shared.lock(shared.partition(key));
    let Some(item) = store.peek(key) else {
        answers.send(b"EN\r\n");
        return true;
    };
    let mut line = Line::new();
    line.text(b"ME ").text(meta.key).text(b" exp=");
    match store.seconds_left(item) {
        Some(seconds) => line.number(u64::from(seconds)),
        None => line.text(b"-1"),
    };
    let (access_seconds, was_fetched) = store.last_access(item);
    line.text(b" la=").number(u64::from(access_seconds));
    line.text(b" cas=").number(store.cas(item));
    line.text(b" fetch=")
        .text(if was_fetched { b"yes" } else { b"no" });
    line.text(b" cls=").number(store.class(item) as u64 + 1);
    line.text(b" size=").number(store.value(item).len() as u64);
    answers.send(line.text(b"\r\n").as_bytes());
    true
}
