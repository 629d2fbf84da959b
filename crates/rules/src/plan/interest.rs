//! Requirements of conditions on a call beyond its registers: paths, ends of connections, names of processes,
//! containers, success.
//!
//! Each result is an over-approximation, as with registers: of a conjunction one side is enough, and parts
//! that are not understood require nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use abi::Errno;
use event::field::{Field, ProcessFact, Source};
use event::{DescriptorSource, EventKind, Interest, ParamSource, PathPattern, SocketFamily};

use super::register::{self, Groups};
use crate::compile::atom::{Atom, Check, Right};
use crate::compile::program::{Node, NodeId, Program};
use crate::compile::test::Test;
use crate::condition::ast::Op;

/// Maximum number of patterns of one rule; more are not worth a table.
const PATTERN_LIMIT: usize = 1024;
/// Maximum number of ports or networks of one rule.
const END_LIMIT: usize = 1024;
/// Length of the longest process name that the kernel keeps, in bytes.
const NAME_LIMIT: usize = 15;
/// Errors below this have a bit in the engines' tables.
const FEW_ERRORS: u8 = 128;

/// Accepted values, of which one is required; `None` accepts any.
type Asked<T> = Option<BTreeSet<T>>;

/// Returns the requirements of a condition on a call. `root` is `None` if the kind alone decides.
pub(super) fn interest(
    program: &Program,
    root: Option<NodeId>,
    kind: EventKind,
    any_of: Groups,
) -> Interest {
    let walk = Walk::new(program, kind);
    let asked = root.map(|root| walk.node(root)).unwrap_or_default();
    Interest {
        any_of,
        failed: !asked.succeeds,
        succeeded: !asked.fails,
        results: asked.results,
        errors: asked.errors,
        paths: asked.paths.filter(|paths| paths.len() <= PATTERN_LIMIT),
        dotted: walk.paths == Paths::Opened && asked.dotted,
        names: asked.names,
        ports: asked.ports.filter(|ports| ports.len() <= END_LIMIT),
        networks: asked
            .networks
            .filter(|networks| networks.len() <= END_LIMIT),
        families: asked.families,
        contained: asked.contained,
    }
}

/// Facts implied by a node.
#[derive(Clone, Debug, Default)]
struct Facts {
    paths: Asked<PathPattern>,
    names: Asked<Vec<u8>>,
    ports: Asked<u16>,
    networks: Asked<(IpAddr, u8)>,
    families: Asked<SocketFamily>,
    contained: Option<bool>,
    dotted: bool,
    succeeds: bool,
    fails: bool,
    results: Asked<u8>,
    errors: Asked<u8>,
}

impl Facts {
    /// Returns the facts of a conjunction.
    fn and(self, other: Self) -> Self {
        Self {
            paths: rarer(self.paths, other.paths),
            names: narrower(self.names, other.names),
            ports: narrower(self.ports, other.ports),
            networks: narrower(self.networks, other.networks),
            families: narrower(self.families, other.families),
            contained: self.contained.or(other.contained),
            dotted: self.dotted || other.dotted,
            succeeds: self.succeeds || other.succeeds,
            fails: self.fails || other.fails,
            results: narrower(self.results, other.results),
            errors: narrower(self.errors, other.errors),
        }
    }

    /// Returns the facts of a disjunction.
    fn or(self, other: Self) -> Self {
        Self {
            paths: union(self.paths, other.paths),
            names: union(self.names, other.names),
            ports: union(self.ports, other.ports),
            networks: union(self.networks, other.networks),
            families: union(self.families, other.families),
            contained: self.contained.filter(|_| self.contained == other.contained),
            dotted: self.dotted && other.dotted,
            succeeds: self.succeeds && other.succeeds,
            fails: self.fails && other.fails,
            results: union(self.results, other.results),
            errors: union(self.errors, other.errors),
        }
    }
}

