//! One event.

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use bumpalo::Bump;
use serde::{Deserialize, Serialize};

use crate::{
    Absence, Comm, Container, Credentials, Descriptor, DescriptorKind, EventKind, Group, Image,
    Lookup, Process, Stat, Status, SystemInfo, Tid, User,
};

/// How much of an event is known. Each stage knows all that the one before knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Stage {
    /// Register arguments only.
    Registers,
    /// Also strings and structures that arguments point to, and the directories that relative
    /// paths start at.
    Strings,
    /// Also what an open descriptor among the arguments is.
    Descriptor,
    /// Also everything about the process, its ancestors, its user and container.
    Entry,
    /// Also the result: nothing more will be learnt.
    Exit,
}

/// The call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call has not returned yet.
    Pending,
    /// It returned this (negative errno on failure).
    Returned(i64),
    /// It could not be learnt.
    Unlearnt,
    /// The event is of a kind that has no result.
    None,
}

/// One parameter in the order of the kind's [`crate::ParamSpec`]s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param<'a> {
    /// Known only when the call has returned.
    Pending,
    /// The caller's memory could not be read: counts as "may be anything".
    Unreadable,
    /// Does not exist, which is proven.
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

/// Facts about the calling process that may change between two events; read at most once for one.
#[derive(Debug, Default)]
pub struct LiveProcess {
    /// Command name at exec.
    pub comm: OnceCell<Lookup<Comm>>,
    /// Group, session, terminal.
    pub stat: OnceCell<Lookup<Stat>>,
    /// Ids and capabilities.
    pub status: OnceCell<Lookup<Status>>,
    /// User and group.
    pub credentials: OnceCell<Lookup<Credentials>>,
    /// Container.
    pub container: OnceCell<Arc<Container>>,
    /// By id: what was answered last.
    pub users: UserAnswers<Lookup<Arc<User>>>,
    /// By id: what was answered last.
    pub groups: UserAnswers<Lookup<Arc<Group>>>,
    /// What was answered about descriptors of the process beside the event's own.
    pub descriptors: OpenDescriptors,
}

/// The last answers about open descriptors of the process, for those who record what rules have seen.
/// Few rules ask.
#[derive(Debug, Default)]
pub struct OpenDescriptors(RefCell<Option<Box<DescriptorAnswers>>>);

/// Answers about open descriptors.
#[derive(Clone, Debug, Default)]
pub struct DescriptorAnswers {
    /// Which are open, if somebody has asked.
    pub numbers: Option<Lookup<Vec<i32>>>,
    /// What those are that somebody has asked for.
    pub types: Vec<(i32, Lookup<DescriptorKind>)>,
    /// What those are called that somebody has asked for.
    pub names: Vec<(i32, Lookup<Vec<u8>>)>,
}

impl OpenDescriptors {
    /// What was asked, if anything was.
    pub fn asked(&self) -> Option<DescriptorAnswers> {
        self.0.borrow().as_deref().cloned()
    }

    fn remember(&self, remember: impl FnOnce(&mut DescriptorAnswers)) {
        remember(self.0.borrow_mut().get_or_insert_default());
    }
}

/// Keeps an answer in the place of an earlier one.
fn keep<T>(answers: &mut Vec<(i32, T)>, number: i32, answer: T) {
    match answers.iter_mut().find(|(known, _)| *known == number) {
        Some((_, known)) => *known = answer,
        None => answers.push((number, answer)),
    }
}

/// The last answers about ids, for those who record what rules have seen. An event has two: whom the
/// process acts as, and who has logged in.
#[derive(Debug)]
pub struct UserAnswers<T>(RefCell<[Option<(u32, T)>; 2]>);

impl<T> Default for UserAnswers<T> {
    fn default() -> Self {
        Self(RefCell::new([None, None]))
    }
}

