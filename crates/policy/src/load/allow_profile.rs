//! Allow profiles in the notation of the OCI runtime specification (`linux.seccomp`), translated to rules: what a
//! profile does not allow is denied.

use std::sync::Arc;

use abi::{Arch, Errno, RegisterTest, Syscall, TestOp};
use yaml::{Location, Node};

use super::body::Switches;
use super::raw::raw_rule;
use super::reader::{Fields, Reader};
use super::recorded::RecordedModel;
use super::syscalls::{self, Default as RuleDefault};
use crate::diagnostic::{Code, Diagnostic};
use crate::model::ALWAYS;
use crate::policy::{Profile, Rule};
use crate::restriction::{Restriction, SyscallAction, SyscallMatch};

/// Id of the rule that a profile becomes.
const ID: &str = "defenseInDepth.seccomp";
/// Maximum number of tests of one call, when what is allowed is turned into what is denied.
const MOST_GROUPS: usize = 256;

/// Calls that vArmor allows while it records, so that its models do not list them.
const UNRECORDED: [Syscall; 8] = [
    Syscall::CLOSE,
    Syscall::EXECVE,
    Syscall::EXECVEAT,
    Syscall::OPEN,
    Syscall::OPENAT,
    Syscall::OPENAT2,
    Syscall::READ,
    Syscall::WRITE,
];

/// Reads the rules of the profile of seccomp: its own, which deny what it does not allow, and raw ones.
pub(super) fn read(
    reader: &mut Reader,
    part: &Fields<'_>,
    profile: Option<&Profile>,
    model: Option<&RecordedModel>,
    switches: Switches,
) -> Vec<Rule> {
    let raw = syscalls::read(reader, part, switches, RuleDefault::Denied);
    let model = model.filter(|_| profile.is_some_and(|profile| profile.is_recorded));
    let node = match model {
        Some(model) => model.seccomp.as_ref(),
        None => part.find("customProfile"),
    };
    let made = match (node, profile.and_then(|profile| profile.text.as_ref())) {
        (Some(node), Some(text)) => AllowProfile::read(reader, node, text, switches),
        (None, _) => model
            .filter(|model| !model.calls.is_empty())
            .map(|model| AllowProfile::of_calls(model.calls.iter().copied())),
        (Some(_), None) => None,
    };
    // What the profile and raw rules allow together is no rule of its own.
    match made {
        None => raw,
        Some(made) => vec![made.into_rule(reader, &part.location, &raw, switches)],
    }
}

/// A profile.
struct AllowProfile {
    /// Action on calls that no entry matches; `None` allows them.
    default: Option<SyscallAction>,
    entries: Vec<SyscallMatch>,
}

impl AllowProfile {
    /// Reads a profile from the text of the scalar `node`. Problems inside of it are reported at that node.
    fn read(reader: &mut Reader, node: &Node, text: &str, switches: Switches) -> Option<Self> {
        let mut inner = Reader::default();
        let name: Arc<str> = "customProfile".into();
        let (documents, error) = yaml::read(&name, text);
        let profile = match (&documents[..], &error) {
            ([document], None) => read_profile(&mut inner, document, switches),
            _ => {
                let message = "a profile of seccomp has to be one JSON object";
                inner.problem(Code::YamlParse, &node.location, message);
                None
            }
        };
        let is_valid = inner.diagnostics.is_empty();
        for problem in inner.diagnostics {
            let message = format!(
                "line {} of the profile: {}",
                problem.location.line, problem.message
            );
            reader.report(Diagnostic {
                location: node.location.clone(),
                message,
                ..problem
            });
        }
        profile.filter(|_| is_valid)
    }

    /// The profile that allows what a model lists, and what every program needs.
    fn of_calls(calls: impl IntoIterator<Item = Syscall>) -> Self {
        let always = ALWAYS.into_iter().chain(UNRECORDED);
        let allowed = |call| SyscallMatch {
            call,
            any_of: vec![Vec::new()],
            action: SyscallAction::Allow,
        };
        Self {
            default: Some(SyscallAction::Errno(Errno::EPERM)),
            entries: calls.into_iter().chain(always).map(allowed).collect(),
        }
    }

    /// The rule that denies what neither the profile nor `more` allows.
    fn into_rule(
        mut self,
        reader: &mut Reader,
        at: &Location,
        more: &[Rule],
        switches: Switches,
    ) -> Rule {
        let more = more.iter().flat_map(|rule| &rule.restrictions);
        self.entries.extend(more.filter_map(|one| match one {
            Restriction::Syscall(syscall) => Some(syscall.clone()),
            _ => None,
        }));
        let mut restrictions = Vec::new();
        let own = |call: &Syscall| Arch::ALL.iter().any(|arch| call.number(*arch).is_some());
        for call in Syscall::all().filter(own) {
            match self.denial(call) {
                Ok(denial) => restrictions.extend(denial.map(Restriction::Syscall)),
                Err(TooManyTests) => {
                    let message = format!("the profile allows `{call}` by too many tests");
                    let help = format!("{MOST_GROUPS} combinations are possible; join its entries");
                    reader.report(
                        Diagnostic::new(Code::UnknownValue, at.clone(), message).with_help(help),
                    );
                }
            }
        }
        let denying = self.entries.into_iter();
        let denying = denying.filter(|entry| entry.action != SyscallAction::Allow);
        restrictions.extend(denying.map(Restriction::Syscall));
        raw_rule(ID.to_owned(), at, switches.verdict(), restrictions)
    }

