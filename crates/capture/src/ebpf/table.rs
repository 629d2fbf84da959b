//! The processes of the host: identity, parentage and executed programs.
//!
//! Filled from `/proc` when the programs are attached already, so that no birth is missed in between, and
//! updated by the records of forks, execs and exits. A process is entered with the record that names it
//! first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{Image, Lookup, Pid, Process, StartTime};

use super::record::{Header, RecordKind};
use decoder::system_info::ProcessIndex;
use process_info::procfs::{Proc, start_ns};

/// Maximum number of ended processes remembered: their events may be read after their end, and their children
/// ask for them.
const ENDED_LIMIT: usize = 8192;
/// Maximum number of processes; more than the kernel's default for all pids (`kernel.pid_max`).
const PROCESS_LIMIT: usize = 131_072;
/// Maximum number of earlier programs of a process that pending events may be about.
const FORMER_LIMIT: usize = 4;

struct Node {
    process: Arc<Process>,
    /// Number of the process's present program, counted in the kernel; `None` until a record contains it.
    exec_id: Option<u64>,
    /// Programs it ran before, oldest first.
    former: Vec<(u64, Arc<Image>)>,
}

impl Node {
    /// Keeps the present image for events that are still to be read.
    fn keep_former(&mut self, exec_id: u64) {
        if self.former.len() == FORMER_LIMIT {
            self.former.remove(0);
        }
        self.former.push((exec_id, self.process.image()));
    }

    /// Notes a program whose exec record was lost, or is read later than this record.
    fn takes_unknown_program(&mut self, header: &Header) {
        if let Some(former) = self.exec_id.replace(header.exec_id) {
            self.keep_former(former);
        }
        self.process.exec(Arc::default(), header.comm);
    }
}

#[derive(Default)]
struct Inner {
    nodes: HashMap<Pid, Node>,
    /// Processes that ended, oldest first.
    ended: VecDeque<(Pid, StartTime)>,
    /// Processes whose pid has been reused, by pid and start.
    reused: HashMap<(Pid, StartTime), Arc<Process>>,
    evicted: u64,
}

/// The table. One thread writes the states of processes; any may enter a process that a call shows first.
pub(super) struct Table {
    inner: Mutex<Inner>,
    /// Processes of the agent that do not count as ancestors.
    transparent: Vec<Pid>,
}

impl Table {
    pub(super) fn new(transparent: Vec<Pid>) -> Self {
        Self {
            inner: Mutex::default(),
            transparent,
        }
    }

