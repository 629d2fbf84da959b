//! Slots: demands of rules on a call beyond its registers, as bits (`struct asked` of bpf/record.h).
//!
//! A slot stands for all rules with the same demands. A slot accepts any value of a property that it does not
//! ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;

use abi::Syscall;
use event::{Interest, PathPattern, SocketFamily};

use super::asked::{Asked, VisibleFields};
use super::automaton::{self, Automaton};

/// Number of slots. The first asks for nothing.
const SLOTS: usize = automaton::PATTERN_BITS;
/// In the order of FAMILY_IPV4 and so on; any other family comes last.
const FAMILIES: [SocketFamily; 3] = [SocketFamily::Ipv4, SocketFamily::Ipv6, SocketFamily::Unix];

/// Where demands stand: a call, and the number of the tests of its registers that stand beside them.
pub(super) type Place = (Syscall, usize);

/// Demands of rules, by slot.
#[derive(Debug)]
pub(super) struct Slots {
    asked: Vec<Asked>,
    /// Slots by the demands that they stand for.
    by_asked: BTreeMap<Asked, usize>,
}

/// Demands that share a slot while slots are given.
struct Shared {
    /// What accepts all that its members accept.
    asked: Asked,
    members: BTreeSet<Asked>,
    places: BTreeSet<Place>,
}

impl Slots {
    /// Gives each of some demands a slot. Those for which there is no slot of their own share one that accepts what
    /// either accepts: the pair that loses least by that, each time.
    pub(super) fn new(all: impl IntoIterator<Item = (Asked, Place)>) -> Self {
        let mut places: BTreeMap<Asked, BTreeSet<Place>> = BTreeMap::new();
        for (asked, place) in all {
            places.entry(asked).or_default().insert(place);
        }
        // The first slot asks for nothing.
        let nothing = Asked::default();
        let first = places
            .remove_entry(&nothing)
            .unwrap_or((nothing, BTreeSet::new()));
        let mut slots: Vec<Shared> = Vec::new();
        for (asked, places) in iter::once(first).chain(places) {
            slots.push(Shared {
                members: [asked.clone()].into(),
                asked,
                places,
            });
            if slots.len() > SLOTS {
                join_cheapest(&mut slots);
            }
        }
        let mut all = Self {
            asked: Vec::new(),
            by_asked: BTreeMap::new(),
        };
        for (slot, shared) in slots.into_iter().enumerate() {
            all.asked.push(shared.asked);
            let members = shared.members.into_iter().map(|member| (member, slot));
            all.by_asked.extend(members);
        }
        all
    }

