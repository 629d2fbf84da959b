//! Files behind descriptors, as far as their links tell, before the caller is known.

use bumpalo::Bump;
use event::{Descriptor, Known};
use process_info::sockets::{self, DescriptorLink};

use crate::call::Call;
use crate::decode::{SocketView, existing_descriptor, merge};
use crate::process_inspector::ProcessInspector;

/// An open file among the arguments of a call, by the link of its descriptor, before the caller is known.
#[derive(Debug)]
pub struct LinkedFile {
    number: i32,
    link: Vec<u8>,
}

impl LinkedFile {
    /// Reads the link. Returns `None` if there is nothing to look up before the call returns, if the descriptor is a
    /// socket, or if its link cannot be read.
    pub fn of(inspector: &ProcessInspector, call: &Call) -> Option<Self> {
        let number = existing_descriptor(call)?;
        match inspector.linked(call.tid, number) {
            DescriptorLink::File(link) => Some(Self { number, link }),
            DescriptorLink::Socket | DescriptorLink::Unreadable => None,
        }
    }

    /// Returns what the descriptor may be: once for each kind of file that has such a link.
    pub fn kinds<'a>(&self, descriptor: Descriptor<'a>, arena: &'a Bump) -> Vec<Descriptor<'a>> {
        let found = sockets::kinds_of_link(&self.link);
        let merged = |found| merge(descriptor, found, SocketView::default(), arena);
        found.iter().map(merged).collect()
    }

    /// Completes the descriptor from the file itself.
    pub fn resolve<'a>(
        &self,
        inspector: &ProcessInspector,
        call: &Call,
        descriptor: Descriptor<'a>,
        arena: &'a Bump,
    ) -> Descriptor<'a> {
        let found = inspector.file(call.tid, self.number, &self.link);
        merge(descriptor, &found, SocketView::default(), arena)
    }
}

/// Returns what all these have in common, which are one descriptor of several possible kinds.
pub fn of_any_kind<'a>(kinds: &[Descriptor<'a>]) -> Option<Descriptor<'a>> {
    let first = *kinds.first()?;
    let is_sure = kinds.iter().all(|other| other.kind == first.kind);
    let kind = if is_sure { first.kind } else { Known::NotYet };
    Some(Descriptor { kind, ..first })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use event::{DescriptorKind, Name, Pid, Tid};

    use super::*;

    const UNRESOLVED: Descriptor<'_> = Descriptor {
        number: Known::Yes(3),
        kind: Known::NotYet,
        name: Name::None,
        socket: None,
        device: Known::NotYet,
        inode: Known::NotYet,
    };

    fn linked(link: &[u8]) -> LinkedFile {
        let link = link.to_vec();
        LinkedFile { number: 3, link }
    }

    #[test]
    fn what_a_link_leaves_open_is_not_known() {
        let arena = Bump::new();
        let any = |link: &[u8]| of_any_kind(&linked(link).kinds(UNRESOLVED, &arena)).unwrap();
        let path = any(b"/etc/passwd");
        assert_eq!(path.kind, Known::NotYet, "it may be a folder or a pipe");
        assert_eq!(path.name, Name::Resolved(b"/etc/passwd"));
        assert_eq!((path.device, path.inode), (Known::NotYet, Known::NotYet));
        let pipe = any(b"pipe:[12]");
        assert_eq!(pipe.kind, Known::Yes(DescriptorKind::Pipe));
        assert_eq!(of_any_kind(&[]), None);
    }

    #[test]
    fn a_descriptor_that_another_thread_has_replaced_stays_what_it_was() {
        let arena = Bump::new();
        let before = of_any_kind(&linked(b"/etc/passwd").kinds(UNRESOLVED, &arena)).unwrap();
        let inspector = ProcessInspector::new().unwrap();
        let own = std::process::id().cast_signed();
        let after = |number| {
            let found = inspector.descriptor(Pid(own), Tid(own), number).unwrap();
            merge(before, &found, SocketView::default(), &arena)
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(after(file.as_raw_fd()).name, before.name);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(after(socket.as_raw_fd()), before);
    }
}
