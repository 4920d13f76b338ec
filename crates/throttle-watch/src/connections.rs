//! Which processes hold connections of clients, by the kernel's tables of sockets: a request on
//! such a connection waits for its process, even while another one is idle.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use host::Roots;
use throttle::{JobQueue, ThreadPool};
use wire_latency::{TcpSocket, TcpState, tcp_sockets};

use crate::runtimes::has_threads;

/// The flag of a Unix socket that listens (include/linux/net.h, `__SO_ACCEPTCON`), and the state of
/// one that is connected (include/uapi/linux/net.h, `SS_CONNECTED`).
const UNIX_LISTENS: u64 = 1 << 16;
const UNIX_CONNECTED: &str = "03";

/// Programs that refuse a connection for which there is no process. So their clients keep a pool of
/// connections, and wait there.
const WITH_POOLED_CLIENTS: [&str; 1] = ["postgres"];

/// The connections of clients that each process was seen to hold.
#[derive(Debug, Default)]
pub(crate) struct ClientConnections {
    processes: HashMap<u32, Held>,
}

#[derive(Debug, Default)]
struct Held {
    last: HashSet<u64>,
    /// The most at once.
    most: usize,
    /// Whether one was there in two looks, one after the other.
    is_kept: bool,
}

impl Held {
    fn look(&mut self, now: HashSet<u64>) {
        self.most = self.most.max(now.len());
        self.is_kept |= !self.last.is_disjoint(&now);
        self.last = now;
    }
}

impl ClientConnections {
    /// Takes in what these processes hold now. Two looks should be further apart than a request
    /// takes.
    pub(crate) fn look(&mut self, roots: &Roots, pids: &[u32]) {
        // Processes of one network namespace have the same tables.
        let mut of_namespaces: HashMap<Option<PathBuf>, HashSet<u64>> = HashMap::new();
        for pid in pids {
            let namespace = std::fs::read_link(roots.proc(format!("{pid}/ns/net"))).ok();
            let accepted = of_namespaces
                .entry(namespace)
                .or_insert_with(|| accepted(roots, *pid));
            let mut held = sockets(roots, *pid);
            held.retain(|inode| accepted.contains(inode));
            self.processes.entry(*pid).or_default().look(held);
        }
    }

    /// Says of each pool of processes which of them may take a request.
    pub(crate) fn set_queues(&self, roots: &Roots, pools: &mut [ThreadPool]) {
        for pool in pools.iter_mut().filter(|pool| pool.processes > 1) {
            pool.queue = self.queue_of(roots, &pool.name);
        }
    }

    fn queue_of(&self, roots: &Roots, pool: &str) -> JobQueue {
        let holders = self.processes.iter().filter(|(_, held)| held.most > 0);
        let holders = holders.filter(|(pid, _)| has_threads(roots, **pid, pool));
        let holders: Vec<&Held> = holders.map(|(_, held)| held).collect();
        let kept = holders.iter().filter(|held| held.is_kept).count();
        if holders.iter().any(|held| held.most > 1) {
            JobQueue::PerProcess
        } else if kept > holders.len() / 2 && !WITH_POOLED_CLIENTS.contains(&pool) {
            JobQueue::PerConnection
        } else {
            JobQueue::Shared
        }
    }
}

/// The inodes of a process's sockets.
fn sockets(roots: &Roots, pid: u32) -> HashSet<u64> {
    let files = std::fs::read_dir(roots.proc(format!("{pid}/fd")));
    let files = files.into_iter().flatten().flatten();
    let inode = |file: std::fs::DirEntry| {
        let link = std::fs::read_link(file.path()).ok()?;
        let inode = link.to_str()?.strip_prefix("socket:[")?;
        inode.strip_suffix(']')?.parse().ok()
    };
    files.filter_map(inode).collect()
}

