//! Compiles all patterns on paths to one automaton (Aho-Corasick), in the layout of `struct automaton`.
//!
//! A path is read between two NULs, which no path contains: so a pattern that is anchored at an end of the
//! path is a plain text with a NUL at that end, and the automaton only has to find texts.

use std::collections::{BTreeMap, VecDeque};

use event::PathPattern;

const STATES: usize = 4096;
const CLASSES: usize = 64;
/// Bit that is set for a property of the path, whatever the patterns (bpf/record.h).
const ODD: u64 = 1 << 63;
const DOTTED: u64 = 1 << 62;
const TRAILING: u64 = 1 << 61;
const EDGE_SIZE: usize = 4;
/// Flag of an edge, beside its target state: the target completes a pattern.
const COMPLETES: u32 = 0x8000_0000;
/// Number of bits left for patterns.
pub(super) const PATTERN_BITS: usize = 61;
/// `struct automaton`.
pub(super) const SIZE: usize = 256 + EDGE_SIZE * STATES * CLASSES + 8 * STATES;

/// Automaton under construction.
#[derive(Debug)]
pub(super) struct Automaton {
    classes: [u8; 256],
    width: usize,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    next: [u16; CLASSES],
    slots: u64,
}

impl Node {
    fn new() -> Self {
        Self {
            next: [0; CLASSES],
            slots: 0,
        }
    }
}

impl Automaton {
    /// Builds the automaton from patterns and the slots that they stand for. Returns `None` if they are too
    /// many, or too long.
    pub(super) fn new(patterns: &BTreeMap<PathPattern, u64>) -> Option<Self> {
        let patterns = patterns.iter().map(|(pattern, slots)| (pattern, *slots));
        let texts = patterns.map(|(pattern, slots)| (text(pattern), slots));
        let texts: Vec<(Vec<u8>, u64)> = texts.chain(marks()).collect();
        let mut automaton = Self {
            classes: [0; 256],
            width: 1,
            nodes: vec![Node::new()],
        };
        for byte in texts.iter().flat_map(|(text, _)| text) {
            let class = &mut automaton.classes[usize::from(*byte)];
            if *class == 0 {
                if automaton.width == CLASSES {
                    return None;
                }
                *class = u8::try_from(automaton.width).ok()?;
                automaton.width += 1;
            }
        }
        for (text, slots) in &texts {
            automaton.add(text, *slots)?;
        }
        automaton.connect();
        Some(automaton)
    }

    fn add(&mut self, text: &[u8], slots: u64) -> Option<()> {
        let mut at = 0;
        for byte in text {
            let class = usize::from(self.classes[usize::from(*byte)]);
            let next = self.nodes[at].next[class];
            at = if next == 0 {
                if self.nodes.len() == STATES {
                    return None;
                }
                let new = self.nodes.len();
                self.nodes[at].next[class] = u16::try_from(new).ok()?;
                self.nodes.push(Node::new());
                new
            } else {
                usize::from(next)
            };
        }
        self.nodes[at].slots |= slots;
        Some(())
    }

    /// Fills in the failure edges: to the longest suffix of the text that a pattern begins with.
    fn connect(&mut self) {
        let mut fail = vec![0_usize; self.nodes.len()];
        let mut queue: VecDeque<usize> = VecDeque::from([0]);
        while let Some(at) = queue.pop_front() {
            for class in 0..self.width {
                let child = usize::from(self.nodes[at].next[class]);
                let other = if at == 0 {
                    0
                } else {
                    self.nodes[fail[at]].next[class]
                };
                if child == 0 {
                    self.nodes[at].next[class] = other;
                    continue;
                }
                fail[child] = usize::from(other);
                let slots = self.nodes[fail[child]].slots;
                self.nodes[child].slots |= slots;
                queue.push_back(child);
            }
        }
    }

    /// Encodes the automaton for the programs.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(SIZE);
        // Fewer than 64 classes.
        to.extend(self.classes.map(|class| class * 4));
        let edges_of = |state: u16| u32::from(state) << (CLASSES * EDGE_SIZE).ilog2();
        for node in &self.nodes {
            for next in node.next {
                let completes = self.nodes[usize::from(next)].slots != 0;
                let edge = edges_of(next) | if completes { COMPLETES } else { 0 };
                to.extend(edge.to_ne_bytes());
            }
        }
        to.resize(256 + EDGE_SIZE * STATES * CLASSES, 0);
        for node in &self.nodes {
            to.extend(node.slots.to_ne_bytes());
        }
        to.resize(SIZE, 0);
        to
    }
}

/// Parts of a path that make it denote another one, or that rules ask for by themselves.
fn marks() -> impl Iterator<Item = (Vec<u8>, u64)> {
    let marks: [(&[u8], u64); 7] = [
        (b"//", ODD),
        (b"/./", ODD),
        (b"/.\0", ODD),
        (b"/../", ODD),
        (b"/..\0", ODD),
        (b"..", DOTTED),
        (b"/\0", TRAILING),
    ];
    marks.into_iter().map(|(text, bit)| (text.to_vec(), bit))
}

