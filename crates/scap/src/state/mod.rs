//! Processes, descriptors, users and containers as known from the events so far.

pub(crate) mod descriptor;
pub(crate) mod hash;
pub(crate) mod process;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use event::{Comm, Container, DescriptorKind, Group, Role, User};

use crate::list::{DescriptorEntry, MachineInfo, ThreadEntry, UserEntry};
use crate::read::Lists;

use descriptor::{Descriptors, Open};
use hash::IdMap;
use process::{ProcessEntry, Thread};

/// Maximum number of threads, as in Falco.
const MAX_THREADS: usize = 131_072;
/// Maximum size of names, arguments and tables in bytes. A real machine with thousands of processes
/// needs a tenth of it.
const MAX_WEIGHT: usize = 256 << 20;
/// Maximum number of users, of groups and of containers.
const MAX_NAMES: usize = 65_536;

/// Maximum number of closed descriptors whose memory is kept for reuse.
const MAX_SPARE: usize = 64;

/// Counters of state that could not be kept, or was missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLosses {
    /// Threads, descriptors or names dropped because a limit was reached.
    pub unkept: u64,
    /// Evaluated events of processes that the capture does not describe.
    pub strangers: u64,
}

/// Index of a process in the table.
pub(crate) type ProcessId = usize;

/// All state that events refer to.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) machine: MachineInfo,
    /// Host name that wins over the recorded one.
    pub(crate) host_name: Option<String>,
    pub(crate) lost: StateLosses,
    threads: IdMap<usize>,
    thread_slots: Vec<Thread>,
    free_threads: Vec<usize>,
    processes: Vec<ProcessEntry>,
    free_processes: Vec<ProcessId>,
    /// The last thread looked up: most events are of the same thread as the previous one.
    last: Option<(i64, usize)>,
    users: HashMap<u32, Arc<User>>,
    groups: HashMap<u32, Arc<Group>>,
    containers: HashMap<String, Arc<Container>>,
    weight: usize,
    listed: bool,
    /// Memory of closed descriptors, for reuse.
    spare: Vec<Rc<Open>>,
}

impl State {
    /// Returns the slot of the thread with this id.
    #[inline]
    pub(crate) fn find(&mut self, tid: i64) -> Option<usize> {
        if let Some((last, slot)) = self.last
            && last == tid
        {
            return Some(slot);
        }
        let slot = self.threads.get(&tid).copied()?;
        self.last = Some((tid, slot));
        Some(slot)
    }

    /// Like [`State::find`], for other threads than an event's own; does not change the last one.
    pub(crate) fn peek(&self, tid: i64) -> Option<&Thread> {
        self.threads.get(&tid).map(|slot| &self.thread_slots[*slot])
    }

    #[inline]
    pub(crate) fn thread(&self, slot: usize) -> &Thread {
        &self.thread_slots[slot]
    }

    #[inline]
    pub(crate) fn process(&self, id: ProcessId) -> &ProcessEntry {
        &self.processes[id]
    }

    #[inline]
    pub(crate) fn process_mut(&mut self, id: ProcessId) -> &mut ProcessEntry {
        &mut self.processes[id]
    }

    /// Returns the process that an [`event::Process`] refers to, while it is in the table.
    pub(crate) fn held(&self, process: &event::Process) -> Option<&ProcessEntry> {
        let thread = self.peek(i64::from(process.pid.0))?;
        let held = self.process(thread.process);
        std::ptr::eq(Arc::as_ptr(&held.process), process).then_some(held)
    }

    /// Returns true if there is room for a thread, and for a process of this size.
    fn has_room(&mut self, weight: usize) -> bool {
        let fits = self.threads.len() < MAX_THREADS && self.weight + weight <= MAX_WEIGHT;
        self.lost.unkept += u64::from(!fits);
        fits
    }

    /// Adds a thread to a process.
    pub(crate) fn add_thread(&mut self, tid: i64, process: ProcessId) -> Option<usize> {
        if !self.has_room(0) {
            return None;
        }
        let thread = Thread::new(tid, process);
        let slot = match self.free_threads.pop() {
            Some(slot) => {
                self.thread_slots[slot] = thread;
                slot
            }
            None => {
                self.thread_slots.push(thread);
                self.thread_slots.len() - 1
            }
        };
        self.processes[process].threads += 1;
        if let Some(before) = self.threads.insert(tid, slot) {
            self.release(before);
        }
        self.last = None;
        Some(slot)
    }

    /// Adds a process with its first thread.
    pub(crate) fn add_process(&mut self, tid: i64, held: ProcessEntry) -> Option<usize> {
        let weight = held.weight();
        if !self.has_room(weight) {
            return None;
        }
        self.weight += weight;
        let id = match self.free_processes.pop() {
            Some(id) => {
                self.processes[id] = held;
                id
            }
            None => {
                self.processes.push(held);
                self.processes.len() - 1
            }
        };
        self.add_thread(tid, id)
    }

