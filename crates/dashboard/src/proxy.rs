//! What a reverse proxy says of its clients: address, scheme, and the user's name.

use std::net::IpAddr;

use axum::http::HeaderMap;

use crate::role::Role;
use crate::web::header;

/// What stands before the name of a user whom a proxy names: nobody can take a token's name so.
pub(crate) const OF_PROXY: &str = "proxy:";

/// No user of a proxy has a longer name: an address of mail has at most 254 characters (RFC 5321,
/// 4.5.3.1).
const USER_CHARS_MAX: usize = 254;

/// A reverse proxy that names the user.
#[derive(Clone, Debug, Default)]
pub struct Proxy {
    /// Addresses whose headers are believed.
    pub trusted: Vec<IpAddr>,
    /// The header that holds the user's name, such as `X-Forwarded-User`; none, and nobody signs in
    /// so.
    pub user_header: Option<String>,
    /// Users that may change things; the others look.
    pub writers: Vec<String>,
}

impl Proxy {
    fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.contains(&peer.to_canonical())
    }

    /// The client's address: the last one that a trusted proxy names and that is none itself.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        if !self.trusts(peer) {
            return peer.to_canonical();
        }
        let named = headers.get_all("x-forwarded-for").iter();
        let named = named.filter_map(|value| value.to_str().ok());
        let named = named.flat_map(|value| value.split(','));
        let mut addresses: Vec<IpAddr> =
            named.filter_map(|text| text.trim().parse().ok()).collect();
        while let Some(address) = addresses.pop() {
            if !self.trusts(address) {
                return address.to_canonical();
            }
        }
        peer.to_canonical()
    }

    /// The browser speaks TLS with a trusted proxy.
    pub(crate) fn is_https(&self, peer: IpAddr, headers: &HeaderMap) -> bool {
        self.trusts(peer)
            && header(headers, "x-forwarded-proto")
                .is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https"))
    }

    /// The user whom a trusted proxy names. No token has such a name: see
    /// [`crate::access::is_reserved`].
    pub(crate) fn user(&self, peer: IpAddr, headers: &HeaderMap) -> Option<(String, Role)> {
        let name = header(headers, self.user_header.as_deref()?)?.trim();
        let is_name = tuner::spec::is_line(name) && name.chars().count() <= USER_CHARS_MAX;
        if !self.trusts(peer) || !is_name {
            return None;
        }
        let may_write = self.writers.iter().any(|writer| writer == name);
        let role = if may_write { Role::Write } else { Role::Read };
        Some((format!("{OF_PROXY}{name}"), role))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_trusted_proxy_names_users_and_addresses() {
        let proxy = Proxy {
            trusted: vec!["127.0.0.1".parse().unwrap(), "10.0.0.9".parse().unwrap()],
            user_header: Some("X-Forwarded-User".into()),
            writers: vec!["anna".into()],
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-user", HeaderValue::from_static("anna"));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        let forwarded = HeaderValue::from_static("1.1.1.1, 192.0.2.7, 10.0.0.9");
        headers.insert("x-forwarded-for", forwarded);
        let trusted = "::ffff:127.0.0.1".parse().unwrap();
        let other: IpAddr = "192.0.2.66".parse().unwrap();
        let user = proxy.user(trusted, &headers);
        assert_eq!(user, Some(("proxy:anna".to_owned(), Role::Write)));
        assert_eq!(proxy.user(other, &headers), None);
        // The first of the addresses is what the client says of itself.
        assert_eq!(proxy.client(trusted, &headers).to_string(), "192.0.2.7");
        assert_eq!(proxy.client(other, &headers), other);
        assert!(proxy.is_https(trusted, &headers) && !proxy.is_https(other, &headers));
        headers.insert("x-forwarded-user", HeaderValue::from_static("bob"));
        let user = proxy.user(trusted, &headers);
        assert_eq!(user, Some(("proxy:bob".to_owned(), Role::Read)));
        // Nobody whom a proxy names can be taken for somebody with a token.
        headers.insert("x-forwarded-user", HeaderValue::from_static("owner"));
        let user = proxy.user(trusted, &headers);
        assert_eq!(user, Some(("proxy:owner".to_owned(), Role::Read)));
        let long = HeaderValue::from_str(&"x".repeat(255)).unwrap();
        headers.insert("x-forwarded-user", long);
        assert_eq!(proxy.user(trusted, &headers), None);
    }
}
