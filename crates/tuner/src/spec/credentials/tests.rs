//! Each form of a secret in a text, with its neighbours that are none.

use super::*;

#[test]
fn secrets_in_scripts_headers_and_json_are_found() {
    for (text, shown) in [
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
            "passwords_changed=3 auth_type: none --max-tokens 5",
            "passwords_changed=3 auth_type: none --max-tokens 5",
        ),
    ] {
        assert_eq!(masked(text, &in_text(text)), shown, "{text}");
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