    /// Changes a process and updates the memory accounting. Without room for the change, the
    /// process loses its descriptors.
    pub(crate) fn change(&mut self, id: ProcessId, change: impl FnOnce(&mut ProcessEntry)) {
        let held = &mut self.processes[id];
        let before = held.weight();
        change(held);
        let after = held.weight();
        self.account(id, before, after);
    }

    /// Like [`State::change`], for descriptors, which change most often.
    fn change_descriptors<T>(
        &mut self,
        id: ProcessId,
        change: impl FnOnce(&mut Descriptors) -> T,
    ) -> T {
        let descriptors = Rc::make_mut(&mut self.processes[id].descriptors);
        let before = descriptors.weight();
        let answer = change(descriptors);
        let after = descriptors.weight();
        self.account(id, before, after);
        answer
    }

    #[inline]
    fn account(&mut self, id: ProcessId, before: usize, after: usize) {
        self.weight = (self.weight + after).saturating_sub(before);
        if self.weight > MAX_WEIGHT {
            self.shed(id);
        }
    }

    #[cold]
    fn shed(&mut self, id: ProcessId) {
        let held = &mut self.processes[id];
        let heavy = held.weight();
        held.descriptors = Rc::default();
        self.weight = (self.weight + held.weight()).saturating_sub(heavy);
        self.lost.unkept += 1;
    }

    /// Removes a thread; with the last one, also its process.
    pub(crate) fn remove(&mut self, tid: i64) {
        if let Some(slot) = self.threads.remove(&tid) {
            self.last = None;
            self.release(slot);
        }
    }

    fn release(&mut self, slot: usize) {
        let id = self.thread_slots[slot].process;
        self.thread_slots[slot] = Thread::new(-1, id);
        self.free_threads.push(slot);
        let held = &mut self.processes[id];
        held.threads -= 1;
        if held.threads == 0 {
            held.process.set_exited();
            self.weight = self.weight.saturating_sub(held.weight());
            *held = ProcessEntry::nobody();
            self.free_processes.push(id);
        }
    }

    /// Returns the thread of an event. An unknown thread becomes a process of its own.
    pub(crate) fn find_or_add(&mut self, tid: i64) -> Option<usize> {
        if let Some(slot) = self.find(tid) {
            return Some(slot);
        }
        self.add_process(tid, ProcessEntry::stranger(tid))
    }

    pub(crate) fn open(&mut self, id: ProcessId, number: i64, open: Open) {
        self.open_shared(id, number, Rc::new(open));
    }

    /// Opens a file, the most frequent change, and reuses the memory of closed descriptors.
    pub(crate) fn open_file(
        &mut self,
        id: ProcessId,
        number: i64,
        kind: DescriptorKind,
        name: &[u8],
        file: [Option<u64>; 2],
    ) {
        let mut open = self
            .spare
            .pop()
            .unwrap_or_else(|| Rc::new(Open::new(kind, b"")));
        // Spare descriptors have no other owner.
        if let Some(open) = Rc::get_mut(&mut open) {
            open.become_file(kind, name, file);
        }
        self.open_shared(id, number, open);
    }

    pub(crate) fn open_shared(&mut self, id: ProcessId, number: i64, open: Rc<Open>) {
        match self.change_descriptors(id, |all| all.insert(number, open)) {
            Ok(Some(before)) => self.spare(before),
            Ok(None) => {}
            Err(_unkept) => self.lost.unkept += 1,
        }
    }

    /// Keeps the memory of a closed descriptor for reuse.
    fn spare(&mut self, mut open: Rc<Open>) {
        if self.spare.len() < MAX_SPARE && Rc::get_mut(&mut open).is_some() {
            self.spare.push(open);
        }
    }

    pub(crate) fn close(&mut self, id: ProcessId, number: i64) {
        if self.processes[id].descriptors.get(number).is_none() {
            return;
        }
        if let Some(open) = self.change_descriptors(id, |all| all.remove(number)) {
            self.spare(open);
        }
    }

    pub(crate) fn user(&self, uid: u32) -> Option<&Arc<User>> {
        self.users.get(&uid)
    }

    pub(crate) fn group(&self, gid: u32) -> Option<&Arc<Group>> {
        self.groups.get(&gid)
    }

    pub(crate) fn add_user(&mut self, uid: u32, name: &[u8], home: &[u8], shell: &[u8]) {
        if self.users.len() >= MAX_NAMES {
            self.lost.unkept += 1;
            return;
        }
        let user = User {
            name: text(name),
            home: text(home),
            shell: text(shell),
        };
        self.users.insert(uid, Arc::new(user));
    }

    pub(crate) fn add_group(&mut self, gid: u32, name: &[u8]) {
        if self.groups.len() >= MAX_NAMES {
            self.lost.unkept += 1;
            return;
        }
        let name = text(name);
        self.groups.insert(gid, Arc::new(Group { name }));
    }

