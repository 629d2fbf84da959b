//! Tables of a policy in the form that the programs read: `struct policy` of bpf/policy.h, and the tables
//! beside it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;

use policy::compile::bpf::{Entry, Key, MOUNT_FLAGS, Profile};
use policy::pattern::Pattern;
use policy::{FileAccess, MountMatch, PortRange, PtraceScope, RuleAction, SocketMatch};

use super::Error;
use super::automaton::{Automaton, DEAD, EDGES, SETS, START, STATES};
use super::keys::{KEYS, Keys};
use super::kind::{Kind, Operation};
use super::mount_table::MountTable;
use crate::tree::MountedFileSystems;

const DENY: u16 = 0x1000;
const AUDIT: u16 = 0x2000;
/// `OUTCOME_RULE`: the number of the rule plus one.
pub(super) const RULE: u16 = 0x0fff;

const HAS_PATHS: u32 = 1;
const HAS_EXEC: u32 = 1 << 1;
const HAS_MOUNT_SOURCES: u32 = 1 << 2;
const HAS_ADDRESSES: u32 = 1 << 3;
const DENIES: u32 = 1 << 4;
const AUDITS: u32 = 1 << 5;

const KINDS: usize = 8;
const SOCKET_RULES: usize = 32;
const ADDRESS_RULES: usize = 64;
const MOUNT_RULES: usize = 32;
const MODE_RULES: usize = 8;
const PORT_RANGES: usize = 4;
const PROTOCOL_WORDS: usize = 5;

/// Offsets in the structure.
const OPERATION: usize = 32;
const PTRACE: usize = 48;
const DISK: usize = 64;
const VIEW: usize = 72;
const RELATIVE: usize = 88;
const UNKEYED: usize = 90;
const PLACED: usize = 92;
const CAPABILITY: usize = 96;
const MODE: usize = 224;
const MOUNT: usize = 288;
const SOCKET: usize = 1184;
const ADDRESS: usize = 2976;
const SET: usize = 6560;
const CLASS_OF: usize = SET + 24 * SETS;
const KEY: usize = CLASS_OF + 256;
const VIEW_KEY: usize = KEY + KEYS;
const ACCEPT: usize = VIEW_KEY + 8;
const EDGE: usize = ACCEPT + 2 * STATES;
const PLACE: usize = EDGE + 2 * EDGES;
const IS_SHARED: usize = PLACE + 4 * PLACES;
/// `sizeof(struct policy)`.
pub(super) const SIZE: usize = IS_SHARED + 8;

/// File systems of a container.
pub(super) const PLACES: usize = 1024;

/// Places of file systems that have the same content at every mount point, in the order of `enum view`.
const VIEWS: [&str; 7] = [
    "/proc",
    "/sys",
    "/sys/fs/cgroup",
    "/sys/kernel/security",
    "/sys/kernel/debug",
    "/sys/kernel/tracing",
    "/sys/fs/bpf",
];

/// Programs that implement many commands: a match by inode would match all of them.
const MULTI_CALL: [&str; 3] = ["busybox", "coreutils", "toybox"];

const FROM_FLAGS: u32 = 1 << 12 | 1 << 13 | 1 << 5;

/// `PLACE_KEYS` of bpf/policy.h.
const PLACE_KEYS: u32 = 16;

const BY_TYPE: u8 = 1;
const BY_SOURCE: u8 = 2;
const BY_DISK: u8 = 3;

/// The content that is written to the kernel.
#[derive(Debug)]
pub(super) struct Tables {
    /// `struct policy`, without its generation.
    pub(super) policy: Vec<u8>,
    /// Outcomes by device and inode of programs.
    pub(super) programs: BTreeMap<(u32, u64), u16>,
    /// Automaton state of the place of each file system, by device. The bits from `PLACE_KEYS` on hold the
    /// kinds of rules whose key is a name of the place.
    pub(super) places: BTreeMap<u32, u32>,
    /// Ids of the rules, indexed by number.
    pub(super) rules: Vec<String>,
}

/// The effect of a pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) of: [u16; KINDS],
    mounts: u64,
}

