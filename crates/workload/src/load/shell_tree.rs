//! Eight shell scripts at once, each of which runs some small tools on a small text.
//!
//! The work is that of UnixBench's `shell8`: 72 processes for one operation, most of the time in fork and exec.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::expect_count;
use crate::Error;
use crate::measure::{Batch, Setup};

const SCRIPTS: usize = 8;

/// Number of lines. UnixBench's text has 362 lines and 8546 bytes; this one has the same size.
const LINES: usize = 362;

/// The word that the scripts search for, in every seventh line.
const WORD: &str = "toll";

/// The script. `$1` is the text, `$$` keeps the scripts apart. The last line checks the work.
const SCRIPT: &str = "\
set -e
sort < \"$1\" > sorted.$$
od sorted.$$ | sort -n -k 1 > od.$$
grep toll sorted.$$ | tee found.$$ | wc -l > count.$$
cat count.$$ >> counts
rm sorted.$$ od.$$ found.$$ count.$$
";

/// Prepares the load in the C locale, so that the work does not depend on the caller's locale.
pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    prepare_in(setup, "C")
}

/// Prepares the load in a locale for which every program reads 26 more files.
pub(crate) fn prepare_utf8(setup: &Setup) -> Result<Batch, Error> {
    prepare_in(setup, "C.UTF-8")
}

fn prepare_in(setup: &Setup, locale: &'static str) -> Result<Batch, Error> {
    let folder = tempfile::tempdir_in(setup.scratch()).map_err(Error::call("make a folder"))?;
    let (text, script) = (folder.path().join("text"), folder.path().join("script.sh"));
    write(&text, &text_to_sort())?;
    write(&script, SCRIPT)?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            run_all(folder.path(), &script, &text, locale)?;
        }
        Ok(())
    }))
}

fn run_all(folder: &Path, script: &PathBuf, text: &PathBuf, locale: &str) -> Result<(), Error> {
    let counts = folder.join("counts");
    write(&counts, "")?;
    let start = |_| {
        Command::new("/bin/sh")
            .args([script, text])
            .env("LC_ALL", locale)
            .current_dir(folder)
            .stdin(Stdio::null())
            .spawn()
            .map_err(Error::call("start /bin/sh"))
    };
    let scripts: Vec<Result<Child, Error>> = (0..SCRIPTS).map(start).collect();
    let mut succeeded = 0;
    for script in scripts {
        let status = script?.wait().map_err(Error::call("wait for /bin/sh"))?;
        succeeded += usize::from(status.success());
    }
    expect_count("successful scripts", SCRIPTS, succeeded)?;
    let counted = fs::read_to_string(&counts).map_err(|source| Error::File {
        action: "read",
        path: counts,
        source,
    })?;
    let right = (LINES / 7).to_string();
    expect_count(
        "right counts",
        SCRIPTS,
        counted.lines().filter(|n| n.trim() == right).count(),
    )
}

/// Makes lines in an order that gives sort work to do.
fn text_to_sort() -> String {
    let line = |number: usize| {
        let key = number * 211 % 1009;
        let word = if number % 7 == 6 { WORD } else { "gate" };
        format!("{key:04} {word} {:013}\n", key * key)
    };
    (0..LINES).map(line).collect()
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::File {
        action: "write",
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_as_large_as_the_original() {
        let text = text_to_sort();
        assert_eq!(text.lines().count(), LINES);
        assert!((8400..8700).contains(&text.len()), "{}", text.len());
        assert_eq!(
            text.lines().filter(|line| line.contains(WORD)).count(),
            LINES / 7
        );
    }
}