    /// Enters every running process, with its environment if rules ask for that: the process may have ended
    /// when they do.
    pub(super) fn seed(&self, proc: &Proc, with_environment: bool) {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return;
        };
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        for pid in pids {
            let entered = self.enter_running(proc, Pid(pid), 0);
            if with_environment
                && let Some(process) = entered
                && let Ok(environment) = proc.environment(pid)
            {
                // Another thread that was faster has read the same.
                let _ = process.image().environment.set(Some(environment));
            }
        }
    }

    /// Enters a running process, and its ancestors.
    fn enter_running(&self, proc: &Proc, pid: Pid, depth: usize) -> Option<Arc<Process>> {
        const DEEPEST: usize = 256;
        if pid.0 <= 0 || depth > DEEPEST {
            return None;
        }
        let stat = proc.stat(pid.0).ok()?;
        if self.transparent.contains(&pid) {
            return self.enter_running(proc, stat.stat.ppid, depth + 1);
        }
        if let Some(node) = self.inner().nodes.get(&pid)
            && node.process.start == stat.start
        {
            return Some(Arc::clone(&node.process));
        }
        let parent = self.enter_running(proc, stat.stat.ppid, depth + 1);
        let image = Arc::new(Image::default());
        // Read now: when a rule asks, it may run another program.
        if let Ok(line) = proc.command_line(pid.0)
            && !(line.exe.is_empty() && line.args.is_empty())
        {
            let _ = image.command_line.set(Some(line));
        }
        if let Ok(path) = decoder::system_info::executable_path(proc, pid.0) {
            let _ = image.executable.set(Some(path));
        }
        let start = stat.start;
        let process = Process::new(pid, start, start_ns(start), parent, image, stat.comm);
        process.set_name(stat.comm);
        Some(self.inner().insert(process, None))
    }

    /// Returns the process of a record, entering it if it is unknown.
    pub(super) fn of(&self, header: &Header, proc: &Proc) -> Arc<Process> {
        let start = header.start();
        {
            let mut inner = self.inner();
            if let Some(node) = inner.nodes.get_mut(&header.pid)
                && node.process.start == start
            {
                // The exec id of the earlier program, if this reports a new one.
                let before = u64::from(header.kind == RecordKind::Exec);
                let known = node
                    .exec_id
                    .get_or_insert(header.exec_id.wrapping_sub(before));
                if before == 0 && header.exec_id > *known {
                    node.takes_unknown_program(header);
                }
                return Arc::clone(&node.process);
            }
            if let Some(process) = inner.reused.get(&(header.pid, start)) {
                return Arc::clone(process);
            }
        }
        self.born(header, proc)
    }

    /// Enters a process that runs its parent's program. A process without a known parent has an empty image:
    /// data that a rule asks for is then looked up in `/proc`, and is unknown if the process has ended.
    fn born(&self, header: &Header, proc: &Proc) -> Arc<Process> {
        let parent = self.parent(header, proc);
        let image = parent.as_ref().map(|parent| parent.image());
        self.enter(header, parent, image.unwrap_or_default())
    }

    fn enter(
        &self,
        header: &Header,
        parent: Option<Arc<Process>>,
        image: Arc<Image>,
    ) -> Arc<Process> {
        let start = header.start();
        let process = Process::new(
            header.pid,
            start,
            start_ns(start),
            parent,
            image,
            header.comm,
        );
        // Fails if the image is the parent's, which has a name.
        process.set_name(header.comm);
        self.inner().insert(process, Some(header.exec_id))
    }

    fn parent(&self, header: &Header, proc: &Proc) -> Option<Arc<Process>> {
        if header.ppid.0 <= 0 {
            return None;
        }
        let key = (header.ppid, header.parent_start());
        if self.transparent.contains(&header.ppid) {
            return self.enter_running(proc, header.ppid, 0);
        }
        {
            let inner = self.inner();
            if let Some(node) = inner.nodes.get(&header.ppid)
                && node.process.start == key.1
            {
                return Some(Arc::clone(&node.process));
            }
            if let Some(process) = inner.reused.get(&key) {
                return Some(Arc::clone(process));
            }
        }
        let running = self.enter_running(proc, header.ppid, 0);
        running.filter(|process| process.start == key.1)
    }

    /// Notes that a process runs another program from now on.
    pub(super) fn executed(&self, process: &Arc<Process>, header: &Header, image: Arc<Image>) {
        let mut inner = self.inner();
        if let Some(node) = inner.nodes.get_mut(&process.pid)
            && Arc::ptr_eq(&node.process, process)
            && let Some(former) = node.exec_id.replace(header.exec_id)
            && former != header.exec_id
        {
            node.keep_former(former);
        }
        drop(inner);
        process.exec(image, header.comm);
    }

    /// Returns the program that a process ran at the time of a record.
    pub(super) fn image(&self, process: &Process, header: &Header) -> Arc<Image> {
        let inner = self.inner();
        let former = inner.nodes.get(&process.pid).and_then(|node| {
            let is_it = |(id, _): &&(u64, Arc<Image>)| *id == header.exec_id;
            let is_present = node.exec_id == Some(header.exec_id);
            let former = node.former.iter().find(is_it).filter(|_| !is_present);
            former.map(|(_, image)| Arc::clone(image))
        });
        former.unwrap_or_else(|| process.image())
    }

    /// Notes that a process has ended.
    pub(super) fn ended(&self, process: &Process) {
        process.set_exited();
        self.inner().remember_for_a_while(process);
    }

    /// Returns the number of processes remembered.
    pub(super) fn len(&self) -> usize {
        self.inner().nodes.len()
    }

    /// Returns the number of processes dropped before their end.
    pub(super) fn evicted(&self) -> u64 {
        self.inner().evicted
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn insert(&mut self, process: Process, exec_id: Option<u64>) -> Arc<Process> {
        if let Some(node) = self.nodes.get(&process.pid)
            && node.process.start == process.start
        {
            return Arc::clone(&node.process);
        }
        if self.nodes.len() >= PROCESS_LIMIT
            && let Some(pid) = self.nodes.keys().next().copied()
        {
            if let Some(node) = self.nodes.remove(&pid) {
                node.process.set_parent(None);
            }
            self.evicted += 1;
        }
        let process = Arc::new(process);
        let node = Node {
            process: Arc::clone(&process),
            exec_id,
            former: Vec::new(),
        };
        if let Some(earlier) = self.nodes.insert(process.pid, node) {
            // Its end and events of it may be unread still; or the record of its end was lost, and no other
            // will come.
            let earlier = earlier.process;
            self.remember_for_a_while(&earlier);
            self.reused.insert((earlier.pid, earlier.start), earlier);
        }
        process
    }

    /// Keeps a process that has ended until enough others have ended, too.
    fn remember_for_a_while(&mut self, process: &Process) {
        self.ended.push_back((process.pid, process.start));
        while self.ended.len() > ENDED_LIMIT {
            if let Some((pid, start)) = self.ended.pop_front() {
                self.forget(pid, start);
            }
        }
    }

    /// Drops a process. Its children still refer to it, and it no longer refers to its parent: else a chain
    /// of processes that each make the next one and end would be remembered as a whole.
    fn forget(&mut self, pid: Pid, start: StartTime) {
        if let Some(process) = self.reused.remove(&(pid, start)) {
            process.set_parent(None);
        }
        if self
            .nodes
            .get(&pid)
            .is_some_and(|node| node.process.start == start)
        {
            let node = self.nodes.remove(&pid);
            node.inspect(|node| node.process.set_parent(None));
        }
    }
}

