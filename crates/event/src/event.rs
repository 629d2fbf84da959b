//! The event type.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use bumpalo::Bump;
use serde::{Deserialize, Serialize};

use crate::{
    Absence, Comm, Container, Credentials, Descriptor, DescriptorKind, EventKind, Group, Image,
    Lookup, Process, Stat, Status, SystemInfo, Tid, User,
};

/// Completeness of an event. Each stage includes all facts of the stage before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Stage {
    /// Register arguments only.
    Registers,
    /// Adds the strings and structures that arguments point to, and the directories that relative paths start
    /// at.
    Strings,
    /// Adds the object of an open descriptor among the arguments.
    Descriptor,
    /// Adds all facts about the process, its ancestors, its user and container.
    Entry,
    /// Adds the result. No more facts follow.
    Exit,
}

/// Result of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call has not returned yet.
    Pending,
    /// Return value (negative errno on failure).
    Returned(i64),
    /// The result is unavailable.
    Unlearnt,
    /// Events of this kind have no result.
    None,
}

/// One parameter, in the order of the kind's [`crate::ParamSpec`]s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param<'a> {
    /// Known only after the call has returned.
    Pending,
    /// Unreadable in the caller's memory: any value is possible.
    Unreadable,
    /// Proven not to exist.
    Absent(Absence),
    /// Signed number: results, descriptors, pids.
    Int(i64),
    /// Unsigned number: flags, modes, sizes, enumerations.
    Uint(u64),
    /// Text or path as passed.
    Text(&'a [u8]),
    /// Several texts (argv, envp).
    Texts(&'a [&'a [u8]]),
    /// The tuple of the event's descriptor.
    Tuple,
}

/// Facts about the calling process that may change between two events. Each is read at most once per event.
#[derive(Debug, Default)]
pub struct LiveProcess {
    /// Command name at exec.
    pub comm: OnceCell<Lookup<Comm>>,
    /// Process group, session and terminal.
    pub stat: OnceCell<Lookup<Stat>>,
    /// User ids, group ids and capabilities.
    pub status: OnceCell<Lookup<Status>>,
    /// Effective user and group.
    pub credentials: OnceCell<Lookup<Credentials>>,
    /// Container.
    pub container: OnceCell<Arc<Container>>,
    /// Users that were looked up last, by id.
    pub users: UserAnswers<Lookup<Arc<User>>>,
    /// Groups that were looked up last, by id.
    pub groups: UserAnswers<Lookup<Arc<Group>>>,
    /// Lookups of the process's descriptors other than the event's own.
    pub descriptors: OpenDescriptors,
}

/// Latest lookups of the process's open descriptors, for recorders of the data that rules saw. Allocated on
/// first use, because few rules ask.
#[derive(Debug, Default)]
pub struct OpenDescriptors(RefCell<Option<Box<DescriptorAnswers>>>);

/// Lookups of open descriptors.
#[derive(Clone, Debug, Default)]
pub struct DescriptorAnswers {
    /// Numbers of the open descriptors, if asked for.
    pub numbers: Option<Lookup<Vec<i32>>>,
    /// Types of the descriptors that were asked for.
    pub types: Vec<(i32, Lookup<DescriptorKind>)>,
    /// Names of the descriptors that were asked for.
    pub names: Vec<(i32, Lookup<Vec<u8>>)>,
}

impl OpenDescriptors {
    /// Returns the lookups so far, or `None` if there were none.
    pub fn asked(&self) -> Option<DescriptorAnswers> {
        self.0.borrow().as_deref().cloned()
    }

    fn remember(&self, remember: impl FnOnce(&mut DescriptorAnswers)) {
        remember(self.0.borrow_mut().get_or_insert_default());
    }
}

/// Stores an answer, replacing an earlier one for the same number.
fn keep<T>(answers: &mut Vec<(i32, T)>, number: i32, answer: T) {
    match answers.iter_mut().find(|(known, _)| *known == number) {
        Some((_, known)) => *known = answer,
        None => answers.push((number, answer)),
    }
}

/// Latest lookups by id, for recorders of the data that rules saw. An event has at most two ids: the
/// effective user and the login user.
#[derive(Debug)]
pub struct UserAnswers<T>(RefCell<[Option<(u32, T)>; 2]>);

impl<T> Default for UserAnswers<T> {
    fn default() -> Self {
        Self(RefCell::new([None, None]))
    }
}

impl<T: Clone> UserAnswers<T> {
    /// Returns the latest lookup of this id.
    pub fn about(&self, id: u32) -> Option<T> {
        let answers = self.0.borrow();
        let known = answers.iter().flatten().find(|(known, _)| *known == id);
        known.map(|(_, answer)| answer.clone())
    }

    fn remember(&self, id: u32, answer: &T) {
        let [first, second] = &mut *self.0.borrow_mut();
        let is_free =
            |place: &Option<(u32, T)>| place.as_ref().is_none_or(|(known, _)| *known == id);
        let place = if is_free(first) { first } else { second };
        *place = Some((id, answer.clone()));
    }
}

