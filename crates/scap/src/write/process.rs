//! Describes a process by events of its creation and exec.

use std::sync::{Arc, OnceLock};

use event::{Comm, CommandLine, Containment, Event, Image, Lookup, Process, Stat, Status, Tid};

use super::block::Values;
use crate::note::ExactProcess;

/// A process's state at the moment of an event.
pub(super) struct ProcessSnapshot<'e> {
    pub(super) process: &'e Process,
    pub(super) image: Arc<Image>,
    comm: Comm,
    line: CommandLine,
    executable: Vec<u8>,
    environment: Vec<u8>,
    directory: Vec<u8>,
    /// Virtual and resident memory, which change constantly.
    sizes: (u64, u64),
    pub(super) exact: ExactProcess,
}

/// Facts about a process that change while its program runs, as they are at the moment of the event.
struct LiveFacts {
    comm: Comm,
    stat: Lookup<Stat>,
    status: Lookup<Status>,
    container: Arc<event::Container>,
    /// Thread whose working directory counts.
    tid: Tid,
}

/// Maximum recorded length of arguments, environment and directory. Together they fit the longest
/// event.
const MAX_ARGS: usize = 32 << 10;
const MAX_ENV: usize = 16 << 10;
const MAX_PATH: usize = 4096;

impl<'e> ProcessSnapshot<'e> {
    /// Creates a snapshot of the caller, as the rules have seen it.
    pub(super) fn of_caller(event: &Event<'e>) -> Self {
        let comm = match event.comm() {
            Lookup::Found(comm) => *comm,
            _ => event.process.exec_name(),
        };
        let live = LiveFacts {
            comm,
            stat: event.stat().clone(),
            status: event.status().clone(),
            container: Arc::new(event.container().clone()),
            tid: event.tid,
        };
        Self::new(event, event.process, Arc::clone(&event.image), live)
    }

    /// Creates a snapshot of an ancestor or a leader.
    pub(super) fn of_other(event: &Event<'_>, process: &'e Process, image: Arc<Image>) -> Self {
        let world = event.world;
        let tid = Tid(process.pid.0);
        let comm = match world.comm(process) {
            Lookup::Found(comm) if !process.has_exited() => comm,
            _ => process.exec_name(),
        };
        let live = LiveFacts {
            comm,
            stat: world.stat(process),
            status: world.status(process, tid),
            container: world.container(process),
            tid,
        };
        Self::new(event, process, image, live)
    }

    fn new(event: &Event<'_>, process: &'e Process, image: Arc<Image>, live: LiveFacts) -> Self {
        let LiveFacts {
            comm,
            stat,
            status,
            container,
            tid,
        } = live;
        let world = event.world;
        let line = fact(&image.command_line, || world.command_line(process, &image));
        let executable = fact(&image.executable, || world.executable(process, &image));
        let environment = fact(&image.environment, || world.environment(process, &image));
        let file = fact(&image.executable_file, || {
            world.executable_file(process, &image)
        });
        let is_writable = fact(&image.executable_writable, || {
            world.executable_writable(process, &image)
        });
        let directory = world.directory(tid, None, event.arena);
        let directory = directory.map(<[u8]>::to_vec);
        let login_uid = world.login_uid(process);
        let (users, groups) = names(event, process, &status, &login_uid);
        let sizes = match &stat {
            Lookup::Found(stat) => (stat.vm_size_kib, stat.vm_rss_kib),
            _ => (0, 0),
        };
        let exact = ExactProcess {
            start: process.start.0,
            start_ns: process.start_ns,
            stat: without_sizes(stat),
            status,
            login_uid,
            container,
            file,
            is_writable,
            has_command_line: is_known(&line),
            has_environment: is_known(&environment),
            has_executable: is_known(&executable),
            is_truncated: matches!(&line, Lookup::Found(line) if line.truncated),
            directory: is_known(&directory),
            users,
            groups,
        };
        Self {
            process,
            image,
            comm,
            line: found(line),
            executable: found(executable),
            environment: found(environment),
            directory: found(directory),
            sizes,
            exact,
        }
    }

