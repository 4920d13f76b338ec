//! The modules of one crate as its text has them: what each defines, imports and names. Code of
//! tests does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A crate's modules, the root first.
pub(super) struct Modules {
    /// Files below `src`, by their index.
    pub(super) files: Vec<PathBuf>,
    all: Vec<Module>,
}

/// One module, in a file of its own or within one.
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Items that are defined here.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    /// Names and paths in its code.
    paths: BTreeSet<Vec<String>>,
}

/// A name that `use` brings.
struct Import {
    path: Vec<String>,
    /// `None`: all that is there.
    name: Option<String>,
    is_public: bool,
}

/// What a path leads to.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item of this file.
    Item(usize),
}

/// Text as far as it matters here.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// `::`
    Separator,
    Sign(char),
    Group(Delimiter, Vec<Token>),
    Literal(String),
}

impl Modules {
    /// Reads a crate from its root: `lib.rs` or `main.rs`.
    ///
    /// # Errors
    /// A file cannot be read, or is no Rust.
    pub(super) fn read(root: &Path) -> anyhow::Result<Self> {
        let mut modules = Self {
            files: Vec::new(),
            all: Vec::new(),
        };
        let directory = root.parent().unwrap_or(root).to_path_buf();
        modules.add(root, None, &directory)?;
        Ok(modules)
    }

    /// For each file the files that it needs, with the names that it needs them for. What `pub use`
    /// hands on is only needed where the file names it too.
    pub(super) fn needs(&self) -> Vec<BTreeMap<usize, BTreeSet<String>>> {
        let mut needs = vec![BTreeMap::new(); self.files.len()];
        for (index, module) in self.all.iter().enumerate() {
            let first_words: BTreeSet<&String> = module.paths.iter().map(|path| &path[0]).collect();
            let mut need = |path: &[String]| {
                if let Some(Target::Item(file)) = self.resolve(index, path)
                    && file != module.file
                {
                    let names: &mut BTreeSet<String> = needs[module.file].entry(file).or_default();
                    names.extend(path.last().cloned());
                }
            };
            for import in &module.imports {
                let is_named = |name| first_words.contains(name);
                if !import.is_public || import.name.as_ref().is_some_and(is_named) {
                    need(&import.path);
                }
            }
            let takes_all = module.imports.iter().any(|import| import.name.is_none());
            for path in &module.paths {
                if path.len() > 1 || takes_all {
                    need(path);
                }
            }
        }
        needs
    }

