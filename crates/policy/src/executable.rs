//! What the kernel executes with a program: the interpreter of a script, the loader of an ELF file.
//!
//! A list of the only programs has to name these files, too: the kernel opens them for execution.

use std::io;

/// Number of bytes in which the kernel looks for `#!` and the kind of a file (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// Largest table of program headers that the kernel reads.
const TABLE: usize = 0x10000;
/// Longest path of a loader that the kernel takes (`PATH_MAX`).
const PATH: usize = 4096;
/// Type of the program header that names the loader.
const PT_INTERP: u64 = 3;

/// Where an ELF file of 32 or 64 bits has what leads to its loader.
struct Form {
    is_little: bool,
    /// Size of an offset.
    word: usize,
    /// Positions in the file: offset of the table, size of an entry, number of entries.
    header: [usize; 3],
    /// Positions in an entry: offset and size of what it describes.
    entry: [usize; 2],
}

/// Returns the path of the interpreter (`#!/bin/sh`) or loader (`PT_INTERP`) of a program, as it is written there. `None` for
/// a static program, and for a file that is no program. `read` gives so many bytes of the file from an offset, fewer at its end.
///
/// # Errors
///
/// What `read` answers.
pub fn interpreter(
    mut read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
) -> io::Result<Option<Vec<u8>>> {
    let head = read(0, HEAD)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        // The kernel takes the line as a string of C.
        let mut parts = line.split(|byte| matches!(byte, b'\n' | 0));
        let line = parts.next().unwrap_or(line);
        let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
        return Ok(words.find(|word| !word.is_empty()).map(<[u8]>::to_vec));
    }
    match Form::of(&head) {
        Some(form) => loader(read, &head, &form),
        None => Ok(None),
    }
}

/// The loader of an ELF file. The kernel does not execute a file whose table is wrong, so that none has no loader.
fn loader(
    mut read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>,
    head: &[u8],
    form: &Form,
) -> io::Result<Option<Vec<u8>>> {
    let [table, size, count] = form.header;
    let table = form.number(head, table, form.word);
    let size = form.number(head, size, 2);
    let count = form.number(head, count, 2);
    let (Some(table), Some(size), Some(count)) = (table, size, count) else {
        return Ok(None);
    };
    let [size, count] = [size, count].map(|number| usize::try_from(number).unwrap_or(0));
    let size = size.max(1);
    let bytes = read(table, size.saturating_mul(count).min(TABLE))?;
    let mut entries = bytes.chunks_exact(size);
    let Some(entry) = entries.find(|entry| form.number(entry, 0, 4) == Some(PT_INTERP)) else {
        return Ok(None);
    };
    let [at, length] = form.entry.map(|at| form.number(entry, at, form.word));
    let (Some(at), Some(length)) = (at, length) else {
        return Ok(None);
    };
    let length = usize::try_from(length).unwrap_or(PATH).min(PATH);
    let path = read(at, length)?;
    // `split` has a first part always; an empty one is no path.
    let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok((!path.is_empty()).then(|| path.to_vec()))
}

impl Form {
    /// The form of an ELF file by its beginning; `None` for another file.
    fn of(head: &[u8]) -> Option<Self> {
        let identity = head.strip_prefix(b"\x7fELF")?;
        let (word, header, entry) = match identity.first()? {
            1 => (4, [28, 42, 44], [4, 16]),
            2 => (8, [32, 54, 56], [8, 32]),
            _ => return None,
        };
        Some(Self {
            is_little: *identity.get(1)? == 1,
            word,
            header,
            entry,
        })
    }

    fn number(&self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let bytes = bytes.get(at..at + size)?.iter();
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match self.is_little {
            true => bytes.rev().fold(0, add),
            false => bytes.fold(0, add),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter_of(bytes: &[u8]) -> Option<String> {
        let read = |offset: u64, size: usize| {
            let begin = usize::try_from(offset).unwrap_or(usize::MAX);
            // Behind its end a file has no bytes.
            let rest = bytes.get(begin..).unwrap_or_default();
            Ok(rest[..size.min(rest.len())].to_vec())
        };
        let found = interpreter(read).expect("memory can be read");
        found.map(|path| String::from_utf8(path).expect("text"))
    }

    /// An ELF file with two program headers, the second of which names a loader.
    fn elf(class: u8, order: u8, path: &str) -> Vec<u8> {
        let form = Form::of(&[b"\x7fELF", &[class, order][..]].concat()).expect("a form");
        let [table, size, count] = form.header;
        let entry_size = form.entry[1] + form.word * 3;
        let start = 64;
        let text = start + 2 * entry_size;
        let mut bytes = vec![0; text];
        bytes[..6].copy_from_slice(&[b"\x7fELF", &[class, order][..]].concat());
        let second = start + entry_size;
        for (at, width, value) in [
            (table, form.word, start),
            (size, 2, entry_size),
            (count, 2, 2),
            (start, 4, 1),
            (second, 4, 3),
            (second + form.entry[0], form.word, text),
            (second + form.entry[1], form.word, path.len() + 1),
        ] {
            let mut number = value.to_le_bytes()[..width].to_vec();
            if order == 2 {
                number.reverse();
            }
            bytes[at..at + width].copy_from_slice(&number);
        }
        bytes.extend(path.as_bytes());
        bytes.extend(b"\0more");
        bytes
    }

    #[test]
    fn scripts_and_elf_files_name_what_is_executed_with_them() {
        assert_eq!(
            interpreter_of(b"#! \t/bin/sh -e\nx").as_deref(),
            Some("/bin/sh")
        );
        assert_eq!(
            interpreter_of(b"#!/bin/sh\0/x -e\n").as_deref(),
            Some("/bin/sh")
        );
        assert_eq!(interpreter_of(b"#! \0/bin/sh\n"), None);
        for (class, order) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let bytes = elf(class, order, "/lib/ld.so");
            assert_eq!(interpreter_of(&bytes).as_deref(), Some("/lib/ld.so"));
            // Without the end there is no name, and no panic.
            for len in 0..bytes.len() - "/lib/ld.so\0more".len() {
                assert_eq!(interpreter_of(&bytes[..len]), None, "{class} {order} {len}");
            }
        }
        for bytes in [&b""[..], b"#!", b"#!\n", b"text", &[0xff; 300]] {
            assert_eq!(interpreter_of(bytes), None);
        }
        let mut far = elf(2, 1, "/x");
        far[32..40].fill(0xff);
        assert_eq!(interpreter_of(&far), None);
    }
}