fn narrower<T: Ord>(one: Asked<T>, other: Asked<T>) -> Asked<T> {
    match (one, other) {
        (Some(one), Some(other)) if other.len() < one.len() => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// Returns those of two demands on the path that fewer of the paths fulfil which programs open.
fn rarer(one: Asked<PathPattern>, other: Asked<PathPattern>) -> Asked<PathPattern> {
    let share = |patterns: &BTreeSet<PathPattern>| patterns.iter().map(share_of).sum::<u64>();
    match (one, other) {
        (Some(one), Some(other)) if share(&other) < share(&one) => Some(other),
        (Some(one), _) => Some(one),
        (None, other) => other,
    }
}

/// Estimates how many of the paths that programs open a pattern matches, as a number to compare with others: a name or a
/// deep folder few of them, an extension such as `.so` many, a folder at the root more or less.
fn share_of(pattern: &PathPattern) -> u64 {
    let (PathPattern::Exact(text)
    | PathPattern::Prefix(text)
    | PathPattern::Suffix(text)
    | PathPattern::Contains(text)) = pattern;
    let parts = text.split(|byte| *byte == b'/');
    let parts = parts.filter(|part| !part.is_empty()).count();
    let has_separator = text.contains(&b'/');
    match pattern {
        PathPattern::Exact(_) => 1,
        PathPattern::Prefix(_) => match parts {
            0 => 10_000,
            1 => 50,
            2 => 10,
            _ => 3,
        },
        // `/name` is the whole name of a file.
        PathPattern::Suffix(_) if has_separator && parts > 0 => 1,
        PathPattern::Contains(_) if has_separator && text.len() > 3 => 3,
        PathPattern::Suffix(_) | PathPattern::Contains(_) => 200,
    }
}

fn union<T: Ord>(one: Asked<T>, other: Asked<T>) -> Asked<T> {
    let mut all = one?;
    all.extend(other?);
    Some(all)
}

/// Paths of a call that an engine in the kernel can inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paths {
    /// The path of the file that the call opens.
    Opened,
    /// The paths that are passed to the call.
    Passed,
    /// No paths.
    None,
}

struct Walk<'p> {
    program: &'p Program,
    kind: EventKind,
    paths: Paths,
    /// Whether the call concerns a descriptor that may be a socket.
    connects: bool,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program, kind: EventKind) -> Self {
        let spec = kind.spec();
        let is_string = |source| matches!(source, ParamSource::Path { .. } | ParamSource::Text(_));
        let paths = match spec.descriptor {
            DescriptorSource::Opened { .. } => Paths::Opened,
            _ if spec.params.iter().any(|param| is_string(param.source)) => Paths::Passed,
            _ => Paths::None,
        };
        let connects = matches!(
            spec.descriptor,
            DescriptorSource::Argument(_)
                | DescriptorSource::Duplicated(_)
                | DescriptorSource::Addressed { .. }
                | DescriptorSource::Message { .. }
                | DescriptorSource::Accepted(_)
        );
        Self {
            program,
            kind,
            paths,
            connects,
        }
    }

    fn node(&self, id: NodeId) -> Facts {
        let program = self.program;
        match program.node(id) {
            Node::Literal { atom, negated } => {
                let atom = program.atoms.get(atom);
                let field = program.operands.as_field(atom.key.operand);
                field.map_or_else(Facts::default, |field| self.atom(atom, field, negated))
            }
            Node::All { children, .. } => {
                let children = program.children(children).iter();
                children.fold(Facts::default(), |all, child| all.and(self.node(*child)))
            }
            Node::Any { children, .. } => {
                let children = program.children(children).iter();
                let any = children.map(|child| self.node(*child)).reduce(Facts::or);
                any.unwrap_or_default()
            }
        }
    }

    fn atom(&self, atom: &Atom, field: &Field, negated: bool) -> Facts {
        // Applies to a present value; an absent value satisfies neither an atom nor a requirement.
        let wanted = atom.inverted == negated;
        let mut facts = Facts {
            contained: contained(atom, field, wanted),
            ..Facts::default()
        };
        if wanted {
            match self.paths {
                Paths::Opened => (facts.paths, facts.dotted) = opened(atom, field),
                Paths::Passed if self.is_passed_path(field) => {
                    facts.paths = patterns(atom, name_patterns);
                }
                Paths::Passed | Paths::None => {}
            }
            if self.connects {
                (facts.ports, facts.networks) = ends(atom, field);
                facts.families = families(atom, field);
            }
            if field.spec.name == "proc.name" {
                facts.names = names(atom);
            }
        }
        if !negated && !atom.inverted {
            (facts.succeeds, facts.fails) = self.outcome(atom, field);
            if let Check::Test(test) = &atom.check
                && register::is_result(field, self.kind)
            {
                facts.results = register::few_results(test);
                facts.errors = register::few_errors(test);
            }
            if field.spec.name == "evt.res" {
                (facts.succeeds, facts.errors) = result_names(atom);
            }
            if facts.succeeds {
                facts.errors = Some(BTreeSet::new());
            }
        }
        facts
    }

    /// Returns true if a field is a passed string, or the absolute path made from it.
    fn is_passed_path(&self, field: &Field) -> bool {
        match field.depends_on() {
            Source::Path | Source::SuccessfulPath => true,
            Source::Param | Source::RawParam => {
                let param = field.param_index(self.kind);
                let source = param.map(|at| self.kind.spec().params[at].source);
                matches!(
                    source,
                    Some(ParamSource::Path { .. } | ParamSource::Text(_))
                )
            }
            _ => false,
        }
    }

    /// Returns whether the atom holds only for successful calls, and whether it holds only for failed ones.
    fn outcome(&self, atom: &Atom, field: &Field) -> (bool, bool) {
        let Check::Test(test) = &atom.check else {
            return (false, false);
        };
        let opens = matches!(self.kind.spec().descriptor, DescriptorSource::Opened { .. });
        match (field.spec.name, test) {
            ("evt.failed", Test::Bool(failed)) => (!failed, *failed),
            _ if register::is_result(field, self.kind)
                || (opens && field.spec.name == "fd.num") =>
            {
                register::signs(test).unwrap_or((false, false))
            }
            _ => (false, false),
        }
    }
}