    /// Returns a hash of everything that rules can ask for, except sizes, which change constantly.
    pub(super) fn digest(&self, json: &str) -> u64 {
        let parent = self.process.parent().map_or(0, |parent| parent.pid.0);
        super::digest(&[
            json.as_bytes(),
            self.comm.as_bytes(),
            &self.directory,
            &parent.to_le_bytes(),
        ])
    }

    pub(super) fn directory(&self) -> &[u8] {
        &self.directory[..self.directory.len().min(MAX_PATH)]
    }

    /// Returns the user and group ids, if known.
    pub(super) fn ids(&self) -> Option<[u32; 2]> {
        let credentials = self.status()?.credentials;
        Some([credentials.uid, credentials.gid])
    }

    pub(super) fn executable(&self) -> &[u8] {
        &self.executable
    }

    /// Sets the values of a clone event. `thread` is a thread other than the first.
    pub(super) fn clone_values(&self, values: &mut Values, thread: Option<i32>) {
        /// Portable `CLONE_THREAD`, `CLONE_VM`, `CLONE_FILES`, `CLONE_FS`, `CLONE_SIGHAND`.
        const THREAD: u64 = 1 << 13 | 1 << 15 | 1 | 1 << 1 | 1 << 11;
        self.common_values(values, thread.unwrap_or(self.process.pid.0));
        let status = self.status();
        let ids = status.map(|status| (status.credentials.uid, status.credentials.gid));
        let (uid, gid) = ids.unwrap_or((u32::MAX, u32::MAX));
        values.push_number(if thread.is_some() { THREAD } else { 0 }, 4);
        values.push_number(u64::from(uid), 4);
        values.push_number(u64::from(gid), 4);
        let own = (self.process.pid.0, self.process.pid.0);
        let (vtid, vpid) = status.map_or(own, |status| (status.vtid, status.vpid));
        values.push(&i64::from(vtid).to_le_bytes());
        values.push(&i64::from(vpid).to_le_bytes());
    }

    pub(super) fn exec_values(&self, values: &mut Values) {
        self.common_values(values, self.process.pid.0);
        values.push(&self.environment[..self.environment.len().min(MAX_ENV)]);
        let stat = self.stat();
        values.push_number(u64::from(stat.map_or(0, |stat| stat.tty)), 4);
        let group = self.status().map_or(-1, |status| status.vpgid);
        values.push(&i64::from(group).to_le_bytes());
        let login = match self.exact.login_uid {
            Lookup::Found(uid) => uid,
            _ => u32::MAX,
        };
        values.push_number(u64::from(login), 4);
        let mut flags = u64::from(self.exact.is_writable == Lookup::Found(true));
        if let Lookup::Found(file) = &self.exact.file {
            flags |= u64::from(file.flags.upper_layer == Some(true)) << 1;
            flags |= u64::from(file.flags.from_memfd) << 2;
            flags |= u64::from(file.flags.lower_layer == Some(true)) << 3;
        }
        values.push_number(flags, 4);
    }

    /// Sets the values that clone and exec events share, from the result to the control groups.
    fn common_values(&self, values: &mut Values, tid: i32) {
        values.clear();
        values.push(&0_i64.to_le_bytes());
        values.push_text(&self.line.exe[..self.line.exe.len().min(MAX_PATH)]);
        let mut args = Vec::new();
        for arg in &self.line.args {
            args.extend_from_slice(arg);
            args.push(0);
        }
        args.truncate(MAX_ARGS);
        values.push(&args);
        let parent = self.process.parent().map_or(0, |parent| parent.pid.0);
        for id in [tid, self.process.pid.0, parent] {
            values.push(&i64::from(id).to_le_bytes());
        }
        values.push_text(self.directory());
        // Limit of descriptors, major and minor page faults.
        values.push(&1024_i64.to_le_bytes());
        values.push_number(0, 8);
        values.push_number(0, 8);
        values.push_number(self.sizes.0, 4);
        values.push_number(self.sizes.1, 4);
        values.push_number(0, 4);
        values.push_text(self.comm.as_bytes());
        values.push(&self.cgroups());
    }

