//! `slackline experiments`: the verbs of a running `slackline serve`, on the command line.

use std::num::NonZeroUsize;
use std::path::Path;

use anyhow::Context as _;
use coordinator::store::{State, UserRequest};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tuner::live::Changes;
use tuner::sentence::counted;

use crate::done::CommandOutcome;
use crate::output::{message, print};
use crate::table;

mod client;
mod verbs;

use client::{Client, NOT_JSON};
pub(crate) use verbs::Arguments;
use verbs::Verb;

/// How often `ls --watch` looks.
const WATCH: std::time::Duration = std::time::Duration::from_secs(2);

/// A specification in a file, as the server takes it.
fn given(file: &Path) -> anyhow::Result<Value> {
    let spec = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let path = file
        .canonicalize()
        .with_context(|| format!("{}", file.display()))?;
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    Ok(json!({
        "spec": spec,
        "format": if is_json { "json" } else { "toml" },
        "dir": path.parent(),
        "name": path.file_stem().map(|stem| stem.to_string_lossy()),
    }))
}

/// `true`, a number, or a word.
fn scalar(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        _ => json!(text),
    }
}

pub(crate) fn run(arguments: &Arguments, state_dir: &Path) -> anyhow::Result<CommandOutcome> {
    let client = Client::new(arguments, state_dir)?;
    match &arguments.verb {
        Verb::Ls {
            json,
            watch,
            state,
            limit,
        } => ls(&client, *json, *watch, state.as_deref(), *limit)?,
        Verb::Show { id, json } => {
            let shown = client.json("GET", &format!("/experiments/{id}"), None)?;
            print(&if *json {
                pretty(&shown)?
            } else {
                trouble(&client.json("GET", "/status", None)?) + &show(&shown)
            })?;
        }
        Verb::PauseQueue => {
            client.json("POST", "/queue/pause", None)?;
            message(
                "the queue is paused: no search or verification begins; a continuous experiment still watches what it has promoted",
            );
        }
        Verb::ResumeQueue => {
            client.json("POST", "/queue/resume", None)?;
            message("the queue is resumed");
        }
        Verb::Create { spec } => {
            let body = given(spec)?;
            let checked = client.json("POST", "/specs/check", Some(&body))?;
            for remark in checked["remarks"].as_array().into_iter().flatten() {
                message(&format!("warning: {}", text(remark)));
            }
            let made_of = client.json("POST", "/experiments", Some(&body));
            made(&made_of.with_context(|| spec.display().to_string())?)?;
        }
        Verb::Pause { id } => drop(act(&client, *id, "pause")?),
        Verb::Resume { id } => drop(act(&client, *id, "resume")?),
        Verb::Stop { id } => drop(act(&client, *id, "stop")?),
        Verb::Verify { id } => drop(act(&client, *id, "verify")?),
        Verb::Promote { id } => drop(act(&client, *id, "promote")?),
        Verb::Rollback { id } => {
            if not_restored(&act(&client, *id, "rollback")?).is_some() {
                return Ok(CommandOutcome::RestoreFailed);
            }
        }
        Verb::ForgetRest { id, yes } => return forget_rest(&client, *id, *yes),
        Verb::Kill { id, evaluation } => {
            act(&client, *id, &format!("evaluations/{evaluation}/kill"))?;
        }
        Verb::Delete { id } => {
            client.text("DELETE", &format!("/experiments/{id}"), None)?;
            message(&format!("experiment {id} is deleted"));
        }
        Verb::Enqueue { id, values } => enqueue(&client, *id, values)?,
        Verb::Budget {
            id,
            evaluations,
            wall_time_min,
            no_wall_time,
        } => budget(&client, *id, *evaluations, *wall_time_min, *no_wall_time)?,
        Verb::Note {
            id,
            evaluation,
            text,
        } => {
            let path = match evaluation {
                Some(number) => on(*id, &format!("evaluations/{number}/note")),
                None => on(*id, "note"),
            };
            client.json("PUT", &path, Some(&json!({ "text": text })))?;
            message(match text.trim().is_empty() {
                true => "the note is removed",
                false => "the note is written",
            });
        }
        Verb::Fork { id, spec } => fork(&client, *id, spec.as_deref())?,
        Verb::Export { id, format } => {
            let path = on(*id, &format!("export?format={format}"));
            crate::output::print_bytes(&client.bytes("GET", &path, String::new())?)?;
        }
        Verb::Import { report } => {
            let text =
                std::fs::read_to_string(report).with_context(|| format!("{}", report.display()))?;
            // As it is, so that what is wrong has the line of the file.
            let imported = client.bytes("POST", "/experiments/import", text);
            let imported = imported.with_context(|| format!("{}", report.display()))?;
            made(&serde_json::from_slice(&imported).context(NOT_JSON)?)?;
        }
    }
    Ok(CommandOutcome::Positive)
}

