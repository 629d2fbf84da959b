//! Slots: demands of rules on a call beyond its registers, as bits (`struct asked` of bpf/record.h).
//!
//! A slot stands for all rules with the same demands. A slot accepts any value of a property that it does not
//! ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use event::{Interest, PathPattern, SocketFamily};

use super::automaton::{self, Automaton};

/// Number of slots. The first asks for nothing.
const SLOTS: usize = automaton::PATTERN_BITS;
/// In the order of FAMILY_IPV4 and so on; any other family comes last.
const FAMILIES: [SocketFamily; 3] = [SocketFamily::Ipv4, SocketFamily::Ipv6, SocketFamily::Unix];
/// Demands of some rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    paths: Option<BTreeSet<PathPattern>>,
    dotted: bool,
    names: Option<BTreeSet<Vec<u8>>>,
    ports: Option<BTreeSet<u16>>,
    networks: Option<BTreeSet<(IpAddr, u8)>>,
    families: Option<BTreeSet<SocketFamily>>,
    contained: Option<bool>,
}

/// Properties that can be checked for a kind of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibleFields {
    pub(super) opens: bool,
    pub(super) paths: bool,
    pub(super) connection: bool,
}

impl Asked {
    fn new(interest: &Interest, visible: VisibleFields) -> Self {
        let Interest {
            any_of: _,
            failed: _,
            succeeded: _,
            results: _,
            errors: _,
            paths,
            dotted,
            names,
            ports,
            networks,
            families,
            contained,
        } = interest.clone();
        Self {
            paths: paths.filter(|_| visible.opens || visible.paths),
            dotted: dotted && visible.opens,
            names,
            ports: ports.filter(|_| visible.connection),
            networks: networks.filter(|_| visible.connection),
            families: families.filter(|_| visible.connection),
            contained,
        }
    }
}

/// Demands of rules, by slot.
#[derive(Debug)]
pub(super) struct Slots {
    asked: Vec<Asked>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            asked: vec![Asked::default()],
        }
    }

    /// Returns the slot of an interest, as a bit.
    pub(super) fn of(&mut self, interest: &Interest, visible: VisibleFields) -> u64 {
        let asked = Asked::new(interest, visible);
        let known = self.asked.iter().position(|other| *other == asked);
        let index = known.unwrap_or_else(|| {
            if self.asked.len() == SLOTS {
                // No room: let through.
                return 0;
            }
            self.asked.push(asked);
            self.asked.len() - 1
        });
        1 << index
    }

    fn bits(&self, which: impl Fn(&Asked) -> bool) -> u64 {
        let slots = self.asked.iter().enumerate();
        let slots = slots.filter(|(_, asked)| which(asked));
        slots.fold(0, |bits, (slot, _)| bits | 1 << slot)
    }

    /// Groups slots by the values that they ask for.
    fn by<'s, T: Ord + 's, I: IntoIterator<Item = T>>(
        &'s self,
        of: impl Fn(&'s Asked) -> I,
    ) -> BTreeMap<T, u64> {
        let mut slots = BTreeMap::new();
        for (slot, asked) in self.asked.iter().enumerate() {
            for one in of(asked) {
                *slots.entry(one).or_default() |= 1 << slot;
            }
        }
        slots
    }

    /// Returns the automaton for paths; `None` if the patterns are too many for it.
    pub(super) fn automaton(&self) -> Option<Automaton> {
        let every = || Some(PathPattern::Prefix(Vec::new()));
        let patterns = self.by(|asked| {
            let patterns = asked.paths.iter().flatten().cloned();
            // Every path, so that the name passed decides.
            patterns.chain(every().filter(|_| asked.paths.is_none() && asked.dotted))
        });
        Automaton::new(&patterns)
    }

    /// Returns the slots with a pattern that a path matches.
    pub(super) fn of_path(&self, path: &[u8]) -> u64 {
        self.with_pattern(|pattern| match pattern {
            PathPattern::Exact(text) => path == text,
            PathPattern::Prefix(text) => path.starts_with(text),
            PathPattern::Suffix(text) => path.ends_with(text),
            PathPattern::Contains(text) => contains(path, text),
        })
    }

    /// Returns the slots with a pattern that a path below a directory may match, unless its last component
    /// matches it under any name.
    pub(super) fn below(&self, directory: &[u8]) -> u64 {
        let start = [directory, b"/"].concat();
        self.with_pattern(|pattern| match pattern {
            PathPattern::Exact(text) => text.starts_with(&start),
            PathPattern::Prefix(text) => text.starts_with(&start) || start.starts_with(text),
            // A match that begins in the directory's name and ends after it.
            PathPattern::Suffix(text) | PathPattern::Contains(text) => {
                let is_begun = |cut: usize| start.ends_with(&text[..cut]);
                contains(&start, text) || (1..text.len()).any(is_begun)
            }
        })
    }

    fn with_pattern(&self, has: impl Fn(&PathPattern) -> bool) -> u64 {
        self.bits(|asked| asked.paths.iter().flatten().any(&has))
    }

    /// Returns the names of processes, with the slots that ask for each.
    pub(super) fn names(&self) -> BTreeMap<&[u8], u64> {
        self.by(|asked| asked.names.iter().flatten().map(Vec::as_slice))
    }

    /// Returns the ports, with the slots that ask for each.
    pub(super) fn ports(&self) -> BTreeMap<u16, u64> {
        self.by(|asked| asked.ports.iter().flatten().copied())
    }

    /// Returns the networks, with the slots that ask for each or for a wider one around it: a lookup finds
    /// the narrowest.
    pub(super) fn networks(&self) -> BTreeMap<(IpAddr, u8), u64> {
        let own = self.by(|asked| asked.networks.iter().flatten().map(|one| masked(*one)));
        let around = |network: &(IpAddr, u8)| {
            let wider = own.iter().filter(|(other, _)| is_within(*network, **other));
            wider.fold(0, |slots, (_, more)| slots | more)
        };
        own.keys()
            .map(|network| (*network, around(network)))
            .collect()
    }

    /// Encodes the demands for the programs. Demands whose table is missing are left out.
    pub(super) fn encode(&self, without: MissingTables) -> Vec<u8> {
        let all_if = |is_missing: bool, bits: u64| if is_missing { u64::MAX } else { bits };
        let any_path = self.bits(|asked| asked.paths.is_none() && !asked.dotted);
        let any_name = self.bits(|asked| asked.names.is_none());
        let any_port = self.bits(|asked| asked.ports.is_none());
        let any_network = self.bits(|asked| asked.networks.is_none());
        let mut words = vec![
            all_if(without.paths, any_path),
            all_if(without.names, any_name),
            self.bits(|asked| asked.dotted),
            all_if(without.ports, any_port),
            all_if(without.networks, any_network),
            self.bits(|asked| asked.contained != Some(true)),
            self.bits(|asked| asked.contained != Some(false)),
        ];
        let takes = |asked: &Asked, family| {
            let families = asked.families.as_ref();
            families.is_none_or(|families| families.contains(&family))
        };
        words.extend(FAMILIES.map(|family| self.bits(|asked| takes(asked, family))));
        words.push(self.bits(|asked| asked.families.is_none()));
        let [_, _, _, port, network, host, container, families @ ..] = &words[..] else {
            unreachable!("more than these were put in");
        };
        let any_end = families.iter().fold(port & network, |all, some| all & some);
        let any = any_end & words[0] & words[1] & host & container;
        words.extend([any_end, any]);
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

/// Tables that could not be written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MissingTables {
    pub(super) paths: bool,
    pub(super) names: bool,
    pub(super) ports: bool,
    pub(super) networks: bool,
}

/// Returns the first `count` bits of an address, as a number of 128 bits with all others 0.
fn first_bits(address: IpAddr, count: u8) -> u128 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => u128::from(address),
    };
    bits & u128::MAX.checked_shl(128 - u32::from(count)).unwrap_or(0)
}

