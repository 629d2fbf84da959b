//! What a user has to be told while this agent runs: that the collector takes no alerts, and that it does again.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustls::CertificateError;
use ureq::http::StatusCode;

use crate::json;
use crate::net::client::HttpError;

/// Time after which failures are told that may pass: until the collector has once known this process, and later. A
/// collector that starts again is no news.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LATER_PATIENCE: Duration = Duration::from_secs(60);

/// The collector refuses to know this agent, and goes on refusing until a user acts.
#[derive(Debug, thiserror::Error)]
#[error("the collector answered {status} {why}")]
pub(super) struct NotEnrolled {
    /// The answer.
    pub(super) status: StatusCode,
    /// What the collector says about it.
    pub(super) why: String,
    /// The agent has a token. Otherwise it has a client certificate.
    pub(super) has_token: bool,
}

impl NotEnrolled {
    /// Returns true for answers that are a refusal.
    pub(super) fn is(status: StatusCode) -> bool {
        matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
    }

    fn next_step(&self) -> &'static str {
        match (self.has_token, self.status) {
            (true, _) => {
                "make a new token with `tollgate serve token create --agent-class CLASS`, and put it into the file of the old one"
            }
            // One that takes certificates refuses a wrong one with another status.
            (false, StatusCode::UNAUTHORIZED) => {
                "it asked for no client certificate; start it with --agent-ca"
            }
            (false, _) => "see `tollgate serve token list` for the names that are refused",
        }
    }
}

/// A file of this machine cannot be used, whatever the collector does.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {source}", path.display())]
pub(super) struct LocalError {
    verb: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl LocalError {
    /// Returns a function that says what could not be done with a file or folder.
    pub(super) fn of<'p>(
        verb: &'static str,
        path: &'p Path,
    ) -> impl FnOnce(io::Error) -> io::Error + 'p {
        move |source| {
            let path = path.to_owned();
            // Readers of errors ask for the kind, such as that of a full disk.
            io::Error::new(source.kind(), Self { verb, path, source })
        }
    }
}

/// How this agent stands with the collector.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// When the first of the failures was that nothing has interrupted.
    failing_since: Option<Instant>,
    /// The collector has known this process.
    was_known: bool,
    /// What the user knows of the failures; `None` for nothing.
    told: Option<AlertOutcome>,
    /// What the user does not know yet.
    news: Option<String>,
}

/// What becomes of alerts meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AlertOutcome {
    /// They wait on disk.
    Wait,
    /// They are lost.
    Lost,
}

impl Standing {
    /// Notes that alerts could not be sent. It is news once: at once if only the user can change it, otherwise when the
    /// failures last. `spool` is the folder in which the alerts wait, if it could be opened.
    pub(super) fn fails(&mut self, error: &io::Error, spool: Option<&Path>, now: Instant) {
        let since = *self.failing_since.get_or_insert(now);
        let next_step = next_step(error);
        let patience = match self.was_known {
            true => LATER_PATIENCE,
            false => FIRST_PATIENCE,
        };
        let outcome = spool.map_or(AlertOutcome::Lost, |_| AlertOutcome::Wait);
        if self.told == Some(outcome) || next_step.is_none() && now.duration_since(since) < patience
        {
            return;
        }
        self.told = Some(outcome);
        let (cause, usual_step) = match is_local(error) {
            true => (
                with_causes(error),
                "it is of this machine, not of the collector; this goes on trying",
            ),
            false => (
                error.to_string(),
                "see whether it runs and can be reached; this goes on trying",
            ),
        };
        // The cause may be words of a server.
        let cause = json::shown(&cause);
        let next_step = next_step.unwrap_or(usual_step);
        self.news = Some(match spool {
            Some(spool) => {
                let spool = spool.display();
                format!("the collector gets no alerts, they wait in {spool}: {cause}; {next_step}")
            }
            None => format!("the collector gets no alerts, they are lost: {cause}; {next_step}"),
        });
    }

    /// Notes that the collector has every alert.
    pub(super) fn works(&mut self) {
        if self.told.is_some() {
            self.news = Some("the collector gets alerts now".to_owned());
        }
        *self = Self {
            was_known: true,
            news: self.news.take(),
            ..Self::default()
        };
    }

    /// Returns what the user does not know yet, once.
    pub(super) fn news(&mut self) -> Option<String> {
        self.news.take()
    }
}

/// Returns true if a file of this machine is the cause.
fn is_local(error: &io::Error) -> bool {
    let mut causes = causes(error);
    // The latter: of the files of a client certificate, which are read again after a renewal.
    causes.any(|cause| cause.is::<LocalError>() || cause.is::<HttpError>())
}

/// Returns an error with its causes, those left out that it names itself.
fn with_causes(error: &io::Error) -> String {
    let mut text = error.to_string();
    for cause in causes(error).skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Returns an error and those that caused it.
fn causes(error: &io::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |error| inner(*error))
}

/// Returns what a user can do about an error that does not pass by itself.
fn next_step(error: &io::Error) -> Option<&'static str> {
    for error in causes(error) {
        if let Some(refused) = error.downcast_ref::<NotEnrolled>() {
            return Some(refused.next_step());
        }
        if let Some(rustls::Error::InvalidCertificate(problem)) = error.downcast_ref() {
            return Some(match problem {
                // The second: a trusted issuer of the same name, as those of two collectors, has another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    "if it is the right one, trust its certificate with --collector-ca FILE"
                }
                _ => {
                    "its certificate has to be replaced, or the URL is not that of the certificate"
                }
            });
        }
    }
    None
}

