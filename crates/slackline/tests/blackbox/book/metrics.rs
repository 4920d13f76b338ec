//! `docs/metrics.md` has every metric, as the servers themselves describe them at `/metrics`.

use std::fmt::Write as _;

use super::{lacks, pages, run_in_scene};
use crate::toy::skip;

const HEAD: &str = "# Metrics for Prometheus

This page is made from what the servers say at `/metrics`, in Prometheus' text format. A metric whose name ends in `_total` only
grows. The unit of a metric is at the end of its name, or in its text.
";

/// Title, text, and how the server is started and its page read.
const SERVERS: [(&str, &str, &str); 5] = [
    (
        "`slackline serve`",
        "`/metrics` at the address of the server. Prometheus needs a token, see [access](access.md).",
        r#"slackline serve & until TOKEN=$(jq -er .read_token /var/lib/slackline/serve.json); do sleep 0.1; done
           page() { curl -s -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8431/metrics; }"#,
    ),
    (
        "`slackline agent`",
        "`/metrics` at `--listen`, 127.0.0.1:9753 by default. [A whole fleet](fleet.md) explains these metrics.",
        "slackline agent & page() { curl -s http://127.0.0.1:9753/metrics; }",
    ),
    (
        "`slackline isolate run`",
        "`/metrics` at the address of `--metrics`. See [isolate](isolate.md).",
        r#"sleep 1000 & printf '[service]\npid = %s\nobjective = { p99_ms = 5 }\nlatency = { push = { udp = "127.0.0.1:8125" } }\n' $! >isolate.toml
           slackline isolate run isolate.toml --observe --metrics 127.0.0.1:9154 &
           page() { curl -s http://127.0.0.1:9154/metrics; }"#,
    ),
    (
        "`slackline serve-cache`",
        "`/metrics` at the address of `--metrics`. See [serve-cache](serve-cache.md).",
        "slackline serve-cache --metrics 127.0.0.1:9151 & page() { curl -s http://127.0.0.1:9151/metrics; }",
    ),
    (
        "`slackline serve-block run`",
        "`/metrics` at the address `metrics` of the configuration. See [serve-block](serve-block.md). The page also has \
         the metrics `slackline_shard_…` of `serve-cache`.",
        r#"cat >blocks.toml <<'END'
metrics = "127.0.0.1:9152"
nvme = { listen = ["127.0.0.1:4420"], subsystem = "nqn.2026-11.com.example:blocks" }
device = [{ name = "ram", memory = "64MiB" }]
tenant = [{ export = "scratch", device = "ram", namespace = 1 }]
END
           slackline serve-block run blocks.toml & page() { curl -s http://127.0.0.1:9152/metrics; }"#,
    ),
];

/// Name, kind and text of each metric of a page.
fn families(page: &str) -> Vec<(&str, &str, &str)> {
    let heads = |what| {
        page.lines()
            .filter_map(move |it| it.strip_prefix(what)?.split_once(' '))
    };
    let helps = heads("# HELP ");
    let family = |(name, text)| {
        let (_, kind) = heads("# TYPE ").find(|(of, _)| *of == name)?;
        Some((name, kind, text))
    };
    helps.filter_map(family).collect()
}

#[test]
fn the_reference_of_metrics_is_up_to_date() {
    if let Some(why) = lacks() {
        return skip(&why);
    }
    let mut page = HEAD.to_owned();
    for (number, (title, text, start)) in SERVERS.iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "{start}\nfor _ in $(seq 100); do page >\"$out/metrics\" && break; sleep 0.1; done\n"
        );
        let ended = run_in_scene(directory.path(), &script);
        let said = std::fs::read_to_string(directory.path().join("metrics")).unwrap_or_default();
        let families = families(&said);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        if families.is_empty() && stderr.contains("cannot be used") {
            return skip(&format!("{title}: {stderr}"));
        }
        assert!(families.len() > 5, "{title}: {said}\n{stderr}");
        if number == 1 && said.contains("\nslackline_agent_traces 0") {
            return skip(&"the scheduler's tracepoints cannot be used here");
        }
        let _ = write!(
            page,
            "\n## {title}\n\n{text}\n\n| metric | kind | meaning |\n|---|---|---|\n"
        );
        for (name, kind, text) in families {
            if page.contains(&format!("| `{name}` |")) {
                continue;
            }
            let _ = writeln!(page, "| `{name}` | {kind} | {} |", text.replace('|', "\\|"));
        }
    }
    let file = pages::root().join("docs/metrics.md");
    if std::env::var_os("SLACKLINE_WRITE_DOCS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        kept == page,
        "docs/metrics.md is not what the servers say: run cargo xtask docs"
    );
}
