//! Starts the shards of a server on threads of their own, and hears how they end.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::api::Application;
use crate::backend::Backend;
use crate::error::Error;
use crate::metrics::{self, Page};
use crate::sandbox::{self, SandboxError};
use crate::shard::{Plane, Shard, ShardConfig};
use crate::uring;

/// Why a server does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The runtime.
    #[error(transparent)]
    Dataplane(#[from] Error),
    /// Giving up privileges.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The address for metrics cannot be listened on.
    #[error("metrics {0}: {1}")]
    Metrics(SocketAddr, std::io::Error),
    /// A thread or a signal handler cannot be set up.
    #[error("{0}: {1}")]
    Start(&'static str, std::io::Error),
    /// A shard's thread ended by a panic.
    #[error("shard {0} ended by a panic")]
    Panic(usize),
}

impl LaunchError {
    /// Whether a privilege or a kernel feature is missing (exit code 3).
    pub fn is_missing_privilege(&self) -> bool {
        match self {
            Self::Dataplane(error) => error.is_missing_privilege(),
            Self::Sandbox(_) => true,
            Self::Metrics(_, error) => error.kind() == std::io::ErrorKind::PermissionDenied,
            Self::Start(..) | Self::Panic(_) => false,
        }
    }
}

/// The running shards of a server.
pub struct Shards<B: Backend, A: Application> {
    plane: Arc<Plane<B, A>>,
    is_sandboxed: bool,
    ended: mpsc::Sender<Result<(), LaunchError>>,
    outcomes: mpsc::Receiver<Result<(), LaunchError>>,
    running: usize,
}

impl<B: Backend + 'static, A: Application + 'static> Shards<B, A> {
    /// No shard yet. With `is_sandboxed`, each shard's thread gives up its capabilities.
    pub fn new(plane: Arc<Plane<B, A>>, is_sandboxed: bool) -> Self {
        let (ended, outcomes) = mpsc::channel();
        Self {
            plane,
            is_sandboxed,
            ended,
            outcomes,
            running: 0,
        }
    }

    /// Starts a shard on a thread of its own, and waits until the shard serves. `make` runs on that
    /// thread, bound to the shard's CPU.
    ///
    /// # Errors
    /// What `make` says, or the thread or the sandbox cannot be set up.
    pub fn start(
        &mut self,
        config: ShardConfig,
        make: impl FnOnce() -> Result<(B, A), Error> + Send + 'static,
    ) -> Result<(), LaunchError> {
        let (plane, ended) = (Arc::clone(&self.plane), self.ended.clone());
        let is_sandboxed = self.is_sandboxed;
        let (ready, is_ready) = mpsc::channel();
        let id = usize::from(config.id);
        std::thread::Builder::new()
            .name(format!("shard-{id}"))
            .spawn(move || {
                let start = || -> Result<Shard<B, A>, LaunchError> {
                    if let Some(cpu) = config.cpu {
                        crate::shard::bind(cpu)?;
                    }
                    let (backend, application) = make()?;
                    let shard = Shard::new(config, backend, application, plane)?;
                    if is_sandboxed {
                        sandbox::drop_capabilities()?;
                    }
                    Ok(shard)
                };
                match start() {
                    Ok(shard) => {
                        let mut end = End {
                            to: ended,
                            outcome: Err(LaunchError::Panic(id)),
                        };
                        let _ = ready.send(Ok(()));
                        end.outcome = shard.run().map(drop).map_err(LaunchError::from);
                    }
                    Err(error) => drop(ready.send(Err(error))),
                }
            })
            .map_err(|error| LaunchError::Start("a shard's thread cannot be started", error))?;
        is_ready.recv().unwrap_or(Err(LaunchError::Panic(id)))?;
        self.running += 1;
        Ok(())
    }

    /// Waits so long for the end of a shard. Gives whether any still runs.
    ///
    /// # Errors
    /// A shard has ended by an error.
    pub fn wait(&mut self, time: Duration) -> Result<bool, LaunchError> {
        if let Ok(outcome) = self.outcomes.recv_timeout(time) {
            outcome?;
            self.running -= 1;
        }
        Ok(self.running > 0)
    }
}

/// Says how a shard ended, also where that was by a panic.
struct End {
    to: mpsc::Sender<Result<(), LaunchError>>,
    outcome: Result<(), LaunchError>,
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.to.send(std::mem::replace(&mut self.outcome, Ok(())));
    }
}

