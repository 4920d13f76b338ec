//! A server in this process or in one of its own, and a client that may send anything.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses a part of this"
)]

#[expect(clippy::print_stdout, reason = "a skipped test says why")]
#[path = "../../../dataplane/tests/support/shards.rs"]
mod shards;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use block_server::config::BlockConfig;
use block_server::export;
use block_server::nvme::controller::Subsystem;
use block_server::server::{BlockService, Shared};
use block_server::tls::ServerTls;
use dataplane::groups::group_of;
use dataplane::shard::Plane;
use dataplane::uring::{Uring, UringConfig, listen};

use shards::start_shards;

/// Variable that makes this test program a server.
const SERVER_VARIABLE: &str = "SLACKLINE_BLOCK_SERVER";

pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A server in threads of this process.
pub struct Server {
    plane: Arc<Plane<Uring, BlockService>>,
    pub shared: Arc<Shared>,
    pub address: SocketAddr,
    /// Where NVMe/TCP is served, if the configuration has it.
    pub nvme: Option<SocketAddr>,
    threads: Vec<JoinHandle<Option<()>>>,
}

/// Starts a server of `config`. `None` without io_uring.
pub fn start(shards: u8, memory_bytes: usize, config: &str) -> Option<Server> {
    let config = BlockConfig::parse(Path::new("test.toml"), config).unwrap();
    let exports = export::open(&config, &Vec::new(), shards.into()).unwrap();
    let plane = Arc::new(Plane::<Uring, BlockService>::new(shards, shards).unwrap());
    // The kernel chooses ports that nobody else gets meanwhile.
    let bind = || {
        let listener = TcpListener::from(listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap());
        let address = listener.local_addr().unwrap();
        (listener.into(), address)
    };
    let (listener, address) = bind();
    let mut listeners = vec![listener];
    let mut shared = Shared::new(exports, Arc::clone(&plane.stats), memory_bytes);
    let nvme = config.nvme.map(|spec| {
        let (listener, address) = bind();
        listeners.push(listener);
        (spec.subsystem, address)
    });
    if let Some((name, address)) = &nvme {
        let subsystem = Subsystem::new(name, vec![*address], &shared.exports());
        shared = shared.with_nvme(subsystem, 1);
    }
    let nvme = nvme.map(|(_, address)| address);
    let tls = config.tls.as_ref().map(ServerTls::load).transpose();
    shared.set_tls(tls.unwrap());
    let shared = Arc::new(shared);
    let configure = |config: &mut UringConfig| {
        config.flows_max = 1000;
        config.receive_window_bytes = 256 << 10;
        config.send_queue_bytes = 1 << 20;
        config.send_memory_bytes = 16 << 20;
    };
    let of_shards = Arc::clone(&shared);
    let block = move |id: u8| BlockService::new(Arc::clone(&of_shards), id.into());
    let threads = start_shards(&plane, shards, listeners, configure, block, drop)?;
    Some(Server {
        plane,
        shared,
        address,
        nvme,
        threads,
    })
}

impl Server {
    pub fn uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.address)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// The first connection that `connect` makes which this shard serves.
    pub fn on_shard<T>(
        &self,
        shard: u8,
        mut connect: impl FnMut() -> T,
        stream: impl Fn(&T) -> &TcpStream,
    ) -> T {
        loop {
            let connection = connect();
            let peer = stream(&connection).local_addr().unwrap();
            if self.plane.groups.owner(group_of(Some(peer), 0)) == shard {
                return connection;
            }
        }
    }

    /// Tells the shards to end, as SIGTERM does.
    pub fn drain(&self) {
        self.plane.drain(Duration::from_secs(5));
    }

    pub fn stop(self) {
        self.drain();
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Runs the server, if this process was started to be one. Call it from a test of its own.
#[expect(clippy::print_stderr, reason = "the server speaks on standard error")]
pub fn be_server() {
    let Some(config) = std::env::var_os(SERVER_VARIABLE) else {
        return;
    };
    let options = block_server::launch::BlockServerOptions {
        config: config.into(),
        idle: dataplane::idle::IdlePolicy::Learn,
        is_sandboxed: true,
    };
    let signals = block_server::launch::catch_signals().unwrap();
    let mut say = |notice| eprintln!("{notice:?}");
    let code = match block_server::launch::serve(&options, signals, &mut say) {
        Ok(_) => 0,
        Err(error) => {
            eprintln!("{error}");
            2
        }
    };
    std::process::exit(code);
}

/// Starts a server in a process of its own, and waits until it says something: the line.
/// `None` without io_uring.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
pub fn start_process(
    config: &Path,
) -> Option<(Child, String, BufReader<std::process::ChildStderr>)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_process", "--nocapture"])
        .env(SERVER_VARIABLE, config)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut messages = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    messages.read_line(&mut line).unwrap();
    if line.contains("io_uring cannot be used") {
        println!("SKIP: {line}");
        child.wait().unwrap();
        return None;
    }
    Some((child, line, messages))
}