/// Returns the atom's requirement on the path of an opened file.
fn opened(atom: &Atom, field: &Field) -> (Asked<PathPattern>, bool) {
    match field.spec.name {
        "fd.name" => (patterns(atom, name_patterns), false),
        "fd.directory" => (patterns(atom, directory_patterns), false),
        "fd.filename" => (patterns(atom, file_name_patterns), false),
        "fd.nameraw" => (None, is_dotted(atom)),
        _ => (None, false),
    }
}

/// Returns the ports and networks of which one end of the connection must have one.
fn ends(atom: &Atom, field: &Field) -> (Asked<u16>, Asked<(IpAddr, u8)>) {
    const PORTS: (i128, i128) = (0, u16::MAX as i128);
    let Check::Test(test) = &atom.check else {
        return (None, None);
    };
    let is_port = matches!(
        field.spec.name,
        "fd.port" | "fd.proto" | "fd.cport" | "fd.sport" | "fd.lport" | "fd.rport"
    );
    let networks = |networks: &mut dyn Iterator<Item = (IpAddr, u8)>| Some(networks.collect());
    match test {
        _ if is_port => {
            let ranges = register::ranges(test, PORTS).unwrap_or(vec![PORTS]);
            let count: i128 = ranges.iter().map(|(low, high)| high - low + 1).sum();
            let is_few = usize::try_from(count).is_ok_and(|count| count <= END_LIMIT);
            let ports = ranges.into_iter().flat_map(|(low, high)| low..=high);
            let ports = || ports.filter_map(|port| u16::try_from(port).ok()).collect();
            (is_few.then(ports), None)
        }
        Test::Networks(found) => (None, networks(&mut found.iter().map(|one| one.parts()))),
        Test::Addresses(found) => {
            let whole = |ip: &IpAddr| (*ip, if ip.is_ipv4() { 32 } else { 128 });
            (None, networks(&mut found.iter().map(whole)))
        }
        _ => (None, None),
    }
}

