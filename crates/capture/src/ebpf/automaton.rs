//! Compiles all patterns on paths to one automaton (Aho-Corasick), in the layout of `struct automaton`.
//!
//! A path is read between two NULs, which no path contains: so a pattern that is anchored at an end of the
//! path is a plain text with a NUL at that end, and the automaton only has to find texts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// Lengths to which patterns are shortened, one after the other, until all of them have room.
const SHORTER: [usize; 6] = [48, 32, 24, 16, 12, 8];

impl Automaton {
    /// Builds the automaton from patterns and the slots that they stand for, with patterns as long as there is room for:
    /// a shorter pattern is found in more paths, never in fewer. Returns `None` if the shortest are still too many.
    pub(super) fn fitting(patterns: &BTreeMap<PathPattern, u64>) -> Option<Self> {
        if let Some(whole) = Self::new(patterns) {
            return Some(whole);
        }
        let rare = rare_bytes(patterns.keys());
        SHORTER.iter().find_map(|length| {
            let mut shorter: BTreeMap<PathPattern, u64> = BTreeMap::new();
            for (pattern, slots) in patterns {
                *shorter
                    .entry(shortened(pattern, *length, &rare))
                    .or_default() |= slots;
            }
            Self::new(&shorter)
        })
    }

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

/// Returns the bytes that have no class of their own if there are more bytes than classes: those in the fewest patterns.
fn rare_bytes<'p>(patterns: impl Iterator<Item = &'p PathPattern>) -> BTreeSet<u8> {
    let mut counts = [0_usize; 256];
    for pattern in patterns {
        for byte in content(pattern).iter().collect::<BTreeSet<_>>() {
            counts[usize::from(*byte)] += 1;
        }
    }
    // Class 0 is that of all other bytes, and the parts that `marks` names have to be found.
    let mut bytes: Vec<u8> = (0..=u8::MAX)
        .filter(|byte| counts[usize::from(*byte)] > 0 && !b"\0/.".contains(byte))
        .collect();
    bytes.sort_by_key(|byte| std::cmp::Reverse(counts[usize::from(*byte)]));
    bytes
        .split_off(bytes.len().min(CLASSES - 1 - 3))
        .into_iter()
        .collect()
}

fn content(pattern: &PathPattern) -> &[u8] {
    match pattern {
        PathPattern::Exact(text)
        | PathPattern::Prefix(text)
        | PathPattern::Suffix(text)
        | PathPattern::Contains(text) => text,
    }
}

/// Returns a pattern of at most `length` bytes, without rare ones, that matches wherever the pattern does.
fn shortened(pattern: &PathPattern, length: usize, rare: &BTreeSet<u8>) -> PathPattern {
    let is_rare = |byte: &u8| rare.contains(byte);
    let text = content(pattern);
    let head = &text[..text
        .iter()
        .position(is_rare)
        .unwrap_or(text.len())
        .min(length)];
    let end = text.iter().rposition(is_rare).map_or(0, |at| at + 1);
    let tail = &text[end.max(text.len().saturating_sub(length))..];
    let is_whole = head.len() == text.len();
    let short = match pattern {
        _ if is_whole => pattern.clone(),
        PathPattern::Exact(_) | PathPattern::Prefix(_) => PathPattern::Prefix(head.to_vec()),
        PathPattern::Suffix(_) => PathPattern::Suffix(tail.to_vec()),
        PathPattern::Contains(_) => PathPattern::Contains(head.to_vec()),
    };
    // Nothing is left of it: every path begins with nothing.
    match content(&short) {
        [] => PathPattern::Prefix(Vec::new()),
        _ => short,
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

    /// Whether a pattern is in a path, as rules mean it.
    fn holds(pattern: &PathPattern, path: &[u8]) -> bool {
        match pattern {
            PathPattern::Exact(text) => path == text,
            PathPattern::Prefix(text) => path.starts_with(text),
            PathPattern::Suffix(text) => path.ends_with(text),
            PathPattern::Contains(text) => {
                text.is_empty() || path.windows(text.len()).any(|part| part == text)
            }
        }
    }

    /// More than there is room for: patterns of each kind, of all lengths, some with bytes that only they have.
    fn too_many() -> BTreeMap<PathPattern, u64> {
        let kinds = [
            PathPattern::Exact,
            PathPattern::Prefix,
            PathPattern::Suffix,
            PathPattern::Contains,
        ];
        let many = (0..400_usize).map(|number| {
            let odd = u8::try_from(128 + number % 100).unwrap();
            let mut text = format!("/pattern/number/{number:08}/{}", "x".repeat(number % 50));
            let mut bytes = std::mem::take(&mut text).into_bytes();
            if number % 4 == 1 {
                bytes.insert(number % bytes.len(), odd);
            }
            (kinds[number / 4 % 4](bytes), 1 << (number % PATTERN_BITS))
        });
        many.collect()
    }

    #[test]
    fn patterns_are_shortened_until_they_have_room() {
        let patterns = too_many();
        assert!(Automaton::new(&patterns).is_none());
        let automaton = Automaton::fitting(&patterns).expect("shorter ones have room");
        for pattern in patterns.keys() {
            let text = content(pattern);
            let paths = match pattern {
                PathPattern::Exact(_) => vec![text.to_vec()],
                PathPattern::Prefix(_) => vec![text.to_vec(), [text, b"/more"].concat()],
                PathPattern::Suffix(_) => vec![text.to_vec(), [b"/less", text].concat()],
                PathPattern::Contains(_) => vec![[b"/less", text, b"/more"].concat()],
            };
            for path in paths {
                let wanted = patterns.iter().filter(|(pattern, _)| holds(pattern, &path));
                let wanted = wanted.fold(0, |all, (_, slots)| all | slots);
                let shown = String::from_utf8_lossy(&path);
                assert_eq!(found(&automaton, &path) & wanted, wanted, "{shown}");
            }
        }
        for path in [&b"/etc/hosts"[..], b"/usr/lib/x86_64-linux-gnu/libc.so.6"] {
            assert_eq!(found(&automaton, path), 0, "it is rejected still");
        }
    }

    #[test]
    fn a_pattern_of_rare_bytes_alone_matches_every_path() {
        let rare = BTreeSet::from([b'q']);
        for pattern in [
            PathPattern::Exact(b"q".to_vec()),
            PathPattern::Suffix(b"aq".to_vec()),
            PathPattern::Contains(b"qa".to_vec()),
        ] {
            let every = PathPattern::Prefix(Vec::new());
            assert_eq!(shortened(&pattern, 8, &rare), every, "{pattern:?}");
        }
    }
}
