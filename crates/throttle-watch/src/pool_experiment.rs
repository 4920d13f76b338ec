//! Pool sizes that only the service's own configuration can change, as an experiment for
//! `slackline tune`.

use std::fmt::Write as _;
use std::path::Path;

use host::Roots;
use throttle::advice::{Advice, AdviceInput};
use throttle::{RuntimePool, ThreadPool};
use tuner::template::literal;
use tuner::verification::quoted;

use crate::error::ThrottleError;
use crate::runtimes::words;

/// Pools whose sizes are searched: those that use most CPU time.
const POOLS_MAX: usize = 3;

/// A load for the experiment.
#[derive(Clone, Copy, Debug)]
pub struct ExperimentLoad<'a> {
    /// The URL that is loaded.
    pub url: &'a str,
    /// Requests a second.
    pub rate: f64,
}

/// A pool's size as a parameter.
struct Size<'a> {
    parameter: String,
    pool: &'a ThreadPool,
    /// Where the command says it, if it does.
    is_in_command: bool,
}

/// A specification for `slackline tune`, and what is left to fill in.
#[derive(Clone, Debug)]
pub struct PoolExperiment {
    /// The specification, in TOML.
    pub text: String,
    /// Pools whose size the command does not say, each with its parameter.
    pub unset_sizes: Vec<(String, String)>,
    /// Whether the command names the port of the URL.
    pub is_port_in_command: bool,
}

impl PoolExperiment {
    /// Pool sizes of the service in this group, under this load.
    ///
    /// # Errors
    /// The group has no process any more, or the URL has no port.
    pub fn of(
        group: &str,
        advice: &Advice,
        question: &AdviceInput<'_>,
        load: &ExperimentLoad<'_>,
    ) -> Result<Self, ThrottleError> {
        let roots = Roots::default();
        let pid = busiest(&roots, group)?;
        let read =
            |file: &str| std::fs::read(roots.proc(format!("{pid}/{file}"))).unwrap_or_default();
        let words = words(&read("cmdline"));
        let mut command: Vec<String> = words.iter().map(|word| literal(word)).collect();
        let (port, url) =
            with_port(&literal(load.url)).ok_or_else(|| ThrottleError::UrlWithoutPort {
                url: load.url.to_owned(),
            })?;
        let mut sizes = Vec::new();
        let pools = question.service.pools.iter();
        for pool in pools.filter(|pool| pool.threads > 1).take(POOLS_MAX) {
            let parameter = format!("{}_threads", identifier(&pool.name));
            let is_in_command = put(&mut command, pool, &parameter);
            sizes.push(Size {
                parameter,
                pool,
                is_in_command,
            });
        }
        let mut is_port_in_command = false;
        for word in &mut command {
            is_port_in_command |= replace_number(word, &port.to_string(), "{port}");
        }
        let directory = std::fs::read_link(roots.proc(format!("{pid}/cwd"))).unwrap_or_default();
        let text = text(
            group, advice, question, &url, load.rate, &sizes, &command, &directory,
        );
        let unset = sizes.into_iter().filter(|size| !size.is_in_command);
        Ok(Self {
            text,
            unset_sizes: unset
                .map(|size| (size.pool.name.clone(), size.parameter))
                .collect(),
            is_port_in_command,
        })
    }
}

/// The process of the group that has most threads.
fn busiest(roots: &Roots, group: &str) -> Result<u32, ThrottleError> {
    let threads =
        |pid: &u32| std::fs::read_dir(roots.proc(format!("{pid}/task"))).map_or(0, Iterator::count);
    host::processes_below(roots, group)?
        .into_iter()
        .max_by_key(threads)
        .ok_or_else(|| ThrottleError::Empty {
            group: group.to_owned(),
        })
}

/// Puts the parameter where the command says the pool's size: a variable, a runtime's flag, or a
/// word that is that number or sets it.
fn put(command: &mut Vec<String>, pool: &ThreadPool, parameter: &str) -> bool {
    if let Some(variable) = &pool.set_by {
        let set = ["env".to_owned(), format!("{variable}={{{parameter}}}")];
        command.splice(0..0, set);
        return true;
    }
    if let Some(runtime) = RuntimePool::of(&pool.name) {
        let set = format!("{}={{{parameter}}}", runtime.flag);
        let is_flag = |word: &&mut String| word.starts_with(&format!("{}=", runtime.flag));
        match command.iter_mut().find(is_flag) {
            Some(word) => *word = set,
            None => command.insert(1.min(command.len()), set),
        }
        return true;
    }
    let number = pool.threads.to_string();
    command
        .iter_mut()
        .skip(1)
        .any(|word| replace_number(word, &number, &format!("{{{parameter}}}")))
}

