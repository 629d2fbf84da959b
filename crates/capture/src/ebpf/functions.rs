//! Kernel functions that carry out calls.
//!
//! No readable table maps call numbers to functions, so every candidate function is hooked: the call's name
//! as the kernel writes it, with every prefix and suffix that its architectures use. An extra hook costs
//! nothing, because the program checks the number that was called. If no function is found for a call, all
//! calls are hooked instead.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use abi::Arch;
use libbpf_rs::btf::{Btf, BtfKind, BtfType, ReferencesType, TypeId};

/// Function that can be hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// BTF id in the running kernel.
    pub(super) id: u32,
    /// BTF id of its type.
    pub(super) prototype: u32,
}

/// All functions of the running kernel whose names start like those of calls.
#[derive(Debug, Default)]
pub(super) struct Functions {
    by_name: HashMap<String, Function>,
}

/// Prefixes of the names of such functions.
const PREFIXES: [&str; 7] = [
    "__x64_sys_",
    "__x64_compat_sys_",
    "__ia32_sys_",
    "__ia32_compat_sys_",
    "__arm64_sys_",
    "__arm64_compat_sys_",
    PLAIN_PREFIX,
];
/// Prefix of the functions of calls without arguments, which have one function for all conventions. Calls
/// with arguments may have a function of such a name, too, of another type: that one is not hooked.
pub(super) const PLAIN_PREFIX: &str = "__do_sys_";
/// Example of such a function.
pub(super) const PLAIN_EXAMPLE: &str = "__do_sys_getpid";
/// The first function that a new task runs.
pub(super) const FIRST_RUN: &str = "schedule_tail";

