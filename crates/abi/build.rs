//! Generates Rust tables from `data/calls.txt` and `data/flags/*.txt`, so that start-up parses nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Marks an absent number or a call without a base; no table comes near this size.
const NONE: u16 = u16::MAX;
/// The architectures, in the column order of `data/calls.txt`.
const ARCHES: [&str; 5] = ["X86_64", "X32", "I386", "AARCH64", "ARM"];
/// First number of the calls that only 32-bit Arm has, which have a table of their own: `__ARM_NR_BASE`.
const ARM_PRIVATE: u32 = 0xf_0000;

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=data");
    let sets = read_flag_sets(&root.join("data/flags"));
    let calls = read_calls(&root.join("data/calls.txt"), &sets);
    fs::write(out.join("flags.rs"), flag_tables(&sets)).expect("OUT_DIR is writable");
    fs::write(out.join("calls.rs"), call_tables(&calls)).expect("OUT_DIR is writable");
    fs::write(out.join("constants.rs"), constants(&sets)).expect("OUT_DIR is writable");
    for (set, of) in [("errno", "Errno"), ("signal", "Signal")] {
        let text = numbers(of, &sets[set]);
        fs::write(out.join(format!("{set}.rs")), text).expect("OUT_DIR is writable");
    }
}

struct Call {
    name: String,
    numbers: [Option<u32>; ARCHES.len()],
    base: Option<String>,
    event: Option<String>,
    args: Vec<String>,
}

fn read_calls(path: &Path, sets: &BTreeMap<String, FlagFile>) -> Vec<Call> {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut calls = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let call = parse_call(line, sets)
            .unwrap_or_else(|cause| panic!("{}:{}: {cause}", path.display(), index + 1));
        calls.push(call);
    }
    assert!(
        calls.is_sorted_by(|a: &Call, b| a.name < b.name),
        "{}: names must be sorted and unique",
        path.display()
    );
    calls
}

fn parse_call(line: &str, sets: &BTreeMap<String, FlagFile>) -> Result<Call, String> {
    let mut words = line.split_whitespace();
    let name = words.next().ok_or("no name")?.to_owned();
    let mut numbers = [None; ARCHES.len()];
    for slot in &mut numbers {
        let word = words
            .next()
            .ok_or("a number for each architecture is needed")?;
        if word != "-" {
            *slot = Some(
                word.parse()
                    .map_err(|e| format!("bad number `{word}`: {e}"))?,
            );
        }
    }
    let mut call = Call {
        name,
        numbers,
        base: None,
        event: None,
        args: Vec::new(),
    };
    for word in words {
        if let Some(base) = word.strip_prefix('=') {
            call.base = Some(base.to_owned());
        } else if let Some(event) = word.strip_prefix("event=") {
            call.event = Some(event.to_owned());
        } else {
            call.args.push(argument_expression(word, sets)?);
        }
    }
    if call.args.len() > 6 {
        return Err("more than six arguments".to_owned());
    }
    Ok(call)
}

fn argument_expression(word: &str, sets: &BTreeMap<String, FlagFile>) -> Result<String, String> {
    let (name, kind) = word
        .split_once(':')
        .ok_or_else(|| format!("`{word}` has no kind"))?;
    let (kind, low32) = kind_expression(kind, sets)?;
    let width = if low32 { "Low32" } else { "Full64" };
    Ok(format!(
        "ArgSpec {{ name: {name:?}, kind: {kind}, width: RegisterWidth::{width} }}"
    ))
}

/// Returns the Rust expression of a kind, and whether the kernel truncates the register to 32 bits.
fn kind_expression(
    kind: &str,
    sets: &BTreeMap<String, FlagFile>,
) -> Result<(String, bool), String> {
    let plain = |variant: &str, low32: bool| Ok((format!("ArgKind::{variant}"), low32));
    match kind {
        "fd" => return plain("Fd", true),
        "dirfd" => return plain("DirFd", true),
        "path" => return plain("Path", false),
        "text" => return plain("Text", false),
        "buffer" => return plain("Buffer", false),
        "i32" => return plain("Int32", true),
        "u32" => return plain("Uint32", true),
        "i64" => return plain("Int64", false),
        "u64" => return plain("Uint64", false),
        "size" => return plain("Size", false),
        "ptr" => return plain("Pointer", false),
        "mode" => return plain("Mode", true),
        "pid" => return plain("Pid", true),
        "uid" => return plain("Uid", true),
        "gid" => return plain("Gid", true),
        "signal" => return plain("Signal", true),
        "sockaddr" => return plain("Sockaddr", false),
        "sockaddr_len" => return plain("SockaddrLen", true),
        "argv" => return plain("Argv", false),
        "envp" => return plain("Envp", false),
        _ => {}
    }
    let (class, name) = kind
        .split_once('.')
        .ok_or_else(|| format!("unknown kind `{kind}`"))?;
    if class == "struct" {
        return Ok((format!("ArgKind::Struct({name:?})"), false));
    }
    if !sets.contains_key(name) {
        return Err(format!("no data/flags/{name}.txt for `{kind}`"));
    }
    let (variant, low32) = match class {
        "flags" => ("Flags", true),
        "flags64" => ("Flags", false),
        "enum" => ("Enum", true),
        "enum64" => ("Enum", false),
        _ => return Err(format!("unknown kind `{kind}`")),
    };
    Ok((
        format!("ArgKind::{variant}(&crate::flags::{})", name.to_uppercase()),
        low32,
    ))
}

