//! Merges entries of the same name, as Falco Talon does with a file of overrides.

use yaml::{Kind, Node};

use super::entry::{ActionEntry, Entries, Parameters, RuleEntry};

impl Entries {
    /// Merges later entries into the first one of their name.
    pub(super) fn merged(self) -> Self {
        let mut merged = Self::default();
        for action in self.actions {
            match merged
                .actions
                .iter_mut()
                .find(|known| known.name == action.name)
            {
                Some(known) => known.change(action),
                None => merged.actions.push(action),
            }
        }
        for rule in self.rules {
            match merged
                .rules
                .iter_mut()
                .find(|known| known.name == rule.name)
            {
                Some(known) => known.change(rule),
                None => merged.rules.push(rule),
            }
        }
        merged
    }
}

impl ActionEntry {
    /// Applies a later entry: its single values go before, lists and mappings are added up.
    pub(super) fn change(&mut self, later: Self) {
        self.actionner = later.actionner.or(self.actionner.take());
        self.continues = later.continues.or(self.continues);
        self.ignores_errors = later.ignores_errors.or(self.ignores_errors);
        self.foreign.extend(later.foreign);
        change(&mut self.parameters, later.parameters);
    }

    /// Returns the action of a rule with what the definition of its name says.
    pub(super) fn with(self, definition: Option<&Self>) -> Self {
        let Some(definition) = definition else {
            return self;
        };
        let mut action = definition.clone();
        action.location = self.location.clone();
        action.change(self);
        action
    }
}

impl RuleEntry {
    fn change(&mut self, later: Self) {
        self.continues = later.continues.or(self.continues);
        self.dry_run = later.dry_run.or(self.dry_run);
        self.matcher.change(later.matcher);
        self.actions.extend(later.actions);
    }
}

fn change(parameters: &mut Parameters, later: Parameters) {
    for (name, value) in later {
        match parameters.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => change_value(known, value),
            None => parameters.push((name, value)),
        }
    }
}

/// A value of another kind replaces the earlier one; the actionner checks the kind.
fn change_value(known: &mut Node, later: Node) {
    match (&mut known.kind, later.kind) {
        (Kind::Sequence(known), Kind::Sequence(later)) => known.extend(later),
        (Kind::Mapping(known), Kind::Mapping(later)) => {
            let key = |node: &Node| node.scalar().map(|text| text.text().to_owned());
            for (name, value) in later {
                known.retain(|(known, _)| key(known) != key(&name));
                known.push((name, value));
            }
        }
        (_, kind) => {
            known.location = later.location;
            known.kind = kind;
        }
    }
}
