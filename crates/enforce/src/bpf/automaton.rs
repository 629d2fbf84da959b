//! Deterministic automaton of all patterns of a policy: it reads a path once, regardless of the number of
//! patterns, and its final state selects the patterns that match.

use std::collections::BTreeMap;

use policy::pattern::Pattern;

use super::Error;

/// `STATES` of bpf/policy.h.
pub(super) const STATES: usize = 16384;
/// `EDGES` of bpf/policy.h: states times byte classes.
pub(super) const EDGES: usize = 524_288;
/// `SETS` of bpf/policy.h: different sets of matching patterns.
pub(super) const SETS: usize = 1024;
/// State from which no pattern can match.
pub(super) const DEAD: u16 = 0;
/// State before the first byte.
pub(super) const START: u16 = 1;

/// One element of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Exactly this byte.
    Byte(u8),
    /// Any number of bytes except `/`.
    Name,
    /// Any number of bytes.
    Any,
    /// Nothing, or the same as [`Part::Folders`].
    Enter,
    /// Any bytes up to and including a `/`.
    Folders,
}

/// The automaton. Patterns are identified by their index in the input list.
#[derive(Debug)]
pub(super) struct Automaton {
    pub(super) class_of: [u8; 256],
    pub(super) width: usize,
    /// The next state for each state and byte class.
    pub(super) edges: Vec<u16>,
    /// The set of matching patterns of each state.
    pub(super) accept: Vec<u16>,
    /// The patterns of each set; the first set is empty.
    pub(super) sets: Vec<Vec<usize>>,
}

/// Positions within patterns: (pattern, element) pairs.
type Places = Vec<(usize, usize)>;

impl Automaton {
    /// Builds the automaton of these patterns.
    ///
    /// # Errors
    /// Fails if the patterns exceed the limits of the tables.
    pub(super) fn new(patterns: &[Pattern]) -> Result<Self, Error> {
        let patterns: Vec<Vec<Part>> = patterns.iter().map(parts).collect();
        let (class_of, samples) = classes(&patterns);
        let mut building = Building {
            patterns: &patterns,
            numbers: BTreeMap::new(),
            open: Vec::new(),
            sets: BTreeMap::from([(Vec::new(), 0)]),
            accept: vec![0],
        };
        let width = samples.len();
        let mut edges = vec![DEAD; width];
        let first = (0..patterns.len()).map(|pattern| (pattern, 0)).collect();
        if building.state(first)? == DEAD {
            // Without patterns, no byte leads out of the first state.
            building.accept.push(0);
        }
        while let Some(places) = building.open.pop() {
            let state = usize::from(building.numbers[&places]);
            edges.resize(edges.len().max((state + 1) * width), DEAD);
            for (class, byte) in samples.iter().enumerate() {
                edges[state * width + class] = building.state(after(&patterns, &places, *byte))?;
            }
        }
        edges.resize(building.accept.len() * width, DEAD);
        if edges.len() > EDGES {
            return Err(Error::TooLarge {
                what: "states of the automaton for its paths",
                limit: EDGES / width,
            });
        }
        let mut sets = vec![Vec::new(); building.sets.len()];
        for (set, number) in building.sets {
            sets[usize::from(number)] = set;
        }
        Ok(Self {
            class_of,
            width,
            edges,
            accept: building.accept,
            sets,
        })
    }

    /// The state after reading `text` from `state`.
    pub(super) fn advance(&self, state: u16, text: &[u8]) -> u16 {
        text.iter().fold(state, |state, byte| {
            let class = usize::from(self.class_of[usize::from(*byte)]);
            self.edges[usize::from(state) * self.width + class]
        })
    }
}

/// Intermediate data of the construction.
struct Building<'a> {
    patterns: &'a [Vec<Part>],
    numbers: BTreeMap<Places, u16>,
    open: Vec<Places>,
    sets: BTreeMap<Vec<usize>, u16>,
    accept: Vec<u16>,
}

impl Building<'_> {
    /// The number of the state for these positions.
    fn state(&mut self, places: Places) -> Result<u16, Error> {
        let places = closed(self.patterns, places);
        if places.is_empty() {
            return Ok(DEAD);
        }
        if let Some(number) = self.numbers.get(&places) {
            return Ok(*number);
        }
        let too_many = |what, limit| Error::TooLarge { what, limit };
        if self.accept.len() >= STATES {
            return Err(too_many("states of the automaton for its paths", STATES));
        }
        let ended = |(pattern, at): &(usize, usize)| *at == self.patterns[*pattern].len();
        let set = places.iter().filter(|place| ended(place));
        let set: Vec<usize> = set.map(|(pattern, _)| *pattern).collect();
        let next = self.sets.len();
        if next >= SETS && !self.sets.contains_key(&set) {
            return Err(too_many("sets of patterns that a path can have", SETS));
        }
        let next = u16::try_from(next).expect("the limit fits");
        let set = *self.sets.entry(set).or_insert(next);
        let number = u16::try_from(self.accept.len()).expect("the limit fits");
        self.accept.push(set);
        self.numbers.insert(places.clone(), number);
        self.open.push(places);
        Ok(number)
    }
}