impl Effect {
    fn of(kinds: &[Kind], outcome: u16) -> Self {
        let mut effect = Self::default();
        for kind in kinds {
            effect.of[*kind as usize] = outcome;
        }
        effect
    }

    /// The kinds of rules that the effect belongs to, as bits.
    pub(super) fn kinds(&self) -> u8 {
        let set = self.of.iter().enumerate().filter(|(_, of)| **of != 0);
        set.fold(0, |kinds, (kind, _)| kinds | 1 << kind)
    }

    fn add(&mut self, other: &Self) {
        for (own, more) in self.of.iter_mut().zip(other.of) {
            *own = worse(*own, more);
        }
        self.mounts |= other.mounts;
    }
}

/// The stricter of two outcomes, as `worse` in the programs.
fn worse(one: u16, other: u16) -> u16 {
    if one == 0 {
        return other;
    }
    let rule = match other & DENY != 0 && one & DENY == 0 {
        true => other & RULE,
        false => one & RULE,
    };
    rule | ((one | other) & (DENY | AUDIT))
}

/// Values collected from the entries.
#[derive(Default)]
struct Collected {
    rules: Vec<String>,
    patterns: Vec<(Pattern, Effect)>,
    programs: BTreeMap<(u32, u64), u16>,
    operations: [u16; 8],
    ptrace: [u16; 8],
    disk: [u16; 4],
    capability: Vec<u16>,
    modes: Vec<(u32, u16)>,
    mounts: Vec<Vec<u8>>,
    sockets: Vec<Vec<u8>>,
    addresses: Vec<Vec<u8>>,
    features: u32,
}

impl Tables {
    /// Builds the tables of a profile. `mounts` is the text of /proc/self/mountinfo; `path` lists the folders
    /// of programs.
    ///
    /// # Errors
    /// Fails if the profile exceeds a limit, or if an entry names something unknown to the kernel.
    pub(super) fn new(
        profile: &Profile,
        mounts: &str,
        path: Option<&OsStr>,
    ) -> Result<Self, Error> {
        let mut collected = Collected {
            capability: vec![0; 64],
            ..Collected::default()
        };
        for entry in &profile.entries {
            collected.add(entry, path)?;
        }
        collected.check()?;
        let known = MountTable::new(mounts);
        collected.add_aliases(&known)?;
        let patterns: Vec<Pattern> = collected.patterns.iter().map(|(p, _)| p.clone()).collect();
        let automaton = Automaton::new(&patterns)?;
        let keys = Keys::new(&collected.patterns);
        let places = places(&automaton, &keys, &known);
        let policy = collected.encode(&automaton, &keys, &places);
        Ok(Self {
            policy,
            programs: collected.programs,
            places,
            rules: collected.rules,
        })
    }
}

impl Tables {
    /// Builds the tables that containers of one shape share. `mounts` is the text of the shape, whose devices are indices.
    ///
    /// # Errors
    /// As [`Tables::new`].
    pub(super) fn shared(
        profile: &Profile,
        mounts: &str,
        path: Option<&OsStr>,
    ) -> Result<Self, Error> {
        let mut made = Self::new(profile, mounts, path)?;
        for (index, place) in std::mem::take(&mut made.places) {
            let index = usize::try_from(index).ok().filter(|index| *index < PLACES);
            let at = PLACE + 4 * index.ok_or(TOO_MANY_PLACES)?;
            made.policy[at..at + 4].copy_from_slice(&place.to_ne_bytes());
        }
        made.policy[IS_SHARED..IS_SHARED + 4].copy_from_slice(&1_u32.to_ne_bytes());
        Ok(made)
    }
}

/// A container has more file systems than a table has room for.
pub(super) const TOO_MANY_PLACES: Error = Error::TooLarge {
    what: "mounted file systems in the container",
    limit: PLACES,
};