    /// Builds control groups from the container, because engines do not keep the original ones.
    fn cgroups(&self) -> Vec<u8> {
        let container = &self.exact.container;
        let id = match (&container.containment, &container.full_id) {
            (Containment::Known, Some(id)) => id,
            _ => return b"cpu=/\0".to_vec(),
        };
        let runtime = container.runtime.as_deref().unwrap_or("docker");
        let place = match runtime {
            "podman" => format!("/libpod_parent/libpod-{id}"),
            "containerd" => format!("/k8s.io/{id}"),
            "cri-o" => format!("/crio-{id}"),
            "lxc" => format!("/lxc/{id}"),
            _ => format!("/docker/{id}"),
        };
        format!("cpu={place}\0").into_bytes()
    }

    fn stat(&self) -> Option<&Stat> {
        match &self.exact.stat {
            Lookup::Found(stat) => Some(stat),
            _ => None,
        }
    }

    fn status(&self) -> Option<&Status> {
        match &self.exact.status {
            Lookup::Found(status) => Some(status),
            _ => None,
        }
    }
}

/// Removes the sizes, so that a process is not described again for every page it touches.
fn without_sizes(stat: Lookup<Stat>) -> Lookup<Stat> {
    match stat {
        Lookup::Found(stat) => Lookup::Found(Stat {
            vm_size_kib: 0,
            vm_rss_kib: 0,
            ..stat
        }),
        other => other,
    }
}

type Users = Vec<(u32, Lookup<Arc<event::User>>)>;
type Groups = Vec<(u32, Lookup<Arc<event::Group>>)>;

/// Returns the names of the effective users and the group, as the process's own root has them.
fn names(
    event: &Event<'_>,
    process: &Process,
    status: &Lookup<Status>,
    login_uid: &Lookup<u32>,
) -> (Users, Groups) {
    // For the caller, the values that rules have used count, not current ones.
    let is_caller = std::ptr::eq(process, event.process);
    let user = |uid| {
        let seen = event.live.users.about(uid).filter(|_| is_caller);
        seen.unwrap_or_else(|| event.world.user(process, uid))
    };
    let group = |gid| {
        let seen = event.live.groups.about(gid).filter(|_| is_caller);
        seen.unwrap_or_else(|| event.world.group(process, gid))
    };
    let mut uids = Vec::new();
    let mut groups = Vec::new();
    if let Lookup::Found(status) = status {
        uids.push(status.credentials.uid);
        let gid = status.credentials.gid;
        groups.push((gid, group(gid)));
    }
    if let Lookup::Found(uid) = login_uid
        && !uids.contains(uid)
    {
        uids.push(*uid);
    }
    let users = uids.into_iter().map(|uid| (uid, user(uid)));
    (users.collect(), groups)
}

/// Returns a fact of the image from its cell, or looks it up.
fn fact<T: Clone>(cell: &OnceLock<Option<T>>, ask: impl FnOnce() -> Lookup<T>) -> Lookup<T> {
    match cell.get() {
        Some(Some(fact)) => Lookup::Found(fact.clone()),
        Some(None) => Lookup::Missing,
        None => ask(),
    }
}

fn is_known<T>(fact: &Lookup<T>) -> Lookup<()> {
    match fact {
        Lookup::Found(_) => Lookup::Found(()),
        Lookup::Missing => Lookup::Missing,
        Lookup::Unknown => Lookup::Unknown,
    }
}

fn found<T: Default>(fact: Lookup<T>) -> T {
    match fact {
        Lookup::Found(fact) => fact,
        _ => T::default(),
    }
}
