//! Each form of a secret in a text, with its neighbours that are none.

use super::*;

/// Each text with its secrets masked.
#[track_caller]
fn masks(cases: &[(&str, &str)]) {
    for (text, shown) in cases {
        assert_eq!(masked(text, &in_text(text)), *shown, "{text}");
    }
}

#[test]
fn secrets_in_scripts_headers_and_json_are_found() {
    masks(&[
        ("DB_PASSWORD=x cmd --port 80", "DB_PASSWORD=… cmd --port 80"),
        ("DB_PASSWORD='a b' cmd", "DB_PASSWORD='…' cmd"),
        ("PASSWORD+=x cmd", "PASSWORD+=… cmd"),
        ("password := x", "password := …"),
        ("password => 'x', port => 3", "password => '…', port => 3"),
        (
            "port := 3; total += 4; a => 'b'",
            "port := 3; total += 4; a => 'b'",
        ),
        ("DB_PASSWORD=\"a \\\" b\" cmd", "DB_PASSWORD=\"…\" cmd"),
        ("DB_PASSWORD=a\\ b cmd", "DB_PASSWORD=… cmd"),
        (
            "env A=1 API_TOKEN=x cmd; next",
            "env A=1 API_TOKEN=… cmd; next",
        ),
        (
            "exec db --password=x --port {port}",
            "exec db --password=… --port {port}",
        ),
        ("db --password x --port 1", "db --password … --port 1"),
        ("db --token 'x y' z", "db --token '…' z"),
        (
            "mysql -u root -pX -h db test",
            "mysql -u root -p… -h db test",
        ),
        ("mysql -p test", "mysql -p test"),
        (
            "/usr/bin/mysql -pX; redis-cli -p 7 -a X ping",
            "/usr/bin/mysql -p…; redis-cli -p 7 -a … ping",
        ),
        ("ssh -p 22 host", "ssh -p 22 host"),
        (
            "mysql -e 'select 1' && ssh -p22 h",
            "mysql -e 'select 1' && ssh -p22 h",
        ),
        ("sshpass -p X ssh h", "sshpass -p … ssh h"),
        ("curl -u me:X http://h/", "curl -u … http://h/"),
        (
            "curl -H 'Authorization: Bearer x' http://h/a",
            "curl -H 'Authorization: …' http://h/a",
        ),
        (
            "curl -H \"X-Api-Key: x\" -d '{\"password\": \"x\", \"n\": 1}'",
            "curl -H \"X-Api-Key: …\" -d '{\"password\": \"…\", \"n\": 1}'",
        ),
        (
            "curl -d \"{\\\"token\\\": \\\"x\\\"}\" h",
            "curl -d \"{\\\"token\\\": \\\"…\\\"}\" h",
        ),
        (
            "{\"auth\": {\"a\": [1, 2]}, \"b\": 1}",
            "{\"auth\": …, \"b\": 1}",
        ),
        (
            "{\"pin\": 1, \"secret\": 12345, \"b\": 2}",
            "{\"pin\": 1, \"secret\": …, \"b\": 2}",
        ),
        ("sh -c \"mysql -pX -h db\"", "sh -c \"mysql -p… -h db\""),
        ("psql me:X@db:5432/a -c 1", "psql me:…@db:5432/a -c 1"),
        ("password: x\nuser: y", "password: …\nuser: y"),
        (
            "nothing of the kind --rate=5 a:b",
            "nothing of the kind --rate=5 a:b",
        ),
        (
            "auth.example.com:443 http://auth.example.com:443/x",
            "auth.example.com:443 http://auth.example.com:443/x",
        ),
        (
            "sum(rate(tokens_total{job=\"x\"}[1m]))",
            "sum(rate(tokens_total{job=\"x\"}[1m]))",
        ),
    ]);
}

