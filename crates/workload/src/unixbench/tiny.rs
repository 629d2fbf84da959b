//! A program of a few hundred bytes of code, dynamically linked to the C library as C programs are.
//!
//! The cost of fork and exec depends on the size of the program that makes them, and above all on how many
//! pages it touches: in a virtual machine a page fault costs microseconds. UnixBench's programs are small C
//! programs. This one has their shape (segments as a linker lays them out, the loader, the C library's start-up
//! code and functions, 8 KiB of zeroed memory), so that the cost is not that of this large program, and no
//! compiler is needed at run time.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::Error;

/// The operation of the program, repeated as often as its first argument says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Executes itself again.
    Execl,
    /// Forks a child that ends at once, and waits for it.
    Spawn,
}

/// Returns the argument for `times`: the code counts the eight digits down to zero.
pub(super) fn count(times: u64) -> String {
    // Batches are far smaller.
    format!("{:08}", times.min(99_999_999))
}

const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const LIBRARY: &str = "libc.so.6";

/// Functions of the C library, in the order in which the code finds their addresses.
const IMPORTED: [&str; 7] = [
    "__libc_start_main",
    "fork",
    "wait",
    "exit",
    "execv",
    "time",
    "sprintf",
];

/// Page size. The file is laid out as by a linker: headers and tables, code, constants, data, each on a page of
/// its own.
const PAGE: u64 = 0x1000;
const CODE_AT: u64 = PAGE;
const MAIN_AT: u64 = CODE_AT + 0x40;
const CONSTANTS_AT: u64 = 2 * PAGE;
/// Address of the table of imported functions, which the loader fills in and then protects.
const ADDRESSES_AT: u64 = 5 * PAGE;
const DYNAMIC_AT: u64 = ADDRESSES_AT + 0x100;
/// Address of the writable data: a page, and 8 KiB that are not in the file.
const DATA_AT: u64 = ADDRESSES_AT + PAGE;
const END: u64 = DATA_AT + PAGE;
const ZEROED: u64 = 8 * 1024;

const HEADERS: u64 = 9;
const LOADER_AT: u64 = 64 + HEADERS * 56;
const STRINGS_AT: u64 = LOADER_AT + 32;
const SYMBOLS_AT: u64 = STRINGS_AT + 0x80;
const HASH_AT: u64 = SYMBOLS_AT + 8 * 24;
const RELOCATIONS_AT: u64 = HASH_AT + 0x40;