    /// Adds the module of a file, and those below it. `directory` has the files of its children.
    fn add(
        &mut self,
        path: &Path,
        parent: Option<usize>,
        directory: &Path,
    ) -> anyhow::Result<usize> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let stream: TokenStream = text
            .parse()
            .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        self.files.push(path.to_path_buf());
        let module = self.begin(self.files.len() - 1, parent);
        self.scan(module, &without_tests(tokens(stream)), directory)?;
        Ok(module)
    }

    fn begin(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.all.push(Module {
            file,
            parent,
            children: BTreeMap::new(),
            items: BTreeSet::new(),
            imports: Vec::new(),
            paths: BTreeSet::new(),
        });
        self.all.len() - 1
    }

    /// Takes in the items of a module.
    fn scan(&mut self, module: usize, tokens: &[Token], directory: &Path) -> anyhow::Result<()> {
        let mut rest = tokens;
        let (mut is_public, mut at_path) = (false, None);
        while let Some((first, behind)) = rest.split_first() {
            match (word(first), behind) {
                (Some("pub"), [Token::Group(Delimiter::Parenthesis, _), behind @ ..]) => {
                    is_public = true;
                    rest = behind;
                    continue;
                }
                (Some("pub"), _) => {
                    is_public = true;
                    rest = behind;
                    continue;
                }
                (Some("use"), _) => {
                    let end = end_of(behind, |token| *token == Token::Sign(';'));
                    self.import(module, &behind[..end], &[], is_public);
                    rest = &behind[end..];
                }
                (Some("mod"), [Token::Word(name), Token::Group(_, inside), behind @ ..]) => {
                    let child = self.begin(self.all[module].file, Some(module));
                    self.all[module].children.insert(name.clone(), child);
                    self.scan(child, inside, &directory.join(name))?;
                    rest = behind;
                }
                (Some("mod"), [Token::Word(name), behind @ ..]) => {
                    let (file, below) = self.file_of(module, name, directory, at_path.take());
                    let child = self.add(&file, Some(module), &below)?;
                    self.all[module].children.insert(name.clone(), child);
                    rest = behind;
                }
                (
                    Some(
                        "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static",
                    ),
                    [Token::Word(name), ..],
                ) => {
                    // In `const fn` and `static mut` the name comes later.
                    if !matches!(name.as_str(), "fn" | "mut" | "unsafe" | "async" | "extern") {
                        self.all[module].items.insert(name.clone());
                        let end = end_of_item(rest);
                        self.gather(module, &rest[..end]);
                        rest = &rest[end..];
                    } else {
                        rest = behind;
                        continue;
                    }
                }
                (Some("mut"), [Token::Word(name), ..]) => {
                    self.all[module].items.insert(name.clone());
                    rest = behind;
                }
                (Some("macro_rules"), [_, Token::Word(name), ..]) => {
                    self.all[module].items.insert(name.clone());
                    rest = behind;
                }
                (Some("impl"), _) => {
                    let end = end_of_item(rest);
                    self.gather(module, &rest[..end]);
                    rest = &rest[end..];
                }
                _ => {
                    if let Token::Group(Delimiter::Bracket, inside) = first {
                        at_path = at_path.or(value_of_path(inside));
                    }
                    self.gather(module, std::slice::from_ref(first));
                    rest = behind;
                    if word(first).is_some() {
                        continue;
                    }
                }
            }
            is_public = false;
        }
        Ok(())
    }

    /// The file of `mod name;`, and the directory of its children.
    fn file_of(
        &self,
        module: usize,
        name: &str,
        directory: &Path,
        at_path: Option<String>,
    ) -> (PathBuf, PathBuf) {
        if let Some(path) = at_path {
            let own = &self.files[self.all[module].file];
            let file = own.parent().unwrap_or(own).join(path);
            let below = file.parent().unwrap_or(&file).to_path_buf();
            return (file, below);
        }
        let below = directory.join(name);
        let beside = directory.join(format!("{name}.rs"));
        match beside.exists() {
            true => (beside, below),
            false => (below.join("mod.rs"), below),
        }
    }

    /// Takes in one tree of `use`.
    fn import(&mut self, module: usize, tree: &[Token], above: &[String], is_public: bool) {
        for part in tree.split(|token| *token == Token::Sign(',')) {
            let mut path = above.to_vec();
            let mut tokens = part.iter();
            let mut name = None;
            let mut is_whole = false;
            while let Some(token) = tokens.next() {
                match token {
                    Token::Word(keyword) if keyword == "as" => {
                        name = tokens.next().and_then(word).map(str::to_owned);
                    }
                    Token::Word(part) if part == "self" && !path.is_empty() => {}
                    Token::Word(part) => path.push(part.clone()),
                    Token::Sign('*') => {
                        is_whole = true;
                        let path = path.clone();
                        self.all[module].imports.push(Import {
                            path,
                            name: None,
                            is_public,
                        });
                    }
                    Token::Group(_, inside) => {
                        is_whole = true;
                        self.import(module, inside, &path, is_public);
                    }
                    _ => {}
                }
            }
            if !is_whole && !path.is_empty() {
                let name = name.or_else(|| path.last().cloned());
                self.all[module].imports.push(Import {
                    path,
                    name,
                    is_public,
                });
            }
        }
    }

    /// Takes in the names of some code, and what is imported within it.
    fn gather(&mut self, module: usize, code: &[Token]) {
        let mut rest = code;
        // A field, a method, a lifetime, or what follows type arguments. After two dots stands
        // the end of a range.
        let mut is_member = false;
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            match first {
                Token::Word(word) if word == "use" => {
                    let end = end_of(rest, |token| *token == Token::Sign(';'));
                    self.import(module, &rest[..end], &[], false);
                    rest = &rest[end..];
                }
                Token::Word(word) => {
                    let mut path = vec![word.clone()];
                    while let [Token::Separator, Token::Word(next), behind @ ..] = rest {
                        path.push(next.clone());
                        rest = behind;
                    }
                    if !is_member {
                        self.all[module].paths.insert(path);
                    }
                }
                Token::Group(_, inside) => self.gather(module, inside),
                _ => {}
            }
            is_member = match first {
                Token::Sign('.') => !is_member,
                Token::Sign('\'') | Token::Separator => true,
                _ => false,
            };
        }
    }

    /// What a path in a module leads to; `None` for other crates' and for local names.
    fn resolve(&self, module: usize, path: &[String]) -> Option<Target> {
        self.follow(module, path, &mut BTreeSet::new())
    }

    /// As [`Modules::resolve`]. `seen` has the names that are being looked up: globs may lead to
    /// each other.
    fn follow(
        &self,
        module: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let mut at = module;
        let mut rest = path;
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" => at = 0,
                "self" => {}
                "super" => at = self.all[at].parent?,
                _ => break,
            }
            rest = behind;
        }
        self.look_up(at, rest, seen)
    }

    /// What a path below a module leads to.
    fn look_up(
        &self,
        at: usize,
        path: &[String],
        seen: &mut BTreeSet<(usize, String)>,
    ) -> Option<Target> {
        let Some((first, rest)) = path.split_first() else {
            return Some(Target::Module(at));
        };
        let module = &self.all[at];
        if let Some(child) = module.children.get(first) {
            return self.look_up(*child, rest, seen);
        }
        if module.items.contains(first) {
            return Some(Target::Item(module.file));
        }
        if !seen.insert((at, first.clone())) {
            return None;
        }
        let (named, all): (Vec<&Import>, Vec<&Import>) = module
            .imports
            .iter()
            .filter(|import| import.name.as_ref().is_none_or(|name| name == first))
            .partition(|import| import.name.is_some());
        for import in named {
            match self.follow(at, &import.path, seen) {
                Some(Target::Module(to)) => return self.look_up(to, rest, seen),
                Some(item) => return Some(item),
                None => {}
            }
        }
        for import in all {
            if let Some(Target::Module(to)) = self.follow(at, &import.path, seen)
                && to != at
                && let Some(found) = self.look_up(to, path, seen)
            {
                return Some(found);
            }
        }
        None
    }
}

