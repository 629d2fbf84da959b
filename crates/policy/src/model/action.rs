//! Single things that a workload did, as an engine sees them one after the other.

use std::net::IpAddr;

use abi::Syscall;

use super::{Model, SOCKET_TYPE};

/// One thing that a workload did.
///
/// ```
/// use policy::Model;
/// use policy::model::WorkloadAction;
///
/// let mut model = Model::default();
/// model.note(&WorkloadAction::Read("/etc/hosts".to_owned()));
/// assert!(model.reads.contains("/etc/hosts"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadAction {
    /// A system call was made.
    Call(Syscall),
    /// An IP address was contacted.
    Contact(IpAddr, u16),
    /// A Unix socket was contacted, by its path.
    ContactLocally(String),
    /// A program was executed.
    Execute(String),
    /// A file's name, kind or link was looked at.
    Look(String),
    /// A file was created, removed or renamed.
    Make(String),
    /// A file was opened or listed.
    Read(String),
    /// A socket was created: family, type with flags, protocol.
    Socket(u64, u64, u64),
    /// A file was changed in any way.
    Write(String),
}

impl WorkloadAction {
    /// The path that the action is about; empty if it is about none.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::ContactLocally(path)
            | Self::Execute(path)
            | Self::Look(path)
            | Self::Make(path)
            | Self::Read(path)
            | Self::Write(path) => path,
            Self::Call(_) | Self::Contact(..) | Self::Socket(..) => "",
        }
    }
}

impl Model {
    /// Records one thing that the workload did.
    pub fn note(&mut self, action: &WorkloadAction) {
        match action {
            // Not by `note_call`: arguments are not known here, and the form of an object has none.
            WorkloadAction::Call(call) => drop(self.calls.insert(call.name().to_owned())),
            WorkloadAction::Contact(address, port) => self.note_peer(*address, *port),
            WorkloadAction::ContactLocally(path) => self.note_local_peer(path),
            WorkloadAction::Execute(path) => self.note_program(path),
            WorkloadAction::Look(path) => self.note_look(path),
            WorkloadAction::Make(path) => self.note_make(path),
            WorkloadAction::Read(path) => self.note_read(path),
            WorkloadAction::Socket(domain, kind, protocol) => {
                let socket = (*domain, kind & SOCKET_TYPE, *protocol);
                self.sockets.insert(socket);
            }
            WorkloadAction::Write(path) => self.note_write(path),
        }
    }

    /// Number of single things in the model.
    #[must_use]
    pub fn item_count(&self) -> usize {
        let sets = [
            &self.calls,
            &self.reads,
            &self.writes,
            &self.makes,
            &self.programs,
            &self.peers,
        ];
        sets.iter().map(|set| set.len()).sum::<usize>() + self.sockets.len()
    }

    /// Length in bytes of all texts of the model.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let sets = [
            &self.calls,
            &self.reads,
            &self.writes,
            &self.makes,
            &self.programs,
            &self.peers,
        ];
        sets.into_iter().flatten().map(String::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_become_the_model_that_their_notes_make() {
        let path = || "/srv/a".to_owned();
        let actions = [
            WorkloadAction::Call(Syscall::BIND),
            WorkloadAction::Contact("10.0.0.1".parse().unwrap(), 53),
            WorkloadAction::ContactLocally("/run/s".to_owned()),
            WorkloadAction::Execute("/bin/sh".to_owned()),
            WorkloadAction::Look("/etc/hosts".to_owned()),
            WorkloadAction::Make(path()),
            WorkloadAction::Read(path()),
            // SOCK_STREAM with SOCK_CLOEXEC.
            WorkloadAction::Socket(2, 0o2_000_001, 6),
            WorkloadAction::Write(path()),
        ];
        let mut model = Model::default();
        actions.iter().for_each(|action| model.note(action));
        assert!(model.calls.contains("bind") && model.programs.contains("/bin/sh"));
        assert_eq!(Vec::from_iter(&model.peers), ["/run/s", "10.0.0.1 53"]);
        assert_eq!(Vec::from_iter(&model.reads), ["/etc/hosts", "/srv/a"]);
        assert!(model.writes.contains("/srv/a") && model.makes.contains("/srv"));
        assert_eq!(Vec::from_iter(model.sockets.clone()), [(2, 1, 6)]);
        assert_eq!(model.item_count(), 9);
        assert_eq!(model.text_bytes(), 54);
        assert_eq!(actions[3].path(), "/bin/sh");
        assert_eq!(actions[0].path(), "");
    }
}
