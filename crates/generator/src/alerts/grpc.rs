//! Alerts from the gRPC output of a detector.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{SystemTime, UNIX_EPOCH};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use rules::Priority;
use serde_json::Value;
use serve::Address;
use serve::grpc::{ClientFiles, Output, subscribe as connect};

use super::Alert;
use crate::options::GrpcSource;

/// Falco's default socket.
const SOCKET: &str = "unix:///run/falco/falco.sock";
const PORT: u16 = 5060;

/// Subscribes. Alerts arrive on a thread of their own.
pub(super) fn subscribe(options: &GrpcSource, to: Sender<Alert>) -> Result<(), Failure> {
    let failed = |error: &serve::ServeError| {
        Failure::from_error(Exit::BadInput, error).help(
            "start the detector first, with grpc.enabled and grpc_output.enabled; the options are \
             --grpc-unix-socket, or --grpc-hostname, --grpc-port, --grpc-ca, --grpc-cert, --grpc-key",
        )
    };
    let address = address(options).map_err(|error| failed(&error))?;
    let alerts = connect(&address, &files(options)).map_err(|error| failed(&error))?;
    std::thread::spawn(move || {
        for alert in alerts {
            match alert {
                Ok(output) => {
                    if to.send(parse(output)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    let failure = Failure::from_error(Exit::BadInput, &error);
                    terminal::complain(&failure.render());
                }
            }
        }
    });
    Ok(())
}

/// Returns a socket, unless a host or a port is named, as the event generator does.
fn address(options: &GrpcSource) -> Result<Address, serve::ServeError> {
    let socket = options.grpc_unix_socket.as_deref();
    let is_tcp = options.grpc_hostname.is_some() || options.grpc_port.is_some();
    match socket.filter(|socket| !socket.is_empty()) {
        Some(socket) => {
            let has_scheme = socket.starts_with("unix://");
            let scheme = if has_scheme { "" } else { "unix://" };
            Address::parse(&format!("{scheme}{socket}"))
        }
        None if is_tcp || socket.is_some() => {
            let host = options.grpc_hostname.as_deref().unwrap_or("localhost");
            let port = options.grpc_port.unwrap_or(PORT);
            Ok(Address::Tcp(format!("{host}:{port}")))
        }
        None => Address::parse(SOCKET),
    }
}

fn files(options: &GrpcSource) -> ClientFiles {
    let file = |named: &Option<PathBuf>, default: &str| {
        named
            .clone()
            .unwrap_or_else(|| PathBuf::from("/etc/falco/certs").join(default))
    };
    ClientFiles {
        certificate: file(&options.grpc_cert, "client.crt"),
        key: file(&options.grpc_key, "client.key"),
        authorities: file(&options.grpc_ca, "ca.crt"),
    }
}

fn parse(output: Output) -> Alert {
    let priority = usize::try_from(output.priority).ok();
    let priority = priority.and_then(|level| Priority::ALL.get(level));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    let delay_ns = output.time.map(|time| {
        let seconds = u128::try_from(time.seconds).unwrap_or(0);
        let nanos = u128::try_from(time.nanos).unwrap_or(0);
        let event = seconds * 1_000_000_000 + nanos;
        u64::try_from(now.saturating_sub(event)).unwrap_or(u64::MAX)
    });
    let fields = output.output_fields.into_iter();
    Alert {
        rule: output.rule,
        source: output.source,
        priority: priority.map_or_else(String::new, |priority| priority.name().to_owned()),
        hostname: output.hostname,
        fields: fields
            .map(|(name, text)| (name, Value::from(text)))
            .collect(),
        delay_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_the_address_as_the_event_generator_has_it() {
        let with = |socket: Option<&str>, host: Option<&str>, port| {
            let options = GrpcSource {
                grpc_unix_socket: socket.map(str::to_owned),
                grpc_hostname: host.map(str::to_owned),
                grpc_port: port,
                ..GrpcSource::default()
            };
            address(&options).expect("a good address").to_string()
        };
        assert_eq!(with(Some("/run/x"), None, None), "unix:///run/x");
        assert_eq!(
            with(Some("unix:///run/x"), Some("h"), None),
            "unix:///run/x"
        );
        assert_eq!(with(Some(""), None, None), "localhost:5060");
        assert_eq!(with(None, Some("h"), Some(7)), "h:7");
        assert_eq!(with(None, None, None), SOCKET);
    }
}
