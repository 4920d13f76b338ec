//! Pages and pictures of the manual that the code itself writes. `cargo xtask docs` writes them
//! anew.

mod api;
mod pictures;
mod schema;

/// A page is what the manual has. With `SLACKLINE_WRITE_DOCS` it is written first.
fn check_page(name: &str, page: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/").to_owned() + name;
    if std::env::var_os("SLACKLINE_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == page,
        "docs/{name} is not what the code says: run cargo xtask docs"
    );
}

#[test]
fn the_reference_of_the_command_line_is_up_to_date() {
    let options = clap_markdown::MarkdownOptions::new()
        .title("The command line".to_owned())
        .show_footer(false);
    let page = clap_markdown::help_markdown_custom::<crate::Arguments>(&options);
    let page = page.lines().map(str::trim_end).collect::<Vec<_>>();
    check_page("command-line.md", &(page.join("\n") + "\n"));
}

#[test]
fn the_exit_codes_of_the_manual_are_those_of_the_help() {
    let page = include_str!("../../../../docs/operations.md");
    let codes = crate::EXIT_CODES.strip_prefix("Exit codes: ").unwrap();
    for line in codes.trim_end_matches('.').split("; ") {
        let (code, meaning) = line.split_once(' ').unwrap();
        let row = format!("\n| {code} | {meaning}");
        assert!(page.contains(&row), "{row}");
    }
}
