//! Effects of events on processes: creation, names, programs and ids.

use std::sync::Arc;

use event::field::normalize;
use event::{Comm, Credentials, ExecutableFile, ExecutableFlags, Pid, Stat, Status};

use super::AppliedEvent;
use crate::bytes::unsigned;
use crate::state::State;
use crate::state::process::{Facts, ProcessEntry, directory, number};

impl AppliedEvent<'_, '_> {
    pub(super) fn change_directory(&self, state: &mut State, process: usize) {
        let held = state.process(process);
        let path = match (self.text("path"), self.number()) {
            (Some(path), _) => path.to_vec(),
            (None, Some(number)) => match held.descriptors.get(number) {
                Some(open) => open.name.clone(),
                None => return,
            },
            (None, None) => return,
        };
        let arena = bumpalo::Bump::new();
        let path = normalize(&arena, &held.cwd, &path);
        state.change(process, |held| held.cwd = directory(path));
    }

    pub(super) fn set_ids(&self, state: &mut State, process: usize) {
        let Some(mut status) = state.process(process).status else {
            return;
        };
        // -1 leaves an id unchanged.
        let id = |name: &str| {
            let id = self.int(name)?;
            u32::try_from(id & i64::from(u32::MAX))
                .ok()
                .filter(|id| *id != u32::MAX)
        };
        let pick = |names: &[&str]| names.iter().find_map(|name| id(name));
        let name = self.exit.kind.name();
        if name.ends_with("uid") {
            if let Some(uid) = pick(&["euid", "uid"]) {
                status.credentials.uid = uid;
            }
            if let Some(uid) = pick(&["ruid", "uid"]) {
                status.real_uid = uid;
            }
        } else if name.ends_with("gid") {
            if let Some(gid) = pick(&["egid", "gid"]) {
                status.credentials.gid = gid;
            }
        } else {
            let recorded = |name: &str, before: u64| {
                self.named_param(name).and_then(unsigned).unwrap_or(before)
            };
            status.cap_inheritable = recorded("cap_inheritable", status.cap_inheritable);
            status.cap_permitted = recorded("cap_permitted", status.cap_permitted);
            status.cap_effective = recorded("cap_effective", status.cap_effective);
        }
        state.process_mut(process).status = Some(status);
    }

    pub(super) fn session(&self, state: &mut State, process: usize) {
        let Some(result) = self.result else { return };
        let name = self.exit.kind.name();
        let own = i64::from(state.process(process).process.pid.0);
        let pid = self.int("pid").filter(|pid| *pid != 0).unwrap_or(own);
        let Some(target) = state.peek(pid).map(|thread| thread.process) else {
            return;
        };
        let held = state.process_mut(target);
        if name == "setsid" {
            let session = number(result);
            if let Some(stat) = &mut held.stat {
                (stat.sid, stat.pgid, stat.tty) = (session, session, 0);
            }
            if let Some(status) = &mut held.status {
                (status.vsid, status.vpgid) = (status.vpid, status.vpid);
            }
            return;
        }
        let group = self.int("pgid").filter(|pgid| *pgid != 0).unwrap_or(pid);
        if let Some(stat) = &mut held.stat {
            stat.pgid = number(group);
        }
        if let Some(status) = &mut held.status {
            status.vpgid = number(group);
        }
    }

    pub(super) fn rename(&self, state: &mut State, process: usize) {
        // Changes only the current name: `proc.name` stays the one at exec, as in Falco.
        /// `PR_SET_NAME`.
        const SET_NAME: i64 = 15;
        let held = state.process(process);
        // Threads other than the first have names of their own.
        let is_first = i64::from(held.process.pid.0) == self.tid;
        if is_first
            && self.int("option") == Some(SET_NAME)
            && let Some(name) = self.text("arg2_str")
        {
            held.process.set_last_comm(Comm::new(name));
        }
    }