#[test]
fn secrets_of_options_substitutions_and_tools_are_found() {
    masks(&[
        ("bench of --password=x", "bench of --password=…"),
        ("curl -s4u me:X http://h/", "curl -s4u … http://h/"),
        ("curl -sume:X http://h/", "curl -su… http://h/"),
        (
            "curl --oauth2-bearer X -b s=X",
            "curl --oauth2-bearer … -b …",
        ),
        ("mysql -vpX -h db", "mysql -vp… -h db"),
        ("mysql -uapp -hprod", "mysql -uapp -hprod"),
        ("x=`mysql -pX`", "x=`mysql -p…`"),
        ("x=`ls -l`$(mysql -pX)", "x=`ls -l`$(mysql -p…)"),
        ("mysql>out -pX", "mysql>out -p…"),
        ("my\"\"sql -pX", "my\"\"sql -p…"),
        (
            "memtier_benchmark --authenticate X",
            "memtier_benchmark --authenticate …",
        ),
        (
            "memtier_benchmark --authenticate=X",
            "memtier_benchmark --authenticate=…",
        ),
        ("redis-cli AUTH X", "redis-cli AUTH …"),
        ("export DBPASS=X GH_PAT=X", "export DBPASS=… GH_PAT=…"),
        ("bypass=1 compass=2", "bypass=1 compass=2"),
        ("redis-cli -a $(echo X) ping", "redis-cli -a … ping"),
        ("redis-cli -a `echo X` ping", "redis-cli -a … ping"),
        ("mysql -p$(echo X) -h db", "mysql -p… -h db"),
        ("db --password=$(echo X) -v", "db --password=… -v"),
        (
            "db --password=\"$(echo \"X\")\" -v",
            "db --password=\"…\" -v",
        ),
        ("db --password='X'\\''X' -v", "db --password='… -v"),
        ("$(which mysql) -pX", "$(which mysql) -p…"),
        ("x=$(y $(mysql -pX) z) w", "x=$(y $(mysql -p…) z) w"),
        ("echo $(ls) && ls -p X", "echo $(ls) && ls -p X"),
        ("ab -kA me:X http://h/", "ab -kA … http://h/"),
        ("curl -dau X", "curl -dau X"),
        (
            "openssl enc -aes-256-cbc -k X -in a -kfile b",
            "openssl enc -aes-256-cbc -k … -in a -kfile b",
        ),
        (
            "openssl req -passin pass:X -key k.pem",
            "openssl req -passin … -key k.pem",
        ),
        ("vault login X && ls", "vault login … && ls"),
        (
            "vault login -no-print -path=a X; vault kv get a",
            "vault login -no-print -path=a …; vault kv get a",
        ),
        ("cqlsh -u me -p X h", "cqlsh -u me -p … h"),
        ("mosquitto_pub -P X -p 1883", "mosquitto_pub -P … -p 1883"),
        (
            "passwords_changed=3 auth_type: none --max-tokens 5",
            "passwords_changed=3 auth_type: none --max-tokens 5",
        ),
    ]);
}

#[test]
fn secrets_behind_a_blank_are_found() {
    masks(&[
        // Settings of servers, and variables.
        ("requirepass S\nport 6379", "requirepass …\nport 6379"),
        ("masterauth S", "masterauth …"),
        (
            "redis-cli config set requirepass S && ls",
            "redis-cli config set requirepass … && ls",
        ),
        ("set requirepass 1234", "set requirepass …"),
        ("PGPASSWORD S\nPGUSER me", "PGPASSWORD …\nPGUSER me"),
        ("db.password S", "db.password …"),
        ("setenv DB_PASSWORD S", "setenv DB_PASSWORD …"),
        ("SetEnv API_TOKEN \"S S\"", "SetEnv API_TOKEN \"…\""),
        ("set -gx API_TOKEN S; ls", "set -gx API_TOKEN …; ls"),
        ("ENV API_TOKEN S", "ENV API_TOKEN …"),
        (
            "consul kv put app/db_password S",
            "consul kv put app/db_password …",
        ),
        ("password hunter2", "password …"),
        (
            "machine h login me password S",
            "machine h login me password …",
        ),
        // Headers.
        (
            "proxy_set_header Authorization \"Basic S\";",
            "proxy_set_header Authorization \"…\";",
        ),
        (
            "proxy_set_header Authorization $http_authorization;",
            "proxy_set_header Authorization $http_authorization;",
        ),
        (
            "RequestHeader set Authorization Basic S",
            "RequestHeader set Authorization … …",
        ),
        // Shells.
        (
            "declare -A m=([password]=S [port]=1)",
            "declare -A m=([password]=… [port]=1)",
        ),
        ("m[\"password\"]='S'; ls", "m[\"password\"]='…'; ls"),
        ("read -r X_PWD <<< S; ls", "read -r X_PWD <<< …; ls"),
        ("read -r X_PWD <<<'S S'", "read -r X_PWD <<<'…'"),
        ("read -r line <<< text", "read -r line <<< text"),
        ("printf -v secret_key %s S", "printf -v secret_key %s …"),
        (
            "printf -v secret_key '%s\\n' \"S\"",
            "printf -v secret_key '%s\\n' \"…\"",
        ),
        ("printf -v line %s text", "printf -v line %s text"),
        (
            "echo S | docker login -u me --password-stdin",
            "echo … | docker login -u me --password-stdin",
        ),
        (
            "printf '%s' S | passwd --stdin me",
            "printf '%s' … | passwd --stdin me",
        ),
        ("echo me:S | chpasswd", "echo … | chpasswd"),
        ("echo text | grep password", "echo text | grep password"),
        (
            "mysql --defaults-extra-file=<(printf '[client]') -pS -h db",
            "mysql --defaults-extra-file=<(printf '[client]') -p… -h db",
        ),
        (
            "diff <(mysql -pS) <(ls) && ls -p S",
            "diff <(mysql -p…) <(ls) && ls -p S",
        ),
    ]);
}

