//! Parser of NUL-separated texts: `cmdline` and `environ`.

use event::CommandLine;

/// Splits `argv` at its terminators. An empty argument is an argument; the terminator of the last argument
/// starts no further one.
pub fn split_command_line(bytes: &[u8], truncated: bool) -> CommandLine {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let mut parts = bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec);
    let exe = parts.next().unwrap_or_default();
    CommandLine {
        exe,
        args: parts.collect(),
        truncated,
    }
}
