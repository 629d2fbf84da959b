//! Writes a capture of a machine that does ordinary things, for measuring how fast it is read.
//!
//! `cargo run --release -p scap --example mixture -- EVENTS FILE [exit-only] [new-names]`
//!
//! 200 processes open, look at, read and close files, wait, connect and now and then start a program,
//! as a build or a web server does: no rule of the usual sets matches. With `exit-only` calls have an
//! end and no beginning, as Falco records them since libs 0.21. Programs open some 700 files again and
//! again; with `new-names` each is opened once.

use std::fs::File;
use std::io::{BufWriter, Write};

/// Processes that take turns.
const PROCESSES: u64 = 200;
/// Calls that a process makes before the next one's turn.
const TURN: u64 = 16;
/// Of so many calls one is an exec.
const EXEC_EVERY: u64 = 500;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, events, path, rest @ ..] = &arguments[..] else {
        eprintln!("usage: mixture EVENTS FILE [exit-only] [new-names]");
        std::process::exit(2);
    };
    let events: u64 = events.parse().expect("a number of events");
    let file = File::create(path).expect("a file that can be written");
    let mut capture = Capture {
        out: BufWriter::with_capacity(1 << 20, file),
        time: 1_700_000_000_000_000_000,
        count: 0,
        has_enters: !rest.iter().any(|word| word == "exit-only"),
        has_new_names: rest.iter().any(|word| word == "new-names"),
        tid: 0,
    };
    capture.header();
    let mut call = 0;
    while capture.count < events {
        capture.tid = 1000 + call / TURN % PROCESSES;
        capture.call(call);
        call += 1;
    }
    capture.out.flush().expect("room for the file");
}

struct Capture<W> {
    out: W,
    time: u64,
    count: u64,
    has_enters: bool,
    has_new_names: bool,
    tid: u64,
}

impl<W: Write> Capture<W> {
    fn block(&mut self, ty: u32, mut body: Vec<u8>) {
        while !body.len().is_multiple_of(4) {
            body.push(0);
        }
        let len = u32::try_from(body.len() + 12).expect("a small block");
        let parts = [
            &ty.to_le_bytes()[..],
            &len.to_le_bytes(),
            &body,
            &len.to_le_bytes(),
        ];
        for part in parts {
            self.out.write_all(part).expect("room for the file");
        }
    }

    fn header(&mut self) {
        let mut section = 0x1a2b_3c4d_u32.to_le_bytes().to_vec();
        section.extend([1, 0, 2, 0]);
        section.extend([0xff; 8]);
        self.block(0x0a0d_0d0a, section);
        let mut machine = 2_u32.to_le_bytes().to_vec();
        machine.extend([0; 16]);
        machine.extend(b"machine");
        machine.resize(20 + 128 + 32, 0);
        self.block(0x201, machine);
        let threads = (0..PROCESSES).flat_map(|at| thread(1000 + at)).collect();
        self.block(0x215, threads);
    }

    /// Writes one half of a call.
    fn event(&mut self, code: u16, params: &[&[u8]]) {
        self.time += 700;
        self.count += 1;
        let lens: usize = params.iter().map(|param| param.len() + 2).sum();
        let mut body = vec![0, 0];
        body.extend(self.time.to_le_bytes());
        body.extend(self.tid.to_le_bytes());
        body.extend(
            u32::try_from(26 + lens)
                .expect("a small event")
                .to_le_bytes(),
        );
        body.extend(code.to_le_bytes());
        body.extend(
            u32::try_from(params.len())
                .expect("few parameters")
                .to_le_bytes(),
        );
        for param in params {
            let len = u16::try_from(param.len()).expect("a short parameter");
            body.extend(len.to_le_bytes());
        }
        params.iter().for_each(|param| body.extend(*param));
        self.block(0x216, body);
    }

    fn pair(&mut self, code: u16, enter: &[&[u8]], exit: &[&[u8]]) {
        if self.has_enters {
            self.event(code, enter);
            self.event(code + 1, exit);
        } else {
            // Since then the end has what the beginning had, behind its own.
            let all = [exit, enter].concat();
            self.event(code + 1, &all);
        }
    }

    fn call(&mut self, call: u64) {
        let (ok, fd) = (
            0_i64.to_le_bytes(),
            (3 + i64::try_from(call % 3).unwrap_or(0)).to_le_bytes(),
        );
        let size = 4096_u32.to_le_bytes();
        let moved = 512_i64.to_le_bytes();
        let file = if self.has_new_names { call } else { call % 101 };
        let name = format!(
            "/usr/lib/x86_64-linux-gnu/part{}/library-{file}.so.1\0",
            call % 7
        );
        if call.is_multiple_of(EXEC_EVERY) {
            return self.exec();
        }
        match call % 10 {
            0 | 5 => {
                let (cwd, flags, mode) = ((-100_i64).to_le_bytes(), 4097_u32.to_le_bytes(), [0; 4]);
                let enter: [&[u8]; 4] = [&cwd, name.as_bytes(), &flags, &mode];
                let exit: [&[u8]; 6] = [&fd, &cwd, name.as_bytes(), &flags, &mode, &[0; 4]];
                if self.has_enters {
                    self.event(306, &enter);
                }
                self.event(307, &exit);
            }
            1 | 2 | 6 => self.pair(6, &[&fd, &size], &[&moved, &[b'x'; 80]]),
            3 | 7 => self.pair(4, &[&fd], &[&ok]),
            4 => self.pair(70, &[&fd], &[&ok]),
            8 => self.pair(
                64,
                &[&1_u64.to_le_bytes(), &[128, 0], &2_u64.to_le_bytes()],
                &[&ok],
            ),
            _ => self.pair(8, &[&fd, &size], &[&moved, &[b'y'; 80]]),
        }
    }

    fn exec(&mut self) {
        let tid = self.tid.to_le_bytes();
        if self.has_enters {
            self.event(292, &[b"/usr/bin/make\0"]);
        }
        let (number, wide) = ([0; 4], [0; 8]);
        self.event(
            293,
            &[
                &wide,
                b"make\0",
                b"-j\x002\0",
                &tid,
                &tid,
                &1_i64.to_le_bytes(),
                b"/home/user\0",
                &1024_u64.to_le_bytes(),
                &wide,
                &wide,
                &number,
                &number,
                &number,
                b"make\0",
                b"cpu=/user.slice\0",
                b"HOME=/home/user\0PATH=/usr/bin\0",
                &number,
                &tid,
                &1000_u32.to_le_bytes(),
                &number,
            ],
        );
    }
}

/// An entry of the process list.
fn thread(tid: u64) -> Vec<u8> {
    let mut entry = Vec::new();
    for id in [tid, tid, 1, 1000, tid] {
        entry.extend(id.to_le_bytes());
    }
    for text in ["make", "make", "/usr/bin/make", "-j\x002\0", "/home/user"] {
        entry.extend(
            u16::try_from(text.len())
                .expect("a short text")
                .to_le_bytes(),
        );
        entry.extend(text.as_bytes());
    }
    entry.extend(1024_u64.to_le_bytes());
    for number in [0, 1000, 1000, 5000, 900, 0_u32] {
        entry.extend(number.to_le_bytes());
    }
    entry.extend([0; 16 + 2]);
    entry.extend(tid.to_le_bytes());
    entry.extend(tid.to_le_bytes());
    entry.extend([0; 4]);
    let len = u32::try_from(entry.len() + 4).expect("a small entry");
    [&len.to_le_bytes()[..], &entry].concat()
}
