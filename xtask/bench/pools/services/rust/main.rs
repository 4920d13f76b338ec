//! A service on Tokio's threads, of which there are `TOKIO_WORKER_THREADS`. A request checks a
//! password: about 2 ms of CPU time, and ten times that for every tenth one.

use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use pbkdf2::pbkdf2_hmac;
use sha2::Sha256;

static REQUESTS: AtomicU32 = AtomicU32::new(0);

async fn login() -> String {
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let rounds = if number % 10 == 9 { 40_000 } else { 4000 };
    let mut key = [0; 32];
    pbkdf2_hmac::<Sha256>(b"password", b"salt", rounds, &mut key);
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = std::env::var("PORT")?;
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    axum::serve(listener, Router::new().route("/", get(login))).await?;
    Ok(())
}
