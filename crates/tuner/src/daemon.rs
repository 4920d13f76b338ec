//! A service that goes into the background by itself: what to set so that it stays.

/// A process whose parent ended and left it to this process.
#[derive(Clone, Debug)]
pub(crate) struct Left {
    pub(crate) pid: u32,
    /// Its name.
    pub(crate) name: String,
    pub(crate) is_zombie: bool,
}

/// Programs that go into the background, and what keeps each in the foreground. From their manuals.
const FOREGROUND: [(&str, &str); 27] = [
    (
        "nginx",
        "`daemon off;` in its configuration, or `-g 'daemon off;'`",
    ),
    ("redis-server", "`daemonize no`"),
    ("valkey-server", "`daemonize no`"),
    ("haproxy", "`-db`, and no `daemon` in its configuration"),
    ("memcached", "no `-d`"),
    ("mysqld", "no `--daemonize`"),
    ("mysqld_safe", "`mysqld` in its place"),
    ("mongod", "no `--fork`"),
    ("pg_ctl", "`postgres -D DIRECTORY` in its place"),
    ("pg_ctlcluster", "`--foreground`"),
    ("apache2", "`-DFOREGROUND`"),
    ("apachectl", "`-DFOREGROUND`"),
    ("httpd", "`-DFOREGROUND`"),
    ("php-fpm", "`--nodaemonize`"),
    ("lighttpd", "`-D`"),
    ("varnishd", "`-F`"),
    ("squid", "`--foreground`"),
    ("unbound", "`-d`"),
    ("named", "`-f`"),
    ("dnsmasq", "`--keep-in-foreground`"),
    ("sshd", "`-D`"),
    ("uwsgi", "no `--daemonize`"),
    ("gunicorn", "no `--daemon`"),
    ("caddy", "`caddy run` in place of `caddy start`"),
    ("catalina.sh", "`catalina.sh run` in place of `start`"),
    ("rabbitmq-server", "no `-detached`"),
    ("keepalived", "`--dont-fork`"),
];

/// What is said of a service that was started by this command and left these processes.
pub(crate) fn message(argv: &[String], left: &[Left]) -> String {
    let processes: Vec<String> = left
        .iter()
        .map(|left| format!("{} {}", left.name, left.pid))
        .collect();
    let words = argv
        .iter()
        .map(|word| word.rsplit('/').next().unwrap_or(word));
    let names: Vec<&str> = words
        .chain(left.iter().map(|left| left.name.as_str()))
        .collect();
    // Debian has the version in the name: php-fpm8.2.
    let is = |name: &str, known: &str| {
        let rest = name.strip_prefix(known);
        rest.is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'))
    };
    let hint = FOREGROUND
        .iter()
        .find(|(known, _)| names.iter().any(|name| is(name, known)))
        .map_or_else(
            || "give the option that keeps it in the foreground".to_owned(),
            |(known, hint)| format!("{known} needs {hint}"),
        );
    format!(
        "the service went into the background: its first process ended with 0 and left {} (ended now). target.start must stay \
         in the foreground, so that what it uses can be counted and it can be ended: {hint}",
        processes.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_told_its_own_option() {
        let hint = |command: &str, name: &str| {
            let left = Left {
                pid: 7,
                name: name.to_owned(),
                is_zombie: false,
            };
            let argv: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let said = message(&argv, &[left]);
            said.rsplit_once("ended: ").unwrap().1.to_owned()
        };
        assert_eq!(
            hint("/usr/sbin/nginx -c nginx.conf", "nginx"),
            "nginx needs `daemon off;` in its configuration, or `-g 'daemon off;'`"
        );
        assert_eq!(
            hint("sh start.sh", "redis-server"),
            "redis-server needs `daemonize no`"
        );
        assert_eq!(
            hint("/usr/sbin/php-fpm8.2 -y fpm.conf", "php-fpm8.2"),
            "php-fpm needs `--nodaemonize`"
        );
        assert_eq!(
            hint("./app", "nginx-exporter"),
            "give the option that keeps it in the foreground"
        );
    }
}
