//! The generator does not allocate for a request: that would be most of what a request costs it.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use load::{Endpoint, LoadPlan, LoadReport, Pace, run};

struct Counted;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is passed on to `System`, which keeps the promises.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises about the layout are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer comes from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the pointer comes from `System.alloc` with this layout, and the caller promises
        // that the size is above 0 and no overflow.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Answers what comes in one piece, on each connection, without an allocation of its own.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                while stream.read(&mut request).is_ok_and(|length| length > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// A closed loop of so many seconds, and how often it allocated.
fn loaded(url: &str, seconds: f64) -> (LoadReport, u64) {
    let endpoint = Endpoint::parse(url).unwrap();
    let plan = LoadPlan {
        connections: 4,
        repeat_max: Some(Duration::ZERO),
        ..LoadPlan::get(endpoint, Pace::Closed, Duration::from_secs_f64(seconds))
    };
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let report = run(&plan, &|| false).unwrap();
    (report, ALLOCATIONS.load(Ordering::Relaxed) - before)
}

/// A second more has thousands of requests more, and the generator's look at the machine once.
#[test]
fn a_request_costs_no_allocation() {
    let url = server();
    let (short, of_short) = loaded(&url, 0.5);
    let (long, of_long) = loaded(&url, 2.5);
    assert_eq!((short.errors, long.errors), (0, 0), "{long:?}");
    let requests = long.requests - short.requests;
    let allocations = of_long.saturating_sub(of_short);
    assert!(requests > 1000, "{requests}");
    assert!(
        allocations < requests / 4,
        "{allocations} allocations for {requests} requests"
    );
}