/// Returns the socket families of which the descriptor must have one.
fn families(atom: &Atom, field: &Field) -> Asked<SocketFamily> {
    use SocketFamily as Family;
    let of: fn(&[u8]) -> Option<&'static [Family]> = match field.spec.name {
        "fd.type" => |text| match text {
            b"ipv4" => Some(&[Family::Ipv4]),
            b"ipv6" => Some(&[Family::Ipv6]),
            b"unix" => Some(&[Family::Unix]),
            _ => None,
        },
        // Objects other than sockets have the letter `u`, too.
        "fd.typechar" => |text| match text {
            b"4" => Some(&[Family::Ipv4]),
            b"6" => Some(&[Family::Ipv6]),
            _ => None,
        },
        "fd.sockfamily" => |text| match text {
            b"ip" => Some(&[Family::Ipv4, Family::Ipv6]),
            b"unix" => Some(&[Family::Unix]),
            _ => None,
        },
        "fd.l4proto" => |_| Some(&[Family::Ipv4, Family::Ipv6]),
        _ => return None,
    };
    let mut families = BTreeSet::new();
    for text in texts(atom)? {
        families.extend(of(text)?);
    }
    Some(families)
}

/// Returns whether an atom holds only for processes inside, or only outside, a container. Returns `None` if
/// neither is proven.
fn contained(atom: &Atom, field: &Field, wanted: bool) -> Option<bool> {
    let Right::Constants(constants) = &atom.key.right else {
        return None;
    };
    let is_equality = match atom.key.op? {
        Op::In | Op::Intersects => atom.key.is_union(),
        Op::Ne => atom.key.quantifier.is_none() && constants.len() == 1,
        _ => false,
    };
    if !is_equality {
        return None;
    }
    let is_host = |text: &[u8]| match field.spec.name {
        "container.id" | "container.name" | "container.type" => text == b"host",
        _ => text.is_empty(),
    };
    let count = constants.iter().filter(|text| is_host(text.as_bytes()));
    let (of_host, all) = (count.count(), constants.len());
    match (field.spec.name, wanted) {
        ("container.id", true) if of_host == all => Some(false),
        ("container.id", false) if of_host > 0 => Some(true),
        (
            "container.id"
            | "container.name"
            | "container.type"
            | "container.image"
            | "container.image.repository",
            true,
        ) if of_host == 0 => Some(true),
        _ => None,
    }
}

/// Returns the texts of which an atom requires one.
fn texts(atom: &Atom) -> Option<impl Iterator<Item = &[u8]>> {
    let Right::Constants(constants) = &atom.key.right else {
        return None;
    };
    let asks = matches!(atom.key.op, Some(Op::In | Op::Intersects)) && atom.key.is_union();
    asks.then(|| constants.iter().map(|constant| constant.as_bytes()))
}

/// Returns the patterns of an atom's constants, if the atom requires one of them.
fn patterns(atom: &Atom, of: fn(Op, &[u8]) -> Option<Vec<PathPattern>>) -> Asked<PathPattern> {
    let (Right::Constants(constants), Some(op)) = (&atom.key.right, atom.key.op) else {
        return None;
    };
    if !atom.key.is_union() {
        return None;
    }
    let mut patterns = BTreeSet::new();
    for constant in constants {
        patterns.extend(of(op, constant.as_bytes())?);
    }
    Some(patterns)
}

fn name_patterns(op: Op, text: &[u8]) -> Option<Vec<PathPattern>> {
    use PathPattern as P;
    if text.is_empty() {
        return None;
    }
    let owned = || text.to_vec();
    Some(match op {
        Op::In | Op::Intersects => vec![P::Exact(owned())],
        Op::StartsWith => vec![P::Prefix(owned())],
        Op::EndsWith => vec![P::Suffix(owned())],
        Op::Contains => vec![P::Contains(owned())],
        Op::Glob => glob(text)?,
        // The path is one of these or below; the agent checks the rest of `pmatch`.
        Op::PMatch => vec![P::Prefix(glob_head(
            text.strip_suffix(b"/").unwrap_or(text),
        )?)],
        _ => return None,
    })
}

