//! Rules on prose and links in Markdown: short sentences, and links that lead somewhere.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::finding::Finding;

/// A sentence with more words has a second idea (the house style).
const WORDS_MAX: usize = 40;

/// Checks one file; `text_of` reads another one of the repository, or says that there is none.
pub(super) fn check(
    path: &Path,
    text: &str,
    text_of: &dyn Fn(&Path) -> Option<String>,
) -> Vec<Finding> {
    let finding = |line, message| Finding {
        path: path.to_path_buf(),
        line: Some(line),
        message,
    };
    let mut findings = Vec::new();
    for paragraph in paragraphs(text) {
        for sentence in sentences(&paragraph.text) {
            let words = sentence.split_whitespace().count();
            if words > WORDS_MAX {
                let begin: Vec<&str> = sentence.split_whitespace().take(8).collect();
                findings.push(finding(
                    paragraph.line,
                    format!(
                        "a sentence of {words} words, more than {WORDS_MAX}: {} …",
                        begin.join(" ")
                    ),
                ));
            }
        }
    }
    for (line, link) in links(text) {
        if let Some(message) = broken(path, text, link, text_of) {
            findings.push(finding(line, message));
        }
    }
    findings
}

/// Every page of the manual is in its table of contents.
pub(super) fn check_summary(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let summary = PathBuf::from("docs/SUMMARY.md");
    let text = std::fs::read_to_string(root.join(&summary))?;
    let listed: BTreeSet<&str> = links(&text).into_iter().map(|(_, link)| link).collect();
    let mut findings = Vec::new();
    for folder in ["", "results/"] {
        for entry in std::fs::read_dir(root.join("docs").join(folder))? {
            let name = entry?.file_name();
            let name = format!("{folder}{}", name.to_string_lossy());
            let is_page = name.ends_with(".md") && name != "SUMMARY.md";
            if is_page && !listed.contains(&*name) {
                findings.push(Finding {
                    path: summary.clone(),
                    line: None,
                    message: format!("does not list docs/{name}"),
                });
            }
        }
    }
    Ok(findings)
}

/// Text between blank lines, without code and headings. An item of a list is one, and so is each
/// part of a cell of a table.
struct Paragraph {
    line: usize,
    text: String,
}

fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut paragraphs: Vec<Paragraph> = Vec::new();
    let mut continues = false;
    for (line, content) in prose_lines(text) {
        let trimmed = content.trim();
        if trimmed.starts_with('|') {
            let cells = trimmed.replace("\\|", "/").replace("<br>", "|");
            paragraphs.extend(cells.split('|').map(|cell| Paragraph {
                line,
                text: cell.to_owned(),
            }));
            continues = false;
            continue;
        }
        if trimmed.is_empty() || trimmed.starts_with(['#', '<', '!']) {
            continues = false;
            continue;
        }
        let item = item(trimmed);
        match paragraphs.last_mut() {
            Some(paragraph) if continues && item.is_none() => {
                paragraph.text.push(' ');
                paragraph.text.push_str(trimmed);
            }
            _ => paragraphs.push(Paragraph {
                line,
                text: item.unwrap_or(trimmed).to_owned(),
            }),
        }
        continues = true;
    }
    paragraphs
}

/// The text of an item of a list.
fn item(line: &str) -> Option<&str> {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if digits.len() < line.len() {
        digits.strip_prefix(". ")
    } else {
        line.strip_prefix("- ").or_else(|| line.strip_prefix("* "))
    };
    rest.map(str::trim_start)
}

/// Lines that are not between code fences, with their numbers.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        if is_fence {
            in_code = !in_code;
        }
        !is_fence && !in_code
    })
}

/// Sentences of a paragraph. Code counts as one word, a link as the words that are shown, an
/// interval as one.
fn sentences(paragraph: &str) -> Vec<String> {
    let text = without(paragraph, "`", "`", "X");
    let text = without(&text, "](", ")", "]");
    let text = intervals(&text);
    let mut sentences = Vec::new();
    let mut sentence = String::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        sentence.push_str(word);
        sentence.push(' ');
        let end = word.trim_end_matches(['"', ')', '*', ']', '_']);
        let begins = |next: &&str| !next.starts_with(|c: char| c.is_lowercase());
        // What follows a colon is read on its own.
        let is_end =
            end.ends_with(':') || end.ends_with(['.', '!', '?']) && words.peek().is_none_or(begins);
        if is_end {
            sentences.push(std::mem::take(&mut sentence));
        }
    }
    sentences.push(sentence);
    sentences
}

