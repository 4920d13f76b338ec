//! `slackline ask-tell`: JSON lines on standard input and output.
//!
//! `{"ask":2}` → `{"config":{…}}`, two lines; `null` where nothing more was found.
//! `{"tell":{"config":{…},"value":1.2,"variance":0.01}}` → nothing; what else a tell can hold is
//! said in [`tuner::tell`]. `{"best":1}` → `{"config":{…},"mean":…,"sd":…,"feasible":…}`, the last
//! the probability that it survives and holds to all constraints. The value is minimised, or
//! maximised where the specification's objective says so.

use std::io::{BufRead as _, Read as _};
use std::path::Path;

use anyhow::{Context as _, anyhow, ensure};
use bayes_opt::{Error, Optimizer};
use serde::Deserialize;
use serde_json::json;
use tuner::spec::Goal;
use tuner::tell::Tell;

use crate::done::CommandOutcome;
use crate::output::print;

/// Configurations that one line may ask for: each is found with those before it pending.
const ASK_MAX: usize = 1000;

/// No line is longer: a configuration of a thousand parameters has some tens of kilobytes.
const LINE_BYTES_MAX: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Ask(usize),
    Tell(Tell),
    Best(serde::de::IgnoredAny),
}

pub(crate) fn run(spec: &Path) -> anyhow::Result<CommandOutcome> {
    let (space, settings, goal) = tuner::spec::context(&host::Roots::default()).load_space(spec)?;
    let mut optimizer = Optimizer::new(space, settings)?;
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut some = (&mut input).take(LINE_BYTES_MAX as u64 + 1);
        let count = some
            .read_until(b'\n', &mut line)
            .context("standard input")?;
        if count == 0 {
            break;
        }
        take(&mut optimizer, goal, &line)
            .with_context(|| format!("standard input, line {number}"))?;
    }
    Ok(CommandOutcome::Positive)
}

fn take(optimizer: &mut Optimizer, goal: Goal, line: &[u8]) -> anyhow::Result<()> {
    ensure!(
        line.len() <= LINE_BYTES_MAX,
        "it is longer than {LINE_BYTES_MAX} bytes"
    );
    let line = std::str::from_utf8(line).map_err(|_| anyhow!("it is not UTF-8"))?;
    if line.trim().is_empty() {
        return Ok(());
    }
    answer(optimizer, goal, line.trim_end())
}

fn answer(optimizer: &mut Optimizer, goal: Goal, line: &str) -> anyhow::Result<()> {
    let request = serde_json::from_str(line).map_err(|error| unreadable(&error, line))?;
    match request {
        Request::Ask(count) => {
            ensure!(
                count <= ASK_MAX,
                "\"ask\" is {count}: ask for at most {ASK_MAX} at once"
            );
            let asked = match optimizer.ask(count) {
                Err(Error::Exhausted) => Vec::new(),
                asked => asked?,
            };
            let nothing = std::iter::repeat(None);
            for next in asked.into_iter().map(Some).chain(nothing).take(count) {
                print(&format!("{}\n", json!({ "config": next })))?;
            }
        }
        Request::Tell(tell) => {
            optimizer.tell(tell.observation(goal).map_err(anyhow::Error::msg)?)?;
        }
        Request::Best(_) => {
            let best = match optimizer.best() {
                Some(best) => json!({
                    "config": best.configuration,
                    "mean": goal.sign() * best.mean,
                    "sd": best.sd,
                    "feasible": best.probability_feasible,
                }),
                None => json!({ "config": null }),
            };
            print(&format!("{best}\n"))?;
        }
    }
    Ok(())
}

fn unreadable(error: &serde_json::Error, line: &str) -> anyhow::Error {
    let text = error.to_string();
    // Of the one line, the column is enough.
    let what = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(what, _)| what);
    let hint = if ["NaN", "Infinity"].iter().any(|word| line.contains(word)) {
        "; JSON has no NaN or Infinity: if nothing could be measured, tell \"crashed\": true"
    } else {
        ""
    };
    anyhow!(
        "expected {{\"ask\":1}}, {{\"tell\":{{…}}}} or {{\"best\":1}}: {}, column {}{hint}",
        tuner::spec::plain(what),
        error.column()
    )
}
