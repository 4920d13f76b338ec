//! Accepts connections, and bounds what they can hold up.
//!
//! A request's headers must arrive in time, and so must each part of its body. There are so many
//! connections at the most that enough
//! descriptors stay for measuring. A connection beyond that takes the place of the one that has
//! been without a whole request for longest, so half-sent requests lock nobody out, whether headers
//! or body are missing. At the end, requests under way get a short time, and everything else is cut
//! off.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::StatusCode;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::ServiceExt as _;

use crate::lock::lock;

/// Requests under way get that long at the end.
const END_MAX: Duration = Duration::from_secs(3);
/// How soon to accept again when the process has no descriptor left.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Connections at once, at the least and at the most.
const CONNECTIONS_MIN: u64 = 8;
const CONNECTIONS_MAX: u64 = 512;
/// Descriptors that no connection takes: those of the store, the journal and one evaluation.
const FOR_MEASURING: u64 = 64;

/// How connections are bounded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// How long the headers of a request may take, and each part of its body. An idle connection is
    /// closed after that time, too.
    pub arrival: Duration,
}

impl Bounds {
    /// As many descriptors are enough for the most connections.
    pub const DESCRIPTORS: u64 = 2 * CONNECTIONS_MAX;

    /// Half the descriptors that the process may have at the most: the others are for measuring.
    #[must_use]
    pub fn of_descriptors(limit: u64) -> Self {
        let left = limit.saturating_sub(FOR_MEASURING).min(limit / 2);
        let connections = left.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
        Self {
            connections: usize::try_from(connections).unwrap_or(usize::MAX),
            arrival: Duration::from_secs(15),
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// One connection, for whoever has to choose one to close.
struct Connection {
    task: JoinHandle<()>,
    state: Arc<Activity>,
}

/// What a connection is at.
#[derive(Default)]
struct Activity {
    /// Requests that are here whole, and whose answers have not begun.
    under_way: AtomicUsize,
    /// It has sent a whole request before.
    was_used: AtomicBool,
    /// When it sent one last, in the order of all.
    last: AtomicU64,
}

/// Counts a request as under way, from when it is here whole.
struct UnderWay {
    state: Arc<Activity>,
    is_counted: AtomicBool,
}

impl UnderWay {
    fn count(&self) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.state.under_way.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if *self.is_counted.get_mut() {
            self.state.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Why a request's body did not arrive whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Broken(Arc<OnceLock<(StatusCode, &'static str)>>);

impl Broken {
    const STALLED: (StatusCode, &'static str) = (
        StatusCode::REQUEST_TIMEOUT,
        "the body of the request stopped arriving: send the request again",
    );
    const CUT: (StatusCode, &'static str) = (
        StatusCode::BAD_REQUEST,
        "the connection ended before the whole body of the request had arrived, so nothing was done: send the request again",
    );

    /// The status of the answer, and what is said.
    pub(crate) fn why(&self) -> Option<(StatusCode, &'static str)> {
        self.0.get().copied()
    }
}

/// A request's body, which says when it is whole.
struct Arriving {
    body: Incoming,
    request: std::sync::Weak<UnderWay>,
    part_max: Duration,
    /// Until the next part is late.
    waiting: Option<Pin<Box<tokio::time::Sleep>>>,
    broken: Broken,
}

impl HttpBody for Arriving {
    type Data = <Incoming as HttpBody>::Data;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.body.is_end_stream() || matches!(frame, Poll::Ready(None)) {
            self.request.upgrade().inspect(|request| request.count());
        }
        if frame.is_ready() {
            self.waiting = None;
            if matches!(frame, Poll::Ready(Some(Err(_)))) {
                let _ = self.broken.0.set(Broken::CUT);
            }
            return frame.map_err(Into::into);
        }
        let part_max = self.part_max;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(part_max)));
        if waiting.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        let _ = self.broken.0.set(Broken::STALLED);
        Poll::Ready(Some(Err("the body stopped arriving".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Every connection has a request under way.
struct AllBusy;

/// The open connections by number.
#[derive(Default)]
struct Open(Mutex<BTreeMap<u64, Connection>>);

impl Open {
    fn map<T>(&self, work: impl FnOnce(&mut BTreeMap<u64, Connection>) -> T) -> T {
        work(&mut lock(&self.0))
    }

    /// Makes room for one more: closes a connection that has never sent a whole request, else one
    /// without a request under way. Its descriptor is free then.
    async fn make_room(&self, most: usize) -> bool {
        match self.to_close(most) {
            Ok(None) => true,
            Ok(Some(oldest)) => {
                oldest.task.abort();
                let _ = oldest.task.await;
                true
            }
            Err(AllBusy) => false,
        }
    }

    /// The connection to close for another one, if there have to be fewer.
    fn to_close(&self, most: usize) -> Result<Option<Connection>, AllBusy> {
        self.map(|all| {
            if all.len() < most {
                return Ok(None);
            }
            let idle = all
                .iter()
                .filter(|(_, connection)| connection.state.under_way.load(Ordering::Relaxed) == 0);
            let oldest = idle.min_by_key(|(number, connection)| {
                let state = &connection.state;
                let last = state.last.load(Ordering::Relaxed).max(**number);
                (state.was_used.load(Ordering::Relaxed), last)
            });
            let number = oldest.map(|(number, _)| *number).ok_or(AllBusy)?;
            Ok(all.remove(&number))
        })
    }
}

/// Serves until `end` is ready, then finishes what has been asked.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    end: impl Future<Output = ()>,
) {
    let open = Arc::new(Open::default());
    let graceful = GracefulShutdown::new();
    let order = Arc::new(AtomicU64::new(0));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(bounds.arrival);
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            () = &mut end => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        if !open.make_room(bounds.connections).await {
            continue;
        }
        let number = order.fetch_add(1, Ordering::Relaxed);
        let state = Arc::new(Activity::default());
        let service = {
            let (router, state, order) = (router.clone(), Arc::clone(&state), Arc::clone(&order));
            hyper::service::service_fn(move |request: Request<Incoming>| {
                let now = order.fetch_add(1, Ordering::Relaxed);
                state.last.store(now, Ordering::Relaxed);
                state.was_used.store(true, Ordering::Relaxed);
                let under_way = Arc::new(UnderWay {
                    state: Arc::clone(&state),
                    is_counted: AtomicBool::new(false),
                });
                if request.body().is_end_stream() {
                    under_way.count();
                }
                let broken = Broken::default();
                let mut request = request.map(|body| {
                    axum::body::Body::new(Arriving {
                        body,
                        request: Arc::downgrade(&under_way),
                        part_max: bounds.arrival,
                        waiting: None,
                        broken: broken.clone(),
                    })
                });
                request.extensions_mut().insert(Peer(peer));
                request.extensions_mut().insert(broken);
                let router = router.clone();
                async move {
                    let answer = router.oneshot(request).await;
                    drop(under_way);
                    answer
                }
            })
        };
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let watched = graceful.watch(connection);
        let of_task = Arc::clone(&open);
        let task = tokio::spawn(async move {
            // What a client does wrong ends its connection, and nothing else.
            let _ = watched.await;
            of_task.map(|all| all.remove(&number));
        });
        open.map(|all| all.insert(number, Connection { task, state }));
    }
    drop(listener);
    let _ = tokio::time::timeout(END_MAX, graceful.shutdown()).await;
    open.map(|all| {
        for connection in all.values() {
            connection.task.abort();
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Instant;

    use axum::routing::{get, post};

    use super::*;

    /// A server with these bounds that is told to end after `work`; how long its end took.
    fn with_server(bounds: Bounds, work: impl FnOnce(SocketAddr)) -> Duration {
        let (told, end) = tokio::sync::oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let router = Router::new()
                .route("/", get(|| async { "hello" }))
                .route("/form", post(|form: String| async { form }));
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                serve(listener, router, bounds, async {
                    let _ = end.await;
                })
                .await;
            });
        });
        work(address);
        let start = Instant::now();
        told.send(()).unwrap();
        serving.join().unwrap();
        start.elapsed()
    }

    fn half_sent(address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap();
        let limit = Some(Duration::from_secs(10));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    fn asks(address: SocketAddr) -> String {
        let mut stream = half_sent(address);
        stream.write_all(b"Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn half_sent_requests_lock_nobody_out_and_hold_up_no_end() {
        let bounds = Bounds {
            connections: 8,
            arrival: Duration::from_secs(60),
        };
        let mut half = Vec::new();
        let end = with_server(bounds, |address| {
            half.extend((0..40).map(|_| half_sent(address)));
            assert!(asks(address).ends_with("hello"));
        });
        assert!(end < END_MAX + Duration::from_secs(5), "{end:?}");
    }

    #[test]
    fn half_sent_bodies_lock_nobody_out() {
        let bounds = Bounds {
            connections: 8,
            arrival: Duration::from_secs(60),
        };
        let mut half = Vec::new();
        with_server(bounds, |address| {
            half.extend((0..40).map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .write_all(
                        b"POST /form HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\ntoken=",
                    )
                    .unwrap();
                stream
            }));
            std::thread::sleep(Duration::from_millis(200));
            assert!(asks(address).ends_with("hello"));
        });
    }

    #[test]
    fn the_headers_of_a_request_must_arrive_in_time() {
        let bounds = Bounds {
            connections: 8,
            arrival: Duration::from_millis(300),
        };
        with_server(bounds, |address| {
            let start = Instant::now();
            let mut stream = half_sent(address);
            let mut answer = Vec::new();
            // It is closed, with or without an answer.
            let _ = stream.read_to_end(&mut answer);
            let took = start.elapsed();
            assert!(took > Duration::from_millis(200), "{took:?}");
            assert!(took < Duration::from_secs(8), "{took:?}");
        });
    }

    #[test]
    fn each_part_of_a_body_must_arrive_in_time() {
        let bounds = Bounds {
            connections: 8,
            arrival: Duration::from_millis(1500),
        };
        with_server(bounds, |address| {
            let sends = |parts: usize| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .set_read_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                let head = "POST /form HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\n\r\n";
                stream.write_all(head.as_bytes()).unwrap();
                for _ in 0..parts {
                    stream.write_all(b"x").unwrap();
                    std::thread::sleep(Duration::from_millis(200));
                }
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                answer
            };
            // Eight parts in 1.6 s are slow, and none is late.
            assert!(sends(8).starts_with("HTTP/1.1 200"));
            let start = Instant::now();
            assert!(sends(3).starts_with("HTTP/1.1 400"));
            assert!(start.elapsed() > Duration::from_millis(1800));
        });
    }

    #[test]
    fn half_the_descriptors_are_for_measuring() {
        for (limit, connections) in [(1_048_576, 512), (1024, 512), (256, 128), (96, 32), (4, 8)] {
            assert_eq!(Bounds::of_descriptors(limit).connections, connections);
        }
    }
}
