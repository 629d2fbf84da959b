//! Named subjects.

use std::path::PathBuf;

use crate::plan::Subject;
use crate::{Error, command_line, quick};

/// A mechanism with a built-in wrapper.
struct KnownMechanism {
    name: &'static str,
    /// `RULES` becomes `-r FILE` for each rule file, or nothing.
    wrapper: &'static str,
    /// Command that prints the version, if the wrapper's first word does not.
    version: Option<&'static str>,
    summary: &'static str,
}

/// Prefix of a host-wide monitor, started before the workload and ended after it.
const BESIDE: &str = "{tollgate} bench beside";

#[rustfmt::skip]
const KNOWN: &[KnownMechanism] = &[
    KnownMechanism { name: "notify", wrapper: "{tollgate} run -q --engine notify RULES -s {stats} -- {}", version: None, summary: "tollgate run, seccomp user notification" },
    KnownMechanism { name: "ptrace", wrapper: "{tollgate} run -q --engine ptrace RULES -s {stats} -- {}", version: None, summary: "tollgate run, ptrace" },
    KnownMechanism { name: "ptrace-every-call", wrapper: "{tollgate} run -q --engine ptrace --every-call RULES -s {stats} -- {}", version: None, summary: "tollgate run, ptrace at every call" },
    KnownMechanism { name: "ebpf", wrapper: "BESIDE {tollgate} watch -q --engine ebpf RULES -s {stats} -P %READY \
    -- {}", version: Some("{tollgate} version"), summary: "tollgate watch of the whole host, eBPF" },
    KnownMechanism { name: "ebpf-per-call", wrapper: "BESIDE {tollgate} watch -q --engine ebpf --hooks per-call RULES -s {stats} -P %READY -- {}", version: Some("{tollgate} version"), summary: "the same by the tracepoints of single calls, which 32-bit calls pass unseen" },
    KnownMechanism { name: "notify-capture", wrapper: "{tollgate} run -q --engine notify RULES -s {stats} -o capture.enabled=true -o capture.mode=all_rules -o capture.path_prefix={stats} -- {}", version: None, summary: "notify, recording from every alert on" },
    KnownMechanism { name: "strace", wrapper: "strace -f -o /dev/null {}", version: None, summary: "strace of every call" },
    KnownMechanism { name: "strace-seccomp", wrapper: "strace -f --seccomp-bpf -e trace=openat,execve,connect -o /dev/null {}", version: None, summary: "strace of three calls, the others past it" },
    KnownMechanism { name: "bpftrace", wrapper: r#"BESIDE bpftrace -e 'BEGIN { printf("ready\n"); } tracepoint:raw_syscalls:sys_enter { @ = count(); }' -- {}"#, version: Some("bpftrace --version"), summary: "bpftrace counting all calls" },
    KnownMechanism { name: "runsc", wrapper: "runsc --network=none --ignore-cgroups do {}", version: None, summary: "gVisor's sandbox" },
];

/// Returns the subject that an option names: one of the table, or `NAME='wrapper {}'`.
pub(crate) fn subject(option: &str, rules: &[PathBuf]) -> Result<Subject, Error> {
    subject_beside(&[], option, rules)
}

/// Like [`subject`], with the names of the suite's own subjects for the error message.
pub(super) fn subject_beside(
    others: &[Subject],
    option: &str,
    rules: &[PathBuf],
) -> Result<Subject, Error> {
    if option.contains('=') {
        return quick::subject(option);
    }
    let known = KNOWN
        .iter()
        .find(|known| known.name == option)
        .ok_or_else(|| Error::Option {
            option: format!("--subject {option}"),
            reason: unknown(option, others),
        })?;
    Ok(Subject {
        name: known.name.to_owned(),
        wrapper: filled(known.wrapper, rules),
        divide_operations: None,
        version: known.version.map(str::to_owned),
    })
}

/// Returns true if the table has this name.
pub(crate) fn is_known(name: &str) -> bool {
    KNOWN.iter().any(|known| known.name == name)
}

/// Returns all subjects of `names`.
pub(crate) fn subjects(names: &[String], rules: &[PathBuf]) -> Result<Vec<Subject>, Error> {
    names.iter().map(|name| subject(name, rules)).collect()
}

fn filled(wrapper: &str, rules: &[PathBuf]) -> String {
    let options: String = rules
        .iter()
        .map(|file| {
            let file = command_line::join(&[file.to_string_lossy().into_owned()]);
            format!("-r {file} ")
        })
        .collect();
    wrapper
        .replace("RULES ", &options)
        .replace("BESIDE", BESIDE)
}

fn unknown(name: &str, others: &[Subject]) -> String {
    let others = others.iter().map(|other| other.name.as_str());
    let names = || others.clone().chain(KNOWN.iter().map(|known| known.name));
    let near = workload::nearest(name, names());
    let all = names().collect::<Vec<_>>().join(", ");
    match near {
        Some(near) => format!(
            "no such subject; did you mean `{near}`? (expected {all}, or NAME='wrapper {{}}')"
        ),
        None => format!("no such subject; expected {all}, or NAME='wrapper {{}}'"),
    }
}

/// Formats one line for each subject: name and description.
pub(crate) fn list() -> String {
    KNOWN
        .iter()
        .map(|known| format!("{:18} {}\n", known.name, known.summary))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_subjects_take_rules() {
        let notify = subject("notify", &["a b.yaml".into()]).unwrap();
        assert_eq!(
            notify.wrapper,
            "{tollgate} run -q --engine notify -r 'a b.yaml' -s {stats} -- {}"
        );
        let ebpf = subject("ebpf", &[]).unwrap();
        assert!(
            ebpf.wrapper
                .starts_with("{tollgate} bench beside {tollgate} watch -q --engine ebpf -s"),
            "{}",
            ebpf.wrapper
        );
        for known in KNOWN {
            let wrapper = subject(known.name, &[]).unwrap().wrapper;
            assert!(
                command_line::split(&wrapper)
                    .unwrap()
                    .contains(&"{}".to_owned()),
                "{wrapper}"
            );
        }
    }

    #[test]
    fn unknown_names_get_the_nearest() {
        let complaint = |name| subject(name, &[]).unwrap_err().to_string();
        assert!(complaint("notfy").contains("did you mean `notify`?"));
        assert!(
            complaint("xyzzy-no").contains("expected notify, ptrace"),
            "{}",
            complaint("xyzzy-no")
        );
        assert_eq!(subject("mine=nice {}", &[]).unwrap().wrapper, "nice {}");
        let own = [subject("tollgate=nice {}", &[]).unwrap()];
        let complaint = subject_beside(&own, "tolgate", &[]).unwrap_err();
        assert!(complaint.to_string().contains("did you mean `tollgate`?"));
    }
}
