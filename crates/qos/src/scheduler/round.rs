//! A round: latency-critical tenants first, by their credit, then best-effort tenants in turns.
//!
//! A latency-critical tenant gives away what it does not use, as ReFlex has it. A device that
//! stalls, or a network, keeps the tenant's requests back for a while; then they come all at once,
//! and the tokens of that time are gone. At its reservation alone such a tenant would work off its
//! line for seconds. So what a tenant gave away is *lent*: while its requests wait, the tenant
//! takes tokens back from what best-effort tenants get in that time. Over ten seconds nobody gets
//! more than was reserved, and a tenant that always asks for more than it reserved has nothing to
//! take back.

use crate::account::Scales;
use crate::cost::Operation;
use crate::notice::DeviceNotice;
use crate::{MICRO, TenantId, tokens_of};

use super::{Scheduler, micro};

/// A latency-critical tenant may run into debt by so many writes of a block (ReFlex, section
/// 3.2.2), so that bursts do not wait.
const DEFICIT_WRITES: i64 = 100;
/// Tokens that a latency-critical tenant keeps, in those of a round.
const KEPT_ROUNDS: i64 = 3;
/// Of what it has beyond that, the share that it gives away, in percent.
const GIVEN_PERCENT: i64 = 90;
/// Tenants that one round visits beside those that got a request since the last one. The next round
/// goes on behind them.
const VISITS_MAX: usize = 64;
/// Where nothing is limited, a tenant may submit so many tokens a turn: 64 KiB of reads.
const TURN_TOKENS: i64 = 1600 * MICRO;

impl<T> Scheduler<T> {
    /// Submits what may be submitted now: first the requests of latency-critical tenants, then
    /// best-effort ones in turns. Returns their number.
    pub fn round(&mut self, now_ns: u64, submit: &mut impl FnMut(TenantId, T)) -> usize {
        let passed_ns = now_ns.saturating_sub(self.last_ns);
        let now_ns = now_ns.max(self.last_ns);
        self.last_ns = now_ns;
        // A pause makes no burst.
        let round_ns = passed_ns.min(self.device.pause_ns());
        if self.has_work() {
            self.device.begin_round(self.bit);
        }
        self.device.mint(now_ns);
        let scales = self.device.scales();
        let mut round = Round {
            now_ns,
            round_ns,
            scales,
            left: 0,
            spent: 0,
            submitted: 0,
        };
        self.latency_critical(&mut round, submit);
        self.best_effort(&mut round, submit);
        let is_idle = !self.has_work();
        self.device.end_round(self.bit, round.left, is_idle);
        if round.spent > 0 {
            self.device.spent(round.spent);
        }
        self.device.step(now_ns);
        round.submitted
    }

    fn latency_critical(&mut self, round: &mut Round, submit: &mut impl FnMut(TenantId, T)) {
        let mut index = 0;
        while let Some(&number) = self.ready.get(index) {
            index += 1;
            let is_done = self.serve_critical(number, round, submit);
            let Some(Some(tenant)) = self.tenants.get_mut(number as usize) else {
                continue;
            };
            tenant.is_ready = false;
            if tenant.is_waiting {
                continue;
            }
            if !is_done {
                tenant.is_waiting = true;
                self.waiting.push(number);
            }
        }
        self.ready.clear();
        for _ in 0..self.waiting.len().min(VISITS_MAX) {
            if self.waiting_at >= self.waiting.len() {
                self.waiting_at = 0;
            }
            let Some(&number) = self.waiting.get(self.waiting_at) else {
                break;
            };
            if self.serve_critical(number, round, submit) {
                self.waiting.swap_remove(self.waiting_at);
                if let Some(Some(tenant)) = self.tenants.get_mut(number as usize) {
                    tenant.is_waiting = false;
                }
            } else {
                self.waiting_at += 1;
            }
        }
    }

