//! The queues of all tenants of a thread, in one pool of entries.
//!
//! The entry that was freed last is used first, so that a thousand short queues touch as little
//! memory as one. The pool's room for a tenant is reserved when the tenant is added; an entry that
//! was never used costs address space only.

/// Requests that may wait for one tenant.
pub const QUEUE_ENTRIES_MAX: u32 = 2048;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry<T> {
    token: Option<T>,
    cost: u32,
    next: u32,
}

/// The pool.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    entries: Vec<Entry<T>>,
    free: u32,
}

/// One tenant's queue: first in, first out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    pub(crate) len: u32,
    /// Cost of the first request.
    pub(crate) head_cost: u32,
    /// Tokens of all requests.
    pub(crate) tokens: u64,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
        head_cost: 0,
        tokens: 0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Pool<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
        }
    }

    /// Makes room for the full queues of so many tenants. False: there is no memory.
    pub(crate) fn reserve(&mut self, tenants: usize) -> bool {
        let wanted = tenants * QUEUE_ENTRIES_MAX as usize;
        let more = wanted.saturating_sub(self.entries.len());
        self.entries.try_reserve(more).is_ok()
    }

    /// Appends a request, or gives it back if the queue is full.
    pub(crate) fn push(&mut self, queue: &mut Queue, token: T, cost: u32) -> Result<(), T> {
        if queue.len == QUEUE_ENTRIES_MAX {
            return Err(token);
        }
        let entry = Entry {
            token: Some(token),
            cost,
            next: NONE,
        };
        let index = match self.entries.get_mut(self.free as usize) {
            Some(slot) => {
                let index = self.free;
                self.free = slot.next;
                *slot = entry;
                index
            }
            None => {
                let index = u32::try_from(self.entries.len()).unwrap_or(NONE);
                self.entries.push(entry);
                index
            }
        };
        match self.entries.get_mut(queue.tail as usize) {
            Some(last) => last.next = index,
            None => {
                queue.head = index;
                queue.head_cost = cost;
            }
        }
        queue.tail = index;
        queue.len += 1;
        queue.tokens += u64::from(cost);
        Ok(())
    }

    /// Takes the first request.
    pub(crate) fn pop(&mut self, queue: &mut Queue) -> Option<(T, u32)> {
        let index = queue.head;
        let entry = self.entries.get_mut(index as usize)?;
        let (token, cost, next) = (entry.token.take()?, entry.cost, entry.next);
        entry.next = self.free;
        self.free = index;
        queue.head = next;
        queue.len -= 1;
        queue.tokens -= u64::from(cost);
        match self.entries.get(next as usize) {
            Some(head) => queue.head_cost = head.cost,
            None => queue.tail = NONE,
        }
        Some((token, cost))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_queue_gives_the_request_back_and_memory_is_used_again() {
        let mut pool = Pool::new();
        assert!(pool.reserve(1));
        let mut queue = Queue::EMPTY;
        for token in 0..QUEUE_ENTRIES_MAX {
            pool.push(&mut queue, token, 100).unwrap();
        }
        assert_eq!(pool.push(&mut queue, 7, 100), Err(7));
        let capacity = pool.entries.capacity();
        for round in 0..10 * QUEUE_ENTRIES_MAX {
            assert_eq!(
                pool.pop(&mut queue).map(|(token, _)| token),
                Some(round % QUEUE_ENTRIES_MAX)
            );
            pool.push(&mut queue, round % QUEUE_ENTRIES_MAX, 100)
                .unwrap();
        }
        assert_eq!(pool.entries.capacity(), capacity);
        assert_eq!(pool.entries.len(), QUEUE_ENTRIES_MAX as usize);
    }

    proptest! {
        #[test]
        fn two_queues_of_a_pool_are_two_queues(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1_u32..9), 0..200)) {
            let mut pool = Pool::new();
            let mut queues = [Queue::EMPTY; 2];
            let mut models = [VecDeque::new(), VecDeque::new()];
            for (number, (which, is_push, cost)) in steps.into_iter().enumerate() {
                let (queue, model) = (&mut queues[usize::from(which)], &mut models[usize::from(which)]);
                if is_push {
                    pool.push(queue, number, cost).unwrap();
                    model.push_back((number, cost));
                } else {
                    prop_assert_eq!(pool.pop(queue), model.pop_front());
                }
                prop_assert_eq!(queue.len as usize, model.len());
                prop_assert_eq!(queue.tokens, model.iter().map(|(_, cost)| u64::from(*cost)).sum::<u64>());
                if let Some((_, cost)) = model.front() {
                    prop_assert_eq!(queue.head_cost, *cost);
                }
            }
        }
    }
}