fn call_tables(calls: &[Call]) -> String {
    let mut out = String::from("// Generated by build.rs from data/calls.txt.\n");
    let index_of = |name: &str| {
        let found = calls.iter().position(|c| c.name == name);
        found.unwrap_or_else(|| panic!("data/calls.txt: no call `{name}` to be a base"))
    };
    table(
        &mut out,
        "NAMES",
        "&str",
        calls.iter().map(|c| format!("{:?}", c.name)),
    );
    table(
        &mut out,
        "EVENT_NAMES",
        "&str",
        calls.iter().map(|c| {
            let own = c.event.as_ref().or(c.base.as_ref()).unwrap_or(&c.name);
            format!("{own:?}")
        }),
    );
    table(
        &mut out,
        "BASES",
        "u16",
        calls.iter().map(|c| {
            let base = c.base.as_deref().map_or(usize::from(NONE), index_of);
            base.to_string()
        }),
    );
    table(
        &mut out,
        "NUMBERS",
        &format!("[u32; {}]", ARCHES.len()),
        calls
            .iter()
            .map(|c| format!("{:?}", c.numbers.map(|n| n.unwrap_or(u32::MAX)))),
    );
    table(
        &mut out,
        "ARGS",
        "&[ArgSpec]",
        calls.iter().map(|c| format!("&[{}]", c.args.join(", "))),
    );
    reverse_tables(&mut out, calls);
    out.push_str("impl Syscall {\n");
    for (index, call) in calls.iter().enumerate() {
        let (name, constant) = (&call.name, call.name.to_uppercase());
        writeln!(
            out,
            "/// `{name}`\npub const {constant}: Self = Self({index});"
        )
        .expect("writing to a String cannot fail");
    }
    out.push_str("}\n");
    out
}

fn table(out: &mut String, name: &str, kind: &str, rows: impl ExactSizeIterator<Item = String>) {
    let len = rows.len();
    let rows: String = rows.map(|row| row + ",\n").collect();
    writeln!(out, "static {name}: [{kind}; {len}] = [\n{rows}];")
        .expect("writing to a String cannot fail");
}

/// Generates the tables from numbers to calls: those below the private numbers of Arm, and those.
fn reverse_tables(out: &mut String, calls: &[Call]) {
    for (arch, label) in ARCHES.iter().enumerate() {
        let of_arch = || numbered(calls, arch);
        let common = of_arch().filter(|(number, _)| *number < ARM_PRIVATE);
        reverse_table(out, label, common.collect(), calls);
        let private = of_arch().filter_map(|(number, index)| {
            let offset = number.checked_sub(ARM_PRIVATE)?;
            Some((offset, index))
        });
        reverse_table(out, &format!("{label}_PRIVATE"), private.collect(), calls);
    }
}

/// Returns the numbers of an architecture, with the indices of their calls.
fn numbered(calls: &[Call], arch: usize) -> impl Iterator<Item = (u32, usize)> {
    let all = calls.iter().enumerate();
    all.filter_map(move |(index, call)| call.numbers[arch].map(|number| (number, index)))
}

fn reverse_table(out: &mut String, label: &str, numbered: Vec<(u32, usize)>, calls: &[Call]) {
    let as_index = |number: u32| usize::try_from(number).expect("a number has 32 bits");
    let ends = numbered.iter().map(|(number, _)| as_index(*number) + 1);
    let mut slots = vec![usize::from(NONE); ends.max().unwrap_or(0)];
    for (number, index) in numbered {
        let slot = &mut slots[as_index(number)];
        assert!(
            *slot == usize::from(NONE),
            "data/calls.txt: {label} number {number} belongs to two calls: {} and {}",
            calls[*slot].name,
            calls[index].name
        );
        *slot = index;
    }
    table(
        out,
        &format!("BY_{label}"),
        "u16",
        slots.iter().map(ToString::to_string),
    );
}

struct FlagFile {
    source: String,
    style: String,
    entries: Vec<FlagRow>,
}

struct FlagRow {
    name: String,
    generic: u64,
    aarch64: u64,
    field: u64,
}

