//! Records the events that an evaluator sees as blocks of a capture.
//!
//! An engine queries processes and descriptors when an event concerns them, while other programs
//! know them from earlier events. The writer therefore introduces a process by events of its
//! creation and exec, and a descriptor by the call that could have created it, before the first
//! event that needs them. These events are marked as state-only. Further facts that rules can use
//! are noted for this program alone (`crate::note`).

mod block;
mod call;
mod descriptor;
mod process;

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::sync::Arc;

use event::field::ASYNC_EVENT;
use event::{Event, EventKind, Image, Param, Pid, StartTime};

use crate::list::{MachineInfo, UserEntry};
use crate::note;
use crate::table::EventType;

use block::{Blocks, EventDraft, Values};
use call::Dialects;
use process::ProcessSnapshot;

/// Content of the beginning of every file.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// Description of the machine.
    pub machine: MachineInfo,
    /// Users: id, group, name, home directory, shell.
    pub users: Vec<(u32, u32, String, String, String)>,
    /// Groups: id, name.
    pub groups: Vec<(u32, String)>,
}

/// Maximum number of processes remembered as described. Beyond it, all are described again.
const MAX_DESCRIBED: usize = 16_384;

/// Number of the type of asynchronous events.
const ASYNC_CODE: u16 = 402;

/// Encodes events as blocks. All bytes appended by one call belong together.
pub struct Writer {
    header: Header,
    dialects: Dialects,
    described: HashMap<(Pid, StartTime), Described>,
    descriptors: HashMap<(Pid, i64), u64>,
    values: Values,
    /// Kind of the events that plugins make.
    of_plugins: Option<EventKind>,
    /// Kind of the asynchronous events that plugins add.
    asynchronous: Option<EventKind>,
}

/// What the file already contains about a process.
struct Described {
    /// Held so that its address is not reused.
    image: Arc<Image>,
    digest: u64,
    /// Process group and session at the time it was visited as an ancestor.
    session: Option<(i32, i32)>,
    /// The last introduced thread.
    tid: i32,
}

/// Place and time of an event.
#[derive(Clone, Copy)]
struct Moment {
    time_ns: u64,
    cpu: u16,
    tid: i64,
}

impl Writer {
    /// Creates a writer that has described nothing yet.
    #[must_use]
    pub fn new(header: Header) -> Self {
        Self {
            header,
            dialects: Dialects::new(),
            described: HashMap::new(),
            descriptors: HashMap::new(),
            values: Values::default(),
            of_plugins: EventKind::from_name("pluginevent").ok(),
            asynchronous: EventKind::from_name(ASYNC_EVENT).ok(),
        }
    }

