//! What a worker does for an order without a signature that it knows: only what its own
//! configuration lists.

use std::path::Path;

use tuner::protocol::WorkOrder;
use tuner::spec::{
    ApplySpec, CheckedSpec, FileSpec, HttpSpec, MetricSpec, ReadySpec, Spec, TargetSpec,
    WorkloadSpec,
};

use crate::config::Allow;

/// Everything that a specification can lead to on a worker's host. The structs are taken apart
/// whole, so that no new key can be forgotten here.
#[derive(Default)]
struct Asked<'a> {
    commands: Vec<&'a [String]>,
    urls: Vec<&'a str>,
    /// Files that are read, relative to the order's folder.
    read: Vec<&'a Path>,
    /// Files and sockets of the instance.
    own: Vec<&'a str>,
    /// Keys that only a signed order may have.
    signed_only: Vec<&'static str>,
}

impl<'a> Asked<'a> {
    fn of(spec: &'a Spec) -> Self {
        let mut asked = Self::default();
        if let Some(target) = &spec.target {
            asked.target(target);
        }
        if let Some(workload) = &spec.workload {
            asked.workload(workload);
        }
        for metric in spec.metrics.values() {
            asked.metric(metric);
        }
        asked.commands.retain(|command| !command.is_empty());
        asked
    }

    fn target(&mut self, target: &'a TargetSpec) {
        let TargetSpec {
            prepare,
            start,
            env,
            files,
            apply,
            ready,
            quota,
            pairing: _,
            stop: _,
            ports: _,
            cpus: _,
            observe: _,
        } = target;
        self.commands.extend(prepare.as_deref());
        self.commands.extend(start.as_deref());
        for FileSpec { template, path } in files {
            self.read.push(template);
            self.own.push(path);
        }
        for step in apply {
            let ApplySpec {
                command,
                url,
                method: _,
                body: _,
                parameters: _,
            } = step;
            self.commands.extend(command.as_deref());
            self.urls.extend(url.as_deref());
        }
        if let Some(ready) = ready {
            let ReadySpec {
                url,
                command,
                port: _,
                timeout_s: _,
            } = ready;
            self.commands.extend(command.as_deref());
            self.urls.extend(url.as_deref());
        }
        // A variable such as LD_PRELOAD or BASH_ENV turns one command into another.
        self.signed_only
            .extend((!env.is_empty()).then_some("target.env"));
        self.signed_only
            .extend(quota.is_some().then_some("target.quota"));
    }

    fn workload(&mut self, workload: &'a WorkloadSpec) {
        let WorkloadSpec {
            command,
            capacity_command,
            http,
            env,
            parse: _,
            json: _,
            regex: _,
            cpus: _,
            closed_loop: _,
            grace_s: _,
            minimum: _,
        } = workload;
        self.commands.push(command);
        self.commands.push(capacity_command);
        if let Some(http) = http {
            let HttpSpec {
                url,
                schedule,
                requests,
                unix_socket,
                rate: _,
                closed: _,
                method: _,
                body: _,
                headers: _,
                threads: _,
                requests_per_connection: _,
                http2: _,
                streams: _,
                connections: _,
                constant: _,
                timeout_s: _,
                seed: _,
            } = http;
            self.urls.push(url);
            self.read.extend(schedule.as_deref());
            self.read.extend(requests.as_deref());
            self.own.extend(unix_socket.as_deref());
        }
        self.signed_only
            .extend((!env.is_empty()).then_some("workload.env"));
    }

    fn metric(&mut self, metric: &'a MetricSpec) {
        let MetricSpec {
            prometheus,
            command,
            scrape,
            push,
            query: _,
            counter: _,
            wire: _,
        } = metric;
        self.urls.extend(prometheus.as_deref());
        self.commands.extend(command.as_deref());
        self.urls.extend(scrape.as_ref().map(|it| it.url.as_str()));
        let socket = push.as_ref().and_then(|it| it.unix.as_deref());
        self.own.extend(socket);
    }
}