/// Returns the network with the host bits of its address cleared.
fn masked((address, count): (IpAddr, u8)) -> (IpAddr, u8) {
    let bits = first_bits(address, count);
    let address = match address {
        IpAddr::V4(_) => IpAddr::V4(u32::try_from(bits >> 96).expect("32 bits are left").into()),
        IpAddr::V6(_) => IpAddr::V6(bits.into()),
    };
    (address, count)
}

fn is_within((address, count): (IpAddr, u8), (wider, fewer): (IpAddr, u8)) -> bool {
    address.is_ipv4() == wider.is_ipv4()
        && fewer <= count
        && first_bits(address, fewer) == first_bits(wider, fewer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct asked`.
    const ASKED_SIZE: usize = 8 * (7 + FAMILIES.len() + 1 + 2);

    const ALL: VisibleFields = VisibleFields {
        opens: true,
        paths: true,
        connection: true,
    };

    fn network(text: &str) -> (IpAddr, u8) {
        let (address, bits) = text.split_once('/').expect("a network");
        (
            address.parse().expect("an address"),
            bits.parse().expect("bits"),
        )
    }

    #[test]
    fn a_network_has_the_slots_of_those_around_it() {
        let mut slots = Slots::new();
        let mut add = |text: &str| {
            let interest = Interest {
                networks: Some([network(text)].into()),
                ..Interest::in_any(Vec::new())
            };
            slots.of(&interest, ALL)
        };
        let (all, wide, narrow, other) = (
            add("0.0.0.0/0"),
            add("10.0.0.0/8"),
            add("10.1.2.3/32"),
            add("fe80::/10"),
        );
        let networks = slots.networks();
        assert_eq!(networks[&network("10.1.2.3/32")], all | wide | narrow);
        assert_eq!(networks[&network("10.0.0.0/8")], all | wide);
        assert_eq!(networks[&network("0.0.0.0/0")], all);
        assert_eq!(networks[&network("fe80::/10")], other);
    }

    #[test]
    fn what_differs_in_what_does_not_count_is_one_network() {
        assert_eq!(masked(network("10.9.8.7/8")), network("10.0.0.0/8"));
        assert_eq!(masked(network("febf::1/10")), network("fe80::/10"));
        assert_eq!(masked(network("1.2.3.4/0")), network("0.0.0.0/0"));
        assert!(is_within(network("10.0.0.1/32"), network("10.0.0.0/24")));
        assert!(!is_within(network("10.0.0.0/24"), network("10.0.0.1/32")));
        assert!(!is_within(network("::/128"), network("0.0.0.0/0")));
    }

    #[test]
    fn what_asks_the_same_is_one_slot_and_too_many_are_let_through() {
        let mut slots = Slots::new();
        let port = |port: u16| Interest {
            ports: Some([port].into()),
            ..Interest::in_any(Vec::new())
        };
        let first = slots.of(&port(22), ALL);
        assert_eq!(first, slots.of(&port(22), ALL));
        assert_ne!(first, slots.of(&port(23), ALL));
        let blind = VisibleFields {
            connection: false,
            ..ALL
        };
        assert_eq!(slots.of(&port(24), blind), 1, "nothing is asked");
        for number in 100..200 {
            slots.of(&port(number), ALL);
        }
        assert_eq!(slots.of(&port(300), ALL), 1);
        assert_eq!(slots.encode(MissingTables::default()).len(), ASKED_SIZE);
    }
}