fn text(pattern: &PathPattern) -> Vec<u8> {
    match pattern {
        PathPattern::Exact(text) => [b"\0", &text[..], b"\0"].concat(),
        PathPattern::Prefix(text) => [b"\0", &text[..]].concat(),
        PathPattern::Suffix(text) => [&text[..], b"\0"].concat(),
        PathPattern::Contains(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what the programs find in a path.
    fn found(automaton: &Automaton, path: &[u8]) -> u64 {
        let (mut at, mut slots) = (0, 0);
        for byte in [b"\0", path, b"\0"].concat() {
            at = usize::from(
                automaton.nodes[at].next[usize::from(automaton.classes[usize::from(byte)])],
            );
            slots |= automaton.nodes[at].slots;
        }
        slots
    }

    #[test]
    fn each_pattern_is_found_where_it_is_and_nowhere_else() {
        let patterns = [
            PathPattern::Exact(b"/etc/shadow".to_vec()),
            PathPattern::Prefix(b"/etc/pam.d/".to_vec()),
            PathPattern::Suffix(b"/id_rsa".to_vec()),
            PathPattern::Contains(b"adow".to_vec()),
            PathPattern::Prefix(b"/etc".to_vec()),
        ];
        let holds = |pattern: &PathPattern, path: &[u8]| match pattern {
            PathPattern::Exact(text) => path == text,
            PathPattern::Prefix(text) => path.starts_with(text),
            PathPattern::Suffix(text) => path.ends_with(text),
            PathPattern::Contains(text) => path.windows(text.len()).any(|part| part == text),
        };
        let slots = patterns.iter().cloned().zip((0..).map(|bit| 1 << bit));
        let automaton = Automaton::new(&slots.collect()).expect("few patterns");
        for path in [
            &b"/etc/shadow"[..],
            b"/etc/shadow-",
            b"/x/etc/shadow",
            b"/etc/pam.d/su",
            b"/etc/pam.d",
            b"/root/.ssh/id_rsa",
            b"/root/.ssh/id_rsa.pub",
            b"/shadows",
            b"",
            b"/",
            b"/etc",
            b"/et",
        ] {
            let expected = patterns
                .iter()
                .enumerate()
                .filter(|(_, pattern)| holds(pattern, path))
                .fold(0, |all, (bit, _)| all | 1 << bit);
            let text = String::from_utf8_lossy(path);
            let found = found(&automaton, path) & !(ODD | DOTTED | TRAILING);
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn what_makes_another_path_of_a_path_is_found_without_any_pattern() {
        let automaton = Automaton::new(&BTreeMap::new()).expect("few patterns");
        for (path, expected) in [
            (&b"/a/b"[..], 0),
            (b"/a/.hidden/.b", 0),
            (b"/a/b..c", DOTTED),
            (b"/a//b", ODD),
            (b"/a/./b", ODD),
            (b"/a/.", ODD),
            (b"/a/../b", ODD | DOTTED),
            (b"/a/..", ODD | DOTTED),
            (b"../a", DOTTED),
            (b"/a/", TRAILING),
        ] {
            let text = String::from_utf8_lossy(path);
            assert_eq!(found(&automaton, path), expected, "{text}");
        }
    }

    #[test]
    fn an_edge_says_whether_there_is_anything_to_find_where_it_leads() {
        let patterns = BTreeMap::from([(PathPattern::Exact(b"/etc/shadow".to_vec()), 1)]);
        let automaton = Automaton::new(&patterns).expect("few patterns");
        let encoded = automaton.encode();
        let next = |edge: u32, byte: u8| {
            let at = edge + u32::from(encoded[usize::from(byte)]);
            let at = usize::try_from(at).unwrap() & ((STATES * CLASSES - 1) * EDGE_SIZE);
            u32::from_ne_bytes(*encoded[256 + at..].first_chunk().unwrap())
        };
        // As the programs do it.
        let has_pattern = |path: &[u8]| {
            let (mut edge, mut all) = (0, 0);
            for byte in [b"\0", path, b"\0"].concat() {
                // After an overflow the result is unused.
                edge = next(edge & !COMPLETES, byte);
                all |= edge;
            }
            all & COMPLETES != 0
        };
        for path in [&b"/etc/shadow"[..], b"/a//b", b"/a/", b"/a..b"] {
            assert!(has_pattern(path), "{}", String::from_utf8_lossy(path));
            assert_ne!(found(&automaton, path), 0);
        }
        for path in [&b"/etc/shadow-"[..], b"/etc/shado", b"/usr/lib/x.so", b""] {
            assert!(!has_pattern(path), "{}", String::from_utf8_lossy(path));
            assert_eq!(found(&automaton, path), 0);
        }
    }

    #[test]
    fn too_many_are_refused_and_not_cut() {
        let many = (0..STATES).map(|number| {
            let text = format!("/pattern/number/{number:08}");
            (PathPattern::Exact(text.into_bytes()), 1)
        });
        assert!(Automaton::new(&many.collect()).is_none());
    }
}