impl Collected {
    fn outcome(&mut self, entry: &Entry) -> Result<u16, Error> {
        let index = match self.rules.iter().position(|rule| *rule == entry.rule) {
            Some(index) => index,
            None => {
                self.rules.push(entry.rule.clone());
                self.rules.len() - 1
            }
        };
        let number = u16::try_from(index + 1).ok().filter(|n| *n <= RULE);
        let number = number.ok_or(Error::TooLarge {
            what: "rules",
            limit: usize::from(RULE),
        })?;
        let (how, features) = match entry.verdict {
            RuleAction::Allow => return Ok(0),
            RuleAction::Audit => (AUDIT, AUDITS),
            RuleAction::Deny => (DENY, DENIES),
            RuleAction::DenyAudit => (DENY | AUDIT, DENIES | AUDITS),
        };
        self.features |= features;
        Ok(number | how)
    }

    fn add(&mut self, entry: &Entry, path: Option<&OsStr>) -> Result<(), Error> {
        let outcome = self.outcome(entry)?;
        if outcome == 0 {
            return Ok(());
        }
        match &entry.key {
            Key::File { path, access } => self.add_file(&path.pattern, *access, outcome),
            Key::Exec { path: wanted } => {
                self.features |= HAS_EXEC;
                self.push(&wanted.pattern, Effect::of(&[Kind::Exec], outcome));
                for key in programs(&wanted.pattern, path) {
                    let own = self.programs.entry(key).or_default();
                    *own = worse(*own, outcome);
                }
            }
            Key::Connect { path } => {
                self.features |= HAS_PATHS;
                self.push(&path.pattern, Effect::of(&[Kind::Connect], outcome));
            }
            Key::Disk { access } => {
                let each = [access.read, access.write, access.append];
                for (slot, _) in self.disk.iter_mut().zip(each).filter(|(_, set)| *set) {
                    *slot = worse(*slot, outcome);
                }
            }
            Key::Socket(socket) => self.sockets.push(encode_socket(socket, outcome)?),
            Key::Egress {
                address,
                prefix,
                ports,
            } => self.add_addresses(*address, *prefix, ports, outcome),
            Key::Mount(mount) => self.add_mount(mount, outcome)?,
            Key::Ptrace { access, scope } => {
                let first = match scope {
                    PtraceScope::Outside => 0,
                    PtraceScope::Any => 4,
                };
                let each = [access.trace, access.traceby, access.read, access.readby];
                for (at, _) in each.into_iter().enumerate().filter(|(_, set)| *set) {
                    self.ptrace[first + at] = worse(self.ptrace[first + at], outcome);
                }
            }
            Key::Capabilities(set) => {
                for number in (0..64_u8).filter(|number| set.contains(*number)) {
                    let slot = &mut self.capability[usize::from(number)];
                    *slot = worse(*slot, outcome);
                }
            }
            Key::Mode(bits) => self.modes.push((*bits, outcome)),
            Key::Hook(name) => self.add_operation(name, outcome)?,
        }
        Ok(())
    }

    fn push(&mut self, pattern: &Pattern, effect: Effect) {
        match self.patterns.iter_mut().find(|(known, _)| known == pattern) {
            Some((_, known)) => known.add(&effect),
            None => self.patterns.push((pattern.clone(), effect)),
        }
    }

    /// Adds the meanings of patterns below the places of file systems that are mounted elsewhere too.
    fn add_aliases(&mut self, places: &MountTable) -> Result<(), Error> {
        for (pattern, effect) in self.patterns.clone() {
            for alias in places.aliases(&pattern)? {
                self.push(&alias, effect);
            }
        }
        Ok(())
    }

    /// Adds a file. Renaming the file, or a folder above it, would give it a path that no pattern matches.
    fn add_file(&mut self, pattern: &Pattern, access: FileAccess, outcome: u16) {
        self.features |= HAS_PATHS;
        let mut kinds = Vec::new();
        let each = [
            (access.read, Kind::Read),
            (access.write, Kind::Write),
            (access.append, Kind::Append),
            (access.read || access.write, Kind::Move),
        ];
        kinds.extend(
            each.into_iter()
                .filter(|(set, _)| *set)
                .map(|(_, kind)| kind),
        );
        self.push(pattern, Effect::of(&kinds, outcome));
        for above in pattern.folders_above() {
            self.push(&above, Effect::of(&[Kind::Above], outcome));
        }
    }