fn read_flag_sets(folder: &Path) -> BTreeMap<String, FlagFile> {
    let mut sets = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("data/flags exists") {
        let path = entry.expect("data/flags is readable").path();
        let stem = path
            .file_stem()
            .and_then(|s| s.to_str())
            .expect("file names are UTF-8");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        sets.insert(stem.to_owned(), parse_flag_file(&path, &text));
    }
    sets
}

fn parse_flag_file(path: &Path, text: &str) -> FlagFile {
    let at = |index: usize| format!("{}:{}", path.display(), index + 1);
    let source = text.lines().next().and_then(|l| l.strip_prefix("# From "));
    let source = source.unwrap_or_else(|| panic!("{}: must begin with `# From `", at(0)));
    let mut file = FlagFile {
        source: source.to_owned(),
        style: String::new(),
        entries: Vec::new(),
    };
    let mut field = 0;
    for (index, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [style @ ("flags" | "enum")] => file.style = (*style).to_owned(),
            ["bits"] => field = 0,
            ["field", mask] => field = number(mask, &at(index)),
            [name, value, arch @ ..] => {
                let generic = number(value, &at(index));
                let aarch64 = match arch {
                    [] => generic,
                    [one] => {
                        let value = one.strip_prefix("aarch64=");
                        number(
                            value.unwrap_or_else(|| panic!("{}: `{one}`", at(index))),
                            one,
                        )
                    }
                    _ => panic!("{}: too many words", at(index)),
                };
                file.entries.push(FlagRow {
                    name: (*name).to_owned(),
                    generic,
                    aarch64,
                    field,
                });
            }
            [_] => panic!("{}: a name needs a value", at(index)),
        }
    }
    assert!(
        !file.style.is_empty(),
        "{}: no line `flags` or `enum`",
        path.display()
    );
    file
}

fn number(text: &str, at: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|e| panic!("{at}: bad number `{text}`: {e}"))
}

/// Generates the rows of a file as associated constants of the type `of`.
fn numbers(of: &str, file: &FlagFile) -> String {
    let mut out = format!("// Generated by build.rs from data/flags/.\nimpl {of} {{\n");
    for FlagRow { name, generic, .. } in &file.entries {
        writeln!(
            out,
            "/// `{name}`.\npub const {name}: Self = Self({generic});"
        )
        .expect("writing to a String cannot fail");
    }
    out + "}\n"
}

/// Generates a constant for every other name, with its values.
fn constants(sets: &BTreeMap<String, FlagFile>) -> String {
    let is_typed = |row: &FlagRow| {
        let sets = [&sets["errno"], &sets["signal"]];
        let mut typed = sets.into_iter().flat_map(|set| &set.entries);
        typed.any(|known| known.name == row.name)
    };
    let mut found = BTreeMap::new();
    for (set, file) in sets {
        for row in file.entries.iter().filter(|row| !is_typed(row)) {
            let values = (row.generic, row.aarch64);
            let known = *found.entry(row.name.as_str()).or_insert(values);
            assert_eq!(known, values, "data/flags/{set}.txt: {}", row.name);
        }
    }
    let mut out = String::from("// Generated by build.rs from data/flags/.\n");
    for (name, (generic, aarch64)) in found {
        writeln!(
            out,
            "/// `{name}`.\npub const {name}: Constant = Constant::new({generic:#x}, {aarch64:#x});"
        )
        .expect("writing to a String cannot fail");
    }
    out
}

fn flag_tables(sets: &BTreeMap<String, FlagFile>) -> String {
    let mut out = String::from("// Generated by build.rs from data/flags/.\n");
    for (name, file) in sets {
        let style = if file.style == "enum" { "Enum" } else { "Bits" };
        writeln!(out, "/// Names of `{name}` values, from {}.", file.source)
            .expect("writing to a String cannot fail");
        writeln!(
            out,
            "pub static {}: FlagSet = FlagSet {{ name: {name:?}, style: Style::{style}, entries: &[",
            name.to_uppercase()
        )
        .expect("writing to a String cannot fail");
        for row in &file.entries {
            let FlagRow {
                name,
                generic,
                aarch64,
                field,
            } = row;
            writeln!(
                out,
                "Flag {{ name: {name:?}, generic: {generic:#x}, aarch64: {aarch64:#x}, field: {field:#x} }},"
            )
            .expect("writing to a String cannot fail");
        }
        out.push_str("] };\n");
    }
    let names: Vec<String> = sets
        .keys()
        .map(|n| format!("&{}", n.to_uppercase()))
        .collect();
    writeln!(
        out,
        "static ALL: [&FlagSet; {}] = [{}];",
        names.len(),
        names.join(", ")
    )
    .expect("writing to a String cannot fail");
    out
}
