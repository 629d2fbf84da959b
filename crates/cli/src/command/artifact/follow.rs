//! `tollgate artifact follow`: installs newer versions as soon as a registry has them.

use std::thread;
use std::time::Duration;

use artifact::{ArtifactError, Installer, Wanted};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use jiff::Timestamp;

use super::args::Follow;
use super::check::RuleCheck;
use super::{done_text, failed, installer, wanted};

/// Shortest interval: each round asks the registry for each artefact.
const SHORTEST: Duration = Duration::from_secs(1);
/// Wait after the first failure in a row. It doubles up to the interval.
const FIRST_WAIT: Duration = Duration::from_secs(10);

/// An artefact that is followed.
struct Followed {
    text: String,
    wanted: Wanted,
    /// Failures in a row.
    failures: u32,
    /// Time until it is asked for again.
    wait: Duration,
}

pub(super) fn execute(args: &Follow) -> Outcome {
    let every = interval(&args.every)?;
    let installer = installer(&args.trust, &args.registry, &args.rules)?;
    if args.trust.allow_unsigned {
        say("warning: no signature is looked for (--allow-unsigned)");
    }
    let mut all = Vec::new();
    for text in &args.artifacts {
        let wanted = wanted(text)?;
        // A name that no index has, and what cannot be installed, is a mistake now and later.
        let reference = installer.resolve(&wanted).map_err(|error| failed(&error))?;
        if reference.digest.is_some() {
            let message = format!("cannot follow `{text}`: a digest never changes");
            return Err(Failure::new(Exit::BadInput, message)
                .help("name a tag, or use `tollgate artifact install`"));
        }
        all.push(Followed {
            text: text.clone(),
            wanted,
            failures: 0,
            wait: Duration::ZERO,
        });
    }
    loop {
        for followed in &mut all {
            if followed.wait.is_zero() {
                followed.ask(&installer, every);
            }
        }
        let next = all
            .iter()
            .map(|followed| followed.wait)
            .min()
            .unwrap_or(every);
        thread::sleep(next);
        for followed in &mut all {
            followed.wait = followed.wait.saturating_sub(next);
        }
    }
}

impl Followed {
    fn ask(&mut self, installer: &Installer<'_>, every: Duration) {
        let result = installer.install(&self.wanted, &RuleCheck);
        self.wait = self.next_wait(result.is_err(), every);
        match result {
            Err(error) => self.complain(&error),
            Ok(done) if done.steps.is_empty() => {}
            Ok(done) => say(done_text(&done).trim_end()),
        }
    }

    /// Returns the time until the next question.
    fn next_wait(&mut self, failed: bool, every: Duration) -> Duration {
        if !failed {
            self.failures = 0;
            return every;
        }
        let doublings = self.failures.min(20);
        self.failures = self.failures.saturating_add(1);
        FIRST_WAIT.saturating_mul(1 << doublings).min(every)
    }

    fn complain(&self, error: &ArtifactError) {
        let failure = failed(error);
        say(&format!(
            "{}: {}; next try in {} s",
            self.text,
            failure.message(),
            self.wait.as_secs()
        ));
    }
}

fn say(text: &str) {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    terminal::complain(&format!("{now} {text}\n"));
}

/// Parses a number and a unit.
fn interval(text: &str) -> Result<Duration, Failure> {
    let wrong = || {
        let message =
            format!("invalid interval `{text}`: expected a number and a unit, such as 30s or 6h");
        Failure::new(Exit::BadInput, message)
            .help("units are s, m, h and d; the shortest interval is 1s")
    };
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86400,
        _ => return Err(wrong()),
    };
    let number = text.strip_suffix(unit).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    let interval = Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
    match interval < SHORTEST || interval > Duration::from_secs(366 * 86400) {
        true => Err(wrong()),
        false => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_tried_again_ever_later_and_never_later_than_the_interval() {
        let every = Duration::from_secs(60);
        let mut followed = Followed {
            text: "a".to_owned(),
            wanted: Wanted::parse("a").expect("it is a name"),
            failures: 0,
            wait: Duration::ZERO,
        };
        let mut waits = |failed: &[bool]| -> Vec<u64> {
            let waits = failed
                .iter()
                .map(|failed| followed.next_wait(*failed, every).as_secs());
            waits.collect()
        };
        assert_eq!(waits(&[true, true, true, true, true]), [10, 20, 40, 60, 60]);
        assert_eq!(waits(&[false, true]), [60, 10]);
    }

    #[test]
    fn an_interval_has_a_unit_and_bounds() {
        assert_eq!(
            interval("90s").expect("it is good"),
            Duration::from_secs(90)
        );
        assert_eq!(
            interval("2h").expect("it is good"),
            Duration::from_secs(7200)
        );
        for bad in [
            "",
            "h",
            "0s",
            "5",
            "-1s",
            "9999d",
            "99999999999999999999d",
            "1w",
            "1ss",
        ] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