/// The text with every part from `open` to `close` replaced.
fn without(text: &str, open: &str, close: &str, by: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once(open) {
        let Some((_, after)) = after.split_once(close) else {
            break;
        };
        kept.push_str(before);
        kept.push_str(by);
        rest = after;
    }
    kept + rest
}

/// The text with intervals such as `[−1.2, 3.4]` attached to the number before them.
fn intervals(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        let inside = after.split_once(']').map(|(inside, _)| inside);
        let is_interval = inside.is_some_and(|inside| {
            inside.chars().any(|c| c.is_ascii_digit()) && !inside.chars().any(char::is_alphabetic)
        });
        kept.push_str(if is_interval {
            before.trim_end()
        } else {
            before
        });
        if is_interval {
            rest = after.split_once(']').map_or("", |(_, after)| after);
        } else {
            rest = after;
        }
    }
    kept + rest
}

/// Targets of links, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (line, content) in prose_lines(text) {
        let mut rest = content;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else {
                break;
            };
            links.push((line, target));
            rest = after;
        }
    }
    links
}

/// What is wrong with a link, if it is one within the repository.
fn broken(
    path: &Path,
    text: &str,
    link: &str,
    text_of: &dyn Fn(&Path) -> Option<String>,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = resolved(path.parent()?, file);
    if path.starts_with("docs") && !target.starts_with("docs") {
        return Some(format!("a link to {file}, which is not in the book"));
    }
    let other = match file {
        "" => Some(text.to_owned()),
        _ => text_of(&target),
    };
    let Some(other) = other else {
        return Some(format!("a link to {file}, which does not exist"));
    };
    let is_known = anchor.is_empty() || !file.is_empty() && !file.ends_with(".md");
    (!is_known && !anchors(&other).contains(anchor))
        .then(|| format!("a link to #{anchor}, which is no heading of that file"))
}

fn resolved(folder: &Path, file: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// The anchors of headings, as mdBook and forges make them.
fn anchors(text: &str) -> BTreeSet<String> {
    prose_lines(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            heading
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let text_of = |path: &Path| {
            let known = path == Path::new("docs/other.md");
            known.then(|| "# Other\n\n## A `heading`, here\n".to_owned())
        };
        let findings = check(Path::new("docs/this.md"), text, &text_of);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_long_sentence_is_found_and_code_counts_as_one_word() {
        let long = vec!["word"; 41].join(" ");
        let found = messages(&format!("One.\n\n{long}.\n"));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("docs/this.md:3: a sentence of 41 words"),
            "{found:?}"
        );
        let half = vec!["word"; 21].join(" ");
        for fine in [
            format!("{half}. {}.", half.replacen('w', "W", 1)),
            format!("{half}: {half}."),
            format!("- {half}\n- {half}"),
            format!("| {half} | {half} |"),
            format!("| {half}<br>{half} |"),
            format!("```\n{long}\n```"),
            format!("`{long}` is one word."),
            format!("[{half}](https://example.org/{})", "a".repeat(50)),
        ] {
            assert_eq!(messages(&fine), Vec::<String>::new(), "{fine}");
        }
        assert_eq!(messages(&format!("| a | {long} |")).len(), 1);
        // An abbreviation within a sentence does not end it.
        assert_eq!(messages(&format!("{half} vs. {half}.")).len(), 1);
    }

    #[test]
    fn a_link_leads_to_a_file_and_a_heading() {
        let fine = "# This\n[a](other.md), [b](other.md#a-heading-here), [c](#this), [d](https://example.org/x#y)\n";
        assert_eq!(messages(fine), Vec::<String>::new());
        for (text, expected) in [
            (
                "[a](missing.md)",
                "docs/this.md:1: a link to missing.md, which does not exist",
            ),
            (
                "[a](../README.md)",
                "docs/this.md:1: a link to ../README.md, which is not in the book",
            ),
            (
                "\n[a](../docs/other.md#none)",
                "docs/this.md:2: a link to #none, which is no heading of that file",
            ),
        ] {
            assert_eq!(messages(text), [expected]);
        }
    }
}