/// Adds all positions that are reachable without a byte.
fn closed(patterns: &[Vec<Part>], mut places: Places) -> Places {
    let mut next = 0;
    while let Some((pattern, at)) = places.get(next).copied() {
        next += 1;
        match patterns[pattern].get(at) {
            Some(Part::Name | Part::Any) => places.push((pattern, at + 1)),
            Some(Part::Enter) => places.extend([(pattern, at + 1), (pattern, at + 2)]),
            Some(Part::Byte(_) | Part::Folders) | None => {}
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

/// The positions after a byte.
fn after(patterns: &[Vec<Part>], places: &Places, byte: u8) -> Places {
    let mut reached = Places::new();
    for (pattern, at) in places.iter().copied() {
        match patterns[pattern].get(at) {
            Some(Part::Byte(wanted)) if *wanted == byte => reached.push((pattern, at + 1)),
            Some(Part::Name) if byte != b'/' => reached.push((pattern, at)),
            Some(Part::Any) => reached.push((pattern, at)),
            Some(Part::Folders) => {
                reached.push((pattern, at));
                if byte == b'/' {
                    reached.push((pattern, at + 1));
                }
            }
            Some(Part::Byte(_) | Part::Name | Part::Enter) | None => {}
        }
    }
    reached
}

fn parts(pattern: &Pattern) -> Vec<Part> {
    let mut rest = pattern.text().as_bytes();
    let mut parts = Vec::new();
    while let Some((first, tail)) = rest.split_first() {
        rest = match rest {
            [b'/', b'*', b'*', b'/', tail @ ..] => {
                parts.extend([Part::Byte(b'/'), Part::Enter, Part::Folders]);
                tail
            }
            [b'*', b'*', tail @ ..] => {
                parts.push(Part::Any);
                tail
            }
            [b'*', tail @ ..] => {
                parts.push(Part::Name);
                tail
            }
            _ => {
                parts.push(Part::Byte(*first));
                tail
            }
        };
    }
    parts
}

/// Byte classes: bytes that no pattern distinguishes share a class. Also returns a sample byte of each class.
fn classes(patterns: &[Vec<Part>]) -> ([u8; 256], Vec<u8>) {
    let mut class_of = [0; 256];
    let mut samples = vec![0];
    let named = patterns.iter().flatten().filter_map(|part| match part {
        Part::Byte(byte) => Some(*byte),
        _ => None,
    });
    for byte in named.chain([b'/']) {
        let class = &mut class_of[usize::from(byte)];
        if *class == 0 {
            *class = u8::try_from(samples.len()).expect("there are 255 bytes but the zero");
            samples.push(byte);
        }
    }
    (class_of, samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(patterns: &[&str], path: &str) -> Vec<usize> {
        let patterns: Vec<Pattern> = patterns
            .iter()
            .map(|text| Pattern::parse(text).unwrap())
            .collect();
        let automaton = Automaton::new(&patterns).unwrap();
        let state = automaton.advance(START, path.as_bytes());
        let set = automaton.accept[usize::from(state)];
        automaton.sets[usize::from(set)].clone()
    }

    #[test]
    fn it_says_what_the_patterns_say() {
        let patterns = [
            "/etc/passwd",
            "/etc/**",
            "/proc/**/mem",
            "/**/.ssh/**",
            "/tmp/*.sock",
            "/**/sh",
            "/**/devices/**/tasks",
            "/",
            "/a*b**c",
        ];
        let parsed: Vec<Pattern> = patterns
            .iter()
            .map(|text| Pattern::parse(text).unwrap())
            .collect();
        for path in [
            "/etc/passwd",
            "/etc/passwd-",
            "/etc/passw",
            "/etc",
            "/etc/",
            "/proc/mem",
            "/proc/1/task/2/mem",
            "/proc/1/kmem",
            "/root/.ssh/id",
            "/.ssh/id",
            "/root/a.ssh/id",
            "/root/.ssh",
            "/tmp/a.sock",
            "/tmp/a/b.sock",
            "/bin/sh",
            "/sh",
            "/bin/bash",
            "/sh/sh/sh",
            "/x/devices/a/b/tasks",
            "/devices/tasks",
            "/devices/a/devicestasks",
            "/",
            "/axbyc",
            "/a/b/c",
            "/ab/c",
            "/abc/sh",
            "",
        ] {
            let expected: Vec<usize> = (0..parsed.len())
                .filter(|index| parsed[*index].matches(path))
                .collect();
            assert_eq!(found(&patterns, path), expected, "{path}");
        }
    }

    #[test]
    fn every_built_in_path_fits() {
        let mut patterns = Vec::new();
        for builtin in policy::builtin::all() {
            for restriction in &builtin.restrictions {
                match restriction {
                    policy::Restriction::File { path, .. }
                    | policy::Restriction::Exec { path }
                    | policy::Restriction::Connect { path } => patterns.push(path.clone()),
                    _ => {}
                }
            }
        }
        assert!(patterns.len() > 30, "{}", patterns.len());
        let automaton = Automaton::new(&patterns).unwrap();
        assert!(automaton.edges.len() < EDGES / 2);
    }

    #[test]
    fn what_is_too_large_is_said() {
        let long = |n: usize| Pattern::parse(&format!("/{n}{}", "x".repeat(500))).unwrap();
        let patterns: Vec<Pattern> = (0..80).map(long).collect();
        let problem = Automaton::new(&patterns).unwrap_err();
        assert!(problem.to_string().contains("too many"), "{problem}");
    }
}