/// The inodes of all connections that were accepted in the network namespace of a process.
fn accepted(roots: &Roots, pid: u32) -> HashSet<u64> {
    let read = |table: &str| {
        let path = roots.proc(format!("{pid}/net/{table}"));
        // A kernel without IPv6 has no second table.
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let mut found = accepted_by_tcp(&(read("tcp") + &read("tcp6")));
    found.extend(accepted_by_unix(&read("unix")));
    found
}

/// Connections whose local port is that of a listener.
fn accepted_by_tcp(tables: &str) -> HashSet<u64> {
    let sockets: Vec<TcpSocket> = tcp_sockets(tables).collect();
    let of_state = |state| sockets.iter().filter(move |socket| socket.state == state);
    let listened: HashSet<u16> = of_state(TcpState::Listening)
        .map(|socket| socket.port)
        .collect();
    of_state(TcpState::Established)
        .filter(|socket| listened.contains(&socket.port))
        .map(|socket| socket.inode)
        .collect()
}

/// Connections that have the path of a listener, as accepted ones do (proc_net_unix(5)).
fn accepted_by_unix(table: &str) -> HashSet<u64> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags = u64::from_str_radix(words.get(3)?, 16).ok()?;
        let inode = words.get(6)?.parse().ok()?;
        let path = (*words.get(7)?).to_owned();
        Some((flags, words[5] == UNIX_CONNECTED, inode, path))
    };
    let rows: Vec<(u64, bool, u64, String)> = table.lines().filter_map(row).collect();
    let listens = |flags: u64| flags & UNIX_LISTENS != 0;
    let listened: HashSet<&String> = rows
        .iter()
        .filter(|row| listens(row.0))
        .map(|row| &row.3)
        .collect();
    rows.iter()
        .filter(|row| row.1 && listened.contains(&row.3))
        .map(|row| row.2)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use throttle::Work;

    use super::*;

    const LISTENER: u64 = 1;

    /// A process with its sockets, as `/proc` shows it.
    fn process(root: &Path, pid: u32, name: &str, sockets: &[u64]) {
        let process = root.join(format!("proc/{pid}"));
        // As it was before.
        let _ = std::fs::remove_dir_all(&process);
        let thread = process.join(format!("task/{pid}"));
        std::fs::create_dir_all(&thread).unwrap();
        std::fs::write(thread.join("comm"), format!("{name}\n")).unwrap();
        std::fs::create_dir_all(process.join("fd")).unwrap();
        symlink("/dev/null", process.join("fd/0")).unwrap();
        for (at, inode) in sockets.iter().enumerate() {
            let file = process.join(format!("fd/{}", at + 3));
            symlink(format!("socket:[{inode}]"), file).unwrap();
        }
    }

    /// Writes a table of sockets for these processes.
    fn table(root: &Path, pids: &[u32], name: &str, lines: &[String]) {
        for pid in pids {
            let net = root.join(format!("proc/{pid}/net"));
            std::fs::create_dir_all(&net).unwrap();
            std::fs::write(net.join(name), lines.join("\n")).unwrap();
        }
    }

    fn tcp(port: u16, state: &str, inode: u64) -> String {
        format!(
            "   0: 0100007F:{port:04X} 0100007F:C001 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0"
        )
    }

    /// A listener on port 8000, connections accepted there, and some that the service has opened.
    fn tcp_table(accepted: &[u64], opened: &[u64]) -> Vec<String> {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt";
        let mut lines = vec![head.to_owned(), tcp(8000, "0A", LISTENER)];
        lines.extend(accepted.iter().map(|inode| tcp(8000, "01", *inode)));
        lines.extend(opened.iter().map(|inode| tcp(40_000, "01", *inode)));
        lines
    }

    /// The queue of a pool whose threads have this name, after two looks.
    fn queue_of(root: &Path, pids: &[u32], pool: &str) -> JobQueue {
        let roots = Roots::at(root);
        let mut connections = ClientConnections::default();
        connections.look(&roots, pids);
        connections.look(&roots, pids);
        connections.queue_of(&roots, pool)
    }

    /// The queue of two workers with these sockets; the master has the listener.
    fn of_workers(
        name: &str,
        pool: &str,
        sockets: [&[u64]; 2],
        table_lines: &[String],
    ) -> JobQueue {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), 10, name, &[LISTENER]);
        process(dir.path(), 11, name, sockets[0]);
        process(dir.path(), 12, name, sockets[1]);
        table(dir.path(), &[10, 11, 12], "tcp", table_lines);
        queue_of(dir.path(), &[10, 11, 12], pool)
    }

    #[test]
    fn gunicorn_accepts_a_connection_for_each_request() {
        let dir = tempfile::tempdir().unwrap();
        let (root, roots) = (dir.path(), Roots::at(dir.path()));
        let mut connections = ClientConnections::default();
        for (first, second) in [(21, 22), (23, 24)] {
            process(root, 11, "gunicorn", &[LISTENER, first]);
            process(root, 12, "gunicorn", &[LISTENER, second]);
            table(root, &[11, 12], "tcp", &tcp_table(&[first, second], &[]));
            connections.look(&roots, &[11, 12]);
        }
        assert_eq!(connections.queue_of(&roots, "gunicorn"), JobQueue::Shared);
    }

    #[test]
    fn a_worker_that_keeps_its_only_connection_is_of_no_use_to_others() {
        let sockets: [&[u64]; 2] = [&[LISTENER, 21], &[LISTENER]];
        let queue = of_workers("httpd", "httpd", sockets, &tcp_table(&[21], &[]));
        assert_eq!(queue, JobQueue::PerConnection);
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), 11, "httpd", &[LISTENER, 21]);
        table(dir.path(), &[11], "tcp", &tcp_table(&[21], &[]));
        let roots = Roots::at(dir.path());
        let mut connections = ClientConnections::default();
        connections.look(&roots, &[11]);
        connections.look(&roots, &[11]);
        let pool = |processes| ThreadPool {
            name: "httpd".to_owned(),
            threads: 2,
            processes,
            setting: None,
            set_by: None,
            queue: JobQueue::Shared,
            work: Work::Recorded(Vec::new()),
        };
        let mut pools = [pool(2), pool(1)];
        connections.set_queues(&roots, &mut pools);
        let queues = pools.map(|pool| pool.queue);
        assert_eq!(queues, [JobQueue::PerConnection, JobQueue::Shared]);
    }

    #[test]
    fn uvicorns_workers_hold_their_connections() {
        let sockets: [&[u64]; 2] = [&[LISTENER, 21, 22], &[LISTENER, 23]];
        let accepted = tcp_table(&[21, 22, 23], &[]);
        let queue = of_workers("python3", "python*", sockets, &accepted);
        assert_eq!(queue, JobQueue::PerProcess);
    }

    #[test]
    fn a_node_cluster_hands_connections_to_its_workers() {
        // The workers have no listener. Their sockets to the master have no name.
        let sockets: [&[u64]; 2] = [&[5, 21, 22], &[6, 23, 24]];
        let accepted = tcp_table(&[21, 22, 23, 24], &[]);
        let queue = of_workers("node", "node", sockets, &accepted);
        assert_eq!(queue, JobQueue::PerProcess);
    }

    #[test]
    fn pumas_threads_serve_the_connections_of_their_process() {
        let sockets: [&[u64]; 2] = [&[LISTENER, 21, 22], &[LISTENER, 23, 24]];
        let accepted = tcp_table(&[21, 22, 23, 24], &[]);
        let queue = of_workers("puma srv tp 001", "puma srv tp *", sockets, &accepted);
        assert_eq!(queue, JobQueue::PerProcess);
        // A thread waits a while for the next request of its connection.
        let sockets: [&[u64]; 2] = [&[LISTENER, 21], &[LISTENER, 23]];
        let queue = of_workers("puma srv tp 001", "puma srv tp *", sockets, &accepted);
        assert_eq!(queue, JobQueue::PerConnection);
    }

    #[test]
    fn nginx_holds_clients_and_its_own_connections_do_not_count() {
        let (clients, own) = ([21, 22, 23], [31, 32, 33]);
        let sockets: [&[u64]; 2] = [&[LISTENER, 21, 22, 31], &[LISTENER, 23, 32, 33]];
        let queue = of_workers("nginx", "nginx", sockets, &tcp_table(&clients, &own));
        assert_eq!(queue, JobQueue::PerProcess);
        let sockets: [&[u64]; 2] = [&[LISTENER, 21, 31, 32], &[LISTENER, 33]];
        let queue = of_workers("nginx", "nginx", sockets, &tcp_table(&clients, &own));
        assert_eq!(queue, JobQueue::PerConnection);
    }

    #[test]
    fn clients_of_postgresql_wait_in_their_own_pool() {
        let dir = tempfile::tempdir().unwrap();
        let path = "/run/postgresql/.s.PGSQL.5432";
        let unix = |flags: &str, state: &str, inode: u64, path: &str| {
            format!("0000000000000000: 00000003 00000000 {flags} 0001 {state} {inode} {path}")
        };
        let lines = [
            "Num       RefCount Protocol Flags    Type St Inode Path".to_owned(),
            unix("00010000", "01", LISTENER, path),
            unix("00000000", UNIX_CONNECTED, 21, path),
            unix("00000000", UNIX_CONNECTED, 22, path),
            // Of the client.
            unix("00000000", UNIX_CONNECTED, 31, ""),
            // To a log.
            unix("00000000", UNIX_CONNECTED, 41, "/run/other"),
        ];
        process(dir.path(), 10, "postgres", &[LISTENER]);
        process(dir.path(), 11, "postgres", &[21, 41]);
        process(dir.path(), 12, "postgres", &[22]);
        table(dir.path(), &[10, 11, 12], "unix", &lines);
        let queue = || queue_of(dir.path(), &[10, 11, 12], "postgres");
        assert_eq!(queue(), JobQueue::Shared);
        // An event loop behind a Unix socket holds several.
        process(dir.path(), 13, "postgres", &[21, 22]);
        table(dir.path(), &[13], "unix", &lines);
        let queue = queue_of(dir.path(), &[10, 11, 12, 13], "postgres");
        assert_eq!(queue, JobQueue::PerProcess);
    }

    #[test]
    fn a_process_that_is_gone_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(queue_of(dir.path(), &[7], "node"), JobQueue::Shared);
    }
}