/// The path of something about an experiment.
fn on(id: i64, what: &str) -> String {
    format!("/experiments/{id}/{what}")
}

/// Does it, and says what has become of the experiment.
fn act(client: &Client, id: i64, verb: &str) -> anyhow::Result<Value> {
    let now = client.json("POST", &on(id, verb), None)?;
    let now_is = state(&now);
    message(&match verb {
        "promote" => format!(
            "experiment {id} is {now_is}. {}",
            done(&now["promotion"]).sentences().join(" ")
        ),
        "rollback" if not_restored(&now).is_some() => format!(
            "the rollback could not restore {}. Remove the cause, then roll back again: only the rest is tried then. If a file or \
             knob is gone for good, forget it: `slackline experiments forget-rest {id}`. {}Experiment {id} is {now_is}",
            rest_of(&now),
            match texts(&now["rolled_back"]) {
                done if done.is_empty() => String::new(),
                done => format!("Rolled back: {}. ", done.join("; ")),
            }
        ),
        "rollback" => format!(
            "rolled back: {}; experiment {id} is {now_is}",
            texts(&now["rolled_back"]).join("; ")
        ),
        _ => match wish_of(&now) {
            Some(wish) => format!("experiment {id} {}", wish.with_verb()),
            None => format!("experiment {id} is {now_is}"),
        },
    });
    say_what_waits(&now);
    for other in now["may_promote"].as_array().into_iter().flatten() {
        message(&format!(
            "warning: continuous experiment {other} may promote on this host now; to prevent this, pause it: `slackline \
             experiments pause {other}`"
        ));
    }
    Ok(now)
}

/// What is made has a number, which is printed.
fn made(now: &Value) -> anyhow::Result<()> {
    say_what_waits(now);
    print(&format!("{}\n", now["id"]))
}

fn ls(
    client: &Client,
    json: bool,
    watch: bool,
    state: Option<&str>,
    limit: Option<NonZeroUsize>,
) -> anyhow::Result<()> {
    let state = state.map(|state| format!("state={state}"));
    let limit = limit.map(|limit| format!("limit={limit}"));
    let query = [state, limit].into_iter().flatten().collect::<Vec<_>>();
    let path = format!("/experiments?{}", query.join("&"));
    loop {
        let experiments = client.json("GET", &path, None)?;
        let text = if json {
            pretty(&experiments)?
        } else {
            let promotions = client.json("GET", "/promotions", None)?;
            let trouble = trouble(&client.json("GET", "/status", None)?);
            trouble + &list(&experiments) + &by_commands(&promotions)
        };
        if !watch {
            return print(&text);
        }
        // A terminal shows the newest list alone; a file has them one after the other.
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
        let clear = if is_terminal && !json {
            "\x1b[H\x1b[2J"
        } else {
            ""
        };
        print(&format!("{clear}{text}"))?;
        std::thread::sleep(WATCH);
    }
}

fn forget_rest(client: &Client, id: i64, is_confirmed: bool) -> anyhow::Result<CommandOutcome> {
    let now = client.json("GET", &format!("/experiments/{id}"), None)?;
    let rest = rest_of(&now);
    if !is_confirmed && not_restored(&now).is_some() {
        message(&format!(
            "Slackline would no longer try to restore: {rest}. Nothing is forgotten yet. To forget these files and knobs, run \
             `slackline experiments forget-rest {id} --yes`"
        ));
        return Ok(CommandOutcome::Negative);
    }
    let confirmed = json!({ "confirm": true });
    client.json("POST", &on(id, "forget-rest"), Some(&confirmed))?;
    message(&format!(
        "the rest of the rollback of experiment {id} is forgotten; left as it is: {rest}"
    ));
    Ok(CommandOutcome::Positive)
}