    fn add_addresses(&mut self, address: [u8; 16], prefix: u8, ports: &[PortRange], outcome: u16) {
        self.features |= HAS_ADDRESSES;
        let mut mask = [0; 16];
        for bit in 0..usize::from(prefix) {
            mask[bit / 8] |= 0x80 >> (bit % 8);
        }
        let all: [&[PortRange]; 1] = [&[]];
        let chunks: Vec<&[PortRange]> = match ports.is_empty() {
            true => all.to_vec(),
            false => ports.chunks(PORT_RANGES).collect(),
        };
        for chunk in chunks {
            let mut bytes = address.to_vec();
            bytes.extend(mask);
            let each = |port: fn(&PortRange) -> u16| {
                let mut bytes = Vec::new();
                for at in 0..PORT_RANGES {
                    bytes.extend(chunk.get(at).map_or(0, port).to_ne_bytes());
                }
                bytes
            };
            bytes.extend(each(|range| range.first));
            bytes.extend(each(|range| range.last));
            let ranges = u16::try_from(chunk.len()).expect("at most four");
            bytes.extend(ranges.to_ne_bytes());
            bytes.extend(outcome.to_ne_bytes());
            bytes.extend([0; 4]);
            self.addresses.push(bytes);
        }
    }

    fn add_mount(&mut self, mount: &MountMatch, outcome: u16) -> Result<(), Error> {
        let number = self.mounts.len();
        let (by, fstype, flags, unmount) = match mount {
            MountMatch::FileSystem(name) => (BY_TYPE, name.as_str(), (0, 0), false),
            MountMatch::Disk => (BY_DISK, "", (0, 0), false),
            MountMatch::From(_) => (BY_SOURCE, "", (FROM_FLAGS, 0), true),
            MountMatch::Raw { fstype, flags, .. } => {
                let (mut mask, mut without) = (0, 0);
                for flag in flags.iter().filter(|flag| *flag != "umount") {
                    let known = MOUNT_FLAGS.iter().find(|known| known.name == flag);
                    let known = known.ok_or_else(|| Error::Unknown {
                        what: "flag of mounts",
                        name: flag.clone(),
                    })?;
                    match known.is_unset {
                        true => without |= known.bit,
                        false => mask |= known.bit,
                    }
                }
                let unmount = flags.iter().any(|flag| flag == "umount");
                // A rule on unmounting alone matches no mount: no mount has all bits.
                let mask = match unmount && mask | without == 0 {
                    true => 1 << 31,
                    false => mask,
                };
                (
                    BY_SOURCE,
                    fstype.as_deref().unwrap_or(""),
                    (mask, without),
                    unmount,
                )
            }
        };
        if let MountMatch::From(from) | MountMatch::Raw { from, .. } = mount {
            self.features |= HAS_MOUNT_SOURCES;
            let effect = Effect {
                mounts: 1_u64
                    .checked_shl(u32::try_from(number).unwrap_or(64))
                    .unwrap_or(0),
                ..Effect::default()
            };
            self.push(from, effect);
            if let Some(folder) = from
                .subtree()
                .and_then(|folder| Pattern::parse(folder).ok())
            {
                self.push(&folder, effect);
            }
        }
        let mut bytes = fstype.as_bytes().to_vec();
        bytes.resize(16, 0);
        bytes.extend(u32::to_ne_bytes(flags.0));
        bytes.extend(u32::to_ne_bytes(flags.1));
        bytes.extend(outcome.to_ne_bytes());
        bytes.extend([u8::from(unmount), by]);
        self.mounts.push(bytes);
        Ok(())
    }

    fn add_operation(&mut self, name: &str, outcome: u16) -> Result<(), Error> {
        if let Some(path) = name.strip_prefix("file_open:") {
            let pattern = Pattern::parse(path).map_err(|_problem| Error::Unknown {
                what: "path of a hook",
                name: name.to_owned(),
            })?;
            let access = FileAccess {
                read: true,
                write: true,
                append: true,
                contents: false,
            };
            self.add_file(&pattern, access, outcome);
            return Ok(());
        }
        let operation = Operation::of_hook(name).ok_or_else(|| Error::Unknown {
            what: "hook",
            name: name.to_owned(),
        })?;
        let slot = &mut self.operations[operation as usize];
        *slot = worse(*slot, outcome);
        Ok(())
    }

