//! A program of a few hundred bytes of code, dynamically linked to the C library as C programs are.
//!
//! What fork and exec cost depends on the size of the program that makes them. UnixBench's are small C
//! programs; this one has their shape (a page of code within 32 KiB of file, the loader, the C
//! library, 8 KiB of zeroed memory), so that the cost is not that of this large program and no
//! compiler is needed where it runs.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;

/// What it does as often as its first argument says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Executes itself anew.
    Execl,
    /// Forks a child that ends at once, and waits for it.
    Spawn,
}

/// Its argument for `times`: the code counts the eight digits down to zero.
pub(super) fn count(times: u64) -> String {
    // Batches are far smaller.
    format!("{:08}", times.min(99_999_999))
}

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const LIBRARY: &[u8] = b"\0libc.so.6\0";

const HEADERS: u64 = 6;
const LOADER_AT: u64 = 64 + HEADERS * 56;
const STRINGS_AT: u64 = LOADER_AT + 32;
const SYMBOLS_AT: u64 = STRINGS_AT + 16;
const HASH_AT: u64 = SYMBOLS_AT + 24;
const CODE_AT: u64 = 0x240;
/// The size of the part that is mapped without write access.
const TEXT: u64 = 0x8000;
/// Where the writable part lies: one page behind the text, as linkers do.
const DATA_AT: u64 = TEXT + 0x1000;
const ZEROED: u64 = 8 * 1024;

