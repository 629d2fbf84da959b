//! Reports to the service manager that started this process, in the protocol of `sd_notify(3)`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use diagnostics::terminal;

/// Environment variable with the address of the service manager's socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Reports that the watch has begun, so that systemd regards the unit as started.
///
/// Does nothing without a service manager that waits. A failure is a message: the watch itself works.
pub(crate) fn report_ready() {
    let Some(address) = std::env::var_os(VARIABLE) else {
        return;
    };
    if let Err(cause) = send(&address, b"READY=1") {
        terminal::complain(&format!(
            "tollgate: cannot report the start to the service manager at {}: {cause}\n\
             help: unset {VARIABLE} if no service manager started this program\n",
            address.display()
        ));
    }
}

/// Sends one message to the socket at `address`: a path, or `@` and an abstract name.
fn send(address: &OsStr, message: &[u8]) -> io::Result<()> {
    let bytes = address.as_bytes();
    let to = match bytes.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        Some((b'/', _)) => SocketAddr::from_pathname(address)?,
        _ => {
            let cause = "the address is neither an absolute path nor an abstract name";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
        }
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not hold up the watch.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Vec<u8> {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        buffer[..length].to_vec()
    }

    #[test]
    fn a_message_arrives_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), b"READY=1").unwrap();
        assert_eq!(received(&socket), b"READY=1");

        let name = format!("tollgate-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), b"READY=1").unwrap();
        assert_eq!(received(&socket), b"READY=1");
    }

    #[test]
    fn an_address_of_another_kind_is_an_error() {
        let error = send(OsStr::new("vsock:2:1234"), b"READY=1").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_manager_that_does_not_read_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let _unread = UnixDatagram::bind(&path).unwrap();
        let errors = (0..10_000).find_map(|_| send(path.as_os_str(), b"READY=1").err());
        assert_eq!(errors.unwrap().kind(), io::ErrorKind::WouldBlock);
    }
}
