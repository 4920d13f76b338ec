//! `slackline completions` and `slackline man`: what shells and man(1) know of the command line.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Arguments, Done, message, print_bytes};

/// Prints the completions of a shell.
pub(crate) fn print_for(shell: Shell) -> anyhow::Result<Done> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "slackline", &mut script);
    print_bytes(&script)?;
    Ok(Done::Positive)
}

/// Writes `slackline.1`, and `slackline-COMMAND.1` for each command below it.
pub(crate) fn write_pages(directory: &Path) -> anyhow::Result<Done> {
    std::fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    clap_mangen::generate_to(Arguments::command(), directory)
        .with_context(|| format!("{}", directory.display()))?;
    message(&format!("The man pages are in {}.", directory.display()));
    Ok(Done::Positive)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/command-line.md` is what the commands themselves say. `cargo xtask docs` writes it
    /// anew.
    #[test]
    fn the_reference_of_the_command_line_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");
        let options = clap_markdown::MarkdownOptions::new()
            .title("The command line".to_owned())
            .show_footer(false);
        let page = clap_markdown::help_markdown_custom::<Arguments>(&options);
        let page = page
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n")
            + "\n";
        if std::env::var_os("SLACKLINE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == page,
            "docs/command-line.md is not what the commands say: run cargo xtask docs"
        );
    }
}
