//! PostgreSQL of Debian: the postmaster, a backend that lived before and one that came after, in a
//! new layout and back.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use relayout::{ManifestStore, Process, ProfilingOptions, Session};
use tempfile::TempDir;

struct Server {
    dir: TempDir,
    bin: PathBuf,
    pid: u32,
}

impl Server {
    /// `None` where there is no server to start.
    fn start() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        let bin = versions
            .map(|version| version.path().join("bin"))
            .find(|bin| bin.join("initdb").exists() && bin.join("pgbench").exists())?;
        let dir = tempfile::Builder::new()
            .prefix("slackline-pg")
            .tempdir_in("/var/tmp")
            .unwrap();
        let mut server = Self { dir, bin, pid: 0 };
        if rustix::process::geteuid().is_root() {
            let mut chown = Command::new("chown");
            assert!(
                chown
                    .arg("postgres")
                    .arg(server.dir.path())
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let data = server.dir.path().join("data").display().to_string();
        server.run(
            "initdb",
            &["-D", &data, "-A", "trust", "-U", "postgres", "--no-sync"],
        );
        let options = format!(
            "-c listen_addresses='' -c fsync=off -c jit=off -c unix_socket_directories='{}'",
            server.dir.path().display()
        );
        let log = server.dir.path().join("log").display().to_string();
        server.run(
            "pg_ctl",
            &["-D", &data, "-w", "-l", &log, "-o", &options, "start"],
        );
        let pidfile = std::fs::read_to_string(server.dir.path().join("data/postmaster.pid"));
        server.pid = pidfile.unwrap().lines().next().unwrap().parse().unwrap();
        let host = server.dir.path().display().to_string();
        server.run(
            "pgbench",
            &[
                "-h", &host, "-U", "postgres", "-i", "-q", "-s", "2", "postgres",
            ],
        );
        Some(server)
    }

    fn command(&self, program: &str) -> Command {
        let path = self.bin.join(program);
        if !rustix::process::geteuid().is_root() {
            return Command::new(path);
        }
        // The server refuses to run as root.
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(path)
            .current_dir("/");
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let mut command = self.command(program);
        command.args(arguments).stderr(Stdio::null());
        // What pg_ctl starts would keep a pipe open.
        if program == "pg_ctl" {
            assert!(command.stdout(Stdio::null()).status().unwrap().success());
            return String::new();
        }
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{program} {arguments:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    fn sql(&self, text: &str) -> String {
        let host = self.dir.path().display().to_string();
        let output = self.run(
            "psql",
            &["-h", &host, "-U", "postgres", "-tAc", text, "postgres"],
        );
        output.trim().to_owned()
    }

    /// Clients that select for some seconds, each at a backend of its own.
    fn load(&self, clients: u32, seconds: u32) -> Child {
        let host = self.dir.path().display().to_string();
        self.command("pgbench")
            .args(["-h", &host, "-U", "postgres", "-S", "-n", "-M", "simple"])
            .args([
                "-c",
                &clients.to_string(),
                "-T",
                &seconds.to_string(),
                "postgres",
            ])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn changed(&self, pid: u32) -> bool {
        let process = Process::open(pid).unwrap();
        process.objects().unwrap().iter().any(|object| {
            let Ok(file) = process.file(object) else {
                return false;
            };
            process.text_difference(object, &file).unwrap().is_some()
        })
    }

    fn backends(&self) -> Vec<u32> {
        let pids = self.sql("select pid from pg_stat_activity where application_name = 'pgbench'");
        pids.lines().map(|line| line.parse().unwrap()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let data = self.dir.path().join("data").display().to_string();
        self.run("pg_ctl", &["-D", &data, "-w", "-m", "immediate", "stop"]);
    }
}

#[test]
fn a_postmaster_and_its_backends_old_and_new_have_the_layout_and_lose_it() {
    let Some(server) = Server::start() else {
        println!("SKIP: no PostgreSQL below /usr/lib/postgresql");
        return;
    };
    let answer = "select count(*), sum(abalance) from pgbench_accounts";
    let before = server.sql(answer);
    let dir = tempfile::tempdir().unwrap();
    let store = ManifestStore::open(dir.path()).unwrap();
    let mut old = server.load(2, 600);
    std::thread::sleep(Duration::from_millis(800));
    let old_backends = server.backends();
    assert_eq!(old_backends.len(), 2);
    let method = ProfilingOptions {
        sampling: Duration::from_secs(1),
        counting: Duration::from_millis(100),
        resting: Duration::ZERO,
        counted_share: 0.3,
        share: 0.9,
        ..ProfilingOptions::default()
    };
    let mut session = Session::open(&store, server.pid, method).unwrap();
    let load = session.look().unwrap();
    assert!(load.user_samples > 0, "the backends are sampled: {load:?}");
    session.count().unwrap();
    let layout = session.install().unwrap();
    println!(
        "{} functions in {:?}",
        layout.functions,
        session.cache.pids()
    );
    assert!(layout.functions > 20);
    let new = server.load(2, 1);
    std::thread::sleep(Duration::from_millis(500));
    let all = server.backends();
    assert!(all.len() > old_backends.len(), "{all:?}");
    for pid in all.iter().chain([&server.pid]) {
        if Process::open(*pid).is_ok() {
            assert!(server.changed(*pid), "{pid}");
        }
    }
    assert!(new.wait_with_output().unwrap().status.success());
    assert_eq!(server.sql(answer), before, "in the new layout");
    for _ in 0..5 {
        assert!(session.cache.switch(0).unwrap().is_whole());
        assert!(session.cache.switch(layout.generation).unwrap().is_whole());
    }
    drop(session);
    // By what is on disk alone.
    let manifest = store.all().unwrap().remove(0);
    let mut cache = relayout::PatchedProcess::of(&store, manifest)
        .unwrap()
        .unwrap();
    let (switched, kept) = cache.rollback().unwrap();
    println!("{switched:?} {kept:?}");
    assert!(switched.is_whole() && switched.processes > 6);
    for pid in cache.pids() {
        assert!(!server.changed(pid), "{pid}");
    }
    assert_eq!(server.sql(answer), before);
    assert!(
        old.try_wait().unwrap().is_none(),
        "the old backends answer on"
    );
    assert_eq!(server.backends(), old_backends);
    old.kill().unwrap();
    old.wait().unwrap();
}
