//! Reads the initial stack of a new program: its arguments and the name it was started by.
//!
//! Layout (fs/binfmt_elf.c, `create_elf_tables`), upwards from the stack pointer: `argc`; pointers to the
//! arguments, a null; pointers to the environment, a null; pairs of the auxiliary vector, the last of type 0;
//! a random gap; the arguments, the environment and the name. One read of memory suffices for almost all programs, and
//! two for all others, where `/proc` needs to open a file for each of the two.

use event::{Comm, CommandLine, Pid};
use sys::process_memory;

use process_info::procfs::split_command_line;

/// Size of the first read, in bytes. Holds the pointers of all but programs with hundreds of arguments or variables, and
/// the texts of those with a few dozen. The gap may have 8 KiB (`arch_align_stack`).
const STACK_SIZE: usize = 16 * 1024;
/// Maximum number of bytes of pointers that are looked at.
const POINTERS_SIZE: usize = 4 * 1024;
/// Maximum number of bytes of arguments, environment and name.
const TEXTS_SIZE: usize = 8 * 1024;
/// Key of the name given to execve(2) in the auxiliary vector (getauxval(3)).
const AT_EXECFN: u64 = 31;

/// Arguments and name of a program that has not run yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialStack {
    /// The arguments.
    pub command_line: CommandLine,
    /// The name the program was started by; `None` if the environment is so large that it was not read.
    pub name: Option<Vec<u8>>,
}

impl InitialStack {
    /// Reads the stack of a process that this thread holds at the exec. Never blocks, because these pages are
    /// fresh. Returns `None` if the stack cannot be read or exceeds the sizes read here.
    pub fn read(pid: Pid) -> Option<Self> {
        let stop = sys::ptrace::syscall_info(pid.0).ok()?;
        // An x32 program looks like a 64-bit one; its stack fails to parse.
        let width = abi::Arch::from_audit(stop.arch, 0)?.pointer_bytes();
        let mut bytes = [0; STACK_SIZE];
        let count = process_memory::read(pid.0, stop.sp, &mut bytes).ok()?;
        let stack = &bytes[..count];
        let pointers = Pointers::parse(&stack[..count.min(POINTERS_SIZE)], width)?;
        // A read that ended early reached the end of the stack.
        let is_whole = count < STACK_SIZE;
        if let Some(texts) = pointers.texts(stack, stop.sp, is_whole) {
            return pointers.follow(texts);
        }
        let mut texts = [0; TEXTS_SIZE];
        let count = process_memory::read(pid.0, pointers.arguments, &mut texts).ok()?;
        pointers.follow(&texts[..count])
    }

    /// Derives the command name from the name and the path of the executable. Returns `None` if they differ
    /// (links, scripts, descriptors): then only the kernel knows. Another process can change the memory, but
    /// not to a name that the executable does not have.
    pub fn comm(&self, executable: &[u8]) -> Option<Comm> {
        let name = last_component(self.name.as_deref()?);
        (!name.is_empty() && name == last_component(executable)).then(|| Comm::new(name))
    }
}

fn last_component(path: &[u8]) -> &[u8] {
    let start = path.iter().rposition(|byte| *byte == b'/');
    start.map_or(path, |start| &path[start + 1..])
}

/// Addresses of the texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointers {
    /// Number of arguments, never 0: Linux 5.18 gives a program without any an empty one.
    count: usize,
    /// Address of the first argument; the others follow it.
    arguments: u64,
    /// Address of the name.
    name: u64,
}

impl Pointers {
    fn parse(stack: &[u8], width: usize) -> Option<Self> {
        let mut words = stack.chunks_exact(width).map(|word| {
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(word);
            u64::from_le_bytes(wide)
        });
        let count = usize::try_from(words.next()?).ok()?;
        let arguments = words.next()?;
        if count == 0 || words.nth(count - 1)? != 0 {
            return None;
        }
        // A null ends the environment, too.
        words.by_ref().find(|word| *word == 0)?;
        loop {
            match (words.next()?, words.next()?) {
                (0, _) => return None,
                (AT_EXECFN, name) => {
                    return Some(Self {
                        count,
                        arguments,
                        name,
                    });
                }
                _ => {}
            }
        }
    }

