//! Alerts from the HTTP output of a detector: one in the body of each POST.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

use super::{Alert, tls};
use crate::options::AlertSource;

/// Time limit for a peer that is silent in the middle of a request.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Largest body in bytes. An alert is a line of text.
const LONGEST_BODY: usize = 16 << 20;
const LONGEST_LINE: u64 = 64 << 10;

/// Starts to listen. Each connection has a thread.
pub(super) fn listen(source: &AlertSource, to: Sender<Alert>) -> Result<(), Failure> {
    let tls = tls::server(source)?;
    let address = &source.http_server_address;
    let listener = TcpListener::bind(address).map_err(|error| {
        Failure::new(
            Exit::BadInput,
            format!("cannot listen for alerts at {address}: {error}"),
        )
        .help("choose another address with `--http-server-address`")
    })?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (to, tls) = (to.clone(), tls.clone());
            std::thread::spawn(move || {
                // A peer that speaks another protocol is not the detector.
                let _ = greet(stream, tls, &to);
            });
        }
    });
    Ok(())
}

fn greet(
    stream: TcpStream,
    tls: Option<Arc<rustls::ServerConfig>>,
    to: &Sender<Alert>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    match tls {
        None => serve(stream, to),
        Some(config) => {
            let connection = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
            serve(rustls::StreamOwned::new(connection, stream), to)
        }
    }
}

/// Answers requests until the connection ends.
fn serve<S: Read + Write>(stream: S, to: &Sender<Alert>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(head) = Head::read(&mut stream)? {
        if head.expects_continue {
            stream
                .get_mut()
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let body = head.body(&mut stream)?;
        let answer = if head.method != "POST" {
            "405 Method Not Allowed"
        } else if let Some(alert) = Alert::parse(&String::from_utf8_lossy(&body)) {
            // At the end of a run the receiver is gone.
            let _ = to.send(alert);
            "200 OK"
        } else {
            "400 Bad Request"
        };
        let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
        stream.get_mut().write_all(answer.as_bytes())?;
        stream.get_mut().flush()?;
        if head.closes {
            break;
        }
    }
    Ok(())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Head {
    method: String,
    length: usize,
    chunked: bool,
    closes: bool,
    expects_continue: bool,
}

impl Head {
    /// Reads a request. `None` at the end of the connection.
    fn read(stream: &mut impl BufRead) -> io::Result<Option<Self>> {
        let first = line(stream)?;
        if first.is_empty() {
            return Ok(None);
        }
        let mut head = Self {
            method: first.split(' ').next().unwrap_or_default().to_owned(),
            closes: first.trim_end().ends_with("HTTP/1.0"),
            ..Self::default()
        };
        loop {
            let line = line(stream)?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok(Some(head));
            };
            let value = value.trim().to_ascii_lowercase();
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = value.parse().map_err(io::Error::other)?,
                "transfer-encoding" => head.chunked = value.contains("chunked"),
                "connection" => head.closes = value == "close",
                "expect" => head.expects_continue = value == "100-continue",
                _ => {}
            }
        }
    }

    fn body(&self, stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
        if !self.chunked {
            return bytes(stream, self.length);
        }
        let mut body = Vec::new();
        loop {
            let size = line(stream)?;
            let size = size.trim().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(io::Error::other)?;
            body.extend(bytes(stream, size)?);
            line(stream)?;
            if size == 0 {
                return Ok(body);
            }
            if body.len() > LONGEST_BODY {
                return Err(io::Error::other("the body is too long"));
            }
        }
    }
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.take(LONGEST_LINE).read_line(&mut line)?;
    Ok(line)
}

fn bytes(stream: &mut impl BufRead, length: usize) -> io::Result<Vec<u8>> {
    if length > LONGEST_BODY {
        return Err(io::Error::other("the body is too long"));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A recorded connection: what the peer sent, and the answers.
    struct Recorded(io::Cursor<Vec<u8>>, Vec<u8>);

    impl Read for Recorded {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for Recorded {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.1.write(buf)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn talk(said: &str) -> (Vec<String>, String) {
        let mut stream = Recorded(io::Cursor::new(said.as_bytes().to_vec()), Vec::new());
        let (sender, alerts) = channel();
        serve(&mut stream, &sender).unwrap();
        let rules = alerts.try_iter().map(|alert| alert.rule).collect();
        (rules, String::from_utf8(stream.1).unwrap())
    }

    #[test]
    fn one_connection_carries_many_alerts() {
        let one = "POST / HTTP/1.1\r\nContent-Length: 12\r\n\r\n{\"rule\":\"A\"}";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"rul\r\n7\r\ne\":\"B\"}\r\n0\r\n\r\n";
        let (rules, answers) = talk(&format!("{one}{chunked}"));
        assert_eq!(rules, ["A", "B"]);
        assert_eq!(answers.matches("200 OK").count(), 2);
    }

    #[test]
    fn other_requests_are_refused() {
        let (rules, answers) =
            talk("GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nConnection: close\r\n\r\n");
        assert!(rules.is_empty());
        assert!(
            answers.contains("405") && answers.contains("400"),
            "{answers}"
        );
    }
}
