//! What errors of the client and answers of servers mean for alerts.

use std::error::Error as _;
use std::io;

use async_nats::jetstream;
use async_nats::jetstream::context::{PublishError as StoreError, PublishErrorKind as StoreKind};
use async_nats::jetstream::publish::PublishAck;
use async_nats::{
    Client, ConnectError, ConnectErrorKind, PublishError, PublishErrorKind, ServerError,
};

use super::super::address::Address;
use super::super::letter::{Letter, State};

/// An error that a retry does not fix. A type of its own: `connect` fails with the kind
/// `PermissionDenied` when a firewall of this host rejects the packet, which may be temporary.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct FinalError(String);

pub(super) fn refused(message: String) -> io::Error {
    io::Error::other(FinalError(message))
}

/// Returns true for an error that a retry does not fix.
pub(in super::super) fn is_refusal(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<FinalError>())
}

/// A connection that was not made, encrypted or not.
pub(in super::super) fn connecting(
    error: &ConnectError,
    address: &Address,
    is_encrypted: bool,
) -> io::Error {
    let source = error.source();
    if error.kind() == ConnectErrorKind::TimedOut {
        return super::late();
    }
    if error.kind() == ConnectErrorKind::AuthorizationViolation {
        return refused("the server refuses this client: Authorization Violation".to_owned());
    }
    if let Some(ServerError::Other(text)) = source.and_then(|source| source.downcast_ref()) {
        return login(text);
    }
    let Some(cause) = source.and_then(|source| source.downcast_ref::<io::Error>()) else {
        let message = format!("cannot reach {address}: {error}");
        return match error.kind() {
            ConnectErrorKind::Tls | ConnectErrorKind::Authentication => refused(message),
            _ => io::Error::other(message),
        };
    };
    let is_tls = cause
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>());
    if is_tls || error.kind() == ConnectErrorKind::Tls {
        if !is_encrypted {
            return refused(format!("{address} wants TLS: set nats_output.tls.enabled"));
        }
        // An untrusted certificate stays untrusted.
        return refused(format!(
            "cannot encrypt the connection to {address}: {cause}"
        ));
    }
    let message = format!("cannot reach {address}: {cause}");
    io::Error::new(cause.kind(), message)
}

fn login(text: &str) -> io::Error {
    let message = format!("the server refuses this client: {text}");
    let lower = text.to_ascii_lowercase();
    if lower.contains("authorization") || lower.contains("permissions") {
        refused(message)
    } else {
        io::Error::other(message)
    }
}

/// An alert that the client does not send.
pub(super) fn unsent(letter: &Letter, client: &Client, error: &PublishError) -> io::Result<State> {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => Ok(too_large(letter, client)),
        PublishErrorKind::InvalidSubject => Ok(State::Refused(error.to_string())),
        PublishErrorKind::Send => Err(super::closed()),
    }
}

/// The same, for a stream.
pub(super) fn unstored(letter: &Letter, client: &Client, error: &StoreError) -> io::Result<State> {
    match error.kind() {
        StoreKind::MaxPayloadExceeded => Ok(too_large(letter, client)),
        _ => Err(io::Error::other(error.to_string())),
    }
}

fn too_large(letter: &Letter, client: &Client) -> State {
    let (size, max) = (letter.payload.len(), client.max_payload());
    State::Refused(format!(
        "an alert has {size} bytes, and the server takes {max}"
    ))
}

/// Returns what the answer of a stream says about its alert.
pub(in super::super) fn acknowledged(answer: Result<PublishAck, StoreError>) -> State {
    let error = match answer {
        Ok(_) => return State::Delivered,
        Err(error) => error,
    };
    match error.kind() {
        StoreKind::StreamNotFound => {
            return State::Untaken("no stream takes the subject".to_owned());
        }
        StoreKind::TimedOut | StoreKind::BrokenPipe => return State::Untaken(error.to_string()),
        _ => {}
    }
    let source = error.source();
    let Some(answered) = source.and_then(|source| source.downcast_ref::<jetstream::Error>()) else {
        return State::Refused(format!("the answer is not that of a stream: {error}"));
    };
    let why = format!("the stream answered: {answered}");
    // As in HTTP, codes from 500 on are server errors, which may be temporary.
    if answered.code() >= 500 {
        State::Untaken(why)
    } else {
        State::Refused(why)
    }
}

pub(super) fn is_publish_violation(text: &str) -> bool {
    text.starts_with("Permissions Violation for Publish")
}

/// Refuses alerts whose subject the server forbids to this client. Any other error ends the
/// connection.
pub(super) fn refuse(letters: &mut [Letter], text: &str) -> io::Result<()> {
    let message = format!("the server answered: {text}");
    if !text.starts_with("Permissions Violation") {
        return Err(io::Error::other(message));
    }
    let subject = text.split('"').nth(1).unwrap_or_default();
    if !is_publish_violation(text) {
        return Err(refused(format!(
            "{message}: nats_output needs to subscribe to `_INBOX.>`, where the server's \
             acknowledgements arrive"
        )));
    }
    let mut count = 0;
    let concerned = |letter: &&mut Letter| letter.is_open() && letter.subject == subject;
    for letter in letters.iter_mut().filter(concerned) {
        letter.state = State::Refused(message.clone());
        count += 1;
    }
    if count == 0 {
        return Err(refused(message));
    }
    Ok(())
}

/// Another error of the server, which closes the connection after it.
pub(super) fn answered(error: &ServerError) -> io::Error {
    io::Error::other(format!("the server answered: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_a_firewall_rejects_is_tried_again() {
        let address = Address::parse("nats://a.example").unwrap();
        let failed = |number| {
            let cause = io::Error::from_raw_os_error(number);
            connecting(&ConnectError::from(cause), &address, true)
        };
        for errno in [
            rustix::io::Errno::PERM,
            rustix::io::Errno::ACCESS,
            rustix::io::Errno::CONNREFUSED,
        ] {
            let error = failed(errno.raw_os_error());
            assert!(!is_refusal(&error), "{error}");
            assert!(error.to_string().starts_with("cannot reach a.example:4222"));
        }
    }

    #[test]
    fn what_a_retry_does_not_fix_is_a_refusal() {
        let address = Address::parse("nats://a.example").unwrap();
        let untrusted = io::Error::other(rustls::Error::General("untrusted".to_owned()));
        for error in [
            ConnectError::new(ConnectErrorKind::AuthorizationViolation),
            ConnectError::new(ConnectErrorKind::Authentication),
            ConnectError::from(untrusted),
        ] {
            assert!(is_refusal(&connecting(&error, &address, true)), "{error}");
        }
    }
}