    /// Returns the texts if they are in `stack`, which was read from `address` on: as many as are looked at, or all that
    /// there are.
    fn texts<'s>(&self, stack: &'s [u8], address: u64, is_whole: bool) -> Option<&'s [u8]> {
        let start = usize::try_from(self.arguments.checked_sub(address)?).ok()?;
        let texts = stack.get(start..)?;
        (is_whole || texts.len() >= TEXTS_SIZE).then(|| &texts[..texts.len().min(TEXTS_SIZE)])
    }

    /// Reads arguments and name from `texts`, which starts at the first argument.
    fn follow(&self, texts: &[u8]) -> Option<InitialStack> {
        let ends = texts.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let (last, _) = ends.clone().nth(self.count - 1)?;
        let name_at = usize::try_from(self.name.checked_sub(self.arguments)?).ok()?;
        Some(InitialStack {
            command_line: split_command_line(&texts[..=last], false),
            name: texts.get(name_at..).and_then(c_string).map(<[u8]>::to_vec),
        })
    }
}

fn c_string(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(&bytes[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXTS: u64 = 0x7fff_0000;

    /// Builds pointers and texts as the kernel lays them out.
    fn stack(width: usize, args: &[&str], env: &[&str], name: &str) -> (Vec<u8>, Vec<u8>) {
        let mut texts = Vec::new();
        let mut place = |text: &str| {
            let at = TEXTS + texts.len() as u64;
            texts.extend_from_slice(text.as_bytes());
            texts.push(0);
            at
        };
        let mut words = vec![args.len() as u64];
        words.extend(args.iter().map(|text| place(text)));
        words.push(0);
        words.extend(env.iter().map(|text| place(text)));
        words.push(0);
        words.extend([6, 4096, AT_EXECFN, place(name), 0, 0]);
        let words = words
            .iter()
            .flat_map(|word| word.to_le_bytes()[..width].to_vec());
        (words.collect(), texts)
    }

    #[test]
    fn arguments_and_name_are_found_at_both_widths() {
        for width in [4, 8] {
            for env in [&["A=1", "B="][..], &[]] {
                let (words, texts) = stack(width, &["sh", "", "-c x"], env, "/bin/sh");
                let pointers = Pointers::parse(&words, width).unwrap();
                let found = pointers.follow(&texts).unwrap();
                assert_eq!(found.command_line.exe, b"sh");
                assert_eq!(found.command_line.args, [b"".to_vec(), b"-c x".to_vec()]);
                assert_eq!(found.name.as_deref(), Some(&b"/bin/sh"[..]));
                assert_eq!(found.comm(b"/usr/bin/sh"), Some(Comm::new(b"sh")));
                assert_eq!(found.comm(b"/usr/bin/dash"), None, "a link");
            }
        }
    }

    #[test]
    fn what_was_not_read_is_never_made_up() {
        let (words, texts) = stack(8, &["sh", "long argument"], &["A=1"], "/bin/sh");
        let whole = Pointers::parse(&words, 8).unwrap();
        for length in 0..words.len() {
            let found = Pointers::parse(&words[..length], 8);
            assert!(found.is_none_or(|found| found == whole), "at {length}");
        }
        let all = whole.follow(&texts).unwrap();
        for length in 0..texts.len() {
            if let Some(found) = whole.follow(&texts[..length]) {
                assert_eq!(found.command_line, all.command_line, "at {length}");
                assert_eq!(found.name, None, "at {length}");
            }
        }
    }

    #[test]
    fn texts_are_taken_from_the_first_read_only_if_it_has_all_that_the_second_would() {
        let (words, texts) = stack(8, &["sh", "-c"], &["A=1"], "/bin/sh");
        let pointers = Pointers::parse(&words, 8).unwrap();
        let address = TEXTS - words.len() as u64;
        let stack = [&words[..], &texts].concat();
        assert_eq!(pointers.texts(&stack, address, true), Some(&texts[..]));
        assert_eq!(pointers.texts(&stack, address, false), None, "cut off");
        assert_eq!(pointers.texts(&words[..8], address, true), None, "beyond");
        assert_eq!(pointers.texts(&stack, TEXTS + 1, true), None, "below");
        let long = [&stack[..], &[b'x'; 2 * TEXTS_SIZE]].concat();
        let found = pointers.texts(&long, address, false).unwrap();
        assert_eq!(found.len(), TEXTS_SIZE);
        assert_eq!(pointers.follow(found), pointers.follow(&texts));
    }

    #[test]
    fn nonsense_is_refused() {
        let words = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|word| word.to_le_bytes()).collect()
        };
        for stack in [
            &[][..],
            &[0, 0, 0, AT_EXECFN, 8, 0, 0],
            &[u64::MAX, 1, 2, 3],
            &[1, 8, 0, 0, 0, 0],
            &[2, 8, 0, 0, AT_EXECFN, 8],
        ] {
            assert_eq!(Pointers::parse(&words(stack), 8), None, "{stack:?}");
        }
        let wild = Pointers::parse(&words(&[1, 8, 0, 0, AT_EXECFN, 4]), 8).unwrap();
        assert_eq!(wild.follow(b"x\0y\0"), None, "a name below the arguments");
    }
}
