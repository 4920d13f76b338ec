//! `slackline serve`: the coordinator's thread, the server beside it, and what systemd wants to
//! know of both.

use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coordinator::Coordinator;
use coordinator::store::{Location, Store};
use dashboard::{Access, Bounds, DashboardOptions, Notifications, Proxy};
use dispatch::{CoordinatorEndpoint, ServerConfig};
use sd_notify::NotifyState;
use tuner::process::Interrupt;

use crate::done::CommandOutcome;
use crate::{own_files, tokens};

/// How long requests may go on once nothing else does.
const REQUESTS_END: Duration = Duration::from_secs(3);
/// With fewer descriptors a measurement may find none: the server's own files, the fewest
/// connections, and what one evaluation opens.
const DESCRIPTORS_MIN: u64 = 64;
/// How often signals and the watchdog are looked after.
const LOOK: Duration = Duration::from_millis(100);

/// Writes a line to the log, without credentials.
fn message(text: &str) {
    crate::output::message(&http_client::redact(text));
}

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    server: Server,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List, create and revoke the tokens with which people and programs sign in.
    Tokens(tokens::Arguments),
}

#[derive(clap::Args)]
struct Server {
    /// Address and port. On other addresses than loopback, tokens cross the network unencrypted:
    /// put a TLS proxy in front.
    #[arg(long, default_value = "127.0.0.1:8431", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The database: `postgresql://…` or a SQLite file. By default slackline.db in the state
    /// directory. Slackline uses no TLS to PostgreSQL: connect by local socket, loopback or tunnel.
    #[arg(long, value_name = "URL", env = "SLACKLINE_STORE")]
    store: Option<String>,
    /// Let workers on other hosts measure. This TOML file has a `[nats]` section, as in a worker's
    /// file.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_WORKERS")]
    workers: Option<PathBuf>,
    /// A host name by which clients or a proxy address this server (the Host header). Repeatable.
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
    /// Requests a second allowed on average for each token, or for each address without a token.
    /// Further requests get status 429.
    #[arg(long, default_value_t = 100.0, value_name = "N")]
    rate: f64,
    /// The address of a reverse proxy. The server trusts its X-Forwarded-For and X-Forwarded-Proto.
    /// Repeatable.
    #[arg(long = "trusted-proxy", value_name = "ADDRESS")]
    trusted_proxies: Vec<std::net::IpAddr>,
    /// The header in which a trusted proxy names the user, such as X-Forwarded-User. The proxy must
    /// remove this header from its clients' requests.
    #[arg(long, value_name = "NAME", requires = "trusted_proxies")]
    user_header: Option<String>,
    /// A user, as named by --user-header, who has the role write. All other users have the role
    /// read. Repeatable.
    #[arg(long = "writer", value_name = "USER", requires = "user_header")]
    writers: Vec<String>,
    /// Send webhooks and e-mail about events. docs/notifications.md describes this TOML file.
    #[arg(long, value_name = "FILE", env = "SLACKLINE_NOTIFY")]
    notify: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    match &arguments.verb {
        Some(Verb::Tokens(arguments)) => tokens::run(arguments, state_dir),
        None => run_server(&arguments.server, state_dir),
    }
}

fn run_server(arguments: &Server, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    ensure!(arguments.rate > 0.0, "--rate must be above 0");
    if !arguments.listen.ip().is_loopback() {
        message(&format!(
            "warning: other hosts can reach {}, and tokens cross the network unencrypted: put a TLS proxy in front, or listen \
             on 127.0.0.1 and use a tunnel",
            arguments.listen
        ));
    }
    let interrupt = Interrupt::on_signals().context("signals cannot be caught")?;
    let descriptors = crate::descriptors::raise_limit(Bounds::DESCRIPTORS);
    if descriptors < DESCRIPTORS_MIN {
        message(&format!(
            "warning: at most {descriptors} files may be open at once, and {DESCRIPTORS_MIN} are needed to measure beside a few \
             connections: raise the hard limit (`ulimit -Hn`, or `LimitNOFILE=` in the systemd unit)"
        ));
    }
    let state_dir = std::path::absolute(state_dir)?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&state_dir)
        .with_context(|| format!("{}", state_dir.display()))?;
    if let Some(store) = &arguments.store {
        let scheme = store.split_once("://").map_or("", |(scheme, _)| scheme);
        ensure!(
            ["", "postgresql", "postgres"].contains(&scheme),
            "--store {scheme}://…: a store is postgresql://…, or a SQLite file"
        );
    }
    let location = match &arguments.store {
        Some(text) => Location::parse(text),
        None => Location::Sqlite(state_dir.join("slackline.db")),
    };
    let config = arguments.workers.as_deref().map(ServerConfig::read);
    let config = config.transpose()?;
    let notify = arguments.notify.as_deref().map(Notifications::read);
    let notify = notify.transpose()?;
    let database = match &location {
        Location::Sqlite(path) => Some(path.as_path()),
        Location::Postgres(_) => None,
    };
    for mended in own_files::check(&state_dir, database)? {
        message(&mended);
    }
    let store = Store::open(&location)?;
    let mut coordinator = Coordinator::new(store, &state_dir);
    let office = match &config {
        Some(config) => {
            coordinator = coordinator.with_workers(config.lease());
            Some(CoordinatorEndpoint::open(config, &state_dir, message)?)
        }
        None => None,
    };
    let coordinator = Arc::new(coordinator);
    let giving_out = office.map(|office| give_out(Arc::clone(&coordinator), office));
    let giving_out = giving_out.transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the server cannot be started")?;
    let ended = runtime.block_on(serve(
        arguments,
        &state_dir,
        Arc::clone(&coordinator),
        interrupt,
        notify,
        descriptors,
    ));
    // PostgreSQL's client waits for its end, which it must not do inside the runtime: the last of
    // the store goes here.
    end(runtime);
    coordinator.end();
    if let Some(thread) = giving_out
        && thread.join().is_err()
    {
        message("the thread that gives experiments to workers has panicked");
    }
    drop(coordinator);
    ended
}