impl Drop for Inner {
    /// Drops parents in a loop: dropping a long chain would recurse.
    fn drop(&mut self) {
        let nodes = self.nodes.values().map(|node| &node.process);
        nodes
            .chain(self.reused.values())
            .for_each(|process| process.set_parent(None));
    }
}

impl ProcessIndex for Table {
    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        let inner = self.inner();
        let node = inner.nodes.get(&pid);
        node.map_or(Lookup::Missing, |node| {
            Lookup::Found(Arc::clone(&node.process))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ebpf::record::tests::record;

    fn header(kind: u8, pid: i32, start: u64, exec_id: u64) -> Header {
        let bytes = record(kind, pid, start, exec_id);
        Header::parse(&bytes).expect("a record").0
    }

    /// A pid that no process of the host has.
    const PID: i32 = 4_194_400;

    #[test]
    fn a_pid_used_again_is_another_process_and_the_first_is_still_known() {
        let (table, proc) = (Table::new(Vec::new()), Proc::open().unwrap());
        let first = table.of(&header(3, PID, 10, 0), &proc);
        let second = table.of(&header(3, PID, 20, 0), &proc);
        assert_ne!(first.start, second.start);
        let late = table.of(&header(1, PID, 10, 0), &proc);
        assert!(Arc::ptr_eq(&first, &late), "an event that was read late");
        assert!(Arc::ptr_eq(
            &second,
            &table.of(&header(1, PID, 20, 0), &proc)
        ));
    }

    #[test]
    fn events_from_before_an_exec_have_the_program_of_then() {
        let (table, proc) = (Table::new(Vec::new()), Proc::open().unwrap());
        let process = table.of(&header(3, PID, 10, 1), &proc);
        let before = process.image();
        let after = Arc::new(Image::default());
        table.executed(&process, &header(2, PID, 10, 2), Arc::clone(&after));
        assert!(Arc::ptr_eq(
            &table.image(&process, &header(1, PID, 10, 1)),
            &before
        ));
        assert!(Arc::ptr_eq(
            &table.image(&process, &header(1, PID, 10, 2)),
            &after
        ));
    }

    /// The other ring is read first where programs start.
    #[test]
    fn so_have_those_of_a_process_that_ran_when_the_watch_began() {
        let (table, proc) = (Table::new(Vec::new()), Proc::open().unwrap());
        let running = Pid(std::process::id().cast_signed());
        let entered = table
            .enter_running(&proc, running, 0)
            .expect("it runs this test");
        let start = entered.start.0;
        let exec = header(2, running.0, start, 8);
        let process = table.of(&exec, &proc);
        assert!(Arc::ptr_eq(&process, &entered));
        let before = process.image();
        let after = Arc::new(Image::default());
        table.executed(&process, &exec, Arc::clone(&after));
        let call = |exec_id| table.image(&process, &header(1, running.0, start, exec_id));
        assert!(Arc::ptr_eq(&call(7), &before));
        assert!(Arc::ptr_eq(&call(8), &after));
    }

    #[test]
    fn processes_whose_end_was_lost_are_forgotten_when_their_pids_are_used_again() {
        let (table, proc) = (Table::new(Vec::new()), Proc::open().unwrap());
        for number in 0..100_000_u64 {
            let pid = PID + i32::try_from(number % 1000).unwrap();
            table.of(&header(3, pid, number, 0), &proc);
        }
        assert_eq!(table.len(), 1000);
        let inner = table.inner();
        assert!(inner.reused.len() <= ENDED_LIMIT, "{}", inner.reused.len());
        assert!(inner.ended.len() <= ENDED_LIMIT, "{}", inner.ended.len());
    }

    #[test]
    fn a_million_processes_leave_nothing_behind() {
        let (table, proc) = (Table::new(Vec::new()), Proc::open().unwrap());
        for number in 0..1_000_000_u64 {
            let pid = PID + i32::try_from(number % 30_000).unwrap();
            let header = header(3, pid, number, 0);
            let process = table.of(&header, &proc);
            table.ended(&process);
        }
        assert!(table.len() <= ENDED_LIMIT, "{}", table.len());
        let inner = table.inner();
        assert!(inner.reused.len() <= ENDED_LIMIT, "{}", inner.reused.len());
        assert_eq!(inner.evicted, 0);
    }
}