/// Returns patterns for `fd.directory`: the directory of `/a/b` is `/a`, and that of a directory is its own
/// path.
fn directory_patterns(op: Op, text: &[u8]) -> Option<Vec<PathPattern>> {
    use PathPattern as P;
    if text.is_empty() {
        return None;
    }
    let below = |text: &[u8]| [text.strip_suffix(b"/").unwrap_or(text), b"/"].concat();
    Some(match op {
        Op::In | Op::Intersects => vec![P::Exact(text.to_vec()), P::Prefix(below(text))],
        Op::StartsWith => vec![P::Prefix(text.to_vec())],
        Op::EndsWith | Op::Contains => vec![P::Contains(text.to_vec())],
        Op::Glob => vec![P::Prefix(glob_head(text)?)],
        Op::PMatch => name_patterns(op, text)?,
        _ => return None,
    })
}

/// Returns patterns for a file name: that of `/a/b` is `b`.
fn file_name_patterns(op: Op, text: &[u8]) -> Option<Vec<PathPattern>> {
    use PathPattern as P;
    // A path that ends in a slash is its own file name.
    if text.is_empty() || text.contains(&b'/') {
        return None;
    }
    let named = || [b"/", text].concat();
    Some(match op {
        Op::In | Op::Intersects => vec![P::Suffix(named())],
        Op::StartsWith => vec![P::Contains(named())],
        Op::EndsWith => vec![P::Suffix(text.to_vec())],
        Op::Contains => vec![P::Contains(text.to_vec())],
        _ => return None,
    })
}

/// Returns the literal prefix of a shell pattern or its literal suffix, whichever fewer paths have.
fn glob(text: &[u8]) -> Option<Vec<PathPattern>> {
    let special = |byte: &u8| b"*?[]\\{}".contains(byte);
    let tail = text
        .iter()
        .rposition(special)
        .map_or(text, |at| &text[at + 1..]);
    let head = glob_head(text).map(PathPattern::Prefix);
    let tail = (!tail.is_empty()).then(|| PathPattern::Suffix(tail.to_vec()));
    let ends = head.into_iter().chain(tail);
    ends.min_by_key(share_of).map(|end| vec![end])
}

fn glob_head(text: &[u8]) -> Option<Vec<u8>> {
    let special = |byte: &u8| b"*?[]\\{}".contains(byte);
    let head = text.iter().position(special).map_or(text, |at| &text[..at]);
    (!head.is_empty()).then(|| head.to_vec())
}

/// Returns true if every text that an atom accepts contains `..`.
fn is_dotted(atom: &Atom) -> bool {
    let Right::Constants(constants) = &atom.key.right else {
        return false;
    };
    let asks = matches!(
        atom.key.op,
        Some(Op::Contains | Op::Glob | Op::StartsWith | Op::EndsWith | Op::In)
    );
    let has_dots = |text: &[u8]| {
        text.windows(2).any(|pair| pair == b"..")
            && !text.iter().any(|byte| b"[]\\{}".contains(byte))
    };
    asks && atom.key.is_union() && constants.iter().all(|text| has_dots(text.as_bytes()))
}

/// Returns whether an atom on the name of the result holds only for successful calls, and the errors that it
/// holds for.
fn result_names(atom: &Atom) -> (bool, Asked<u8>) {
    let Some(names) = texts(atom) else {
        return (false, None);
    };
    let (mut errors, mut succeeds, mut is_known) = (BTreeSet::new(), true, true);
    for name in names {
        if name == b"SUCCESS" {
            continue;
        }
        succeeds = false;
        let number = std::str::from_utf8(name).ok().and_then(Errno::from_name);
        let few = number.and_then(|Errno(number)| u8::try_from(number).ok());
        match few.filter(|few| *few < FEW_ERRORS) {
            Some(few) => drop(errors.insert(few)),
            // A number without a name, or one beyond the limit.
            None => is_known = false,
        }
    }
    (succeeds, is_known.then_some(errors))
}

/// Returns the process names that an atom requires.
fn names(atom: &Atom) -> Asked<Vec<u8>> {
    // No process has a longer name.
    let named = texts(atom)?.filter(|name| name.len() <= NAME_LIMIT);
    Some(named.map(<[u8]>::to_vec).collect())
}

