//! Name filter for paths: each pattern has a key, a name that occurs in every path that it matches. The path
//! of a file need not be built if neither the file nor any of its folders is named by a key.

use policy::pattern::Pattern;

use super::tables::Effect;

/// `KEYS` of bpf/policy.h.
pub(super) const KEYS: usize = 4096;

/// Set of keys: for each hash of a name, the kinds of rules with such a key, as bits.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) slots: Vec<u8>,
    /// Bits of the kinds for which a rule without a key exists.
    pub(super) unkeyed: u8,
}

impl Keys {
    /// Builds the set from patterns and their effects.
    pub(super) fn new(patterns: &[(Pattern, Effect)]) -> Self {
        let mut keys = Self {
            slots: vec![0; KEYS],
            unkeyed: 0,
        };
        for (pattern, effect) in patterns {
            match key(pattern) {
                Some(name) => keys.slots[slot(name.as_bytes())] |= effect.kinds(),
                None => keys.unkeyed |= effect.kinds(),
            }
        }
        keys
    }

    /// Kinds of rules that may match a path with these names.
    pub(super) fn kinds(&self, path: &str) -> u8 {
        let names = path.split('/').filter(|name| !name.is_empty());
        let each = names.map(|name| self.slots[slot(name.as_bytes())]);
        each.fold(self.unkeyed, |all, kinds| all | kinds)
    }
}

/// The key of a pattern: its last name without wildcards, which is nearest to the file. Places of file
/// systems contain such a name less often than others. `None` if there is no such name.
fn key(pattern: &Pattern) -> Option<&str> {
    let mut names = pattern.text().rsplit('/');
    names.find(|name| !name.is_empty() && !name.contains('*'))
}

/// Hashes the length and the first eight bytes of a name, as `climb` of bpf/enforce.bpf.c does.
fn slot(name: &[u8]) -> usize {
    let mut first = [0; 8];
    let len = name.len().min(8);
    first[..len].copy_from_slice(&name[..len]);
    let len = u64::try_from(name.len()).expect("a name has at most 255 bytes");
    let hash = u64::from_le_bytes(first)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(len.wrapping_mul(0xff51_afd7_ed55_8ccd));
    usize::try_from(hash >> 52).expect("twelve bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::automaton::{Automaton, START};
    use super::*;

    fn effect(kind: usize) -> Effect {
        let mut effect = Effect::default();
        effect.of[kind] = 1;
        effect
    }

    /// The patterns of a kind that the automaton finds in a path from a given state on.
    fn found(
        automaton: &Automaton,
        patterns: &[(Pattern, Effect)],
        place: &str,
        names: &str,
    ) -> u8 {
        let state = automaton.advance(START, place.as_bytes());
        let state = automaton.advance(state, names.as_bytes());
        let set = &automaton.sets[usize::from(automaton.accept[usize::from(state)])];
        let kinds = set.iter().map(|pattern| patterns[*pattern].1.kinds());
        kinds.fold(0, |all, kinds| all | kinds)
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            3 => "[ab]{1,2}",
            1 => Just("a-name-that-is-longer".to_owned()),
            1 => Just("a-name-that-is-other!".to_owned()),
        ]
    }

    fn part() -> impl Strategy<Value = String> {
        prop_oneof![4 => name(), 1 => Just("*".to_owned()), 1 => Just("**".to_owned()),
            1 => Just("a*".to_owned()), 1 => Just("a**".to_owned())]
    }

    fn pattern() -> impl Strategy<Value = Pattern> {
        prop::collection::vec(part(), 0..5)
            .prop_map(|parts| format!("/{}", parts.join("/")))
            .prop_filter_map("a pattern", |text| Pattern::parse(&text).ok())
    }

    fn path() -> impl Strategy<Value = String> {
        prop::collection::vec(name(), 0..6)
            .prop_map(|names| names.iter().map(|name| format!("/{name}")).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        /// For any mounts: if keys rule out a path by its names and its place, the automaton finds no pattern
        /// in it.
        #[test]
        fn what_keys_rule_out_no_pattern_matches(
            patterns in prop::collection::vec((pattern(), 0..7_usize), 1..5),
            place in path(),
            names in path(),
        ) {
            let patterns: Vec<_> = patterns
                .into_iter()
                .map(|(pattern, kind)| (pattern, effect(kind)))
                .collect();
            let texts: Vec<Pattern> = patterns.iter().map(|(pattern, _)| pattern.clone()).collect();
            let automaton = Automaton::new(&texts).unwrap();
            let keys = Keys::new(&patterns);
            let names = if names.is_empty() && place.is_empty() { "/".to_owned() } else { names };
            let possible = keys.kinds(&names) | keys.kinds(&place);
            let found = found(&automaton, &patterns, &place, &names);
            prop_assert_eq!(found & !possible, 0, "{}{}", place, names);
        }
    }

    #[test]
    fn keys_are_the_last_names_without_wildcards() {
        for (text, wanted) in [
            ("/etc/shadow", Some("shadow")),
            ("/etc/**", Some("etc")),
            ("/**/.ssh/**", Some(".ssh")),
            ("/var/log/*.log", Some("log")),
            ("/**/sh", Some("sh")),
            ("/**", None),
            ("/", None),
            ("/*", None),
        ] {
            assert_eq!(key(&Pattern::parse(text).unwrap()), wanted, "{text}");
        }
    }

    #[test]
    fn most_names_rule_a_file_out_and_only_for_kinds_that_rules_are_about() {
        let patterns: Vec<(Pattern, Effect)> = ["/etc/shadow", "/root/.ssh/**", "/boot/**"]
            .iter()
            .map(|text| (Pattern::parse(text).unwrap(), effect(1)))
            .collect();
        let keys = Keys::new(&patterns);
        assert_eq!(keys.kinds("/usr/lib/x86_64-linux-gnu/libc.so.6"), 0);
        assert_eq!(keys.kinds("/srv/shadow"), 1 << 1);
        assert_eq!(keys.unkeyed, 0);
    }
}
