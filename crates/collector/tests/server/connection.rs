//! A connection that is kept, as agents keep theirs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One connection over HTTP/1.1.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self {
            reader: BufReader::with_capacity(1024, stream),
        }
    }

    /// Sends a request and returns status and body. `head` is the request line, with further headers after it.
    pub(crate) fn ask(&mut self, head: &str, secret: &str, body: &str) -> (u16, Vec<u8>) {
        let length = body.len();
        let head = format!(
            "{head}\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Length: {length}\r\n\r\n"
        );
        let stream = self.reader.get_mut();
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        let (mut status, mut length, mut line) = (0, 0, String::new());
        while line != "\r\n" {
            line.clear();
            assert!(self.reader.read_line(&mut line).expect("it answers") > 0);
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest[..3].parse().expect("a number");
            }
            if let Some(rest) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = rest.trim().parse().expect("a number");
            }
        }
        let mut answer = vec![0; length];
        self.reader.read_exact(&mut answer).expect("it answers");
        (status, answer)
    }
}
