//! Where requests go: scheme, host, and the addresses behind them.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use http::Uri;
use http_client::check_url;

use crate::Error;
use crate::requests::check_path;

/// A service's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether TLS is spoken.
    pub(crate) is_tls: bool,
    /// Host without port: what a certificate is checked against.
    pub(crate) host: String,
    /// What the `Host` header, or `:authority`, says.
    pub(crate) authority: String,
    port: u16,
    /// `user:password`, percent-encoded as it was given.
    pub(crate) login: Option<String>,
    /// Path and query of the URL.
    path: String,
    unix_socket: Option<PathBuf>,
}

/// An address that can be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Ip(SocketAddr),
    Unix(PathBuf),
}

impl Endpoint {
    /// The endpoint of a URL.
    ///
    /// # Errors
    /// [`Error::Number`]: what is wrong with the URL.
    ///
    /// ```
    /// let endpoint = load::Endpoint::parse("http://[::1]:8080/a?b=c#d")?;
    /// assert_eq!(endpoint.path(), "/a?b=c");
    /// # Ok::<(), load::Error>(())
    /// ```
    pub fn parse(url: &str) -> Result<Self, Error> {
        let error = |reason: String| Error::Number {
            what: "url",
            reason: format!("{}: {reason}", without_login(url)),
        };
        check_url(url).map_err(error)?;
        let uri: Uri = url.parse().map_err(|why| error(format!("{why}")))?;
        let is_tls = uri.scheme_str() == Some("https");
        let authority = uri
            .authority()
            .ok_or_else(|| error("it has no host".to_owned()))?
            .as_str();
        let (login, authority) = match authority.rsplit_once('@') {
            Some((login, authority)) => (Some(login.to_owned()), authority),
            None => (None, authority),
        };
        let host = uri.host().unwrap_or_default();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        check_path(path).map_err(error)?;
        Ok(Self {
            is_tls,
            host: host.trim_matches(['[', ']']).to_owned(),
            authority: authority.to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
            login,
            path: path.to_owned(),
            unix_socket: None,
        })
    }

    /// The same service, reached by a socket of the file system.
    #[must_use]
    pub fn by_unix_socket(mut self, path: &Path) -> Self {
        self.unix_socket = Some(path.to_owned());
        self
    }

    /// Path and query of the URL.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of a request from a list: what comes after the URL's own path.
    #[must_use]
    pub fn below(&self, path: &str) -> String {
        let base = self.path.split('?').next().unwrap_or_default();
        format!("{}{path}", base.trim_end_matches('/'))
    }

    /// Every address of the host, in the order in which they are to be tried.
    ///
    /// # Errors
    /// [`Error::Lookup`]: nobody knows the name.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, Error> {
        if let Some(path) = &self.unix_socket {
            return Ok(vec![Address::Unix(path.clone())]);
        }
        let lookup = |source| Error::Lookup {
            host: self.host.clone(),
            source,
        };
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found: Vec<Address> = found.map_err(lookup)?.map(Address::Ip).collect();
        if found.is_empty() {
            let none = std::io::Error::other("the name has no address");
            return Err(lookup(none));
        }
        Ok(found)
    }
}

/// The URL without user and password, for messages.
fn without_login(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_its_parts() {
        let endpoint = Endpoint::parse("https://me:p%40ss@example.org/base/?q=1").unwrap();
        assert!(endpoint.is_tls);
        assert_eq!(endpoint.authority, "example.org");
        assert_eq!(endpoint.port, 443);
        assert_eq!(endpoint.login.as_deref(), Some("me:p%40ss"));
        assert_eq!(endpoint.path(), "/base/?q=1");
        assert_eq!(endpoint.below("/x"), "/base/x");
        let six = Endpoint::parse("http://[::1]:81").unwrap();
        assert_eq!((six.host.as_str(), six.path()), ("::1", "/"));
        assert_eq!(
            six.addresses().unwrap(),
            [Address::Ip("[::1]:81".parse().unwrap())]
        );
        let unix = six.by_unix_socket(Path::new("/run/x"));
        assert_eq!(unix.addresses().unwrap(), [Address::Unix("/run/x".into())]);
    }

    #[test]
    fn a_wrong_url_is_named_without_its_password() {
        let error = Endpoint::parse("http://me:secret@h:99999/").unwrap_err();
        let error = error.to_string();
        assert!(error.contains("http://h:99999/: "), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_name_that_nobody_knows_is_said_to_be_one() {
        let endpoint = Endpoint::parse("http://no-such-host.invalid/").unwrap();
        let error = endpoint.addresses().unwrap_err().to_string();
        assert!(error.starts_with("no-such-host.invalid: "), "{error}");
    }
}
