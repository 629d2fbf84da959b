//! The rules of a policy by prefix: `struct denied` of bpf/egress.bpf.c.

use std::collections::{BTreeMap, BTreeSet};

use policy::compile::MachineFeatures;
use policy::compile::bpf::{Key, Profile};
use policy::{EnforcerKind, Enforcers, Policy, PortRange, RuleAction};

use crate::bpf::Error;

/// `RANGES`.
const RANGES: usize = 16;
/// Size of `struct denied`: two numbers for each range, and two words.
pub(super) const VALUE_SIZE: u32 = 72;
/// Size of `struct address`.
pub(super) const KEY_SIZE: u32 = 20;
/// Prefixes that a policy may have.
const PREFIXES: usize = 16_384;
/// Bits of an address.
const BITS: u8 = 128;

/// A prefix: its length, and an address in the form of IPv6 without the bits behind it.
type Prefix = (u8, u128);

/// The ports that are denied at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ports {
    All,
    /// Sorted, and apart from each other.
    Of(Vec<(u16, u16)>),
}

impl Ports {
    fn of(ranges: &[PortRange]) -> Self {
        match ranges {
            [] => Self::All,
            some => Self::merged(some.iter().map(|range| (range.first, range.last)).collect()),
        }
    }

    fn merged(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if u32::from(first) <= u32::from(before.1) + 1 => {
                    before.1 = before.1.max(last);
                }
                _ => merged.push((first, last)),
            }
        }
        Self::Of(merged)
    }

    fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Of(one), Self::Of(two)) => Self::merged([&one[..], two].concat()),
            _ => Self::All,
        }
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        let ranges: &[(u16, u16)] = match self {
            Self::All => &[],
            Self::Of(ranges) => ranges,
        };
        if ranges.len() > RANGES {
            return Err(Error::TooLarge {
                what: "ranges of ports at one address",
                limit: RANGES,
            });
        }
        let padded = |of: fn(&(u16, u16)) -> u16| {
            let filled = ranges.iter().map(of).chain(std::iter::repeat(0));
            filled.take(RANGES).flat_map(u16::to_ne_bytes)
        };
        let mut bytes: Vec<u8> = padded(|range| range.0).collect();
        bytes.extend(padded(|range| range.1));
        bytes.extend(
            u32::try_from(ranges.len())
                .expect("at most 16")
                .to_ne_bytes(),
        );
        bytes.extend(u32::from(*self == Self::All).to_ne_bytes());
        Ok(bytes)
    }
}

/// What of the rules for BPF the programs at control groups do not enforce; empty if they enforce all of it.
#[must_use]
pub fn what_egress_lacks(policy: &Policy) -> Vec<String> {
    lacks_of(&of_bpf(policy))
}

fn lacks_of(profile: &Profile) -> Vec<String> {
    let mut lacks = Vec::new();
    for entry in &profile.entries {
        let lack = match (&entry.key, entry.verdict) {
            (Key::Egress { .. }, RuleAction::Deny) => continue,
            (Key::Egress { .. }, _) => format!(
                "`{}` asks for reports, and control groups give none: they need BPF LSM",
                entry.rule
            ),
            _ => format!("`{}` needs BPF LSM", entry.rule),
        };
        if !lacks.contains(&lack) {
            lacks.push(lack);
        }
    }
    lacks
}

/// The part of a policy that BPF enforces.
fn of_bpf(policy: &Policy) -> Profile {
    let mut part = policy.clone();
    part.enforcers = Enforcers::default().with(EnforcerKind::Bpf);
    Profile::compile(&part, &MachineFeatures::default())
}

/// The addresses and ports that a policy denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressTable(BTreeMap<Prefix, Vec<u8>>);

impl EgressTable {
    /// Collects the rules of a policy about addresses.
    ///
    /// # Errors
    /// If there are more than 16,384 prefixes, or more than 16 ranges of ports at one address; if the policy has a rule that
    /// these programs do not enforce.
    pub fn of(policy: &Policy) -> Result<Self, Error> {
        let profile = of_bpf(policy);
        if let Some(lack) = lacks_of(&profile).into_iter().next() {
            return Err(Error::Lacks { lack });
        }
        let mut given: BTreeMap<Prefix, Ports> = BTreeMap::new();
        for entry in profile.entries {
            let Key::Egress {
                address,
                prefix,
                ports,
            } = entry.key
            else {
                // The check above has refused it.
                continue;
            };
            let ports = Ports::of(&ports);
            let key = (prefix, u128::from_be_bytes(address) & mask(prefix));
            let sum = given
                .get(&key)
                .map_or_else(|| ports.clone(), |known| known.and(&ports));
            given.insert(key, sum);
        }
        if given.len() > PREFIXES {
            return Err(Error::TooLarge {
                what: "prefixes of addresses",
                limit: PREFIXES,
            });
        }
        let lengths: BTreeSet<u8> = given.keys().map(|(length, _)| *length).collect();
        let encode = |prefix: &Prefix| Ok((*prefix, all_of(&given, &lengths, *prefix).encode()?));
        let encoded: Result<_, Error> = given.keys().map(encode).collect();
        encoded.map(Self)
    }

    /// Two rules: the loopback's addresses.
    pub(super) fn example() -> Self {
        let all = Ports::All.encode().expect("it has no ranges");
        let addresses =
            [128, 104].map(|length| ((length, 0xffff_7f00_0000 & mask(length)), all.clone()));
        Self(addresses.into_iter().collect())
    }

    /// Keys and values for the table in the kernel.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Vec<u8>, &[u8])> {
        self.0.iter().map(|((length, address), value)| {
            let mut key = u32::from(*length).to_ne_bytes().to_vec();
            key.extend(address.to_be_bytes());
            (key, &value[..])
        })
    }

    /// A number that tells versions apart: FNV-1a of the content.
    pub(super) fn version(&self) -> u64 {
        let bytes = self
            .entries()
            .flat_map(|(key, value)| [key, value.to_vec()].concat());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    /// Number of prefixes.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn mask(prefix: u8) -> u128 {
    let behind = u32::from(BITS.saturating_sub(prefix));
    u128::MAX.checked_shl(behind).unwrap_or(0)
}

/// The ports of a prefix, with those of all that contain it: the kernel finds the longest alone. `lengths`: those that occur.
fn all_of(
    given: &BTreeMap<Prefix, Ports>,
    lengths: &BTreeSet<u8>,
    (length, address): Prefix,
) -> Ports {
    let containing = lengths
        .range(..=length)
        .filter_map(|shorter| given.get(&(*shorter, address & mask(*shorter))));
    let sum = containing.cloned().reduce(|sum, more| sum.and(&more));
    sum.expect("a prefix contains itself")
}