/// Starts a server in a process of its own, and waits until it is ready. After a kill, the kernel
/// releases its addresses a moment late: then the server names each of them, and waits.
pub fn start_ready(config: &Path) -> Option<(Child, BufReader<std::process::ChildStderr>)> {
    let (child, mut line, mut messages) = start_process(config)?;
    while line.contains("AddressInUse") {
        line.clear();
        messages.read_line(&mut line).unwrap();
    }
    assert!(line.contains("Ready"), "{line}");
    Some((child, messages))
}

/// Sends a signal to a child.
pub fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(status.unwrap().success());
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

/// An NBD client.
pub struct Client {
    pub stream: TcpStream,
    cookie: u64,
    is_extended: bool,
}

impl Client {
    /// A connection that has been greeted.
    pub fn connect(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        Self {
            stream,
            cookie: 0,
            is_extended: false,
        }
    }

    /// Sends an option, and gives type and data of the last reply to it.
    pub fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        self.stream.write_all(&bytes).unwrap();
        loop {
            let mut header = [0; 20];
            self.stream.read_exact(&mut header).unwrap();
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(header[16..20].try_into().unwrap());
            let mut data = vec![0; len.try_into().unwrap()];
            self.stream.read_exact(&mut data).unwrap();
            if kind == 1 || kind >= 1 << 31 {
                return (kind, data);
            }
        }
    }

    /// Begins with an export, by simple replies.
    pub fn go(mut self, export: &str) -> Self {
        let mut data = u32::try_from(export.len()).unwrap().to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend([0, 0]);
        let (kind, text) = self.option(7, &data);
        assert_eq!(kind, 1, "{}", String::from_utf8_lossy(&text));
        self
    }

    /// Begins with an export, by extended headers and `base:allocation`.
    pub fn go_extended(mut self, export: &str) -> Self {
        assert_eq!(self.option(11, &[]).0, 1);
        let mut data = u32::try_from(export.len()).unwrap().to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend(1_u32.to_be_bytes());
        data.extend(15_u32.to_be_bytes());
        data.extend(b"base:allocation");
        assert_eq!(self.option(10, &data).0, 1);
        self.is_extended = true;
        self.go(export)
    }

    /// The bytes of a request with the next cookie.
    pub fn request(&mut self, flags: u16, kind: u16, offset: u64, len: u64) -> Vec<u8> {
        self.cookie += 1;
        let magic: u32 = if self.is_extended {
            0x21e4_1c71
        } else {
            0x2560_9513
        };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if self.is_extended {
            bytes.extend(len.to_be_bytes());
        } else {
            bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
        }
        bytes
    }

    pub fn send(&mut self, flags: u16, kind: u16, offset: u64, len: u64, payload: &[u8]) {
        let mut bytes = self.request(flags, kind, offset, len);
        bytes.extend(payload);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next simple reply: its error and cookie.
    pub fn simple(&mut self) -> (u32, u64) {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[..4], 0x6744_6698_u32.to_be_bytes());
        (
            u32::from_be_bytes(header[4..8].try_into().unwrap()),
            u64::from_be_bytes(header[8..16].try_into().unwrap()),
        )
    }

    /// The next extended reply: its type and payload.
    pub fn extended(&mut self) -> (u16, Vec<u8>) {
        let mut header = [0; 32];
        self.stream.read_exact(&mut header).unwrap();
        assert_eq!(header[..4], 0x6e8a_278c_u32.to_be_bytes());
        let kind = u16::from_be_bytes(header[6..8].try_into().unwrap());
        assert_eq!(header[8..16], self.cookie.to_be_bytes());
        let len = u64::from_be_bytes(header[24..32].try_into().unwrap());
        let mut payload = vec![0; len.try_into().unwrap()];
        self.stream.read_exact(&mut payload).unwrap();
        (kind, payload)
    }

    /// Sends a request and gives the error of its simple reply.
    pub fn exchange(&mut self, flags: u16, kind: u16, range: (u64, u64), payload: &[u8]) -> u32 {
        self.send(flags, kind, range.0, range.1, payload);
        let (error, cookie) = self.simple();
        assert_eq!(cookie, self.cookie);
        error
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let range = (offset, bytes.len() as u64);
        assert_eq!(self.exchange(0, WRITE, range, bytes), 0);
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        assert_eq!(self.exchange(0, READ, (offset, len as u64), &[]), 0);
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// What the server answers at its address for metrics.
pub fn page(metrics: u16, path: &str) -> String {
    let mut scrape = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], metrics))).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\n\r\n");
    scrape.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    scrape.read_to_string(&mut page).unwrap();
    page
}
