//! Warnings of definitions that silently change what the built-in rules do: a file that was written to stand alone
//! brings macros and lists of its own, whose names may be those of the built-in ones.

use std::collections::BTreeSet;

use super::Config;
use super::item::{Change, ItemKind, ListItem, MacroItem};
use crate::diagnostic::{Code, Diagnostic, Location};

/// Returns the warning of a list that takes the place of a built-in one with other items.
pub(super) fn list(
    earlier: &ListItem,
    later: &ListItem,
    change: Change,
    config: &Config,
) -> Option<Diagnostic> {
    fn words(list: &ListItem) -> BTreeSet<&str> {
        list.items.iter().map(|word| word.text()).collect()
    }
    let differs = change == Change::Define && words(earlier) != words(later);
    differs.then(|| {
        warning(
            ItemKind::List,
            &later.name,
            &earlier.location,
            &later.location,
            config,
        )
    })?
}

/// Returns the warning of a macro that takes the place of a built-in one with another condition.
pub(super) fn condition(
    earlier: &MacroItem,
    later: &MacroItem,
    change: Change,
    config: &Config,
) -> Option<Diagnostic> {
    fn words(item: &MacroItem) -> impl Iterator<Item = &str> {
        item.condition.text().split_whitespace()
    }
    let differs = change == Change::Define && words(earlier).ne(words(later));
    differs.then(|| {
        warning(
            ItemKind::Macro,
            &later.name,
            &earlier.location,
            &later.location,
            config,
        )
    })?
}

fn warning(
    kind: ItemKind,
    name: &str,
    earlier: &Location,
    later: &Location,
    config: &Config,
) -> Option<Diagnostic> {
    if !config.builtin.contains(&*earlier.file) || earlier.file == later.file {
        return None;
    }
    let word = kind.word();
    let key = match kind {
        ItemKind::List => "items",
        ItemKind::Macro | ItemKind::Rule => "condition",
    };
    let message = format!(
        "{word} {name}: takes the place of the {word} of the built-in rules, which use this one now"
    );
    let help = format!(
        "give it another name; or, to change the built-in rules, write `override: {{{key}: replace}}`"
    );
    Some(Diagnostic::new(Code::ReplacedBuiltin, later.clone(), message).with_help(help))
}
