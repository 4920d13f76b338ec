//! A service in a network namespace of its own: its packets are read there.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wire_latency::{Monitor, SourceSpec, Surroundings, WindowRules, WireSpec};

/// Ends what it started.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SCRIPT: &str = "ip link set lo up 2>/dev/null || ifconfig lo up
exec python3 -c '
import socket, threading, time
server = socket.socket(); server.bind((\"127.0.0.1\", 8080)); server.listen()
def serve():
    peer = server.accept()[0]
    while peer.recv(1000):
        time.sleep(0.005)
        peer.send(b\"HTTP/1.1 200 OK\\r\\n\\r\\n\")
threading.Thread(target=serve, daemon=True).start()
client = socket.create_connection((\"127.0.0.1\", 8080))
while True:
    client.send(b\"GET / HTTP/1.1\\r\\n\\r\\n\")
    client.recv(1000)
'";

#[test]
fn packets_are_read_in_the_namespace_of_the_service() {
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-c", SCRIPT])
        .stderr(Stdio::null());
    let service = match command.spawn() {
        Ok(service) => Started(service),
        Err(error) => {
            println!("SKIP: unshare: {error}");
            return;
        }
    };
    let surroundings = Surroundings {
        pid: Some(service.0.id()),
        ..Surroundings::default()
    };
    let rules = WindowRules {
        minimum_requests: 10,
        ..WindowRules::default()
    };
    let spec = SourceSpec::Wire(WireSpec::of_port(8080));
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut monitor = None;
    loop {
        // Until the process has unshared, its namespace is ours, where nobody listens on the port.
        if monitor.is_none() || Instant::now() + Duration::from_secs(25) < deadline {
            match Monitor::start(&spec, &surroundings, rules, Duration::from_millis(50)) {
                Err(error) if error.is_missing_privilege() => {
                    assert!(std::env::var_os("SLACKLINE_CI").is_none(), "{error}");
                    println!("SKIP: {error}");
                    return;
                }
                opened => monitor = opened.ok(),
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        if let Some(Ok(reading)) = monitor.as_ref().map(Monitor::look) {
            let median = reading.percentile(50.0).unwrap();
            assert!(median.value_us >= 5000.0, "{median:?}");
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{:?}",
            monitor.map(|monitor| monitor.look().err())
        );
        monitor = monitor.filter(|monitor| {
            !matches!(
                monitor.look(),
                Err(wire_latency::NoData::NobodyListens { .. })
            )
        });
    }
}
