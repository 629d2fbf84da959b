//! What a policy can deny besides files, sockets and capabilities: `data/operations.txt`.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use abi::{Capabilities, Errno, RegisterTest, Syscall, TestOp};

use crate::policy::Enforcer;
use crate::restriction::read_capabilities;

/// One operation and how each enforcer denies it.
#[derive(Debug, Default, PartialEq)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// Calls that do it.
    pub calls: Vec<OperationCall>,
    /// Rules of AppArmor, without qualifiers.
    pub apparmor: Vec<String>,
    /// What it needs.
    pub capabilities: Capabilities,
    /// Hooks of BPF LSM; after `:` the object that is meant.
    pub hooks: Vec<String>,
    /// Ways to do it without a call that a filter could refuse.
    pub ways: Vec<IndirectWay>,
    /// Ways past an enforcer.
    pub weak: BTreeMap<Enforcer, Vec<String>>,
    /// Why an enforcer cannot.
    pub none: BTreeMap<Enforcer, String>,
}

/// A way to do an operation that is no call of its own.
#[derive(Debug, PartialEq)]
pub struct IndirectWay {
    /// What it is.
    pub text: String,
    /// Hooks at which it can be denied.
    pub hooks: Vec<String>,
}

/// What of an operation an enforcer denies at the hooks where it decides.
#[derive(Debug, Default, PartialEq)]
pub struct Coverage {
    /// Calls that are denied.
    pub calls: Vec<Syscall>,
    /// What is not, in words.
    pub gaps: Vec<String>,
}

/// A call that does an operation.
#[derive(Debug, PartialEq)]
pub struct OperationCall {
    /// Which.
    pub call: Syscall,
    /// It does if all of these hold.
    pub tests: Vec<RegisterTest>,
    /// Set if the call is refused with this error only to make callers use another one.
    pub diverted: Option<Errno>,
    /// Hooks of security modules of which any can deny it.
    pub hooks: Vec<String>,
    /// Whether it does the operation; others are refused by a filter to keep callers from going round it.
    pub is_way: bool,
}

static TABLE: LazyLock<BTreeMap<String, Operation>> = LazyLock::new(|| {
    read(include_str!("../data/operations.txt")).expect("a unit test reads the same file")
});

impl Operation {
    /// The operation of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TABLE.get(name)
    }

    /// What is denied by an enforcer that decides at these hooks.
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

    /// What gets past an enforcer besides, by the table.
    pub fn weak(&self, enforcer: Enforcer) -> impl Iterator<Item = String> {
        self.weak.get(&enforcer).into_iter().flatten().cloned()
    }

    /// All, by name.
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

/// `ENFORCER TEXT`
pub(crate) fn read_note(value: &str) -> Result<(Enforcer, String), String> {
    let (id, text) = value
        .split_once(' ')
        .ok_or("expected an enforcer and a text")?;
    let enforcer = Enforcer::from_id(id).ok_or_else(|| format!("`{id}` is no enforcer"))?;
    Ok((enforcer, text.to_owned()))
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
    let call = Syscall::from_name(name).ok_or_else(|| format!("`{name}` is no call"))?;
    let (hooks, tests): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('@'));
    Ok(OperationCall {
        call,
        tests: tests.into_iter().map(read_test).collect::<Result<_, _>>()?,
        diverted: errno,
        hooks: hooks.into_iter().flat_map(read_hooks).collect(),
        is_way: true,
    })
}

/// `@HOOK,HOOK`
fn read_hooks(word: &str) -> Vec<String> {
    let names = word.trim_start_matches('@').split(',');
    names.map(str::to_owned).collect()
}

/// `@HOOK,HOOK TEXT`
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

/// `ARGUMENT=NUMBER` or `ARGUMENT&BITS`. The flags and numbers of these calls are 32 bits wide.
fn read_test(word: &str) -> Result<RegisterTest, String> {
    let bad = || format!("`{word}` is no test");
    let no_number = |error: std::num::ParseIntError| format!("`{word}` is no test: {error}");
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
            // What is decided at a hook is said to pass it.
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
            ("operation a\ncall muont", "line 2: `muont` is no call"),
            ("operation a\ncall mount 0?1", "no test"),
            ("operation a\nweak nobody x", "no enforcer"),
            ("operation a\nsmell x", "`smell` is unknown"),
        ] {
            let problem = read(text).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        }
    }
}