/// Writes the program.
pub(super) fn write(path: &Path, part: Part) -> Result<(), Error> {
    if !Path::new(LOADER).exists() {
        return Err(Error::File {
            action: "find the C library's loader, which this test is about:",
            path: LOADER.into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
    }
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(path)
        .and_then(|mut file| file.write_all(&image(part)))
        .map_err(Error::file("write", path))
}

fn image(part: Part) -> Vec<u8> {
    let dynamic = dynamic();
    let mut image = vec![0; usize_of(TEXT)];
    put(&mut image, 0, &file_header());
    put(&mut image, 64, &program_headers(dynamic.len() as u64));
    put(&mut image, LOADER_AT, LOADER.as_bytes());
    put(&mut image, STRINGS_AT, LIBRARY);
    // One bucket and one chain, both empty: the program offers no symbol.
    put(
        &mut image,
        HASH_AT,
        &[1_u32, 1, 0, 0].map(u32::to_le_bytes).concat(),
    );
    let code = match part {
        Part::Execl => EXECL,
        Part::Spawn => SPAWN,
    };
    put(&mut image, CODE_AT, code);
    image.extend(dynamic);
    image
}

fn put(image: &mut [u8], at: u64, bytes: &[u8]) {
    let at = usize_of(at);
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("offsets in a small file fit")
}

/// elf(5), `Elf64_Ehdr`: a position-independent program for x86-64.
fn file_header() -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([3_u16, 62].map(u16::to_le_bytes).concat());
    header.extend(1_u32.to_le_bytes());
    header.extend([CODE_AT, 64, 0].map(u64::to_le_bytes).concat());
    header.extend(0_u32.to_le_bytes());
    header.extend([64_u16, 56, 6, 64, 0, 0].map(u16::to_le_bytes).concat());
    header
}

/// elf(5), `Elf64_Phdr`.
fn program_headers(dynamic: u64) -> Vec<u8> {
    const READ: u32 = 4;
    const WRITE: u32 = 2;
    const EXECUTE: u32 = 1;
    let header = |kind: u32, flags: u32, [offset, address, in_file, in_memory, align]: [u64; 5]| {
        let words = [offset, address, address, in_file, in_memory, align];
        [
            [kind, flags].map(u32::to_le_bytes).concat(),
            words.map(u64::to_le_bytes).concat(),
        ]
        .concat()
    };
    let loader = LOADER.len() as u64 + 1;
    let table = HEADERS * 56;
    [
        header(6, READ, [64, 64, table, table, 8]),
        header(3, READ, [LOADER_AT, LOADER_AT, loader, loader, 1]),
        header(1, READ | EXECUTE, [0, 0, TEXT, TEXT, 0x1000]),
        header(
            1,
            READ | WRITE,
            [TEXT, DATA_AT, dynamic, dynamic + ZEROED, 0x1000],
        ),
        header(2, READ | WRITE, [TEXT, DATA_AT, dynamic, dynamic, 8]),
        header(0x6474_e551, READ | WRITE, [0, 0, 0, 0, 16]),
    ]
    .concat()
}

/// elf(5), `Elf64_Dyn`: the library that is needed, and the tables that the loader reads.
fn dynamic() -> Vec<u8> {
    let strings = LIBRARY.len() as u64;
    [
        [1, 1],
        [4, HASH_AT],
        [5, STRINGS_AT],
        [6, SYMBOLS_AT],
        [10, strings],
        [11, 24],
        [21, 0],
        [0, 0],
    ]
    .concat()
    .into_iter()
    .flat_map(u64::to_le_bytes)
    .collect()
}

/// Takes one from the count in its first argument and executes itself with the same arguments; with the
/// count at zero it ends.
#[rustfmt::skip]
const EXECL: &[u8] = &[
    0x48, 0x8b, 0x5c, 0x24, 0x10,                      // 0x00 mov rbx,QWORD PTR [rsp+0x10]
    0x48, 0x8d, 0x4b, 0x07,                            // 0x05 lea rcx,[rbx+0x7]
    0x80, 0x39, 0x30,                                  // 0x09 cmp BYTE PTR [rcx],0x30
    0x75, 0x14,                                        // 0x0c jne 22
    0xc6, 0x01, 0x39,                                  // 0x0e mov BYTE PTR [rcx],0x39
    0x48, 0xff, 0xc9,                                  // 0x11 dec rcx
    0x48, 0x39, 0xd9,                                  // 0x14 cmp rcx,rbx
    0x73, 0xf0,                                        // 0x17 jae 9
    0x31, 0xff,                                        // 0x19 xor edi,edi
    0xb8, 0x3c, 0x00, 0x00, 0x00,                      // 0x1b mov eax,0x3c
    0x0f, 0x05,                                        // 0x20 syscall
    0xfe, 0x09,                                        // 0x22 dec BYTE PTR [rcx]
    0x48, 0x8b, 0x7c, 0x24, 0x08,                      // 0x24 mov rdi,QWORD PTR [rsp+0x8]
    0x48, 0x8d, 0x74, 0x24, 0x08,                      // 0x29 lea rsi,[rsp+0x8]
    0x48, 0x8b, 0x04, 0x24,                            // 0x2e mov rax,QWORD PTR [rsp]
    0x48, 0x8d, 0x54, 0xc4, 0x10,                      // 0x32 lea rdx,[rsp+rax*8+0x10]
    0xb8, 0x3b, 0x00, 0x00, 0x00,                      // 0x37 mov eax,0x3b
    0x0f, 0x05,                                        // 0x3c syscall
    0xf7, 0xd8,                                        // 0x3e neg eax
    0x89, 0xc7,                                        // 0x40 mov edi,eax
    0xb8, 0x3c, 0x00, 0x00, 0x00,                      // 0x42 mov eax,0x3c
    0x0f, 0x05,                                        // 0x47 syscall
];

/// As often as its first argument says: clone(2) as the C library's fork calls it, and wait4(2) for a child
/// that must end with 0.
#[rustfmt::skip]
const SPAWN: &[u8] = &[
    0x48, 0x8b, 0x5c, 0x24, 0x10,                      // 0x00 mov rbx,QWORD PTR [rsp+0x10]
    0x48, 0x8d, 0x4b, 0x07,                            // 0x05 lea rcx,[rbx+0x7]
    0x80, 0x39, 0x30,                                  // 0x09 cmp BYTE PTR [rcx],0x30
    0x75, 0x0f,                                        // 0x0c jne 1d
    0xc6, 0x01, 0x39,                                  // 0x0e mov BYTE PTR [rcx],0x39
    0x48, 0xff, 0xc9,                                  // 0x11 dec rcx
    0x48, 0x39, 0xd9,                                  // 0x14 cmp rcx,rbx
    0x73, 0xf0,                                        // 0x17 jae 9
    0x31, 0xff,                                        // 0x19 xor edi,edi
    0xeb, 0x4d,                                        // 0x1b jmp 6a
    0xfe, 0x09,                                        // 0x1d dec BYTE PTR [rcx]
    0xbf, 0x11, 0x00, 0x20, 0x01,                      // 0x1f mov edi,0x1200011
    0x31, 0xf6,                                        // 0x24 xor esi,esi
    0x31, 0xd2,                                        // 0x26 xor edx,edx
    0x4c, 0x8d, 0x54, 0x24, 0xc0,                      // 0x28 lea r10,[rsp-0x40]
    0x45, 0x31, 0xc0,                                  // 0x2d xor r8d,r8d
    0xb8, 0x38, 0x00, 0x00, 0x00,                      // 0x30 mov eax,0x38
    0x0f, 0x05,                                        // 0x35 syscall
    0x85, 0xc0,                                        // 0x37 test eax,eax
    0x78, 0x2b,                                        // 0x39 js 66
    0x74, 0x34,                                        // 0x3b je 71
    0x48, 0xc7, 0xc7, 0xff, 0xff, 0xff, 0xff,          // 0x3d mov rdi,0xffffffffffffffff
    0x48, 0x8d, 0x74, 0x24, 0xb8,                      // 0x44 lea rsi,[rsp-0x48]
    0x31, 0xd2,                                        // 0x49 xor edx,edx
    0x45, 0x31, 0xd2,                                  // 0x4b xor r10d,r10d
    0xb8, 0x3d, 0x00, 0x00, 0x00,                      // 0x4e mov eax,0x3d
    0x0f, 0x05,                                        // 0x53 syscall
    0x85, 0xc0,                                        // 0x55 test eax,eax
    0x78, 0x0d,                                        // 0x57 js 66
    0x8b, 0x44, 0x24, 0xb8,                            // 0x59 mov eax,DWORD PTR [rsp-0x48]
    0x85, 0xc0,                                        // 0x5d test eax,eax
    0x74, 0xa4,                                        // 0x5f je 5
    0xb8, 0xb9, 0xff, 0xff, 0xff,                      // 0x61 mov eax,0xffffffb9
    0xf7, 0xd8,                                        // 0x66 neg eax
    0x89, 0xc7,                                        // 0x68 mov edi,eax
    0xb8, 0x3c, 0x00, 0x00, 0x00,                      // 0x6a mov eax,0x3c
    0x0f, 0x05,                                        // 0x6f syscall
    0x31, 0xff,                                        // 0x71 xor edi,edi
    0xb8, 0xe7, 0x00, 0x00, 0x00,                      // 0x73 mov eax,0xe7
    0x0f, 0x05,                                        // 0x78 syscall
];