impl Functions {
    /// Reads the kernel's BTF.
    pub(super) fn read() -> Result<Self, String> {
        let btf = Btf::from_vmlinux().map_err(|error| format!("cannot read its BTF: {error}"))?;
        let mut by_name = HashMap::new();
        let count = u32::try_from(btf.len()).unwrap_or(u32::MAX);
        for id in 1..count {
            let Some(found) = btf.type_by_id::<BtfType<'_>>(TypeId::from(id)) else {
                continue;
            };
            if found.kind() != BtfKind::Func {
                continue;
            }
            let Some(name) = found.name().and_then(|name| name.to_str()) else {
                continue;
            };
            let is_call = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if !is_call && name != FIRST_RUN {
                continue;
            }
            let Ok(function) = libbpf_rs::btf::types::Func::try_from(found) else {
                continue;
            };
            let prototype = u32::from(function.referenced_type_id());
            // Of several entries the first, as libbpf takes it: the kernel refuses hooks on one function by
            // two of its entries (EBUSY).
            let named = by_name.entry(name.to_owned());
            named.or_insert(Function { id, prototype });
        }
        Ok(Self { by_name })
    }

    /// Returns the function with this name.
    pub(super) fn named(&self, name: &str) -> Option<Function> {
        self.by_name.get(name).copied()
    }

    /// Returns the functions of some calls, by name. The error names calls that have none.
    pub(super) fn of(
        &self,
        calls: &[(Arch, &'static str)],
    ) -> Result<BTreeMap<String, Function>, Vec<String>> {
        let mut found = BTreeMap::new();
        let mut missing = Vec::new();
        for (arch, call) in calls.iter().copied() {
            let mut has_any = false;
            for name in candidates(arch, call) {
                if let Some(function) = self.named(&name) {
                    has_any = true;
                    found.insert(name, function);
                }
            }
            let plain = format!("{PLAIN_PREFIX}{call}");
            if let (Some(function), Some(example)) = (self.named(&plain), self.named(PLAIN_EXAMPLE))
                && function.prototype == example.prototype
            {
                has_any = true;
                found.insert(plain, function);
            }
            if !has_any {
                missing.push(format!("{call} ({arch:?})"));
            }
        }
        if missing.is_empty() {
            Ok(found)
        } else {
            Err(missing)
        }
    }
}

/// Returns one name of each function. The compiler merges functions that do the same, and the kernel refuses
/// a second hook at an address (EBUSY). `symbols` is `/proc/kallsyms`; without the right to see addresses all
/// names are kept.
pub(super) fn distinct(
    functions: BTreeMap<String, Function>,
    symbols: &[u8],
) -> BTreeMap<String, Function> {
    let mut seen: HashMap<&[u8], &[u8]> = HashMap::new();
    let mut others: BTreeSet<&[u8]> = BTreeSet::new();
    for line in symbols.split(|byte| *byte == b'\n') {
        let mut words = line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let (Some(address), Some(_kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let is_hidden = address.iter().all(|digit| *digit == b'0');
        let is_wanted = std::str::from_utf8(name).is_ok_and(|name| functions.contains_key(name));
        if is_hidden || !is_wanted {
            continue;
        }
        if *seen.entry(address).or_insert(name) != name {
            others.insert(name);
        }
    }
    let is_first = |name: &String| !others.contains(name.as_bytes());
    let kept = functions.into_iter().filter(|(name, _)| is_first(name));
    kept.collect()
}

/// Returns the names under which the kernel may have a call.
pub(super) fn entry_names(call: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let bare = call.trim_start_matches('_');
    let mut stems = vec![call, bare];
    for end in ["32", "64", "_time64"] {
        stems.extend(bare.strip_suffix(end));
    }
    // Functions whose names have nothing in common with the call's.
    stems.extend(match call {
        "mmap2" => Some("mmap_pgoff"),
        "_newselect" => Some("select"),
        "ugetrlimit" => Some("getrlimit"),
        "umount" => Some("oldumount"),
        "umount2" => Some("umount"),
        "olduname" | "oldolduname" => Some("uname"),
        _ => None,
    });
    for stem in stems {
        names.insert(stem.to_owned());
        for start in ["new", "old", "old_", "ia32_"] {
            names.insert(format!("{start}{stem}"));
        }
        for end in ["16", "32", "64", "_time32", "_time64"] {
            names.insert(format!("{stem}{end}"));
        }
    }
    names
}

fn candidates(arch: Arch, call: &str) -> Vec<String> {
    let prefixes = match arch {
        Arch::X86_64 => &PREFIXES[..1],
        Arch::X32 => &PREFIXES[..2],
        Arch::I386 => &PREFIXES[2..4],
        Arch::Aarch64 => &PREFIXES[4..5],
        // Calls that need no conversion have one function for both.
        Arch::Arm => &PREFIXES[4..6],
    };
    let names = entry_names(call);
    let all = prefixes
        .iter()
        .flat_map(|prefix| names.iter().map(move |name| format!("{prefix}{name}")));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_names_at_one_address_one_is_kept() {
        let function = Function {
            id: 1,
            prototype: 2,
        };
        let names = ["__x64_sys_a", "__ia32_sys_a", "__x64_sys_b"];
        let all: BTreeMap<_, _> = names.map(|name| (name.to_owned(), function)).into();
        let kept = |symbols: &str| {
            let kept = distinct(all.clone(), symbols.as_bytes());
            kept.into_keys().collect::<Vec<_>>()
        };
        let symbols = "ff10 T __x64_sys_a\nff10 t other\nff10 T __ia32_sys_a\nff20 T __x64_sys_b\n";
        assert_eq!(kept(symbols), ["__x64_sys_a", "__x64_sys_b"]);
        let hidden = "0000 T __x64_sys_a\n0000 T __ia32_sys_a\n0000 T __x64_sys_b\n";
        assert_eq!(kept(hidden).len(), 3);
    }

    #[test]
    fn names_that_differ_from_the_calls_are_found() {
        // arch/x86/entry/syscalls/syscall_{64,32}.tbl
        for (arch, call, function) in [
            (Arch::X86_64, "openat", "__x64_sys_openat"),
            (Arch::X86_64, "stat", "__x64_sys_newstat"),
            (Arch::X86_64, "uname", "__x64_sys_newuname"),
            (Arch::X86_64, "umount2", "__x64_sys_umount"),
            (Arch::X86_64, "sendfile", "__x64_sys_sendfile64"),
            (Arch::I386, "open", "__ia32_compat_sys_open"),
            (Arch::I386, "chown32", "__ia32_sys_chown"),
            (Arch::I386, "chown", "__ia32_sys_chown16"),
            (Arch::I386, "clone", "__ia32_compat_sys_ia32_clone"),
            (Arch::I386, "mmap2", "__ia32_sys_mmap_pgoff"),
            (Arch::I386, "_newselect", "__ia32_compat_sys_select"),
            (Arch::I386, "recvmmsg", "__ia32_compat_sys_recvmmsg_time32"),
            (
                Arch::I386,
                "recvmmsg_time64",
                "__ia32_compat_sys_recvmmsg_time64",
            ),
            (Arch::I386, "futex_time64", "__ia32_sys_futex"),
            (Arch::I386, "stat64", "__ia32_compat_sys_ia32_stat64"),
            (Arch::I386, "umount", "__ia32_sys_oldumount"),
            (Arch::X32, "execve", "__x64_compat_sys_execve"),
        ] {
            assert!(
                candidates(arch, call).iter().any(|name| name == function),
                "{call} {function}"
            );
        }
    }
}