    /// Submits a latency-critical tenant's requests. True: the tenant wants nothing and has given
    /// away what it does not need.
    fn serve_critical(
        &mut self,
        index: u32,
        round: &mut Round,
        submit: &mut impl FnMut(TenantId, T),
    ) -> bool {
        let Some(Some(tenant)) = self.tenants.get_mut(index as usize) else {
            return true;
        };
        let account = &tenant.account;
        let credit = account.mint(round.now_ns, round.scales.spare);
        let write = i64::from(self.costs.of_block(Operation::Write)) * MICRO;
        let limit = -DEFICIT_WRITES * write;
        // What waits beyond the tenant's own tokens, as far as it lent them.
        let wanted = micro(tenant.queue.tokens) - (credit - limit).max(0);
        if wanted > 0 {
            let lent = account.reclaim(wanted);
            let mut taken = round.take(lent);
            taken += self.device.take_income(lent - taken);
            taken += self.device.take(lent - taken);
            account.lend(lent - taken);
            account.earn(taken);
            tenant.received += taken;
        }
        // The last request may cost more than there is, on each thread.
        let claimed = account.spend(micro(tenant.queue.tokens), limit);
        let mut own = claimed;
        while own > 0 && self.in_flight < self.in_flight_max {
            let Some((token, cost)) = self.pool.pop(&mut tenant.queue) else {
                break;
            };
            own -= i64::from(cost) * MICRO;
            tenant.spent_tokens += u64::from(cost);
            round.count(cost);
            self.queued -= 1;
            self.in_flight = self.in_flight.saturating_add(1);
            submit(tenant.id, token);
        }
        let credit = account.earn(own);
        let waits = !tenant.queue.is_empty();
        if waits && credit <= limit {
            if account.set_in_deficit(true) {
                self.notices.push(DeviceNotice::Deficit {
                    tenant: tenant.id,
                    reserved: account.state().reserved(),
                    queued: tenant.queue.len,
                    queued_tokens: tenant.queue.tokens,
                });
            }
        } else if credit >= limit / 2 && account.set_in_deficit(false) {
            // Half the way back: a tenant at its limit would be in and out with every request.
            self.notices
                .push(DeviceNotice::DeficitOver { tenant: tenant.id });
        }
        let reserved = account.state().reserved();
        let each_ns = tokens_of(reserved + self.device.spare_each(), round.round_ns);
        let owes = round.round_ns == 0 || credit <= KEPT_ROUNDS * each_ns;
        if !owes {
            let given = account.spend(credit / 100 * GIVEN_PERCENT, 0);
            tenant.given += given;
            account.lend(given);
            round.left += given;
        }
        if waits {
            return false;
        }
        let parked = &self.device.parked;
        if std::mem::take(&mut tenant.is_busy) {
            account.leave(parked, owes);
        } else if !owes {
            account.settle(parked);
        }
        // An instance on another thread may have found the debt made good.
        account.state().is_settled()
    }

    fn best_effort(&mut self, round: &mut Round, submit: &mut impl FnMut(TenantId, T)) {
        if self.active.is_empty() {
            return;
        }
        let is_limited = self.device.is_limited();
        let mut shared = round.left;
        let wanted = self.demand - self.saved - shared;
        if is_limited && wanted > 0 {
            shared += self.device.take(wanted);
        }
        let mut left = 0;
        let all = self.active.len();
        // Latency-critical requests find room in the device.
        let in_flight_max = match is_limited {
            true => self.in_flight_max - self.in_flight_max / 8,
            false => self.in_flight_max,
        };
        let (visits_max, turn) = match (is_limited, all) {
            (true, _) => (all.min(VISITS_MAX), 0),
            (false, 1) => (1, i64::MAX / 4),
            (false, _) => (VISITS_MAX * 16, TURN_TOKENS),
        };
        // What an export saves for requests on other threads: a pause's worth.
        let saved_max = tokens_of(self.device.best_effort_each(), self.device.pause_ns());
        let mut visits = 0;
        while visits < visits_max && self.in_flight < in_flight_max {
            let Some(number) = self.active.pop_front() else {
                break;
            };
            visits += 1;
            let Some(Some(tenant)) = self.tenants.get_mut(number as usize) else {
                continue;
            };
            self.saved -= tenant.credit;
            let mut own = tenant.credit
                + match is_limited {
                    true => {
                        let wanted = micro(tenant.queue.tokens) - tenant.credit;
                        let account = &tenant.account;
                        account.claim(round.scales.best_effort, wanted, saved_max)
                    }
                    false => turn,
                };
            while !tenant.queue.is_empty() && self.in_flight < in_flight_max {
                let cost = i64::from(tenant.queue.head_cost) * MICRO;
                if cost > own + shared {
                    break;
                }
                let Some((token, tokens)) = self.pool.pop(&mut tenant.queue) else {
                    break;
                };
                let of_others = (cost - own).max(0);
                own -= cost - of_others;
                shared -= of_others;
                tenant.received += of_others;
                tenant.spent_tokens += u64::from(tokens);
                self.demand -= cost;
                round.count(tokens);
                self.queued -= 1;
                self.in_flight = self.in_flight.saturating_add(1);
                submit(tenant.id, token);
            }
            // What a tenant does not need goes to all, not to the tenant that happens to be next.
            tenant.credit = own.min(micro(tenant.queue.tokens));
            self.saved += tenant.credit;
            if is_limited {
                left += own - tenant.credit;
            }
            if tenant.queue.is_empty() {
                tenant.is_busy = false;
                tenant.account.leave(&self.device.parked, false);
            } else {
                self.active.push_back(number);
            }
        }
        if visits == all && is_limited && self.active.len() > 1 {
            // Everybody had a turn: another one begins the next round.
            self.active.rotate_left(1);
        }
        round.left = left + shared;
    }
}

/// What a round did so far.
struct Round {
    now_ns: u64,
    round_ns: u64,
    scales: Scales,
    /// Millionths of tokens for anybody.
    left: i64,
    spent: u64,
    submitted: usize,
}

impl Round {
    /// Takes at most so many millionths of tokens of what the round left over so far.
    fn take(&mut self, wanted: i64) -> i64 {
        let taken = wanted.min(self.left);
        self.left -= taken;
        taken
    }

    fn count(&mut self, tokens: u32) {
        self.spent += u64::from(tokens);
        self.submitted += 1;
    }
}
