//! Starts the shards of a server on threads of their own, and hears how they end.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::api::Application;
use crate::backend::Backend;
use crate::error::Error;
use crate::metrics::{self, Page};
use crate::sandbox::{self, SandboxError};
use crate::shard::{Plane, Shard, ShardConfig};

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

/// Listens on the address for metrics, if there is one.
///
/// # Errors
/// The address is taken, or may not be used.
pub fn metrics_listener(address: Option<SocketAddr>) -> Result<Option<TcpListener>, LaunchError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let bound = TcpListener::bind(address);
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
