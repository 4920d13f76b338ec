//! How many requests a second one client may send.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::lock::lock;
use crate::reply::Refusal;

/// Clients that are told apart. The one that was quiet for longest is forgotten first.
const CLIENTS_MAX: usize = 4096;

/// Who shares a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Client {
    /// Somebody who is signed in.
    Named(String),
    /// Everybody else at an address; of IPv6, in a network of 64 bits, which one host may have.
    Address(IpAddr),
    /// The sign-in attempts from an address.
    SignIn(IpAddr),
}

impl Client {
    pub(crate) fn at(address: IpAddr) -> Self {
        Self::Address(network(address))
    }

    pub(crate) fn signing_in(address: IpAddr) -> Self {
        Self::SignIn(network(address))
    }
}

fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// A token bucket for each client: so many requests a second on average, twice that at once.
pub(crate) struct Buckets {
    per_s: f64,
    states: Mutex<HashMap<Client, (f64, Instant)>>,
}

/// Attempts to sign in from one address, a second on average; 10 at once.
const SIGN_INS_PER_S: f64 = 0.2;
const SIGN_INS_AT_ONCE: f64 = 10.0;

impl Buckets {
    pub(crate) fn new(per_s: f64) -> Self {
        Self {
            per_s,
            states: Mutex::default(),
        }
    }

    /// Lets a client send a request now.
    ///
    /// # Errors
    /// It may not, for so long.
    pub(crate) fn take(&self, client: Client, now: Instant) -> Result<(), Duration> {
        let (per_s, at_once) = match client {
            Client::SignIn(_) => (SIGN_INS_PER_S, SIGN_INS_AT_ONCE),
            _ => (self.per_s, (2.0 * self.per_s).max(1.0)),
        };
        let mut states = lock(&self.states);
        if states.len() >= CLIENTS_MAX && !states.contains_key(&client) {
            let quiet = states.iter().min_by_key(|(_, (_, since))| *since);
            if let Some(quiet) = quiet.map(|(client, _)| client.clone()) {
                states.remove(&quiet);
            }
        }
        let (tokens, since) = states.entry(client).or_insert((at_once, now));
        let grown = now.saturating_duration_since(*since).as_secs_f64() * per_s;
        *tokens = (*tokens + grown).min(at_once);
        *since = now;
        if *tokens >= 1.0 {
            *tokens -= 1.0;
            return Ok(());
        }
        let wait_s = (1.0 - *tokens) / per_s;
        Err(Duration::try_from_secs_f64(wait_s).unwrap_or(Duration::MAX))
    }
}

/// The refusal of a client that sends too many requests, and may send the next one after that time.
pub(crate) fn too_many(wait: Duration) -> Response {
    // Whole seconds are all that the header has (RFC 9110, 10.2.3).
    let wait_s = wait
        .as_secs()
        .saturating_add(u64::from(wait.subsec_nanos() > 0));
    let refusal = Refusal::new(
        StatusCode::TOO_MANY_REQUESTS,
        format!("too many requests from this client: wait {wait_s} s"),
    );
    ([("retry-after", wait_s.to_string())], refusal).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_lets_through_what_it_says() {
        let buckets = Buckets::new(10.0);
        let start = Instant::now();
        let take = |at| buckets.take(Client::Named("a".into()), at);
        let burst = (0..100).filter(|_| take(start).is_ok()).count();
        assert_eq!(burst, 20);
        let later = |ms| start + Duration::from_millis(ms);
        let second = (1..=1000).filter(|ms| take(later(*ms)).is_ok()).count();
        assert!((9..=11).contains(&second), "{second}");
    }

    #[test]
    fn who_is_refused_is_told_how_long_to_wait() {
        let buckets = Buckets::new(100.0);
        let start = Instant::now();
        let sign_in = |after_s: f64| {
            let attempt = Client::signing_in([192, 0, 2, 1].into());
            buckets.take(attempt, start + Duration::from_secs_f64(after_s))
        };
        assert_eq!((0..10).filter(|_| sign_in(0.0).is_ok()).count(), 10);
        let told = |wait: Result<(), Duration>| {
            let response = too_many(wait.unwrap_err());
            response.headers()["retry-after"]
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(told(sign_in(0.0)), "5");
        assert_eq!(told(sign_in(3.5)), "2");
        assert_eq!(sign_in(5.001), Ok(()));
        // Another request at once is refused for a fraction of a second.
        let client = || Client::Named("a".into());
        while buckets.take(client(), start).is_ok() {}
        assert_eq!(told(buckets.take(client(), start)), "1");
    }

    #[test]
    fn a_flood_from_one_client_costs_no_other() {
        let buckets = Buckets::new(10.0);
        let now = Instant::now();
        let flood = Client::at([192, 0, 2, 1].into());
        for _ in 0..1000 {
            let _ = buckets.take(flood.clone(), now);
        }
        assert!(buckets.take(flood, now).is_err());
        let prometheus = Client::Named("prometheus".into());
        assert_eq!(buckets.take(prometheus, now), Ok(()));
        assert_eq!(buckets.take(Client::at([192, 0, 2, 2].into()), now), Ok(()));
        // A host that has a network of addresses is one client.
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let other: IpAddr = "2001:db8::2:0:0:1".parse().unwrap();
        assert_eq!(Client::at(one), Client::at(other));
        // Many addresses do not fill the memory.
        for index in 0..10_000_u32 {
            let _ = buckets.take(Client::at(IpAddr::V4(index.into())), now);
        }
        assert!(buckets.states.lock().unwrap().len() <= CLIENTS_MAX);
    }
}