/// Ends the runtime. A request that takes long, such as the check of a large text or of a file that
/// nobody hands over, does not hold up the end.
fn end(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_timeout(REQUESTS_END);
}

/// Gives experiments to workers, in a thread of its own.
fn give_out(
    coordinator: Arc<Coordinator>,
    office: CoordinatorEndpoint,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    message(&format!(
        "workers check orders with this public key: {}; add it to coordinator_keys in each worker.toml",
        office.public_key()
    ));
    let thread = std::thread::Builder::new().name("workers".into());
    let thread = thread.spawn(move || {
        // Only one coordinator answers: the one that has the store.
        while !coordinator.is_active() && !coordinator.is_ending() {
            std::thread::sleep(LOOK);
        }
        let answering = Arc::downgrade(&coordinator);
        office.answer(Arc::new(move |request| match answering.upgrade() {
            Some(coordinator) => coordinator.answer(request),
            None => tuner::protocol::Reply::Trouble("the server is ending".into()),
        }));
        coordinator.run_workers(&Bus(&office), &message);
    });
    thread.context("the thread that gives experiments to workers cannot be started")
}

/// NATS, as the coordinator knows it.
struct Bus<'a>(&'a CoordinatorEndpoint);

impl coordinator::Bus for Bus<'_> {
    fn publish(&self, class: &str, order: &tuner::protocol::WorkOrder) -> Result<(), String> {
        self.0.publish(class, order)
    }
}

/// Says where the server answers. The token itself goes to a terminal, never to a log.
fn say_address(access: &Access, state_dir: &Path) {
    let address = &access.address;
    if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        // The one line that is meant to have a secret in it: `message` here would mask it.
        crate::output::message(&format!("http://{address}/?token={}", access.write_token));
    } else {
        message(&format!(
            "http://{address}/ (the tokens are in {})",
            state_dir.join("serve.json").display()
        ));
    }
}

/// Only one server of a state directory leaves its address for the command line, and says it: the
/// one that holds this lock. Another one waits until it is free.
fn publish_address(
    access: &Access,
    state_dir: &Path,
    coordinator: &Arc<Coordinator>,
) -> anyhow::Result<()> {
    let path = state_dir.join("serve.lock");
    let lock = std::fs::File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    let try_publish = move |access: &Access, state_dir: &Path| -> anyhow::Result<bool> {
        if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(false);
        }
        access.write(state_dir)?;
        // The lock is held until the process ends.
        std::mem::forget(lock.try_clone()?);
        Ok(true)
    };
    // A full disk keeps no server from restoring the host.
    let published = try_publish(access, state_dir)
        .or_else(|_| coordinator.lend_reserve(|| try_publish(access, state_dir)))?;
    if published {
        say_address(access, state_dir);
        return Ok(());
    }
    let holder = std::fs::File::open(&path).ok();
    let holder = holder.and_then(|file| host::lock_holder(&file));
    message(&format!(
        "another `slackline serve` uses {}{}: commands reach that one. This server waits until the other one ends, then takes over at \
         http://{}/ (Ctrl-C to give up)",
        state_dir.display(),
        holder.map_or_else(String::new, |pid| format!(" (pid {pid})")),
        access.address
    ));
    let (access, state_dir) = (access.clone(), state_dir.to_owned());
    let ending = Arc::downgrade(coordinator);
    let waiting = std::thread::Builder::new().name("address".into());
    waiting
        .spawn(move || {
            while ending.upgrade().is_some_and(|it| !it.is_ending()) {
                match try_publish(&access, &state_dir) {
                    Ok(false) => std::thread::sleep(LOOK),
                    Ok(true) => {
                        message("commands reach this server now");
                        return say_address(&access, &state_dir);
                    }
                    Err(error) => return message(&format!("{error:#}")),
                }
            }
        })
        .context("the thread that waits for another server cannot be started")?;
    Ok(())
}

