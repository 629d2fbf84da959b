//! Each target of `fuzz/` on its committed corpus, and on mutations of it for a moment.
//!
//! A seed whose name begins with `refused-` must be refused, each other one accepted. `TOLLGATE_FUZZ_SECONDS=N` fuzzes each
//! target for so long, from a new number on; `TOLLGATE_FUZZ_SEED=N` begins at that one.

mod lists;
mod made;
mod made_files;
mod parsers;

use std::any::Any;
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use fuzzing::{Mutator, Outcome, TARGETS, Target, each_target, mutate_capture};

/// Time for the mutations of each target in the usual tests.
const USUAL: Duration = Duration::from_millis(200);
/// Longest time for one input. The longest of the corpus take some hundredths of it, in a debug build on a busy machine.
const LATE: Duration = Duration::from_secs(8);
/// Most memory for one input, in bytes.
const MEMORY: u64 = 128 << 20;

/// Returns the folder `fuzz` of the repository.
fn fuzz_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Returns the seeds of a target with their names, in the order of these.
fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = fuzz_folder().join("corpus").join(name);
    let files =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut seeds: Vec<_> = files
        .map(|file| {
            let file = file.expect("a file");
            let name = file.file_name().into_string().expect("a plain name");
            (name, fs::read(file.path()).expect("it can be read"))
        })
        .collect();
    seeds.sort();
    seeds
}

/// Runs the target within the bounds of time and memory, and returns what does not hold.
fn tried(target: Target, input: &[u8]) -> Result<Outcome, String> {
    let begin = Instant::now();
    let mut outcome = None;
    let used = allocation_counter::measure(|| {
        outcome = Some(catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    });
    let took = begin.elapsed();
    let outcome = outcome
        .expect("it was run")
        .map_err(|panic| said(&*panic))?;
    if took > LATE {
        return Err(format!("it takes {took:?}"));
    }
    if used.bytes_max > MEMORY {
        return Err(format!("it takes {} bytes of memory", used.bytes_max));
    }
    Ok(outcome)
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panics").to_owned()
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Returns the time for mutations, and the number of the first one. The usual tests try the same ones each time.
fn plan() -> (Duration, u64) {
    let seconds = number("TOLLGATE_FUZZ_SECONDS");
    let begin = match seconds {
        None => 0,
        Some(_) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.expect("a clock after 1970").as_secs() << 24
        }
    };
    let begin = number("TOLLGATE_FUZZ_SEED").unwrap_or(begin);
    (seconds.map_or(USUAL, Duration::from_secs), begin)
}

fn fuzz(target: Target) {
    let name = target.name;
    let corpus = corpus(name);
    for (seed, bytes) in &corpus {
        let expected = match seed.starts_with("refused-") {
            true => Outcome::Refused,
            false => Outcome::Accepted,
        };
        let outcome = tried(target, bytes).unwrap_or_else(|why| panic!("{name}/{seed}: {why}"));
        assert_eq!(outcome, expected, "{name}/{seed}");
    }
    let seeds: Vec<Vec<u8>> = corpus.into_iter().map(|(_, bytes)| bytes).collect();
    let max_len = match name {
        "capture" | "engine_state" => 12288,
        _ => 4096,
    };
    let mutator = Mutator::new(&seeds, max_len);
    let (time, first) = plan();
    let until = Instant::now() + time;
    let mut inputs = 0;
    for number in first.. {
        // One in sixteen captures is corrupted without regard to its blocks.
        let input = match name == "capture" && number % 16 != 0 {
            true => mutate_capture(mutator.seed_of(number), max_len, number),
            false => mutator.input(number),
        };
        if let Err(why) = tried(target, &input) {
            let file = env::temp_dir().join(format!("tollgate-fuzz-{name}-{number}"));
            fs::write(&file, &input).expect("the input can be written");
            panic!(
                "{name}: {why}\ninput {number}, which is in {}\nhelp: TOLLGATE_FUZZ_SEED={number} repeats it",
                file.display()
            );
        }
        inputs += 1;
        if Instant::now() > until {
            break;
        }
    }
    println!("{name}: {inputs} inputs from {first} on");
}

macro_rules! tests {
    ($($name:ident),*) => {
        mod targets {
            use super::{TARGETS, fuzz};

            $(
                #[test]
                fn $name() {
                    let target = TARGETS.iter().find(|target| target.name == stringify!($name));
                    fuzz(*target.expect("it is in the table"));
                }
            )*
        }
    };
}

each_target!(tests);