/// Replaces a number that is the whole word, or all that follows `=` or `:` in it; whether it was
/// there.
fn replace_number(word: &mut String, number: &str, by: &str) -> bool {
    let is_it = word
        .strip_suffix(number)
        .is_some_and(|before| before.is_empty() || before.ends_with(['=', ':']));
    if is_it {
        word.replace_range(word.len() - number.len().., by);
    }
    is_it
}

/// The port of an HTTP URL, and the URL with `{port}` in its place.
fn with_port(url: &str) -> Option<(u16, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // Other colons are those of a password, or within brackets: of an address of IPv6.
    let from = authority.rfind(['@', ']']).map_or(0, |at| at + 1);
    let (host, port) = match authority[from..].find(':') {
        Some(at) => {
            let (host, port) = authority.split_at(from + at);
            (host, port[1..].parse().ok()?)
        }
        None if scheme.eq_ignore_ascii_case("https") => (authority, 443),
        None => (authority, 80),
    };
    Some((port, format!("{scheme}://{host}:{{port}}{path}")))
}

/// A thread name as a parameter's name.
fn identifier(name: &str) -> String {
    let letters: String = name
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_lowercase()
            } else {
                '_'
            }
        })
        .collect();
    let trimmed = letters.trim_matches('_');
    if trimmed.starts_with(|first: char| first.is_ascii_alphabetic()) {
        trimmed.to_owned()
    } else {
        format!("pool_{trimmed}")
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "a template and all that is filled in"
)]
fn text(
    group: &str,
    advice: &Advice,
    question: &AdviceInput<'_>,
    url: &str,
    rate: f64,
    sizes: &[Size<'_>],
    command: &[String],
    directory: &Path,
) -> String {
    let quote = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let mut text = format!(
        "# Pool sizes of {group} under its CPU quota, by slackline throttle advise.\n\
         # Each side is an instance of its own in a control group of its own.\n\n\
         name = \"pools\"\nconstraints = [\"errors = 0\"]\n"
    );
    for size in sizes {
        let advised = advice
            .recommended
            .as_ref()
            .and_then(|p| p.setting.threads.get(&size.pool.name));
        let prior = advised.map_or(String::new(), |threads| {
            format!("prior = {{ best_guess = {threads}, confidence = 0.3 }}   # simulated\n")
        });
        let _ = write!(
            text,
            "\n[[parameters]]\nname = {}\ntype = \"int\"\nlow = 1\nhigh = {}\nscale = \"log\"\ndefault = {}\n{prior}",
            quote(&size.parameter),
            2 * size.pool.threads,
            size.pool.threads,
        );
    }
    let words: Vec<String> = command
        .iter()
        .map(|word| format!("    {},\n", quote(word)))
        .collect();
    let in_directory = quote(&format!(
        "cd {} && exec \"$@\"",
        quoted(&literal(&directory.display().to_string()))
    ));
    let quota = question.limit.in_cores().unwrap_or(1.0);
    let _ = write!(
        text,
        "\n[target]\npairing = \"alternating\"\nstart = [\n    \"sh\", \"-c\", {in_directory}, \"sh\",\n{}]\n\
         ready = {{ port = \"{{port}}\", timeout_s = 60 }}\n\
         quota = {{ cores = {quota}, period_us = {}, burst_us = {} }}\n\n\
         [workload]\nhttp = {{ url = {}, rate = {rate} }}\n\n\
         [objective]\nmetric = \"latency_p99_us\"\ngoal = \"minimise\"\n\n\
         [evaluation]\nwarm_up_s = 5\nblock_s = 5\nblocks = 4\nearly_abort = true\n\n\
         [budget]\nevaluations = 20\n\n\
         [verification]\nruns = 3\nblocks = 4\nreport = [\"throttled_periods\", \"throttled_s\", \"cpu_s_per_request\"]\n",
        words.concat(),
        question.limit.period_us,
        question.limit.burst_us,
        quote(url),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_url_gets_the_port_of_its_side() {
        for (url, port, filled) in [
            ("http://127.0.0.1:8080/x", 8080, "http://127.0.0.1:{port}/x"),
            ("http://127.0.0.1/", 80, "http://127.0.0.1:{port}/"),
            ("http://localhost", 80, "http://localhost:{port}"),
            (
                "https://localhost?a=:80",
                443,
                "https://localhost:{port}?a=:80",
            ),
            ("http://[::1]/a:80", 80, "http://[::1]:{port}/a:80"),
            ("http://a:80@[::1]:81/", 81, "http://a:80@[::1]:{port}/"),
        ] {
            assert_eq!(with_port(url), Some((port, filled.to_owned())), "{url}");
        }
    }
}
