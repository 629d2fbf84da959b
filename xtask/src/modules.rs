//! The modules of a crate, and which of its files use which: found from the text, without the compiler.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, product_tokens};
use crate::tree::Tree;

/// A path leads through so many re-exports at most; those that lead to themselves end there.
const DEPTH: usize = 16;

/// A path, segment by segment.
type Path<'a> = Vec<&'a str>;

/// The files of one crate.
pub(crate) struct Crate<'a> {
    /// Module path to module; the root has the empty path.
    modules: BTreeMap<Path<'a>, Module<'a>>,
    files: BTreeMap<&'a str, Vec<Token<'a>>>,
}

/// A module: a file, or `mod name { ... }` within one.
#[derive(Default)]
struct Module<'a> {
    file: &'a str,
    items: BTreeSet<&'a str>,
    imports: Vec<Import<'a>>,
}

/// What a file takes from another one.
#[derive(Debug, Default)]
pub(crate) struct Dependency<'a> {
    /// First line that names it.
    pub(crate) line: usize,
    pub(crate) names: BTreeSet<&'a str>,
}

/// File to the other files that it uses.
pub(crate) type Dependencies<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Dependency<'a>>>;

/// One name that a `use` brings, or all (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import<'a> {
    name: &'a str,
    path: Path<'a>,
    line: usize,
    is_public: bool,
}

impl<'a> Crate<'a> {
    /// Reads the crate whose folder `src` is `source`. Files of tests are left out.
    pub(crate) fn read(tree: &'a Tree, source: &str) -> Self {
        let prefix = format!("{source}/");
        let mut found = Self {
            modules: BTreeMap::new(),
            files: BTreeMap::new(),
        };
        for file in &tree.files {
            let Some(path) = file.path.strip_prefix(&prefix) else {
                continue;
            };
            let is_test = |part: &str| matches!(part, "tests" | "tests.rs" | "bin");
            if !path.ends_with(".rs") || path.split('/').any(is_test) {
                continue;
            }
            let tokens = product_tokens(&file.text);
            found.add(module_path(path), path, &tokens);
            found.files.insert(path, tokens);
        }
        found
    }