/// How long an address, or a queue of an interface, may still be held by a server that was killed:
/// the kernel lets go of such sockets a moment after the process has ended.
pub const ADDRESS_HELD: Duration = Duration::from_secs(2);
/// An address that another process has, and that is tried again for [`ADDRESS_HELD`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressInUse(pub SocketAddr);

impl std::fmt::Display for AddressInUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = ADDRESS_HELD.as_secs();
        write!(f, "{} is in use: trying again for {seconds} s", self.0)
    }
}

/// How often a held address is tried.
pub(crate) const TRY_EVERY: Duration = Duration::from_millis(20);

/// Binds again and again while the address is in use, for [`ADDRESS_HELD`]. `waits` hears of the
/// address once.
fn bind_patiently<T, E>(
    address: SocketAddr,
    waits: &mut dyn FnMut(AddressInUse),
    bind: impl Fn(SocketAddr) -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let mut end = None;
    loop {
        match bind(address) {
            Err(error) if is_in_use(&error) => {
                let end = *end.get_or_insert_with(|| {
                    waits(AddressInUse(address));
                    Instant::now() + ADDRESS_HELD
                });
                if Instant::now() >= end {
                    return Err(error);
                }
                std::thread::sleep(TRY_EVERY);
            }
            other => return other,
        }
    }
}

/// Listens on an address, as [`uring::listen`] does. An address in use is tried again for
/// [`ADDRESS_HELD`], and `waits` hears of that.
///
/// # Errors
/// The address stays in use, is not this host's, or needs a privilege.
pub fn listen(
    address: SocketAddr,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<OwnedFd, LaunchError> {
    let is_in_use = |error: &Error| matches!(error, Error::Listen { source, .. } if source.kind() == ErrorKind::AddrInUse);
    Ok(bind_patiently(address, waits, uring::listen, is_in_use)?)
}

/// Listens on the address for metrics, if there is one. An address in use is tried again, as by
/// [`listen`].
///
/// # Errors
/// The address stays in use, or may not be used.
pub fn metrics_listener(
    address: Option<SocketAddr>,
    waits: &mut dyn FnMut(AddressInUse),
) -> Result<Option<TcpListener>, LaunchError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let is_in_use = |error: &std::io::Error| error.kind() == ErrorKind::AddrInUse;
    let bound = bind_patiently(address, waits, TcpListener::bind, is_in_use);
    Ok(Some(
        bound.map_err(|error| LaunchError::Metrics(address, error))?,
    ))
}

/// Serves pages on a thread of its own, for as long as the process lives.
///
/// # Errors
/// The thread cannot be started.
pub fn serve_pages(
    listener: TcpListener,
    page: impl Fn(&str) -> Option<Page> + Send + 'static,
) -> Result<(), LaunchError> {
    let failed = |error| LaunchError::Start("the thread for metrics cannot be started", error);
    listener.set_nonblocking(true).map_err(failed)?;
    std::thread::Builder::new()
        .name("metrics".into())
        .spawn(move || metrics::serve(&listener, page))
        .map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address that a listener holds, and the listener.
    fn held() -> (TcpListener, SocketAddr) {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        (holder, address)
    }

    #[test]
    fn an_address_that_is_let_go_is_taken() {
        for is_metrics in [false, true] {
            let (holder, address) = held();
            let mut said = Vec::new();
            let mut waits = |held: AddressInUse| said.push(held.to_string());
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    drop(holder);
                });
                match is_metrics {
                    false => drop(listen(address, &mut waits).unwrap()),
                    true => drop(metrics_listener(Some(address), &mut waits).unwrap()),
                }
            });
            assert_eq!(said, [format!("{address} is in use: trying again for 2 s")]);
        }
    }

    #[test]
    fn an_address_that_stays_in_use_is_an_error_after_a_while() {
        let (_holder, address) = held();
        let began = Instant::now();
        let error = listen(address, &mut |_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot listen on {address}: ")),
            "{error}"
        );
        assert!(began.elapsed() >= ADDRESS_HELD);
        // Another error is said at once.
        let foreign = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut said = 0;
        assert!(listen(foreign, &mut |_| said += 1).is_err());
        assert_eq!(said, 0);
    }
}