async fn serve(
    arguments: &Server,
    state_dir: &Path,
    coordinator: Arc<Coordinator>,
    interrupt: Interrupt,
    notify: Option<Notifications>,
    descriptors: u64,
) -> anyhow::Result<CommandOutcome> {
    let listener = tokio::net::TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("the server cannot listen on {}", arguments.listen))?;
    let address = listener.local_addr()?;
    let access = Access::at(state_dir, &address.to_string(), &arguments.names)?;
    publish_address(&access, state_dir, &coordinator)?;
    let measuring = {
        let coordinator = Arc::clone(&coordinator);
        std::thread::Builder::new()
            .name("coordinator".into())
            .spawn(move || coordinator.run(&message))
            .context("the thread that measures cannot be started")?
    };
    let telling = notify.map(|notify| tell(notify, &coordinator, address.to_string()));
    let telling = telling.transpose()?;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let end = until_end(Arc::clone(&coordinator), interrupt.clone(), measuring);
    let (told, end_of_server) = tokio::sync::oneshot::channel::<()>();
    let options = DashboardOptions {
        rate: arguments.rate,
        bounds: Bounds::of_descriptors(descriptors),
        proxy: Proxy {
            trusted: arguments.trusted_proxies.clone(),
            user_header: arguments.user_header.clone(),
            writers: arguments.writers.clone(),
        },
        report: message,
        command: crate::state_dir::shell_command(state_dir),
    };
    let server = dashboard::serve(listener, Arc::clone(&coordinator), access, options, async {
        let _ = end_of_server.await;
    });
    let ending = async {
        let ended = end.await;
        let _ = told.send(());
        ended
    };
    let ((), ended) = tokio::join!(server, ending);
    if let Some(telling) = telling {
        let _ = tokio::task::spawn_blocking(move || telling.join()).await;
    }
    ended?;
    Ok(interrupt
        .signal()
        .map_or(CommandOutcome::Positive, CommandOutcome::Signal))
}

/// Tells receivers elsewhere, in a thread of its own.
fn tell(
    notify: Notifications,
    coordinator: &Arc<Coordinator>,
    address: String,
) -> anyhow::Result<std::thread::JoinHandle<()>> {
    let coordinator = Arc::clone(coordinator);
    let thread = std::thread::Builder::new().name("notify".into());
    let thread = thread.spawn(move || notify.run(&coordinator, &address, &message));
    thread.context("the thread that sends notifications cannot be started")
}

/// Waits for a signal, or for the coordinator to give up; then until everything is restored.
async fn until_end(
    coordinator: Arc<Coordinator>,
    interrupt: Interrupt,
    measuring: std::thread::JoinHandle<Result<(), coordinator::Error>>,
) -> anyhow::Result<()> {
    let watchdog = sd_notify::watchdog_enabled();
    let mut told = std::time::Instant::now();
    while interrupt.signal().is_none() && !measuring.is_finished() {
        tokio::time::sleep(LOOK).await;
        // A third of what systemd waits for; a store that does not answer keeps us from telling.
        if let Some(limit) = watchdog
            && told.elapsed() > limit / 3
        {
            let store = Arc::clone(&coordinator);
            let asked = tokio::task::spawn_blocking(move || store.is_alive()).await;
            if asked.unwrap_or(false) {
                let _ = sd_notify::notify(&[NotifyState::Watchdog]);
                told = std::time::Instant::now();
            }
        }
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    coordinator.end();
    let ended = tokio::task::spawn_blocking(move || measuring.join()).await?;
    match ended {
        Ok(ended) => Ok(ended?),
        Err(_) => {
            anyhow::bail!("the thread that measures has panicked: run `slackline restore`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_never_ends_does_not_hold_up_the_end() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (begun, has_begun) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            begun.send(()).unwrap();
            std::thread::sleep(Duration::from_secs(600));
        });
        has_begun.recv().unwrap();
        let told = std::time::Instant::now();
        end(runtime);
        assert!(told.elapsed() < REQUESTS_END + Duration::from_secs(20));
    }
}
