//! The blocks of code in the manual, their commands, and the marks above them.
//!
//! CONTRIBUTING.md explains the marks to those who write pages. Two tests read the pages: the
//! binary's own test parses every command and every file, and the black-box test runs what can be
//! run.

use std::path::{Path, PathBuf};

/// A block of code.
#[derive(Debug)]
pub(crate) struct Block {
    /// The line of its opening fence, from 1.
    pub(crate) line: usize,
    /// The word after the fence: `sh`, `toml`, …
    pub(crate) language: String,
    /// The comments right above it.
    pub(crate) marks: Vec<Mark>,
    /// What is between the fences.
    pub(crate) text: String,
}

/// A comment above a block, which nobody sees who reads the book.
#[derive(Debug)]
pub(crate) enum Mark {
    /// `<!-- not run: REASON -->`, or `<!-- not run, BEGINNING: REASON -->` for the commands that
    /// begin so.
    NotRun(Option<String>),
    /// `<!-- not checked: REASON -->`, of a file.
    NotChecked,
    /// `<!-- first: COMMAND -->`: what has to happen before the block, and a reader has done.
    First(String),
    /// `<!-- KIND -->`, `<!-- KIND, in part -->` or `<!-- KIND: FILE -->`: what a file is, and the
    /// name by which the page's commands call it.
    File(String),
}

/// A command of a block.
#[derive(Debug)]
pub(crate) struct Command {
    /// The line of its block.
    pub(crate) line: usize,
    /// As a shell reads it.
    pub(crate) text: String,
    /// What it prints, where the page shows that.
    pub(crate) output: Option<String>,
    /// Whether no mark says that it is not run.
    pub(crate) is_run: bool,
}

/// The pages of the manual and the README, by their paths in the repository.
pub(crate) fn pages() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut files = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    let page = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(&root).unwrap().to_owned();
        (name, text)
    };
    files.into_iter().map(page).collect()
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The blocks of a page.
///
/// # Errors
/// A mark that cannot be understood, with its line.
pub(crate) fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut marks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in (1..).zip(page.lines()) {
        let trimmed = line.trim();
        match (&mut open, trimmed.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(language)) => {
                open = Some(Block {
                    line: number,
                    language: language.to_owned(),
                    marks: std::mem::take(&mut marks),
                    text: String::new(),
                });
            }
            (None, None) => {
                let comment = trimmed.strip_prefix("<!--");
                match comment.and_then(|it| it.strip_suffix("-->")) {
                    Some(comment) => marks
                        .push(mark(comment.trim()).map_err(|why| format!("line {number}: {why}"))?),
                    None if marks.is_empty() => {}
                    None => return Err(format!("line {number}: a mark stands above no block")),
                }
            }
        }
    }
    Ok(blocks)
}

fn mark(comment: &str) -> Result<Mark, String> {
    let (what, rest) = comment.split_once(": ").unwrap_or((comment, ""));
    if let Some(of) = what.strip_prefix("not run") {
        has_reason(rest)?;
        return Ok(Mark::NotRun(of.strip_prefix(", ").map(str::to_owned)));
    }
    match what {
        "not checked" => has_reason(rest).map(|()| Mark::NotChecked),
        "first" => Ok(Mark::First(rest.to_owned())),
        _ => Ok(Mark::File(comment.to_owned())),
    }
}

fn has_reason(text: &str) -> Result<(), String> {
    match text.split_whitespace().count() {
        0..3 => Err(format!("a mark without a reason: {text:?}")),
        _ => Ok(()),
    }
}

impl Block {
    /// Its commands, where it is of the language `sh` or `console`.
    ///
    /// # Errors
    /// A mark of no command.
    pub(crate) fn commands(&self) -> Result<Vec<Command>, String> {
        let command = |text: String, output: Option<&str>| Command {
            line: self.line,
            text,
            output: output.map(|it| it.trim_end().to_owned()),
            is_run: true,
        };
        let mut commands: Vec<Command> = match self.language.as_str() {
            "sh" => {
                let lines = logical_lines(&self.text).into_iter();
                lines.map(|text| command(text, None)).collect()
            }
            "console" => {
                let text = format!("\n{}", self.text);
                let runs = text.split("\n$ ").skip(1);
                let runs = runs.map(|it| it.split_once('\n').unwrap_or((it, "")));
                runs.map(|(text, output)| command(text.to_owned(), Some(output)))
                    .collect()
            }
            _ => return Ok(Vec::new()),
        };
        for mark in &self.marks {
            let Mark::NotRun(of) = mark else { continue };
            let mut is_used = false;
            for command in &mut commands {
                if of.as_ref().is_none_or(|of| command.text.starts_with(of)) {
                    command.is_run = false;
                    is_used = true;
                }
            }
            if !is_used {
                let of = of.as_deref().unwrap_or_default();
                return Err(format!("line {}: no command begins with {of:?}", self.line));
            }
        }
        let first = self.marks.iter().filter_map(|mark| match mark {
            Mark::First(text) => Some(command(text.clone(), None)),
            _ => None,
        });
        Ok(first.chain(commands).collect())
    }
}

/// Lines that belong together in one; without empty lines and comments.
fn logical_lines(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in text.lines() {
        let line = line.trim_end();
        if command.is_empty() && (line.is_empty() || line.starts_with('#')) {
            continue;
        }
        command.push_str(line);
        if line.ends_with(['\\', '|']) {
            command.push('\n');
        } else {
            commands.push(std::mem::take(&mut command));
        }
    }
    commands.extend(Some(command).filter(|it| !it.is_empty()));
    commands
}
