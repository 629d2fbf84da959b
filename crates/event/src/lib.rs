//! Events, the processes and descriptors they concern, the field registry and the interest plan.
//!
//! An [`Event`] describes one system call (or one internal event) in the same form for every capture engine.
//! Rules do not read it directly: they ask for *fields* ([`field`]), and an event answers with a [`Value`]. A
//! value that an engine does not know yet is [`Value::Unknown`], a value that does not exist is
//! [`Value::Absent`]; this difference makes evaluation before the call's result sound.
//!
//! This crate does no I/O. Facts that need a query of the system are answered by a [`SystemInfo`], which the
//! engine supplies.

mod absence;
pub mod cgroup;
mod container;
mod descriptor;
mod engine;
mod evaluator;
mod event;
pub mod field;
pub mod glob;
mod kind;
mod open;
mod plan;
mod process;
mod suggest;
mod system_info;
#[cfg(feature = "testing")]
pub mod testing;
mod value;

pub use absence::Absence;
pub use container::{Container, Containment, Details, Mount};
pub use descriptor::{Descriptor, DescriptorKind, Endpoint, Known, Name, Role, Socket, Transport};
pub use engine::EngineKind;
pub use evaluator::{Evaluator, Relevance};
pub use event::{
    DescriptorAnswers, Event, LiveProcess, OpenDescriptors, Outcome, Param, Stage, UserAnswers,
};
pub use kind::{
    Category, Changes, DescriptorSource, EngineSupport, EventKind, EventSpec, IoDirection,
    ParamSource, ParamSpec, ParamType, PathParams, UnknownEvent,
};
pub use open::{ImpossibleOpen, OpenFlags, Opening, OpeningParams};
pub use plan::{CallPlan, Interest, Need, PathPattern, Plan, Reason, SocketFamily, StdioWatch};
pub use process::denial::{Denial, DenialId, ProcessDenier};
pub use process::{
    Comm, CommandLine, Credentials, ExecutableFile, ExecutableFlags, Image, Pid, Process,
    StartTime, Stat, Status, Tid,
};
pub use system_info::{FieldName, Group, Lookup, NoSystemInfo, PathGap, SystemInfo, User};
pub use value::{Value, ValueType};