#[test]
fn secrets_in_sql_and_comments_are_found() {
    masks(&[
        // SQL.
        ("ALTER USER me PASSWORD 'S'", "ALTER USER me PASSWORD '…'"),
        (
            "alter user me password 'S''S' valid",
            "alter user me password '…' valid",
        ),
        (
            "ALTER ROLE me PASSWORD = 'S'",
            "ALTER ROLE me PASSWORD = '…'",
        ),
        (
            "SET PASSWORD FOR 'me'@'h' = 'S'",
            "SET PASSWORD FOR 'me'@'h' = '…'",
        ),
        ("SET PASSWORD = PASSWORD('S')", "SET PASSWORD = …"),
        ("SELECT PASSWORD('S')", "SELECT PASSWORD('…')"),
        (
            "CREATE USER me IDENTIFIED BY 'S' REQUIRE SSL",
            "CREATE USER me IDENTIFIED BY '…' REQUIRE SSL",
        ),
        (
            "ALTER USER me IDENTIFIED WITH caching_sha2_password BY 'S'",
            "ALTER USER me IDENTIFIED WITH caching_sha2_password BY '…'",
        ),
        (
            "CREATE USER me IDENTIFIED BY S;",
            "CREATE USER me IDENTIFIED BY …;",
        ),
        (
            "psql -c \"ALTER USER me PASSWORD 'S'\" -h db",
            "psql -c \"ALTER USER me PASSWORD '…'\" -h db",
        ),
        (
            "psql -c 'ALTER USER me PASSWORD '\\''S'\\''' -h db",
            "psql -c 'ALTER USER me PASSWORD '\\''…'\\''' -h db",
        ),
        (
            "mysql -e \"SET PASSWORD = \\\"S\\\"\" -h db",
            "mysql -e \"SET PASSWORD = \\\"…\\\"\" -h db",
        ),
        (
            "ALTER USER me PASSWORD $x$S$x$",
            "ALTER USER me PASSWORD $x$…$x$",
        ),
        // Comments.
        ("# password for db is hunter2", "# password for db is …"),
        (
            "# the password for the db hunter2",
            "# the password for the db …",
        ),
        ("# the password is: swordfish", "# the password is: …"),
        ("# password (prod) hunter2", "# password (prod) …"),
    ]);
}

#[test]
fn ordinary_commands_paths_numbers_and_prose_stay_readable() {
    for text in [
        "grep -v password /etc/app.conf | sort",
        "passwd -l guest; pwd -P; pass show a; auth --help",
        "cat token.txt; ./rotate-token.sh now; secret-tool lookup a b",
        "systemctl restart auth.service sshd",
        "set -euo pipefail; set token; export PATH=/a:$PATH",
        "sysctl -w vm.swappiness=10; echo 4096 > /proc/sys/net/core/somaxconn",
        "token_bucket_level 5\nauth_requests 12.5",
        "ssl_password_file /etc/nginx/pw.txt;",
        "proxy_set_header Host $host;",
        "setenv API_TOKEN $API_TOKEN",
        "git config credential.helper store",
        "cut -d: -f1 < <(cat /proc/cpuinfo) > out",
        "wrk -t2 -c 64 -d 10s http://127.0.0.1:8080/a?b=1",
        "select token, count(*) from t where user = 'x'",
        "each is identified by its name",
        "DB_PASSWORD is not set",
        "Authorization failed: the answer was 401",
        "the password of user1 was changed on server2",
        "# the token bucket refills every 100ms",
        "# the password length is 12chars",
        "# a token for the bucket on server01",
        "# the lifetime of a token is 3600s",
        "read -p \"password \" PW; echo \"done\"",
        "latency_p99_us was 2.4 % worse than the control's, 3 of 4 blocks",
    ] {
        assert_eq!(masked(text, &in_text(text)), text);
    }
}