    pub(super) fn clone_process(&self, state: &mut State, slot: usize) {
        /// Portable `CLONE_THREAD`.
        const THREAD: u64 = 1 << 13;
        /// The child is in another pid namespace: the parent's result is not its id.
        const IN_NAMESPACE: u64 = 1 << 29;
        let flags = self.named_param("flags").and_then(unsigned).unwrap_or(0);
        let is_thread = flags & THREAD != 0;
        let parent = state.thread(slot).process;
        if let Some(child @ 1..) = self.result
            && self.is_description
            && child != self.tid
        {
            // An earlier process with the same id.
            state.remove(child);
        }
        match self.result {
            // The child's own event, which describes it best.
            Some(0) => self.begin_child(state, is_thread),
            Some(child) if flags & IN_NAMESPACE == 0 && state.peek(child).is_none() => {
                if is_thread {
                    state.add_thread(child, parent);
                } else {
                    let held = state.process(parent).child(child, self.time_ns);
                    state.add_process(child, held);
                }
            }
            _ => {}
        }
    }

    fn begin_child(&self, state: &mut State, is_thread: bool) {
        let own = self.int_param("tid").unwrap_or(self.tid);
        let pid = self.int_param("pid").unwrap_or(own);
        let parent = self.int_param("ptid").unwrap_or(-1);
        if is_thread {
            if let Some(process) = state.peek(pid).map(|thread| thread.process)
                && (own != pid || state.peek(own).is_none())
                && state.peek(own).is_none_or(|known| known.process != process)
            {
                state.add_thread(own, process);
            }
            // A process that the capture has not described before.
            if let Some(thread) = state.peek(own)
                && state.process(thread.process).is_nameless()
            {
                let process = thread.process;
                let status = self.status(state.process(process).status);
                state.process_mut(process).status = Some(status);
            }
            return;
        }
        if self.is_description {
            // An earlier process with the same id.
            state.remove(own);
        }
        let known = state.peek(own).map(|thread| thread.process);
        let is_known = known.is_some_and(|process| !state.process(process).is_stranger);
        if !is_known {
            let held = match state.peek(parent) {
                Some(thread) => state.process(thread.process).child(own, self.time_ns),
                None => ProcessEntry::stranger(own),
            };
            state.add_process(own, held);
        }
        if let Some(process) = state.peek(own).map(|thread| thread.process) {
            self.describe(state, process, false);
            let status = self.status(state.process(process).status);
            let held = state.process_mut(process);
            held.status = Some(status);
            held.stat.get_or_insert(self.stat(None, parent));
        }
    }

    pub(super) fn exec(&self, state: &mut State, process: usize) {
        // An exec by another thread than the first ends all others and takes the first one's id.
        self.describe(state, process, true);
        let held = state.process(process);
        let (status, stat) = (self.status(held.status), self.stat(held.stat, held.parent));
        let login_uid = self.id_param("loginuid").or(held.login_uid);
        let parent = self.int_param("ptid").and_then(|parent| state.peek(parent));
        let parent = parent.filter(|thread| thread.process != process);
        let parent = parent.map(|thread| Arc::clone(&state.process(thread.process).process));
        let held = state.process_mut(process);
        held.status = Some(status);
        held.stat = Some(stat);
        held.login_uid = login_uid;
        if let Some(parent) = parent {
            held.adopt(parent);
        }
    }

    /// Sets program, arguments and directory from the event.
    fn describe(&self, state: &mut State, process: usize, is_new_program: bool) {
        let held = state.process(process);
        let before = &held.image;
        let path = if is_new_program {
            self.exe_path(held)
        } else {
            before.executable.get().cloned().flatten()
        };
        let file = if is_new_program {
            self.file()
        } else {
            before.executable_file.get().copied().flatten()
        };
        let is_writable = if is_new_program {
            self.named_param("flags")
                .and_then(unsigned)
                .map(|flags| flags & 1 != 0)
        } else {
            before.executable_writable.get().copied().flatten()
        };
        let env = match self.named_param("env") {
            Some(env) => Some(env.to_vec()),
            None => before.environment.get().cloned().flatten(),
        };
        let comm = self.text_param("comm");
        let comm = if comm.is_empty() {
            held.process.exec_name().as_bytes().to_vec()
        } else {
            comm.to_vec()
        };
        let facts = Facts {
            pid: i64::from(held.process.pid.0),
            parent: held.parent,
            comm: &comm,
            exe: self.text_param("exe"),
            exe_path: path.as_deref(),
            args: self.named_param("args").unwrap_or_default(),
            env: env.as_deref(),
            cwd: self.text_param("cwd"),
            cgroups: self.named_param("cgroups").unwrap_or_default(),
            file,
            is_writable,
        };
        let time = if is_new_program {
            self.time_ns
        } else {
            before.exec_time_ns
        };
        if !is_new_program && facts.exe.is_empty() {
            return;
        }
        state.change(process, |held| held.exec(&facts, time));
    }