/// Returns the names that a condition compares command names with, positively or negatively.
pub(super) fn compared_names(program: &Program, root: NodeId) -> BTreeSet<Vec<u8>> {
    use ProcessFact::{AncestorComm, Comm, Leader};
    let mut compared = BTreeSet::new();
    program.each_atom(root, &mut |atom| {
        let atom = program.atoms.get(atom);
        let field = program.operands.as_field(atom.key.operand);
        let is_name = field.is_some_and(|field| {
            matches!(
                field.depends_on(),
                Source::Process(Comm | AncestorComm | Leader)
            )
        });
        let lists = matches!(atom.key.op, Some(Op::Eq | Op::Ne | Op::In | Op::Intersects));
        if let Right::Constants(constants) = &atom.key.right
            && is_name
            && lists
        {
            let listed = constants.iter().map(|constant| constant.as_bytes());
            let possible = listed.filter(|name| name.len() <= NAME_LIMIT);
            compared.extend(possible.map(<[u8]>::to_vec));
        }
    });
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conjunction_is_as_narrow_as_one_side_and_a_disjunction_as_wide_as_both() {
        let facts = |text: &str| Facts {
            paths: name_patterns(Op::In, text.as_bytes()).map(BTreeSet::from_iter),
            succeeds: true,
            ..Facts::default()
        };
        let nothing = Facts::default();
        assert_eq!(facts("/a").and(nothing.clone()).paths, facts("/a").paths);
        assert!(facts("/a").and(nothing.clone()).succeeds);
        assert_eq!(facts("/a").or(nothing.clone()).paths, None);
        assert!(!facts("/a").or(nothing).succeeds);
        assert_eq!(
            facts("/a").or(facts("/b")).paths.map(|all| all.len()),
            Some(2)
        );
    }

    #[test]
    fn of_two_demands_on_a_path_the_rarer_one_is_asked_for() {
        use PathPattern as P;
        let asked = |patterns: &[P]| Facts {
            paths: Some(patterns.iter().cloned().collect()),
            ..Facts::default()
        };
        let libraries = asked(&[P::Suffix(b".so".to_vec()), P::Contains(b".so.".to_vec())]);
        let folders = asked(&[
            P::Prefix(b"/tmp/".to_vec()),
            P::Prefix(b"/var/tmp/".to_vec()),
            P::Prefix(b"/dev/shm/".to_vec()),
        ]);
        let names = asked(&[
            P::Suffix(b"/.bash_history".to_vec()),
            P::Suffix(b"/.zsh_history".to_vec()),
            P::Suffix(b"/.sh_history".to_vec()),
        ]);
        let root = asked(&[P::Prefix(b"/".to_vec())]);
        for (one, other, rarer) in [
            (&libraries, &folders, &folders),
            (&names, &folders, &names),
            (&root, &libraries, &libraries),
        ] {
            for (one, other) in [(one, other), (other, one)] {
                assert_eq!(one.clone().and(other.clone()).paths, rarer.paths);
            }
        }
    }

    #[test]
    fn patterns_become_what_surely_holds() {
        use PathPattern as P;
        let rows: &[(Op, &str, Option<P>)] = &[
            (
                Op::Glob,
                "/home/*/.ssh/id_rsa",
                Some(P::Suffix(b"/.ssh/id_rsa".to_vec())),
            ),
            (
                Op::Glob,
                "*.bash_history",
                Some(P::Suffix(b".bash_history".to_vec())),
            ),
            (Op::Glob, "/tmp/*.so", Some(P::Prefix(b"/tmp/".to_vec()))),
            (Op::Glob, "*", None),
            (Op::StartsWith, "/etc", Some(P::Prefix(b"/etc".to_vec()))),
            (Op::Regex, "/etc/.*", None),
        ];
        for (op, text, expected) in rows {
            let found = name_patterns(*op, text.as_bytes());
            assert_eq!(
                found,
                expected.clone().map(|one| vec![one]),
                "{op:?} {text}"
            );
        }
        let directory = directory_patterns(Op::In, b"/etc/pam.d").expect("understood");
        assert_eq!(
            directory,
            [
                P::Exact(b"/etc/pam.d".to_vec()),
                P::Prefix(b"/etc/pam.d/".to_vec())
            ]
        );
        let name = file_name_patterns(Op::In, b"shadow").expect("understood");
        assert_eq!(name, [P::Suffix(b"/shadow".to_vec())]);
    }
}