    /// Returns the folder of a file: `a` for `a/mod.rs`, `a/b.rs`, and for `a.rs` if there is a folder `a`.
    pub(crate) fn folder<'b>(&self, file: &'b str) -> &'b str {
        let stem = file.strip_suffix(".rs").unwrap_or(file);
        let below = format!("{stem}/");
        if self.files.keys().any(|other| other.starts_with(&below)) {
            return stem;
        }
        file.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Returns for each file what it takes from which other files.
    pub(crate) fn uses(&self) -> Dependencies<'a> {
        let mut uses = BTreeMap::new();
        for (file, tokens) in &self.files {
            let mut found: BTreeMap<&str, Dependency<'a>> = BTreeMap::new();
            let mut add = |from: &[&'a str], path: &[&'a str], line: usize| {
                let target = self.resolve(from, path, DEPTH);
                if let Some((other, name)) = target.filter(|(other, _)| other != file) {
                    let known = found.entry(other).or_default();
                    known.line = if known.names.is_empty() {
                        line
                    } else {
                        known.line.min(line)
                    };
                    known.names.insert(name);
                }
            };
            for (path, module) in self.modules.iter().filter(|(_, it)| it.file == *file) {
                let own = |import: &&Import<'_>| !import.is_public && import.name != "*";
                for import in module.imports.iter().filter(own) {
                    add(path, &import.path, import.line);
                }
            }
            walk(&module_path(file), tokens, &mut |module, piece| {
                if let Piece::Path(path, line) = piece {
                    add(module, &path, line);
                }
            });
            uses.insert(*file, found);
        }
        uses
    }

    fn add(&mut self, start: Path<'a>, file: &'a str, tokens: &[Token<'a>]) {
        self.modules.entry(start.clone()).or_default().file = file;
        walk(&start, tokens, &mut |path, piece| {
            let module = self.modules.entry(path.to_vec()).or_default();
            module.file = file;
            match piece {
                Piece::Item(name) => drop(module.items.insert(name)),
                Piece::Import(import) => module.imports.push(import),
                Piece::Path(..) => {}
            }
        });
    }

    /// Returns the file that defines what `path` leads to from module `from`, and the item's name; `None` for a
    /// module itself and for what is not in this crate.
    fn resolve(
        &self,
        from: &[&'a str],
        path: &[&'a str],
        depth: usize,
    ) -> Option<(&'a str, &'a str)> {
        let mut at = from.to_vec();
        let mut rest = path;
        match *rest.first()? {
            "crate" => at.clear(),
            "self" => {}
            "super" => drop(at.pop()),
            _ => return self.below(&at, rest, depth),
        }
        rest = &rest[1..];
        while rest.first() == Some(&"super") {
            at.pop();
            rest = &rest[1..];
        }
        self.below(&at, rest, depth)
    }

    /// Like `resolve`, for a path whose first segment is a name in module `at`.
    fn below(&self, at: &[&'a str], path: &[&'a str], depth: usize) -> Option<(&'a str, &'a str)> {
        let (first, rest) = path.split_first()?;
        let module = self.modules.get(at)?;
        let child: Path<'a> = at.iter().chain([first]).copied().collect();
        if self.modules.contains_key(&child) && !rest.is_empty() {
            return self.below(&child, rest, depth);
        }
        if module.items.contains(first) {
            return Some((module.file, *first));
        }
        let depth = depth.checked_sub(1)?;
        let through = |import: &Import<'a>, tail: &[&'a str]| {
            // The name that an import brings is not found by that import.
            if import.path.first() == Some(first) && import.name == *first {
                return None;
            }
            let whole: Path<'a> = import.path.iter().chain(tail).copied().collect();
            self.resolve(at, &whole, depth)
        };
        if let Some(import) = module.imports.iter().find(|import| import.name == *first) {
            return through(import, rest);
        }
        let all = module.imports.iter().filter(|import| import.name == "*");
        all.filter_map(|import| through(import, path)).next()
    }
}

/// Returns the module that a file of `src` is.
fn module_path(file: &str) -> Path<'_> {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let mut path: Path<'_> = stem.split('/').collect();
    if matches!(path.last(), Some(&("mod" | "lib" | "main"))) {
        path.pop();
    }
    path
}