/// Enqueues a configuration of `NAME=VALUE`.
fn enqueue(client: &Client, id: i64, values: &[String]) -> anyhow::Result<()> {
    let mut configuration = serde_json::Map::new();
    for pair in values {
        let (name, value) = pair
            .split_once('=')
            .with_context(|| format!("{pair:?} is not PARAMETER=VALUE"))?;
        let is_new = configuration
            .insert(name.to_owned(), scalar(value))
            .is_none();
        anyhow::ensure!(is_new, "{name} is given twice");
    }
    let body = json!({ "configuration": configuration });
    let enqueued = client.json("POST", &on(id, "queue"), Some(&body))?;
    message(&format!("enqueued: {enqueued}"));
    let now = client.json("GET", &format!("/experiments/{id}"), None)?;
    match until_enqueued(&now) {
        Some(hint) => message(&hint),
        None => say_what_waits(&now),
    }
    Ok(())
}

fn budget(
    client: &Client,
    id: i64,
    evaluations: usize,
    wall_time_min: Option<f64>,
    no_wall_time: bool,
) -> anyhow::Result<()> {
    // JSON has no such numbers, and what it has in their place means that the limit stays.
    anyhow::ensure!(
        wall_time_min.is_none_or(f64::is_finite),
        "--wall-time-min must be a finite number"
    );
    let body = json!({
        "evaluations": evaluations, "wall_time_min": wall_time_min, "no_wall_time": no_wall_time,
    });
    let now = client.json("PUT", &on(id, "budget"), Some(&body))?;
    let minutes = match now["wall_time_min"].as_f64() {
        Some(minutes) => format!("and {minutes} min of measuring"),
        None => "without a time limit".to_owned(),
    };
    message(&format!(
        "the budget of experiment {id} is now {} in total, {minutes}",
        counted(evaluations, "evaluation")
    ));
    match until_searched(&now) {
        Some(hint) => message(&hint),
        None => say_what_waits(&now),
    }
    Ok(())
}

/// Another experiment, of the same specification or of another one.
fn fork(client: &Client, id: i64, spec: Option<&Path>) -> anyhow::Result<()> {
    let body = match spec {
        Some(file) => {
            let mut given = given(file)?;
            if let Value::Object(fields) = &mut given {
                fields.remove("name");
            }
            given
        }
        None => json!({}),
    };
    let forked = client.json("POST", &on(id, "fork"), Some(&body))?;
    if let Some(remark) = forked["remark"].as_str() {
        message(&format!("note: {remark}"));
    } else if let Some(carried) = number(&forked["carried"]) {
        message(&format!(
            "the search starts from {} of experiment {id}",
            counted(carried, "evaluation")
        ));
    }
    made(&forked)
}

/// What is in force on the host, as the server of the state directory says.
pub(crate) fn promotions(state_dir: &Path) -> anyhow::Result<Value> {
    Client::of(state_dir)?.json("GET", "/promotions", None)
}

/// What commands have put in force besides the experiments, after the list of these.
fn by_commands(promotions: &Value) -> String {
    let commands = promotions["commands"].as_array().into_iter().flatten();
    let each = commands.map(|it| {
        format!(
            "Promotion {} ({}), made by `tune --promote` or `apply`, is in force: see `slackline promotions ls`.\n",
            it["number"],
            text(&it["experiment"])
        )
    });
    each.collect()
}

/// The texts of an array.
/// What a promotion has done.
pub(crate) fn done(promotion: &Value) -> Changes {
    serde_json::from_value(promotion.clone()).unwrap_or_default()
}

pub(crate) fn texts(value: &Value) -> Vec<String> {
    let all = value.as_array().into_iter().flatten();
    all.map(text).collect()
}