/// Whether a path is below the instance's own folder, whatever a parameter or variable is.
fn is_own(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("{dir}/") else {
        return false;
    };
    let rest = rest.replace("{port}", "").replace("{side}", "");
    !rest.contains("..") && !rest.contains('{')
}

/// Whether this host's own configuration allows everything that a specification would do.
///
/// # Errors
/// What it does not allow.
pub(crate) fn is_allowed(
    allow: &Allow,
    order: &WorkOrder,
    spec: &CheckedSpec,
) -> Result<(), String> {
    let refused = |what: String| {
        Err(format!(
            "{what} is not in the worker's allow list, and the order is not signed with a key that it knows"
        ))
    };
    let asked = Asked::of(&order.spec);
    let is_listed = |command: &&[String]| allow.commands.iter().any(|it| it == command);
    if let Some(command) = asked.commands.iter().find(|it| !is_listed(it)) {
        return refused(format!("the command {command:?}"));
    }
    let mut knobs = spec.knobs.values().map(|it| it.knob.to_string());
    if let Some(knob) = knobs.find(|it| !allow.knobs.contains(it)) {
        return refused(format!("the knob {knob:?}"));
    }
    let is_listed = |url: &&str| allow.urls.iter().any(|it| it == url);
    if let Some(url) = asked.urls.iter().find(|it| !is_listed(it)) {
        return refused(format!("the URL {:?}", http_client::redact(url)));
    }
    let mut files = asked.read.iter().map(|path| order.dir.join(path));
    if let Some(file) = files.find(|it| !allow.files.contains(it)) {
        return refused(format!("the file {file:?}"));
    }
    if let Some(path) = asked.own.iter().find(|it| !is_own(it)) {
        return Err(format!(
            "{path:?} is not below {{dir}}, and the order is not signed with a key that the worker knows"
        ));
    }
    match asked.signed_only.first() {
        Some(key) => Err(format!(
            "{key} needs an order that is signed with a key that the worker knows"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use tuner::spec::TextOrFile;

    use super::*;

    const SPEC: &str = r#"{
        "parameters": [{ "name": "x", "type": "int", "low": 1, "high": 9, "sysctl": "net.core.somaxconn", "default": 5 }],
        "target": { "start": ["nginx", "-c", "{dir}/n.conf"], "apply": [{ "command": ["true"] }] },
        "workload": { "command": ["wrk", "{port}"], "parse": "wrk" },
        "objective": { "metric": "latency_p99_us" }
    }"#;

    fn order() -> (WorkOrder, CheckedSpec) {
        let roots = host::Roots::default();
        let spec = tuner::spec::context(&roots)
            .check(SPEC.into(), Path::new("/tmp/spec.json"))
            .unwrap();
        let order = WorkOrder {
            ticket: tuner::protocol::Ticket {
                experiment: 1,
                verification: 0,
                arm: 0,
                number: 1,
            },
            spec: spec.written().clone(),
            dir: "/tmp".into(),
            assignment: tuner::assignment::Assignment {
                purpose: tuner::assignment::Purpose::Search,
                arm: tuner::bench::Arm::default(),
                incumbent: None,
            },
            made_ms: None,
        };
        (order, spec)
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// All that [`SPEC`] does.
    fn allow() -> Allow {
        Allow {
            commands: ["nginx -c {dir}/n.conf", "true", "wrk {port}"]
                .map(words)
                .to_vec(),
            knobs: vec!["net.core.somaxconn".to_owned()],
            ..Allow::default()
        }
    }

    #[test]
    fn without_a_signature_only_what_is_listed_word_for_word_is_done() {
        let (order, spec) = order();
        let mut allow = Allow::default();
        let mut refused = |allowed: &mut dyn FnMut(&mut Allow)| {
            let message = is_allowed(&allow, &order, &spec).unwrap_err();
            allowed(&mut allow);
            message
        };
        let listed =
            |command: &'static str| move |allow: &mut Allow| allow.commands.push(words(command));
        assert!(refused(&mut listed("nginx -c {dir}/n.conf")).contains("nginx"));
        assert!(refused(&mut listed("true")).contains("true"));
        assert!(refused(&mut listed("wrk 80")).contains("wrk"));
        assert!(
            refused(&mut listed("wrk {port}")).contains("wrk"),
            "word for word"
        );
        let knob = refused(&mut |allow| allow.knobs.push("net.core.somaxconn".into()));
        assert!(knob.contains("somaxconn"), "{knob}");
        assert_eq!(is_allowed(&allow, &order, &spec), Ok(()));
    }

    #[test]
    fn every_other_way_to_act_needs_the_list_or_a_signature() {
        let variable = || TextOrFile::Text("/tmp/x.so".to_owned());
        let file = |template: &str, path: &str| FileSpec {
            template: template.into(),
            path: path.to_owned(),
        };
        type Change<'a> = &'a dyn Fn(&mut Spec);
        let target = |change: &dyn Fn(&mut TargetSpec), spec: &mut Spec| {
            change(spec.target.as_mut().unwrap());
        };
        let workload = |change: &dyn Fn(&mut WorkloadSpec), spec: &mut Spec| {
            change(spec.workload.as_mut().unwrap());
        };
        let cases: [(Change<'_>, &str); 9] = [
            (
                &|spec| workload(&|it| it.capacity_command = words("sh -c evil"), spec),
                "the command [\"sh\", \"-c\", \"evil\"]",
            ),
            (
                &|spec| {
                    target(
                        &|it| drop(it.env.insert("LD_PRELOAD".into(), variable())),
                        spec,
                    )
                },
                "target.env needs",
            ),
            (
                &|spec| workload(&|it| drop(it.env.insert("PATH".into(), variable())), spec),
                "workload.env needs",
            ),
            (
                &|spec| {
                    target(
                        &|it| it.apply[0].url = Some("http://10.0.0.1/off".into()),
                        spec,
                    )
                },
                "the URL \"http://10.0.0.1/off\"",
            ),
            (
                &|spec| target(&|it| it.files.push(file("shadow", "{dir}/n.conf")), spec),
                "the file \"/tmp/shadow\"",
            ),
            (
                &|spec| target(&|it| it.files.push(file("n.conf", "/etc/cron.d/x")), spec),
                "\"/etc/cron.d/x\" is not below {dir}",
            ),
            (
                &|spec| target(&|it| it.files.push(file("n.conf", "{dir}/{x}")), spec),
                "\"{dir}/{x}\" is not below {dir}",
            ),
            (
                &|spec| target(&|it| it.files.push(file("n.conf", "{dir}/../x")), spec),
                "\"{dir}/../x\" is not below {dir}",
            ),
            (
                &|spec| {
                    let metric = MetricSpec {
                        prometheus: Some("http://me:secret@p/".into()),
                        ..MetricSpec::default()
                    };
                    spec.metrics.insert("m".into(), metric);
                },
                "the URL \"http://…@p/\"",
            ),
        ];
        let mut allow = allow();
        allow.files.push("/tmp/n.conf".into());
        for (change, said) in cases {
            let (mut order, spec) = order();
            assert_eq!(is_allowed(&allow, &order, &spec), Ok(()));
            change(&mut order.spec);
            let message = is_allowed(&allow, &order, &spec).unwrap_err();
            assert!(message.starts_with(said), "{message}");
        }
        let (mut order, spec) = order();
        let target = order.spec.target.as_mut().unwrap();
        target
            .files
            .push(file("n.conf", "{dir}/{side}-{port}.conf"));
        target.apply[0].url = Some("http://127.0.0.1:{port}/reload".into());
        allow.urls.push("http://127.0.0.1:{port}/reload".into());
        assert_eq!(is_allowed(&allow, &order, &spec), Ok(()));
    }
}
