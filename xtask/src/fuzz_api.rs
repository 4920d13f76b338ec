//! `cargo xtask fuzz api`: schemathesis makes requests from the interface's own description, and
//! none may end in a 5xx: a hundred for each operation, or as many as fit into `--minutes N`.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::build_release;
use crate::step::Started;
use crate::{install, step, venv};

/// An experiment that changes nothing and never ends by itself.
const SPEC: &str = r#"
parameters = [{ name = "x", type = "int", low = 0, high = 99, default = 50 }]
target = { start = ["sleep", "1000"] }
workload = { command = ["sh", "-c", 'echo "{\"requests\": 1000, \"latency_p99_us\": {x}0}"'], json = { requests = "requests", latency_p99_us = "latency_p99_us" } }
objective = { metric = "latency_p99_us" }
evaluation = { warm_up_s = 0, block_s = 0.1, blocks = 3 }
budget = { evaluations = 100000 }
search = { strategy = "random" }
"#;

/// What the server leaves for the command line.
#[derive(Deserialize)]
struct Access {
    write_token: String,
    address: String,
}

pub(crate) fn run(root: &Path, minutes: Option<&str>) -> anyhow::Result<ExitCode> {
    let minutes: Option<f64> = minutes.map(str::parse).transpose().context("--minutes N")?;
    install::install(install::FUZZ_API)?;
    let work = root.join("target/fuzz");
    let state = work.join("state");
    match std::fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => std::fs::create_dir_all(&state)?,
    }
    let python = venv::environment(
        &work.join("venv"),
        &root.join("xtask/fuzz/requirements.txt"),
    )?;
    let binary = build_release(root)?;
    let slackline = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command
            .arg("--state-dir")
            .arg(&state)
            .args(arguments)
            .stdout(Stdio::null());
        command
    };
    let server = slackline(&["serve", "--listen", "127.0.0.1:0", "--rate", "100000"]);
    let _server = Started({ server }.spawn().context("slackline serve")?);
    let access = wait_for(&state.join("serve.json"))?;
    let spec = work.join("experiment.toml");
    std::fs::write(&spec, SPEC)?;
    let made = slackline(&["experiments", "create"]).arg(&spec).status()?;
    if !made.success() {
        bail!("no experiment could be made");
    }
    let mut schemathesis = Command::new(python.with_file_name("st"));
    schemathesis
        .arg("run")
        .arg(format!("http://{}/api/v1/openapi.json", access.address))
        .arg("--header")
        .arg(format!("Authorization: Bearer {}", access.write_token))
        .args([
            "--checks",
            "not_a_server_error",
            "--max-examples",
            "100",
            "--seed",
            "1",
        ])
        .current_dir(&work);
    if let Some(minutes) = minutes {
        schemathesis
            .arg("--max-time")
            .arg((60.0 * minutes).ceil().max(1.0).to_string());
    }
    Ok(if step::run("schemathesis", &mut schemathesis)? {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn wait_for(file: &Path) -> anyhow::Result<Access> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        if let Ok(text) = std::fs::read_to_string(file) {
            return Ok(serde_json::from_str(&text)?);
        }
        if Instant::now() > end {
            bail!(
                "{} does not appear: the server did not start",
                file.display()
            );
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
