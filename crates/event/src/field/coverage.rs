//! Fields that an engine can never fill.
//!
//! The table holds only fields that have no value in any event of an engine, not fields that are occasionally
//! unknown.

use crate::EngineKind;

use super::{DescriptorFact, FieldSpec, ProcessFact, Source, Supplied};

use EngineKind::{Ebpf, Gvisor, Notify, Ptrace};

/// Fields that a row covers.
enum What {
    Source(Source),
    Process(&'static [ProcessFact]),
    /// Names; a name that ends with a dot is a prefix.
    Names(&'static [&'static str]),
}

struct Row {
    by: &'static [EngineKind],
    what: What,
    why: &'static str,
}

static ROWS: &[Row] = &[
    Row {
        by: &[Notify, Ptrace, Gvisor],
        what: What::Names(&["evt.cpu"]),
        why: "the CPU of a call is not reported",
    },
    Row {
        by: &[Notify, Ptrace, Ebpf, Gvisor],
        what: What::Names(&["evt.reltime", "evt.reltime."]),
        why: "only a capture has a first event",
    },
    Row {
        by: &[Gvisor],
        what: What::Process(&[ProcessFact::Session, ProcessFact::Leader]),
        why: "gVisor does not report terminals, groups and sessions",
    },
    Row {
        by: &[Gvisor],
        what: What::Process(&[ProcessFact::Namespaced]),
        why: "gVisor does not report IDs in namespaces",
    },
    Row {
        by: &[Gvisor],
        what: What::Process(&[ProcessFact::Resources]),
        why: "gVisor does not report threads and memory",
    },
    Row {
        by: &[Gvisor],
        what: What::Process(&[ProcessFact::Descriptors]),
        why: "gVisor reports only the descriptor of the call",
    },
    Row {
        by: &[Gvisor],
        what: What::Process(&[ProcessFact::Login]),
        why: "gVisor does not know the login user",
    },
    Row {
        by: &[Gvisor],
        what: What::Names(&["thread.cap_"]),
        why: "gVisor does not report capabilities",
    },
    Row {
        by: &[Gvisor],
        what: What::Names(&["proc.is_exe_writable"]),
        why: "gVisor does not report file permissions",
    },
    Row {
        by: &[Gvisor],
        what: What::Source(Source::Buffer),
        why: "gVisor does not report the data of reads and writes",
    },
    Row {
        by: &[Gvisor],
        what: What::Source(Source::Descriptor(DescriptorFact::LocalEnd)),
        why: "gVisor does not report the local end of a connection",
    },
    Row {
        by: &[Gvisor],
        what: What::Source(Source::Descriptor(DescriptorFact::Inode)),
        why: "gVisor does not report device and inode",
    },
];

impl What {
    fn is(&self, field: &FieldSpec) -> bool {
        match self {
            Self::Source(source) => field.source == *source,
            Self::Process(facts) => match field.source {
                Source::Process(fact) => facts.contains(&fact),
                _ => false,
            },
            Self::Names(names) => names.iter().any(|name| {
                let is_prefix = name.ends_with(['.', '_']);
                field.name == *name || (is_prefix && field.name.starts_with(name))
            }),
        }
    }
}

/// Fields whose values are in the files that a container runtime keeps.
static RUNTIME_METADATA: What = What::Names(&[
    "container.name",
    "container.image",
    "container.image.",
    "container.privileged",
    "container.mount",
    "container.mount.",
    "container.mounts",
    "container.healthcheck",
    "container.annotation",
    "container.annotations",
    "container.label",
    "container.labels",
    "k8s.",
]);

impl FieldSpec {
    /// Returns true if the value of the field is in the files of a container runtime, which only root and the user
    /// of the runtime may read. Without them the value is absent.
    pub fn is_runtime_metadata(&self) -> bool {
        RUNTIME_METADATA.is(self)
    }

    /// Returns the reason why the field has no value in any event of `engine`, or `None` if it can have one.
    pub fn never_by(&self, engine: EngineKind) -> Option<&'static str> {
        if let Supplied::No(why) = self.supplied {
            return Some(why);
        }
        let row = ROWS
            .iter()
            .find(|row| row.by.contains(&engine) && row.what.is(self));
        row.map(|row| row.why)
    }

    /// Returns the reason why the field has no value in any event at all, or in any event of `engine` if
    /// given.
    pub fn never(&self, engine: Option<EngineKind>) -> Option<&'static str> {
        match (engine, self.supplied) {
            (Some(engine), _) => self.never_by(engine),
            (None, Supplied::No(why)) => Some(why),
            (None, Supplied::Yes) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{docs, lookup};
    use super::*;

    #[test]
    fn each_row_is_about_some_field_that_others_fill() {
        for row in ROWS {
            let fields = docs().flat_map(|(_, fields)| fields);
            let concerned: Vec<_> = fields
                .filter(|field| field.supplied == Supplied::Yes && row.what.is(field))
                .collect();
            assert!(!concerned.is_empty(), "{}", row.why);
            assert!(row.by.len() < EngineKind::WITH_EVENTS.len(), "{}", row.why);
        }
    }

    #[test]
    fn what_no_engine_fills_is_never_set() {
        let field = lookup("evt.pluginname").expect("a known field");
        for engine in EngineKind::WITH_EVENTS {
            assert_eq!(field.never_by(engine), Some("no plugin makes system calls"));
            assert_eq!(EngineKind::from_name(engine.name()), Some(engine));
        }
        assert_eq!(field.never(None), Some("no plugin makes system calls"));
        let field = lookup("evt.cpu").expect("a known field");
        assert!(field.never_by(Notify).is_some() && field.never_by(Ebpf).is_none());
        assert_eq!(field.never(None), None);
        for filled in [
            "fd.name",
            "proc.name",
            "user.uid",
            "thread.tid",
            "container.id",
        ] {
            let field = lookup(filled).expect("a known field");
            for engine in EngineKind::WITH_EVENTS {
                assert_eq!(field.never_by(engine), None, "{filled}");
            }
        }
    }
}