/// Writes the program to `path`.
pub(super) fn write(path: &Path, part: Part) -> Result<(), Error> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Architecture);
    }
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
    let main = match part {
        Part::Execl => EXECL,
        Part::Spawn => SPAWN,
    };
    let (strings, names) = strings();
    let mut image = vec![0; usize_of(END)];
    for (at, bytes) in [
        (0, file_header()),
        (64, program_headers()),
        (LOADER_AT, LOADER.as_bytes().to_vec()),
        (HASH_AT, hash()),
        (SYMBOLS_AT, symbols(&names)),
        (RELOCATIONS_AT, relocations()),
        (CODE_AT, START.to_vec()),
        (MAIN_AT, main.to_vec()),
        (DYNAMIC_AT, dynamic(strings.len() as u64)),
        (STRINGS_AT, strings),
    ] {
        let at = usize_of(at);
        image[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    image
}

fn usize_of(number: u64) -> usize {
    usize::try_from(number).expect("offsets in a small file fit")
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Makes the file header, elf(5) `Elf64_Ehdr`: a position-independent program for x86-64.
fn file_header() -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    header.extend([3_u16, 62].map(u16::to_le_bytes).concat());
    header.extend(1_u32.to_le_bytes());
    header.extend(words(&[CODE_AT, 64, 0]));
    header.extend(0_u32.to_le_bytes());
    header.extend([64_u16, 56, 9, 64, 0, 0].map(u16::to_le_bytes).concat());
    header
}

/// Makes the program headers, elf(5) `Elf64_Phdr`.
fn program_headers() -> Vec<u8> {
    const READ: u32 = 4;
    const WRITE: u32 = 2;
    const EXECUTE: u32 = 1;
    const LOAD: u32 = 1;
    const RELRO: u32 = 0x6474_e552;
    const STACK: u32 = 0x6474_e551;
    let header = |kind: u32, flags: u32, at: u64, in_file: u64, in_memory: u64, align: u64| {
        let mut header = [kind, flags].map(u32::to_le_bytes).concat();
        header.extend(words(&[at, at, at, in_file, in_memory, align]));
        header
    };
    let same = |kind, flags, at, size, align| header(kind, flags, at, size, size, align);
    let data = END - ADDRESSES_AT;
    [
        same(6, READ, 64, HEADERS * 56, 8),
        same(3, READ, LOADER_AT, LOADER.len() as u64 + 1, 1),
        same(LOAD, READ, 0, PAGE, PAGE),
        same(LOAD, READ | EXECUTE, CODE_AT, PAGE, PAGE),
        same(LOAD, READ, CONSTANTS_AT, PAGE, PAGE),
        header(LOAD, READ | WRITE, ADDRESSES_AT, data, data + ZEROED, PAGE),
        same(2, READ | WRITE, DYNAMIC_AT, 16 * 12, 8),
        same(RELRO, READ, ADDRESSES_AT, PAGE, 1),
        same(STACK, READ | WRITE, 0, 0, 16),
    ]
    .concat()
}

/// Makes the string table: the names of the library and its functions, each ended by a zero. Also returns the
/// offset of each name.
fn strings() -> (Vec<u8>, Vec<u32>) {
    let mut strings = vec![0];
    let mut places = Vec::new();
    for name in std::iter::once(&LIBRARY).chain(&IMPORTED) {
        places.push(u32::try_from(strings.len()).expect("a few names"));
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    (strings, places)
}

/// Makes the symbol table, elf(5) `Elf64_Sym`: undefined functions. The first symbol is the null symbol.
fn symbols(names: &[u32]) -> Vec<u8> {
    const GLOBAL_FUNCTION: u8 = 0x12;
    let mut symbols = vec![0; 24];
    for name in &names[1..] {
        symbols.extend(name.to_le_bytes());
        symbols.extend([GLOBAL_FUNCTION, 0, 0, 0]);
        symbols.extend(words(&[0, 0]));
    }
    symbols
}

/// Makes the hash table: one empty bucket, and a link for each symbol, because the program exports none.
fn hash() -> Vec<u8> {
    let symbols = u32::try_from(IMPORTED.len() + 1).expect("a few names");
    let mut hash = [1, symbols, 0].map(u32::to_le_bytes).concat();
    hash.extend(vec![0; IMPORTED.len() * 4 + 4]);
    hash
}

/// Makes the relocations, elf(5) `Elf64_Rela`: one for the address of each function.
fn relocations() -> Vec<u8> {
    const GLOBAL_DATA: u64 = 6;
    (1_u64..)
        .zip(IMPORTED)
        .flat_map(|(symbol, _)| {
            words(&[
                ADDRESSES_AT + (symbol - 1) * 8,
                symbol << 32 | GLOBAL_DATA,
                0,
            ])
        })
        .collect()
}

/// Makes the dynamic section, elf(5) `Elf64_Dyn`: the needed library, and the tables that the loader reads.
fn dynamic(strings: u64) -> Vec<u8> {
    const BIND_NOW: u64 = 8;
    let relocations = IMPORTED.len() as u64 * 24;
    words(
        &[
            [1, 1],
            [4, HASH_AT],
            [5, STRINGS_AT],
            [6, SYMBOLS_AT],
            [7, RELOCATIONS_AT],
            [8, relocations],
            [9, 24],
            [10, strings],
            [11, 24],
            [30, BIND_NOW],
            [21, 0],
            [0, 0],
        ]
        .concat(),
    )
}

/// Start-up code as in C: passes `main`, the arguments and the loader's exit function to `__libc_start_main`.
#[rustfmt::skip]
const START: &[u8] = &[
    0x31, 0xed,                                                  // 0x1000 xor ebp,ebp
    0x49, 0x89, 0xd1,                                            // 0x1002 mov r9,rdx
    0x5e,                                                        // 0x1005 pop rsi
    0x48, 0x89, 0xe2,                                            // 0x1006 mov rdx,rsp
    0x48, 0x83, 0xe4, 0xf0,                                      // 0x1009 and rsp,0xfffffffffffffff0
    0x50,                                                        // 0x100d push rax
    0x54,                                                        // 0x100e push rsp
    0x45, 0x31, 0xc0,                                            // 0x100f xor r8d,r8d
    0x31, 0xc9,                                                  // 0x1012 xor ecx,ecx
    0x48, 0x8d, 0x3d, 0x25, 0x00, 0x00, 0x00,                    // 0x1014 lea rdi,[rip+0x25]
    0xff, 0x15, 0xdf, 0x3f, 0x00, 0x00,                          // 0x101b call __libc_start_main
    0xf4,                                                        // 0x1021 hlt
];

/// `main`: reads the time, prints it into a buffer, decrements the count in its first argument and executes
/// itself with the same arguments. At count zero it returns 0.
#[rustfmt::skip]
const EXECL: &[u8] = &[
    0x53,                                                        // 0x1040 push rbx
    0x48, 0x83, 0xec, 0x30,                                      // 0x1041 sub rsp,0x30
    0x48, 0x89, 0xf3,                                            // 0x1045 mov rbx,rsi
    0x31, 0xff,                                                  // 0x1048 xor edi,edi
    0xff, 0x15, 0xd8, 0x3f, 0x00, 0x00,                          // 0x104a call time
    0x48, 0x89, 0xc2,                                            // 0x1050 mov rdx,rax
    0xc7, 0x04, 0x24, 0x25, 0x6c, 0x75, 0x00,                    // 0x1053 mov DWORD PTR [rsp],0x756c25
    0x48, 0x89, 0xe6,                                            // 0x105a mov rsi,rsp
    0x48, 0x8d, 0x7c, 0x24, 0x10,                                // 0x105d lea rdi,[rsp+0x10]
    0x31, 0xc0,                                                  // 0x1062 xor eax,eax
    0xff, 0x15, 0xc6, 0x3f, 0x00, 0x00,                          // 0x1064 call sprintf
    0x48, 0x8b, 0x53, 0x08,                                      // 0x106a mov rdx,QWORD PTR [rbx+0x8]
    0x48, 0x8d, 0x4a, 0x07,                                      // 0x106e lea rcx,[rdx+0x7]
    0x80, 0x39, 0x30,                                            // 0x1072 cmp BYTE PTR [rcx],0x30
    0x75, 0x0f,                                                  // 0x1075 jne 1086
    0xc6, 0x01, 0x39,                                            // 0x1077 mov BYTE PTR [rcx],0x39
    0x48, 0xff, 0xc9,                                            // 0x107a dec rcx
    0x48, 0x39, 0xd1,                                            // 0x107d cmp rcx,rdx
    0x73, 0xf0,                                                  // 0x1080 jae 1072
    0x31, 0xc0,                                                  // 0x1082 xor eax,eax
    0xeb, 0x13,                                                  // 0x1084 jmp 1099
    0xfe, 0x09,                                                  // 0x1086 dec BYTE PTR [rcx]
    0x48, 0x8b, 0x3b,                                            // 0x1088 mov rdi,QWORD PTR [rbx]
    0x48, 0x89, 0xde,                                            // 0x108b mov rsi,rbx
    0xff, 0x15, 0x8c, 0x3f, 0x00, 0x00,                          // 0x108e call execv
    0xb8, 0x48, 0x00, 0x00, 0x00,                                // 0x1094 mov eax,0x48
    0x48, 0x83, 0xc4, 0x30,                                      // 0x1099 add rsp,0x30
    0x5b,                                                        // 0x109d pop rbx
    0xc3,                                                        // 0x109e ret
];

/// `main`: as often as its first argument says, calls fork(3), and wait(3) for a child that calls exit(3) and
/// must end with 0.
#[rustfmt::skip]
const SPAWN: &[u8] = &[
    0x53,                                                        // 0x1040 push rbx
    0x48, 0x83, 0xec, 0x10,                                      // 0x1041 sub rsp,0x10
    0x48, 0x8b, 0x5e, 0x08,                                      // 0x1045 mov rbx,QWORD PTR [rsi+0x8]
    0x48, 0x8d, 0x4b, 0x07,                                      // 0x1049 lea rcx,[rbx+0x7]
    0x80, 0x39, 0x30,                                            // 0x104d cmp BYTE PTR [rcx],0x30
    0x75, 0x0f,                                                  // 0x1050 jne 1061
    0xc6, 0x01, 0x39,                                            // 0x1052 mov BYTE PTR [rcx],0x39
    0x48, 0xff, 0xc9,                                            // 0x1055 dec rcx
    0x48, 0x39, 0xd9,                                            // 0x1058 cmp rcx,rbx
    0x73, 0xf0,                                                  // 0x105b jae 104d
    0x31, 0xc0,                                                  // 0x105d xor eax,eax
    0xeb, 0x27,                                                  // 0x105f jmp 1088
    0xfe, 0x09,                                                  // 0x1061 dec BYTE PTR [rcx]
    0xff, 0x15, 0x9f, 0x3f, 0x00, 0x00,                          // 0x1063 call fork
    0x85, 0xc0,                                                  // 0x1069 test eax,eax
    0x78, 0x16,                                                  // 0x106b js 1083
    0x74, 0x1f,                                                  // 0x106d je 108e
    0x48, 0x89, 0xe7,                                            // 0x106f mov rdi,rsp
    0xff, 0x15, 0x98, 0x3f, 0x00, 0x00,                          // 0x1072 call wait
    0x85, 0xc0,                                                  // 0x1078 test eax,eax
    0x78, 0x07,                                                  // 0x107a js 1083
    0x8b, 0x04, 0x24,                                            // 0x107c mov eax,DWORD PTR [rsp]
    0x85, 0xc0,                                                  // 0x107f test eax,eax
    0x74, 0xc6,                                                  // 0x1081 je 1049
    0xb8, 0x47, 0x00, 0x00, 0x00,                                // 0x1083 mov eax,0x47
    0x48, 0x83, 0xc4, 0x10,                                      // 0x1088 add rsp,0x10
    0x5b,                                                        // 0x108c pop rbx
    0xc3,                                                        // 0x108d ret
    0x31, 0xff,                                                  // 0x108e xor edi,edi
    0xff, 0x15, 0x82, 0x3f, 0x00, 0x00,                          // 0x1090 call exit
];