/// Returns the error inside of another: those of the standard library and of the HTTP client skip it as their source.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.get_ref().map(|inner| inner as _);
    }
    match error.downcast_ref::<ureq::Error>() {
        Some(ureq::Error::Io(inner)) => Some(inner),
        Some(ureq::Error::Rustls(inner)) => Some(inner),
        Some(ureq::Error::Other(inner)) => Some(&**inner),
        Some(_) => None,
        None => error.source(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> io::Error {
        io::Error::other(NotEnrolled {
            status: StatusCode::UNAUTHORIZED,
            why: "the token is not known".to_owned(),
            has_token: true,
        })
    }

    fn gone() -> io::Error {
        io::Error::from(io::ErrorKind::ConnectionRefused)
    }

    /// What is told after failures at these times, in seconds.
    fn told(standing: &mut Standing, error: &io::Error, seconds: &[u64]) -> Vec<Option<String>> {
        let begin = Instant::now();
        let mut told = Vec::new();
        for seconds in seconds {
            let now = begin + Duration::from_secs(*seconds);
            standing.fails(error, Some(Path::new("/spool")), now);
            told.push(standing.news());
        }
        told
    }

    #[test]
    fn a_refusal_is_told_once_and_so_is_its_end() {
        let mut standing = Standing::default();
        let told = told(&mut standing, &refused(), &[0, 1, 100]);
        let text = told[0].as_deref().expect("it is told at once");
        let begin = "the collector gets no alerts, they wait in /spool: the collector answered 401 Unauthorized \
                     the token is not known; make a new token with ";
        assert!(text.starts_with(begin), "{text}");
        assert_eq!(told[1..], [None, None]);
        standing.works();
        assert_eq!(
            standing.news().as_deref(),
            Some("the collector gets alerts now")
        );
        standing.works();
        assert_eq!(standing.news(), None);
    }

    #[test]
    fn a_collector_that_is_not_there_is_told_after_some_seconds_and_later_after_a_minute() {
        let mut standing = Standing::default();
        let is_told =
            |told: Vec<Option<String>>| told.iter().map(Option::is_some).collect::<Vec<_>>();
        let first = told(&mut standing, &gone(), &[0, 4, 5, 6]);
        assert!(
            first[2]
                .as_ref()
                .is_some_and(|text| text.ends_with("this goes on trying"))
        );
        assert_eq!(is_told(first), [false, false, true, false]);
        standing.works();
        assert!(standing.news().is_some());
        let later = told(&mut standing, &gone(), &[0, 59, 60, 200]);
        assert_eq!(is_told(later), [false, false, true, false]);
    }

    /// Counterpart: what passes before it is told is no news at all.
    #[test]
    fn a_collector_that_starts_a_little_later_is_no_news() {
        let mut standing = Standing::default();
        assert_eq!(told(&mut standing, &gone(), &[0, 4]), [None, None]);
        standing.works();
        assert_eq!(standing.news(), None);
    }

    /// What is told of a failure that lasts.
    fn lasting(error: &io::Error, spool: Option<&Path>) -> String {
        let mut standing = Standing::default();
        let begin = Instant::now();
        standing.fails(error, spool, begin);
        assert_eq!(standing.news(), None);
        standing.fails(error, spool, begin + FIRST_PATIENCE);
        standing.news().expect("it is told")
    }

    #[test]
    fn a_file_of_this_machine_is_told_by_its_path_and_the_collector_is_not_blamed() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let error = LocalError::of("write", Path::new("/spool/0/identity.json"))(full());
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let text = lasting(&error, Some(Path::new("/spool")));
        let expected = format!(
            "the collector gets no alerts, they wait in /spool: cannot write /spool/0/identity.json: {}; it is of this \
             machine, not of the collector; this goes on trying",
            full()
        );
        assert_eq!(text, expected);
        let key = HttpError::Tls(crate::net::tls::TlsError::Read {
            path: "/a.key".into(),
            source: full(),
        });
        let text = lasting(&io::Error::other(key), Some(Path::new("/spool")));
        let cause = format!(": cannot read /a.key: {}; it is of this machine", full());
        assert!(text.contains(&cause), "{text}");
    }

    #[test]
    fn alerts_wait_only_if_there_is_a_spool_and_that_they_do_later_is_news() {
        let error = LocalError::of("open the spool", Path::new("/spool"))(gone());
        let text = lasting(&error, None);
        let begin = "the collector gets no alerts, they are lost: cannot open the spool /spool: ";
        assert!(text.starts_with(begin), "{text}");
        let mut standing = Standing::default();
        let begin_at = Instant::now();
        let later = begin_at + FIRST_PATIENCE;
        standing.fails(&error, None, begin_at);
        standing.fails(&error, None, later);
        assert!(standing.news().is_some_and(|text| text.starts_with(begin)));
        let spool = Some(Path::new("/spool"));
        for is_told in [true, false] {
            standing.fails(&gone(), spool, later);
            let news = standing.news();
            assert_eq!(
                news.is_some_and(|text| text.contains("they wait in /spool: ")),
                is_told
            );
        }
    }

    #[test]
    fn certificates_that_are_not_trusted_are_found_however_they_are_wrapped() {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let errors = [
            io::Error::other(unknown()),
            io::Error::other(io::Error::other(unknown())),
            io::Error::other(ureq::Error::Other(Box::new(unknown()))),
            io::Error::other(ureq::Error::Rustls(unknown())),
        ];
        for error in errors {
            let step = next_step(&error).expect("a user has to act");
            assert!(step.ends_with("--collector-ca FILE"), "{step}");
        }
        let expired = rustls::Error::InvalidCertificate(CertificateError::Expired);
        assert!(next_step(&io::Error::other(expired)).is_some());
        assert_eq!(next_step(&gone()), None);
    }
}
