//! Operations that a policy can deny besides files, sockets and capabilities: `data/operations.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use abi::{Capabilities, Errno, RegisterTest, Syscall, TestOp, capability};

use crate::enforcer::EnforcerKind;

/// One operation and the means by which each enforcer denies it.
#[derive(Debug, Default, PartialEq)]
pub struct Operation {
    /// Name of the operation.
    pub name: String,
    /// System calls that perform the operation.
    pub calls: Vec<OperationCall>,
    /// AppArmor rules, without qualifiers.
    pub apparmor: Vec<String>,
    /// Capabilities that the operation needs.
    pub capabilities: Capabilities,
    /// Hooks of BPF LSM. Text after `:` names the object to which the hook is limited.
    pub hooks: Vec<String>,
    /// Ways to perform the operation without a call that a filter could refuse.
    pub ways: Vec<IndirectWay>,
    /// Known bypasses, by enforcer.
    pub weak: BTreeMap<EnforcerKind, Vec<String>>,
    /// Reasons why an enforcer cannot deny the operation.
    pub none: BTreeMap<EnforcerKind, String>,
}

/// A way to perform an operation that is no system call of its own.
#[derive(Debug, PartialEq)]
pub struct IndirectWay {
    /// One-line description.
    pub text: String,
    /// Hooks at which this way can be denied.
    pub hooks: Vec<String>,
}

/// The part of an operation that an enforcer denies at a given set of hooks.
#[derive(Debug, Default, PartialEq)]
pub struct Coverage {
    /// Calls that the enforcer denies.
    pub calls: Vec<Syscall>,
    /// Descriptions of what the enforcer does not deny.
    pub gaps: Vec<String>,
}

/// A system call that performs an operation.
#[derive(Debug, PartialEq)]
pub struct OperationCall {
    /// The system call.
    pub call: Syscall,
    /// Tests on the arguments. The call performs the operation if all hold.
    pub tests: Vec<RegisterTest>,
    /// Error with which a filter refuses the call only to make callers fall back to another call.
    pub diverted: Option<Errno>,
    /// Security-module hooks, each of which can deny the call.
    pub hooks: Vec<String>,
    /// Set if the call performs the operation. A filter refuses the other calls to close bypasses.
    pub is_way: bool,
}

static TABLE: LazyLock<BTreeMap<String, Operation>> = LazyLock::new(|| {
    read(include_str!("../data/operations.txt")).expect("a unit test reads the same file")
});

impl Operation {
    /// Finds an operation by name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLE.get(name)
    }

    /// The coverage by an enforcer that decides at the hooks for which `decides` returns true.
    #[must_use]
    pub fn coverage(&self, decides: impl Fn(&str) -> bool) -> Coverage {
        let is_denied = |hooks: &[String]| hooks.iter().any(|hook| decides(hook));
        let ways = self.calls.iter().filter(|entry| entry.is_way);
        let (denied, open): (Vec<_>, Vec<_>) = ways.partition(|entry| is_denied(&entry.hooks));
        let mut names: Vec<String> = Vec::new();
        for entry in open {
            let name = format!("{}(2)", entry.call);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut gaps = Vec::new();
        if let [first @ .., last] = &names[..] {
            gaps.push(match first.is_empty() {
                true => format!("{last} is not mediated"),
                false => format!("{} and {last} are not mediated", first.join(", ")),
            });
        }
        let others = self.ways.iter().filter(|way| !is_denied(&way.hooks));
        gaps.extend(others.map(|way| way.text.clone()));
        Coverage {
            calls: denied.into_iter().map(|entry| entry.call).collect(),
            gaps,
        }
    }

    /// Further bypasses of an enforcer, as the table lists them.
    pub fn weak(&self, enforcer: EnforcerKind) -> impl Iterator<Item = String> {
        self.weak.get(&enforcer).into_iter().flatten().cloned()
    }

    /// Iterates over all operations by name.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        TABLE.values()
    }
}

fn read(text: &str) -> Result<BTreeMap<String, Operation>, String> {
    let mut table: BTreeMap<String, Operation> = BTreeMap::new();
    let mut open: Option<Operation> = None;
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        if key == "operation" {
            table.extend(open.take().map(|done| (done.name.clone(), done)));
            open = Some(Operation {
                name: value.to_owned(),
                ..Operation::default()
            });
            continue;
        }
        let operation = open.as_mut().ok_or("a line before the first operation")?;
        add(operation, key, value).map_err(|problem| format!("line {}: {problem}", number + 1))?;
    }
    table.extend(open.map(|done| (done.name.clone(), done)));
    Ok(table)
}