    /// Returns the path of the program: the kernel's if the capture has it, else the call's
    /// argument.
    fn exe_path(&self, held: &ProcessEntry) -> Option<Vec<u8>> {
        let trusted = self.text_param("trusted_exepath");
        if !trusted.is_empty() {
            let path = trusted.strip_suffix(b" (deleted)").unwrap_or(trusted);
            return Some(path.to_vec());
        }
        let named = ["filename", "pathname"]
            .iter()
            .find_map(|name| self.text(name))?;
        let arena = bumpalo::Bump::new();
        Some(normalize(&arena, &held.cwd, named).to_vec())
    }

    fn file(&self) -> Option<ExecutableFile> {
        let flags = self.named_param("flags").and_then(unsigned)?;
        let number = |name: &str| self.named_param(name).and_then(unsigned).unwrap_or(0);
        Some(ExecutableFile {
            flags: ExecutableFlags {
                upper_layer: Some(flags & 2 != 0),
                from_memfd: flags & 4 != 0,
                lower_layer: Some(flags & 8 != 0),
            },
            inode: number("exe_ino"),
            ctime_ns: number("exe_ino_ctime"),
            mtime_ns: number("exe_ino_mtime"),
        })
    }

    fn status(&self, before: Option<Status>) -> Status {
        let capability = |name: &str, before: fn(&Status) -> u64, known: Option<Status>| {
            let recorded = self.named_param(name).and_then(unsigned);
            recorded.or(known.as_ref().map(before)).unwrap_or(0)
        };
        let id = |name: &str, before: Option<u32>| self.id_param(name).or(before);
        let own = |name: &str, before: Option<i32>| {
            let recorded = self.int_param(name).map(number);
            recorded.or(before).unwrap_or(-1)
        };
        let credentials = Credentials {
            uid: id("uid", before.map(|known| known.credentials.uid)).unwrap_or(u32::MAX),
            gid: id("gid", before.map(|known| known.credentials.gid)).unwrap_or(u32::MAX),
        };
        let group = self
            .named_param("vpgid")
            .and_then(unsigned)
            .map(|group| number(group.cast_signed()));
        Status {
            credentials,
            real_uid: before.map_or(credentials.uid, |known| known.real_uid),
            cap_inheritable: capability("cap_inheritable", |known| known.cap_inheritable, before),
            cap_permitted: capability("cap_permitted", |known| known.cap_permitted, before),
            cap_effective: capability("cap_effective", |known| known.cap_effective, before),
            cap_bounding: before.map_or(0, |known| known.cap_bounding),
            vpid: own(
                "vpid",
                before
                    .map(|known| known.vpid)
                    .or(self.int_param("pid").map(number)),
            ),
            vtid: own(
                "vtid",
                before
                    .map(|known| known.vtid)
                    .or(self.int_param("tid").map(number)),
            ),
            vpgid: group.or(before.map(|known| known.vpgid)).unwrap_or(-1),
            vsid: before.map_or(-1, |known| known.vsid),
        }
    }

    fn stat(&self, before: Option<Stat>, parent: i64) -> Stat {
        let recorded = |name: &str| self.named_param(name).and_then(unsigned);
        let group = recorded("pgid").or_else(|| recorded("vpgid"));
        let group = group.map(|group| number(group.cast_signed()));
        Stat {
            ppid: Pid(number(self.int_param("ptid").unwrap_or(parent))),
            pgid: group.or(before.map(|known| known.pgid)).unwrap_or(-1),
            sid: before.map_or(-1, |known| known.sid),
            tty: self
                .id_param("tty")
                .unwrap_or(before.map_or(0, |known| known.tty)),
            tpgid: before.map_or(-1, |known| known.tpgid),
            threads: before.map_or(1, |known| known.threads),
            vm_size_kib: recorded("vm_size").unwrap_or(0),
            vm_rss_kib: recorded("vm_rss").unwrap_or(0),
        }
    }
}