/// One system call or internal event.
///
/// An engine may present the same event at several stages. Number, time and processor are the same at all of
/// them. Stages share `live` only as long as nothing was asked for that the call changes
/// ([`crate::EventKind::changes`]); fields never ask too early. From [`Stage::Exit`] on, `image` is the new
/// program if an exec succeeded. Flags and other enumerated parameters have the values of the architecture
/// that this program was built for.
pub struct Event<'a> {
    /// Number of the event, counted from 1 within a run (`evt.num`).
    pub number: u64,
    /// Time in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// Completeness of the event.
    pub stage: Stage,
    /// Processor that the event happened on, if known.
    pub cpu: Option<u32>,
    /// The calling thread.
    pub tid: Tid,
    /// The calling process.
    pub process: &'a Process,
    /// Program that the event belongs to: the new one for an exec that succeeded.
    pub image: Arc<Image>,
    /// Parameters in the order of the kind's specification.
    pub params: &'a [Param<'a>],
    /// Descriptor that the event concerns.
    pub descriptor: Option<Descriptor<'a>>,
    /// The result.
    pub outcome: Outcome,
    /// Source of facts that the event does not contain.
    pub world: &'a dyn SystemInfo,
    /// Facts that `world` has already answered.
    pub live: &'a LiveProcess,
    /// Arena for values that are computed during evaluation.
    pub arena: &'a Bump,
}

impl<'a> Event<'a> {
    /// Returns true if bytes that the call moved are missing ([`crate::ParamSpec::is_moved_bytes`]).
    #[must_use]
    pub fn lacks_moved_bytes(&self) -> bool {
        let specs = self.kind.spec().params;
        let mut params = specs.iter().zip(self.params);
        params.any(|(spec, param)| spec.is_moved_bytes() && matches!(param, Param::Unreadable))
    }

    /// Returns true if the call has arguments that no engine reads.
    #[must_use]
    pub fn lacks_arguments(&self) -> bool {
        let mut params = self.kind.spec().params.iter();
        params.any(|spec| spec.source == crate::ParamSource::Nowhere)
    }

    /// Returns the caller's command name at its last exec.
    pub fn comm(&self) -> &'a Lookup<Comm> {
        self.live.comm.get_or_init(|| self.world.comm(self.process))
    }

    /// Returns the caller's process group, session and terminal.
    pub fn stat(&self) -> &'a Lookup<Stat> {
        self.live.stat.get_or_init(|| self.world.stat(self.process))
    }

    /// Returns the user and group of the calling thread.
    pub fn credentials(&self) -> &'a Lookup<Credentials> {
        self.live
            .credentials
            .get_or_init(|| match self.live.status.get() {
                Some(Lookup::Found(status)) => Lookup::Found(status.credentials),
                _ => self.world.credentials(self.process, self.tid),
            })
    }

    /// Returns the ids and capabilities of the calling thread.
    pub fn status(&self) -> &'a Lookup<Status> {
        self.live
            .status
            .get_or_init(|| self.world.status(self.process, self.tid))
    }

    /// Returns a user by id, as the caller's user database lists it.
    pub fn user(&self, uid: u32) -> Lookup<Arc<User>> {
        let answer = self.world.user(self.process, uid);
        self.live.users.remember(uid, &answer);
        answer
    }

    /// Returns a group by id, as the caller's user database lists it.
    pub fn group(&self, gid: u32) -> Lookup<Arc<Group>> {
        let answer = self.world.group(self.process, gid);
        self.live.groups.remember(gid, &answer);
        answer
    }

    /// Returns the numbers of the caller's open descriptors.
    pub fn open_descriptors(&self) -> Lookup<&'a [i32]> {
        let answer = self.world.open_descriptors(self.tid, self.arena);
        let kept = answer.clone().map(<[i32]>::to_vec);
        let asked = &self.live.descriptors;
        asked.remember(|asked| asked.numbers = Some(kept));
        answer
    }

    /// Returns the kind of one of the caller's open descriptors.
    pub fn descriptor_type(&self, number: i32) -> Lookup<DescriptorKind> {
        let answer = self.world.descriptor_type(self.tid, number);
        let asked = &self.live.descriptors;
        asked.remember(|asked| keep(&mut asked.types, number, answer.clone()));
        answer
    }

    /// Returns the name of one of the caller's open descriptors.
    pub fn descriptor_name(&self, number: i32) -> Lookup<&'a [u8]> {
        let answer = self.world.descriptor_name(self.tid, number, self.arena);
        let kept = answer.clone().map(<[u8]>::to_vec);
        let asked = &self.live.descriptors;
        asked.remember(|asked| keep(&mut asked.names, number, kept));
        answer
    }

    /// Returns the caller's container.
    pub fn container(&self) -> &'a Container {
        self.live
            .container
            .get_or_init(|| self.world.container(self.process))
    }
}