    /// What the default denies of a call: the arguments that no entry matches.
    fn denial(&self, call: Syscall) -> Result<Option<SyscallMatch>, TooManyTests> {
        let Some(action) = self.default else {
            return Ok(None);
        };
        // An entry of `getuid` allows `getuid32`, too.
        let entries = self.entries.iter();
        let own = entries.filter(|entry| entry.call == call || entry.call == call.base());
        let groups: Vec<&Vec<RegisterTest>> = own.flat_map(|entry| &entry.any_of).collect();
        let any_of = none_of(&groups)?;
        Ok((!any_of.is_empty()).then_some(SyscallMatch {
            call,
            any_of,
            action,
        }))
    }
}

struct TooManyTests;

/// The groups of tests of which one holds exactly where none of `groups` holds.
fn none_of(groups: &[&Vec<RegisterTest>]) -> Result<Vec<Vec<RegisterTest>>, TooManyTests> {
    let mut found: Vec<Vec<RegisterTest>> = vec![Vec::new()];
    for group in groups {
        let others: Vec<RegisterTest> = group.iter().flat_map(negated).collect();
        let with = |known: &Vec<RegisterTest>| -> Vec<Vec<RegisterTest>> {
            let each = others.iter();
            each.map(|test| {
                let mut all = known.clone();
                if !all.contains(test) {
                    all.push(*test);
                }
                all
            })
            .collect()
        };
        found = found.iter().flat_map(with).collect();
        if found.len() > MOST_GROUPS {
            return Err(TooManyTests);
        }
    }
    Ok(found)
}

/// The tests of which one holds exactly where `test` does not.
fn negated(test: &RegisterTest) -> Vec<RegisterTest> {
    let with = |op, value| RegisterTest { op, value, ..*test };
    let each_bit = |bits: u64| {
        let bits = (0..u64::BITS).map(move |at| bits & (1 << at));
        bits.filter(|bit| *bit != 0)
    };
    match test.op {
        TestOp::Eq => vec![with(TestOp::Ne, test.value)],
        TestOp::Ne => vec![with(TestOp::Eq, test.value)],
        TestOp::Le => {
            let above = test.value.checked_add(1);
            above
                .map(|above| with(TestOp::Ge, above))
                .into_iter()
                .collect()
        }
        TestOp::Ge => {
            let below = test.value.checked_sub(1);
            below
                .map(|below| with(TestOp::Le, below))
                .into_iter()
                .collect()
        }
        TestOp::AnyBit => vec![with(TestOp::NoBit, test.value)],
        TestOp::NoBit => vec![with(TestOp::AnyBit, test.value)],
        TestOp::AllBits => each_bit(test.value)
            .map(|bit| with(TestOp::NoBit, bit))
            .collect(),
        TestOp::MaskedEq { mask } => {
            let unset = mask & !test.value;
            let clear = (unset != 0).then(|| with(TestOp::AnyBit, unset));
            let set = each_bit(mask & test.value).map(|bit| with(TestOp::NoBit, bit));
            clear.into_iter().chain(set).collect()
        }
    }
}

fn read_profile(reader: &mut Reader, node: &Node, switches: Switches) -> Option<AllowProfile> {
    let known = [
        "defaultAction",
        "defaultErrnoRet",
        "architectures",
        "flags",
        "syscalls",
    ];
    let fields = reader.fields(node, "customProfile", &known);
    // Calls of other architectures are refused whatever is listed, and flags only concern how a filter is loaded.
    reader.words_of(&fields, "architectures");
    reader.words_of(&fields, "flags");
    let keys = ("defaultAction", "defaultErrnoRet");
    let action =
        syscalls::read_action(reader, &fields, "customProfile", keys, RuleDefault::Denied)?;
    let mut entries = Vec::new();
    for (index, item) in reader.items_of(&fields, "syscalls").iter().enumerate() {
        let id = format!("customProfile.syscalls[{index}]");
        let rule = syscalls::read_rule(reader, item, id, switches, RuleDefault::Denied);
        let restrictions = rule.into_iter().flat_map(|rule| rule.restrictions);
        entries.extend(restrictions.filter_map(|one| match one {
            Restriction::Syscall(syscall) => Some(syscall),
            _ => None,
        }));
    }
    Some(AllowProfile {
        default: (action != SyscallAction::Allow).then_some(action),
        entries,
    })
}