    fn encode(&self, automaton: &Automaton, keys: &Keys, places: &BTreeMap<u32, u32>) -> Vec<u8> {
        let mut to = vec![0; SIZE];
        let mut put = |at: usize, bytes: &[u8]| to[at..at + bytes.len()].copy_from_slice(bytes);
        let counts = [
            self.sockets.len(),
            self.addresses.len(),
            self.mounts.len(),
            self.modes.len(),
        ];
        let words = [automaton.width, usize::from(START)]
            .into_iter()
            .chain(counts);
        put(4, &self.features.to_ne_bytes());
        for (index, word) in words.enumerate() {
            let word = u32::try_from(word).expect("the tables are small");
            put(8 + 4 * index, &word.to_ne_bytes());
        }
        put(OPERATION, &shorts(&self.operations));
        put(PTRACE, &shorts(&self.ptrace));
        put(DISK, &shorts(&self.disk));
        let view = VIEWS.map(|place| automaton.advance(START, place.as_bytes()));
        put(VIEW, &shorts(&view));
        put(RELATIVE, &shorts(&[automaton.advance(START, b"/")]));
        let of_views = VIEWS.map(|place| keys.kinds(place));
        let of_places = places.values().map(|place| place >> PLACE_KEYS);
        let placed = of_places.fold(0, |all, kinds| all | kinds);
        let placed = of_views
            .iter()
            .fold(placed, |all, kinds| all | u32::from(*kinds));
        put(UNKEYED, &u16::from(keys.unkeyed).to_ne_bytes());
        put(PLACED, &placed.to_ne_bytes());
        put(KEY, &keys.slots);
        put(VIEW_KEY, &of_views);
        put(CAPABILITY, &shorts(&self.capability));
        for (index, (bits, outcome)) in self.modes.iter().enumerate() {
            put(MODE + 8 * index, &bits.to_ne_bytes());
            put(MODE + 8 * index + 4, &u32::from(*outcome).to_ne_bytes());
        }
        put(MOUNT, &self.mounts.concat());
        put(SOCKET, &self.sockets.concat());
        put(ADDRESS, &self.addresses.concat());
        for (index, set) in automaton.sets.iter().enumerate() {
            let mut sum = Effect::default();
            for pattern in set {
                sum.add(&self.patterns[*pattern].1);
            }
            put(SET + 24 * index, &shorts(&sum.of));
            put(SET + 24 * index + 16, &sum.mounts.to_ne_bytes());
        }
        put(CLASS_OF, &automaton.class_of);
        put(ACCEPT, &shorts(&automaton.accept));
        put(EDGE, &shorts(&automaton.edges));
        to
    }

    /// Checks the limits of the tables.
    fn check(&self) -> Result<(), Error> {
        for (what, count, limit) in [
            ("rules on sockets", self.sockets.len(), SOCKET_RULES),
            ("rules on addresses", self.addresses.len(), ADDRESS_RULES),
            ("rules on mounts", self.mounts.len(), MOUNT_RULES),
            ("rules on modes", self.modes.len(), MODE_RULES),
        ] {
            if count > limit {
                return Err(Error::TooLarge { what, limit });
            }
        }
        Ok(())
    }
}

fn shorts(values: &[u16]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect()
}

