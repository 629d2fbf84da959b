//! Flags of opens that lie in memory (`openat2`): what the kernel used of them.
//!
//! A racy caller can pass the kernel other flags than those that were read. So nothing is let go because of them, and
//! after the call they are compared with those of the file that was opened. A file does not show all of them
//! ([`decoder::open_fields`]), nor permissions and lookup rules; these are read once more, as names are of calls that show
//! nothing.

use std::sync::Arc;

use bumpalo::Bump;
use event::{Evaluator, Name, Outcome, Process, Relevance};

use super::ArgumentChange;
use super::worker::{CallEvaluator, CallView};
use decoder::counters::Counters;
use decoder::decode::{self, Decoded};
use decoder::open_fields::{self, FileFlags, OpenFields};

/// Values that the kernel used of those in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UsedFields {
    /// Those that were read, as far as that shows.
    Read,
    /// Others.
    Other(OpenFields),
    /// Those that were read, or these.
    Either(OpenFields),
    /// The file could not be read, or the memory that is compared in its place.
    Unlearnt,
}

/// Compares the values that were read before the call and after it with the file that was opened.
fn compare(before: &OpenFields, after: Option<OpenFields>, file: FileFlags) -> UsedFields {
    let after = after.map(|after| (after.fit(file), after));
    match (before.fit(file), after) {
        (true, Some((true, after))) if after != *before => UsedFields::Either(after),
        (true, Some(_)) => UsedFields::Read,
        (true, None) => UsedFields::Unlearnt,
        (false, Some((true, after))) => UsedFields::Other(after),
        (false, _) => UsedFields::Other(before.corrected(file)),
    }
}

impl<J: Evaluator> CallEvaluator<J> {
    /// Returns whether a call that rules reject as it was read may be one that they ask about, because its caller is racy
    /// and the flags lie in memory. Flags decide where a name leads, too (`O_NOFOLLOW`, `RESOLVE_IN_ROOT`).
    pub(crate) fn may_have_other_flags(
        &mut self,
        view: &CallView<'_>,
        process: &Arc<Process>,
    ) -> bool {
        let kind = view.call.kind;
        if !open_fields::are_in_memory(kind) || !self.is_compared(view.call, &view.decoded, process)
        {
            return false;
        }
        let arena = Bump::new();
        let decoded = open_fields::without_values(kind, &view.decoded, &arena);
        let decoded = decoded.named(Name::Unreadable);
        let view = CallView { decoded, ..*view };
        self.weigh_entry(&view, process) != Relevance::Reject
    }

    /// Returns the call with the flags that the kernel has used, as far as that is known, and what else it may have used.
    /// Reports a difference from what was read.
    pub(super) fn with_used_fields<'a>(
        &self,
        view: &CallView<'a>,
        process: &Arc<Process>,
    ) -> (Decoded<'a>, Option<OpenFields>) {
        let decoded = view.decoded;
        let Some(before) = OpenFields::of(view.call.kind, &decoded) else {
            return (decoded, None);
        };
        if !self.is_compared(view.call, &decoded, process) {
            return (decoded, None);
        }
        let verifier = &self.shared.verifier;
        match self.used_fields(view, &before) {
            UsedFields::Read => (decoded, None),
            UsedFields::Other(used) => {
                self.report_fields(view, process, &before, &used);
                (used.put(&decoded, view.arena), None)
            }
            UsedFields::Either(after) => {
                self.report_fields(view, process, &before, &after);
                (decoded, Some(after))
            }
            UsedFields::Unlearnt => {
                Counters::add(&self.shared.counters.verify_failed);
                verifier.caught(process);
                (decoded, None)
            }
        }
    }

    fn used_fields(&self, view: &CallView<'_>, before: &OpenFields) -> UsedFields {
        let call = view.call;
        let number = match view.outcome {
            Outcome::Returned(number) => i32::try_from(number).ok().filter(|number| *number >= 0),
            _ => None,
        };
        let Some(number) = number else {
            // Nothing was opened.
            return UsedFields::Read;
        };
        let flags = self
            .shared
            .tree
            .inspector
            .descriptor_flags(call.tid, number);
        let Some(flags) = flags else {
            // Another thread has closed it.
            return UsedFields::Unlearnt;
        };
        let file = FileFlags {
            flags,
            is_created: false,
        };
        let arena = Bump::new();
        let again = decode::decode(call, &self.again, &arena);
        compare(before, OpenFields::of(call.kind, &again), file)
    }

    fn report_fields(
        &self,
        view: &CallView<'_>,
        process: &Process,
        before: &OpenFields,
        used: &OpenFields,
    ) {
        let shared = &*self.shared;
        Counters::add(&shared.counters.arguments_changed);
        shared.verifier.caught(process);
        shared.notices.arguments_changed(&ArgumentChange {
            process,
            tid: view.call.tid,
            kind: view.call.kind,
            given: Some(before.to_string()),
            truth: used.to_string(),
        });
    }
}

#[cfg(test)]
mod tests {
    use abi::Syscall;
    use abi::constant::{O_CREAT, O_PATH, O_RDWR, O_TRUNC, O_WRONLY};
    use event::{EventKind, Param};

    use super::*;

    /// The values of a call of openat2 with these flags.
    fn fields(flags: u64) -> OpenFields {
        let kind = EventKind::of_syscall(Syscall::OPENAT2);
        let flags_at = kind.param_index("flags").expect("openat2 has it");
        let mut params = vec![Param::Uint(0); kind.spec().params.len()];
        params[flags_at] = Param::Uint(flags);
        let decoded = Decoded {
            params: &params,
            descriptor: None,
            messages: &[],
            unreadable: false,
            gone: false,
            refused: false,
            forced: false,
            is_shared: false,
        };
        OpenFields::of(kind, &decoded).expect("all of them are known")
    }

    fn file(flags: u64) -> FileFlags {
        FileFlags {
            flags,
            is_created: false,
        }
    }

    #[test]
    fn the_file_decides_which_of_two_readings_the_kernel_used() {
        let (path, write) = (O_PATH.u64(), O_WRONLY.u64());
        let making = write | O_CREAT.u64() | O_TRUNC.u64();
        for (before, after, shown, used) in [
            (path, path, path, UsedFields::Read),
            // Changed after the kernel's copy.
            (path, write, path, UsedFields::Read),
            // Changed before it, and back or not.
            (path, path, write, UsedFields::Other(fields(write))),
            (path, making, write, UsedFields::Other(fields(making))),
            // Both would have opened such a file.
            (write, making, write, UsedFields::Either(fields(making))),
            (making, write, write, UsedFields::Either(fields(write))),
            // Neither would have.
            (
                path,
                write,
                O_RDWR.u64(),
                UsedFields::Other(fields(O_RDWR.u64())),
            ),
        ] {
            let found = compare(&fields(before), Some(fields(after)), file(shown));
            assert_eq!(found, used, "{before:o} {after:o} {shown:o}");
        }
    }

    #[test]
    fn memory_that_is_gone_after_the_call_leaves_what_the_file_shows() {
        let (path, write) = (O_PATH.u64(), O_WRONLY.u64());
        assert_eq!(
            compare(&fields(path), None, file(path)),
            UsedFields::Unlearnt
        );
        let used = UsedFields::Other(fields(write));
        assert_eq!(compare(&fields(path), None, file(write)), used);
    }
}
