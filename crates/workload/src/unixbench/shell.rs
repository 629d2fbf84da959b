//! Shell scripts, one or eight at once (UnixBench `shell1`, `shell8`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;
use crate::load::expect_count;
use crate::measure::{Batch, Setup};

/// Number of lines of UnixBench's text, and of those that hold the searched word.
const LINES: usize = 362;
const HITS: usize = 35;

/// The locale that UnixBench sets, because the number of locale files that each tool opens makes a huge
/// difference. Where the locale is not installed, tools search for it and go on without it.
pub const LANGUAGE: &str = "en_US.utf8";

/// The work of one script: sort, dump, sort again, search, count, remove.
const WORK: &str = "\
sort > sort.$$ < $1
od sort.$$ | sort -n -k 1 > od.$$
grep the sort.$$ | tee grep.$$ | wc > wc.$$
rm sort.$$ grep.$$ od.$$ wc.$$
";

/// Script that starts `$1` of them and waits.
const STARTER: &str = "\
instance=1
while [ $instance -le $1 ]; do
    /bin/sh work.sh text &
    instance=$(($instance + 1))
done
wait
";

pub(crate) fn prepare_one(setup: &Setup) -> Result<Batch, Error> {
    prepare(setup, "1")
}

pub(crate) fn prepare_eight(setup: &Setup) -> Result<Batch, Error> {
    prepare(setup, "8")
}

fn prepare(setup: &Setup, scripts: &'static str) -> Result<Batch, Error> {
    let folder = tempfile::tempdir_in(setup.scratch()).map_err(Error::call("make a folder"))?;
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).map_err(Error::file("write", &path))
    };
    write("text", &text())?;
    write("work.sh", WORK)?;
    write("starter.sh", STARTER)?;
    try_once(folder.path())?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            run(folder.path(), &["starter.sh".into(), scripts.into()])?;
        }
        let left = std::fs::read_dir(folder.path()).map_err(Error::call("list a folder"))?;
        expect_count(
            "files, what the scripts made being removed",
            3,
            left.count(),
        )
    }))
}

fn shell(folder: &Path) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell
        .current_dir(folder)
        .env("LANG", LANGUAGE)
        .env_remove("LC_ALL")
        .stdin(Stdio::null());
    shell
}

/// Checks before the clock runs that the tools exist and give the expected results.
fn try_once(folder: &Path) -> Result<(), Error> {
    let output = shell(folder)
        .args([
            "-c",
            "sort < text | od | sort -n -k 1 | wc -l && sort < text | grep the | wc -l",
        ])
        .output()
        .map_err(Error::call("start /bin/sh"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut counts = said.split_whitespace();
    let dumped = counts.next().and_then(|count| count.parse::<usize>().ok());
    let found = counts.next().and_then(|count| count.parse::<usize>().ok());
    if output.status.success() && dumped > Some(1) && found == Some(HITS) {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Unexpected {
        expected: format!("sort, od, grep and wc to find {HITS} lines"),
        got: format!("{said:?} {complaint:?}"),
    })
}

fn run(folder: &Path, arguments: &[PathBuf]) -> Result<(), Error> {
    let status = shell(folder)
        .args(arguments)
        .status()
        .map_err(Error::call("start /bin/sh"))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Unexpected {
        expected: "exit status 0 of the script".to_owned(),
        got: status.to_string(),
    })
}

/// Makes a text with as many lines, words and bytes as UnixBench's, to within one percent.
fn text() -> String {
    let line = |number: usize| {
        let key = number * 211 % 1009;
        // Spread evenly: line n has the word if n * 35 / 362 increases there.
        let is_hit = (number + 1) * HITS / LINES > number * HITS / LINES;
        let word = if is_hit { "the" } else { "any" };
        let third = if number.is_multiple_of(3) {
            "toll g"
        } else {
            "tollgt"
        };
        format!("{key:05} {word} {third} {:05}\n", key * key % 99_991)
    };
    (0..LINES).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_the_shape_of_the_original() {
        let text = text();
        assert_eq!(text.lines().count(), LINES);
        assert_eq!(
            text.lines().filter(|line| line.contains("the")).count(),
            HITS
        );
        assert!((8300..8700).contains(&text.len()), "{}", text.len());
    }
}