    /// Begins a file. Descriptions in earlier files are forgotten.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        self.forget();
        let mut blocks = Blocks::new(out);
        blocks.section();
        blocks.machine(&self.header.machine);
        let users = self.header.users.iter();
        let users = users.map(|(uid, gid, name, home, shell)| UserEntry::User {
            uid: *uid,
            gid: *gid,
            name: name.as_bytes(),
            home: home.as_bytes(),
            shell: shell.as_bytes(),
        });
        let groups = self.header.groups.iter();
        let groups = groups.map(|(gid, name)| UserEntry::Group {
            gid: *gid,
            name: name.as_bytes(),
        });
        blocks.users(users.chain(groups));
    }

    /// Forgets all descriptions, because the last appended bytes were lost.
    pub fn forget(&mut self) {
        self.described.clear();
        self.descriptors.clear();
    }

    /// Appends an event, after everything that it depends on. Returns false, and appends nothing, if it is an event of a
    /// plugin without its bytes.
    pub fn event(&mut self, event: &Event<'_>, out: &mut Vec<u8>) -> bool {
        if [self.of_plugins, self.asynchronous].contains(&Some(event.kind)) {
            return self.plugin_event(event, out);
        }
        if self.described.len() > MAX_DESCRIBED || self.descriptors.len() > MAX_DESCRIBED {
            self.forget();
        }
        let moment = Moment {
            time_ns: event.time_ns,
            cpu: event
                .cpu
                .and_then(|cpu| u16::try_from(cpu).ok())
                .unwrap_or(0),
            tid: i64::from(event.tid.0),
        };
        self.introduce(event, moment, out);
        self.introduce_descriptor(event, moment, out);
        self.introduce_asked(event, moment, out);
        self.call(event, moment, out);
        true
    }

    /// Appends an event of a plugin, which depends on nothing. Readers take those that are longer than other events.
    fn plugin_event(&mut self, event: &Event<'_>, out: &mut Vec<u8>) -> bool {
        let (name, plugin, data) = match event.params {
            [Param::Uint(plugin), Param::Text(data)] => (None, *plugin, *data),
            [Param::Uint(plugin), Param::Text(name), Param::Text(data)] => {
                (Some(name), *plugin, *data)
            }
            _ => return false,
        };
        // They have no counterparts, so they are none that begin a call.
        let ty = match name {
            None => EventType::widely_known("pluginevent", false),
            // sysdig 0.29 does not know them, and skips them.
            Some(_) => EventType::of(ASYNC_CODE),
        };
        let Some(ty) = ty else {
            return false;
        };
        self.values.clear();
        self.values.push_number(plugin, 4);
        if let Some(name) = name {
            self.values.push_text(name);
        }
        self.values.push(data);
        Blocks::new(out).event(&EventDraft {
            ty,
            time_ns: event.time_ns,
            // No thread, as plugins have it.
            tid: -1,
            cpu: 0,
            is_state_only: false,
            values: &self.values,
        });
        true
    }

    /// Introduces the caller, its ancestors, and the leaders and targets that rules can ask for.
    fn introduce(&mut self, event: &Event<'_>, moment: Moment, out: &mut Vec<u8>) {
        let caller = ProcessSnapshot::of_caller(event);
        let mut line = Vec::new();
        let mut next = event.process.parent();
        while let Some(process) = next {
            if line.len() >= crate::state::process::MAX_DEPTH / 2 {
                break;
            }
            next = process.parent();
            line.push(process);
        }
        for other in call::others(event) {
            let is_known = line.iter().any(|process| process.pid.0 == other);
            if !is_known && let event::Lookup::Found(process) = event.world.process(Pid(other)) {
                line.insert(0, process);
            }
        }
        for process in line.iter().rev() {
            // Processes that have ended do not change.
            let known = self.described.get(&(process.pid, process.start));
            let image = process.image();
            let session = session(&event.world.stat(process));
            let is_known = known
                .is_some_and(|known| Arc::ptr_eq(&known.image, &image) && known.session == session);
            if is_known {
                continue;
            }
            let portrait = ProcessSnapshot::of_other(event, process, image);
            self.describe(&portrait, moment, out);
        }
        self.describe(&caller, moment, out);
        self.introduce_thread(event, &caller, moment, out);
    }

    fn describe(&mut self, portrait: &ProcessSnapshot<'_>, moment: Moment, out: &mut Vec<u8>) {
        let key = (portrait.process.pid, portrait.process.start);
        let json = portrait.exact.to_json();
        let digest = portrait.digest(&json);
        if let Some(known) = self.described.get(&key)
            && known.digest == digest
            && Arc::ptr_eq(&known.image, &portrait.image)
        {
            return;
        }
        let is_new = !self.described.contains_key(&key);
        let moment = Moment {
            tid: i64::from(portrait.process.pid.0),
            ..moment
        };
        if is_new {
            portrait.clone_values(&mut self.values, None);
            // sysdig learns the parent from the parent's half of the call, unless it has seen the
            // child's.
            let tid = match portrait.process.parent() {
                Some(parent) => {
                    self.values.set_first(&moment.tid.to_le_bytes());
                    i64::from(parent.pid.0)
                }
                None => moment.tid,
            };
            self.state_event("clone", false, Moment { tid, ..moment }, out);
        }
        self.values.clear();
        self.values.push_text(portrait.executable());
        self.state_event("execve", true, moment, out);
        portrait.exec_values(&mut self.values);
        self.state_event("execve", false, moment, out);
        // sysdig reads neither ids nor the directory from there.
        if let Some([uid, gid]) = portrait.ids() {
            for (call, id) in [("setuid", uid), ("setgid", gid)] {
                self.values.clear();
                self.values.push_number(u64::from(id), 4);
                self.state_event(call, true, moment, out);
                self.values.clear();
                self.values.push(&0_i64.to_le_bytes());
                self.state_event(call, false, moment, out);
            }
        }
        if portrait.directory().first() == Some(&b'/') {
            self.values.clear();
            self.values.push(&0_i64.to_le_bytes());
            self.values.push_text(portrait.directory());
            self.state_event("chdir", false, moment, out);
        }
        self.note(note::PROCESS, &json, moment, out);
        let described = Described {
            image: Arc::clone(&portrait.image),
            digest,
            session: session(&portrait.exact.stat),
            tid: portrait.process.pid.0,
        };
        self.described.insert(key, described);
    }

    /// Introduces a thread that is not the first of its process.
    fn introduce_thread(
        &mut self,
        event: &Event<'_>,
        caller: &ProcessSnapshot<'_>,
        moment: Moment,
        out: &mut Vec<u8>,
    ) {
        let key = (event.process.pid, event.process.start);
        let Some(known) = self.described.get_mut(&key) else {
            return;
        };
        if event.tid.0 == event.process.pid.0 || known.tid == event.tid.0 {
            return;
        }
        known.tid = event.tid.0;
        caller.clone_values(&mut self.values, Some(event.tid.0));
        self.state_event("clone", false, moment, out);
    }

    /// Appends a state-only event with the current values.
    fn state_event(&mut self, name: &str, is_enter: bool, moment: Moment, out: &mut Vec<u8>) {
        if let Some(ty) = EventType::widely_known(name, is_enter) {
            self.append(ty, moment, true, out);
        }
    }

    fn append(
        &mut self,
        ty: &'static EventType,
        moment: Moment,
        is_state_only: bool,
        out: &mut Vec<u8>,
    ) {
        if self.values.len() > block::MAX_EVENT {
            return;
        }
        Blocks::new(out).event(&EventDraft {
            ty,
            time_ns: moment.time_ns,
            tid: moment.tid,
            cpu: moment.cpu,
            is_state_only,
            values: &self.values,
        });
    }

    fn note(&mut self, id: &str, json: &str, moment: Moment, out: &mut Vec<u8>) {
        self.values.clear();
        self.values.push_text(id.as_bytes());
        self.values.push_text(json.as_bytes());
        self.state_event("notification", false, moment, out);
    }
}

/// Returns process group and session, which leaders are found by. `None` if they can no longer be
/// read.
fn session(stat: &event::Lookup<event::Stat>) -> Option<(i32, i32)> {
    match stat {
        event::Lookup::Found(stat) => Some((stat.pgid, stat.sid)),
        _ => None,
    }
}

fn digest(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for part in parts {
        hasher.write_usize(part.len());
        hasher.write(part);
    }
    hasher.finish()
}