/// What a module's text says.
enum Piece<'a> {
    /// Defines an item.
    Item(&'a str),
    Import(Import<'a>),
    /// Names something; the line.
    Path(Path<'a>, usize),
}

/// Calls `tell` for each piece, with its module.
fn walk<'a>(start: &[&'a str], tokens: &[Token<'a>], tell: &mut dyn FnMut(&[&'a str], Piece<'a>)) {
    const ITEMS: [&str; 8] = [
        "fn", "struct", "enum", "trait", "type", "const", "static", "union",
    ];
    let mut module = start.to_vec();
    // Depth of braces outside of each inline module that is open.
    let mut inline = Vec::new();
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(token) = tokens.get(at) {
        let next = |by: usize| tokens.get(at + by).map_or("", |token| token.text);
        let is_item_level = depth == inline.last().map_or(0, |depth| depth + 1);
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            "mod" if next(2) == "{" => {
                inline.push(depth);
                depth += 1;
                module.push(next(1));
                at += 2;
            }
            "use" if is_name(next(1)) || next(1) == ":" => {
                let is_public = at > 0 && matches!(tokens[at - 1].text, "pub" | ")");
                let (imports, end) = imports(tokens, at + 1, is_public);
                for import in imports {
                    tell(&module, Piece::Import(import));
                }
                at = end;
            }
            "macro_rules" => tell(&module, Piece::Item(next(2))),
            word if ITEMS.contains(&word) && is_item_level && begins_item(tokens, at) => {
                tell(&module, Piece::Item(next(1)));
                at += 1;
            }
            word if is_name(word) && !is_after_a_path(tokens, at) => {
                let path = path(tokens, &mut at);
                tell(&module, Piece::Path(path, token.line));
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether a keyword such as `static` begins an item: it may be a lifetime, or part of a type (`*const T`).
fn begins_item(tokens: &[Token<'_>], at: usize) -> bool {
    const BEFORE: [&str; 10] = [
        ";", "}", "{", "]", ")", "pub", "unsafe", "async", "const", "extern",
    ];
    let before = at.checked_sub(1).map_or(";", |at| tokens[at].text);
    let name = tokens.get(at + 1).map_or("", |token| token.text);
    BEFORE.contains(&before) && is_name(name) && !matches!(name, "fn" | "unsafe" | "async")
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Whether the word at `at` is a field, a method, or goes on a path that a generic argument broke.
fn is_after_a_path(tokens: &[Token<'_>], at: usize) -> bool {
    let before = |by: usize| at.checked_sub(by).map_or("", |at| tokens[at].text);
    let is_range = before(1) == "." && before(2) == ".";
    (before(1) == "." && !is_range) || (before(1) == ":" && before(2) == ":")
}

/// Returns the path that starts at `at`, and moves `at` to its last token.
fn path<'a>(tokens: &[Token<'a>], at: &mut usize) -> Path<'a> {
    let mut path = vec![tokens[*at].text];
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    while text(*at + 1) == ":" && text(*at + 2) == ":" && is_name(text(*at + 3)) {
        *at += 3;
        path.push(tokens[*at].text);
    }
    path
}

/// Parses the tree of a `use`, and returns its names and the index of the semicolon.
fn imports<'a>(tokens: &[Token<'a>], from: usize, is_public: bool) -> (Vec<Import<'a>>, usize) {
    let mut found = Vec::new();
    // Prefixes of the groups that are open; the path since the last one.
    let mut groups: Vec<Path<'a>> = Vec::new();
    let mut path: Path<'a> = Vec::new();
    let mut alias = None;
    let mut at = from;
    while let Some(token) = tokens.get(at) {
        let prefix = groups.last().cloned().unwrap_or_default();
        match token.text {
            "{" => groups.push(std::mem::take(&mut path)),
            "," | "}" | ";" => {
                if let Some(name) = path.last().copied().filter(|_| path.len() > prefix.len()) {
                    found.push(import(
                        std::mem::take(&mut path),
                        alias.take().unwrap_or(name),
                        token.line,
                        is_public,
                    ));
                }
                if token.text == "}" {
                    groups.pop();
                }
                if token.text == ";" {
                    break;
                }
                // What follows the brace of a group is never a name, so that the prefix stands for it.
                path = groups.last().cloned().unwrap_or_default();
                at += 1;
                continue;
            }
            "as" => {
                alias = tokens.get(at + 1).map(|token| token.text);
                at += 1;
            }
            ":" => {}
            word => {
                path.push(word);
            }
        }
        if token.text == "{" {
            path = groups.last().cloned().unwrap_or_default();
        }
        at += 1;
    }
    (found, at)
}

/// Makes an import; `self` and `*` at the end stand for the module before them.
fn import<'a>(mut path: Path<'a>, mut name: &'a str, line: usize, is_public: bool) -> Import<'a> {
    if path.len() > 1 && matches!(path.last(), Some(&("self" | "*"))) {
        path.pop();
        if name == "self" {
            name = path.last().copied().unwrap_or(name);
        }
    }
    Import {
        name,
        path,
        line,
        is_public,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_and_pointers_are_no_items() {
        let source = "pub(crate) const fn a(b: &'static B) -> *const C {} type D = &'static E;";
        let mut items = Vec::new();
        walk(&[], &product_tokens(source), &mut |_, piece| {
            if let Piece::Item(name) = piece {
                items.push(name);
            }
        });
        assert_eq!(items, ["a", "D"]);
    }

    #[test]
    fn trees_of_imports_are_read() {
        let tokens = product_tokens("crate::{a::{self, B as C, d::*}, e}, f; rest");
        let (found, end) = imports(&tokens, 0, false);
        let found: Vec<_> = found
            .iter()
            .map(|import| (import.name, import.path.join("::")))
            .collect();
        let expected = [
            ("a", "crate::a"),
            ("C", "crate::a::B"),
            ("*", "crate::a::d"),
            ("e", "crate::e"),
            ("f", "f"),
        ];
        assert_eq!(found, expected.map(|(name, path)| (name, path.to_owned())));
        assert_eq!(tokens[end].text, ";");
    }
}