fn word(token: &Token) -> Option<&str> {
    match token {
        Token::Word(word) => Some(word),
        _ => None,
    }
}

/// The place behind the first token that ends something.
fn end_of(tokens: &[Token], ends: impl Fn(&Token) -> bool) -> usize {
    tokens
        .iter()
        .position(ends)
        .map_or(tokens.len(), |index| index + 1)
}

/// The place behind an item: its block, or the semicolon where there is none. What `const` and its
/// like are given may have a block.
fn end_of_item(tokens: &[Token]) -> usize {
    let has_value = matches!(
        tokens.first().and_then(word),
        Some("const" | "static" | "type" | "use" | "let")
    );
    end_of(tokens, |token| {
        matches!(token, Token::Group(Delimiter::Brace, _)) && !has_value
            || *token == Token::Sign(';')
    })
}

/// As [`end_of_item`], where a field, a variant or an arm may stand too, which end with a comma.
fn end_of_item_or_part(tokens: &[Token]) -> usize {
    const ITEMS: [&str; 17] = [
        "async",
        "const",
        "enum",
        "extern",
        "fn",
        "impl",
        "let",
        "macro_rules",
        "mod",
        "static",
        "struct",
        "trait",
        "type",
        "union",
        "unsafe",
        "use",
        "if",
    ];
    match tokens.first().and_then(word) {
        Some(first) if ITEMS.contains(&first) => end_of_item(tokens),
        _ => end_of(tokens, |token| matches!(token, Token::Sign(',' | ';'))),
    }
}

/// The value of an attribute `path = "…"`.
fn value_of_path(attribute: &[Token]) -> Option<String> {
    match attribute {
        [Token::Word(word), Token::Sign('='), Token::Literal(text)] if word == "path" => {
            Some(text.trim_matches('"').to_owned())
        }
        _ => None,
    }
}

/// Whether an attribute is `cfg(test)` or `cfg(all(test, …))`.
fn is_of_tests(attribute: &[Token]) -> bool {
    match attribute {
        [Token::Word(word), Token::Group(_, inside)] if word == "cfg" => match inside.as_slice() {
            [Token::Word(word)] => word == "test",
            [Token::Word(word), Token::Group(_, inside)] => {
                word == "all" && inside.contains(&Token::Word("test".to_owned()))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Leaves out what only tests have.
fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some((first, behind)) = rest.split_first() {
        if let (Token::Sign('#'), [Token::Group(Delimiter::Bracket, attribute), behind @ ..]) =
            (first, behind)
            && is_of_tests(attribute)
        {
            let mut item = behind;
            while let [Token::Sign('#'), Token::Group(..), behind @ ..] = item {
                item = behind;
            }
            let is_visibility = |token: &Token| {
                matches!(token, Token::Word(word) if word == "pub")
                    || matches!(token, Token::Group(Delimiter::Parenthesis, _))
            };
            while let Some((token, behind)) = item.split_first()
                && is_visibility(token)
            {
                item = behind;
            }
            rest = &item[end_of_item_or_part(item)..];
            continue;
        }
        kept.push(match first {
            Token::Group(delimiter, inside) => {
                Token::Group(*delimiter, without_tests(inside.clone()))
            }
            other => other.clone(),
        });
        rest = behind;
    }
    kept
}

fn tokens(stream: TokenStream) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        tokens.push(match tree {
            TokenTree::Group(group) => {
                // Macros wrap nothing here, so no group is without delimiters.
                Token::Group(group.delimiter(), self::tokens(group.stream()))
            }
            TokenTree::Ident(ident) => {
                Token::Word(ident.to_string().trim_start_matches("r#").to_owned())
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => {
                let is_double = punct.spacing() == Spacing::Joint
                    && trees
                        .next_if(
                            |tree| matches!(tree, TokenTree::Punct(next) if next.as_char() == ':'),
                        )
                        .is_some();
                match is_double {
                    true => Token::Separator,
                    false => Token::Sign(':'),
                }
            }
            TokenTree::Punct(punct) => Token::Sign(punct.as_char()),
            TokenTree::Literal(literal) => Token::Literal(literal.to_string()),
        });
    }
    tokens
}