fn pretty(value: &Value) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn number(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// The state, and what will become of it.
fn state(experiment: &Value) -> String {
    let now = text(&experiment["state"]);
    match wish_of(experiment) {
        Some(wish) => format!("{now}, {}", wish.with_verb()),
        None => now,
    }
}

fn wish_of(experiment: &Value) -> Option<UserRequest> {
    UserRequest::deserialize(&experiment["wish"]).ok()
}

/// What keeps the server from its work, before anything else that it says.
fn trouble(status: &Value) -> String {
    let mut lines = String::new();
    if let Some(trouble) = status["trouble"].as_str() {
        lines += &format!("THE SERVER IS IN TROUBLE: {trouble}\n");
    }
    if status["queue_is_paused"] == true {
        lines += "The queue is paused: no search or verification begins until `slackline experiments resume-queue`.\n";
    }
    lines
}

/// How many evaluations there are, and may be.
fn progress(experiment: &Value) -> String {
    let (done, budget) = (&experiment["evaluations"], &experiment["budget"]);
    if experiment["always_on"] == true {
        format!("{done}; each search may use {budget}")
    } else if done.as_u64() > budget.as_u64() {
        format!("{done}, budget {budget}")
    } else {
        format!("{done}/{budget}")
    }
}

/// Says for what an experiment waits: another one, or that the queue is resumed.
fn say_what_waits(experiment: &Value) {
    if let Some(why) = experiment["waits"].as_str() {
        message(&format!("experiment {} {why}", experiment["id"]));
    }
}

/// What a rollback has left, if it left something.
fn not_restored(experiment: &Value) -> Option<&Vec<Value>> {
    let left = experiment["promotion"]["left"].as_array();
    left.filter(|left| !left.is_empty())
}

/// What a rollback could not restore, with the reasons.
fn rest_of(experiment: &Value) -> String {
    texts(&experiment["promotion"]["changed"]).join(", ")
}

fn state_of(experiment: &Value) -> Option<State> {
    State::deserialize(&experiment["state"]).ok()
}

/// What has to happen before a new budget is used, where that does not come by itself.
fn until_searched(experiment: &Value) -> Option<String> {
    let state = state_of(experiment)?;
    let id = &experiment["id"];
    let is_used_up = experiment["evaluations"].as_u64() >= experiment["budget"].as_u64();
    match (state, is_used_up) {
        (State::Queued | State::Running, _) => None,
        (_, true) => Some(format!(
            "experiment {id} {} and has used up its budget: set a higher one, then resume the experiment",
            state.with_verb()
        )),
        (_, false) => Some(format!(
            "experiment {id} {}: `slackline experiments resume {id}` lets the search go on",
            state.with_verb()
        )),
    }
}

/// What to do so that an enqueued configuration is measured, where that does not come by itself.
fn until_enqueued(experiment: &Value) -> Option<String> {
    let is_used_up = experiment["evaluations"].as_u64() >= experiment["budget"].as_u64();
    let hint = state_of(experiment)?.until_enqueued(experiment["id"].as_i64()?, is_used_up)?;
    (!experiment["continuous"].is_object()).then_some(hint)
}

/// The state, and whether the winner is in force and the result from elsewhere.
fn standing(experiment: &Value) -> String {
    let mut now = state(experiment);
    for mark in ["imported", "promoted"] {
        if experiment[mark] == true {
            now = format!("{now}, {mark}");
        }
    }
    now
}

fn list(experiments: &Value) -> String {
    let mut rows = table::table(&["#", "name", "state", "evaluations", "result"]);
    let mut is_cut = false;
    for it in experiments.as_array().into_iter().flatten() {
        let said = it["message"].as_str().or(it["waits"].as_str());
        let said = short(&said.map_or_else(|| text(&it["sentence"]), str::to_owned));
        is_cut |= said.ends_with('…');
        rows.add_row([
            it["id"].to_string(),
            text(&it["name"]),
            standing(it),
            progress(it),
            said,
        ]);
    }
    let whole = match is_cut {
        true => "`slackline experiments show NUMBER` has the whole text where this list has `…`.\n",
        false => "",
    };
    format!("{rows}\n{whole}")
}

/// What fits the last column of a list.
const SHORT_CHARS_MAX: usize = 60;

/// How an experiment stands, in short: the beginning of what `show` has whole.
fn short(text: &str) -> String {
    const ENDS: [&str; 5] = [" against the control", " (", "; ", ". ", ", which"];
    // `Shown:` alone says nothing.
    let colon = text.find(": ").filter(|at| text[..*at].contains(' '));
    let ends = ENDS.iter().filter_map(|end| text.find(end)).chain(colon);
    let end = ends.min().unwrap_or(text.len());
    let head = text[..end].trim_end_matches('.');
    if head.chars().count() <= SHORT_CHARS_MAX {
        return head.to_owned();
    }
    // The last word may be whole or not.
    let cut: String = head.chars().take(SHORT_CHARS_MAX - 1).collect();
    let words = cut.rsplit_once(char::is_whitespace);
    let words = words.map_or(cut.as_str(), |(words, _)| words);
    format!("{} …", words.trim_end_matches([' ', ',', ':']))
}

fn show(it: &Value) -> String {
    let (done, budget) = (&it["evaluations"], &it["budget"]);
    let evaluations = |count: &Value| counted(number(count).unwrap_or_default(), "evaluation");
    let progress = if it["continuous"].is_object() {
        format!("{}; each search may use {budget}", evaluations(done))
    } else if done.as_u64() > budget.as_u64() {
        format!("{}, above the budget of {budget}", evaluations(done))
    } else {
        format!("{done} of {}", evaluations(budget))
    };
    let mut lines = vec![
        format!("{} (experiment {})", text(&it["name"]), it["id"]),
        format!("{}: {progress}", standing(it)),
    ];
    if let Some(note) = it["note"].as_str() {
        lines.push(format!("note: {note}"));
    }
    for why in ["message", "waits"] {
        let said = it[why].as_str();
        // The sentence of one that has failed has its message.
        let sentence = it["sentence"].as_str().unwrap_or_default();
        lines.extend(
            said.filter(|said| !sentence.contains(said))
                .map(str::to_owned),
        );
    }
    if let Some(evaluation) = it["progress"]["evaluation"].as_u64() {
        let (done, of) = (&it["progress"]["blocks"], &it["progress"]["of_blocks"]);
        lines.push(match of.as_u64() {
            Some(1..) => format!("evaluation {evaluation}: {done} of {of} blocks"),
            _ => format!("evaluation {evaluation} starts"),
        });
    }
    if let Some(verifying) = it["progress"]["verifying"].as_str() {
        lines.push(match verifying.strip_prefix("a round: ") {
            Some(what) => format!("measuring a round: {what}"),
            None => format!("verifying {verifying}"),
        });
    }
    if let Some(sentence) = it["sentence"]
        .as_str()
        .filter(|sentence| !sentence.is_empty())
    {
        lines.push(sentence.to_owned());
    }
    lines.extend(it["winner_rank"].as_str().map(str::to_owned));
    let settings = it["settings"].as_array().into_iter().flatten();
    lines.extend(settings.map(|setting| format!("  {}", text(setting))));
    let always_on = it["continuous"]["lines"].as_array().into_iter().flatten();
    lines.extend(always_on.map(text));
    let entries = it["entries"].as_array().into_iter().flatten();
    // The lines above say what came of one that has ended.
    let is_said = |entry: &Value| ["done", "failed"].iter().any(|kind| entry["kind"] == *kind);
    let entries = entries.filter(|entry| !is_said(entry));
    lines.extend(entries.map(|entry| {
        let [at, kind, words] = ["at", "kind", "text"].map(|key| text(&entry[key]));
        // To the second, as the lines above.
        let at = match at.split_once('.') {
            Some((second, _)) => format!("{second}Z"),
            None => at,
        };
        // The word of the store, and the one for people.
        let kind = if kind == "held" { "waits" } else { &kind };
        format!("  {at} {kind}: {words}")
    }));
    if it["promotion"].is_object() {
        match not_restored(it) {
            Some(_) => lines.push(format!("Not restored by the rollback: {}.", rest_of(it))),
            None => lines.extend(self::done(&it["promotion"]).sentences()),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