#[test]
fn secrets_of_several_lines_are_found() {
    for (text, shown) in [
        (
            "user: me\npassword: |\n  X\n\n  X\nport: 1",
            "user: me\npassword: …\nport: 1",
        ),
        (
            "- token: >-\n    X\n  port: 1\n- a: b",
            "- token: …\n  port: 1\n- a: b",
        ),
        ("a:\n  password:\n    X\nb: 1", "a:\n  password:…\nb: 1"),
        ("tokens_total: |\n  1\n", "tokens_total: |\n  1\n"),
        (
            "a: |\n  -----BEGIN PRIVATE KEY-----\n  X\n  -----END PRIVATE KEY-----\nb",
            "a: |\n  -----BEGIN PRIVATE KEY-----…-----END PRIVATE KEY-----\nb",
        ),
        (
            "-----BEGIN CERTIFICATE-----\nM\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nM\n-----END CERTIFICATE-----",
        ),
        (
            "-----BEGIN EC PRIVATE KEY-----\nX",
            "-----BEGIN EC PRIVATE KEY-----…",
        ),
        (
            "<a><db:password x='1'>X</db:password><user>me</user></a>",
            "<a><db:password x='1'>…</db:password><user>me</user></a>",
        ),
        (
            "usage: login <user> <password> [-v]",
            "usage: login <user> <password> [-v]",
        ),
        (
            "<name>db.password</name><value>X</value>",
            "<name>db.password</name><value>…</value>",
        ),
        (
            "{\"name\": \"PGPASSWORD\", \"value\": \"X\"}, {\"name\": \"a\", \"value\": \"b\"}",
            "{\"name\": \"PGPASSWORD\", \"value\": \"…\"}, {\"name\": \"a\", \"value\": \"b\"}",
        ),
        ("{\"password\":\n \"X\"}", "{\"password\":\n \"…\"}"),
        ("ls # password hunter2\nls", "ls # password …\nls"),
        ("# the API token is abc123!", "# the API token is …"),
        ("# secret sauce", "# secret …"),
        (
            "# the password of the database\n# token bucket\n# with a password",
            "# the password of the database\n# token bucket\n# with a password",
        ),
    ] {
        assert_eq!(masked(text, &in_text(text)), shown, "{text}");
    }
}

#[test]
fn hostile_text_costs_little_time() {
    let begun = std::time::Instant::now();
    for text in [
        "password: |",
        "password:\n ",
        "name=password value={",
        "<password>",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN ",
        "db_password=x ",
        "ab=1 ",
        "'password: x' ",
        "password=\"$(",
        "\"password\":\"$(\"",
        "$(mysql -p",
        "'\"",
        "redis-cli -a `",
        "# password a1b2c3\n",
        "password 'x",
        "password $x$",
        "IDENTIFIED BY \"",
        "read PW <<< x ",
        "echo x | passwd --stdin ",
        "<(mysql -p",
        "a b ",
    ] {
        let text = text.repeat(600_000 / text.len());
        let shown = masked(&text, &in_text(&text));
        assert!(shown.len() <= 3 * text.len());
    }
    // A time that grew by the square would be many minutes.
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(120),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn the_words_of_a_list_are_read_in_their_order() {
    let words = [
        ("nice", "nice"),
        ("mysql", "mysql"),
        ("-pX", "-p…"),
        ("-h", "-h"),
        ("--password", "--password"),
        ("x y", "…"),
        ("{\"password\":\"x\"}", "{\"password\":\"…\"}"),
        ("--token=a;b", "--token=…"),
        ("Authorization: Bearer x", "Authorization: …"),
        ("a:b@h", "a:…@h"),
    ];
    let mut read = Words::default();
    for (word, shown) in words {
        assert_eq!(masked(word, &read.next(word)), shown, "{word}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_it(text in "[-a:= \"'\\\\{}\\[\\],;|&@/é\npasswordtoken]{0,60}") {
        let shown = masked(&text, &in_text(&text));
        let read = Words::default().next(&text);
        proptest::prop_assert!(shown.len() <= text.len() + 3 * text.len() && read.len() <= text.len());
    }
}