    /// Returns the container with this id.
    pub(crate) fn container(&self, id: &str) -> Option<&Arc<Container>> {
        self.containers.get(id)
    }

    pub(crate) fn add_container(&mut self, container: Container) {
        if self.containers.len() >= MAX_NAMES {
            self.lost.unkept += 1;
            return;
        }
        self.containers
            .insert(container.id.clone(), Arc::new(container));
    }

    /// Completes the lists: parents and socket roles follow from all of them together.
    #[inline]
    pub(crate) fn finish_lists(&mut self) {
        if std::mem::take(&mut self.listed) {
            self.link();
        }
    }

    #[cold]
    fn link(&mut self) {
        for id in 0..self.processes.len() {
            let parent = self.processes[id].parent;
            let parent = self.peek(parent).map(|thread| thread.process);
            let parent = parent.filter(|parent| *parent != id);
            if let Some(parent) = parent {
                let parent = Arc::clone(&self.processes[parent].process);
                self.processes[id].adopt(parent);
            }
            self.change(id, |held| give_roles(&mut held.descriptors));
        }
    }
}

/// Marks a connection as accepted if the process also listens on its local port, and as connected
/// otherwise.
fn give_roles(descriptors: &mut Rc<Descriptors>) {
    let of = |number: &i32| descriptors.get(i64::from(*number));
    let numbers = descriptors.numbers();
    let ends = |number: &i32| of(number).and_then(|open| open.socket);
    let ports: Vec<u16> = numbers
        .iter()
        .filter_map(ends)
        .filter(|ends| ends.remote.is_none() && ends.role == Role::Server)
        .filter_map(|ends| Some(ends.local?.port))
        .collect();
    let unclear: Vec<(i32, Role)> = numbers
        .iter()
        .filter_map(|number| Some((*number, ends(number)?)))
        .filter(|(_, ends)| ends.role == Role::Unknown && ends.remote.is_some())
        .map(|(number, ends)| {
            let is_server = ends.local.is_some_and(|local| ports.contains(&local.port));
            (
                number,
                if is_server {
                    Role::Server
                } else {
                    Role::Client
                },
            )
        })
        .collect();
    for (number, role) in unclear {
        let number = i64::from(number);
        let Some(open) = descriptors.get(number) else {
            continue;
        };
        let mut open = Open::clone(open);
        if let Some(ends) = &mut open.socket {
            ends.role = role;
        }
        // The descriptor replaces an existing one, so there is room.
        let _before = Rc::make_mut(descriptors).insert(number, Rc::new(open));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Lists for State {
    fn machine(&mut self, machine: MachineInfo) {
        self.machine = machine;
    }

    fn thread(&mut self, entry: &ThreadEntry<'_>) {
        self.listed = true;
        if entry.tid == entry.pid || self.peek(entry.pid).is_none() {
            self.add_process(entry.tid, ProcessEntry::of_entry(entry));
            return;
        }
        let process = self.peek(entry.pid).map(|thread| thread.process);
        if let Some(process) = process
            && let Some(slot) = self.add_thread(entry.tid, process)
        {
            let image = Arc::clone(&self.processes[process].image);
            self.thread_slots[slot].listed = Some((Comm::new(entry.comm), image));
        }
    }

    fn descriptor(&mut self, tid: i64, number: i64, inode: u64, entry: &DescriptorEntry<'_>) {
        if let Some(process) = self.peek(tid).map(|thread| thread.process) {
            let mut open = Open::of_entry(entry, inode);
            if open.kind == Some(DescriptorKind::File) && open.name.ends_with(b"/") {
                open.kind = Some(DescriptorKind::Directory);
            }
            self.open(process, number, open);
        }
    }

    fn user(&mut self, entry: &UserEntry<'_>) {
        match *entry {
            UserEntry::User {
                uid,
                name,
                home,
                shell,
                ..
            } => self.add_user(uid, name, home, shell),
            UserEntry::Group { gid, name } => self.add_group(gid, name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_thread_has_its_own_name_until_the_process_runs_another_program() {
        let mut state = State::default();
        let entry = |tid, comm: &'static [u8]| ThreadEntry {
            tid,
            pid: 7,
            comm,
            ..ThreadEntry::default()
        };
        Lists::thread(&mut state, &entry(7, b"java"));
        Lists::thread(&mut state, &entry(8, b"GC Thread"));
        let name = |state: &State, tid| {
            let thread = state.peek(tid).expect("it is listed");
            thread.name(state.process(thread.process))
        };
        // The process's name stands for the first thread.
        assert!(name(&state, 7).is_none());
        assert!(name(&state, 8) == Some(Comm::new(b"GC Thread")));
        let process = state.peek(8).expect("it is listed").process;
        let image = ProcessEntry::stranger(7).image;
        state.processes[process].image = image;
        assert!(name(&state, 8).is_none());
    }
}
