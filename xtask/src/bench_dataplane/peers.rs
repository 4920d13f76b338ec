//! The servers that are compared, and how each is started.

use super::measure::{Bench, Start};
use super::servers::{INTERFACE, PORT, SERVER};

impl Bench {
    pub(super) fn echo_servers(&self) -> anyhow::Result<Vec<Start<'static>>> {
        let address = format!("{SERVER}:{PORT}");
        let example = |name: &str, arguments: &[&str]| {
            let mut words = vec![self.example(name)];
            words.extend(arguments.iter().map(|word| (*word).to_owned()));
            words
        };
        Ok(vec![
            ("nginx", self.nginx()?),
            ("epoll", example("echo_peer", &["epoll", &address, "0"])),
            (
                "epoll-spin",
                example("echo_peer", &["epoll-spin", &address, "0"]),
            ),
            ("io_uring", example("echo_peer", &["uring", &address, "0"])),
            ("dataplane", example("echo", &[&address, "0", "spin"])),
            ("dataplane sqpoll", self.submission_thread()?),
            (
                "dataplane xdp",
                example("echo_server", &["xdp", INTERFACE, &address, "0", "spin"]),
            ),
        ])
    }

    /// The runtime with a submission thread of the kernel. The thread has the third CPU, where
    /// there is one. Else it shares the server's, and the shard sleeps when it has nothing to do.
    fn submission_thread(&self) -> anyhow::Result<Vec<String>> {
        let (idle, setting) = match std::thread::available_parallelism()?.get() {
            0..=2 => ("learn", "sqpoll=0"),
            _ => ("spin", "sqpoll=2"),
        };
        Ok(self.uring_server(&[idle, setting]))
    }

    /// The runtime's echo server on io_uring with settings.
    pub(super) fn uring_server(&self, more: &[&str]) -> Vec<String> {
        let address = format!("{SERVER}:{PORT}");
        let mut words = vec![
            self.example("echo_server"),
            "uring".into(),
            address,
            "0".into(),
        ];
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    }

    /// nginx in one process that answers from its configuration: what a usual server does.
    fn nginx(&self) -> anyhow::Result<Vec<String>> {
        let path = self.target.join("bench-nginx.conf");
        // nginx removes the file of its process ID when it ends.
        let pid = path.with_extension("pid").display().to_string();
        let text = format!(
            "daemon off; master_process off; pid {pid}; error_log stderr emerg;\n\
             events {{ worker_connections 12000; multi_accept on; }}\n\
             http {{ access_log off; keepalive_requests 100000000;\n\
             server {{ listen {SERVER}:{PORT} backlog=4096; location / {{ return 200 \"END\\r\\n\"; }} }} }}\n"
        );
        std::fs::write(&path, text)?;
        Ok(pinned(&format!("nginx -c {}", path.display())))
    }

    /// The runtime's cache with 1 GiB on CPU 0. `setting` is a variable of its environment, or
    /// empty.
    pub(super) fn cache_server(&self, setting: &str, more: &[&str]) -> Vec<String> {
        let (cache, address) = (self.example("cache"), format!("{SERVER}:{PORT}"));
        let mut words: Vec<String> = Vec::new();
        if !setting.is_empty() {
            words.extend(["env".into(), setting.into()]);
        }
        words.extend([cache, address, "1024".into(), "0".into()]);
        words.extend(more.iter().map(|word| (*word).to_owned()));
        words
    }

    pub(super) fn cache_servers(&self) -> Vec<Start<'static>> {
        let cache = |more: &[&str]| self.cache_server("", more);
        vec![
            (
                "memcached",
                pinned(&format!(
                    "memcached -t 1 -m 1024 -c 16384 -u nobody -l {SERVER} -p {PORT}"
                )),
            ),
            (
                "redis",
                pinned(&format!(
                    "redis-server --bind {SERVER} --protected-mode no --port {PORT} --save  --appendonly no --maxclients 15000"
                )),
            ),
            ("serve-cache", cache(&["learn"])),
            ("serve-cache spin", cache(&["spin"])),
            ("serve-cache xdp", cache(&["learn", INTERFACE])),
            ("serve-cache xdp spin", cache(&["spin", INTERFACE])),
        ]
    }
}

/// A command on the servers' CPU.
pub(super) fn pinned(command: &str) -> Vec<String> {
    let words = format!("taskset -c 0 {command}");
    words.split(' ').map(str::to_owned).collect()
}

/// The shape of the load for a server of the part `echo`.
pub(super) fn echo_shape(server: &str) -> &'static str {
    match server {
        "nginx" => "http",
        _ => "echo",
    }
}

/// The shape of the load for a cache: Redis has commands of its own.
pub(super) fn cache_shape(server: &str, shape: &str) -> String {
    match server {
        "redis" => format!("redis-{shape}"),
        _ => shape.to_owned(),
    }
}
