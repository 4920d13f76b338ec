//! The service under test: its instances, and how a configuration reaches them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use host::{CpuQuota, HostError, Journal, Roots};
use http_client::Url;

use crate::bench::Arm;
use crate::client::{REQUEST_TIMEOUT, client};
use crate::daemon;
use crate::error::{Crash, CrashKind, Fault};
use crate::process::{self, Interrupt, Launch, RunError};
use crate::reapply::COMMAND_TIMEOUT;
use crate::side::Side;
use crate::spec::{CheckedSpec, FileSpec, ReadySpec, TextOrFile};
use crate::template::{self, Variables};
use experiment_spec::environment::is_variable;

/// How often readiness is probed.
const READY_POLL: Duration = Duration::from_millis(50);
/// How long a service that is ready may take to go into the background, the first time that it is
/// started.
const BACKGROUND_WAIT: Duration = Duration::from_millis(200);

/// One side of the target, as it is now.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) side: Side,
    pub(crate) dir: PathBuf,
    pub(crate) variables: Variables,
    child: Option<Child>,
    launch: Launch,
    /// The control group of its own, where it has a quota.
    group: Option<String>,
}

impl Instance {
    /// Makes the side's directory and variables; starts nothing.
    pub(crate) fn prepare(
        spec: &CheckedSpec,
        arm: &Arm,
        side: Side,
        scratch: &Path,
    ) -> Result<Self, Fault> {
        let dir = scratch.join(side.name());
        let io = |error: std::io::Error| Fault::Harness(format!("{}: {error}", dir.display()));
        if dir.exists() {
            std::fs::remove_dir_all(&dir).map_err(io)?;
        }
        std::fs::create_dir_all(&dir).map_err(io)?;
        // Services drop privileges: their user must be able to write here, and nobody take away
        // what is another's.
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777)).map_err(io)?;
        let control = Arm::control(spec);
        let of = if side == Side::Control { &control } else { arm };
        let mut variables = of.variables(spec, side);
        variables.insert("dir".into(), dir.display().to_string());
        if spec.target().ports.is_none() {
            let port = free_port();
            let port = port.map_err(|error| Fault::Harness(format!("no free port: {error}")))?;
            variables.insert("port".into(), port.to_string());
        }
        Ok(Self {
            side,
            dir,
            variables,
            child: None,
            launch: Launch::default(),
            group: None,
        })
    }

    /// A command of the target's, filled in.
    pub(crate) fn launch(
        &self,
        spec: &CheckedSpec,
        argv: &[String],
        log: &str,
    ) -> Result<Launch, Fault> {
        let fill = |text: &String| {
            template::fill(text, &self.variables).map_err(|error| Fault::Harness(error.to_string()))
        };
        Ok(Launch {
            argv: argv.iter().map(fill).collect::<Result<_, _>>()?,
            dir: spec.dir.clone(),
            log: self.dir.join(log),
            ..self.with_env(&spec.target().env, &spec.dir, &self.variables)?
        })
    }

    /// A command with these variables, filled in.
    pub(crate) fn with_env(
        &self,
        env: &BTreeMap<String, TextOrFile>,
        dir: &Path,
        variables: &Variables,
    ) -> Result<Launch, Fault> {
        let mut launch = Launch::default();
        for (name, value) in env {
            match value {
                TextOrFile::Text(text) => {
                    let filled = template::fill(text, variables)
                        .map_err(|error| Fault::Harness(error.to_string()))?;
                    launch.env.insert(name.clone(), filled);
                }
                TextOrFile::File(of) => {
                    launch.env_files.insert(name.clone(), dir.join(&of.file));
                }
            }
        }
        Ok(launch)
    }

    /// Starts the service and waits until it is up; the first time also until it would have gone
    /// into the background.
    pub(crate) fn start(
        &mut self,
        spec: &CheckedSpec,
        roots: &Roots,
        journal: &mut Journal,
        interrupt: &Interrupt,
        is_first: bool,
    ) -> Result<(), Fault> {
        let Some(start) = &spec.target().start else {
            return Ok(());
        };
        let port = self.variables["port"].clone();
        if let Ok(number) = port.parse::<u16>()
            && let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, number))
        {
            let why = match error.kind() {
                std::io::ErrorKind::AddrInUse => "is in use",
                _ => "cannot be listened on",
            };
            return Err(Fault::Harness(format!(
                "port {port} {why} ({error}): end what listens there, or change target.ports"
            )));
        }
        if let Some(prepare) = &spec.target().prepare {
            self.launch(spec, prepare, "prepare")?
                .run(COMMAND_TIMEOUT, interrupt, || Ok(()))
                .map_err(|error| match error {
                    RunError::Interrupted(stop) => Fault::Interrupted(stop),
                    error => Fault::Harness(format!("target.prepare: {error}")),
                })?;
        }
        self.write_files(spec, None)?;
        self.launch = self.launch(spec, start, "service")?;
        self.launch.cpus = spec
            .pins
            .sides
            .as_ref()
            .map(|sides| sides[self.side.index()].clone());
        if let Some(group) = self.group.clone() {
            self.enter_group(roots, &group)
                .map_err(|error| Fault::Harness(format!("target.quota: {error}")))?;
        }
        // Until it is ready, what it leaves behind is left to us.
        let _adopting = process::Adopting::begin();
        let child = self.launch.spawn().map_err(Fault::Harness)?;
        let pid = child.id();
        self.child = Some(child);
        let recorded = host::start_time(roots, pid)
            .map_err(|error| error.to_string())
            .and_then(|start_time| {
                journal
                    .process(pid, start_time)
                    .map_err(|error| error.to_string())
            });
        if let Err(message) = recorded {
            // It may have died at once, which `wait_ready` will say better.
            if self.alive().is_ok() {
                return Err(Fault::Harness(message));
            }
        }
        self.wait_ready(spec, interrupt)?;
        if is_first {
            // One that accepts connections just before it goes into the background.
            interrupt
                .sleep(BACKGROUND_WAIT)
                .map_err(Fault::Interrupted)?;
            self.alive_at_start()?;
        }
        Ok(())
    }

    /// The side's quota, if it is to have one.
    pub(crate) fn quota(&self, spec: &CheckedSpec) -> Result<Option<CpuQuota>, Fault> {
        let quota = spec.target().quota.as_ref();
        quota
            .map(|quota| quota.filled(&self.variables))
            .transpose()
            .map_err(|(key, message)| self.side.fault(format!("target.quota.{key}: {message}")))
    }

    /// Makes the side's control group and sets its quota.
    pub(crate) fn make_group(
        &mut self,
        quota: &CpuQuota,
        roots: &Roots,
        journal: &mut Journal,
    ) -> Result<(), HostError> {
        let group = format!(
            "{}{}/{}",
            process::GROUP,
            std::process::id(),
            self.side.name()
        );
        journal.make_cgroup(roots, &group)?;
        for (knob, value) in quota.writes(roots, &group)? {
            journal.write(roots, &knob, &value)?;
        }
        self.group = Some(group);
        Ok(())
    }

    /// Has the launched service start in its group. A shell leads there, and a shell passes on no
    /// variable that it could not have itself.
    fn enter_group(&mut self, roots: &Roots, group: &str) -> Result<(), HostError> {
        let files = host::cgroup::procs_files(roots, group)?;
        let words = host::cgroup::enter_command(&files);
        let mut enter: Vec<String> = words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        enter.push("env".to_owned());
        // Others see a command's words, and not its environment.
        let variables = self.launch.env.iter();
        let dropped = variables.filter(|(name, _)| is_variable(name).is_err());
        enter.extend(dropped.map(|(name, value)| format!("{name}={value}")));
        self.launch.argv.splice(0..0, enter);
        Ok(())
    }

    /// Its control group, where it has one of its own.
    pub(crate) fn group(&self) -> Option<&str> {
        self.group.as_deref()
    }

    /// The service's first process.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The last lines that the service printed, or, where it runs by itself, the commands that
    /// apply a configuration to it; of each stream no more than that.
    pub(crate) fn output(&self, spec: &CheckedSpec, most_bytes: u64) -> Option<String> {
        let target = spec.target();
        let apply = target.apply.iter().filter_map(|step| step.command.clone());
        // The words of the command are known, so that its secrets are masked in what it printed.
        let commands = [
            ("service", target.start.clone().unwrap_or_default()),
            ("apply", apply.flatten().collect()),
            ("prepare", target.prepare.clone().unwrap_or_default()),
        ];
        commands
            .into_iter()
            .find_map(|(name, argv)| self.launch(spec, &argv, name).ok()?.output(most_bytes))
    }

    /// An error if the service has ended.
    pub(crate) fn alive(&mut self) -> Result<(), Crash> {
        let Some(child) = &mut self.child else {
            return Ok(());
        };
        match child.try_wait() {
            Ok(Some(status)) => Err(Crash {
                kind: CrashKind::EndedUnderLoad,
                status: status.code().or(status.signal().map(|signal| -signal)),
                message: format!(
                    "the service ended by itself with {}: {}",
                    process::describe(status),
                    self.launch.tail()
                ),
                output: self.launch.end_of_output(),
            }),
            _ => Ok(()),
        }
    }

    /// An error if the service has ended before it was ready. One that ended well and left a
    /// process behind has gone into the background, where it could neither be observed nor ended:
    /// that process is ended, and what to set is said.
    fn alive_at_start(&mut self) -> Result<(), Fault> {
        let Err(crash) = self.alive() else {
            return Ok(());
        };
        let daemons = process::left_to_us(&self.dir);
        if crash.status == Some(0) && !daemons.is_empty() {
            process::end_left(&daemons);
            return Err(Fault::Harness(daemon::message(&self.launch.argv, &daemons)));
        }
        Err(self.side.fault(Crash {
            kind: CrashKind::EndedAtStart,
            ..crash
        }))
    }

    /// Writes the templated files.
    pub(crate) fn write_files(
        &self,
        spec: &CheckedSpec,
        mut journal: Option<&mut Journal>,
    ) -> Result<(), Fault> {
        for file in &spec.target().files {
            let path = self.path_of(file)?;
            let contents = self.contents_of(spec, file).map_err(Fault::Harness)?;
            self.write_file(&path, contents.as_bytes(), journal.as_deref_mut())?;
        }
        Ok(())
    }

    /// Where a templated file is.
    pub(crate) fn path_of(&self, file: &FileSpec) -> Result<PathBuf, Fault> {
        let filled = template::fill(&file.path, &self.variables);
        let path = PathBuf::from(filled.map_err(|error| Fault::Harness(error.to_string()))?);
        if path.components().any(|part| part == Component::ParentDir) {
            let message = format!("{} has .. in it", path.display());
            return Err(Fault::Harness(message));
        }
        Ok(path)
    }

    /// What its template gives with this side's values; else why it gives nothing.
    pub(crate) fn contents_of(
        &self,
        spec: &CheckedSpec,
        file: &FileSpec,
    ) -> Result<String, String> {
        let path = spec.dir.join(&file.template);
        let failed =
            |error: &dyn std::fmt::Display| format!("the template {}: {error}", path.display());
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&error))?;
        template::fill(&text, &self.variables).map_err(|error| failed(&error))
    }

    /// Whether a file is in the instance's own directory.
    pub(crate) fn is_own(&self, path: &Path) -> bool {
        path.starts_with(&self.dir)
    }

    /// Writes a templated file: below the instance's own directory directly, elsewhere through the
    /// journal.
    pub(crate) fn write_file(
        &self,
        path: &Path,
        contents: &[u8],
        journal: Option<&mut Journal>,
    ) -> Result<(), Fault> {
        let failed =
            |error: &dyn std::fmt::Display| Fault::Harness(format!("{}: {error}", path.display()));
        if self.is_own(path) {
            return self
                .write_own(path, contents)
                .map_err(|error| failed(&error));
        }
        match journal {
            Some(journal) => journal
                .replace_file(path, contents)
                .map_err(|error| Fault::Harness(error.to_string())),
            None => Err(failed(
                &"is outside {dir}: two instances would overwrite each other's file",
            )),
        }
    }

    /// Writes a file of the instance's directory, to which others may write, and not where a link
    /// of theirs leads.
    fn write_own(&self, path: &Path, contents: &[u8]) -> std::io::Result<()> {
        use std::io::Write as _;
        let parent = path.parent().unwrap_or(path).canonicalize()?;
        if !parent.starts_with(self.dir.canonicalize()?) {
            return Err(std::io::Error::other(format!(
                "leads to {}, outside {{dir}}",
                parent.display()
            )));
        }
        process::create_anew(path)?.write_all(contents)
    }

    /// Waits until the service answers.
    pub(crate) fn wait_ready(
        &mut self,
        spec: &CheckedSpec,
        interrupt: &Interrupt,
    ) -> Result<(), Fault> {
        let Some(ready) = &spec.target().ready else {
            return self.alive_at_start();
        };
        let end = Instant::now() + Duration::from_secs_f64(ready.timeout_s);
        loop {
            self.alive_at_start()?;
            let last = match self.probe(spec, ready, interrupt)? {
                // Something else may have answered: ready is who answers and lives.
                Ok(()) => return self.alive_at_start(),
                Err(reason) => reason,
            };
            if Instant::now() > end {
                return Err(self.side.fault(Crash {
                    kind: CrashKind::NotReady,
                    status: None,
                    message: format!(
                        "not ready within {} s ({last}); its log: {}",
                        ready.timeout_s,
                        self.launch.tail()
                    ),
                    output: self.launch.end_of_output(),
                }));
            }
            interrupt.sleep(READY_POLL).map_err(Fault::Interrupted)?;
        }
    }

    /// `Ok(Err(reason))`: not yet.
    fn probe(
        &self,
        spec: &CheckedSpec,
        ready: &ReadySpec,
        interrupt: &Interrupt,
    ) -> Result<Result<(), String>, Fault> {
        let fill = |text: &String| {
            template::fill(text, &self.variables).map_err(|error| Fault::Harness(error.to_string()))
        };
        if let Some(url) = &ready.url {
            let url = Url::parse(&fill(url)?);
            let url = url.map_err(|why| Fault::Harness(format!("target.ready.url: {why}")))?;
            let got = client().send("GET", &url, "");
            return Ok(got.map_err(|error| error.to_string()));
        }
        if let Some(port) = &ready.port {
            let text = fill(port)?;
            let port: u16 = text.parse().map_err(|_| {
                Fault::Harness(format!("target.ready.port: {text:?} is not a port"))
            })?;
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            return Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1))
                .map(drop)
                .map_err(|error| format!("port {port}: {error}")));
        }
        let command = ready.command.as_deref().unwrap_or_default();
        match self
            .launch(spec, command, "ready")?
            .run(REQUEST_TIMEOUT, interrupt, || Ok(()))
        {
            Ok(_) => Ok(Ok(())),
            Err(RunError::Interrupted(stop)) => Err(Fault::Interrupted(stop)),
            Err(RunError::Start(message)) => {
                Err(Fault::Harness(format!("target.ready: {message}")))
            }
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// Ends the service.
    pub(crate) fn stop(
        &mut self,
        spec: &CheckedSpec,
        roots: &Roots,
        journal: &mut Journal,
    ) -> Result<(), HostError> {
        if let Some(mut child) = self.child.take() {
            let signal = spec
                .target()
                .stop
                .signal()
                .unwrap_or(rustix::process::Signal::TERM);
            process::end_group(
                &mut child,
                signal,
                Duration::from_secs_f64(spec.target().stop.grace_s),
            );
            if let Some(group) = &self.group {
                process::end_members(roots, group);
            }
            journal.forget_process(child.id())?;
        }
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            process::end_group(&mut child, rustix::process::Signal::KILL, Duration::ZERO);
            if let Some(group) = &self.group {
                process::end_members(&Roots::default(), group);
            }
        }
    }
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}