fn add(operation: &mut Operation, key: &str, value: &str) -> Result<(), String> {
    match key {
        "call" => operation.calls.push(read_call(value)?),
        "also" => operation.calls.push(OperationCall {
            is_way: false,
            ..read_call(value)?
        }),
        "way" => operation.ways.push(read_way(value)?),
        "apparmor" => operation.apparmor.push(value.to_owned()),
        "capability" => {
            let words: Vec<&str> = value.split(' ').collect();
            operation.capabilities = read_capabilities(&words)?;
        }
        "hook" => operation.hooks.extend(value.split(' ').map(str::to_owned)),
        "weak" => {
            let (enforcer, text) = read_note(value)?;
            operation.weak.entry(enforcer).or_default().push(text);
        }
        "none" => operation.none.extend([read_note(value)?]),
        _ => return Err(format!("`{key}` is unknown")),
    }
    Ok(())
}

/// Parses `ENFORCER TEXT`.
pub(crate) fn read_note(value: &str) -> Result<(EnforcerKind, String), String> {
    let (id, text) = value
        .split_once(' ')
        .ok_or("expected an enforcer and a text")?;
    let enforcer = EnforcerKind::from_id(id).ok_or_else(|| format!("no such enforcer: `{id}`"))?;
    Ok((enforcer, text.to_owned()))
}

pub(crate) fn read_capabilities(words: &[&str]) -> Result<Capabilities, String> {
    let set = |names: &[&str]| {
        names.iter().try_fold(0_u64, |set, name| {
            let number =
                capability::from_name(name).ok_or_else(|| format!("`{name}` is unknown"))?;
            Ok::<u64, String>(set | 1 << number)
        })
    };
    match words {
        ["all"] => Ok(Capabilities::ALL),
        ["all-except", kept @ ..] => Ok(Capabilities(Capabilities::ALL.0 & !set(kept)?)),
        names => set(names).map(Capabilities),
    }
}

pub(crate) fn read_call(value: &str) -> Result<OperationCall, String> {
    let mut words = value.split(' ');
    let name = words.next().unwrap_or_default();
    let (name, errno) = match name.split_once(':') {
        Some((name, errno)) => {
            let errno = Errno::from_name(errno).ok_or_else(|| format!("`{errno}` is unknown"))?;
            (name, Some(errno))
        }
        None => (name, None),
    };
    let call = Syscall::from_name(name).ok_or_else(|| format!("no such system call: `{name}`"))?;
    let (hooks, tests): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('@'));
    Ok(OperationCall {
        call,
        tests: tests.into_iter().map(read_test).collect::<Result<_, _>>()?,
        diverted: errno,
        hooks: hooks.into_iter().flat_map(read_hooks).collect(),
        is_way: true,
    })
}

/// Parses `@HOOK,HOOK`.
fn read_hooks(word: &str) -> Vec<String> {
    let names = word.trim_start_matches('@').split(',');
    names.map(str::to_owned).collect()
}

/// Parses `@HOOK,HOOK TEXT`.
fn read_way(value: &str) -> Result<IndirectWay, String> {
    let (hooks, text) = value
        .split_once(' ')
        .filter(|(hooks, _)| hooks.starts_with('@'))
        .ok_or("expected hooks and a text")?;
    Ok(IndirectWay {
        text: text.to_owned(),
        hooks: read_hooks(hooks),
    })
}

/// Parses `ARGUMENT=NUMBER` or `ARGUMENT&BITS`. The flags and numbers of these calls are 32 bits wide.
fn read_test(word: &str) -> Result<RegisterTest, String> {
    let bad = || format!("invalid test `{word}`");
    let no_number = |error: std::num::ParseIntError| format!("invalid test `{word}`: {error}");
    let at = word.find(['=', '&']).ok_or_else(bad)?;
    let argument = word[..at].parse().map_err(no_number)?;
    let digits = &word[at + 1..];
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    let number = number.map_err(no_number)?;
    let op = match word.as_bytes()[at] {
        b'=' => TestOp::Eq,
        _ => TestOp::AnyBit,
    };
    Ok(RegisterTest::low(argument, op, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_and_every_enforcer_is_spoken_for() {
        let table = read(include_str!("../data/operations.txt")).unwrap();
        assert_eq!(table.len(), 10);
        for operation in table.values() {
            assert!(!operation.calls.is_empty(), "{}", operation.name);
            // Each hook of the operation must appear at one of its calls or ways.
            let passed: Vec<_> = operation
                .calls
                .iter()
                .flat_map(|entry| &entry.hooks)
                .chain(operation.ways.iter().flat_map(|way| &way.hooks))
                .collect();
            let own = operation.hooks.iter().filter(|hook| *hook != "sb_remount");
            for hook in own {
                assert!(passed.contains(&hook), "{}: {hook}", operation.name);
            }
        }
    }

    #[test]
    fn mistakes_in_the_table_are_named_with_their_line() {
        for (text, part) in [
            ("call mount", "before"),
            (
                "operation a\ncall muont",
                "line 2: no such system call: `muont`",
            ),
            ("operation a\ncall mount 0?1", "invalid test"),
            ("operation a\nweak nobody x", "no such enforcer"),
            ("operation a\nsmell x", "`smell` is unknown"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