    /// Returns the slot of an interest, as a bit.
    pub(super) fn of(&self, interest: &Interest, visible: VisibleFields) -> u64 {
        let asked = Asked::new(interest, visible);
        // The first slot lets all through: demands that were not named at the start are not checked.
        let index = self.by_asked.get(&asked).copied().unwrap_or(0);
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

    /// Returns the automaton for paths, with patterns as short as they have to be for it; `None` if they are too many.
    pub(super) fn automaton(&self) -> Option<Automaton> {
        let every = || Some(PathPattern::Prefix(Vec::new()));
        let patterns = self.by(|asked| {
            let patterns = asked.paths.iter().flatten().cloned();
            // Every path, so that the name passed decides.
            patterns.chain(every().filter(|_| asked.paths.is_none() && asked.dotted))
        });
        Automaton::fitting(&patterns)
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
            // A match that begins in the directory's name, or at the separator behind it, and ends after it: where a mount
            // begins further below, the path has neither.
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

/// Joins the two slots that lose least by it. The first stays by itself: what is joined with it is no longer restricted at
/// all.
fn join_cheapest(slots: &mut Vec<Shared>) {
    let lost = |one: &Shared, two: &Shared| {
        let (ignored, mixed, values) = one.asked.lost_by_or(&two.asked);
        // Where they do not stand in the same places, each is asked for beside the registers of the other, too: the paths
        // that are written for opens that only read.
        (ignored, one.places != two.places, mixed, values)
    };
    let pairs = (1..slots.len()).flat_map(|one| (one + 1..slots.len()).map(move |two| (one, two)));
    let cheapest = pairs.min_by_key(|(one, two)| lost(&slots[*one], &slots[*two]));
    let Some((one, two)) = cheapest else { return };
    let gone = slots.remove(two);
    let joined = &mut slots[one];
    joined.asked = joined.asked.or(&gone.asked);
    joined.members.extend(gone.members);
    joined.places.extend(gone.places);
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

    const HERE: Place = (Syscall::OPENAT, 0);

    fn network(text: &str) -> (IpAddr, u8) {
        let (address, bits) = text.split_once('/').expect("a network");
        (
            address.parse().expect("an address"),
            bits.parse().expect("bits"),
        )
    }

    #[test]
    fn a_network_has_the_slots_of_those_around_it() {
        let interest = |text: &str| Interest {
            networks: Some([network(text)].into()),
            ..Interest::in_any(Vec::new())
        };
        let texts = ["0.0.0.0/0", "10.0.0.0/8", "10.1.2.3/32", "fe80::/10"];
        let slots = Slots::new(texts.map(|text| (Asked::new(&interest(text), ALL), HERE)));
        let [all, wide, narrow, other] = texts.map(|text| slots.of(&interest(text), ALL));
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

    fn asking(interest: impl Fn(&mut Interest)) -> Interest {
        let mut asked = Interest::in_any(Vec::new());
        interest(&mut asked);
        asked
    }

    fn slots_of(interests: &[Interest]) -> Slots {
        Slots::new(
            interests
                .iter()
                .map(|interest| (Asked::new(interest, ALL), HERE)),
        )
    }

    #[test]
    fn below_a_directory_is_what_begins_in_its_name_or_behind_it() {
        use PathPattern as P;
        for (pattern, is_below) in [
            (P::Exact(b"/usr/bin/env".to_vec()), true),
            (P::Exact(b"/usr/binary".to_vec()), false),
            (P::Prefix(b"/usr/".to_vec()), true),
            (P::Prefix(b"/etc/".to_vec()), false),
            (P::Suffix(b"bin/env".to_vec()), true),
            (P::Suffix(b"/env".to_vec()), true),
            (P::Suffix(b".so".to_vec()), false),
            (P::Contains(b"usr/b".to_vec()), true),
            (P::Contains(b"/.ssh/".to_vec()), true),
            (P::Contains(b".ssh/".to_vec()), false),
        ] {
            let one = asking(|asked| asked.paths = Some([pattern.clone()].into()));
            let slots = slots_of(std::slice::from_ref(&one));
            let expected = if is_below { slots.of(&one, ALL) } else { 0 };
            assert_eq!(slots.below(b"/usr/bin"), expected, "{pattern:?}");
        }
    }

    #[test]
    fn what_asks_the_same_is_one_slot() {
        let port = |port: u16| asking(|asked| asked.ports = Some([port].into()));
        let slots = slots_of(&[port(22), port(23), port(22)]);
        assert_eq!(slots.asked.len(), 3);
        assert_ne!(slots.of(&port(22), ALL), slots.of(&port(23), ALL));
        let blind = VisibleFields {
            connection: false,
            ..ALL
        };
        assert_eq!(slots.of(&port(24), blind), 1, "nothing is asked");
        assert_eq!(slots.encode(MissingTables::default()).len(), ASKED_SIZE);
    }

    #[test]
    fn more_demands_than_slots_share_them_and_still_ask() {
        let exact = |text: String| PathPattern::Exact(text.into_bytes());
        let path = |number: usize| {
            asking(|asked| asked.paths = Some([exact(format!("/etc/{number}"))].into()))
        };
        let name =
            |number: usize| asking(|asked| asked.names = Some([vec![b'a'; number + 1]].into()));
        let interests: Vec<Interest> = (0..200).map(path).chain((0..200).map(name)).collect();
        let slots = slots_of(&interests);
        assert_eq!((slots.asked.len(), slots.by_asked.len()), (SLOTS, 401));
        for interest in &interests {
            let slot = slots.of(interest, ALL);
            assert_ne!(slot, 1, "it is restricted still");
            let asked = &slots.asked[slot.trailing_zeros() as usize];
            // Each demand accepts at least what it has asked for, and is about what it was about.
            match (&interest.paths, &interest.names) {
                (Some(paths), _) => assert!(asked.paths.as_ref().unwrap().is_superset(paths)),
                (_, Some(names)) => assert!(asked.names.as_ref().unwrap().is_superset(names)),
                _ => unreachable!("each asks for one"),
            }
        }
        assert_eq!(slots.of_path(b"/usr/lib/libc.so.6"), 0);
        for number in 0..200 {
            let slot = slots.of(&path(number), ALL);
            assert_eq!(
                slots.of_path(format!("/etc/{number}").as_bytes()) & slot,
                slot
            );
        }
    }

    #[test]
    fn what_is_asked_for_beside_other_registers_is_not_joined_with_it() {
        let asked = |number: usize, name: &str| {
            let path = PathPattern::Prefix(format!("/{name}/{number}").into_bytes());
            asking(|asked| asked.paths = Some([path.clone()].into()))
        };
        let places = [
            ("read", (Syscall::OPENAT, 0)),
            ("write", (Syscall::OPENAT, 1)),
        ];
        let all: Vec<(Asked, Place)> = (0..100)
            .flat_map(|number| {
                places.map(|(name, place)| (Asked::new(&asked(number, name), ALL), place))
            })
            .collect();
        let slots = Slots::new(all);
        let of = |name: &str| {
            let each = (0..100).map(|number| slots.of(&asked(number, name), ALL));
            each.fold(0, |all, slot| all | slot)
        };
        assert_eq!(of("read") & of("write"), 0);
    }
}