fn encode_socket(socket: &SocketMatch, outcome: u16) -> Result<Vec<u8>, Error> {
    let too_large = |what, limit| Error::TooLarge { what, limit };
    let mut domains = u64::MAX;
    if let Some(list) = &socket.domains {
        domains = 0;
        for domain in list {
            let bit = 1_u64.checked_shl(u32::from(*domain));
            domains |= bit.ok_or(too_large("address families", 64))?;
        }
    }
    let mut types = u32::MAX;
    if let Some(list) = &socket.types {
        types = 0;
        for kind in list {
            types |= 1 << (kind & 0xf);
        }
    }
    let mut protocols = [0_u64; PROTOCOL_WORDS];
    for protocol in socket.protocols.iter().flatten() {
        let word = protocols.get_mut(usize::from(protocol >> 6));
        *word.ok_or(too_large("numbers of protocols", 64 * PROTOCOL_WORDS))? |=
            1 << (protocol & 63);
    }
    let mut bytes = domains.to_ne_bytes().to_vec();
    bytes.extend(protocols.iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(types.to_ne_bytes());
    bytes.extend(outcome.to_ne_bytes());
    bytes.extend(u16::from(socket.protocols.is_none()).to_ne_bytes());
    Ok(bytes)
}

/// The programs that a pattern matches now, by device and inode.
fn programs(pattern: &Pattern, path: Option<&OsStr>) -> Vec<(u32, u64)> {
    let found = match pattern.literal() {
        Some(literal) => [literal.to_owned()].into(),
        None => MountedFileSystems::programs(pattern, path).unwrap_or_default(),
    };
    let each = found.into_iter().filter_map(|path| {
        // A missing program is matched by its name alone.
        let real = fs::canonicalize(path).ok()?;
        let name = real.file_name()?.to_str()?;
        let meta = (!MULTI_CALL.contains(&name)).then(|| fs::metadata(&real).ok())??;
        Some((kernel_device(meta.dev()), meta.ino()))
    });
    each.collect()
}

/// A device number in the kernel's encoding.
fn kernel_device(number: u64) -> u32 {
    rustix::fs::major(number) << 20 | rustix::fs::minor(number)
}

/// The place of each file system as a state, and the kinds of rules whose key is one of its names.
fn places(automaton: &Automaton, keys: &Keys, places: &MountTable) -> BTreeMap<u32, u32> {
    let places = places.of_devices().filter_map(|(device, place)| {
        let state = automaton.advance(START, place.as_bytes());
        let kinds = u32::from(keys.kinds(place));
        (state != DEAD).then_some((device, u32::from(state) | kinds << PLACE_KEYS))
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use policy::compile::MachineFeatures;

    use super::*;

    fn tables(rules: &str) -> Tables {
        let text = format!(
            "policy:\n  enforcer: BPF\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             {rules}\n"
        );
        let (policies, problems) = policy::load("p.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}");
        let profile = Profile::compile(&policies[0], &MachineFeatures::default());
        let mounts = "1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /proc rw - proc p rw\n\
                      3 1 0:6 /part /x rw - tmpfs t rw\n4 1 0:7 / /var/log rw - tmpfs t rw\n";
        Tables::new(&profile, mounts, None).unwrap()
    }

    fn short(tables: &Tables, at: usize) -> u16 {
        u16::from_ne_bytes(tables.policy[at..at + 2].try_into().unwrap())
    }

    #[test]
    fn outcomes_carry_the_rule_and_what_becomes_of_it() {
        let made = tables(
            "hardeningRules: [disable-cap-sys-admin, disallow-mount]\n    auditViolations: true",
        );
        assert_eq!(made.rules, ["disable-cap-sys-admin", "disallow-mount"]);
        assert_eq!(short(&made, CAPABILITY + 2 * 21), 1 | DENY | AUDIT);
        assert_eq!(short(&made, CAPABILITY + 2 * 20), 0);
        assert_eq!(short(&made, OPERATION), 2 | DENY | AUDIT);
        assert_eq!(made.policy.len(), SIZE);
    }

    #[test]
    fn file_systems_have_the_state_of_their_place() {
        let made = tables("attackProtectionRules: [{rules: [disable-access-shadow]}]");
        let root = made.places[&(8 << 20 | 1)];
        assert_eq!(root, u32::from(START));
        // Nothing is denied below this place.
        assert!(!made.places.contains_key(&7));
        assert!(!made.places.contains_key(&6));
    }

    #[test]
    fn a_denial_outweighs_a_report_and_both_are_kept() {
        assert_eq!(worse(1 | AUDIT, 2 | DENY), 2 | AUDIT | DENY);
        assert_eq!(worse(1 | DENY, 2 | DENY | AUDIT), 1 | AUDIT | DENY);
        assert_eq!(worse(0, 3 | DENY), 3 | DENY);
    }
}