impl<T: Clone> UserAnswers<T> {
    /// What was answered last about this id.
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

/// One system call or internal happening.
///
/// An engine may show the same event at several stages. Its number, time and processor are the
/// same at all of them, `live` is shared by them only where nothing that the call changes
/// ([`crate::EventKind::changes`]) has been asked for (fields never ask too early), and `image` is
/// the new program from [`Stage::Exit`] on if an exec succeeded. Flags and other enumerated
/// parameters have the values of the architecture that this program was built for.
pub struct Event<'a> {
    /// Counts from 1 within a run (`evt.num`).
    pub number: u64,
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// What happened.
    pub kind: EventKind,
    /// How much is known.
    pub stage: Stage,
    /// Processor it happened on, if known.
    pub cpu: Option<u32>,
    /// The calling thread.
    pub tid: Tid,
    /// The calling process.
    pub process: &'a Process,
    /// The program that the event belongs to: for an exec that succeeded, the new one.
    pub image: Arc<Image>,
    /// Parameters in the order of the kind's specification.
    pub params: &'a [Param<'a>],
    /// The descriptor it is about.
    pub descriptor: Option<Descriptor<'a>>,
    /// The result.
    pub outcome: Outcome,
    /// Answers what the event does not carry.
    pub world: &'a dyn SystemInfo,
    /// What the world has answered already.
    pub live: &'a LiveProcess,
    /// Memory for values made while the event is looked at.
    pub arena: &'a Bump,
}

impl<'a> Event<'a> {
    /// Whether bytes that the call moved are missing ([`crate::ParamSpec::is_moved_bytes`]).
    #[must_use]
    pub fn lacks_moved_bytes(&self) -> bool {
        let specs = self.kind.spec().params;
        let mut params = specs.iter().zip(self.params);
        params.any(|(spec, param)| spec.is_moved_bytes() && matches!(param, Param::Unreadable))
    }

    /// Whether the call has arguments that no engine reads.
    #[must_use]
    pub fn lacks_arguments(&self) -> bool {
        let mut params = self.kind.spec().params.iter();
        params.any(|spec| spec.source == crate::ParamSource::Nowhere)
    }

    /// Command name of the caller at its last exec.
    pub fn comm(&self) -> &'a Lookup<Comm> {
        self.live.comm.get_or_init(|| self.world.comm(self.process))
    }

    /// Group, session and terminal of the caller.
    pub fn stat(&self) -> &'a Lookup<Stat> {
        self.live.stat.get_or_init(|| self.world.stat(self.process))
    }

    /// User and group of the calling thread.
    pub fn credentials(&self) -> &'a Lookup<Credentials> {
        self.live
            .credentials
            .get_or_init(|| match self.live.status.get() {
                Some(Lookup::Found(status)) => Lookup::Found(status.credentials),
                _ => self.world.credentials(self.process, self.tid),
            })
    }

    /// Ids and capabilities of the calling thread.
    pub fn status(&self) -> &'a Lookup<Status> {
        self.live
            .status
            .get_or_init(|| self.world.status(self.process, self.tid))
    }

    /// A user by id, as the caller sees it.
    pub fn user(&self, uid: u32) -> Lookup<Arc<User>> {
        let answer = self.world.user(self.process, uid);
        self.live.users.remember(uid, &answer);
        answer
    }

    /// A group by id, as the caller sees it.
    pub fn group(&self, gid: u32) -> Lookup<Arc<Group>> {
        let answer = self.world.group(self.process, gid);
        self.live.groups.remember(gid, &answer);
        answer
    }

    /// Numbers of the caller's open descriptors.
    pub fn open_descriptors(&self) -> Lookup<&'a [i32]> {
        let answer = self.world.open_descriptors(self.tid, self.arena);
        let kept = answer.clone().map(<[i32]>::to_vec);
        let asked = &self.live.descriptors;
        asked.remember(|asked| asked.numbers = Some(kept));
        answer
    }

    /// What one of the caller's open descriptors is.
    pub fn descriptor_type(&self, number: i32) -> Lookup<DescriptorKind> {
        let answer = self.world.descriptor_type(self.tid, number);
        let asked = &self.live.descriptors;
        asked.remember(|asked| keep(&mut asked.types, number, answer.clone()));
        answer
    }

    /// What one of the caller's open descriptors is called.
    pub fn descriptor_name(&self, number: i32) -> Lookup<&'a [u8]> {
        let answer = self.world.descriptor_name(self.tid, number, self.arena);
        let kept = answer.clone().map(<[u8]>::to_vec);
        let asked = &self.live.descriptors;
        asked.remember(|asked| keep(&mut asked.names, number, kept));
        answer
    }

    /// Container of the caller.
    pub fn container(&self) -> &'a Container {
        self.live
            .container
            .get_or_init(|| self.world.container(self.process))
    }
}
